/* Swapchains, and what is done with an image between the program's present and the driver's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_LAYER_PRESENT_H
#define TANDEM_LAYER_PRESENT_H

#include "engine_plugin/layer/layer.h"

/* In place of Vulkan's: what they return is what is returned below. */
VkResult layer_swapchain_create(layer_device *d, const VkSwapchainCreateInfoKHR *info,
                                const VkAllocationCallbacks *allocator, VkSwapchainKHR *swapchain);
void layer_swapchain_destroy(layer_device *d, VkSwapchainKHR swapchain,
                             const VkAllocationCallbacks *allocator);
VkResult layer_present(layer_device *d, VkQueue queue, const VkPresentInfoKHR *info);

/* The device is about to be destroyed: all that was made on it goes, also for swapchains that the
 * program forgot. */
void layer_present_end(layer_device *d);

#endif
