/* Open Image Denoise, opened at run time. See oidn.h; names are those of its C API, version 2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/oidn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/clock.h"

enum { DEVICE_CPU = 1, DEVICE_CUDA = 3, FORMAT_FLOAT3 = 3 };
typedef void *device, *filter, *buffer;

struct bench_oidn {
    void *library;
    device device;
    device (*new_device)(int type);
    void (*commit_device)(device);
    void (*release_device)(device);
    int (*get_error)(device, const char **message);
    filter (*new_filter)(device, const char *type);
    void (*set_image)(filter, const char *name, void *pixels, int format, size_t width, size_t height, size_t offset, size_t pixel_stride,
                      size_t row_stride);
    buffer (*new_buffer)(device, size_t bytes);
    void (*write_buffer)(buffer, size_t offset, size_t bytes, const void *from);
    void (*release_buffer)(buffer);
    void (*set_buffer)(filter, const char *name, buffer, int format, size_t width, size_t height, size_t offset, size_t pixel_stride,
                       size_t row_stride);
    void (*set_bool)(filter, const char *name, bool value);
    void (*set_int)(filter, const char *name, int value);
    void (*commit_filter)(filter);
    void (*execute_filter)(filter);
    void (*release_filter)(filter);
};

static bool find(bench_oidn *o, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {{"oidnNewDevice", &o->new_device},       {"oidnCommitDevice", &o->commit_device},
                     {"oidnReleaseDevice", &o->release_device}, {"oidnGetDeviceError", &o->get_error},
                     {"oidnNewFilter", &o->new_filter},       {"oidnSetSharedFilterImage", &o->set_image},
                     {"oidnNewBuffer", &o->new_buffer},       {"oidnWriteBuffer", &o->write_buffer},
                     {"oidnReleaseBuffer", &o->release_buffer}, {"oidnSetFilterImage", &o->set_buffer},
                     {"oidnSetFilterBool", &o->set_bool},     {"oidnSetFilterInt", &o->set_int},
                     {"oidnCommitFilter", &o->commit_filter}, {"oidnExecuteFilter", &o->execute_filter},
                     {"oidnReleaseFilter", &o->release_filter}};

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *const function = dlsym(o->library, functions[i].name);
        if (!function) {
            snprintf(why, why_bytes, "it has no %s", functions[i].name);
            return false;
        }
        memcpy(functions[i].to, &function, sizeof function);
    }
    return true;
}

static bool is_fine(bench_oidn *o, char *why, size_t why_bytes)
{
    const char *message = NULL;

    if (!o->get_error(o->device, &message))
        return true;
    snprintf(why, why_bytes, "%s", message ? message : "it failed");
    return false;
}

bench_oidn *bench_oidn_open(const char *path, bool cuda, char *why, size_t why_bytes)
{
    bench_oidn *o = calloc(1, sizeof *o);

    if (!o) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    o->library = dlopen(path ? path : "libOpenImageDenoise.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!o->library)
        snprintf(why, why_bytes, "%s", dlerror());
    else if (find(o, why, why_bytes)) {
        o->device = o->new_device(cuda ? DEVICE_CUDA : DEVICE_CPU);
        if (o->device)
            o->commit_device(o->device);
        if (is_fine(o, why, why_bytes) && o->device)
            return o;
    }
    bench_oidn_close(&o);
    return NULL;
}

void bench_oidn_close(bench_oidn **oidn)
{
    bench_oidn *const o = *oidn;

    if (o && o->device)
        o->release_device(o->device);
    if (o && o->library)
        dlclose(o->library);
    free(o);
    *oidn = NULL;
}

/* A copy in which what is not finite is 0. */
static bool copy_finite(const tool_picture *from, tool_picture *to)
{
    const size_t count = (size_t)from->width * from->height * from->channels;

    if (!tool_picture_new(to, from->width, from->height, from->channels))
        return false;
    for (size_t i = 0; i < count; i++)
        to->pixels[i] = isfinite(from->pixels[i]) ? from->pixels[i] : 0;
    return true;
}

static void set_image(bench_oidn *o, filter f, const char *name, const tool_picture *picture)
{
    o->set_image(f, name, picture->pixels, FORMAT_FLOAT3, picture->width, picture->height, 0, 0, 0);
}

static void execute(bench_oidn *o, filter f, double *ms)
{
    o->commit_filter(f);
    const uint64_t begin = td_now_ns();
    o->execute_filter(f);
    *ms += 1e-6 * (double)(td_now_ns() - begin);
    o->release_filter(f);
}

static void prefilter(bench_oidn *o, const char *name, const tool_picture *picture, double *ms)
{
    filter f = o->new_filter(o->device, "RT");

    set_image(o, f, name, picture);
    set_image(o, f, "output", picture);
    execute(o, f, ms);
}

bool bench_oidn_run(bench_oidn *o, const tool_picture *color, const tool_picture *albedo, const tool_picture *normal, bench_oidn_quality quality,
                    bool prefilters, tool_picture *out, double *ms, char *why, size_t why_bytes)
{
    static const char *const names[3] = {"color", "albedo", "normal"};
    const tool_picture *const from[3] = {color, albedo, albedo->pixels ? normal : albedo}; /* a normal goes with an albedo */
    tool_picture images[3] = {{0}};
    bool done = tool_picture_new(out, color->width, color->height, 3);

    *ms = 0;
    for (int i = 0; i < 3 && done; i++)
        done = !from[i]->pixels || copy_finite(from[i], &images[i]);
    if (!done)
        snprintf(why, why_bytes, "out of memory");
    for (int i = 1; i < 3 && done && prefilters; i++)
        if (images[i].pixels)
            prefilter(o, names[i], &images[i], ms);
    if (done) {
        filter f = o->new_filter(o->device, "RT");
        for (int i = 0; i < 3; i++)
            if (images[i].pixels)
                set_image(o, f, names[i], &images[i]);
        set_image(o, f, "output", out);
        o->set_bool(f, "hdr", true);
        o->set_bool(f, "cleanAux", prefilters);
        o->set_int(f, "quality", quality);
        execute(o, f, ms);
        done = is_fine(o, why, why_bytes);
    }
    for (int i = 0; i < 3; i++)
        tool_picture_free(&images[i]);
    return done;
}

/* Three planes in one buffer, and where the result goes, as filters know them. */
bool bench_oidn_time(bench_oidn *o, uint32_t width, uint32_t height, bench_oidn_quality quality, uint32_t frames, bench_series *ms,
                     char *why, size_t why_bytes)
{
    static const char *const names[4] = {"color", "albedo", "normal", "output"};
    const size_t plane = (size_t)width * height * 3 * sizeof(float);
    float *values = malloc(plane);
    const buffer b = o->new_buffer(o->device, 4 * plane);
    filter f = o->new_filter(o->device, "RT");
    uint64_t state = 9;
    bool done = values && b && f;

    if (!done)
        snprintf(why, why_bytes, "out of memory");
    for (size_t i = 0; i < 4 && done; i++) {
        for (size_t at = 0; at < plane / sizeof *values; at++)
            values[at] = (float)(bench_random(&state) >> 40) * 0x1p-24f;
        o->write_buffer(b, i * plane, plane, values);
        o->set_buffer(f, names[i], b, FORMAT_FLOAT3, width, height, i * plane, 0, 0);
    }
    if (done) {
        o->set_bool(f, "hdr", true);
        o->set_int(f, "quality", quality);
        o->commit_filter(f);
    }
    for (uint32_t n = 0; n < frames + 5 && done; n++) {
        const uint64_t begin = td_now_ns();

        o->execute_filter(f);
        if (n >= 5)
            bench_add(ms, 1e-6 * (double)(td_now_ns() - begin));
        done = is_fine(o, why, why_bytes);
    }
    if (f)
        o->release_filter(f);
    if (b)
        o->release_buffer(b);
    free(values);
    return done;
}
