/* The trained denoiser in an engine's frame: its networks on a session, the tensors that they read and write, and what is
 * kept from frame to frame.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     demo_denoiser_open()    the presets' models on the session, ready for frames of one size
 *     demo_denoiser_write()   recorded: the renderer's images become tensors, which are the session's then
 *     demo_denoiser_job()     the network once, as one job, for integrate_job()
 *     demo_denoiser_go_on()   it is under way
 *
 * A frame has the slot's input (color, albedo, motion, valid) and its output (out) for itself. Normal, depth and history are
 * read by the next frame's job, too, while the frame after that is being written: of these there are three. Any preset goes
 * on from what any other has left, since history is light that was measured: all of them share that memory, and to change
 * `preset` between two frames is all that it takes to go from one to another.
 */
#ifndef TANDEM_DEMO_DENOISE_H
#define TANDEM_DEMO_DENOISE_H

#include "demo/engine.h"
#include "demo/integrate.h"
#include "demo/scene.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEMO_DENOISER_KEPT = 3, DEMO_DENOISER_BINDINGS = 11 };

/* Networks of different width, each a file of its own. */
typedef enum demo_preset { DEMO_PRESET_FAST, DEMO_PRESET_BALANCED, DEMO_PRESET_HIGH, DEMO_PRESETS } demo_preset;
extern const char *const demo_presets[DEMO_PRESETS], *const demo_preset_files[DEMO_PRESETS];

/* Zeroed is none. */
typedef struct demo_network {
    tandem_model model;
    tandem_instance instance;
    uint32_t numbers[3], number_count;
    uint32_t binding_count, binds[DEMO_DENOISER_BINDINGS]; /* which tensor each binding is */
    bool has_history;                                      /* it leaves some */
    uint64_t weight_bytes;                                 /* of the device's memory */
    uint64_t scratch_bytes;                                /* of what all that the session computes shares */
} demo_network;

/* Zeroed is closed. With its session go its models and its memory. */
typedef struct demo_denoiser {
    demo_network networks[DEMO_PRESETS];
    uint32_t preset; /* of the frame that is being written: one that there is */
    uint32_t width, height;
    tandem_mem kept[DEMO_DENOISER_KEPT];
    bool given[DEMO_DENOISER_KEPT]; /* to the session, and not taken back yet */
    tandem_mem nothing;             /* as kept, all zeros: what was before the first frame, or before a cut */
    uint32_t turn;                  /* frames so far */
    bool has_before;                /* the frame before is whole */
    bool cut;                       /* this one goes without it */
    struct td_scene_push camera_before;
} demo_denoiser;

/* The images of a frame that are read. */
typedef struct demo_guides {
    const demo_image *radiance, *albedo, *normal, *position;
} demo_guides;

/* What a slot has to have room for. */
uint64_t demo_denoiser_input_bytes(uint32_t width, uint32_t height);
uint64_t demo_denoiser_output_bytes(uint32_t width, uint32_t height);
/* And each of those that are kept. */
uint64_t demo_denoiser_kept_bytes(uint32_t width, uint32_t height);

bool demo_denoiser_pipeline(demo_engine *e, demo_compute *out);
/* Files by preset, NULL where there is none. False, and the reason, if that of `first` is none of a denoiser's, or cannot be run
 * here; the session stays as it is. Of another file like that the reason is a line on stderr, and `paths` has it no more.
 * On a session without Vulkan: who uses it clears `nothing`. */
bool demo_denoiser_load(demo_denoiser *d, tandem_session *session, const char *paths[DEMO_PRESETS], uint32_t first, uint32_t width,
                        uint32_t height, char *why, size_t why_bytes);
/* On the engine's: the same, and cleared. */
bool demo_denoiser_open(demo_denoiser *d, demo_engine *e, const integration *tandem, const char *paths[DEMO_PRESETS],
                        uint32_t first, uint32_t width, uint32_t height, char *why, size_t why_bytes);
/* The next wider one that there is, behind the widest the narrowest: `preset` itself where it is the only one. */
uint32_t demo_denoiser_preset_after(const demo_denoiser *d, uint32_t preset);
/* `camera`: of this frame. `cut`: it has nothing to do with the one before. */
tandem_status demo_denoiser_write(demo_denoiser *d, demo_engine *e, const demo_compute *pipeline,
                                  const integration *tandem, const integration_slot *slot, VkCommandBuffer commands,
                                  const demo_guides *guides, const struct td_scene_push *camera, bool cut);
/* After that, once a frame. `job` points to `views`. */
void demo_denoiser_job(const demo_denoiser *d, const integration_slot *slot, tandem_view views[DEMO_DENOISER_BINDINGS],
                       tandem_job *job);
/* Behind that: whether it was submitted, or recorded. */
void demo_denoiser_go_on(demo_denoiser *d, bool well);
/* The last job did not end well: what it left is nothing to go on with. */
void demo_denoiser_forget(demo_denoiser *d);
/* What is kept of the frame that was `ago` frames before the last, copied to the host: demo_denoiser_kept_bytes(). No frame is under
 * way. False if it is not there any more. */
bool demo_denoiser_read(demo_denoiser *d, demo_engine *e, const integration *tandem, uint32_t ago, void *out);
/* Where in the slot's output the picture is. */
tandem_view demo_denoiser_out(const demo_denoiser *d, const integration_slot *slot);

/* Of a tensor, in the memory where it is. */
uint64_t demo_denoiser_offset(const demo_denoiser *d, const char *name);

/* A file that comes with the demo: beside the program, or in the tree that it was built from. False: there is none. */
bool demo_asset_find(const char *file, char *path, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
