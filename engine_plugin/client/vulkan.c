/* What is recorded into the engine's own command buffers, and what its device has to have for that.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/client.h"

enum { MAX_PIXELS = 1 << 20 };

tandem_status tandem_vulkan_requirements(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                         VkPhysicalDevice physical_device, uint32_t *count, tandem_requirement *list)
{
    const bool of_device = instance && physical_device;
    uint32_t n = 0, room, bytes = 0;
    char why[160];

    if (!count || !get_instance_proc_addr)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, count ? "get_instance_proc_addr is NULL" : "count is NULL");
    if (list && *count) {
        if (TD_STRUCT_CHECK("list[0]", list, why, sizeof why) != TANDEM_OK)
            return td_call_fail(__func__, TANDEM_ERROR_ARG, why);
        bytes = list[0].struct_bytes;
    }
    room = *count;
    for (const td_requirement *at = td_requirements; at < td_requirements + td_requirement_count; at++) {
        const td_vk_item *item = at->vk;

        if (!item || (item->kind != TD_VK_INSTANCE_EXTENSION && !of_device))
            continue;
        if (list && n < room) {
            tandem_requirement *const theirs = (void *)((char *)list + (size_t)n * bytes);
            const tandem_requirement r = {
                .kind = item->kind,
                .name = item->name,
                .available = td_vk_offers(get_instance_proc_addr, instance, physical_device, item),
                .feature_struct = item->feature_struct,
                .feature_offset = item->feature_offset,
                .buys = at->buys,
                .feature_struct_bytes = item->feature_struct_bytes,
            };

            theirs->struct_bytes = bytes;
            TD_STRUCT_OUT(theirs, &r);
        }
        n++;
    }
    *count = n;
    if (!list)
        return TANDEM_OK;
    if (n <= room)
        return TANDEM_OK;
    td_text(why, sizeof why, "*count is %u, and there are %u", room, n);
    return td_call_fail(__func__, TANDEM_ERROR_BUSY, why);
}

_Static_assert((int)TANDEM_REQUIREMENT_DEVICE_EXTENSION == TD_VK_DEVICE_EXTENSION &&
                   (int)TANDEM_REQUIREMENT_FEATURE == TD_VK_FEATURE,
               "kinds are passed on");

/* Takes a mem with a VkBuffer into use; released by the caller. */
static td_mem *use_buffer(tandem_session *s, tandem_mem id, const char *what, tandem_status *status, char *why)
{
    td_mem *mem;

    *status = TANDEM_ERROR_ARG;
    pthread_mutex_lock(&s->lock);
    mem = td_mem_find_locked(s, id, what, why);
    if (mem && !mem->vk.buffer) {
        *status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "%s is 0x%" PRIx64 ", which has no VkBuffer",
                          what, id);
        mem = NULL;
    }
    if (mem) {
        mem->object.uses++;
        *status = TANDEM_OK;
    }
    pthread_mutex_unlock(&s->lock);
    return mem;
}

static void unuse(tandem_session *s, td_mem *mem)
{
    if (!mem)
        return;
    pthread_mutex_lock(&s->lock);
    td_object_release_locked(s, &mem->object);
    pthread_mutex_unlock(&s->lock);
}

static tandem_status check_commands(tandem_session *s, VkCommandBuffer commands, char *why)
{
    if (!s->vk)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "commands is %p, but the session has no Vulkan device", (void *)commands);
    if (!commands)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "commands is NULL");
    return TANDEM_OK;
}

static void note_record(tandem_session *s, td_mem *mem, bool release)
{
    pthread_mutex_lock(&s->lock);
    *(release ? &mem->released : &mem->acquired) = true;
    pthread_mutex_unlock(&s->lock);
}

static tandem_status record_barrier(tandem_session *s, const char *call, bool release, VkCommandBuffer commands,
                                    tandem_mem id, VkPipelineStageFlags stage, VkAccessFlags access)
{
    const td_vk_peer peer = s && td_is_inline(s)      ? TD_VK_PEER_COMPUTE
                            : s && td_is_on_device(s) ? TD_VK_PEER_EXTERNAL
                                                      : TD_VK_PEER_HOST;
    char why[TD_WHY_BYTES] = "";
    td_mem *mem = NULL;
    tandem_status status;

    if (!td_session_usable(s, call))
        return TANDEM_ERROR_ARG;
    status = check_commands(s, commands, why);
    if (status == TANDEM_OK && !stage)
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "%s_stage is 0", release ? "src" : "dst");
    if (status == TANDEM_OK)
        mem = use_buffer(s, id, "mem", &status, why);
    if (mem)
        note_record(s, mem, release);
    if (mem && mem->staging.buffer)
        (release ? td_vk_record_stage_out : td_vk_record_stage_in)(s->vk, commands, &mem->vk, &mem->staging, stage,
                                                                   access);
    else if (mem)
        (release ? td_vk_record_release : td_vk_record_acquire)(s->vk, commands, &mem->vk, peer, stage, access);
    unuse(s, mem);
    return td_session_fail(s, call, status, why);
}

tandem_status tandem_record_release(tandem_session *session, VkCommandBuffer commands, tandem_mem mem,
                                    VkPipelineStageFlags src_stage, VkAccessFlags src_access)
{
    return record_barrier(session, __func__, true, commands, mem, src_stage, src_access);
}

tandem_status tandem_record_acquire(tandem_session *session, VkCommandBuffer commands, tandem_mem mem,
                                    VkPipelineStageFlags dst_stage, VkAccessFlags dst_access)
{
    return record_barrier(session, __func__, false, commands, mem, dst_stage, dst_access);
}

#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (!(condition))                                                        \
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, __VA_ARGS__);    \
    } while (0)

/* The geometry alone: what tandem_pack_tiles() needs. */
static tandem_status check_tiles(const tandem_pack *p, uint32_t *tiles_x, uint32_t *tiles_y, char *why)
{
    CHECK(p->width && p->width <= MAX_PIXELS, "pack.width is %u, not in 1 to %d", p->width, MAX_PIXELS);
    CHECK(p->height && p->height <= MAX_PIXELS, "pack.height is %u, not in 1 to %d", p->height, MAX_PIXELS);
    CHECK(p->tile_width && p->tile_width <= MAX_PIXELS, "pack.tile_width is %u, not in 1 to %d", p->tile_width,
          MAX_PIXELS);
    CHECK(p->tile_height && p->tile_height <= MAX_PIXELS, "pack.tile_height is %u, not in 1 to %d", p->tile_height,
          MAX_PIXELS);
    CHECK(p->shift_x < p->tile_width, "pack.shift_x is %u, not less than tile_width %u", p->shift_x, p->tile_width);
    CHECK(p->shift_y < p->tile_height, "pack.shift_y is %u, not less than tile_height %u", p->shift_y, p->tile_height);
    *tiles_x = (p->width + p->shift_x + p->tile_width - 1) / p->tile_width;
    *tiles_y = (p->height + p->shift_y + p->tile_height - 1) / p->tile_height;
    CHECK((uint64_t)*tiles_x * *tiles_y <= INT32_MAX, "pack.tile_width is %u and tile_height %u: too many tiles",
          p->tile_width, p->tile_height);
    return TANDEM_OK;
}

/* What becomes of the view in td_vk_pack; the rest is checked where it is recorded. */
static tandem_status check_view(const tandem_view *v, char *why)
{
    CHECK(v->dtype == TANDEM_DTYPE_F16 || v->dtype == TANDEM_DTYPE_F32, "pack.view.dtype is %u, neither F16 nor F32",
          v->dtype);
    CHECK(!v->reserved, "pack.view.reserved is %u, not 0", v->reserved);
    CHECK(v->offset_bytes % td_dtype_bytes(v->dtype) == 0,
          "pack.view.offset_bytes is %" PRIu64 ", not a multiple of %u", v->offset_bytes, td_dtype_bytes(v->dtype));
    return TANDEM_OK;
}

tandem_status tandem_pack_tiles(tandem_session *session, const tandem_pack *pack, uint32_t *tiles_x, uint32_t *tiles_y)
{
    char why[TD_WHY_BYTES] = "";
    uint32_t x = 0, y = 0;
    tandem_status status;
    tandem_pack known;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!pack || !tiles_x || !tiles_y)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG,
                               !pack ? "pack is NULL" : !tiles_x ? "tiles_x is NULL" : "tiles_y is NULL");
    status = TD_STRUCT_IN("pack", pack, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_tiles(&known, &x, &y, why);
    *tiles_x = status == TANDEM_OK ? x : 0;
    *tiles_y = status == TANDEM_OK ? y : 0;
    return td_session_fail(session, __func__, status, why);
}

static tandem_status record_pack(tandem_session *s, const char *call, VkCommandBuffer commands, const tandem_pack *pack,
                                 bool packs)
{
    char why[TD_WHY_BYTES] = "";
    uint32_t tiles_x = 0, tiles_y = 0;
    tandem_pack known, *const p = &known;
    td_mem *mem = NULL;
    tandem_status status;

    if (!td_session_usable(s, call))
        return TANDEM_ERROR_ARG;
    if (!pack)
        return td_session_fail(s, call, TANDEM_ERROR_ARG, "pack is NULL");
    status = check_commands(s, commands, why);
    if (status == TANDEM_OK)
        status = TD_STRUCT_IN("pack", pack, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_tiles(p, &tiles_x, &tiles_y, why);
    if (status == TANDEM_OK)
        status = check_view(&p->view, why);
    if (status == TANDEM_OK)
        mem = use_buffer(s, p->view.mem, "pack.view.mem", &status, why);
    if (mem) {
        const td_vk_pack vk = {
            .image_count = p->image_count,
            .images = {p->images[0], p->images[1], p->images[2], p->images[3]},
            .layout = p->layout,
            .format = p->format,
            .width = p->width,
            .height = p->height,
            .tile_width = p->tile_width,
            .tile_height = p->tile_height,
            .shift_x = p->shift_x,
            .shift_y = p->shift_y,
            .halo = p->halo,
            .channels = p->channels,
            .view_channels = packs ? p->view_channels : p->channels,
            .tiles_x = tiles_x,
            .tiles_y = tiles_y,
            .dtype = p->view.dtype,
            .first_element = p->view.offset_bytes / td_dtype_bytes(p->view.dtype),
            .stride_batch = p->view.stride_batch,
            .stride_row = p->view.stride_row,
        };

        status = (packs ? td_vk_record_pack : td_vk_record_unpack)(s->vk, commands, &mem->vk, &vk, why, sizeof why);
    }
    unuse(s, mem);
    return td_session_fail(s, call, status, why);
}

tandem_status tandem_record_pack(tandem_session *session, VkCommandBuffer commands, const tandem_pack *pack)
{
    return record_pack(session, __func__, commands, pack, true);
}

tandem_status tandem_record_unpack(tandem_session *session, VkCommandBuffer commands, const tandem_pack *unpack)
{
    return record_pack(session, __func__, commands, unpack, false);
}

_Static_assert((int)TANDEM_IMAGE_ACQUIRE == TD_VK_ACQUIRE && (int)TANDEM_IMAGE_RELEASE == TD_VK_RELEASE, "as below");

static tandem_status check_tensor(const tandem_pack_image *p, uint32_t i, char *why)
{
    CHECK(!p->reserved, "images[%u].reserved is %u, not 0", i, p->reserved);
    CHECK(!p->reserved2, "images[%u].reserved2 is %u, not 0", i, p->reserved2);
    CHECK(!p->tensor.reserved, "images[%u].tensor.reserved is %u, not 0", i, p->tensor.reserved);
    return TANDEM_OK;
}

/* Image i of an array that steps by the caller's sizeof, which each of them says. */
static tandem_status take_image(const tandem_pack_image *images, uint32_t i, tandem_pack_image *known, char *why)
{
    const tandem_pack_image *theirs = (const void *)((const char *)images + (size_t)i * images[0].struct_bytes);
    char name[32];
    tandem_status status;

    td_text(name, sizeof name, "images[%u]", i);
    status = TD_STRUCT_IN(name, theirs, known, why, TD_WHY_BYTES);
    if (status == TANDEM_OK && theirs->struct_bytes != images[0].struct_bytes)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s.struct_bytes is %u, but images[0].struct_bytes %u", name,
                         theirs->struct_bytes, images[0].struct_bytes);
    return status == TANDEM_OK ? check_tensor(known, i, why) : status;
}

static td_vk_image vk_image(const tandem_pack_image *p, const td_mem *mem)
{
    return (td_vk_image){
        .image = p->image,
        .view = p->view,
        .format = p->format,
        .usage = p->usage,
        .image_extent = p->image_extent,
        .extent = p->extent,
        .layer = p->layer,
        .layout_before = p->layout_before,
        .layout_after = p->layout_after,
        .src_stage = p->src_stage,
        .dst_stage = p->dst_stage,
        .src_access = p->src_access,
        .dst_access = p->dst_access,
        .ownership = p->ownership,
        .src_family = p->src_family,
        .dst_family = p->dst_family,
        .recorded_family = p->recorded_family,
        .channels = p->channels,
        .encoding = p->encoding,
        .transfer = p->transfer,
        .exposure = p->exposure,
        .mem = &mem->vk,
        .dtype = p->tensor.dtype,
        .offset_bytes = p->tensor.offset_bytes,
        .stride_line = p->tensor.stride_head,
        .stride_texel = p->tensor.stride_row,
    };
}

static tandem_status record_images(tandem_session *s, const char *call, VkCommandBuffer commands,
                                   const tandem_pack_image *images, uint32_t count, bool packs)
{
    td_vk_image vk[TD_VK_MAX_IMAGES];
    td_mem *mems[TD_VK_MAX_IMAGES] = {NULL};
    char why[TD_WHY_BYTES] = "", name[32];
    tandem_status status;

    if (!td_session_usable(s, call))
        return TANDEM_ERROR_ARG;
    if (!images)
        return td_session_fail(s, call, TANDEM_ERROR_ARG, "images is NULL");
    status = check_commands(s, commands, why);
    if (status == TANDEM_OK && (count < 1 || count > TD_VK_MAX_IMAGES))
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "count is %u, not in 1 to %d", count, TD_VK_MAX_IMAGES);
    for (uint32_t i = 0; status == TANDEM_OK && i < count; i++) {
        tandem_pack_image image;

        status = take_image(images, i, &image, why);
        td_text(name, sizeof name, "images[%u].tensor.mem", i);
        if (status == TANDEM_OK)
            mems[i] = use_buffer(s, image.tensor.mem, name, &status, why);
        if (mems[i])
            vk[i] = vk_image(&image, mems[i]);
    }
    if (status == TANDEM_OK)
        status = (packs ? td_vk_record_pack_images : td_vk_record_unpack_images)(s->vk, commands, vk, count, why, sizeof why);
    for (uint32_t i = 0; i < TD_VK_MAX_IMAGES; i++)
        unuse(s, mems[i]);
    return td_session_fail(s, call, status, why);
}

tandem_status tandem_record_pack_images(tandem_session *session, VkCommandBuffer commands, const tandem_pack_image *images,
                                        uint32_t count)
{
    return record_images(session, __func__, commands, images, count, true);
}

tandem_status tandem_record_unpack_images(tandem_session *session, VkCommandBuffer commands, const tandem_pack_image *images,
                                          uint32_t count)
{
    return record_images(session, __func__, commands, images, count, false);
}
