/* `tandem gi`: indirect light of a frame's direct light, by a network.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/denoiser.h"
#include "engine_plugin/tool/quality.h"
#include "engine_plugin/tool/tool.h"

/* clang-format off */
const char *const tool_gi_help =
    "usage: tandem gi --model M --frame F.safetensors --out G [options]\n"
    "\n"
    "Adds to a frame that has direct light alone what surfaces scatter of one another's. The frame is\n"
    "safetensors whose tensors are [height, width, channels], F16 or F32, and all there:\n"
    "  direct   3   linear radiance, not divided by albedo, any exposure: lights and the sky as they are\n"
    "               seen, what surfaces scatter of lights, sun and sky with their shadows, and\n"
    "               reflections, if there are any. NaN and Inf count as missing\n"
    "  albedo   3   of what scatters: 0 on lights, the sky, metal, mirrors and glass, which get nothing;\n"
    "               finite\n"
    "  normal   3   of the world, whose y is up, towards the viewer; 0 on the sky\n"
    "  depth    1   along the view, in any unit; 0 on the sky\n"
    "  ray      3   in the world, from the eye through the middle of the pixel, of depth 1: what is seen\n"
    "               is at eye + depth * ray; finite\n"
    "The result is F32 in the file G: `indirect`, and `color`, which is direct + indirect; or `color` as\n"
    "a picture.\n"
    "\n"
    "  --model M        safetensors with a graph whose inputs are such tensors, F32, of `height` and\n"
    "                   `width`, and whose output is `indirect` (kernels/PROGRAM.md,\n"
    "                   demo/train/README.md); demo/assets has one\n"
    "  --frame F        what to light; with `indirect`, which it should be, prints of color, and of\n"
    "                   direct light alone, PSNR and SSIM of x / (1 + x), and relMSE, as\n"
    "                   `tandem help denoise` has them\n"
    "  --out G          safetensors, or a picture; PNG shows 0 to 1 in sRGB\n"
    "  --precision auto|f16|8b|4b\n"
    "                   of its attention; default auto: as the model says\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                   how compute meets memory; default auto: the GPU, or else the CPU\n"
    "  --socket PATH    compute in the tandemd that listens there\n";
/* clang-format on */

typedef struct arguments {
    const char *model, *frame, *out, *precision, *rung, *socket;
    uint32_t rung_value;
} arguments;

static int read_arguments(int argc, char **argv, arguments *a, tool_denoiser *d)
{
    const tool_option options[] = {
        {"--model", &a->model, NULL}, {"--frame", &a->frame, NULL},
        {"--out", &a->out, NULL},     {"--precision", &a->precision, NULL},
        {"--rung", &a->rung, NULL},   {"--socket", &a->socket, NULL}};

    if (tool_parse("gi", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->frame || !a->out)
        return tool_usage("gi", "%s is missing; `tandem help gi` explains it",
                          !a->model   ? "--model"
                          : !a->frame ? "--frame"
                                      : "--out");
    return tool_rung("gi", a->rung, &a->rung_value) &&
                   tool_precision("gi", "--precision", a->precision, &d->precision)
               ? TOOL_OK
               : TOOL_USAGE;
}

static bool fails(tool_denoiser *d, const char *why)
{
    snprintf(d->why, sizeof d->why, "%s", why);
    return false;
}

/* Direct and indirect light together. */
static bool sum_of(const tool_picture *direct, const tool_picture *indirect, tool_picture *sum)
{
    const size_t count = 3 * (size_t)direct->width * direct->height;

    if (!tool_picture_new(sum, direct->width, direct->height, 3))
        return false;
    for (size_t i = 0; i < count; i++)
        sum->pixels[i] = direct->pixels[i] + indirect->pixels[i];
    return true;
}

static bool write_result(tool_denoiser *d, const tool_picture *color, const char *path)
{
    const char *ending = strrchr(path, '.');
    const size_t bytes = 3 * (size_t)color->width * color->height * sizeof(float);
    tool_list list = {0};

    if (!ending || strcmp(ending, ".safetensors") != 0)
        return tool_picture_write("--out", path, color, d->why, sizeof d->why);
    void *indirect = tool_add(&list, "indirect", "F32", 3, color->height, color->width, 3, 1);
    void *sum =
        indirect ? tool_add(&list, "color", "F32", 3, color->height, color->width, 3, 1) : NULL;
    bool done = sum || fails(d, "out of memory");
    if (done) {
        memcpy(indirect, d->results[TOOL_OUT].pixels, bytes);
        memcpy(sum, color->pixels, bytes);
        done = tool_save(path, &list, d->why, sizeof d->why);
    }
    tool_list_free(&list);
    return done;
}

static bool print_report(tool_denoiser *d, const tool_picture *color, const char *path)
{
    const tool_picture *direct = &d->frame[TOOL_COLOR];
    tandem_info info = TANDEM_INIT(tandem_info);
    tool_picture wanted = {0};
    tool_quality before, after;

    tandem_session_info(d->s, &info);
    printf("%" PRIu32 " x %" PRIu32 " on %s (%s): %.3f ms", color->width, color->height,
           tool_backend_name(info.backend),
           info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device, d->ms);
    if (d->reference.pixels) {
        const bool done = sum_of(direct, &d->reference, &wanted) &&
                          tool_quality_of(direct, &wanted, &before) &&
                          tool_quality_of(color, &wanted, &after);
        tool_picture_free(&wanted);
        if (!done)
            return fails(d, "out of memory");
        printf(", PSNR %.2f dB (direct %.2f), SSIM %.4f (%.4f), relMSE %.4g (%.4g)", after.psnr_db,
               before.psnr_db, after.ssim, before.ssim, after.rel_mse, before.rel_mse);
    }
    printf(" -> %s\n", path);
    return true;
}

static bool compute(tool_denoiser *d, const arguments *a)
{
    const char *ending = strrchr(a->out, '.');
    const bool is_file = ending && !strcmp(ending, ".safetensors");
    tool_picture color = {0};

    if (is_file ? !tool_can_save("--out", a->out, d->why, sizeof d->why)
                : !tool_picture_can_write("--out", a->out, d->why, sizeof d->why))
        return false;
    d->output = "indirect";
    bool done = tool_denoiser_gi_frame(d, a->frame) &&
                tool_denoiser_open(d, a->model, a->rung_value, a->socket, NULL) && tool_denoiser_run(d);
    done = done && (sum_of(&d->frame[TOOL_COLOR], &d->results[TOOL_OUT], &color) ||
                    fails(d, "out of memory"));
    done = done && write_result(d, &color, a->out) && print_report(d, &color, a->out);
    tool_picture_free(&color);
    return done;
}

int tool_gi(int argc, char **argv)
{
    arguments a = {.rung = "auto", .precision = "auto"};
    tool_denoiser *d = calloc(1, sizeof *d);

    if (!d)
        return tool_fail("gi", "out of memory");
    int status = read_arguments(argc, argv, &a, d);
    if (status == TOOL_OK && !compute(d, &a))
        status = tool_fail("gi", "%s", d->why[0] ? d->why : "failed");
    tool_denoiser_close(d);
    free(d);
    return status;
}
