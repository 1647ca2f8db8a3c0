/* Memory behind a mem: made for the session's kernels, and freed, wherever it comes from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/memory.h"

enum { BLOCK_ALIGNMENT = 4096 };

td_mem *td_mem_new(tandem_session *s, uint64_t bytes, char *why)
{
    td_mem *mem = td_session_alloc(s, sizeof *mem, 64);

    if (!mem) {
        td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a mem of %zu bytes", sizeof *mem);
        return NULL;
    }
    mem->bytes = bytes;
    mem->vk.memfd = mem->staging.memfd = -1;
    return mem;
}

static void free_shared_buffer(td_mem *mem)
{
    if (!mem->shared.owned)
        return;
    if (mem->shared.map)
        td_unmap(mem->shared.map, mem->shared.bytes);
    td_fd_close(&mem->shared.fd);
}

void td_mem_free(tandem_session *s, td_mem *mem)
{
    if (!s->stuck) {
        if (td_is_inline(s) && s->stream)
            td_inline_sync(s->stream);
        if (s->cu) {
            td_cu_mem_free(s->cu, &mem->cu);
            td_cu_mem_free(s->cu, &mem->pinned);
        }
        if (mem->has_vk && !s->in_use) {
            td_vk_mem_free(s->vk, &mem->staging);
            td_vk_mem_free(s->vk, &mem->vk);
        }
    }
    free_shared_buffer(mem);
    td_session_free(s, mem->block, mem->block_bytes);
    td_session_free(s, mem, sizeof *mem);
}

static tandem_status use_block(tandem_session *s, td_mem *mem, bool zeroed, char *why)
{
    mem->block = (zeroed ? td_session_alloc : td_session_alloc_dirty)(s, mem->bytes, BLOCK_ALIGNMENT);
    if (!mem->block)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "bytes is %" PRIu64 ": no host memory of that size",
                       mem->bytes);
    mem->block_bytes = mem->bytes;
    mem->host = mem->block;
    mem->address = (uintptr_t)mem->block;
    return TANDEM_OK;
}

tandem_status td_mem_make_device(tandem_session *s, td_mem *mem, VkBufferUsageFlags usage, char *why)
{
    const tandem_status status = td_vk_mem_create_device(s->vk, mem->bytes, usage, &mem->vk, why, TD_WHY_BYTES);

    mem->has_vk = true;
    mem->address = mem->vk.address;
    mem->device_share = mem->vk.allocation_bytes;
    return status;
}

tandem_status td_mem_make_private(tandem_session *s, td_mem *mem, bool zeroed, char *why)
{
    tandem_status status;

    if (td_is_inline(s))
        return td_mem_make_device(s, mem, TD_MEM_USAGE, why);
    if (!s->cu)
        return use_block(s, mem, zeroed, why);
    status = td_cu_mem_alloc(s->cu, mem->bytes, &mem->cu, why, TD_WHY_BYTES);
    if (status == TANDEM_OK && (zeroed || s->of_worker)) /* there it may have been another client's */
        status = td_cu_mem_clear(s->cu, &mem->cu, why, TD_WHY_BYTES);
    mem->address = mem->cu.address;
    return status;
}

/* In the inline rung's memory, which the host may not see. */
static tandem_status upload_zeros(tandem_session *s, td_mem *mem, char *why)
{
    const uint64_t piece = mem->bytes < 1 << 20 ? mem->bytes : 1 << 20;
    void *zeros = td_session_alloc(s, piece, 64);
    tandem_status status = TANDEM_OK;

    if (!zeros)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %" PRIu64 " bytes of zeros", piece);
    for (uint64_t at = 0; at < mem->bytes && status == TANDEM_OK; at += piece)
        status = td_inline_upload(s->stream, &mem->vk, at, zeros, mem->bytes - at < piece ? mem->bytes - at : piece, why,
                                  TD_WHY_BYTES);
    td_session_free(s, zeros, piece);
    return status;
}

tandem_status td_mem_make_zeros(tandem_session *s, td_mem *mem, char *why)
{
    const tandem_status status = td_mem_make_private(s, mem, true, why);

    return status == TANDEM_OK && td_is_inline(s) ? upload_zeros(s, mem, why) : status;
}

/* Near the GPU where that is possible: blocks read it one after the other. */
static tandem_status make_filled_inline(tandem_session *s, td_mem *mem, char *why)
{
    tandem_status status = td_vk_mem_create_near(s->vk, mem->bytes, TD_MEM_USAGE, &mem->vk, why, TD_WHY_BYTES);

    if (status == TANDEM_ERROR_UNSUPPORTED)
        status = td_vk_mem_create_mapped(s->vk, mem->bytes, TD_MEM_USAGE, &mem->vk, why, TD_WHY_BYTES);
    mem->has_vk = true;
    mem->host = mem->vk.host;
    mem->address = mem->vk.address;
    mem->device_share = mem->vk.allocation_bytes;
    return status;
}

tandem_status td_mem_make_filled(tandem_session *s, td_mem *mem, char *why)
{
    tandem_status status;

    if (td_is_inline(s)) {
        status = make_filled_inline(s, mem, why);
    } else if (s->cu) {
        status = td_cu_mem_alloc_host(s->cu, mem->bytes, &mem->cu, why, TD_WHY_BYTES);
        mem->host = mem->cu.host;
        mem->address = mem->cu.address;
        mem->host_share = mem->bytes;
    } else {
        return use_block(s, mem, true, why);
    }
    if (status == TANDEM_OK)
        memset(mem->host, 0, mem->bytes);
    return status;
}

/* What neither Vulkan nor CUDA nor the caller has memory for is a block of the session's. */
tandem_status td_local_mem_share(tandem_session *s, td_mem *mem, char *why)
{
    return s->vk || s->cu || mem->host ? TANDEM_OK : use_block(s, mem, true, why);
}
