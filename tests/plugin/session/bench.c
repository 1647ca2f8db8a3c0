/* How soon the host learns of what the device did, and what that costs: test_session --bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double cpu_seconds(int who)
{
    struct rusage usage;

    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

typedef enum lesson { BY_WAIT, BY_POINT, BY_FD, BY_AWAKE, BY_UNANNOUNCED, BY_DEADLINE, LESSONS } lesson;

static void bench_lesson(rig *r, lesson how)
{
    static const char *const names[LESSONS] = {"tandem_wait", "tandem_point_wait", "tandem_point_fd and poll",
                                               "tandem_point_fd, a caller that stays awake",
                                               "an unannounced value until the job begins",
                                               "a deadline until STALE"};
    enum { N = 480, WARM = 40 };
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem big = 0;
    tandem_job job = how == BY_DEADLINE ? long_job(r, &big) : new_job(new_mem(r, MEM_BYTES));
    PFN_vkSignalSemaphore signal = NULL;
    VkSemaphore semaphore = VK_NULL_HANDLE;
    double us[N], cpu = 0, own = 0, begin_s = 0;
    uint64_t next = td_now_ns();
    uint32_t count = 0;

    if (r->has_vk) {
        assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &semaphore), TANDEM_OK);
        signal = (PFN_vkSignalSemaphore)r->vk.GetDeviceProcAddr(r->vk.device, "vkSignalSemaphore");
    }
    if (how == BY_UNANNOUNCED && !signal)
        return;
    for (uint64_t n = 1; n <= N + WARM; n++) {
        struct pollfd fd = {.fd = -1, .events = POLLIN};
        tandem_job_report report = {.struct_bytes = sizeof report};
        uint64_t now, from = 0;
        tandem_ticket ticket;

        if (n == WARM + 1) {
            cpu = cpu_seconds(RUSAGE_SELF);
            own = cpu_seconds(RUSAGE_THREAD);
            begin_s = (double)td_now_ns() * 1e-9;
        }
        now = td_now_ns();
        next = next + 1000000000u / 240 > now ? next + 1000000000u / 240 : now;
        sleep_ns(next - now);
        job.signal = (tandem_point){ours, n};
        if (how == BY_UNANNOUNCED)
            job.wait = (tandem_point){engines, n};
        job.deadline_ns = how == BY_DEADLINE ? 300000 : 0;
        from = td_now_ns() + job.deadline_ns;
        ticket = submit(r, &job);
        if (how == BY_UNANNOUNCED) {
            const VkSemaphoreSignalInfo info = {
                .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = n};

            sleep_ns(1500000);
            from = td_now_ns();
            assert_int_equal(signal(r->vk.device, &info), VK_SUCCESS);
        }
        if (how == BY_FD || how == BY_AWAKE) {
            assert_int_equal(tandem_point_fd(r->s, job.signal, &fd.fd), TANDEM_OK);
            while (how == BY_AWAKE && !poll(&fd, 1, 0))
                ;
            assert_int_equal(poll(&fd, 1, 2000), 1);
        } else if (how == BY_POINT) {
            assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        } else {
            assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, NULL), TANDEM_OK);
        }
        now = td_now_ns();
        if (fd.fd >= 0)
            close(fd.fd);
        assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
        if (how == BY_UNANNOUNCED)
            now = report.begin_ns;
        else if (how != BY_DEADLINE)
            from = report.end_ns;
        if (n > WARM)
            us[count++] = (double)(int64_t)(now - from) * 1e-3;
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    }
    cpu = cpu_seconds(RUSAGE_SELF) - cpu;
    own = cpu_seconds(RUSAGE_THREAD) - own;
    begin_s = (double)td_now_ns() * 1e-9 - begin_s;
    qsort(us, count, sizeof *us, by_size);
    printf("%-10s rung %u, %-42s p50 %7.1f us, p99 %7.1f us; helpers %.1f %%, caller %.1f %% of a core\n",
           kind_names[r->kind], r->info.rung, names[how], us[count / 2], us[count * 99 / 100],
           (cpu - own) / begin_s * 100, own / begin_s * 100);
}

static void bench_each(rig *r)
{
    for (lesson how = 0; how < LESSONS; how++)
        bench_lesson(r, how);
}

/* Jobs on memory of the host's own, by copies, on so many bytes of Q and as many of O: time a job, one at a time and
 * several at once. */
static void bench_copies(uint64_t bytes)
{
    enum { D = 32, N = 4096, KEYS_ = 32, SLOTS = 3, ROUNDS = 7, JOBS = 30 };
    const uint32_t heads = (uint32_t)(bytes / (N * D * 2));
    const uint64_t k_at = bytes, v_at = k_at + KEYS_ * D * 2, o_at = v_at + KEYS_ * D * 2;
    tandem_mem mems[SLOTS];
    tandem_job jobs[SLOTS];
    double us[2][ROUNDS];
    rig r;

    if (!rig_prepare(&r, ON_CUDA))
        return;
    r.desc.rung = TANDEM_RUNG_COPY;
    if (!rig_start(&r))
        return;
    for (int i = 0; i < SLOTS; i++) {
        const tandem_view half = {.dtype = TANDEM_DTYPE_F16, .stride_row = D};
        tandem_attention *a = &jobs[i].op.attention;
        uint16_t *host;

        mems[i] = new_mem(&r, o_at + bytes);
        assert_int_equal(tandem_mem_host(r.s, mems[i], (void **)&host), TANDEM_OK);
        for (uint64_t n = 0; n < o_at / 2; n++)
            host[n] = (uint16_t)(0x3000 + n * 2654435761u % 2048);
        jobs[i] = (tandem_job){.struct_bytes = sizeof jobs[i], .operation = TANDEM_OPERATION_ATTENTION};
        a->q = a->k = a->v = a->o = half;
        a->q.mem = a->k.mem = a->v.mem = a->o.mem = mems[i];
        a->k.offset_bytes = k_at;
        a->v.offset_bytes = v_at;
        a->o.offset_bytes = o_at;
        a->q.stride_head = a->o.stride_head = N * D;
        a->q.stride_batch = a->o.stride_batch = (int64_t)heads * N * D;
        a->k.stride_head = a->v.stride_head = a->k.stride_batch = a->v.stride_batch = KEYS_ * D;
        a->batch = a->kv_heads = 1;
        a->heads = heads;
        a->q_len = N;
        a->kv_len = KEYS_;
        a->head_dim = D;
        a->precision = TANDEM_PRECISION_F16;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 2; way++) {
            const int at_once = way ? SLOTS : 1;
            tandem_ticket tickets[JOBS];
            const uint64_t begin = td_now_ns();

            for (int i = 0; i < JOBS; i++) {
                if (i >= at_once)
                    assert_int_equal(tandem_wait(r.s, tickets[i - at_once], LONG_NS, NULL), TANDEM_OK);
                tickets[i] = submit(&r, &jobs[i % SLOTS]);
            }
            for (int i = JOBS - at_once; i < JOBS; i++)
                assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
            us[way][round] = (double)(td_now_ns() - begin) / JOBS * 1e-3;
        }
    for (int way = 0; way < 2; way++)
        qsort(us[way], ROUNDS, sizeof **us, by_size);
    printf("copies of %3u MiB each way: %7.1f us a job one at a time, %7.1f us with %d at once\n",
           (unsigned)(bytes >> 20), us[0][ROUNDS / 2], us[1][ROUNDS / 2], SLOTS);
    rig_close(&r);
}

int bench(const char *only)
{
    validates = false;
    if (!only || !strcmp(only, "copies"))
        for (uint64_t mib = 1; mib <= 64; mib *= 8)
            bench_copies(mib << 20);
    for (rig_kind kind = ON_CUDA; kind < KINDS; kind++) {
        rig r;

        if (kind == ON_VULKAN_CPU || (only && strcmp(only, kind_names[kind])) || !rig_prepare(&r, kind))
            continue;
        if (!rig_start(&r))
            continue;
        bench_each(&r);
        rig_close(&r);
    }
    return 0;
}
