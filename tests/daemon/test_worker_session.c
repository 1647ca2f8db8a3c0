/* A session of tandemd's worker over a fake CUDA: its client's semaphores are only the GPU's to read, and what the client
 * owes is signalled in its place. Nothing computes there; that is tests/daemon/test_daemon_gpu.c's part, on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/client/tuning_file.h"
#include "interop/os/memory.h"
#include "kernels/attention/tuning.h"
#include "kernels/model/graph_file.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/network_util.h"

#define MS ((uint64_t)1000000)
#define PATIENCE LIMITS_PATIENCE_NS
enum { BYTES = 65536 };

static vku vk;
static td_vk *device;
static tandem_session *session;
static VkSemaphore engines_semaphore, ours_semaphore;
static tandem_timeline engines, ours;
static tandem_mem mem;

static tandem_timeline import(VkSemaphore *semaphore, bool by_session)
{
    char why[256] = "";
    tandem_timeline timeline;
    int fd;

    assert_int_equal(td_vk_timeline_create(device, 0, false, semaphore, why, sizeof why), TANDEM_OK);
    fd = fake_cuda_semaphore_fd(*semaphore);
    assert_int_equal(td_worker_session_import_timeline(session, fd, by_session, 0, &timeline), TANDEM_OK);
    close(fd);
    return timeline;
}

static int set_up(void **state)
{
    char why[256] = "";
    td_vk_desc desc;
    int fd;

    (void)state;
    if (vku_open(&vk, NULL) != VKU_OK)
        return 0; /* each test skips */
    fault_cuda(FAULT_FAKE_CUDA);
    fault_vulkan(vk.gipa);
    desc = vku_desc(&vk);
    desc.get_instance_proc_addr = fault_gipa;
    assert_int_equal(td_vk_open(&desc, &(td_log){0}, &device, why, sizeof why), TANDEM_OK);
    fake_cuda_driver.device_count = 1;
    fake_cuda_driver.vulkan = fault_vulkan_real();
    fake_cuda_driver.device = vk.device;
    assert_int_equal(td_worker_session_create(&(tandem_session_desc){.struct_bytes = sizeof(tandem_session_desc),
                                                                     .backend = TANDEM_BACKEND_CUDA,
                                                                     .frames_in_flight = 4,
                                                                     .wait_bound_ns = 200 * MS},
                                              true, &session),
                     TANDEM_OK);
    engines = import(&engines_semaphore, false);
    ours = import(&ours_semaphore, true);
    fd = memfd_create("exported", MFD_CLOEXEC);
    assert_int_equal(td_worker_session_import_mem(session, fd, BYTES, false, 0, BYTES, &mem), TANDEM_OK);
    close(fd);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (!session)
        return 0;
    assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    td_vk_timeline_destroy(device, &engines_semaphore);
    td_vk_timeline_destroy(device, &ours_semaphore);
    td_vk_close(&device);
    vku_close(&vk);
    assert_int_equal(fake_cuda_driver.live, 0);
    return 0;
}

static tandem_ticket submit(uint64_t wait, uint64_t signal)
{
    tandem_job job = {.struct_bytes = sizeof job,
                      .operation = TANDEM_OPERATION_ATTENTION,
                      .wait = {engines, wait},
                      .signal = {ours, signal},
                      .op.attention = fault_attention(TANDEM_DTYPE_F16, 32, TANDEM_PRECISION_F16)};
    tandem_attention *a = &job.op.attention;
    tandem_ticket ticket;

    a->q.mem = a->k.mem = a->v.mem = a->o.mem = mem;
    a->k.offset_bytes = 4096;
    a->v.offset_bytes = 8192;
    a->o.offset_bytes = 12288;
    assert_int_equal(tandem_submit(session, &job, &ticket), TANDEM_OK);
    return ticket;
}

static tandem_job_report ended(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(session, ticket, PATIENCE, &report), TANDEM_OK);
    return report;
}

static void await_value(VkSemaphore semaphore, uint64_t wanted)
{
    const uint64_t begin = td_now_ns();
    uint64_t value = 0;

    while (td_vk_timeline_value(device, semaphore, &value) == TANDEM_OK && value < wanted) {
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("the counter is %u and not %u", (unsigned)value, (unsigned)wanted);
        usleep(1000);
    }
    assert_int_equal(value, wanted);
}

/* The GPU waits for the client's semaphore and signals the other: no host in between. */
static void jobs_meet_on_the_gpu(void **state)
{
    tandem_ticket ticket;
    uint64_t value;

    (void)state;
    if (!session)
        skip();
    ticket = submit(1, 1);
    usleep(50000);
    assert_int_equal(td_vk_timeline_value(device, ours_semaphore, &value), TANDEM_OK);
    assert_int_equal(value, 0);
    assert_int_equal(td_vk_timeline_signal(device, engines_semaphore, 1), TANDEM_OK);
    assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
    await_value(ours_semaphore, 1);
}

/* What was announced and does not come: the job is lost, its stream goes on. */
static void what_never_comes_is_released(void **state)
{
    tandem_job_report report;
    tandem_ticket ticket;

    (void)state;
    if (!session)
        skip();
    report = ended(submit(2, 2));
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    await_value(engines_semaphore, 2);
    await_value(ours_semaphore, 2);
    assert_false(td_worker_session_is_broken(session));
    ticket = submit(3, 3);
    assert_int_equal(td_vk_timeline_signal(device, engines_semaphore, 3), TANDEM_OK);
    assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
}

/* The client is gone: all that its jobs wait for is signalled at once. */
static void a_dead_clients_jobs_end(void **state)
{
    tandem_ticket tickets[3];
    const uint64_t begin = td_now_ns();

    (void)state;
    if (!session)
        skip();
    for (uint64_t i = 0; i < 3; i++)
        tickets[i] = submit(4 + i, 4 + i);
    td_worker_session_release(session);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ended(tickets[i]).state, TANDEM_JOB_CANCELLED);
    await_value(engines_semaphore, 6);
    await_value(ours_semaphore, 6);
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
}

static td_mem *mem_of_model(tandem_session *of, tandem_model model)
{
    const tandem_mem id = td_worker_session_model_mem(of, model);
    char why[TD_WHY_BYTES];
    td_mem *found;

    pthread_mutex_lock(&of->lock);
    found = td_mem_find_locked(of, id, "mem", why);
    pthread_mutex_unlock(&of->lock);
    return found;
}

static uint64_t cleared_bytes;

static void see_clearing(const char *call, const void *info, uint64_t bytes)
{
    (void)info;
    if (!strcmp(call, "cuMemsetD8Async"))
        cleared_bytes += bytes;
}

/* What an instance keeps is the GPU's alone: it is copied there, and back. */
static void check_copies(tandem_instance instance)
{
    td_wire_instance_state m = {.range_count = 2, .ranges = {{.offset_bytes = 8, .bytes = 12}, {.offset_bytes = 4, .bytes = 4}}};
    const float first[4] = {3, 4, 5, 2}, zeros[4] = {0};
    float got[4] = {9, 9, 9, 9};

    assert_int_equal(td_worker_session_copy_state(session, instance, &m, got), TANDEM_OK);
    assert_memory_equal(got, zeros, sizeof got);
    m.writes = 1;
    memcpy(got, first, sizeof got);
    assert_int_equal(td_worker_session_copy_state(session, instance, &m, got), TANDEM_OK);
    m = (td_wire_instance_state){.range_count = 1, .ranges = {{.offset_bytes = 4, .bytes = 16}}};
    assert_int_equal(td_worker_session_copy_state(session, instance, &m, got), TANDEM_OK);
    const float there[4] = {2, 3, 4, 5};
    assert_memory_equal(got, there, sizeof got);
    fault_arm(&(fault_plan){.kinds = FAULT_CUDA, .call = "cuMemcpyDtoH", .n = 1, .cuda = 719});
    assert_int_equal(td_worker_session_copy_state(session, instance, &m, got), TANDEM_ERROR_DEVICE);
    fault_disarm();
    assert_int_equal(td_worker_session_copy_state(session, instance + 1, &m, got), TANDEM_ERROR_ARG);
}

/* Weights of another session's are seen in place, and so is its network: an instance has its state here. Clients get the
 * beginning of the file, which nobody can change. */
static void models_are_seen_from_another_session(void **state)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_model model, alias;
    tandem_instance instance;
    tandem_session *other;
    td_mem *there, *here;
    char header[4096] = "", why[TD_WHY_BYTES];
    uint64_t bytes;
    int fd;

    (void)state;
    if (!session)
        skip();
    assert_int_equal(td_worker_session_create(&(tandem_session_desc){.struct_bytes = sizeof(tandem_session_desc),
                                                                     .backend = TANDEM_BACKEND_CUDA},
                                              false, &other),
                     TANDEM_OK);
    assert_int_equal(tandem_model_load(other, network_file(network_text), &model), TANDEM_OK);
    assert_int_equal(td_worker_session_alias_model(session, other, model, &alias), TANDEM_OK);
    here = mem_of_model(session, alias);
    there = mem_of_model(other, model);
    assert_true(here && there && here->address == there->address && here->bytes == there->bytes);
    assert_in_range(td_worker_session_state_bytes(other, model), NETWORK_CHANNELS * sizeof(float), 256);
    fault_observe(see_clearing);
    assert_int_equal(tandem_model_instance(session, alias, &desc, &instance), TANDEM_OK);
    fault_observe(NULL);
    assert_int_equal(cleared_bytes, td_worker_session_state_bytes(other, model)); /* once */
    check_copies(instance);
    fd = td_worker_session_model_header(other, model, &bytes);
    assert_int_equal(td_memfd_check_whole(fd, bytes - 1, why, sizeof why), TANDEM_OK); /* without the weights */
    assert_int_equal(td_worker_session_model_header(session, alias, &bytes), -1);
    assert_true(pread(fd, header, sizeof header - 1, 0) > 8);
    assert_non_null(strstr(header + 8, TD_GRAPH_KEY));
    assert_true(pwrite(fd, why, 1, 0) < 0 && ftruncate(fd, 1) < 0);
    assert_int_equal(tandem_model_destroy(session, alias), TANDEM_OK); /* and its instance */
    assert_int_equal(tandem_instance_destroy(session, instance), TANDEM_ERROR_ARG);
    assert_int_equal(td_worker_session_alias_model(session, other, alias, &alias), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_session_destroy(&other), TANDEM_OK);
    network_file_remove();
}

/* A worker session on the CPU, a timeline, and a job on floats of its own, whose scratch is looked at. */
typedef struct scratch_rig {
    tandem_session *s;
    tandem_timeline before;
    tandem_mem floats;
    tandem_job job;
} scratch_rig;

static void scratch_open(scratch_rig *r, uint32_t frames)
{
    const tandem_session_desc session_desc = {
        .struct_bytes = sizeof session_desc, .backend = TANDEM_BACKEND_CPU, .frames_in_flight = frames};
    const tandem_timeline_desc timeline = {.struct_bytes = sizeof timeline};
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 4 * BYTES};
    tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = 64};

    assert_int_equal(td_worker_session_create(&session_desc, false, &r->s), TANDEM_OK);
    assert_int_equal(tandem_timeline_create(r->s, &timeline, &r->before), TANDEM_OK);
    assert_int_equal(tandem_mem_create(r->s, &desc, &r->floats), TANDEM_OK);
    view.mem = r->floats;
    r->job = (tandem_job){.struct_bytes = sizeof r->job, .operation = TANDEM_OPERATION_ATTENTION};
    r->job.op.attention = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1,
                                             .kv_heads = 1, .q_len = 200, .kv_len = 300, .head_dim = 64,
                                             .precision = TANDEM_PRECISION_8B};
    r->job.op.attention.o.offset_bytes = 2 * BYTES;
}

static tandem_status submit_for(scratch_rig *r, uint64_t owner, uint64_t most_bytes, tandem_ticket *ticket, uint64_t *lacks)
{
    td_submission from = {.desc = &r->job, .owner = owner, .most_bytes = most_bytes};
    const tandem_status status = td_worker_session_submit(r->s, &from, ticket);

    *lacks = from.lacks_bytes;
    return status;
}

static bool is_zero(const tandem_session *s)
{
    const unsigned char *bytes = s->jobs[0].scratch.block;
    bool zero = true;

    assert_non_null(bytes);
    for (uint64_t i = 0; i < s->jobs[0].scratch.bytes; i++)
        zero = zero && !bytes[i];
    return zero;
}

/* On a CPU all clients have one session: what one leaves in its scratch is gone before the next one's job begins. */
static void scratch_is_cleared_for_others(void **state)
{
    tandem_ticket ticket;
    uint64_t lacks;
    scratch_rig r;
    void *host;

    (void)state;
    scratch_open(&r, 1);
    assert_int_equal(tandem_mem_host(r.s, r.floats, &host), TANDEM_OK);
    for (int i = 0; i < BYTES; i++)
        ((float *)host)[i] = (float)(i % 7) + 1;
    for (uint64_t owner = 1; owner <= 3; owner++) {
        r.job.wait = (tandem_point){r.before, owner};
        assert_int_equal(submit_for(&r, owner / 2, UINT64_MAX, &ticket, &lacks), TANDEM_OK); /* 0, 1, 1 */
        pthread_mutex_lock(&r.s->lock);
        assert_int_equal(is_zero(r.s), owner < 3); /* its own it may find */
        pthread_mutex_unlock(&r.s->lock);
        assert_int_equal(tandem_timeline_signal(r.s, r.before, owner), TANDEM_OK);
        assert_int_equal(tandem_wait(r.s, ticket, PATIENCE, NULL), TANDEM_OK);
    }
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
}

static uint64_t held_by(tandem_session *s, uint64_t owner)
{
    td_holding list[TD_MAX_JOBS_IN_FLIGHT];
    const uint32_t count = td_worker_session_holdings(s, list);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += list[i].owner == owner ? list[i].bytes : 0;
    return bytes;
}

/* A client's jobs hold what it may have and no more, however many there are, and whatever it left in other slots. */
static void scratch_is_bounded(void **state)
{
    tandem_ticket tickets[3];
    scratch_rig r;
    uint64_t one, lacks;

    (void)state;
    scratch_open(&r, 3);
    assert_int_equal(submit_for(&r, 7, UINT64_MAX, &tickets[0], &lacks), TANDEM_OK);
    assert_int_equal(tandem_wait(r.s, tickets[0], PATIENCE, NULL), TANDEM_OK);
    one = held_by(r.s, 7);
    assert_true(one > 0);
    assert_int_equal(submit_for(&r, 8, one - 1, &tickets[0], &lacks), TANDEM_ERROR_NOMEM); /* too much for it, ever */
    assert_int_equal(lacks, one);
    assert_int_equal(held_by(r.s, 8), 0);
    r.job.wait = (tandem_point){r.before, 1};
    assert_int_equal(submit_for(&r, 8, 2 * one, &tickets[0], &lacks), TANDEM_OK);
    assert_int_equal(submit_for(&r, 8, 2 * one, &tickets[1], &lacks), TANDEM_OK);
    assert_int_equal(lacks, 0);
    assert_int_equal(held_by(r.s, 8), 2 * one);
    assert_int_equal(submit_for(&r, 8, 2 * one, &tickets[2], &lacks), TANDEM_ERROR_BUSY); /* until one of the two is over */
    assert_int_equal(lacks, 0);
    assert_int_equal(tandem_timeline_signal(r.s, r.before, 1), TANDEM_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tandem_wait(r.s, tickets[i], PATIENCE, NULL), TANDEM_OK);
    /* What it has in two idle slots makes room for one large block. */
    r.job.wait = (tandem_point){0};
    r.job.op.attention.kv_len = 500;
    assert_int_equal(submit_for(&r, 8, 2 * one, &tickets[0], &lacks), TANDEM_OK);
    assert_int_equal(tandem_wait(r.s, tickets[0], PATIENCE, NULL), TANDEM_OK);
    assert_in_range(held_by(r.s, 8), one + 1, 2 * one);
    assert_true(td_worker_session_trim(r.s, 8));
    assert_int_equal(held_by(r.s, 8), 0);
    assert_false(td_worker_session_trim(r.s, 8));
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
}

static tandem_info info_of(tandem_session *s)
{
    tandem_info info = {.struct_bytes = sizeof info};

    assert_int_equal(tandem_session_info(s, &info), TANDEM_OK);
    return info;
}

/* What AUTO is on a session, for a shape that the rule gives to F16. */
static uint32_t automatic(const tandem_session *s)
{
    const tandem_attention op = fault_attention(TANDEM_DTYPE_F16, 32, TANDEM_PRECISION_AUTO);

    return td_attention_precision(&op, &s->target);
}

/* A table in which 8b is the faster even for few keys. */
static void auto_goes_by_the_table_of_its_gpu(void **state)
{
    static const char text[] =
        "{\"tandem\":\"choice\",\"version\":2,\"device\":\"%s\",\"sm\":%d,\"multiprocessors\":4,\"parts\":["
        "{\"head_dim\":32,\"causal\":0,\"f16\":{\"kernel\":[[9,%s],%s]},\"8b\":{\"kernel\":[[3,%s],%s],"
        "\"prologue\":[[1,%s],%s]}}]}";
    static const char nulls[] = "null,null,null,null,null,null,null";
    static const char rest[] =
        "[null,null,null,null,null,null,null,null],[null,null,null,null,null,null,null,null],"
        "[null,null,null,null,null,null,null,null],[null,null,null,null,null,null,null,null],"
        "[null,null,null,null,null,null,null,null],[null,null,null,null,null,null,null,null],"
        "[null,null,null,null,null,null,null,null]";
    static td_tuning_table table;
    char mine[4096], others[4096], why[200] = "";
    tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                .backend = TANDEM_BACKEND_CUDA,
                                .tuning = mine,
                                .error_text = why,
                                .error_text_bytes = sizeof why};
    tandem_session *s;

    (void)state;
    if (!session)
        skip();
    snprintf(mine, sizeof mine, text, "fake CUDA device 0", 90, nulls, rest, nulls, rest, nulls, rest);
    snprintf(others, sizeof others, text, "fake CUDA device 1", 90, nulls, rest, nulls, rest, nulls, rest);
    assert_int_equal(info_of(session).tuning, TANDEM_TUNING_RULE);
    assert_string_equal(info_of(session).tuning_reason, "no times of 'fake CUDA device 0' came with this library");
    assert_int_equal(automatic(session), TANDEM_PRECISION_F16);

    assert_int_equal(td_tuning_parse(others, strlen(others), &table, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_worker_session_tune(session, &table), TANDEM_OK);
    assert_int_equal(info_of(session).tuning, TANDEM_TUNING_RULE);
    assert_string_equal(info_of(session).tuning_reason,
                        "what was given is not used: it was measured on 'fake CUDA device 1' (compute capability 9.0), "
                        "this is 'fake CUDA device 0' (9.0)");
    assert_int_equal(automatic(session), TANDEM_PRECISION_F16);

    assert_int_equal(td_tuning_parse(mine, strlen(mine), &table, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_worker_session_tune(session, &table), TANDEM_OK);
    memset(&table, 0, sizeof table); /* it was copied */
    assert_int_equal(info_of(session).tuning, TANDEM_TUNING_GIVEN);
    assert_string_equal(info_of(session).tuning_reason, "");
    assert_int_equal(automatic(session), TANDEM_PRECISION_8B);

    /* The same by a session's text. */
    desc.tuning_bytes = strlen(mine);
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    memset(mine, 0, sizeof mine);
    assert_int_equal(info_of(s).tuning, TANDEM_TUNING_GIVEN);
    assert_int_equal(automatic(s), TANDEM_PRECISION_8B);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_ERROR_ARG);
    assert_null(s);
    assert_non_null(strstr(why, "desc.tuning: the table is no JSON"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_meet_on_the_gpu),
        cmocka_unit_test(what_never_comes_is_released),
        cmocka_unit_test(a_dead_clients_jobs_end),
        cmocka_unit_test(models_are_seen_from_another_session),
        cmocka_unit_test(auto_goes_by_the_table_of_its_gpu),
        cmocka_unit_test(scratch_is_cleared_for_others),
        cmocka_unit_test(scratch_is_bounded),
    };

    return cmocka_run_group_tests_name("a worker session", tests, set_up, tear_down);
}
