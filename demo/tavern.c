/* The tavern as one lives it. See tavern.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/tavern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/engine.h"
#include "interop/os/clock.h"

#define PI 3.14159265f
static const double SHAKE_S = 1.5, REMEMBER_S = 30.0;
static const float WALK = 1.6f, TURN = 70.0f, STAND_OFF = 1.75f, NEAR = 2.6f, EYES = 1.5f;

static const float COUNTER_END_X = 0.85f, COUNTER_BACK_Z = -2.35f, COUNTER_FRONT_Z = -1.25f;

typedef struct vec {
    float x, y, z;
} vec;

static float radians(float degrees)
{
    return degrees * PI / 180.0f;
}

static float degrees(float angle)
{
    return angle * 180.0f / PI;
}

static float chase(float from, float to, double seconds, float rate)
{
    return to + (from - to) * expf(-rate * (float)seconds);
}

/* The short way round. */
static float chase_angle(float from, float to, double seconds, float rate)
{
    const float off = remainderf(to - from, 360.0f);
    return from + off - off * expf(-rate * (float)seconds);
}

static bool is_with(const demo_tavern *t)
{
    return t->with >= 0;
}

/* --- Begin and end --- */

demo_tavern *demo_tavern_open(const demo_talk_options *options)
{
    char why[300] = "";
    demo_tavern *t = calloc(1, sizeof *t);
    if (!t) {
        demo_fail("out of memory");
        return NULL;
    }
    t->with = -1;
    demo_scene_cast(&t->cast);
    t->at_first = t->cast;
    memcpy(t->eye, t->cast.eye, sizeof t->eye);
    for (int i = 0; i < DEMO_FIGURES; i++)
        t->refused[i] = t->spoke[i] = -1000;
    if (!options->path) {
        snprintf(t->note, sizeof t->note,
                 "Nobody talks: there is no npc.gguf beside the program. --npc-model FILE.gguf "
                 "takes any language model; "
                 "tandem fetch smollm2 brings one.");
        return t;
    }
    const char *slash = strrchr(options->path, '/');
    snprintf(t->model, sizeof t->model, "%s", slash ? slash + 1 : options->path);
    if (demo_talk_open(&t->talk, options, why, sizeof why))
        return t;
    demo_fail("%s%s: %s", options->asked ? "--npc-model " : "", options->path, why);
    if (options->asked) {
        free(t);
        return NULL;
    }
    snprintf(t->note, sizeof t->note, "Nobody talks: %s", why);
    return t;
}

void demo_tavern_close(demo_tavern *t)
{
    if (t)
        demo_talk_close(&t->talk);
    free(t);
}

/* --- What is said and done --- */

bool demo_tavern_talking(const demo_tavern *t)
{
    return demo_talk_any(&t->talk);
}

static bool say(demo_tavern *t, int who, const char *text)
{
    if (!demo_talk_say(&t->talk, who, text))
        return false;
    t->said[who][0] = t->did[who][0] = 0;
    return true;
}

static int prop_of(const char *item)
{
    for (int i = 0; i < DEMO_FIGURES; i++)
        for (int j = 0; j < DEMO_CARD_ITEMS; j++)
            if (demo_cards[i].items[j].name && !strcmp(demo_cards[i].items[j].name, item))
                return demo_cards[i].items[j].prop;
    return -1;
}

static void act(demo_tavern *t, int who)
{
    const demo_reply *r = &t->talk.replies[who];
    char *did = t->did[who];
    const size_t room = sizeof t->did[who];
    const int prop = prop_of(r->item);
    switch (r->act) {
    case DEMO_ACT_GIVE:
        if (prop >= 0) {
            t->given[prop] = true;
            t->taken[prop] = 0;
        }
        snprintf(did, room, r->price ? "gives you the %s, for %u coins" : "gives you the %s",
                 r->item, r->price);
        break;
    case DEMO_ACT_TAKE:
        if (prop >= 0 && t->given[prop]) {
            t->given[prop] = false;
            t->taken[prop] = who + 1;
        }
        snprintf(did, room, r->price ? "takes the %s, and pays %u coins" : "takes the %s", r->item,
                 r->price);
        break;
    case DEMO_ACT_FOLLOW:
        t->follows[who] = true;
        snprintf(did, room, "comes with you");
        break;
    case DEMO_ACT_STAY:
        t->follows[who] = false;
        snprintf(did, room, "stays here");
        break;
    case DEMO_ACT_REFUSE:
        t->refused[who] = t->now;
        snprintf(did, room, "shakes %s head", demo_cards[who].her);
        break;
    case DEMO_ACT_MOOD: snprintf(did, room, "is %s now", r->item); break;
    case DEMO_ACT_QUEST:
        snprintf(did, room, !strcmp(r->item, "done") ? "has what was missing" : "counts on you");
        break;
    default: break;
    }
}

static void tell(demo_tavern *t, int who)
{
    if (t->told_count == DEMO_TOLD) {
        memmove(t->told, t->told + 1, (DEMO_TOLD - 1) * sizeof *t->told);
        t->told_count--;
    }
    t->told[t->told_count++] = (demo_told){who, (uint32_t)t->frame, t->talk.replies[who]};
}

void demo_tavern_poll(demo_tavern *t)
{
    const uint32_t ended = demo_talk_poll(&t->talk);
    for (int i = 0; i < DEMO_FIGURES; i++) {
        if (t->talk.talking[i] || ended >> i & 1) {
            demo_reply_said(&t->talk.replies[i], t->said[i], sizeof t->said[i]);
            t->spoke[i] = t->now;
        }
        if (!(ended >> i & 1))
            continue;
        t->tokens += t->talk.replies[i].tokens;
        act(t, i);
        tell(t, i);
    }
}

void demo_tavern_finish(demo_tavern *t)
{
    demo_tavern_poll(t);
    for (int i = 0; i < DEMO_FIGURES; i++)
        if (t->talk.talking[i]) {
            t->tokens += t->talk.replies[i].tokens;
            tell(t, i);
        }
}

void demo_tavern_script(demo_tavern *t)
{
    static const char *const lines[][DEMO_FIGURES] = {
        {"Where are we?", "Do you have any work for me?", "What do you sell?",
         "How much is the horseshoe?"},
        {"Will you come with me?", "I'll take the tankard, please.",
         "Could you give me the copper key?", "I can't pay. Give me the knife?"}};
    enum { LINES = sizeof lines / sizeof *lines };
    if (t->script == LINES || demo_tavern_talking(t) || !t->talk.language)
        return;
    for (int i = 0; i < DEMO_FIGURES; i++)
        say(t, i, lines[t->script][i]);
    t->script++;
}

/* --- What the visitor does --- */

static void talk_to(demo_tavern *t, int who)
{
    t->with = who;
    t->input[0] = 0;
    memset(t->keys, 0, sizeof t->keys);
}

static void leave(demo_tavern *t)
{
    t->with = -1;
    t->input[0] = 0;
}

void demo_tavern_text(demo_tavern *t, const char *text)
{
    const size_t there = strlen(t->input), bytes = strlen(text);
    if (is_with(t) && there + bytes < sizeof t->input && (there || strcmp(text, " ") != 0))
        memcpy(t->input + there, text, bytes + 1);
}

/* The last character, of as many bytes as it has. */
static void erase(demo_tavern *t)
{
    size_t count = strlen(t->input);
    while (count && ((unsigned char)t->input[count - 1] & 0xc0) == 0x80)
        count--;
    t->input[count ? count - 1 : 0] = 0;
}

static int nearest(const demo_tavern *t)
{
    const demo_cast *c = &t->cast;
    const float fx = c->target[0] - c->eye[0], fz = c->target[2] - c->eye[2],
                norm = sqrtf(fx * fx + fz * fz);
    float best = NEAR;
    int who = -1;
    for (int i = 0; i < DEMO_FIGURES; i++) {
        const float x = c->figures[i].x - c->eye[0], z = c->figures[i].z - c->eye[2],
                    far = sqrtf(x * x + z * z);
        if (far < best && x * fx + z * fz > 0.75f * far * norm) {
            best = far;
            who = i;
        }
    }
    return who;
}

static bool key_with(demo_tavern *t, int32_t key)
{
    switch (key) {
    case DEMO_KEY_ESCAPE: leave(t); break;
    case DEMO_KEY_BACKSPACE: erase(t); break;
    case DEMO_KEY_ENTER:
        if (t->talk.talking[t->with]) /* let them finish */
            break;
        if (t->input[0] && say(t, t->with, t->input))
            t->input[0] = 0;
        break;
    case DEMO_KEY_F1:
    case DEMO_KEY_F12:
    case DEMO_KEY_TAB: return false;
    default: break;
    }
    return true;
}

bool demo_tavern_key(demo_tavern *t, int32_t key, bool down)
{
    static const int32_t arrows[4] = {DEMO_KEY_UP, DEMO_KEY_DOWN, DEMO_KEY_LEFT, DEMO_KEY_RIGHT};
    for (int i = 0; i < 4; i++)
        if (key == arrows[i]) {
            t->keys[i] = down && !is_with(t);
            return true;
        }
    if (!down)
        return false;
    if (is_with(t))
        return key_with(t, key);
    if (key == DEMO_KEY_ENTER && nearest(t) >= 0)
        talk_to(t, nearest(t));
    return key == DEMO_KEY_ENTER;
}

/* --- Where things are on the picture --- */

typedef struct camera {
    vec eye, right, up, forward;
} camera;

static vec vec_of(const float *v)
{
    return (vec){v[0], v[1], v[2]};
}

static float dot(vec a, vec b)
{
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

static camera camera_of(const demo_cast *cast, float aspect)
{
    struct td_scene_push push;
    demo_scene_camera(demo_scene_find("tavern"), cast, 0, (uint32_t)(1000 * aspect), 1000, &push);
    return (camera){vec_of(push.eye), vec_of(push.right), vec_of(push.up), vec_of(push.forward)};
}

/* How far ahead a point is; not seen below 0.2 or so. */
static float project(const camera *c, float x, float y, float z, float *at_x, float *at_y)
{
    const vec d = {x - c->eye.x, y - c->eye.y, z - c->eye.z};
    const float ahead = dot(d, c->forward), some = ahead > 0.05f ? ahead : 0.05f;
    *at_x = dot(d, c->right) / (dot(c->right, c->right) * some);
    *at_y = dot(d, c->up) / (dot(c->up, c->up) * some);
    return ahead;
}

bool demo_tavern_click(demo_tavern *t, float x, float y, float aspect)
{
    const camera c = camera_of(&t->cast, aspect);
    float best = 1e9f;
    int who = -1;
    for (int i = 0; i < DEMO_FIGURES; i++) {
        const demo_figure *f = &t->cast.figures[i];
        float head[3], top_x, top_y, foot_x, foot_y;
        demo_scene_head(&t->cast, i, head);
        const float ahead = project(&c, head[0], head[1] + 0.6f, head[2], &top_x, &top_y);
        project(&c, f->x, f->lift, f->z, &foot_x, &foot_y);
        const float half = 0.38f / (sqrtf(dot(c.right, c.right)) * (ahead > 0.05f ? ahead : 0.05f));
        if (ahead > 0.2f && ahead < best && fabsf(x - top_x) < half && y < top_y && y > foot_y) {
            best = ahead;
            who = i;
        }
    }
    if (who >= 0 && who != t->with)
        talk_to(t, who);
    return who >= 0;
}

/* --- A moment passes --- */

static void walk(demo_tavern *t, double seconds)
{
    const demo_cast *first = &t->at_first;
    const float ahead = (float)t->keys[0] - (float)t->keys[1],
                turn = (float)t->keys[3] - (float)t->keys[2];
    const float step = ahead * WALK * (float)seconds;
    t->yaw += turn * TURN * (float)seconds;
    const float x = t->eye[0] + step * sinf(radians(t->yaw)),
                z = t->eye[2] - step * cosf(radians(t->yaw));
    t->eye[0] = fminf(fmaxf(x, -3.2f), 3.0f);
    t->eye[2] =
        fminf(fmaxf(z, z < t->eye[2] ? -1.2f : -3.0f), first->eye[2]); /* not over the counter */
}

/* Where the visitor is to stand, and look. */
static void look_at(const demo_tavern *t, float eye[3], float target[3])
{
    const float sway = 0.025f * sinf(0.7f * (float)t->now);
    if (is_with(t)) {
        const demo_figure *f = &t->cast.figures[t->with];
        const float turn = t->follows[t->with]
                               ? degrees(atan2f(t->cast.eye[0] - f->x, t->cast.eye[2] - f->z))
                               : t->at_first.figures[t->with].turn;
        const float sine = sinf(radians(turn)), cosine = cosf(radians(turn));
        eye[0] = f->x + STAND_OFF * sine + sway;
        eye[1] = EYES;
        eye[2] = f->z + STAND_OFF * cosine;
        target[0] = f->x;
        target[1] = 1.36f;
        target[2] = f->z;
        return;
    }
    eye[0] = t->eye[0] + sway;
    eye[1] = t->eye[1];
    eye[2] = t->eye[2];
    target[0] = t->eye[0] + 4.6f * sinf(radians(t->yaw));
    target[1] = t->at_first.target[1];
    target[2] = t->eye[2] - 4.6f * cosf(radians(t->yaw));
}

/* Where who follows wants to be: beside the visitor, in sight; around the counter from behind it.
 */
static void place_of(const demo_tavern *t, int who, float eye[3], float target[3], float *x,
                     float *z)
{
    const demo_figure *f = &t->cast.figures[who];
    const float fx = target[0] - eye[0], fz = target[2] - eye[2],
                norm = sqrtf(fx * fx + fz * fz) + 1e-3f;
    const int row = who / 2;
    const float side = who % 2 ? 0.95f : -0.95f, ahead = 2.1f + 0.3f * (float)row;
    *x = eye[0] + (ahead * fx - side * fz) / norm;
    *z = fmaxf(eye[2] + (ahead * fz + side * fx) / norm, COUNTER_FRONT_Z);
    if (f->z < COUNTER_FRONT_Z - 0.1f && f->x < COUNTER_END_X - 0.1f && f->x > -2.4f) {
        *x = COUNTER_END_X;
        *z = COUNTER_BACK_Z;
    } else if (f->z < COUNTER_FRONT_Z - 0.1f && f->x < COUNTER_END_X + 0.4f) {
        *x = COUNTER_END_X;
        *z = COUNTER_FRONT_Z;
    }
}

static void move_figure(demo_tavern *t, int who, float eye[3], float target[3], double seconds)
{
    demo_figure *f = &t->cast.figures[who];
    const demo_figure *first = &t->at_first.figures[who];
    const bool talks = t->talk.talking[who];
    const double since = t->now - t->refused[who];
    const float to_eye = degrees(atan2f(t->cast.eye[0] - f->x, t->cast.eye[2] - f->z));
    float turn = talks || t->with == who || t->follows[who]
                     ? to_eye
                     : first->turn + 3.0f * sinf(0.5f * (float)t->now + (float)who);
    f->lift = 0;
    if (t->follows[who] && t->with != who) {
        float x, z;
        place_of(t, who, eye, target, &x, &z);
        const float dx = x - f->x, dz = z - f->z, far = sqrtf(dx * dx + dz * dz);
        const float step = fminf(far, WALK * (float)seconds);
        if (far > 0.08f) {
            f->x += dx / far * step;
            f->z += dz / far * step;
            f->lift = 0.035f * fabsf(sinf(9.0f * (float)t->now));
            turn = far > 0.5f ? degrees(atan2f(dx, dz)) : turn;
        }
    }
    f->turn = chase_angle(f->turn, turn, seconds, 5.0f);
    f->shake = since < SHAKE_S
                   ? 26.0f * sinf(2 * PI * 2.0f * (float)since) * (float)(1 - since / SHAKE_S)
                   : 0;
    f->nod = chase(f->nod, talks && t->said[who][0] ? 0.6f + 0.6f * sinf(8.0f * (float)t->now) : 0,
                   seconds, 12.0f);
}

/* What was given is held before the visitor's eyes; what was taken, in front of who took it. */
static void move_item(demo_tavern *t, int item, double seconds)
{
    const camera c = camera_of(&t->cast, 1.0f);
    const float r = 1.0f / sqrtf(dot(c.right, c.right)), u = 1.0f / sqrtf(dot(c.up, c.up));
    float *at = t->cast.items[item], to[3], place = 0;
    if (t->given[item]) {
        for (int i = 0; i < item; i++)
            place += t->given[i];
        const float aside = 0.42f - 0.24f * place, below = -0.36f;
        to[0] = c.eye.x + 0.95f * c.forward.x + aside * r * c.right.x + below * u * c.up.x;
        to[1] = c.eye.y + 0.95f * c.forward.y + aside * r * c.right.y + below * u * c.up.y;
        to[2] = c.eye.z + 0.95f * c.forward.z + aside * r * c.right.z + below * u * c.up.z;
    } else if (t->taken[item]) {
        const demo_figure *f = &t->cast.figures[t->taken[item] - 1];
        to[0] = f->x + 0.5f * sinf(radians(f->turn));
        to[1] = 1.04f;
        to[2] = f->z + 0.5f * cosf(radians(f->turn));
    } else {
        return;
    }
    for (int i = 0; i < 3; i++)
        at[i] = chase(at[i], to[i], seconds, 4.0f);
}

void demo_tavern_step(demo_tavern *t, double seconds)
{
    float eye[3], target[3];
    const uint64_t now = td_now_ns();
    t->now += seconds;
    t->frame++;
    if (demo_tavern_talking(t) && t->stepped_ns)
        t->talk_s += 1e-9 * (double)(now - t->stepped_ns);
    t->stepped_ns = now;
    demo_talk_frame(&t->talk);
    if (demo_tavern_talking(t))
        demo_samples_add(&t->spent, t->talk.spent.spent_us);
    demo_tavern_poll(t);
    if (!is_with(t))
        walk(t, seconds);
    look_at(t, eye, target);
    for (int i = 0; i < 3; i++) {
        t->cast.eye[i] = chase(t->cast.eye[i], eye[i], seconds, 3.0f);
        t->cast.target[i] = chase(t->cast.target[i], target[i], seconds, 3.0f);
    }
    for (int i = 0; i < DEMO_FIGURES; i++)
        move_figure(t, i, eye, target, seconds);
    for (int i = 0; i < DEMO_ITEMS; i++)
        move_item(t, i, seconds);
}

/* --- What it comes to --- */

void demo_samples_add(demo_samples *s, double value)
{
    s->values[s->count++ % DEMO_TAVERN_FRAMES] = value;
}

demo_percentiles demo_samples_percentiles(const demo_samples *s)
{
    double sorted[DEMO_TAVERN_FRAMES];
    const uint32_t count = s->count < DEMO_TAVERN_FRAMES ? s->count : DEMO_TAVERN_FRAMES;
    memcpy(sorted, s->values, count * sizeof *sorted);
    return demo_percentiles_of(sorted, count);
}

void demo_tavern_took(demo_tavern *t, double frame_ms, bool talking)
{
    demo_samples_add(talking ? &t->talking : &t->quiet, frame_ms);
}

void demo_tavern_show(const demo_tavern *t, float aspect, demo_shown *out)
{
    const camera c = camera_of(&t->cast, aspect);
    const demo_talk *talk = &t->talk;
    const bool lives = talk->language != NULL;
    *out = (demo_shown){0};
    for (int i = 0; i < DEMO_FIGURES; i++) {
        demo_shown_figure *f = &out->figures[i];
        const bool fresh = t->with == i || t->now - t->spoke[i] < REMEMBER_S;
        float head[3];
        demo_scene_head(&t->cast, i, head);
        const float ahead = project(&c, head[0], head[1] + 0.33f, head[2], &f->x, &f->y);
        *f = (demo_shown_figure){.name = demo_cards[i].name,
                                 .trade = demo_cards[i].trade,
                                 .x = f->x,
                                 .y = f->y,
                                 .visible = ahead > 0.3f && fabsf(f->x) < 1.05f,
                                 .with = t->with == i,
                                 .talks = talk->talking[i],
                                 .thinks = talk->talking[i] && !t->said[i][0],
                                 .said = fresh ? t->said[i] : NULL,
                                 .did = fresh ? t->did[i] : NULL,
                                 .refuses = talk->replies[i].act == DEMO_ACT_REFUSE};
        out->talking += talk->talking[i];
        if (talk->replies[i].first_ms > 0 && t->now - t->spoke[i] < REMEMBER_S)
            out->first_ms = talk->replies[i].first_ms;
    }
    if (is_with(t)) {
        out->with = demo_cards[t->with].name;
        out->input = t->input;
        out->asked = talk->replies[t->with].asked;
    } else if (nearest(t) >= 0) {
        out->near_ = demo_cards[nearest(t)].name;
    }
    out->warns = talk->trouble[0] != 0;
    out->note = talk->trouble[0] ? talk->trouble : t->note[0] ? t->note : NULL;
    if (!lives)
        return;
    static const char *const caches[DEMO_CACHES] = {"16-bit", "8-bit", "4-bit keys, 8-bit values"};
    out->model = t->model;
    out->device = talk->device;
    out->cache = caches[talk->options.cache];
    out->tokens_per_s = (double)talk->spent.tokens_per_s;
    out->budget_us = talk->budgeted ? talk->options.budget_us : 0;
    out->spent_us = demo_samples_percentiles(&t->spent).p99;
    out->slots = talk->info.slots;
    out->pages = talk->info.pages;
    out->pages_held = talk->info.pages_held;
    for (int i = 0; i < DEMO_CACHES; i++)
        out->all_mib[i] = (double)talk->cache_bytes[i] / (1 << 20);
    out->quiet_ms = demo_samples_percentiles(&t->quiet);
    out->talking_ms = demo_samples_percentiles(&t->talking);
    out->quiet_frames = t->quiet.count;
    out->talking_frames = t->talking.count;
}
