/* tandemd as it is, but that its jobs fail as a file says: on the CPU, and on a CUDA driver that does something else as well:
 * in front of a job's first kernel runs one that never ends, or that reads where nothing is. Tests of the daemon start it in
 * place of tandemd.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   TANDEM_TEST_FAULT       the file: "PID hang" or "PID fault", once it is there; that worker does it once; or "kill CALL
 *                           BYTES": every worker is killed when it makes that call with so many bytes; or "hold CALL":
 *                           the loader's thread stands still in that call, and says so, until the file is gone;
 *                           or "wild N": each worker's Nth job on the CPU finds nothing where its views are
 *   TANDEM_TEST_FAKE_CUDA   set: on the driver of tests/interop/fake_cuda.h, where there is no GPU
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"

/* The first one ends by itself, so that no card is lost where nobody ends the worker. */
#define MOST_NS (60 * 1000000000ull)
static const char kernels[] = ".version 7.0\n"
                              ".target sm_80\n"
                              ".address_size 64\n"
                              ".visible .entry hang(.param .u64 most_ns)\n"
                              "{\n"
                              "    .reg .pred %before;\n"
                              "    .reg .u64 %most, %begin, %now, %since;\n"
                              "    ld.param.u64 %most, [most_ns];\n"
                              "    mov.u64 %begin, %globaltimer;\n"
                              "again:\n"
                              "    mov.u64 %now, %globaltimer;\n"
                              "    sub.u64 %since, %now, %begin;\n"
                              "    setp.lt.u64 %before, %since, %most;\n"
                              "    @%before bra again;\n"
                              "    ret;\n"
                              "}\n"
                              ".visible .entry fault(.param .u64 address)\n"
                              "{\n"
                              "    .reg .u64 %address;\n"
                              "    .reg .u32 %word;\n"
                              "    ld.param.u64 %address, [address];\n"
                              "    ld.volatile.global.u32 %word, [%address];\n"
                              "    st.volatile.global.u32 [%address], %word;\n"
                              "    ret;\n"
                              "}\n";

static td_cu_table cu; /* as far as it is used here */
static td_cu_function hang, fault;
static const char *path;
static bool fake, loaded, done;

static void check(td_cu_result result, const char *what)
{
    if (result)
        dprintf(STDERR_FILENO, "tandemd_faulty: %s: %d\n", what, result);
}

/* Beside the worker's first module, where the driver may load it: later there are streams that wait. */
static void load(void)
{
    void *const library = __real_dlopen("libcuda.so.1", RTLD_NOW);
    td_cu_module module = NULL;

    loaded = true;
    if (!library)
        return;
#define FIND(name) *(void **)&cu.name = __real_dlsym(library, #name);
    FIND(cuModuleLoadDataEx)
    FIND(cuModuleGetFunction)
    FIND(cuFuncGetAttribute)
    FIND(cuLaunchKernel)
#undef FIND
    check(cu.cuModuleLoadDataEx(&module, kernels, 0, NULL, NULL), "cuModuleLoadDataEx");
    for (int i = 0; module && i < 2; i++) {
        td_cu_function *to = i ? &fault : &hang;
        int registers;

        check(cu.cuModuleGetFunction(to, module, i ? "fault" : "hang"), "cuModuleGetFunction");
        check(cu.cuFuncGetAttribute(&registers, TD_CU_FUNCTION_REGISTERS, *to), "cuFuncGetAttribute");
    }
}

static void launch(td_cu_function function, uint64_t param, td_cu_stream stream)
{
    size_t bytes = sizeof param;
    void *extra[] = {TD_CU_LAUNCH_BUFFER, &param, TD_CU_LAUNCH_BYTES, &bytes, TD_CU_LAUNCH_END};

    check(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra), "cuLaunchKernel");
}

/* What the file has this process do, or "". */
static void read_file(char word[16])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[64] = "";
    int pid = 0;

    word[0] = 0;
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) <= 0 || sscanf(text, "%d %15s", &pid, word) != 2 || pid != (int)getpid())
        word[0] = 0;
    close(fd);
}

static bool is_killed_by(const char *call, uint64_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[100] = "", named[40];
    unsigned long long at;
    int pid = 0, found; /* 0: of any worker */
    bool is;

    if (fd < 0)
        return false;
    found = read(fd, text, sizeof text - 1) > 0 ? sscanf(text, "kill %39s %llu %d", named, &at, &pid) : 0;
    is = found >= 2 && at == bytes && !strcmp(named, call) && (!pid || pid == (int)getpid());
    close(fd);
    return is;
}

/* Of each worker. */
static bool is_wild(uint64_t job)
{
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char text[40] = "";
    unsigned long long at;
    bool is;

    if (fd < 0)
        return false;
    is = read(fd, text, sizeof text - 1) > 0 && sscanf(text, "wild %llu", &at) == 1 && at == job;
    close(fd);
    return is;
}

tandem_status __real_td_exec_cpu_run_preemptibly(const td_plan *plan, const uint64_t *views, uint64_t scratch,
                                                 td_thread_pool *pool, td_control *control, td_preemptible *yields);
tandem_status __wrap_td_exec_cpu_run_preemptibly(const td_plan *plan, const uint64_t *views, uint64_t scratch,
                                                 td_thread_pool *pool, td_control *control, td_preemptible *yields);
tandem_status __wrap_td_exec_cpu_run_preemptibly(const td_plan *plan, const uint64_t *views, uint64_t scratch,
                                                 td_thread_pool *pool, td_control *control, td_preemptible *yields)
{
    static _Atomic uint64_t jobs;
    uint64_t nowhere[TD_MAX_VIEWS];

    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        nowhere[i] = (uint64_t)16 << i;
    return __real_td_exec_cpu_run_preemptibly(plan, is_wild(++jobs) ? nowhere : views, scratch, pool, control, yields);
}

static bool is_held_in(const char *call)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[100] = "", named[40];
    bool is;

    if (fd < 0)
        return false;
    is = read(fd, text, sizeof text - 1) > 0 && sscanf(text, "hold %39s", named) == 1 && !strcmp(named, call);
    close(fd);
    return is;
}

static void hold(const char *call)
{
    char thread[16] = "";

    prctl(PR_GET_NAME, thread, 0ul, 0ul, 0ul);
    if (strcmp(thread, "tandemd loader") || !is_held_in(call))
        return;
    dprintf(STDERR_FILENO, "tandemd_faulty: the loader is held in %s\n", call);
    while (is_held_in(call))
        usleep(2000);
}

/* Only the thread that submits launches what is no stamp. */
static void observe(const char *call, const void *info, uint64_t handle)
{
    const td_cu_launch *at = info;
    char word[16];

    if (!strncmp(call, "cu", 2) && is_killed_by(call, handle))
        raise(SIGKILL);
    if (!strncmp(call, "cuMem", 5))
        hold(call);
    if (!strcmp(call, "cuModuleGetFunction") && !loaded && !fake)
        load();
    if (strncmp(call, "cuLaunchKernel", 14) || done || at->block[0] == 1) /* one thread: a stamp, and the job's begin */
        return;
    read_file(word);
    done = word[0];
    if (fake && !strcmp(word, "hang"))
        fake_cuda_hang(at->stream);
    else if (fake && !strcmp(word, "fault"))
        fake_cuda_fault();
    else if (!strcmp(word, "hang"))
        launch(hang, MOST_NS, at->stream);
    else if (!strcmp(word, "fault"))
        launch(fault, 16, at->stream);
}

__attribute__((constructor)) static void begin(void)
{
    path = getenv("TANDEM_TEST_FAULT");
    fake = getenv("TANDEM_TEST_FAKE_CUDA") != NULL;
    fault_cuda(fake ? FAULT_FAKE_CUDA : FAULT_REAL_CUDA);
    if (path)
        fault_observe(observe);
}
