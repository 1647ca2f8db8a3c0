/* nvcuda.dll of the tests: the fake driver of tests/interop/fake_cuda.h by the names that CUDA's functions have, for a process in
 * which the library loads it as it loads NVIDIA's. The test finds this struct by GetProcAddress("nvcuda").
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_WINDOWS_NVCUDA_H
#define TD_TESTS_WINDOWS_NVCUDA_H

#include "interop/cu/driver.h"
#include "tests/interop/fake_cuda.h"

typedef struct nvcuda {
    fake_cuda *driver;
    unsigned calls, fails; /* calls of those that can fail, since it was set 0; the one of that number fails; 0: none */
    const char *failed;    /* its name */
    td_cu_memory_handle memory;       /* as it was imported last, */
    td_cu_semaphore_handle semaphore; /* and that */
    unsigned memories, semaphores;    /* that were imported */
    unsigned strange;                 /* imports of what was not exported as that */
} nvcuda;

#endif
