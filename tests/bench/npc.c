/* `tandem bench npc`: how fast a language model reads and speaks, beside llama.cpp's own bench on the same file.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Both are given random tokens, and none is drawn: it is the model alone that is measured. They take turns, round after round,
 * as clocks and neighbours change.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/npc/speaker.h"
#include "engine_plugin/tool/session.h"
#include "interop/base.h"
#include "interop/os/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/npc_slots.h"

typedef struct bench {
    const char *model, *rung, *json, *peer; /* peer: a program */
    uint32_t rung_value;
    uint64_t threads, prompt, tokens, depth, rounds;
    bool quick, strict, no_peer;
    tandem_session *s;
    tool_engine *engine;
    tandem_info info;
    td_speaker speaker;
    uint64_t weight_bytes, state_bytes;
    double load_ms;
    uint32_t *ids;
    bench_series read, spoken; /* tokens a second: ours, */
    bench_series peer_read, peer_spoken;
    bench_slots slots; /* of several characters at once */
    char no_peer_why[300];
    bench_targets targets;
} bench;

/* --- Ours --- */

static bool fails(bench *b, const char *what)
{
    char why[600] = "";

    tandem_error_text(b->s, why, sizeof why);
    tool_fail("bench npc", "%s%s%s", what, why[0] ? ": " : "", why);
    return false;
}

static bool open_model(bench *b)
{
    char why[600] = "";
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .rung = b->rung_value, .cpu_threads = (uint32_t)b->threads,
                                                 .error_text = why, .error_text_bytes = sizeof why);
    const td_speaker_desc speaker = {.path = b->model, .context = (uint32_t)(b->depth + (b->prompt > b->tokens ? b->prompt : b->tokens))};
    tandem_network network = TANDEM_INIT(tandem_network);

    if (tool_session_create(&desc, &b->s, &b->engine) != TANDEM_OK)
        return tool_fail("bench npc", "%s", why) == TOOL_OK;
    const uint64_t begin = td_now_ns();
    if (td_speaker_open(b->s, &speaker, &b->speaker) != TANDEM_OK)
        return fails(b, "--model");
    b->load_ms = 1e-6 * (double)(td_now_ns() - begin);
    b->info = TANDEM_INIT(tandem_info);
    if (tandem_session_info(b->s, &b->info) != TANDEM_OK || tandem_model_info(b->s, b->speaker.model, &network) != TANDEM_OK)
        return fails(b, "--model");
    b->weight_bytes = network.weight_bytes;
    b->state_bytes = network.state_bytes;
    return true;
}

/* Tokens from position `first` on, so many at a time: tokens a second into `to`. */
static bool time_tokens(bench *b, uint64_t first, uint64_t count, uint64_t each, bench_series *to)
{
    const uint64_t begin = td_now_ns();

    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < each ? count - done : each;
        if (td_speaker_read(&b->speaker, b->ids + done, (uint32_t)(first + done), (uint32_t)n) != TANDEM_OK)
            return fails(b, "a run");
    }
    if (to)
        bench_add(to, 1e9 * (double)count / (double)(td_now_ns() - begin));
    return true;
}

static bool run_ours(bench *b, bool warm_up)
{
    return (!b->depth || time_tokens(b, 0, b->depth, b->depth, NULL)) &&
           time_tokens(b, b->depth, b->prompt, b->prompt, warm_up ? NULL : &b->read) &&
           time_tokens(b, b->depth, warm_up ? 4 : b->tokens, 1, warm_up ? NULL : &b->spoken);
}

/* --- llama.cpp's --- */

/* Its rates, from what it prints: a test of a prompt, and one of tokens. */
static bool take_peer(bench *b, FILE *said)
{
    json_error_t error;

    rewind(said);
    json_t *tests = json_loadf(said, 0, &error);
    double read = 0, spoken = 0;
    size_t i;
    json_t *test;

    json_array_foreach(tests, i, test) {
        const bool generates = json_integer_value(json_object_get(test, "n_gen")) > 0;

        *(generates ? &spoken : &read) = json_number_value(json_object_get(test, "avg_ts"));
    }
    json_decref(tests);
    if (!(read > 0 && spoken > 0))
        return td_fail(b->no_peer_why, sizeof b->no_peer_why, TANDEM_ERROR_PROTOCOL, "it printed no rates") == TANDEM_OK;
    bench_add(&b->peer_read, read);
    bench_add(&b->peer_spoken, spoken);
    return true;
}

static bool run_peer(bench *b)
{
    char prompt[24], tokens[24], depth[24], threads[24];
    const char *layers = b->info.rung == TANDEM_RUNG_CPU ? "0" : "99";
    const char *argv[] = {b->peer, "-m", b->model, "-p", prompt, "-n", tokens, "-d", depth, "-t", threads,
                          "-ngl", layers, "-r", "1", "-o", "json", NULL};
    FILE *said = tmpfile();

    if (!said)
        return td_fail(b->no_peer_why, sizeof b->no_peer_why, TANDEM_ERROR_IO, "a temporary file: %s", strerror(errno)) == TANDEM_OK;
    snprintf(prompt, sizeof prompt, "%u", (unsigned)b->prompt);
    snprintf(tokens, sizeof tokens, "%u", (unsigned)b->tokens);
    snprintf(depth, sizeof depth, "%u", (unsigned)b->depth);
    snprintf(threads, sizeof threads, "%u", (unsigned)b->threads);
    const int status = tool_run_program(argv, fileno(said), -1);
    bool ok = false;

    if (status < 0)
        td_fail(b->no_peer_why, sizeof b->no_peer_why, TANDEM_ERROR_IO, "%s: %s", b->peer, strerror(errno));
    else if (status)
        td_fail(b->no_peer_why, sizeof b->no_peer_why, TANDEM_ERROR_IO, "%s ended with %d", b->peer, status);
    else
        ok = take_peer(b, said);
    fclose(said);
    return ok;
}

/* --- Results --- */

/* Bytes that a token reads at least: all weights, and on the average so much of the caches. */
static double token_bytes(const bench *b)
{
    const double context = b->speaker.context, mean = (double)b->depth + 0.5 * (double)b->tokens;

    return (double)b->weight_bytes + (double)b->state_bytes * mean / context;
}

static double resident_mib(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) ? NAN : (double)usage.ru_maxrss / 1024;
}

static void print_row(const char *what, const bench_series *ours, const bench_series *peer)
{
    printf("  %-28s %9.1f tokens/s", what, bench_median(ours));
    if (peer->count)
        printf(", llama.cpp %.1f: %.2f of it", bench_median(peer), bench_median(ours) / bench_median(peer));
    printf("\n");
}

static void print(const bench *b)
{
    char text[64];

    printf("%s on %s (%s), %s rung; depth %u, %u round%s\n", b->model, b->info.device, b->info.isa, td_rung_name(b->info.rung),
           (unsigned)b->depth, (unsigned)b->rounds, b->rounds == 1 ? "" : "s");
    printf("  loaded in %.0f ms; weights %.1f MiB, caches %.1f MiB for %u tokens, the process at most %.0f MiB\n", b->load_ms,
           (double)b->weight_bytes / 1048576, (double)b->state_bytes / 1048576, (unsigned)b->speaker.context, resident_mib());
    snprintf(text, sizeof text, "a prompt of %u", (unsigned)b->prompt);
    print_row(text, &b->read, &b->peer_read);
    snprintf(text, sizeof text, "%u tokens, one by one", (unsigned)b->tokens);
    print_row(text, &b->spoken, &b->peer_spoken);
    printf("  which read %.1f GB/s\n", 1e-9 * token_bytes(b) * bench_median(&b->spoken));
    for (int i = 0; i < BENCH_SLOTS && !b->slots.why[0]; i++)
        printf("  %2u characters at once          %9.1f tokens/s\n", (unsigned)bench_slot_counts[i], bench_median(&b->slots.spoken[i]));
    if (b->slots.why[0])
        printf("  several characters at once: not measured: %s\n", b->slots.why);
    if (!b->peer_spoken.count)
        printf("  llama.cpp: not measured: %s\n", b->no_peer_why);
}

/* {"1": ..., "4": ...} by how many speak at once. */
static json_t *slots_json(const bench *b)
{
    json_t *json = json_object();
    char name[12];

    for (int i = 0; i < BENCH_SLOTS; i++) {
        snprintf(name, sizeof name, "%u", (unsigned)bench_slot_counts[i]);
        json_object_set_new(json, name, bench_json(&b->slots.spoken[i]));
    }
    return json;
}

static int report(bench *b, uint32_t missed)
{
    json_t *json = bench_report("npc", b->info.device, "");

    json_object_update_new(
        json, json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:o, s:o, s:{s:o, s:o, s:o}, s:{s:o, s:o}, s:s?, s:o, s:i}", "model",
                        strrchr(b->model, '/') ? strrchr(b->model, '/') + 1 : b->model, "rung", td_rung_name(b->info.rung), "isa", b->info.isa,
                        "threads", (int)b->threads, "prompt", (int)b->prompt, "tokens", (int)b->tokens, "depth", (int)b->depth,
                        "weight_bytes", (json_int_t)b->weight_bytes, "cache_bytes", (json_int_t)b->state_bytes, "load_ms",
                        bench_number(b->load_ms), "resident_mib", bench_number(resident_mib()), "tokens_per_s", "prompt",
                        bench_json(&b->read), "decode", bench_json(&b->spoken), "gb_per_s",
                        bench_number(1e-9 * token_bytes(b) * bench_median(&b->spoken)), "llama_cpp", "prompt",
                        bench_json(&b->peer_read), "decode", bench_json(&b->peer_spoken), "no_llama_cpp",
                        b->no_peer_why[0] ? b->no_peer_why : NULL, "targets", bench_targets_json(&b->targets), "missed", (int)missed));
    json_object_set_new(json, "slots", slots_json(b));
    json_object_set_new(json, "no_slots", b->slots.why[0] ? json_string(b->slots.why) : json_null());
    return bench_save(json, b->json);
}

/* --- The bench --- */

static int read_arguments(int argc, char **argv, bench *b)
{
    enum { NUMBERS = 5 };
    const struct {
        const char *name;
        uint64_t least, most, standard, *to;
    } numbers[NUMBERS] = {{"--threads", 1, 1024, tool_cores(), &b->threads},
                          {"--prompt", 1, 1 << 20, 512, &b->prompt},
                          {"--tokens", 1, 1 << 20, 128, &b->tokens},
                          {"--depth", 0, 1 << 20, 0, &b->depth},
                          {"--rounds", 1, 1000, 5, &b->rounds}};
    const char *texts[NUMBERS] = {NULL};
    const tool_option options[] = {
        {"--model", &b->model, NULL},      {"--rung", &b->rung, NULL},       {"--threads", &texts[0], NULL},
        {"--prompt", &texts[1], NULL},     {"--tokens", &texts[2], NULL},    {"--depth", &texts[3], NULL},
        {"--rounds", &texts[4], NULL},     {"--llama-bench", &b->peer, NULL}, {"--no-llama", NULL, &b->no_peer},
        {"--json", &b->json, NULL},        {"--quick", NULL, &b->quick},     {"--strict", NULL, &b->strict}};

    b->rung = "auto";
    b->peer = "llama-bench";
    if (tool_parse("bench npc", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!tool_rung("bench npc", b->rung, &b->rung_value))
        return TOOL_USAGE;
    for (int i = 0; i < NUMBERS; i++) {
        *numbers[i].to = b->quick && !strcmp(numbers[i].name, "--rounds") ? 1 : numbers[i].standard;
        if (texts[i] && !tool_number(texts[i], numbers[i].least, numbers[i].most, numbers[i].to))
            return tool_usage("bench npc", "%s \"%s\" must be a number from %u to %u", numbers[i].name, texts[i],
                              (unsigned)numbers[i].least, (unsigned)numbers[i].most);
    }
    if (!b->model)
        return tool_usage("bench npc", "--model is missing; `tandem fetch smollm2` brings one");
    return TOOL_OK;
}

static bool make_tokens(bench *b)
{
    const uint64_t most = b->depth > b->prompt ? b->depth : b->prompt, count = most > b->tokens ? most : b->tokens;
    uint64_t state = 1;

    b->ids = calloc(count, sizeof *b->ids);
    for (uint64_t i = 0; i < count && b->ids; i++)
        b->ids[i] = (uint32_t)(bench_random(&state) % b->speaker.words);
    return b->ids || tool_fail("bench npc", "no memory for tokens") == TOOL_OK;
}

static bool measure(bench *b)
{
    bool peer = !b->no_peer;

    if (b->no_peer)
        snprintf(b->no_peer_why, sizeof b->no_peer_why, "--no-llama");
    if (!run_ours(b, true))
        return false;
    for (uint64_t round = 0; round < b->rounds; round++) {
        if (!run_ours(b, false))
            return false;
        peer = peer && run_peer(b);
    }
    return bench_measure_slots(b->s, b->model, TANDEM_CACHE_F16, (uint32_t)b->tokens, (uint32_t)b->rounds, &b->slots) ||
           tool_fail("bench npc", "several characters: %s", b->slots.why) == TOOL_OK;
}

static int finish(bench *b)
{
    if (b->info.rung == TANDEM_RUNG_CPU && b->peer_spoken.count)
        bench_expect(&b->targets, bench_median(&b->spoken) / bench_median(&b->peer_spoken), true, 0.8,
                     "tokens one by one on a CPU, of llama.cpp's rate");
    print(b);
    const uint32_t missed = bench_print_targets(&b->targets);
    const int saved = report(b, missed);

    return saved ? saved : bench_status("bench npc", b->spoken.count, missed, b->strict);
}

int bench_npc(int argc, char **argv)
{
    bench b = {0};
    char why[300] = "";
    int status = read_arguments(argc, argv, &b);

    if (status == TOOL_OK && b.json && !tool_can_write("--json", b.json, why, sizeof why))
        status = tool_fail("bench npc", "%s", why);
    if (status == TOOL_OK)
        status = open_model(&b) && make_tokens(&b) && measure(&b) ? finish(&b) : TOOL_FAILED;
    td_speaker_close(&b.speaker);
    tool_session_destroy(&b.s, &b.engine);
    bench_free(&b.read);
    bench_free(&b.spoken);
    bench_free(&b.peer_read);
    bench_free(&b.peer_spoken);
    bench_free_slots(&b.slots);
    free(b.ids);
    return status;
}
