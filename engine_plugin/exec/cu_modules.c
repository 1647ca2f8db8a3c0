/* Kernels in a CUDA context: loading, sharing, unloading.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "engine_plugin/exec/cu_modules.h"
#include "interop/os/thread.h"

enum { PLAIN_SHARED_BYTES = 48 * 1024 }; /* of a block, static ones included, unless the driver is asked for more */

struct td_cu_modules {
    td_cu_context context;
    const td_cubin *cubin;
    td_cu_modules *next;
    uint32_t users;
    bool abandoned; /* by one of them: nobody finds it any more */
    pthread_mutex_t lock; /* of what follows; held while an image is loaded */
    td_cu_module *loaded; /* by image; NULL: it is not */
    td_cu_kernel *kernels;
};

/* All that streams of this process use, by context and cubin. */
static struct {
    pthread_mutex_t lock; /* of the list and its counts; never held across a call of the driver */
    td_cu_modules *first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void free_modules(td_cu_modules *m)
{
    pthread_mutex_destroy(&m->lock);
    free(m->loaded);
    free(m->kernels);
    free(m);
}

static td_cu_modules *make_modules(td_cu_device *device, const td_cubin *cubin)
{
    td_cu_modules *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    *m = (td_cu_modules){.context = device->context,
                         .cubin = cubin,
                         .users = 1,
                         .lock = PTHREAD_MUTEX_INITIALIZER,
                         .loaded = calloc(cubin->image_count, sizeof *m->loaded),
                         .kernels = calloc(td_cubin_entry_count(cubin), sizeof *m->kernels)};
    if (m->loaded && m->kernels)
        return m;
    free_modules(m);
    return NULL;
}

tandem_status td_cu_modules_get(td_cu_device *device, const td_cubin *cubin, td_cu_modules **out, char *why,
                                size_t why_bytes)
{
    td_cu_modules *m;

    pthread_mutex_lock(&all.lock);
    for (m = all.first; m; m = m->next)
        if (m->context == device->context && m->cubin == cubin && !m->abandoned)
            break;
    if (m) {
        m->users++;
    } else if ((m = make_modules(device, cubin))) {
        m->next = all.first;
        all.first = m;
    }
    pthread_mutex_unlock(&all.lock);
    *out = m;
    return m ? TANDEM_OK
             : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a list of %u kernels",
                       (unsigned)td_cubin_entry_count(cubin));
}

/* Out of the list if this was the last user. */
static bool leave(td_cu_modules *m, bool abandons)
{
    bool was_last;

    pthread_mutex_lock(&all.lock);
    m->abandoned |= abandons;
    was_last = !--m->users;
    if (was_last) {
        td_cu_modules **at = &all.first;

        while (*at != m)
            at = &(*at)->next;
        *at = m->next;
    }
    pthread_mutex_unlock(&all.lock);
    return was_last;
}

void td_cu_modules_put(td_cu_device *device, td_cu_modules **modules)
{
    td_cu_modules *m = *modules;

    *modules = NULL;
    if (!m || !leave(m, false))
        return;
    for (uint32_t i = 0; i < m->cubin->image_count; i++)
        if (m->loaded[i])
            TD_CU(device, cuModuleUnload, m->loaded[i]);
    free_modules(m);
}

void td_cu_modules_abandon(td_cu_modules **modules)
{
    td_cu_modules *m = *modules;

    *modules = NULL;
    if (m && leave(m, true))
        free_modules(m);
}

/* --- Loading --- */

/* Loads a module; of PTX the driver makes one. */
static tandem_status load_module(td_cu_device *device, td_cu_modules *m, uint32_t image, char *why, size_t why_bytes)
{
    const td_image *from = &m->cubin->images[image];
    const bool ptx = m->cubin->ptx;
    char errors[512] = "";
    int options[] = {TD_CU_JIT_ERROR_LOG, TD_CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {errors, (void *)(uintptr_t)sizeof errors};
    td_cu_result result;
    void *bytes;
    const tandem_status status = td_cubin_image(m->cubin, from, &bytes, why, why_bytes);

    if (status)
        return status;
    result = TD_CU(device, cuModuleLoadDataEx, &m->loaded[image], bytes, ptx ? 2 : 0, options, values);
    free(bytes);
    if (result)
        m->loaded[image] = NULL;
    return td_cu_check(device, result, why, why_bytes, "the kernels %s for %s_%u do not load%s%s: cuModuleLoadDataEx",
                       from->name, ptx ? "compute" : "sm", (unsigned)m->cubin->sm, errors[0] ? ": " : "", errors);
}

static tandem_status load_kernel(td_cu_device *device, td_cu_module module, const char *entry, td_cu_kernel *kernel,
                                 char *why, size_t why_bytes)
{
    tandem_status status;
    int registers, bytes = 0;

    status = td_cu_check(device, TD_CU(device, cuModuleGetFunction, &kernel->handle, module, entry), why, why_bytes,
                         "the kernel %s: cuModuleGetFunction", entry);
    if (!status && device->table.cuFuncLoad)
        status = td_cu_check(device, TD_CU(device, cuFuncLoad, kernel->handle), why, why_bytes,
                             "the kernel %s: cuFuncLoad", entry);
    if (!status) /* makes older drivers load it */
        status = td_cu_check(device,
                             TD_CU(device, cuFuncGetAttribute, &registers, TD_CU_FUNCTION_REGISTERS, kernel->handle),
                             why, why_bytes, "the kernel %s: cuFuncGetAttribute", entry);
    if (!status)
        status = td_cu_check(device,
                             TD_CU(device, cuFuncGetAttribute, &bytes, TD_CU_FUNCTION_STATIC_SHARED, kernel->handle),
                             why, why_bytes, "the kernel %s: cuFuncGetAttribute", entry);
    kernel->static_bytes = (uint32_t)bytes;
    kernel->shared_bytes = bytes < PLAIN_SHARED_BYTES ? PLAIN_SHARED_BYTES - (uint32_t)bytes : 0;
    return status;
}

/* The number of an image's first kernel. */
static uint32_t first_kernel(const td_cu_modules *m, uint32_t image)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < image; i++)
        at += m->cubin->images[i].entry_count;
    return at;
}

static tandem_status load_image(td_cu_device *device, td_cu_modules *m, uint32_t image, char *why, size_t why_bytes)
{
    const td_image *from = &m->cubin->images[image];
    td_cu_kernel *kernels = &m->kernels[first_kernel(m, image)];
    tandem_status status = load_module(device, m, image, why, why_bytes);

    for (uint32_t i = 0; !status && i < from->entry_count; i++)
        status = load_kernel(device, m->loaded[image], from->entries[i].entry, &kernels[i], why, why_bytes);
    if (!status)
        return TANDEM_OK;
    if (m->loaded[image])
        TD_CU(device, cuModuleUnload, m->loaded[image]);
    m->loaded[image] = NULL;
    for (uint32_t i = 0; i < from->entry_count; i++)
        kernels[i] = (td_cu_kernel){0};
    return status;
}

bool td_cu_modules_has(td_cu_modules *m, uint32_t image)
{
    bool has;

    pthread_mutex_lock(&m->lock);
    has = m->loaded[image] != NULL;
    pthread_mutex_unlock(&m->lock);
    return has;
}

tandem_status td_cu_modules_load(td_cu_device *device, td_cu_modules *m, uint32_t image, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&m->lock);
    if (!m->loaded[image])
        status = load_image(device, m, image, why, why_bytes);
    pthread_mutex_unlock(&m->lock);
    return status;
}

td_cu_kernel td_cu_modules_kernel(td_cu_modules *m, uint32_t at)
{
    td_cu_kernel kernel;

    pthread_mutex_lock(&m->lock);
    kernel = m->kernels[at];
    pthread_mutex_unlock(&m->lock);
    return kernel;
}

static const char *entry_of(const td_cu_modules *m, uint32_t at)
{
    const td_image *image = m->cubin->images;

    for (; at >= image->entry_count; image++)
        at -= image->entry_count;
    return image->entries[at].entry;
}

/* The driver keeps one limit a function: a smaller one of another stream's must not replace it. */
tandem_status td_cu_modules_widen(td_cu_device *device, td_cu_modules *m, uint32_t at, uint32_t shared_bytes, char *why,
                                  size_t why_bytes)
{
    td_cu_kernel *kernel = &m->kernels[at];
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&m->lock);
    if (kernel->shared_bytes < shared_bytes) {
        status = td_cu_check(
            device, TD_CU(device, cuFuncSetAttribute, kernel->handle, TD_CU_FUNCTION_DYNAMIC_SHARED, (int)shared_bytes),
            why, why_bytes, "%u bytes of shared memory for %s: cuFuncSetAttribute", (unsigned)shared_bytes,
            entry_of(m, at));
        if (!status)
            kernel->shared_bytes = shared_bytes;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}
