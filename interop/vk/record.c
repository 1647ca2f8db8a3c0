/* What is recorded into the engine's command buffers: barriers, pack and unpack of tiles.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "interop/vk/table.h"
#include "shaders/pack_shared.h"

static VkBufferMemoryBarrier whole(const td_vk_mem *mem)
{
    return (VkBufferMemoryBarrier){.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER,
                                   .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                   .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                   .buffer = mem->buffer,
                                   .offset = mem->buffer_offset,
                                   .size = mem->engines_buffer ? mem->bytes : VK_WHOLE_SIZE};
}

/* Whose a buffer is between two uses by others: the family's, or, as it is CONCURRENT, that of all. */
static uint32_t owner(const td_vk *vk)
{
    return vk->family_count > 1 ? VK_QUEUE_FAMILY_IGNORED : vk->queue_family;
}

void td_vk_record_release(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, td_vk_peer peer,
                          VkPipelineStageFlags src_stage, VkAccessFlags src_access)
{
    VkPipelineStageFlags dst_stage = VK_PIPELINE_STAGE_HOST_BIT;
    VkBufferMemoryBarrier barrier;

    if (!vk || !commands || !mem || !mem->buffer)
        return;
    barrier = whole(mem);
    barrier.srcAccessMask = src_access;
    barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT;
    if (peer == TD_VK_PEER_COMPUTE) {
        dst_stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
        barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    } else if (peer == TD_VK_PEER_EXTERNAL) {
        /* A release makes available; the semaphore signal that follows carries it on, so there is no stage to name. */
        dst_stage = VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT;
        barrier.dstAccessMask = 0;
        barrier.srcQueueFamilyIndex = owner(vk);
        barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    }
    vk->fn.CmdPipelineBarrier(commands, src_stage ? src_stage : VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, dst_stage, 0, 0,
                              NULL, 1, &barrier, 0, NULL);
}

void td_vk_record_acquire(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, td_vk_peer peer,
                          VkPipelineStageFlags dst_stage, VkAccessFlags dst_access)
{
    VkPipelineStageFlags src_stage;
    VkBufferMemoryBarrier barrier;

    if (!vk || !commands || !mem || !mem->buffer)
        return;
    if (peer == TD_VK_PEER_COMPUTE && dst_stage == VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT &&
        !(dst_access & ~(VkAccessFlags)(VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT)))
        return;
    if (!dst_stage)
        dst_stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    barrier = whole(mem);
    barrier.dstAccessMask = dst_access;
    /* The submit waits for the point at dst_stage or earlier: a barrier that begins there is chained to that wait. */
    src_stage = dst_stage;
    if (peer == TD_VK_PEER_COMPUTE) {
        /* Recorded kernels come before this in the same queue and have no point. */
        src_stage |= VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
        barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
    } else if (peer == TD_VK_PEER_EXTERNAL) {
        barrier.srcQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
        barrier.dstQueueFamilyIndex = owner(vk);
    } else {
        src_stage |= VK_PIPELINE_STAGE_HOST_BIT;
        barrier.srcAccessMask = VK_ACCESS_HOST_WRITE_BIT;
    }
    vk->fn.CmdPipelineBarrier(commands, src_stage, dst_stage, 0, 0, NULL, 1, &barrier, 0, NULL);
}

static void copy_whole(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *from, const td_vk_mem *to)
{
    const VkBufferCopy all = {
        .srcOffset = from->buffer_offset, .dstOffset = to->buffer_offset, .size = from->bytes};

    vk->fn.CmdCopyBuffer(commands, from->buffer, to->buffer, 1, &all);
}

void td_vk_record_stage_out(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_mem *staging,
                            VkPipelineStageFlags src_stage, VkAccessFlags src_access)
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkBufferMemoryBarrier before[2], after;

    if (!vk || !commands || !mem || !mem->buffer || !staging || !staging->buffer)
        return;
    before[0] = whole(mem);
    before[0].srcAccessMask = src_access;
    before[0].dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
    before[1] = whole(staging); /* an earlier copy from there, or to there */
    before[1].srcAccessMask = before[1].dstAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    vk->fn.CmdPipelineBarrier(commands, src_stage | transfer, transfer, 0, 0, NULL, 2, before, 0, NULL);
    copy_whole(vk, commands, mem, staging);
    after = whole(staging);
    after.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    after.dstAccessMask = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT;
    vk->fn.CmdPipelineBarrier(commands, transfer, VK_PIPELINE_STAGE_HOST_BIT, 0, 0, NULL, 1, &after, 0, NULL);
}

void td_vk_record_stage_in(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_mem *staging,
                           VkPipelineStageFlags dst_stage, VkAccessFlags dst_access)
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkBufferMemoryBarrier before[2], after;

    if (!vk || !commands || !mem || !mem->buffer || !staging || !staging->buffer)
        return;
    if (!dst_stage)
        dst_stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    before[0] = whole(staging);
    before[0].srcAccessMask = VK_ACCESS_HOST_WRITE_BIT;
    before[0].dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
    before[1] = whole(mem);
    before[1].srcAccessMask = before[1].dstAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    /* Begins at dst_stage as well: there, or earlier, the submit waits for its point. */
    vk->fn.CmdPipelineBarrier(commands, dst_stage | transfer | VK_PIPELINE_STAGE_HOST_BIT, transfer, 0, 0, NULL, 2,
                              before, 0, NULL);
    copy_whole(vk, commands, staging, mem);
    after = whole(mem);
    after.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    after.dstAccessMask = dst_access;
    vk->fn.CmdPipelineBarrier(commands, transfer, dst_stage, 0, 0, NULL, 1, &after, 0, NULL);
}

/* Pack and unpack */

static tandem_status check_images(const td_vk_pack *pack, bool unpack, char *why, size_t why_bytes)
{
    uint32_t most = unpack ? 1 : 4;

    if (pack->image_count < 1 || pack->image_count > most)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "image_count is %u, not in 1 to %u", pack->image_count, most);
    for (uint32_t i = 0; i < pack->image_count; i++)
        if (!pack->images[i])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "images[%u] is VK_NULL_HANDLE", i);
    if (pack->layout != VK_IMAGE_LAYOUT_GENERAL && (unpack || pack->layout != VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "layout is %d, not GENERAL%s", (int)pack->layout,
                       unpack ? "" : " or SHADER_READ_ONLY_OPTIMAL");
    if (unpack && pack->format != VK_FORMAT_R16G16B16A16_SFLOAT && pack->format != VK_FORMAT_R32G32B32A32_SFLOAT)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "format is %d, not R16G16B16A16_SFLOAT or R32G32B32A32_SFLOAT",
                       (int)pack->format);
    if (pack->channels < 1 || pack->channels > 4 * pack->image_count)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "channels is %u, not in 1 to %u", pack->channels,
                       4 * pack->image_count);
    if (!unpack && pack->view_channels < pack->channels)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "view_channels is %u, channels is %u", pack->view_channels,
                       pack->channels);
    return TANDEM_OK;
}

static tandem_status check_tiles(const td_vk_pack *pack, bool unpack, char *why, size_t why_bytes)
{
    /* Pixel coordinates stay within an int32 whatever is added up. */
    const uint32_t limit = 1u << 20;
    const struct {
        const char *name;
        uint32_t value, least, most;
    } all[] = {
        {"width", pack->width, 1, limit},
        {"height", pack->height, 1, limit},
        {"tile_width", pack->tile_width, 1, limit},
        {"tile_height", pack->tile_height, 1, limit},
        {"halo", pack->halo, 0, unpack ? 0 : limit},
        {"shift_x", pack->shift_x, 0, pack->tile_width - 1},
        {"shift_y", pack->shift_y, 0, pack->tile_height - 1},
        {"tiles_x", pack->tiles_x, 1, limit},
        {"tiles_y", pack->tiles_y, 1, limit},
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value < all[i].least || all[i].value > all[i].most)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is %u, not in %u to %u", all[i].name, all[i].value,
                           all[i].least, all[i].most);
    if ((uint64_t)pack->tiles_x * pack->tile_width > INT32_MAX / 2 ||
        (uint64_t)pack->tiles_y * pack->tile_height > INT32_MAX / 2)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%u x %u tiles of %u x %u are too many", pack->tiles_x,
                       pack->tiles_y, pack->tile_width, pack->tile_height);
    return TANDEM_OK;
}

typedef struct span {
    uint64_t batches, rows;
    uint64_t batches_a_range; /* as many as one binding reaches */
    uint64_t tile_bytes;      /* from a tile's first byte to its last */
} span;

/* Where the view lies in the mem: bounds, whole words, bindings. */
static tandem_status find_span(td_vk *vk, const td_vk_mem *mem, const td_vk_pack *pack, bool unpack, span *out,
                               char *why, size_t why_bytes)
{
    uint64_t size = pack->dtype == TANDEM_DTYPE_F16 ? 2 : 4;
    uint64_t channels = unpack ? pack->channels : pack->view_channels;
    uint64_t batch_span, row_span, last, end, most, step;

    if (pack->dtype != TANDEM_DTYPE_F16 && pack->dtype != TANDEM_DTYPE_F32)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "dtype is %u, not F16 or F32", pack->dtype);
    if (pack->stride_batch < 0 || pack->stride_row < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "stride_%s is %" PRId64,
                       pack->stride_batch < 0 ? "batch" : "row",
                       pack->stride_batch < 0 ? pack->stride_batch : pack->stride_row);
    if (size == 2 && ((pack->stride_batch | pack->stride_row) & 1 || pack->first_element & 1))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "first_element %" PRIu64 ", stride_batch %" PRId64 " and stride_row %" PRId64
                       " of f16 must be even",
                       pack->first_element, pack->stride_batch, pack->stride_row);
    out->batches = (uint64_t)pack->tiles_x * pack->tiles_y;
    out->rows = ((uint64_t)pack->tile_width + 2 * pack->halo) * ((uint64_t)pack->tile_height + 2 * pack->halo);
    if (!td_mul_u64(out->batches - 1, (uint64_t)pack->stride_batch, &batch_span) ||
        !td_mul_u64(out->rows - 1, (uint64_t)pack->stride_row, &row_span) ||
        !td_add_u64(pack->first_element, batch_span, &last) || !td_add_u64(last, row_span, &last) ||
        !td_add_u64(last, channels, &last) || !td_mul_u64(last, size, &end) || end > UINT64_MAX - 4)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "stride_batch %" PRId64 " and stride_row %" PRId64 " overflow with %" PRIu64 " tiles of %" PRIu64
                       " rows",
                       pack->stride_batch, pack->stride_row, out->batches, out->rows);
    end = td_align_up(end, 4);
    if (end > mem->bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, 
                       "the view ends at byte %" PRIu64 ", the mem at %" PRIu64 ": strides count elements, not bytes", end,
                       mem->bytes);
    /* Written rows must not overlap: batches one after the other, or interleaved within the rows. */
    if (!unpack && ((out->rows > 1 && (uint64_t)pack->stride_row < channels) ||
                    (out->batches > 1 && (uint64_t)pack->stride_batch < row_span + channels &&
                     ((uint64_t)pack->stride_batch < channels ||
                      (out->rows > 1 && (uint64_t)pack->stride_row < batch_span + channels)))))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "stride_batch %" PRId64 " and stride_row %" PRId64 " make rows of %" PRIu64 " channels overlap",
                       pack->stride_batch, pack->stride_row, channels);
    /* A binding begins at an aligned byte before its first tile and ends with a whole word. */
    out->tile_bytes = td_align_up((row_span + channels) * size, 4);
    most = vk->caps.max_storage_range;
    if (out->tile_bytes > most || most - out->tile_bytes < vk->storage_alignment)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "one tile of the view spans %" PRIu64 " bytes, maxStorageBufferRange is %" PRIu64,
                       out->tile_bytes, most);
    most -= out->tile_bytes + vk->storage_alignment;
    step = (uint64_t)pack->stride_batch * size;
    out->batches_a_range = step == 0 || most / step >= out->batches ? out->batches : most / step + 1;
    return TANDEM_OK;
}

static tandem_status record(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_pack *pack,
                            bool unpack, char *why, size_t why_bytes)
{
    VkDescriptorBufferInfo buffer;
    VkDescriptorImageInfo images[4];
    VkWriteDescriptorSet writes[2];
    td_vk_program program = TD_VK_PACK;
    td_vk_pipeline pipeline;
    struct td_pack_push push;
    tandem_status status;
    uint64_t most_rows, size = pack && pack->dtype == TANDEM_DTYPE_F16 ? 2 : 4;
    span view = {0};

    if (!vk || !commands || !mem || !pack) {
        const char *name = !vk ? "vk" : !commands ? "commands" : !mem ? "mem" : "pack";

        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is NULL", name);
    }
    if (!vk->caps.push_descriptor)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is not enabled",
                       VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
    if (!mem->buffer)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the mem has no VkBuffer");
    status = check_images(pack, unpack, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_tiles(pack, unpack, why, why_bytes);
    if (status == TANDEM_OK)
        status = find_span(vk, mem, pack, unpack, &view, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    most_rows = (uint64_t)TD_PACK_GROUP * vk->max_groups[0] * vk->max_groups[1];
    if (most_rows > UINT32_MAX / 2)
        most_rows = UINT32_MAX / 2;
    if (view.rows > most_rows)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "one tile of %" PRIu64 " rows is more than %" PRIu64,
                       view.rows, most_rows);
    if (view.batches_a_range > most_rows / view.rows)
        view.batches_a_range = most_rows / view.rows;

    if (unpack)
        program = pack->format == VK_FORMAT_R16G16B16A16_SFLOAT ? TD_VK_UNPACK_F16 : TD_VK_UNPACK_F32;
    status = td_vk_pipeline_get(vk, program, &pipeline, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    push = (struct td_pack_push){
        .rows = (uint32_t)view.rows,
        .row_width = pack->tile_width + 2 * pack->halo,
        .tiles_x = pack->tiles_x,
        .tile_width = pack->tile_width,
        .tile_height = pack->tile_height,
        .shift_x = pack->shift_x + pack->halo,
        .shift_y = pack->shift_y + pack->halo,
        .width = pack->width,
        .height = pack->height,
        .image_count = pack->image_count,
        .channels = pack->channels,
        .view_channels = unpack ? pack->channels : pack->view_channels,
        .half_floats = pack->dtype == TANDEM_DTYPE_F16,
        /* A stride that is never stepped may be any number: it is not truncated but left out. */
        .stride_batch = view.batches > 1 ? (uint32_t)pack->stride_batch : 0,
        .stride_row = view.rows > 1 ? (uint32_t)pack->stride_row : 0,
    };
    buffer = (VkDescriptorBufferInfo){.buffer = mem->buffer};
    for (uint32_t i = 0; i < 4; i++)
        images[i] = (VkDescriptorImageInfo){.imageView = pack->images[i < pack->image_count ? i : 0],
                                            .imageLayout = pack->layout};
    writes[0] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstBinding = 0,
                                       .descriptorCount = 1,
                                       .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       .pBufferInfo = &buffer};
    writes[1] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstBinding = 1,
                                       .descriptorCount = unpack ? 1 : 4,
                                       .descriptorType =
                                           unpack ? VK_DESCRIPTOR_TYPE_STORAGE_IMAGE : VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE,
                                       .pImageInfo = images};

    td_vk_label_begin(vk, commands, unpack ? "tandem unpack" : "tandem pack");
    vk->fn.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.pipeline);
    for (uint64_t batch = 0; batch < view.batches; batch += view.batches_a_range) {
        uint64_t left = view.batches - batch;
        uint64_t batches = left < view.batches_a_range ? left : view.batches_a_range;
        uint64_t begin = mem->buffer_offset + (pack->first_element + batch * (uint64_t)pack->stride_batch) * size;
        uint64_t groups = (batches * view.rows + TD_PACK_GROUP - 1) / TD_PACK_GROUP;
        uint64_t lines = (groups + vk->max_groups[0] - 1) / vk->max_groups[0];

        buffer.offset = begin & ~(vk->storage_alignment - 1);
        buffer.range = begin - buffer.offset + (batches - 1) * (uint64_t)pack->stride_batch * size + view.tile_bytes;
        push.first_batch = (uint32_t)batch;
        push.total = (uint32_t)(batches * view.rows);
        push.first_element = (uint32_t)((begin - buffer.offset) / size);
        push.whole_quads = ((buffer.offset | buffer.range | push.first_element * size | push.view_channels * size |
                             push.stride_batch * size | push.stride_row * size) &
                            15) == 0;
        vk->fn.CmdPushDescriptorSetKHR(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout, 0, 2, writes);
        vk->fn.CmdPushConstants(commands, pipeline.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
        vk->fn.CmdDispatch(commands, (uint32_t)(lines > 1 ? vk->max_groups[0] : groups), (uint32_t)lines, 1);
    }
    td_vk_label_end(vk, commands);
    return TANDEM_OK;
}

tandem_status td_vk_record_pack(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_pack *pack,
                                char *why, size_t why_bytes)
{
    return record(vk, commands, mem, pack, false, why, why_bytes);
}

tandem_status td_vk_record_unpack(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_pack *pack,
                                  char *why, size_t why_bytes)
{
    return record(vk, commands, mem, pack, true, why, why_bytes);
}
