/* libtandem.so.0 in an engine that knows nothing of its threads: they sleep when there is no job, whatever the environment
 * says, they end with their session, and whoever closes the library at whatever time does not crash.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tandem/plugin.h"
#include "tests/limits.h"

enum { HEADS = 8, ROWS = 128, DIM = 64, VIEW_BYTES = HEADS * ROWS * DIM * 2, THREADS = 2, JOBS = 20, PROCESSES = 12 };
#define PATIENCE LIMITS_PATIENCE_NS

typedef struct engine {
    void *library;
    const tandem_api *api;
    tandem_session *session;
    tandem_job job;
} engine;

/* The library lies beside this program, wherever the build folder was carried. */
static bool library_path(char path[4096])
{
    const ssize_t length = readlink("/proc/self/exe", path, 4096 - 32);

    if (length < 0)
        return false;
    path[length] = 0;
    strcpy(strrchr(path, '/'), "/libtandem.so.0");
    return true;
}

static bool engine_open(engine *e)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = THREADS};
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = 4 * VIEW_BYTES};
    tandem_view view = {.dtype = TANDEM_DTYPE_F16, .stride_head = ROWS * DIM, .stride_row = DIM};
    tandem_attention *a = &e->job.op.attention;
    tandem_get_api_fn get;
    char path[4096];
    void *host;

    *e = (engine){0};
    e->library = library_path(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    get = e->library ? (tandem_get_api_fn)dlsym(e->library, "tandem_get_api") : NULL;
    e->api = get ? get(TANDEM_VERSION) : NULL;
    if (!e->api || e->api->session_create(&desc, &e->session) || e->api->mem_create(e->session, &mem_desc, &view.mem) ||
        e->api->mem_host(e->session, view.mem, &host))
        return false;
    for (int i = 0; i < 3 * VIEW_BYTES / 2; i++)
        ((uint16_t *)host)[i] = (uint16_t)(0x3000 + i * 7919 % 0x0c00);
    e->job = (tandem_job){.struct_bytes = sizeof e->job, .operation = TANDEM_OPERATION_ATTENTION};
    *a = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = HEADS, .kv_heads = HEADS,
                            .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM, .precision = TANDEM_PRECISION_8B};
    a->k.offset_bytes = VIEW_BYTES;
    a->v.offset_bytes = 2 * VIEW_BYTES;
    a->o.offset_bytes = 3 * VIEW_BYTES;
    return true;
}

static bool engine_jobs(engine *e)
{
    for (int i = 0; i < JOBS; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_ticket ticket;

        if (e->api->submit(e->session, &e->job, &ticket) || e->api->wait(e->session, ticket, PATIENCE, &report) ||
            report.state != TANDEM_JOB_DONE)
            return false;
    }
    return true;
}

static uint32_t tasks(void)
{
    DIR *folder = opendir("/proc/self/task");
    uint32_t count = 0;

    for (struct dirent *it; folder && (it = readdir(folder));)
        count += it->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* A thread that was joined may still be listed for a moment. */
static bool tasks_become(uint32_t count)
{
    for (int i = 0; i < 2000 && tasks() != count; i++)
        usleep(1000);
    return tasks() == count;
}

static uint64_t cpu_us(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Engines, each a process of its own: the exit status is 0, or what went wrong. */
static int idle(void)
{
    engine e;
    uint64_t before;

    if (!engine_open(&e) || !engine_jobs(&e))
        return 1;
    before = cpu_us();
    usleep(1000000);
    if (cpu_us() - before > 20000) /* 2 % of a core */
        return 2;
    return e.api->session_destroy(&e.session) ? 3 : 0;
}

static int closes_behind(void)
{
    engine e;

    if (!engine_open(&e) || !engine_jobs(&e) || e.api->session_destroy(&e.session))
        return 1;
    if (!tasks_become(1))
        return 2;
    if (dlclose(e.library))
        return 3;
    usleep(50000);
    return 0;
}

static int closes_before(void)
{
    engine e;

    if (!engine_open(&e) || !engine_jobs(&e) || dlclose(e.library))
        return 1;
    usleep(50000);
    return engine_jobs(&e) ? 0 : 2; /* it stays while the process lives, as its threads may */
}

static int closes_at_work(void)
{
    tandem_ticket ticket;
    engine e;

    if (!engine_open(&e))
        return 1;
    e.job.op.attention.k.stride_row = e.job.op.attention.v.stride_row = 0; /* the same key again and again: for 0.1 s */
    e.job.op.attention.kv_len = 65536;
    for (int i = 0; i < 3; i++)
        if (e.api->submit(e.session, &e.job, &ticket))
            return 2;
    if (dlclose(e.library))
        return 3;
    usleep(50000);
    return 0; /* with its threads at work */
}

static const struct {
    const char *name;
    int (*run)(void);
} engines[] = {{"idle", idle}, {"closes-behind", closes_behind}, {"closes-before", closes_before},
               {"closes-at-work", closes_at_work}};
enum { ENGINES = sizeof engines / sizeof *engines };

static pid_t start(const char *name, const char *policy)
{
    const pid_t child = fork();

    if (child)
        return child;
    if (policy)
        setenv("OMP_WAIT_POLICY", policy, 1);
    else
        unsetenv("OMP_WAIT_POLICY");
    limits_begin(60); /* exec keeps both */
    execl("/proc/self/exe", "test_unload", name, (char *)NULL);
    _exit(127);
}

static void check_end(pid_t child, const char *name)
{
    int status = -1;

    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status)
        fail_msg("%s: %s %d", name, WIFEXITED(status) ? "exit status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static void test_idle(void **state)
{
    static const char *const policies[] = {NULL, "active", "passive"};

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        check_end(start("idle", policies[i]), "idle");
}

static void test_close(void **state)
{
    (void)state;
    for (int i = 1; i < ENGINES; i++)
        check_end(start(engines[i].name, NULL), engines[i].name);
}

static void test_close_in_many(void **state)
{
    pid_t children[PROCESSES];

    (void)state;
    for (int i = 1; i < ENGINES; i++) {
        for (int p = 0; p < PROCESSES; p++)
            children[p] = start(engines[i].name, NULL);
        for (int p = 0; p < PROCESSES; p++)
            check_end(children[p], engines[i].name);
    }
}

/* As many threads as were asked for while there are jobs, none behind the session, and none of OpenMP's. */
static void test_threads(void **state)
{
    const uint32_t before = tasks();
    char line[512];
    cpu_set_t cpus;
    engine e;
    FILE *maps;

    (void)state;
    assert_true(engine_open(&e));
    assert_int_equal(tasks(), before + 2); /* a worker, and one for deadlines */
    assert_true(engine_jobs(&e));
    if (!sched_getaffinity(0, sizeof cpus, &cpus) && CPU_COUNT(&cpus) >= THREADS)
        assert_int_equal(tasks(), before + 1 + THREADS);
    maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        assert_null(strstr(line, "omp.so"));
    fclose(maps);
    assert_int_equal(e.api->session_destroy(&e.session), TANDEM_OK);
    assert_true(tasks_become(before));
    assert_int_equal(dlclose(e.library), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_in_many),
    };

    for (int i = 0; i < ENGINES && argc > 1; i++)
        if (!strcmp(argv[1], engines[i].name))
            return engines[i].run();
    return cmocka_run_group_tests_name("unload", tests, NULL, NULL);
}
