/* Which of the system's adapters a GPU is: by that, too, two drivers' devices are told to be one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_ADAPTER_H
#define TANDEM_OS_ADAPTER_H

#include "interop/base.h"

/* As Windows counts them, anew at each start of the machine; of a linked one, which nodes. */
typedef struct td_adapter {
    bool known; /* else the other two are 0, as everywhere but on Windows */
    uint8_t luid[8];
    uint32_t node_mask;
} td_adapter;

/* Whether Vulkan's device and CUDA's are on the same, as far as both are known.
 * Returns: UNSUPPORTED if not; `why` then names both.
 * Threads: any.
 * Blocks: never. */
tandem_status td_adapter_check(const td_adapter *vulkan, const td_adapter *cuda, char *why, size_t why_bytes);

#endif
