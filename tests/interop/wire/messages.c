/* Messages, and what is in them: right ones pass where they belong, wrong ones are refused with a field's name and
 * value.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interop/os/machine.h"
#include "interop/wire/ids.h"
#include "tests/interop/wire/rig.h"

static FILE *open_document(void)
{
    const char *root = getenv("TANDEM_SOURCE");
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/interop/PROTOCOL.md", root ? root : ".");
    file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

/* The table of PROTOCOL.md is the one that the code goes by. */
static void test_document(void **state)
{
    unsigned type, bytes, fds, seen = 0;
    char line[512], name[32], from[32];
    FILE *file = open_document();

    (void)state;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "| %u | %31[A-Z_] | %31[a-z, ] | %u | %u |", &type, name, from, &bytes, &fds) != 5)
            continue;
        assert_string_equal(td_wire_name(type), name);
        assert_int_equal(td_wire_bytes(type), bytes);
        assert_int_equal(td_wire_new((td_wire_type)type, 0).header.fds, fds);
        assert_int_equal(wire_road(type) == TD_WIRE_RING, strstr(from, "ring") != NULL);
        if (!strstr(from, "both"))
            assert_int_equal(wire_road(type) == TD_WIRE_TO_CLIENT, strstr(from, "daemon") != NULL);
        seen++;
    }
    fclose(file);
    assert_int_equal(seen, WIRE_TYPES);
}

/* Each message passes where it belongs, and nowhere else; whole, and by a byte less or more than came not at all. */
static void test_right_messages(void **state)
{
    (void)state;
    for (int i = 0; i < WIRE_TYPES; i++) {
        const uint32_t type = wire_types[i];
        const td_wire_message m = wire_sample(type);
        const td_wire_rules rules = wire_rules(type);
        uint8_t longer[sizeof m + 8] __attribute__((aligned(8)));

        assert_int_equal(check_sample(type, &m), TANDEM_OK);
        assert_null(wire_promise(&rules, wire_road(type), &m, m.header.bytes));
        for (int road = 1; road <= 4; road *= 2)
            for (int ready = 0; ready < 2; ready++) {
                td_wire_rules other = rules;
                const bool greets = type == TD_WIRE_HELLO || type == TD_WIRE_WELCOME;
                const bool anytime = type == TD_WIRE_ERROR || type == TD_WIRE_BYE;
                const bool fits = road == (int)wire_road(type) && (anytime || greets == !ready);

                other.ready = ready;
                if (type == TD_WIRE_BYE && road == TD_WIRE_TO_DAEMON)
                    continue; /* see below */
                assert_int_equal(check(&other, (td_wire_road)road, &m, m.header.bytes, m.header.fds) == TANDEM_OK,
                                 fits);
            }
        for (size_t length = 0; length < m.header.bytes; length++) {
            void *exact = malloc(length ? length : 1);

            memcpy(exact, &m, length);
            assert_int_equal(check(&rules, wire_road(type), exact, length, m.header.fds), TANDEM_ERROR_PROTOCOL);
            free(exact);
        }
        memset(longer, 0, sizeof longer);
        memcpy(longer, &m, m.header.bytes);
        assert_int_equal(check(&rules, wire_road(type), longer, m.header.bytes + 1u, m.header.fds),
                         wire_road(type) == TD_WIRE_RING ? TANDEM_OK /* a slot is longer than what it holds */
                             : TANDEM_ERROR_PROTOCOL);
        for (uint32_t fds = 0; fds < 4; fds++)
            assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, fds) == TANDEM_OK, fds == m.header.fds);
    }
}

static void test_bye_to_daemon(void **state)
{
    td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);
    td_wire_rules rules = wire_rules(TD_WIRE_BYE);

    (void)state;
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_OK);
    m.bye.reason = TD_WIRE_BYE_STOPPING;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_ERROR_PROTOCOL);
    rules.ready = false;
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_ERROR_PROTOCOL);
}

/* A number at an offset of a right message is replaced: the refusal names the field, and the value where there is one
 * to be named. */
typedef struct refusal {
    uint16_t type, at;
    uint8_t width;
    uint64_t value;
    const char *names, *says;
} refusal;

static const refusal refusals[] = {
    {TD_WIRE_PING, 0, 4, 17, "PING.header.bytes", "17"},
    {TD_WIRE_PING, 4, 2, 0, "message.header.type", "0"},
    {TD_WIRE_PING, 4, 2, 31, "message.header.type", "31"},
    {TD_WIRE_PING, 4, 2, 65535, "message.header.type", "65535"},
    {TD_WIRE_PING, 4, 2, TD_WIRE_HELLO, "HELLO.header.type", "behind WELCOME"},
    {TD_WIRE_PING, 6, 2, 1, "PING.header.fds", "1"},
    {TD_WIRE_PING, 8, 4, 0, "PING.header.serial", "0"},
    {TD_WIRE_PING, 8, 4, WIRE_SERIAL + 1, "PING.header.serial", "8"},
    {TD_WIRE_PING, 8, 4, WIRE_SERIAL - 1, "PING.header.serial", "6"},
    {TD_WIRE_PING, 12, 4, 5, "PING.header.reserved", "5"},
    {TD_WIRE_HELLO, 16, 4, 0x4d444e55, "HELLO.magic", "1296322133"},
    {TD_WIRE_HELLO, 20, 2, 0, "HELLO.version_min", "0"},
    {TD_WIRE_HELLO, 20, 2, 3, "HELLO.version_min", "3"},
    {TD_WIRE_HELLO, 22, 2, 1, "HELLO.reserved", "must be 0"}, /* what version 1 does not have */
    {TD_WIRE_HELLO, 32, 4, 360, "HELLO.job_bytes", "360, must be 368 to 512"},
    {TD_WIRE_HELLO, 36, 4, 504, "HELLO.slot_bytes", "504"},
    {TD_WIRE_HELLO, 40, 4, 24, "HELLO.report_bytes", "24"},
    {TD_WIRE_HELLO, 44, 4, 45048, "HELLO.ring_bytes", "45048, must be 45056"},
    {TD_WIRE_HELLO, 212, 4, 367, "HELLO.job_bytes", "367"},
    {TD_WIRE_HELLO, 212, 4, 2056, "HELLO.job_bytes", "2056, must be 368 to 2048"},
    {TD_WIRE_HELLO, 216, 4, 2052, "HELLO.slot_bytes", "multiple of 8"},
    {TD_WIRE_HELLO, 216, 4, 4096, "HELLO.ring_bytes", "143360, must be 274432"},
    {TD_WIRE_HELLO, 216, 4, UINT32_MAX - 7, "HELLO.ring_bytes", "must be 274877918720"},
    {TD_WIRE_HELLO, 120, 4, 3, "HELLO.share", "3"},
    {TD_WIRE_HELLO, 124, 4, 3, "HELLO.backend", "3"},
    {TD_WIRE_HELLO, 128, 4, 33, "HELLO.frames_in_flight", "33"},
    {TD_WIRE_HELLO, 132, 4, 2, "HELLO.timing", "2"},
    {TD_WIRE_HELLO, 136, 8, 60000000001, "HELLO.wait_bound_ns", "60000000001"},
    {TD_WIRE_HELLO, 144, 1, 0x1b, "HELLO.name", "0x1b"},
    {TD_WIRE_HELLO, 145, 1, 0xff, "HELLO.name", "0xff"},
    {TD_WIRE_HELLO, 207, 1, 'x', "HELLO.name", "behind its end"},
    {TD_WIRE_HELLO, 208, 4, 2, "HELLO.job_class", "2"},
    {TD_WIRE_HELLO, 255, 1, 9, "HELLO.reserved", "9"},
    {TD_WIRE_MEM_CREATE, 6, 2, 0, "MEM_CREATE.header.fds", "0"},
    {TD_WIRE_MEM_CREATE, 6, 2, 2, "MEM_CREATE.header.fds", "2"},
    {TD_WIRE_MEM_CREATE, 16, 4, 0, "MEM_CREATE.kind", "0"},
    {TD_WIRE_MEM_CREATE, 16, 4, 3, "MEM_CREATE.kind", "3"},
    {TD_WIRE_MEM_CREATE, 20, 4, 1, "MEM_CREATE.dedicated", "1"},
    {TD_WIRE_MEM_CREATE, 24, 8, 0, "MEM_CREATE.bytes", "0"},
    {TD_WIRE_MEM_CREATE, 24, 8, 65537, "MEM_CREATE.bytes", "65537"},
    {TD_WIRE_MEM_CREATE, 24, 8, UINT64_MAX, "MEM_CREATE.bytes", "18446744073709551615"},
    {TD_WIRE_MEM_CREATE, 24, 8, 61441, "MEM_CREATE.offset_bytes", "61441"},
    {TD_WIRE_MEM_CREATE, 32, 8, 65537, "MEM_CREATE.allocation_bytes", "65537"},
    {TD_WIRE_MEM_CREATE, 32, 8, WIRE_MEM_BYTES + 4096, "MEM_CREATE.allocation_bytes", "1073745920"},
    {TD_WIRE_MEM_CREATE, 40, 8, 4095, "MEM_CREATE.offset_bytes", "4095"},
    {TD_WIRE_MEM_CREATE, 40, 8, 0xfffffffffffff000, "MEM_CREATE.offset_bytes", "18446744073709547520"},
    {TD_WIRE_MEM_CREATE, 40, 8, 61440, "MEM_CREATE.offset_bytes", "61440"},
    {TD_WIRE_MEM_CREATE, 63, 1, 1, "MEM_CREATE.reserved", "1"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 0, "MEM_DESTROY.id", "0x0"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1ull << 24, "MEM_DESTROY.id", "0x100000001000000"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1, "MEM_DESTROY.id", "0x100000000000001"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1ull << 24 | (WIRE_MEMS + 1), "MEM_DESTROY.id", "0x100000001000041"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 2ull << 56 | 1ull << 24 | 1, "MEM_DESTROY.id", "id of a mem"},
    {TD_WIRE_TIMELINE_DESTROY, 16, 8, 1ull << 56 | 1ull << 24 | 1, "TIMELINE_DESTROY.id", "id of a timeline"},
    {TD_WIRE_MODEL_DESTROY, 16, 8, 3ull << 56 | 1ull << 24 | 9, "MODEL_DESTROY.id", "id of a model"},
    {TD_WIRE_TIMELINE_CREATE, 16, 4, 0, "TIMELINE_CREATE.kind", "0"},
    {TD_WIRE_TIMELINE_CREATE, 16, 4, 3, "TIMELINE_CREATE.kind", "3"},
    {TD_WIRE_TIMELINE_CREATE, 20, 4, 2, "TIMELINE_CREATE.signaller", "2"},
    {TD_WIRE_TIMELINE_CREATE, 40, 8, 1, "TIMELINE_CREATE.reserved", "8"},
    {TD_WIRE_MODEL_LOAD, 16, 1, 0, "MODEL_LOAD.path", "behind its end"},
    {TD_WIRE_MODEL_LOAD, 16, 4, 0x2f2e2e2f, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_LOAD, 16, 3, 0x2f2e2e, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_LOAD, 40, 4, 0x2e2e2f, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_CREATE, 16, 3, 0x2f2e2e, "MODEL_CREATE.path", "'..'"},
    {TD_WIRE_MODEL_CREATE, 16, 1, 0, "MODEL_CREATE.path", "behind its end"},
    {TD_WIRE_MODEL_CREATE, 1048, 4, 4, "MODEL_CREATE.language.cache", "is 4, must be 0 to 3"},
    {TD_WIRE_MODEL_CREATE, 1056, 4, 2, "MODEL_CREATE.language.hidden", "is 2, must be 0 to 1"},
    {TD_WIRE_MODEL_CREATE, 1060, 4, 65, "MODEL_CREATE.language.tops", "is 65, must be 0 to 64"},
    {TD_WIRE_MODEL_CREATE, 1068, 4, 1, "MODEL_CREATE.reserved", "1 in byte 4"},
    {TD_WIRE_INSTANCE_CREATE, 16, 8, 0, "INSTANCE_CREATE.model", "0x0"},
    {TD_WIRE_INSTANCE_CREATE, 24, 4, 4, "INSTANCE_CREATE.precision", "4"},
    {TD_WIRE_INSTANCE_CREATE, 32, 4, 0x7fc00000, "INSTANCE_CREATE.layers.min_similarity", "nan"},
    {TD_WIRE_INSTANCE_CREATE, 32, 4, 0x40000000, "INSTANCE_CREATE.layers.min_similarity", "is 2, must be 0 to 1"},
    {TD_WIRE_INSTANCE_CREATE, 36, 4, 0xbf800000, "INSTANCE_CREATE.layers.max_us", "is -1"},
    {TD_WIRE_INSTANCE_CREATE, 36, 4, 0x7f800000, "INSTANCE_CREATE.layers.max_us", "is inf"},
    {TD_WIRE_INSTANCE_CREATE, 48, 4, 2, "INSTANCE_CREATE.layers.sample_all", "2"},
    {TD_WIRE_INSTANCE_CREATE, 52, 4, 4097, "INSTANCE_CREATE.layers.node_count", "4097"},
    {TD_WIRE_INSTANCE_CREATE, 52, 4, 5, "INSTANCE_CREATE.layers.precisions", "has 2 for node 5, of 5"},
    {TD_WIRE_INSTANCE_CREATE, 1080, 8, 1, "INSTANCE_CREATE.reserved", "1"},
    {TD_WIRE_INSTANCE_LAYER, 16, 8, 0, "INSTANCE_LAYER.instance", "0x0"},
    {TD_WIRE_INSTANCE_LAYER, 24, 4, 33, "INSTANCE_LAYER.number_count", "33"},
    {TD_WIRE_INSTANCE_LAYER, 28, 4, 4096, "INSTANCE_LAYER.index", "4096"},
    {TD_WIRE_INSTANCE_STATE, 16, 8, 0, "INSTANCE_STATE.instance", "0x0"},
    {TD_WIRE_INSTANCE_STATE, 16, 8, 1ull << 56 | 1ull << 24 | 1, "INSTANCE_STATE.instance", "id of an instance"},
    {TD_WIRE_INSTANCE_STATE, 24, 8, 0, "INSTANCE_STATE.mem", "0x0"},
    {TD_WIRE_INSTANCE_STATE, 24, 8, 4ull << 56 | 1ull << 24 | 1, "INSTANCE_STATE.mem", "id of a mem"},
    {TD_WIRE_INSTANCE_STATE, 32, 8, WIRE_MEM_BYTES, "INSTANCE_STATE.offset_bytes", "must be 0 to 1072693248"},
    {TD_WIRE_INSTANCE_STATE, 32, 8, UINT64_MAX, "INSTANCE_STATE.offset_bytes", "18446744073709551615"},
    {TD_WIRE_INSTANCE_STATE, 40, 4, 2, "INSTANCE_STATE.writes", "2"},
    {TD_WIRE_INSTANCE_STATE, 44, 4, 0, "INSTANCE_STATE.range_count", "0"},
    {TD_WIRE_INSTANCE_STATE, 44, 4, 121, "INSTANCE_STATE.range_count", "121"},
    {TD_WIRE_INSTANCE_STATE, 44, 4, 3, "INSTANCE_STATE.ranges.bytes", "is 0"},
    {TD_WIRE_INSTANCE_STATE, 44, 4, 1, "INSTANCE_STATE.ranges", "100"},
    {TD_WIRE_INSTANCE_STATE, 48, 8, INT64_MAX, "INSTANCE_STATE.ranges.offset_bytes", "9223372036854775807"},
    {TD_WIRE_INSTANCE_STATE, 56, 4, UINT32_MAX, "INSTANCE_STATE.ranges.bytes", "4294967295"},
    {TD_WIRE_INSTANCE_STATE, 72, 4, 101, "INSTANCE_STATE.ranges", "1048577 bytes together, must have at most 1048576"},
    {TD_WIRE_INSTANCE_STATE, 76, 4, 1, "INSTANCE_STATE.ranges.reserved", "1"},
    {TD_WIRE_INSTANCE_STATE, 1967, 1, 1, "INSTANCE_STATE.ranges", "1 in byte"},
    {TD_WIRE_LAYER, 16, 4, 4096, "LAYER.node", "4096"},
    {TD_WIRE_LAYER, 20, 4, 0, "LAYER.precision", "0"},
    {TD_WIRE_LAYER, 32, 4, 2, "LAYER.pending", "2"},
    {TD_WIRE_PREPARED, 40, 4, 4097, "PREPARED.layer_count", "4097"},
    {TD_WIRE_MODEL_TENSOR, 16, 8, 0, "MODEL_TENSOR.model", "0x0"},
    {TD_WIRE_MODEL_TENSOR, 24, 1, '\n', "MODEL_TENSOR.name", "0x0a"},
    {TD_WIRE_STATS, 20, 4, 1, "STATS.reserved", "1"},
    {TD_WIRE_JOB, 0, 4, 2048, "JOB.header.bytes", "2048"},
    {TD_WIRE_JOB, 0, 4, 360, "JOB.header.bytes", "360"},
    {TD_WIRE_JOB, 0, 4, 368, "JOB.struct_bytes", "1072, must be 336"},
    {TD_WIRE_JOB, 8, 4, 1, "JOB.header.serial", "1"},
    {TD_WIRE_JOB, 16, 8, WIRE_TICKET + 1, "JOB.ticket", "10"},
    {TD_WIRE_JOB, 16, 8, WIRE_TICKET - 1, "JOB.ticket", "8"},
    {TD_WIRE_JOB, 32, 4, 1071, "JOB.struct_bytes", "1071"},
    {TD_WIRE_JOB, 80 + sizeof(tandem_attention), 1, 1, "JOB.op", "must be 0"},
    {TD_WIRE_JOB, 36, 4, 0, "JOB.operation", "0"},
    {TD_WIRE_JOB, 36, 4, 99, "JOB.operation", "99"},
    {TD_WIRE_JOB, 40, 8, 0, "JOB.wait.value", "41"},
    {TD_WIRE_JOB, 40, 8, 1ull << 56 | 1ull << 24 | 1, "JOB.wait.timeline", "0x100000001000001"},
    {TD_WIRE_JOB, 56, 8, 0, "JOB.signal.value", "42"},
    {TD_WIRE_JOB, 56, 8, 2ull << 56 | 1, "JOB.signal.timeline", "0x200000000000001"},
    {TD_WIRE_JOB, 80, 8, 0, "JOB.q.mem", "0x0"},
    {TD_WIRE_JOB, 88, 8, 4097, "JOB.q.offset_bytes", "4097"},
    {TD_WIRE_JOB, 88, 8, UINT64_MAX - 1, "JOB.q ", "18446744073709551614"},
    {TD_WIRE_JOB, 88, 8, WIRE_MEM_BYTES, "JOB.q ", "1073741824"},
    {TD_WIRE_JOB, 96, 4, 0, "JOB.q.dtype", "0"},
    {TD_WIRE_JOB, 96, 4, TANDEM_DTYPE_Q5_K_TILES + 1, "JOB.q.dtype", "21"},
    {TD_WIRE_JOB, 96, 4, TANDEM_DTYPE_Q4_K, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 100, 4, 1, "JOB.q.reserved", "1"},
    {TD_WIRE_JOB, 104, 8, UINT64_MAX, "JOB.q.stride_batch", "-1"},
    {TD_WIRE_JOB, 112, 8, 1ull << 63, "JOB.q.stride_head", "-9223372036854775808"},
    {TD_WIRE_JOB, 120, 8, UINT64_MAX - 7, "JOB.q.stride_row", "-8"},
    {TD_WIRE_JOB, 104, 8, INT64_MAX, "JOB.q ", "9223372036854775807"},
    {TD_WIRE_JOB, 112, 8, 1ull << 62, "JOB.q ", "4611686018427387904"},
    {TD_WIRE_JOB, 168, 8, 0x0a0a0a0a0a0a0a0a, "JOB.k ", "723401728380766730"},
    {TD_WIRE_JOB, 200, 8, -2ull, "JOB.v.stride_batch", "-2"},
    {TD_WIRE_JOB, 224, 8, 3ull << 56 | 1ull << 24 | 1, "JOB.o.mem", "0x300000001000001"},
    {TD_WIRE_JOB, 288, 4, TANDEM_DTYPE_Q5_K_TILES + 1, "JOB.lse.dtype", "21"},
    {TD_WIRE_JOB, 288, 4, TANDEM_DTYPE_NONE, "JOB.lse", "must be 0"},
    {TD_WIRE_JOB, 320, 4, 0, "JOB.q.shape[0]", "0"},
    {TD_WIRE_JOB, 320, 4, UINT32_MAX, "JOB.q.shape[0]", "4294967295"},
    {TD_WIRE_JOB, 320, 4, 1 << 30, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 324, 4, 0, "JOB.q.shape[1]", "0"},
    {TD_WIRE_JOB, 328, 4, 0, "JOB.k.shape[1]", "0"},
    {TD_WIRE_JOB, 332, 4, 0, "JOB.q.shape[2]", "0"},
    {TD_WIRE_JOB, 332, 4, 1 << 30, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 336, 4, 0x40000001, "JOB.k.shape[2]", "1073741825"},
    {TD_WIRE_JOB, 340, 4, 0, "JOB.q.shape[3]", "0"},
    {TD_WIRE_MODEL_GRAPH, 16, 8, 0, "MODEL_GRAPH.id", "id of a model"},
    {TD_WIRE_MODEL_INSTANCE, 16, 8, 1ull << 56 | 1ull << 24 | 1, "MODEL_INSTANCE.model", "id of a model"},
    {TD_WIRE_MODEL_INSTANCE, 24, 4, 4, "MODEL_INSTANCE.precision", "4"},
    {TD_WIRE_MODEL_INSTANCE, 28, 4, 2, "MODEL_INSTANCE.deadlines", "2"},
    {TD_WIRE_MODEL_INSTANCE, 32, 8, 9, "MODEL_INSTANCE.reserved", "9"},
    {TD_WIRE_MODEL_PREPARE, 16, 8, 3ull << 56 | 1ull << 24 | 1, "MODEL_PREPARE.instance", "id of an instance"},
    {TD_WIRE_MODEL_PREPARE, 24, 4, 33, "MODEL_PREPARE.number_count", "33"},
    {TD_WIRE_MODEL_PREPARE, 24, 4, 1, "MODEL_PREPARE.numbers", "128"},
    {TD_WIRE_MODEL_PREPARE, 28, 4, 1, "MODEL_PREPARE.reserved", "1"},
    {TD_WIRE_INSTANCE_DESTROY, 16, 8, 0, "INSTANCE_DESTROY.id", "id of an instance"},
    {TD_WIRE_RUN, 16, 8, WIRE_TICKET + 1, "RUN.ticket", "10"},
    {TD_WIRE_RUN, 32, 8, 0, "RUN.wait.value", "41"},
    {TD_WIRE_RUN, 48, 8, 2ull << 56 | 1, "RUN.signal.timeline", "0x200000000000001"},
    {TD_WIRE_RUN, 72, 8, 0, "RUN.instance", "0x0"},
    {TD_WIRE_RUN, 72, 8, 4ull << 56 | 1ull << 24 | (WIRE_INSTANCES + 1), "RUN.instance", "id of an instance"},
    {TD_WIRE_RUN, 80, 4, 65, "RUN.binding_count", "65"},
    {TD_WIRE_RUN, 80, 4, UINT32_MAX, "RUN.binding_count", "4294967295"},
    {TD_WIRE_RUN, 80, 4, 1, "RUN.bindings", "must be 0"},
    {TD_WIRE_RUN, 84, 4, 33, "RUN.number_count", "33"},
    {TD_WIRE_RUN, 84, 4, 0, "RUN.numbers", "128"},
    {TD_WIRE_RUN, 88, 4, TD_WIRE_UNIFORM_BYTES + 1, "RUN.uniform_bytes", "32545"},
    {TD_WIRE_RUN, 88, 4, TD_WIRE_RUN_BYTES + 1, "RUN.uniform_bytes", "289"}, /* of which none came before */
    {TD_WIRE_RUN, 88, 4, 11, "RUN.uniforms", "7"},
    {TD_WIRE_RUN, 92, 4, 1, "RUN.reserved", "1"},
    {TD_WIRE_RUN, 224, 8, 2ull << 56 | 1ull << 24 | 1, "RUN.bindings[0].mem", "id of a mem"},
    {TD_WIRE_RUN, 256, 8, WIRE_MEM_BYTES + 1, "RUN.bindings[1].offset_bytes", "1073741825"},
    {TD_WIRE_RUN, 240, 4, 0, "RUN.bindings[0].dtype", "0"},
    {TD_WIRE_RUN, 264, 4, TANDEM_DTYPE_Q5_K_TILES + 1, "RUN.bindings[1].dtype", "21"},
    {TD_WIRE_RUN, 268, 4, 1, "RUN.bindings[1].reserved", "1"},
    {TD_WIRE_UNIFORMS, 16, 8, WIRE_TICKET - 1, "UNIFORMS.ticket", "8"},
    {TD_WIRE_UNIFORMS, 24, 4, 1, "UNIFORMS.first", "1"},
    {TD_WIRE_UNIFORMS, 28, 4, 0, "UNIFORMS.bytes", "0"},
    {TD_WIRE_UNIFORMS, 28, 4, TD_WIRE_MORE_BYTES + 1, "UNIFORMS.bytes", "2017"},
    {TD_WIRE_UNIFORMS, 28, 4, 99, "UNIFORMS.uniforms", "8"},
    {TD_WIRE_SUBMITTED, 16, 8, 0, "SUBMITTED.timeline", "0x0"},
    {TD_WIRE_CANCEL, 16, 8, 0, "CANCEL.ticket", "0"},
    {TD_WIRE_CANCEL, 16, 8, WIRE_TICKET, "CANCEL.ticket", "9"},
    {TD_WIRE_WELCOME, 8, 4, WIRE_SERIAL, "WELCOME.header.serial", "7"},
    {TD_WIRE_WELCOME, 8, 4, 0, "WELCOME.header.serial", "0"},
    {TD_WIRE_WELCOME, 16, 4, 0, "WELCOME.magic", "0"},
    {TD_WIRE_WELCOME, 20, 2, 3, "WELCOME.version", "3"},
    {TD_WIRE_WELCOME, 22, 2, 1, "WELCOME.reserved0", "1"},
    {TD_WIRE_WELCOME, 24, 8, 1 << 20, "WELCOME.features", "0x100000"},
    {TD_WIRE_WELCOME, 120, 4, TD_WIRE_SHARE_HOST, "WELCOME.share", "1"},
    {TD_WIRE_WELCOME, 132, 4, 0, "WELCOME.frames_in_flight", "0"},
    {TD_WIRE_WELCOME, 136, 4, 1 << 24, "WELCOME.mems", "16777216"},
    {TD_WIRE_WELCOME, 140, 4, UINT32_MAX, "WELCOME.timelines", "4294967295"},
    {TD_WIRE_WELCOME, 144, 4, 1 << 24, "WELCOME.models", "16777216"},
    {TD_WIRE_WELCOME, 148, 4, 0, "WELCOME.requests", "0"},
    {TD_WIRE_WELCOME, 152, 8, 1ull << 63, "WELCOME.mem_bytes", "9223372036854775808"},
    {TD_WIRE_WELCOME, 168, 4, 0, "WELCOME.rung", "0"},
    {TD_WIRE_WELCOME, 168, 4, 6, "WELCOME.rung", "6"},
    {TD_WIRE_WELCOME, 172, 4, 3, "WELCOME.reserved1", "3"},
    {TD_WIRE_WELCOME, 176, 1, 7, "WELCOME.name", "0x07"},
    {TD_WIRE_WELCOME, 240, 4, 1 << 24, "WELCOME.instances", "16777216"},
    {TD_WIRE_WELCOME, 24, 8, 1, "WELCOME.instances", "16"}, /* none without NETWORKS */
    {TD_WIRE_DONE, 16, 8, 5ull << 56 | 1ull << 24 | 1, "DONE.id", "0x500000001000001"},
    {TD_WIRE_DONE, 16, 8, 4ull << 56 | 1ull << 24 | (WIRE_INSTANCES + 1), "DONE.id", "id of an instance"},
    {TD_WIRE_DONE, 16, 8, 1, "DONE.id", "0x1"},
    {TD_WIRE_ERROR, 8, 4, WIRE_SERIAL, "ERROR.header.serial", "7"},
    {TD_WIRE_ERROR, 16, 4, 0, "ERROR.status", "0"},
    {TD_WIRE_ERROR, 16, 4, 1, "ERROR.status", "1"},
    {TD_WIRE_ERROR, 16, 4, (uint32_t)-9, "ERROR.status", "-9"},
    {TD_WIRE_ERROR, 20, 4, 1, "ERROR.reserved", "1"},
    {TD_WIRE_ERROR, 24, 8, 3, "ERROR.ticket", "3"},
    {TD_WIRE_ERROR, 431, 1, 1, "ERROR.text", "behind its end"},
    {TD_WIRE_INFO_REPLY, 16, 4, 0, "INFO_REPLY.backend", "0"},
    {TD_WIRE_INFO_REPLY, 20, 4, 6, "INFO_REPLY.rung", "6"},
    {TD_WIRE_INFO_REPLY, 144, 1, 0x80, "INFO_REPLY.rung_reason", "0x80"},
    {TD_WIRE_INFO_REPLY, 400, 1, 0x7f, "INFO_REPLY.device", "0x7f"},
    {TD_WIRE_INFO_REPLY, 559, 1, 1, "INFO_REPLY.isa", "behind its end"},
    {TD_WIRE_TENSOR, 16, 8, 0, "TENSOR.view.mem", "0x0"},
    {TD_WIRE_TENSOR, 32, 4, 0, "TENSOR.view.dtype", "0"},
    {TD_WIRE_TENSOR, 64, 8, 0, "TENSOR.shape", "0"},
    {TD_WIRE_TENSOR, 88, 8, 1ull << 31, "TENSOR.shape", "2147483648"},
    {TD_WIRE_TENSOR, 56, 8, INT64_MAX, "TENSOR.view ", "4096"},
    {TD_WIRE_GRAPH, 16, 8, 0, "GRAPH.bytes", "0"},
    {TD_WIRE_GRAPH, 24, 8, 1, "GRAPH.reserved", "1"},
    {TD_WIRE_PREPARED, 32, 8, TD_WIRE_UNIFORM_BYTES + 1, "PREPARED.uniform_bytes", "32545"},
    {TD_WIRE_PREPARED, 44, 4, 1, "PREPARED.reserved", "1"},
    {TD_WIRE_STATS_REPLY, 16, 4, 17, "STATS_REPLY.total", "17"},
    {TD_WIRE_STATS_REPLY, 20, 4, UINT32_MAX, "STATS_REPLY.first", "4294967295"},
    {TD_WIRE_STATS_REPLY, 24, 4, 17, "STATS_REPLY.count", "17"},
    {TD_WIRE_STATS_REPLY, 24, 4, 1, "STATS_REPLY.rows", "18"},
    {TD_WIRE_STATS_REPLY, 28, 4, 1, "STATS_REPLY.reserved", "1"},
    {TD_WIRE_STATS_REPLY, 52, 4, 2, "STATS_REPLY.rows.job_class", "2"},
    {TD_WIRE_STATS_REPLY, 56, 1, 0xc0, "STATS_REPLY.rows.name", "0xc0"},
    {TD_WIRE_STATS_REPLY, 2079, 1, 1, "STATS_REPLY.rows", "1"},
    {TD_WIRE_RESET, 8, 4, 1, "RESET.header.serial", "1"},
    {TD_WIRE_RESET, 16, 4, 0, "RESET.epoch", "0"},
    {TD_WIRE_RESET, 20, 4, 0, "RESET.status", "0"},
    {TD_WIRE_RESET, 24, 8, WIRE_TICKET, "RESET.last_ticket", "9"},
    {TD_WIRE_RESET, 271, 1, 1, "RESET.text", "behind its end"},
    {TD_WIRE_BYE, 16, 4, 0, "BYE.reason", "0"},
    {TD_WIRE_BYE, 16, 4, 5, "BYE.reason", "5"},
    {TD_WIRE_BYE, 20, 4, 1, "BYE.reserved", "1"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        td_wire_message m = wire_sample(r->type);
        const td_wire_rules rules = wire_rules(r->type);
        const uint32_t length = m.header.bytes, fds = m.header.fds;

        memcpy((char *)&m + r->at, &r->value, r->width);
        if (check(&rules, wire_road(r->type), &m, length, fds) == TANDEM_OK || strncmp(why, r->names, strlen(r->names)) ||
            !strstr(why, r->says)) {
            print_error("refusal %zu: wanted %s and %s, got '%s'\n", i, r->names, r->says, why);
            fail();
        }
    }
}

/* What depends on what was agreed on. */
static void test_agreements(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_PING);
    td_wire_message m;

    (void)state;
    rules.features = 0;
    for (int i = 0; i < WIRE_TYPES; i++) {
        const uint32_t type = wire_types[i];
        const bool optional = (type >= TD_WIRE_MODEL_LOAD && type <= TD_WIRE_INSTANCE_STATE) ||
                              type == TD_WIRE_RUN || type == TD_WIRE_UNIFORMS || type == TD_WIRE_TENSOR ||
                              type == TD_WIRE_STATS_REPLY || type == TD_WIRE_GRAPH || type == TD_WIRE_PREPARED ||
                              type == TD_WIRE_LAYER;

        if (type == TD_WIRE_HELLO || type == TD_WIRE_WELCOME)
            continue;
        m = wire_sample(type);
        assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, m.header.fds) == TANDEM_OK, !optional);
        assert_int_equal(strstr(why, "needs feature") != NULL, optional);
    }

    rules = wire_rules(TD_WIRE_MEM_CREATE);
    m = wire_sample(TD_WIRE_MEM_CREATE);
    m.mem_create.kind = TD_WIRE_MEM_OPAQUE;
    m.mem_create.dedicated = 1;
    m.mem_create.offset_bytes = 100; /* any, other than a buffer's */
    m.mem_create.allocation_bytes = 65537;
    assert_int_equal(check_sample(TD_WIRE_MEM_CREATE, &m), TANDEM_OK);
    rules.share = TD_WIRE_SHARE_HOST;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.mem_create, 1), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "MEM_CREATE.kind is 2, must be 1"));
    m = wire_sample(TD_WIRE_TIMELINE_CREATE);
    m.timeline_create.kind = TD_WIRE_TIMELINE_OPAQUE;
    assert_int_equal(check_sample(TD_WIRE_TIMELINE_CREATE, &m), TANDEM_OK);
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.timeline_create, 1), TANDEM_ERROR_PROTOCOL);
    rules.share = TD_WIRE_SHARE_NONE;
    for (int i = 0; i < 6; i++) {
        const uint32_t type = (uint32_t[]){TD_WIRE_MEM_CREATE, TD_WIRE_TIMELINE_CREATE, TD_WIRE_JOB, TD_WIRE_RUN,
                                           TD_WIRE_UNIFORMS, TD_WIRE_INSTANCE_STATE}[i];

        m = wire_sample(type);
        assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, m.header.fds), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "share"));
    }

    /* Points that nobody asked for, an lse that is not wanted, a client that is newer, serials that are used up. */
    m = wire_sample(TD_WIRE_JOB);
    m.job.job.wait = m.job.job.signal = (tandem_point){0, 0};
    memset(&m.job.job.op.attention.lse, 0, sizeof(tandem_view));
    assert_int_equal(check_sample(TD_WIRE_JOB, &m), TANDEM_OK);
    m = wire_sample(TD_WIRE_HELLO);
    m.hello.version_max = 9;
    m.hello.features = UINT64_MAX;
    m.hello.reserved[0] = 1;
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    assert_int_equal(td_wire_version(m.hello.version_min, m.hello.version_max), 2);
    assert_int_equal(td_wire_version(1, 1), 1);
    assert_int_equal(td_wire_version(3, 9), 0);
    m = wire_sample(TD_WIRE_PING);
    rules = wire_rules(TD_WIRE_PING);
    rules.next_serial = m.header.serial = UINT32_MAX;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.header, 0), TANDEM_OK);
    td_wire_took(&rules, TD_WIRE_TO_DAEMON, &m);
    m.header.serial = 0;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.header, 0), TANDEM_ERROR_PROTOCOL);
}

/* Uniforms that do not fit into RUN come before it, each where the one before ended, for it alone. */
static void test_uniforms(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_RUN);
    td_wire_message m, run = wire_sample(TD_WIRE_RUN), job = wire_sample(TD_WIRE_JOB);

    (void)state;
    run.run.uniform_bytes = TD_WIRE_UNIFORM_BYTES;
    for (uint32_t first = 0; first < TD_WIRE_UNIFORM_BYTES - TD_WIRE_RUN_BYTES; first += TD_WIRE_MORE_BYTES) {
        assert_int_equal(check(&rules, TD_WIRE_RING, &run, sizeof run.run, 0), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "came before it"));
        m = wire_sample(TD_WIRE_UNIFORMS);
        m.uniforms.first = first + (first ? 0u : 1u);
        m.uniforms.bytes = TD_WIRE_MORE_BYTES;
        assert_int_equal(check(&rules, TD_WIRE_RING, &m, sizeof m.uniforms, 0), first ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
        m.uniforms.first = first;
        assert_int_equal(check(&rules, TD_WIRE_RING, &m, sizeof m.uniforms, 0), TANDEM_OK);
        td_wire_took(&rules, TD_WIRE_RING, &m);
        assert_int_equal(rules.more_bytes, first + TD_WIRE_MORE_BYTES);
    }
    m.uniforms.first = rules.more_bytes; /* no more than that */
    m.uniforms.bytes = 1;
    assert_int_equal(check(&rules, TD_WIRE_RING, &m, sizeof m.uniforms, 0), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(check(&rules, TD_WIRE_RING, &job, sizeof job.job, 0), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "JOB.ticket is 9, of which 32256 bytes"));
    assert_int_equal(check(&rules, TD_WIRE_RING, &run, sizeof run.run, 0), TANDEM_OK);
    td_wire_took(&rules, TD_WIRE_RING, &run);
    assert_true(rules.more_bytes == 0 && rules.next_ticket == WIRE_TICKET + 1);
}

static uint64_t at(const void *bytes, size_t offset, size_t width)
{
    uint64_t value = 0;

    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)((const uint8_t *)bytes)[offset + i] << 8 * i;
    return value;
}

/* A job comes out as it went in, and lies where PROTOCOL.md says. */
static void test_job_layout(void **state)
{
    td_wire_message m = td_wire_new(TD_WIRE_JOB, 0), copy;
    tandem_job *job = &m.job.job;
    uint8_t *raw = (uint8_t *)&m;
    uint64_t next = 1;

    (void)state;
    for (size_t i = 16; i < sizeof m.job; i++) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        raw[i] = (uint8_t)(next >> 33);
    }
    memcpy(&copy, &m, sizeof m.job);
    assert_memory_equal(&copy.job.job, job, sizeof *job);
    assert_int_equal(at(raw, 0, 4), sizeof(td_wire_job));
    assert_int_equal(at(raw, 4, 2), TD_WIRE_JOB);
    assert_true(at(raw, 16, 8) == m.job.ticket && at(raw, 24, 8) == m.job.submit_ns);
    assert_true(at(raw, 40, 8) == job->wait.timeline && at(raw, 48, 8) == job->wait.value);
    assert_true(at(raw, 56, 8) == job->signal.timeline && at(raw, 64, 8) == job->signal.value);
    assert_true(at(raw, 72, 8) == job->deadline_ns);
    for (int v = 0; v < 5; v++) {
        const tandem_view *view = &job->op.attention.q + v;
        const size_t base = 80 + 48 * (size_t)v;

        assert_true(at(raw, base, 8) == view->mem && at(raw, base + 8, 8) == view->offset_bytes);
        assert_true(at(raw, base + 16, 4) == view->dtype && at(raw, base + 20, 4) == view->reserved);
        assert_true(at(raw, base + 24, 8) == (uint64_t)view->stride_batch &&
                    at(raw, base + 32, 8) == (uint64_t)view->stride_head &&
                    at(raw, base + 40, 8) == (uint64_t)view->stride_row);
    }
    assert_true(at(raw, 320, 4) == job->op.attention.batch && at(raw, 340, 4) == job->op.attention.head_dim);
    assert_true(at(raw, 352, 4) == job->op.attention.precision && at(raw, 360, 4) == job->op.attention.granularity);
}

static void test_view_end(void **state)
{
    tandem_view v = {.dtype = TANDEM_DTYPE_F16};
    uint64_t end, dice = 88172645463325252;

    (void)state;
    for (int i = 0; i < 20000; i++) { /* against the last element's place, by loops */
        uint32_t n[4];
        uint64_t last = 0;

        for (int k = 0; k < 4; k++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
            n[k] = (uint32_t)(dice % 5) + 1;
        }
        v.stride_batch = (int64_t)(dice >> 20 & 63);
        v.stride_head = (int64_t)(dice >> 26 & 63);
        v.stride_row = (int64_t)(dice >> 32 & 63);
        v.dtype = 1 + (uint32_t)(dice >> 40) % 3;
        v.offset_bytes = dice >> 45 & 255;
        for (uint32_t b = 0; b < n[0]; b++)
            for (uint32_t h = 0; h < n[1]; h++)
                for (uint32_t r = 0; r < n[2]; r++) {
                    const uint64_t element =
                        (uint64_t)(b * v.stride_batch + h * v.stride_head + r * v.stride_row) + n[3];

                    last = element > last ? element : last;
                }
        assert_true(td_view_end_bytes(&v, (const uint32_t[]){n[0], n[1], n[2], n[3]}, &end));
        assert_int_equal(end, v.offset_bytes + last * (v.dtype == TANDEM_DTYPE_F32 ? 4 : 2));
    }
    v = (tandem_view){.dtype = TANDEM_DTYPE_CODES_INT8, .offset_bytes = 256}; /* codes, then scales at a multiple of 256 */
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 3, 130, 80}, &end));
    assert_int_equal(end, 256 + 3 * 256 * 96 + 3 * 256 * 4);
    v.dtype = TANDEM_DTYPE_CODES_E4M3;
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 3, 130, 80}, &end));
    assert_int_equal(end, 256 + 3 * 256 * 96 + 3 * 96 * 4);
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1 << 30, 1 << 30, 1 << 30, 128}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_Q4_K, .offset_bytes = 6, .stride_row = 512}; /* blocks of 256 elements, whole ones */
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 256}, &end));
    assert_int_equal(end, 6 + 2 * 2 * 144 + 144);
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 128}, &end));
    v.stride_row = 128;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 256}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_Q8_0, .stride_row = 64};
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 2, 64}, &end));
    assert_int_equal(end, 4 * 34);
    /* Each product overflows 64 bits, and their sum would come out small. */
    v = (tandem_view){.dtype = TANDEM_DTYPE_F32, .stride_batch = INT64_MAX, .stride_head = INT64_MAX};
    v.stride_row = INT64_MAX;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1 << 30, 1 << 30, 1 << 30, 1024}, &end));
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_F16, .stride_batch = 1ll << 62};
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){5, 1, 1, 1}, &end)); /* 4 * 2^62 * 2 = 2^65: 0 in 64 bits */
    v = (tandem_view){.dtype = TANDEM_DTYPE_F16, .offset_bytes = INT64_MAX - 1};
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
    v.offset_bytes = INT64_MAX - 3;
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
    assert_int_equal(end, INT64_MAX - 1);
    v.stride_head = -1;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
}

static void test_ids_and_reports(void **state)
{
    static const uint32_t slots[] = {0, 1, 77, TD_WIRE_MAX_SLOTS - 1};
    td_wire_report in, out;

    (void)state;
    for (int kind = 1; kind < TD_WIRE_KINDS; kind++)
        for (int i = 0; i < 4; i++) {
            const uint64_t id = td_wire_id((td_wire_kind)kind, 0xdeadbeef, slots[i]);

            assert_int_equal(td_wire_id_kind(id), kind);
            assert_int_equal(td_wire_id_generation(id), 0xdeadbeef);
            assert_int_equal(td_wire_id_slot(id), slots[i]);
        }
    assert_true(td_wire_id_slot(0) >= TD_WIRE_MAX_SLOTS);

    for (uint32_t state_word = 0; state_word < 256; state_word++)
        for (uint32_t precision = 0; precision < 8; precision++)
            for (int32_t status = -12; status < 4; status++) {
                const bool right = state_word <= 5 && precision <= 3 && status <= 0 && status >= -8;

                in = (td_wire_report){
                    .ticket = 0xfedcba98, .state = state_word, .precision = precision, .status = status,
                    .client_signals = (state_word ^ precision) & 1};
                assert_int_equal(td_wire_report_unpack(td_wire_report_pack(&in), &out, why, why_bytes),
                                 right ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
                assert_true(out.ticket == in.ticket && out.state == in.state && out.precision == precision &&
                            out.status == status && out.client_signals == in.client_signals);
            }
}

/* Ids find what they were given for, until it is removed, and never again. */
static void test_id_table(void **state)
{
    enum { SLOTS = 5, STEPS = 2000 };
    static int objects[STEPS];
    static uint64_t given[STEPS]; /* the id of each object, and whether it still has it */
    static bool alive[STEPS];
    td_ids_slot slots[SLOTS];
    uint64_t dice = 12345;
    td_ids ids;
    uint32_t count = 0;

    (void)state;
    td_ids_begin(&ids, TD_WIRE_KIND_TIMELINE, slots, SLOTS);
    for (int i = 0; i < STEPS; i++) {
        given[i] = td_ids_add(&ids, &objects[i]);
        assert_int_equal(given[i] != 0, count < SLOTS);
        alive[i] = given[i] != 0;
        count += alive[i];
        for (int k = i > 40 ? i - 40 : 0; k < i; k++)
            assert_true(given[k] != given[i] || !given[k]);
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        for (int k = i > 20 ? i - 20 : 0; dice >> 62 && k <= i; k++) {
            assert_ptr_equal(td_ids_find(&ids, given[k]), alive[k] ? &objects[k] : NULL);
            if ((dice >> (k % 32) & 3) == 0) {
                assert_ptr_equal(td_ids_remove(&ids, given[k]), alive[k] ? &objects[k] : NULL);
                count -= alive[k];
                alive[k] = false;
            }
        }
        assert_int_equal(ids.count, count);
    }
    td_ids_begin(&ids, TD_WIRE_KIND_TIMELINE, slots, SLOTS);
    slots[0].generation = UINT32_MAX;
    given[0] = td_ids_add(&ids, objects);
    assert_int_equal(td_wire_id_slot(given[0]), 0);
    assert_null(td_ids_find(&ids, given[0] ^ 3ull << 56)); /* of another kind */
    assert_null(td_ids_find(&ids, given[0] + SLOTS));
    assert_null(td_ids_find(&ids, 0));
    assert_null(td_ids_find(&ids, 2ull << 56 | 1ull << 24 | 2)); /* a slot that is free */
    assert_ptr_equal(td_ids_remove(&ids, given[0]), objects);
    for (int i = 0; i < SLOTS; i++) /* the generations of slot 0 are used up */
        assert_int_equal(td_ids_add(&ids, objects) != 0, i < SLOTS - 1);
    assert_int_equal(td_ids_add(&ids, NULL), 0);
}

static void test_texts(void **state)
{
    /* What comes in, what the field of 8 bytes holds. */
    static const char *const texts[][2] = {
        {"", ""},
        {"1234567", "1234567"},
        {"12345678", "1234567"},
        {"a\x1b[b\nc", "a?[b?c"},
        {"\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f", "\xc3\xa4\xc3\xb6\xc3\xbc"}, /* cut at a whole character */
        {"\xf0\x9f\x8e\xae!", "\xf0\x9f\x8e\xae!"},
        {"\xc0\x80", "??"},             /* overlong */
        {"\xed\xa0\x80", "???"},        /* half a surrogate */
        {"\xf4\x90\x80\x80", "????"},   /* beyond Unicode */
        {"\xc2\x9fx", "??x"},           /* a control character of two bytes */
        {"\xe2\x82", "??"},             /* cut off */
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        td_wire_message m = wire_sample(TD_WIRE_ERROR);
        char field[8];

        memset(field, 'z', sizeof field);
        td_wire_text(field, sizeof field, texts[i][0]);
        assert_string_equal(field, texts[i][1]);
        for (size_t k = strlen(field); k < sizeof field; k++)
            assert_int_equal(field[k], 0);
        td_wire_text(m.error.text, sizeof m.error.text, texts[i][0]);
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m), TANDEM_OK);
        /* As it came, it passes only if td_wire_text() had nothing to change. */
        memset(m.error.text, 0, sizeof m.error.text);
        memcpy(m.error.text, texts[i][0], strlen(texts[i][0]));
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m) == TANDEM_OK, !strchr(texts[i][1], '?'));
    }
    for (int length = 399; length < 401; length++) {
        td_wire_message m = wire_sample(TD_WIRE_ERROR);

        memset(m.error.text, 'x', (size_t)length);
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m) == TANDEM_OK, length < 400);
    }
}

static void test_identity(void **state)
{
    td_wire_identity mine, theirs;
    const uint8_t none[16] = {0};
    char id[64];
    /* Where a byte is changed, from which share on it matters, and what the text names. */
    static const struct {
        size_t at;
        uint32_t from;
        const char *says;
    } differences[] = {{0, 1, "host id"},     {15, 1, "host id"},     {16, 1, "boot id"}, {32, 2, "device UUID"},
                       {48, 2, "driver UUID"}, {64, 2, "driver"},      {71, 2, "driver"}};

    (void)state;
    memset(&mine, 0x11, sizeof mine);
    theirs = mine;
    td_wire_identify(&mine);
    td_wire_identify(&theirs);
    assert_memory_equal(&mine, &theirs, sizeof mine);
    if (td_machine_boot_id(id, sizeof id)) /* where there is one: test_os says where */
        assert_memory_not_equal(mine.boot_id, none, 16);
    assert_int_equal(mine.device_uuid[0], 0x11);
    for (uint32_t share = 0; share < 3; share++) {
        assert_int_equal(td_wire_match(&mine, &theirs, share, why, why_bytes), TANDEM_OK);
        for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
            tandem_status status;

            theirs = mine;
            ((uint8_t *)&theirs)[differences[i].at] ^= 0x80;
            why[0] = 0;
            status = td_wire_match(&mine, &theirs, share, why, why_bytes);
            assert_int_equal(status, share >= differences[i].from ? TANDEM_ERROR_UNSUPPORTED : TANDEM_OK);
            assert_true(status == TANDEM_OK || strstr(why, differences[i].says));
        }
        theirs = mine;
    }
    memset(theirs.driver_uuid, 0, 16); /* a daemon without Vulkan does not know it */
    assert_int_equal(td_wire_match(&mine, &theirs, TD_WIRE_SHARE_OPAQUE, why, why_bytes), TANDEM_OK);
    memset(theirs.device_uuid, 0, 16);
    memset(mine.device_uuid, 0, 16);
    assert_int_equal(td_wire_match(&mine, &theirs, TD_WIRE_SHARE_OPAQUE, why, why_bytes),
                     TANDEM_ERROR_UNSUPPORTED);
}

/* A connection goes by the lesser of each size; of a client of version 1 by those that it was built with. */
static void test_sizes(void **state)
{
    const td_wire_sizes here = td_wire_sizes_here(), first = td_wire_sizes_first();
    td_wire_message m = wire_sample(TD_WIRE_HELLO);
    td_wire_sizes both = td_wire_sizes_with(&m.hello);

    (void)state;
    assert_int_equal(first.ring_bytes, 45056);
    assert_int_equal(here.ring_bytes, 143360);
    assert_memory_equal(&m.hello.sizes, &first, sizeof first); /* which daemons of version 1 compare with their own */
    assert_memory_equal(&both, &here, sizeof here);
    m.hello.most = (td_wire_sizes){8192, 16384, 64, 4096 + 64 * 16384 + 256 * 64};
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    both = td_wire_sizes_with(&m.hello);
    assert_memory_equal(&both, &here, sizeof here);
    m.hello.most = (td_wire_sizes){512, 1024, 32, 4096 + 64 * 1024 + 256 * 32};
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    both = td_wire_sizes_with(&m.hello);
    assert_memory_equal(&both, &m.hello.most, sizeof both);
    m.hello.version_max = 1;
    memset(&m.hello.most, 0, sizeof m.hello.most);
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    both = td_wire_sizes_with(&m.hello);
    assert_memory_equal(&both, &first, sizeof both);
    m.hello.sizes = here; /* version 1, as it was later */
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    both = td_wire_sizes_with(&m.hello);
    assert_memory_equal(&both, &here, sizeof both);

    m = wire_sample(TD_WIRE_WELCOME);
    m.welcome.version = 1;
    m.welcome.operations[11] = 1;
    assert_int_equal(check_sample(TD_WIRE_WELCOME, &m), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "WELCOME.operations"));
    m = wire_sample(TD_WIRE_WELCOME);
    m.welcome.sizes = first;
    assert_int_equal(check_sample(TD_WIRE_WELCOME, &m), TANDEM_OK);
    m.welcome.sizes = (td_wire_sizes){1104, 4096, 32, 4096 + 64 * 4096 + 256 * 32};
    assert_int_equal(check_sample(TD_WIRE_WELCOME, &m), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "WELCOME.slot_bytes is 4096, must be 512 to 2048"));
}

/* Each side says which version of which operation it knows, and the client's session goes by the older ones. */
static void test_operations(void **state)
{
    static const uint8_t theirs[TD_WIRE_OPERATION_BYTES] = {0xf0, 0x01, 0x10, 0x20, [11] = 0x10}; /* 23 is none yet */
    static const uint8_t both[TD_WIRE_OPERATION_BYTES] = {0x40, 0x01, 0x10, 0x10};
    td_wire_rules rules = wire_rules(TD_WIRE_HELLO);
    const td_operation_layout *attention = rules.operation(TANDEM_OPERATION_ATTENTION);
    td_wire_message m = wire_sample(TD_WIRE_WELCOME);
    tandem_operands op = wire_sample(TD_WIRE_JOB).job.job.op;
    uint8_t operations[TD_WIRE_OPERATION_BYTES];

    (void)state;
    td_wire_operations_here(&rules, operations);
    for (uint32_t number = 0; number < 2 * TD_WIRE_OPERATION_BYTES; number++)
        assert_int_equal(operations[number / 2] >> number % 2 * 4 & 15,
                         rules.operation(number) ? rules.operation(number)->version : 0);
    td_wire_operations_with(&rules, theirs, operations);
    assert_memory_equal(operations, both, sizeof both);
    memcpy(m.welcome.operations, both, sizeof both);
    td_wire_rules_welcome(&rules, &m.welcome);
    op.attention.position = op.attention.lse;
    assert_int_equal(td_wire_takes(&rules, attention, &op, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_wire_takes(&rules, rules.operation(TANDEM_OPERATION_LINEAR), &op, why, why_bytes),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_string_equal(why, "operation 3 (linear) is none that tandemd knows");

    /* One of version 1 has attention as it was at first. */
    m.welcome.version = 1;
    memset(m.welcome.operations, 0, sizeof m.welcome.operations);
    td_wire_rules_welcome(&rules, &m.welcome);
    assert_int_equal(td_wire_takes(&rules, attention, &op, why, why_bytes), TANDEM_ERROR_UNSUPPORTED);
    assert_string_equal(why, "tandemd knows version 1 of attention, which has 288 bytes, but the byte at offset 384 is 6, not 0");
    memset(&op.attention.position, 0, sizeof op.attention.position);
    assert_int_equal(td_wire_takes(&rules, attention, &op, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_wire_takes(&rules, rules.operation(TANDEM_OPERATION_NORM), &op, why, why_bytes),
                     TANDEM_ERROR_UNSUPPORTED);
}

/* The table of operations in PROTOCOL.md has all versions. */
static void test_operations_document(void **state)
{
    const td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    unsigned number, version, bytes, seen = 0, wanted = 0;
    char line[512], name[32];
    FILE *file = open_document();

    (void)state;
    while (fgets(line, sizeof line, file)) {
        const td_operation_layout *layout;

        if (sscanf(line, "| %u %31[a-z_] | %u | %u |", &number, name, &version, &bytes) != 4)
            continue;
        layout = rules.operation(number);
        assert_non_null(layout);
        assert_string_equal(layout->name, name);
        assert_in_range(version, 1, layout->version);
        assert_int_equal(td_operation_bytes(layout, version), bytes);
        seen++;
    }
    fclose(file);
    for (number = 1; number < 2 * TD_WIRE_OPERATION_BYTES; number++)
        wanted += rules.operation(number) ? rules.operation(number)->version : 0;
    assert_int_equal(seen, wanted);
}

/* What a peer does not know of a message is 0 here; what this does not know of it has to be. Those of the greeting do not
 * grow. */
static void test_growth(void **state)
{
    const td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_wire_message job = wire_sample(TD_WIRE_JOB);
    uint8_t exact[368] __attribute__((aligned(8)));

    (void)state;
    for (int i = 0; i < WIRE_TYPES; i++) {
        const uint32_t type = wire_types[i];
        const td_wire_rules of = wire_rules(type);
        const bool frozen = type == TD_WIRE_HELLO || type == TD_WIRE_WELCOME || type == TD_WIRE_ERROR || type == TD_WIRE_BYE;
        const td_wire_message m = wire_sample(type);
        uint8_t longer[sizeof m + 64] __attribute__((aligned(8))) = {0};
        const uint32_t bytes = m.header.bytes + 64, job_bytes = bytes - 32;

        memcpy(longer, &m, m.header.bytes);
        memcpy(longer, &bytes, 4);
        if (type == TD_WIRE_JOB)
            memcpy(longer + 32, &job_bytes, 4);
        assert_int_equal(check(&of, wire_road(type), longer, bytes, m.header.fds) == TANDEM_OK, !frozen);
        longer[bytes - 1] = 7;
        assert_int_equal(check(&of, wire_road(type), longer, bytes, m.header.fds), TANDEM_ERROR_PROTOCOL);
        if (!frozen)
            assert_non_null(strstr(why, "is 7, not 0"));
    }
    assert_int_equal(td_wire_cut(&job, 368, why, why_bytes), TANDEM_OK);
    assert_true(job.header.bytes == 368 && job.job.job.struct_bytes == 336);
    memcpy(exact, &job, sizeof exact);
    assert_int_equal(check(&rules, TD_WIRE_RING, exact, sizeof exact, 0), TANDEM_OK);
    job = wire_sample(TD_WIRE_JOB);
    job.job.job.op.attention.position = job.job.job.op.attention.lse;
    assert_int_equal(td_wire_cut(&job, 368, why, why_bytes), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "knows 368 bytes of JOB, but the byte at offset 464 is not 0"));
    assert_int_equal(job.header.bytes, 1104);
}

static const struct CMUnitTest cases[] = {
    TEST(test_document),
    TEST(test_right_messages),
    TEST(test_bye_to_daemon),
    TEST(test_refusals),
    TEST(test_agreements),
    TEST(test_uniforms),
    TEST(test_job_layout),
    TEST(test_view_end),
    TEST(test_ids_and_reports),
    TEST(test_id_table),
    TEST(test_texts),
    TEST(test_identity),
    TEST(test_sizes),
    TEST(test_growth),
    TEST(test_operations),
    TEST(test_operations_document),
};
const test_cases wire_messages_cases = TEST_CASES(cases);
