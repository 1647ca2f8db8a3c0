/* Shared libraries that are opened at run time, because a machine may not have them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_LIBRARY_H
#define TANDEM_OS_LIBRARY_H

#include "interop/base.h"

typedef struct td_library td_library;

/* What the libraries of two drivers are called here: NVIDIA's for CUDA, and the loader of all of Vulkan's. */
extern const char td_library_cuda[], td_library_vulkan[];

/* Opens a library by its file name, as the system's loader finds it. Its names become nobody else's, and its code stays loaded
 * for good: a driver has threads and exit handlers of its own.
 * Returns: UNSUPPORTED if it is not there or cannot be loaded; `why` is then in the loader's words.
 * Owner: the caller, until td_library_close().
 * Threads: any.
 * Blocks: while it is read. */
tandem_status td_library_open(const char *name, td_library **library, char *why, size_t why_bytes);

/* What has that name in it; NULL if nothing does.
 * Owner: the library.
 * Threads: any.
 * Blocks: never. */
void *td_library_symbol(td_library *library, const char *name);

/* Gives it back, and sets *library NULL, which it may be.
 * Owner: takes it back.
 * Threads: any.
 * Blocks: never. */
void td_library_close(td_library **library);

#endif
