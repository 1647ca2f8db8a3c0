/* Where a session's jobs are computed, as a table: in this process (td_backend_local), or by tandemd (td_backend_remote).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Ids, checks, plans, points and reports are a session's own, whoever computes. What differs is behind this table: no other
 * code asks which of the two it is. What follows from how it meets the engine (ladder.h) does not differ, and is not here.
 *
 * *_locked: called and left with the session's lock held, and does not block; where it says so, the lock is let go
 * meanwhile. The others are called without the lock and may block. A failure leaves its reason in `why`, of TD_WHY_BYTES.
 */
#ifndef TANDEM_CLIENT_BACKEND_H
#define TANDEM_CLIENT_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "interop/operation.h"
#include "tandem/tandem.h"

typedef struct td_object td_object;
typedef struct td_mem td_mem;
typedef struct td_timeline td_timeline;
typedef struct td_model td_model;
typedef struct td_model_load td_model_load;
typedef struct td_instance td_instance;
typedef struct td_prepared td_prepared;
struct td_state_copy;
typedef struct td_job td_job;
typedef struct td_submission td_submission;

typedef struct td_backend {
    uint32_t tuning;      /* tandem_tuning: what AUTO goes by where there is no table of times */
    bool loss_is_told;    /* who saw it get LOST has logged that: calls that fail for it do not */
    uint64_t deciding_ns; /* in how long an executor that was deciding is asked again; UINT64_MAX: its report tells */
    bool is_elsewhere;   /* what instances keep, and how their layers do, is in another process */
    uint64_t uniform_bytes; /* that a run of a network may bring; 0: as many as it has */
    const char *no_fd;    /* why it takes no TANDEM_MEM_FD where it has no GPU of its own */

    /* The threads that see to jobs, once the device is open. stop: every job is ended, one way or another, and so are they,
     * within 2 s or once the CPU is through with its job; accepts a session that was not started. */
    tandem_status (*start)(tandem_session *s, char *why);
    void (*stop)(tandem_session *s);

    /* Lets who computes know a mem or a timeline, of which all that is Vulkan's has been made, and makes what it needs
     * besides. Timelines: only where the GPU signals them, and not from the engine's own commands. */
    tandem_status (*mem_share)(tandem_session *s, td_mem *mem, char *why);
    tandem_status (*timeline_share)(tandem_session *s, td_timeline *timeline, char *why);
    /* Makes load->model, for the caller to enter or to free. tensor: the lock is let go. */
    tandem_status (*model_load)(td_model_load *load, const tandem_model_desc *desc, char *why);
    tandem_status (*model_tensor_locked)(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                         uint64_t shape[4], char *why);
    /* Why of language models' files only what they say of themselves is made: no pages in common, no other context or
     * output. NULL: it is. Without such a function likewise. */
    const char *(*no_languages)(tandem_session *s);
    /* Why layers of networks are neither planned nor sampled one by one; likewise. */
    const char *(*no_layers)(tandem_session *s);
    /* tandem_model_layer() where it is another process that knows, of what it has prepared; the lock is let go. NULL: this one
     * does. */
    tandem_status (*layer_locked)(tandem_session *s, const td_instance *instance, const td_prepared *prepared, uint32_t index,
                                  tandem_layer *out, char *why);
    /* Why of what instances keep nothing is copied; NULL: it is. Without such a function likewise. copy: of td_instance_copy(),
     * which has found where it is. */
    const char *(*no_states)(tandem_session *s);
    tandem_status (*state_copy)(tandem_session *s, const td_instance *instance, const struct td_state_copy *copies, uint32_t count,
                                bool to_instance, char *why);
    /* Makes what an instance has besides its name, or what it has for some numbers besides the program. */
    tandem_status (*instance_make)(tandem_session *s, td_instance *instance, char *why);
    tandem_status (*prepare)(tandem_session *s, td_instance *instance, td_prepared *prepared, char *why);
    /* Whether its state is gone with who computed. */
    bool (*instance_is_lost_locked)(const tandem_session *s, const td_instance *instance);
    /* A mem, a timeline, a model or an instance is no longer among the session's, and about to be freed. */
    void (*object_end)(tandem_session *s, td_object *object);

    /* Whether who computes knows the operation and all that is said of it; NULL: as this library does. */
    tandem_status (*takes_locked)(tandem_session *s, const td_operation_layout *layout, const tandem_operands *op, char *why);
    /* Takes a job that was prepared: if OK, it is under way. */
    tandem_status (*submit_locked)(tandem_session *s, td_job *job, td_submission *from, tandem_ticket *ticket, char *why);
    /* What the engine signals has reached `value`, or will without the host's doing. */
    void (*announce_locked)(tandem_session *s, td_timeline *timeline, uint64_t value);
    /* The worker has something to do: a job was given up, or a point signalled from the host. */
    void (*wake_locked)(tandem_session *s);
    /* A caller is about to sleep until a job is through, `alone` if nobody else has to see that: what it does itself first.
     * True: something has changed, look again in place of sleeping. The lock is let go. leaves: it no longer waits. */
    bool (*caller_waits_locked)(tandem_session *s, bool alone, uint64_t until_ns);
    void (*caller_leaves_locked)(tandem_session *s);
} td_backend;

extern const td_backend td_backend_local, td_backend_remote; /* local.c, remote.c */

#endif
