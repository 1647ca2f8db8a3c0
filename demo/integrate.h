/* How an engine puts Tandem into its frame: the part to copy. It sees the public headers alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     integrate_enable()       once for the instance, once for the device: what Tandem can use of what there is
 *     integrate_open()         a session on the engine's device, two timelines, memory for each frame in flight
 *     integrate_give()         recorded behind what writes the input: the slot's memory is the job's now
 *     integrate_job()          the job; where integrate_records() into that command buffer, else, once what is above has been
 *                              submitted with integrate_given() as a signal and integrate_submitted() said so, on its own
 *     integrate_take()         recorded in front of what reads the output; a job that was not recorded is waited for by that
 *                              submit, on the GPU: integrate_done(). No frame waits for the CPU
 *     integrate_close()
 */
#ifndef TANDEM_DEMO_INTEGRATE_H
#define TANDEM_DEMO_INTEGRATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/vulkan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { INTEGRATION_EXTENSIONS = 64, INTEGRATION_STRUCTS = 32, INTEGRATION_STRUCT_WORDS = 32 };

/* What an instance or a device is made with. Its own chain points into it, so it stays where it is. Zeroed is nothing. */
typedef struct integration_enabled {
    const char *extensions[INTEGRATION_EXTENSIONS];
    uint32_t extension_count;
    VkPhysicalDeviceFeatures2 features; /* of a device: for VkDeviceCreateInfo.pNext, and tandem_vulkan.enabled_features */
    uint64_t structs[INTEGRATION_STRUCTS][INTEGRATION_STRUCT_WORDS]; /* of its chain */
    uint32_t struct_count;
} integration_enabled;

/* Adds what Tandem can use: extensions of an instance, or where `physical` is given, extensions and features of that device.
 * False, and the reason, if something is missing without which there is no session. */
bool integrate_enable(integration_enabled *to, PFN_vkGetInstanceProcAddr get, VkInstance instance,
                      VkPhysicalDevice physical, char *why, size_t why_bytes);
/* What the engine needs itself. Each is there once; false: there is no room for it. */
bool integrate_enable_extension(integration_enabled *to, const char *name);
bool integrate_enable_feature(integration_enabled *to, VkStructureType type, uint32_t offset_bytes);
bool integrate_is_enabled(const integration_enabled *it, const char *extension);

enum { INTEGRATION_SLOTS = 2 }; /* frames in flight */

typedef struct integration_desc {
    tandem_vulkan vulkan; /* the engine's device, its queue and the lock that guards it */
    uint64_t input_bytes, output_bytes; /* of a slot */
    uint32_t backend, rung; /* tandem_backend, tandem_rung; 0: the best */
    uint32_t cpu_threads;   /* 0: all cores */
    uint64_t wait_bound_ns; /* how long a job waits for the engine's signal before it fails; 0: 30 s */
    void (*log)(void *user, int level, const char *text);
    void *user;
} integration_desc;

/* Of a frame in flight. The output of one frame is read while the next one's input is written. */
typedef struct integration_slot {
    tandem_mem input, output;
    uint64_t done; /* of the session's timeline: the last job that was submitted for it has ended */
} integration_slot;

/* Zeroed is closed. */
typedef struct integration {
    tandem_session *session;
    tandem_info info;
    tandem_timeline engine_timeline, session_timeline;
    VkSemaphore engine_semaphore, session_semaphore;
    uint64_t engine_value, session_value;
    integration_slot slots[INTEGRATION_SLOTS];
} integration;

/* A value of a timeline semaphore, for VkTimelineSemaphoreSubmitInfo. */
typedef struct integration_point {
    VkSemaphore semaphore;
    uint64_t value;
} integration_point;

/* False, and the reason, if there is no session like that on the device; then all is closed. */
bool integrate_open(integration *it, const integration_desc *desc, char *why, size_t why_bytes);
/* No command buffer that was recorded with it is under way any more. */
void integrate_close(integration *it);

tandem_status integrate_give(const integration *it, const integration_slot *slot, VkCommandBuffer commands);
/* Whether jobs go into the engine's command buffers, so that all of a frame is one submit. */
bool integrate_records(const integration *it);
/* What the submit in front of a job that is not recorded has to signal; each call is the next value. */
integration_point integrate_given(integration *it);
/* Behind that submit. */
tandem_status integrate_submitted(const integration *it);
/* The views of `job` are of the slot's memory. `commands` is of no use where jobs are submitted. */
tandem_status integrate_job(integration *it, integration_slot *slot, tandem_job *job, VkCommandBuffer commands,
                            tandem_ticket *ticket);
/* What the submit behind a job that was submitted has to wait for. */
integration_point integrate_done(const integration *it, const integration_slot *slot);
/* Who reads `mem` next: by which stages, how. */
tandem_status integrate_take(const integration *it, tandem_mem mem, VkCommandBuffer commands,
                             VkPipelineStageFlags stages, VkAccessFlags access);
/* Waits until a job has ended. OK: it ended well; else why it did not, or that the wait did. */
tandem_status integrate_wait(const integration *it, tandem_ticket ticket, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
