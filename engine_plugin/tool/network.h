/* A network on a session, with what it needs from a file: for commands that run one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_NETWORK_H
#define TD_TOOL_NETWORK_H

#include "engine_plugin/npc/host_mem.h"
#include "engine_plugin/tool/session.h"
#include "kernels/model/graph_file.h"
#include "tandem/tandem.h"

/* Zeroed but for the files' descriptors (-1) is closed. Functions that return false leave the reason in `why`. */
typedef struct tool_network {
    const char *command; /* whose messages these are */
    td_safetensors in;
    td_graph *graph;
    uint32_t numbers[TD_GRAPH_NUMBERS]; /* 0: not known yet */
    tandem_session *s;
    tool_engine *engine;
    tandem_model model;
    tandem_instance instance;
    tandem_network info;
    tandem_network_tensor bindings[TD_GRAPH_BINDINGS];
    tandem_view views[TD_GRAPH_BINDINGS];
    td_host_mem mem; /* that all bindings are in */
    unsigned char *uniforms;
    uint64_t uniform_bytes;
    char why[600];
} tool_network;

/* The reason is this; false. */
bool tool_network_fails(tool_network *n, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
/* A call of the session's: what it said. */
bool tool_network_done(tool_network *n, tandem_status status);

/* The graph of --model; a file of --in, in the place of the one before. */
bool tool_network_graph(tool_network *n, const char *model);
bool tool_network_input(tool_network *n, const char *in);
/* --set, before what shapes of the input say. TOOL_OK, or TOOL_USAGE after a line. */
int tool_network_sizes(tool_network *n, const char *set);
/* A session with the model. */
bool tool_network_open(tool_network *n, const char *model, uint32_t rung, const char *socket);
/* An instance, in the place of the one before, prepared for these sizes; memory with what the input has. */
bool tool_network_instance(tool_network *n, const tandem_instance_desc *desc);
bool tool_network_bind(tool_network *n);
bool tool_network_run(tool_network *n, double *ms);
/* Once it has run with samples: until they have been looked at. How many layers are sampled. */
bool tool_network_judged(tool_network *n, uint32_t *layers);
bool tool_network_layer(tool_network *n, uint32_t index, tandem_layer *layer);
void tool_network_close(tool_network *n);

/* Blocks and codes, which safetensors have no name for, are bytes there: NULL. */
const char *tool_network_dtype(uint32_t dtype);

/* A precision plan's text, which the caller frees; NULL and the reason, which names --plan. */
char *tool_plan_text(const char *path, char *why, size_t why_bytes);

#endif
