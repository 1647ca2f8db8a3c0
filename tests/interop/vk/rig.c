/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "tests/interop/vk/rig.h"

vku gpu;
td_vk *vk;
const td_vk_caps *caps;
char why[512];

bool asked(const char *variable)
{
    const char *value = getenv(variable);

    return value && *value && strcmp(value, "0") != 0;
}

td_vk_mem mem_within(const td_vk_mem *outer, uint64_t offset)
{
    return (td_vk_mem){.buffer = outer->buffer,
                       .buffer_offset = offset,
                       .engines_buffer = true,
                       .memory = outer->memory,
                       .allocation_bytes = outer->allocation_bytes,
                       .offset = offset,
                       .bytes = outer->bytes - offset,
                       .host = (char *)outer->host + offset,
                       .memfd = -1};
}

/* A device whose functions fail on demand. */

vk_fault fault;

static VkResult fail_now(void)
{
    return fault.result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_device(VkDevice device, const char *name)
{
    if (fault.hidden && strcmp(name, fault.hidden) == 0)
        return NULL;
    /* Every function that is made to fail returns a VkResult; its arguments are not looked at. */
    if (fault.fails && strcmp(name, fault.fails) == 0)
        return (PFN_vkVoidFunction)fail_now;
    return fault.real(device, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_instance(VkInstance instance, const char *name)
{
    if (fault.hidden && strcmp(name, fault.hidden) == 0)
        return NULL;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        fault.real = (PFN_vkGetDeviceProcAddr)gpu.gipa(instance, name);
        return (PFN_vkVoidFunction)fault_device;
    }
    return gpu.gipa(instance, name);
}

td_vk *open_faulty(const char *fails, VkResult result)
{
    td_vk_desc desc = vku_desc(&gpu);
    td_vk *faulty = NULL;

    fault.fails = fails;
    fault.hidden = NULL;
    fault.result = result;
    desc.get_instance_proc_addr = fault_instance;
    assert_ok(td_vk_open(&desc, NULL, &faulty, why, sizeof why));
    return faulty;
}

int each_is_silent(void **state)
{
    static unsigned before;
    unsigned errors = gpu.errors - before;

    (void)state;
    before = gpu.errors;
    if (errors)
        print_error("%u validation errors, the last: %s\n", errors, gpu.last_text);
    return errors ? -1 : 0;
}
