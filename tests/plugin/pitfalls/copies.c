/* The rung `copy`: what is copied there and back beside the kernels of others, and what is not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/pitfalls/rig.h"

static void begin_copies(bool registers)
{
    const fault_plan refuse = {
        .kinds = FAULT_CUDA, .call = "cuMemHostRegister", .n = !registers, .sticky = true, .cuda = 999};

    prepare_fake(ON_CUDA);
    fault_arm(&refuse);
    w.desc.rung = TANDEM_RUNG_COPY;
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_COPY);
    atomic_store(&fake_cuda_driver.holds, true);
    forget();
}

static void end_copies(void)
{
    atomic_store(&fake_cuda_driver.holds, false);
    fault_disarm();
    leave();
}

/* So many jobs' bytes are on their way there, once the worker had the time, and no more. */
static void expect_brought(unsigned count)
{
    for (int i = 0; i < 500 && count_of("cuMemcpyHtoDAsync") < count; i++)
        sleep_ms(10);
    sleep_ms(5);
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), count);
}

static void release_and_end(const tandem_ticket *tickets, int count)
{
    atomic_store(&fake_cuda_driver.holds, false);
    for (int i = 0; i < count; i++)
        assert_int_equal(ended(tickets[i]).state, TANDEM_JOB_DONE);
    atomic_store(&fake_cuda_driver.holds, true);
    forget();
}

static void copies_overlap(void **state)
{
    const tandem_point none = {0};
    tandem_ticket tickets[3];
    tandem_mem mems[3];
    tandem_job jobs[3];
    unsigned char *host;

    (void)state;
    begin_copies(true);
    for (int i = 0; i < 3; i++) {
        mems[i] = new_mem(4 * VIEW_BYTES);
        jobs[i] = new_job(mems[i], none, none);
    }
    /* With memory of its own for each, all three go ahead. */
    for (int i = 0; i < 3; i++)
        tickets[i] = submit(&jobs[i]);
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), 3);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 3);
    sleep_ms(5);
    assert_in_range(state_of(tickets[0]).state, TANDEM_JOB_PENDING, TANDEM_JOB_RUNNING);
    release_and_end(tickets, 3);

    /* What reads what the one before it wrote does so behind that: A -> B, B -> C, and what is at B then. Kernels of this
     * device write nothing: its memory is 0xa5 all over where nothing was brought in. */
    mems[0] = new_mem(4 * VIEW_BYTES);
    assert_int_equal(tandem_mem_host(w.s, mems[0], (void **)&host), TANDEM_OK);
    memset(host, 0x11, 4 * VIEW_BYTES);
    for (int i = 0; i < 3; i++) {
        tandem_attention *a = &jobs[i].op.attention;

        jobs[i] = new_job(mems[0], none, none);
        a->q.offset_bytes = a->k.offset_bytes = a->v.offset_bytes = i == 1 ? VIEW_BYTES : 0;
        a->o.offset_bytes = i == 1 ? 2 * VIEW_BYTES : VIEW_BYTES;
        tickets[i] = submit(&jobs[i]);
    }
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), 3);
    sleep_ms(5);
    release_and_end(tickets, 3);
    for (int i = 0; i < VIEW_BYTES; i++)
        if (host[i] != 0x11 || host[VIEW_BYTES + i] != 0xa5 || host[2 * VIEW_BYTES + i] != 0xa5)
            fail_msg("byte %d is %x, %x, %x", i, host[i], host[VIEW_BYTES + i], host[2 * VIEW_BYTES + i]);

    /* A deadline's result is taken back once it is known to be wanted: nothing is brought in behind it. */
    jobs[0] = new_job(mems[0], none, none);
    jobs[0].deadline_ns = LONG_NS;
    jobs[1] = new_job(mems[1], none, none);
    for (int i = 0; i < 2; i++)
        tickets[i] = submit(&jobs[i]);
    expect_brought(1);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 0);
    assert_int_equal(state_of(tickets[1]).state, TANDEM_JOB_PENDING);
    release_and_end(tickets, 2);

    /* What kernels write in place on the host is not brought in before they are through; its neighbours are. */
    jobs[0].deadline_ns = 0;
    jobs[0].op.attention.o.stride_row *= 2;
    jobs[0].op.attention.o.stride_head *= 2;
    jobs[0].op.attention.o.stride_batch *= 2;
    jobs[2] = new_job(mems[0], none, none); /* its O is there */
    jobs[2].op.attention.q.mem = jobs[2].op.attention.k.mem = jobs[2].op.attention.v.mem = mems[2];
    for (int i = 0; i < 3; i++)
        tickets[i] = submit(&jobs[i]);
    expect_brought(2);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 1);
    release_and_end(tickets, 3);
    end_copies();
}

/* Bytes that go through pinned memory beside the host's: the worker brings them, and not while that is in use. */
static void copies_by_hand(void **state)
{
    const tandem_point none = {0};
    tandem_ticket tickets[3];
    tandem_mem mems[2], outs[3];
    unsigned char *host = aligned_alloc(4096, 8 * VIEW_BYTES), *pinned;

    (void)state;
    assert_non_null(host);
    memset(host, 0x22, 8 * VIEW_BYTES);
    begin_copies(false);
    for (int i = 0; i < 2; i++) {
        const tandem_mem_desc desc = {.struct_bytes = sizeof desc,
                                      .source = TANDEM_MEM_HOST,
                                      .host = host + 4 * i * VIEW_BYTES,
                                      .bytes = 4 * VIEW_BYTES};

        assert_int_equal(tandem_mem_create(w.s, &desc, &mems[i]), TANDEM_OK);
    }
    for (int i = 0; i < 3; i++)
        outs[i] = new_mem(4 * VIEW_BYTES);
    forget();
    for (int round = 0; round < 2; round++) { /* the second job reads another mem, then the same */
        for (int i = 0; i < 3; i++) {
            tandem_job job = new_job(mems[i == 1 && round == 0], none, none);

            job.op.attention.o.mem = outs[i];
            tickets[i] = submit(&job);
        }
        expect_brought(round == 0 ? 2 : 1);
        assert_int_equal(state_of(tickets[2]).state, TANDEM_JOB_PENDING);
        release_and_end(tickets, 3);
    }
    /* And what comes back this way holds up what is behind it. */
    for (int i = 0; i < 2; i++) {
        const tandem_job job = new_job(mems[i], none, none);

        tickets[i] = submit(&job);
    }
    expect_brought(1);
    assert_int_equal(host[VIEW_BYTES], 0x22);
    /* Cancelled, it does not come back at all. */
    assert_int_equal(tandem_cancel(w.s, tickets[0]), TANDEM_OK);
    atomic_store(&fake_cuda_driver.holds, false);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    assert_int_equal(host[VIEW_BYTES], 0x22);
    assert_int_equal(host[5 * VIEW_BYTES], 0xa5);
    assert_int_equal(tandem_mem_host(w.s, outs[0], (void **)&pinned), TANDEM_OK);
    assert_int_equal(pinned[VIEW_BYTES], 0xa5);
    end_copies();
    free(host);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(copies_overlap),
    cmocka_unit_test(copies_by_hand),
};
const test_cases pitfalls_copies_cases = TEST_CASES(cases);
