/* What changes a picture: a session on the program's device, and for each swapchain memory, views
 * and a job.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A frame: layer_work_before() behind what puts the picture into an image; layer_work_job(), within
 * the same commands where layer_station_records(), else behind their submit; layer_work_after(),
 * and the image is what is to be shown. All with the device's lock, by the thread that presents: so
 * nobody else uses the queue meanwhile.
 */
#ifndef TANDEM_LAYER_EFFECT_H
#define TANDEM_LAYER_EFFECT_H

#include "engine_plugin/layer/draw.h"
#include "engine_plugin/layer/layer.h"
#include "engine_plugin/layer/settings.h"

/* Zeroed is closed. */
struct layer_station {
    integration tandem;
    uint32_t family, asked_rung;
    layer_compute tokens, mix;
    tandem_model model;
    char model_path[LAYER_PATH_BYTES];
};

enum { LAYER_MODEL_BINDINGS = 5 };

/* Where a tensor begins in its mem, and how many bytes it has. */
typedef struct layer_part {
    uint64_t offset, bytes;
} layer_part;

typedef struct layer_work {
    layer_effect effect;
    VkExtent2D extent;
    VkFormat format;   /* of the image */
    bool exchanged;    /* it is stored with red and blue in each other's place */
    bool linear;       /* its numbers are light */
    uint32_t transfer; /* tandem_image_transfer of a model's color */
    float amount, sigma;
    integration_slot slot;
    VkBuffer input, output;
    uint64_t input_bytes, output_bytes;
    layer_part color, q, k, v, result;
    layer_part constants[LAYER_MODEL_BINDINGS]; /* inputs that a picture has not */
    float constant[LAYER_MODEL_BINDINGS];
    uint32_t constant_count;
    tandem_instance instance;
    tandem_view bindings[LAYER_MODEL_BINDINGS];
    uint32_t binding_count, numbers[3], number_count;
    tandem_ticket ticket;
} layer_work;

/* Makes the device's session for queues of a family, on a rung or (0) the best. False, and why.
 * Blocks: with CUDA for some 0.3 s. */
bool layer_station_open(layer_device *d, VkQueue queue, uint32_t family, uint32_t rung, char *why,
                        size_t why_bytes);
void layer_station_close(layer_device *d);
const char *layer_station_rung(const layer_station *st);
bool layer_station_records(const layer_station *st);
/* Whether the GPU waits for a job by itself; else layer_work_wait(), and then submit what uses its
 * result. */
bool layer_station_meets(const layer_station *st);

bool layer_work_open(layer_device *d, const layer_settings *settings, VkExtent2D extent,
                     VkFormat format, bool exchanged, VkColorSpaceKHR space, layer_work *out,
                     char *why, size_t why_bytes);
/* No commands that use it are under way. */
void layer_work_close(layer_device *d, layer_work *it);

tandem_status layer_work_before(layer_device *d, layer_work *it, VkCommandBuffer commands,
                                const layer_image *picture);
tandem_status layer_work_job(layer_device *d, layer_work *it, VkCommandBuffer commands);
tandem_status layer_work_wait(layer_device *d, layer_work *it);
tandem_status layer_work_after(layer_device *d, layer_work *it, VkCommandBuffer commands,
                               const layer_image *picture);
/* Of the last job that has ended, as far as that is known: OK, or why there is nothing to show. */
tandem_status layer_work_outcome(layer_device *d, layer_work *it);

#endif
