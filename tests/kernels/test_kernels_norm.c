/* RMSNorm and LayerNorm: the CPU's against float64, and the CUDA kernel on the emulator, whose bits are the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/norm/norm.h"
#include "tests/kernels/kernels_util.h"

enum { X, RESIDUAL, WEIGHT, BIAS, Y, SUM, ROTATION, POSITION, VIEWS, POSITIONS = 5 };

/* Turns of more than they are, too; positions beyond the table, and below 0. */
static void put_rotation(ku_case *it, uint32_t n)
{
    tandem_norm *op = &it->op.norm;
    tu_tensor rotation, position = tu_tensor_new(TANDEM_DTYPE_I32, (tu_layout)(n % 4), op->batch, 1, op->rows, 1);

    op->positions = POSITIONS;
    op->rotated_channels = n % 2 ? op->channels / 8 * 8 : (op->channels + 8) / 16 * 8;
    rotation = tu_tensor_new(TANDEM_DTYPE_F32, TU_GAPS, 1, 1, POSITIONS, op->rotated_channels);
    tu_fill_normal(&rotation, n, 0);
    for (uint32_t b = 0; b < op->batch; b++)
        for (uint32_t r = 0; r < op->rows; r++)
            tu_set(&position, b, 0, r, 0, r % 7 == 6 ? INT32_MIN : (double)((3 * r + b) % (POSITIONS + 2)));
    ku_put(it, ROTATION, rotation);
    ku_put(it, POSITION, position);
}

/* usual: of one 16-bit type, with weights of float32. */
static ku_case make(uint32_t channels, uint32_t n, bool usual)
{
    const uint32_t batch = 1 + n % 2, heads = 1 + n / 2 % 3, rows = 1 + n * 5 % 13, type = 1 + n / 2 % 2;
    const uint32_t mixed[4] = {1 + n % 3, 1 + n / 3 % 3, 3 - n % 3, 1 + n / 3 % 3}, one[4] = {type, type, type, TANDEM_DTYPE_F32};
    const uint32_t *dtypes = usual ? one : mixed;
    ku_case it = {.operation = &td_operation_norm,
                  .op.norm = {.batch = batch, .heads = heads, .rows = rows, .channels = channels, .epsilon = n % 5 ? 0 : 0.25f,
                              .kind = n / 7 % 2 ? TANDEM_NORM_LAYER : TANDEM_NORM_RMS}};
    for (uint32_t i = 0; i <= SUM; i++) {
        tu_tensor t;
        if ((i == RESIDUAL && n % 4 == 1) || (i == WEIGHT && n % 7 == 3) || (i == BIAS && n % 4 == 2) || (i == SUM && n % 3 == 2))
            continue;
        t = i == WEIGHT || i == BIAS ? tu_tensor_new(dtypes[3], TU_DENSE, 1, 1, 1, channels)
                        : tu_tensor_new(dtypes[i == RESIDUAL ? 1 : i == Y ? 2 : 0], (tu_layout)(n % 4), batch, heads, rows, channels);
        if (i < Y)
            tu_fill_normal(&t, n * 10 + i, i == WEIGHT ? 1 : n % 6 == 5 ? 100 : 0.1);
        ku_put(&it, i, t);
    }
    if (channels >= 8 && n % 5 == 3)
        put_rotation(&it, n);
    return it;
}

/* What channel c of a row is, by what its pair was before, and how far off it may be by that. */
static void rotate(const ku_case *it, uint32_t b, uint32_t r, uint32_t c, const double before[2], double *y, double *off)
{
    const tandem_norm *n = &it->op.norm;
    const int64_t asked = n->rotated_channels ? (int64_t)tu_get(&it->tensors[POSITION], b, 0, r, 0) : 0;
    const uint32_t row = asked < 0 ? 0 : asked < POSITIONS ? (uint32_t)asked : POSITIONS - 1;

    if (c >= n->rotated_channels)
        return;
    const double cosine = tu_get(&it->tensors[ROTATION], 0, 0, row, c / 2 * 2), sine = tu_get(&it->tensors[ROTATION], 0, 0, row, c / 2 * 2 + 1);
    *y = c % 2 ? before[0] * sine + before[1] * cosine : before[0] * cosine - before[1] * sine;
    *off = (fabs(cosine) + fabs(sine)) * *off + 0x1p-22 * (fabs(before[0]) + fabs(before[1])) * (fabs(cosine) + fabs(sine));
}

/* Sums are rounded less than once for each of 8 * 256 channels and each of 11 levels of pairs, y three times and to its dtype. */
static void check_values(const ku_case *it)
{
    const tandem_norm *n = &it->op.norm;
    const tu_tensor *t = it->tensors;
    const double relative = (n->channels / 256 + 32) * 0x1p-24 +
                            (n->y.dtype == TANDEM_DTYPE_F32 ? 0 : n->y.dtype == TANDEM_DTYPE_F16 ? 0x1p-11 : 0x1p-8);
    double *h = malloc(3 * (n->channels + 1) * sizeof *h), *y = h + n->channels + 1, *apart = y + n->channels + 1;
    assert_non_null(h);
    for (uint32_t row = 0; row < n->batch * n->heads * n->rows; row++) {
        const uint32_t b = row / n->rows / n->heads, head = row / n->rows % n->heads, r = row % n->rows;
        double mean = 0, squares = 0, most = 0;
        for (uint32_t c = 0; c < n->channels; c++) {
            h[c] = tu_get(&t[X], b, head, r, c);
            if (t[RESIDUAL].data)
                h[c] = ku_rounded((double)((float)h[c] + (float)tu_get(&t[RESIDUAL], b, head, r, c)), n->x.dtype);
            mean += h[c] / n->channels;
            most = fabs(h[c]) > most ? fabs(h[c]) : most;
            if (t[SUM].data)
                assert_true(tu_get(&t[SUM], b, head, r, c) == h[c]);
        }
        mean = n->kind == TANDEM_NORM_LAYER ? mean : 0;
        for (uint32_t c = 0; c < n->channels; c++)
            squares += (h[c] - mean) * (h[c] - mean);
        const double scale = 1 / sqrt(squares / n->channels + (n->epsilon > 0 ? (double)n->epsilon : 1e-5));
        for (uint32_t c = 0; c < n->channels; c++) {
            const double weight = t[WEIGHT].data ? tu_get(&t[WEIGHT], 0, 0, 0, c) : 1;
            const double product = (h[c] - mean) * scale * weight, bias = t[BIAS].data ? tu_get(&t[BIAS], 0, 0, 0, c) : 0;
            /* of the mean, too, which is off by as much as its sum, and so is each h without it */
            const double off = mean != 0 ? (n->channels / 256 + 32) * 0x1p-24 * most * scale * fabs(weight) : 0;
            y[c] = product + bias;
            apart[c] = relative * (fabs(product) + fabs(bias)) + 2 * off + 0x1p-25;
        }
        for (uint32_t c = 0; c < n->channels; c++) {
            double want = y[c], off = fmax(apart[c], apart[(c ^ 1) < n->channels ? c ^ 1 : c]);
            rotate(it, b, r, c, &y[c / 2 * 2], &want, &off);
            off += fabs(want) * relative;
            assert_true(fabs(tu_get(&t[Y], b, head, r, c) - want) <= off);
        }
    }
    free(h);
}

static void test_everywhere(void **state)
{
    static const uint32_t channels[] = {1, 7, 8, 63, 64, 65, 255, 576, 1000, 1024, 1025, 2048, 4100, 9000};
    (void)state;
    for (uint32_t n = 0; n < 3 * sizeof channels / sizeof *channels; n++) {
        ku_case it = make(channels[n % (sizeof channels / sizeof *channels)], n, false);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* Rows as networks have them, which a warp has in registers. */
static void test_usual(void **state)
{
    static const uint32_t channels[] = {8, 64, 248, 256, 264, 384, 512, 768, 1000, 1016, 1024, 1032};
    (void)state;
    for (uint32_t n = 0; n < 3 * sizeof channels / sizeof *channels; n++) {
        ku_case it = make(channels[n % (sizeof channels / sizeof *channels)], n, true);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* Float32 rows of RMSNorm, as language models have them: of a warp, of a block, and too long for either. */
static void test_lines(void **state)
{
    static const uint32_t channels[] = {8, 264, 896, 1016, 1024, 1032, 2048, 4096, 5000, 8192, 8200};
    (void)state;
    for (uint32_t n = 0; n < 2 * sizeof channels / sizeof *channels; n++) {
        const uint32_t c = channels[n % (sizeof channels / sizeof *channels)], heads = 1 + n % 3, rows = n % 4 ? 1 + n % 5 : 19;
        ku_case it = {.operation = &td_operation_norm, .op.norm = {.batch = 1, .heads = heads, .rows = rows, .channels = c}};
        for (uint32_t i = X; i <= Y; i++) {
            if (i == RESIDUAL || i == BIAS)
                continue;
            tu_tensor t = tu_tensor_new(i == Y ? 1 + n % 2 : TANDEM_DTYPE_F32, i == WEIGHT || n % 4 == 1 ? TU_DENSE : (tu_layout)(n % 4),
                                        1, i == WEIGHT ? 1 : heads, i == WEIGHT ? 1 : rows, c);
            if (i != Y)
                tu_fill_normal(&t, n * 10 + i, i == WEIGHT ? 1 : 0.1);
            ku_put(&it, i, t);
        }
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

static void test_refusals(void **state)
{
    ku_case it = make(64, 13, false);
    (void)state;
#define REFUSES(text, ...)                                       \
    do {                                                         \
        tandem_operands op = it.op;                              \
        tandem_norm *n = &op.norm;                               \
        __VA_ARGS__;                                             \
        ku_refuses(&td_operation_norm, &op, text);               \
    } while (0)
    REFUSES("norm.kind is 2", n->kind = 2);
    REFUSES("norm.position.dtype is 0; with a rotation it must not be 0", n->position.dtype = 0);
    REFUSES("norm.positions is 5; without a rotation it must be 0", n->rotation.dtype = n->position.dtype = 0);
    REFUSES("norm.rotated_channels is 0; with a rotation", n->rotated_channels = 0);
    REFUSES("norm.rotated_channels is 12; it must be a multiple of 8", n->rotated_channels = 12);
    REFUSES("norm.rotated_channels is 72; it must be a multiple of 8, at most channels, which is 64", n->rotated_channels = 72);
    REFUSES("norm.rotation.dtype is 1", n->rotation.dtype = TANDEM_DTYPE_F16);
    REFUSES("norm.position.dtype is 3", n->position.dtype = TANDEM_DTYPE_F32);
    REFUSES("norm.positions is 1073741825", n->positions = (1u << 30) + 1);
#undef REFUSES
    ku_free(&it);
}

/* Each kernel was among them. */
static void test_every_entry_was_run(void **state)
{
    (void)state;
    em_family_was_run("norm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_usual), cmocka_unit_test(test_lines), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_every_entry_was_run)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
