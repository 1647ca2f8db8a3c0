/* What the worker has of what clients share, and the requests that tell it of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_REQUESTS_H
#define TANDEM_DAEMON_WORKER_REQUESTS_H

#include "engine_plugin/daemon/state.h"

uint32_t td_number_take(td_broker *b); /* 0: none left */
td_worker_request *td_worker_request_add(td_broker *b, td_worker_message_kind kind, uint32_t number, bool first);
void td_worker_request_remove(td_broker *b, td_worker_request *request);
/* Tells the worker what it needs to know of a shared object. */
void td_worker_request_describe(td_worker_request *request, td_shared *s);
void td_worker_requests_send(td_broker *b);
td_ids *td_shared_ids(td_client *c, td_wire_kind kind);
td_shared *td_shared_add(td_client *c, td_wire_kind kind);
/* So many bytes of its client's memory it is now, which is not in an allocation. */
void td_shared_count(td_broker *b, td_shared *shared, uint64_t bytes);
/* Ends a shared object that nothing uses any more. */
void td_shared_end(td_broker *b, td_shared *shared);
/* By how much more a client has with a mem of so many bytes in the allocation that a descriptor is of. */
uint64_t td_mem_adds(const td_client *c, int fd, uint64_t bytes, uint64_t allocation_bytes);
/* Counts a new mem and tells the worker of it. False: there is no host memory for that; it is to be ended. */
bool td_mem_bring(td_broker *b, td_shared *mem);
/* Asks the worker for a client's temporary output, for which there may be no room: false. */
bool td_temp_output_make(td_broker *b, td_client *c, uint64_t bytes);
void td_temp_output_end(td_broker *b, td_client *c);
/* Ends those that no job has used for so long. False: there is none. */
bool td_temp_outputs_end(td_broker *b, uint64_t idle_ns);
/* A session of the worker's for a client, if there are any left and it shares anything. */
void td_worker_session_open(td_broker *b, td_client *c);
void td_worker_session_tell(td_broker *b, td_client *c, td_worker_message_kind kind);
/* Asks the worker to free the scratch of a client none of whose jobs it has. False: there is none. */
bool td_worker_scratch_forget(td_broker *b, const td_client *c);
void td_cached_model_drop(td_broker *b, td_cached_model *cached);
/* Has the worker load it. False: there is no host memory for that. */
bool td_cached_model_send(td_broker *b, td_cached_model *cached);
/* Makes room for a model: takes what no job reads from the worker, what was not read for longest first. False: there is
 * not so much. */
bool td_model_cache_make_room(td_broker *b, uint64_t bytes, const td_cached_model *but);
/* Takes all that no job reads: nobody knows how much the worker's memory lacks. False: there is none. */
bool td_model_cache_evict_idle(td_broker *b, const td_cached_model *but);
/* What its users are said to have. */
void td_cached_model_count(td_broker *b, const td_cached_model *cached, bool loaded);
/* Nobody has the model any more: requests that wait for it are over. */
void td_cached_model_fail_readers(td_broker *b, const td_cached_model *cached, tandem_status status, const char *why);
/* Has the worker load it again, for a client. NOMEM: no room. */
tandem_status td_cached_model_load(td_broker *b, td_cached_model *cached, const td_client *asks);
/* Why a client's object, of which nothing may be known (NULL), cannot be named: "was destroyed", ...; NULL: it can be. */
const char *td_shared_is_missing(const td_shared *shared);
/* Whether a job of the client's can read, or write, a mem, which the worker has or is to have again; else `why` says of it
 * what td_shared_is_missing() does, or the like. */
tandem_status td_mem_is_usable(td_broker *b, const td_client *c, const td_shared *mem, bool written, char *why,
                               size_t why_bytes);
/* The first request that a worker does not answer in time, or NULL. */
const td_worker_request *td_worker_request_hangs(const td_broker *b, uint64_t now);

#endif
