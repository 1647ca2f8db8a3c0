/* `tandem tune`: measures what AUTO goes by on this GPU, and writes it where hosts look for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/client/tuning_file.h"
#include "engine_plugin/tool/attention_times.h"
#include "interop/base.h"
#include "interop/cu/driver.h"

enum { MOST_ROWS_AT_ONCE = 1 << 19, MOST_KEYS_AT_ONCE = 1 << 20, QUICK_LENGTH = 4096 };
/* That a kernel has the GPU at a time, small shapes a tenth: until its clock is what its power allows. */
enum { TUNE_US = 100000, PROVE_US = 40000, SECONDS = 19, QUICK_SECONDS = 5 };

/* clang-format off */
const char *const tool_tune_help =
    "usage: tandem tune [--out F] [--dim LIST] [--4b] [--quick] [--seconds N] [--backend cuda|cpu]\n"
    "       tandem tune --check F\n"
    "       tandem tune --prove [--tuning F] [--shapes N] [--json F] [--backend cuda|cpu]\n"
    "\n"
    "Measures how long our attention kernels take on this machine's first CUDA device, alone and with the\n"
    "quantisation of Q, K and V before them, and writes the times as JSON. Precision `auto` then takes the\n"
    "one of f16, 8b and 4b that is the fastest from fp16 or bf16 tensors to the output; without such a file\n"
    "it goes by a table that came with this build, if there is one for the GPU, or else by a rule: 8b from\n"
    "256 keys on, f16 below; on Hopper, where f16 needs no prologue, 8b where its kernel is estimated to save\n"
    "more than its prologue costs (kernels/attention/tuning.h: with 128 heads from about 1050 queries and keys on for\n"
    "head dim 128, 1750 for 64, with a causal mask 1750 and 3100).\n"
    "\n"
    "  --out F      where the file goes; default $XDG_CONFIG_HOME/tandem/tuning.json, or\n"
    "               ~/.config/tandem/tuning.json; written under a temporary name, then renamed\n"
    "  --dim LIST   of the head dims 32, 64, 80, 96, 128, 256; default 64,80,96,128; others go by the rule\n"
    "  --4b         4b, too, also where the GPU has no int4 tensor cores (it is measured where it has)\n"
    "  --quick      only up to 4096 keys, and in 5 s\n"
    "  --seconds N  at most so many seconds in all, 1 to 3600; default 19. A kernel has the GPU until its times\n"
    "               have settled, or for its share of what is left, at most 0.1 s; shapes that there is no time for\n"
    "               are left out, and go by the rule\n"
    "  --check F    measures nothing: says whether F is such a file, and what auto would take\n"
    "  --tuning F   with --prove: a file of `tandem tune` that auto goes by\n"
    "  --shapes N   with --prove: 1 to 100000; default 200\n"
    "  --json F     with --prove: everything as JSON\n"
    "  --backend cuda|cpu\n"
    "               cuda (default), or cpu, which is there to try it\n"
    "  --prove      measures 200 (--shapes N) random shapes end to end, grouped heads and few queries among\n"
    "               them, and says what auto loses by what it takes: by F, or by what came with this build\n"
    "\n"
    "The file: {\"tandem\": \"choice\", \"version\": 2, \"device\": name, \"sm\": 90, \"multiprocessors\": 132,\n"
    "\"parts\": [{\"head_dim\", \"causal\": 0 or 1, \"f16\", \"8b\", \"4b\"}]}. The last three are null, or have\n"
    "\"kernel\", \"prologue\" and \"few\": null, or an array for batch * heads = 1, 2, 4 ... 128 of arrays for 256,\n"
    "512 ... 32768 keys; microseconds, null where nothing was measured. Kernel and prologue are of as many queries as\n"
    "keys, few is the kernel with 16 queries.\n"
    "Nobody looks for the file: a session is given its text (tandem_session_desc.tuning), `tandem bench attention\n"
    "--tuning F` goes by it, `tandem info --tuning F` says whether sessions here do, tandemd has a key `tuning`. It\n"
    "holds for the GPU that it names. kernels/attention/tuning_ship.py F puts it into the next build for such GPUs.\n";
/* clang-format on */

static int check(const char *path)
{
    static td_tuning_table table;
    char why[600] = "";
    if (!tool_tuning(path, &table, why, sizeof why))
        return tool_fail("tune", "%s", why);
    printf("%s, compute capability %u.%u; auto takes, with batch * heads and queries = keys:\n", table.device,
           (unsigned)table.sm / 10, (unsigned)table.sm % 10);
    for (uint32_t p = 0; p < table.count; p++) {
        printf("d%-3u %-6s", (unsigned)table.parts[p].head_dim, table.parts[p].causal ? "causal" : "");
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++)
            printf("%7u", (unsigned)td_tuning_length(j));
        printf("\n");
        for (uint32_t i = 0; i < TD_TUNING_PLANES; i++) {
            printf("%11u", (unsigned)td_tuning_planes(i));
            for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
                const tandem_attention op = {.batch = 1,
                                             .heads = td_tuning_planes(i),
                                             .kv_heads = td_tuning_planes(i),
                                             .q_len = td_tuning_length(j),
                                             .kv_len = td_tuning_length(j),
                                             .head_dim = table.parts[p].head_dim,
                                             .causal = table.parts[p].causal};
                const uint32_t taken = td_tuning_precision(&table, &op);
                printf("%7s", taken ? tool_precisions[taken] : "rule");
            }
            printf("\n");
        }
    }
    return TOOL_OK;
}

/* The default path, with its folders made. */
static bool default_path(char *path, size_t bytes, char *why, size_t why_bytes)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int length;
    if (config && config[0] == '/')
        length = snprintf(path, bytes, "%s/tandem/tuning.json", config);
    else if (home && home[0] == '/')
        length = snprintf(path, bytes, "%s/.config/tandem/tuning.json", home);
    else
        return snprintf(why, why_bytes, "neither XDG_CONFIG_HOME nor HOME is set; name a file with --out"), false;
    if (length < 0 || (size_t)length >= bytes)
        return snprintf(why, why_bytes, "the path of the user's configuration is too long"), false;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        if (!made)
            td_fail(why, why_bytes, TANDEM_ERROR_IO, "\"%s\": %s", path, strerror(errno));
        *slash = '/';
        if (!made)
            return false;
    }
    return true;
}

static json_t *times_json(const td_tuning_times us)
{
    bool any = false;
    json_t *planes = json_array();
    for (uint32_t i = 0; i < TD_TUNING_PLANES; i++) {
        json_t *lengths = json_array();
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
            any = any || us[i][j] > 0;
            json_array_append_new(lengths, us[i][j] > 0 ? json_real((double)us[i][j]) : json_null());
        }
        json_array_append_new(planes, lengths);
    }
    if (any)
        return planes;
    json_decref(planes);
    return json_null();
}

static json_t *cost_json(const td_tuning_cost *cost)
{
    json_t *kernel = times_json(cost->kernel);
    if (!json_is_null(kernel))
        return json_pack("{s:o, s:o, s:o}", "kernel", kernel, "prologue", times_json(cost->prologue), "few",
                         times_json(cost->few));
    return kernel;
}

static bool write_table(const td_tuning_table *table, const char *path, char *why, size_t why_bytes)
{
    json_t *parts = json_array();
    for (uint32_t p = 0; p < table->count; p++) {
        const td_tuning_part *part = &table->parts[p];
        json_array_append_new(parts, json_pack("{s:i, s:i, s:o, s:o, s:o}", "head_dim", (int)part->head_dim, "causal",
                                               (int)part->causal, "f16", cost_json(&part->costs[TD_TUNING_F16]), "8b",
                                               cost_json(&part->costs[TD_TUNING_8B]), "4b",
                                               cost_json(&part->costs[TD_TUNING_4B])));
    }
    json_t *json =
        json_pack("{s:s, s:i, s:s, s:i, s:i, s:o}", "tandem", "choice", "version", 2, "device", table->device, "sm",
                  (int)table->sm, "multiprocessors", (int)table->multiprocessors, "parts", parts);
    char temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    const bool good = json && json_dump_file(json, temporary, JSON_REAL_PRECISION(5) | JSON_INDENT(1)) == 0 &&
                      rename(temporary, path) == 0;
    if (!good) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "\"%s\" could not be written: %s", path, strerror(errno));
        remove(temporary);
    }
    json_decref(json);
    return good;
}

/* Both were measured, so what lies between them may be noise. */
static float prologue_of(double whole, double kernel)
{
    const double us = whole - kernel;
    return whole > 0 && kernel > 0 ? (float)(us > 0.1 ? us : 0.1) : 0;
}

typedef struct plan {
    const char *precisions;
    uint32_t longest;
    double seconds;
} plan;

/* Microseconds of our own kernels, in the order of kernels/attention/tuning.h; 0: not measured. */
typedef struct costs {
    double kernel[TD_TUNING_COSTS], whole[TD_TUNING_COSTS]; /* whole: with the prologue; 0 if there is none */
} costs;

/* Opens what measures; a precision has the device for run_us at a time. *device: its name, compute capability and
 * multiprocessors. */
static bool open_times(times *t, bool cpu, double run_us, td_tuning_table *device, char *why, size_t why_bytes)
{
    *t = (times){.cpu = cpu, .rounds = 1, .run_us = run_us, .tunes = true};
    if (!times_open(t, why, why_bytes)) {
        times_close(t);
        return false;
    }
    const td_cu_info *info = cpu ? NULL : td_cu_device_info(t->device);
    snprintf(device->device, sizeof device->device, "%.*s", TD_TUNING_DEVICE - 1, info ? info->name : "CPU");
    device->sm = info ? info->sm : 0;
    device->multiprocessors = info ? info->multiprocessors : 1;
    return true;
}

/* precisions: "8b,f16" or with "4b". */
static bool measure_shape(times *t, const times_shape *s, const char *precisions, costs *out, char *why,
                          size_t why_bytes)
{
    times_row rows[TIMES_ROWS] = {{0}};
    uint32_t sets = 0;
    *out = (costs){0};
    if (!t->cpu && td_cu_enter(t->device, why, why_bytes) != TANDEM_OK)
        return false;
    const uint32_t count = times_make_rows(t, s, precisions, rows, &sets, why, why_bytes);
    if (count)
        times_measure(t, s, rows, count, sets, why, why_bytes);
    if (!t->cpu)
        td_cu_leave(t->device);
    for (uint32_t i = 0; i < count; i++) {
        const int cost = rows[i].precision == TANDEM_PRECISION_F16  ? TD_TUNING_F16
                         : rows[i].precision == TANDEM_PRECISION_8B ? TD_TUNING_8B
                                                                    : TD_TUNING_4B;
        if (rows[i].us[TIMES_SUSTAINED].count)
            (rows[i].kind == TIMES_KERNEL ? out->kernel : out->whole)[cost] = times_median(&rows[i], TIMES_SUSTAINED);
        if (rows[i].why[0] && !why[0])
            td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s: %s", tool_precisions[rows[i].precision], rows[i].why);
    }
    times_free_rows(rows, count);
    return count && !why[0];
}

/* Small shapes have the GPU a tenth as long. */
static bool is_small(const times_shape *s)
{
    const uint64_t rows = s->queries > s->n ? s->queries : s->n;
    return s->batch * s->heads * rows <= 1 << 16;
}

/* Of a table: as many queries as keys, or few, of which only the kernels are measured. */
static times_shape shape_of(const td_tuning_part *part, uint32_t planes, uint32_t queries, uint32_t keys)
{
    times_shape s = {.batch = 1,
                     .heads = planes,
                     .kv_heads = planes,
                     .queries = queries,
                     .n = keys,
                     .dim = part->head_dim,
                     .causal = part->causal && queries == keys,
                     .kernels_only = queries != keys};
    s.small = is_small(&s);
    return s;
}

/* A point of a table. */
typedef struct task {
    uint32_t part, plane, length;
    bool few;
    double weight; /* turns of run_us that it has */
} task;

/* What is to be measured in so many seconds. */
typedef struct schedule {
    task tasks[TD_TUNING_PARTS * TD_TUNING_PLANES * TD_TUNING_LENGTHS * 2];
    uint32_t count, left_out;
    double weight_left, seconds, turns_us; /* turns_us: that contenders have had so far */
    double pairs_per_us;                   /* the best rate of a shape so far: queries times keys times channels */
    uint64_t begin_ns;
} schedule;

static times_shape shape_of_task(const td_tuning_table *table, const task *it)
{
    const uint32_t n = td_tuning_length(it->length);
    return shape_of(&table->parts[it->part], td_tuning_planes(it->plane), it->few ? TD_TUNING_FEW : n, n);
}

/* Few queries are measured without a mask alone. */
static void make_schedule(schedule *s, const td_tuning_table *table, uint32_t longest, uint32_t contenders, double seconds)
{
    *s = (schedule){.seconds = seconds, .begin_ns = td_now_ns()};
    for (uint32_t p = 0; p < table->count; p++)
        for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
            for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++)
                for (int few = 0; few < 2; few++) {
                    const uint64_t rows = (uint64_t)td_tuning_planes(i) * td_tuning_length(j);
                    if (td_tuning_length(j) > longest || rows > (few ? MOST_KEYS_AT_ONCE : MOST_ROWS_AT_ONCE) ||
                        (few && table->parts[p].causal))
                        continue;
                    task *it = &s->tasks[s->count++];
                    *it = (task){.part = p, .plane = i, .length = j, .few = few};
                    const times_shape shape = shape_of_task(table, it);
                    it->weight = (few ? contenders : 2 * contenders) * (shape.small || few ? 0.1 : 1);
                    s->weight_left += it->weight;
                }
}

static double seconds_since(uint64_t begin_ns)
{
    return 1e-9 * (double)(td_now_ns() - begin_ns);
}

static double pairs_of(const times_shape *s)
{
    return (double)s->batch * s->heads * s->queries * s->n * s->dim;
}

/* How long a turn may be for all of them to fit in; the largest ones get TUNE_US at most. Between turns tensors are filled and graphs
 * made, which takes its part of the time. */
static double turn_us(const schedule *s)
{
    const double spent = seconds_since(s->begin_ns), left = s->seconds - spent;
    const double of_turns = s->turns_us > 0 ? fmin(1, fmax(0.2, 1e-6 * s->turns_us / spent)) : 0.5;
    return fmin(TUNE_US, fmax(0, 1e6 * of_turns * left / fmax(s->weight_left, 1e-3)));
}

/* On a terminal a bar, elsewhere nothing. */
static void show_progress(const schedule *s, uint32_t done, bool ends)
{
    enum { CELLS = 32 };
    if (!isatty(STDERR_FILENO))
        return;
    const uint32_t cells = done * CELLS / s->count;
    fprintf(stderr, "\r[%.*s%*s] %3u %%, %.0f of at most %.0f s%s", (int)cells, "################################", (int)(CELLS - cells), "",
            (unsigned)(100 * done / s->count), seconds_since(s->begin_ns), s->seconds, ends ? "\r\033[K" : "");
    fflush(stderr);
}

static bool measure_task(times *t, schedule *s, td_tuning_table *table, const task *it, const char *precisions, char *why,
                         size_t why_bytes)
{
    td_tuning_part *part = &table->parts[it->part];
    const times_shape shape = shape_of_task(table, it);
    const uint32_t i = it->plane, j = it->length;
    costs us = {0};
    /* Each contender is run three times at least: twice before it counts. */
    const double least_us = s->pairs_per_us > 0 ? 6 * pairs_of(&shape) / s->pairs_per_us : 0;
    if (seconds_since(s->begin_ns) + 1e-6 * least_us > s->seconds) {
        s->left_out++;
        return true;
    }
    t->run_us = turn_us(s);
    if (!measure_shape(t, &shape, precisions, &us, why, why_bytes))
        return false;
    for (int c = 0; c < TD_TUNING_COSTS; c++) {
        const double each = us.whole[c] > 0 ? us.whole[c] : us.kernel[c];
        if (it->few) {
            part->costs[c].few[i][j] = (float)us.kernel[c];
        } else {
            part->costs[c].kernel[i][j] = (float)us.kernel[c];
            part->costs[c].prologue[i][j] = prologue_of(us.whole[c], us.kernel[c]);
        }
        if (each > 0 && !it->few && (s->pairs_per_us == 0 || pairs_of(&shape) / each > s->pairs_per_us))
            s->pairs_per_us = pairs_of(&shape) / each;
    }
    s->turns_us += t->turns_us;
    t->turns_us = 0;
    return true;
}

/* Measures a table. What there is no time for is left out: `auto` goes by the rule there. */
static bool measure_table(times *t, td_tuning_table *table, const plan *wanted, schedule *s, char *why, size_t why_bytes)
{
    make_schedule(s, table, wanted->longest, strstr(wanted->precisions, "4b") ? 3 : 2, wanted->seconds);
    for (uint32_t i = 0; i < s->count; i++) {
        show_progress(s, i, false);
        if (!measure_task(t, s, table, &s->tasks[i], wanted->precisions, why, why_bytes)) {
            show_progress(s, i, true);
            return false;
        }
        s->weight_left -= s->tasks[i].weight;
    }
    show_progress(s, s->count, true);
    return true;
}

static uint32_t random_length(uint64_t *state, double low, double high)
{
    const double part = (double)(bench_random(state) >> 11) * 0x1p-53;
    return (uint32_t)(low * pow((high + 1) / low, part));
}

/* Any shape within reason: grouped heads, as many queries as keys, or few, or any number of either. */
static times_shape random_shape(uint64_t *state, double most_pairs)
{
    static const uint32_t heads[] = {1, 2, 4, 8, 12, 16, 24, 32, 40, 64}, groups[] = {1, 1, 2, 4, 8},
                          dims[] = {64, 80, 96, 128};
    for (;;) {
        const uint32_t group = groups[bench_random(state) % 5], how = bench_random(state) % 3;
        times_shape s = {.batch = 1 + (uint32_t)(bench_random(state) % 8),
                         .heads = heads[bench_random(state) % 10],
                         .n = random_length(state, 64, 32768),
                         .dim = dims[bench_random(state) % 4],
                         .causal = bench_random(state) % 2};
        s.kv_heads = s.heads / group;
        s.queries = how == 0 ? s.n : random_length(state, 1, how == 1 ? 64 : 32768);
        s.small = is_small(&s);
        const double rows = (double)s.batch * s.heads * (s.queries > s.n ? s.queries : s.n);
        if (s.heads % group == 0 && (double)s.batch * s.heads * s.queries * s.n <= most_pairs &&
            rows <= 2 * MOST_KEYS_AT_ONCE)
            return s;
    }
}

/* tandem_precision that AUTO is for the shape, by a table or by what there is (NULL). */
static uint32_t auto_takes(const times *t, const times_shape *s, const td_tuning_table *table)
{
    const tandem_attention op = times_op(s, TANDEM_PRECISION_AUTO);
    td_target target = t->target;
    if (table)
        target.tuning = table;
    return td_attention_precision(&op, &target);
}

/* Measures random shapes, and what auto loses by taking what it takes. */
static int prove(const char *path, const char *backend, uint32_t shapes, const char *json_path)
{
    static const uint32_t precisions[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
    static td_tuning_table table, device;
    const bool cpu = !strcmp(backend, "cpu");
    char why[600] = "";
    uint64_t state = 1;
    bench_series losses = {0};
    uint32_t over = 0;
    if (path && !tool_tuning(path, &table, why, sizeof why))
        return tool_fail("tune", "%s", why);
    times t;
    if (!open_times(&t, cpu, PROVE_US, &device, why, sizeof why))
        return tool_fail("tune", "%s", why);
    bool good = !path || td_tuning_fits(&table, device.sm, device.device, why, sizeof why);
    json_t *list = json_array();
    for (uint32_t i = 0; i < shapes && good; i++) {
        const times_shape s = random_shape(&state, cpu ? 1e6 : 1e10);
        const uint32_t taken = auto_takes(&t, &s, path ? &table : NULL);
        costs us;
        double whole[4] = {0}, best = 0;
        good = measure_shape(&t, &s, device.sm >= 80 && device.sm < 90 ? "8b,f16,4b" : "8b,f16", &us, why, sizeof why);
        for (int c = 0; c < TD_TUNING_COSTS && good; c++) {
            const double it = whole[precisions[c]] = us.whole[c] > 0 ? us.whole[c] : us.kernel[c];
            best = it > 0 && (best == 0 || it < best) ? it : best;
        }
        if (!good || best == 0 || whole[taken] == 0)
            continue;
        const double loss = whole[taken] / best - 1;
        bench_add(&losses, loss);
        over += loss > 0.05;
        printf("b%u h%-2u/%-2u q%-5u k%-5u d%-3u %-6s f16 %9.1f  8b %9.1f us  auto %-3s %+5.1f %%\n", (unsigned)s.batch,
               (unsigned)s.heads, (unsigned)s.kv_heads, (unsigned)s.queries, (unsigned)s.n, (unsigned)s.dim,
               s.causal ? "causal" : "", whole[TANDEM_PRECISION_F16], whole[TANDEM_PRECISION_8B], tool_precisions[taken],
               100 * loss);
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:f, s:s, s:f}", "batch",
                                              (int)s.batch, "heads", (int)s.heads, "kv_heads", (int)s.kv_heads, "q_len",
                                              (int)s.queries, "kv_len", (int)s.n, "d", (int)s.dim, "causal",
                                              (int)s.causal, "f16_us", whole[TANDEM_PRECISION_F16], "8b_us",
                                              whole[TANDEM_PRECISION_8B], "4b_us", whole[TANDEM_PRECISION_4B], "auto",
                                              tool_precisions[taken], "loss", loss));
    }
    times_close(&t);
    if (losses.count)
        printf("%s, auto by %s: %zu shapes, %u lose more than 5 %%, at most %.1f %%\n", device.device,
               path ? path : "what came with this build", losses.count, (unsigned)over, 100 * bench_at(&losses, 1));
    bench_free(&losses);
    if (good && !json_array_size(list)) {
        td_fail(why, sizeof why, TANDEM_ERROR_DEVICE, "nothing was measured");
        good = false;
    }
    json_t *report = bench_report("tune", device.device, "");
    json_object_set_new(report, "shapes", list);
    json_object_set_new(report, "over_5_percent", json_integer(over));
    const int saved = bench_save(report, json_path);
    return good ? saved : tool_fail("tune", "%s", why);
}

int tool_tune(int argc, char **argv)
{
    static const char *const backends[] = {"cuda", "cpu", NULL};
    static const char *const head_dims[] = {"32", "64", "80", "96", "128", "256", NULL};
    const char *out = NULL, *dims = NULL, *checked = NULL;
    const char *by = NULL, *shapes = NULL, *backend = NULL, *json = NULL, *seconds = NULL;
    bool with_4b = false, quick = false, proves = false;
    uint64_t count = 200, most_seconds = SECONDS;
    const tool_option options[] = {{"--out", &out, NULL},
                                   {"--seconds", &seconds, NULL},
                                   {"--dim", &dims, NULL},
                                   {"--check", &checked, NULL},
                                   {"--prove", NULL, &proves},
                                   {"--tuning", &by, NULL},
                                   {"--shapes", &shapes, NULL},
                                   {"--backend", &backend, NULL},
                                   {"--json", &json, NULL},
                                   {"--4b", NULL, &with_4b},
                                   {"--quick", NULL, &quick}};
    static td_tuning_table table;
    char path[4096], why[600] = "", list[64];
    const int parsed = tool_parse("tune", argc, argv, options, sizeof options / sizeof *options);
    if (parsed != TOOL_OK)
        return parsed;
    const char *of_prove = by ? "--tuning" : shapes ? "--shapes" : json ? "--json" : NULL;
    const char *of_tune = out ? "--out" : dims ? "--dim" : with_4b ? "--4b" : quick ? "--quick" : seconds ? "--seconds" : NULL;
    const char *other = of_tune ? of_tune : of_prove ? of_prove : backend ? "--backend" : proves ? "--prove" : NULL;
    if (checked && other)
        return tool_usage("tune", "%s: --check goes with no other option", other);
    if (!proves && of_prove)
        return tool_usage("tune", "%s: --tuning, --shapes and --json go with --prove", of_prove);
    if (proves && of_tune)
        return tool_usage("tune", "%s: --out, --dim, --4b, --quick and --seconds do not go with --prove", of_tune);
    if (seconds && !tool_number(seconds, 1, 3600, &most_seconds))
        return tool_usage("tune", "--seconds \"%s\": must be a number from 1 to 3600", seconds);
    if (!backend)
        backend = "cuda";
    if (dims && tool_words("tune", "--dim", dims, head_dims) != TOOL_OK)
        return TOOL_USAGE;
    if (shapes && !tool_number(shapes, 1, 100000, &count))
        return tool_usage("tune", "--shapes \"%s\": must be a number from 1 to 100000", shapes);
    if (tool_word(backend, backends) < 0)
        return tool_usage("tune", "--backend \"%s\": must be cuda or cpu", backend);
    if (proves)
        return prove(by, backend, (uint32_t)count, json);
    if (checked)
        return check(checked);

    memset(&table, 0, sizeof table);
    snprintf(list, sizeof list, "%s", dims ? dims : "64,80,96,128");
    for (char *rest = list, *word = strsep(&rest, ","); word; word = strsep(&rest, ","))
        for (uint32_t causal = 0; causal < 2; causal++) {
            table.parts[table.count].head_dim = (uint32_t)strtoul(word, NULL, 10);
            table.parts[table.count++].causal = causal;
        }
    if (out)
        snprintf(path, sizeof path, "%s", out);
    else if (!default_path(path, sizeof path, why, sizeof why))
        return tool_fail("tune", "%s", why);
    if (!tool_can_save("--out", path, why, sizeof why))
        return tool_fail("tune", "%s", why);
    times t;
    if (!open_times(&t, !strcmp(backend, "cpu"), TUNE_US, &table, why, sizeof why))
        return tool_fail("tune", "%s", why);
    const plan wanted = {with_4b || (table.sm && table.sm < 90) ? "8b,f16,4b" : "8b,f16", quick ? QUICK_LENGTH : UINT32_MAX,
                         seconds ? (double)most_seconds : quick ? QUICK_SECONDS : SECONDS};
    static schedule all;
    bool good = measure_table(&t, &table, &wanted, &all, why, sizeof why);
    times_close(&t);
    if (good && all.left_out == all.count) {
        td_fail(why, sizeof why, TANDEM_ERROR_DEVICE, "nothing was measured in %.0f s", wanted.seconds);
        good = false;
    }
    if (good)
        good = write_table(&table, path, why, sizeof why);
    if (!good)
        return tool_fail("tune", "%s", why);
    printf("%s: %u points in %.1f s", table.device, (unsigned)(all.count - all.left_out), seconds_since(all.begin_ns));
    if (all.left_out)
        printf("; there was no time for %u, see --seconds", (unsigned)all.left_out);
    printf("\nwritten to %s\n", path);
    return table.sm ? check(path) : TOOL_OK; /* nobody goes by a CPU's, whose precisions are as they are asked for */
}
