/* The life of a job: cancelled, late, held, in the way of others, waited for, and reported.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

static void cancel_pending(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    tandem_ticket tickets[3];
    float *data = calloc(1, MEM_BYTES);

    fill(data, 1);
    transfer(r, mem, data, MEM_BYTES, true);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = (tandem_point){engines, i + 1};
        job.signal = (tandem_point){ours, i + 1};
        tickets[i] = submit(r, &job);
    }
    sleep_ns(STUCK_NS);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_PENDING);
    assert_int_equal(value_of(r, ours), 0);
    /* The one in the middle: its value comes in its turn. */
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    sleep_ns(STUCK_NS);
    assert_int_equal(value_of(r, ours), 0);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 2}, LONG_NS), TANDEM_OK);
    assert_int_equal(ended(r, tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).status, TANDEM_OK);
    assert_int_equal(report_of(r, tickets[2]).state, TANDEM_JOB_PENDING);
    assert_int_equal(value_of(r, ours), 2);
    memset(data, 0, MEM_BYTES);
    transfer(r, mem, data, MEM_BYTES, false);
    assert_true(data[O_AT] == -77); /* nothing was computed */
    assert_int_equal(tandem_timeline_signal(r->s, engines, 3), TANDEM_OK);
    assert_int_equal(ended(r, tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(value_of(r, ours), 3);
    assert_int_equal(tandem_cancel(r->s, tickets[2]), TANDEM_ERROR_BUSY);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_ERROR_BUSY);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_cancelled, 2);
    assert_int_equal(r->info.jobs_done, 1);
    assert_int_equal(r->log.errors, 0);
    free(data);
}

/* Another timeline's jobs need not wait for a cancelled one's turn. */
static void cancel_elsewhere(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          a = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          b = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    tandem_ticket first, second;

    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){a, 1};
    first = submit(r, &job);
    job.signal = (tandem_point){b, 9};
    second = submit(r, &job);
    assert_int_equal(tandem_cancel(r->s, second), TANDEM_OK);
    assert_int_equal(report_of(r, second).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, b), 9);
    assert_int_equal(value_of(r, a), 0);
    assert_int_equal(report_of(r, first).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 1), TANDEM_OK);
    assert_int_equal(ended(r, first).state, TANDEM_JOB_DONE);
}

/* How long it takes to cancel a job that is being computed. */
static uint64_t cancel_running_ns(rig *r, const tandem_job *job)
{
    const tandem_ticket ticket = submit(r, job);
    uint64_t begin;

    for (begin = td_now_ns(); report_of(r, ticket).state == TANDEM_JOB_PENDING && td_now_ns() - begin < LONG_NS;)
        sleep_ns(MS);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_RUNNING);
    begin = td_now_ns();
    assert_int_equal(tandem_cancel(r->s, ticket), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, job->signal.timeline), job->signal.value);
    return td_now_ns() - begin;
}

/* Once of several times at least nobody else has the cores meanwhile. */
static void cancel_running(rig *r)
{
    enum { TRIES = 5 };
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem mem;
    tandem_job job = long_job(r, &mem);
    uint64_t least = UINT64_MAX;

    if (r->info.backend != TANDEM_BACKEND_CPU)
        return;
    for (uint64_t i = 1; i <= TRIES && least >= 2000 * MS; i++) {
        job.signal = (tandem_point){ours, i};
        const uint64_t took = cancel_running_ns(r, &job);
        least = took < least ? took : least;
    }
    assert_true(least < 2000 * MS);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void test_cancel(void **state)
{
    (void)state;
    each_kind(cancel_pending);
    each_kind(cancel_elsewhere);
    each_kind(cancel_running);
}

static void deadlines(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_mem big;
    tandem_job job = new_job(mem), slow = long_job(r, &big);
    tandem_job_report report;
    tandem_ticket ticket, behind;
    float *data = calloc(1, MEM_BYTES);
    uint64_t begin;

    fill(data, 1);
    transfer(r, mem, data, MEM_BYTES, true);
    /* In time. */
    job.signal = (tandem_point){ours, 1};
    job.deadline_ns = LONG_NS;
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    transfer(r, mem, data, MEM_BYTES, false);
    check_output(&job, data, 2e-3);

    /* The wait point comes too late. */
    fill(data, 2);
    transfer(r, mem, data, MEM_BYTES, true);
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 2};
    job.deadline_ns = 30 * MS;
    begin = td_now_ns();
    ticket = submit(r, &job);
    job.signal = (tandem_point){ours, 3};
    behind = submit(r, &job);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_STALE);
    assert_true(td_now_ns() - begin >= 30 * MS);
    assert_int_equal(ended(r, behind).state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK); /* without the engine */
    transfer(r, mem, data, MEM_BYTES, false);
    assert_true(data[O_AT] == -77);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_cancel(r->s, ticket), TANDEM_ERROR_BUSY);

    /* It runs too long: what has not begun of it is left out. */
    slow.signal = (tandem_point){ours, 4};
    slow.deadline_ns = r->info.backend == TANDEM_BACKEND_CPU ? 40 * MS : 1;
    begin = td_now_ns();
    ticket = submit(r, &slow);
    report = ended(r, ticket);
    assert_int_equal(report.state, TANDEM_JOB_STALE);
    assert_int_equal(report.status, TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, slow.signal, LONG_NS), TANDEM_OK);
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_stale, 3);
    assert_int_equal(r->info.jobs_done, 1);
    assert_int_equal(r->log.errors, 0);
    free(data);
}

static void test_deadlines(void **state)
{
    (void)state;
    each_kind(deadlines);
}

/* Held jobs, and points as descriptors. */

/* An engine says what it has submitted before, after or never: jobs go on, and in their order. */
static void announced(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    tandem_ticket tickets[3];

    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which only the session signals", ours),
            got = tandem_timeline_submitted(r->s, ours, 1));
    REFUSED(r, ARG, "timeline is 0x0", got = tandem_timeline_submitted(r->s, 0, 1));
    assert_int_equal(tandem_timeline_submitted(NULL, engines, 1), TANDEM_ERROR_ARG);
    for (uint64_t round = 0; round < 12; round += 3) {
        if (round == 3)
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round + 3), TANDEM_OK);
        for (uint64_t i = 0; i < 3; i++) {
            job.wait = (tandem_point){engines, round + 1 + i};
            job.signal = (tandem_point){ours, round + 1 + i};
            tickets[i] = submit(r, &job);
        }
        if (round == 6) {
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round + 2), TANDEM_OK);
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round), TANDEM_OK); /* changes nothing */
        }
        sleep_ns(2 * MS);
        assert_int_equal(value_of(r, ours), round);
        for (uint64_t i = 0; i < 3; i++) {
            assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_PENDING);
            assert_int_equal(tandem_timeline_signal(r->s, engines, round + 1 + i), TANDEM_OK);
            assert_int_equal(ended(r, tickets[i]).state, TANDEM_JOB_DONE);
            assert_int_equal(value_of(r, ours), round + 1 + i);
        }
    }
    /* With the device or held: it can be given up, and its point comes in its turn. */
    assert_int_equal(tandem_timeline_submitted(r->s, engines, 13), TANDEM_OK);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = (tandem_point){engines, 13 + i};
        job.signal = (tandem_point){ours, 13 + i};
        tickets[i] = submit(r, &job);
    }
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_OK);
    sleep_ns(2 * MS);
    assert_true(value_of(r, ours) <= 14);
    assert_int_equal(report_of(r, tickets[2]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 13), TANDEM_OK);
    assert_int_equal(ended(r, tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 14}, LONG_NS), TANDEM_OK);
    assert_int_equal(value_of(r, ours), 14);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 15), TANDEM_OK);
    assert_int_equal(ended(r, tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(r->log.errors, 2); /* the two refusals */
}

/* Several jobs at a time on the same few mems, each on what others read and write, some of them into the gaps of others:
 * all is as if they had come one by one. */

enum { SHARED_MEMS = 3, SHARED_AREAS = 5, SHARED_JOBS = 60, SHARED_FLOATS = SHARED_AREAS * Q_SIZE };

static tandem_job shared_job(const tandem_mem mems[SHARED_MEMS], uint64_t *seed)
{
    uint32_t areas[4];
    tandem_job job = new_job(mems[0]);
    tandem_attention *a = &job.op.attention;
    tandem_view *const views[4] = {&a->o, &a->q, &a->k, &a->v};

    for (uint32_t i = 0; i < 4; i++) {
        bool taken;

        do { /* O takes two areas where it is strided */
            *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
            areas[i] = (uint32_t)(*seed >> 40) % (SHARED_MEMS * SHARED_AREAS);
            taken = i ? areas[i] == areas[0] || areas[i] == areas[0] + 1 : areas[i] % SHARED_AREAS == SHARED_AREAS - 1;
        } while (taken);
        views[i]->mem = mems[areas[i] / SHARED_AREAS];
        views[i]->offset_bytes = (uint64_t)(areas[i] % SHARED_AREAS) * Q_SIZE * sizeof(float);
    }
    a->lse = (tandem_view){0};
    if (*seed >> 33 & 1) { /* every other row of both areas */
        a->o.stride_row *= 2;
        a->o.stride_head *= 2;
        a->o.stride_batch *= 2;
    }
    job.deadline_ns = *seed >> 34 & 3 ? 0 : LONG_NS;
    return job;
}

static void run_shared(rig *r, const tandem_mem mems[SHARED_MEMS], uint64_t seed, uint32_t at_once, float *result)
{
    float *data = malloc(SHARED_FLOATS * sizeof *data);
    uint64_t noises = seed;
    tandem_ticket tickets[SHARED_JOBS];

    for (uint32_t m = 0; m < SHARED_MEMS; m++) {
        for (uint32_t i = 0; i < SHARED_FLOATS; i++)
            data[i] = (float)noise(&noises);
        transfer(r, mems[m], data, SHARED_FLOATS * sizeof *data, true);
    }
    for (uint32_t i = 0; i < SHARED_JOBS; i++) {
        const tandem_job job = shared_job(mems, &seed);

        if (i >= at_once)
            assert_int_equal(ended(r, tickets[i - at_once]).state, TANDEM_JOB_DONE);
        tickets[i] = submit(r, &job);
    }
    for (uint32_t i = SHARED_JOBS - at_once; i < SHARED_JOBS; i++)
        assert_int_equal(ended(r, tickets[i]).state, TANDEM_JOB_DONE);
    for (uint32_t m = 0; m < SHARED_MEMS; m++)
        transfer(r, mems[m], result + m * SHARED_FLOATS, SHARED_FLOATS * sizeof *data, false);
    free(data);
}

static void in_each_others_way(rig *r)
{
    const size_t bytes = SHARED_MEMS * SHARED_FLOATS * sizeof(float);
    float *alone = malloc(bytes), *together = malloc(bytes);
    tandem_mem mems[SHARED_MEMS];

    for (uint32_t m = 0; m < SHARED_MEMS; m++)
        mems[m] = new_mem(r, SHARED_FLOATS * sizeof(float));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_shared(r, mems, seed, 1, alone);
        run_shared(r, mems, seed, 3, together);
        for (uint32_t i = 0; i < SHARED_MEMS * SHARED_FLOATS; i++)
            if (!(alone[i] == together[i]))
                fail_msg("%s, seed %u: float %u of mem %u is %g, not %g", kind_names[r->kind], (unsigned)seed,
                         i % SHARED_FLOATS, i / SHARED_FLOATS, (double)together[i], (double)alone[i]);
    }
    free(alone);
    free(together);
}

static void test_shared_mems(void **state)
{
    rig r;

    (void)state;
    each_kind(in_each_others_way);
    if (!rig_prepare(&r, ON_CUDA)) /* copies without Vulkan */
        return;
    r.desc.rung = TANDEM_RUNG_COPY;
    if (!rig_start(&r))
        return;
    in_each_others_way(&r);
    rig_close(&r);
}

static void test_announced(void **state)
{
    (void)state;
    each_kind(announced);
}

static bool is_readable(int fd, uint64_t within_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, (int)(within_ns / MS)) == 1;
}

static int point_fd(rig *r, tandem_timeline timeline, uint64_t value)
{
    int fd = -7;

    assert_int_equal(tandem_point_fd(r->s, (tandem_point){timeline, value}, &fd), TANDEM_OK);
    assert_true(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    return fd;
}

static void point_fds(rig *r)
{
    enum { MOST = 1024 }; /* main() sees to it that there are so many descriptors */
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 5),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          gone = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    static int fds[MOST];
    int before, fd;

    REFUSED(r, ARG, "fd is NULL", got = tandem_point_fd(r->s, (tandem_point){ours, 1}, NULL));
    REFUSED(r, ARG, "point.timeline is 0x0", got = tandem_point_fd(r->s, (tandem_point){0, 1}, &fd));
    assert_int_equal(fd, -1);
    assert_int_equal(tandem_point_fd(NULL, (tandem_point){ours, 1}, &fd), TANDEM_ERROR_ARG);
    fds[0] = point_fd(r, 0, 0);
    fds[1] = point_fd(r, engines, 5);
    fds[2] = point_fd(r, ours, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(is_readable(fds[i], 0));
        close(fds[i]);
    }
    /* What the engine signals, from the host or on its queue. */
    fds[0] = point_fd(r, engines, 6);
    fds[1] = point_fd(r, engines, 7);
    assert_false(is_readable(fds[0], 3 * MS));
    assert_int_equal(tandem_timeline_signal(r->s, engines, 6), TANDEM_OK);
    assert_true(is_readable(fds[0], LONG_NS));
    assert_false(is_readable(fds[1], 0));
    if (r->has_vk) {
        VkSemaphore semaphore;
        VkCommandBuffer nothing = vku_begin(&r->vk);

        assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &semaphore), TANDEM_OK);
        assert_int_equal(vku_submit(&r->vk, nothing, (vku_point){0}, (vku_point){semaphore, 7}, VK_NULL_HANDLE),
                         VK_SUCCESS);
        assert_true(is_readable(fds[1], LONG_NS));
        assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
        r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &nothing);
    } else {
        assert_int_equal(tandem_timeline_signal(r->s, engines, 7), TANDEM_OK);
        assert_true(is_readable(fds[1], LONG_NS));
    }
    close(fds[0]);
    close(fds[1]);
    assert_true(value_of(r, engines) == 7); /* behind the closing of ours */
    before = vku_open_fds();
    /* A job's, one of them given back by the caller before it comes. */
    for (uint64_t n = 1; n <= 20; n++) {
        job.wait = (tandem_point){engines, 7 + n};
        job.signal = (tandem_point){ours, n};
        submit(r, &job);
        fds[0] = point_fd(r, ours, n);
        fds[1] = point_fd(r, ours, n);
        close(fds[1]);
        assert_false(is_readable(fds[0], 0));
        if (n % 2)
            assert_int_equal(tandem_timeline_submitted(r->s, engines, 7 + n), TANDEM_OK);
        assert_int_equal(tandem_timeline_signal(r->s, engines, 7 + n), TANDEM_OK);
        assert_true(is_readable(fds[0], LONG_NS));
        assert_true(value_of(r, ours) >= n);
        close(fds[0]);
    }
    assert_int_equal(vku_open_fds(), before);
    /* No more than 1024 at a time; the end of a timeline, or of all, is told. */
    for (uint32_t i = 0; i < MOST; i++)
        fds[i] = point_fd(r, i % 2 ? ours : gone, 1000 + i);
    REFUSED(r, NOMEM, "1024 descriptors", got = tandem_point_fd(r->s, (tandem_point){ours, 1000}, &fd));
    close(point_fd(r, ours, 20)); /* reached: it need not wait */
    assert_int_equal(tandem_timeline_destroy(r->s, gone), TANDEM_OK);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(is_readable(fds[i], 0), i % 2 == 0);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    for (uint32_t i = 0; i < MOST; i++) {
        assert_true(is_readable(fds[i], 0));
        close(fds[i]);
    }
}

static void test_point_fds(void **state)
{
    (void)state;
    each_kind(point_fds);
}

/* Jobs with deadlines around the time that they take: what is STALE has not been written, and will not be; what is DONE
 * is whole. */
static void never_late(rig *r)
{
    const bool seen_by_host = r->info.backend == TANDEM_BACKEND_CPU || r->kind == ON_CUDA;
    const uint32_t rounds = !seen_by_host ? 40 : getenv("TANDEM_SANITIZED") ? 400 : 2000;
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    float *data = calloc(1, MEM_BYTES), *whole = calloc(1, MEM_BYTES), *poison = calloc(1, MEM_BYTES);
    uint64_t seed = 11, took = 0, begin;
    uint32_t done = 0, stale = 0;
    tandem_job_report report;

    fill(poison, 5);
    transfer(r, mem, poison, MEM_BYTES, true);
    for (uint32_t i = 0; i < 5; i++) {
        transfer(r, mem, poison, MEM_BYTES, true); /* behind it a GPU changes over, as in the rounds below */
        begin = td_now_ns();
        job.deadline_ns = LONG_NS;
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        took = !i || td_now_ns() - begin < took ? td_now_ns() - begin : took;
    }
    transfer(r, mem, whole, MEM_BYTES, false);
    check_output(&job, whole, 2e-3);
    for (uint32_t i = 0; i < rounds; i++) {
        const bool all_stale = i % 16 == 0;

        noise(&seed);
        transfer(r, mem, poison, MEM_BYTES, true);
        job.deadline_ns = all_stale ? 1 : 1 + (seed >> 33) % (2 * took);
        job.signal = (tandem_point){ours, 1 + i};
        report = ended(r, submit(r, &job));
        assert_true(report.state == TANDEM_JOB_DONE || report.state == TANDEM_JOB_STALE);
        assert_int_equal(report.status, TANDEM_OK);
        if (report.state == TANDEM_JOB_DONE && seen_by_host) {
            transfer(r, mem, data, MEM_BYTES, false);
            assert_memory_equal(data, whole, FLOATS * sizeof(float));
        }
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        transfer(r, mem, data, MEM_BYTES, false);
        assert_memory_equal(data, report.state == TANDEM_JOB_DONE ? whole : poison, FLOATS * sizeof(float));
        done += report.state == TANDEM_JOB_DONE;
        stale += report.state == TANDEM_JOB_STALE;
    }
    assert_true(done && stale);
    free(data);
    free(whole);
    free(poison);
}

/* A long job is STALE at its deadline, not at its end. */
static void stale_in_time(rig *r)
{
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem big;
    tandem_job job = long_job(r, &big);
    uint64_t best = UINT64_MAX, whole = td_now_ns();

    job.signal = (tandem_point){ours, 1};
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    whole = td_now_ns() - whole;
    for (uint64_t i = 2; i <= 6; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        uint64_t begin = td_now_ns(), late;
        tandem_ticket ticket;

        job.deadline_ns = r->info.backend == TANDEM_BACKEND_CPU ? 5 * MS : MS / 10; /* a GPU takes some 400 us */
        job.signal = (tandem_point){ours, i};
        ticket = submit(r, &job);
        assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
        late = td_now_ns() - begin - job.deadline_ns;
        best = late < best ? late : best;
        assert_int_equal(report.state, TANDEM_JOB_STALE);
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    }
    /* A CPU's blocks look between tiles, of which the job has tens of thousands: a hundredth of it is hundreds of them, and
     * busy cores make both longer. A GPU's job is hardly longer than a wake-up. */
    if (r->info.backend == TANDEM_BACKEND_CPU ? best > whole / 100 : job.deadline_ns + best >= whole)
        fail_msg("%s: STALE comes %g ms after the deadline at best, of a job of %g ms", kind_names[r->kind],
                 (double)best / 1e6, (double)whole / 1e6);
}

static void test_never_late(void **state)
{
    (void)state;
    each_kind(never_late);
    each_kind(stale_in_time);
}

/* The engine never signals. */
static void test_lost_wait(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        tandem_timeline engines, ours;
        tandem_ticket tickets[3];
        tandem_job_report report;
        tandem_job job;
        uint64_t begin;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        r.desc.wait_bound_ns = 60 * MS;
        if (!rig_start(&r))
            continue;
        engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
        ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
        job = new_job(new_mem(&r, MEM_BYTES));
        begin = td_now_ns();
        for (uint64_t i = 0; i < 2; i++) {
            job.wait = (tandem_point){engines, i + 1};
            job.signal = (tandem_point){ours, i + 1};
            tickets[i] = submit(&r, &job);
        }
        job.wait = (tandem_point){0, 0};
        job.signal = (tandem_point){ours, 3};
        tickets[2] = submit(&r, &job);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
        assert_true(td_now_ns() - begin >= 60 * MS);
        for (uint32_t i = 0; i < 2; i++) {
            report = ended(&r, tickets[i]);
            assert_int_equal(report.state, TANDEM_JOB_FAILED);
            assert_int_equal(report.status, TANDEM_ERROR_LOST);
        }
        assert_int_equal(ended(&r, tickets[2]).state, TANDEM_JOB_DONE); /* the session goes on */
        assert_int_equal(errors_of(&r), 2);
        assert_non_null(strstr(r.log.last, say("{0x%" PRIx64 ", 2} did not come within 60 ms", engines)));
        rig_close(&r);
    }
}

/* An engine that signals for a frame once the frame before is there has its time from then, however long that took. */
static void test_wait_behind_a_long_job(void **state)
{
    enum { BOUND = 200 }; /* less than the job takes on one core */

    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        tandem_timeline engines, ours;
        tandem_ticket first, second;
        tandem_job job;
        tandem_mem mem;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        r.desc.wait_bound_ns = BOUND * MS;
        r.desc.cpu_threads = 1;
        if (!rig_start(&r))
            continue;
        engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
        ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
        job = long_job(&r, &mem);
        job.op.attention.heads = job.op.attention.kv_heads = 1;
        job.signal = (tandem_point){ours, 1};
        first = submit(&r, &job);
        job = new_job(new_mem(&r, MEM_BYTES));
        job.wait = (tandem_point){engines, 1};
        job.signal = (tandem_point){ours, 2};
        second = submit(&r, &job);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){ours, 1}, LONG_NS), TANDEM_OK);
        sleep_ns(BOUND * MS / 20);
        assert_int_equal(tandem_timeline_signal(r.s, engines, 1), TANDEM_OK);
        assert_int_equal(ended(&r, first).state, TANDEM_JOB_DONE);
        assert_int_equal(ended(&r, second).state, TANDEM_JOB_DONE);
        rig_close(&r);
    }
}

static void test_busy(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++)
        for (uint32_t in_flight = 0; in_flight <= 4; in_flight += 4) {
            const uint32_t most = in_flight ? in_flight : 3;
            tandem_timeline engines;
            tandem_ticket tickets[4];
            tandem_job job;
            rig r;

            if (!rig_prepare(&r, kind))
                continue;
            r.desc.frames_in_flight = in_flight;
            if (!rig_start(&r))
                continue;
            engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
            job = new_job(new_mem(&r, MEM_BYTES));
            job.wait = (tandem_point){engines, 1};
            for (uint32_t i = 0; i < most; i++)
                tickets[i] = submit(&r, &job);
            for (uint32_t i = 0; i < 3; i++) {
                tandem_ticket ticket;

                REFUSED(&r, BUSY, say("%u jobs are under way", most), got = tandem_submit(r.s, &job, &ticket));
            }
            REFUSED(&r, BUSY, say("ticket is 0x%" PRIx64, tickets[0]), got = tandem_wait(r.s, tickets[0], MS, NULL));
            assert_int_equal(tandem_cancel(r.s, tickets[most - 1]), TANDEM_OK);
            tickets[most - 1] = submit(&r, &job); /* there is room again */
            assert_int_equal(tandem_timeline_signal(r.s, engines, 1), TANDEM_OK);
            for (uint32_t i = 0; i < most; i++)
                assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
            submit(&r, &job);
            rig_close(&r);
        }
}

/* 300 jobs: old reports go, the last 256 stay; a job without points is right. */
static void reports(rig *r)
{
    enum { JOBS = 300 };
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    tandem_ticket tickets[JOBS];
    tandem_job_report report = {.struct_bytes = sizeof report};

    job.op.attention.q_len = job.op.attention.kv_len = 4;
    for (uint32_t i = 0; i < JOBS; i++) {
        tickets[i] = submit(r, &job);
        assert_int_equal(tandem_wait(r->s, tickets[i], LONG_NS, i % 2 ? &report : NULL), TANDEM_OK);
    }
    for (uint32_t i = 0; i < JOBS; i++)
        if (i < JOBS - 256)
            REFUSED(r, ARG, say("ticket is 0x%" PRIx64 ", older", tickets[i]),
                    got = tandem_poll(r->s, tickets[i], &report));
        else
            assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_DONE);
}

static void test_reports(void **state)
{
    (void)state;
    each_kind(reports);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_deadlines),
    cmocka_unit_test(test_announced),
    cmocka_unit_test(test_shared_mems),
    cmocka_unit_test(test_point_fds),
    cmocka_unit_test(test_never_late),
    cmocka_unit_test(test_lost_wait),
    cmocka_unit_test(test_wait_behind_a_long_job),
    cmocka_unit_test(test_busy),
    cmocka_unit_test(test_reports),
};
const test_cases session_jobs_cases = TEST_CASES(cases);
