/* How fast a language model speaks for several characters at once. See npc_slots.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/npc_slots.h"

#include <stdlib.h>

#include "engine_plugin/npc/stage.h"
#include "interop/base.h"
#include "interop/os/clock.h"
#include "kernels/top/params.h"

enum { MOST = 32, SHARED = 64, OWN = 2 };
#define LONG_NS 60000000000u

const uint32_t bench_slot_counts[BENCH_SLOTS] = {1, 4, 8, MOST};

typedef struct stage {
    tandem_session *s;
    tandem_model model;
    td_stage *on;
    td_sequence *of[MOST];
    uint32_t *ids; /* [MOST][room] */
    uint32_t room, words;
} stage;

static tandem_status tell(const stage *a, tandem_status status, char *why)
{
    if (status != TANDEM_OK)
        tandem_error_text(a->s, why, 600);
    return status;
}

/* Until `count` sequences have read so many tokens: the next one of each is the most likely. */
static bool read_all(stage *a, uint32_t count, uint32_t tokens, char *why)
{
    for (uint32_t i = 0; i < count; i++)
        if (tell(a, td_sequence_read(a->of[i], a->ids + (size_t)i * a->room, tokens), why) != TANDEM_OK)
            return false;
    for (uint32_t i = 0; i < count;) {
        const td_sequence_state state = td_sequence_look(a->of[i]);

        if (state.is == TD_SEQUENCE_FAILED)
            return tell(a, state.status, why) == TANDEM_OK;
        if (state.is == TD_SEQUENCE_KNOWS) {
            if (tokens < a->room && state.tops[TD_TOP_MOST] >= 0)
                a->ids[(size_t)i * a->room + tokens] = (uint32_t)state.tops[TD_TOP_MOST];
            i++;
            continue;
        }
        td_stage_step(a->on, NULL);
        td_stage_wait(a->on, LONG_NS);
    }
    return true;
}

static tandem_status open_all(stage *a, const char *path, uint32_t cache, uint32_t tokens, char *why)
{
    const uint32_t context = (SHARED + OWN + tokens + 63) / 64 * 64, pages = context / 64 * MOST;
    const tandem_model_desc desc = TANDEM_INIT(tandem_model_desc, .path = path, .context = context, .cache = cache,
                                               .sequences = MOST, .pages = pages, .tops = TD_TOP_MOST);
    const td_stage_desc of = {.slots = MOST, .pages = pages, .context = context, .tops = TD_TOP_MOST};
    td_stage_desc known = of;
    const uint32_t one[3] = {1, 1, 1};
    tandem_network_tensor logits = TANDEM_INIT(tandem_network_tensor);
    uint64_t state = 1;

    tandem_status status = tandem_model_create(a->s, &desc, &a->model);
    if (status == TANDEM_OK)
        status = tandem_model_binding(a->s, a->model, one, 3, 0, &logits);
    known.session = a->s;
    known.model = a->model;
    if (status == TANDEM_OK)
        status = td_stage_create(&known, &a->on);
    if (status != TANDEM_OK)
        return tell(a, status, why);
    a->room = context;
    a->ids = malloc((size_t)MOST * context * sizeof *a->ids);
    for (uint32_t i = 0; i < MOST && a->ids; i++) {
        for (uint32_t n = 0; n < context; n++)
            a->ids[i * context + n] = i && n < SHARED ? a->ids[n] : (uint32_t)(bench_random(&state) % logits.shape[3]);
        if (td_sequence_open(a->on, &a->of[i]) != TANDEM_OK)
            return td_fail(why, 600, TANDEM_ERROR_NOMEM, "no memory for a sequence");
        td_sequence_want_all(a->of[i], false);
    }
    return a->ids ? TANDEM_OK : td_fail(why, 600, TANDEM_ERROR_NOMEM, "no memory for tokens");
}

static bool time_count(stage *a, uint32_t count, uint32_t tokens, bench_series *to, char *why)
{
    if (!read_all(a, count, SHARED + OWN, why))
        return false;
    const uint64_t begin = td_now_ns();
    for (uint32_t n = 1; n <= tokens; n++)
        if (!read_all(a, count, SHARED + OWN + n, why))
            return false;
    if (to)
        bench_add(to, 1e9 * count * tokens / (double)(td_now_ns() - begin));
    return true;
}

static void close_all(stage *a)
{
    for (uint32_t i = 0; i < MOST; i++)
        td_sequence_close(&a->of[i]);
    td_stage_destroy(&a->on);
    if (a->model)
        tandem_model_destroy(a->s, a->model);
    free(a->ids);
}

bool bench_measure_slots(tandem_session *s, const char *model, uint32_t cache, uint32_t tokens, uint32_t rounds, bench_slots *out)
{
    stage a = {.s = s};
    const tandem_status opened = open_all(&a, model, cache, tokens, out->why);
    bool ok = opened == TANDEM_OK;

    for (uint32_t round = 0; round <= rounds && ok; round++) /* the first one to warm up */
        for (int i = 0; i < BENCH_SLOTS && ok; i++)
            ok = time_count(&a, bench_slot_counts[i], round ? tokens : 2, round ? &out->spoken[i] : NULL, out->why);
    close_all(&a);
    return ok || opened == TANDEM_ERROR_UNSUPPORTED;
}

void bench_free_slots(bench_slots *slots)
{
    for (int i = 0; i < BENCH_SLOTS; i++)
        bench_free(&slots->spoken[i]);
}
