/* What AUTO takes. See choice.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/choice.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "interop/base.h"
#include "kernels/ops.h"
#include "kernels/params.h"

enum { FIRST_LENGTH = 256 };
static const uint32_t precisions[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
static const float most_us = 1e9f;
static const double unlike = 0.1; /* what a neighbour counts whose blocks are of another kind */

uint32_t td_choice_planes(uint32_t index)
{
    return 1u << index;
}

uint32_t td_choice_length(uint32_t index)
{
    return (uint32_t)FIRST_LENGTH << index;
}

bool td_choice_fits(const td_choice_table *table, uint32_t sm, const char *device, char *why, size_t why_bytes)
{
    const bool fits = table->sm == sm && strncmp(table->device, device, TD_CHOICE_DEVICE - 1) == 0;
    if (!fits && why && why_bytes)
        td_text(why, why_bytes,
                "it was measured on '%s' (compute capability %" PRIu32 ".%" PRIu32 "), this is '%s' (%" PRIu32
                ".%" PRIu32 ")",
                table->device, table->sm / 10, table->sm % 10, device, sm / 10, sm % 10);
    return fits;
}

/* --- Shapes --- */

/* Microseconds of an H200's kernels. */
typedef struct rates {
    double rest, row; /* of a tile, and of each 64 rows of it, whatever its keys */
    double step[4];   /* of 64 rows and 128 keys, by head dim (64, 80, 96, 128), where blocks have most warpgroups */
    double part;      /* of 64 rows, where some of a step's keys are masked */
    double light;     /* so much of a step's time where few multiprocessors are busy: their clock is higher */
    double shared;    /* so much longer is a step where warpgroups share the keys */
    double key_bytes; /* of a value of K or V */
} rates;

/* On a stream and in the shared memory that every executor has, of F16 and of 8B. */
static const rates all_rates[2][2] = {
    {{2.6, 0.6, {0.5, 0.71, 0.75, 0.88}, 0, 0.86, 1.3, 2}, {3, 1, {0.362, 0.445, 0.455, 0.505}, 0.6, 1, 1.08, 1}},
    {{2.6, 0.6, {0.62, 0.73, 0.82, 1.09}, 0, 0.86, 1.3, 2}, {3, 1, {0.39, 0.445, 0.455, 0.62}, 0.6, 1, 1.08, 1}}};

/* Of F16's blocks of two teams: what both tiles take whatever their keys, half of it beside the other's. */
static const double teams_rest = 2.6;

/* What is left of a tile's begin and end where blocks begin the next meanwhile. */
static const double walk_rest = 0.57;

/* What a launch takes; bytes of K and V that all blocks together get in a microsecond, and what that takes longer at
 * first. */
static const double launch_us = 2.5, key_rate = 4e6, first_keys_us = 7.5;

static uint32_t groups_of_most(uint32_t head_dim, int cost, bool roomy)
{
    if (cost == TD_CHOICE_F16)
        return roomy ? TD_F16_GROUPS : TD_F16_INLINE_GROUPS;
    return roomy ? TD_HOPPER_GROUPS(head_dim) : TD_HOPPER_INLINE_GROUPS(head_dim);
}

/* How long tiles take that blocks begin head after head, each head's longest first, as soon as one ends: the last head's
 * begins when all of the others have begun, and half of what was begun last is left. Almost equal ones as without a
 * mask. `tiles` in those that are done at once. */
static double unequal_us(double tiles, double average, double longest, double heads)
{
    const double shortest = fmax(0, 2 * average - longest), all = tiles * average;
    const double left = (longest * (longest + shortest) + shortest * shortest) / (6 * average);
    const double us = fmax(fmax(longest, all), all * (1 - 1 / heads) + longest - left);
    const double equal = fmin(1, fmax(0, 3 * shortest / longest - 2));
    return (1 - equal) * us + equal * ceil(tiles) * average;
}

/* How long a precision's kernel is estimated to take: as many tiles at once as there are multiprocessors. */
static double estimated_us(const tandem_attention *op, int cost, const td_target *target)
{
    static const uint32_t head_dims[] = {64, 80, 96, 128};
    const bool roomy = target->shared_bytes > 0;
    const rates *r = &all_rates[!roomy][cost != TD_CHOICE_F16];
    const td_tiles t = td_attention_tiles(op, target, precisions[cost]);
    int i = 0;
    while (head_dims[i] < op->head_dim && i < 3)
        i++;
    const double most = groups_of_most(op->head_dim, cost, roomy);
    const double longer = cost == TD_CHOICE_F16 ? TD_F16_INLINE_LONGER(op->head_dim) : TD_HOPPER_LONGER(op->head_dim);
    const bool fetched = cost == TD_CHOICE_F16 && t.shares == 2; /* by warps that do nothing else, as where none share */
    const double slower = t.shares > 1 ? fetched ? 1 : r->shared : t.groups < most ? most / (most - 1) / longer : 1;
    const double q = op->q_len, kv = op->kv_len, planes = (double)op->batch * op->heads;
    const double rows = t.rows * t.walkers / 64.0, tiles = (double)t.tiles / t.walkers / target->multiprocessors;
    const double step = rows * slower * r->step[i] * (r->light + (1 - r->light) * fmin(1, tiles));
    const bool has_part = op->causal || op->kv_len % 128;
    const double rest = t.walkers > 1 ? teams_rest
                                      : (t.walks ? walk_rest : 1) * (r->rest + rows * (r->row + (has_part ? r->part : 0)));
    const double whole = rest + step * ceil(kv / 128);
    const double keys = !op->causal ? kv : q > kv ? kv * kv / (2 * q) : kv - (q - 1) / 2;
    const uint32_t row_tiles = (op->q_len + t.rows - 1) / t.rows; /* where odd, a pair has two heads' tiles */
    const double edge = t.rows / 2.0 * fmin(1, kv / q); /* keys of a step that are masked */
    const double average = rest + step * fmin(ceil(kv / 128), (keys + edge) / 128);
    double us = ceil(tiles) * whole;
    if (op->causal && t.pair > 1)
        us = t.pair * ceil(tiles / t.pair) * average + (row_tiles % 2 ? 0.5 * (whole - average) : 0);
    else if (op->causal && t.walks)
        us = fmax(whole, tiles * average);
    else if (op->causal && tiles > 1)
        us = unequal_us(tiles, average, whole, t.shares > 1 && cost == TD_CHOICE_F16 ? 1 : planes); /* 1: of all heads */
    const double bytes = 2 * r->key_bytes * op->head_dim * kv * op->batch * op->kv_heads;
    return launch_us + fmax(us, bytes / key_rate + fmin(first_keys_us, bytes / key_rate));
}

static double rows_read(const tandem_attention *op)
{
    return (double)op->batch * ((double)op->heads * op->q_len + 2.0 * op->kv_heads * op->kv_len);
}

/* How long 8B's prologue is estimated to take. Clusters leave places for blocks empty where they do not fill the
 * multiprocessors that can share one. */
static double estimated_prologue_us(const tandem_attention *op, const td_target *target)
{
    enum { SHARED_BY = 16, THREADS = 1024 }; /* multiprocessors, and what blocks of one have by their registers */
    const td_tiles t = td_attention_tiles(op, target, TANDEM_PRECISION_8B);
    const double bytes = rows_read(op) * 3 * op->head_dim;
    if (!target->shared_bytes)
        return 16 + bytes / 1.95e6;
    if (!t.cluster) /* Q by itself */
        return 11 + (bytes - 2.25 * op->batch * op->heads * op->q_len * op->head_dim) / 2.4e6;
    const uint32_t places = SHARED_BY * THREADS / t.cluster_threads, used = places / t.cluster * t.cluster;
    return 2 + op->head_dim / 60.0 + bytes / 3e6 * (0.3 + 0.7 * places / used);
}

static uint32_t choose_estimated(const tandem_attention *op, td_target like, uint32_t multiprocessors)
{
    const td_target *target = &like;

    like.multiprocessors = multiprocessors ? multiprocessors : like.multiprocessors;
    const double f16 = estimated_us(op, TD_CHOICE_F16, target);
    const double by_8b = estimated_us(op, TD_CHOICE_8B, target) + estimated_prologue_us(op, target);
    return by_8b < f16 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
}

uint32_t td_choice_rule_direct(const tandem_attention *op, uint32_t multiprocessors)
{
    return choose_estimated(op, td_target_for_stream(90), multiprocessors);
}

uint32_t td_choice_rule_inline(const tandem_attention *op, uint32_t multiprocessors)
{
    return choose_estimated(op, td_target_for_sm(90), multiprocessors);
}

/* --- Times --- */

/* What is measured, and what a measured time is divided by, so that what is left changes smoothly. */
typedef struct grid {
    enum { SQUARE, FEW, PROLOGUE } section;
    int cost;
    tandem_attention op; /* but for its heads and lengths */
    const td_target *target;
    td_tiles tiles; /* of what is asked for */
} grid;

/* What was measured there is estimated to be; and whether its blocks are of the kind that is asked for. */
static double estimate_at(const grid *g, uint32_t planes, uint32_t length, bool *alike)
{
    tandem_attention op = g->op;
    op.batch = 1;
    op.heads = op.kv_heads = planes;
    op.kv_len = length;
    op.q_len = g->section == FEW ? TD_CHOICE_FEW : length;
    const td_tiles t = td_attention_tiles(&op, g->target, precisions[g->cost]);
    if (g->section == PROLOGUE) {
        *alike = (t.cluster > 0) == (g->tiles.cluster > 0);
        return estimated_prologue_us(&op, g->target);
    }
    *alike = t.groups == g->tiles.groups && t.shares == g->tiles.shares && t.walks == g->tiles.walks;
    return estimated_us(&op, g->cost, g->target);
}

/* How many planes were measured of a length. */
static uint32_t planes_of(const td_choice_times times, uint32_t j)
{
    uint32_t last = TD_CHOICE_PLANES;
    while (last && !(times[last - 1][j] > 0))
        last--;
    return last;
}

/* Between four neighbours, on logarithmic axes, of which those count less whose blocks are of another kind; beyond what was
 * measured it stays what it is. 0: not known. */
static double unit_of(const grid *g, const td_choice_times times, double planes, double length)
{
    uint32_t last = TD_CHOICE_LENGTHS;
    while (last && !planes_of(times, last - 1))
        last--;
    if (!last)
        return 0;
    const double y = fmin(length > FIRST_LENGTH ? log2(length / FIRST_LENGTH) : 0, last - 1);
    double sum = 0, weights = 0;
    for (uint32_t j = (uint32_t)y; j < last && j <= (uint32_t)y + 1; j++) {
        const uint32_t count = planes_of(times, j);
        const double x = fmin(planes > 1 ? log2(planes) : 0, count ? count - 1 : 0);
        for (uint32_t i = (uint32_t)x; i < count && i <= (uint32_t)x + 1; i++) {
            bool alike;
            const double estimate = estimate_at(g, td_choice_planes(i), td_choice_length(j), &alike);
            const double weight = (1 - fabs(x - i)) * (1 - fabs(y - j)) * (alike ? 1 : unlike);
            if (!(times[i][j] > 0) && weight > 0)
                return 0;
            if (weight > 0) {
                sum += weight * log((double)times[i][j] / estimate);
                weights += weight;
            }
        }
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

static double between(double low, double high, double x)
{
    return low > 0 && high > 0 ? low * pow(high / low, x) : 0;
}

/* What it was measured on. */
static td_target target_of(const td_choice_table *table)
{
    td_target target = td_target_for_stream(table->sm);

    target.multiprocessors = table->multiprocessors;
    return target;
}

/* Of a precision's kernel, by what was measured with or without a mask. 0: not known. */
static double kernel_us(const td_choice_table *table, const td_choice_part *part, int i, const tandem_attention *op)
{
    const td_target target = target_of(table);
    const td_tiles t = td_attention_tiles(op, &target, precisions[i]);
    grid square = {SQUARE, i, *op, &target, t}, few = square;
    square.op.causal = part->causal;
    few.section = FEW;
    few.op.causal = false;
    const double row_tiles = (op->q_len + t.rows - 1) / t.rows, key_tiles = (op->kv_len + t.rows - 1) / t.rows;
    const double by_square = unit_of(&square, part->costs[i].kernel, (double)t.tiles / key_tiles, op->kv_len);
    const double by_few = unit_of(&few, part->costs[i].few, (double)t.tiles, op->kv_len);
    double share = row_tiles >= key_tiles ? 1 : log(row_tiles) / log(key_tiles);
    if (op->q_len > TD_CHOICE_FEW) /* more of a block's warps have rows */
        share = fmax(share, fmin(1, log((double)op->q_len / TD_CHOICE_FEW) / log((double)t.rows / TD_CHOICE_FEW)));
    const double unit = by_few > 0 && by_square > 0 ? between(by_few, by_square, share) : by_square;
    return unit * estimated_us(op, i, &target);
}

static double prologue_us(const td_choice_table *table, const td_choice_cost *cost, const tandem_attention *op)
{
    const td_target target = target_of(table);
    const grid g = {PROLOGUE, TD_CHOICE_8B, *op, &target, td_attention_tiles(op, &target, TANDEM_PRECISION_8B)};
    const double planes = fmax(rows_read(op) / 3 / op->kv_len, 1);
    return unit_of(&g, cost->prologue, planes, op->kv_len) * estimated_prologue_us(op, &target);
}

static const td_choice_part *find_part(const td_choice_table *table, uint32_t head_dim, bool causal)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (table->parts[i].head_dim == head_dim && table->parts[i].causal == causal)
            return &table->parts[i];
    return NULL;
}

/* From tensors of 16 bits to the output. With a mask few queries see almost all keys, and are as without one. */
static double whole_us(const td_choice_table *table, const tandem_attention *op, int i)
{
    const td_choice_part *part = find_part(table, op->head_dim, op->causal),
                         *bare = find_part(table, op->head_dim, false);
    if (!part)
        return 0;
    double us = kernel_us(table, part, i, op);
    if (op->causal && bare && op->q_len < op->kv_len) {
        const double without = kernel_us(table, bare, i, op), masked = (double)op->q_len / op->kv_len;
        us = without > 0 && us > 0 ? masked * us + (1 - masked) * without : us;
    }
    return us > 0 ? us + prologue_us(table, &part->costs[i], op) : 0;
}

uint32_t td_choice_precision(const td_choice_table *table, const tandem_attention *op)
{
    uint32_t best = TANDEM_PRECISION_AUTO;
    double least = 0;
    for (int i = 0; i < TD_CHOICE_COSTS; i++) {
        const double us = whole_us(table, op, i);
        if (us > 0 && (best == TANDEM_PRECISION_AUTO || us < least)) {
            best = precisions[i];
            least = us;
        }
    }
    return best;
}

/* --- JSON --- */

typedef struct reader {
    char *why;
    size_t why_bytes;
} reader;

__attribute__((format(printf, 2, 3))) static bool refuse(const reader *r, const char *format, ...)
{
    if (r->why && r->why_bytes) {
        va_list list;
        va_start(list, format);
        td_text_list(r->why, r->why_bytes, format, list);
        va_end(list);
    }
    return false;
}

static bool only_known(const reader *r, json_t *object, const char *what, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool found = false;
        for (int i = 0; known[i] && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            return refuse(r, "%s has a member \"%.40s\", which is not known", what, key);
    }
    return true;
}

static bool read_number(const reader *r, json_t *object, const char *what, const char *key, json_int_t least,
                        json_int_t most, uint32_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        return refuse(r, "%s.%s is missing or no whole number", what, key);
    if (json_integer_value(value) < least || json_integer_value(value) > most)
        return refuse(r, "%s.%s is %" JSON_INTEGER_FORMAT "; it must be from %" JSON_INTEGER_FORMAT
                         " to %" JSON_INTEGER_FORMAT, what, key, json_integer_value(value), least, most);
    *out = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_times(const reader *r, json_t *part, const char *what, const char *key, td_choice_times out)
{
    json_t *planes = json_object_get(part, key);
    memset(out, 0, sizeof(td_choice_times));
    if (!planes || json_is_null(planes))
        return true;
    if (!json_is_array(planes) || json_array_size(planes) != TD_CHOICE_PLANES)
        return refuse(r, "%s.%s is no array of %d", what, key, TD_CHOICE_PLANES);
    for (size_t i = 0; i < TD_CHOICE_PLANES; i++) {
        json_t *lengths = json_array_get(planes, i);
        if (!json_is_array(lengths) || json_array_size(lengths) != TD_CHOICE_LENGTHS)
            return refuse(r, "%s.%s[%zu] is no array of %d", what, key, i, TD_CHOICE_LENGTHS);
        for (size_t j = 0; j < TD_CHOICE_LENGTHS; j++) {
            const json_t *value = json_array_get(lengths, j);
            if (json_is_null(value))
                continue;
            const double us = json_number_value(value);
            if (!json_is_number(value) || !(us > 1e-3 && us < (double)most_us))
                return refuse(r, "%s.%s[%zu][%zu] is %g; it must be null, or microseconds above 0.001 and below %g",
                              what, key, i, j, us, (double)most_us);
            out[i][j] = (float)us;
        }
    }
    return true;
}

static bool read_cost(const reader *r, json_t *part, const char *of, const char *key, td_choice_cost *out)
{
    static const char *const known[] = {"kernel", "prologue", "few", NULL};
    json_t *cost = json_object_get(part, key);
    char what[48];
    snprintf(what, sizeof what, "%s.%s", of, key);
    memset(out, 0, sizeof *out);
    if (!cost || json_is_null(cost))
        return true;
    if (!json_is_object(cost))
        return refuse(r, "%s is no object", what);
    return only_known(r, cost, what, known) && read_times(r, cost, what, "kernel", out->kernel) &&
           read_times(r, cost, what, "prologue", out->prologue) && read_times(r, cost, what, "few", out->few);
}

static bool read_part(const reader *r, json_t *json, size_t index, td_choice_table *out)
{
    static const char *const known[] = {"head_dim", "causal", "f16", "8b", "4b", NULL};
    td_choice_part *part = &out->parts[out->count];
    char what[32];
    snprintf(what, sizeof what, "parts[%zu]", index);
    if (!json_is_object(json))
        return refuse(r, "%s is no object", what);
    if (!only_known(r, json, what, known) || !read_number(r, json, what, "head_dim", 1, 256, &part->head_dim) ||
        !read_number(r, json, what, "causal", 0, 1, &part->causal))
        return false;
    for (int i = 0; i < TD_CHOICE_COSTS; i++)
        if (!read_cost(r, json, what, known[2 + i], &part->costs[i]))
            return false;
    if (find_part(out, part->head_dim, part->causal))
        return refuse(r, "%s is for head_dim %" PRIu32 ", causal %" PRIu32 " again", what, part->head_dim,
                      part->causal);
    out->count++;
    return true;
}

static bool read_table(const reader *r, json_t *json, td_choice_table *out)
{
    static const char *const known[] = {"tandem", "version", "device", "sm", "multiprocessors", "parts", NULL};
    const char *kind = json_string_value(json_object_get(json, "tandem"));
    const char *device = json_string_value(json_object_get(json, "device"));
    json_t *parts = json_object_get(json, "parts");
    uint32_t version;
    if (!json_is_object(json) || !kind || strcmp(kind, "choice") != 0)
        return refuse(r, "this is no table of `tandem tune`: \"tandem\" is not \"choice\"");
    if (!read_number(r, json, "the table", "version", 2, 2, &version) || !only_known(r, json, "the table", known) ||
        !read_number(r, json, "the table", "sm", 10, 999, &out->sm) ||
        !read_number(r, json, "the table", "multiprocessors", 1, 4096, &out->multiprocessors))
        return false;
    if (!device || strlen(device) >= sizeof out->device)
        return refuse(r, "the table.device is missing, or longer than %d bytes", TD_CHOICE_DEVICE - 1);
    strcpy(out->device, device);
    if (!json_is_array(parts) || !json_array_size(parts) || json_array_size(parts) > TD_CHOICE_PARTS)
        return refuse(r, "the table.parts is no array of 1 to %d", TD_CHOICE_PARTS);
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!read_part(r, json_array_get(parts, i), i, out))
            return false;
    return true;
}

tandem_status td_choice_parse(const char *text, size_t bytes, td_choice_table *out, char *why, size_t why_bytes)
{
    const reader r = {why, why_bytes};
    json_error_t error;
    memset(out, 0, sizeof *out);
    if (bytes > TD_CHOICE_MOST_TEXT) {
        refuse(&r, "the table has %zu bytes; at most %d are read", bytes, TD_CHOICE_MOST_TEXT);
        return TANDEM_ERROR_ARG;
    }
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        refuse(&r, "the table is no JSON: line %d: %s", error.line, error.text);
    const bool good = json && read_table(&r, json, out);
    json_decref(json);
    if (!good)
        memset(out, 0, sizeof *out);
    return good ? TANDEM_OK : TANDEM_ERROR_ARG;
}
