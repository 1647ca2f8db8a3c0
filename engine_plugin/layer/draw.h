/* What the layer makes and records with Vulkan, below itself in the chain: images, buffers,
 * dispatches, and its HUD.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_LAYER_DRAW_H
#define TANDEM_LAYER_DRAW_H

#include "engine_plugin/layer/layer.h"
#include "shaders/layer_shared.h"

extern const uint8_t layer_font[TD_LAYER_GLYPHS][TD_LAYER_GLYPH_ROWS];

enum { LAYER_BINDINGS = 4 };

typedef struct layer_image {
    VkImage image;
    VkDeviceMemory memory;
    VkImageView view, seen; /* as it is stored; as it is sampled */
} layer_image;

/* Of the host's memory, mapped. */
typedef struct layer_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *host;
} layer_buffer;

typedef struct layer_compute {
    VkDescriptorSetLayout set;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorType types[LAYER_BINDINGS];
    uint32_t binding_count, push_bytes;
} layer_compute;

/* What is bound: a view of an image in GENERAL, or a part of a buffer. */
typedef struct layer_binding {
    VkImageView view;
    VkBuffer buffer;
    VkDeviceSize offset, bytes;
} layer_binding;

/* Each of these makes one thing, or nothing: false then. Zeroed things are destroyed, too. */
/* exchanged: what is sampled has red and blue in each other's place. */
bool layer_image_make(layer_device *d, VkFormat format, bool exchanged, VkExtent2D extent,
                      layer_image *out);
void layer_image_destroy(layer_device *d, layer_image *it);
bool layer_buffer_make(layer_device *d, VkDeviceSize bytes, layer_buffer *out);
void layer_buffer_destroy(layer_device *d, layer_buffer *it);
bool layer_compute_make(layer_device *d, const uint32_t *words, size_t bytes,
                        const VkDescriptorType *types, uint32_t binding_count, uint32_t push_bytes,
                        layer_compute *out);
void layer_compute_destroy(layer_device *d, layer_compute *it);

void layer_compute_record(layer_device *d, VkCommandBuffer commands, const layer_compute *it,
                          const layer_binding *bindings, const void *push, uint32_t width,
                          uint32_t height);
/* All that shaders have written, for what shaders do next. */
void layer_record_shader_barrier(layer_device *d, VkCommandBuffer commands);

/* What an image was used for, or will be. */
typedef struct layer_use {
    VkImageLayout layout;
    VkPipelineStageFlags stages;
    VkAccessFlags access;
} layer_use;
extern const layer_use layer_use_presented, layer_use_nothing, layer_use_source, layer_use_target,
    layer_use_shader;
void layer_record_use(layer_device *d, VkCommandBuffer commands, VkImage image, layer_use before,
                      layer_use after);
void layer_record_copy(layer_device *d, VkCommandBuffer commands, VkImage from, VkImage to,
                       VkExtent2D extent);

/* The HUD of a swapchain: a text for each of its frames under way. */
typedef struct layer_hud {
    layer_buffer *texts;
    uint32_t count;
    uint32_t columns, lines; /* of what was written last */
} layer_hud;
bool layer_hud_make(layer_device *d, uint32_t frames, layer_hud *out);
void layer_hud_destroy(layer_device *d, layer_hud *it);
/* The device's shader for it, which the first one makes. */
void layer_hud_end(layer_device *d);
/* How much of an image it covers. */
VkExtent2D layer_hud_extent(const layer_hud *it, VkExtent2D image);
void layer_hud_write(layer_hud *it, uint32_t frame,
                     char lines[TD_LAYER_LINES][TD_LAYER_COLUMNS + 1]);
void layer_hud_record(layer_device *d, VkCommandBuffer commands, const layer_hud *it,
                      uint32_t frame, VkImageView to, VkExtent2D image, float white);

#endif
