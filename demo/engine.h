/* The engine that Tandem is plugged into: instance, device, images, buffers, pipelines. Nothing here knows Tandem but
 * the list of what to enable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_ENGINE_H
#define TANDEM_DEMO_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <vulkan/vulkan.h>

#include "demo/integrate.h"
#include "interop/os/clock.h"
#include "tandem/vulkan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEMO_MAX_BINDINGS = 10, DEMO_MAX_CONSTANTS = 5 };

typedef struct demo_engine {
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    pthread_mutex_t queue_lock; /* around each use of it: a session may submit to it, too */
    uint32_t skip; /* so many GPUs before the one that it takes: before the instance is made */
    uint32_t family;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    integration_enabled enabled; /* with the device */
    bool calibrated, lost;
    PFN_vkGetCalibratedTimestampsEXT get_calibrated;
    PFN_vkCmdPushDescriptorSetKHR push_descriptors;
    PFN_vkCmdBeginDebugUtilsLabelEXT label_begin;
    PFN_vkCmdEndDebugUtilsLabelEXT label_end;
    PFN_vkSetDebugUtilsObjectNameEXT set_name;
    VkCommandPool once_pool;
    VkCommandBuffer once;
    VkFence once_fence;
    VkSampler nearest, linear;
    uint32_t validation_messages; /* errors and warnings of the validation layers so far */
} demo_engine;

typedef struct demo_image {
    VkImage image;
    VkDeviceMemory memory;
    VkImageView view;
    VkFormat format;
    uint32_t width, height;
} demo_image;

typedef struct demo_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *host; /* mapped, coherent */
    uint64_t bytes;
} demo_buffer;

typedef struct demo_compute {
    VkDescriptorSetLayout set;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorType types[DEMO_MAX_BINDINGS];
    uint32_t bindings, push_bytes;
} demo_compute;

/* One binding's contents: an image or a buffer, whichever the pipeline's binding is. */
typedef struct demo_binding {
    const demo_image *image;
    const demo_buffer *buffer;
    VkSampler sampler;
    uint64_t offset, bytes; /* of the buffer's part that is bound; 0 bytes: to its end */
} demo_binding;

/* Makes the instance (with what a window needs, if any), and later the device; false after one line on stderr. */
bool demo_engine_instance(demo_engine *e, const char *const *window_extensions, uint32_t count, bool validate);
bool demo_engine_device(demo_engine *e, VkSurfaceKHR surface);
/* How many complaints the validation layer had, from first to last. */
uint32_t demo_engine_destroy(demo_engine *e);

/* One line on stderr, prefixed with the program's name; returns false. */
bool demo_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a VkResult, if it is an error; true if it is none. Remembers VK_ERROR_DEVICE_LOST. */
bool demo_vk(demo_engine *e, VkResult result, const char *what);

bool demo_engine_on_cpu(const demo_engine *e); /* a processor draws, not a GPU */

/* How long to wait for what a GPU does: a minute, in which a driver may compile shaders. For what a processor does: as long as this
 * process has some of its time (`used`: clock()), however little that is, and a minute without any. Asked after each step of a
 * second that was waited in vain; false: no longer. */
typedef struct demo_patience {
    bool on_cpu;
    uint32_t steps;
    clock_t used;
} demo_patience;
#define DEMO_PATIENCE_STEP_NS 1000000000u
demo_patience demo_patience_begin(bool on_cpu);
bool demo_patience_lasts(demo_patience *patience, clock_t used);
/* For a fence, so long; false as demo_vk(). */
bool demo_wait(demo_engine *e, VkFence fence, const char *what);

bool demo_image_create(demo_engine *e, VkFormat format, uint32_t width, uint32_t height, VkImageUsageFlags usage,
                       const char *name, demo_image *out);
void demo_image_destroy(demo_engine *e, demo_image *image);
/* `readback`: cached memory where there is any; else for writing by the host. */
bool demo_buffer_create(demo_engine *e, uint64_t bytes, VkBufferUsageFlags usage, bool readback, const char *name,
                        demo_buffer *out);
/* In the device's own memory, which the host has no pointer to. */
bool demo_buffer_create_near(demo_engine *e, uint64_t bytes, VkBufferUsageFlags usage, const char *name, demo_buffer *out);
void demo_buffer_destroy(demo_engine *e, demo_buffer *buffer);

bool demo_shader_create(demo_engine *e, const uint32_t *words, size_t bytes, VkShaderModule *out);
/* `constants`: specialisation constants 0, 1, ...; at most DEMO_MAX_CONSTANTS. */
bool demo_compute_create(demo_engine *e, const uint32_t *words, size_t bytes, const VkDescriptorType *types,
                         uint32_t count,
                         uint32_t push_bytes, const uint32_t *constants, uint32_t constant_count, const char *name,
                         demo_compute *out);
void demo_compute_destroy(demo_engine *e, demo_compute *compute);
void demo_compute_record(demo_engine *e, VkCommandBuffer commands, const demo_compute *compute,
                         const demo_binding *bindings,
                         const void *push, uint32_t width, uint32_t height);

/* A command buffer that runs at once and is waited for. */
void demo_queue_lock(demo_engine *e);
void demo_queue_unlock(demo_engine *e);
bool demo_once_begin(demo_engine *e);
bool demo_once_end(demo_engine *e);

/* The image in layout GENERAL, read back as floats, four a pixel (R16G16B16A16 and R32G32B32A32 floats) or as bytes. */
bool demo_image_read(demo_engine *e, const demo_image *image, float *rgba);
/* And written, four floats a pixel: an R32G32B32A32 image that nothing uses. */
bool demo_image_write(demo_engine *e, const demo_image *image, const float *rgba);
bool demo_image_read_bytes(demo_engine *e, const demo_image *image, uint8_t *rgba);
bool demo_image_to_general(demo_engine *e, const demo_image *const *images, uint32_t count);

void demo_memory_barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags wrote,
                         VkPipelineStageFlags to,
                         VkAccessFlags use);
void demo_label(demo_engine *e, VkCommandBuffer commands, const char *name); /* NULL ends the last */
void demo_name(demo_engine *e, VkObjectType type, uint64_t handle, const char *name);

/* The device's clock and CLOCK_MONOTONIC at one moment, in ticks and ns. */
bool demo_clock_pair(demo_engine *e, uint64_t *ticks, uint64_t *monotonic_ns);

float demo_half_to_float(uint16_t half);

#ifdef __cplusplus
}
#endif
#endif
