/* See effect.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/layer/effect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "interop/os/file.h"

static const uint32_t tokens_words[] = {
#include "shaders/layer_tokens.spv.inc"
};
static const uint32_t mix_words[] = {
#include "shaders/layer_mix.spv.inc"
};

/* How long a job may take that the host waits for. */
static const uint64_t PATIENCE_NS = 5000000000u;
enum { ALIGNED = 256 };

static const VkPipelineStageFlags COMPUTE = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
static const VkAccessFlags SHADER_ALL = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;

/* --- The session --- */

static bool make_shaders(layer_device *d, layer_station *st)
{
    static const VkDescriptorType buffers[] = {
        VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
        VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};
    static const VkDescriptorType picture[] = {VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE,
                                               VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};

    return layer_compute_make(d, tokens_words, sizeof tokens_words, buffers, 4,
                              sizeof(struct td_layer_tokens), &st->tokens) &&
           layer_compute_make(d, mix_words, sizeof mix_words, picture, 2,
                              sizeof(struct td_layer_mix), &st->mix);
}

bool layer_station_open(layer_device *d, VkQueue queue, uint32_t family, uint32_t rung, char *why,
                        size_t why_bytes)
{
    const integration_desc desc = {
        .vulkan =
            TANDEM_INIT(tandem_vulkan, .api_version = d->instance->api_version,
                        .get_instance_proc_addr = layer_below, .instance = d->instance->handle,
                        .physical_device = d->physical, .device = d->handle, .queue_family = family,
                        .enabled_extension_count = d->extension_count,
                        .enabled_extensions = (const char *const *)d->extensions,
                        .enabled_features = &d->features, .queue = queue),
        .input_bytes = ALIGNED,
        .output_bytes = ALIGNED,
        .rung = rung};
    layer_station *st = calloc(1, sizeof *st);

    if (!st) {
        td_text(why, why_bytes, "there is no memory");
        return false;
    }
    st->family = family;
    st->asked_rung = rung;
    d->station = st;
    if (!make_shaders(d, st))
        td_text(why, why_bytes, "shaders cannot be made: is VK_KHR_push_descriptor there?");
    else if (integrate_open(&st->tandem, &desc, why, why_bytes))
        return true;
    layer_station_close(d);
    return false;
}

void layer_station_close(layer_device *d)
{
    layer_station *st = d->station;

    if (!st)
        return;
    integrate_close(&st->tandem);
    layer_compute_destroy(d, &st->tokens);
    layer_compute_destroy(d, &st->mix);
    free(st);
    d->station = NULL;
}

const char *layer_station_rung(const layer_station *st)
{
    return st ? layer_rung_name(st->tandem.info.rung) : NULL;
}

bool layer_station_records(const layer_station *st)
{
    return integrate_records(&st->tandem);
}

bool layer_station_meets(const layer_station *st)
{
    return st->tandem.info.rung == TANDEM_RUNG_TIMELINE;
}

/* --- What a swapchain needs of it --- */

static bool says(layer_device *d, tandem_status status, char *why, size_t why_bytes)
{
    if (status == TANDEM_OK)
        return true;
    if (tandem_error_text(d->station->tandem.session, why, why_bytes) != TANDEM_OK || !why[0])
        td_text(why, why_bytes, "%s", tandem_status_text(status));
    return false;
}

/* The next tensor of a mem of `*bytes` so far. */
static layer_part part_of(uint64_t *bytes, uint64_t part_bytes)
{
    const layer_part part = {*bytes, part_bytes};

    *bytes += td_align_up(part_bytes, ALIGNED);
    return part;
}

static bool make_mem(layer_device *d, uint64_t bytes, tandem_mem *mem, VkBuffer *buffer, char *why,
                     size_t why_bytes)
{
    tandem_session *s = d->station->tandem.session;
    const tandem_mem_desc desc =
        TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CREATE, .bytes = bytes, .fd = -1);
    tandem_mem_vulkan vulkan = TANDEM_INIT(tandem_mem_vulkan);

    if (!says(d, tandem_mem_create(s, &desc, mem), why, why_bytes) ||
        !says(d, tandem_mem_get_vulkan(s, *mem, &vulkan), why, why_bytes))
        return false;
    *buffer = vulkan.buffer;
    return true;
}

static bool make_mems(layer_device *d, layer_work *it, char *why, size_t why_bytes)
{
    return make_mem(d, it->input_bytes, &it->slot.input, &it->input, why, why_bytes) &&
           make_mem(d, it->output_bytes, &it->slot.output, &it->output, why, why_bytes);
}

static bool open_filter(layer_device *d, layer_work *it, char *why, size_t why_bytes)
{
    const uint64_t pixels = (uint64_t)it->extent.width * it->extent.height;

    it->color = part_of(&it->input_bytes, pixels * 3 * sizeof(float));
    it->q = part_of(&it->input_bytes, pixels * TD_LAYER_DIM * sizeof(uint16_t));
    it->k = part_of(&it->input_bytes, pixels * TD_LAYER_DIM * sizeof(uint16_t));
    it->v = part_of(&it->input_bytes, pixels * 4 * sizeof(float));
    it->result = part_of(&it->output_bytes, pixels * 3 * sizeof(float));
    return make_mems(d, it, why, why_bytes);
}

/* --- A user's model --- */

static bool load_model(layer_device *d, const char *path, char *why, size_t why_bytes)
{
    layer_station *st = d->station;

    if (st->model && !strcmp(st->model_path, path))
        return true;
    if (st->model)
        tandem_model_destroy(st->tandem.session, st->model);
    st->model = 0;
    snprintf(st->model_path, sizeof st->model_path, "%s", path);
    return says(d, tandem_model_load(st->tandem.session, path, &st->model), why, why_bytes);
}

/* Its numbers are height and width, and edges or not, in any order: 2 leaves these as they are, and a picture that is
 * presented has them as they are to be. */
static bool find_numbers(layer_device *d, layer_work *it, const tandem_network *info, char *why,
                         size_t why_bytes)
{
    layer_station *st = d->station;
    bool known = info->number_count >= 2 && info->number_count <= sizeof it->numbers / sizeof *it->numbers &&
                 !info->uniform_count;

    it->number_count = info->number_count;
    for (uint32_t i = 0; i < it->number_count && known; i++) {
        tandem_network_number number = TANDEM_INIT(tandem_network_number);
        if (!says(d, tandem_model_number(st->tandem.session, st->model, i, &number), why,
                  why_bytes))
            return false;
        const bool is_height = !strcmp(number.name, "height"), is_width = !strcmp(number.name, "width");
        known = is_height || is_width || !strcmp(number.name, "edges");
        it->numbers[i] = is_height ? it->extent.height : is_width ? it->extent.width : 2;
        if (known && it->numbers[i] > number.most) {
            td_text(why, why_bytes,
                    "the picture's %s is %" PRIu32 ", and the model takes at most %" PRIu32,
                    number.name, it->numbers[i], number.most);
            return false;
        }
    }
    if (!known)
        td_text(why, why_bytes,
                "a picture's model has the numbers height, width and, if it wants it, edges, and no uniforms");
    return known;
}

/* What a picture has not, with what stands for it. */
static bool absent(const char *name, uint32_t *channels, float *constant)
{
    static const struct {
        const char *name;
        uint32_t channels;
        float constant;
    } list[] = {{"albedo", 3, 1}, {"normal", 3, 0}, {"depth", 1, 0}};

    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(name, list[i].name)) {
            *channels = list[i].channels;
            *constant = list[i].constant;
            return true;
        }
    return false;
}

static bool bind_one(layer_device *d, layer_work *it, uint32_t index, char *why, size_t why_bytes)
{
    layer_station *st = d->station;
    tandem_network_tensor t = TANDEM_INIT(tandem_network_tensor);
    tandem_view *view = &it->bindings[index];
    uint32_t channels = 3;
    float constant = 0;

    if (!says(d, tandem_model_binding(st->tandem.session, st->model, it->numbers, it->number_count, index, &t),
              why, why_bytes))
        return false;
    view->dtype = t.dtype;
    const bool is_input = t.role == TANDEM_NETWORK_INPUT;
    if (is_input && !strcmp(t.name, "color")) {
        it->color = part_of(&it->input_bytes, t.bytes);
        view->offset_bytes = it->color.offset;
    } else if (!is_input && !strcmp(t.name, "out")) {
        it->result = part_of(&it->output_bytes, t.bytes);
        view->offset_bytes = it->result.offset;
        view->mem = 1; /* of the output, until there are mems */
    } else if (is_input && absent(t.name, &channels, &constant)) {
        const uint32_t at = it->constant_count++;
        it->constants[at] = part_of(&it->input_bytes, t.bytes);
        it->constant[at] = constant;
        view->offset_bytes = it->constants[at].offset;
    } else {
        td_text(
            why, why_bytes,
            "the model's \"%.60s\" is none of color, albedo, normal and depth, nor its output, out",
            t.name);
        return false;
    }
    if (t.dtype != TANDEM_DTYPE_F32 || t.dimensions != 3 || t.shape[1] != it->extent.height ||
        t.shape[2] != it->extent.width || t.shape[3] != channels) {
        td_text(why, why_bytes, "the model's \"%.60s\" must be F32, [height, width, %" PRIu32 "]",
                t.name, channels);
        return false;
    }
    return true;
}

static bool open_model(layer_device *d, layer_work *it, const char *path, char *why,
                       size_t why_bytes)
{
    layer_station *st = d->station;
    tandem_session *s = st->tandem.session;
    tandem_network info = TANDEM_INIT(tandem_network);

    if (!load_model(d, path, why, why_bytes) ||
        !says(d, tandem_model_info(s, st->model, &info), why, why_bytes) ||
        !find_numbers(d, it, &info, why, why_bytes))
        return false;
    it->binding_count = info.binding_count;
    if (info.binding_count > LAYER_MODEL_BINDINGS) {
        td_text(why, why_bytes, "the model has %" PRIu32 " inputs and outputs, and may have %d",
                info.binding_count, LAYER_MODEL_BINDINGS);
        return false;
    }
    for (uint32_t i = 0; i < info.binding_count; i++)
        if (!bind_one(d, it, i, why, why_bytes))
            return false;
    if (!it->color.bytes || !it->result.bytes) {
        td_text(why, why_bytes, "the model has no %s",
                it->color.bytes ? "output \"out\"" : "input \"color\"");
        return false;
    }
    if (!make_mems(d, it, why, why_bytes))
        return false;
    for (uint32_t i = 0; i < info.binding_count; i++)
        it->bindings[i].mem = it->bindings[i].mem ? it->slot.output : it->slot.input;
    return says(d,
                tandem_model_instance(s, st->model, &TANDEM_INIT(tandem_instance_desc),
                                      &it->instance),
                why, why_bytes) &&
           says(d, tandem_model_prepare(s, it->instance, it->numbers, it->number_count), why, why_bytes);
}

static uint32_t transfer_of(VkColorSpaceKHR space)
{
    switch ((int)space) {
    case VK_COLOR_SPACE_SRGB_NONLINEAR_KHR:
    case VK_COLOR_SPACE_DISPLAY_P3_NONLINEAR_EXT:
    case VK_COLOR_SPACE_EXTENDED_SRGB_NONLINEAR_EXT:
        return TANDEM_TRANSFER_SRGB;
    case VK_COLOR_SPACE_HDR10_ST2084_EXT:
        return TANDEM_TRANSFER_PQ;
    default:
        return TANDEM_TRANSFER_LINEAR;
    }
}

static bool is_linear(VkColorSpaceKHR space)
{
    switch ((int)space) {
    case VK_COLOR_SPACE_EXTENDED_SRGB_LINEAR_EXT:
    case VK_COLOR_SPACE_BT709_LINEAR_EXT:
    case VK_COLOR_SPACE_BT2020_LINEAR_EXT:
    case VK_COLOR_SPACE_DISPLAY_P3_LINEAR_EXT:
    case VK_COLOR_SPACE_ADOBERGB_LINEAR_EXT:
        return true;
    default:
        return false;
    }
}

bool layer_work_open(layer_device *d, const layer_settings *settings, VkExtent2D extent,
                     VkFormat format, bool exchanged, VkColorSpaceKHR space, layer_work *out,
                     char *why, size_t why_bytes)
{
    const bool is_model = settings->effect == LAYER_EFFECT_MODEL;

    *out = (layer_work){.effect = settings->effect,
                        .extent = extent,
                        .format = format,
                        .exchanged = exchanged,
                        .linear = is_linear(space),
                        .transfer = is_model ? transfer_of(space) : TANDEM_TRANSFER_LINEAR,
                        .amount = settings->effect == LAYER_EFFECT_SHARPEN ? -settings->amount
                                                                           : settings->amount,
                        .sigma = settings->sigma};
    if (is_model ? open_model(d, out, settings->model, why, why_bytes)
                 : open_filter(d, out, why, why_bytes))
        return true;
    layer_work_close(d, out);
    return false;
}

void layer_work_close(layer_device *d, layer_work *it)
{
    tandem_session *s = d->station ? d->station->tandem.session : NULL;

    if (s && it->instance)
        tandem_instance_destroy(s, it->instance);
    if (s && it->slot.input)
        tandem_mem_destroy(s, it->slot.input);
    if (s && it->slot.output)
        tandem_mem_destroy(s, it->slot.output);
    memset(it, 0, sizeof *it);
}

/* --- A frame --- */

static tandem_view tensor_of(const layer_work *it, tandem_mem mem, layer_part part, uint32_t dtype,
                             uint32_t channels)
{
    return tandem_view_dense(mem, part.offset, dtype, it->extent.height, it->extent.width,
                             channels);
}

static tandem_pack_image packed(const layer_work *it, VkImageView picture, VkImageUsageFlags usage,
                                tandem_mem mem, layer_part part)
{
    return TANDEM_INIT(
        tandem_pack_image, .format = it->format, .view = picture, .usage = usage,
        .image_extent = it->extent, .extent = it->extent, .layout_before = VK_IMAGE_LAYOUT_GENERAL,
        .layout_after = VK_IMAGE_LAYOUT_GENERAL, .channels = 3, .transfer = it->transfer,
        .tensor = tensor_of(it, mem, part, TANDEM_DTYPE_F32, 3));
}

static layer_binding bound(VkBuffer buffer, layer_part part)
{
    return (layer_binding){.buffer = buffer, .offset = part.offset, .bytes = part.bytes};
}

static void record_tokens(layer_device *d, layer_work *it, VkCommandBuffer commands)
{
    /* Two pixels that differ by noise alone differ by sqrt(2) sigma in each of the nine: a weight
     * of exp(-1) then. */
    const struct td_layer_tokens push = {it->extent.width, it->extent.height,
                                         255.0f / (3 * it->sigma), it->linear};
    const layer_binding bindings[] = {bound(it->input, it->color), bound(it->input, it->q),
                                      bound(it->input, it->k), bound(it->input, it->v)};

    layer_record_shader_barrier(d, commands);
    layer_compute_record(d, commands, &d->station->tokens, bindings, &push, it->extent.width,
                         it->extent.height);
}

/* What a model wants and a picture has not; each frame, as what is released to a session need not
 * be kept. */
static void record_constants(layer_device *d, layer_work *it, VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = SHADER_ALL};

    if (!it->constant_count)
        return;
    d->fn.CmdPipelineBarrier(commands, COMPUTE, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, NULL, 0, NULL,
                             0, NULL);
    for (uint32_t i = 0; i < it->constant_count; i++) {
        uint32_t bits;
        memcpy(&bits, &it->constant[i], sizeof bits);
        d->fn.CmdFillBuffer(commands, it->input, it->constants[i].offset, it->constants[i].bytes,
                            bits);
    }
    d->fn.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, COMPUTE, 0, 1, &barrier, 0,
                             NULL, 0, NULL);
}

tandem_status layer_work_before(layer_device *d, layer_work *it, VkCommandBuffer commands,
                                const layer_image *picture)
{
    tandem_session *s = d->station->tandem.session;
    const tandem_pack_image image =
        packed(it, picture->seen, VK_IMAGE_USAGE_SAMPLED_BIT, it->slot.input, it->color);

    record_constants(d, it, commands);
    tandem_status status = tandem_record_pack_images(s, commands, &image, 1);
    if (status == TANDEM_OK && it->effect != LAYER_EFFECT_MODEL)
        record_tokens(d, it, commands);
    if (status == TANDEM_OK)
        status =
            tandem_record_release(s, commands, it->slot.input, COMPUTE, VK_ACCESS_SHADER_WRITE_BIT);
    if (status == TANDEM_OK)
        status = tandem_record_release(s, commands, it->slot.output, COMPUTE, SHADER_ALL);
    return status;
}

static tandem_job job_of(const layer_work *it)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_GATHER);

    if (it->effect == LAYER_EFFECT_MODEL) {
        job.operation = TANDEM_OPERATION_RUN;
        job.op.run = (tandem_run){.instance = it->instance,
                                  .bindings = it->bindings,
                                  .binding_count = it->binding_count,
                                  .numbers = it->numbers,
                                  .number_count = it->number_count};
        return job;
    }
    job.op.gather =
        (tandem_gather){.q = tensor_of(it, it->slot.input, it->q, TANDEM_DTYPE_F16, TD_LAYER_DIM),
                        .k = tensor_of(it, it->slot.input, it->k, TANDEM_DTYPE_F16, TD_LAYER_DIM),
                        .v = tensor_of(it, it->slot.input, it->v, TANDEM_DTYPE_F32, 4),
                        .o = tensor_of(it, it->slot.output, it->result, TANDEM_DTYPE_F32, 3),
                        .batch = 1,
                        .height = it->extent.height,
                        .width = it->extent.width,
                        .dim = TD_LAYER_DIM,
                        .radius = TD_LAYER_RADIUS,
                        .channels = 3};
    return job;
}

tandem_status layer_work_job(layer_device *d, layer_work *it, VkCommandBuffer commands)
{
    tandem_job job = job_of(it);

    return integrate_job(&d->station->tandem, &it->slot, &job, commands, &it->ticket);
}

tandem_status layer_work_wait(layer_device *d, layer_work *it)
{
    const tandem_status status = integrate_wait(&d->station->tandem, it->ticket, PATIENCE_NS);

    if (status == TANDEM_ERROR_BUSY)
        tandem_cancel(d->station->tandem.session, it->ticket);
    return status;
}

tandem_status layer_work_after(layer_device *d, layer_work *it, VkCommandBuffer commands,
                               const layer_image *picture)
{
    const integration *tandem = &d->station->tandem;
    const tandem_pack_image image =
        packed(it, picture->view, VK_IMAGE_USAGE_STORAGE_BIT, it->slot.output, it->result);
    const bool is_model = it->effect == LAYER_EFFECT_MODEL;
    const struct td_layer_mix push = {it->extent.width, it->extent.height,
                                      is_model ? 1 : it->amount, it->exchanged};
    const layer_binding bindings[] = {{.view = picture->seen}, bound(it->output, it->result)};
    tandem_status status = integrate_take(tandem, it->slot.output, commands, COMPUTE, SHADER_ALL);

    if (status == TANDEM_OK && (!is_model || it->exchanged)) {
        layer_compute_record(d, commands, &d->station->mix, bindings, &push, it->extent.width,
                             it->extent.height);
        layer_record_shader_barrier(d, commands);
    }
    return status ? status : tandem_record_unpack_images(tandem->session, commands, &image, 1);
}

tandem_status layer_work_outcome(layer_device *d, layer_work *it)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);

    if (!it->ticket || tandem_poll(d->station->tandem.session, it->ticket, &report) != TANDEM_OK)
        return TANDEM_OK;
    return report.state == TANDEM_JOB_FAILED ? (tandem_status)report.status : TANDEM_OK;
}
