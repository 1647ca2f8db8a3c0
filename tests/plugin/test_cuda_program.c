/* Sessions in a program of CUDA's, without Vulkan: in its context, on its stream, on its memory; and which devices there are
 * at all. Over a fake CUDA: nothing computes, but the order of streams, whose context is current, and what is left are real.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "interop/os/clock.h"
#include "tandem/plugin.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/fake_image.h"
#include "tests/interop/faults.h"
#include "tests/limits.h"

#define MS ((uint64_t)1000000)
#define PATIENCE LIMITS_PATIENCE_NS
#define STUCK_NS (20 * MS)
enum { BYTES = 65536, ORDINAL = 1 };

static const td_cu_table *cu;

/* The program's own: of its second device. */
typedef struct program {
    td_cu_context context;
    td_cu_stream stream, other;
    td_cu_event event;
    td_cu_pointer memory;
    int live;
    tandem_session *s;
} program;

static void sleep_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void program_open(program *p)
{
    fault_cuda(FAULT_FAKE_CUDA);
    fake_cuda_driver.device_count = 2;
    fake_cuda_driver.vulkan = NULL;
    for (int i = 0; i < 2; i++)
        memset(fake_cuda_driver.uuids[i], 0x10 + i, 16);
    cu = fake_cuda_table();
    memset(p, 0, sizeof *p);
    p->context = fake_cuda_context(ORDINAL);
    assert_int_equal(cu->cuStreamCreate(&p->stream, TD_CU_STREAM_NON_BLOCKING), TD_CU_SUCCESS);
    assert_int_equal(cu->cuStreamCreate(&p->other, TD_CU_STREAM_NON_BLOCKING), TD_CU_SUCCESS);
    assert_int_equal(cu->cuEventCreate(&p->event, TD_CU_EVENT_NO_TIMING), TD_CU_SUCCESS);
    assert_int_equal(cu->cuMemAlloc(&p->memory, BYTES), TD_CU_SUCCESS);
    assert_int_equal(cu->cuCtxPopCurrent(&p->context), TD_CU_SUCCESS);
    p->live = fake_cuda_driver.live;
}

static tandem_status start(program *p, void *context, void *stream)
{
    return tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cuda_context = context, .cuda_stream = stream), &p->s);
}

static void program_close(program *p)
{
    td_cu_context popped;

    if (p->s)
        assert_int_equal(tandem_session_destroy(&p->s), TANDEM_OK);
    assert_int_equal(fake_cuda_driver.live, p->live); /* all that is the session's is gone, and nothing of the program's */
    assert_int_equal(fake_cuda_depth(), 0);
    assert_int_equal(cu->cuCtxPushCurrent(p->context), TD_CU_SUCCESS);
    assert_int_equal(cu->cuMemFree(p->memory), TD_CU_SUCCESS);
    assert_int_equal(cu->cuEventDestroy(p->event), TD_CU_SUCCESS);
    assert_int_equal(cu->cuStreamDestroy(p->stream), TD_CU_SUCCESS);
    assert_int_equal(cu->cuStreamDestroy(p->other), TD_CU_SUCCESS);
    assert_int_equal(cu->cuCtxPopCurrent(&popped), TD_CU_SUCCESS);
    assert_int_equal(fake_cuda_driver.live, 0);
}

static tandem_mem callers_mem(program *p, uint64_t bytes)
{
    const tandem_mem_desc desc =
        TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CUDA, .bytes = bytes, .cuda_pointer = p->memory);
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(p->s, &desc, &mem), TANDEM_OK);
    return mem;
}

static tandem_job job_on(tandem_mem mem)
{
    tandem_job job = TANDEM_INIT(tandem_job,
                                 .operation = TANDEM_OPERATION_ATTENTION,
                                 .op.attention = fault_attention(TANDEM_DTYPE_F16, 32, TANDEM_PRECISION_F16));
    tandem_attention *a = &job.op.attention;

    a->q.mem = a->k.mem = a->v.mem = a->o.mem = mem;
    a->k.offset_bytes = 4096;
    a->v.offset_bytes = 8192;
    a->o.offset_bytes = 12288;
    return job;
}

static uint32_t state_of(program *p, tandem_ticket ticket)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);

    assert_int_equal(tandem_poll(p->s, ticket, &report), TANDEM_OK);
    return report.state;
}

static bool is_reached(td_cu_event event)
{
    return cu->cuEventQuery(event) == TD_CU_SUCCESS;
}

/* What is on the program's stream comes first, then the job, then what is put on it afterwards. With graphs, and launch by
 * launch; and again, as slots and events are used in turn. */
static void in_order(unsigned disguise)
{
    tandem_ticket ticket, last;
    tandem_job job;
    program p;

    fault_disguise_as(disguise);
    program_open(&p);
    assert_int_equal(start(&p, p.context, p.stream), TANDEM_OK);
    job = job_on(callers_mem(&p, BYTES));
    assert_int_equal(tandem_submit(p.s, &job, &ticket), TANDEM_OK); /* nothing before it: it runs */
    assert_int_equal(tandem_wait(p.s, ticket, PATIENCE, NULL), TANDEM_OK);
    assert_int_equal(state_of(&p, ticket), TANDEM_JOB_DONE);
    for (int round = 0; round < 40; round++) {
        atomic_store(&fake_cuda_driver.holds, true);
        fake_cuda_hold(p.stream);
        assert_int_equal(tandem_submit(p.s, &job, &ticket), TANDEM_OK);
        assert_int_equal(tandem_submit(p.s, &job, &last), TANDEM_OK);
        assert_int_equal(cu->cuEventRecord(p.event, p.stream), TD_CU_SUCCESS);
        if (round % 13 == 0) {
            sleep_ns(STUCK_NS);
            assert_int_equal(state_of(&p, ticket), TANDEM_JOB_PENDING);
        }
        assert_false(is_reached(p.event));
        atomic_store(&fake_cuda_driver.holds, false);
        for (const uint64_t until = td_now_ns() + PATIENCE; !is_reached(p.event) && td_now_ns() < until;)
            sleep_ns(MS / 10);
        assert_true(is_reached(p.event)); /* so both are through, whoever has seen it */
        assert_int_equal(state_of(&p, ticket), TANDEM_JOB_DONE);
        assert_int_equal(state_of(&p, last), TANDEM_JOB_DONE);
    }
    program_close(&p);
    fault_disguise_as(0);
}

static void jobs_are_in_order_on_the_programs_stream(void **state)
{
    (void)state;
    in_order(0);
    in_order(FAULT_NO_GRAPHS);
}

/* The job itself holds up what follows on the program's stream, and nothing on another one. */
static void what_follows_waits_for_the_job(void **state)
{
    tandem_ticket ticket;
    tandem_job job;
    program p;

    (void)state;
    fault_disguise_as(FAULT_NO_GRAPHS);
    program_open(&p);
    assert_int_equal(start(&p, p.context, p.stream), TANDEM_OK);
    job = job_on(callers_mem(&p, BYTES));
    atomic_store(&fake_cuda_driver.holds, true);
    assert_int_equal(tandem_submit(p.s, &job, &ticket), TANDEM_OK);
    assert_int_equal(cu->cuEventRecord(p.event, p.other), TD_CU_SUCCESS);
    for (const uint64_t until = td_now_ns() + PATIENCE; !is_reached(p.event) && td_now_ns() < until;)
        sleep_ns(MS / 10);
    assert_true(is_reached(p.event));
    assert_int_equal(cu->cuEventRecord(p.event, p.stream), TD_CU_SUCCESS);
    sleep_ns(STUCK_NS);
    assert_false(is_reached(p.event));
    atomic_store(&fake_cuda_driver.holds, false);
    assert_int_equal(tandem_wait(p.s, ticket, PATIENCE, NULL), TANDEM_OK);
    for (const uint64_t until = td_now_ns() + PATIENCE; !is_reached(p.event) && td_now_ns() < until;)
        sleep_ns(MS / 10);
    assert_true(is_reached(p.event));
    program_close(&p);
    fault_disguise_as(0);
}

/* Its device, and its context at each call of the driver; a context without a stream orders nothing. */
static void the_context_is_the_programs(void **state)
{
    tandem_info info = TANDEM_INIT(tandem_info);
    tandem_ticket ticket;
    tandem_job job;
    program p;

    (void)state;
    program_open(&p);
    fake_cuda_driver.retained_ordinal = -1;
    assert_int_equal(start(&p, p.context, NULL), TANDEM_OK);
    assert_int_equal(tandem_session_info(p.s, &info), TANDEM_OK);
    assert_int_equal(info.backend, TANDEM_BACKEND_CUDA);
    assert_int_equal(info.rung, TANDEM_RUNG_HOST);
    assert_string_equal(info.device, "fake CUDA device 1");
    assert_memory_equal(info.device_uuid, fake_cuda_driver.uuids[ORDINAL], 16);
    job = job_on(callers_mem(&p, BYTES));
    atomic_store(&fake_cuda_driver.holds, true);
    fake_cuda_hold(p.stream);
    assert_int_equal(tandem_submit(p.s, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(p.s, ticket, PATIENCE, NULL), TANDEM_OK);
    atomic_store(&fake_cuda_driver.holds, false);
    assert_int_equal(fake_cuda_driver.retained_ordinal, -1); /* no primary context was made, */
    assert_int_equal(fake_cuda_live_in(p.context), fake_cuda_driver.live); /* and nothing in any other */
    assert_int_equal(fake_cuda_depth(), 0);
    program_close(&p);
}

#define REFUSED(status, expected, ...)                                   \
    do {                                                                 \
        assert_int_equal(__VA_ARGS__, TANDEM_ERROR_##status);            \
        assert_int_equal(tandem_error_text(NULL, text, 400), TANDEM_OK); \
        if (!strstr(text, expected))                                     \
            fail_msg("'%s' is not in '%s'", expected, text);             \
    } while (0)

static void what_is_wrong_is_refused(void **state)
{
    char text[400];
    tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CUDA, .bytes = BYTES);
    tandem_session_desc session = TANDEM_INIT(tandem_session_desc);
    td_cu_pointer foreign;
    td_cu_context popped;
    tandem_ticket ticket;
    tandem_mem mem;
    tandem_job job;
    program p;
    void *host;

    (void)state;
    program_open(&p);
    REFUSED(ARG, "desc.cuda_context is NULL, but desc.cuda_stream is not", start(&p, NULL, p.stream));
    REFUSED(ARG, "cuCtxPushCurrent", start(&p, &p, NULL));
    assert_int_equal(fake_cuda_depth(), 0);
    session.cuda_context = p.context;
    session.backend = TANDEM_BACKEND_CPU;
    REFUSED(ARG, "desc.backend, 2, must be 0 or 1 (CUDA)", tandem_session_create(&session, &p.s));
    session.backend = 0;
    session.rung = TANDEM_RUNG_COPY;
    REFUSED(ARG, "and desc.rung, 4, 0 or 3 (host)", tandem_session_create(&session, &p.s));
    session.rung = 0;
    session.socket = "";
    REFUSED(UNSUPPORTED, "desc.cuda_context is for sessions without a daemon", tandem_session_create(&session, &p.s));
    assert_int_equal(fake_cuda_driver.live, p.live);

    /* A stream and memory of the first device's context. */
    fake_cuda_context(0);
    assert_int_equal(cu->cuMemAlloc(&foreign, BYTES), TD_CU_SUCCESS);
    assert_int_equal(cu->cuCtxPopCurrent(&popped), TD_CU_SUCCESS);
    REFUSED(ARG, "the stream is of another context", start(&p, popped, p.stream));
    assert_int_equal(fake_cuda_depth(), 0);
    assert_int_equal(start(&p, p.context, p.stream), TANDEM_OK);
    REFUSED(ARG, "desc.cuda_pointer is 0", tandem_mem_create(p.s, &desc, &mem));
    desc.cuda_pointer = (uintptr_t)&p;
    REFUSED(ARG, "is no pointer of CUDA's", tandem_mem_create(p.s, &desc, &mem));
    desc.cuda_pointer = foreign;
    REFUSED(ARG, "is on CUDA device 0, not 1", tandem_mem_create(p.s, &desc, &mem));
    desc.cuda_pointer = p.memory + 16;
    REFUSED(ARG, "go beyond its allocation", tandem_mem_create(p.s, &desc, &mem));
    desc.bytes = BYTES - 16;
    assert_int_equal(tandem_mem_create(p.s, &desc, &mem), TANDEM_OK);
    REFUSED(UNSUPPORTED, "which only the GPU sees", tandem_mem_host(p.s, mem, &host));
    assert_int_equal(tandem_mem_destroy(p.s, mem), TANDEM_OK);
    assert_ptr_equal(fake_cuda_context(ORDINAL), p.context);
    assert_int_equal(cu->cuMemHostAlloc(&host, BYTES, TD_CU_HOST_MAPPED), TD_CU_SUCCESS);
    desc.cuda_pointer = (uintptr_t)host;
    REFUSED(UNSUPPORTED, "is host memory", tandem_mem_create(p.s, &desc, &mem));
    assert_int_equal(cu->cuMemFreeHost(host), TD_CU_SUCCESS);
    job = job_on(callers_mem(&p, BYTES));
    assert_int_equal(tandem_timeline_create(p.s, &TANDEM_INIT(tandem_timeline_desc), &job.wait.timeline), TANDEM_OK);
    REFUSED(ARG, "jobs of this session are in order on desc.cuda_stream", tandem_submit(p.s, &job, &ticket));
    assert_int_equal(tandem_session_destroy(&p.s), TANDEM_OK);

    /* Without a driver there is no falling back. */
    fault_cuda(FAULT_NO_CUDA);
    REFUSED(UNSUPPORTED, "no CUDA driver", start(&p, p.context, p.stream));
    assert_int_equal(tandem_session_create(&TANDEM_INIT(tandem_session_desc), &p.s), TANDEM_OK); /* on the CPU */
    desc.cuda_pointer = p.memory;
    REFUSED(UNSUPPORTED, "does not compute in a CUDA context", tandem_mem_create(p.s, &desc, &mem));
    assert_int_equal(tandem_session_destroy(&p.s), TANDEM_OK);
    fault_cuda(FAULT_FAKE_CUDA);
    assert_int_equal(cu->cuMemFree(foreign), TD_CU_SUCCESS);
    assert_int_equal(cu->cuCtxPopCurrent(&popped), TD_CU_SUCCESS);
    program_close(&p);
}

/* --- tandem_devices() --- */

static void devices_are_listed(void **state)
{
    tandem_device list[4] = {TANDEM_INIT(tandem_device)};
    char text[400];
    uint32_t count = 0;
    program p;

    (void)state;
    program_open(&p);
    assert_int_equal(tandem_devices(&count, NULL), TANDEM_OK);
    assert_int_equal(count, 3);
    count = 4;
    assert_int_equal(tandem_devices(&count, list), TANDEM_OK);
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(list[i].struct_bytes, sizeof *list);
        assert_int_equal(list[i].backend, TANDEM_BACKEND_CUDA);
        assert_memory_equal(list[i].uuid, fake_cuda_driver.uuids[i], 16);
        assert_int_equal(list[i].sm, 90);
        assert_int_equal(list[i].cuda_driver_version, 12000);
        assert_int_equal(list[i].multiprocessors, 4);
        assert_int_equal(list[i].memory_bytes, 1u << 30);
        assert_int_equal(list[i].rungs, 1u << TANDEM_RUNG_INLINE | 1u << TANDEM_RUNG_HOST | 1u << TANDEM_RUNG_COPY);
        assert_string_equal(list[i].why, ""); /* it has the best rung, whatever it lacks of the next */
    }
    assert_string_equal(list[1].name, "fake CUDA device 1");
    assert_int_equal(list[2].backend, TANDEM_BACKEND_CPU);
    assert_int_equal(list[2].rungs, 1u << TANDEM_RUNG_CPU | 1u << TANDEM_RUNG_HOST);
    assert_true(list[2].isa[0] && !list[2].why[0]);
    count = 1;
    list[0] = TANDEM_INIT(tandem_device);
    REFUSED(BUSY, "count is 1; there are 3 devices", tandem_devices(&count, list));
    assert_string_equal(list[0].name, "fake CUDA device 0");
    assert_int_equal(count, 3);
    list[0].struct_bytes = 4;
    REFUSED(ARG, "list[0].struct_bytes is 4, not", tandem_devices(&count, list));
    REFUSED(ARG, "count is NULL", tandem_devices(NULL, list));
    fault_cuda(FAULT_NO_CUDA);
    list[0] = TANDEM_INIT(tandem_device);
    count = 4;
    assert_int_equal(tandem_devices(&count, list), TANDEM_OK);
    assert_int_equal(count, 1);
    assert_non_null(strstr(list[0].why, "no CUDA driver"));
    fault_cuda(FAULT_FAKE_CUDA);
    program_close(&p);
}

/* --- engine_plugin/examples/cuda_stream.c --- */

int example_of_cuda(void); /* its main() */

/* Its calls are right, the job is launched on its stream, and all is given back. That nothing is computed here it sees. */
static void the_example_runs(void **state)
{
    static td_cubin_entry entries[] = {{.entry = "stamp"}, {.entry = "norm_rows"}};
    static td_image image = {.entries = entries, .entry_count = 2};
    static const td_cubin kernels = {.sm = 90, .images = &image, .image_count = 1};

    (void)state;
    fake_image(&image, false);
    fault_kernels(&kernels);
    fault_cuda(FAULT_FAKE_CUDA);
    fake_cuda_driver.device_count = 1;
    atomic_store(&fake_cuda_launched, 0);
    assert_int_equal(example_of_cuda(), 1);
    assert_int_equal(atomic_load(&fake_cuda_launched), 1);
    assert_int_equal(fake_cuda_driver.live, 0);
    assert_int_equal(fake_cuda_depth(), 0);
    fault_cuda(FAULT_NO_CUDA);
    assert_int_equal(example_of_cuda(), 0);
    fault_cuda(FAULT_FAKE_CUDA);
    fault_kernels(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_listed),
        cmocka_unit_test(jobs_are_in_order_on_the_programs_stream),
        cmocka_unit_test(what_follows_waits_for_the_job),
        cmocka_unit_test(the_context_is_the_programs),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(the_example_runs),
    };

    return cmocka_run_group_tests_name("a program of CUDA's", tests, NULL, NULL);
}
