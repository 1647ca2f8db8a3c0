/* A Vulkan instance and a device for what is no engine: the tool, the demo and the tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     setup_loader()      libvulkan, at run time
 *     setup_instance()    with what Tandem can use of it, and with the validation layer where somebody listens
 *     setup_pick()        the best device and a family of its queues; setup_family(): that of a given device
 *     integrate_enable()  what Tandem can use of the device; to it come the caller's own extensions and features
 *     setup_device()      and its queue
 *
 * An engine has its own, and asks Tandem as demo/integrate.h does, on which this stands. It is in no library of ours.
 */
#ifndef TD_SETUP_H
#define TD_SETUP_H

#include "demo/integrate.h"
#include "interop/os/library.h"

/* Opens the loader of Vulkan: `library` is the caller's until td_library_close(). False, and the reason, where there is none. */
bool setup_loader(td_library **library, PFN_vkGetInstanceProcAddr *get, char *why, size_t why_bytes);

typedef struct setup_instance_desc {
    PFN_vkGetInstanceProcAddr get;
    const char *application;
    uint32_t api_version;
    const char *const *extensions; /* the caller's own, beside those that Tandem can use */
    uint32_t extension_count;
    /* Gets what the validation layer, which also looks at synchronisation, warns of and calls an error; NULL: without it. */
    PFN_vkDebugUtilsMessengerCallbackEXT on_message;
    void *user;
} setup_instance_desc;

/* The reason with any other result than VK_SUCCESS; then there is nothing to destroy. */
VkResult setup_instance(const setup_instance_desc *desc, VkInstance *instance, VkDebugUtilsMessengerEXT *messenger,
                        char *why, size_t why_bytes);
void setup_instance_destroy(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkDebugUtilsMessengerEXT messenger);

/* What a device has to offer. */
typedef struct setup_need {
    uint32_t api_version; /* at least */
    bool draws, stamps;   /* its queue, which computes in any case, draws; tells the time */
    VkSurfaceKHR surface; /* and presents to it; or VK_NULL_HANDLE */
    uint32_t skip;        /* so many of the best before the one that is taken */
} setup_need;

bool setup_family(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkPhysicalDevice physical, const setup_need *need,
                  uint32_t *family);
/* A GPU before what imitates one. False, and the reason, if no device will do. */
bool setup_pick(PFN_vkGetInstanceProcAddr get, VkInstance instance, const setup_need *need, VkPhysicalDevice *physical,
                uint32_t *family, char *why, size_t why_bytes);

VkResult setup_device(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkPhysicalDevice physical, uint32_t family,
                      const integration_enabled *enabled, VkDevice *device, VkQueue *queue);

#endif
