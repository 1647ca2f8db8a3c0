/* The library itself: its table, the ladder of rungs, and a table that AUTO goes by.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

static void test_table(void **state)
{
    const tandem_api *api = tandem_get_api(TANDEM_VERSION);

    (void)state;
    assert_non_null(api);
    assert_int_equal(api->struct_bytes, sizeof *api);
    assert_int_equal(api->version, tandem_version());
#define SAME(name) assert_true((void *)(uintptr_t)api->name == (void *)(uintptr_t)tandem_##name)
    assert_true((void *)(uintptr_t)api->version_number == (void *)(uintptr_t)tandem_version);
    SAME(status_text);
    SAME(session_create);
    SAME(session_destroy);
    SAME(session_info);
    SAME(error_text);
    SAME(mem_create);
    SAME(mem_destroy);
    SAME(mem_host);
    SAME(timeline_create);
    SAME(timeline_destroy);
    SAME(timeline_value);
    SAME(timeline_signal);
    SAME(point_wait);
    SAME(submit);
    SAME(poll);
    SAME(wait);
    SAME(cancel);
    SAME(model_load);
    SAME(model_create);
    SAME(model_tensor);
    SAME(model_destroy);
    SAME(vulkan_requirements);
    SAME(mem_get_vulkan);
    SAME(timeline_get_vulkan);
    SAME(record_release);
    SAME(record_acquire);
    SAME(pack_tiles);
    SAME(record_pack);
    SAME(record_unpack);
    SAME(record_pack_images);
    SAME(record_unpack_images);
    SAME(timeline_submitted);
    SAME(point_fd);
    SAME(record);
    SAME(model_info);
    SAME(model_number);
    SAME(model_binding);
    SAME(model_uniform);
    SAME(model_instance);
    SAME(instance_destroy);
    SAME(model_prepare);
    SAME(model_prepared);
    SAME(model_layer);
    SAME(supported);
    SAME(retire);
    SAME(devices);
    SAME(vulkan_device);
    SAME(language_create);
    SAME(language_destroy);
    SAME(language_get_info);
    SAME(npc_create);
    SAME(npc_destroy);
    SAME(npc_say);
    SAME(npc_poll);
    SAME(npc_wait);
    SAME(npc_cancel);
    SAME(npc_get_reply);
    SAME(npc_choose);
    SAME(npc_set_history);
    SAME(npc_get_history);
    SAME(npc_save);
    SAME(npc_restore);
    SAME(language_frame);
    SAME(embedder_create);
    SAME(embedder_destroy);
    SAME(embedder_begin);
    SAME(embedder_poll);
    SAME(embedder_wait);
    SAME(npc_get_token);
#undef SAME
    /* Every member is covered above: the table has struct_bytes, version and 70 functions. */
    assert_int_equal(sizeof *api, 8 + 70 * sizeof(void (*)(void)));
    assert_null(tandem_get_api(TANDEM_VERSION + (1u << 22)));
    assert_null(tandem_get_api(TANDEM_VERSION + (1u << 12)));
    assert_non_null(tandem_get_api(TANDEM_VERSION + 1));
    for (int status = TANDEM_ERROR_BUSY; status <= TANDEM_OK; status++)
        assert_string_not_equal(tandem_status_text(status), "unknown status");
    assert_string_equal(tandem_status_text((tandem_status)-99), "unknown status");
    assert_string_equal(tandem_status_text((tandem_status)1), "unknown status");
}

static void test_ladder(void **state)
{
    rig r;

    (void)state;
    assert_true(rig_open(&r, ON_CPU));
    assert_int_equal(r.info.backend, TANDEM_BACKEND_CPU);
    assert_int_equal(r.info.rung, TANDEM_RUNG_CPU);
    assert_non_null(strstr(r.info.rung_reason, "asked for"));
    assert_true(r.info.isa[0] && r.info.device[0] && r.info.cpu_threads > 0 && r.info.host_bytes > 0);
    assert_int_equal(r.info.sm, 0);
    rig_close(&r);

    assert_true(rig_prepare(&r, ON_CPU));
    r.desc.backend = TANDEM_BACKEND_AUTO;
    r.desc.cpu_threads = 1;
    assert_true(rig_start(&r));
    assert_int_equal(r.info.cpu_threads, 1);
    assert_int_equal(r.info.rung, expects_gpu() ? TANDEM_RUNG_HOST : r.info.sm ? TANDEM_RUNG_HOST : TANDEM_RUNG_CPU);
    assert_true(r.info.rung_reason[0]);
    rig_close(&r);

    if (rig_open(&r, ON_VULKAN)) {
        assert_true(r.info.rung <= TANDEM_RUNG_TIMELINE || (r.info.rung == TANDEM_RUNG_CPU && !expects_gpu()));
        assert_true(r.info.rung == TANDEM_RUNG_INLINE || r.info.rung_reason[0]);
        if (r.info.rung == TANDEM_RUNG_TIMELINE)
            assert_non_null(strstr(r.info.rung_reason, "inline"));
        rig_close(&r);
    }
    if (rig_open(&r, ON_VULKAN_HALF)) {
        assert_true(r.info.rung == TANDEM_RUNG_HOST || r.info.rung == TANDEM_RUNG_CPU);
        assert_true(!expects_gpu() || r.info.rung == TANDEM_RUNG_HOST);
        if (r.info.rung == TANDEM_RUNG_HOST && !r.desc.rung)
            assert_non_null(strstr(r.info.rung_reason, "VK_KHR_external_semaphore_fd"));
        rig_close(&r);
    }
    if (rig_open(&r, ON_VULKAN_CPU)) {
        assert_int_equal(r.info.rung, TANDEM_RUNG_CPU);
        rig_close(&r);
    }
    /* The CPU computes in host memory that Vulkan sees, or in what was copied. */
    if (rig_prepare(&r, ON_VULKAN_CPU)) {
        tandem_info info = {.struct_bytes = sizeof info};
        char text[300] = "";
        const char *kept[16];
        uint32_t count = 0;

        for (uint32_t i = 0; i < r.vulkan.enabled_extension_count; i++)
            if (strcmp(r.vulkan.enabled_extensions[i], "VK_EXT_external_memory_host"))
                kept[count++] = r.vulkan.enabled_extensions[i];
        r.vulkan.enabled_extensions = kept;
        r.vulkan.enabled_extension_count = count;
        r.desc.error_text = text;
        r.desc.error_text_bytes = sizeof text;
        assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_int_equal(info.rung, TANDEM_RUNG_COPY);
        assert_non_null(strstr(info.rung_reason, "VK_EXT_external_memory_host"));
        assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        r.desc.rung = TANDEM_RUNG_CPU;
        assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_ERROR_UNSUPPORTED);
        assert_null(r.s);
        assert_non_null(strstr(text, "VK_EXT_external_memory_host"));
        assert_int_equal(r.log.errors, 1);
        rig_close(&r);
    }
}

/* A table of another device is told, and not used; the text need not live. */
static void test_tuning(void **state)
{
    static const rig_kind kinds[] = {ON_CPU, ON_CUDA, ON_VULKAN_CPU, ON_TIMELINE};
    rig r;

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int given = 0; given < 2; given++) {
            char *text = NULL;

            if (!rig_prepare(&r, kinds[i]))
                continue;
            if (given) {
                text = strdup("{\"tandem\":\"choice\",\"version\":2,\"device\":\"a GPU that nobody has\",\"sm\":10,"
                              "\"multiprocessors\":1,\"parts\":[{\"head_dim\":64,\"causal\":0}]}");
                r.desc.tuning = text;
                r.desc.tuning_bytes = strlen(text);
            }
            const bool made = rig_start(&r);

            free(text);
            if (!made)
                continue;
            assert_int_not_equal(r.info.tuning, TANDEM_TUNING_GIVEN);
            assert_int_equal(r.info.reserved, 0);
            if (given && !strstr(r.log.last_warning, "the tuning that was given is not used: "))
                fail_msg("%s: the last warning is '%s'", kind_names[r.kind], r.log.last_warning);
            if (given && !strstr(r.info.tuning_reason, "what was given is not used: "))
                fail_msg("%s: tuning_reason is '%s'", kind_names[r.kind], r.info.tuning_reason);
            if (r.info.backend == TANDEM_BACKEND_CPU) {
                assert_int_equal(r.info.tuning, TANDEM_TUNING_RULE);
                assert_non_null(strstr(r.info.tuning_reason, "there are no tables of the CPU's kernels"));
            } else if (given) {
                assert_non_null(strstr(r.info.tuning_reason, "'a GPU that nobody has' (compute capability 1.0)"));
            }
            rig_close(&r);
        }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_table),
    cmocka_unit_test(test_ladder),
    cmocka_unit_test(test_tuning),
};
const test_cases session_library_cases = TEST_CASES(cases);
