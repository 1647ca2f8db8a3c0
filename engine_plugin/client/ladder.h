/* The ladder from the inside: who computes, how that meets the engine, and what each way to do it needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A rung is the one word for people. Within the library it is two answers, of which a session has one pair, its way. What a
 * way needs is in one table: sessions choose by it, say by it why they are not on a better rung, tandem_vulkan_requirements()
 * lists it, and `tandem doctor` prints it.
 */
#ifndef TANDEM_CLIENT_LADDER_H
#define TANDEM_CLIENT_LADDER_H

#include "interop/cu/cu.h"
#include "interop/vk/vk.h"
#include "tandem/vulkan.h"

/* Who computes. */
typedef enum td_device_kind {
    TD_DEVICE_CUDA,           /* a GPU, asked by this process */
    TD_DEVICE_CUDA_ELSEWHERE, /* a GPU, asked by tandemd */
    TD_DEVICE_CPU,            /* this process, or tandemd */
    TD_DEVICES
} td_device_kind;

/* How it meets the engine, best first. */
typedef enum td_sharing {
    TD_SHARING_INLINE,   /* in the engine's own commands */
    TD_SHARING_TIMELINE, /* on the same bytes; the GPU waits and signals */
    TD_SHARING_HOST,     /* on the same bytes; the host waits and signals */
    TD_SHARING_COPY,     /* bytes are copied both ways; the host waits and signals */
    TD_SHARINGS
} td_sharing;

typedef struct td_way {
    td_device_kind device;
    td_sharing sharing;
} td_way;

/* All that there are: of each device the best first. */
enum { TD_WAYS = 9 };
extern const td_way td_ladder[TD_WAYS];

/* The word for a way. (CPU, HOST) has two: it is `host` where that was asked for, else `cpu`. */
tandem_rung td_rung_of(td_way way, uint32_t asked);
const char *td_rung_name(uint32_t rung); /* tandem_rung; of any other number "unknown" */
/* Whether there is such a way; rung 0: any. */
bool td_ladder_has(td_device_kind device, uint32_t rung);

/* Jobs and the engine's commands work on the same bytes. */
static inline bool td_way_shares_memory(td_way way) { return way.sharing != TD_SHARING_COPY; }

/* The GPU waits for points and signals them; else the host does. */
static inline bool td_way_gpu_signals(td_way way)
{
    return way.sharing == TD_SHARING_INLINE || way.sharing == TD_SHARING_TIMELINE;
}

/* Those bytes are in the memory of the engine's device; else in the host's, which that device imports. */
static inline bool td_way_is_on_device(td_way way)
{
    return td_way_gpu_signals(way) || (way.sharing == TD_SHARING_HOST && way.device == TD_DEVICE_CUDA);
}

/* What there is for a session to stand on: what probes look at. */
typedef struct td_grounds {
    const td_vk_caps *vulkan; /* the engine's device as it was opened; NULL: there is none, */
    bool imports;             /* unless it is another process's, whose exports come here */
    bool has_queue;
    td_cu_info cuda; /* if the driver knows the engine's GPU, or any where there is no Vulkan */
    /* Why not, as words behind "no CUDA here: " and "tandemd: "; "": they are there. */
    char no_driver[300], no_gpu[300], no_kernels[300], no_elsewhere[300];
} td_grounds;

/* Asks CUDA's driver; makes no context. with: what it says of a GPU is known. */
void td_grounds_ask_cuda(td_grounds *g);
void td_grounds_with_cuda(td_grounds *g, const td_cu_info *cuda);
/* What of Vulkan the table has that a physical device does not offer is missing in `caps`, which are else to be its own; as
 * if all the rest were enabled, on a device that is yet to be made. */
void td_grounds_ask_offer(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                          td_vk_caps *caps);

typedef enum td_have { TD_HAVE, TD_MISSING, TD_UNKNOWN } td_have; /* UNKNOWN: what it would be asked of is missing */

typedef struct td_requirement {
    const char *name;
    uint32_t ways;         /* that need it: bits of td_way_bit(); 0: optional */
    const char *buys;      /* what an engine has of it */
    const char *advice;    /* what to do where it is missing */
    const td_vk_item *vk;  /* of Vulkan, which tandem_vulkan_requirements() lists; NULL: something else */
    /* Whether it is there, else why not, as a sentence. NULL: no session asks. */
    td_have (*probe)(const struct td_requirement *r, const td_grounds *g, char *why);
    size_t lack; /* for that: where td_vk_caps says so */
} td_requirement;

extern const td_requirement td_requirements[];
extern const uint32_t td_requirement_count;

/* Where a mem's bytes may come from, and on which ways: sessions refuse by it, `tandem doctor` prints it, INTEGRATION.md has it. */
typedef struct td_memory_kind {
    const char *name;
    uint32_t source, handle; /* tandem_mem_source; of FD tandem_handle */
    uint32_t ways;           /* bits of td_way_bit() */
    const char *needs;       /* beside the way; "": nothing */
} td_memory_kind;

extern const td_memory_kind td_memory_kinds[];
extern const uint32_t td_memory_kind_count;
bool td_way_takes(td_way way, uint32_t source, uint32_t handle);

static inline uint32_t td_way_bit(td_way way) { return 1u << (way.device * TD_SHARINGS + way.sharing); }

td_have td_requirement_probe(const td_requirement *r, const td_grounds *g, char *why);
/* Whether all is there that a way needs; else `why` has a sentence for each that is not. */
bool td_way_is_open(td_way way, const td_grounds *g, char *why);

#endif
