/* Executor `cu_stream`: the kernels of a stream, and which of them a record is.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An image is loaded with every function of it (cu_modules.h) at creation. Left to itself the driver loads a function at its first
 * launch, and may synchronise the context for it: with a stream that waits for a timeline, that is a deadlock. Images that are
 * loaded on demand find the stream idle, for the same reason.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/cu_stream.h"

enum { PORTABLE_CLUSTER = 8 };

/* For how long a submit waits for those before it, if its kernels are not loaded yet. */
static const uint64_t idle_limit_ns = 1000000000u;

/* Takes an image's kernels over, which may have been loaded for another stream. */
static tandem_status load_image(td_cuda_stream *stream, uint32_t image, char *why, size_t why_bytes)
{
    const tandem_status status = td_cu_modules_load(stream->device, stream->modules, image, why, why_bytes);

    for (uint32_t i = 0; !status && i < stream->function_count; i++)
        if (stream->functions[i].image == image)
            stream->functions[i].kernel = td_cu_modules_kernel(stream->modules, i);
    return status;
}

/* For a plan that needs it first. The driver may wait for all that is pending while it loads, and that may wait for what the
 * caller does next: so the stream has to be idle, for which it is given a while. */
static tandem_status load_on_demand(td_cuda_stream *stream, uint32_t image, char *why, size_t why_bytes)
{
    if (!td_cu_modules_has(stream->modules, image) && !td_cuda_drain(&stream->base, idle_limit_ns))
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY,
                       "the kernels %s cannot be loaded before what is pending is over: %u ms did not do",
                       stream->cubin->images[image].name, (unsigned)(idle_limit_ns / 1000000));
    return load_image(stream, image, why, why_bytes);
}

void td_cuda_free_kernels(td_cuda_stream *stream)
{
    td_cu_modules_put(stream->device, &stream->modules);
    free(stream->functions);
    stream->functions = NULL;
    stream->function_count = 0;
}

static tandem_status list_functions(td_cuda_stream *stream, const td_cubin *cubin, char *why, size_t why_bytes)
{
    const tandem_status status = td_cu_modules_get(stream->device, cubin, &stream->modules, why, why_bytes);

    if (status)
        return status;
    stream->cubin = cubin;
    stream->functions = calloc(td_cubin_entry_count(cubin), sizeof *stream->functions);
    if (!stream->functions)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a list of %u kernels",
                       (unsigned)td_cubin_entry_count(cubin));
    for (uint32_t i = 0; i < cubin->image_count; i++)
        for (uint32_t at = 0; at < cubin->images[i].entry_count; at++)
            stream->functions[stream->function_count++] =
                (td_cuda_function){.entry = cubin->images[i].entries[at].entry, .image = i};
    return TANDEM_OK;
}

static tandem_status load_images(td_cuda_stream *stream, const td_cubin *cubin, char *why, size_t why_bytes)
{
    tandem_status status = list_functions(stream, cubin, why, why_bytes);

    for (uint32_t i = 0; !status && i < cubin->image_count; i++)
        if (!cubin->images[i].on_demand)
            status = load_image(stream, i, why, why_bytes);
    return status;
}

/* By where the name is before what it is: a plan has it at the same place each time. */
static bool is_function(const td_cuda_function *f, const char *entry)
{
    return f && f->asked == entry && !strcmp(f->entry, entry);
}

static td_cuda_function *find_function(td_cuda_stream *stream, const char *entry)
{
    for (uint32_t i = 0; i < stream->function_count; i++)
        if (is_function(&stream->functions[i], entry))
            return &stream->functions[i];
    for (uint32_t i = 0; i < stream->function_count; i++)
        if (!strcmp(stream->functions[i].entry, entry)) {
            stream->functions[i].asked = entry;
            return &stream->functions[i];
        }
    return NULL;
}

tandem_status td_cuda_load_kernels(td_cuda_stream *stream, const td_cubin *cubin, char *why, size_t why_bytes)
{
    const uint32_t sm = stream->device->info.sm;
    const td_cuda_function *stamp;
    tandem_status status;

    if (!cubin)
        cubin = td_cubin_for_sm(sm, why, why_bytes);
    if (!cubin)
        return TANDEM_ERROR_UNSUPPORTED;
    status = load_images(stream, cubin, why, why_bytes);
    if (status == TANDEM_ERROR_UNSUPPORTED && !cubin->ptx) {
        const td_cubin *ptx = NULL, *table;
        uint32_t count;

        table = td_cubins(&count);
        for (uint32_t i = 0; i < count; i++)
            if (table[i].ptx && table[i].sm <= sm)
                ptx = &table[i];
        if (ptx) {
            td_logf(&stream->base.log, TD_LOG_WARN, "%s; the driver compiles PTX instead", why);
            td_cuda_free_kernels(stream);
            status = load_images(stream, ptx, why, why_bytes);
        }
    }
    if (status)
        return status;
    stamp = find_function(stream, "stamp");
    if (!stamp || !stamp->kernel.handle)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel stamp is in no image that was loaded");
    stream->stamp = stamp->kernel.handle;
    return TANDEM_OK;
}

static bool has_clusters(const td_cu_device *device)
{
    return device->info.sm >= 90 && device->table.cuLaunchKernelEx;
}

static tandem_status function_of(td_cuda_stream *stream, const td_record *record, td_cuda_function **out, char *why,
                                 size_t why_bytes)
{
    const char *entry = record->kernel->entry;
    td_cu_device *device = stream->device;
    td_cuda_function *f;
    tandem_status status;

    if (!entry)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s has no GPU version",
                       record->kernel->name);
    if (record->flags & ~(uint32_t)(TD_RECORD_PDL | (has_clusters(device) ? TD_RECORD_CLUSTER : 0) |
                                    (device->table.cuTensorMapEncodeTiled ? TD_RECORD_TENSOR_MAPS : 0)))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s needs launch features (flags %u)",
                       entry, (unsigned)record->flags);
    f = is_function(*out, entry) ? *out : find_function(stream, entry);
    if (!f)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s is in no image for %s_%u", entry,
                       stream->cubin->ptx ? "compute" : "sm", (unsigned)stream->cubin->sm);
    if (!f->kernel.handle) {
        status = load_on_demand(stream, f->image, why, why_bytes);
        if (status)
            return status;
    }
    *out = f;
    if (record->flags & TD_RECORD_CLUSTER && record->cluster > PORTABLE_CLUSTER && !f->wide_clusters) {
        status = td_cu_check(device, TD_CU(device, cuFuncSetAttribute, f->kernel.handle, TD_CU_FUNCTION_WIDE_CLUSTERS, 1), why,
                             why_bytes, "clusters of %u blocks for %s: cuFuncSetAttribute", (unsigned)record->cluster,
                             entry);
        if (status)
            return status;
        f->wide_clusters = true;
    }
    if (record->shared_bytes <= f->kernel.shared_bytes)
        return TANDEM_OK;
    if (record->shared_bytes + f->kernel.static_bytes > device->shared_limit)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "the kernel %s needs %u bytes of shared memory; %s has %u", entry,
                       (unsigned)(record->shared_bytes + f->kernel.static_bytes), device->info.name,
                       (unsigned)device->shared_limit);
    status = td_cu_modules_widen(device, stream->modules, (uint32_t)(f - stream->functions), record->shared_bytes, why,
                                 why_bytes);
    f->kernel = td_cu_modules_kernel(stream->modules, (uint32_t)(f - stream->functions));
    return status;
}

tandem_status td_cuda_functions_of(td_cuda_stream *stream, const td_plan *plan, td_cuda_function ***list, uint32_t *room,
                                   char *why, size_t why_bytes)
{
    const uint32_t count = plan->record_count;
    tandem_status status = TANDEM_OK;

    if (count > *room) {
        td_cuda_function **longer = calloc(count, sizeof *longer);

        if (!longer)
            return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a list of %u kernels", (unsigned)count);
        free(*list);
        *list = longer;
        *room = count;
    }
    for (uint32_t i = 0; !status && i < count; i++)
        status = function_of(stream, &plan->records[i], &(*list)[i], why, why_bytes);
    return status;
}
