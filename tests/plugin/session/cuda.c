/* A program of CUDA's, on a GPU: its context, its stream, its memory. What test_cuda_program.c proves of the order over a fake,
 * with results.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "interop/cu/driver.h"
#include "interop/os/clock.h"
#include "tests/plugin/session/rig.h"

/* Bytes go up, are computed with, and come back, all on the program's stream: nobody waits in between. */
static void test_on_a_programs_stream(void **state)
{
    enum { ROUNDS = 20 };
    char why[300];
    td_cu_device *cu = NULL;
    td_cu_stream stream;
    td_cu_mem memory, pinned[2];
    tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .timing = 1);
    tandem_mem_desc mem_desc = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CUDA, .bytes = MEM_BYTES);
    tandem_session *s;
    tandem_ticket ticket;
    tandem_mem mem;
    tandem_job job;

    (void)state;
    if (td_cu_device_open(NULL, NULL, &cu, why, sizeof why) != TANDEM_OK) {
        if (expects_gpu())
            fail_msg("%s", why);
        skip();
    }
    assert_int_equal(td_cu_mem_alloc(cu, MEM_BYTES, &memory, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(td_cu_mem_alloc_host(cu, MEM_BYTES, &pinned[i], why, sizeof why), TANDEM_OK);
    assert_int_equal(td_cu_enter(cu, why, sizeof why), TANDEM_OK);
    assert_int_equal(TD_CU(cu, cuStreamCreate, &stream, TD_CU_STREAM_NON_BLOCKING), TD_CU_SUCCESS);
    td_cu_leave(cu);
    desc.cuda_context = cu->context;
    desc.cuda_stream = stream;
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    mem_desc.cuda_pointer = memory.address;
    assert_int_equal(tandem_mem_create(s, &mem_desc, &mem), TANDEM_OK);
    job = new_job(mem);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const uint64_t until = td_now_ns() + LONG_NS;
        td_cu_result result;

        fill(pinned[0].host, round);
        assert_int_equal(td_cu_enter(cu, why, sizeof why), TANDEM_OK);
        assert_int_equal(TD_CU(cu, cuMemcpyHtoDAsync, memory.address, pinned[0].host, MEM_BYTES, stream), TD_CU_SUCCESS);
        assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
        assert_int_equal(TD_CU(cu, cuMemcpyDtoHAsync, pinned[1].host, memory.address, MEM_BYTES, stream), TD_CU_SUCCESS);
        do
            result = TD_CU(cu, cuStreamQuery, stream);
        while (result == TD_CU_ERROR_NOT_READY && td_now_ns() < until);
        assert_int_equal(result, TD_CU_SUCCESS);
        td_cu_leave(cu);
        check_output(&job, pinned[1].host, 2e-3);
    }
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    assert_int_equal(td_cu_enter(cu, why, sizeof why), TANDEM_OK);
    assert_int_equal(TD_CU(cu, cuStreamDestroy, stream), TD_CU_SUCCESS); /* the context is alive */
    td_cu_leave(cu);
    td_cu_mem_free(cu, &memory);
    for (int i = 0; i < 2; i++)
        td_cu_mem_free(cu, &pinned[i]);
    td_cu_device_close(&cu);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_on_a_programs_stream),
};
const test_cases session_cuda_cases = TEST_CASES(cases);
