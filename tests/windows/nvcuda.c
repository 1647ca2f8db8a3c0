/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/windows/nvcuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/interop/cuda_calls.h"
#include "tests/interop/fake_cuda_parts.h"
#include "tests/windows/handles/section.h"

__declspec(dllexport) extern nvcuda nvcuda_of_tests;
nvcuda nvcuda_of_tests = {.driver = &fake_cuda_driver};
#define self nvcuda_of_tests

/* What elsewhere tests/interop/faults.c has: here nothing stands in front of the C library. */

pthread_mutex_t fault_semaphores = PTHREAD_MUTEX_INITIALIZER;

void fault_shake(unsigned most_us)
{
    (void)most_us;
}

void *__real_calloc(size_t count, size_t bytes)
{
    return calloc(count, bytes);
}

void *__real_malloc(size_t bytes)
{
    return malloc(bytes);
}

void *__real_aligned_alloc(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, bytes);
}

void __real_free(void *pointer)
{
    free(pointer);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *user)
{
    return pthread_create(thread, attributes, main, user);
}

int __real_pthread_join(pthread_t thread, void **result)
{
    return pthread_join(thread, result);
}

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return pthread_mutex_init(mutex, attributes);
}

int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    return pthread_cond_init(cond, attributes);
}

/* A driver of Windows takes no handle over. */

bool fake_handle_read(td_opaque_handle handle, VkSemaphore *semaphore)
{
    const section is = section_read(handle.win32);

    *semaphore = (VkSemaphore)is.object;
    return is.kind == SECTION_SEMAPHORE;
}

void fake_handle_taken(td_opaque_handle handle)
{
    (void)handle;
}

static void note(const char *call, const void *info)
{
    if (!strcmp(call, "cuImportExternalMemory")) {
        self.memory = *(const td_cu_memory_handle *)info;
        self.memories++;
        self.strange += section_read(self.memory.handle.opaque.win32).kind != SECTION_MEMORY;
    }
    if (!strcmp(call, "cuImportExternalSemaphore")) {
        self.semaphore = *(const td_cu_semaphore_handle *)info;
        self.semaphores++;
        self.strange += section_read(self.semaphore.handle.opaque.win32).kind != SECTION_SEMAPHORE;
    }
}

/* Hundreds of functions are looked up, and stamps enqueued: those calls fail in test_faults. */
static bool trip(const char *call)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *const ours[] = {"cuImportExternalMemory",    "cuExternalMemoryGetMappedBuffer", "cuDestroyExternalMemory",
                                       "cuImportExternalSemaphore", "cuDestroyExternalSemaphore",      "cuMemFree",
                                       "cuCtxPushCurrent",          "cuDeviceGetLuid"};
    bool fails = false;

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(call, ours[i])) {
            pthread_mutex_lock(&lock);
            fails = ++self.calls == self.fails;
            if (fails)
                self.failed = ours[i];
            pthread_mutex_unlock(&lock);
        }
    return fails;
}

/* What gives something back does so, and then says that it failed: as a driver that reports an earlier error. */
#define X(name, parameters, arguments, info, handle, adds)                    \
    static td_cu_result hook_##name parameters                                \
    {                                                                         \
        const bool fails = trip(#name);                                       \
        td_cu_result result = TD_CU_SUCCESS;                                  \
                                                                              \
        note(#name, info);                                                    \
        if (!fails || (adds) < 0)                                             \
            result = fake_##name arguments;                                   \
        return fails ? 999 : result;                                          \
    }
CUDA(X)
#undef X

/* Found by their symbols, of which some have another name than the library has for them. */
#define EXPORT(kind, name, symbol, parameters) \
    __declspec(dllexport) td_cu_result symbol parameters __attribute__((alias("hook_" #name)));
TD_CU_FUNCTIONS(EXPORT, EXPORT)
