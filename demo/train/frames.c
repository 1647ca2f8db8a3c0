/* tandem-frames: frames to train a denoiser on, or `gi`, of scenes made at random, by a path tracer in Vulkan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/engine.h"
#include "demo/train/world.h"
#include "interop/base.h"
#include "kernels/model/safetensors.h"

static const uint32_t shader[] = {
#include "train.spv.inc"
};

static const char usage[] =
    "usage: tandem-frames --out FOLDER [options]\n"
    "Writes FOLDER/NAME.SSSSSS.CC.safetensors: frames as `tandem help denoise` says they are, of scene S, copy C; a scene's\n"
    "copies differ in their samples. The first has `reference` as well. With --length frames of a path instead, each with one,\n"
    "with `motion` to where its samples were in the frame before, and `valid`, 1 if they were seen there, else 0: the camera\n"
    "moves, and some things. The same options give the same scenes everywhere, and on the same device the same frames.\n"
    "With --gi frames as `tandem help gi` says they are, each of --reference samples, with `indirect`.\n"
    "  --name NAME     default: scene\n"
    "  --first N       number of the first scene, which is its seed; default 0\n"
    "  --count N       scenes; default 1\n"
    "  --width N, --height N   default 320 x 192\n"
    "  --samples LIST  of each copy; default 1,1,1,4\n"
    "  --reference N   samples of the reference; default 512\n"
    "  --length N      frames of a path, of 1 sample each\n"
    "  --gi            direct light, and apart from it what else there is\n"
    "  --bounces N     default 6\n"
    "  --middle P      percent of the scenes whose rays all go through their pixel's middle, as rasterised G-buffers are; the\n"
    "                  others' go anywhere in it; default 0\n"
    "  --seconds N     begins no scene after so many seconds\n"
    "  --device N      of several GPUs, the first of which is 0\n";

enum { MOST_COPIES = 64, EACH = 16 }; /* samples of a dispatch on a GPU: a driver gives up what takes long */

typedef struct options {
    const char *out, *name;
    bool gi;
    uint32_t first, count, width, height, reference, length, bounces, middle, seconds, device, copies, samples[MOST_COPIES];
} options;

typedef struct renderer {
    demo_engine engine;
    demo_compute compute;
    demo_buffer world, nodes, triangles, materials, lights, sums, back;
    uint32_t each; /* samples of a dispatch */
} renderer;

/* --- Options --- */

static bool read_number(const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);

    if (end == text || *end || value < least || value > most)
        return demo_fail("\"%s\" is no number from %" PRIu32 " to %" PRIu32, text, least, most);
    *out = (uint32_t)value;
    return true;
}

static bool read_samples(const char *list, options *o)
{
    char one[16];

    o->copies = 0;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
        if (o->copies == MOST_COPIES || !read_number(one, 1, 4096, &o->samples[o->copies++]))
            return false;
    }
    return true;
}

static bool read_options(int argc, char **argv, options *o)
{
    const struct {
        const char *name;
        uint32_t *value, least, most;
    } numbers[] = {{"--first", &o->first, 0, 99999999},    {"--count", &o->count, 1, 1000000}, {"--width", &o->width, 16, 4096},
                   {"--height", &o->height, 16, 4096},     {"--reference", &o->reference, 1, 1000000},
                   {"--length", &o->length, 1, 10000},     {"--bounces", &o->bounces, 1, 32},    {"--middle", &o->middle, 0, 100},
                   {"--seconds", &o->seconds, 1, 1000000},  {"--device", &o->device, 0, 15}};

    for (int i = 1; i < argc; i += 2) {
        bool known = false, right = true;
        if (!strcmp(argv[i], "--gi")) {
            o->gi = true;
            i--;
            continue;
        }
        if (i + 1 == argc)
            return demo_fail("%s has no value", argv[i]);
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            if (!strcmp(argv[i], numbers[n].name)) {
                known = true;
                right = read_number(argv[i + 1], numbers[n].least, numbers[n].most, numbers[n].value);
            }
        if (!strcmp(argv[i], "--out") || !strcmp(argv[i], "--name"))
            *(argv[i][2] == 'o' ? &o->out : &o->name) = argv[i + 1];
        else if (!strcmp(argv[i], "--samples"))
            right = read_samples(argv[i + 1], o);
        else if (!known)
            return demo_fail("unknown option \"%s\"", argv[i]);
        if (!right)
            return false;
    }
    if (o->gi && o->length)
        return demo_fail("--gi and --length exclude one another");
    return o->out ? true : demo_fail("--out is missing");
}

/* --- The device --- */

static bool upload(renderer *r, demo_buffer *to, const void *from, uint64_t bytes, const char *name)
{
    demo_buffer staging = {0};
    const uint64_t size = bytes ? bytes : 16; /* a binding has something behind it */
    bool done = demo_buffer_create(&r->engine, size, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, false, "staging", &staging) &&
                demo_buffer_create_near(&r->engine, size, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, name, to);

    if (done && bytes)
        memcpy(staging.host, from, bytes);
    done = done && demo_once_begin(&r->engine);
    if (done) {
        vkCmdCopyBuffer(r->engine.once, staging.buffer, to->buffer, 1, &(VkBufferCopy){0, 0, size});
        done = demo_once_end(&r->engine);
    }
    demo_buffer_destroy(&r->engine, &staging);
    return done;
}

static bool open_renderer(renderer *r, const options *o)
{
    const VkDescriptorType storage = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, types[6] = {storage, storage, storage, storage, storage, storage};
    const uint64_t bytes = (uint64_t)o->width * o->height * TD_TRAIN_CHANNELS * sizeof(float);

    r->engine.skip = o->device;
    if (!demo_engine_instance(&r->engine, NULL, 0, false) || !demo_engine_device(&r->engine, VK_NULL_HANDLE))
        return false;
    r->each = r->engine.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU ? 1 : EACH;
    return demo_compute_create(&r->engine, shader, sizeof shader, types, 6, sizeof(struct td_train_push), NULL, 0, "path tracer", &r->compute) &&
           demo_buffer_create_near(&r->engine, bytes, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT, "sums", &r->sums) &&
           demo_buffer_create(&r->engine, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true, "sums read back", &r->back);
}

static void close_renderer(renderer *r)
{
    if (r->engine.device) {
        demo_compute_destroy(&r->engine, &r->compute);
        demo_buffer_destroy(&r->engine, &r->sums);
        demo_buffer_destroy(&r->engine, &r->back);
    }
    demo_engine_destroy(&r->engine);
}

static bool load_world(renderer *r, const train_world *w)
{
    return upload(r, &r->nodes, w->nodes, w->node_count * sizeof *w->nodes, "nodes") &&
           upload(r, &r->triangles, w->triangles, w->triangle_count * sizeof *w->triangles, "triangles") &&
           upload(r, &r->materials, w->materials, sizeof w->materials, "materials") &&
           upload(r, &r->lights, w->lights, w->light_count * sizeof *w->lights, "lights");
}

static void drop_world(renderer *r)
{
    demo_buffer *const buffers[] = {&r->nodes, &r->triangles, &r->materials, &r->lights};

    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        demo_buffer_destroy(&r->engine, buffers[i]);
}

/* A share of all scenes, whichever numbers they have. */
static bool is_middle(const options *o, uint32_t scene)
{
    return (scene * UINT32_C(2654435761) >> 16) % 100 < o->middle;
}

/* Means over so many samples of a pixel, from a stream of their own: into r->back. */
static bool render(renderer *r, const train_world *w, const options *o, uint32_t seed, uint32_t stream, uint32_t samples)
{
    struct td_train_push push = {.size = {o->width, o->height, 0, 0}, .random = {seed, stream, o->bounces}};
    bool done = upload(r, &r->world, &w->head, sizeof w->head, "world");

    push.random[3] = (o->length ? TD_TRAIN_MOVES : 0) | (o->gi ? TD_TRAIN_DIFFUSE_ALBEDO : 0) |
                     (is_middle(o, seed) ? TD_TRAIN_MIDDLE : 0);
    for (uint32_t there = 0; there < samples && done; there += r->each) {
        const demo_binding bindings[] = {{.buffer = &r->world}, {.buffer = &r->nodes}, {.buffer = &r->triangles},
                                         {.buffer = &r->materials}, {.buffer = &r->lights}, {.buffer = &r->sums}};
        push.size[2] = samples - there < r->each ? samples - there : r->each;
        push.size[3] = there;
        done = demo_once_begin(&r->engine);
        if (!done)
            break;
        demo_compute_record(&r->engine, r->engine.once, &r->compute, bindings, &push, o->width, o->height);
        demo_memory_barrier(r->engine.once, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT);
        if (there + r->each >= samples) {
            vkCmdCopyBuffer(r->engine.once, r->sums.buffer, r->back.buffer, 1, &(VkBufferCopy){0, 0, r->back.bytes});
            demo_memory_barrier(r->engine.once, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT,
                                VK_ACCESS_HOST_READ_BIT);
        }
        done = demo_once_end(&r->engine);
    }
    if (!done) /* what was given up may yet run, on what is about to go */
        vkDeviceWaitIdle(r->engine.device);
    demo_buffer_destroy(&r->engine, &r->world);
    for (uint64_t i = 0; i < r->back.bytes / sizeof(float) && done; i++)
        ((float *)r->back.host)[i] /= (float)samples;
    return done;
}

/* --- Files --- */

/* Some of a pixel's channels, as a tensor of their own; the caller frees it. */
static float *channels_of(const renderer *r, uint32_t first, uint32_t count)
{
    const uint64_t pixels = r->back.bytes / sizeof(float) / TD_TRAIN_CHANNELS;
    float *to = malloc(pixels * count * sizeof *to);

    for (uint64_t i = 0; i < pixels && to; i++)
        memcpy(to + i * count, (const float *)r->back.host + i * TD_TRAIN_CHANNELS + first, count * sizeof *to);
    return to;
}

/* Whether a quarter of the frame has indirect light that one may see. */
static bool has_indirect(const float *direct, const float *indirect, uint64_t pixels)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < pixels; i++)
        count += indirect[3 * i + 1] > 0.02f * direct[3 * i + 1];
    return count >= pixels / 4;
}

/* What was rendered last as direct and indirect light; nothing where there is none to learn from: an eye in front of a mirror, say. */
static bool save_gi(const renderer *r, const train_world *w, const options *o, uint32_t scene)
{
    const uint64_t pixels = (uint64_t)o->width * o->height;
    float *direct = channels_of(r, TD_TRAIN_DIRECT, 3), *indirect = channels_of(r, TD_TRAIN_COLOR, 3);
    float *albedo = channels_of(r, TD_TRAIN_ALBEDO, 3), *normal = channels_of(r, TD_TRAIN_NORMAL, 3);
    float *depth = channels_of(r, TD_TRAIN_DEPTH, 1), *ray = malloc(pixels * 3 * sizeof *ray);
    const td_safetensors_item items[] = {
        {"direct", "F32", 3, {o->height, o->width, 3}, direct}, {"indirect", "F32", 3, {o->height, o->width, 3}, indirect},
        {"albedo", "F32", 3, {o->height, o->width, 3}, albedo}, {"normal", "F32", 3, {o->height, o->width, 3}, normal},
        {"depth", "F32", 3, {o->height, o->width, 1}, depth},   {"ray", "F32", 3, {o->height, o->width, 3}, ray}};
    char path[4096], why[300] = "out of memory";
    bool done = direct && indirect && albedo && normal && depth && ray;

    for (uint64_t i = 0; i < pixels && done; i++) {
        const float x = ((float)(i % o->width) + 0.5f) / (float)o->width * 2 - 1;
        const float y = ((float)(i / o->width) + 0.5f) / (float)o->height * 2 - 1;
        for (int c = 0; c < 3; c++) {
            indirect[3 * i + c] = fmaxf(indirect[3 * i + c] - direct[3 * i + c], 0);
            ray[3 * i + c] = w->head.forward[c] + x * w->head.right[c] - y * w->head.up[c];
        }
    }
    const bool skips = done && !has_indirect(direct, indirect, pixels);
    snprintf(path, sizeof path, "%s/%s.%06" PRIu32 ".00.safetensors", o->out, o->name, scene);
    done = skips || (done && td_safetensors_write(path, items, sizeof items / sizeof *items, why, sizeof why) == TANDEM_OK);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        free((void *)items[i].data);
    return done || demo_fail("%s: %s", path, why);
}

/* What was rendered last, with a reference unless that is NULL. */
static bool save(const renderer *r, const options *o, uint32_t scene, uint32_t copy, const float *reference)
{
    static const struct {
        const char *name;
        uint32_t first, count;
    } parts[] = {{"color", TD_TRAIN_COLOR, 3}, {"albedo", TD_TRAIN_ALBEDO, 3}, {"normal", TD_TRAIN_NORMAL, 3}, {"depth", TD_TRAIN_DEPTH, 1}, {"motion", TD_TRAIN_MOTION, 2}, {"valid", TD_TRAIN_VALID, 1}};
    enum { PARTS = sizeof parts / sizeof *parts };
    td_safetensors_item items[PARTS + 1];
    float *data[PARTS];
    char path[4096], why[300] = "out of memory";
    uint32_t count = 0;
    bool done = true;

    for (uint32_t i = 0; i < PARTS; i++) {
        if (parts[i].first >= TD_TRAIN_MOTION && !o->length)
            continue;
        data[count] = channels_of(r, parts[i].first, parts[i].count);
        done = done && data[count];
        items[count] = (td_safetensors_item){parts[i].name, "F32", 3, {o->height, o->width, parts[i].count}, data[count]};
        count++;
    }
    items[count] = (td_safetensors_item){"reference", "F32", 3, {o->height, o->width, 3}, reference};
    snprintf(path, sizeof path, "%s/%s.%06" PRIu32 ".%02" PRIu32 ".safetensors", o->out, o->name, scene, copy);
    done = done && td_safetensors_write(path, items, count + (reference != NULL), why, sizeof why) == TANDEM_OK;
    for (uint32_t i = 0; i < count; i++)
        free(data[i]);
    return done || demo_fail("%s: %s", path, why);
}

/* The reference, which has samples of its own, then copies; or frames of a path. */
static bool make_scene(renderer *r, const options *o, uint32_t scene)
{
    const uint32_t copies = o->gi ? 0 : o->length ? o->length : o->copies;
    train_world world;
    float *reference = NULL;
    bool done = (train_world_make(scene, &world) || demo_fail("out of memory")) && load_world(r, &world);

    if (done && o->gi) {
        train_world_camera(&world, 0, o->width, o->height);
        done = render(r, &world, o, scene, 1000, o->reference) && save_gi(r, &world, o, scene);
    }
    for (uint32_t copy = 0; copy < copies && done; copy++) {
        if (o->length && copy) {
            drop_world(r);
            done = (train_world_move(&world, 1) || demo_fail("out of memory")) && load_world(r, &world);
        }
        if (done && (o->length || copy == 0)) {
            train_world_camera(&world, copy, o->width, o->height);
            free(reference);
            done = render(r, &world, o, scene, 1000 + copy, o->reference);
            reference = done ? channels_of(r, TD_TRAIN_COLOR, 3) : NULL;
            done = done && (reference || demo_fail("out of memory"));
        }
        done = done && render(r, &world, o, scene, copy, o->length ? 1 : o->samples[copy]) &&
               save(r, o, scene, copy, o->length || copy == 0 ? reference : NULL);
    }
    free(reference);
    drop_world(r);
    train_world_free(&world);
    return done;
}

int main(int argc, char **argv)
{
    options o = {.name = "scene", .count = 1, .width = 320, .height = 192, .reference = 512, .bounces = 6, .copies = 4, .samples = {1, 1, 1, 4}};
    static renderer r;
    const uint64_t begin = td_now_ns();

    if (argc < 2 || !strcmp(argv[1], "--help")) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (!read_options(argc, argv, &o))
        return 2;
    bool done = open_renderer(&r, &o);
    uint32_t made = 0;
    for (; made < o.count && done && (!o.seconds || td_now_ns() - begin < o.seconds * UINT64_C(1000000000)); made++)
        done = make_scene(&r, &o, o.first + made);
    if (done)
        printf("%" PRIu32 " scenes on %s in %.1f s\n", made, r.engine.properties.deviceName, (double)(td_now_ns() - begin) * 1e-9);
    close_renderer(&r);
    return done ? 0 : 1;
}
