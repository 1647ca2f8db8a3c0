/* `tandem denoise`: a path tracer's frames, cleaned up by a network.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/tool/picture.h"
#include "engine_plugin/tool/quality.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/safetensors.h"
#include "tandem/tandem.h"

/* clang-format off */
const char *const tool_denoise_help =
    "usage: tandem denoise --model M --color F [--albedo F --normal F --depth F] --out F [options]\n"
    "       tandem denoise --model M --frame F.safetensors --out G.safetensors [options]\n"
    "       tandem denoise --model M --sequence NAME.%d.safetensors --out NAME.%d.safetensors [options]\n"
    "\n"
    "Takes the noise out of a path tracer's frame. Pictures are PFM, EXR and PNG, as this build has them; frames\n"
    "are safetensors whose tensors are [height, width, channels], F16 or F32:\n"
    "  color    3   linear radiance: the mean of 1 to 16 samples, jittered in the pixel under a box filter, not\n"
    "               divided by albedo; NaN and Inf count as missing; any exposure\n"
    "  albedo   3   of the same samples' first hit: 1 for mirrors and glass, a metal's colour, 0 on the sky\n"
    "  normal   3   of the world, towards the viewer: the samples' mean, not normalised; 0 on the sky\n"
    "  depth    1   along the view, in any unit; 0 on the sky\n"
    "  motion   2   across and down, in pixels, to where this sample was in the frame before\n"
    "  valid    1   above 0 if it was seen there\n"
    "Behind a mirror or glass these are the mirror's and the glass's. All but color may be left out: without\n"
    "motion nothing is taken to have moved, without valid what normal and depth say is the same surface counts.\n"
    "The result is `color` of the file, F32; a network with history writes `history`, `normal` and `depth`, too,\n"
    "from which --previous goes on.\n"
    "\n"
    "  --model M        safetensors with a graph whose inputs are such tensors, F32, of `height` and `width`, and\n"
    "                   whose output is `out` (kernels/PROGRAM.md, demo/train/README.md)\n"
    "  --color F        a picture: of EXR the first part's channels R, G, B or X, Y, Z\n"
    "  --albedo F       likewise\n"
    "  --normal F       likewise\n"
    "  --depth F        likewise, its channel Z, Y, V or R\n"
    "  --motion F       likewise, its first two channels\n"
    "  --valid F        likewise, as --depth\n"
    "  --frame F        all in one file\n"
    "  --sequence F     frames one after the other, from number 0 or 1 on, as long as there are any: %d or %04d in\n"
    "                   the names stands for it, in that of --out and of other pictures, too. The network's\n"
    "                   history goes on from frame to frame. Pictures whose names have one are a sequence as well\n"
    "  --previous F     what was written for the frame before, safetensors: its history\n"
    "  --cut LIST       numbers of frames that have nothing to do with the one before: 12,80. Others are found where\n"
    "                   less than a quarter of all pixels shows the same surface. `cut` is printed of each\n"
    "  --out F          a picture, or with --frame safetensors; PNG shows 0 to 1 in sRGB\n"
    "  --reference F    what it should be: a picture, or safetensors with `reference` or `color`. Prints, of\n"
    "                   x / (1 + x), PSNR and SSIM (Gaussian of 11 pixels, sigma 1.5), and relMSE, the mean of\n"
    "                   (x - r)^2 / (r^2 + 0.01); of what came in, too\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                   how compute meets memory; default auto: the GPU, or else the CPU\n"
    "  --socket PATH    compute in the tandemd that listens there\n";
/* clang-format on */

#define LIMIT_NS 600000000000u /* the longest that a frame may take */

enum { COLOR, ALBEDO, NORMAL, DEPTH, MOTION, VALID, READ, NORMAL_BEFORE = READ, DEPTH_BEFORE, HISTORY, INPUTS };
enum { OUT, HISTORY_OUT, OUTPUTS };
static const struct input {
    const char *name, *option;
    uint32_t channels;
    float absent; /* what every element of one that is left out is */
} inputs[INPUTS] = {{"color", "--color", 3, 0},          {"albedo", "--albedo", 3, 1},       {"normal", "--normal", 3, 0},
                    {"depth", "--depth", 1, 0},          {"motion", "--motion", 2, 0},       {"valid", "--valid", 1, 1},
                    {"normal_before", "--previous", 3, 0}, {"depth_before", "--previous", 1, 0}, {"history_before", "--previous", 4, 0}};
static const struct output {
    const char *name;
    uint32_t channels;
} outputs[OUTPUTS] = {{"out", 3}, {"history", 4}};

typedef struct arguments {
    const char *model, *pictures[READ], *frame, *sequence, *out, *previous, *cut, *reference, *rung, *socket;
    uint32_t rung_value;
    bool many; /* names have a number */
} arguments;

typedef struct denoiser {
    tandem_session *s;
    tandem_model model;
    tandem_instance instance;
    tandem_network info;
    uint32_t numbers[2]; /* as the network has them: height and width in its order */
    uint32_t height_at;
    tandem_mem mem;
    uint64_t mem_bytes;
    tool_picture frame[INPUTS], results[OUTPUTS], reference;
    bool is_cut;
    double ms;
    char why[600];
} denoiser;

/* --- What is asked for --- */

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--color", &a->pictures[COLOR], NULL},
                                   {"--albedo", &a->pictures[ALBEDO], NULL},
                                   {"--normal", &a->pictures[NORMAL], NULL},
                                   {"--depth", &a->pictures[DEPTH], NULL},
                                   {"--motion", &a->pictures[MOTION], NULL},
                                   {"--valid", &a->pictures[VALID], NULL},
                                   {"--previous", &a->previous, NULL},
                                   {"--cut", &a->cut, NULL},
                                   {"--frame", &a->frame, NULL},
                                   {"--sequence", &a->sequence, NULL},
                                   {"--out", &a->out, NULL},
                                   {"--reference", &a->reference, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--socket", &a->socket, NULL}};

    if (tool_parse("denoise", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->out)
        return tool_usage("denoise", "%s is missing; `tandem help denoise` explains it", !a->model ? "--model" : "--out");
    if (!a->pictures[COLOR] + !a->frame + !a->sequence != 2)
        return tool_usage("denoise", "one of --color, --frame and --sequence says what to denoise");
    for (int i = ALBEDO; i < READ; i++)
        if (a->pictures[i] && !a->pictures[COLOR])
            return tool_usage("denoise", "%s goes with --color: a frame has its own", inputs[i].option);
    if (!tool_rung("denoise", a->rung, &a->rung_value))
        return TOOL_USAGE;
    for (const char *at = a->cut; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strspn(at, "0123456789") != strcspn(at, ",") || strcspn(at, ",") - 1 > 8)
            return tool_usage("denoise", "--cut \"%s\" is no list of numbers as 12,80", a->cut);
    a->many = a->sequence || (a->pictures[COLOR] && strchr(a->pictures[COLOR], '%'));
    return TOOL_OK;
}

static bool fails(denoiser *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fails(denoiser *d, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(d->why, sizeof d->why, format, args);
    va_end(args);
    return false;
}

/* A name with its number in place of %d or %04d; of a single frame the name as it is. */
static bool name_of(denoiser *d, const char *option, const char *pattern, bool many, uint32_t number, char name[4096])
{
    const char *percent = many ? strchr(pattern, '%') : NULL, *at = percent ? percent + 1 : NULL;
    int digits = 0;

    if (!percent && many)
        return fails(d, "%s \"%s\": a sequence's names have one %%d or %%04d", option, pattern);
    if (!percent) {
        snprintf(name, 4096, "%s", pattern);
        return true;
    }
    if (at[0] == '0' && at[1] >= '1' && at[1] <= '9') {
        digits = at[1] - '0';
        at += 2;
    }
    if (*at != 'd' || strchr(at, '%'))
        return fails(d, "%s \"%s\": a sequence's names have one %%d or %%04d", option, pattern);
    snprintf(name, 4096, "%.*s%0*" PRIu32 "%s", (int)(percent - pattern), pattern, digits, number, at + 1);
    return true;
}

/* --- Frames --- */

static bool read_tensor(denoiser *d, const char *path, td_safetensors *file, const td_safetensor *tensor, uint32_t channels, tool_picture *out)
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

static bool read_frame(denoiser *d, const char *path)
{
    td_safetensors file = {.fd = -1};
    char why[300] = "";
    bool done = td_safetensors_open(path, &file, why, sizeof why) == TANDEM_OK;

    if (!done)
        return fails(d, "\"%s\": %s", path, why);
    for (int i = 0; i < READ && done; i++) {
        const td_safetensor *tensor = td_safetensors_find(&file, inputs[i].name);
        if (tensor)
            done = read_tensor(d, path, &file, tensor, inputs[i].channels, &d->frame[i]);
        else if (i == COLOR)
            done = fails(d, "\"%s\" has no tensor \"color\"", path);
    }
    td_safetensors_close(&file);
    return done;
}

/* What the frame before left, from the file that was written of it. */
static bool read_previous(denoiser *d, const char *path)
{
    static const char *const names[INPUTS - READ] = {"normal", "depth", "history"};
    td_safetensors file = {.fd = -1};
    char why[300] = "";

    if (td_safetensors_open(path, &file, why, sizeof why) != TANDEM_OK)
        return fails(d, "--previous \"%s\": %s", path, why);
    bool done = td_safetensors_find(&file, "history") ||
                fails(d, "--previous \"%s\" has no tensor \"history\": it is a file that a network with history wrote", path);
    for (int i = READ; i < INPUTS && done; i++) {
        const td_safetensor *tensor = td_safetensors_find(&file, names[i - READ]);
        tool_picture_free(&d->frame[i]);
        done = !tensor || read_tensor(d, path, &file, tensor, inputs[i].channels, &d->frame[i]);
    }
    for (int i = READ; i < HISTORY && done; i++)
        if (d->frame[i].pixels && (d->frame[i].width != d->frame[HISTORY].width || d->frame[i].height != d->frame[HISTORY].height))
            done = fails(d, "--previous \"%s\": \"%s\" and \"history\" differ in size", path, names[i - READ]);
    td_safetensors_close(&file);
    return done;
}

/* A picture's first two channels. */
static bool make_motion(denoiser *d, tool_picture *motion)
{
    tool_picture two = {0};

    if (!tool_picture_new(&two, motion->width, motion->height, 2))
        return fails(d, "out of memory");
    for (size_t i = 0; i < (size_t)two.width * two.height; i++)
        memcpy(two.pixels + 2 * i, motion->pixels + 3 * i, 2 * sizeof *two.pixels);
    tool_picture_free(motion);
    *motion = two;
    return true;
}

static bool read_picture(denoiser *d, int input, const char *path)
{
    const bool is_motion = input == MOTION;

    return tool_picture_read(inputs[input].option, path, is_motion ? 3 : inputs[input].channels, &d->frame[input], d->why, sizeof d->why) &&
           (!is_motion || make_motion(d, &d->frame[input]));
}

static bool is_safetensors(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending && !strcmp(ending, ".safetensors");
}

static bool read_reference(denoiser *d, const char *path)
{
    td_safetensors file = {.fd = -1};
    char why[300] = "";

    if (!is_safetensors(path))
        return tool_picture_read("--reference", path, 3, &d->reference, d->why, sizeof d->why);
    if (td_safetensors_open(path, &file, why, sizeof why) != TANDEM_OK)
        return fails(d, "--reference \"%s\": %s", path, why);
    const td_safetensor *tensor = td_safetensors_find(&file, "reference");
    tensor = tensor ? tensor : td_safetensors_find(&file, "color");
    const bool done = tensor ? read_tensor(d, path, &file, tensor, 3, &d->reference)
                             : fails(d, "--reference \"%s\" has no tensor \"reference\" or \"color\"", path);
    td_safetensors_close(&file);
    return done;
}

static bool same_size(denoiser *d, const char *what, const tool_picture *other)
{
    const tool_picture *color = &d->frame[COLOR];

    if (!other->pixels || (other->width == color->width && other->height == color->height))
        return true;
    return fails(d, "%s is %" PRIu32 " x %" PRIu32 ", color %" PRIu32 " x %" PRIu32, what, other->width, other->height, color->width,
                 color->height);
}

/* All of a frame, and what it should be. */
static bool read_all(denoiser *d, const arguments *a, uint32_t number)
{
    const char *frame = a->frame ? a->frame : a->sequence;
    char name[4096];
    bool done = true;

    for (int i = 0; i < READ; i++)
        tool_picture_free(&d->frame[i]);
    tool_picture_free(&d->reference);
    if (frame)
        done = name_of(d, a->frame ? "--frame" : "--sequence", frame, a->many, number, name) && read_frame(d, name);
    for (int i = 0; i < READ && done; i++)
        if (a->pictures[i])
            done = name_of(d, inputs[i].option, a->pictures[i], a->many, number, name) && read_picture(d, i, name);
    if (done && a->reference)
        done = name_of(d, "--reference", a->reference, a->many && strchr(a->reference, '%'), number, name) && read_reference(d, name);
    for (int i = ALBEDO; i < READ && done; i++)
        done = same_size(d, inputs[i].name, &d->frame[i]);
    return done && same_size(d, "--reference", &d->reference);
}

/* --- Cuts --- */

/* A pixel's surface: whether it is the same, as an operation of the network's (tandem_reproject) asks of each pixel. */
static bool is_same(const denoiser *d, size_t now, size_t then)
{
    float both = 0, lengths[2] = {0};

    if (d->frame[NORMAL].pixels && d->frame[NORMAL_BEFORE].pixels)
        for (int c = 0; c < 3; c++) {
            const float p = d->frame[NORMAL].pixels[3 * now + c], q = d->frame[NORMAL_BEFORE].pixels[3 * then + c];
            both += p * q, lengths[0] += p * p, lengths[1] += q * q;
        }
    if (both < 0.5f * sqrtf(lengths[0] * lengths[1]))
        return false;
    if (!d->frame[DEPTH].pixels || !d->frame[DEPTH_BEFORE].pixels)
        return true;
    return fabsf(d->frame[DEPTH].pixels[now] - d->frame[DEPTH_BEFORE].pixels[then]) <= 0.1f * d->frame[DEPTH].pixels[now];
}

/* Whether less than a quarter of the frame shows what the one before did. */
static bool finds_cut(const denoiser *d)
{
    const tool_picture *color = &d->frame[COLOR], *motion = &d->frame[MOTION], *valid = &d->frame[VALID];
    const float width = (float)color->width, height = (float)color->height;
    size_t same = 0;

    for (size_t i = 0, count = (size_t)color->width * color->height; i < count; i++) {
        const float x = (float)(i % color->width) + 0.5f + (motion->pixels ? motion->pixels[2 * i] : 0);
        const float y = (float)(i / color->width) + 0.5f + (motion->pixels ? motion->pixels[2 * i + 1] : 0);
        if (x >= 0 && y >= 0 && x < width && y < height && (!valid->pixels || valid->pixels[i] > 0))
            same += is_same(d, i, (size_t)y * color->width + (size_t)x);
    }
    return same < (size_t)color->width * color->height / 4;
}

static bool is_listed(const char *list, uint32_t number)
{
    for (const char *at = list; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strtoul(at, NULL, 10) == number)
            return true;
    return false;
}

/* What the frame before left counts no more behind a cut, or where its size was another. */
static bool forget(denoiser *d, const arguments *a, uint32_t number)
{
    const tool_picture *color = &d->frame[COLOR], *history = &d->frame[HISTORY];

    d->is_cut = false;
    if (!history->pixels)
        return true;
    if (a->previous && !a->many)
        for (int i = READ; i < INPUTS; i++)
            if (!same_size(d, inputs[i].name, &d->frame[i]))
                return false;
    d->is_cut = history->width != color->width || history->height != color->height || is_listed(a->cut, number) || finds_cut(d);
    for (int i = READ; i < INPUTS && d->is_cut; i++)
        tool_picture_free(&d->frame[i]);
    return true;
}

/* For the next frame. */
static void remember(denoiser *d)
{
    for (int i = READ; i < INPUTS; i++)
        tool_picture_free(&d->frame[i]);
    d->frame[NORMAL_BEFORE] = d->frame[NORMAL];
    d->frame[DEPTH_BEFORE] = d->frame[DEPTH];
    d->frame[HISTORY] = d->results[HISTORY_OUT];
    d->frame[NORMAL] = d->frame[DEPTH] = d->results[HISTORY_OUT] = (tool_picture){0};
}

/* --- The network --- */

/* A call of the session's: what it said. */
static bool ok(denoiser *d, tandem_status status)
{
    if (status != TANDEM_OK)
        tandem_error_text(d->s, d->why, sizeof d->why);
    return status == TANDEM_OK;
}

static bool open_network(denoiser *d, const arguments *a)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .rung = a->rung_value,
                                                 .timing = 1,
                                                 .socket = a->socket,
                                                 .error_text = d->why,
                                                 .error_text_bytes = sizeof d->why);
    tandem_network_number first = TANDEM_INIT(tandem_network_number), second = first;

    d->info = TANDEM_INIT(tandem_network);
    if (tandem_session_create(&desc, &d->s) != TANDEM_OK || !ok(d, tandem_model_load(d->s, a->model, &d->model)) ||
        !ok(d, tandem_model_info(d->s, d->model, &d->info)) ||
        !ok(d, tandem_model_instance(d->s, d->model, &TANDEM_INIT(tandem_instance_desc), &d->instance)))
        return false;
    if (d->info.number_count != 2 || d->info.uniform_count || !ok(d, tandem_model_number(d->s, d->model, 0, &first)) ||
        !ok(d, tandem_model_number(d->s, d->model, 1, &second)) ||
        !((!strcmp(first.name, "height") && !strcmp(second.name, "width")) || (!strcmp(first.name, "width") && !strcmp(second.name, "height"))))
        return fails(d, "--model \"%s\": a denoiser's numbers are height and width, and it has no uniforms", a->model);
    d->height_at = strcmp(first.name, "height") != 0;
    return true;
}

/* Which of a frame's pictures an input of the network is; INPUTS for none. */
static int input_of(const tandem_network_tensor *t)
{
    for (int i = 0; i < INPUTS; i++)
        if (t->role == TANDEM_NETWORK_INPUT && !strcmp(t->name, inputs[i].name))
            return i;
    return INPUTS;
}

/* Likewise of what comes out. */
static int output_of(const tandem_network_tensor *t)
{
    for (int i = 0; i < OUTPUTS; i++)
        if (t->role == TANDEM_NETWORK_OUTPUT && !strcmp(t->name, outputs[i].name))
            return i;
    return OUTPUTS;
}

static bool check_binding(denoiser *d, const tandem_network_tensor *t)
{
    const tool_picture *color = &d->frame[COLOR];
    const int input = input_of(t), output = output_of(t);

    if (input == INPUTS && output == OUTPUTS)
        return fails(d,
                     "--model: \"%s\" is none of a denoiser's inputs, which are color, albedo, normal, depth, motion, valid, normal_before, "
                     "depth_before and history_before, nor of its outputs, out and history",
                     t->name);
    const uint32_t channels = input < INPUTS ? inputs[input].channels : outputs[output].channels;
    if (t->dtype != TANDEM_DTYPE_F32 || t->dimensions != 3 || t->shape[1] != color->height || t->shape[2] != color->width || t->shape[3] != channels)
        return fails(d, "--model: \"%s\" must be F32, [height, width, %" PRIu32 "]", t->name, channels);
    return true;
}

/* Bindings of a frame's size, in a mem that is kept as long as it is large enough. */
static bool bind(denoiser *d, tandem_view views[INPUTS + OUTPUTS], const float *results[OUTPUTS])
{
    tandem_network_tensor tensors[INPUTS + OUTPUTS];
    uint64_t bytes = 0;
    void *host;

    if (d->info.binding_count > INPUTS + OUTPUTS)
        return fails(d, "--model: a denoiser has at most %d inputs and %d outputs", INPUTS, OUTPUTS);
    for (uint32_t i = 0; i < d->info.binding_count; i++) {
        tensors[i] = TANDEM_INIT(tandem_network_tensor);
        if (!ok(d, tandem_model_binding(d->s, d->model, d->numbers, 2, i, &tensors[i])) || !check_binding(d, &tensors[i]))
            return false;
        views[i] = (tandem_view){.offset_bytes = bytes, .dtype = tensors[i].dtype};
        bytes += td_align_up(tensors[i].bytes, 256);
    }
    if (d->mem_bytes < bytes) {
        if ((d->mem && !ok(d, tandem_mem_destroy(d->s, d->mem))) ||
            !ok(d, tandem_mem_create(d->s, &TANDEM_INIT(tandem_mem_desc, .bytes = bytes), &d->mem)))
            return false;
        d->mem_bytes = bytes;
    }
    if (!ok(d, tandem_mem_host(d->s, d->mem, &host)))
        return false;
    for (uint32_t i = 0; i < d->info.binding_count; i++) {
        float *to = (float *)((char *)host + views[i].offset_bytes);
        const int input = input_of(&tensors[i]);
        views[i].mem = d->mem;
        if (input == INPUTS)
            results[output_of(&tensors[i])] = to;
        else if (d->frame[input].pixels)
            memcpy(to, d->frame[input].pixels, tensors[i].bytes);
        else
            for (uint64_t at = 0; at < tensors[i].bytes / sizeof *to; at++)
                to[at] = inputs[input].absent;
    }
    return true;
}

static bool run(denoiser *d)
{
    const tool_picture *color = &d->frame[COLOR];
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_view views[INPUTS + OUTPUTS];
    const float *results[OUTPUTS] = {0};
    tandem_ticket ticket;

    d->numbers[d->height_at] = color->height;
    d->numbers[!d->height_at] = color->width;
    if (!ok(d, tandem_model_prepare(d->s, d->instance, d->numbers, 2)) || !bind(d, views, results))
        return false;
    if (!results[OUT])
        return fails(d, "--model: has no output \"out\"");
    job.op.run = (tandem_run){.instance = d->instance,
                              .bindings = views,
                              .binding_count = d->info.binding_count,
                              .numbers = d->numbers,
                              .number_count = 2};
    const uint64_t begin = td_now_ns();
    if (!ok(d, tandem_submit(d->s, &job, &ticket)) || !ok(d, tandem_wait(d->s, ticket, LIMIT_NS, &report)))
        return false;
    d->ms = report.end_ns > report.begin_ns ? (double)(report.end_ns - report.begin_ns) * 1e-6 : (double)(td_now_ns() - begin) * 1e-6;
    if (report.state != TANDEM_JOB_DONE) {
        tandem_error_text(d->s, d->why, sizeof d->why);
        return d->why[0] ? false : fails(d, "the run ended in state %u: %s", report.state, tandem_status_text(report.status));
    }
    for (int i = 0; i < OUTPUTS; i++) {
        tool_picture *to = &d->results[i];
        tool_picture_free(to);
        if (results[i] && !tool_picture_new(to, color->width, color->height, outputs[i].channels))
            return fails(d, "out of memory");
        if (results[i])
            memcpy(to->pixels, results[i], (size_t)to->width * to->height * to->channels * sizeof(float));
    }
    return true;
}

/* --- What comes of it --- */

static bool write_result(denoiser *d, const char *path)
{
    const struct {
        const char *name;
        const tool_picture *picture;
    } parts[] = {{"color", &d->results[OUT]}, {"history", &d->results[HISTORY_OUT]}, {"normal", &d->frame[NORMAL]}, {"depth", &d->frame[DEPTH]}};
    const size_t count = d->results[HISTORY_OUT].pixels ? sizeof parts / sizeof *parts : 1;
    tool_list list = {0};
    bool done = true;

    if (!is_safetensors(path))
        return tool_picture_write("--out", path, &d->results[OUT], d->why, sizeof d->why);
    for (size_t i = 0; i < count && done; i++) {
        const tool_picture *p = parts[i].picture;
        if (!p->pixels)
            continue;
        void *to = tool_add(&list, parts[i].name, "F32", 3, p->height, p->width, p->channels, 1);
        done = to || fails(d, "out of memory");
        if (to)
            memcpy(to, p->pixels, (size_t)p->height * p->width * p->channels * sizeof(float));
    }
    done = done && tool_save(path, &list, d->why, sizeof d->why);
    tool_list_free(&list);
    return done;
}

static bool print_report(denoiser *d, const char *path)
{
    tandem_info info = TANDEM_INIT(tandem_info);
    tool_quality before, after;

    tandem_session_info(d->s, &info);
    printf("%" PRIu32 " x %" PRIu32 " on %s (%s): %.3f ms", d->results[OUT].width, d->results[OUT].height, tool_backend_name(info.backend),
           info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device, d->ms);
    if (d->reference.pixels) {
        if (!tool_quality_of(&d->frame[COLOR], &d->reference, &before) || !tool_quality_of(&d->results[OUT], &d->reference, &after))
            return fails(d, "out of memory");
        printf(", PSNR %.2f dB (input %.2f), SSIM %.4f (%.4f), relMSE %.4g (%.4g)", after.psnr_db, before.psnr_db, after.ssim, before.ssim,
               after.rel_mse, before.rel_mse);
    }
    printf("%s -> %s\n", d->is_cut ? ", cut" : "", path);
    return true;
}

static bool one(denoiser *d, const arguments *a, uint32_t number)
{
    char out[4096];

    if (!name_of(d, "--out", a->out, a->many, number, out) || !read_all(d, a, number) || !forget(d, a, number) || !run(d))
        return false;
    if (a->previous && !d->results[HISTORY_OUT].pixels)
        return fails(d, "--previous: the network has no history: no output \"history\"");
    if (!write_result(d, out) || !print_report(d, out))
        return false;
    remember(d);
    return true;
}

/* Whether there is a frame of that number. */
static bool is_there(denoiser *d, const arguments *a, uint32_t number)
{
    char name[4096];

    return name_of(d, a->sequence ? "--sequence" : "--color", a->sequence ? a->sequence : a->pictures[COLOR], true, number, name) &&
           access(name, F_OK) == 0;
}

static bool compute(denoiser *d, const arguments *a)
{
    if (is_safetensors(a->out) ? !tool_can_save("--out", a->out, d->why, sizeof d->why)
                               : !tool_picture_can_write("--out", a->out, d->why, sizeof d->why))
        return false;
    if (!open_network(d, a) || (a->previous && !read_previous(d, a->previous)))
        return false;
    if (!a->many)
        return one(d, a, 0);
    uint32_t number = is_there(d, a, 0) ? 0 : 1;
    if (!is_there(d, a, number))
        return d->why[0] ? false : fails(d, "\"%s\": there is no frame 0 or 1", a->sequence ? a->sequence : a->pictures[COLOR]);
    for (; is_there(d, a, number); number++)
        if (!one(d, a, number))
            return false;
    return true;
}

int tool_denoise(int argc, char **argv)
{
    arguments a = {.rung = "auto"};
    denoiser *d = calloc(1, sizeof *d);

    if (!d)
        return tool_fail("denoise", "out of memory");
    int status = read_arguments(argc, argv, &a);
    if (status == TOOL_OK && !compute(d, &a))
        status = tool_fail("denoise", "%s", d->why[0] ? d->why : "failed");
    if (d->s)
        tandem_session_destroy(&d->s);
    for (int i = 0; i < INPUTS; i++)
        tool_picture_free(&d->frame[i]);
    for (int i = 0; i < OUTPUTS; i++)
        tool_picture_free(&d->results[i]);
    tool_picture_free(&d->reference);
    free(d);
    return status;
}
