/* Which tokens may be next. See matcher.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A frame is a step of the grammar and the frame at which its rule goes on when it returns: a stack
 * is its last frame, and stacks share what they have in common. A state is a set of frames, all of
 * which wait for a byte, but for frame 0: nothing is left to be read. State 0 is the empty set: the
 * text does not fit. Frames and states are found by what they are, so equal ones are one.
 */
#include "engine_plugin/npc/matcher.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_STACKS = 1024,    /* of a state; */
    MOST_STATES = 1 << 15, /* and of those that are kept, */
    MOST_FRAMES = 1 << 20,
    STATES_KEPT = 4096, /* beyond which, between tokens, all but the last are forgotten */
    FRAMES_KEPT = 1 << 16,
    MASK_BYTES_KEPT = 4 << 20,
    SLOTS = 1 << 12 /* of hash tables, at first */
};
#define NONE UINT32_MAX
#define NOTHING 0u /* the frame */
#define MISFIT 0u  /* the state */
#define UNKNOWN UINT32_MAX

typedef struct frame {
    uint32_t step, below;
} frame;

typedef struct state {
    uint32_t first, count; /* of `stacks`, in rising order */
    uint64_t *mask;        /* NULL: not made yet */
    /* How many plain bytes fit, whichever they are: at least so many; or no more. */
    uint8_t plain;
    bool plain_most;
} state;

/* Numbers of frames or states by their hashes; UNKNOWN: an empty slot. */
typedef struct table {
    uint32_t *slots;
    uint32_t size, used;
} table;

struct td_matcher {
    const td_grammar *grammar;
    const td_token_tree *tree;
    uint32_t begin, now; /* states */

    frame *frames;
    uint32_t frame_count, frame_room;
    table by_frame;

    state *states;
    uint32_t *nexts; /* [states][classes of bytes]; UNKNOWN: not looked at yet */
    uint32_t state_count, state_room;
    table by_state;

    uint32_t *stacks; /* of all states */
    uint32_t stack_count, stack_room;
    uint64_t mask_bytes;
    uint32_t frames_left; /* when states were forgotten last */

    /* A state in the making. */
    uint32_t *ahead, *made; /* frames that are yet to be followed; those that wait for a byte */
    uint32_t ahead_count, ahead_room, made_count, made_room;
    uint32_t *seen; /* [frame_room]: in which making a frame was followed */
    uint32_t making;

    uint32_t *path;       /* [longest + 1]: states along a token's bytes */
    tandem_status status; /* once it is not OK, nothing more is found */
};

/* --- Memory --- */

static bool grow(td_matcher *m, void **array, uint32_t *room, uint32_t count, size_t bytes)
{
    if (count < *room)
        return true;
    const uint32_t more = 2 * *room + 64;
    void *grown = realloc(*array, more * bytes);
    if (!grown) {
        m->status = TANDEM_ERROR_NOMEM;
        return false;
    }
    *array = grown;
    *room = more;
    return true;
}

static bool push(td_matcher *m, uint32_t **list, uint32_t *count, uint32_t *room, uint32_t value)
{
    if (!grow(m, (void **)list, room, *count, sizeof **list))
        return false;
    (*list)[(*count)++] = value;
    return true;
}

static uint32_t mix(uint32_t hash, uint32_t value)
{
    hash = (hash ^ value) * 0x9e3779b1u;
    return hash ^ hash >> 15;
}

static uint32_t hash_frame(frame f)
{
    return mix(mix(1, f.step), f.below);
}

static uint32_t hash_stacks(const uint32_t *stacks, uint32_t count)
{
    uint32_t hash = count;

    for (uint32_t i = 0; i < count; i++)
        hash = mix(hash, stacks[i]);
    return hash;
}

static uint32_t hash_of(const td_matcher *m, const table *t, uint32_t number)
{
    if (t == &m->by_frame)
        return hash_frame(m->frames[number]);
    return hash_stacks(m->stacks + m->states[number].first, m->states[number].count);
}

static bool enter(td_matcher *m, table *t, uint32_t number)
{
    if (2 * t->used >= t->size) {
        const table old = *t;
        const uint32_t size = old.size ? 2 * old.size : SLOTS;
        uint32_t *slots = malloc(size * sizeof *slots);

        if (!slots) {
            m->status = TANDEM_ERROR_NOMEM;
            return false;
        }
        memset(slots, 0xff, size * sizeof *slots);
        *t = (table){slots, size, 0};
        for (uint32_t i = 0; i < old.size; i++)
            if (old.slots[i] != UNKNOWN)
                enter(m, t, old.slots[i]);
        free(old.slots);
    }
    uint32_t at = hash_of(m, t, number) & (t->size - 1);
    while (t->slots[at] != UNKNOWN)
        at = (at + 1) & (t->size - 1);
    t->slots[at] = number;
    t->used++;
    return true;
}

/* --- Frames and states --- */

static uint32_t find_frame(td_matcher *m, uint32_t step, uint32_t below)
{
    const frame wanted = {step, below};

    for (uint32_t at = hash_frame(wanted); m->by_frame.size; at++) {
        const uint32_t number = m->by_frame.slots[at & (m->by_frame.size - 1)];

        if (number == UNKNOWN)
            break;
        if (m->frames[number].step == step && m->frames[number].below == below)
            return number;
    }
    const uint32_t room = m->frame_room;
    if (m->frame_count == MOST_FRAMES)
        m->status = TANDEM_ERROR_UNSUPPORTED;
    if (m->status != TANDEM_OK ||
        !grow(m, (void **)&m->frames, &m->frame_room, m->frame_count, sizeof *m->frames))
        return NOTHING;
    if (m->frame_room > room) {
        uint32_t *seen = realloc(m->seen, m->frame_room * sizeof *seen);

        if (!seen) {
            m->frame_room = room;
            m->status = TANDEM_ERROR_NOMEM;
            return NOTHING;
        }
        memset(seen + room, 0, (m->frame_room - room) * sizeof *seen);
        m->seen = seen;
    }
    m->frames[m->frame_count] = wanted;
    return enter(m, &m->by_frame, m->frame_count) ? m->frame_count++ : NOTHING;
}

/* The state of the frames that are `made`. */
static uint32_t find_state(td_matcher *m)
{
    const uint32_t *stacks = m->made, count = m->made_count;
    const uint32_t classes = m->grammar->class_count;

    for (uint32_t at = hash_stacks(stacks, count); m->by_state.size; at++) {
        const uint32_t number = m->by_state.slots[at & (m->by_state.size - 1)];

        if (number == UNKNOWN)
            break;
        if (m->states[number].count == count &&
            !memcmp(m->stacks + m->states[number].first, stacks, count * sizeof *stacks))
            return number;
    }
    if (m->state_count == MOST_STATES || count > MOST_STACKS)
        m->status = TANDEM_ERROR_UNSUPPORTED;
    const uint32_t room = m->state_room;
    if (m->status != TANDEM_OK ||
        !grow(m, (void **)&m->states, &m->state_room, m->state_count, sizeof *m->states))
        return MISFIT;
    if (m->state_room > room) {
        uint32_t *nexts = realloc(m->nexts, (size_t)m->state_room * classes * sizeof *nexts);

        if (!nexts) {
            m->state_room = room;
            m->status = TANDEM_ERROR_NOMEM;
            return MISFIT;
        }
        m->nexts = nexts;
    }
    m->states[m->state_count] = (state){.first = m->stack_count, .count = count};
    for (uint32_t i = 0; i < count; i++)
        if (!push(m, &m->stacks, &m->stack_count, &m->stack_room, stacks[i]))
            return MISFIT;
    memset(m->nexts + (size_t)m->state_count * classes, 0xff, classes * sizeof *m->nexts);
    return enter(m, &m->by_state, m->state_count) ? m->state_count++ : MISFIT;
}

/* --- Where a byte leads --- */

static void ahead(td_matcher *m, uint32_t step, uint32_t below)
{
    const uint32_t number = find_frame(m, step, below);

    if (m->status != TANDEM_OK || m->seen[number] == m->making)
        return;
    m->seen[number] = m->making;
    push(m, &m->ahead, &m->ahead_count, &m->ahead_room, number);
}

/* Whether a rule's end is all that follows. */
static bool is_last(const td_grammar *g, uint32_t step)
{
    while (g->steps[step].op == TD_GRAMMAR_JUMP && g->steps[step].a > step)
        step = g->steps[step].a;
    return g->steps[step].op == TD_GRAMMAR_RETURN;
}

/* Up to where the next byte is read. A rule that is called last leaves nothing to come back to. */
static void follow(td_matcher *m, frame f)
{
    const td_grammar *g = m->grammar;
    const td_grammar_step *step = &g->steps[f.step];

    switch ((td_grammar_op)step->op) {
    case TD_GRAMMAR_SPLIT:
        ahead(m, step->a, f.below);
        ahead(m, step->b, f.below);
        return;
    case TD_GRAMMAR_JUMP:
        ahead(m, step->a, f.below);
        return;
    case TD_GRAMMAR_CALL: {
        const uint32_t below =
            is_last(g, f.step + 1) ? f.below : find_frame(m, f.step + 1, f.below);

        ahead(m, g->rules[step->a], below);
        return;
    }
    case TD_GRAMMAR_RETURN:
        if (f.below == NOTHING)
            push(m, &m->made, &m->made_count, &m->made_room, NOTHING);
        else
            ahead(m, m->frames[f.below].step, m->frames[f.below].below);
        return;
    case TD_GRAMMAR_BYTE:
        push(m, &m->made, &m->made_count, &m->made_room, find_frame(m, f.step, f.below));
        return;
    }
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The state of all that is ahead. */
static uint32_t make_state(td_matcher *m)
{
    uint32_t count = 0;

    while (m->ahead_count && m->status == TANDEM_OK) {
        follow(m, m->frames[m->ahead[--m->ahead_count]]);
        if (m->made_count > 4 * MOST_STACKS)
            m->status = TANDEM_ERROR_UNSUPPORTED;
    }
    if (m->status != TANDEM_OK)
        return MISFIT;
    if (m->made_count)
        qsort(m->made, m->made_count, sizeof *m->made, by_number);
    for (uint32_t i = 0; i < m->made_count; i++)
        if (!count || m->made[i] != m->made[count - 1])
            m->made[count++] = m->made[i];
    m->made_count = count;
    return find_state(m);
}

static void begin_making(td_matcher *m)
{
    m->making++;
    m->ahead_count = m->made_count = 0;
}

static bool reads(const td_grammar_step *step, uint8_t byte)
{
    return byte >= step->low && byte <= step->high;
}

/* The bytes around one at which the same frames of a state go on: low to high. */
static void find_alike(const td_matcher *m, uint32_t from, uint8_t byte, uint8_t *low,
                       uint8_t *high)
{
    const state *s = &m->states[from];

    *low = 0;
    *high = 255;
    for (uint32_t i = 0; i < s->count; i++) {
        const uint32_t number = m->stacks[s->first + i];
        const td_grammar_step *step = &m->grammar->steps[m->frames[number].step];

        if (number == NOTHING || step->low > step->high)
            continue;
        if (reads(step, byte)) {
            *low = step->low > *low ? step->low : *low;
            *high = step->high < *high ? step->high : *high;
        } else if (step->high < byte) {
            *low = step->high + 1 > *low ? (uint8_t)(step->high + 1) : *low;
        } else {
            *high = step->low - 1 < *high ? (uint8_t)(step->low - 1) : *high;
        }
    }
}

static uint32_t look(td_matcher *m, uint32_t from, uint8_t byte)
{
    const td_grammar *g = m->grammar;
    uint8_t low, high;

    begin_making(m);
    for (uint32_t i = 0; i < m->states[from].count; i++) {
        const uint32_t number = m->stacks[m->states[from].first + i];
        const frame f = m->frames[number];

        if (number != NOTHING && reads(&g->steps[f.step], byte))
            ahead(m, f.step + 1, f.below);
    }
    const uint32_t to = make_state(m);
    if (m->status != TANDEM_OK)
        return MISFIT;
    find_alike(m, from, byte, &low, &high);
    for (uint32_t c = g->class_of[low]; c <= g->class_of[high]; c++)
        m->nexts[(size_t)from * g->class_count + c] = to;
    return to;
}

static uint32_t next_state(td_matcher *m, uint32_t from, uint8_t byte)
{
    const uint32_t to =
        m->nexts[(size_t)from * m->grammar->class_count + m->grammar->class_of[byte]];

    return to != UNKNOWN ? to : look(m, from, byte);
}

/* --- Forgetting --- */

static void forget(td_matcher *m)
{
    for (uint32_t i = 0; i < m->state_count; i++)
        free(m->states[i].mask);
    for (uint32_t i = 0; i < m->by_frame.size; i++)
        m->by_frame.slots[i] = UNKNOWN;
    for (uint32_t i = 0; i < m->by_state.size; i++)
        m->by_state.slots[i] = UNKNOWN;
    m->by_frame.used = m->by_state.used = 0;
    m->frame_count = m->state_count = m->stack_count = 0;
    m->mask_bytes = 0;
}

/* Frame 0, state 0, and the state at which texts begin. */
static void make_first(td_matcher *m)
{
    find_frame(m, NONE, NONE);
    begin_making(m);
    find_state(m);
    ahead(m, m->grammar->rules[m->grammar->root], NOTHING);
    m->begin = make_state(m);
}

/* The frames of the last state and those below them, which all have lower numbers, are entered anew
 * in the same order. */
static void keep_last(td_matcher *m)
{
    const state last = m->states[m->now];
    const uint32_t count = m->frame_count;
    uint32_t *to = calloc(count, sizeof *to), *stacks = malloc((last.count + 1) * sizeof *stacks);
    frame *frames = malloc(count * sizeof *frames);

    if (to && stacks && frames) {
        memcpy(stacks, m->stacks + last.first, last.count * sizeof *stacks);
        memcpy(frames, m->frames, count * sizeof *frames);
        for (uint32_t i = 0; i < last.count; i++)
            to[stacks[i]] = 1;
        for (uint32_t i = count; i-- > 1;)
            if (to[i])
                to[frames[i].below] = 1;
        forget(m);
        make_first(m);
        to[NOTHING] = NOTHING;
        for (uint32_t i = 1; i < count && m->status == TANDEM_OK; i++)
            if (to[i])
                to[i] = find_frame(m, frames[i].step, to[frames[i].below]);
        begin_making(m);
        for (uint32_t i = 0; i < last.count && m->status == TANDEM_OK; i++)
            push(m, &m->made, &m->made_count, &m->made_room, to[stacks[i]]);
        m->now = m->status == TANDEM_OK ? make_state(m) : MISFIT;
        m->frames_left = m->frame_count;
    }
    free(to);
    free(stacks);
    free(frames);
}

/* Between tokens. */
static void make_room(td_matcher *m)
{
    if (m->state_count > STATES_KEPT || m->mask_bytes > MASK_BYTES_KEPT ||
        m->frame_count > 2 * m->frames_left + FRAMES_KEPT)
        keep_last(m);
}

/* --- Making one --- */

static tandem_status tell(const td_matcher *m, char *why, size_t why_bytes)
{
    if (m->status == TANDEM_ERROR_UNSUPPORTED)
        return td_fail(why, why_bytes, m->status,
                       "the grammar can be read in more than %d ways at once", MOST_STACKS);
    return m->status == TANDEM_OK
               ? m->status
               : td_fail(why, why_bytes, m->status, "no memory to follow a grammar");
}

tandem_status td_matcher_create(const td_grammar *grammar, const td_token_tree *tree,
                                td_matcher **out, char *why, size_t why_bytes)
{
    td_matcher *m = *out = calloc(1, sizeof *m);

    if (!m)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory to follow a grammar");
    m->grammar = grammar;
    m->tree = tree;
    m->path = malloc((tree->longest + 1) * sizeof *m->path);
    if (m->path && grow(m, (void **)&m->stacks, &m->stack_room, 0, sizeof *m->stacks) &&
        grow(m, (void **)&m->made, &m->made_room, 0, sizeof *m->made))
        make_first(m);
    else
        m->status = TANDEM_ERROR_NOMEM;
    m->now = m->begin;
    const tandem_status status = tell(m, why, why_bytes);
    if (status != TANDEM_OK)
        td_matcher_destroy(out);
    return status;
}

void td_matcher_destroy(td_matcher **matcher)
{
    td_matcher *m = *matcher;

    if (!m)
        return;
    forget(m);
    free(m->frames);
    free(m->by_frame.slots);
    free(m->states);
    free(m->nexts);
    free(m->by_state.slots);
    free(m->stacks);
    free(m->ahead);
    free(m->made);
    free(m->seen);
    free(m->path);
    free(m);
    *matcher = NULL;
}

void td_matcher_restart(td_matcher *m)
{
    if (m->status != TANDEM_OK) {
        m->status = TANDEM_OK;
        forget(m);
        make_first(m);
    }
    m->now = m->begin;
}

/* --- What fits --- */

/* How many plain bytes fit behind a state, up to `most`, whichever they are. */
static uint8_t count_plain(td_matcher *m, uint32_t at, uint8_t most)
{
    const uint8_t *class_of = m->grammar->class_of;
    uint8_t fewest = most;

    if (m->states[at].plain_most || m->states[at].plain >= most)
        return m->states[at].plain < most ? m->states[at].plain : most;
    for (int byte = ' ', class = -1; byte <= '~' && fewest > 0; byte++) {
        if (!td_is_plain((uint8_t)byte) || class_of[byte] == class)
            continue;
        class = class_of[byte];
        const uint32_t to = next_state(m, at, (uint8_t)byte);
        const uint8_t more = to == MISFIT ? 0 : (uint8_t)(1 + count_plain(m, to, most - 1));
        fewest = more < fewest ? more : fewest;
    }
    m->states[at].plain = fewest;
    m->states[at].plain_most = fewest < most;
    return fewest;
}

static void set_bit(uint64_t *mask, uint32_t token)
{
    mask[token / 64] |= (uint64_t)1 << token % 64;
}

static void add_fitting(td_matcher *m, const td_token_nodes *list, uint64_t *mask)
{
    m->path[0] = m->now;
    for (uint32_t i = 0; i < list->node_count && m->status == TANDEM_OK;) {
        const td_token_node *node = &list->nodes[i];
        const uint32_t to = next_state(m, m->path[node->depth], node->byte);

        if (to == MISFIT) {
            i = node->next;
            continue;
        }
        m->path[node->depth + 1] = to;
        for (uint32_t k = 0; k < node->count; k++)
            set_bit(mask, list->tokens[node->first + k]);
        i++;
    }
}

static void fill_mask(td_matcher *m, uint64_t *mask, size_t bytes)
{
    const td_token_tree *tree = m->tree;

    if (count_plain(m, m->now, TD_PLAIN_BYTES) == TD_PLAIN_BYTES) {
        memcpy(mask, tree->plain, bytes);
        add_fitting(m, &tree->others, mask);
    } else {
        add_fitting(m, &tree->all, mask);
    }
    for (uint32_t i = 0; i < tree->end_count && td_matcher_may_end(m); i++)
        set_bit(mask, tree->ends[i]);
}

tandem_status td_matcher_tokens(td_matcher *m, const uint64_t **bits, char *why, size_t why_bytes)
{
    const size_t bytes = ((size_t)m->tree->words + 63) / 64 * sizeof(uint64_t);

    make_room(m);
    *bits = m->states[m->now].mask;
    if (*bits)
        return TANDEM_OK;
    uint64_t *mask = m->status == TANDEM_OK ? calloc(1, bytes) : NULL;
    if (mask)
        fill_mask(m, mask, bytes);
    else if (m->status == TANDEM_OK)
        m->status = TANDEM_ERROR_NOMEM;
    if (m->status != TANDEM_OK) {
        free(mask);
        return tell(m, why, why_bytes);
    }
    *bits = m->states[m->now].mask = mask;
    m->mask_bytes += bytes;
    return TANDEM_OK;
}

bool td_matcher_add(td_matcher *m, const char *bytes, size_t count)
{
    make_room(m);
    uint32_t to = m->now;
    for (size_t i = 0; i < count && to != MISFIT; i++)
        to = next_state(m, to, (uint8_t)bytes[i]);
    if (to == MISFIT)
        return false;
    m->now = to;
    return true;
}

bool td_matcher_add_token(td_matcher *m, uint32_t token)
{
    const td_gguf_string piece = td_tokenizer_piece(m->tree->tokenizer, token);

    if (td_tokenizer_is_end(m->tree->tokenizer, token))
        return td_matcher_may_end(m);
    return !td_tokenizer_is_special(m->tree->tokenizer, token) && piece.length &&
           td_matcher_add(m, piece.bytes, piece.length);
}

/* Frame 0 is the first of those of a state. */
bool td_matcher_may_end(const td_matcher *m)
{
    const state *now = &m->states[m->now];

    return now->count && m->stacks[now->first] == NOTHING;
}

bool td_matcher_must_end(const td_matcher *m)
{
    return m->states[m->now].count == 1 && td_matcher_may_end(m);
}
