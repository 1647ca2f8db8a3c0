/* What Vulkan gives to others: descriptors of memory and semaphores.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Where an object is exported once only, ever (td_opaque.exported_once), its descriptor is kept here, and all who ask get
 * duplicates. Objects of the engine's may be shared by several td_vk of one device, so all of them are in one list; each keeps a
 * duplicate of its own, for as long as it uses the object. What it has kept longer would be another's, whose handle has the same
 * value.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/descriptor.h"
#include "interop/vk/table.h"

typedef struct exported {
    struct exported *next;
    const td_vk *vk;
    td_vk_handle_info info;
    uint32_t users;
    int fd;
} exported;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static exported *all;

/* Of this td_vk, or else of another one on its device. */
static exported *find(const td_vk *vk, VkStructureType kind, uint64_t object)
{
    exported *found = NULL;

    for (exported *e = all; e; e = e->next)
        if (e->vk->device == vk->device && e->info.sType == kind && e->info.object == object && (!found || e->vk == vk))
            found = e;
    return found;
}

static void take_out(exported *gone)
{
    exported **at = &all;

    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    td_fd_close(&gone->fd);
    free(gone);
}

static tandem_status get(td_vk *vk, const td_vk_handle_info *info, int *fd, char *why, size_t why_bytes)
{
    const bool is_memory = info->sType == (VkStructureType)td_opaque.get_memory_struct;
    td_opaque_handle handle = td_opaque_of(-1);
    const VkResult result = (is_memory ? vk->fn.get_memory_handle : vk->fn.get_semaphore_handle)(vk->device, info, &handle);

    *fd = -1;
    if (result != VK_SUCCESS)
        return td_vk_result(result, is_memory ? td_opaque.get_memory : td_opaque.get_semaphore, why, why_bytes);
    *fd = td_opaque_fd(handle);
    return *fd >= 0 ? TANDEM_OK
                    : td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s gave no handle",
                              is_memory ? td_opaque.get_memory : td_opaque.get_semaphore);
}

/* Keeps the first descriptor of an object, or a duplicate of the one that is there. */
static tandem_status keep_locked(td_vk *vk, const td_vk_handle_info *info, exported **out, char *why, size_t why_bytes)
{
    exported *there = find(vk, info->sType, info->object), *e = there;
    tandem_status status = TANDEM_OK;

    if (!e || e->vk != vk) {
        e = calloc(1, sizeof *e); /* before there is something to lose */
        if (!e)
            return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%zu bytes of host memory", sizeof *e);
        *e = (exported){.vk = vk, .info = *info, .fd = -1};
        if (!there)
            status = get(vk, info, &e->fd, why, why_bytes);
        else if ((e->fd = td_fd_dup(there->fd)) < 0)
            status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a duplicate of what was exported: %s", strerror(errno));
        if (status != TANDEM_OK) {
            free(e);
            return status;
        }
        e->next = all;
        all = e;
    }
    *out = e;
    return TANDEM_OK;
}

tandem_status td_vk_export(td_vk *vk, const td_vk_handle_info *info, bool *counted, int *fd, char *why, size_t why_bytes)
{
    exported *e = NULL;
    tandem_status status;

    *fd = -1;
    if (!td_opaque.exported_once)
        return get(vk, info, fd, why, why_bytes);
    pthread_mutex_lock(&lock);
    status = keep_locked(vk, info, &e, why, why_bytes);
    if (status == TANDEM_OK && !*counted) {
        e->users++;
        *counted = true;
    }
    if (status == TANDEM_OK && (*fd = td_fd_dup(e->fd)) < 0)
        status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a duplicate of what was exported: %s", strerror(errno));
    pthread_mutex_unlock(&lock);
    return status;
}

void td_vk_export_end(td_vk *vk, int32_t kind, uint64_t object, bool all_users)
{
    exported *e;

    pthread_mutex_lock(&lock);
    e = find(vk, (VkStructureType)kind, object);
    if (e && e->vk == vk && (all_users || --e->users == 0))
        take_out(e);
    pthread_mutex_unlock(&lock);
}

void td_vk_exports_free(td_vk *vk)
{
    pthread_mutex_lock(&lock);
    for (exported *e = all, *next; e; e = next) {
        next = e->next;
        if (e->vk == vk)
            take_out(e);
    }
    pthread_mutex_unlock(&lock);
}
