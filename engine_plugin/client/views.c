/* The views of a job: what they name, and whether they keep to it and out of each other's way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"

/* What shows at once that a view's strides are those of bytes. */
#define REACHES "%s reaches byte %" PRIu64 " of a mem of %" PRIu64 " bytes"
#define STRIDES ": strides count elements, not bytes"

static uint64_t reach_of(const tandem_view *view, uint64_t extent)
{
    uint64_t end;

    return td_add_u64(view->offset_bytes, extent, &end) ? end : UINT64_MAX;
}

static td_extent extent_of(const tandem_view *view, const uint32_t shape[4], uint64_t bytes)
{
    const td_dtype of = td_dtype_of(view->dtype);
    const int64_t strides[3] = {view->stride_batch, view->stride_head, view->stride_row};
    td_extent e = {.bytes = bytes, .row_bytes = (uint64_t)shape[3] / of.elements * of.bytes};

    if (td_dtype_is_codes(view->dtype)) {
        e.row_bytes = bytes; /* dense, with the scales behind */
        return e;
    }
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t stride = (uint64_t)strides[i] / of.elements * of.bytes;
        uint32_t at = e.dimensions;

        if (shape[i] <= 1 || !strides[i])
            continue;
        for (; at > 0 && e.stride[at - 1] > stride; at--) {
            e.stride[at] = e.stride[at - 1];
            e.count[at] = e.count[at - 1];
        }
        e.stride[at] = stride;
        e.count[at] = shape[i];
        e.dimensions++;
    }
    return e;
}

/* Where a view is. Two mems may name the same memory: addresses tell where one sees both, the engine's VkDeviceMemory
 * where each import has addresses of its own. */
typedef struct box {
    VkDeviceMemory memory; /* VK_NULL_HANDLE: begin is an address */
    uint64_t begin, end;
    const td_extent *extent;
} box;

static box make_box(const td_mem *mem, const tandem_view *view, const td_extent *extent)
{
    const bool shared = mem->has_vk && (!mem->host || mem->source == TANDEM_MEM_VULKAN);
    const uint64_t base = shared ? mem->vk.offset : mem->host ? (uintptr_t)mem->host : mem->address;
    const uint64_t begin = base + view->offset_bytes;

    return (box){shared ? mem->vk.memory : VK_NULL_HANDLE, begin, begin + extent->bytes, extent};
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* False if the views cannot share a byte: their ranges are apart, or they are interleaved, that is, modulo the greatest
 * common divisor of their outer strides their inner parts are apart. */
static bool overlap(const box *one, const box *other)
{
    const td_extent *a = one->extent, *b = other->extent;

    if (one->memory != other->memory || one->end <= other->begin || other->end <= one->begin)
        return false;
    for (uint32_t inner_a = 0; inner_a <= a->dimensions; inner_a++)
        for (uint32_t inner_b = 0; inner_b <= b->dimensions; inner_b++) {
            uint64_t span_a = a->row_bytes, span_b = b->row_bytes, period = 0, apart;

            for (uint32_t i = 0; i < a->dimensions; i++)
                if (i < inner_a)
                    span_a += a->stride[i] * (a->count[i] - 1);
                else
                    period = gcd(period, a->stride[i]);
            for (uint32_t i = 0; i < b->dimensions; i++)
                if (i < inner_b)
                    span_b += b->stride[i] * (b->count[i] - 1);
                else
                    period = gcd(period, b->stride[i]);
            if (!period || span_a > period || span_b > period)
                continue;
            apart = (other->begin % period + period - one->begin % period) % period;
            if (apart >= span_a && period - apart >= span_b)
                return false;
        }
    return true;
}

void td_job_set_view_count(td_job *job, uint32_t count)
{
    job->view_count = count;
    memset(job->mems, 0, count * sizeof *job->mems);
    memset(job->views, 0, count * sizeof *job->views);
    memset(job->staging.later, 0, count * sizeof *job->staging.later);
}

tandem_status td_job_bind_view_locked(tandem_session *s, td_job *job, uint32_t index, const tandem_view *view,
                                      const uint32_t shape[4], uint32_t alignment, char *why)
{
    const char *name = job->names[index];
    char what[128];
    uint64_t extent, end;
    td_mem *mem;

    snprintf(what, sizeof what, "%s.mem", name);
    mem = td_mem_find_locked(s, view->mem, what, why);
    if (!mem)
        return TANDEM_ERROR_ARG;
    if (mem->of_model && job->written[index])
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s.mem is 0x%" PRIx64 ", which belongs to a model", name,
                       view->mem);
    extent = td_view_extent_bytes(view, shape[0], shape[1], shape[2], shape[3]);
    if (extent == UINT64_MAX || !td_add_u64(view->offset_bytes, extent, &end) || end > mem->bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "%s.offset_bytes is %" PRIu64 ", and its %" PRIu64 " bytes go beyond the %" PRIu64
                       " of mem 0x%" PRIx64 ": " REACHES STRIDES,
                       name, view->offset_bytes, extent, mem->bytes, view->mem, name, reach_of(view, extent),
                       mem->bytes);
    if ((mem->address + view->offset_bytes) % alignment)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s is at address 0x%" PRIx64 ", not a multiple of %u",
                       name, mem->address + view->offset_bytes, alignment);
    job->extents[index] = extent_of(view, shape, extent);
    job->mems[index] = mem;
    job->views[index] = mem->address + view->offset_bytes;
    return TANDEM_OK;
}

tandem_status td_job_views_apart(const td_job *job, uint32_t first, const tandem_view *const *views, char *why)
{
    for (uint32_t w = first; w < job->view_count; w++) {
        if (!job->mems[w] || !job->written[w])
            continue;
        const box written = make_box(job->mems[w], views[w], &job->extents[w]);
        for (uint32_t i = first; i < job->view_count; i++) {
            if (!job->mems[i] || i == w || (i > w && job->written[i]))
                continue;
            const box other = make_box(job->mems[i], views[i], &job->extents[i]);
            if (!overlap(&written, &other))
                continue;
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "%s.offset_bytes is %" PRIu64 ": it overlaps %s at %" PRIu64 " of mem 0x%" PRIx64 ": " REACHES
                           " and " REACHES STRIDES,
                           job->names[w], views[w]->offset_bytes, job->names[i], views[i]->offset_bytes, views[i]->mem,
                           job->names[i], reach_of(views[i], job->extents[i].bytes), job->mems[i]->bytes,
                           job->names[w], reach_of(views[w], job->extents[w].bytes), job->mems[w]->bytes);
        }
    }
    return TANDEM_OK;
}

tandem_operands td_operands_at(const td_operation *operation, const tandem_operands *op, const uint64_t addresses[TD_MAX_VIEWS])
{
    tandem_operands placed = *op;

    for (uint32_t i = 0; i < operation->layout.view_count; i++)
        td_view_of(&operation->layout, &placed, i)->offset_bytes = addresses[i];
    return placed;
}
