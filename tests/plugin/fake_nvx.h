/* Vulkan as libtandem sees it on the inline rung, with hooks: calls are counted, may fail, and what is launched may be
 * changed. Where the device lacks VK_NVX_binary_import, as lavapipe does, it seems to have it: a launch is then run on the
 * host by the kernel's CPU twin, when its command buffer is submitted. That works because lavapipe's device addresses are
 * the host's. What passes there says that plans, limits, barriers and failures are right, not that a GPU computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_FAKE_NVX_H
#define TANDEM_TEST_FAKE_NVX_H

#include "interop/vk/table.h"
#include "kernels/attention/attention.h"
#include "kernels/target.h"
#include "tests/interop/vk_util.h"

typedef struct fake_nvx {
    bool real; /* the device has the extension: launches go to it */
    /* Calls by the library and by the test alike, since they were last set to 0. */
    unsigned launches, barriers, data_barriers, wide_barriers, copies, allocations, host_waits, counter_reads;
    unsigned begins;                           /* of command buffers */
    unsigned blocks;                           /* that did their work (host only) */
    unsigned submits, batches, waits, signals; /* waits, signals: of semaphores, by those batches */
    const char *attention;                     /* the last kernel of that kind that was recorded */
    uint32_t attention_blocks;                 /* and its grid (host only) */
    int live; /* modules, functions, pools, semaphores, memory and buffers that were not destroyed */

    const char *fail_call; /* NULL: any that can fail */
    unsigned fail_at;      /* the n-th such call from now fails; 0: none */
    bool failed;
    VkResult failure;

    bool damaged_image; /* the kernels in the library are not as they were built (host only) */
    bool two_images;    /* a second one has the attention kernels of fp16, on demand (host only) */

    uint32_t multiprocessors; /* that a device which is none says it has, to sessions that are made then */

    /* What the next launches meet. */
    unsigned skip_launch; /* the n-th launch from now is lost; 0: none */
    bool swallow_submits; /* they succeed, and nothing comes of them: as if the device hung, or had much to do */
    bool backwards;       /* launches that no barrier parts run in the reverse order (host only) */
} fake_nvx;

extern fake_nvx fake_nvx_state;

/* For vku_options.wrap. */
PFN_vkGetInstanceProcAddr fake_nvx_wrap(PFN_vkGetInstanceProcAddr gipa);

/* To be called before a session or stream is made: the CPU twins of all kernels that plans for sm_90 can ask for. */
void fake_nvx_learn(void);
/* Whatever was swallowed ends, without having done anything; or runs after all (host only). */
void fake_nvx_end_swallowed(void);
void fake_nvx_run_swallowed(void);
/* An image with the names of all those. */
const td_cubin *fake_nvx_cubins(uint32_t *count);

#endif
