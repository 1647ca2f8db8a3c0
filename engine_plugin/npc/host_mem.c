/* A mem that the host reads and writes, on every rung. See host_mem.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/host_mem.h"

#include <stdlib.h>

#include "interop/base.h"

enum { PAGE_BYTES = 65536 }; /* of no machine they are larger */

/* Where sessions share memory of a GPU with Vulkan the host sees none of it, but the GPU sees the host's. */
static tandem_status share_pages(tandem_session *session, uint64_t bytes, td_host_mem *out)
{
    const uint64_t whole = td_align_up(bytes, PAGE_BYTES);
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = whole};
    tandem_status status;

    out->pages = malloc((size_t)whole + PAGE_BYTES - 1);
    if (!out->pages)
        return TANDEM_ERROR_NOMEM;
    desc.host = (void *)(uintptr_t)td_align_up((uintptr_t)out->pages, PAGE_BYTES);
    status = tandem_mem_create(session, &desc, &out->mem);
    if (status != TANDEM_OK) {
        free(out->pages);
        *out = (td_host_mem){0};
        return status;
    }
    out->host = desc.host;
    return TANDEM_OK;
}

tandem_status td_host_mem_make(tandem_session *session, uint64_t bytes, td_host_mem *out)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_status status = tandem_mem_create(session, &desc, &out->mem);

    out->host = out->pages = NULL;
    if (status == TANDEM_OK)
        status = tandem_mem_host(session, out->mem, &out->host);
    if (status == TANDEM_OK)
        return status;
    if (out->mem)
        tandem_mem_destroy(session, out->mem);
    *out = (td_host_mem){0};
    return status == TANDEM_ERROR_UNSUPPORTED ? share_pages(session, bytes, out) : status;
}

void td_host_mem_free(tandem_session *session, td_host_mem *m)
{
    /* What a job still runs on stays. */
    if (m->mem && tandem_mem_destroy(session, m->mem) == TANDEM_ERROR_BUSY)
        m->pages = NULL;
    free(m->pages);
    *m = (td_host_mem){0};
}
