/* What clients have of networks: instances, what is prepared for them, runs. With the lock held.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The graph of a model's file the worker has read and checked. The broker knows of it only how many bytes of state an
 * instance has: whether a run fits the graph is the worker's to say, which knows its mems' bytes as well.
 */
#ifndef TANDEM_DAEMON_NETWORKS_H
#define TANDEM_DAEMON_NETWORKS_H

#include "engine_plugin/daemon/state.h"

/* Requests. */
void td_networks_on_graph(td_broker *b, td_client *c, const td_wire_object *m);
void td_networks_on_instance(td_broker *b, td_client *c, const td_wire_model_instance *m);
void td_networks_on_instance_create(td_broker *b, td_client *c, const td_wire_instance_create *m);
void td_networks_on_layer(td_broker *b, td_client *c, const td_wire_instance_layer *m);
void td_networks_on_state(td_broker *b, td_client *c, const td_wire_instance_state *m);
void td_networks_on_prepare(td_broker *b, td_client *c, const td_wire_model_prepare *m);
/* The worker's answers; *t may be anything but its number. fd: what came with it, or -1. */
void td_networks_send_graph(td_broker *b, const td_worker_request *was, const td_worker_message *t, int fd);
void td_networks_send_prepared(td_broker *b, const td_worker_request *was, const td_worker_message *t);
void td_networks_send_layer(td_broker *b, const td_worker_request *was, const td_worker_message *t);
void td_networks_send_state(td_broker *b, const td_worker_request *was, const td_worker_message *t);

/* Slots of a client's ring. uniforms: of the run to come; false: there is no host memory for them. bind: a run whose ticket and
 * points `work` has: what it names is there. */
bool td_networks_take_uniforms(td_client *c, const td_wire_uniforms *m);
tandem_status td_networks_bind(td_broker *b, td_client *c, td_work *work, const td_wire_run *m, char *why, size_t why_bytes);
/* A run as the worker gets it. */
void td_networks_fill(const td_work *work, td_run *to);

/* The worker is gone, and with it all state. */
void td_networks_lose(td_broker *b);

#endif
