/* Executor `vk_inline`: which kernels may run in a command buffer, and their modules. See vk_inline.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/vk_inline.h"

enum {
    /* Measured on sm_90, driver 580: 48 KB for all blocks of an SM, of which each takes 1 KB for the driver. */
    SHARED_BYTES = 47 * 1024,
    LOCAL_BYTES = 12 * 1024, /* the most that was tried */
    SM_REGISTERS = 65536,
    WARP = 32,
    WARP_REGISTERS = 256, /* a warp's are handed out in these steps */
    SM_QUARTERS = 4,      /* each has a quarter of the registers, and of a block every fourth warp */
    BLOCK_THREADS = 1024,
    GRID_YZ = 65535,
};
#define GRID_X 0x7fffffffu

/* Limits. */

static td_inline_function *find_function(const td_inline_stream *s, const char *entry)
{
    for (uint32_t i = 0; i < s->function_count; i++)
        if (s->functions[i].entry->entry == entry || !strcmp(s->functions[i].entry->entry, entry))
            return &s->functions[i];
    return NULL;
}

tandem_status td_inline_check_record(const td_inline_stream *s, const td_record *record, td_inline_function **out, char *why,
                                  size_t why_bytes)
{
    const char *entry = record->kernel->entry;
    td_inline_function *f = *out = entry ? find_function(s, entry) : NULL;
    uint64_t threads, warps, registers, shared;

#define REFUSE(...) return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, __VA_ARGS__)
    if (!entry)
        REFUSE("the kernel %s has no GPU version", record->kernel->name);
    if (!f)
        REFUSE("the kernel %s is not among those of sm_%u that fit into a command buffer", entry,
               (unsigned)s->cubin->sm);
    if (record->flags & TD_RECORD_CLUSTER)
        REFUSE("the kernel %s needs thread-block clusters, which a command buffer does not have", entry);
    if (record->flags & TD_RECORD_TENSOR_MAPS)
        REFUSE("the kernel %s needs tensor maps, which only CUDA makes", entry);
    for (uint32_t i = 0; i < record->reloc_count; i++)
        if (record->relocs[i].kind != TD_RELOC_POINTER)
            REFUSE("the kernel %s needs tensor maps, which only CUDA makes", entry);
    shared = (uint64_t)f->entry->shared_bytes + record->shared_bytes;
    if (shared > SHARED_BYTES)
        REFUSE("the kernel %s needs %llu bytes of shared memory; in a command buffer there are %d", entry,
               (unsigned long long)shared, SHARED_BYTES);
    threads = (uint64_t)record->block[0] * record->block[1] * record->block[2];
    if (!threads || threads > BLOCK_THREADS)
        REFUSE("the kernel %s has blocks of %llu threads; they have 1 to %d", entry, (unsigned long long)threads,
               BLOCK_THREADS);
    warps = td_align_up((threads + WARP - 1) / WARP, SM_QUARTERS);
    registers = f->entry->registers > record->registers ? f->entry->registers : record->registers;
    registers = td_align_up(registers * WARP, WARP_REGISTERS) * warps;
    if (!registers || registers > SM_REGISTERS)
        REFUSE("the kernel %s needs %llu registers for %llu threads; an SM has %d", entry,
               (unsigned long long)registers, (unsigned long long)threads, SM_REGISTERS);
    if (f->entry->local_bytes > LOCAL_BYTES || record->local_bytes > LOCAL_BYTES)
        REFUSE("the kernel %s needs %u bytes of local memory a thread; in a command buffer there are %d", entry,
               (unsigned)(f->entry->local_bytes > record->local_bytes ? f->entry->local_bytes : record->local_bytes),
               LOCAL_BYTES);
    if (!record->grid[0] || record->grid[0] > GRID_X)
        REFUSE("the kernel %s has a grid of %u in x; it may be 1 to %u", entry, (unsigned)record->grid[0], GRID_X);
    for (int i = 1; i < 3; i++)
        if (!record->grid[i] || record->grid[i] > GRID_YZ)
            REFUSE("the kernel %s has a grid of %u in %c; it may be 1 to %d", entry, (unsigned)record->grid[i],
                   "xyz"[i], GRID_YZ);
    if (!record->param_bytes || record->param_bytes > TD_PARAM_BYTES)
        REFUSE("the kernel %s has %u bytes of parameters; it may have 1 to %d", entry, (unsigned)record->param_bytes,
               TD_PARAM_BYTES);
#undef REFUSE
    return TANDEM_OK;
}

tandem_status td_inline_check(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes)
{
    const td_inline_stream *s = (const td_inline_stream *)stream;
    tandem_status status = TANDEM_OK;
    td_inline_function *found;

    for (uint32_t i = 0; i < plan->record_count && status == TANDEM_OK; i++)
        status = td_inline_check_record(s, &plan->records[i], &found, why, why_bytes);
    return status;
}

/* Kernels. */

static void unload_image(td_inline_stream *s, uint32_t image)
{
    for (uint32_t i = 0; i < s->function_count; i++) {
        td_inline_function *f = &s->functions[i];

        if (f->image != image || !f->handle)
            continue;
        s->fn->DestroyCuFunctionNVX(s->vk->device, f->handle, NULL);
        f->handle = VK_NULL_HANDLE;
    }
    if (s->modules[image])
        s->fn->DestroyCuModuleNVX(s->vk->device, s->modules[image], NULL);
    s->modules[image] = VK_NULL_HANDLE;
}

static tandem_status load_module(td_inline_stream *s, uint32_t image, char *why, size_t why_bytes)
{
    const td_image *from = &s->cubin->images[image];
    VkCuModuleCreateInfoNVX info = {.sType = VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX,
                                    .dataSize = from->image_bytes};
    void *bytes;
    const tandem_status status = td_cubin_image(s->cubin, from, &bytes, why, why_bytes);
    VkResult result;

    if (status != TANDEM_OK)
        return status;
    info.pData = bytes;
    result = s->fn->CreateCuModuleNVX(s->vk->device, &info, NULL, &s->modules[image]);
    free(bytes);
    if (result == VK_SUCCESS)
        return TANDEM_OK;
    s->modules[image] = VK_NULL_HANDLE;
    return td_inline_fail(s, result, "vkCreateCuModuleNVX", why, why_bytes);
}

static tandem_status load_function(td_inline_stream *s, td_inline_function *f, char *why, size_t why_bytes)
{
    const VkCuFunctionCreateInfoNVX info = {.sType = VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX,
                                            .module = s->modules[f->image],
                                            .pName = f->entry->entry};
    VkResult result = s->fn->CreateCuFunctionNVX(s->vk->device, &info, NULL, &f->handle);
    char call[96];

    if (result == VK_SUCCESS)
        return TANDEM_OK;
    f->handle = VK_NULL_HANDLE;
    snprintf(call, sizeof call, "vkCreateCuFunctionNVX of %s", f->entry->entry);
    return td_inline_fail(s, result, call, why, why_bytes);
}

/* With all of its functions, or not at all. */
tandem_status td_inline_load(td_inline_stream *s, uint32_t image, char *why, size_t why_bytes)
{
    tandem_status status = load_module(s, image, why, why_bytes);

    for (uint32_t i = 0; i < s->function_count && status == TANDEM_OK; i++)
        if (s->functions[i].image == image)
            status = load_function(s, &s->functions[i], why, why_bytes);
    if (status != TANDEM_OK)
        unload_image(s, image);
    return status;
}

void td_inline_free_kernels(td_inline_stream *s)
{
    for (uint32_t i = 0; s->modules && i < s->cubin->image_count; i++)
        unload_image(s, i);
    free(s->modules);
    free(s->functions);
}

static bool fits(const td_cubin_entry *entry)
{
    return entry->shared_bytes <= SHARED_BYTES && entry->local_bytes <= LOCAL_BYTES;
}

tandem_status td_inline_load_kernels(td_inline_stream *s, char *why, size_t why_bytes)
{
    const td_cubin *cubin = s->cubin;
    tandem_status status = TANDEM_OK;
    const td_inline_function *stamp;

    s->modules = calloc(cubin->image_count, sizeof *s->modules);
    s->functions = calloc(td_cubin_entry_count(cubin), sizeof *s->functions);
    if (!s->modules || !s->functions)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a list of %u kernels",
                       (unsigned)td_cubin_entry_count(cubin));
    for (uint32_t i = 0; i < cubin->image_count; i++)
        for (uint32_t at = 0; at < cubin->images[i].entry_count; at++)
            if (fits(&cubin->images[i].entries[at]))
                s->functions[s->function_count++] =
                    (td_inline_function){.entry = &cubin->images[i].entries[at], .image = i};
    for (uint32_t i = 0; i < cubin->image_count && status == TANDEM_OK; i++)
        if (!cubin->images[i].on_demand)
            status = td_inline_load(s, i, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    stamp = find_function(s, "stamp");
    if (!stamp || !stamp->handle)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel stamp is in no image that was loaded");
    s->stamp = stamp->handle;
    return TANDEM_OK;
}
