/* The rungs below `timeline`, each forced and each as a device comes to it that lacks something: Vulkan frames with new
 * data each time, several in flight, against the oracle. On lavapipe the CPU computes, on a GPU CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: a machine with a GPU, where the rungs with CUDA must be there.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/attention/attention.h"
#include "kernels/target.h"
#include "tandem/vulkan.h"
#include "tests/vk_util.h"

#define LONG_NS 60000000000ull
#define MEMORY_FD "VK_KHR_external_memory_fd"
#define SEMAPHORE_FD "VK_KHR_external_semaphore_fd"
#define MEMORY_HOST "VK_EXT_external_memory_host"
#define INLINE_KERNELS "VK_NVX_binary_import"
#define TIMELINE_FEATURE "timelineSemaphore"

/* What a wrapped vkGetInstanceProcAddr does to the driver. */
typedef enum disguise { HIDES_FUNCTIONS = 1, NO_BUFFER_EXPORT = 2, NO_TIMELINE_EXPORT = 4 } disguise;

/* A device, what it lacks and how, what is asked for, and what it comes to with CUDA and without. 0: nothing asked for;
 * it cannot be had. */
typedef struct ground {
    const char *name;
    const char *without[6];    /* neither enabled nor named */
    const char *unsaid[3];     /* enabled, but not among enabled_extensions */
    const char *hidden[3];     /* functions that are not found */
    unsigned disguises;
    uint32_t backend, asked;
    tandem_rung cuda, cpu;
    const char *reason_cuda, *reason_cpu;
    bool same; /* for the session as another one: frames will do */
} ground;

static const ground grounds[] = {
    {.name = "timeline, forced", .asked = TANDEM_RUNG_TIMELINE, .cuda = TANDEM_RUNG_TIMELINE, .reason_cuda = "asked"},
    {.name = "host, forced", .asked = TANDEM_RUNG_HOST, .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_HOST,
     .reason_cuda = "asked", .reason_cpu = "CUDA"},
    {.name = "copy, forced", .asked = TANDEM_RUNG_COPY, .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY,
     .reason_cuda = "asked", .reason_cpu = "CUDA"},
    {.name = "cpu, forced", .asked = TANDEM_RUNG_CPU, .cuda = TANDEM_RUNG_CPU, .cpu = TANDEM_RUNG_CPU,
     .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "host on the CPU, forced", .backend = TANDEM_BACKEND_CPU, .asked = TANDEM_RUNG_HOST,
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_HOST, .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "copy on the CPU, forced", .backend = TANDEM_BACKEND_CPU, .asked = TANDEM_RUNG_COPY,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "no semaphores", .same = true, .without = {INLINE_KERNELS, SEMAPHORE_FD}, .cuda = TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "semaphores not said", .same = true, .without = {INLINE_KERNELS}, .unsaid = {SEMAPHORE_FD}, .cuda =
     TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "semaphores hidden", .same = true, .without = {INLINE_KERNELS}, .hidden = {"vkGetSemaphoreFdKHR"},
     .disguises = HIDES_FUNCTIONS, .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_CPU,
     .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "timelines not exported", .same = true, .without = {INLINE_KERNELS}, .disguises = NO_TIMELINE_EXPORT,
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "no timelines", .same = true, .without = {INLINE_KERNELS, TIMELINE_FEATURE}, .cuda = TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " TIMELINE_FEATURE, .reason_cpu = "CUDA"},
    /* As stock Godot makes it. */
    {.name = "memory alone", .without = {INLINE_KERNELS, SEMAPHORE_FD, TIMELINE_FEATURE, MEMORY_HOST},
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_COPY, .reason_cuda = TIMELINE_FEATURE, .reason_cpu = MEMORY_HOST},
    {.name = "no memory", .same = true, .without = {INLINE_KERNELS, MEMORY_FD}, .cuda = TANDEM_RUNG_COPY, .cpu =
     TANDEM_RUNG_CPU,
     .reason_cuda = MEMORY_FD, .reason_cpu = "CUDA"},
    {.name = "memory not said", .same = true, .without = {INLINE_KERNELS}, .unsaid = {MEMORY_FD, MEMORY_HOST},
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "memory hidden", .same = true, .without = {INLINE_KERNELS},
     .hidden = {"vkGetMemoryFdKHR", "vkGetMemoryHostPointerPropertiesEXT"}, .disguises = HIDES_FUNCTIONS,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "memory not exported", .same = true, .without = {INLINE_KERNELS, MEMORY_HOST}, .disguises =
     NO_BUFFER_EXPORT,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "nothing at all", .without = {INLINE_KERNELS, MEMORY_FD, SEMAPHORE_FD, MEMORY_HOST, TIMELINE_FEATURE},
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "the CPU without timelines", .without = {TIMELINE_FEATURE}, .backend = TANDEM_BACKEND_CPU,
     .cuda = TANDEM_RUNG_CPU, .cpu = TANDEM_RUNG_CPU, .reason_cuda = "asked", .reason_cpu = "asked"},
};
enum { GROUNDS = sizeof grounds / sizeof *grounds };

typedef struct rig {
    const ground *on;
    vku vk;
    tandem_vulkan vulkan;
    const char *extensions[16];
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    bool semaphores;
    tandem_timeline back; /* with semaphores: which frames are back */
    uint64_t back_value;
    pthread_mutex_t lock;
    unsigned errors, beside;
    char last[600], text[600];
} rig;

static bool expect_gpu(void)
{
    const char *text = getenv("TANDEM_EXPECT_GPU");

    return text && !strcmp(text, "1");
}

static void on_log(void *user, int level, const char *text)
{
    rig *r = user;

    pthread_mutex_lock(&r->lock);
    r->errors += level == TANDEM_LOG_ERROR;
    r->beside += strstr(text, "goes through pinned memory") != NULL;
    if (level == TANDEM_LOG_ERROR)
        snprintf(r->last, sizeof r->last, "%s", text);
    pthread_mutex_unlock(&r->lock);
}

/* The disguise. */

static struct {
    const ground *on;
    PFN_vkGetInstanceProcAddr gipa;
    PFN_vkGetDeviceProcAddr gdpa;
    PFN_vkGetPhysicalDeviceExternalBufferProperties buffers;
    PFN_vkGetPhysicalDeviceExternalSemaphoreProperties semaphores;
} worn;

static bool is_hidden(const char *name)
{
    for (size_t i = 0; i < 3 && worn.on->hidden[i]; i++)
        if (!strcmp(worn.on->hidden[i], name))
            return true;
    return false;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL worn_gdpa(VkDevice device, const char *name)
{
    return is_hidden(name) ? NULL : worn.gdpa(device, name);
}

static VKAPI_ATTR void VKAPI_CALL worn_buffers(VkPhysicalDevice device, const VkPhysicalDeviceExternalBufferInfo *info,
                                               VkExternalBufferProperties *answer)
{
    worn.buffers(device, info, answer);
    answer->externalMemoryProperties.externalMemoryFeatures &=
        ~(VkExternalMemoryFeatureFlags)VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT;
}

static VKAPI_ATTR void VKAPI_CALL worn_semaphores(VkPhysicalDevice device,
                                                  const VkPhysicalDeviceExternalSemaphoreInfo *info,
                                                  VkExternalSemaphoreProperties *answer)
{
    worn.semaphores(device, info, answer);
    answer->externalSemaphoreFeatures = 0;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL worn_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction found = is_hidden(name) ? NULL : worn.gipa(instance, name);

    if (found && !strcmp(name, "vkGetDeviceProcAddr")) {
        worn.gdpa = (PFN_vkGetDeviceProcAddr)found;
        return (PFN_vkVoidFunction)worn_gdpa;
    }
    if (found && (worn.on->disguises & NO_BUFFER_EXPORT) &&
        !strcmp(name, "vkGetPhysicalDeviceExternalBufferProperties")) {
        worn.buffers = (PFN_vkGetPhysicalDeviceExternalBufferProperties)found;
        return (PFN_vkVoidFunction)worn_buffers;
    }
    if (found && (worn.on->disguises & NO_TIMELINE_EXPORT) &&
        !strcmp(name, "vkGetPhysicalDeviceExternalSemaphoreProperties")) {
        worn.semaphores = (PFN_vkGetPhysicalDeviceExternalSemaphoreProperties)found;
        return (PFN_vkVoidFunction)worn_semaphores;
    }
    return found;
}

static bool is_unsaid(const ground *on, const char *extension)
{
    for (size_t i = 0; i < 3 && on->unsaid[i]; i++)
        if (!strcmp(on->unsaid[i], extension))
            return true;
    return false;
}

/* Everything but the session; skips where there is no Vulkan at all. */
static void prepare(rig *r, const ground *on)
{
    vku_options options = {.validation = true};
    uint32_t count = 0;

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    r->on = on;
    memcpy(options.without, on->without, sizeof on->without);
    switch (vku_open(&r->vk, &options)) {
    case VKU_OK: break;
    case VKU_NO_VULKAN:
        if (expect_gpu())
            fail_msg("no Vulkan, but a GPU is expected");
        skip();
        break;
    default: fail_msg("Vulkan is there and does not work");
    }
    for (uint32_t i = 0; i < r->vk.extension_count; i++)
        if (!is_unsaid(on, r->vk.extensions[i]))
            r->extensions[count++] = r->vk.extensions[i];
    r->semaphores = r->vk.timeline.timelineSemaphore;
    worn.on = on;
    worn.gipa = r->vk.gipa;
    r->vulkan = (tandem_vulkan){
        .struct_bytes = sizeof r->vulkan,
        .api_version = r->vk.api_version,
        .get_instance_proc_addr = on->disguises ? worn_gipa : r->vk.gipa,
        .instance = r->vk.instance,
        .physical_device = r->vk.physical_device,
        .device = r->vk.device,
        .queue_family = r->vk.queue_family,
        .enabled_extension_count = count,
        .enabled_extensions = r->extensions,
        .enabled_features = &r->vk.features,
        .queue = r->vk.queue,
    };
    r->desc = (tandem_session_desc){.struct_bytes = sizeof r->desc,
                                    .backend = on->backend,
                                    .rung = on->asked,
                                    .vulkan = &r->vulkan,
                                    .log = on_log,
                                    .user = r,
                                    .wait_bound_ns = LONG_NS,
                                    .error_text = r->text,
                                    .error_text_bytes = sizeof r->text};
    if (getenv("TANDEM_TEST_THREADS"))
        r->desc.cpu_threads = (uint32_t)atoi(getenv("TANDEM_TEST_THREADS"));
}

static void close_rig(rig *r)
{
    if (r->s)
        assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    vku_close(&r->vk);
    if (r->vk.errors)
        fail_msg("%s: validation: %s", r->on->name, r->vk.last_text);
}

/* Whether CUDA has the device at all: what a session comes to that asks for nothing but CUDA and copies. */
static bool has_cuda(rig *r)
{
    static int known = -1;
    tandem_session_desc desc = r->desc;
    tandem_session *s;
    tandem_status status;

    if (known >= 0)
        return known;
    desc.backend = TANDEM_BACKEND_CUDA;
    desc.rung = TANDEM_RUNG_COPY;
    desc.log = NULL;
    status = tandem_session_create(&desc, &s);
    if (status == TANDEM_OK)
        tandem_session_destroy(&s);
    else
        assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
    if (expect_gpu())
        assert_int_equal(status, TANDEM_OK);
    known = status == TANDEM_OK;
    return known;
}

/* False where this ground's rung cannot be had here, which was then refused as it must be. */
static bool open_rig(rig *r, const ground *on)
{
    tandem_rung expected;
    const char *reason;
    tandem_status status;
    bool cuda;

    prepare(r, on);
    cuda = on->backend != TANDEM_BACKEND_CPU && has_cuda(r);
    expected = cuda || on->backend == TANDEM_BACKEND_CPU ? on->cuda : on->cpu;
    reason = cuda || on->backend == TANDEM_BACKEND_CPU ? on->reason_cuda : on->reason_cpu;
    status = tandem_session_create(&r->desc, &r->s);
    if (!expected) {
        assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
        assert_int_equal(r->errors, 1);
        if (!strstr(r->text, "desc.rung is"))
            fail_msg("%s: refused as: %s", on->name, r->text);
        close_rig(r);
        return false;
    }
    if (status != TANDEM_OK)
        fail_msg("%s: %d %s", on->name, status, r->text);
    r->info.struct_bytes = sizeof r->info;
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    if (r->info.rung != expected || !strstr(r->info.rung_reason, reason))
        fail_msg("%s: rung %u, not %u: %s", on->name, r->info.rung, expected, r->info.rung_reason);
    assert_int_equal(r->info.backend, cuda && expected != TANDEM_RUNG_CPU ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_CPU);
    return true;
}

/* Frames. */

/* Where the views of a job lie in up to two mems. */
typedef enum layout {
    ONE_MEM,     /* one after the other */
    TWO_MEMS,    /* read from one, written to the other, both with bytes of others around them */
    INTERLEAVED, /* rows of Q and O in turns, and bytes of others between them */
    LAYOUTS
} layout;

typedef struct shape {
    uint32_t heads, rows, keys, dim, precision, frames;
    layout layout;
} shape;

enum { IN_FLIGHT = 3, WARM = 9, GUARD = 96 };

typedef struct slot {
    tandem_mem mems[2];
    tandem_mem_vulkan vulkan[2];
    vku_buffer up[2], down[2];
    VkCommandBuffer up_commands, down_commands;
    VkFence up_fence, down_fence;
    tandem_job job;
    tandem_ticket ticket;
    uint64_t value;
} slot;

static double noise(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*seed >> 11) * 0x1p-52 - 1;
}

static void fill(void *data, uint64_t bytes, uint64_t seed)
{
    float *f = data;

    seed = seed * 0x9e3779b97f4a7c15ull + 1;
    for (uint64_t i = 0; i < bytes / sizeof *f; i++)
        f[i] = (float)(2 * noise(&seed));
}

static tandem_view dense(tandem_mem mem, uint64_t at, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (tandem_view){.mem = mem,
                         .offset_bytes = at,
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = (int64_t)heads * rows * dim,
                         .stride_head = (int64_t)rows * dim,
                         .stride_row = dim};
}

static uint64_t bytes_of(uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (uint64_t)heads * rows * dim * sizeof(float);
}

/* The views of a job, as if its mems were 1 and 2; returns how long they are. */
static void lay_out(const shape *sh, tandem_attention *a, uint64_t bytes[2])
{
    const uint32_t h = sh->heads, d = sh->dim;
    const uint64_t q = bytes_of(h, sh->rows, d), kv = bytes_of(h, sh->keys, d), lse = bytes_of(h, sh->rows, 1);

    *a = (tandem_attention){.batch = 1,
                            .heads = h,
                            .kv_heads = h,
                            .q_len = sh->rows,
                            .kv_len = sh->keys,
                            .head_dim = d,
                            .precision = sh->precision};
    bytes[1] = 0;
    switch (sh->layout) {
    case ONE_MEM:
        a->q = dense(1, 0, h, sh->rows, d);
        a->k = dense(1, q, h, sh->keys, d);
        a->v = dense(1, q + kv, h, sh->keys, d);
        a->o = dense(1, q + 2 * kv, h, sh->rows, d);
        a->lse = dense(1, 2 * q + 2 * kv, h, sh->rows, 1);
        bytes[0] = 2 * q + 2 * kv + lse;
        break;
    case TWO_MEMS:
        a->q = dense(1, GUARD, h, sh->rows, d);
        a->k = dense(1, 2 * GUARD + q, h, sh->keys, d);
        a->v = dense(1, 3 * GUARD + q + kv, h, sh->keys, d);
        a->o = dense(2, GUARD, h, sh->rows, d);
        a->lse = dense(2, 2 * GUARD + q, h, sh->rows, 1);
        bytes[0] = 4 * GUARD + q + 2 * kv;
        bytes[1] = 3 * GUARD + q + lse;
        break;
    default: { /* [row][head][Q | O | others] */
        const int64_t row = (int64_t)h * (2 * d + GUARD / sizeof(float));

        a->q = dense(1, 0, h, sh->rows, d);
        a->q.stride_head = row / h;
        a->q.stride_row = row;
        a->q.stride_batch = row * sh->rows;
        a->o = a->q;
        a->o.offset_bytes = d * sizeof(float);
        bytes[0] = (uint64_t)a->q.stride_batch * sizeof(float);
        a->k = dense(1, bytes[0], h, sh->keys, d);
        a->v = dense(1, bytes[0] + kv, h, sh->keys, d);
        bytes[0] += 2 * kv;
        break;
    }
    }
}

static tandem_view *const *views_of(tandem_attention *a, tandem_view *list[5])
{
    list[0] = &a->q;
    list[1] = &a->k;
    list[2] = &a->v;
    list[3] = &a->o;
    list[4] = &a->lse;
    return list;
}

static float *element(const tandem_view *v, unsigned char *const data[2], const tandem_mem mems[2], uint32_t head,
                      uint32_t row)
{
    unsigned char *base = data[v->mem == mems[1] && mems[1]];

    return (float *)(void *)(base + v->offset_bytes) + head * v->stride_head + row * v->stride_row;
}

/* The oracle's O and lse, written over what `want` holds of the two mems. */
static void compute(const tandem_attention *a, const tandem_mem mems[2], unsigned char *want[2])
{
    const uint32_t h = a->heads, d = a->head_dim;
    const tandem_view *in[3] = {&a->q, &a->k, &a->v};
    double *o = calloc((size_t)h * a->q_len * d, sizeof *o), *lse = calloc((size_t)h * a->q_len, sizeof *lse);
    tandem_attention plain = *a;
    float *packed[3];

    for (int i = 0; i < 3; i++) {
        const uint32_t rows = i ? a->kv_len : a->q_len;

        packed[i] = malloc(bytes_of(h, rows, d));
        for (uint32_t head = 0; head < h; head++)
            for (uint32_t row = 0; row < rows; row++)
                memcpy(packed[i] + ((uint64_t)head * rows + row) * d, element(in[i], want, mems, head, row),
                       d * sizeof(float));
    }
    plain.q = dense(1, 0, h, a->q_len, d);
    plain.k = plain.v = dense(1, 0, h, a->kv_len, d);
    plain.o = plain.q;
    plain.lse = dense(1, 0, h, a->q_len, 1);
    td_ref_attention(&plain, packed[0], packed[1], packed[2], o, lse);
    for (uint32_t head = 0; head < h; head++)
        for (uint32_t row = 0; row < a->q_len; row++) {
            float *to = element(&a->o, want, mems, head, row);

            for (uint32_t c = 0; c < d; c++)
                to[c] = (float)o[((uint64_t)head * a->q_len + row) * d + c];
            if (a->lse.dtype)
                *element(&a->lse, want, mems, head, row) = (float)lse[(uint64_t)head * a->q_len + row];
        }
    for (int i = 0; i < 3; i++)
        free(packed[i]);
    free(o);
    free(lse);
}

static bool is_written(const uint8_t *marks, uint64_t at)
{
    return marks[at / sizeof(float)];
}

/* What is written is near the oracle, everything else what it was, to the bit. */
static void check(const rig *r, const char *what, const tandem_attention *a, const tandem_mem mems[2],
                  unsigned char *const got[2], unsigned char *const want[2], const uint64_t bytes[2], double bound)
{
    uint8_t *marks[2] = {calloc(1, bytes[0] / 4 + 1), calloc(1, bytes[1] / 4 + 1)};
    double wrong = 0, all = 0;

    for (uint32_t head = 0; head < a->heads; head++)
        for (uint32_t row = 0; row < a->q_len; row++) {
            const float *from = element(&a->o, got, mems, head, row), *ref = element(&a->o, want, mems, head, row);
            const int in = a->o.mem == mems[1] && mems[1];

            for (uint32_t c = 0; c < a->head_dim; c++) {
                wrong += fabs((double)from[c] - (double)ref[c]);
                all += fabs((double)ref[c]);
            }
            memset(marks[in] + ((const unsigned char *)from - got[in]) / 4, 1, a->head_dim);
            if (!a->lse.dtype)
                continue;
            from = element(&a->lse, got, mems, head, row);
            ref = element(&a->lse, want, mems, head, row);
            if (!(fabs((double)*from - (double)*ref) <= 10 * bound))
                fail_msg("%s, %s: lse of row %u is %g, not %g", r->on->name, what, row, (double)*from, (double)*ref);
            marks[in][((const unsigned char *)from - got[in]) / 4] = 1;
        }
    if (!(wrong <= bound * all))
        fail_msg("%s, %s: relative L1 is %g", r->on->name, what, wrong / all);
    for (int m = 0; m < 2; m++)
        for (uint64_t at = 0; at < bytes[m]; at += sizeof(float))
            if (!is_written(marks[m], at) && memcmp(got[m] + at, want[m] + at, sizeof(float)))
                fail_msg("%s, %s: byte %" PRIu64 " of mem %d, which is not the job's, was changed", r->on->name, what,
                         at, m);
    free(marks[0]);
    free(marks[1]);
}

static tandem_mem new_mem(rig *r, uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    return mem;
}

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

static tandem_ticket submit_job(rig *r, const tandem_job *job)
{
    tandem_ticket ticket;
    tandem_status status = tandem_submit(r->s, job, &ticket);

    if (status != TANDEM_OK) {
        tandem_error_text(r->s, r->text, sizeof r->text);
        fail_msg("%s: submit: %d %s", r->on->name, status, r->text);
    }
    return ticket;
}

static void expect_done(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

static VkSemaphore semaphore_of(rig *r, tandem_timeline timeline)
{
    VkSemaphore semaphore = VK_NULL_HANDLE;

    if (r->semaphores)
        assert_int_equal(tandem_timeline_get_vulkan(r->s, timeline, &semaphore), TANDEM_OK);
    return semaphore;
}

/* Commands that were recorded, once more. */
static void queue(rig *r, VkCommandBuffer commands, vku_point wait, vku_point signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = r->semaphores ? &values : NULL,
                               .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                               .pWaitSemaphores = &wait.semaphore,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &commands,
                               .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                               .pSignalSemaphores = &signal.semaphore};

    assert_int_equal(r->vk.QueueSubmit(r->vk.queue, 1, &info, fence), VK_SUCCESS);
}

static VkFence new_fence(rig *r)
{
    const VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence;

    assert_int_equal(r->vk.CreateFence(r->vk.device, &info, NULL, &fence), VK_SUCCESS);
    return fence;
}

static void pass_fence(rig *r, VkFence *fence)
{
    assert_int_equal(r->vk.WaitForFences(r->vk.device, 1, fence, VK_TRUE, VKU_TIMEOUT_NS), VK_SUCCESS);
    r->vk.DestroyFence(r->vk.device, *fence, NULL);
    *fence = VK_NULL_HANDLE;
}

/* To be submitted again and again; the layer's old version does not learn from exported timelines that they are done. */
static VkCommandBuffer begin_commands(rig *r)
{
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = r->vk.pool,
                                              .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    VkCommandBuffer commands;

    assert_int_equal(r->vk.AllocateCommandBuffers(r->vk.device, &info, &commands), VK_SUCCESS);
    assert_int_equal(r->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    return commands;
}

/* The commands of a slot are recorded once and submitted each frame. */
static void make_slot(rig *r, slot *f, const tandem_attention *views, const uint64_t bytes[2])
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    tandem_view *list[5];

    memset(f, 0, sizeof *f);
    f->job = (tandem_job){.struct_bytes = sizeof f->job, .operation = TANDEM_OPERATION_ATTENTION};
    f->job.op.attention = *views;
    for (int m = 0; m < 2 && bytes[m]; m++) {
        f->mems[m] = new_mem(r, bytes[m]);
        f->vulkan[m].struct_bytes = sizeof f->vulkan[m];
        assert_int_equal(tandem_mem_get_vulkan(r->s, f->mems[m], &f->vulkan[m]), TANDEM_OK);
        assert_int_equal(f->vulkan[m].bytes, bytes[m]);
        assert_int_equal(vku_buffer_create(&r->vk, bytes[m], VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &f->up[m]), VK_SUCCESS);
        assert_int_equal(vku_buffer_create(&r->vk, bytes[m], VK_BUFFER_USAGE_TRANSFER_DST_BIT, &f->down[m]),
                         VK_SUCCESS);
    }
    views_of(&f->job.op.attention, list);
    for (int i = 0; i < 5; i++)
        if (list[i]->mem)
            list[i]->mem = f->mems[list[i]->mem - 1];
    f->up_commands = begin_commands(r);
    for (int m = 0; m < 2 && bytes[m]; m++) {
        const VkBufferCopy all = {.size = bytes[m]};

        r->vk.CmdCopyBuffer(f->up_commands, f->up[m].buffer, f->vulkan[m].buffer, 1, &all);
        assert_int_equal(
            tandem_record_release(r->s, f->up_commands, f->mems[m], transfer, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    }
    assert_int_equal(r->vk.EndCommandBuffer(f->up_commands), VK_SUCCESS);
    f->down_commands = begin_commands(r);
    for (int m = 0; m < 2 && bytes[m]; m++) {
        const VkBufferCopy all = {.size = bytes[m]};

        assert_int_equal(
            tandem_record_acquire(r->s, f->down_commands, f->mems[m], transfer, VK_ACCESS_TRANSFER_READ_BIT),
            TANDEM_OK);
        r->vk.CmdCopyBuffer(f->down_commands, f->vulkan[m].buffer, f->down[m].buffer, 1, &all);
    }
    vku_full_barrier(&r->vk, f->down_commands);
    assert_int_equal(r->vk.EndCommandBuffer(f->down_commands), VK_SUCCESS);
}

static void free_slot(rig *r, slot *f)
{
    VkCommandBuffer commands[2] = {f->up_commands, f->down_commands};

    for (int m = 0; m < 2; m++)
        if (f->mems[m]) {
            assert_int_equal(tandem_mem_destroy(r->s, f->mems[m]), TANDEM_OK);
            vku_buffer_destroy(&r->vk, &f->up[m]);
            vku_buffer_destroy(&r->vk, &f->down[m]);
        }
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
}

/* The engine's part of a frame up to the job: the data goes up and is handed over. */
static void frame_up(rig *r, slot *f, tandem_timeline engines, uint64_t n)
{
    const vku_point none = {0}, signal = {semaphore_of(r, engines), n};

    f->value = n;
    f->up_fence = r->semaphores ? VK_NULL_HANDLE : new_fence(r);
    queue(r, f->up_commands, none, signal, f->up_fence);
    if (r->semaphores)
        assert_int_equal(tandem_timeline_submitted(r->s, engines, n), TANDEM_OK);
}

/* Without semaphores the engine says itself that its commands are done. */
static void frame_handed_over(rig *r, slot *f, tandem_timeline engines)
{
    if (r->semaphores)
        return;
    pass_fence(r, &f->up_fence);
    assert_int_equal(tandem_timeline_signal(r->s, engines, f->value), TANDEM_OK);
}

/* From the job to the engine's host: the result comes back and down. No fence is waited for while the session signals a
 * semaphore: the layer's old version loses itself in that. */
static void frame_down(rig *r, slot *f, tandem_timeline ours)
{
    const vku_point none = {0}, wait = {semaphore_of(r, ours), f->value};
    struct pollfd reached = {.events = POLLIN};

    if (!r->semaphores && f->value % 2) {
        assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, f->value}, LONG_NS), TANDEM_OK);
    } else if (!r->semaphores) {
        assert_int_equal(tandem_point_fd(r->s, (tandem_point){ours, f->value}, &reached.fd), TANDEM_OK);
        assert_int_equal(poll(&reached, 1, (int)(LONG_NS / 1000000)), 1);
        close(reached.fd);
    }
    if (r->semaphores) {
        const vku_point back = {semaphore_of(r, r->back), ++r->back_value};

        queue(r, f->down_commands, wait, back, VK_NULL_HANDLE);
        assert_int_equal(tandem_point_wait(r->s, (tandem_point){r->back, back.value}, LONG_NS), TANDEM_OK);
    } else {
        f->down_fence = new_fence(r);
        queue(r, f->down_commands, none, none, f->down_fence);
        pass_fence(r, &f->down_fence);
    }
}

static void begin_points(rig *r, tandem_timeline *engines, tandem_timeline *ours)
{
    *engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE);
    *ours = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    r->back = new_timeline(r, TANDEM_SIGNALLER_ENGINE);
    r->back_value = 0;
}

static void end_points(rig *r, tandem_timeline engines, tandem_timeline ours)
{
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, r->back), TANDEM_OK);
}

typedef struct row {
    const shape *sh;
    tandem_timeline engines, ours;
    uint64_t bytes[2];
    slot f[IN_FLIGHT];
    unsigned char *want[IN_FLIGHT][2];
    char what[120];
} row;

/* Frames first to last, IN_FLIGHT at a time; nothing is under way before and after. */
static void pass(rig *r, row *w, uint64_t first, uint64_t last)
{
    const double bound = w->sh->precision == TANDEM_PRECISION_8B ? 0.05 : 2e-3;

    for (uint64_t n = first; n <= last + IN_FLIGHT - 1; n++) {
        if (n <= last) {
            slot *s = &w->f[n % IN_FLIGHT];

            for (int m = 0; m < 2 && w->bytes[m]; m++) {
                fill(s->up[m].host, w->bytes[m], n * 7 + (uint64_t)m);
                memcpy(w->want[n % IN_FLIGHT][m], s->up[m].host, w->bytes[m]);
            }
            frame_up(r, s, w->engines, n);
            s->job.wait = (tandem_point){w->engines, n};
            s->job.signal = (tandem_point){w->ours, n};
            s->ticket = submit_job(r, &s->job);
            frame_handed_over(r, s, w->engines);
        }
        if (n >= first + IN_FLIGHT - 1) {
            const uint64_t old = n - IN_FLIGHT + 1;
            slot *s = &w->f[old % IN_FLIGHT];
            unsigned char *got[2] = {s->down[0].host, s->down[1].host};

            frame_down(r, s, w->ours);
            expect_done(r, s->ticket);
            compute(&s->job.op.attention, s->mems, w->want[old % IN_FLIGHT]);
            check(r, w->what, &s->job.op.attention, s->mems, got, w->want[old % IN_FLIGHT], w->bytes, bound);
        }
    }
}

/* A frame copies where it must, and allocates and frees nothing. */
static void check_costs(rig *r, const row *w, const tandem_info *warm)
{
    tandem_info after = {.struct_bytes = sizeof after};

    assert_int_equal(tandem_session_info(r->s, &after), TANDEM_OK);
    assert_int_equal(after.cuda_allocations, warm->cuda_allocations);
    assert_int_equal(after.cuda_host_waits, warm->cuda_host_waits);
    if (after.host_bytes != warm->host_bytes || after.device_bytes != warm->device_bytes)
        fail_msg("%s, %s: %" PRIu64 " + %" PRIu64 " bytes become %" PRIu64 " + %" PRIu64, r->on->name, w->what,
                 warm->host_bytes, warm->device_bytes, after.host_bytes, after.device_bytes);
    if (r->info.rung != TANDEM_RUNG_COPY)
        assert_int_equal(after.cuda_copies, warm->cuda_copies);
    else if (r->info.backend == TANDEM_BACKEND_CUDA)
        assert_true(after.cuda_copies > warm->cuda_copies);
}

static void frames(rig *r, const shape *sh)
{
    tandem_info warm = {.struct_bytes = sizeof warm};
    tandem_attention views;
    row w = {.sh = sh};

    snprintf(w.what, sizeof w.what, "layout %d, %u heads of %u rows, %u keys", sh->layout, sh->heads, sh->rows, sh->keys);
    begin_points(r, &w.engines, &w.ours);
    lay_out(sh, &views, w.bytes);
    for (int i = 0; i < IN_FLIGHT; i++) {
        make_slot(r, &w.f[i], &views, w.bytes);
        for (int m = 0; m < 2; m++)
            w.want[i][m] = malloc(w.bytes[m] + 1);
    }
    if (sh->frames > WARM) {
        pass(r, &w, 1, WARM - 1);
        pass(r, &w, WARM, WARM); /* alone: what the first of these frames have outgrown goes now, not at some later time */
        assert_int_equal(tandem_session_info(r->s, &warm), TANDEM_OK);
        pass(r, &w, WARM + 1, sh->frames);
        check_costs(r, &w, &warm);
    } else {
        pass(r, &w, 1, sh->frames);
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    for (int i = 0; i < IN_FLIGHT; i++) {
        free_slot(r, &w.f[i]);
        for (int m = 0; m < 2; m++)
            free(w.want[i][m]);
    }
    end_points(r, w.engines, w.ours);
}

static void test_frames(void **state)
{
    static const shape small[] = {
        {1, 1, 1, 32, TANDEM_PRECISION_F16, 20, ONE_MEM},
        {2, 48, 40, 32, TANDEM_PRECISION_F16, 20, ONE_MEM},
        {2, 48, 40, 32, TANDEM_PRECISION_F16, 20, TWO_MEMS},
        {3, 33, 20, 64, TANDEM_PRECISION_F16, 20, INTERLEAVED},
        {1, 130, 300, 64, TANDEM_PRECISION_8B, 20, TWO_MEMS},
    };

    (void)state;
    for (int g = 0; g < GROUNDS; g++) {
        rig r;

        if (!open_rig(&r, &grounds[g])) {
            print_message("%-28s not here\n", grounds[g].name);
            continue;
        }
        for (size_t i = 0; i < sizeof small / sizeof *small; i++)
            frames(&r, &small[i]);
        print_message("%-28s rung %u, backend %u%s\n", grounds[g].name, r.info.rung, r.info.backend,
                      r.beside ? ", pinned memory beside the staging memory" : "");
        assert_int_equal(r.errors, 0);
        close_rig(&r);
    }
}

/* Several MiB: copies of many pieces. */
static void test_large(void **state)
{
    static const shape large[] = {
        {1, 16000, 16, 128, TANDEM_PRECISION_F16, 7, TWO_MEMS},
        {2, 9000, 8, 128, TANDEM_PRECISION_F16, 4, INTERLEAVED},
    };
    static const char *const names[] = {"host, forced", "copy, forced", "nothing at all"};

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int g = 0; g < GROUNDS; g++) {
            rig r;

            if (strcmp(grounds[g].name, names[n]) || !open_rig(&r, &grounds[g]))
                continue;
            for (size_t i = 0; i < sizeof large / sizeof *large; i++)
                frames(&r, &large[i]);
            assert_int_equal(r.errors, 0);
            close_rig(&r);
        }
}

static const ground *ground_named(const char *name)
{
    for (int g = 0; g < GROUNDS; g++)
        if (!strcmp(grounds[g].name, name))
            return &grounds[g];
    fail_msg("no ground %s", name);
    return NULL;
}

/* A job reads what the one before it wrote, and the engine sees neither in between; then its own bytes again. */
static void chain(rig *r)
{
    const shape sh = {2, 64, 48, 32, TANDEM_PRECISION_F16, 0, ONE_MEM};
    const tandem_timeline between = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    tandem_timeline engines, ours;
    unsigned char *want[2], *got[2];
    tandem_attention views, second;
    uint64_t bytes[2];
    tandem_job next;
    slot f;

    begin_points(r, &engines, &ours);
    lay_out(&sh, &views, bytes);
    make_slot(r, &f, &views, bytes);
    want[0] = malloc(bytes[0]);
    want[1] = NULL;
    for (uint64_t n = 1; n <= 4; n++) {
        fill(f.up[0].host, bytes[0], n);
        memcpy(want[0], f.up[0].host, bytes[0]);
        frame_up(r, &f, engines, n);
        f.job.wait = (tandem_point){engines, n};
        f.job.signal = (tandem_point){between, n};
        submit_job(r, &f.job);
        next = f.job; /* O is its Q, and Q its O */
        next.op.attention.q = f.job.op.attention.o;
        next.op.attention.o = f.job.op.attention.q;
        next.wait = (tandem_point){between, n};
        next.signal = (tandem_point){ours, n};
        f.ticket = submit_job(r, &next);
        frame_handed_over(r, &f, engines);
        frame_down(r, &f, ours);
        expect_done(r, f.ticket);
        compute(&f.job.op.attention, f.mems, want);
        second = next.op.attention;
        compute(&second, f.mems, want);
        got[0] = f.down[0].host;
        got[1] = NULL;
        /* O of the first is checked by itself: what the second read is near the oracle's, not equal to it. */
        check(r, "a chain", &second, f.mems, got, got, bytes, 0);
        for (uint32_t i = 0; i < bytes_of(sh.heads, sh.rows, sh.dim) / 4; i++) {
            const float *o = (const float *)(void *)got[0], *ref = (const float *)(void *)want[0];

            if (!(fabs((double)o[i] - (double)ref[i]) < 5e-3))
                fail_msg("%s: the second job's element %u is %g, not %g", r->on->name, i, (double)o[i], (double)ref[i]);
        }
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    free_slot(r, &f);
    free(want[0]);
    assert_int_equal(tandem_timeline_destroy(r->s, between), TANDEM_OK);
    end_points(r, engines, ours);
}

static void test_chain(void **state)
{
    (void)state;
    for (int g = 0; g < GROUNDS; g++) {
        rig r;

        if (grounds[g].same || !open_rig(&r, &grounds[g]))
            continue;
        chain(&r);
        assert_int_equal(r.errors, 0);
        close_rig(&r);
    }
}

/* What the host writes and reads itself: tandem_mem_host() is what jobs see, on every rung where there is such. */
static void on_the_host(rig *r, tandem_mem mem, unsigned char *host)
{
    const shape sh = {2, 40, 24, 32, TANDEM_PRECISION_F16, 0, INTERLEAVED};
    tandem_mem mems[2] = {mem, 0};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    unsigned char *want[2] = {NULL, NULL}, *got[2] = {host, NULL};
    tandem_view *list[5];
    uint64_t bytes[2];

    lay_out(&sh, &job.op.attention, bytes);
    views_of(&job.op.attention, list);
    for (int i = 0; i < 5; i++)
        list[i]->mem = list[i]->mem ? mem : 0;
    want[0] = malloc(bytes[0]);
    for (uint64_t n = 0; n < 5; n++) {
        fill(host, bytes[0], n + 99);
        memcpy(want[0], host, bytes[0]);
        expect_done(r, submit_job(r, &job));
        compute(&job.op.attention, mems, want);
        check(r, "the host's memory", &job.op.attention, mems, got, want, bytes, 2e-3);
    }
    free(want[0]);
}

#define REFUSED(r, call, words)                                                                            \
    do {                                                                                                   \
        const unsigned before_ = (r)->errors;                                                              \
        const tandem_status got_ = (call);                                                                 \
        if (got_ != TANDEM_ERROR_UNSUPPORTED || (r)->errors != before_ + 1 || !strstr((r)->last, (words))) \
            fail_msg("%s, line %d: %d, %s", (r)->on->name, __LINE__, got_, (r)->last);                     \
    } while (0)

/* The rung `copy` and memory that is not its own. */
static void copied_sources(rig *r)
{
    enum { BYTES = 65536, OFFSET = 65536 };
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = OFFSET + BYTES,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    const shape sh = {2, 48, 40, 32, TANDEM_PRECISION_F16, 0, ONE_MEM};
    VkMemoryAllocateInfo memory_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = BYTES};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    unsigned char *want[2] = {malloc(BYTES), NULL}, *got[2] = {NULL, NULL};
    VkCommandBuffer commands = vku_begin(&r->vk);
    tandem_mem mems[2] = {0, 0}, mem;
    VkMemoryRequirements needs;
    vku_buffer up, down;
    tandem_view *list[5];
    uint64_t bytes[2];
    VkBufferCopy copy;
    VkDeviceMemory memory;
    VkBuffer buffer;
    void *host, *pages;

    /* Of the session's: host memory too. */
    mem = new_mem(r, BYTES);
    assert_int_equal(tandem_mem_host(r->s, mem, &host), TANDEM_OK);
    on_the_host(r, mem, host);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);

    /* Of the host's: for the host and for jobs, unknown to Vulkan. */
    pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    desc.source = TANDEM_MEM_HOST;
    desc.host = pages;
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, mem, &host), TANDEM_OK);
    assert_ptr_equal(host, pages);
    on_the_host(r, mem, host);
    REFUSED(r, tandem_mem_get_vulkan(r->s, mem, &vulkan), "no Vulkan memory");
    REFUSED(r, tandem_record_release(r->s, commands, mem, transfer, VK_ACCESS_TRANSFER_WRITE_BIT), "no VkBuffer");
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    munmap(pages, BYTES);

    /* Of the engine's: what has no VkBuffer that could be copied is refused. */
    desc = (tandem_mem_desc){.struct_bytes = sizeof desc, .bytes = BYTES, .offset_bytes = OFFSET};
    assert_int_equal(r->vk.CreateBuffer(r->vk.device, &info, NULL, &buffer), VK_SUCCESS);
    r->vk.GetBufferMemoryRequirements(r->vk.device, buffer, &needs);
    desc.allocation_bytes = memory_info.allocationSize = needs.size;
    while (!(needs.memoryTypeBits >> memory_info.memoryTypeIndex & 1))
        memory_info.memoryTypeIndex++;
    assert_int_equal(r->vk.AllocateMemory(r->vk.device, &memory_info, NULL, &memory), VK_SUCCESS);
    assert_int_equal(r->vk.BindBufferMemory(r->vk.device, buffer, memory, 0), VK_SUCCESS);
    desc.source = TANDEM_MEM_FD;
    desc.fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(desc.fd, (off_t)desc.allocation_bytes), 0);
    REFUSED(r, tandem_mem_create(r->s, &desc, &mem), "desc.source is FD (2)");
    close(desc.fd);
    desc.source = TANDEM_MEM_VULKAN;
    desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    desc.dedicated = 1;
    REFUSED(r, tandem_mem_create(r->s, &desc, &mem), "desc.dedicated is 1");
    desc.dedicated = 0;
    assert_int_equal(tandem_mem_create(r->s, &desc, &mems[0]), TANDEM_OK);
    assert_int_equal(tandem_mem_get_vulkan(r->s, mems[0], &vulkan), TANDEM_OK);
    assert_true(vulkan.memory == memory && vulkan.offset == OFFSET && vulkan.buffer);

    lay_out(&sh, &job.op.attention, bytes);
    assert_true(bytes[0] <= BYTES);
    views_of(&job.op.attention, list);
    for (int i = 0; i < 5; i++)
        list[i]->mem = mems[0];
    assert_int_equal(vku_buffer_create(&r->vk, BYTES, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &up), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&r->vk, BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &down), VK_SUCCESS);
    fill(up.host, BYTES, 4);
    memcpy(want[0], up.host, BYTES);
    copy = (VkBufferCopy){.dstOffset = OFFSET, .size = BYTES};
    r->vk.CmdCopyBuffer(commands, up.buffer, buffer, 1, &copy);
    assert_int_equal(tandem_record_release(r->s, commands, mems[0], transfer, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    expect_done(r, submit_job(r, &job));
    commands = vku_begin(&r->vk);
    assert_int_equal(tandem_record_acquire(r->s, commands, mems[0], transfer, VK_ACCESS_TRANSFER_READ_BIT), TANDEM_OK);
    copy = (VkBufferCopy){.srcOffset = OFFSET, .size = BYTES};
    r->vk.CmdCopyBuffer(commands, buffer, down.buffer, 1, &copy);
    vku_full_barrier(&r->vk, commands);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    compute(&job.op.attention, mems, want);
    got[0] = down.host;
    bytes[0] = BYTES;
    check(r, "the engine's memory", &job.op.attention, mems, got, want, bytes, 2e-3);
    assert_int_equal(tandem_mem_destroy(r->s, mems[0]), TANDEM_OK);
    vku_buffer_destroy(&r->vk, &up);
    vku_buffer_destroy(&r->vk, &down);
    r->vk.DestroyBuffer(r->vk.device, buffer, NULL);
    r->vk.FreeMemory(r->vk.device, memory, NULL);
    free(want[0]);
}

static void test_copied_sources(void **state)
{
    static const char *const names[] = {"copy, forced", "copy on the CPU, forced", "nothing at all"};

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        rig r;

        if (!open_rig(&r, ground_named(names[n])))
            continue;
        copied_sources(&r);
        close_rig(&r);
    }
}

/* Points without semaphores: counters that the host reads, waits for and signals. */
static void test_host_points(void **state)
{
    rig r;

    (void)state;
    for (int g = 0; g < GROUNDS; g++) {
        tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .initial_value = 5};
        tandem_timeline engines;
        VkSemaphore semaphore;
        uint64_t value;

        if (strcmp(grounds[g].without[1] ? grounds[g].without[1] : "", TIMELINE_FEATURE) &&
            strcmp(grounds[g].name, "nothing at all") && strcmp(grounds[g].name, "memory alone"))
            continue;
        if (!open_rig(&r, &grounds[g]))
            continue;
        assert_false(r.semaphores);
        assert_int_equal(tandem_timeline_create(r.s, &desc, &engines), TANDEM_OK);
        REFUSED(&r, tandem_timeline_get_vulkan(r.s, engines, &semaphore), "timelineSemaphore is not enabled");
        assert_int_equal(tandem_timeline_value(r.s, engines, &value), TANDEM_OK);
        assert_int_equal(value, 5);
        assert_int_equal(tandem_timeline_signal(r.s, engines, 8), TANDEM_OK);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){engines, 8}, 0), TANDEM_OK);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){engines, 9}, 1000000), TANDEM_ERROR_BUSY);
        desc.vulkan_semaphore = 1;
        REFUSED(&r, tandem_timeline_create(r.s, &desc, &engines), "timelineSemaphore is not enabled");
        close_rig(&r);
    }
}

/* What cannot be had is refused by name, in the session's error text and in one log line. */
static void refuse(rig *r, uint32_t backend, tandem_rung asked, const char *words)
{
    tandem_session_desc desc = r->desc;
    tandem_session *s = (tandem_session *)r;
    const unsigned before = r->errors;
    tandem_status status;

    desc.backend = backend;
    desc.rung = asked;
    r->text[0] = 0;
    status = tandem_session_create(&desc, &s);
    if (status != TANDEM_ERROR_UNSUPPORTED || s || !strstr(r->text, words) || r->errors != before + 1)
        fail_msg("%s, rung %u: %d, %s", r->on->name, asked, status, r->text);
}

static void test_refusals(void **state)
{
    static const ground bare = {.name = "bare",
                                .without = {INLINE_KERNELS, MEMORY_FD, SEMAPHORE_FD, MEMORY_HOST, TIMELINE_FEATURE}};
    static const ground dark = {.name = "memory alone", .without = {INLINE_KERNELS, SEMAPHORE_FD, TIMELINE_FEATURE}};
    tandem_session *s = NULL;
    rig r;
    bool cuda;

    (void)state;
    prepare(&r, &bare);
    cuda = has_cuda(&r);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_INLINE, "VK_NVX_binary_import");
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_TIMELINE, cuda ? MEMORY_FD : "no CUDA");
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_HOST, cuda ? MEMORY_FD : MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_CPU, MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_INLINE, "desc.rung is 1 (inline)");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_TIMELINE, "desc.rung is 2 (timeline)");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_HOST, MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_CUDA, TANDEM_RUNG_CPU, "desc.backend is 1");
    close_rig(&r);
    prepare(&r, &dark);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_TIMELINE, cuda ? TIMELINE_FEATURE : "no CUDA");
    /* The same without Vulkan. */
    r.desc.vulkan = NULL;
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_INLINE, "no Vulkan device");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_COPY, "same memory");
    if (cuda)
        refuse(&r, TANDEM_BACKEND_CUDA, TANDEM_RUNG_TIMELINE, "no Vulkan device");
    r.desc.backend = TANDEM_BACKEND_CPU;
    r.desc.rung = TANDEM_RUNG_HOST;
    assert_int_equal(tandem_session_create(&r.desc, &s), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    close_rig(&r);
}

/* Without Vulkan: CUDA's own memory beside the host's. */
static void test_copy_without_vulkan(void **state)
{
    static const ground plain = {.name = "copy without Vulkan", .asked = TANDEM_RUNG_COPY};
    tandem_mem mem;
    void *host;
    rig r;

    (void)state;
    prepare(&r, &plain);
    if (!has_cuda(&r)) {
        close_rig(&r);
        skip();
    }
    r.desc.vulkan = NULL;
    r.desc.backend = TANDEM_BACKEND_CUDA;
    assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
    mem = new_mem(&r, 65536);
    assert_int_equal(tandem_mem_host(r.s, mem, &host), TANDEM_OK);
    on_the_host(&r, mem, host);
    assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
    close_rig(&r);
}

/* Mems, timelines and sessions are destroyed while jobs wait, run and copy; nothing is left of them. */
static void in_flight(rig *r)
{
    const shape sh = {1, 4000, 64, 64, TANDEM_PRECISION_F16, 0, TWO_MEMS};
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_attention views;
    slot f[IN_FLIGHT];
    uint64_t bytes[2];

    lay_out(&sh, &views, bytes);
    for (uint64_t n = 0; n < IN_FLIGHT; n++) {
        make_slot(r, &f[n], &views, bytes);
        fill(f[n].up[0].host, bytes[0], n);
        frame_up(r, &f[n], engines, 2 * n + 1);
        /* The last waits for what nobody will signal. */
        f[n].job.wait = (tandem_point){engines, n == IN_FLIGHT - 1 ? 100 : 2 * n + 1};
        f[n].job.signal = (tandem_point){ours, n + 1};
        f[n].ticket = submit_job(r, &f[n].job);
        frame_handed_over(r, &f[n], engines);
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS); /* no commands wait for a job here */
    assert_int_equal(tandem_mem_destroy(r->s, f[2].mems[1]), TANDEM_OK);
    assert_int_equal(tandem_wait(r->s, f[2].ticket, LONG_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_CANCELLED);
    f[2].mems[1] = 0;
    vku_buffer_destroy(&r->vk, &f[2].up[1]);
    vku_buffer_destroy(&r->vk, &f[2].down[1]);
    assert_int_equal(tandem_mem_destroy(r->s, f[1].mems[0]), TANDEM_OK);
    f[1].mems[0] = 0;
    vku_buffer_destroy(&r->vk, &f[1].up[0]);
    vku_buffer_destroy(&r->vk, &f[1].down[0]);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
    f[0].job.wait = (tandem_point){engines, 200};
    f[0].job.signal = (tandem_point){ours, 4};
    submit_job(r, &f[0].job); /* pending when the session goes */
    for (int n = 0; n < IN_FLIGHT; n++) {
        VkCommandBuffer commands[2] = {f[n].up_commands, f[n].down_commands};

        r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
        for (int m = 0; m < 2; m++)
            if (f[n].mems[m]) {
                vku_buffer_destroy(&r->vk, &f[n].up[m]);
                vku_buffer_destroy(&r->vk, &f[n].down[m]);
            }
    }
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
}

static void test_in_flight(void **state)
{
    (void)state;
    for (int g = 0; g < GROUNDS; g++) {
        int fds = 0;
        rig r;

        if (grounds[g].same || !open_rig(&r, &grounds[g]))
            continue;
        for (int turn = 0; turn < 3; turn++) {
            if (turn == 1)
                fds = vku_open_fds();
            if (!r.s)
                assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
            in_flight(&r);
        }
        assert_int_equal(r.errors, 0);
        assert_int_equal(vku_open_fds(), fds);
        close_rig(&r);
    }
}

/* What a mem takes is given back with it. */
static void test_accounts(void **state)
{
    static const char *const names[] = {"host, forced", "copy, forced", "copy on the CPU, forced"};
    enum { BYTES = 3 << 20 };

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        tandem_info before = {.struct_bytes = sizeof before}, with = before, after = before;
        tandem_mem mem;
        rig r;

        if (!open_rig(&r, ground_named(names[n])))
            continue;
        mem = new_mem(&r, 4096); /* the table of ids grows */
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &before), TANDEM_OK);
        mem = new_mem(&r, BYTES);
        assert_int_equal(tandem_session_info(r.s, &with), TANDEM_OK);
        if (r.info.rung == TANDEM_RUNG_COPY) {
            assert_true(with.host_bytes >= before.host_bytes + BYTES);
            assert_true(with.device_bytes >=
                        before.device_bytes + BYTES * (r.info.backend == TANDEM_BACKEND_CUDA ? 2 : 1));
        }
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &after), TANDEM_OK);
        assert_int_equal(after.host_bytes, before.host_bytes);
        assert_int_equal(after.device_bytes, before.device_bytes);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_copied_sources),
        cmocka_unit_test(test_host_points),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_copy_without_vulkan),
        cmocka_unit_test(test_in_flight),
        cmocka_unit_test(test_accounts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
