/* Data for figures.py: codes of Q before and after smoothing, and a dot product of P and V on the 13-bit
 * accumulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/attention/cpu.h"
#include "kernels/target.h"
#include "tests/bench/bench.h"

/* How often each INT4 code occurs in Q: [15], -7 first. */
static json_t *histogram(const td_head *head, uint32_t smooth)
{
    td_arithmetic how;
    td_arithmetic_named("4b", &how);
    how.smooth = smooth;
    const size_t n = (size_t)head->q_len * head->dim;
    float *codes = malloc(n * sizeof *codes);
    json_t *counts = NULL;
    if (codes && td_variant_codes(&how, head, false, codes)) {
        size_t count[15] = {0};
        for (size_t i = 0; i < n; i++)
            count[(int)codes[i] + 7]++;
        counts = json_array();
        for (int i = 0; i < 15; i++)
            json_array_append_new(counts, json_integer((json_int_t)count[i]));
    }
    free(codes);
    return counts;
}

/* What one level of accumulation loses: the running sum of row 0's P times channel 0 of V, 32 keys at a time on the
 * 13-bit accumulator of sm_90, taken from the exact one, as a part of the channel's output. */
static json_t *dot_product(const td_head *head, bool smooth)
{
    const double scale = (double)head->scale;
    double *s = malloc(head->kv_len * sizeof *s), m = -INFINITY, mean = 0, l = 0;
    if (!s)
        return NULL;
    for (uint32_t j = 0; j < head->kv_len; j++) {
        s[j] = 0;
        for (uint32_t c = 0; c < head->dim; c++)
            s[j] += (double)head->q[c] * (double)head->k[(size_t)j * head->dim + c];
        m = fmax(m, s[j] * scale);
        mean += (double)head->v[(size_t)j * head->dim] / head->kv_len;
    }
    float most = 0;
    for (uint32_t j = 0; j < head->kv_len; j++) {
        l += exp(s[j] * scale - m);
        most = fmaxf(most, fabsf(head->v[(size_t)j * head->dim] - (smooth ? (float)mean : 0)));
    }
    json_t *errors = json_array();
    double exact = 0;
    float sum = 0;
    for (uint32_t first = 0; first < head->kv_len; first += 32) {
        uint8_t p[32] = {0}, v[32] = {0};
        for (uint32_t j = first; j < first + 32 && j < head->kv_len; j++) {
            const float x = head->v[(size_t)j * head->dim] - (smooth ? (float)mean : 0);
            p[j - first] = td_to_e4m3((float)(448 * exp(s[j] * scale - m)));
            v[j - first] = td_to_e4m3(most > 0 ? x * (448 / most) : 0);
            exact += (double)(td_from_e4m3(p[j - first]) * td_from_e4m3(v[j - first]));
        }
        sum = td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA, p, v, sum);
        json_array_append_new(errors, json_real((exact - (double)sum) * (double)most / 448 / 448 / l / mean));
    }
    free(s);
    return errors;
}

int bench_figures(const char *path, const tool_samples *samples)
{
    static const tool_family family = {
        .name = "figure 20", .q_offset = 0.5, .spread = 0.5, .q_outlier = 6.5, .outliers = 4, .token_spread = 0.35};
    static const tool_family flat = {.name = "figure 17", .v_offset = 8};
    char why[256];
    tool_samples own = {0}, long_one = {0};
    if (!samples && (!tool_samples_make(&own, &family, 1, 1, 1024, 4096, 128, 1, why, sizeof why) ||
                     !tool_samples_make(&long_one, &flat, 1, 1, 1, 16384, 128, 1, why, sizeof why))) {
        tool_samples_free(&own);
        tool_samples_free(&long_one);
        return tool_fail("accuracy", "%s", why);
    }
    const td_head *head = &(samples ? samples : &own)->items[0].head;
    const td_head *long_head = &(samples ? samples : &long_one)->items[0].head;
    json_t *figure_20 =
        json_pack("{s:o, s:o}", "before", histogram(head, 0), "after", histogram(head, TANDEM_SMOOTH_Q));
    json_t *figure_17 =
        json_pack("{s:o, s:o}", "before", dot_product(long_head, false), "after", dot_product(long_head, true));
    json_t *root = json_pack("{s:s, s:o, s:o}", "tandem", "figures", "figure_17", figure_17, "figure_20", figure_20);
    const bool written = root && json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(root);
    tool_samples_free(&own);
    tool_samples_free(&long_one);
    return written ? TOOL_OK : tool_fail("accuracy", "--figures \"%s\" could not be written", path);
}
