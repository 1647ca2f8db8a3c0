/* Vulkan's loader, as far as an implicit layer sees of it: Wine has none of its own, and loads no layers of Windows.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Below is Wine's vulkan-1.dll. As the true one does, it goes by the layer's manifest, negotiates, hands chains of links down, and
 * puts into each handle what all handles of an instance, or of a device, have in common. One instance at a time, with one device.
 */
#ifndef TD_TESTS_WINDOWS_LAYER_LOADER_H
#define TD_TESTS_WINDOWS_LAYER_LOADER_H

#include <stdbool.h>

#define VK_USE_PLATFORM_WIN32_KHR
#include <vulkan/vulkan.h>

#include <vulkan/vk_layer.h>

#define LOADER_DLL "VkLayer_tandem_effect.dll"

/* Reads the manifest beside this program, and opens the layer if the environment says so. False: it does not, and functions are
 * Vulkan's own. */
bool loader_begin(void);
/* Gives the layer back, as the loader does with the last instance. */
void loader_end(void);

/* As the program's calls of these go from the top of the chain down. */
VkResult loader_create_instance(const VkInstanceCreateInfo *info, VkInstance *instance);
VkResult loader_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, VkDevice *device);
VkResult loader_physical_device(VkPhysicalDevice *physical);
void loader_queue(VkDevice device, uint32_t family, VkQueue *queue);
VkResult loader_commands(VkDevice device, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *commands);
void loader_destroy_device(VkDevice device);
void loader_destroy_instance(void);

/* What the program gets for a name: from the top. And what is below all layers. */
PFN_vkVoidFunction loader_instance_function(const char *name);
PFN_vkVoidFunction loader_device_function(VkDevice device, const char *name);
PFN_vkVoidFunction loader_below(VkDevice device, const char *name);

/* Whether the layer took itself out of each chain that it handed on; and how many objects of a device that was destroyed were
 * there then, whoever made them. */
bool loader_links_were_taken(void);
int loader_left(void);

#endif
