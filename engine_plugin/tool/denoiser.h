/* A denoiser's network on a session, or gi's, and frames for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_DENOISER_H
#define TD_TOOL_DENOISER_H

#include "engine_plugin/npc/host_mem.h"
#include "engine_plugin/tool/picture.h"
#include "engine_plugin/tool/session.h"
#include "kernels/model/safetensors.h"
#include "tandem/tandem.h"

enum {
    TOOL_COLOR,
    TOOL_ALBEDO,
    TOOL_NORMAL,
    TOOL_DEPTH,
    TOOL_MOTION,
    TOOL_VALID,
    TOOL_READ, /* those are a frame's; what the one before left: */
    TOOL_NORMAL_BEFORE = TOOL_READ,
    TOOL_DEPTH_BEFORE,
    TOOL_HISTORY,
    TOOL_RAY, /* gi's, as is `direct`, which is TOOL_COLOR, and `indirect`, which is TOOL_OUT */
    TOOL_INPUTS
};
enum { TOOL_OUT, TOOL_HISTORY_OUT, TOOL_OUTPUTS };
enum { TOOL_HEIGHT, TOOL_WIDTH, TOOL_EDGES, TOOL_NUMBERS };

typedef struct tool_denoiser_input {
    const char *name, *option;
    uint32_t channels;
    float absent; /* what every element of one that is left out is */
} tool_denoiser_input;
extern const tool_denoiser_input tool_denoiser_inputs[TOOL_INPUTS];

typedef enum tool_edges { TOOL_EDGES_FOUND /* by the first frame of several */, TOOL_EDGES_SMOOTH, TOOL_EDGES_HARD } tool_edges;
/* Reads --edges; NULL is auto. False after a line that says what is wrong. */
bool tool_edges_of(const char *command, const char *value, tool_edges *edges);

/* Zeroed is closed. Functions that return false leave the reason in `why`. */
typedef struct tool_denoiser {
    tandem_session *s;
    tool_engine *engine; /* that it stands on */
    tandem_model model;
    tandem_instance instance;
    tandem_network info;
    uint32_t numbers[TOOL_NUMBERS]; /* as the network has them */
    uint32_t number_at[TOOL_NUMBERS]; /* which of them is height, width and, if it has it, edges */
    tool_edges edges;                 /* the caller's: what they are to be, if the network has the number; */
    bool hard, knows_edges;           /* what they are, once a frame has told */
    uint32_t precision; /* the caller's, before it is opened: tandem_precision; 0: as the model says */
    const char *output; /* likewise: which it must have, "out" of a denoiser, "indirect" of gi; NULL: either */
    td_host_mem mem;
    uint64_t mem_bytes;
    tool_picture frame[TOOL_INPUTS], results[TOOL_OUTPUTS]; /* pixels NULL: not there */
    tool_picture reference; /* the caller's, as is_cut; of gi `indirect` */
    tool_picture rendered;  /* likewise: color as it came, where that was smaller than the output */
    bool is_cut;
    double ms;
    char why[600];
} tool_denoiser;

/* plan: a precision plan's text, or NULL. */
bool tool_denoiser_open(tool_denoiser *d, const char *model, uint32_t rung, const char *socket, const char *plan);
void tool_denoiser_close(tool_denoiser *d);
/* Whether it has an output for the next frame. */
bool tool_denoiser_has_history(const tool_denoiser *d);

/* The tensors of a frame in a file, as `tandem help denoise` has them. */
bool tool_denoiser_frame(tool_denoiser *d, const char *path);
/* Those of gi's, as `tandem help gi` has them; with `indirect` as d->reference, where it is there. */
bool tool_denoiser_gi_frame(tool_denoiser *d, const char *path);
/* One of a file, F16 or F32. */
bool tool_denoiser_tensor(tool_denoiser *d, const char *path, td_safetensors *file, const td_safetensor *tensor, uint32_t channels,
                          tool_picture *out);

/* Prepares it for frames of that size. */
bool tool_denoiser_prepare(tool_denoiser *d, uint32_t height, uint32_t width);
/* From d->frame to d->results. */
bool tool_denoiser_run(tool_denoiser *d);

/* Whether less than a quarter of the frame shows what the one before did, which is there and of its size. */
bool tool_denoiser_finds_cut(const tool_denoiser *d);
/* Makes the frame, and what came out of it, what the next one finds; or drops that. */
void tool_denoiser_remember(tool_denoiser *d);
void tool_denoiser_forget(tool_denoiser *d);

#endif
