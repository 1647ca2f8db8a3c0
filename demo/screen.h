/* Where a frame is shown: a window's swapchain, or an image that looks the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_SCREEN_H
#define TANDEM_DEMO_SCREEN_H

#include "demo/overlay.h"

enum { DEMO_SCREEN_IMAGES = 8 };

typedef struct demo_screen {
    demo_engine *engine;
    VkFormat format;
    VkRenderPass pass;
    VkDescriptorSetLayout set;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkSurfaceKHR surface; /* null: offscreen */
    VkSwapchainKHR swapchain;
    demo_image offscreen;
    VkImage images[DEMO_SCREEN_IMAGES];
    VkImageView views[DEMO_SCREEN_IMAGES];
    VkFramebuffer framebuffers[DEMO_SCREEN_IMAGES];
    VkSemaphore acquired[DEMO_SLOTS], finished[DEMO_SCREEN_IMAGES];
    uint32_t image_count, width, height, current;
    bool stale; /* the swapchain no longer fits the window */
    /* What is drawn. */
    const demo_view *view;
    const demo_overlay_data *data;
    const demo_image *reference; /* for its wipe; NULL: there is none */
    const demo_image *other;     /* what somebody else made of the frame, for the wipes of a box and of Open Image Denoise */
    double delta_seconds;
    demo_rect picture, error_map;
} demo_screen;

/* `surface` null: offscreen, of this size and format (0: any that fits). False after one line on stderr. */
bool demo_screen_create(demo_screen *s, demo_engine *e, VkSurfaceKHR surface, VkFormat format, uint32_t width,
                        uint32_t height);
void demo_screen_destroy(demo_screen *s);

/* Fits the swapchain to the window; true with image_count 0 if there is nothing to draw on now. */
bool demo_screen_resize(demo_screen *s, uint32_t width, uint32_t height);
/* Takes the next image; false with `stale` set if the swapchain has to be fitted first. */
bool demo_screen_acquire(demo_screen *s, uint32_t slot);
bool demo_screen_present(demo_screen *s);

/* demo_present.record: draws picture, error map and overlay into the current image. */
void demo_screen_record(void *screen, VkCommandBuffer commands, demo_slot *slot);

/* Writes the image of an offscreen screen, which must not be in use, as a PNG file. */
bool demo_screen_save(demo_screen *s, const char *path);

#endif
