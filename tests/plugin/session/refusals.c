/* Sessions refuse what is wrong: by status, in the session's error text, and in one log line.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

static void *some_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void some_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

static void test_create_refuses(void **state)
{
    char text[300];
    rig r;

    (void)state;
    assert_true(rig_prepare(&r, ON_CPU));
#define CREATE(expected, words, ...)                                                                  \
    do {                                                                                              \
        tandem_session_desc d = r.desc;                                                               \
        tandem_session *s = (tandem_session *)&r;                                                     \
        text[0] = 0;                                                                                  \
        d.error_text = text;                                                                          \
        d.error_text_bytes = sizeof text;                                                             \
        REFUSED(&r, expected, words, __VA_ARGS__; got = tandem_session_create(&d, &s));               \
        assert_null(s);                                                                               \
        assert_non_null(strstr(text, words));                                                         \
    } while (0)
    CREATE(ARG, "desc.backend is 3", d.backend = 3);
    CREATE(ARG, "desc.release is NULL", d.allocate = some_allocate);
    CREATE(ARG, "desc.allocate is NULL", d.release = some_release);
    CREATE(ARG, "desc.frames_in_flight is 49", d.frames_in_flight = 49);
    CREATE(ARG, "desc.job_class is 2", d.job_class = 2);
    CREATE(ARG, "desc.reserved is 1", d.reserved = 1);
    CREATE(ARG, "desc.tuning is NULL, but desc.tuning_bytes is 7", d.tuning_bytes = 7);
    CREATE(ARG, "desc.tuning: the table is no JSON: line 1", d.tuning = "");
    CREATE(ARG, "desc.tuning: the table is no JSON: line 1", d.tuning = "{}"; d.tuning_bytes = 1);
    CREATE(ARG, "desc.tuning: this is no table of `tandem tune`", d.tuning = "{}"; d.tuning_bytes = 2);
    CREATE(ARG, "desc.tuning: the table has 4294967297 bytes", d.tuning = "{}"; d.tuning_bytes = 0x100000001);
    CREATE(ARG, "desc.struct_bytes is 0", d.struct_bytes = 0);
    REFUSED(&r, ARG, "out is NULL", got = tandem_session_create(&r.desc, NULL));
    CREATE(ARG, "desc.timing is 2", d.timing = 2);
    CREATE(ARG, "desc.rung is 9", d.rung = 9);
    if (!expects_gpu() && !r.info.sm) {
        tandem_session_desc asked = r.desc;
        tandem_session *made;

        asked.backend = TANDEM_BACKEND_CUDA;
        asked.log = NULL;
        if (tandem_session_create(&asked, &made) == TANDEM_OK)
            tandem_session_destroy(&made);
        else
            CREATE(UNSUPPORTED, "CUDA", d.backend = TANDEM_BACKEND_CUDA);
    }
    {
        tandem_session_desc d = r.desc;
        tandem_session *s = (tandem_session *)&r;

        /* Sizes that no version can have: nothing else is read. */
        for (uint32_t bytes = 4; bytes < sizeof d; bytes++) {
            const unsigned before = errors_of(&r);
            tandem_session_desc *part = malloc(bytes);

            d.struct_bytes = bytes;
            memcpy(part, &d, bytes);
            if (bytes % 8) {
                assert_int_equal(tandem_session_create(part, &s), TANDEM_ERROR_ARG);
                assert_null(s);
                assert_int_equal(errors_of(&r), before);
            }
            free(part);
        }
        d.struct_bytes = 0x5a5a5a5a; /* nothing at all can be believed */
        d.log = (void (*)(void *, int, const char *))(uintptr_t)0x5a5a5a5a;
        d.error_text = (char *)(uintptr_t)0x5a5a5a5a;
        assert_int_equal(tandem_session_create(&d, &s), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_create(NULL, &s), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_destroy(NULL), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_destroy(&s), TANDEM_ERROR_ARG);
    }
    rig_close(&r);

    if (!rig_prepare(&r, ON_VULKAN))
        return;
#define BAD_VULKAN(expected, words, ...) \
    CREATE(expected, words, tandem_vulkan v = r.vulkan; d.vulkan = &v; __VA_ARGS__)
    BAD_VULKAN(ARG, "desc.vulkan.struct_bytes is 4", v.struct_bytes = 4);
    BAD_VULKAN(ARG, "desc.vulkan.get_instance_proc_addr is NULL", v.struct_bytes = 8);
    BAD_VULKAN(ARG, "desc.vulkan.get_instance_proc_addr is NULL", v.get_instance_proc_addr = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.instance is NULL", v.instance = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.physical_device is NULL", v.physical_device = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.device is NULL", v.device = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.enabled_extensions is NULL", v.enabled_extensions = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.unlock_queue is NULL", v.lock_queue = (void (*)(void *))free);
    BAD_VULKAN(UNSUPPORTED, "api_version", v.api_version = VK_API_VERSION_1_0);
    {
        VkPhysicalDeviceFeatures2 none = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};

        BAD_VULKAN(UNSUPPORTED, "desc.rung is 2 (timeline)", v.enabled_features = &none;
                   d.rung = TANDEM_RUNG_TIMELINE);
    }
    rig_close(&r);
}

static void refuse_mems(rig *r)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    void *pages = aligned_alloc(page, 4 * page);
    const tandem_timeline timeline = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_mem mem, gone = new_mem(r, 4096);
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    void *host;
    const int before = vku_open_fds();
    int pipes[2], dead, directory, devnull, memfd;

#define MEM(expected, words, ...)                                                                            \
    do {                                                                                                     \
        tandem_mem_desc d = {.struct_bytes = sizeof d, .bytes = 4096, .allocation_bytes = 65536, .fd = pipes[0]}; \
        mem = 77;                                                                                            \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_mem_create(r->s, &d, &mem));                   \
        assert_int_equal(mem, 0);                                                                            \
    } while (0)
    assert_int_equal(pipe(pipes), 0);
    directory = open("/tmp", O_RDONLY | O_DIRECTORY);
    devnull = open("/dev/null", O_RDWR);
    memfd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(memfd, 65536), 0);
    dead = dup(pipes[0]);
    close(dead);
    MEM(ARG, "desc.struct_bytes is 3", d.struct_bytes = 3);
    MEM(ARG, "desc.bytes is 0", d.struct_bytes = 8);
    MEM(ARG, "desc.source is 5", d.source = 5);
    MEM(ARG, "desc.bytes is 0", d.bytes = 0);
    MEM(ARG, say("desc.bytes is %" PRIu64, UINT64_MAX), d.bytes = UINT64_MAX);
    MEM(ARG, "desc.reserved is 1", d.reserved = 1);
    MEM(ARG, "desc.host is NULL", d.source = TANDEM_MEM_HOST);
    MEM(ARG, "desc.host is 0x1000, and not all", d.source = TANDEM_MEM_HOST; d.host = (void *)(uintptr_t)0x1000);
    MEM(ARG, say("desc.host is %p, and not all of the desc.bytes %" PRIu64, (void *)pages, (uint64_t)1 << 46),
        d.source = TANDEM_MEM_HOST; d.host = pages; d.bytes = 1ull << 46);
    MEM(ARG, say("desc.bytes is %" PRId64, INT64_MAX), d.source = TANDEM_MEM_HOST; d.host = (void *)UINTPTR_MAX;
        d.bytes = INT64_MAX);
    MEM(ARG, "desc.allocation_bytes is 0", d.source = TANDEM_MEM_FD; d.allocation_bytes = 0);
    MEM(ARG, "desc.dedicated is 2", d.source = TANDEM_MEM_FD; d.dedicated = 2);
    MEM(ARG, "desc.offset_bytes is 65536", d.source = TANDEM_MEM_FD; d.offset_bytes = 65536);
    MEM(ARG, "desc.offset_bytes is 61441", d.source = TANDEM_MEM_VULKAN; d.offset_bytes = 61441);
    MEM(ARG, say("desc.offset_bytes is %" PRIu64, UINT64_MAX), d.source = TANDEM_MEM_FD; d.offset_bytes = UINT64_MAX);
    MEM(ARG, say("desc.fd is %d", dead), d.source = TANDEM_MEM_FD; d.fd = dead);
    MEM(ARG, "desc.fd is -1", d.source = TANDEM_MEM_FD; d.fd = -1);
    MEM(ARG, say("desc.fd is %d, a pipe", pipes[0]), d.source = TANDEM_MEM_FD);
    MEM(ARG, say("desc.fd is %d, a directory", directory), d.source = TANDEM_MEM_FD; d.fd = directory);
    MEM(ARG, say("desc.allocation_bytes is 65537, but desc.fd %d has 65536 bytes", memfd), d.source = TANDEM_MEM_FD;
        d.fd = memfd; d.allocation_bytes = 65537);
    MEM(UNSUPPORTED, "desc.vulkan_usage is 0x20200", d.vulkan_usage = 0x20200);
    MEM(NOMEM, "", d.bytes = 1ull << 50); /* more than any machine has; refused before a sanitizer's malloc objects */
    MEM(ARG, "desc.vulkan_memory is 0", d.source = TANDEM_MEM_VULKAN);
    if (!r->has_vk)
        MEM(UNSUPPORTED, "desc.source is VULKAN (3)", d.source = TANDEM_MEM_VULKAN; d.vulkan_memory = 16);
    else if (r->info.backend == TANDEM_BACKEND_CPU)
        MEM(UNSUPPORTED, "desc.dedicated is 1", d.source = TANDEM_MEM_VULKAN; d.vulkan_memory = 16; d.dedicated = 1);
    if (!r->has_vk || r->info.backend == TANDEM_BACKEND_CPU) {
        MEM(UNSUPPORTED, "desc.source is FD (2)", d.source = TANDEM_MEM_FD; d.fd = memfd);
    } else if (r->info.rung == TANDEM_RUNG_INLINE) {
        MEM(UNSUPPORTED, "desc.source is FD (2)", d.source = TANDEM_MEM_FD; d.fd = devnull);
    } else {
        MEM(ARG, say("desc.fd is %d", devnull), d.source = TANDEM_MEM_FD; d.fd = devnull);
    }
    if (r->has_vk || r->info.backend == TANDEM_BACKEND_CUDA) {
        MEM(ARG, say("desc.host is %p", (void *)((char *)pages + 16)), d.source = TANDEM_MEM_HOST;
            d.host = (char *)pages + 16);
        MEM(ARG, "desc.bytes is 4095", d.source = TANDEM_MEM_HOST; d.host = pages; d.bytes = 4095);
    }
    assert_int_equal(fcntl(pipes[0], F_GETFD) >= 0, 1); /* stays the caller's */
    assert_int_equal(lseek(memfd, 0, SEEK_CUR), 0);
    close(pipes[0]);
    close(pipes[1]);
    close(directory);
    close(devnull);
    close(memfd);
    REFUSED(r, ARG, "desc is NULL", got = tandem_mem_create(r->s, NULL, &mem));
    REFUSED(r, ARG, "mem is NULL", tandem_mem_desc d = {.struct_bytes = sizeof d};
            got = tandem_mem_create(r->s, &d, NULL));

    REFUSED(r, ARG, "mem is 0x0", got = tandem_mem_destroy(r->s, 0));
    REFUSED(r, ARG, "mem is 0x4d2", got = tandem_mem_destroy(r->s, 1234));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which is a timeline, not a mem", timeline),
            got = tandem_mem_destroy(r->s, timeline));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64, (uint64_t)(gone ^ 1ull << 50)),
            got = tandem_mem_destroy(r->s, gone ^ 1ull << 50));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64, gone + 9), got = tandem_mem_destroy(r->s, gone + 9));
    REFUSED(r, ARG, "host is NULL", got = tandem_mem_host(r->s, gone, NULL));
    assert_int_equal(tandem_mem_destroy(r->s, gone), TANDEM_OK);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone), got = tandem_mem_destroy(r->s, gone));
    mem = new_mem(r, 4096); /* takes the slot; the old id stays dead */
    assert_true(mem != gone);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone), got = tandem_mem_host(r->s, gone, &host));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_mem_get_vulkan(r->s, gone, &vulkan));
    REFUSED(r, ARG, "out is NULL", got = tandem_mem_get_vulkan(r->s, mem, NULL));
    REFUSED(r, ARG, "out.struct_bytes is 4",
            got = tandem_mem_get_vulkan(r->s, mem, &(tandem_mem_vulkan){.struct_bytes = 4}));
    if (!r->has_vk)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_get_vulkan(r->s, mem, &vulkan));
    if (tandem_mem_host(r->s, mem, &host) != TANDEM_OK)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_host(r->s, mem, &host));
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, timeline), TANDEM_OK);
    assert_true(vku_open_fds() <= before);
    free(pages);
}

static void refuse_timelines(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 5),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, 4096);
    tandem_timeline made, gone = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    VkSemaphore semaphore;
    uint64_t value;

#define TIMELINE(expected, words, ...)                                                                   \
    do {                                                                                                 \
        tandem_timeline_desc d = {.struct_bytes = sizeof d};                                             \
        made = 77;                                                                                       \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_timeline_create(r->s, &d, &made));         \
        assert_int_equal(made, 0);                                                                       \
    } while (0)
    TIMELINE(ARG, "desc.struct_bytes is 31", d.struct_bytes = 31);
    TIMELINE(ARG, "desc.signaller is 2", d.signaller = 2);
    if (!r->has_vk)
        TIMELINE(UNSUPPORTED, "desc.vulkan_semaphore is 0x1234", d.vulkan_semaphore = 0x1234);
    REFUSED(r, ARG, "desc is NULL", got = tandem_timeline_create(r->s, NULL, &made));
    REFUSED(r, ARG, "timeline is NULL", tandem_timeline_desc d = {.struct_bytes = sizeof d};
            got = tandem_timeline_create(r->s, &d, NULL));
    assert_int_equal(tandem_timeline_destroy(r->s, gone), TANDEM_OK);
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_timeline_destroy(r->s, gone));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_timeline_value(r->s, gone, &value));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which is a mem, not a timeline", mem),
            got = tandem_timeline_value(r->s, mem, &value));
    REFUSED(r, ARG, "value is NULL", got = tandem_timeline_value(r->s, engines, NULL));
    REFUSED(r, ARG, "value is 5", got = tandem_timeline_signal(r->s, engines, 5));
    REFUSED(r, ARG, "value is 0", got = tandem_timeline_signal(r->s, engines, 0));
    REFUSED(r, ARG, say("value is %" PRIu64, UINT64_MAX), got = tandem_timeline_signal(r->s, engines, UINT64_MAX));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which only the session signals", ours),
            got = tandem_timeline_signal(r->s, ours, 1));
    REFUSED(r, ARG, "timeline is 0x0", got = tandem_timeline_signal(r->s, 0, 1));
    assert_int_equal(tandem_timeline_signal(r->s, engines, 6), TANDEM_OK);
    assert_int_equal(value_of(r, engines), 6);
    REFUSED(r, ARG, "point.timeline is 0x0", got = tandem_point_wait(r->s, (tandem_point){0, 3}, 0));
    REFUSED(r, BUSY, "point.value is 7", got = tandem_point_wait(r->s, (tandem_point){engines, 7}, 0));
    REFUSED(r, BUSY, "point.value is 1", got = tandem_point_wait(r->s, (tandem_point){ours, 1}, 2 * MS));
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){engines, 6}, 0), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){0, 0}, 0), TANDEM_OK);
    if (r->has_vk) {
        assert_int_equal(tandem_timeline_get_vulkan(r->s, ours, &semaphore), TANDEM_OK);
        assert_true(semaphore != VK_NULL_HANDLE);
        REFUSED(r, ARG, "out is NULL", got = tandem_timeline_get_vulkan(r->s, ours, NULL));
    } else {
        REFUSED(r, UNSUPPORTED, say("timeline is 0x%" PRIx64, ours),
                got = tandem_timeline_get_vulkan(r->s, ours, &semaphore));
    }
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void refuse_jobs(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 4);
    const tandem_mem mem = new_mem(r, MEM_BYTES), gone = new_mem(r, MEM_BYTES);
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;

    assert_int_equal(tandem_mem_destroy(r->s, gone), TANDEM_OK);
#define JOB(expected, words, ...)                                                                 \
    do {                                                                                          \
        tandem_job j = new_job(mem);                                                              \
        tandem_attention *a = &j.op.attention;                                                    \
        (void)a;                                                                                  \
        ticket = 77;                                                                              \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_submit(r->s, &j, &ticket));         \
        assert_int_equal(ticket, 0);                                                              \
    } while (0)
    JOB(ARG, "job.struct_bytes is 12", j.struct_bytes = 12);
    JOB(ARG, "attention.batch is 0", j.struct_bytes = 16);
    JOB(ARG, "job.operation is 0", j.operation = 0);
    JOB(ARG, "job.operation is 99", j.operation = 99);
    JOB(ARG, "job.wait.timeline is 0x0", j.wait.value = 1);
    JOB(ARG, say("job.wait.timeline is 0x%" PRIx64 ", which is a mem", mem), j.wait = (tandem_point){mem, 1});
    JOB(ARG, "job.wait.value is 2147483648", j.wait = (tandem_point){engines, 1ull << 31});
    JOB(ARG, "job.wait.value is 5", j.wait = (tandem_point){ours, 5});
    JOB(ARG, "job.signal.timeline is 0x0", j.signal.value = 1);
    JOB(ARG, say("job.signal.timeline is 0x%" PRIx64 ", which the engine signals", engines),
        j.signal = (tandem_point){engines, 1});
    JOB(ARG, "job.signal.value is 4", j.signal = (tandem_point){ours, 4});
    JOB(ARG, "job.signal.value is 0", j.signal = (tandem_point){ours, 0});
    JOB(ARG, say("job.signal.value is %" PRIu64, UINT64_MAX), j.signal = (tandem_point){ours, UINT64_MAX});
    JOB(ARG, "batch is 0", a->batch = 0);
    JOB(ARG, "heads is 0", a->heads = 0);
    JOB(ARG, "kv_heads is 0", a->kv_heads = 0);
    JOB(ARG, "q_len is 0", a->q_len = 0);
    JOB(ARG, "kv_len is 0", a->kv_len = 0);
    JOB(ARG, "head_dim is 33", a->head_dim = 33);
    JOB(ARG, "head_dim is 0", a->head_dim = 0);
    JOB(ARG, "heads is 3", a->heads = 3; a->kv_heads = 2);
    JOB(ARG, "causal is 2", a->causal = 2);
    JOB(ARG, "precision is 4", a->precision = 4);
    JOB(ARG, "smooth is 16", a->smooth = 16);
    JOB(ARG, "smooth is 5", a->smooth = TANDEM_SMOOTH_NONE | TANDEM_SMOOTH_K);
    JOB(ARG, "granularity is 7", a->granularity = 7);
    JOB(ARG, "reserved is 1", a->reserved = 1);
    JOB(ARG, "scale is nan", a->scale = NAN);
    JOB(ARG, "scale is inf", a->scale = INFINITY);
    JOB(ARG, "q.mem is 0x0", a->q.mem = 0);
    JOB(ARG, say("k.mem is 0x%" PRIx64 ", which was destroyed", gone), a->k.mem = gone);
    JOB(ARG, say("v.mem is 0x%" PRIx64 ", which is a timeline", ours), a->v.mem = ours);
    JOB(ARG, "o.mem is 0x0", a->o.mem = 0);
    JOB(ARG, "lse.mem is 0x3", a->lse.mem = 3);
    JOB(ARG, "q.dtype is 0", a->q.dtype = 0);
    JOB(ARG, "k.dtype is 6", a->k.dtype = 6);
    JOB(ARG, "o.dtype is 99", a->o.dtype = 99);
    JOB(ARG, "lse.dtype is 1", a->lse.dtype = TANDEM_DTYPE_F16);
    JOB(ARG, "v.reserved is 2", a->v.reserved = 2);
    JOB(ARG, "q.offset_bytes is 2;", a->q.offset_bytes = 2);
    JOB(ARG, say("q.offset_bytes is %u,", MEM_BYTES), a->q.offset_bytes = MEM_BYTES);
    JOB(ARG, say("v.offset_bytes is %u,", MEM_BYTES - (unsigned)sizeof(float)),
        a->v.offset_bytes = MEM_BYTES - sizeof(float));
    JOB(ARG, say("k.stride_batch, stride_head, stride_row are %d", KV_HEADS * KEYS * DIM),
        a->k.offset_bytes = UINT64_MAX - 3);
    JOB(ARG, "q.stride_row is -1", a->q.stride_row = -1);
    JOB(ARG, "stride_batch, stride_head, stride_row are", a->q.stride_head = INT64_MAX);
    JOB(ARG, "k.offset_bytes is 12288,", a->k.stride_row = 1 << 20);
    JOB(ARG, "o.stride_row is 0", a->o.stride_row = 0);
    JOB(ARG, "o.stride_head is 31", a->o.stride_head = 31);
    JOB(ARG, "o.offset_bytes is 0: it overlaps q at 0", a->o.offset_bytes = 0);
    JOB(ARG, "o.offset_bytes is 128: it overlaps q at 0", a->o.offset_bytes = 128);
    JOB(ARG, say("lse.offset_bytes is %zu: it overlaps o", O_AT * sizeof(float)),
        a->lse.offset_bytes = O_AT * sizeof(float));
    JOB(ARG, "lse.offset_bytes is 12288: it overlaps k at 12288", a->lse.offset_bytes = K_AT * sizeof(float));
    REFUSED(r, ARG, "job is NULL", got = tandem_submit(r->s, NULL, &ticket));
    REFUSED(r, ARG, "ticket is NULL", tandem_job j = new_job(mem); got = tandem_submit(r->s, &j, NULL));

    REFUSED(r, ARG, "ticket is 0x0", got = tandem_poll(r->s, 0, &report));
    REFUSED(r, ARG, say("ticket is 0x%" PRIx64, mem), got = tandem_poll(r->s, mem, &report));
    REFUSED(r, ARG, "ticket is 0x0", got = tandem_wait(r->s, 0, 0, NULL));
    REFUSED(r, ARG, "ticket is 0x1", got = tandem_cancel(r->s, 1));
    {
        const tandem_job job = new_job(mem);
        tandem_job_report bad = {.struct_bytes = 9};

        ticket = submit(r, &job);
        REFUSED(r, ARG, "report is NULL", got = tandem_poll(r->s, ticket, NULL));
        REFUSED(r, ARG, "report.struct_bytes is 9", got = tandem_poll(r->s, ticket, &bad));
        REFUSED(r, ARG, "report.struct_bytes is 9", got = tandem_wait(r->s, ticket, 0, &bad));
        REFUSED(r, ARG, say("ticket is 0x%" PRIx64, ticket + 1), got = tandem_poll(r->s, ticket + 1, &report));
        assert_int_equal(ended(r, ticket).state, TANDEM_JOB_DONE);
        REFUSED(r, BUSY, say("ticket is 0x%" PRIx64, ticket), got = tandem_cancel(r->s, ticket));
    }
    /* No refused job took its point. */
    {
        tandem_job job = new_job(mem);

        job.signal = (tandem_point){ours, 5};
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        assert_int_equal(value_of(r, ours), 5);
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
}

static void refuse_rest(rig *r)
{
    const tandem_mem mem = new_mem(r, 4096);
    tandem_info info = {.struct_bytes = 12};
    tandem_model model;
    tandem_view view;
    uint64_t shape[4];
    uint32_t x, y;
    char text[8];

    REFUSED(r, ARG, "info is NULL", got = tandem_session_info(r->s, NULL));
    REFUSED(r, ARG, "info.struct_bytes is 12", got = tandem_session_info(r->s, &info));
    REFUSED(r, ARG, "text is NULL", got = tandem_error_text(r->s, NULL, 8));
    REFUSED(r, ARG, "bytes is 0", got = tandem_error_text(r->s, text, 0));
    REFUSED(r, ARG, "path is NULL", got = tandem_model_load(r->s, NULL, &model));
    REFUSED(r, ARG, "model is NULL", got = tandem_model_load(r->s, "/x", NULL));
    REFUSED(r, IO, "path is '/nonexistent/model'", got = tandem_model_load(r->s, "/nonexistent/model", &model));
    REFUSED(r, IO, "path is '/tmp'", got = tandem_model_load(r->s, "/tmp", &model));
    REFUSED(r, PROTOCOL, "path is '/proc/self/comm'", got = tandem_model_load(r->s, "/proc/self/comm", &model));
    REFUSED(r, ARG, "model is 0x0", got = tandem_model_destroy(r->s, 0));
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which is a mem", mem), got = tandem_model_destroy(r->s, mem));
    REFUSED(r, ARG, "model is 0x0", got = tandem_model_tensor(r->s, 0, "a", &view, shape));
    REFUSED(r, ARG, "name is NULL", got = tandem_model_tensor(r->s, 0, NULL, &view, shape));
    REFUSED(r, ARG, "view is NULL", got = tandem_model_tensor(r->s, 0, "a", NULL, shape));
    REFUSED(r, ARG, "shape is NULL", got = tandem_model_tensor(r->s, 0, "a", &view, NULL));
#define TILES(expected, words, ...)                                                                                  \
    do {                                                                                                             \
        tandem_pack p = {.struct_bytes = sizeof p, .width = 20, .height = 9, .tile_width = 8, .tile_height = 4};     \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_pack_tiles(r->s, &p, &x, &y));                         \
    } while (0)
    TILES(ARG, "pack.struct_bytes is 0", p.struct_bytes = 0);
    TILES(ARG, "pack.width is 0", p.width = 0);
    TILES(ARG, "pack.height is 4294967295", p.height = UINT32_MAX);
    TILES(ARG, "pack.tile_width is 0", p.tile_width = 0);
    TILES(ARG, "pack.tile_height is 0", p.tile_height = 0);
    TILES(ARG, "pack.shift_x is 8", p.shift_x = 8);
    TILES(ARG, "pack.shift_y is 5", p.shift_y = 5);
    TILES(ARG, "pack.tile_width is 1", p.width = p.height = 1 << 20; p.tile_width = p.tile_height = 1);
    REFUSED(r, ARG, "pack is NULL", got = tandem_pack_tiles(r->s, NULL, &x, &y));
    {
        tandem_pack p = {
            .struct_bytes = sizeof p, .width = 20, .height = 9, .tile_width = 8, .tile_height = 4, .shift_x = 5};

        REFUSED(r, ARG, "tiles_y is NULL", got = tandem_pack_tiles(r->s, &p, &x, NULL));
        assert_int_equal(tandem_pack_tiles(r->s, &p, &x, &y), TANDEM_OK);
        assert_int_equal(x, 4);
        assert_int_equal(y, 3);
    }
    if (r->has_vk) {
        VkCommandBuffer commands = vku_begin(&r->vk);
        const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;

        REFUSED(r, ARG, "commands is NULL", got = tandem_record_release(r->s, NULL, mem, stage, 0));
        REFUSED(r, ARG, "src_stage is 0", got = tandem_record_release(r->s, commands, mem, 0, 0));
        REFUSED(r, ARG, "dst_stage is 0", got = tandem_record_acquire(r->s, commands, mem, 0, 0));
        REFUSED(r, ARG, "mem is 0x5", got = tandem_record_acquire(r->s, commands, 5, stage, 0));
        REFUSED(r, ARG, "pack is NULL", got = tandem_record_pack(r->s, commands, NULL));
#define PACK(function, expected, words, ...)                                                                           \
    do {                                                                                                               \
        tandem_pack p = {.struct_bytes = sizeof p,                                                                     \
                         .image_count = 1,                                                                             \
                         .images = {(VkImageView)(uintptr_t)1},                                                        \
                         .layout = VK_IMAGE_LAYOUT_GENERAL,                                                            \
                         .format = VK_FORMAT_R32G32B32A32_SFLOAT,                                                      \
                         .width = 4,                                                                                   \
                         .height = 4,                                                                                  \
                         .tile_width = 4,                                                                              \
                         .tile_height = 4,                                                                             \
                         .channels = 4,                                                                                \
                         .view_channels = 4,                                                                           \
                         .view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_batch = 64, .stride_row = 4}};        \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_record_##function(r->s, commands, &p));                  \
    } while (0)
        PACK(pack, ARG, "pack.view.dtype is 2", p.view.dtype = TANDEM_DTYPE_BF16);
        PACK(pack, ARG, "pack.view.reserved is 1", p.view.reserved = 1);
        PACK(pack, ARG, "pack.view.offset_bytes is 3", p.view.offset_bytes = 3);
        PACK(pack, ARG, "pack.view.mem is 0x0", p.view.mem = 0);
        PACK(pack, ARG, "image_count is 5", p.image_count = 5);
        PACK(pack, ARG, "channels is 5", p.channels = 5);
        PACK(pack, ARG, "view_channels is 3", p.view_channels = 3);
        PACK(pack, ARG, "4096", p.view.offset_bytes = 4096);
        PACK(pack, ARG, "stride_row", p.view.stride_row = 3);
        PACK(unpack, ARG, "halo is 1", p.halo = 1);
        PACK(unpack, ARG, "format is 37", p.format = VK_FORMAT_R8G8B8A8_UNORM);
        PACK(unpack, ARG, "layout is 5", p.layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL);
        REFUSED(r, ARG, "images is NULL", got = tandem_record_pack_images(r->s, commands, NULL, 1));
#define IMAGES(function, expected, words, ...)                                                                         \
    do {                                                                                                               \
        tandem_pack_image p[9];                                                                                        \
        uint32_t count = 2;                                                                                            \
        for (uint32_t i = 0; i < 9; i++)                                                                               \
            p[i] = (tandem_pack_image){.struct_bytes = sizeof p[i],                                                    \
                                       .format = VK_FORMAT_R32_SFLOAT,                                                 \
                                       .view = (VkImageView)(uintptr_t)1,                                              \
                                       .usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT,               \
                                       .image_extent = {4, 4},                                                         \
                                       .extent = {4, 4},                                                               \
                                       .layout_before = VK_IMAGE_LAYOUT_GENERAL,                                       \
                                       .channels = 1,                                                                  \
                                       .tensor = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, 4, 4, 1)};                \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_record_##function##_images(r->s, commands, p, count));   \
    } while (0)
        IMAGES(pack, ARG, "count is 0", count = 0);
        IMAGES(unpack, ARG, "count is 9", count = 9);
        IMAGES(pack, ARG, "images[1].struct_bytes is 9", p[1].struct_bytes = 9);
        IMAGES(pack, ARG, say("images[1].struct_bytes is 8, but images[0].struct_bytes %zu", sizeof(tandem_pack_image)),
               p[1].struct_bytes = 8);
        IMAGES(pack, ARG, "images[0].reserved is 2", p[0].reserved = 2);
        IMAGES(unpack, ARG, "images[1].tensor.reserved is 3", p[1].tensor.reserved = 3);
        IMAGES(pack, ARG, "images[1].tensor.mem is 0x0", p[1].tensor.mem = 0);
        IMAGES(unpack, ARG, "images[1].tensor.dtype is 2", p[1].tensor.dtype = TANDEM_DTYPE_BF16);
        IMAGES(pack, ARG, "images[0].format is 0", p[0].format = VK_FORMAT_UNDEFINED);
        assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    } else {
        tandem_pack p = {.struct_bytes = sizeof p};
        tandem_pack_image image = {.struct_bytes = sizeof image};

        REFUSED(r, UNSUPPORTED, "commands is 0x10",
                got = tandem_record_unpack_images(r->s, (VkCommandBuffer)(uintptr_t)16, &image, 1));

        REFUSED(r, UNSUPPORTED, "commands is 0x10",
                got = tandem_record_release(r->s, (VkCommandBuffer)(uintptr_t)16, mem, 1, 0));
        REFUSED(r, UNSUPPORTED, "commands is 0x10", got = tandem_record_pack(r->s, (VkCommandBuffer)(uintptr_t)16, &p));
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void refuse_everything(rig *r)
{
    refuse_mems(r);
    refuse_timelines(r);
    refuse_jobs(r);
    refuse_rest(r);
}

static void test_refusals(void **state)
{
    tandem_job job = {0};
    char text[200];
    tandem_mem id;
    uint64_t value;
    void *host;

    (void)state;
    each_kind_that_shares(refuse_everything);
    /* No session at all. */
    assert_int_equal(tandem_session_info(NULL, &(tandem_info){.struct_bytes = sizeof(tandem_info)}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
    assert_string_equal(text, "tandem_session_info: session is NULL");
    assert_int_equal(tandem_error_text(NULL, text, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_error_text(NULL, NULL, 4), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_create(NULL, &(tandem_mem_desc){0}, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_host(NULL, 1, &host), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_get_vulkan(NULL, 1, &(tandem_mem_vulkan){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_create(NULL, &(tandem_timeline_desc){0}, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_value(NULL, 1, &value), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(NULL, 1, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_get_vulkan(NULL, 1, &(VkSemaphore){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_point_wait(NULL, (tandem_point){0, 0}, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_submit(NULL, &job, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_poll(NULL, 1, &(tandem_job_report){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_wait(NULL, 1, 0, NULL), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_cancel(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_load(NULL, "x", &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_tensor(NULL, 1, "x", &(tandem_view){0}, (uint64_t[4]){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_info(NULL, 1, &(tandem_network){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_number(NULL, 1, 0, &(tandem_network_number){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_binding(NULL, 1, NULL, 0, 0, &(tandem_network_tensor){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_uniform(NULL, 1, NULL, 0, 0, &(tandem_network_tensor){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_instance(NULL, 1, &(tandem_instance_desc){0}, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_instance_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_prepare(NULL, 1, NULL, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_prepared(NULL, 1, NULL, 0, &(tandem_prepared){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_layer(NULL, 1, NULL, 0, 0, &(tandem_layer){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_supported(NULL, &job, NULL, NULL, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_release(NULL, NULL, 1, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_acquire(NULL, NULL, 1, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_pack(NULL, NULL, &(tandem_pack){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_unpack(NULL, NULL, &(tandem_pack){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_pack_images(NULL, NULL, &(tandem_pack_image){0}, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_unpack_images(NULL, NULL, &(tandem_pack_image){0}, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_pack_tiles(NULL, &(tandem_pack){0}, &(uint32_t){0}, &(uint32_t){0}), TANDEM_ERROR_ARG);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_create_refuses),
    cmocka_unit_test(test_refusals),
};
const test_cases session_refusals_cases = TEST_CASES(cases);
