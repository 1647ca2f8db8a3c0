/* tandemd among clients that are killed, and killed itself: no point is lost, nothing is left over.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     soak [--kills N] [--frames N] [--clients N] [--vulkan] [--backend auto|cuda|cpu] [--seed N] [--log F] [--tandemd
 * PATH] soak --socket PATH [--clients N] [--vulkan]
 *
 * kills    real processes, frames under way, and N times SIGKILL at a random moment: to a client, to the worker, to the
 *          daemon itself (its socket is there again at once). Each point comes in time, and what is said to be done is.
 * frames   N frames of clients of which one after the other is killed: nobody else notices, and when all have gone the
 *          daemon has as many descriptors, as much memory and as much of the GPU's as it had before.
 * Each client's numbers are its own, and its bits those that it would have computed itself (on a GPU: that it got the
 * first time), so somebody else's are seen. With --vulkan its frames are an engine's, of commands that wait and signal.
 * With --socket nobody is killed: clients of a daemon that runs already, until this is ended. Exit status: 0; 1: a
 * promise was broken; 77: no Vulkan, or not the backend.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/wire/conn.h"
#include "kernels/operation.h"
#include "tandem/vulkan.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS 1000000ull
#define PATIENCE LIMITS_PATIENCE_NS
enum { MOST_CLIENTS = 16, FLIGHT = 3, ROWS = 64, KEYS = 96, DIM = 64, HEADS = 2 };

/* What conductor and clients share. A client writes its own line, and its next life goes on with it. */
typedef struct line {
    _Atomic uint64_t done, lost, refused, longest_ns;
    _Atomic uint32_t hash; /* of the right output; 0: not known yet */
} line;
typedef struct board {
    _Atomic bool stop;
    _Atomic bool strict; /* nothing but clients dies: each frame is done */
    _Atomic int64_t frames_left;
    line lines[MOST_CLIENTS];
} board;

static struct options {
    unsigned kills, clients;
    int64_t frames;
    uint64_t seed;
    bool vulkan;
    const char *backend, *tandemd, *log, *socket;
} options = {.clients = 4, .backend = "cpu"};
static board *the_board;
static char folder[64], socket_path[96], config_path[96];
static pid_t daemon_pid, clients[MOST_CLIENTS];

/* Ends the process, and with it everybody. */
static void __attribute__((format(printf, 1, 2), noreturn)) broken(const char *format, ...)
{
    va_list list;

    fprintf(stderr, "soak (process %d): ", (int)getpid());
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    exit(1);
}

static uint64_t dice(uint64_t below)
{
    options.seed = options.seed * 6364136223846793005ull + 1442695040888963407ull;
    return (options.seed >> 33) % below;
}

static void sleep_us(uint64_t us)
{
    usleep((useconds_t)us);
}

/* A client. */

typedef struct frame {
    tandem_mem mem;
    tandem_job job;
    tandem_ticket ticket; /* 0: none under way */
    uint64_t value;
    unsigned char *host; /* of the mem; with Vulkan, of `staging` */
    vku_buffer staging;
    VkBuffer buffer;
} frame;

typedef struct client {
    unsigned number;
    line *line;
    tandem_session *s;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, ours_semaphore;
    uint64_t value, engine_value, in, bytes;
    vku vk;
    frame frames[FLIGHT];
} client;

static void hear(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_ERROR && the_board->strict)
        fprintf(stderr, "soak (process %d): %s\n", (int)getpid(), text);
}

static tandem_view view_at(uint64_t *at, tandem_mem mem, uint32_t rows)
{
    const tandem_view v = {.mem = mem,
                           .offset_bytes = *at,
                           .dtype = TANDEM_DTYPE_F16,
                           .stride_batch = (int64_t)HEADS * rows * DIM,
                           .stride_head = (int64_t)rows * DIM,
                           .stride_row = DIM};

    *at += (uint64_t)HEADS * rows * DIM * 2;
    return v;
}

static void make_job(client *c, frame *f)
{
    tandem_attention *a = &f->job.op.attention;
    uint64_t at = 0;

    f->job = (tandem_job){.struct_bytes = sizeof f->job, .operation = TANDEM_OPERATION_ATTENTION};
    a->q = view_at(&at, f->mem, ROWS);
    a->k = view_at(&at, f->mem, KEYS);
    a->v = view_at(&at, f->mem, KEYS);
    c->in = at;
    a->o = view_at(&at, f->mem, ROWS);
    c->bytes = at;
    a->batch = 1;
    a->heads = a->kv_heads = HEADS;
    a->q_len = ROWS;
    a->kv_len = KEYS;
    a->head_dim = DIM;
    a->precision = TANDEM_PRECISION_8B;
}

/* Numbers between -1 and 1, each client's its own. */
static void fill(const client *c, unsigned char *to)
{
    uint64_t state = 0x9e3779b97f4a7c15ull * (c->number + 1);

    for (uint64_t i = 0; i < c->in / 2; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        ((uint16_t *)(void *)to)[i] =
            (uint16_t)(state >> 63 << 15 | (10 + (state >> 40 & 3)) << 10 | (state >> 50 & 0x3ff));
    }
    memset(to + c->in, 0x55, c->bytes - c->in);
}

static uint32_t hash_of(const unsigned char *bytes, uint64_t count)
{
    uint32_t hash = 2166136261u;

    for (uint64_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash ? hash : 1;
}

/* What an average of V's rows can be. */
static bool looks_right(const client *c, const unsigned char *o)
{
    double most = 0;

    for (uint64_t i = 0; i < (c->bytes - c->in) / 2; i++) {
        _Float16 x;

        memcpy(&x, o + 2 * i, 2);
        if (!(fabs((double)x) <= 1))
            return false;
        most = fmax(most, fabs((double)x));
    }
    return most > 1e-4;
}

static void check(client *c, const frame *f)
{
    const uint32_t hash = hash_of(f->host + c->in, c->bytes - c->in);
    uint32_t known = 0;

    if (!atomic_load(&c->line->hash) && !looks_right(c, f->host + c->in))
        broken("client %u: a frame is done, and its output is no average of V's rows", c->number);
    if (!atomic_compare_exchange_strong(&c->line->hash, &known, hash) && known != hash)
        broken("client %u: a frame is done, and its output is not what it was before", c->number);
}

/* What a client may meet while workers and daemons are killed, and tries again after: a worker that is killed while it takes
 * memory looks like one that had too little. */
static bool is_passing(tandem_status status)
{
    return status == TANDEM_ERROR_LOST || (status == TANDEM_ERROR_NOMEM && !the_board->strict);
}

static void open_client(client *c)
{
    char text[500] = "";
    tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                .log = hear,
                                .wait_bound_ns = PATIENCE,
                                .frames_in_flight = FLIGHT,
                                .error_text = text,
                                .error_text_bytes = sizeof text,
                                .socket = socket_path};
    tandem_timeline_desc timeline = {.struct_bytes = sizeof timeline};
    tandem_vulkan vulkan;
    uint64_t begin;
    tandem_status status;

    if (options.vulkan) {
        const vku_found found = vku_open(&c->vk, NULL);

        if (found != VKU_OK)
            exit(found);
        vulkan = vku_engine(&c->vk);
        desc.vulkan = &vulkan;
    }
    begin = td_now_ns();
    while (is_passing(status = tandem_session_create(&desc, &c->s)) && td_now_ns() - begin < PATIENCE)
        sleep_us(1000);
    if (status != TANDEM_OK)
        broken("client %u: no session: %s", c->number, text);
    if (tandem_timeline_create(c->s, &timeline, &c->engines) ||
        (timeline.signaller = TANDEM_SIGNALLER_SESSION, tandem_timeline_create(c->s, &timeline, &c->ours)))
        broken("client %u: no timelines", c->number);
    if (options.vulkan && (tandem_timeline_get_vulkan(c->s, c->engines, &c->engines_semaphore) ||
                           tandem_timeline_get_vulkan(c->s, c->ours, &c->ours_semaphore)))
        broken("client %u: no semaphores", c->number);
}

/* Brings what `staging` has to the mem. */
static void upload(client *c, frame *f)
{
    const VkBufferCopy whole = {.size = c->bytes};
    VkCommandBuffer commands = vku_begin(&c->vk);

    c->vk.CmdCopyBuffer(commands, f->staging.buffer, f->buffer, 1, &whole);
    vku_full_barrier(&c->vk, commands);
    if (vku_run(&c->vk, commands) != VK_SUCCESS)
        broken("client %u: an upload failed", c->number);
}

static void make_frame(client *c, frame *f)
{
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc};
    const uint64_t begin = td_now_ns();
    tandem_status status;
    void *host;

    make_job(c, f);
    desc.bytes = c->bytes;
    while (is_passing(status = tandem_mem_create(c->s, &desc, &f->mem)) && td_now_ns() - begin < PATIENCE)
        sleep_us(1000);
    if (status == TANDEM_OK && options.vulkan)
        status = tandem_mem_get_vulkan(c->s, f->mem, &vulkan);
    else if (status == TANDEM_OK)
        status = tandem_mem_host(c->s, f->mem, &host);
    if (status != TANDEM_OK)
        broken("client %u: no mem: %s", c->number, tandem_status_text(status));
    make_job(c, f);
    if (!options.vulkan) {
        f->host = host;
    } else {
        if (vku_buffer_create(&c->vk, c->bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                              &f->staging) != VK_SUCCESS)
            broken("client %u: no staging buffer", c->number);
        f->host = f->staging.host;
        f->buffer = vulkan.buffer;
    }
    fill(c, f->host);
}

static bool submit(client *c, frame *f)
{
    tandem_status status;

    f->job.signal = (tandem_point){c->ours, f->value = c->value + 1};
    status = tandem_submit(c->s, &f->job, &f->ticket);
    if (status == TANDEM_OK) {
        c->value++;
        return true;
    }
    f->ticket = 0;
    if (status != TANDEM_ERROR_LOST || the_board->strict)
        broken("client %u: submit: %s", c->number, tandem_status_text(status));
    c->line->refused++;
    sleep_us(1000);
    return false;
}

static void await(client *c, frame *f)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    const uint64_t begin = td_now_ns();
    uint64_t took;

    if (tandem_point_wait(c->s, (tandem_point){c->ours, f->value}, PATIENCE) != TANDEM_OK) {
        uint64_t ours = 0, engines = 0;

        tandem_timeline_value(c->s, c->ours, &ours);
        tandem_timeline_value(c->s, c->engines, &engines);
        tandem_wait(c->s, f->ticket, 0, &report);
        broken("client %u: point %" PRIu64 " was lost: the counter is %" PRIu64 ", its job waits for %" PRIu64
               " of the engine's %" PRIu64 " and is in state %u (%s)",
               c->number, f->value, ours, f->job.wait.value, engines, report.state, tandem_status_text(report.status));
    }
    if (tandem_wait(c->s, f->ticket, PATIENCE, &report) != TANDEM_OK)
        broken("client %u: the report of a job whose point has come does not", c->number);
    took = td_now_ns() - begin;
    if (took > c->line->longest_ns)
        c->line->longest_ns = took;
    f->ticket = 0;
    if (report.state == TANDEM_JOB_DONE) {
        c->line->done++;
    } else if (report.status == TANDEM_ERROR_LOST && !the_board->strict) {
        c->line->lost++;
        f->value = 0; /* what is in the output is nobody's promise */
    } else {
        broken("client %u: a job ended %u: %s", c->number, report.state, tandem_status_text(report.status));
    }
}

static void host_frame(client *c, frame *f)
{
    if (f->ticket) {
        await(c, f);
        if (f->value)
            check(c, f);
    }
    memset(f->host + c->in, 0x55, c->bytes - c->in);
    submit(c, f);
}

static void engine_submit(client *c, VkCommandBuffer commands, vku_point wait)
{
    if (vku_submit(&c->vk, commands, wait, (vku_point){c->engines_semaphore, ++c->engine_value}, VK_NULL_HANDLE) !=
            VK_SUCCESS ||
        tandem_timeline_submitted(c->s, c->engines, c->engine_value) != TANDEM_OK)
        broken("client %u: vkQueueSubmit failed", c->number);
}

/* Clears the output; the job; copies the output to the host. As an engine: all of it is submitted before it runs. */
static void vulkan_frame(client *c, frame *f)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferCopy out = {c->in, c->in, c->bytes - c->in};
    VkCommandBuffer up = vku_begin(&c->vk), down;

    memset(f->host + c->in, 0x66, c->bytes - c->in);
    c->vk.CmdFillBuffer(up, f->buffer, c->in, c->bytes - c->in, 0x55555555);
    if (tandem_record_release(c->s, up, f->mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT) != TANDEM_OK)
        broken("client %u: no release", c->number);
    f->job.wait = (tandem_point){c->engines, c->engine_value + 1};
    submit(c, f);
    engine_submit(c, up, (vku_point){0});
    down = vku_begin(&c->vk);
    if (tandem_record_acquire(c->s, down, f->mem, stage, VK_ACCESS_TRANSFER_READ_BIT) != TANDEM_OK)
        broken("client %u: no acquire", c->number);
    c->vk.CmdCopyBuffer(down, f->buffer, f->staging.buffer, 1, &out);
    vku_full_barrier(&c->vk, down);
    engine_submit(c, down, f->ticket ? (vku_point){c->ours_semaphore, f->value} : (vku_point){0});
    if (f->ticket)
        await(c, f);
    else
        f->value = 0;
    if (tandem_point_wait(c->s, (tandem_point){c->engines, c->engine_value}, PATIENCE) != TANDEM_OK ||
        c->vk.DeviceWaitIdle(c->vk.device) != VK_SUCCESS)
        broken("client %u: the engine's own point %" PRIu64 " does not come", c->number, c->engine_value);
    c->vk.FreeCommandBuffers(c->vk.device, c->vk.pool, 1, &up);
    c->vk.FreeCommandBuffers(c->vk.device, c->vk.pool, 1, &down);
    if (f->value)
        check(c, f);
}

/* On the CPU the bits are known beforehand: those of a session in this process. */
static void compute_here(client *c)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1};
    tandem_mem_desc mem = {.struct_bytes = sizeof mem};
    tandem_job_report report = {.struct_bytes = sizeof report};
    uint32_t none = 0;
    frame f = {0};
    void *host;

    make_job(c, &f);
    mem.bytes = c->bytes;
    if (tandem_session_create(&desc, &c->s) || tandem_mem_create(c->s, &mem, &f.mem) ||
        tandem_mem_host(c->s, f.mem, &host))
        broken("client %u: no session in this process", c->number);
    make_job(c, &f);
    fill(c, host);
    if (tandem_submit(c->s, &f.job, &f.ticket) || tandem_wait(c->s, f.ticket, PATIENCE, &report) ||
        report.state != TANDEM_JOB_DONE)
        broken("client %u: a job in this process failed", c->number);
    atomic_compare_exchange_strong(&c->line->hash, &none, hash_of((unsigned char *)host + c->in, c->bytes - c->in));
    tandem_session_destroy(&c->s);
}

static int be_client(unsigned number)
{
    static client c;
    unsigned frames = options.vulkan ? 1 : FLIGHT;

    c.number = number;
    c.line = &the_board->lines[number];
    if (!c.line->hash && !strcmp(options.backend, "cpu"))
        compute_here(&c);
    open_client(&c);
    for (unsigned i = 0; i < frames; i++) {
        make_frame(&c, &c.frames[i]);
        if (options.vulkan)
            upload(&c, &c.frames[i]);
    }
    for (unsigned n = 0; !the_board->stop && the_board->frames_left > 0; n++) {
        const uint64_t before = c.line->done;

        if (options.vulkan)
            vulkan_frame(&c, &c.frames[0]);
        else
            host_frame(&c, &c.frames[n % frames]);
        if (c.line->done != before)
            the_board->frames_left--;
    }
    for (unsigned i = 0; i < frames; i++) {
        if (c.frames[i].ticket)
            await(&c, &c.frames[i]);
        if (options.vulkan)
            vku_buffer_destroy(&c.vk, &c.frames[i].staging);
    }
    if (tandem_session_destroy(&c.s) != TANDEM_OK)
        broken("client %u: its session cannot be destroyed", number);
    if (options.vulkan)
        vku_close(&c.vk);
    return 0;
}

/* The conductor: processes. */

static void start_client(unsigned number)
{
    const pid_t pid = fork();

    if (pid < 0)
        broken("fork: %s", strerror(errno));
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
        exit(be_client(number));
    }
    clients[number] = pid;
}

static void start_daemon(void)
{
    daemon_pid = fork();
    if (daemon_pid < 0)
        broken("fork: %s", strerror(errno));
    if (!daemon_pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
        dup2(open(options.log ? options.log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600),
             STDERR_FILENO);
        execl(options.tandemd, "tandemd", "--socket", socket_path, "--config", config_path, (char *)NULL);
        _exit(127);
    }
}

/* Until somebody listens there. */
static void await_daemon(void)
{
    const uint64_t begin = td_now_ns();
    char why[400] = "";
    td_conn conn;

    while (td_conn_connect(&conn, socket_path, why, sizeof why) != TANDEM_OK) {
        if (td_now_ns() - begin > PATIENCE)
            broken("%s", why);
        sleep_us(1000);
    }
    td_conn_close(&conn);
}

static void end_client(unsigned number, int with)
{
    int status;

    if (with)
        kill(clients[number], with);
    if (waitpid(clients[number], &status, 0) != clients[number])
        broken("waitpid: %s", strerror(errno));
    clients[number] = 0;
    if (!with && WIFEXITED(status) && WEXITSTATUS(status))
        exit(WEXITSTATUS(status)); /* it has said why */
    if (!with && !WIFEXITED(status))
        broken("client %u was ended by signal %d", number, WTERMSIG(status));
}

/* Nobody has ended who was not killed. */
static void look_at_clients(void)
{
    for (unsigned i = 0; i < options.clients; i++) {
        siginfo_t info = {.si_pid = 0};

        if (clients[i] && !waitid(P_PID, (id_t)clients[i], &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid) {
            end_client(i, 0);
            if (the_board->frames_left > 0)
                broken("client %u has ended, and frames are left", i);
        }
    }
}

/* A child's name and parent; 0: no such process. */
static pid_t parent_of(pid_t pid, char *name, size_t bytes)
{
    char path[64], text[400];
    const char *begin, *end;
    int parent = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (fgets(text, sizeof text, file) && (begin = strchr(text, '(')) && (end = strrchr(text, ')'))) {
        char state;

        snprintf(name, bytes, "%.*s", (int)(end - begin - 1), begin + 1);
        if (sscanf(end + 1, " %c %d", &state, &parent) != 2 || state == 'Z')
            parent = 0;
    }
    fclose(file);
    return parent;
}

/* The daemon's worker, or 0: it is its grandchild. */
static pid_t find_worker(void)
{
    DIR *dir = opendir("/proc");
    const struct dirent *e;
    pid_t found = 0;

    while (dir && (e = readdir(dir))) {
        const pid_t pid = (pid_t)atoi(e->d_name);
        char name[64] = "", above[64];
        const pid_t parent = pid > 0 ? parent_of(pid, name, sizeof name) : 0;

        if (parent > 0 && !strcmp(name, "tandemd-worker") && parent_of(parent, above, sizeof above) == daemon_pid)
            found = pid;
    }
    if (dir)
        closedir(dir);
    return found;
}

static void make_progress(void)
{
    const uint64_t begin = td_now_ns();
    uint64_t was[MOST_CLIENTS];

    for (unsigned i = 0; i < options.clients; i++)
        was[i] = the_board->lines[i].done;
    for (unsigned i = 0; i < options.clients;) {
        if (the_board->lines[i].done > was[i] + FLIGHT) {
            i++;
            continue;
        }
        if (td_now_ns() - begin > PATIENCE)
            broken("client %u does not come back", i);
        look_at_clients();
        sleep_us(500);
    }
}

static uint64_t sum(size_t at)
{
    uint64_t all = 0;

    for (unsigned i = 0; i < options.clients; i++)
        all += atomic_load((_Atomic uint64_t *)(void *)((char *)&the_board->lines[i] + at));
    return all;
}

static double longest_ms(void)
{
    uint64_t longest = 0;

    for (unsigned i = 0; i < options.clients; i++)
        if (the_board->lines[i].longest_ns > longest)
            longest = the_board->lines[i].longest_ns;
    return (double)longest / 1e6;
}

static void begin_frames(int64_t frames, bool strict)
{
    the_board->stop = false;
    the_board->strict = strict;
    the_board->frames_left = frames;
    for (unsigned i = 0; i < options.clients; i++) {
        line *l = &the_board->lines[i];

        l->done = l->lost = l->refused = l->longest_ns = 0;
        start_client(i);
    }
}

static void end_frames(void)
{
    the_board->stop = true;
    for (unsigned i = 0; i < options.clients; i++)
        if (clients[i])
            end_client(i, 0);
}

static void kill_at_random(void)
{
    enum { CLIENT, WORKER, DAEMON, KINDS };
    unsigned counts[KINDS] = {0};
    const uint64_t begin = td_now_ns();

    begin_frames(INT64_MAX, false);
    make_progress();
    for (unsigned n = 0; n < options.kills; n++) {
        const unsigned kind = (unsigned)dice(KINDS), number = (unsigned)dice(options.clients);
        pid_t worker;

        sleep_us(dice(30000));
        if (kind == CLIENT) {
            end_client(number, SIGKILL);
            start_client(number);
        } else if (kind == WORKER && (worker = find_worker())) {
            kill(worker, SIGKILL);
        } else if (kind == DAEMON) {
            kill(daemon_pid, SIGKILL);
            waitpid(daemon_pid, NULL, 0);
            start_daemon();
        } else {
            n--; /* no worker just now */
            continue;
        }
        counts[kind]++;
        if (kind == WORKER || dice(2)) /* three workers in a row would be called a client's fault */
            make_progress();
        look_at_clients();
    }
    make_progress();
    end_frames();
    printf("%u kills in %.1f s (%u clients, %u workers, %u daemons): %" PRIu64 " frames done, %" PRIu64
           " lost and said so, %" PRIu64 " refused; no point lost, none wrong; longest wait for a point %.1f ms\n",
           options.kills, (double)(td_now_ns() - begin) / 1e9, counts[CLIENT], counts[WORKER], counts[DAEMON],
           sum(offsetof(line, done)), sum(offsetof(line, lost)), sum(offsetof(line, refused)), longest_ms());
}

/* What the daemon holds. */

typedef struct holding {
    int broker_fds, worker_fds; /* -1: nobody but root may know */
    long broker_kib, worker_kib;
    long vram_mib; /* -1: no GPU */
} holding;

/* Resident, without what is shared with clients and files. */
static long memory_of(pid_t pid)
{
    char path[64], text[200];
    long kib = -1;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    while (file && fgets(text, sizeof text, file))
        if (sscanf(text, "RssAnon: %ld", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib;
}

static long vram_used(void)
{
    FILE *pipe = strcmp(options.backend, "cpu")
                     ? popen("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null", "re")
                     : NULL;
    long mib = -1;

    if (pipe && fscanf(pipe, "%ld", &mib) != 1)
        mib = -1;
    if (pipe)
        pclose(pipe);
    return mib;
}

/* As a client that shares nothing: waits until it is the only one, who holds nothing. */
static void await_alone(void)
{
    td_conn conn;
    td_wire_rules rules = td_wire_rules_new(td_operation_of_clients);
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 1);
    const uint64_t begin = td_now_ns();
    char why[400] = "";
    int fd;

    m.hello.features = TD_WIRE_STATISTICS;
    td_wire_text(m.hello.name, sizeof m.hello.name, "soak");
    td_wire_identify(&m.hello.identity);
    if (td_conn_connect(&conn, socket_path, why, sizeof why) != TANDEM_OK)
        broken("%s", why);
    do {
        if (td_now_ns() - begin > PATIENCE)
            broken("clients that were killed are still there");
        m.header.serial = rules.next_serial;
        if (td_conn_send(&conn, &m, NULL, why, sizeof why) != TANDEM_OK)
            broken("%s", why);
        td_wire_took(&rules, TD_WIRE_TO_DAEMON, &m);
        if (td_conn_wait(&conn, PATIENCE, why, sizeof why) != TANDEM_OK ||
            td_conn_recv(&conn, &rules, TD_WIRE_TO_CLIENT, &m, &fd, why, sizeof why) != TANDEM_OK)
            broken("%s", why);
        td_fd_close(&fd);
        if (m.header.type == TD_WIRE_WELCOME)
            td_wire_rules_welcome(&rules, &m.welcome);
        else if (m.stats_reply.total == 1)
            break;
        sleep_us(2000);
        m = td_wire_new(TD_WIRE_STATS, 0);
    } while (true);
    td_conn_close(&conn);
    sleep_us(100000); /* the broker hears of it, too */
}

static holding look(void)
{
    pid_t worker;

    await_alone();
    worker = find_worker();
    return (holding){.broker_fds = count_fds_of(daemon_pid),
                     .worker_fds = count_fds_of(worker),
                     .broker_kib = memory_of(daemon_pid),
                     .worker_kib = memory_of(worker),
                     .vram_mib = vram_used()};
}

static unsigned run_frames(int64_t frames)
{
    unsigned deaths = 0;

    begin_frames(frames, true);
    while (the_board->frames_left > 0) {
        const unsigned number = (unsigned)dice(options.clients);

        sleep_us(dice(4) ? dice(100000) : dice(3000)); /* some die as soon as they live */
        look_at_clients();
        if (the_board->frames_left > 0 && clients[number]) {
            end_client(number, SIGKILL);
            start_client(number);
            deaths++;
        }
    }
    end_frames();
    return deaths;
}

static void soak(void)
{
    /* The worker's table of objects, 2 MiB, is touched bit by bit. */
    enum { BROKER_KIB = 2048, WORKER_KIB = 8192, VRAM_MIB = 16 };
    const bool sanitized = getenv("TANDEM_SANITIZED") != NULL;
    const int64_t warm = options.frames / 10 + 200;
    const uint64_t begin = td_now_ns();
    holding before, after;
    unsigned deaths = run_frames(warm);

    before = look();
    deaths += run_frames(options.frames);
    after = look();
    printf("%" PRId64
           " frames in %.1f s, %u clients killed: no point lost, none wrong; longest wait for a point %.1f ms\n"
           "  descriptors: broker %d before, %d after; worker %d, %d\n"
           "  memory of their own: broker %ld KiB, %ld; worker %ld KiB, %ld\n",
           warm + options.frames, (double)(td_now_ns() - begin) / 1e9, deaths, longest_ms(), before.broker_fds,
           after.broker_fds, before.worker_fds, after.worker_fds, before.broker_kib, after.broker_kib,
           before.worker_kib, after.worker_kib);
    if (after.vram_mib >= 0)
        printf("  the GPU's memory: %ld MiB, %ld\n", before.vram_mib, after.vram_mib);
    if (after.broker_fds != before.broker_fds || after.worker_fds != before.worker_fds)
        broken("descriptors are left over");
    if (!sanitized &&
        (after.broker_kib - before.broker_kib > BROKER_KIB || after.worker_kib - before.worker_kib > WORKER_KIB))
        broken("memory is left over");
    if (after.vram_mib - before.vram_mib > VRAM_MIB)
        broken("memory of the GPU is left over");
}

/* The conductor: the rest. */

static void read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (!strcmp(name, "--vulkan")) {
            options.vulkan = true;
            continue;
        }
        if (!value)
            broken("'%s': no such option, or no value", name);
        i++;
        if (!strcmp(name, "--kills"))
            options.kills = (unsigned)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--frames"))
            options.frames = strtoll(value, NULL, 10);
        else if (!strcmp(name, "--clients"))
            options.clients = (unsigned)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--backend"))
            options.backend = value;
        else if (!strcmp(name, "--seed"))
            options.seed = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--log"))
            options.log = value;
        else if (!strcmp(name, "--socket"))
            options.socket = value;
        else if (!strcmp(name, "--tandemd"))
            options.tandemd = value;
        else
            broken("'%s': no such option", name);
    }
    if (!options.clients || options.clients > MOST_CLIENTS)
        broken("--clients must be 1 to %d", MOST_CLIENTS);
}

/* Beside this program. */
static const char *find_tandemd(void)
{
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);

    while (length > 0 && path[length - 1] != '/')
        length--;
    strcpy(path + (length > 0 ? length : 0), "tandemd");
    return path;
}

static void end_all(void)
{
    for (unsigned i = 0; i < MOST_CLIENTS; i++)
        if (clients[i])
            kill(clients[i], SIGKILL);
    if (daemon_pid > 0)
        kill(daemon_pid, SIGKILL);
    unlink(config_path);
    unlink(socket_path);
    strcat(socket_path, ".lock");
    unlink(socket_path);
    rmdir(folder);
}

/* Clients at somebody else's daemon. */
static void keep_busy(void)
{
    snprintf(socket_path, sizeof socket_path, "%s", options.socket);
    await_daemon();
    begin_frames(INT64_MAX, false);
    for (;;) {
        sleep_us(100000);
        look_at_clients();
    }
}

int main(int argc, char **argv)
{
    FILE *config;
    int status;

    options.seed = td_now_ns();
    options.tandemd = find_tandemd();
    read_options(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %" PRIu64 "\n", options.seed);
    the_board = mmap(NULL, sizeof *the_board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (options.socket && the_board != MAP_FAILED)
        keep_busy();
    snprintf(folder, sizeof folder, "/tmp/tandem-soak-XXXXXX");
    if (the_board == MAP_FAILED || !mkdtemp(folder))
        broken("cannot begin: %s", strerror(errno));
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    snprintf(config_path, sizeof config_path, "%s/config", folder);
    config = fopen(config_path, "w");
    if (!config || fprintf(config, "backend = %s\nthreads = 1\nlog = debug\n", options.backend) < 0 || fclose(config))
        broken("%s: %s", config_path, strerror(errno));
    start_daemon();
    await_daemon();
    if (!options.kills && !options.frames) {
        options.kills = 12;
        options.frames = 4000;
    }
    if (options.kills)
        kill_at_random();
    if (options.frames)
        soak();
    kill(daemon_pid, SIGTERM);
    if (waitpid(daemon_pid, &status, 0) != daemon_pid || !WIFEXITED(status) || WEXITSTATUS(status))
        broken("the daemon did not end in order");
    daemon_pid = 0;
    end_all();
    return 0;
}
