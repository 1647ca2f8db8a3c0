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

#include "kernels/cpu/cpu.h"
#include "kernels/params.h"

enum { FIRST_LENGTH = 256 };
static const float most_us = 1e9f;
static const double between_us = 4; /* what a prologue and its kernel take longer than each behind itself (NOTES.md) */

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
        snprintf(why, why_bytes,
                 "it was measured on '%s' (compute capability %" PRIu32 ".%" PRIu32 "), this is '%.64s' (%" PRIu32
                 ".%" PRIu32 ")",
                 table->device, table->sm / 10, table->sm % 10, device, sm / 10, sm % 10);
    return fits;
}

/* --- Shapes --- */

/* What a kernel has to do: tiles of rows, and the keys that one has on average, and the longest so many times. */
typedef struct work {
    double tiles, keys, longest;
    double long_tiles, longer; /* 0, or how many if they had more rows, and how much longer each takes then */
    double row_tiles, key_tiles; /* of a plane, and if it had as many queries as keys */
} work;

/* Rows of the tile that most kernels for that GPU have. */
static uint32_t tile_rows(uint32_t sm, int cost, uint32_t head_dim)
{
    if (sm == 90 && head_dim > 128)
        return cost == TD_CHOICE_8B ? TD_HOPPER_ROWS(TD_HOPPER_GROUPS(head_dim)) : TD_TWIN_ROWS;
    return sm == 90 ? TD_F16_ROWS(head_dim) : TD_TWIN_ROWS;
}

/* attn_8b_wgmma has blocks of two sizes and takes what ends earlier. */
static bool has_long_tiles(uint32_t sm, int cost, uint32_t head_dim)
{
    return sm == 90 && cost == TD_CHOICE_8B && head_dim <= 128;
}

static void add_long_tiles(work *w, double planes, uint32_t length, uint32_t rows)
{
    const uint32_t long_rows = rows + TD_HOPPER_ROWS(1);
    w->long_tiles = planes * ((length + long_rows - 1) / long_rows);
    w->longer = TD_HOPPER_LONGER(rows > TD_HOPPER_ROWS(2) ? 64 : 128);
}

static work work_of(const tandem_attention *op, uint32_t rows)
{
    const double q = op->q_len, kv = op->kv_len;
    work w = {.keys = !op->causal ? kv : q > kv ? kv * kv / (2 * q) : kv - (q - 1) / 2,
              .row_tiles = (op->q_len + rows - 1) / rows,
              .key_tiles = (op->kv_len + rows - 1) / rows};
    w.longest = kv / w.keys;
    w.tiles = w.row_tiles * op->batch * op->heads;
    return w;
}

/* attn_f16_wgmma gives a block a long tile and a short one where there is a mask and enough of them. */
static bool is_paired(uint32_t sm, int cost, bool causal)
{
    return sm == 90 && cost == TD_CHOICE_F16 && causal;
}

/* How long all tiles take, in times of an average one: equal ones in whole waves; of unequal ones the longest go first,
 * and shorter ones fill what is left. */
static double waves(const work *w, double multiprocessors, bool equal, bool paired)
{
    if (paired && w->tiles >= 2 * multiprocessors)
        return 2 * ceil(w->tiles / (2 * multiprocessors));
    const double number = equal ? ceil(w->tiles / multiprocessors) : fmax(w->longest, w->tiles / multiprocessors);
    if (!(w->long_tiles > 0))
        return number;
    const work of_long = {.tiles = w->long_tiles, .longest = w->longest};
    return fmin(number, w->longer * waves(&of_long, multiprocessors, equal, false));
}

static double rows_read(const tandem_attention *op)
{
    return (double)op->batch * ((double)op->heads * op->q_len + 2.0 * op->kv_heads * op->kv_len);
}

/* Of an H200's kernels, microseconds: a step of 128 keys by head dim (64, 80, 96, 128), what a prologue takes whatever it
 * reads, and bytes that it reads and writes in one. */
typedef struct rates {
    double f16[4], kernel_8b[4], prologue, bytes;
    bool has_long; /* 8B has blocks of two sizes */
} rates;

static uint32_t choose_direct(const tandem_attention *op, const rates *r)
{
    enum { H200 = 132 };
    static const uint32_t head_dims[] = {64, 80, 96, 128};
    int i = 0;
    while (head_dims[i] < op->head_dim && i < 3)
        i++;
    work w = work_of(op, TD_F16_ROWS(op->head_dim));
    const double f16 = waves(&w, H200, !op->causal, op->causal) * (1.8 + r->f16[i] * w.keys / 128);
    if (r->has_long)
        add_long_tiles(&w, (double)op->batch * op->heads, op->q_len, TD_F16_ROWS(op->head_dim));
    const double kernel = waves(&w, H200, !op->causal, false) * (3.5 + r->kernel_8b[i] * w.keys / 128);
    const double prologue = r->prologue + between_us + rows_read(op) * 3 * op->head_dim / r->bytes;
    return kernel + prologue < f16 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
}

uint32_t td_choice_rule_direct(const tandem_attention *op)
{
    static const rates on_streams = {.f16 = {1.47, 1.17, 1.36, 1.74},
                                     .kernel_8b = {1.04, 0.86, 0.86, 1.04},
                                     .prologue = 7,
                                     .bytes = 2.4e6,
                                     .has_long = true};
    return choose_direct(op, &on_streams);
}

uint32_t td_choice_rule_inline(const tandem_attention *op)
{
    static const rates in_commands = {.f16 = {2.05, 2.16, 2.2, 2.5},
                                      .kernel_8b = {1.39, 1.17, 1.17, 1.31},
                                      .prologue = 12,
                                      .bytes = 1.95e6};
    return choose_direct(op, &in_commands);
}

/* --- Times --- */

/* What is measured, and what a measured time is divided by, so that what is left changes smoothly. */
typedef struct grid {
    enum { SQUARE, MASKED, FEW, PROLOGUE } section;
    double multiprocessors;
    uint32_t rows; /* of a tile */
    bool paired, has_long;
} grid;

static double weight(const grid *g, uint32_t planes, uint32_t length)
{
    const bool masked = g->section == MASKED;
    const uint32_t tiles = g->section == FEW ? 1 : (length + g->rows - 1) / g->rows;
    work w = {.tiles = (double)planes * tiles, .longest = 2};
    if (g->has_long)
        add_long_tiles(&w, planes, g->section == FEW ? 1 : length, g->rows);
    if (g->section == PROLOGUE)
        return (double)planes * length;
    return waves(&w, g->multiprocessors, !masked, g->paired) * length / (masked ? 2 : 1);
}

static double unit_at(const grid *g, const td_choice_times times, uint32_t i, uint32_t j)
{
    return (double)times[i][j] / weight(g, td_choice_planes(i), td_choice_length(j));
}

static double between(double low, double high, double x)
{
    return low > 0 && high > 0 ? low * pow(high / low, x) : 0;
}

/* Of a measured length; beyond what was measured it stays what it is. 0 if nothing was. */
static double at_length(const grid *g, const td_choice_times times, double planes, uint32_t j)
{
    uint32_t last = TD_CHOICE_PLANES;
    while (last && !(times[last - 1][j] > 0))
        last--;
    if (!last)
        return 0;
    const double x = fmin(planes > 1 ? log2(planes) : 0, last - 1);
    const uint32_t i = (uint32_t)x;
    return between(unit_at(g, times, i, j), unit_at(g, times, i + 1 < last ? i + 1 : i, j), x - i);
}

static double unit_of(const grid *g, const td_choice_times times, double planes, double length)
{
    uint32_t last = TD_CHOICE_LENGTHS;
    while (last && !(at_length(g, times, planes, last - 1) > 0))
        last--;
    if (!last)
        return 0;
    const double x = fmin(length > FIRST_LENGTH ? log2(length / FIRST_LENGTH) : 0, last - 1);
    const uint32_t j = (uint32_t)x;
    return between(at_length(g, times, planes, j), at_length(g, times, planes, j + 1 < last ? j + 1 : j), x - j);
}

/* Of a precision's kernel, by what was measured with or without a mask. 0: not known. */
static double kernel_us(const td_choice_table *table, const td_choice_part *part, int i, const tandem_attention *op)
{
    const uint32_t rows = tile_rows(table->sm, i, op->head_dim);
    const double multiprocessors = table->multiprocessors;
    const bool has_long = has_long_tiles(table->sm, i, op->head_dim);
    work w = work_of(op, rows);
    if (has_long)
        add_long_tiles(&w, (double)op->batch * op->heads, op->q_len, rows);
    const grid square = {part->causal ? MASKED : SQUARE, multiprocessors, rows,
                         is_paired(table->sm, i, part->causal), has_long},
               few = {FEW, multiprocessors, rows, false, has_long};
    const double by_square = unit_of(&square, part->costs[i].kernel, w.tiles / w.key_tiles, op->kv_len);
    const double by_few = unit_of(&few, part->costs[i].few, w.tiles, op->kv_len);
    double share = w.row_tiles >= w.key_tiles ? 1 : log(w.row_tiles) / log(w.key_tiles);
    if (op->q_len > TD_CHOICE_FEW) /* more of a block's warps have rows */
        share = fmax(share, fmin(1, log((double)op->q_len / TD_CHOICE_FEW) / log((double)rows / TD_CHOICE_FEW)));
    const double unit = by_few > 0 && by_square > 0 ? between(by_few, by_square, share) : by_square;
    const double keys = w.keys * fmax(1, (double)FIRST_LENGTH / op->kv_len); /* fewer take no less */
    return unit * keys * waves(&w, multiprocessors, !part->causal, is_paired(table->sm, i, op->causal));
}

static double prologue_us(const td_choice_cost *cost, const tandem_attention *op)
{
    const grid g = {.section = PROLOGUE, .rows = 1};
    const double length = fmax(op->kv_len, FIRST_LENGTH), planes = fmax(rows_read(op) / 3 / length, 1);
    return unit_of(&g, cost->prologue, planes, length) * planes * length;
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
    const double prologue = prologue_us(&part->costs[i], op);
    return us > 0 ? us + prologue + (prologue > 0 ? between_us : 0) : 0;
}

uint32_t td_choice_precision(const td_choice_table *table, const tandem_attention *op)
{
    static const uint32_t precisions[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
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
        vsnprintf(r->why, r->why_bytes, format, list);
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
