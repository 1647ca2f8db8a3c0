/* The trained denoiser in an engine's frame. See denoise.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/denoise.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "shaders/guides_shared.h"

enum { ALIGNMENT = 256 }; /* of tensors in their memory: as much as any device asks of a buffer that is bound */

typedef enum place { INPUT, KEPT, OUTPUT, BEFORE } place;

/* As the network names them; those of a place lie one behind the other. */
static const struct tensor {
    const char *name;
    uint32_t channels, role;
    place place;
} tensors[DEMO_DENOISER_BINDINGS] = {{"color", 3, TANDEM_NETWORK_INPUT, INPUT},
                                     {"albedo", 3, TANDEM_NETWORK_INPUT, INPUT},
                                     {"motion", 2, TANDEM_NETWORK_INPUT, INPUT},
                                     {"valid", 1, TANDEM_NETWORK_INPUT, INPUT},
                                     {"normal", 3, TANDEM_NETWORK_INPUT, KEPT},
                                     {"depth", 1, TANDEM_NETWORK_INPUT, KEPT},
                                     {"history", 4, TANDEM_NETWORK_OUTPUT, KEPT},
                                     {"out", 3, TANDEM_NETWORK_OUTPUT, OUTPUT},
                                     {"normal_before", 3, TANDEM_NETWORK_INPUT, BEFORE},
                                     {"depth_before", 1, TANDEM_NETWORK_INPUT, BEFORE},
                                     {"history_before", 4, TANDEM_NETWORK_INPUT, BEFORE}};
enum { WRITTEN = 6, HISTORY = 6, OUT = 7 }; /* the first six are the shader's, in the order of its bindings */

const char *const demo_presets[DEMO_PRESETS] = {"fast", "balanced", "high"};
const char *const demo_preset_files[DEMO_PRESETS] = {"denoise-fast.safetensors", "denoise.safetensors", "denoise-high.safetensors"};

static const uint32_t guides_words[] = {
#include "shaders/guides.spv.inc"
};

static bool fails(char *why, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fails(char *why, size_t bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, bytes, format, args);
    va_end(args);
    return false;
}

static uint64_t bytes_of(uint32_t tensor, uint32_t width, uint32_t height)
{
    return (uint64_t)width * height * tensors[tensor].channels * sizeof(float);
}

/* Of a tensor in its place's memory, or of the first that is not in it: the memory's size. */
static uint64_t offset_of(uint32_t tensor, place in, uint32_t width, uint32_t height)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < tensor; i++)
        if (tensors[i].place == in)
            offset += td_align_up(bytes_of(i, width, height), ALIGNMENT);
    return offset;
}

uint64_t demo_denoiser_input_bytes(uint32_t width, uint32_t height)
{
    return offset_of(DEMO_DENOISER_BINDINGS, INPUT, width, height);
}

uint64_t demo_denoiser_output_bytes(uint32_t width, uint32_t height)
{
    return offset_of(DEMO_DENOISER_BINDINGS, OUTPUT, width, height);
}

uint64_t demo_denoiser_kept_bytes(uint32_t width, uint32_t height)
{
    return offset_of(DEMO_DENOISER_BINDINGS, KEPT, width, height);
}

bool demo_denoiser_pipeline(demo_engine *e, demo_compute *out)
{
    VkDescriptorType types[DEMO_MAX_BINDINGS];
    for (int i = 0; i < DEMO_MAX_BINDINGS; i++)
        types[i] = i < 4 ? VK_DESCRIPTOR_TYPE_STORAGE_IMAGE : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    return demo_compute_create(e, guides_words, sizeof guides_words, types, 4 + WRITTEN, sizeof(struct td_guides_push), NULL,
                               0, "guides", out);
}

/* --- The model --- */

static bool check_numbers(const demo_denoiser *d, demo_network *n, tandem_session *session, char *why, size_t bytes)
{
    const char *const names[] = {"height", "width", "edges"};
    const uint32_t values[] = {d->height, d->width, 1}; /* 1: rays of the demo are jittered in their pixel */
    tandem_network info = TANDEM_INIT(tandem_network);
    if (tandem_model_info(session, n->model, &info) != TANDEM_OK || info.number_count < 2 ||
        info.number_count > sizeof n->numbers / sizeof *n->numbers || info.uniform_count || info.binding_count > DEMO_DENOISER_BINDINGS)
        return fails(why, bytes, "it is no denoiser's: that has the numbers height, width and, perhaps, edges, and at most %d bindings",
                     DEMO_DENOISER_BINDINGS);
    n->number_count = info.number_count;
    n->binding_count = info.binding_count;
    n->weight_bytes = info.weight_bytes + info.state_bytes;
    for (uint32_t i = 0; i < n->number_count; i++) {
        tandem_network_number number = TANDEM_INIT(tandem_network_number);
        const bool known = tandem_model_number(session, n->model, i, &number) == TANDEM_OK;
        uint32_t which = 0;
        while (which < n->number_count && strcmp(number.name, names[which]) != 0)
            which++;
        if (!known || which == n->number_count)
            return fails(why, bytes, "it is no denoiser's: its number \"%s\" is neither height nor width", number.name);
        if (values[which] > number.most)
            return fails(why, bytes, "its %s is at most %u, and the frame's is %u", number.name, number.most, values[which]);
        n->numbers[i] = values[which];
    }
    return true;
}

static bool check_bindings(const demo_denoiser *d, demo_network *n, tandem_session *session, char *why, size_t bytes)
{
    bool has_out = false;
    for (uint32_t i = 0; i < n->binding_count; i++) {
        tandem_network_tensor t = TANDEM_INIT(tandem_network_tensor);
        uint32_t which = 0;
        if (tandem_model_binding(session, n->model, n->numbers, n->number_count, i, &t) != TANDEM_OK) {
            tandem_error_text(session, why, bytes);
            return false;
        }
        while (which < DEMO_DENOISER_BINDINGS && (strcmp(t.name, tensors[which].name) != 0 || t.role != tensors[which].role))
            which++;
        if (which == DEMO_DENOISER_BINDINGS)
            return fails(why, bytes, "it is no denoiser's: \"%s\" is none of what a frame has", t.name);
        if (t.dtype != TANDEM_DTYPE_F32 || t.dimensions != 3 || t.shape[1] != d->height || t.shape[2] != d->width ||
            t.shape[3] != tensors[which].channels)
            return fails(why, bytes, "its \"%s\" is not F32, [height, width, %u]", t.name, tensors[which].channels);
        n->binds[i] = which;
        n->has_history = n->has_history || which == HISTORY;
        has_out = has_out || which == OUT;
    }
    return has_out || fails(why, bytes, "it is no denoiser's: it has no output \"out\"");
}

static bool create_kept(demo_denoiser *d, tandem_session *session, char *why, size_t bytes)
{
    const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CREATE, .fd = -1,
                                             .bytes = demo_denoiser_kept_bytes(d->width, d->height));
    tandem_status status = tandem_mem_create(session, &desc, &d->nothing);
    for (int i = 0; i < DEMO_DENOISER_KEPT && status == TANDEM_OK; i++)
        status = tandem_mem_create(session, &desc, &d->kept[i]);
    if (status != TANDEM_OK)
        tandem_error_text(session, why, bytes);
    return status == TANDEM_OK;
}

/* Zeros, which stay the session's. What the last job of all leaves in a kept mem is for one that never comes: it is taken back
 * here already, lest the session think that it was forgotten. */
static bool clear(demo_denoiser *d, demo_engine *e, const integration *tandem, char *why, size_t bytes)
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    tandem_mem_vulkan zeros = TANDEM_INIT(tandem_mem_vulkan);
    tandem_status status = tandem_mem_get_vulkan(tandem->session, d->nothing, &zeros);
    bool ok = status == TANDEM_OK && demo_once_begin(e);
    if (ok) {
        vkCmdFillBuffer(e->once, zeros.buffer, 0, VK_WHOLE_SIZE, 0);
        status = tandem_record_release(tandem->session, e->once, d->nothing, transfer, VK_ACCESS_TRANSFER_WRITE_BIT);
        for (int i = 0; i < DEMO_DENOISER_KEPT && status == TANDEM_OK; i++)
            status = tandem_record_release(tandem->session, e->once, d->kept[i], transfer, 0);
        ok = demo_once_end(e) && demo_once_begin(e);
    }
    for (int i = 0; ok && i < DEMO_DENOISER_KEPT && status == TANDEM_OK; i++)
        status = integrate_take(tandem, d->kept[i], e->once, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT);
    ok = ok && demo_once_end(e) && status == TANDEM_OK;
    if (!ok)
        snprintf(why, bytes, "clearing its memory: %s", tandem_status_text(status));
    return ok;
}

/* Who reports it names the file first. */
static void leave_path_out(char *why, const char *path)
{
    for (char *at = strstr(why, path); *path && at; at = strstr(why, path)) {
        at += strlen(path);
        at += strspn(at, "': ");
        memmove(why, at, strlen(at) + 1);
    }
}

/* Back to a session without it. */
static bool unload(demo_denoiser *d, tandem_session *session)
{
    for (int i = 0; i < DEMO_DENOISER_KEPT; i++)
        if (d->kept[i])
            tandem_mem_destroy(session, d->kept[i]);
    if (d->nothing)
        tandem_mem_destroy(session, d->nothing);
    for (int i = 0; i < DEMO_PRESETS; i++)
        if (d->networks[i].model)
            tandem_model_destroy(session, d->networks[i].model);
    *d = (demo_denoiser){0};
    return false;
}

/* Ready to run, so that no frame waits for it. */
static bool load_network(const demo_denoiser *d, demo_network *n, tandem_session *session, const char *path, char *why,
                         size_t why_bytes)
{
    tandem_prepared prepared = TANDEM_INIT(tandem_prepared);
    why[0] = 0;
    bool ok = tandem_model_load(session, path, &n->model) == TANDEM_OK;
    if (!ok) {
        tandem_error_text(session, why, why_bytes);
        leave_path_out(why, path);
    }
    ok = ok && check_numbers(d, n, session, why, why_bytes) && check_bindings(d, n, session, why, why_bytes);
    if (ok && (tandem_model_instance(session, n->model, &TANDEM_INIT(tandem_instance_desc), &n->instance) != TANDEM_OK ||
               tandem_model_prepare(session, n->instance, n->numbers, n->number_count) != TANDEM_OK ||
               tandem_model_prepared(session, n->instance, n->numbers, n->number_count, &prepared) != TANDEM_OK)) {
        tandem_error_text(session, why, why_bytes);
        ok = false;
    }
    n->scratch_bytes = prepared.scratch_bytes;
    if (!ok && n->model)
        tandem_model_destroy(session, n->model);
    if (!ok)
        *n = (demo_network){0};
    return ok;
}

bool demo_denoiser_load(demo_denoiser *d, tandem_session *session, const char *paths[DEMO_PRESETS], uint32_t first, uint32_t width,
                        uint32_t height, char *why, size_t why_bytes)
{
    *d = (demo_denoiser){.preset = first, .width = width, .height = height};
    bool ok = load_network(d, &d->networks[first], session, paths[first], why, why_bytes) &&
              create_kept(d, session, why, why_bytes);
    for (uint32_t i = 0; ok && i < DEMO_PRESETS; i++) {
        char reason[400];
        if (i == first || !paths[i] || load_network(d, &d->networks[i], session, paths[i], reason, sizeof reason))
            continue;
        demo_fail("without the preset %s: %s: %s", demo_presets[i], paths[i], reason);
        paths[i] = NULL;
    }
    return ok || unload(d, session);
}

uint32_t demo_denoiser_preset_after(const demo_denoiser *d, uint32_t preset)
{
    uint32_t after = preset;
    do
        after = (after + 1) % DEMO_PRESETS;
    while (after != preset && !d->networks[after].instance);
    return after;
}

bool demo_denoiser_open(demo_denoiser *d, demo_engine *e, const integration *tandem, const char *paths[DEMO_PRESETS],
                        uint32_t first, uint32_t width, uint32_t height, char *why, size_t why_bytes)
{
    const uint32_t largest = e->properties.limits.maxStorageBufferRange;
    if (bytes_of(0, width, height) > largest)
        return fails(why, why_bytes, "%ux%u pixels are more than this device binds of a buffer, %u bytes", width, height, largest);
    return demo_denoiser_load(d, tandem->session, paths, first, width, height, why, why_bytes) &&
           (clear(d, e, tandem, why, why_bytes) || unload(d, tandem->session));
}

/* --- Frames --- */

static tandem_status record_guides(demo_denoiser *d, demo_engine *e, const demo_compute *pipeline, const integration *tandem,
                                   const integration_slot *slot, VkCommandBuffer commands, const demo_guides *guides,
                                   const struct td_scene_push *camera)
{
    const struct td_scene_push *before = d->cut ? camera : &d->camera_before;
    tandem_mem_vulkan input = TANDEM_INIT(tandem_mem_vulkan), kept = input;
    struct td_guides_push push = {.size = {d->width, d->height, !d->cut, 0}};
    tandem_status status = tandem_mem_get_vulkan(tandem->session, slot->input, &input);
    if (status == TANDEM_OK)
        status = tandem_mem_get_vulkan(tandem->session, d->kept[d->turn % DEMO_DENOISER_KEPT], &kept);
    if (status != TANDEM_OK)
        return status;
    memcpy(push.eye, camera->eye, sizeof push.eye);
    memcpy(push.right, camera->right, sizeof push.right);
    memcpy(push.up, camera->up, sizeof push.up);
    memcpy(push.eye_before, before->eye, sizeof push.eye);
    memcpy(push.right_before, before->right, sizeof push.right_before);
    memcpy(push.up_before, before->up, sizeof push.up_before);
    const demo_buffer buffers[2] = {{.buffer = input.buffer}, {.buffer = kept.buffer}};
    demo_binding bindings[4 + WRITTEN] = {
        {.image = guides->radiance}, {.image = guides->albedo}, {.image = guides->normal}, {.image = guides->position}};
    for (uint32_t i = 0; i < WRITTEN; i++)
        bindings[4 + i] = (demo_binding){.buffer = &buffers[tensors[i].place == KEPT],
                                         .offset = offset_of(i, tensors[i].place, d->width, d->height),
                                         .bytes = bytes_of(i, d->width, d->height)};
    demo_compute_record(e, commands, pipeline, bindings, &push, d->width, d->height);
    return TANDEM_OK;
}

tandem_status demo_denoiser_write(demo_denoiser *d, demo_engine *e, const demo_compute *pipeline,
                                  const integration *tandem, const integration_slot *slot, VkCommandBuffer commands,
                                  const demo_guides *guides, const struct td_scene_push *camera, bool cut)
{
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const uint32_t which = d->turn % DEMO_DENOISER_KEPT;
    tandem_status status = TANDEM_OK;
    d->cut = cut || !d->has_before;
    d->has_before = false; /* until the job is under way */
    /* The last to read this was the job of two frames ago, which the host has seen to its end. */
    if (d->given[which])
        status = integrate_take(tandem, d->kept[which], commands, compute, VK_ACCESS_SHADER_WRITE_BIT);
    d->given[which] = false;
    if (status == TANDEM_OK)
        status = record_guides(d, e, pipeline, tandem, slot, commands, guides, camera);
    if (status == TANDEM_OK)
        status = tandem_record_release(tandem->session, commands, d->kept[which], compute, VK_ACCESS_SHADER_WRITE_BIT);
    d->given[which] = status == TANDEM_OK;
    d->camera_before = *camera;
    return status;
}

static tandem_view view_of(const demo_denoiser *d, tandem_mem mem, uint32_t tensor)
{
    /* Of the frame before there are the same tensors, in the same places. */
    const place in = tensors[tensor].place;
    return (tandem_view){.mem = mem, .offset_bytes = offset_of(tensor, in, d->width, d->height), .dtype = TANDEM_DTYPE_F32};
}

void demo_denoiser_job(const demo_denoiser *d, const integration_slot *slot, tandem_view views[DEMO_DENOISER_BINDINGS],
                       tandem_job *job)
{
    const demo_network *n = &d->networks[d->preset];
    const tandem_mem now = d->kept[d->turn % DEMO_DENOISER_KEPT];
    const tandem_mem before = d->cut ? d->nothing : d->kept[(d->turn + DEMO_DENOISER_KEPT - 1) % DEMO_DENOISER_KEPT];
    const tandem_mem mems[] = {[INPUT] = slot->input, [KEPT] = now, [OUTPUT] = slot->output, [BEFORE] = before};
    for (uint32_t i = 0; i < n->binding_count; i++)
        views[i] = view_of(d, mems[tensors[n->binds[i]].place], n->binds[i]);
    *job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    job->op.run = (tandem_run){.instance = n->instance,
                               .bindings = views,
                               .binding_count = n->binding_count,
                               .numbers = n->numbers,
                               .number_count = n->number_count};
}

void demo_denoiser_go_on(demo_denoiser *d, bool well)
{
    d->has_before = well && d->networks[d->preset].has_history;
    d->turn++;
}

void demo_denoiser_forget(demo_denoiser *d)
{
    d->has_before = false;
}

tandem_view demo_denoiser_out(const demo_denoiser *d, const integration_slot *slot)
{
    tandem_view view = view_of(d, slot->output, OUT);
    view.stride_row = tensors[OUT].channels;
    view.stride_batch = view.stride_head = (int64_t)d->width * d->height * tensors[OUT].channels;
    return view;
}

bool demo_denoiser_read(demo_denoiser *d, demo_engine *e, const integration *tandem, uint32_t ago, void *out)
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const uint32_t which = (d->turn + 2 * DEMO_DENOISER_KEPT - 1 - ago) % DEMO_DENOISER_KEPT;
    const uint64_t bytes = demo_denoiser_kept_bytes(d->width, d->height);
    tandem_mem_vulkan kept = TANDEM_INIT(tandem_mem_vulkan);
    demo_buffer staging = {0};
    bool ok = ago < DEMO_DENOISER_KEPT && ago < d->turn && d->given[which] &&
              tandem_mem_get_vulkan(tandem->session, d->kept[which], &kept) == TANDEM_OK &&
              demo_buffer_create(e, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true, "kept tensors", &staging) && demo_once_begin(e);
    if (ok) {
        const VkBufferCopy copy = {0, 0, bytes};
        ok = integrate_take(tandem, d->kept[which], e->once, transfer, VK_ACCESS_TRANSFER_READ_BIT) == TANDEM_OK;
        vkCmdCopyBuffer(e->once, kept.buffer, staging.buffer, 1, &copy);
        demo_memory_barrier(e->once, transfer, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
        ok = tandem_record_release(tandem->session, e->once, d->kept[which], transfer, VK_ACCESS_TRANSFER_READ_BIT) == TANDEM_OK && ok;
        ok = demo_once_end(e) && ok;
    }
    if (ok)
        memcpy(out, staging.host, bytes);
    demo_buffer_destroy(e, &staging);
    return ok;
}

uint64_t demo_denoiser_offset(const demo_denoiser *d, const char *name)
{
    uint32_t which = 0;
    while (strcmp(tensors[which].name, name) != 0)
        which++;
    return offset_of(which, tensors[which].place, d->width, d->height);
}

/* --- The file --- */

bool demo_asset_find(const char *file, char *path, size_t bytes)
{
    static const char *const places[] = {"", "../demo/assets/", "../share/tandem/"};
    char program[PATH_MAX + 1];
    const ssize_t length = readlink("/proc/self/exe", program, PATH_MAX);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        const int written = snprintf(path, bytes, "%.*s/%s%s", (int)(slash - program), program, places[i], file);
        if (written > 0 && (size_t)written < bytes && access(path, R_OK) == 0)
            return true;
    }
    return false;
}
