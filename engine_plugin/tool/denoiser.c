/* A denoiser's network on a session, or gi's, and frames for it. See denoiser.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/denoiser.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/edges.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/cpu/cpu.h"

#define LIMIT_NS 600000000000u /* the longest that a frame may take */

const tool_denoiser_input tool_denoiser_inputs[TOOL_INPUTS] = {{"color", "--color", 3, 0},          {"albedo", "--albedo", 3, 1},       {"normal", "--normal", 3, 0},
                    {"depth", "--depth", 1, 0},          {"motion", "--motion", 2, 0},       {"valid", "--valid", 1, 1},
                    {"normal_before", "--previous", 3, 0}, {"depth_before", "--previous", 1, 0}, {"history_before", "--previous", 4, 0},
                    {"ray", "--frame", 3, 0}};
static const struct output {
    const char *name;
    uint32_t channels;
} outputs[TOOL_OUTPUTS] = {{"out", 3}, {"history", 4}};

static bool fails(tool_denoiser *d, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
static bool fails(tool_denoiser *d, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(d->why, sizeof d->why, format, args);
    va_end(args);
    return false;
}

/* --- Frames --- */

bool tool_denoiser_tensor(tool_denoiser *d, const char *path, td_safetensors *file, const td_safetensor *tensor, uint32_t channels, tool_picture *out)
{
    char why[300] = "";

    if (tensor->dimensions != 3 || tensor->shape[2] != channels || (tensor->dtype != TANDEM_DTYPE_F16 && tensor->dtype != TANDEM_DTYPE_F32))
        return fails(d, "\"%s\": \"%s\" must be [height, width, %" PRIu32 "], F16 or F32", path, tensor->name, channels);
    if (tensor->shape[0] - 1 >= TOOL_PICTURE_MOST || tensor->shape[1] - 1 >= TOOL_PICTURE_MOST)
        return fails(d, "\"%s\": \"%s\" must have 1 to %d pixels a side", path, tensor->name, TOOL_PICTURE_MOST);
    if (!tool_picture_new(out, (uint32_t)tensor->shape[1], (uint32_t)tensor->shape[0], channels))
        return fails(d, "out of memory");
    /* Halves lie in the second half of what becomes floats, from the first on. */
    const size_t count = (size_t)out->width * out->height * channels;
    const bool halves = tensor->dtype == TANDEM_DTYPE_F16;
    uint16_t *half = (uint16_t *)out->pixels + count;
    if (td_safetensors_read(file, tensor, halves ? (void *)half : out->pixels, why, sizeof why) != TANDEM_OK)
        return fails(d, "\"%s\": %s", path, why);
    for (size_t i = 0; i < count && halves; i++) {
        const float x = td_from_f16(half[i]);
        memcpy(&out->pixels[i], &x, sizeof x);
    }
    return true;
}

bool tool_denoiser_frame(tool_denoiser *d, const char *path)
{
    td_safetensors file = {.fd = -1};
    char why[300] = "";
    for (int i = 0; i < TOOL_READ; i++)
        tool_picture_free(&d->frame[i]);
    bool done = td_safetensors_open(path, &file, why, sizeof why) == TANDEM_OK;
    if (!done)
        return fails(d, "\"%s\": %s", path, why);
    for (int i = 0; i < TOOL_READ && done; i++) {
        const td_safetensor *tensor = td_safetensors_find(&file, tool_denoiser_inputs[i].name);
        if (tensor)
            done = tool_denoiser_tensor(d, path, &file, tensor, tool_denoiser_inputs[i].channels, &d->frame[i]);
        else if (i == TOOL_COLOR)
            done = fails(d, "\"%s\" has no tensor \"color\"", path);
    }
    td_safetensors_close(&file);
    return done;
}

/* What is not would be everywhere: each token of a frame sees all of them. */
static bool is_finite(tool_denoiser *d, const char *path, const char *name, const tool_picture *picture)
{
    for (size_t i = 0; i < (size_t)picture->width * picture->height * picture->channels; i++)
        if (!isfinite(picture->pixels[i]))
            return fails(d, "\"%s\": \"%s\" is %f in row %zu, column %zu; it must be finite", path, name, (double)picture->pixels[i],
                         i / picture->channels / picture->width, i / picture->channels % picture->width);
    return true;
}

bool tool_denoiser_gi_frame(tool_denoiser *d, const char *path)
{
    const struct {
        const char *name;
        uint32_t channels;
        tool_picture *to;
    } parts[] = {{"direct", 3, &d->frame[TOOL_COLOR]}, {"albedo", 3, &d->frame[TOOL_ALBEDO]}, {"normal", 3, &d->frame[TOOL_NORMAL]},
                 {"depth", 1, &d->frame[TOOL_DEPTH]},  {"ray", 3, &d->frame[TOOL_RAY]},       {"indirect", 3, &d->reference}};
    td_safetensors file = {.fd = -1};
    char why[300] = "";
    bool done = td_safetensors_open(path, &file, why, sizeof why) == TANDEM_OK || fails(d, "\"%s\": %s", path, why);

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const td_safetensor *tensor = done ? td_safetensors_find(&file, parts[i].name) : NULL;
        tool_picture_free(parts[i].to);
        if (tensor)
            done = tool_denoiser_tensor(d, path, &file, tensor, parts[i].channels, parts[i].to);
        else if (done && parts[i].to != &d->reference)
            done = fails(d, "\"%s\" has no tensor \"%s\"", path, parts[i].name);
        if (done && tensor && (parts[i].to->width != parts[0].to->width || parts[i].to->height != parts[0].to->height))
            done = fails(d, "\"%s\": \"%s\" and \"direct\" differ in size", path, parts[i].name);
    }
    td_safetensors_close(&file);
    return done && is_finite(d, path, "albedo", &d->frame[TOOL_ALBEDO]) && is_finite(d, path, "ray", &d->frame[TOOL_RAY]);
}

/* --- Cuts --- */

/* A pixel's surface: whether it is the same, as an operation of the network's (tandem_reproject) asks of each pixel. */
static bool is_same(const tool_denoiser *d, size_t now, size_t then)
{
    float both = 0, lengths[2] = {0};

    if (d->frame[TOOL_NORMAL].pixels && d->frame[TOOL_NORMAL_BEFORE].pixels)
        for (int c = 0; c < 3; c++) {
            const float p = d->frame[TOOL_NORMAL].pixels[3 * now + c], q = d->frame[TOOL_NORMAL_BEFORE].pixels[3 * then + c];
            both += p * q, lengths[0] += p * p, lengths[1] += q * q;
        }
    if (both < 0.5f * sqrtf(lengths[0] * lengths[1]))
        return false;
    if (!d->frame[TOOL_DEPTH].pixels || !d->frame[TOOL_DEPTH_BEFORE].pixels)
        return true;
    return fabsf(d->frame[TOOL_DEPTH].pixels[now] - d->frame[TOOL_DEPTH_BEFORE].pixels[then]) <= 0.1f * d->frame[TOOL_DEPTH].pixels[now];
}

/* Whether less than a quarter of the frame shows what the one before did. */
bool tool_denoiser_finds_cut(const tool_denoiser *d)
{
    const tool_picture *color = &d->frame[TOOL_COLOR], *motion = &d->frame[TOOL_MOTION], *valid = &d->frame[TOOL_VALID];
    const float width = (float)color->width, height = (float)color->height;
    size_t same = 0;

    for (size_t i = 0, count = (size_t)color->width * color->height; i < count; i++) {
        const size_t column = i % color->width, row = i / color->width;
        const float x = (float)column + 0.5f + (motion->pixels ? motion->pixels[2 * i] : 0);
        const float y = (float)row + 0.5f + (motion->pixels ? motion->pixels[2 * i + 1] : 0);
        if (x >= 0 && y >= 0 && x < width && y < height && (!valid->pixels || valid->pixels[i] > 0))
            same += is_same(d, i, (size_t)y * color->width + (size_t)x);
    }
    return same < (size_t)color->width * color->height / 4;
}

/* --- From frame to frame --- */

void tool_denoiser_remember(tool_denoiser *d)
{
    tool_denoiser_forget(d);
    d->frame[TOOL_NORMAL_BEFORE] = d->frame[TOOL_NORMAL];
    d->frame[TOOL_DEPTH_BEFORE] = d->frame[TOOL_DEPTH];
    d->frame[TOOL_HISTORY] = d->results[TOOL_HISTORY_OUT];
    d->frame[TOOL_NORMAL] = d->frame[TOOL_DEPTH] = d->results[TOOL_HISTORY_OUT] = (tool_picture){0};
}

/* What the frame before left. */
void tool_denoiser_forget(tool_denoiser *d)
{
    for (int i = TOOL_READ; i < TOOL_INPUTS; i++)
        tool_picture_free(&d->frame[i]);
}

void tool_denoiser_close(tool_denoiser *d)
{
    td_host_mem_free(d->s, &d->mem);
    tool_session_destroy(&d->s, &d->engine);
    for (int i = 0; i < TOOL_INPUTS; i++)
        tool_picture_free(&d->frame[i]);
    for (int i = 0; i < TOOL_OUTPUTS; i++)
        tool_picture_free(&d->results[i]);
    tool_picture_free(&d->reference);
    tool_picture_free(&d->rendered);
}

/* --- The network --- */

/* A call of the session's: what it said. */
static bool ok(tool_denoiser *d, tandem_status status)
{
    if (status != TANDEM_OK)
        tandem_error_text(d->s, d->why, sizeof d->why);
    return status == TANDEM_OK;
}

static bool has_output(const tool_denoiser *d, const char *name)
{
    const uint32_t least[TOOL_NUMBERS] = {1, 1, 1};

    for (uint32_t i = 0; i < d->info.binding_count; i++) {
        tandem_network_tensor tensor = TANDEM_INIT(tandem_network_tensor);
        if (tandem_model_binding(d->s, d->model, least, d->info.number_count, i, &tensor) == TANDEM_OK &&
            tensor.role == TANDEM_NETWORK_OUTPUT && !strcmp(tensor.name, name))
            return true;
    }
    return false;
}

/* Height and width, and edges or not, in any order. */
static bool find_numbers(tool_denoiser *d)
{
    static const char *const names[TOOL_NUMBERS + 1] = {[TOOL_HEIGHT] = "height", [TOOL_WIDTH] = "width", [TOOL_EDGES] = "edges"};
    tandem_network_number number = TANDEM_INIT(tandem_network_number);
    uint32_t found = 0;

    if (d->info.number_count < TOOL_EDGES || d->info.number_count > TOOL_NUMBERS || d->info.uniform_count)
        return false;
    for (uint32_t i = 0; i < d->info.number_count; i++) {
        if (!ok(d, tandem_model_number(d->s, d->model, i, &number)))
            return false;
        const int which = tool_word(number.name, names);
        if (which < 0)
            return false;
        d->number_at[which] = i;
        found |= 1u << which;
    }
    return found == (1u << d->info.number_count) - 1;
}

bool tool_denoiser_open(tool_denoiser *d, const char *model, uint32_t rung, const char *socket, const char *plan)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .rung = rung,
                                                 .timing = 1,
                                                 .socket = socket,
                                                 .error_text = d->why,
                                                 .error_text_bytes = sizeof d->why);

    d->info = TANDEM_INIT(tandem_network);
    if (tool_session_create(&desc, &d->s, &d->engine) != TANDEM_OK || !ok(d, tandem_model_load(d->s, model, &d->model)) ||
        !ok(d, tandem_model_info(d->s, d->model, &d->info)) ||
        !ok(d, tandem_model_instance(d->s, d->model, &TANDEM_INIT(tandem_instance_desc, .precision = d->precision, .plan = plan), &d->instance)))
        return false;
    if (!find_numbers(d))
        return fails(d, "--model \"%s\": a denoiser's numbers are height, width and edges, which may be missing, and it has no uniforms", model);
    return !d->output || has_output(d, d->output) ||
           fails(d, "--model \"%s\": it has no output \"%s\": it is no %s", model, d->output,
                 strcmp(d->output, "out") ? "network for indirect light" : "denoiser");
}

/* Which of a frame's pictures an input of the network is; TOOL_INPUTS for none. */
static int input_of(const tandem_network_tensor *t)
{
    for (int i = 0; i < TOOL_INPUTS; i++)
        if (t->role == TANDEM_NETWORK_INPUT && !strcmp(t->name, tool_denoiser_inputs[i].name))
            return i;
    return t->role == TANDEM_NETWORK_INPUT && !strcmp(t->name, "direct") ? TOOL_COLOR : TOOL_INPUTS;
}

/* Likewise of what comes out. */
static int output_of(const tandem_network_tensor *t)
{
    for (int i = 0; i < TOOL_OUTPUTS; i++)
        if (t->role == TANDEM_NETWORK_OUTPUT && !strcmp(t->name, outputs[i].name))
            return i;
    return t->role == TANDEM_NETWORK_OUTPUT && !strcmp(t->name, "indirect") ? TOOL_OUT : TOOL_OUTPUTS;
}

bool tool_denoiser_has_history(const tool_denoiser *d)
{
    return has_output(d, outputs[TOOL_HISTORY_OUT].name);
}

static bool check_binding(tool_denoiser *d, const tandem_network_tensor *t)
{
    const tool_picture *color = &d->frame[TOOL_COLOR];
    const int input = input_of(t), output = output_of(t);

    if (input == TOOL_INPUTS && output == TOOL_OUTPUTS)
        return fails(d,
                     "--model: \"%s\" is none of a denoiser's inputs, which are color, albedo, normal, depth, motion, valid, normal_before, "
                     "depth_before and history_before, or gi's direct and ray, nor of its outputs, out and history, or indirect",
                     t->name);
    const uint32_t channels = input < TOOL_INPUTS ? tool_denoiser_inputs[input].channels : outputs[output].channels;
    if (t->dtype != TANDEM_DTYPE_F32 || t->dimensions != 3 || t->shape[1] != color->height || t->shape[2] != color->width || t->shape[3] != channels)
        return fails(d, "--model: \"%s\" must be F32, [height, width, %" PRIu32 "]", t->name, channels);
    return true;
}

/* Bindings of a frame's size, in a mem that is kept as long as it is large enough. */
static bool bind(tool_denoiser *d, tandem_view views[TOOL_INPUTS + TOOL_OUTPUTS], const float *results[TOOL_OUTPUTS])
{
    tandem_network_tensor tensors[TOOL_INPUTS + TOOL_OUTPUTS];
    uint64_t bytes = 0;

    if (d->info.binding_count > TOOL_INPUTS + TOOL_OUTPUTS)
        return fails(d, "--model: a denoiser has at most %d inputs and %d outputs", TOOL_INPUTS, TOOL_OUTPUTS);
    for (uint32_t i = 0; i < d->info.binding_count; i++) {
        tensors[i] = TANDEM_INIT(tandem_network_tensor);
        if (!ok(d, tandem_model_binding(d->s, d->model, d->numbers, d->info.number_count, i, &tensors[i])) || !check_binding(d, &tensors[i]))
            return false;
        views[i] = (tandem_view){.offset_bytes = bytes, .dtype = tensors[i].dtype};
        bytes += td_align_up(tensors[i].bytes, 256);
    }
    if (d->mem_bytes < bytes) {
        d->mem_bytes = 0;
        td_host_mem_free(d->s, &d->mem);
        if (!ok(d, td_host_mem_make(d->s, bytes, &d->mem)))
            return false;
        d->mem_bytes = bytes;
    }
    for (uint32_t i = 0; i < d->info.binding_count; i++) {
        float *to = (float *)((char *)d->mem.host + views[i].offset_bytes);
        const int input = input_of(&tensors[i]);
        views[i].mem = d->mem.mem;
        if (input == TOOL_INPUTS)
            results[output_of(&tensors[i])] = to;
        else if (d->frame[input].pixels)
            memcpy(to, d->frame[input].pixels, tensors[i].bytes);
        else
            for (uint64_t at = 0; at < tensors[i].bytes / sizeof *to; at++)
                to[at] = tool_denoiser_inputs[input].absent;
    }
    return true;
}

bool tool_edges_of(const char *command, const char *value, tool_edges *edges)
{
    static const char *const words[] = {[TOOL_EDGES_FOUND] = "auto", [TOOL_EDGES_SMOOTH] = "smooth", [TOOL_EDGES_HARD] = "hard", NULL};
    const int index = value ? tool_word(value, words) : TOOL_EDGES_FOUND;

    if (index < 0)
        tool_usage(command, "--edges \"%s\": must be auto, smooth or hard", value);
    *edges = index < 0 ? TOOL_EDGES_FOUND : (tool_edges)index;
    return index >= 0;
}

static bool has_edges(const tool_denoiser *d)
{
    return d->info.number_count > TOOL_EDGES;
}

bool tool_denoiser_prepare(tool_denoiser *d, uint32_t height, uint32_t width)
{
    if (d->edges == TOOL_EDGES_HARD && !has_edges(d))
        return fails(d, "--edges hard: the model has no number \"edges\"");
    d->numbers[d->number_at[TOOL_HEIGHT]] = height;
    d->numbers[d->number_at[TOOL_WIDTH]] = width;
    if (has_edges(d))
        d->numbers[d->number_at[TOOL_EDGES]] = d->hard ? 2 : 1;
    return ok(d, tandem_model_prepare(d->s, d->instance, d->numbers, d->info.number_count));
}

/* A frame's that follows another are that one's. */
static void find_edges(tool_denoiser *d)
{
    if (d->edges != TOOL_EDGES_FOUND)
        d->hard = d->edges == TOOL_EDGES_HARD;
    else if (has_edges(d) && (!d->knows_edges || !d->frame[TOOL_DEPTH_BEFORE].pixels))
        d->hard = tool_edges_are_hard(&d->frame[TOOL_DEPTH], &d->frame[TOOL_NORMAL]);
    d->knows_edges = true;
}

bool tool_denoiser_run(tool_denoiser *d)
{
    const tool_picture *color = &d->frame[TOOL_COLOR];
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_view views[TOOL_INPUTS + TOOL_OUTPUTS];
    const float *results[TOOL_OUTPUTS] = {0};
    tandem_ticket ticket;

    find_edges(d);
    if (!tool_denoiser_prepare(d, color->height, color->width) || !bind(d, views, results))
        return false;
    if (!results[TOOL_OUT])
        return fails(d, "--model: has no output \"out\" or \"indirect\"");
    job.op.run = (tandem_run){.instance = d->instance,
                              .bindings = views,
                              .binding_count = d->info.binding_count,
                              .numbers = d->numbers,
                              .number_count = d->info.number_count};
    const uint64_t begin = td_now_ns();
    if (!ok(d, tandem_submit(d->s, &job, &ticket)) || !ok(d, tandem_wait(d->s, ticket, LIMIT_NS, &report)))
        return false;
    d->ms = report.end_ns > report.begin_ns ? (double)(report.end_ns - report.begin_ns) * 1e-6 : (double)(td_now_ns() - begin) * 1e-6;
    if (report.state != TANDEM_JOB_DONE) {
        tandem_error_text(d->s, d->why, sizeof d->why);
        return d->why[0] ? false : fails(d, "the run ended in state %u: %s", report.state, tandem_status_text(report.status));
    }
    for (int i = 0; i < TOOL_OUTPUTS; i++) {
        tool_picture *to = &d->results[i];
        tool_picture_free(to);
        if (results[i] && !tool_picture_new(to, color->width, color->height, outputs[i].channels))
            return fails(d, "out of memory");
        if (results[i])
            memcpy(to->pixels, results[i], (size_t)to->width * to->height * to->channels * sizeof(float));
    }
    return true;
}
