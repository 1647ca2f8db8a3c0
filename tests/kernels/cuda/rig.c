/* See rig.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <stdlib.h>
#include <string.h>

td_cu_device *device;
td_stream *stream, *own_stream;
const td_cubin *image;
bool graphs, quick;

uint64_t wait_for(uint64_t sequence)
{
    const uint64_t begin = td_now_ns();

    while (td_stream_completed(stream) < sequence)
        if (td_now_ns() - begin > run_limit_ns) {
            char why[160] = "";

            td_stream_status(stream, why, sizeof why);
            fail_msg("submit %llu does not finish: %s", (unsigned long long)sequence, why);
        }
    return td_now_ns() - begin;
}

void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

void run_to_the_end(const td_stream_submit *submit)
{
    uint64_t sequence;
    bool signalled;
    char why[256] = "";

    must(td_stream_enqueue(stream, submit, &sequence, &signalled, why, sizeof why), why);
    wait_for(sequence);
    must(td_stream_status(stream, why, sizeof why), why);
}

td_target target_here(void)
{
    td_target target = td_exec_target(td_cu_device_info(device), true);

    target.image = image;
    return target;
}
void upload(td_cu_mem *mem, const void *data, size_t bytes)
{
    char why[160];

    must(td_cu_mem_alloc(device, bytes, mem, why, sizeof why), why);
    must(td_cu_copy_to_device(device, mem->address, data, bytes), "copy");
}

void gpu_case_free(gpu_case *it)
{
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &it->mems[i]);
    td_cu_mem_free(device, &it->scratch);
    free(it->host_scratch);
}

void gpu_case_run(gpu_case *it, const tu_case *of, tu_tensor *o, tu_tensor *lse)
{
    const tu_tensor *tensors[TU_VIEWS] = {&of->q, &of->k, &of->v, o, lse};
    const size_t scratch_bytes = of->plan.scratch_bytes + TU_GUARD_BYTES;
    td_stream_submit submit = {.plan = &of->plan, .label = "test"};

    memset(it, 0, sizeof *it);
    tu_poison(o);
    if (lse->data)
        tu_poison(lse);
    for (int i = 0; i < TU_VIEWS; i++)
        if (tensors[i]->data) {
            upload(&it->mems[i], tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES);
            it->views[i] = it->mems[i].address;
        }
    it->host_scratch = malloc(scratch_bytes);
    assert_non_null(it->host_scratch);
    memset(it->host_scratch, TU_POISON, scratch_bytes);
    upload(&it->scratch, it->host_scratch, scratch_bytes);

    submit.views = it->views;
    submit.scratch = it->scratch.address;
    run_to_the_end(&submit);
    must(td_cu_copy_to_host(device, it->host_scratch, it->scratch.address, scratch_bytes), "copy");
    must(td_cu_copy_to_host(device, o->data, it->mems[TD_VIEW_O].address, o->bytes + TU_GUARD_BYTES), "copy");
    if (lse->data)
        must(td_cu_copy_to_host(device, lse->data, it->mems[TD_VIEW_LSE].address, lse->bytes + TU_GUARD_BYTES), "copy");
    for (size_t i = 0; i < TU_GUARD_BYTES; i++)
        assert_int_equal(it->host_scratch[of->plan.scratch_bytes + i], TU_POISON);
}

void show(const char *name, const tu_shape *s)
{
    print_message(
        "    %s: b%u h%u/%u q%u kv%u d%u causal %u precision %u smooth %u granularity %u dtypes %u%u%u%u layout %u\n",
        name, s->batch, s->heads, s->kv_heads, s->q_len, s->kv_len, s->head_dim, s->causal, s->precision, s->smooth,
        s->granularity, s->dtype_q, s->dtype_k, s->dtype_v, s->dtype_o, (unsigned)s->layout);
}

void check_case_on(td_target target, const tu_shape *shape, spoil_fn spoil)
{
    tu_tensor o, lse, again;
    gpu_case gpu;
    tu_case it;

    tu_case_init(&it, shape);
    if (spoil)
        spoil(&it);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    again = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&gpu, &it, &o, &lse);
    if (!target.commit) /* O is in its scratch */
        tu_compare_prologue(&it, gpu.host_scratch);
    tu_compare_dumps(&it, gpu.host_scratch, td_target_for_sm(td_cu_device_info(device)->sm).accumulator);
    tu_compare_outputs(&it, &o, &lse);
    gpu_case_free(&gpu);
    gpu_case_run(&gpu, &it, &again, &lse);
    assert_memory_equal(o.data, again.data, o.bytes);
    gpu_case_free(&gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&again);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

void check_case(const tu_shape *shape, spoil_fn spoil)
{
    td_target target = target_here();
    target.attention = &(td_attention_options){.dump = true};
    check_case_on(target, shape, spoil);
}

void check(const tu_shape *shape)
{
    show("case", shape);
    check_case(shape, NULL);
    if (!shape->dtype_q && !shape->dtype_k && !shape->dtype_v) {
        tu_shape half = *shape;

        half.dtype_q = half.dtype_k = half.dtype_v = shape->seed % 3 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_BF16;
        half.lse = shape->lse && shape->seed % 2;
        show("case", &half);
        check_case(&half, NULL);
    }
}
