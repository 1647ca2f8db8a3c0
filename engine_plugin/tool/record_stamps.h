/* Timestamps around the kernels of a recorded job. What stands between a session and its Vulkan writes them, as a layer
 * would: the library knows nothing of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TOOL_RECORD_STAMPS_H
#define TANDEM_TOOL_RECORD_STAMPS_H

#include <stdbool.h>
#include <vulkan/vulkan_core.h>

/* What a session is given as tandem_vulkan.get_instance_proc_addr instead; for one device at a time. */
PFN_vkGetInstanceProcAddr record_stamps_wrap(PFN_vkGetInstanceProcAddr get);
/* The job that this thread records next has two: `first` where its first kernel begins, the next one where its last one has
 * ended. The caller has reset them. */
void record_stamps_begin(VkQueryPool queries, uint32_t first);
/* Behind tandem_record(). False: it has not both. */
bool record_stamps_end(void);

#endif
