/* Memory and timelines: allocated here, or imported from descriptors that Vulkan exported.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A duplicate of a descriptor is imported. Where CUDA owns what it has imported (td_opaque.import_takes; it leaves it alone when
 * the import fails) only a failed import closes it again; elsewhere each does. What was mapped from an import is freed before the
 * import itself: CUDA does not do that for us.
 */
#include <errno.h>
#include <string.h>

#include "interop/cu/driver.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"

enum { MEM_NONE, MEM_DEVICE, MEM_IMPORT, MEM_REGISTERED, MEM_PINNED, MEM_CALLERS };
static const uint64_t copy_limit_ns = 10000000000u, copy_look_ns = 20000;

tandem_status td_cu_mem_alloc(td_cu_device *device, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes)
{
    tandem_status status;

    *out = (td_cu_mem){0};
    if (!bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "an allocation of 0 bytes");
    status = td_cu_enter(device, why, why_bytes);
    if (status)
        return status;
    status = td_cu_check(device, TD_CU(device, cuMemAlloc, &out->address, bytes), why, why_bytes,
                         "%llu bytes of device memory: cuMemAlloc", (unsigned long long)bytes);
    td_cu_leave(device);
    if (status)
        return status;
    out->bytes = bytes;
    out->kind = MEM_DEVICE;
    atomic_fetch_add_explicit(&device->allocated, bytes, memory_order_relaxed);
    return TANDEM_OK;
}

tandem_status td_cu_mem_alloc_host(td_cu_device *device, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes)
{
    tandem_status status;

    *out = (td_cu_mem){0};
    if (!bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "an allocation of 0 bytes");
    status = td_cu_enter(device, why, why_bytes);
    if (status)
        return status;
    status =
        td_cu_check(device, TD_CU(device, cuMemHostAlloc, &out->host, bytes, TD_CU_HOST_PORTABLE | TD_CU_HOST_MAPPED),
                    why, why_bytes, "%llu bytes of pinned memory: cuMemHostAlloc", (unsigned long long)bytes);
    if (!status) {
        out->kind = MEM_PINNED;
        out->bytes = bytes;
        status = td_cu_check(device, TD_CU(device, cuMemHostGetDevicePointer, &out->address, out->host, 0), why,
                             why_bytes, "cuMemHostGetDevicePointer");
    }
    td_cu_leave(device);
    if (status)
        td_cu_mem_free(device, out);
    return status;
}

tandem_status td_cu_mem_register(td_cu_device *device, void *host, uint64_t bytes, td_cu_mem *out, char *why,
                                 size_t why_bytes)
{
    const uint64_t page = td_page_bytes();
    tandem_status status;

    *out = (td_cu_mem){0};
    if (!host || !bytes || (uintptr_t)host % page)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "host memory %p of %llu bytes: it must start on a page", host,
                       (unsigned long long)bytes);
    status = td_cu_enter(device, why, why_bytes);
    if (status)
        return status;
    status = td_cu_check(device, TD_CU(device, cuMemHostRegister, host, bytes, TD_CU_HOST_PORTABLE | TD_CU_HOST_MAPPED),
                         why, why_bytes, "%llu bytes of host memory: cuMemHostRegister", (unsigned long long)bytes);
    if (!status) {
        *out = (td_cu_mem){.host = host, .bytes = bytes, .kind = MEM_REGISTERED};
        status = td_cu_check(device, TD_CU(device, cuMemHostGetDevicePointer, &out->address, host, 0), why, why_bytes,
                             "cuMemHostGetDevicePointer");
    }
    td_cu_leave(device);
    if (status)
        td_cu_mem_free(device, out);
    return status;
}

tandem_status td_cu_mem_import_fd(td_cu_device *device, int fd, uint64_t allocation_bytes, bool dedicated,
                                  uint64_t offset, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes)
{
    td_cu_memory_handle handle = {.type = td_opaque.cuda_memory_type, .size = allocation_bytes};
    td_cu_memory_buffer range = {.offset = offset, .size = bytes};
    td_cu_external_memory external = NULL;
    int copy = -1;
    tandem_status status;
    uint64_t end;

    *out = (td_cu_mem){0};
    if (!bytes || !td_add_u64(offset, bytes, &end) || end > allocation_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "bytes %llu + %llu of an allocation of %llu",
                       (unsigned long long)offset, (unsigned long long)bytes, (unsigned long long)allocation_bytes);
    handle.flags = dedicated ? TD_CU_MEMORY_DEDICATED : 0;
    copy = td_fd_dup(fd);
    if (copy < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "memory from fd %d: %s", fd, strerror(errno));
    status = td_cu_enter(device, why, why_bytes);
    if (status) {
        td_fd_close(&copy);
        return status;
    }
    handle.handle.opaque = td_opaque_of(copy);
    status = td_cu_check(device, TD_CU(device, cuImportExternalMemory, &external, &handle), why, why_bytes,
                         "memory from fd %d: cuImportExternalMemory", fd);
    if (status || !td_opaque.import_takes)
        td_fd_close(&copy);
    if (!status) {
        *out = (td_cu_mem){.external = external, .bytes = bytes, .kind = MEM_IMPORT};
        status = td_cu_check(device, TD_CU(device, cuExternalMemoryGetMappedBuffer, &out->address, external, &range),
                             why, why_bytes, "memory from fd %d: cuExternalMemoryGetMappedBuffer", fd);
        if (status)
            out->address = 0;
    }
    td_cu_leave(device);
    if (status)
        td_cu_mem_free(device, out);
    return status;
}

/* The device's context is current. */
static tandem_status check_callers(td_cu_device *device, uint64_t address, uint64_t bytes, char *why, size_t why_bytes)
{
    td_cu_context context = NULL;
    td_cu_pointer base = 0;
    size_t size = 0;
    unsigned type = 0;
    int ordinal = 0;
    tandem_status status =
        td_cu_check(device, TD_CU(device, cuPointerGetAttribute, &type, TD_CU_POINTER_MEMORY_TYPE, address), why, why_bytes,
                    "0x%llx is no pointer of CUDA's: cuPointerGetAttribute", (unsigned long long)address);

    if (!status && type != TD_CU_MEMORY_TYPE_DEVICE)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "0x%llx is host memory", (unsigned long long)address);
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuPointerGetAttribute, &ordinal, TD_CU_POINTER_ORDINAL, address), why,
                             why_bytes, "the device of 0x%llx: cuPointerGetAttribute", (unsigned long long)address);
    if (!status && ordinal != device->ordinal)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "0x%llx is on CUDA device %d, not %d", (unsigned long long)address,
                       ordinal, device->ordinal);
    /* Memory of a pool, or that was mapped, has none. */
    if (!status && !TD_CU(device, cuPointerGetAttribute, &context, TD_CU_POINTER_CONTEXT, address) && context &&
        context != device->context)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "0x%llx is of another CUDA context", (unsigned long long)address);
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuMemGetAddressRange, &base, &size, address), why, why_bytes,
                             "the allocation of 0x%llx: cuMemGetAddressRange", (unsigned long long)address);
    if (!status && (address < base || address - base > size || bytes > size - (address - base)))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%llu bytes from 0x%llx on go beyond its allocation, %llu from 0x%llx",
                       (unsigned long long)bytes, (unsigned long long)address, (unsigned long long)size,
                       (unsigned long long)base);
    return status;
}

tandem_status td_cu_mem_wrap(td_cu_device *device, uint64_t address, uint64_t bytes, td_cu_mem *out, char *why,
                             size_t why_bytes)
{
    tandem_status status = td_cu_enter(device, why, why_bytes);

    *out = (td_cu_mem){0};
    if (status)
        return status;
    status = check_callers(device, address, bytes, why, why_bytes);
    td_cu_leave(device);
    if (!status)
        *out = (td_cu_mem){.address = address, .bytes = bytes, .kind = MEM_CALLERS};
    return status;
}

void td_cu_mem_free(td_cu_device *device, td_cu_mem *mem)
{
    char why[160];
    tandem_status status = TANDEM_OK;

    if (mem->kind == MEM_CALLERS)
        *mem = (td_cu_mem){0};
    if (mem->kind == MEM_NONE)
        return;
    if (td_cu_enter(device, why, sizeof why)) {
        td_logf(&device->log, TD_LOG_WARN, "memory is left behind: %s", why);
        *mem = (td_cu_mem){0};
        return;
    }
    switch (mem->kind) {
    case MEM_DEVICE:
        status = td_cu_check(device, TD_CU(device, cuMemFree, mem->address), why, sizeof why, "cuMemFree");
        atomic_fetch_sub_explicit(&device->allocated, mem->bytes, memory_order_relaxed);
        break;
    case MEM_IMPORT:
        if (mem->address)
            status =
                td_cu_check(device, TD_CU(device, cuMemFree, mem->address), why, sizeof why, "cuMemFree of a mapping");
        if (!status)
            status = td_cu_check(device, TD_CU(device, cuDestroyExternalMemory, mem->external), why, sizeof why,
                                 "cuDestroyExternalMemory");
        break;
    case MEM_REGISTERED:
        status =
            td_cu_check(device, TD_CU(device, cuMemHostUnregister, mem->host), why, sizeof why, "cuMemHostUnregister");
        break;
    case MEM_PINNED:
        status = td_cu_check(device, TD_CU(device, cuMemFreeHost, mem->host), why, sizeof why, "cuMemFreeHost");
        break;
    }
    td_cu_leave(device);
    if (status)
        td_logf(&device->log, TD_LOG_WARN, "memory is left behind: %s", why);
    *mem = (td_cu_mem){0};
}

tandem_status td_cu_timeline_import_fd(td_cu_device *device, int fd, td_cu_timeline *out, char *why, size_t why_bytes)
{
    td_cu_semaphore_handle handle = {.type = td_opaque.cuda_timeline_type};
    td_cu_external_semaphore external = NULL;
    tandem_status status;
    int copy;

    *out = (td_cu_timeline){0};
    if (!device->info.timelines)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s has no timeline semaphores in CUDA",
                       device->info.name);
    copy = td_fd_dup(fd);
    if (copy < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a timeline from fd %d: %s", fd, strerror(errno));
    handle.handle.opaque = td_opaque_of(copy);
    status = td_cu_enter(device, why, why_bytes);
    if (!status) {
        status = td_cu_check(device, TD_CU(device, cuImportExternalSemaphore, &external, &handle), why, why_bytes,
                             "a timeline from fd %d: cuImportExternalSemaphore", fd);
        td_cu_leave(device);
    }
    if (status || !td_opaque.import_takes)
        td_fd_close(&copy);
    if (!status)
        out->external = external;
    return status;
}

void td_cu_timeline_free(td_cu_device *device, td_cu_timeline *timeline)
{
    char why[160];
    tandem_status status;

    if (!timeline->external)
        return;
    status = td_cu_enter(device, why, sizeof why);
    if (!status) {
        status = td_cu_check(device, TD_CU(device, cuDestroyExternalSemaphore, timeline->external), why, sizeof why,
                             "cuDestroyExternalSemaphore");
        td_cu_leave(device);
    }
    if (status)
        td_logf(&device->log, TD_LOG_WARN, "a timeline is left behind: %s", why);
    timeline->external = NULL;
}

/* cuMemcpyHtoD comes back once pageable memory is staged; the rest is done in the default stream, for which a
 * non-blocking one does not wait. */
static tandem_status wait_for_default_stream(td_cu_device *device)
{
    const uint64_t begin = td_now_ns();
    td_cu_result result;

    while ((result = TD_CU(device, cuStreamQuery, NULL)) == TD_CU_ERROR_NOT_READY &&
           td_now_ns() - begin < copy_limit_ns)
        td_sleep_ns(copy_look_ns);
    return td_cu_check(device, result, NULL, 0, "cuStreamQuery of the default stream");
}

tandem_status td_cu_mem_clear(td_cu_device *device, const td_cu_mem *mem, char *why, size_t why_bytes)
{
    tandem_status status;

    if (!device->table.cuMemsetD8Async)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "this driver cannot clear memory");
    status = td_cu_enter(device, why, why_bytes);
    if (status)
        return status;
    status = td_cu_check(device, TD_CU(device, cuMemsetD8Async, mem->address, 0, mem->bytes, NULL), why, why_bytes,
                         "%llu bytes: cuMemsetD8Async", (unsigned long long)mem->bytes);
    if (!status)
        status = wait_for_default_stream(device);
    td_cu_leave(device);
    return status;
}

tandem_status td_cu_copy_to_device(td_cu_device *device, uint64_t address, const void *from, uint64_t bytes)
{
    tandem_status status = td_cu_enter(device, NULL, 0);

    if (status)
        return status;
    status = td_cu_check(device, TD_CU(device, cuMemcpyHtoD, address, from, bytes), NULL, 0, "cuMemcpyHtoD");
    if (!status)
        status = wait_for_default_stream(device);
    td_cu_leave(device);
    return status;
}

tandem_status td_cu_copy_to_host(td_cu_device *device, void *to, uint64_t address, uint64_t bytes)
{
    tandem_status status = td_cu_enter(device, NULL, 0);

    if (status)
        return status;
    status = td_cu_check(device, TD_CU(device, cuMemcpyDtoH, to, address, bytes), NULL, 0, "cuMemcpyDtoH");
    td_cu_leave(device);
    return status;
}
