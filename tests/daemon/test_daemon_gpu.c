/* Engines that share a GPU with tandemd: their own Vulkan devices and processes, the same bits as in process, and what
 * becomes of them when one of them, the worker, or the daemon dies.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Run with --engine it is such an engine, which draws frames and says in one line how they went.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS ((uint64_t)1000000)
#define PATIENCE LIMITS_PATIENCE_NS
enum { SLOTS = 3, SEEDS = 4, SKIP = 77 };

/* --- An engine --- */

typedef struct slot {
    tandem_mem mem;
    VkCommandBuffer up, down;
    vku_buffer from, to;
    tandem_job job;
    tandem_ticket ticket;
    uint64_t begun_ns, drawn; /* drawn: what the last submit signals; 0: free */
    uint32_t seed;
    bool taken;
} slot;

typedef struct engine {
    const char *socket;
    uint32_t ms, after, hang_at, wait_bound_ms, heads, rows, dim, job_class, rung; /* after: so many good frames behind
                                                                                   * what went wrong it ends */
    uint32_t late_ms; /* its jobs' deadline; 0: none */
    bool stays; /* where it hangs */
    vku vk;
    tandem_vulkan vulkan;
    tandem_session *s;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, ours_semaphore;
    uint64_t drawn, promised, in_bytes, bytes;
    void *want[SEEDS];
    slot slots[SLOTS];
    uint32_t good, bad, lost, refused, drawn_good_last;
    uint64_t most_ns, sum_ns;
} engine;

static void stop(const engine *e, const char *what)
{
    char text[500] = "";

    if (e->s)
        tandem_error_text(e->s, text, sizeof text);
    printf("engine: %s: %s\n", what, text);
    exit(1);
}

static void fill(void *to, uint64_t bytes, uint32_t seed)
{
    uint16_t *half = to;
    uint64_t dice = seed * 0x9e3779b97f4a7c15 + 1;

    for (uint64_t i = 0; i < bytes / 2; i++) {
        dice = dice * 6364136223846793005 + 1442695040888963407;
        half[i] = (uint16_t)(0x3000 + (dice >> 50 & 0xbff)) ^ (uint16_t)(dice >> 63 << 15); /* about 0.1 to 2 */
    }
}

static tandem_job job_of(const engine *e, tandem_mem mem)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;
    tandem_view *views[4] = {&a->q, &a->k, &a->v, &a->o};
    const uint64_t bytes = (uint64_t)e->heads * e->rows * e->dim * 2;

    for (uint64_t i = 0; i < 4; i++)
        *views[i] = (tandem_view){.mem = mem,
                                  .offset_bytes = i * bytes,
                                  .dtype = TANDEM_DTYPE_F16,
                                  .stride_batch = (int64_t)e->heads * e->rows * e->dim,
                                  .stride_head = (int64_t)e->rows * e->dim,
                                  .stride_row = e->dim};
    a->batch = 1;
    a->heads = a->kv_heads = e->heads;
    a->q_len = a->kv_len = e->rows;
    a->head_dim = e->dim;
    return job;
}

static void open_session(engine *e, const char *socket)
{
    char text[500] = "";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CUDA,
                                      .vulkan = &e->vulkan,
                                      .timing = 1,
                                      .rung = TANDEM_RUNG_TIMELINE,
                                      .frames_in_flight = SLOTS,
                                      .wait_bound_ns = e->wait_bound_ms * MS,
                                      .error_text = text,
                                      .error_text_bytes = sizeof text,
                                      .job_class = socket ? e->job_class : 0,
                                      .socket = socket};
    const tandem_timeline_desc engines = {.struct_bytes = sizeof engines},
                               ours = {.struct_bytes = sizeof ours, .signaller = TANDEM_SIGNALLER_SESSION};
    tandem_status status = tandem_session_create(&desc, &e->s);

    if (status != TANDEM_OK) {
        printf("engine: no session: %s\n", text);
        exit(status == TANDEM_ERROR_UNSUPPORTED ? SKIP : 1);
    }
    if (tandem_timeline_create(e->s, &engines, &e->engines) != TANDEM_OK ||
        tandem_timeline_create(e->s, &ours, &e->ours) != TANDEM_OK ||
        tandem_timeline_get_vulkan(e->s, e->engines, &e->engines_semaphore) != TANDEM_OK ||
        tandem_timeline_get_vulkan(e->s, e->ours, &e->ours_semaphore) != TANDEM_OK)
        stop(e, "timelines");
    e->drawn = e->promised = 0;
}

static void make_slot(engine *e, slot *f)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferCopy in = {.size = e->in_bytes}, whole = {.size = e->bytes};
    tandem_mem_vulkan buffer = {.struct_bytes = sizeof buffer};

    *f = (slot){0};
    if (tandem_mem_create(e->s, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = e->bytes}, &f->mem) !=
            TANDEM_OK ||
        tandem_mem_get_vulkan(e->s, f->mem, &buffer) != TANDEM_OK)
        stop(e, "mem");
    if (vku_buffer_create(&e->vk, e->in_bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &f->from) != VK_SUCCESS ||
        vku_buffer_create(&e->vk, e->bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &f->to) != VK_SUCCESS)
        stop(e, "buffers");
    f->up = vku_begin(&e->vk);
    e->vk.CmdCopyBuffer(f->up, f->from.buffer, buffer.buffer, 1, &in);
    tandem_record_release(e->s, f->up, f->mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT);
    e->vk.EndCommandBuffer(f->up);
    f->down = vku_begin(&e->vk);
    tandem_record_acquire(e->s, f->down, f->mem, stage, VK_ACCESS_TRANSFER_READ_BIT);
    e->vk.CmdCopyBuffer(f->down, buffer.buffer, f->to.buffer, 1, &whole);
    vku_full_barrier(&e->vk, f->down);
    e->vk.EndCommandBuffer(f->down);
    f->job = job_of(e, f->mem);
}

static void submit(engine *e, VkCommandBuffer commands, vku_point wait, vku_point signal)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = 1,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &values,
                               .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                               .pWaitSemaphores = &wait.semaphore,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &commands,
                               .signalSemaphoreCount = 1,
                               .pSignalSemaphores = &signal.semaphore};

    if (e->vk.QueueSubmit(e->vk.queue, 1, &info, VK_NULL_HANDLE) != VK_SUCCESS)
        stop(e, "vkQueueSubmit");
}

/* A frame: the job is sent before the submit that it waits for. */
static void draw(engine *e, slot *f, uint32_t seed)
{
    const uint64_t up = e->drawn + 1, down = e->drawn + 2;

    f->seed = seed % SEEDS;
    f->begun_ns = td_now_ns();
    fill(f->from.host, e->in_bytes, f->seed);
    f->job.wait = (tandem_point){e->engines, up};
    f->job.signal = (tandem_point){e->ours, e->promised + 1};
    f->job.deadline_ns = e->late_ms * MS;
    f->taken = tandem_submit(e->s, &f->job, &f->ticket) == TANDEM_OK;
    e->refused += !f->taken;
    submit(e, f->up, (vku_point){0}, (vku_point){e->engines_semaphore, up});
    tandem_timeline_submitted(e->s, e->engines, up);
    e->promised += f->taken;
    submit(e, f->down, f->taken ? (vku_point){e->ours_semaphore, e->promised} : (vku_point){0},
           (vku_point){e->engines_semaphore, down});
    e->drawn = f->drawn = down;
}

static void look(engine *e, slot *f)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    const uint64_t out = e->bytes - e->in_bytes;
    uint64_t took;

    if (!f->drawn)
        return;
    if (tandem_point_wait(e->s, (tandem_point){e->engines, f->drawn}, PATIENCE) != TANDEM_OK)
        stop(e, "a frame does not end");
    took = td_now_ns() - f->begun_ns;
    f->drawn = 0;
    if (!f->taken)
        return;
    if (tandem_wait(e->s, f->ticket, PATIENCE, &report) != TANDEM_OK)
        stop(e, "a job does not end");
    if (report.state == TANDEM_JOB_FAILED && report.status != TANDEM_ERROR_LOST)
        stop(e, "a job fails, and not because its worker does");
    if (report.state != TANDEM_JOB_DONE) {
        e->lost++;
        return;
    }
    e->most_ns = took > e->most_ns ? took : e->most_ns;
    e->sum_ns += took;
    if (memcmp((char *)f->to.host + e->in_bytes, (char *)e->want[f->seed] + e->in_bytes, out))
        e->bad++;
    else
        e->good++;
}

/* What this process computes by itself. */
static void compute_wanted(engine *e)
{
    slot f;

    open_session(e, NULL);
    make_slot(e, &f);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        e->want[seed] = malloc(e->bytes);
        draw(e, &f, seed);
        if (tandem_point_wait(e->s, (tandem_point){e->engines, e->drawn}, PATIENCE) != TANDEM_OK)
            stop(e, "in process");
        memcpy(e->want[seed], f.to.host, e->bytes);
    }
    e->vk.DeviceWaitIdle(e->vk.device);
    vku_buffer_destroy(&e->vk, &f.from);
    vku_buffer_destroy(&e->vk, &f.to);
    tandem_session_destroy(&e->s);
    e->refused = 0;
}

/* Announces what never comes. */
static void hang(engine *e)
{
    slot *f = &e->slots[0];
    tandem_job_report report = {.struct_bytes = sizeof report};
    uint64_t begin = td_now_ns();
    tandem_status signalled;

    for (int i = 0; i < SLOTS; i++)
        look(e, &e->slots[i]);
    f->job.wait = (tandem_point){e->engines, e->drawn + 1};
    f->job.signal = (tandem_point){e->ours, e->promised + 1};
    if (tandem_submit(e->s, &f->job, &f->ticket) != TANDEM_OK)
        stop(e, "submit");
    tandem_timeline_submitted(e->s, e->engines, e->drawn + 1);
    printf("hangs\n");
    fflush(stdout);
    if (e->stays)
        for (;;)
            pause();
    if (tandem_wait(e->s, f->ticket, PATIENCE, &report) != TANDEM_OK)
        stop(e, "a job that hangs does not end");
    signalled = tandem_point_wait(e->s, (tandem_point){e->ours, e->promised + 1}, 1000 * MS);
    printf("hung: state %u, status %d, signalled %d, after %" PRIu64 " ms\n", report.state, report.status, signalled,
           (td_now_ns() - begin) / MS);
    fflush(stdout);
    _exit(report.state == TANDEM_JOB_FAILED && report.status == TANDEM_ERROR_LOST && signalled == TANDEM_OK ? 0 : 1);
}

static int be_engine(int argc, char **argv)
{
    static engine e = {.heads = 2, .rows = 1024, .dim = 64, .ms = 500};
    uint32_t n = 0, end_good = 0, troubles = 0;
    uint64_t begin;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    e.socket = argv[2];
    for (int i = 3; i + 1 < argc; i += 2) {
        const uint32_t value = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        const struct {
            const char *name;
            uint32_t *to;
        } options[] = {{"ms", &e.ms},       {"hang", &e.hang_at}, {"bound", &e.wait_bound_ms},
                       {"heads", &e.heads}, {"rows", &e.rows},    {"dim", &e.dim},
                       {"class", &e.job_class}, {"after", &e.after}, {"late", &e.late_ms}};

        e.stays = e.stays || !strcmp(argv[i], "stays");
        for (size_t o = 0; o < sizeof options / sizeof *options; o++)
            if (!strcmp(argv[i], options[o].name))
                *options[o].to = value;
    }
    if (vku_open(&e.vk, NULL) != VKU_OK)
        return SKIP;
    e.vulkan = vku_engine(&e.vk);
    e.in_bytes = (uint64_t)e.heads * e.rows * e.dim * 6;
    e.bytes = e.in_bytes / 3 * 4;
    compute_wanted(&e);
    open_session(&e, e.socket);
    for (int i = 0; i < SLOTS; i++)
        make_slot(&e, &e.slots[i]);
    printf("begins\n");
    fflush(stdout);
    begin = td_now_ns();
    while (td_now_ns() - begin < e.ms * MS && !(e.after && troubles && e.good - end_good >= e.after)) {
        look(&e, &e.slots[n % SLOTS]);
        if (e.hang_at && n == e.hang_at)
            hang(&e);
        draw(&e, &e.slots[n % SLOTS], n);
        if (!e.slots[n % SLOTS].taken)
            usleep(2000);
        if (e.lost + e.refused != troubles)
            end_good = e.good;
        troubles = e.lost + e.refused;
        n++;
    }
    for (int i = 0; i < SLOTS; i++)
        look(&e, &e.slots[i]);
    e.vk.DeviceWaitIdle(e.vk.device);
    begin = td_now_ns();
    if (tandem_session_destroy(&e.s) != TANDEM_OK)
        return 1;
    printf("frames %u good %u bad %u lost %u refused %u behind %u most_us %" PRIu64 " mean_us %" PRIu64 " end_ms %" PRIu64
           "\n",
           n, e.good, e.bad, e.lost, e.refused, e.good - end_good, e.most_ns / 1000, e.good ? e.sum_ns / 1000 / e.good : 0,
           (td_now_ns() - begin) / MS);
    return e.bad != 0;
}

/* --- The tests --- */

static char folder[64], socket_path[96], config_path[96], log_path[96], fault_path[96], program[4096], faulty[4096],
    self[4096];
static const char *to_start; /* program or faulty: tests/daemon/tandemd_faulty.c */
static pid_t daemon_pid;

static void sleep_ms(unsigned ms) { usleep(ms * 1000); }

static int count_logged(const char *text)
{
    static char all[1 << 18];
    const int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? 0 : read(fd, all, sizeof all - 1);
    int count = 0;

    all[got > 0 ? got : 0] = 0;
    if (fd >= 0)
        close(fd);
    for (const char *at = all; (at = strstr(at, text)); at++)
        count++;
    return count;
}

static void await_logged(const char *text, int times)
{
    const uint64_t begin = td_now_ns();

    while (count_logged(text) < times) {
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("the daemon has not said '%s' %d times", text, times);
        sleep_ms(5);
    }
}

static void start_daemon(const char *config)
{
    char text[400];

    snprintf(text, sizeof text, "backend = cuda\nlog = debug\n%s", config);
    daemon_pid = begin_daemon(to_start, socket_path, config_path, text, log_path);
}

static void end_daemon(int with)
{
    end_daemon_by(&daemon_pid, with);
}

typedef struct run {
    pid_t pid;
    int out;
    char text[4096];
    size_t bytes;
    uint32_t frames, good, bad, lost, refused, behind;
    uint64_t most_us, mean_us, end_ms;
} run;

static void start_engine(run *e, const char *options)
{
    char copy[256], *argv[40] = {self, (char *)"--engine", socket_path};
    int ends[2], count = 3;

    snprintf(copy, sizeof copy, "%s", options);
    for (char *at = strtok(copy, " "); at && count < 38; at = strtok(NULL, " "))
        argv[count++] = at;
    *e = (run){0};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    e->pid = fork();
    if (!e->pid) {
        dup2(ends[1], STDOUT_FILENO);
        execv(self, argv);
        _exit(127);
    }
    close(ends[1]);
    e->out = ends[0];
}

/* False: it has ended. */
static bool read_more(run *e, int ms)
{
    struct pollfd p = {e->out, POLLIN, 0};
    ssize_t got;

    if (poll(&p, 1, ms) <= 0)
        return true;
    got = read(e->out, e->text + e->bytes, sizeof e->text - 1 - e->bytes);
    if (got > 0)
        e->bytes += (size_t)got;
    return got > 0;
}

static void await_said(run *e, const char *text)
{
    const uint64_t begin = td_now_ns();

    while (!strstr(e->text, text))
        if (!read_more(e, 100) || td_now_ns() - begin > PATIENCE)
            fail_msg("an engine does not say '%s' but: %s", text, e->text);
}

static int end_engine(run *e)
{
    const uint64_t begin = td_now_ns();
    const char *at;
    int status;

    while (read_more(e, 100))
        if (td_now_ns() - begin > PATIENCE)
            kill(e->pid, SIGKILL);
    close(e->out);
    assert_int_equal(waitpid(e->pid, &status, 0), e->pid);
    at = strstr(e->text, "frames ");
    if (at)
        sscanf(at,
               "frames %u good %u bad %u lost %u refused %u behind %u most_us %" SCNu64 " mean_us %" SCNu64
               " end_ms %" SCNu64,
               &e->frames, &e->good, &e->bad, &e->lost, &e->refused, &e->behind, &e->most_us, &e->mean_us, &e->end_ms);
    print_message("           %s", at ? at : e->text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int set_up(void **state)
{
    (void)state;
    to_start = program;
    start_daemon("");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (daemon_pid)
        end_daemon(SIGTERM);
    return 0;
}

static void two_engines_share_a_gpu(void **state)
{
    run a, b;

    (void)state;
    start_engine(&a, "ms 600");
    start_engine(&b, "ms 600 rows 640 heads 3 dim 128");
    assert_int_equal(end_engine(&a), 0);
    assert_int_equal(end_engine(&b), 0);
    assert_true(a.good > 50 && a.good == a.frames && b.good > 50 && b.good == b.frames);
}

/* Descriptors of the daemon's are as many as before within a second. */
static void await_fds(int broker, int worker)
{
    const uint64_t begin = td_now_ns();

    while (count_fds_of(daemon_pid) > broker || count_fds_of(logged_worker(log_path)) > worker) {
        if (td_now_ns() - begin > 1000 * MS)
            fail_msg("after 1 s the broker has %d descriptors and not %d, the worker %d and not %d", count_fds_of(daemon_pid),
                     broker, count_fds_of(logged_worker(log_path)), worker);
        sleep_ms(5);
    }
}

static void a_killed_engine_harms_nobody(void **state)
{
    run a, b;
    int broker, worker;

    (void)state;
    start_engine(&a, "ms 100");
    assert_int_equal(end_engine(&a), 0); /* what the driver opens but once is open now */
    start_engine(&a, "ms 6000");
    await_said(&a, "begins");
    sleep_ms(200);
    broker = count_fds_of(daemon_pid);
    worker = count_fds_of(logged_worker(log_path));
    for (int i = 0; i < 3; i++) {
        start_engine(&b, i == 2 ? "ms 60000 rows 8192 heads 16" : "hang 20 stays 1 ms 60000");
        await_said(&b, i == 2 ? "begins" : "hangs");
        sleep_ms(100);
        kill(b.pid, SIGKILL);
        assert_int_equal(end_engine(&b), -1);
        await_fds(broker, worker);
    }
    assert_int_equal(end_engine(&a), 0);
    assert_true(a.good == a.frames && a.good > 100);
    assert_int_equal(count_logged("is ended:"), 0); /* the worker lives */
}

static void an_engine_that_never_signals_is_released(void **state)
{
    run a, b;

    (void)state;
    start_engine(&a, "ms 3000");
    await_said(&a, "begins");
    for (int i = 0; i < 2; i++) {
        start_engine(&b, "hang 5 bound 300 ms 60000");
        assert_int_equal(end_engine(&b), 0);
    }
    assert_int_equal(end_engine(&a), 0);
    assert_true(a.good == a.frames && a.good > 100);
}

static void a_killed_worker_is_replaced(void **state)
{
    run a, b;

    (void)state;
    start_engine(&a, "ms 2500");
    start_engine(&b, "ms 2500 dim 128");
    await_said(&a, "begins");
    await_said(&b, "begins");
    sleep_ms(300);
    assert_int_equal(kill(logged_worker(log_path), SIGKILL), 0);
    await_logged("computes on", 2);
    assert_int_equal(end_engine(&a), 0);
    assert_int_equal(end_engine(&b), 0);
    assert_true(a.lost && a.behind > 50 && b.lost && b.behind > 50);
}

static void a_worker_that_hangs_is_replaced(void **state)
{
    run a;

    (void)state;
    end_daemon(SIGTERM);
    start_daemon("job_ms = 700\n");
    start_engine(&a, "ms 3500");
    await_said(&a, "begins");
    sleep_ms(200);
    assert_int_equal(kill(logged_worker(log_path), SIGSTOP), 0);
    await_logged("computes on", 2);
    assert_int_equal(end_engine(&a), 0);
    assert_true(a.lost && a.behind > 50);
}

static void a_daemon_may_die(void **state)
{
    run a, b;

    (void)state;
    start_engine(&a, "ms 4000");
    start_engine(&b, "ms 4000 dim 128");
    await_said(&a, "begins");
    await_said(&b, "begins");
    for (int i = 0; i < 2; i++) {
        sleep_ms(300);
        end_daemon(i ? SIGTERM : SIGKILL);
        sleep_ms(100);
        start_daemon("");
    }
    assert_int_equal(end_engine(&a), 0);
    assert_int_equal(end_engine(&b), 0);
    assert_true(a.refused && a.behind > 50 && b.refused && b.behind > 50);
}

/* Both are back by themselves, with right frames, and nothing is left of it. */
static void kernels_fail(const char *how)
{
    run a, b;
    int fds;

    end_daemon(SIGTERM);
    to_start = faulty;
    start_daemon("job_ms = 700\n");
    fds = count_fds_of(daemon_pid);
    start_engine(&a, "ms 25000 after 60");
    start_engine(&b, "ms 25000 after 60 dim 128");
    await_said(&a, "begins");
    await_said(&b, "begins");
    sleep_ms(200);
    arm_fault(fault_path, log_path, how);
    await_logged("is gone:", 1);
    await_logged("computes on", 2);
    assert_int_equal(end_engine(&a), 0);
    assert_int_equal(end_engine(&b), 0);
    unlink(fault_path);
    assert_true(a.lost + b.lost > 0 && a.behind > 50 && b.behind > 50);
    await_fds(fds, 1 << 20);
}

static void a_kernel_that_never_ends_is_survived(void **state)
{
    (void)state;
    kernels_fail("hang");
    assert_true(count_logged("does not end within 700 ms") > 0);
}

static void a_kernel_with_a_wild_pointer_is_survived(void **state)
{
    (void)state;
    kernels_fail("fault");
    assert_int_equal(count_logged("does not end within"), 0);
}

/* A large job is cut: the same bits, and frames go in between. */
static void go_before(const char *behind)
{
    run frames, background, alone;

    start_engine(&alone, "ms 800");
    assert_int_equal(end_engine(&alone), 0);
    start_engine(&background, behind);
    await_said(&background, "begins");
    start_engine(&frames, "ms 800");
    assert_int_equal(end_engine(&frames), 0);
    assert_int_equal(end_engine(&background), 0);
    assert_true(frames.good == frames.frames && background.good == background.frames && background.good > 5);
    print_message("           frames' mean: alone %" PRIu64 " us, with a background %" PRIu64 " us; of that a job %" PRIu64
                  " us\n",
                  alone.mean_us, frames.mean_us, background.mean_us);
}

static void frames_go_before_the_background(void **state)
{
    (void)state;
    go_before("ms 2500 class 1 rows 16384 heads 16 dim 128");
}

/* Its pieces write a temporary output. */
static void frames_go_before_what_has_a_deadline(void **state)
{
    (void)state;
    go_before("ms 2500 class 1 rows 16384 heads 16 dim 128 late 60000");
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        TEST(two_engines_share_a_gpu),
        TEST(a_killed_engine_harms_nobody),
        TEST(an_engine_that_never_signals_is_released),
        TEST(a_killed_worker_is_replaced),
        TEST(a_worker_that_hangs_is_replaced),
        TEST(a_daemon_may_die),
        TEST(a_kernel_that_never_ends_is_survived),
        TEST(a_kernel_with_a_wild_pointer_is_survived),
        TEST(frames_go_before_the_background),
        TEST(frames_go_before_what_has_a_deadline),
#undef TEST
    };
    const char *build = getenv("TANDEM_BUILD");
    ssize_t length;
    int result;
    run probe;

    if (argc > 2 && !strcmp(argv[1], "--engine"))
        return be_engine(argc, argv);
    length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return 1;
    snprintf(program, sizeof program, "%s/tandemd", build ? build : ".");
    snprintf(faulty, sizeof faulty, "%s/tandemd_faulty", build ? build : ".");
    snprintf(folder, sizeof folder, "/tmp/tandem-gpu-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(socket_path, sizeof socket_path, "%s/tandem-0", folder);
    snprintf(config_path, sizeof config_path, "%s/conf", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(fault_path, sizeof fault_path, "%s/fault", folder);
    setenv("TANDEM_TEST_FAULT", fault_path, 1);
    /* In process the same must work, else there is no such GPU here. */
    snprintf(socket_path, sizeof socket_path, "%s/none", folder);
    start_engine(&probe, "ms 1");
    while (read_more(&probe, 1000))
        ;
    close(probe.out);
    waitpid(probe.pid, &result, 0);
    if (WIFEXITED(result) && WEXITSTATUS(result) == SKIP) {
        printf("no GPU that Vulkan and CUDA share: %s", probe.text);
        rmdir(folder);
        return SKIP;
    }
    snprintf(socket_path, sizeof socket_path, "%s/tandem-0", folder);
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    result = cmocka_run_group_tests_name("daemon on a GPU", tests, NULL, NULL);
    if (result)
        printf("the last daemon's log is %s\n", log_path);
    else
        unlink(log_path);
    unlink(config_path);
    return result;
}
