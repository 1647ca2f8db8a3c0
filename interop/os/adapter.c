/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/adapter.h"

#include <stdio.h>

/* As Windows prints it: the upper half, then the lower. */
static void print_luid(char *text, size_t bytes, const uint8_t *luid)
{
    snprintf(text, bytes, "%02x%02x%02x%02x-%02x%02x%02x%02x", luid[7], luid[6], luid[5], luid[4], luid[3], luid[2], luid[1],
             luid[0]);
}

tandem_status td_adapter_check(const td_adapter *vulkan, const td_adapter *cuda, char *why, size_t why_bytes)
{
    char of_vulkan[20], of_cuda[20];

    if (!vulkan->known || !cuda->known ||
        (!memcmp(vulkan->luid, cuda->luid, sizeof cuda->luid) && vulkan->node_mask == cuda->node_mask))
        return TANDEM_OK;
    print_luid(of_vulkan, sizeof of_vulkan, vulkan->luid);
    print_luid(of_cuda, sizeof of_cuda, cuda->luid);
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "Vulkan's device is the adapter of LUID %s, node mask 0x%x, CUDA's that of LUID %s, node mask 0x%x", of_vulkan,
                   vulkan->node_mask, of_cuda, cuda->node_mask);
}
