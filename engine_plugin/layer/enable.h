/* What a device is made with: what the program asks for, and what Tandem can use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_LAYER_ENABLE_H
#define TANDEM_LAYER_ENABLE_H

#include "engine_plugin/layer/layer.h"

enum { LAYER_COPIES = 256, LAYER_COPY_WORDS = 40 };

/* A VkDeviceCreateInfo of our own, and copies of what it points to and we change. The program's
 * stays as it is: it may lie in memory that nobody can write to. */
typedef struct layer_creation {
    VkDeviceCreateInfo info;
    VkPhysicalDeviceFeatures plain; /* in place of pEnabledFeatures */
    uint64_t copies[LAYER_COPIES][LAYER_COPY_WORDS];
    uint32_t copy_count;
    const char **names; /* of extensions: the program's strings, and literals */
    integration_enabled wanted;
} layer_creation;

/* Fills `c` with what the device is to be made with, and d->features and what follows from it with
 * what will be enabled then. Returns: false, and the reason in d->unable, where the program has to
 * have what it asks for. Owner: the caller, until layer_creation_free(). */
bool layer_creation_make(layer_creation *c, layer_device *d, const VkDeviceCreateInfo *asked);
void layer_creation_free(layer_creation *c);

/* Keeps the names of extensions with the device, which was made with `c`. False: there is no
 * memory. */
bool layer_creation_keep(const layer_creation *c, layer_device *d);

#endif
