/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/interop/fake_kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/interop/fake_image.h"

tandem_attention fault_attention(uint32_t dtype, uint32_t head_dim, uint32_t precision)
{
    const tandem_view view = {.mem = 1, .dtype = dtype, .stride_row = head_dim};

    return (tandem_attention){.q = view,
                              .k = view,
                              .v = view,
                              .o = view,
                              .batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .q_len = 64,
                              .kv_len = 64,
                              .head_dim = head_dim,
                              .precision = precision};
}

const td_cubin *fake_kernels(uint32_t *count, bool damaged)
{
    static td_cubin_entry entries[64] = {{.entry = "stamp"}};
    static td_image image = {.entries = entries};
    static const td_cubin cubin = {.sm = 90, .images = &image, .image_count = 1};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool filling;

    pthread_mutex_lock(&lock);
    fake_image(&image, damaged);
    if (!image.entry_count && !filling) {
        static td_plan plan;
        const tandem_attention op = fault_attention(TANDEM_DTYPE_F32, 32, TANDEM_PRECISION_F16);
        td_target target;
        char why[200];

        filling = true;
        image.entry_count = 1;
        pthread_mutex_unlock(&lock);
        target = td_target_for_sm(90);
        target.twin = target.commit = true;
        if (td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK) {
            fprintf(stderr, "tests/interop/fake_kernels.c: %s\n", why);
            abort();
        }
        pthread_mutex_lock(&lock);
        if (plan.record_count >= sizeof entries / sizeof *entries)
            abort();
        for (uint32_t i = 0; i < plan.record_count; i++)
            entries[image.entry_count++] = (td_cubin_entry){.entry = plan.records[i].kernel->entry, .registers = 32};
    }
    pthread_mutex_unlock(&lock);
    *count = 1;
    return &cubin;
}
