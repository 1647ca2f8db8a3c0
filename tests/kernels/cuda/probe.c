/* What the tensor cores add up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/attention/cpu.h"
#include "kernels/builder.h"
#include "kernels/probe.h"

/* --- Tensor cores --- */

void compare_probe(uint32_t unit, uint32_t tiles, void *const *arrays, const td_plan *plan, bool proven)
{
    static const uint64_t tile_bytes[TD_PROBE_VIEWS] = {TD_PROBE_A_BYTES, TD_PROBE_B_BYTES, TD_PROBE_ELEMENTS * 4,
                                                        TD_PROBE_ELEMENTS * 4};
    uint64_t addresses[TD_PROBE_VIEWS], unequal = 0;
    const uint64_t count = (uint64_t)tiles * TD_PROBE_ELEMENTS;
    float *gpu_d = malloc(count * 4);
    td_cu_mem mems[TD_PROBE_VIEWS];

    assert_non_null(gpu_d);
    memset(arrays[TD_PROBE_D], TU_POISON, count * 4);
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        upload(&mems[i], arrays[i], tiles * tile_bytes[i]);
        addresses[i] = mems[i].address;
    }
    const td_stream_submit submit = {.plan = plan, .views = addresses, .label = "probe"};
    run_to_the_end(&submit);
    must(td_cu_copy_to_host(device, gpu_d, mems[TD_PROBE_D].address, count * 4), "copy");
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        td_cu_mem_free(device, &mems[i]);
        addresses[i] = (uintptr_t)arrays[i];
    }
    must(td_exec_cpu_run(plan, addresses, 0, THREADS, NULL), "the twin");
    for (uint64_t i = 0; i < count; i++) {
        const float twin_d = ((const float *)arrays[TD_PROBE_D])[i];

        if (td_bits(gpu_d[i]) != td_bits(twin_d) && unequal++ == 0)
            print_message("    %s: tile %u, element %u is %08x, the twin's %08x\n", td_probe_name(unit),
                          (unsigned)(i / TD_PROBE_ELEMENTS), (unsigned)(i % TD_PROBE_ELEMENTS), td_bits(gpu_d[i]),
                          td_bits(twin_d));
    }
    print_message("    %s: %llu of %llu elements as the twin's\n", td_probe_name(unit),
                  (unsigned long long)(count - unequal), (unsigned long long)count);
    if (proven)
        assert_int_equal(unequal, 0);
    free(gpu_d);
}

void test_probe(void **state)
{
    const uint32_t sm = td_cu_device_info(device)->sm, tiles = quick ? 64 : 4096;
    const td_target target = target_here();
    void *arrays[TD_PROBE_VIEWS];
    static td_plan plan;
    char why[256] = "";
    const td_cubin *runs = image ? image : td_cubin_for_sm(sm, why, sizeof why);

    (void)state;
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        arrays[i] = malloc((size_t)tiles * TD_PROBE_A_BYTES); /* the largest */
        assert_non_null(arrays[i]);
    }
    for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
        /* The twin's fp16 unit is that of sm_90. */
        const bool proven = unit != TD_PROBE_MMA_F16 || sm == 90;
        const bool wgmma = unit == TD_PROBE_WGMMA_E4M3 || unit == TD_PROBE_WGMMA_E4M3_F16;
        const bool has = wgmma ? runs->sm == 90 && !runs->ptx : unit == TD_PROBE_MMA_F16 || runs->sm >= 89;
        const tandem_status status = td_plan_probe(unit, tiles, &target, &plan, why, sizeof why);

        if (!has) {
            assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
            assert_true(strlen(why) > 10);
            continue;
        }
        must(status, why);
        td_probe_fill_random(unit, tiles, 17 + unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, tiles, arrays, &plan, proven);
        must(td_plan_probe(unit, TD_PROBE_POWERS, &target, &plan, why, sizeof why), why);
        td_probe_fill_powers(unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, TD_PROBE_POWERS, arrays, &plan, proven);
        must(td_plan_probe(unit, 1, &target, &plan, why, sizeof why), why);
        td_probe_fill_bits(arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, 1, arrays, &plan, proven);
    }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
}

/* Packed int4 codes give the integers that int8 ones give, so the same bits wherever P V is computed alike. */
void test_int4_equals_int8(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    const td_cubin *older = image;
    td_stream *of_older = stream;

    (void)state;
    if (!older || older->sm >= 90 || td_cu_device_info(device)->sm < 90)
        skip();
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const tu_shape shape = {.heads = 2,
                                .kv_heads = 1,
                                .q_len = 150,
                                .kv_len = 280,
                                .head_dim = dims[i],
                                .precision = TANDEM_PRECISION_4B,
                                .granularity = TANDEM_GRANULARITY_THREAD_ADA,
                                .lse = 1,
                                .seed = 800 + i};
        tu_tensor o[2], lse[2];
        gpu_case gpu[2];
        tu_case it[2];

        for (int packed = 0; packed < 2; packed++) {
            td_target target;

            image = packed ? older : NULL;
            stream = packed ? of_older : own_stream;
            target = target_here();
            target.attention = &(td_attention_options){.dump = true};
            tu_case_init(&it[packed], &shape);
            must(tu_case_run(&it[packed], &target, THREADS), "the twin");
            assert_int_equal(it[packed].layout.qk_is_packed, packed);
            o[packed] = tu_tensor_like(&it[packed].o);
            lse[packed] = tu_tensor_like(&it[packed].lse);
            gpu_case_run(&gpu[packed], &it[packed], &o[packed], &lse[packed]);
        }
        for (uint32_t row = 0; row < 2 * it[0].layout.q_pad; row++)
            if (row % it[0].layout.q_pad < shape.q_len)
                assert_memory_equal(
                    gpu[0].host_scratch + it[0].layout.dump_s + (uint64_t)row * it[0].layout.kv_pad * 4,
                    gpu[1].host_scratch + it[1].layout.dump_s + (uint64_t)row * it[0].layout.kv_pad * 4,
                    (shape.kv_len + 63) / 64 * 64 * 4);
        assert_memory_equal(lse[0].data, lse[1].data, lse[0].bytes);
        if (it[0].layout.v_is_f16 == it[1].layout.v_is_f16)
            assert_memory_equal(o[0].data, o[1].data, o[0].bytes);
        for (int packed = 0; packed < 2; packed++) {
            gpu_case_free(&gpu[packed]);
            tu_tensor_free(&o[packed]);
            tu_tensor_free(&lse[packed]);
            tu_case_free(&it[packed]);
        }
    }
}
