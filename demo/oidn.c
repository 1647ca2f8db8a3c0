/* Open Image Denoise, opened at run time. See oidn.h; names are those of its C API, versions 1 and 2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "demo/oidn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/os/clock.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "interop/os/thread.h"

enum { DEVICE_CPU = 1, DEVICE_CUDA = 3, FORMAT_FLOAT3 = 3, PLANES = 4, OUTPUT = 3 };
typedef void *handle;

struct demo_oidn {
    void *library;
    handle device, filter, buffer; /* buffer: four planes in the device's memory; NULL: those at `planes` are shared */
    float *planes;
    size_t pixels;
    char name[96];
    handle (*new_device)(int type);
    void (*set_device_int)(handle, const char *name, int value); /* may be NULL, as any below of which a version has no more */
    int (*get_device_int)(handle, const char *name);
    void (*commit_device)(handle);
    void (*release_device)(handle);
    int (*get_error)(handle, const char **message);
    handle (*new_filter)(handle, const char *type);
    void (*set_shared)(handle, const char *name, void *pixels, int format, size_t width, size_t height, size_t offset,
                       size_t pixel_stride, size_t row_stride);
    void (*set_bool)(handle, const char *name, bool value);
    void (*commit_filter)(handle);
    void (*execute_filter)(handle);
    void (*release_filter)(handle);
    handle (*new_buffer)(handle, size_t bytes);
    void (*write_buffer)(handle, size_t offset, size_t bytes, const void *from);
    void (*read_buffer)(handle, size_t offset, size_t bytes, void *to);
    void (*release_buffer)(handle);
    void (*set_buffer)(handle, const char *name, handle buffer, int format, size_t width, size_t height, size_t offset,
                       size_t pixel_stride, size_t row_stride);
};

/* By either of two names. */
static bool find_functions(demo_oidn *o, char *why, size_t why_bytes)
{
    const struct {
        const char *name, *older;
        void *to;
        bool needed;
    } functions[] = {{"oidnNewDevice", NULL, &o->new_device, true},
                     {"oidnSetDeviceInt", "oidnSetDevice1i", &o->set_device_int, false},
                     {"oidnGetDeviceInt", "oidnGetDevice1i", &o->get_device_int, false},
                     {"oidnCommitDevice", NULL, &o->commit_device, true},
                     {"oidnReleaseDevice", NULL, &o->release_device, true},
                     {"oidnGetDeviceError", NULL, &o->get_error, true},
                     {"oidnNewFilter", NULL, &o->new_filter, true},
                     {"oidnSetSharedFilterImage", NULL, &o->set_shared, true},
                     {"oidnSetFilterBool", "oidnSetFilter1b", &o->set_bool, true},
                     {"oidnCommitFilter", NULL, &o->commit_filter, true},
                     {"oidnExecuteFilter", NULL, &o->execute_filter, true},
                     {"oidnReleaseFilter", NULL, &o->release_filter, true},
                     {"oidnNewBuffer", NULL, &o->new_buffer, false},
                     {"oidnWriteBuffer", NULL, &o->write_buffer, false},
                     {"oidnReadBuffer", NULL, &o->read_buffer, false},
                     {"oidnReleaseBuffer", NULL, &o->release_buffer, false},
                     {"oidnSetFilterImage", NULL, &o->set_buffer, false}};

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(o->library, functions[i].name);
        if (!function && functions[i].older)
            function = dlsym(o->library, functions[i].older);
        if (!function && functions[i].needed) {
            snprintf(why, why_bytes, "it is no Open Image Denoise: it has no %s", functions[i].name);
            return false;
        }
        memcpy(functions[i].to, &function, sizeof function);
    }
    return true;
}

static bool is_fine(const demo_oidn *o, char *why, size_t why_bytes)
{
    const char *message = NULL;
    if (!o->get_error(o->device, &message))
        return true;
    snprintf(why, why_bytes, "Open Image Denoise: %s", message && *message ? message : "it failed");
    return false;
}

static bool open_device(demo_oidn *o, bool cuda, uint32_t threads, char *why, size_t why_bytes)
{
    o->device = o->new_device(cuda ? DEVICE_CUDA : DEVICE_CPU);
    if (!o->device) {
        const char *message = NULL;
        o->get_error(NULL, &message);
        snprintf(why, why_bytes, "Open Image Denoise has no %s device%s%s", cuda ? "CUDA" : "CPU", message && *message ? ": " : "",
                 message ? message : "");
        return false;
    }
    if (!cuda && o->set_device_int && threads)
        o->set_device_int(o->device, "numThreads", (int)threads);
    o->commit_device(o->device);
    if (is_fine(o, why, why_bytes))
        return true;
    o->release_device(o->device);
    o->device = NULL;
    return false;
}

static void name_it(demo_oidn *o, bool cuda)
{
    const int major = o->get_device_int ? o->get_device_int(o->device, "versionMajor") : 0;
    const int minor = o->get_device_int ? o->get_device_int(o->device, "versionMinor") : 0;
    const char *message;
    o->get_error(o->device, &message); /* of what it could not say */
    snprintf(o->name, sizeof o->name, "%d.%d, on %s", major, minor, cuda ? "CUDA" : "the CPU");
}

/* The filter and its four planes, which stay for all frames. */
static bool make_filter(demo_oidn *o, bool cuda, uint32_t width, uint32_t height, char *why, size_t why_bytes)
{
    static const char *const names[PLANES] = {"color", "albedo", "normal", "output"};
    const size_t plane = 3 * o->pixels * sizeof(float);
    o->planes = calloc(PLANES, plane);
    o->filter = o->new_filter(o->device, "RT");
    if (!o->planes || !o->filter) {
        if (is_fine(o, why, why_bytes))
            snprintf(why, why_bytes, o->planes ? "Open Image Denoise made no filter" : "out of memory");
        return false;
    }
    if (cuda && !(o->new_buffer && o->write_buffer && o->read_buffer && o->release_buffer && o->set_buffer)) {
        snprintf(why, why_bytes, "Open Image Denoise is too old for CUDA");
        return false;
    }
    o->buffer = cuda ? o->new_buffer(o->device, PLANES * plane) : NULL;
    for (size_t i = 0; i < PLANES; i++)
        if (o->buffer)
            o->set_buffer(o->filter, names[i], o->buffer, FORMAT_FLOAT3, width, height, i * plane, 0, 0);
        else
            o->set_shared(o->filter, names[i], o->planes + i * 3 * o->pixels, FORMAT_FLOAT3, width, height, 0, 0, 0);
    o->set_bool(o->filter, "hdr", true);
    o->commit_filter(o->filter);
    return is_fine(o, why, why_bytes);
}

static const char *const names[] = {"libOpenImageDenoise.so.2", "libOpenImageDenoise.so.1"};

static bool is_in(const char *folder, size_t folder_bytes, const char *name)
{
    char path[4096];
    const int bytes = snprintf(path, sizeof path, "%.*s/%s", (int)folder_bytes, folder, name);
    return folder_bytes && bytes < (int)sizeof path && !access(path, R_OK);
}

/* In LD_LIBRARY_PATH, or in the loader's list of what the system's folders have. */
static bool is_installed(const char *name)
{
    const char *folders = getenv("LD_LIBRARY_PATH");
    void *list;
    uint64_t bytes;
    for (const char *at = folders; at && *at; at += strspn(at, ":;")) {
        const size_t length = strcspn(at, ":;");
        if (is_in(at, length, name))
            return true;
        at += length;
    }
    if (td_file_map("/etc/ld.so.cache", &list, &bytes, NULL, 0) != TANDEM_OK)
        return false;
    const bool is = list && memmem(list, bytes, name, strlen(name) + 1);
    td_unmap(list, bytes);
    return is;
}

bool demo_oidn_is_there(const char *path)
{
    if (path)
        return strchr(path, '/') ? !access(path, R_OK) : is_installed(path);
    return is_installed(names[0]) || is_installed(names[1]);
}

demo_oidn *demo_oidn_open(const char *path, bool cuda, uint32_t threads, uint32_t width, uint32_t height, char *why,
                          size_t why_bytes)
{
    demo_oidn *o = calloc(1, sizeof *o);
    if (!o) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    o->pixels = (size_t)width * height;
    o->library = dlopen(path ? path : names[0], RTLD_NOW | RTLD_LOCAL);
    if (!o->library)
        snprintf(why, why_bytes, "%s", dlerror());
    if (!o->library && !path)
        o->library = dlopen(names[1], RTLD_NOW | RTLD_LOCAL);
    if (o->library && find_functions(o, why, why_bytes)) {
        const bool on_cuda = cuda && open_device(o, true, threads, why, why_bytes);
        if ((on_cuda || open_device(o, false, threads, why, why_bytes)) && make_filter(o, on_cuda, width, height, why, why_bytes)) {
            name_it(o, on_cuda);
            return o;
        }
    }
    demo_oidn_close(o);
    return NULL;
}

void demo_oidn_close(demo_oidn *o)
{
    if (!o)
        return;
    if (o->filter)
        o->release_filter(o->filter);
    if (o->buffer)
        o->release_buffer(o->buffer);
    if (o->device)
        o->release_device(o->device);
    if (o->library)
        dlclose(o->library);
    free(o->planes);
    free(o);
}

struct demo_oidn_opening {
    const char *path;
    bool cuda;
    uint32_t threads, width, height;
    pthread_t thread;
    _Atomic bool ended; /* what follows is there */
    demo_oidn *oidn;
    char why[400];
};

static void *open_main(void *user)
{
    demo_oidn_opening *o = user;
    td_thread_name("opens OIDN");
    o->oidn = demo_oidn_open(o->path, o->cuda, o->threads, o->width, o->height, o->why, sizeof o->why);
    o->ended = true;
    return NULL;
}

demo_oidn_opening *demo_oidn_begin(const char *path, bool cuda, uint32_t threads, uint32_t width, uint32_t height, char *why,
                                   size_t why_bytes)
{
    demo_oidn_opening *o = calloc(1, sizeof *o);
    if (o) {
        o->path = path;
        o->cuda = cuda;
        o->threads = threads;
        o->width = width;
        o->height = height;
        if (td_thread_start(&o->thread, open_main, o))
            return o;
    }
    free(o);
    snprintf(why, why_bytes, "out of memory");
    return NULL;
}

bool demo_oidn_ended(demo_oidn_opening **opening, demo_oidn **oidn, char *why, size_t why_bytes)
{
    demo_oidn_opening *o = *opening;
    *oidn = NULL;
    if (!o->ended)
        return false;
    pthread_join(o->thread, NULL);
    *oidn = o->oidn;
    snprintf(why, why_bytes, "%s", o->why);
    free(o);
    *opening = NULL;
    return true;
}

void demo_oidn_begin_close(demo_oidn_opening *o)
{
    if (!o)
        return;
    pthread_join(o->thread, NULL);
    demo_oidn_close(o->oidn);
    free(o);
}

const char *demo_oidn_name(const demo_oidn *o)
{
    return o->name;
}

static float finite_of(float x)
{
    return isfinite(x) ? x : 0.0f;
}

/* As it wants them: albedo from 0 to 1, of lamps their colour as far as that goes; no normal where there is no surface. */
static void fill_planes(demo_oidn *o, const float *color, const float *albedo, const float *normal)
{
    float *const colors = o->planes, *const albedos = colors + 3 * o->pixels, *const normals = albedos + 3 * o->pixels;
    for (size_t i = 0; i < o->pixels; i++) {
        const bool shines = albedo[4 * i + 3] > 0.5f;
        for (size_t c = 0; c < 3; c++) {
            colors[3 * i + c] = finite_of(color[4 * i + c]);
            albedos[3 * i + c] = fminf(fmaxf(finite_of(albedo[4 * i + c]), 0.0f), 1.0f);
            normals[3 * i + c] = shines ? 0.0f : finite_of(normal[4 * i + c]);
        }
    }
}

bool demo_oidn_run(demo_oidn *o, const float *color, const float *albedo, const float *normal, float *out, double *ms, char *why,
                   size_t why_bytes)
{
    const size_t plane = 3 * o->pixels * sizeof(float);
    float *const result = o->planes + OUTPUT * 3 * o->pixels;
    fill_planes(o, color, albedo, normal);
    if (o->buffer)
        o->write_buffer(o->buffer, 0, OUTPUT * plane, o->planes);
    const uint64_t begin = td_now_ns();
    o->execute_filter(o->filter);
    *ms = 1e-6 * (double)(td_now_ns() - begin);
    if (o->buffer)
        o->read_buffer(o->buffer, OUTPUT * plane, plane, result);
    if (!is_fine(o, why, why_bytes))
        return false;
    for (size_t i = 0; i < o->pixels; i++) {
        memcpy(out + 4 * i, result + 3 * i, 3 * sizeof(float));
        out[4 * i + 3] = 1.0f;
    }
    return true;
}
