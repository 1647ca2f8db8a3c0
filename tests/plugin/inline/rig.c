/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/plugin/inline/rig.h"

vku gpu;
td_vk *vk;
td_stream *stream;
uint32_t sm = 90;
char why[400];

const td_cubin *__real_td_cubins(uint32_t *count);
const td_cubin *__wrap_td_cubins(uint32_t *count);
tandem_status __real_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes);
tandem_status __wrap_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes);

/* The kernels that were built, all images on demand but those that a stream cannot be without. */
static const td_cubin *cubins_on_demand(uint32_t *count)
{
    enum { MOST_CUBINS = 16, MOST_IMAGES = 64 };
    static td_image images[MOST_CUBINS][MOST_IMAGES];
    static td_cubin cubins[MOST_CUBINS];
    const td_cubin *real = __real_td_cubins(count);

    assert_true(*count <= MOST_CUBINS);
    for (uint32_t i = 0; i < *count && !cubins[i].sm; i++) {
        assert_true(real[i].image_count <= MOST_IMAGES);
        memcpy(images[i], real[i].images, real[i].image_count * sizeof *images[i]);
        for (uint32_t k = 0; k < real[i].image_count; k++)
            images[i][k].on_demand = images[i][k].on_demand || strcmp(images[i][k].name, "common");
        cubins[i] = real[i];
        cubins[i].images = images[i];
    }
    return cubins;
}

const td_cubin *__wrap_td_cubins(uint32_t *count)
{
    if (!F.real)
        return fake_nvx_cubins(count);
    return F.two_images ? cubins_on_demand(count) : __real_td_cubins(count);
}

tandem_status __wrap_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes)
{
    if (F.real)
        return __real_td_cu_device_query(uuid, info, text, bytes);
    *info = (td_cu_info){.name = "a GPU that is none", .sm = 90, .multiprocessors = F.multiprocessors};
    memcpy(info->uuid, uuid, sizeof info->uuid);
    return TANDEM_OK;
}

void must(tandem_status status)
{
    if (status != TANDEM_OK)
        fail_msg("status %d: %s", (int)status, why);
}

td_inline_desc desc_here(void)
{
    return (td_inline_desc){.vk = vk, .sm = sm, .queue = gpu.queue};
}

td_stream *new_stream(void)
{
    const td_inline_desc desc = desc_here();
    td_stream *made = NULL;

    must(td_stream_create_inline(&desc, NULL, &made, why, sizeof why));
    return made;
}

/* --- A case in Vulkan memory --- */

void vk_case_make(vk_case *it, const tu_case *of)
{
    const tu_tensor *tensors[TU_VIEWS] = {&of->q, &of->k, &of->v, &of->o, &of->lse};

    memset(it, 0, sizeof *it);
    for (int i = 0; i < TU_VIEWS; i++)
        if (tensors[i]->data) {
            must(td_vk_mem_create_mapped(vk, tensors[i]->bytes + TU_GUARD_BYTES, STORAGE, &it->mems[i], why,
                                         sizeof why));
            it->views[i] = it->mems[i].address;
            memcpy(it->mems[i].host, tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES);
            if (i >= TD_VIEW_O)
                memset(it->mems[i].host, TU_POISON, tensors[i]->bytes + TU_GUARD_BYTES);
        }
    if (of->plan.scratch_bytes)
        must(td_vk_mem_create_device(vk, of->plan.scratch_bytes, STORAGE, &it->scratch, why, sizeof why));
}

void vk_case_free(vk_case *it)
{
    for (int i = 0; i < TU_VIEWS; i++)
        td_vk_mem_free(vk, &it->mems[i]);
    td_vk_mem_free(vk, &it->scratch);
}

td_stream_submit submit_of(const vk_case *it, const td_plan *plan)
{
    return (td_stream_submit){.plan = plan, .views = it->views, .scratch = it->scratch.address, .label = "test"};
}

void run(const td_stream_submit *submit)
{
    uint64_t sequence = 0;
    bool signalled;

    must(td_stream_enqueue(stream, submit, &sequence, &signalled, why, sizeof why));
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    assert_true(td_stream_completed(stream) >= sequence);
    must(td_stream_status(stream, why, sizeof why));
}

void expected(const tu_case *of, tu_tensor *o, tu_tensor *lse)
{
    const tu_tensor *tensors[TU_VIEWS] = {&of->q, &of->k, &of->v, o, lse};
    td_stream_submit submit = {.plan = &of->plan, .label = "test"};
    td_cu_mem mems[TU_VIEWS] = {0}, scratch = {0};
    uint64_t views[TU_VIEWS] = {0}, sequence, begin;
    td_stream *cuda = NULL;
    td_cu_device *device = NULL;
    bool signalled;

    if (!F.real)
        return; /* tu_case_run() has left it there */
    must(td_cu_device_open(td_vk_get_caps(vk)->device_uuid, NULL, &device, why, sizeof why));
    must(td_stream_create(device, NULL, &cuda, why, sizeof why));
    tu_poison(o);
    if (lse->data)
        tu_poison(lse);
    for (int i = 0; i < TU_VIEWS; i++)
        if (tensors[i]->data) {
            must(td_cu_mem_alloc(device, tensors[i]->bytes + TU_GUARD_BYTES, &mems[i], why, sizeof why));
            must(td_cu_copy_to_device(device, mems[i].address, tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES));
            views[i] = mems[i].address;
        }
    must(td_cu_mem_alloc(device, of->plan.scratch_bytes + 1, &scratch, why, sizeof why));
    submit.views = views;
    submit.scratch = scratch.address;
    must(td_stream_enqueue(cuda, &submit, &sequence, &signalled, why, sizeof why));
    begin = td_now_ns();
    while (td_stream_completed(cuda) < sequence)
        assert_true(td_now_ns() - begin < LIMIT_NS);
    must(td_cu_copy_to_host(device, o->data, mems[TD_VIEW_O].address, o->bytes + TU_GUARD_BYTES));
    if (lse->data)
        must(td_cu_copy_to_host(device, lse->data, mems[TD_VIEW_LSE].address, lse->bytes + TU_GUARD_BYTES));
    td_stream_destroy(&cuda, LIMIT_NS);
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
    td_cu_device_close(&device);
}

void same(const char *what, const vk_case *got, int view, const tu_tensor *wanted)
{
    const unsigned char *a = got->mems[view].host, *b = wanted->data;

    for (size_t i = 0; i < wanted->bytes + TU_GUARD_BYTES; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, wanted->bytes, a[i], b[i]);
}

void check_case(const tu_shape *shape, const char *name)
{
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    tu_case_init(&it, shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    run(&submit);
    expected(&it, &it.o, &it.lse);
    same(name, &on, TD_VIEW_O, &it.o);
    if (it.lse.data)
        same(name, &on, TD_VIEW_LSE, &it.lse);
    vk_case_free(&on);
    tu_case_free(&it);
}

void check_direct(const tu_shape *shape, const char *kernel)
{
    const td_target target = td_target_for_sm(sm);
    tu_case it;

    tu_case_init(&it, shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    assert_int_equal(strncmp(it.plan.records[it.plan.record_count - 1].kernel->name, kernel, strlen(kernel)), 0);
    assert_int_equal(it.plan.record_count == 1, strstr(kernel, "wgmma") != NULL);
    tu_case_free(&it);
    check_case(shape, kernel);
}
