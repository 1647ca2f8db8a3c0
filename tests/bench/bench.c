/* tandem-bench: which bench, and what they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int bench_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
        const char *const *help;
    } benches[] = {{"handover", bench_handover, &tool_bench_handover_help},
                   {"attention", bench_attention, &tool_bench_attention_help},
                   {"linear", bench_linear, &tool_bench_linear_help},
                   {"daemon", bench_daemon, &tool_bench_daemon_help},
                   {"npc", bench_npc, &tool_bench_npc_help},
                   {"effect", bench_effect, &tool_bench_effect_help},
                   {"accuracy", bench_accuracy, &tool_accuracy_help},
                   {"eval", bench_eval, &tool_eval_help}};
    if (argc < 2)
        return tool_usage("bench", "no bench given: must be handover, attention, linear, daemon, npc or effect");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (!strcmp(argv[1], benches[i].name)) {
            const bool asks = argc == 3 && !strcmp(argv[2], "--help");
            return asks ? (fputs(*benches[i].help, stdout), TOOL_OK) : benches[i].run(argc - 2, argv + 2);
        }
    return tool_usage("bench", "unknown bench \"%s\": must be handover, attention, linear, daemon, npc or effect", argv[1]);
}

void bench_expect(bench_targets *targets, double value, bool at_least, double limit, const char *format, ...)
{
    if (targets->count == BENCH_TARGETS)
        return;
    bench_target *t = &targets->items[targets->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(t->text, sizeof t->text, format, args);
    va_end(args);
    t->value = value;
    t->limit = limit;
    t->at_least = at_least;
}

static bool is_met(const bench_target *t)
{
    return t->at_least ? t->value >= t->limit : t->value <= t->limit;
}

uint32_t bench_print_targets(const bench_targets *targets)
{
    uint32_t met = 0, missed = 0;
    for (uint32_t i = 0; i < targets->count; i++) {
        const bench_target *t = &targets->items[i];
        if (isnan(t->value))
            continue;
        if (!met && !missed)
            printf("\ntargets\n");
        printf("  %-6s %s: %.4g (%s %.4g)\n", is_met(t) ? "met" : "MISSED", t->text, t->value,
               t->at_least ? "at least" : "at most", t->limit);
        if (is_met(t))
            met++;
        else
            missed++;
    }
    printf("verdict: %u targets met, %u missed, %u not measured here\n", met, missed, targets->count - met - missed);
    return missed;
}

int bench_status(const char *bench, uint64_t measured, uint32_t missed, bool strict)
{
    if (!measured)
        return tool_fail(bench, "nothing was measured");
    if (strict && missed)
        return tool_fail(bench, "--strict: %u target%s missed", (unsigned)missed, missed == 1 ? " was" : "s were");
    return TOOL_OK;
}

json_t *bench_targets_json(const bench_targets *targets)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < targets->count; i++) {
        const bench_target *t = &targets->items[i];
        json_array_append_new(list, json_pack("{s:s, s:o, s:s, s:f, s:o}", "target", t->text, "value",
                                              bench_number(t->value), "must_be", t->at_least ? "at least" : "at most",
                                              "limit", t->limit, "met",
                                              isnan(t->value) ? json_null() : json_boolean(is_met(t))));
    }
    return list;
}
