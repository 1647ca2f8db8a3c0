/* The Vulkan side: requirements, memory, timelines, barriers, pack and unpack, all under the validation layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: memory and timelines must be exportable. TANDEM_EXPECT_VALIDATION=1: the layer must be there.
 */
#include "tests/interop/vk/rig.h"

static int open_all(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);

    (void)state;
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) != TANDEM_OK) {
        print_error("td_vk_open: %s\n", why);
        return -1;
    }
    caps = td_vk_get_caps(vk);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    td_vk_close(&vk);
    vku_close(&gpu);
    if (gpu.errors)
        print_error("%u validation errors in all, the last: %s\n", gpu.errors, gpu.last_text);
    return gpu.errors ? -1 : 0;
}

int main(void)
{
    const test_cases *const parts[] = {
        &vk_device_cases, &vk_memory_cases, &vk_pack_cases, &vk_images_cases, &vk_images_rules_cases, &vk_failures_cases,
        &vk_validation_cases,
    };
    vku_options options = {.validation = true};
    vku_found found = vku_open(&gpu, &options);

    if (found == VKU_NO_VULKAN && !expects_gpu() && !asked("TANDEM_EXPECT_VALIDATION")) {
        print_message("no Vulkan device: skipped\n");
        return 77;
    }
    if (found != VKU_OK) {
        print_error("no Vulkan device could be opened (%d)\n", (int)found);
        return 1;
    }
    if (!gpu.validated) {
        print_message("VK_LAYER_KHRONOS_validation is not installed: its tests are skipped\n");
        if (asked("TANDEM_EXPECT_VALIDATION"))
            return 1;
    }
    return run_cases("tests", parts, sizeof parts / sizeof *parts, open_all, close_all);
}
