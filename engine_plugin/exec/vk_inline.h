/* What the files of executor `vk_inline` share. exec.h has what others call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_EXEC_VK_INLINE_H
#define TANDEM_EXEC_VK_INLINE_H

#include "engine_plugin/exec/stream.h"
#include "interop/vk/table.h"

/* Of a slot, command buffers made one a submit: for as many combinations of what its plans are given, and as the last ones may be
 * pending for a moment after their stamps were seen, longer where processes share the device. */
enum { TD_INLINE_BUFFERS = 4 };

typedef struct td_inline_function {
    const td_cubin_entry *entry;
    uint32_t image;
    VkCuFunctionNVX handle; /* none: its image is not loaded */
} td_inline_function;

/* What a command buffer holds between its stamps. */
typedef struct td_inline_recording {
    const char *label;
    td_plan bound; /* its records have the parameters that their kernels get */
    VkCuFunctionNVX *handles; /* of each record, in that plan's memory */
} td_inline_recording;

/* A command buffer, of those cached for a slot: one for each distinct set of addresses, and spares while Vulkan still
 * reports the last one as pending. It is submitted again as it is while the slot's plans ask for what it holds. */
typedef struct td_inline_commands {
    VkCommandPool pool;
    VkCommandBuffer buffer;
    td_inline_recording holds;
    bool begun, whole; /* since its pool was reset; and ended, so that it may be submitted */
    uint64_t value;    /* of the timeline, once the buffer is free again */
} td_inline_commands;

/* Host memory that the device writes; with the stamps of recorded plans, by number % TD_INLINE_RECORDED, and their controls: a
 * plan that claims what it writes must find there that it was given up, as its commands may run all the same. */
typedef struct td_inline_ring {
    td_stream_ring submits;
    td_stamp stamps[TD_INLINE_RECORDED];
    td_control controls[TD_INLINE_RECORDED];
} td_inline_ring;

/* Cancel words, that each block reads: in the device's memory, since reads of the host's cross the bus one by one. Of
 * slots, then of recorded plans. */
enum { TD_INLINE_WORDS = TD_STREAM_PENDING + TD_INLINE_RECORDED };

typedef struct td_inline_self_test td_inline_self_test;

typedef struct td_inline_stream {
    td_stream base;
    td_vk_left left; /* where the device hangs */
    td_inline_desc desc;
    td_vk *vk;
    const td_vk_table *fn;
    const td_cubin *cubin;
    VkCuModuleNVX *modules; /* of its images; none: not loaded */
    td_inline_function *functions; /* of all its images, one image behind the other, that fit into a command buffer */
    uint32_t function_count;
    VkCuFunctionNVX stamp;
    td_vk_mem memory; /* of the ring */
    td_inline_ring *ring;
    td_vk_mem cancel_words; /* none where the host cannot map the device's memory: nothing is cancelled then */
    VkSemaphore timeline; /* its value is `before` + the number of the last finished submit */
    uint64_t before;
    atomic_int broken; /* tandem_status, sticky */
    uint64_t recorded; /* the last number */
    /* Of recorded plans, by number % TD_INLINE_RECORDED: the number, and when its run began that was last seen. */
    uint64_t numbers[TD_INLINE_RECORDED], cancelled[TD_INLINE_RECORDED], seen_ns[TD_INLINE_RECORDED];
    td_inline_commands commands[TD_STREAM_PENDING][TD_INLINE_BUFFERS];
    atomic_bool word_set[TD_STREAM_PENDING];
    uint64_t over;    /* what the timeline's value has been seen to be */
    td_inline_recording wanted; /* by the call at hand */
    td_inline_self_test *test; /* while it runs */
} td_inline_stream;

static inline uint64_t td_inline_word(const volatile uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* What Vulkan returned, as a status; a lost device is remembered. */
static inline tandem_status td_inline_fail(td_inline_stream *s, VkResult result, const char *call, char *why, size_t why_bytes)
{
    const tandem_status status = td_vk_result(result, call, why, why_bytes);

    if (status == TANDEM_ERROR_LOST)
        atomic_store(&s->broken, status);
    return status;
}

/* --- vk_inline.c --- */

/* vkQueueSubmit() under the engine's lock of the queue. */
tandem_status td_inline_submit(td_inline_stream *s, const VkSubmitInfo *info, char *why, size_t why_bytes);

/* --- vk_inline_kernels.c --- */

/* Loads those that fit into a command buffer, but for images on demand; finds the stamp. */
tandem_status td_inline_load_kernels(td_inline_stream *s, char *why, size_t why_bytes);
void td_inline_free_kernels(td_inline_stream *s);

/* With all of its functions, or not at all. */
tandem_status td_inline_load(td_inline_stream *s, uint32_t image, char *why, size_t why_bytes);

/* The record's function, which may be without a handle yet; UNSUPPORTED where it would take more than an SM of the graphics
 * context has. */
tandem_status td_inline_check_record(const td_inline_stream *s, const td_record *record, td_inline_function **out, char *why,
                                     size_t why_bytes);

/* --- vk_inline_record.c --- */

/* Writes a cancel word, where the host can. */
void td_inline_set_word(const td_inline_stream *s, uint32_t word, uint32_t value);

/* What a submit is to record, as s->wanted; every record is checked before that. */
tandem_status td_inline_want(td_inline_stream *s, const td_stream_submit *submit, uint64_t control, uint32_t word, char *why,
                             size_t why_bytes);
bool td_inline_is_same(const td_inline_recording *a, const td_inline_recording *b);

/* s->wanted, between these stamps. */
void td_inline_record_wanted(const td_inline_stream *s, VkCommandBuffer to, td_params_stamp begin, td_params_stamp end);

#endif
