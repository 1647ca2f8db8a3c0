/* Copies of submits: in both directions, several in flight, and by way of the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/stream/rig.h"

typedef struct copying {
    td_cu_mem device[SLOTS], in[SLOTS], out[SLOTS];
    uint64_t sequence[SLOTS];
    unsigned char value[SLOTS];
} copying;

static void copying_new(copying *it)
{
    char why[256] = "";

    memset(it, 0, sizeof *it);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, BYTES, &it->device[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, BYTES, &it->in[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, BYTES, &it->out[i], why, sizeof why), why);
    }
}

static void copying_free(copying *it)
{
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &it->device[i]);
        td_cu_mem_free(device, &it->in[i]);
        td_cu_mem_free(device, &it->out[i]);
    }
}

static void look_at(copying *it, int slot)
{
    const unsigned char *bytes = it->out[slot].host;

    if (!it->sequence[slot])
        return;
    must(td_stream_wait(stream, it->sequence[slot]), "wait");
    assert_true(td_stream_completed(stream) >= it->sequence[slot]);
    for (int i = 0; i < BYTES; i++)
        if (bytes[i] != it->value[slot])
            fail_msg("submit %llu brought back %u at byte %d, not %u", (unsigned long long)it->sequence[slot], bytes[i],
                     i, it->value[slot]);
}

/* What goes in comes out, three in flight, by one memory of the device's or by one each; others in between. */
static void test_copies(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    copying it;

    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        const bool shared = variant & 1, between = variant & 2;

        open_stream(variant >> 2);
        copying_new(&it);
        for (int frame = 0; frame < 150; frame++) {
            const int slot = frame % SLOTS;
            const uint64_t address = it.device[shared ? 0 : slot].address;
            const td_stream_copy in = {address, it.in[slot].host, BYTES}, out = {address, it.out[slot].host, BYTES};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = 4096,
                                             .copies_in = &in,
                                             .copies_out = &out,
                                             .copy_in_count = 1,
                                             .copy_out_count = 1,
                                             .slot = (uint32_t)slot};
            bool signalled;
            char why[256] = "";

            look_at(&it, slot);
            it.value[slot] = (unsigned char)(frame + 1);
            memset(it.in[slot].host, it.value[slot], BYTES);
            memset(it.out[slot].host, 0xee, BYTES);
            must(td_stream_enqueue(stream, &submit, &it.sequence[slot], &signalled, why, sizeof why), why);
            if (between && frame % 2)
                submit_plan(&plan, views, SLOTS);
        }
        for (int slot = 0; slot < SLOTS; slot++)
            look_at(&it, slot);
        copying_free(&it);
        close_stream();
    }
}

/* A submit whose copies overlap with an earlier one's records is seen to have begun. */
static void test_begun_beside(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const uint64_t begin = td_now_ns();
        copying it;

        open_stream(kind);
        copying_new(&it);
        fake_cuda_driver.holds = true;
        for (int slot = 0; slot < 2; slot++) {
            const td_stream_copy in = {it.device[slot].address, it.in[slot].host, BYTES};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = 4096,
                                             .copies_in = &in,
                                             .copy_in_count = 1,
                                             .slot = (uint32_t)slot};
            bool signalled;
            char why[256] = "";

            must(td_stream_enqueue(stream, &submit, &it.sequence[slot], &signalled, why, sizeof why), why);
        }
        while (!td_stream_begun(stream, it.sequence[1]))
            assert_true(td_now_ns() - begin < limit_ns);
        assert_int_equal(td_stream_completed(stream), 0);
        fake_cuda_driver.holds = false;
        must(td_stream_wait(stream, it.sequence[1]), "wait");
        assert_int_equal(td_stream_completed(stream), it.sequence[1]);
        copying_free(&it);
        close_stream();
    }
}

/* A submit takes to the host what the next one brings back from there. */
static void test_copies_by_way_of_the_host(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    static const td_plan nothing;
    copying it;

    (void)state;
    open_stream(0);
    copying_new(&it);
    for (int frame = 0; frame < 50; frame++) {
        const unsigned char value = (unsigned char)(frame + 1);
        const td_stream_copy first_in = {it.device[0].address, it.in[0].host, BYTES},
                             first_out = {it.device[0].address, it.out[0].host, BYTES},
                             second_in = {it.device[1].address, it.out[0].host, BYTES},
                             second_out = {it.device[1].address, it.out[1].host, BYTES};
        const td_stream_submit submits[2] = {{.plan = &nothing, .views = views, .copies_in = &first_in,
                                              .copies_out = &first_out, .copy_in_count = 1, .copy_out_count = 1},
                                             {.plan = &nothing, .views = views, .copies_in = &second_in,
                                              .copies_out = &second_out, .copy_in_count = 1, .copy_out_count = 1}};
        bool signalled;
        char why[256] = "";

        memset(it.in[0].host, value, BYTES);
        for (int i = 0; i < 2; i++)
            must(td_stream_enqueue(stream, &submits[i], &it.sequence[1], &signalled, why, sizeof why), why);
        it.value[1] = value;
        look_at(&it, 1);
    }
    copying_free(&it);
    close_stream();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_copies),
    cmocka_unit_test(test_begun_beside),
    cmocka_unit_test(test_copies_by_way_of_the_host),
};
const test_cases stream_copies_cases = TEST_CASES(cases);
