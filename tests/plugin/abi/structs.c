/* Structs that are shorter than ours, as of a game that was built before, and longer ones, as of one that was built after.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>

#include "tandem/plugin.h"
#include "tests/plugin/abi/rig.h"
#include "tests/interop/vk_util.h"

#define WAIT_NS 20000000000u

/* --- Structs that go in --- */

static tandem_status create_session(tandem_session *s, const void *given)
{
    tandem_session *made = NULL;
    const tandem_status status = tell(NULL, tandem_session_create(given, &made));

    (void)s;
    assert_int_equal(status == TANDEM_OK, made != NULL);
    if (made)
        tandem_session_destroy(&made);
    return status;
}

static tandem_status create_mem(tandem_session *s, const void *given)
{
    tandem_mem mem;
    const tandem_status status = tell(s, tandem_mem_create(s, given, &mem));

    if (status == TANDEM_OK)
        assert_int_equal(tandem_mem_destroy(s, mem), TANDEM_OK);
    return status;
}

static tandem_status create_timeline(tandem_session *s, const void *given)
{
    tandem_timeline timeline;
    const tandem_status status = tell(s, tandem_timeline_create(s, given, &timeline));

    if (status == TANDEM_OK)
        assert_int_equal(tandem_timeline_destroy(s, timeline), TANDEM_OK);
    return status;
}

static tandem_status create_model(tandem_session *s, const void *given)
{
    tandem_model model;

    return tell(s, tandem_model_create(s, given, &model));
}

static tandem_status create_instance(tandem_session *s, const void *given)
{
    tandem_instance instance;

    return tell(s, tandem_model_instance(s, 0, given, &instance));
}

static tandem_status count_tiles(tandem_session *s, const void *given)
{
    uint32_t x, y;

    return tell(s, tandem_pack_tiles(s, given, &x, &y));
}

static tandem_status submit(tandem_session *s, const void *given)
{
    tandem_ticket ticket;
    const tandem_status status = tell(s, tandem_submit(s, given, &ticket));

    return status == TANDEM_OK ? tandem_wait(s, ticket, WAIT_NS, NULL) : status;
}

static tandem_status ask_supported(tandem_session *s, const void *given)
{
    return tandem_supported(s, given, NULL, last_text, sizeof last_text);
}

enum { ROWS = 32, DIM = 64, VALUES = ROWS * DIM };

static tandem_job small_job(tandem_session *s, float **host)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 16 * VALUES};
    tandem_view view[4];
    tandem_mem mem;
    void *at;

    assert_int_equal(tandem_mem_create(s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(s, mem, &at), TANDEM_OK);
    *host = at;
    for (int i = 0; i < 3 * VALUES; i++)
        (*host)[i] = (float)(i * 37 % 101) / 50 - 1;
    for (uint32_t i = 0; i < 4; i++)
        view[i] = tandem_view_dense(mem, (uint64_t)i * 4 * VALUES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    job.op.attention = (tandem_attention){.q = view[0], .k = view[1], .v = view[2], .o = view[3], .batch = 1, .heads = 1,
                                          .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM};
    return job;
}

static tandem_session *open_session(const tandem_vulkan *vulkan)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .vulkan = vulkan, .backend = TANDEM_BACKEND_CPU,
                                      .cpu_threads = 1};
    tandem_session *s;

    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    return s;
}

static void test_in(void **state)
{
    static union {
        tandem_mem_desc desc;
        uint64_t words[65544 / 8];
    } most;
    const tandem_session_desc session = {.struct_bytes = sizeof session, .backend = TANDEM_BACKEND_CPU};
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = 4096};
    const tandem_timeline_desc timeline = {.struct_bytes = sizeof timeline, .signaller = TANDEM_SIGNALLER_SESSION};
    const tandem_model_desc model = {.struct_bytes = sizeof model, .path = "/nonexistent"};
    const tandem_instance_desc instance = {.struct_bytes = sizeof instance};
    const tandem_pack pack = {.struct_bytes = sizeof pack, .width = 8, .height = 8, .tile_width = 4, .tile_height = 4};
    tandem_session *s = open_session(NULL);

    (void)state;
    longer(s, "desc", &session, sizeof session, create_session, TANDEM_OK);
    longer(s, "desc", &mem, sizeof mem, create_mem, TANDEM_OK);
    longer(s, "desc", &timeline, sizeof timeline, create_timeline, TANDEM_OK);
    longer(s, "desc", &model, sizeof model, create_model, TANDEM_ERROR_IO);
    longer(s, "desc", &instance, sizeof instance, create_instance, TANDEM_ERROR_ARG); /* of no model */
    longer(s, "pack", &pack, sizeof pack, count_tiles, TANDEM_OK);
    shorter(s, &session, sizeof session, 8, create_session, TANDEM_OK);
    shorter(s, &mem, sizeof mem, 16, create_mem, TANDEM_OK);
    shorter(s, &timeline, sizeof timeline, 8, create_timeline, TANDEM_OK);
    shorter(s, &model, sizeof model, offsetof(tandem_model_desc, sequences), create_model, TANDEM_ERROR_IO);
    shorter(s, &instance, sizeof instance, 4, create_instance, TANDEM_ERROR_ARG);
    shorter(s, &pack, sizeof pack, offsetof(tandem_pack, view), count_tiles, TANDEM_OK);
    for (uint32_t bytes = 0; bytes < 8; bytes += 7) { /* which nobody's are */
        const tandem_mem_desc none = {.struct_bytes = bytes, .bytes = 4096};

        assert_int_equal(create_mem(s, &none), TANDEM_ERROR_ARG);
        assert_non_null(strstr(last_text, "set it to its sizeof"));
    }
    most.desc = (tandem_mem_desc){.struct_bytes = 65536, .bytes = 4096};
    assert_int_equal(create_mem(s, &most.desc), TANDEM_OK);
    most.words[8191] = 1;
    assert_int_equal(create_mem(s, &most.desc), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(last_text, "the byte at offset 65528 is 1, not 0"));
    most.desc.struct_bytes += 8;
    assert_int_equal(create_mem(s, &most.desc), TANDEM_ERROR_ARG);
    assert_non_null(strstr(last_text, "desc.struct_bytes is 65544, not"));
    tandem_session_destroy(&s);
}

/* The job's union is its last, and has room for what operations get: that is not struct_bytes' to say. */
static void test_jobs(void **state)
{
    enum { FIRST_JOB_BYTES = 336 };
    tandem_session *s = open_session(NULL);
    float *host, first[VALUES];
    tandem_job job = small_job(s, &host);

    (void)state;
    longer(s, "job", &job, sizeof job, submit, TANDEM_OK);
    memcpy(first, host + 3 * VALUES, sizeof first);
    memset(host + 3 * VALUES, 0, sizeof first);
    longer(s, "job", &job, sizeof job, ask_supported, TANDEM_OK);
    shorter(s, &job, sizeof job, FIRST_JOB_BYTES, ask_supported, TANDEM_OK);
    shorter(s, &job, sizeof job, FIRST_JOB_BYTES, submit, TANDEM_OK);
    assert_memory_equal(host + 3 * VALUES, first, sizeof first);
    shorter(s, &job, sizeof job, FIRST_JOB_BYTES - 8, submit, TANDEM_OK); /* of which smooth and granularity are 0, too */
    shorter(s, &job, sizeof job, 48, submit, TANDEM_ERROR_ARG);
    for (size_t at = sizeof job.op.attention; at < sizeof job.op; at += 131) {
        char says[200];

        ((char *)&job.op)[at] = 9;
        assert_int_equal(submit(s, &job), TANDEM_ERROR_UNSUPPORTED);
        snprintf(says, sizeof says, "job.op is of operation 1, of which this library knows 592 bytes, but the byte at offset %zu "
                 "is 9, not 0", at);
        assert_non_null(strstr(last_text, says));
        assert_int_equal(ask_supported(s, &job), TANDEM_ERROR_UNSUPPORTED);
        ((char *)&job.op)[at] = 0;
    }
    tandem_session_destroy(&s);
}

/* A point that an engine may wait for is signalled although its job was not understood. */
static void test_refused_points(void **state)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = TANDEM_SIGNALLER_SESSION};
    tandem_session *s = open_session(NULL);
    tandem_timeline timeline;
    tandem_ticket ticket;
    float *host;
    tandem_job job = small_job(s, &host);
    char *given;

    (void)state;
    assert_int_equal(tandem_timeline_create(s, &desc, &timeline), TANDEM_OK);
    job.signal = (tandem_point){timeline, 1};
    given = resized(&job, sizeof job, sizeof job + MORE);
    given[sizeof job] = 1;
    assert_int_equal(tandem_submit(s, (tandem_job *)given, &ticket), TANDEM_ERROR_UNSUPPORTED);
    free(given);
    job.signal.value = 2;
    assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_point_wait(s, job.signal, WAIT_NS), TANDEM_OK);
    tandem_session_destroy(&s);
}

/* --- Structs that are filled --- */

static tandem_ticket last_ticket;
static tandem_mem last_mem;
static tandem_status fill_info(tandem_session *s, void *out) { return tandem_session_info(s, out); }
static tandem_status fill_poll(tandem_session *s, void *out) { return tandem_poll(s, last_ticket, out); }
static tandem_status fill_wait(tandem_session *s, void *out) { return tandem_wait(s, last_ticket, WAIT_NS, out); }
static tandem_status fill_mem(tandem_session *s, void *out) { return tandem_mem_get_vulkan(s, last_mem, out); }
/* Of no model, these are zeros. */
static tandem_status fill_network(tandem_session *s, void *out) { return tandem_model_info(s, 0, out); }
static tandem_status fill_number(tandem_session *s, void *out) { return tandem_model_number(s, 0, 0, out); }
static tandem_status fill_binding(tandem_session *s, void *out) { return tandem_model_binding(s, 0, NULL, 0, 0, out); }
static tandem_status fill_uniform(tandem_session *s, void *out) { return tandem_model_uniform(s, 0, NULL, 0, 0, out); }
static tandem_status fill_prepared(tandem_session *s, void *out) { return tandem_model_prepared(s, 0, NULL, 0, out); }
static tandem_status fill_layer(tandem_session *s, void *out) { return tandem_model_layer(s, 0, NULL, 0, 0, out); }

static vku vk;
static tandem_status fill_requirements(uint32_t *count, void *list)
{
    return tandem_vulkan_requirements(vk.gipa, vk.instance, vk.physical_device, count, list);
}
static tandem_status fill_devices(uint32_t *count, void *list) { return tandem_devices(count, list); }
static tandem_status fill_device(tandem_session *s, void *out)
{
    (void)s;
    return tandem_vulkan_device(vk.gipa, vk.instance, vk.physical_device, out);
}

static void test_out(void **state)
{
    tandem_session *s = open_session(NULL);
    float *host;
    const tandem_job job = small_job(s, &host);

    (void)state;
    assert_int_equal(tandem_submit(s, &job, &last_ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(s, last_ticket, WAIT_NS, NULL), TANDEM_OK);
    out_of(s, sizeof(tandem_info), 8, fill_info, TANDEM_OK);
    out_of(s, sizeof(tandem_job_report), 8, fill_poll, TANDEM_OK);
    out_of(s, sizeof(tandem_job_report), 8, fill_wait, TANDEM_OK);
    out_of(s, sizeof(tandem_network), 8, fill_network, TANDEM_ERROR_ARG);
    out_of(s, sizeof(tandem_network_number), 4, fill_number, TANDEM_ERROR_ARG);
    out_of(s, sizeof(tandem_network_tensor), 8, fill_binding, TANDEM_ERROR_ARG);
    out_of(s, sizeof(tandem_network_tensor), 8, fill_uniform, TANDEM_ERROR_ARG);
    out_of(s, sizeof(tandem_prepared), 8, fill_prepared, TANDEM_ERROR_ARG);
    out_of(s, sizeof(tandem_layer), 4, fill_layer, TANDEM_ERROR_ARG);
    list_of(sizeof(tandem_device), fill_devices);
    tandem_session_destroy(&s);
}

/* --- Arrays, and what Vulkan is needed for --- */

/* Two images of an array of longer structs come to two places. */
static void check_images(tandem_session *s)
{
    enum { SIDE = 4, TEXELS = SIDE * SIDE, STEP = sizeof(tandem_pack_image) + MORE };
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 2 * 4 * TEXELS};
    static _Alignas(8) unsigned char array[2 * STEP];
    float texels[2][TEXELS];
    vku_image images[2];
    VkCommandBuffer commands;
    tandem_mem mem;
    char says[200];
    void *host;

    assert_int_equal(tandem_mem_create(s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(s, mem, &host), TANDEM_OK);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t t = 0; t < TEXELS; t++)
            texels[i][t] = (float)(100 * i + t);
        assert_int_equal(vku_image_create(&vk, VK_FORMAT_R32_SFLOAT, SIDE, SIDE,
                                          VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT, &images[i]), VK_SUCCESS);
        assert_int_equal(vku_image_upload(&vk, &images[i], texels[i], VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
        const tandem_pack_image image = {.struct_bytes = STEP,
                                         .format = VK_FORMAT_R32_SFLOAT,
                                         .image = images[i].image,
                                         .view = images[i].view,
                                         .usage = VK_IMAGE_USAGE_SAMPLED_BIT,
                                         .image_extent = {SIDE, SIDE},
                                         .extent = {SIDE, SIDE},
                                         .layout_before = VK_IMAGE_LAYOUT_GENERAL,
                                         .channels = 1,
                                         .tensor = tandem_view_dense(mem, i * 4 * TEXELS, TANDEM_DTYPE_F32, SIDE, SIDE, 1)};
        memcpy(array + i * STEP, &image, sizeof image);
    }
    commands = vku_begin(&vk);
    assert_int_equal(tandem_record_pack_images(s, commands, (void *)array, 2), TANDEM_OK);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    assert_memory_equal(host, texels, sizeof texels);

    commands = vku_begin(&vk);
    array[2 * STEP - 1] = 3;
    assert_int_equal(tell(s, tandem_record_pack_images(s, commands, (void *)array, 2)), TANDEM_ERROR_UNSUPPORTED);
    snprintf(says, sizeof says, "images[1].struct_bytes is %d, of which this library knows %zu, but the byte at offset %d is 3", STEP,
             sizeof(tandem_pack_image), STEP - 1);
    assert_non_null(strstr(last_text, says));
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    for (uint32_t i = 0; i < 2; i++)
        vku_image_destroy(&vk, &images[i]);
    last_mem = mem;
}

static tandem_status create_on(tandem_session *s, const void *given)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .vulkan = given};

    return create_session(s, &desc);
}

static void test_vulkan(void **state)
{
    tandem_session *s;

    (void)state;
    if (vku_open(&vk, NULL) != VKU_OK)
        skip();
    const tandem_vulkan vulkan = vku_engine(&vk);
    longer(NULL, "desc.vulkan", &vulkan, sizeof vulkan, create_on, TANDEM_OK);
    shorter(NULL, &vulkan, sizeof vulkan, offsetof(tandem_vulkan, lock_queue), create_on, TANDEM_OK);
    list_of(sizeof(tandem_requirement), fill_requirements);
    out_of(NULL, sizeof(tandem_device), 8, fill_device, TANDEM_OK);
    s = open_session(&vulkan);
    check_images(s);
    out_of(s, sizeof(tandem_mem_vulkan), 8, fill_mem, TANDEM_OK);
    tandem_session_destroy(&s);
    vku_close(&vk);
    assert_int_equal(vk.errors, 0);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_in),     cmocka_unit_test(test_jobs), cmocka_unit_test(test_refused_points),
    cmocka_unit_test(test_out), cmocka_unit_test(test_vulkan),
};
const test_cases abi_structs_cases = TEST_CASES(cases);
