/* The self-test of executors: a small attention. See kernels/self_test.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/self_test.h"

#include "kernels/attention/attention.h"

enum { ROWS = 64, KEYS = 128, DIM = 64, READ = ROWS * DIM + 2 * KEYS * DIM };

typedef struct test_data {
    float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], o[ROWS * DIM];
} test_data;
_Static_assert(sizeof(test_data) == TD_SELF_TEST_BYTES, "as the header says");

tandem_status td_self_test_plan(uint32_t sm, td_plan *plan, char *why, size_t why_bytes)
{
    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = DIM};
    const tandem_attention op = {.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .q_len = ROWS,
                                 .kv_len = KEYS,
                                 .head_dim = DIM,
                                 .precision = TANDEM_PRECISION_8B,
                                 .q = view,
                                 .k = view,
                                 .v = view,
                                 .o = view};
    const td_target target = td_target_for_sm(sm);
    return td_plan_attention(&op, &target, plan, NULL, why, why_bytes);
}

void td_self_test_views(uint64_t data, uint64_t views[TD_MAX_VIEWS])
{
    memset(views, 0, TD_MAX_VIEWS * sizeof *views);
    views[TD_VIEW_Q] = data + offsetof(test_data, q);
    views[TD_VIEW_K] = data + offsetof(test_data, k);
    views[TD_VIEW_V] = data + offsetof(test_data, v);
    views[TD_VIEW_O] = data + offsetof(test_data, o);
}

void td_self_test_fill(void *data, uint32_t seed)
{
    float *values = data;
    for (int i = 0; i < READ; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
    memset(values + READ, 0xff, sizeof(test_data) - READ * sizeof *values);
}

tandem_status td_self_test_compare(const void *expected, const void *got, char *why, size_t why_bytes)
{
    const float *right = ((const test_data *)expected)->o, *o = ((const test_data *)got)->o;
    double most = 0, apart = 0;
    for (int i = 0; i < ROWS * DIM; i++) {
        const double x = (double)right[i], y = (double)o[i] - x;
        most = x > most ? x : -x > most ? -x : most;
        apart = y > apart ? y : -y > apart ? -y : y == y ? apart : 1e30;
    }
    if (!(most > 0.01 && apart <= 0.02 * most))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "the self-test computed wrong data: %g apart where the largest is %g", apart, most);
    return TANDEM_OK;
}
