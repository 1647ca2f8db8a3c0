/* What sessions take, and give back: the caller's allocator, accounts, descriptors, and models.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/model/safetensors.h"
#include "tests/plugin/session/rig.h"

typedef struct ledger {
    atomic_int live;
    atomic_int left; /* allocations until one fails; negative: none does */
    atomic_int calls;
} ledger;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    ledger *l = &((struct { rig r; ledger l; } *)user)->l;
    int left = atomic_load(&l->left);

    assert_true(alignment && !(alignment & (alignment - 1)));
    atomic_fetch_add(&l->calls, 1);
    if (left == 0)
        return NULL;
    if (left > 0)
        atomic_store(&l->left, left - 1);
    atomic_fetch_add(&l->live, 1);
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void count_release(void *user, void *pointer)
{
    ledger *l = &((struct { rig r; ledger l; } *)user)->l;

    assert_non_null(pointer);
    atomic_fetch_sub(&l->live, 1);
    free(pointer);
}

/* Everything that allocates; the first failure ends it. */
static tandem_status use_all(rig *r)
{
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = MEM_BYTES};
    tandem_timeline_desc timeline_desc = {.struct_bytes = sizeof timeline_desc};
    tandem_timeline timeline;
    tandem_model model;
    tandem_mem mem;
    tandem_ticket ticket;
    tandem_job job;
    tandem_status status = tandem_session_create(&r->desc, &r->s);

    for (uint32_t i = 0; i < 20 && status == TANDEM_OK; i++)
        status = tandem_mem_create(r->s, &mem_desc, &mem);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(r->s, &timeline_desc, &timeline);
    if (status == TANDEM_OK)
        status = tandem_model_load(r->s, model_path, &model);
    if (status == TANDEM_OK) {
        job = new_job(mem);
        status = tandem_submit(r->s, &job, &ticket);
    }
    if (status == TANDEM_OK)
        status = tandem_wait(r->s, ticket, LONG_NS, NULL);
    if (status == TANDEM_OK)
        status = tandem_model_destroy(r->s, model);
    return status;
}

static void test_allocator(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        struct {
            rig r;
            ledger l;
        } it;
        int calls;

        if (kind == ON_CUDA || kind == ON_VULKAN_HALF || kind == ON_TIMELINE || !rig_prepare(&it.r, kind))
            continue;
        memset(&it.l, 0, sizeof it.l);
        it.r.desc.allocate = count_allocate;
        it.r.desc.release = count_release;
        atomic_store(&it.l.left, -1);
        assert_int_equal(use_all(&it.r), TANDEM_OK);
        calls = atomic_load(&it.l.calls);
        assert_true(calls > 25 && atomic_load(&it.l.live) > 20);
        assert_int_equal(tandem_session_destroy(&it.r.s), TANDEM_OK);
        assert_int_equal(atomic_load(&it.l.live), 0);
        /* Each allocation fails once: NOMEM, a reason, no leak. */
        for (int n = 0; n < calls; n += gpu_signals(&it.r) ? 5 : 1) {
            const unsigned before = errors_of(&it.r);

            atomic_store(&it.l.left, n);
            assert_int_equal(use_all(&it.r), TANDEM_ERROR_NOMEM);
            assert_int_equal(errors_of(&it.r), before + 1);
            assert_non_null(strstr(it.r.log.last, "memory"));
            if (it.r.s)
                assert_int_equal(tandem_session_destroy(&it.r.s), TANDEM_OK);
            assert_int_equal(atomic_load(&it.l.live), 0);
        }
        rig_close(&it.r);
    }
}

static void test_accounting(void **state)
{
    tandem_info info = {.struct_bytes = sizeof info};
    rig r;

    (void)state;
    for (rig_kind kind = 0; kind < ON_COPY; kind++) {
        tandem_mem mem;
        uint64_t before;

        if (!rig_open(&r, kind))
            continue;
        assert_int_equal(tandem_mem_destroy(r.s, new_mem(&r, 4096)), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        before = info.host_bytes + info.device_bytes;
        mem = new_mem(&r, 1 << 20);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_in_range(info.host_bytes + info.device_bytes - before, 1 << 20, (1 << 20) + (1 << 18));
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_int_equal(info.host_bytes + info.device_bytes, before);
        rig_close(&r);
    }
}

/* Small ones, and those that come and go by whole pages, if not by many. */
static void test_zeros(void **state)
{
    static const uint64_t sizes[] = {MEM_BYTES, (4 << 20) - 1, (4 << 20) + 1, (9 << 20) + 5000, (65 << 20) + 3};
    rig r;

    (void)state;
    assert_true(rig_open(&r, ON_CPU));
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) { /* each another time in what it has left */
        const uint64_t bytes = sizes[i / 2];
        const tandem_mem mem = new_mem(&r, bytes);
        unsigned char *host;

        assert_int_equal(tandem_mem_host(r.s, mem, (void **)&host), TANDEM_OK);
        assert_int_equal(*host, 0);
        assert_memory_equal(host, host + 1, bytes - 1);
        memset(host, 7, bytes);
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
    }
    rig_close(&r);
}

static void cycle(rig *r)
{
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);

    job.wait = (tandem_point){new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0), 1};
    job.signal = (tandem_point){new_timeline(r, TANDEM_SIGNALLER_SESSION, 0), 1};
    submit(r, &job);
    assert_int_equal(tandem_timeline_signal(r->s, job.wait.timeline, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    if (mem & 1)
        assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void test_fds(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        uint32_t cycles = kind == ON_CPU ? 60 : 20; /* ON_VULKAN_*: the device stays */
        int before;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        if (!rig_start(&r))
            continue;
        if (kind == ON_VULKAN)
            cycles = r.info.backend == TANDEM_BACKEND_CPU ? 60 : 12;
        else if (r.info.backend == TANDEM_BACKEND_CUDA)
            cycles = 4;
        cycle(&r);
        assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        before = vku_open_fds();
        for (uint32_t i = 0; i < cycles; i++) {
            assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
            cycle(&r);
            assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        }
        assert_int_equal(vku_open_fds(), before);
        rig_close(&r);
    }
}

/* Models. */

static void models(rig *r)
{
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_job job = new_job(mem);
    tandem_model model, again;
    tandem_view k, v, view;
    tandem_ticket ticket;
    uint64_t shape[4];
    float *data = calloc(1, MEM_BYTES);
    td_safetensors file;
    char why[200];

    assert_int_equal(tandem_model_load(r->s, model_path, &model), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(r->s, model, "k", &k, shape), TANDEM_OK);
    assert_true(shape[0] == 1 && shape[1] == KV_HEADS && shape[2] == KEYS && shape[3] == DIM);
    assert_true(k.stride_row == DIM && k.stride_head == KEYS * DIM && k.stride_batch == KV_HEADS * KEYS * DIM);
    assert_int_equal(k.dtype, TANDEM_DTYPE_F32);
    assert_int_equal(tandem_model_tensor(r->s, model, "v", &v, shape), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(r->s, model, "scalar", &view, shape), TANDEM_OK);
    assert_true(shape[0] == 1 && shape[3] == 1 && view.dtype == TANDEM_DTYPE_BF16);
    REFUSED(r, ARG, "name is 'w'", got = tandem_model_tensor(r->s, model, "w", &view, shape));
    REFUSED(r, UNSUPPORTED, "name is 'ids', which no job can read: I64",
            got = tandem_model_tensor(r->s, model, "ids", &view, shape));
    REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64 ", %s", k.mem, r->has_vk ? "which belongs to a model" : "of a session without Vulkan"),
            got = tandem_mem_get_vulkan(r->s, k.mem, &TANDEM_INIT(tandem_mem_vulkan)));
    REFUSED(r, UNSUPPORTED, "name is 'five'", got = tandem_model_tensor(r->s, model, "five", &view, shape));
    assert_true(view.mem == 0 && shape[0] == 0);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which belongs to a model", k.mem),
            got = tandem_mem_destroy(r->s, k.mem));

    fill(data, 4);
    transfer(r, mem, data, MEM_BYTES, true);
    job.op.attention.k = k;
    job.op.attention.v = v;
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    transfer(r, mem, data, MEM_BYTES, false);
    assert_int_equal(td_safetensors_open(model_path, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_safetensors_read(&file, td_safetensors_find(&file, "k"), data + K_AT, why, sizeof why),
                     TANDEM_OK);
    assert_int_equal(td_safetensors_read(&file, td_safetensors_find(&file, "v"), data + V_AT, why, sizeof why),
                     TANDEM_OK);
    td_safetensors_close(&file);
    check_output(&job, data, 2e-3);
    {
        tandem_job bad = job;

        bad.op.attention.o = bad.op.attention.k;
        bad.op.attention.o.stride_head = bad.op.attention.o.stride_batch = ROWS * DIM;
        REFUSED(r, ARG, say("o.mem is 0x%" PRIx64 ", which belongs to a model", k.mem),
                got = tandem_submit(r->s, &bad, &ticket));
    }
    /* Destroyed under a job that waits. */
    job.wait = (tandem_point){engines, 1};
    ticket = submit(r, &job);
    assert_int_equal(tandem_model_destroy(r->s, model), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_CANCELLED);
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which was destroyed", model), got = tandem_model_destroy(r->s, model));
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which was destroyed", model),
            got = tandem_model_tensor(r->s, model, "k", &view, shape));
    REFUSED(r, ARG, say("k.mem is 0x%" PRIx64 ", which was destroyed", k.mem),
            got = tandem_submit(r->s, &job, &ticket));
    assert_int_equal(tandem_model_load(r->s, model_path, &again), TANDEM_OK); /* left for the session */
    free(data);
}

/* A file without a tensor, and one whose name is no line of its own. */
static void odd_models(rig *r)
{
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    char path[] = "/tmp/tandem-empty-XXXXXX";
    tandem_info before = {.struct_bytes = sizeof before}, after = before;
    const int fd = mkstemp(path);
    tandem_model model;

    assert_int_equal(write(fd, empty, sizeof empty - 1), sizeof empty - 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tandem_model_load(r->s, path, &model), TANDEM_OK);
        assert_int_equal(tandem_model_destroy(r->s, model), TANDEM_OK);
        assert_int_equal(tandem_session_info(r->s, i ? &after : &before), TANDEM_OK);
    }
    assert_int_equal(after.host_bytes, before.host_bytes);
    assert_int_equal(after.device_bytes, before.device_bytes);
    close(fd);
    unlink(path);

    assert_int_equal(tandem_model_load(r->s, "/two\nlines\x1b[31m", &model), TANDEM_ERROR_IO);
    assert_non_null(strstr(r->log.last, "'/two?lines?[31m'"));
}

static void test_models(void **state)
{
    (void)state;
    each_kind(models);
    each_kind(odd_models);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_allocator),
    cmocka_unit_test(test_accounting),
    cmocka_unit_test(test_zeros),
    cmocka_unit_test(test_fds),
    cmocka_unit_test(test_models),
};
const test_cases session_memory_cases = TEST_CASES(cases);
