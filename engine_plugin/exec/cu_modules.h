/* Kernels in a CUDA context, loaded once for all streams there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Unpacking and loading the images of an H200 takes tens of milliseconds, and the driver may wait meanwhile for whatever
 * is pending in the context, other streams included. So a process that has a stream already, as the daemon's worker with
 * each client, finds the modules that its first one loaded. They are unloaded with the last stream.
 *
 * Threads: any. Functions that take a device need its context to be current (td_cu_enter).
 */
#ifndef TANDEM_EXEC_CU_MODULES_H
#define TANDEM_EXEC_CU_MODULES_H

#include "interop/cu/driver.h"
#include "kernels/target.h"

typedef struct td_cu_modules td_cu_modules;

/* A kernel as it may be launched now. */
typedef struct td_cu_kernel {
    td_cu_function handle; /* NULL: its image is not loaded */
    uint32_t shared_bytes; /* dynamic, that it may be launched with */
    uint32_t static_bytes; /* of shared memory */
} td_cu_kernel;

/* Finds or makes the modules of a cubin in the device's context; nothing is loaded by that. `cubin` has to outlive them.
 * NOMEM. */
tandem_status td_cu_modules_get(td_cu_device *device, const td_cubin *cubin, td_cu_modules **out, char *why,
                                size_t why_bytes);

/* Gives them back; the last to do so unloads them. *modules may be NULL, and is then. */
void td_cu_modules_put(td_cu_device *device, td_cu_modules **modules);

/* The same for a stream that is left behind, with a context that is not to be touched: what is loaded stays, and nobody
 * who comes later finds it, as it may go with the context. */
void td_cu_modules_abandon(td_cu_modules **modules);

/* Whether image number `image` of the cubin is loaded; and loads it, with every function of it, unless it is. On failure
 * nothing of it is. */
bool td_cu_modules_has(td_cu_modules *modules, uint32_t image);
tandem_status td_cu_modules_load(td_cu_device *device, td_cu_modules *modules, uint32_t image, char *why,
                                 size_t why_bytes);

/* Kernel number `at`, counted through all images in order. */
td_cu_kernel td_cu_modules_kernel(td_cu_modules *modules, uint32_t at);

/* Lets a kernel of a loaded image be launched with so many bytes of dynamic shared memory, or more. */
tandem_status td_cu_modules_widen(td_cu_device *device, td_cu_modules *modules, uint32_t at, uint32_t shared_bytes,
                                  char *why, size_t why_bytes);

#endif
