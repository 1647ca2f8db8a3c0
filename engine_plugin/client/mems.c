/* Mems: one block of bytes, known to the engine, to the executor, and where possible to the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/memory.h"
#include "interop/os/opaque.h"

static tandem_status import_fd(tandem_session *s, td_mem *mem, int fd, uint64_t allocation_bytes, bool dedicated,
                               uint64_t offset, char *why)
{
    tandem_status status =
        td_cu_mem_import_fd(s->cu, fd, allocation_bytes, dedicated, offset, mem->bytes, &mem->cu, why, TD_WHY_BYTES);

    mem->address = mem->cu.address;
    return status;
}

/* Exports Vulkan memory and imports it into CUDA; the fd lives only in between. */
static tandem_status share_with_cuda(tandem_session *s, td_mem *mem, char *why)
{
    int fd = -1;
    tandem_status status = td_vk_mem_export_fd(s->vk, &mem->vk, &fd, why, TD_WHY_BYTES);

    if (status == TANDEM_OK)
        status = import_fd(s, mem, fd, mem->vk.allocation_bytes, mem->vk.dedicated, mem->vk.offset, why);
    td_fd_close(&fd);
    return status;
}

/* Those of Vulkan 1.0: the others ask for a feature, or for memory that is allocated otherwise. */
#define ANY_USAGE ((VkBufferUsageFlags)VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT * 2 - 1)

/* Staging memory of the size of mem->vk, and what else the rung `copy` needs. */
static tandem_status make_staging(tandem_session *s, td_mem *mem, char *why)
{
    tandem_status status = td_vk_mem_create_mapped(
        s->vk, mem->bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, &mem->staging, why,
        TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    memset(mem->staging.host, 0, mem->bytes);
    mem->host_share += mem->staging.allocation_bytes;
    return td_staging_make(s, mem, why);
}

/* The GPU of another process computes on what this device's Vulkan exports. */
static bool is_gpu_elsewhere(const tandem_session *s)
{
    return s->way.device == TD_DEVICE_CUDA_ELSEWHERE && s->way.sharing == TD_SHARING_TIMELINE;
}

/* Whether this session's way has such memory at all. */
static bool takes(const tandem_session *s, const tandem_mem_desc *desc)
{
    return td_way_takes(s->way, desc->source, desc->handle_type);
}

static tandem_status make_create(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    const VkBufferUsageFlags usage = TD_MEM_USAGE | desc->vulkan_usage;
    tandem_status status;

    if (desc->vulkan_usage & ~ANY_USAGE)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.vulkan_usage is 0x%x: buffers are made for 0x%x at most", desc->vulkan_usage, ANY_USAGE);
    if (!s->vk && !s->cu)
        return TANDEM_OK; /* what is shared is all there is */
    if (td_is_inline(s))
        return td_mem_make_device(s, mem, usage, why);
    mem->has_vk = s->vk != NULL;
    if (td_copies(s)) {
        if (!s->vk)
            return td_staging_make(s, mem, why);
        status = td_vk_mem_create_device(s->vk, mem->bytes, usage, &mem->vk, why, TD_WHY_BYTES);
        mem->device_share = mem->vk.allocation_bytes;
        return status == TANDEM_OK ? make_staging(s, mem, why) : status;
    }
    if (!s->vk) {
        status = td_cu_mem_alloc_host(s->cu, mem->bytes, &mem->cu, why, TD_WHY_BYTES);
        mem->host = mem->cu.host;
        mem->address = mem->cu.address;
        mem->host_share = mem->bytes;
        return status;
    }
    if (td_is_on_device(s)) {
        status = td_vk_mem_create_export(s->vk, mem->bytes, usage, &mem->vk, why, TD_WHY_BYTES);
        mem->device_share = mem->vk.allocation_bytes;
        return status == TANDEM_OK && s->cu ? share_with_cuda(s, mem, why) : status;
    }
    status = td_vk_mem_create_host(s->vk, mem->bytes, usage, &mem->vk, why, TD_WHY_BYTES);
    mem->host = mem->vk.host;
    mem->address = (uintptr_t)mem->vk.host;
    mem->host_share = mem->vk.allocation_bytes;
    return status;
}

static tandem_status make_host(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    const uint64_t address = (uintptr_t)desc->host;
    uint64_t page = td_page_bytes();
    tandem_status status = TANDEM_OK;

    if (!desc->host)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.host is NULL");
    if (!takes(s, desc))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.source is HOST (1): on the timeline rung tandemd shares what Vulkan exports");
    if (mem->bytes > UINT64_MAX - address)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.bytes is %" PRIu64 ": desc.host + bytes overflows",
                       mem->bytes);
    if (!td_is_mapped(desc->host, mem->bytes))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.host is %p, and not all of the desc.bytes %" PRIu64 " from there are mapped", desc->host,
                       mem->bytes);
    mem->host = desc->host;
    mem->address = address;
    if (!s->vk && !s->cu)
        return TANDEM_OK;
    if (s->vk && !td_copies(s) && !td_vk_get_caps(s->vk)->import_host)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.source is HOST (1): VK_EXT_external_memory_host is not enabled");
    if (s->vk && td_vk_get_caps(s->vk)->host_alignment > page)
        page = td_vk_get_caps(s->vk)->host_alignment;
    if (address % page)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.host is %p, not a multiple of %" PRIu64, desc->host,
                       page);
    if (mem->bytes % page)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.bytes is %" PRIu64 ", not a multiple of %" PRIu64,
                       mem->bytes, page);
    if (td_copies(s)) /* seen by the host and by jobs, not by Vulkan */
        return td_staging_make(s, mem, why);
    if (s->vk) {
        mem->has_vk = true;
        status = td_vk_mem_import_host(s->vk, desc->host, mem->bytes, TD_MEM_USAGE, &mem->vk, why, TD_WHY_BYTES);
        if (td_is_inline(s))
            mem->address = mem->vk.address;
    }
    if (status == TANDEM_OK && s->cu) {
        status = td_cu_mem_register(s->cu, desc->host, mem->bytes, &mem->cu, why, TD_WHY_BYTES);
        mem->address = mem->cu.address;
    }
    return status;
}

static tandem_status check_range(const tandem_mem_desc *desc, char *why)
{
    if (desc->dedicated > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.dedicated is %u, not 0 or 1", desc->dedicated);
    if (!desc->allocation_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.allocation_bytes is 0");
    if (desc->bytes > desc->allocation_bytes || desc->offset_bytes > desc->allocation_bytes - desc->bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.offset_bytes is %" PRIu64 ", and %" PRIu64
                       " more bytes go beyond desc.allocation_bytes %" PRIu64,
                       desc->offset_bytes, desc->bytes, desc->allocation_bytes);
    return TANDEM_OK;
}

/* The descriptor that `desc` has, and what messages call it. */
typedef struct given_fd {
    int fd;
    const char *name;
    char value[24];
} given_fd;

static given_fd fd_of(const tandem_mem_desc *desc)
{
    given_fd given = {.fd = desc->fd, .name = "desc.fd"};

    if (desc->handle_type == TANDEM_HANDLE_WIN32) {
        given.fd = td_opaque_fd((td_opaque_handle){.win32 = desc->win32_handle});
        given.name = "desc.win32_handle";
        snprintf(given.value, sizeof given.value, "0x%" PRIxPTR, (uintptr_t)desc->win32_handle);
    } else {
        snprintf(given.value, sizeof given.value, "%d", desc->fd);
    }
    return given;
}

static tandem_status check_handle_type(const tandem_mem_desc *desc, char *why)
{
    if (desc->handle_type > TANDEM_HANDLE_WIN32)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.handle_type is %u; it must be 0 (OPAQUE_FD), 1 (DMA_BUF) or 2 (WIN32)", desc->handle_type);
    if (desc->handle_type == TANDEM_HANDLE_WIN32 && !td_opaque.is_win32)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.handle_type is 2 (WIN32): this system has file descriptors, not Windows' handles");
    if (desc->handle_type == TANDEM_HANDLE_OPAQUE_FD && td_opaque.is_win32)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.handle_type is 0 (OPAQUE_FD): this system has Windows' handles, 2 (WIN32), not file descriptors");
    return TANDEM_OK;
}

/* What can be told of an fd without a driver: nothing that was exported is a directory, a pipe or a socket, and one
 * that knows its size (a memfd, a dma-buf) must be as long as the engine says. */
static tandem_status check_fd(const tandem_mem_desc *desc, const given_fd *given, char *why)
{
    td_fd_kind kind;
    uint64_t bytes;

    if (!td_fd_look(given->fd, &kind, &bytes))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s is %s: %s", given->name, given->value, strerror(errno));
    if (kind == TD_FD_FOLDER || kind == TD_FD_PIPE || kind == TD_FD_SOCKET)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s is %s, a %s and no exported memory", given->name, given->value,
                       kind == TD_FD_FOLDER ? "directory"
                       : kind == TD_FD_PIPE ? "pipe"
                                            : "socket");
    if ((kind == TD_FD_FILE || bytes) && bytes < desc->allocation_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.allocation_bytes is %" PRIu64 ", but %s %s has %" PRIu64 " bytes", desc->allocation_bytes,
                       given->name, given->value, bytes);
    return TANDEM_OK;
}

/* As memory of the engine's, once it is Vulkan's. */
static tandem_status make_dma_buf(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    const bool copied = !td_is_on_device(s);
    char text[TD_WHY_BYTES] = "";
    tandem_status status;

    if (!s->vk || !takes(s, desc))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.handle_type is 1 (DMA_BUF): %s",
                       s->vk ? "CUDA imports none; the inline, copy and cpu rungs take it"
                             : "without Vulkan nobody imports it: map it, and give it as HOST (1)");
    if (desc->dedicated)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.dedicated is 1: of a dma-buf that takes one buffer alone, that is its engine's");
    mem->has_vk = true;
    mem->source = TANDEM_MEM_VULKAN;
    status = td_vk_mem_import_dma_buf(s->vk, desc->fd, desc->allocation_bytes, desc->offset_bytes, desc->bytes, TD_MEM_USAGE,
                                      &mem->vk, text, sizeof text);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "desc.fd is %d, desc.allocation_bytes %" PRIu64 ": %s", desc->fd,
                       desc->allocation_bytes, text);
    mem->address = mem->vk.address;
    return copied ? make_staging(s, mem, why) : TANDEM_OK;
}

static tandem_status make_fd(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    const given_fd given = fd_of(desc);
    char text[TD_WHY_BYTES] = "";
    tandem_status status = check_handle_type(desc, why);

    if (status == TANDEM_OK)
        status = check_range(desc, why);
    if (status == TANDEM_OK)
        status = check_fd(desc, &given, why);
    if (status != TANDEM_OK)
        return status;
    if (desc->handle_type == TANDEM_HANDLE_DMA_BUF)
        return make_dma_buf(s, mem, desc, why);
    if (is_gpu_elsewhere(s)) {
        mem->shared.fd = td_fd_dup(given.fd);
        mem->shared.owned = mem->shared.opaque = true;
        mem->vk = (td_vk_mem){.memfd = -1,
                              .allocation_bytes = desc->allocation_bytes,
                              .offset = desc->offset_bytes,
                              .dedicated = desc->dedicated};
        return mem->shared.fd >= 0 ? TANDEM_OK
                                 : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "%s is %s: %s", given.name, given.value,
                                           strerror(errno));
    }
    if (!s->vk || !takes(s, desc))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.source is FD (2): %s",
                       !s->vk ? "the session has no Vulkan device to share with"
                       : td_is_inline(s) ? "the inline rung takes the VkDeviceMemory itself"
                       : !s->cu ? s->ops->no_fd
                                : "on the copy rung no memory is shared, and an fd has no VkBuffer to copy from");
    status = import_fd(s, mem, given.fd, desc->allocation_bytes, desc->dedicated, desc->offset_bytes, text);
    if (status == TANDEM_OK)
        return status;
    /* A driver that refuses an fd is not broken: the fd is not what it should be. */
    if (status != TANDEM_ERROR_NOMEM && status != TANDEM_ERROR_LOST)
        status = TANDEM_ERROR_ARG;
    return td_fail(why, TD_WHY_BYTES, status, "%s is %s, desc.allocation_bytes %" PRIu64 ": %s", given.name, given.value,
                   desc->allocation_bytes, text);
}

static tandem_status make_vulkan(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    tandem_status status = check_range(desc, why);
    const bool copied = !td_is_on_device(s); /* as on the copy rung, since the engine's memory is the device's */
    const VkDeviceMemory memory = (VkDeviceMemory)(uintptr_t)desc->vulkan_memory;
    const VkBuffer buffer = (VkBuffer)(uintptr_t)desc->vulkan_buffer;

    if (status != TANDEM_OK)
        return status;
    if (!desc->vulkan_memory)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.vulkan_memory is 0");
    if (!s->vk)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.source is VULKAN (3): the session has no Vulkan device");
    if (desc->dedicated && !buffer && (copied || td_is_inline(s)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.dedicated is 1, desc.vulkan_buffer 0: on this rung the engine's memory is %s, and such memory "
                       "takes no other than the engine's own, which desc.vulkan_buffer names",
                       copied ? "copied by a VkBuffer" : "found by a VkBuffer's address");
    mem->has_vk = true;
    if (buffer)
        status = td_vk_mem_wrap_buffer(s->vk, buffer, memory, desc->allocation_bytes, desc->offset_bytes, desc->bytes,
                                       desc->dedicated, &mem->vk, why, TD_WHY_BYTES);
    else
        status = td_vk_mem_wrap(s->vk, memory, desc->allocation_bytes, desc->offset_bytes, desc->bytes, desc->dedicated,
                                &mem->vk, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    if (copied)
        return make_staging(s, mem, why);
    mem->address = mem->vk.address;
    if (!s->cu)
        return TANDEM_OK;
    status = share_with_cuda(s, mem, why);
    return status == TANDEM_ERROR_DEVICE ? TANDEM_ERROR_UNSUPPORTED : status;
}

static tandem_status make_cuda(tandem_session *s, td_mem *mem, const tandem_mem_desc *desc, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status;

    if (!desc->cuda_pointer)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.cuda_pointer is 0");
    if (!takes(s, desc))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.source is CUDA (4): %s",
                       s->cu ? "on the copy rung jobs work on copies of the host's memory"
                             : "the session does not compute in a CUDA context of this process");
    status = td_cu_mem_wrap(s->cu, desc->cuda_pointer, desc->bytes, &mem->cu, text, sizeof text);
    mem->address = mem->cu.address;
    return status == TANDEM_OK ? status : td_fail(why, TD_WHY_BYTES, status, "desc.cuda_pointer: %s", text);
}

static tandem_status make_mem(tandem_session *s, const tandem_mem_desc *desc, td_mem **out, char *why)
{
    tandem_status status;
    td_mem *mem;

    if (desc->source > TANDEM_MEM_CUDA)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.source is %u; it must be 0 (CREATE), 1 (HOST), 2 (FD), 3 (VULKAN) or 4 (CUDA)", desc->source);
    if (!desc->bytes || desc->bytes > (uint64_t)INT64_MAX)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.bytes is %" PRIu64, desc->bytes);
    if (desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved is %u, not 0", desc->reserved);
    if (desc->handle_type && desc->source != TANDEM_MEM_FD)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.handle_type is %u, but desc.source is %u, not 2 (FD)",
                       desc->handle_type, desc->source);
    if (desc->reserved2)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved2 is %u, not 0", desc->reserved2);
    mem = *out = td_mem_new(s, desc->bytes, why);
    if (!mem)
        return TANDEM_ERROR_NOMEM;
    mem->source = desc->source;
    switch (desc->source) {
    case TANDEM_MEM_CREATE: status = make_create(s, mem, desc, why); break;
    case TANDEM_MEM_HOST: status = make_host(s, mem, desc, why); break;
    case TANDEM_MEM_FD: status = make_fd(s, mem, desc, why); break;
    case TANDEM_MEM_VULKAN: status = make_vulkan(s, mem, desc, why); break;
    default: status = make_cuda(s, mem, desc, why); break;
    }
    return status == TANDEM_OK ? s->ops->mem_share(s, mem, why) : status;
}

static void name_mem(tandem_session *s, const td_mem *mem)
{
    char name[40];

    snprintf(name, sizeof name, "tandem mem %" PRIx64, mem->object.id & 0xffffff);
    if (!mem->vk.engines_buffer)
        td_vk_name(s->vk, VK_OBJECT_TYPE_BUFFER, (uint64_t)(uintptr_t)mem->vk.buffer, name);
    if (mem->vk.owned)
        td_vk_name(s->vk, VK_OBJECT_TYPE_DEVICE_MEMORY, (uint64_t)(uintptr_t)mem->vk.memory, name);
    snprintf(name, sizeof name, "tandem staging %" PRIx64, mem->object.id & 0xffffff);
    td_vk_name(s->vk, VK_OBJECT_TYPE_BUFFER, (uint64_t)(uintptr_t)mem->staging.buffer, name);
    td_vk_name(s->vk, VK_OBJECT_TYPE_DEVICE_MEMORY, (uint64_t)(uintptr_t)mem->staging.memory, name);
}

tandem_status td_mem_enter(tandem_session *s, td_mem *made, tandem_mem *out, char *why)
{
    tandem_status status;

    pthread_mutex_lock(&s->lock);
    status = td_table_add_locked(s, &s->mems, TD_KIND_MEM, &made->object, why);
    if (status == TANDEM_OK) {
        s->mem_host_bytes += made->host_share;
        s->mem_device_bytes += made->device_share;
        *out = made->object.id;
        if (s->vk)
            name_mem(s, made); /* once unlocked, any thread may destroy it */
    }
    pthread_mutex_unlock(&s->lock);
    if (status != TANDEM_OK)
        td_mem_free(s, made);
    return status;
}

tandem_status tandem_mem_create(tandem_session *session, const tandem_mem_desc *desc, tandem_mem *mem)
{
    char why[TD_WHY_BYTES] = "";
    tandem_mem_desc known;
    td_mem *made = NULL;
    tandem_status status;

    if (mem)
        *mem = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !mem)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, desc ? "mem is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = make_mem(session, &known, &made, why);
    if (status == TANDEM_OK)
        status = td_mem_enter(session, made, mem, why);
    else if (made)
        td_mem_free(session, made);
    return td_session_fail(session, __func__, status, why);
}

void td_mem_remove_locked(tandem_session *s, td_mem *mem)
{
    td_table_remove_locked(&s->mems, &mem->object);
    s->mem_host_bytes -= mem->host_share;
    s->mem_device_bytes -= mem->device_share;
}

void td_mem_end(tandem_session *s, td_mem *mem)
{
    td_forgotten_tell(s, mem);
    s->ops->object_end(s, &mem->object);
    td_mem_leave(s, mem);
}

tandem_status tandem_mem_destroy(tandem_session *session, tandem_mem mem)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_mem *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = td_mem_find_locked(session, mem, "mem", why);
    if (found && found->of_model)
        td_fail(why, sizeof why, status, "mem is 0x%" PRIx64 ", which belongs to a model", mem);
    else if (found)
        status = td_object_close_locked(session, &found->object, "mem", why);
    if (status == TANDEM_OK)
        td_mem_remove_locked(session, found);
    pthread_mutex_unlock(&session->lock);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    td_mem_end(session, found);
    return TANDEM_OK;
}

tandem_status tandem_mem_host(tandem_session *session, tandem_mem mem, void **host)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_mem *found;

    if (host)
        *host = NULL;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!host)
        return td_session_fail(session, __func__, status, "host is NULL");
    pthread_mutex_lock(&session->lock);
    found = td_mem_find_locked(session, mem, "mem", why);
    if (found && !found->host) {
        status =
            td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "mem is 0x%" PRIx64 ", which only the GPU sees", mem);
    } else if (found) {
        *host = found->host;
        found->host_known = true;
        status = TANDEM_OK;
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_mem_get_vulkan(tandem_session *session, tandem_mem mem, tandem_mem_vulkan *out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_mem_vulkan known = {0};
    tandem_status status;
    td_mem *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!out)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "out is NULL");
    status = TD_STRUCT_CHECK("out", out, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    found = td_mem_find_locked(session, mem, "mem", why);
    if (!found) {
        status = TANDEM_ERROR_ARG;
    } else if (!session->vk) {
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "mem is 0x%" PRIx64 ", of a session without Vulkan",
                         mem);
    } else if (!found->has_vk || found->of_model) {
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "mem is 0x%" PRIx64 ", which %s", mem,
                         found->of_model ? "belongs to a model" : "has no Vulkan memory here");
    } else {
        known = (tandem_mem_vulkan){
            .buffer = found->vk.engines_buffer ? VK_NULL_HANDLE : found->vk.buffer,
            .memory = found->vk.memory,
            .offset = found->vk.offset,
            .bytes = found->bytes,
        };
    }
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(out, &known);
    return td_session_fail(session, __func__, status, why);
}
