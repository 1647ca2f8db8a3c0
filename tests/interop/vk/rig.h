/* What the tests of the Vulkan side share: one device under the validation layer, and devices whose functions fail
 * on demand.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_VK_RIG_H
#define TANDEM_TESTS_VK_RIG_H

#include <string.h>

#include "tests/cases.h"
#include "tests/interop/vk_util.h"

#define STORAGE                                                                                                        \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
#define SHADER VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
#define READ_WRITE (VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT)

extern vku gpu;
extern td_vk *vk;
extern const td_vk_caps *caps;
extern char why[512];
bool asked(const char *variable);

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        tandem_status ok_status = (call);                                                                              \
        if (ok_status != TANDEM_OK)                                                                                    \
            fail_msg("%s: %d %s", #call, (int)ok_status, why);                                                         \
    } while (0)
#define assert_vk(call) assert_int_equal(call, VK_SUCCESS)

/* The call must answer `status` and name `word` in its text. */
#define assert_fails(call, status, word)                                                                               \
    do {                                                                                                               \
        why[0] = 0;                                                                                                    \
        assert_int_equal(call, status);                                                                                \
        if (!strstr(why, word))                                                                                        \
            fail_msg("\"%s\" does not name %s", why, word);                                                            \
    } while (0)

typedef struct vk_fault {
    const char *fails, *hidden; /* one Vulkan function each, or NULL */
    VkResult result;
    PFN_vkGetDeviceProcAddr real;
} vk_fault;

extern vk_fault fault;
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_instance(VkInstance instance, const char *name);
td_vk *open_faulty(const char *fails, VkResult result);
int each_is_silent(void **state);
/* The rest of a mem of the host's from there on, as a mem in a buffer of the engine's is; not to be freed. */
td_vk_mem mem_within(const td_vk_mem *outer, uint64_t offset);

#define TEST(name) cmocka_unit_test_teardown(name, each_is_silent)

/* pack.c's. */

bool can_pack(void);

/* Each file's, in the order in which they run. */
extern const test_cases vk_device_cases, vk_memory_cases, vk_pack_cases, vk_images_cases, vk_images_rules_cases, vk_failures_cases,
    vk_validation_cases;

#endif
