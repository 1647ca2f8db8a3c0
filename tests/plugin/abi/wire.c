/* A client as old as the first headers with today's tandemd, and today's session with a tandemd as old as that. Both old sides
 * are played here, in the structs of 91e7f33/wire.h; that commit's own programs were tried with these, both ways.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "interop/wire/wire.h"
#include "tandem/tandem.h"
#include "tests/plugin/abi/91e7f33/wire.h"
#include "tests/plugin/abi/rig.h"

#define WAIT_NS 20000000000u
enum { ROWS = 32, DIM = 64, VALUES = ROWS * DIM, BYTES = 4 * VALUES, ALL = 4 * BYTES };

static void ring_bell(first_bell *bell)
{
    atomic_fetch_add(&bell->count, 1);
    if (atomic_load(&bell->waiters))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int make_memfd(uint64_t bytes, int seals)
{
    const int fd = memfd_create("first", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void *map(int fd, uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    assert_true(at != MAP_FAILED);
    return at;
}

static bool say(int socket, const void *message, int fd)
{
    const first_header *h = message;
    struct iovec part = {(void *)(uintptr_t)message, h->bytes};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        *CMSG_FIRSTHDR(&m) = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
    }
    return sendmsg(socket, &m, MSG_NOSIGNAL) == (ssize_t)h->bytes;
}

/* Its length; 0 at the end. */
static ssize_t hear(int socket, first_message *message, int *fd)
{
    struct iovec part = {message, sizeof *message};
    union {
        struct cmsghdr align;
        char bytes[256];
    } control;
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    const ssize_t got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);

    *fd = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); got > 0 && c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return got > 0 ? got : 0;
}

static first_header header_of(uint16_t type, uint32_t bytes, uint16_t fds, uint32_t serial)
{
    return (first_header){.bytes = bytes, .type = type, .fds = fds, .serial = serial};
}

/* What both sides of that commit did to the other's sizes. */
static bool sizes_are_own(const void *sizes)
{
    return !memcmp(sizes, &first_own_sizes, sizeof first_own_sizes);
}

static void fill_inputs(float *at)
{
    for (int i = 0; i < 3 * VALUES; i++)
        at[i] = (float)(i * 37 % 101) / 50 - 1;
}

static tandem_job job_over(tandem_mem mem)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    tandem_view view[4];

    for (uint32_t i = 0; i < 4; i++)
        view[i] = tandem_view_dense(mem, (uint64_t)i * BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    job.op.attention = (tandem_attention){.q = view[0], .k = view[1], .v = view[2], .o = view[3], .batch = 1, .heads = 1,
                                          .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM,
                                          .precision = TANDEM_PRECISION_F16};
    return job;
}

/* A session's mem of ALL bytes, with inputs in it. */
static tandem_mem open_mem(tandem_session *s, float **host)
{
    const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .bytes = ALL);
    tandem_mem mem;
    void *at;

    assert_int_equal(tandem_mem_create(s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(s, mem, &at), TANDEM_OK);
    *host = at;
    fill_inputs(*host);
    return mem;
}

/* --- An old client --- */

static uint64_t ask_for(int socket, const void *request, int fd)
{
    first_message answer;
    int none;

    assert_true(say(socket, request, fd));
    assert_int_equal(hear(socket, &answer, &none), sizeof answer.object);
    assert_int_equal(answer.header.type, FIRST_DONE);
    assert_int_equal(answer.header.serial, ((const first_header *)request)->serial);
    return answer.object.id;
}

static void compute_here(float out[VALUES])
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU);
    tandem_session *s;
    tandem_ticket ticket;
    tandem_job job;
    float *host;

    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    job = job_over(open_mem(s, &host));
    assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(s, ticket, WAIT_NS, NULL), TANDEM_OK);
    memcpy(out, host + 3 * VALUES, BYTES);
    tandem_session_destroy(&s);
}

static int connect_to(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* As the first client did, or with the most that a newer one has room for; *sizes are the connection's. */
static first_area *greet(int socket, const first_sizes *most, first_sizes *sizes)
{
    first_hello hello = {.header = header_of(FIRST_HELLO, sizeof hello, 0, 1), .magic = FIRST_MAGIC, .version_min = 1,
                         .version_max = 1, .features = 1, .sizes = first_own_sizes, .share = FIRST_SHARE_HOST,
                         .frames_in_flight = 3, .timing = 1, .wait_bound_ns = 2000000000, .name = "old"};
    static const uint8_t none[16];
    first_message answer;
    first_area *area;
    struct stat file;
    int fd;

    td_wire_identify((td_wire_identity *)&hello.identity); /* of this machine */
    if (most) {
        hello.version_max = 2;
        memcpy(hello.reserved, most, sizeof *most);
        hello.reserved[16] = 0xf0; /* attention, in a version that is yet to come */
    }
    assert_true(say(socket, &hello, -1));
    assert_int_equal(hear(socket, &answer, &fd), sizeof answer.welcome);
    assert_int_equal(answer.header.type, FIRST_WELCOME);
    assert_true(answer.header.bytes == 256 && answer.header.fds == 1 && answer.header.serial == 1 && fd >= 0);
    assert_true(answer.welcome.magic == FIRST_MAGIC && answer.welcome.version == hello.version_max && !answer.welcome.reserved0);
    assert_true((answer.welcome.features & ~(uint64_t)1) == 0 && answer.welcome.share == FIRST_SHARE_HOST);
    *sizes = answer.welcome.sizes;
    if (most) {
        assert_int_equal(answer.welcome.reserved[4], 0x40);
    } else {
        assert_true(sizes_are_own(sizes) && !answer.welcome.reserved1);
        assert_memory_equal(answer.welcome.reserved, none, sizeof none);
    }
    assert_int_equal(sizes->area_bytes, 4096 + FIRST_SLOTS * sizes->slot_bytes + FIRST_REPORTS * sizes->report_bytes);
    assert_int_equal(fstat(fd, &file), 0);
    assert_int_equal(file.st_size, sizes->area_bytes);
    area = map(fd, sizes->area_bytes);
    close(fd);
    return area;
}

/* Each slot twice. A job may be longer than what is known of it, if the rest is 0. */
static first_sizes compute_there(const first_sizes *most, uint32_t job_bytes)
{
    const int socket = connect_to(served.socket_path), slab = make_memfd(ALL, F_SEAL_SHRINK),
              page_fd = make_memfd(sizeof(first_page), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    first_sizes sizes;
    first_area *area = greet(socket, most, &sizes);
    char *const slots = (char *)area + 4096, *const reports = slots + FIRST_SLOTS * sizes.slot_bytes;
    first_page *page = map(page_fd, sizeof *page);
    const first_mem_create mem = {.header = header_of(FIRST_MEM_CREATE, sizeof mem, 1, 2), .kind = FIRST_SLAB, .bytes = ALL,
                                  .allocation_bytes = ALL};
    const first_timeline_create timeline = {.header = header_of(FIRST_TIMELINE_CREATE, sizeof timeline, 1, 3),
                                            .kind = FIRST_FUTEX, .signaller = 1};
    const first_header info = header_of(FIRST_INFO, sizeof info, 0, 4);
    const first_bye bye = {.header = header_of(FIRST_BYE, sizeof bye, 0, 0), .reason = 1};
    first_job job = {.header = header_of(FIRST_JOB, job_bytes, 0, 0), .struct_bytes = job_bytes - 32, .operation = 1,
                     .signal_value = 1, .batch = 1, .heads = 1, .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM, .precision = 1};
    first_view *const views[4] = {&job.q, &job.k, &job.v, &job.o};
    float *data = map(slab, ALL), wanted[VALUES];
    first_message answer;
    uint64_t id;
    int none;

    compute_here(wanted);
    id = ask_for(socket, &mem, slab);
    job.signal_timeline = ask_for(socket, &timeline, page_fd);
    assert_true(say(socket, &info, -1));
    assert_int_equal(hear(socket, &answer, &none), sizeof answer.info);
    assert_true(answer.header.type == FIRST_INFO_REPLY && answer.info.backend == 2 && answer.info.device[0]);
    for (uint64_t i = 0; i < 4; i++)
        *views[i] = (first_view){.mem = id, .offset_bytes = i * BYTES, .dtype = 3, .stride_batch = VALUES,
                                 .stride_head = VALUES, .stride_row = DIM};
    for (uint64_t ticket = 1; ticket <= 2 * FIRST_SLOTS; ticket++) {
        const first_report *report = (const void *)(reports + ticket % FIRST_REPORTS * sizes.report_bytes);

        fill_inputs(data);
        memset(data + 3 * VALUES, 0, BYTES);
        job.ticket = job.signal_value = ticket;
        memcpy(slots + (ticket - 1) % FIRST_SLOTS * sizes.slot_bytes, &job, sizeof job);
        atomic_store(&area->tail, (uint32_t)ticket);
        ring_bell(&area->to_daemon);
        for (const uint64_t begin = td_now_ns(); atomic_load(&page->value) < ticket; usleep(100))
            assert_true(td_now_ns() - begin < WAIT_NS);
        assert_int_equal(atomic_load(&report->word) >> 32, ticket);
        assert_int_equal(atomic_load(&report->word) & 0xff, 2); /* done */
        assert_true(atomic_load(&report->end_ns) >= atomic_load(&report->begin_ns));
        assert_memory_equal(data + 3 * VALUES, wanted, BYTES);
    }
    assert_int_equal(atomic_load(&area->head), 2 * FIRST_SLOTS);
    assert_true(say(socket, &bye, -1));
    close(socket);
    close(slab);
    close(page_fd);
    munmap(area, sizes.area_bytes);
    munmap(page, sizeof *page);
    munmap(data, ALL);
    return sizes;
}

static void test_old_client(void **state)
{
    const first_sizes sizes = compute_there(NULL, sizeof(first_job));

    (void)state;
    assert_true(sizes_are_own(&sizes));
}

/* One that has less room than this library, and one that has more, whose jobs are longer than ours. */
static void test_other_clients(void **state)
{
    static const first_sizes less = {512, 1024, 32, 4096 + 64 * 1024 + 256 * 32},
                             more = {4096, 8192, 64, 4096 + 64 * 8192 + 256 * 64}, ours = {1104, 2048, 32, 143360};
    first_sizes sizes = compute_there(&less, 400);

    (void)state;
    assert_memory_equal(&sizes, &less, sizeof sizes);
    sizes = compute_there(&more, 1104 + 64);
    assert_memory_equal(&sizes, &ours, sizeof sizes);
}

/* --- An old daemon --- */

typedef struct old_daemon {
    char path[128];
    int listener, served;
    pthread_t thread;
    first_area *area;
    char *mems[8];
    uint64_t mem_bytes[8];
    first_page *pages[8];
    uint32_t mem_count, page_count, jobs;
    const char *wrong; /* what that commit would have closed the connection for */
} old_daemon;

/* It computes nothing: what it was to write is all sevens. */
static void take_slots(old_daemon *d)
{
    for (uint32_t head = atomic_load(&d->area->head); head != atomic_load(&d->area->tail); head++) {
        first_job job;
        uint64_t at;

        memcpy(&job, d->area->slots[head % FIRST_SLOTS], sizeof job);
        atomic_store(&d->area->head, head + 1);
        if (job.header.type == FIRST_SUBMITTED || job.header.type == FIRST_CANCEL)
            continue;
        if (job.header.type != FIRST_JOB || job.header.bytes != sizeof job || job.struct_bytes != 336 || job.operation != 1 ||
            job.ticket != d->jobs + 1 || (job.o.mem & 0xffffff) - 1 >= d->mem_count) {
            d->wrong = "a slot";
            return;
        }
        d->jobs++;
        at = job.ticket % FIRST_REPORTS;
        for (int i = 0; i < VALUES; i++)
            ((float *)(void *)(d->mems[(job.o.mem & 0xffffff) - 1] + job.o.offset_bytes))[i] = 7;
        atomic_store(&d->area->reports[at].begin_ns, td_now_ns());
        atomic_store(&d->area->reports[at].end_ns, td_now_ns());
        atomic_store(&d->area->reports[at].word, job.ticket << 32 | 1 << 8 | 2);
        ring_bell(&d->area->to_client);
        if (job.signal_timeline) {
            first_page *page = d->pages[(job.signal_timeline & 0xffffff) - 1];

            atomic_store(&page->value, job.signal_value);
            ring_bell(&page->bell);
        }
    }
}

static bool answer_hello(old_daemon *d, const first_hello *hello)
{
    first_welcome welcome = {.header = header_of(FIRST_WELCOME, sizeof welcome, 1, hello->header.serial),
                             .magic = FIRST_MAGIC, .version = 1, .sizes = first_own_sizes, .identity = hello->identity,
                             .share = hello->share, .session = 1, .frames_in_flight = hello->frames_in_flight, .mems = 8,
                             .timelines = 8, .models = 1, .requests = 32, .mem_bytes = 1 << 30, .quota_bytes = 1 << 30,
                             .rung = 5, .name = "tandemd 0.1.0"};
    const int fd = make_memfd(sizeof *d->area, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    bool said;

    if (hello->magic != FIRST_MAGIC || hello->version_min > 1 || hello->version_max < 1)
        d->wrong = "the version of HELLO";
    else if (!sizes_are_own(&hello->sizes)) /* UNSUPPORTED, with both values */
        d->wrong = "the sizes of HELLO";
    else if (hello->version_max == 1 && td_first_not_zero(hello->reserved, 0, sizeof hello->reserved) < sizeof hello->reserved)
        d->wrong = "the reserved bytes of HELLO";
    d->area = map(fd, sizeof *d->area);
    said = !d->wrong && say(d->served, &welcome, fd);
    close(fd);
    return said;
}

static bool answer_message(old_daemon *d, const first_message *m, ssize_t length, int fd)
{
    static const uint16_t bytes[] = {0, 256, 16, 16, 64, 24, 48, 24};
    first_object done = {.header = header_of(FIRST_DONE, sizeof done, 0, m->header.serial)};

    if (m->header.type == FIRST_BYE)
        return false;
    if (m->header.type < FIRST_HELLO || m->header.type > FIRST_TIMELINE_DESTROY || m->header.bytes != bytes[m->header.type] ||
        length != m->header.bytes || (m->header.fds != 0) != (fd >= 0)) {
        d->wrong = "a message of another size or type";
        return false;
    }
    switch (m->header.type) {
    case FIRST_HELLO:
        return answer_hello(d, &m->hello);
    case FIRST_INFO: {
        const first_info info = {.header = header_of(FIRST_INFO_REPLY, sizeof info, 0, m->header.serial), .backend = 2,
                                 .rung = 5, .cpu_threads = 1, .device = "an old one"};

        return say(d->served, &info, -1);
    }
    case FIRST_MEM_CREATE:
        d->mem_bytes[d->mem_count] = m->mem_create.allocation_bytes;
        d->mems[d->mem_count++] = map(fd, m->mem_create.allocation_bytes);
        done.id = 1ull << 56 | 1 << 24 | d->mem_count;
        break;
    case FIRST_TIMELINE_CREATE:
        d->pages[d->page_count++] = map(fd, sizeof(first_page));
        done.id = 2ull << 56 | 1 << 24 | d->page_count;
        break;
    default: break;
    }
    return say(d->served, &done, -1);
}

static void *serve(void *user)
{
    old_daemon *d = user;
    bool on = true;

    d->served = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    while (on && d->served >= 0 && !d->wrong) {
        struct pollfd p = {.fd = d->served, .events = POLLIN};
        first_message m;

        if (d->area)
            take_slots(d);
        if (poll(&p, 1, 1) > 0) {
            int fd;
            const ssize_t got = hear(d->served, &m, &fd);

            if (d->area && !d->wrong) /* what was published before comes before */
                take_slots(d);
            on = got >= (ssize_t)sizeof m.header && answer_message(d, &m, got, fd);
            if (fd >= 0)
                close(fd);
        }
    }
    if (d->served >= 0)
        close(d->served);
    return NULL;
}

static void begin_old_daemon(old_daemon *d)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    memset(d, 0, sizeof *d);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/old", served.folder);
    snprintf(d->path, sizeof d->path, "%s", at.sun_path);
    d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(d->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(d->listener, 1), 0);
    assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
}

static void end_old_daemon(old_daemon *d)
{
    pthread_join(d->thread, NULL);
    close(d->listener);
    unlink(d->path);
    if (d->area)
        munmap(d->area, sizeof *d->area);
    for (uint32_t i = 0; i < d->mem_count; i++)
        munmap(d->mems[i], d->mem_bytes[i]);
    for (uint32_t i = 0; i < d->page_count; i++)
        munmap(d->pages[i], sizeof(first_page));
    if (d->wrong)
        fail_msg("the old daemon does not take %s", d->wrong);
}

static void test_old_daemon(void **state)
{
    const tandem_timeline_desc of_session = TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION);
    tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_timeline timeline;
    tandem_job job, newer;
    tandem_session *s;
    tandem_ticket ticket;
    char why[600];
    float *host;
    old_daemon d;

    (void)state;
    begin_old_daemon(&d);
    desc.socket = d.path;
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(tandem_timeline_create(s, &of_session, &timeline), TANDEM_OK);
    job = job_over(open_mem(s, &host));
    for (uint64_t n = 1; n <= 2 * FIRST_SLOTS; n++) {
        job.signal = (tandem_point){timeline, n};
        memset(host + 3 * VALUES, 0, BYTES);
        assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
        assert_int_equal(tandem_wait(s, ticket, WAIT_NS, &report), TANDEM_OK);
        assert_int_equal(report.state, TANDEM_JOB_DONE);
        assert_int_equal(tandem_point_wait(s, job.signal, WAIT_NS), TANDEM_OK);
        for (int i = 0; i < VALUES; i++)
            assert_true(host[3 * VALUES + i] == 7);
    }

    /* What it does not know of attention, and what it does not know at all, is refused before anything is sent. */
    job.signal = (tandem_point){0, 0};
    newer = job;
    newer.op.attention.length = (tandem_view){.mem = job.op.attention.q.mem, .dtype = TANDEM_DTYPE_I32, .stride_batch = 1};
    assert_int_equal(tandem_submit(s, &newer, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(tandem_error_text(s, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "tandemd knows version 1 of attention, which has 288 bytes, but the byte at offset 2"));
    assert_int_equal(tandem_supported(s, &newer, NULL, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    newer = (tandem_job)TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_NORM);
    newer.op.norm = (tandem_norm){.x = job.op.attention.q, .y = job.op.attention.o, .batch = 1, .heads = 1, .rows = ROWS,
                                  .channels = DIM};
    assert_int_equal(tandem_submit(s, &newer, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(tandem_error_text(s, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "operation 2 (norm) is none that tandemd knows"));
    assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(s, ticket, WAIT_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    end_old_daemon(&d);
    assert_int_equal(d.jobs, 2 * FIRST_SLOTS + 1);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_old_client),
    cmocka_unit_test(test_other_clients),
    cmocka_unit_test(test_old_daemon),
};
const test_cases abi_wire_cases = TEST_CASES(cases);
