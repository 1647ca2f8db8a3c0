/* Faults under the API: on the way of one frame the n-th Vulkan, CUDA, memory, mapping, fd or thread call fails, for
 * every n (with sanitizers every third). Each time there is a status and one log line, nothing leaks or hangs, and the next frame works.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: on the GPU with its own drivers. Else on lavapipe and on a fake CUDA driver, which has no
 * kernels: there the pixels are looked at only where the CPU computes.
 * test_faults --calls prints how often each call was made to fail; --part 1, 2 or 3 does a third of it, as on a GPU all takes
 * more than three minutes.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "interop/os/clock.h"
#include "tandem/plugin.h"
#include "tests/cases.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define LONG_NS 60000000000ull
#define SHORT_NS 100000ull
#define MOST_CALL_NS 25000000000ull /* longer than any bound of the API, and than a stall of the validation layer */
enum { SIDE = 8, ROWS = SIDE * SIDE, DIM = 32, VIEW_BYTES = ROWS * DIM * 4, PIXELS = SIDE * SIDE * 4 };

typedef enum ground {
    ON_HOST,            /* host memory, CPU */
    ON_VULKAN_CPU,      /* Vulkan, CPU */
    ON_DAEMON,          /* host memory, the CPU of tandemd: the faults are the engine's */
    ON_CUDA,            /* pinned memory, CUDA */
    ON_VULKAN_CUDA,     /* Vulkan and CUDA, points signalled by the host */
    ON_TIMELINES,       /* Vulkan and CUDA, points signalled by the GPU */
    ON_COPY,            /* Vulkan and CUDA, nothing shared */
    ON_AUTO,            /* as ON_CUDA, but the CPU will do */
    GROUNDS
} ground;
static const char *const ground_names[GROUNDS] = {"host memory", "Vulkan and CPU",  "tandemd", "CUDA",
                                                  "Vulkan and CUDA", "timelines", "copies", "CUDA if it can be"};

static struct {
    ground on;
    bool gpu; /* the real drivers */
    bool print_calls;
    vku vk;
    bool has_vk, computes, packs;
    vku_image from, to;
    float golden[PIXELS], zeros[PIXELS];
    group_daemon daemon;
    float golden_view[ROWS * DIM], cpu_view[ROWS * DIM]; /* in host memory; of the CPU, which AUTO falls back to */

    pthread_mutex_t lock;
    unsigned errors, left_behind;
    char last[600];
} t = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A session that ends gives the engine's queue some time, of which it knows nothing: here it has been waited for. */
void __real_td_sleep_ns(uint64_t ns), __wrap_td_sleep_ns(uint64_t ns);
void __wrap_td_sleep_ns(uint64_t ns)
{
    __real_td_sleep_ns(ns < SHORT_NS ? ns : SHORT_NS);
}

/* One frame and what it makes. */
typedef struct frame {
    tandem_session *s;
    tandem_mem mem;
    tandem_timeline engines, ours;
    VkSemaphore semaphores[2];
    VkCommandBuffer commands[2];
    VkFence fence;
    tandem_job job;
    uint64_t value;
    int fd; /* of a point that never comes, but for its timeline's end */
    unsigned failures; /* calls and jobs that failed */
    bool gave_up, had_fd;
    size_t at; /* the step at which the fault struck */
    tandem_status status;
    tandem_info info;
} frame;

static struct {
    const char *name;
    unsigned faults;
} tally[256];

static void count_call(const char *name)
{
    size_t i = 0;

    while (i < 255 && tally[i].name && strcmp(tally[i].name, name))
        i++;
    tally[i].name = name;
    tally[i].faults++;
}

static void on_log(void *user, int level, const char *text)
{
    (void)user;
    pthread_mutex_lock(&t.lock);
    if (level == TANDEM_LOG_ERROR) {
        t.errors++;
        snprintf(t.last, sizeof t.last, "%s", text);
    }
    if (level <= TANDEM_LOG_WARN && strstr(text, "left behind"))
        t.left_behind++;
    pthread_mutex_unlock(&t.lock);
}

static unsigned errors_now(void)
{
    unsigned errors;

    pthread_mutex_lock(&t.lock);
    errors = t.errors;
    pthread_mutex_unlock(&t.lock);
    return errors;
}

/* The steps of a frame. Each may be taken again after it failed. */

static tandem_status ask(frame *f)
{
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 32;

    (void)f;
    if (!t.has_vk)
        return TANDEM_OK;
    assert_int_equal(tandem_vulkan_requirements(fault_gipa, t.vk.instance, t.vk.physical_device, &count, list),
                     TANDEM_OK);
    return TANDEM_OK;
}

static tandem_status create(frame *f)
{
    static const char *extensions[INTEGRATION_EXTENSIONS + 1];
    char text[400] = "";
    tandem_vulkan vulkan = vku_engine(&t.vk);
    tandem_session_desc desc = {
        .struct_bytes = sizeof desc,
        .backend = t.on < ON_DAEMON                        ? TANDEM_BACKEND_CPU
                   : t.on == ON_DAEMON || t.on == ON_AUTO ? TANDEM_BACKEND_AUTO
                                                          : TANDEM_BACKEND_CUDA,
        .rung = t.on == ON_COPY ? TANDEM_RUNG_COPY : 0,
        .socket = t.on == ON_DAEMON ? t.daemon.socket_path : NULL,
        .vulkan = t.has_vk ? &vulkan : NULL,
        .log = on_log,
        .cpu_threads = 2,
        .timing = 1,
        .error_text = text,
        .error_text_bytes = sizeof text,
    };
    tandem_status status;

    vulkan.get_instance_proc_addr = fault_gipa;
    vulkan.queue = VK_NULL_HANDLE;
    memcpy(extensions, vulkan.enabled_extensions, vulkan.enabled_extension_count * sizeof *extensions);
    vulkan.enabled_extensions = extensions;
    if (!t.gpu && t.on == ON_TIMELINES)
        extensions[vulkan.enabled_extension_count++] = "VK_KHR_external_semaphore_fd"; /* lavapipe has it not */
    status = tandem_session_create(&desc, &f->s);
    assert_true((status == TANDEM_OK) == (f->s != NULL));
    assert_true((status == TANDEM_OK) == (text[0] == 0));
    f->info.struct_bytes = sizeof f->info;
    if (f->s)
        assert_int_equal(tandem_session_info(f->s, &f->info), TANDEM_OK);
    return status;
}

static tandem_status make_mem(frame *f)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 2 * VIEW_BYTES};
    tandem_status status = tandem_mem_create(f->s, &desc, &f->mem);

    assert_true((status == TANDEM_OK) == (f->mem != 0));
    return status;
}

static tandem_status make_timeline(frame *f, tandem_signaller signaller, tandem_timeline *out, VkSemaphore *semaphore)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_status status = tandem_timeline_create(f->s, &desc, out);

    assert_true((status == TANDEM_OK) == (*out != 0));
    if (status == TANDEM_OK && t.has_vk)
        assert_int_equal(tandem_timeline_get_vulkan(f->s, *out, semaphore), TANDEM_OK);
    return status;
}

static tandem_status make_engines(frame *f)
{
    return make_timeline(f, TANDEM_SIGNALLER_ENGINE, &f->engines, &f->semaphores[0]);
}

static tandem_status make_ours(frame *f)
{
    return make_timeline(f, TANDEM_SIGNALLER_SESSION, &f->ours, &f->semaphores[1]);
}

static tandem_view view_of(const frame *f, uint64_t offset)
{
    return tandem_view_dense(f->mem, offset, TANDEM_DTYPE_F32, 1, ROWS, DIM);
}

static tandem_pack pack_of(const frame *f, const vku_image *image, uint64_t offset)
{
    return (tandem_pack){.struct_bytes = sizeof(tandem_pack),
                         .image_count = 1,
                         .images = {image->view},
                         .layout = VK_IMAGE_LAYOUT_GENERAL,
                         .format = image->format,
                         .width = SIDE,
                         .height = SIDE,
                         .tile_width = SIDE,
                         .tile_height = SIDE,
                         .channels = 4,
                         .view_channels = DIM,
                         .view = view_of(f, offset)};
}

static tandem_status record_pack(frame *f)
{
    const tandem_pack pack = pack_of(f, &t.from, 0);

    if (!t.has_vk)
        return TANDEM_OK;
    if (!f->commands[0])
        f->commands[0] = vku_begin(&t.vk);
    assert_non_null(f->commands[0]);
    return t.packs ? tandem_record_pack(f->s, f->commands[0], &pack) : TANDEM_OK;
}

static tandem_status record_release(frame *f)
{
    return t.has_vk ? tandem_record_release(f->s, f->commands[0], f->mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                            VK_ACCESS_SHADER_WRITE_BIT)
                    : TANDEM_OK;
}

/* The engine's part. */
static tandem_status hand_over(frame *f)
{
    void *host = NULL;

    if (t.has_vk) {
        assert_int_equal(vku_submit(&t.vk, f->commands[0], (vku_point){0}, (vku_point){f->semaphores[0], 1},
                                    VK_NULL_HANDLE),
                         VK_SUCCESS);
        assert_int_equal(t.vk.DeviceWaitIdle(t.vk.device), VK_SUCCESS);
        return TANDEM_OK;
    }
    assert_int_equal(tandem_mem_host(f->s, f->mem, &host), TANDEM_OK);
    memset(host, 0, 2 * VIEW_BYTES);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        ((float *)host)[i] = (float)(i % 37) / 37 - .5f;
    return tandem_timeline_signal(f->s, f->engines, 1);
}

/* A job, until it is done. A job that fails has said so in its report, and its point has come all the same. */
static tandem_status compute(frame *f)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket = 7;
    tandem_status status;
    const char *tripped;
    uint64_t value = 0;

    f->value++;
    f->job = (tandem_job){.struct_bytes = sizeof f->job,
                          .operation = TANDEM_OPERATION_ATTENTION,
                          .wait = {f->engines, 1},
                          .signal = {f->ours, f->value},
                          .op.attention = {.q = view_of(f, 0),
                                           .k = view_of(f, 0),
                                           .v = view_of(f, 0),
                                           .o = view_of(f, VIEW_BYTES),
                                           .batch = 1,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .q_len = ROWS,
                                           .kv_len = ROWS,
                                           .head_dim = DIM,
                                           .precision = TANDEM_PRECISION_F16}};
    status = tandem_submit(f->s, &f->job, &ticket);
    assert_true((status == TANDEM_OK) == (ticket != 0));
    if (status != TANDEM_OK)
        return status;
    fault_shake(5000);
    status = tandem_wait(f->s, ticket, LONG_NS, &report);
    if (status != TANDEM_OK)
        return status;
    assert_true(report.state == TANDEM_JOB_DONE || report.state == TANDEM_JOB_FAILED);
    assert_true((report.state == TANDEM_JOB_DONE) == (report.status == TANDEM_OK));
    if (report.state == TANDEM_JOB_DONE) {
        /* A job is done only where its point has come. */
        status = tandem_timeline_value(f->s, f->ours, &value);
        assert_true(status != TANDEM_OK || value >= f->value);
        return status;
    }
    tripped = fault_tripped();
    if (tripped && strncmp(tripped, "vk", 2) && strncmp(tripped, "cu", 2)) {
        assert_int_equal(tandem_timeline_value(f->s, f->ours, &value), TANDEM_OK);
        assert_true(value >= f->value);
    }
    return report.status;
}

static tandem_status make_fd(frame *f)
{
    const tandem_status status = tandem_point_fd(f->s, (tandem_point){f->engines, 2}, &f->fd);

    assert_true((status == TANDEM_OK) == (f->fd >= 0));
    f->had_fd = f->had_fd || status == TANDEM_OK;
    return status;
}

static tandem_status drop_fd(frame *f)
{
    struct pollfd fd = {.fd = f->fd, .events = POLLIN};

    assert_int_equal(poll(&fd, 1, 0), 1);
    close(f->fd);
    f->fd = -1;
    return TANDEM_OK;
}

static tandem_status record_acquire(frame *f)
{
    if (!t.has_vk)
        return TANDEM_OK;
    if (!f->commands[1])
        f->commands[1] = vku_begin(&t.vk);
    assert_non_null(f->commands[1]);
    return tandem_record_acquire(f->s, f->commands[1], f->mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                 VK_ACCESS_SHADER_READ_BIT);
}

static tandem_status record_unpack(frame *f)
{
    const tandem_pack pack = pack_of(f, &t.to, VIEW_BYTES);

    return t.has_vk && t.packs ? tandem_record_unpack(f->s, f->commands[1], &pack) : TANDEM_OK;
}

static tandem_status show(frame *f)
{
    float pixels[PIXELS];
    void *host = NULL;

    if (t.has_vk) {
        assert_int_equal(vku_submit(&t.vk, f->commands[1], (vku_point){f->semaphores[1], f->value}, (vku_point){0},
                                    f->fence),
                         VK_SUCCESS);
        assert_int_equal(t.vk.WaitForFences(t.vk.device, 1, &f->fence, VK_TRUE, VKU_TIMEOUT_NS), VK_SUCCESS);
        if (t.computes) {
            assert_int_equal(vku_image_readback(&t.vk, &t.to, pixels), VK_SUCCESS);
            assert_memory_equal(pixels, t.golden, sizeof pixels);
        }
    } else if (f->info.backend == TANDEM_BACKEND_CPU || t.gpu) {
        assert_int_equal(tandem_mem_host(f->s, f->mem, &host), TANDEM_OK);
        assert_memory_equal((char *)host + VIEW_BYTES,
                            f->info.backend == TANDEM_BACKEND_CPU ? t.cpu_view : t.golden_view, VIEW_BYTES);
    }
    return TANDEM_OK;
}

static tandem_status drop_mem(frame *f)
{
    return tandem_mem_destroy(f->s, f->mem);
}

static tandem_status drop_engines(frame *f)
{
    return tandem_timeline_destroy(f->s, f->engines);
}

static tandem_status drop_ours(frame *f)
{
    return tandem_timeline_destroy(f->s, f->ours);
}

static tandem_status destroy(frame *f)
{
    return tandem_session_destroy(&f->s);
}

static const struct step {
    const char *name;
    tandem_status (*take)(frame *f);
} steps[] = {{"requirements", ask},
             {"session_create", create},
             {"mem_create", make_mem},
             {"timeline_create", make_engines},
             {"timeline_create", make_ours},
             {"record_pack", record_pack},
             {"record_release", record_release},
             {"hand_over", hand_over},
             {"submit and wait", compute},
             {"point_fd", make_fd},
             {"record_acquire", record_acquire},
             {"record_unpack", record_unpack},
             {"show", show},
             {"mem_destroy", drop_mem},
             {"timeline_destroy", drop_engines},
             {"close", drop_fd},
             {"timeline_destroy", drop_ours},
             {"session_destroy", destroy}};
enum { STEPS = sizeof steps / sizeof *steps };

static uint64_t longest_ns;

static tandem_status take(frame *f, size_t step)
{
    const uint64_t begin = td_now_ns();
    tandem_status status = steps[step].take(f);
    const uint64_t took = td_now_ns() - begin;

    longest_ns = took > longest_ns ? took : longest_ns;
    if (took > MOST_CALL_NS)
        fail_msg("%s took %llu ms", steps[step].name, (unsigned long long)(took / 1000000));
    return status;
}

/* Takes all steps; each one that fails once more, unless the session is of no more use then. */
static void run_frame(frame *f, const fault_plan *plan)
{
    const VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};

    memset(f, 0, sizeof *f);
    f->fd = -1;
    if (t.has_vk)
        assert_int_equal(t.vk.CreateFence(t.vk.device, &info, NULL, &f->fence), VK_SUCCESS);
    fault_arm(plan);
    for (size_t i = 0; i < STEPS; i++) {
        const bool struck = fault_tripped() != NULL;
        tandem_status status = take(f, i);

        if (!struck && fault_tripped())
            f->at = i;
        if (status == TANDEM_OK)
            continue;
        if (!fault_tripped())
            fail_msg("%s: %s fails without a fault: %d, %s", ground_names[t.on], steps[i].name, status, t.last);
        f->failures++;
        f->status = status;
        f->gave_up = plan->sticky || status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST;
        if (f->gave_up)
            break;
        status = take(f, i);
        if (status == TANDEM_OK)
            continue;
        /* What was not found stays away from this session. */
        if (!(plan->kinds & (FAULT_VULKAN_LOOKUP | FAULT_CUDA_LOOKUP)))
            fail_msg("%s: %s, after %s failed: %s fails again: %d, %s", ground_names[t.on], steps[i].name,
                     fault_tripped(), steps[i].name, status, t.last);
        f->failures++;
        f->gave_up = true;
        break;
    }
    if (t.has_vk)
        t.vk.DeviceWaitIdle(t.vk.device);
    if (f->s)
        assert_int_equal(take(f, STEPS - 1), TANDEM_OK);
    fault_disarm();
    td_fd_close(&f->fd);
    for (int i = 0; i < 2; i++)
        if (f->commands[i])
            t.vk.FreeCommandBuffers(t.vk.device, t.vk.pool, 1, &f->commands[i]);
    if (f->fence)
        t.vk.DestroyFence(t.vk.device, f->fence, NULL);
}

/* Calls that a frame can do without. Names are not given, clocks not compared; what cannot be asked for counts as not
 * there; what cannot be given back is left behind, with a warning. */
static bool may_be_done_without(const char *call)
{
    static const char *const calls[] = {
        "vkSetDebugUtilsObjectNameEXT",
        "vkCreateDebugUtilsMessengerEXT",
        "vkCmdBeginDebugUtilsLabelEXT",
        "vkCmdEndDebugUtilsLabelEXT",
        "vkGetCalibratedTimestampsEXT",
        "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT",
        "vkEnumerateInstanceExtensionProperties",
        "vkEnumerateDeviceExtensionProperties",
        "cuGetErrorName",
        "cuFuncLoad",
        "cuTensorMapEncodeTiled", /* plans have other kernels then */
        "cuDeviceGetUuid_v2",
        "cuDeviceGetLuid", /* the UUID alone decides then, as everywhere but on Windows */
        "cuStreamQuery",
        "cuStreamCreateWithPriority",
        "cuCtxGetStreamPriorityRange",
        "cuMemsetD8Async",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuMemFree",
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuDestroyExternalMemory",
        "cuDestroyExternalSemaphore",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuEventRecord to sleep by",
        "cuEventSynchronize", /* a helper looks instead */
        "cuEventQuery",
        "cuModuleUnload",
        "cuLaunchKernelEx",
        "cuDevicePrimaryCtxRelease",
    };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(call, calls[i]))
            return true;
    return !strncmp(call, "cuGraph", 7); /* then each kernel is a launch of its own */
}

/* Some only at one place, or for one kind of session. */
static bool may_be_done_without_here(const frame *f, const fault_plan *plan, const char *call)
{
    if (may_be_done_without(call))
        return true;
    if (plan->kinds & FAULT_VULKAN_LOOKUP) /* the requirements ask too, and a rung lower will do */
        return !strcmp(call, "vkGetPhysicalDeviceFeatures2") || !strcmp(call, "vkGetPhysicalDeviceProperties") ||
               !strcmp(call, "vkGetMemoryFdKHR") || !strcmp(call, "vkGetSemaphoreFdKHR") ||
               !strcmp(call, "vkGetMemoryHostPointerPropertiesEXT") || !strcmp(call, "vkGetBufferDeviceAddress") ||
               strstr(call, "NVX");
    if ((plan->kinds & FAULT_LIBC) && !strcmp(call, "pthread_create")) /* a job runs on fewer threads */
        return steps[f->at].take == compute;
    if (plan->kinds & FAULT_LIBC && (!strcmp(call, "dlopen") || !strcmp(call, "calloc")))
        return true; /* the lists of extensions; CUDA where the CPU will do */
    if (plan->kinds & FAULT_LIBC && !strcmp(call, "aligned_alloc")) /* of a graph: each kernel is a launch of its own */
        return f->info.backend == TANDEM_BACKEND_CUDA;
    if ((!strcmp(call, "vkSignalSemaphore") || !strcmp(call, "vkGetSemaphoreCounterValue")) &&
        steps[f->at].take == drop_ours) /* for whoever may wait for a point that no job signals: nobody does here */
        return true;
    if (!strcmp(call, "cuDeviceGetAttribute")) /* whether there are timelines */
        return true;
    if (t.on == ON_COPY && (!strcmp(call, "cuMemHostRegister") || !strcmp(call, "cuMemHostGetDevicePointer")))
        return true; /* pinned memory beside it, then */
    if (!strcmp(call, "vkGetSemaphoreCounterValue") && f->had_fd) /* its descriptor becomes readable */
        return true;
    return t.on == ON_AUTO && f->info.backend == TANDEM_BACKEND_CPU;
}

static void same_live(fault_live a, fault_live b, const char *call, bool left_behind)
{
    const char *on = ground_names[t.on];

    /* What could not be given back went with its context, after a warning. */
    if (a.cuda != b.cuda && !(left_behind && t.gpu))
        fail_msg("%s: %s fails: %d CUDA objects leak", on, call, b.cuda - a.cuda);
    if (fake_cuda_driver.abandoned && !left_behind)
        fail_msg("%s: %s fails: %d CUDA objects are left to their context, without a word", on, call,
                 fake_cuda_driver.abandoned);
    if (a.vulkan != b.vulkan)
        fail_msg("%s: %s fails: %d Vulkan objects leak", on, call, b.vulkan - a.vulkan);
    if (a.blocks != b.blocks)
        fail_msg("%s: %s fails: %d blocks leak", on, call, b.blocks - a.blocks);
    if (a.mappings != b.mappings)
        fail_msg("%s: %s fails: %d mappings leak", on, call, b.mappings - a.mappings);
    if (a.threads != b.threads)
        fail_msg("%s: %s fails: %d threads leak", on, call, b.threads - a.threads);
    if (a.fds != b.fds)
        fail_msg("%s: %s fails: %d fds leak", on, call, b.fds - a.fds);
}

static bool names_the_call(const char *text, const char *call)
{
    if (strstr(text, call))
        return true;
    if (!strcmp(call, "malloc") || !strcmp(call, "calloc") || !strcmp(call, "aligned_alloc"))
        return strstr(text, "memory");
    if (!strncmp(call, "pthread", 7))
        return strstr(text, "thread") || strstr(text, "memory");
    if (!strncmp(call, "fcntl", 5))
        return strstr(text, "fd") || strstr(text, "fcntl") || strstr(text, "descriptor");
    if (!strcmp(call, "dlopen"))
        return strstr(text, "driver");
    if (!strcmp(call, "vkGetSemaphoreCounterValue") || !strcmp(call, "vkSignalSemaphore"))
        return strstr(text, "counter") || strstr(text, "point") || strstr(text, "semaphore") || strstr(text, "signal");
    if (!strcmp(call, "cuLaunchKernel"))
        return strstr(text, "launch");
    if (!strcmp(call, "vkCmdPushDescriptorSetKHR"))
        return strstr(text, "VK_KHR_push_descriptor");
    if (!strncmp(call, "vkGet", 5) || !strncmp(call, "cuDeviceGetUuid", 15))
        return true; /* an extension, or the device's name instead */
    return false;
}

/* The n-th call fails, for every n from `first` on by steps of `step`; returns how many failed. */
static unsigned sweep(const fault_plan *of, unsigned first, unsigned step)
{
    unsigned behind;
    fault_plan plan = *of;

    for (unsigned n = first, failed = 0;; n += step, failed++) {
        const fault_plan none = {0};
        const fault_live before = fault_count_live();
        const char *call;
        frame f;

        pthread_mutex_lock(&t.lock);
        t.errors = t.left_behind = 0;
        t.last[0] = 0;
        pthread_mutex_unlock(&t.lock);
        fake_cuda_driver.abandoned = 0;
        plan.n = n;
        if (t.has_vk && t.computes)
            assert_int_equal(vku_image_upload(&t.vk, &t.to, t.zeros, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
        limits_begin(180);
        run_frame(&f, &plan);
        limits_end();
        call = fault_tripped();
        if (!call) {
            assert_int_equal(f.failures, 0);
            return failed;
        }
        count_call(call);
        behind = t.left_behind;
        if (t.print_calls && getenv("TANDEM_FAULTS_VERBOSE"))
            printf("%s, %u: %s: %u failures, %d, %u errors: %s\n", ground_names[t.on], n, call, f.failures, f.status,
                   errors_now(), t.last);
        /* A worker or the watchdog may ask after a submit whose end the caller has seen: it says so, and no call fails. */
        const bool is_behind = !f.failures && errors_now() == 1 &&
                               (!strcmp(call, "cuEventQuery") || !strncmp(t.last, "the GPU failed: ", 16));
        if (errors_now() != f.failures && !is_behind)
            fail_msg("%s: call %u, %s, fails: %u calls fail, %u lines of log, the last: %s", ground_names[t.on], n,
                     call, f.failures, errors_now(), t.last);
        if (!f.failures && !is_behind && !may_be_done_without_here(&f, &plan, call))
            fail_msg("%s: call %u, %s, fails, and nobody says so", ground_names[t.on], n, call);
        if (f.failures && !plan.sticky && !names_the_call(t.last, call))
            fail_msg("%s: call %u, %s, fails, but the log says: %s", ground_names[t.on], n, call, t.last);
        same_live(before, fault_count_live(), call, behind != 0);
        assert_int_equal(fault_wrong_closes(), 0);
        if (f.gave_up) { /* else the frame went on by itself */
            run_frame(&f, &none);
            assert_int_equal(f.failures, 0);
            same_live(before, fault_count_live(), call, behind != 0);
        }
        assert_true(n < 2000);
    }
}

/* What may go wrong where. */

static bool has(unsigned kinds)
{
    const bool cuda = t.on >= ON_CUDA;

    return (!(kinds & (FAULT_VULKAN | FAULT_VULKAN_LOOKUP)) || t.has_vk) &&
           (!(kinds & (FAULT_CUDA | FAULT_CUDA_LOOKUP)) || cuda);
}

static void lay_ground(ground on)
{
    const vku_options options = {.validation = true};
    const fault_plan none = {0};
    float pixels[PIXELS];
    frame f;

    t.on = on;
    t.has_vk = on == ON_VULKAN_CPU || on == ON_VULKAN_CUDA || on == ON_TIMELINES ||
               on == ON_COPY;
    t.computes = t.gpu || on < ON_CUDA;
    if (on == ON_DAEMON)
        assert_int_equal(group_daemon_begin(&t.daemon, "faults", "backend = cpu\nthreads = 2\n"), 0);
    fault_cuda(on < ON_CUDA ? FAULT_NO_CUDA : t.gpu ? FAULT_REAL_CUDA : FAULT_FAKE_CUDA);
    fault_disguise_as(on == ON_VULKAN_CUDA             ? FAULT_NO_TIMELINES
                      : on == ON_TIMELINES && !t.gpu   ? FAULT_TIMELINES
                                                       : 0);
    fake_cuda_driver.vulkan = NULL;
    if (t.has_vk) {
        VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
        VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                  .pNext = &id};
        PFN_vkGetPhysicalDeviceProperties2 get;
        vku_found found = vku_open(&t.vk, &options);

        if (found == VKU_NO_VULKAN && !t.gpu)
            skip();
        assert_int_equal(found, VKU_OK);
        fault_vulkan(t.vk.gipa);
        get = (PFN_vkGetPhysicalDeviceProperties2)t.vk.gipa(t.vk.instance, "vkGetPhysicalDeviceProperties2");
        get(t.vk.physical_device, &properties);
        memcpy(fake_cuda_driver.uuids[0], id.deviceUUID, sizeof id.deviceUUID);
        fake_cuda_driver.vulkan = fault_vulkan_real();
        fake_cuda_driver.device = t.vk.device;
        assert_int_equal(vku_image_create(&t.vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_SAMPLED_BIT,
                                          &t.from),
                         VK_SUCCESS);
        assert_int_equal(vku_image_create(&t.vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_STORAGE_BIT,
                                          &t.to),
                         VK_SUCCESS);
        for (uint32_t i = 0; i < PIXELS; i++)
            pixels[i] = (float)(i * 7 % 31) / 31;
        assert_int_equal(vku_image_upload(&t.vk, &t.from, pixels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
        assert_int_equal(vku_image_upload(&t.vk, &t.to, t.zeros, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    }
    /* What a frame should show: from one that nothing happens to, whose result is not what it began with. */
    t.computes = false;
    memset(t.golden_view, 0, sizeof t.golden_view);
    {
        size_t i = 0;

        memset(&f, 0, sizeof f);
        t.packs = true;
        fault_arm(&none);
        for (; steps[i].take != show; i++) {
            tandem_status status = take(&f, i);

            if (status != TANDEM_OK)
                fail_msg("%s: %s: %d, %s", ground_names[on], steps[i].name, status, t.last);
        }
        assert_int_equal(f.info.rung, on == ON_TIMELINES ? TANDEM_RUNG_TIMELINE
                                      : on == ON_COPY    ? TANDEM_RUNG_COPY
                                      : on < ON_CUDA     ? TANDEM_RUNG_CPU
                                                         : TANDEM_RUNG_HOST);
        t.computes = t.gpu || on < ON_CUDA;
        if (t.has_vk) {
            assert_int_equal(vku_submit(&t.vk, f.commands[1], (vku_point){f.semaphores[1], f.value}, (vku_point){0},
                                        VK_NULL_HANDLE),
                             VK_SUCCESS);
            assert_int_equal(t.vk.DeviceWaitIdle(t.vk.device), VK_SUCCESS);
            assert_int_equal(vku_image_readback(&t.vk, &t.to, t.golden), VK_SUCCESS);
            if (t.computes)
                assert_memory_not_equal(t.golden, t.zeros, sizeof t.golden);
            t.vk.FreeCommandBuffers(t.vk.device, t.vk.pool, 2, f.commands);
        } else {
            void *host = NULL;

            assert_int_equal(tandem_mem_host(f.s, f.mem, &host), TANDEM_OK);
            memcpy(t.golden_view, (char *)host + VIEW_BYTES, VIEW_BYTES);
            assert_true(!t.computes || t.golden_view[0] != 0);
        }
        assert_int_equal(tandem_session_destroy(&f.s), TANDEM_OK);
        drop_fd(&f); /* the end of the session is told */
    }
}

static void clear_ground(void)
{
    fault_disguise_as(0);
    assert_int_equal(group_daemon_end(&t.daemon), 0);
    t.daemon = (group_daemon){0};
    if (!t.has_vk)
        return;
    vku_image_destroy(&t.vk, &t.from);
    vku_image_destroy(&t.vk, &t.to);
    vku_close(&t.vk);
    if (t.vk.errors)
        fail_msg("%s: validation: %s", ground_names[t.on], t.vk.last_text);
    t.has_vk = false;
}

/* A context of the test's own, so that not each session has to wait for a new one. */
static void hold_context(void)
{
    int (*init)(unsigned), (*retain)(void **, int);
    void *context, *library = __real_dlopen("libcuda.so.1", RTLD_NOW);

    assert_non_null(library);
    *(void **)&init = __real_dlsym(library, "cuInit");
    *(void **)&retain = __real_dlsym(library, "cuDevicePrimaryCtxRetain");
    assert_int_equal(init(0), 0);
    assert_int_equal(retain(&context, 0), 0);
}

/* And a stream's kernels, so that only the sweeps on CUDA alone load and unload them: on a GPU that is most of what a session
 * takes. */
static void hold_kernels(void)
{
    static td_cu_device *device;
    static td_stream *stream;
    char why[400] = "";

    if (stream)
        return;
    if (td_cu_device_open(NULL, NULL, &device, why, sizeof why) != TANDEM_OK ||
        td_stream_create(device, NULL, &stream, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
}

static void all_faults(ground on)
{
    static const struct {
        const char *name;
        fault_plan plan;
    } plans[] = {
        {"Vulkan: out of memory",
         {.kinds = FAULT_VULKAN, .vulkan = VK_ERROR_OUT_OF_DEVICE_MEMORY}},
        {"Vulkan: lost", {.kinds = FAULT_VULKAN, .vulkan = VK_ERROR_DEVICE_LOST, .sticky = true}},
        {"Vulkan: unknown", {.kinds = FAULT_VULKAN, .vulkan = VK_ERROR_UNKNOWN}},
        {"Vulkan: function missing", {.kinds = FAULT_VULKAN_LOOKUP}},
        {"CUDA: out of memory", {.kinds = FAULT_CUDA, .cuda = TD_CU_ERROR_OUT_OF_MEMORY}},
        {"CUDA: launch failed", {.kinds = FAULT_CUDA, .cuda = 719, .sticky = true}},
        {"CUDA: function missing", {.kinds = FAULT_CUDA_LOOKUP}},
        {"C library", {.kinds = FAULT_LIBC}},
        {"C library, from then on", {.kinds = FAULT_LIBC, .sticky = true}},
    };
    /* With sanitizers, which are slow, a call fails in one of three ways: most of what follows is the same code. */
    const unsigned step = getenv("TANDEM_SANITIZED") ? 3 : 1;
    unsigned all = 0;

    lay_ground(on);
    if (t.gpu && on > ON_CUDA)
        hold_kernels();
    if (on == ON_HOST || on == ON_DAEMON)
        memcpy(t.cpu_view, t.golden_view, sizeof t.cpu_view);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const uint64_t begin = td_now_ns();
        unsigned calls;

        if (!has(plans[i].plan.kinds))
            continue;
        longest_ns = 0;
        /* Pipelines take time to build; CUDA has no part in them, and they are the same on each of the fake's rungs. */
        t.packs = t.computes || (plans[i].plan.kinds & FAULT_VULKAN_LOOKUP) ||
                  (on == ON_TIMELINES && !(plans[i].plan.kinds & (FAULT_CUDA | FAULT_CUDA_LOOKUP)));
        calls = sweep(&plans[i].plan, 1 + i % step, step);
        assert_true(calls > 0);
        printf("%-18s %-26s %4u calls, %5u ms, the longest call %u ms\n", ground_names[on], plans[i].name, calls,
               (unsigned)((td_now_ns() - begin) / 1000000), (unsigned)(longest_ns / 1000000));
        all += calls;
    }
    assert_true(all > 0);
    clear_ground();
}

#define GROUND(name, on)                  \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        all_faults(on);                   \
    }
GROUND(faults_on_host, ON_HOST)
GROUND(faults_on_vulkan_cpu, ON_VULKAN_CPU)
GROUND(faults_with_daemon, ON_DAEMON)
GROUND(faults_on_cuda, ON_CUDA)
GROUND(faults_on_vulkan_cuda, ON_VULKAN_CUDA)
GROUND(faults_on_timelines, ON_TIMELINES)
GROUND(faults_on_copies, ON_COPY)
GROUND(faults_on_auto, ON_AUTO)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_on_host),        cmocka_unit_test(faults_on_vulkan_cpu),
        cmocka_unit_test(faults_on_cuda),        cmocka_unit_test(faults_on_vulkan_cuda),
        cmocka_unit_test(faults_on_timelines),   cmocka_unit_test(faults_on_copies),
        cmocka_unit_test(faults_on_auto),
        cmocka_unit_test(faults_with_daemon),
    };
    enum { TESTS = sizeof tests / sizeof *tests, PARTS = 3 };
    const unsigned part = argc > 2 && !strcmp(argv[1], "--part") ? (unsigned)atoi(argv[2]) : 0;
    struct CMUnitTest chosen[TESTS];
    size_t count = 0;
    int failed;

    for (size_t i = 0; i < TESTS; i++)
        if (!part || i % PARTS == part - 1)
            chosen[count++] = tests[i];
    if (part > PARTS) {
        print_error("--part %s: must be 1 to %d\n", argv[2], PARTS);
        return 2;
    }

    t.gpu = expects_gpu();
    t.print_calls = argc > 1 && !strcmp(argv[1], "--calls");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (t.gpu)
        hold_context();
    failed = _cmocka_run_group_tests("faults", chosen, count, NULL, NULL);
    for (size_t i = 0; t.print_calls && tally[i].name; i++)
        printf("%-50s %u\n", tally[i].name, tally[i].faults);
    return failed;
}
