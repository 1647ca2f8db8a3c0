/* The checking layer of `tandem conform`: it stands between a program and libtandem (LD_PRELOAD), and between it and Vulkan where
 * Tandem's points and mems are concerned, and says where the program does what the API forbids.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     api.c        Tandem's functions, as the program calls them: by linking, by dlsym(), by the table of tandem_get_api()
 *     vulkan.c     vkQueueSubmit() and what leads to it, likewise: what runs in which order, behind which points
 *     descriptors.c  close()
 *     rules.c      what is known of mems, timelines and jobs, and what follows
 *     report.c     what was found
 *
 * A rule says only what can be proven where the program calls: a program of which nothing is said may still be wrong.
 */
#ifndef TANDEM_CONFORM_H
#define TANDEM_CONFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/plugin.h"

typedef enum conform_rule {
    CONFORM_FD_LEAK,        /* a descriptor of tandem_point_fd(), or one lent by TANDEM_MEM_FD, is open at the end */
    CONFORM_DOUBLE_CLOSE,   /* such a descriptor is closed twice */
    CONFORM_OWNERSHIP,      /* a release or an acquisition is missing */
    CONFORM_UNBOUNDED_WAIT, /* a wait without a bound */
    CONFORM_WRONG_STAGE,    /* a stage that has not such an access, or a wait that is not at the stage that reads */
    CONFORM_REUSE,          /* memory of a job is used before its point is reached */
    CONFORM_STALE,          /* a result is read although its job ended without one */
    CONFORM_LOST_POINT,     /* a submit waits for a point that no job was taken for */
    CONFORM_RULES
} conform_rule;

/* --- report.c --- */

/* One line to stderr, and to the file that TANDEM_CONFORM_REPORT names. */
void conform_say(conform_rule rule, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- api.c --- */

/* Whether this thread is within a call of the library's: what that calls in its turn is none of the program's. */
bool conform_within(void);
/* The program's own dlsym(). */
void *conform_next(const char *name);
/* The wrapper of a function of Tandem's or Vulkan's, or NULL. */
void *conform_wrapper(const char *name);

/* --- vulkan.c --- */

void *conform_vulkan_wrapper(const char *name);
/* What the library is to be given in place of a wrapper: its own calls are none of the program's. */
PFN_vkGetInstanceProcAddr conform_real_gipa(PFN_vkGetInstanceProcAddr given);

/* --- descriptors.c --- */

void conform_lend_fd(int fd, const char *of); /* `of` is a literal */

/* --- rules.c; each locks --- */

void rules_mem_made(tandem_session *session, tandem_mem mem, uint64_t bytes);
void rules_mem_host(tandem_session *session, tandem_mem mem, void *host);
void rules_mem_gone(tandem_session *session, tandem_mem mem);
void rules_timeline_made(tandem_session *session, tandem_timeline timeline, bool of_session, uint64_t value);
void rules_timeline_semaphore(tandem_session *session, tandem_timeline timeline, VkSemaphore semaphore);
void rules_timeline_gone(tandem_session *session, tandem_timeline timeline);
void rules_session_gone(tandem_session *session);
/* The host has seen that a timeline is that far. */
void rules_seen(tandem_session *session, tandem_timeline timeline, uint64_t value);
/* A job was taken; its views are `views`, of which the first `outputs` are written, each with how far it goes, or 0. */
typedef struct rules_view {
    tandem_mem mem;
    uint64_t begin, end; /* of its bytes; end 0: unknown */
    bool written;
} rules_view;
void rules_submitted(tandem_session *session, tandem_ticket ticket, const tandem_job *job, const rules_view *views, size_t count);
/* The program was told how a job is. */
void rules_told(tandem_session *session, tandem_ticket ticket, uint32_t state);

/* What is recorded into a command buffer, and happens when that is submitted. */
typedef enum rules_kind { RULES_RELEASE, RULES_ACQUIRE, RULES_PACK, RULES_UNPACK } rules_kind;
void rules_begun(VkCommandBuffer commands);
void rules_recorded(VkCommandBuffer commands, rules_kind kind, tandem_session *session, tandem_mem mem, VkPipelineStageFlags stage,
                    VkAccessFlags access);
/* A batch of a queue, before it is submitted: what it waits for, then what is in it, then what it signals. */
void rules_waits(VkQueue queue, VkSemaphore semaphore, uint64_t value, VkPipelineStageFlags stages);
void rules_runs(VkQueue queue, VkCommandBuffer commands);
void rules_signals(VkSemaphore semaphore, uint64_t value);
void rules_host_signals(tandem_session *session, tandem_timeline timeline, uint64_t value);
void rules_batch_ends(VkQueue queue);
/* Whether a semaphore is one that the session signals. */
bool rules_is_sessions(VkSemaphore semaphore);

#endif
