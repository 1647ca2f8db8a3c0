/* `tandem denoise`: a path tracer's frames, cleaned up by a network.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/tool/denoiser.h"
#include "engine_plugin/tool/network.h"
#include "engine_plugin/tool/quality.h"
#include "engine_plugin/tool/tool.h"
#include "engine_plugin/tool/upscale.h"
#include "interop/base.h"
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
    "A color that is smaller than albedo, normal and depth is upscaled to their size, by 2 at most, and across as\n"
    "much as down, but that sizes are rounded up or down: of r rows of color for an output of h, row i is that of\n"
    "the output's row floor((2 i + 1) h / (2 r)), and columns likewise; its samples are jittered in that pixel. All\n"
    "else has the output's size. It is the same as a color of the output's size that is NaN at all other pixels.\n"
    "The result is `color` of the file, F32; a network with history writes `history`, `normal` and `depth`, too,\n"
    "from which --previous goes on.\n"
    "\n"
    "  --model M        safetensors with a graph whose inputs are such tensors, F32, of `height` and `width`, and\n"
    "                   whose output is `out`; it may have a third number, `edges` (kernels/PROGRAM.md,\n"
    "                   demo/train/README.md)\n"
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
    "  --edges auto|smooth|hard\n"
    "                   hard: rays all go through the middle of pixels, as a rasterised G-buffer's, and neighbours\n"
    "                   across edges are not mixed; smooth: samples are jittered in the pixel; default auto: as the\n"
    "                   depths on planes tell, in a sequence those of the first frame\n"
    "  --out F          a picture, or with --frame safetensors; PNG shows 0 to 1 in sRGB\n"
    "  --reference F    what it should be: a picture, or safetensors with `reference` or `color`. Prints, of\n"
    "                   x / (1 + x), PSNR and SSIM (Gaussian of 11 pixels, sigma 1.5), and relMSE, the mean of\n"
    "                   (x - r)^2 / (r^2 + 0.01); of what came in, too: where it is\n"
    "                   upscaled, of bicubic interpolation\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                   how compute meets memory; default auto: the GPU, or else the CPU\n"
    "  --socket PATH    compute in the tandemd that listens there\n"
    "  --plan F         a precision for each layer of attention, as `tandem calibrate` has written it for this model\n";
/* clang-format on */

typedef struct arguments {
    const char *model, *pictures[TOOL_READ], *frame, *sequence, *out, *previous, *cut, *reference, *edges, *rung, *socket, *plan;
    uint32_t rung_value;
    tool_edges edges_value;
    bool many; /* names have a number */
} arguments;

/* --- What is asked for --- */

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--color", &a->pictures[TOOL_COLOR], NULL},
                                   {"--albedo", &a->pictures[TOOL_ALBEDO], NULL},
                                   {"--normal", &a->pictures[TOOL_NORMAL], NULL},
                                   {"--depth", &a->pictures[TOOL_DEPTH], NULL},
                                   {"--motion", &a->pictures[TOOL_MOTION], NULL},
                                   {"--valid", &a->pictures[TOOL_VALID], NULL},
                                   {"--previous", &a->previous, NULL},
                                   {"--cut", &a->cut, NULL},
                                   {"--frame", &a->frame, NULL},
                                   {"--sequence", &a->sequence, NULL},
                                   {"--out", &a->out, NULL},
                                   {"--reference", &a->reference, NULL},
                                   {"--edges", &a->edges, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--socket", &a->socket, NULL},
                                   {"--plan", &a->plan, NULL}};

    if (tool_parse("denoise", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->out)
        return tool_usage("denoise", "%s is missing; `tandem help denoise` explains it", !a->model ? "--model" : "--out");
    if (!a->pictures[TOOL_COLOR] + !a->frame + !a->sequence != 2)
        return tool_usage("denoise", "one of --color, --frame and --sequence says what to denoise");
    for (int i = TOOL_ALBEDO; i < TOOL_READ; i++)
        if (a->pictures[i] && !a->pictures[TOOL_COLOR])
            return tool_usage("denoise", "%s goes with --color: a frame has its own", tool_denoiser_inputs[i].option);
    if (!tool_edges_of("denoise", a->edges, &a->edges_value) || !tool_rung("denoise", a->rung, &a->rung_value))
        return TOOL_USAGE;
    for (const char *at = a->cut; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strspn(at, "0123456789") != strcspn(at, ",") || strcspn(at, ",") - 1 > 8)
            return tool_usage("denoise", "--cut \"%s\" is no list of numbers as 12,80", a->cut);
    a->many = a->sequence || (a->pictures[TOOL_COLOR] && strchr(a->pictures[TOOL_COLOR], '%'));
    return TOOL_OK;
}

static bool fails(tool_denoiser *d, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
static bool fails(tool_denoiser *d, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(d->why, sizeof d->why, format, args);
    va_end(args);
    return false;
}

/* A name with its number in place of %d or %04d; of a single frame the name as it is. */
static bool name_of(tool_denoiser *d, const char *option, const char *pattern, bool many, uint32_t number, char name[4096])
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

/* What the frame before left, from the file that was written of it. */
static bool read_previous(tool_denoiser *d, const char *path)
{
    static const char *const names[TOOL_HISTORY + 1 - TOOL_READ] = {"normal", "depth", "history"};
    td_safetensors file = {.fd = -1};
    char why[300] = "";

    if (td_safetensors_open(path, &file, why, sizeof why) != TANDEM_OK)
        return fails(d, "--previous \"%s\": %s", path, why);
    bool done = td_safetensors_find(&file, "history") ||
                fails(d, "--previous \"%s\" has no tensor \"history\": it is a file that a network with history wrote", path);
    for (int i = TOOL_READ; i <= TOOL_HISTORY && done; i++) {
        const td_safetensor *tensor = td_safetensors_find(&file, names[i - TOOL_READ]);
        tool_picture_free(&d->frame[i]);
        done = !tensor || tool_denoiser_tensor(d, path, &file, tensor, tool_denoiser_inputs[i].channels, &d->frame[i]);
    }
    for (int i = TOOL_READ; i < TOOL_HISTORY && done; i++)
        if (d->frame[i].pixels && (d->frame[i].width != d->frame[TOOL_HISTORY].width || d->frame[i].height != d->frame[TOOL_HISTORY].height))
            done = fails(d, "--previous \"%s\": \"%s\" and \"history\" differ in size", path, names[i - TOOL_READ]);
    td_safetensors_close(&file);
    return done;
}

/* A picture's first two channels. */
static bool make_motion(tool_denoiser *d, tool_picture *motion)
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

static bool read_picture(tool_denoiser *d, int input, const char *path)
{
    const bool is_motion = input == TOOL_MOTION;

    return tool_picture_read(tool_denoiser_inputs[input].option, path, is_motion ? 3 : tool_denoiser_inputs[input].channels, &d->frame[input], d->why, sizeof d->why) &&
           (!is_motion || make_motion(d, &d->frame[input]));
}

static bool is_safetensors(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending && !strcmp(ending, ".safetensors");
}

static bool read_reference(tool_denoiser *d, const char *path)
{
    td_safetensors file = {.fd = -1};
    char why[300] = "";

    if (!is_safetensors(path))
        return tool_picture_read("--reference", path, 3, &d->reference, d->why, sizeof d->why);
    if (td_safetensors_open(path, &file, why, sizeof why) != TANDEM_OK)
        return fails(d, "--reference \"%s\": %s", path, why);
    const td_safetensor *tensor = td_safetensors_find(&file, "reference");
    tensor = tensor ? tensor : td_safetensors_find(&file, "color");
    const bool done = tensor ? tool_denoiser_tensor(d, path, &file, tensor, 3, &d->reference)
                             : fails(d, "--reference \"%s\" has no tensor \"reference\" or \"color\"", path);
    td_safetensors_close(&file);
    return done;
}

/* Which input has the output's size: the first of those that a G-buffer has, or else color. */
static int guide_of(const tool_denoiser *d)
{
    for (int i = TOOL_ALBEDO; i <= TOOL_DEPTH; i++)
        if (d->frame[i].pixels)
            return i;
    return TOOL_COLOR;
}

static bool same_size(tool_denoiser *d, const char *what, const tool_picture *other)
{
    const tool_picture *color = &d->frame[TOOL_COLOR];
    const int guide = guide_of(d);

    if (!other->pixels || (other->width == color->width && other->height == color->height))
        return true;
    const bool lacks_guide = guide == TOOL_COLOR && (other->width > color->width || other->height > color->height);
    return fails(d, "%s is %" PRIu32 " x %" PRIu32 ", %s %" PRIu32 " x %" PRIu32 "%s", what, other->width, other->height,
                 tool_denoiser_inputs[d->rendered.pixels ? guide : TOOL_COLOR].name, color->width, color->height,
                 lacks_guide ? "; to upscale, albedo, normal or depth of the output's size is needed" : "");
}

/* A color that is smaller than the G-buffer lies in the output's pixels that were rendered; others are missing. */
static bool upscale(tool_denoiser *d)
{
    const int guide = guide_of(d);
    tool_picture *color = &d->frame[TOOL_COLOR];
    const tool_picture *output = &d->frame[guide];

    tool_picture_free(&d->rendered);
    if (output->width == color->width && output->height == color->height)
        return true;
    if (!tool_upscale_fits(color, output))
        return fails(d, "%s is %" PRIu32 " x %" PRIu32 ", color %" PRIu32 " x %" PRIu32
                     "; color has the same size, or is upscaled, by 2 at most, across as much as down",
                     tool_denoiser_inputs[guide].name, output->width, output->height, color->width, color->height);
    d->rendered = *color;
    return tool_upscale_place(&d->rendered, output->width, output->height, color) || fails(d, "out of memory");
}

/* All of a frame, and what it should be. */
static bool read_all(tool_denoiser *d, const arguments *a, uint32_t number)
{
    const char *frame = a->frame ? a->frame : a->sequence;
    char name[4096];
    bool done = true;

    for (int i = 0; i < TOOL_READ && !frame; i++)
        tool_picture_free(&d->frame[i]);
    tool_picture_free(&d->reference);
    if (frame)
        done = name_of(d, a->frame ? "--frame" : "--sequence", frame, a->many, number, name) && tool_denoiser_frame(d, name);
    for (int i = 0; i < TOOL_READ && done; i++)
        if (a->pictures[i])
            done = name_of(d, tool_denoiser_inputs[i].option, a->pictures[i], a->many, number, name) && read_picture(d, i, name);
    if (done && a->reference)
        done = name_of(d, "--reference", a->reference, a->many && strchr(a->reference, '%'), number, name) && read_reference(d, name);
    done = done && upscale(d);
    for (int i = TOOL_ALBEDO; i < TOOL_READ && done; i++)
        done = same_size(d, tool_denoiser_inputs[i].name, &d->frame[i]);
    return done && same_size(d, "--reference", &d->reference);
}

/* --- Cuts --- */

static bool is_listed(const char *list, uint32_t number)
{
    for (const char *at = list; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strtoul(at, NULL, 10) == number)
            return true;
    return false;
}

/* What the frame before left counts no more behind a cut, or where its size was another. */
static bool forget(tool_denoiser *d, const arguments *a, uint32_t number)
{
    const tool_picture *color = &d->frame[TOOL_COLOR], *history = &d->frame[TOOL_HISTORY];

    d->is_cut = false;
    if (!history->pixels)
        return true;
    if (a->previous && !a->many)
        for (int i = TOOL_READ; i < TOOL_INPUTS; i++)
            if (!same_size(d, tool_denoiser_inputs[i].name, &d->frame[i]))
                return false;
    d->is_cut = history->width != color->width || history->height != color->height || is_listed(a->cut, number) || tool_denoiser_finds_cut(d);
    if (d->is_cut)
        tool_denoiser_forget(d);
    return true;
}

/* --- What comes of it --- */

static bool write_result(tool_denoiser *d, const char *path)
{
    const struct {
        const char *name;
        const tool_picture *picture;
    } parts[] = {{"color", &d->results[TOOL_OUT]}, {"history", &d->results[TOOL_HISTORY_OUT]}, {"normal", &d->frame[TOOL_NORMAL]},
                 {"depth", &d->frame[TOOL_DEPTH]}};
    const size_t count = d->results[TOOL_HISTORY_OUT].pixels ? sizeof parts / sizeof *parts : 1;
    tool_list list = {0};
    bool done = true;

    if (!is_safetensors(path))
        return tool_picture_write("--out", path, &d->results[TOOL_OUT], d->why, sizeof d->why);
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

static bool print_report(tool_denoiser *d, const char *path)
{
    tandem_info info = TANDEM_INIT(tandem_info);
    tool_picture *came = &d->frame[TOOL_COLOR]; /* in the output's size */
    tool_quality before, after;

    tandem_session_info(d->s, &info);
    printf("%" PRIu32 " x %" PRIu32, came->width, came->height);
    if (d->rendered.pixels)
        printf(" of %" PRIu32 " x %" PRIu32, d->rendered.width, d->rendered.height);
    printf(" on %s (%s)%s: %.3f ms", tool_backend_name(info.backend), info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device,
           d->hard ? ", hard edges" : "", d->ms);
    if (d->reference.pixels) {
        const uint32_t width = came->width, height = came->height;
        if (d->rendered.pixels)
            tool_picture_free(came);
        if ((d->rendered.pixels && !tool_upscale_bicubic(&d->rendered, width, height, came)) ||
            !tool_quality_of(came, &d->reference, &before) || !tool_quality_of(&d->results[TOOL_OUT], &d->reference, &after))
            return fails(d, "out of memory");
        printf(", PSNR %.2f dB (input %.2f), SSIM %.4f (%.4f), relMSE %.4g (%.4g)", after.psnr_db, before.psnr_db, after.ssim, before.ssim,
               after.rel_mse, before.rel_mse);
    }
    printf("%s -> %s\n", d->is_cut ? ", cut" : "", path);
    return true;
}

static bool one(tool_denoiser *d, const arguments *a, uint32_t number)
{
    char out[4096];

    if (!name_of(d, "--out", a->out, a->many, number, out) || !read_all(d, a, number) || !forget(d, a, number) || !tool_denoiser_run(d))
        return false;
    if (a->previous && !d->results[TOOL_HISTORY_OUT].pixels)
        return fails(d, "--previous: the network has no history: no output \"history\"");
    if (!write_result(d, out) || !print_report(d, out))
        return false;
    tool_denoiser_remember(d);
    return true;
}

/* Whether there is a frame of that number. */
static bool is_there(tool_denoiser *d, const arguments *a, uint32_t number)
{
    char name[4096];

    return name_of(d, a->sequence ? "--sequence" : "--color", a->sequence ? a->sequence : a->pictures[TOOL_COLOR], true, number, name) &&
           access(name, F_OK) == 0;
}

static bool compute(tool_denoiser *d, const arguments *a)
{
    if (is_safetensors(a->out) ? !tool_can_save("--out", a->out, d->why, sizeof d->why)
                               : !tool_picture_can_write("--out", a->out, d->why, sizeof d->why))
        return false;
    char *plan = a->plan ? tool_plan_text(a->plan, d->why, sizeof d->why) : NULL;
    d->output = "out";
    d->edges = a->edges_value;
    const bool opened = (plan || !a->plan) && tool_denoiser_open(d, a->model, a->rung_value, a->socket, plan);
    free(plan);
    if (!opened || (a->previous && !read_previous(d, a->previous)))
        return false;
    if (!a->many)
        return one(d, a, 0);
    uint32_t number = is_there(d, a, 0) ? 0 : 1;
    if (!is_there(d, a, number))
        return d->why[0] ? false : fails(d, "\"%s\": there is no frame 0 or 1", a->sequence ? a->sequence : a->pictures[TOOL_COLOR]);
    for (; is_there(d, a, number); number++)
        if (!one(d, a, number))
            return false;
    return true;
}

int tool_denoise(int argc, char **argv)
{
    arguments a = {.rung = "auto"};
    tool_denoiser *d = calloc(1, sizeof *d);

    if (!d)
        return tool_fail("denoise", "out of memory");
    int status = read_arguments(argc, argv, &a);
    if (status == TOOL_OK && !compute(d, &a))
        status = tool_fail("denoise", "%s", d->why[0] ? d->why : "failed");
    tool_denoiser_close(d);
    free(d);
    return status;
}
