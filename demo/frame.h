/* A frame: render, pack, job, unpack, composite, with up to two frames in flight.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     demo_frame_begin()     render -> features -> pack, submitted; the job, submitted
 *     demo_frame_consume()   unpack -> composite -> present, submitted; late where the host has to see the job end
 *     demo_frame_complete()  waits for that, reads the clocks, recomputes sampled rows
 *
 * On the inline rung the job is recorded between pack and unpack, and all of it is one submit, that of consume: there
 * consume follows begin at once.
 */
#ifndef TANDEM_DEMO_FRAME_H
#define TANDEM_DEMO_FRAME_H

#include "demo/denoise.h"
#include "demo/engine.h"
#include "demo/integrate.h"
#include "demo/probe.h"
#include "demo/scene.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum demo_stage {
    DEMO_RENDER,
    DEMO_PACK,
    DEMO_TO,
    DEMO_ATTENTION,
    DEMO_BACK,
    DEMO_UNPACK,
    DEMO_PRESENT,
    DEMO_STAGES
} demo_stage;

enum { DEMO_SLOTS = INTEGRATION_SLOTS, DEMO_COMMANDS = 8, DEMO_TIMESTAMPS = 6, DEMO_PROBE_TILES = 2,
       DEMO_PROBE_ROWS = 16, DEMO_REFERENCE_STREAM = 0x40000000 };

/* As in the report, and as it is asked for on the command line. */
extern const char *const demo_stage_names[DEMO_STAGES];
/* What becomes of the noisy picture: attention over what pixels are like, which nobody trained; or the trained network. */
typedef enum demo_effect { DEMO_EFFECT_FILTER, DEMO_EFFECT_DENOISE, DEMO_EFFECTS } demo_effect;
extern const char *const demo_effects[DEMO_EFFECTS];

/* The words for tandem_rung, tandem_precision and tandem_backend. */
extern const char *const demo_rungs[], *const demo_precisions[], *const demo_backends[];

typedef struct demo_frame_options {
    int scene;
    uint32_t width, height, seed, threads;
    uint32_t backend;           /* tandem_backend */
    uint32_t rung;              /* tandem_rung; 0: the best */
    uint32_t in_flight;         /* frames under way at once; 0: by the rung */
    double inject_ms[DEMO_STAGES];
    double inject_error;
    const char *models[DEMO_PRESETS]; /* the denoiser's files; NULL: there is none, and no frame may ask for it */
    uint32_t preset;            /* to begin with: without that file no frame may ask for the others, either */
    bool model_asked;           /* it is a file of somebody's own, in place of all presets: without it there is no pipeline */
    void (*log)(void *user, int level, const char *text);
    void *log_user;
} demo_frame_options;

/* What is asked of one frame. */
typedef struct demo_frame_request {
    uint64_t index;
    double seconds;     /* on the camera's path */
    demo_cast cast;     /* of a scene that has one */
    uint32_t effect;    /* demo_effect */
    uint32_t preset;    /* DENOISE: demo_preset, one that there is */
    bool cut;           /* DENOISE: without the frames before */
    bool jitter;        /* rays anywhere in their pixel, so that many samples smooth edges: as the network was trained on.
                           The filter takes a pixel for one surface: it does better with rays through the middle */
    uint32_t precision; /* tandem_precision */
    uint32_t smooth;    /* tandem_smooth */
    bool exact;         /* FILTER, as all below: also an F16 job on the same tokens, to compare with */
    bool probe;         /* sampled rows are to be recomputed */
    bool trial;         /* with probe, without exact: also an 8b job on the same tokens, whose rows are sampled too */
} demo_frame_request;

typedef struct demo_frame_result {
    uint64_t index;
    uint64_t at_ns[DEMO_STAGES + 1]; /* CLOCK_MONOTONIC, where each stage begins, and the end of the last */
    double stage_ms[DEMO_STAGES];
    double frame_ms;                 /* by the GPU's clock alone */
    uint64_t submit_ns;              /* of the job */
    uint32_t effect, preset;         /* demo_effect, demo_preset */
    uint32_t precision;              /* that was used */
    uint32_t rung;                   /* tandem_rung */
    bool cut;                        /* DENOISE: the frames before did not count */
    bool denoised;                   /* else the picture is the noisy one */
    bool exact;                      /* there is an exact result to compare with */
    uint32_t shift_x, shift_y;       /* of the tiles */
    bool probed;
    demo_accuracy accuracy;          /* of the sampled rows */
    bool tried;                      /* there was a trial, and this is its accuracy on those rows */
    demo_accuracy trial;
} demo_frame_result;

/* A session, and what frames need of it. */
typedef struct demo_station {
    integration tandem;
    demo_denoiser denoiser;
    bool lost; /* of no more use: its frames stay noisy */
    uint32_t frames; /* under way on it */
} demo_station;

typedef struct demo_slot {
    demo_image radiance, albedo, normal, position;
    demo_image features[3], feature_k, feature_q, value;
    demo_image filtered, filtered_exact, result, result_exact;
    uint32_t index;
    demo_station *station; /* of its frame */
    integration_slot *job; /* input: Q, K, V; output: O, the second job's O */
    VkCommandPool pool;
    VkCommandBuffer commands[DEMO_COMMANDS];
    uint32_t command;          /* the one that is being recorded */
    VkQueryPool queries;
    VkFence fence;
    demo_buffer probe, scene_block;
    bool begun, consumed;
    bool recording; /* the commands of begin go on in consume */
    demo_frame_request request;
    demo_frame_result outcome;
    tandem_ticket ticket, second_ticket; /* second: exact, or the trial */
    uint32_t tiles_x, tiles_y;
    double slept_ms;           /* injected into the attention */
} demo_slot;

typedef struct demo_pipeline {
    demo_engine *engine;
    demo_frame_options options;
    demo_station stations[2];
    demo_station *station; /* of the frames that begin now; the other one is empty, or ending its frames */
    bool trying;          /* rungs that may not be there: what their sessions log is no news */
    tandem_info info;     /* of the station */
    char trouble[256];    /* why the last frame was not filtered; empty if it was */
    uint32_t in_flight;   /* 1 or 2 */
    uint32_t max_tiles;
    uint64_t q_bytes, k_bytes, v_bytes, o_bytes;
    bool has_denoiser;     /* the preset to begin with, at least */
    char no_denoiser[400]; /* why not, where there was a model */
    demo_compute scene, features, composite, guides;
    struct td_scene_block first_block; /* of the scene to begin with, which says how many of everything there are */
    struct td_scene_block last_block;  /* of the frame before */
    demo_image reference; /* rgb: mean of reference_samples */
    uint32_t reference_samples;
    demo_slot slots[DEMO_SLOTS];
} demo_pipeline;

/* Draws into the consumer's command buffer after the composite; `wait` and `signal` are binary semaphores or null. */
typedef struct demo_present {
    void (*record)(void *user, VkCommandBuffer commands, demo_slot *slot);
    void *user;
    VkSemaphore wait, signal;
} demo_present;

/* False after one line on stderr. `pipeline` is zeroed by the caller. */
bool demo_pipeline_create(demo_pipeline *p, demo_engine *e, const demo_frame_options *options);
void demo_pipeline_destroy(demo_pipeline *p);

/* Goes to another scene, without anything of the frames before: of those none is under way. */
bool demo_pipeline_scene(demo_pipeline *p, int scene);

/* Makes a session on the next rung down that this machine has, behind the lowest on the best one, for the frames that
 * begin from now on; those under way end on their own session. `text`: what it came to, in a few words. LATER: frames
 * of the session before are still under way. With `skip_same` a rung on which the same happens as on another is left out. */
typedef enum demo_switch { DEMO_SWITCHED, DEMO_SWITCH_LATER, DEMO_SWITCH_FAILED } demo_switch;
demo_switch demo_pipeline_step_down(demo_pipeline *p, bool skip_same, char *text, size_t bytes);

/* Whether consume has to follow begin at once, since the frame is one submit. */
bool demo_frame_at_once(const demo_slot *slot);

bool demo_frame_begin(demo_pipeline *p, demo_slot *slot, const demo_frame_request *request);
bool demo_frame_consume(demo_pipeline *p, demo_slot *slot, const demo_present *present);
bool demo_frame_complete(demo_pipeline *p, demo_slot *slot, demo_frame_result *out);

/* Presents a finished frame again (pause, another view); the fence is waited for. */
bool demo_frame_redraw(demo_pipeline *p, demo_slot *slot, const demo_present *present);

/* The camera's picture at a request's moment with many samples, rendered in a slot that is not under way; rgba is width *
 * height * 4 floats. */
bool demo_render_reference(demo_pipeline *p, demo_slot *slot, const demo_frame_request *at, uint32_t samples, uint32_t stream,
                           float *rgba);

/* `samples` more of the finished frame's own view, to p->reference. They begin anew where `first`. */
bool demo_reference_add(demo_pipeline *p, demo_slot *slot, uint32_t samples, bool first);

/* What is in one of its mems, once it is finished. */
bool demo_slot_read(demo_pipeline *p, const demo_slot *slot, tandem_mem mem, uint64_t offset, uint64_t bytes, void *out);

/* What the network reads of a finished frame's surfaces, from the renderer's images: 3, 3 and 1 floats a pixel. `albedo` may be
 * NULL. */
bool demo_surfaces_read(demo_pipeline *p, const demo_slot *slot, float *albedo, float *normal, float *depth);

/* Q, K, V and O of a finished frame as the device has them, fp16; free() each. The error that was asked for is in O. */
typedef struct demo_tokens {
    uint16_t *q, *k, *v, *o;
    uint32_t batch, q_len, kv_len, head_dim;
    float scale;
} demo_tokens;
bool demo_tokens_read(demo_pipeline *p, demo_slot *slot, demo_tokens *out);
void demo_tokens_free(demo_tokens *tokens);

#ifdef __cplusplus
}
#endif
#endif
