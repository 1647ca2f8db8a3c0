/* Whatever a peer sends: td_wire_check() neither reads beyond it nor lets pass what breaks a promise, and a ring whose
 * every byte is hostile yields at most what it holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator below, which any compiler can build:
 *     fuzz_wire CORPUS [runs]        starts from the corpus, the same each time
 *     fuzz_wire --make CORPUS        writes the corpus: one right message of each type, and hostile rings
 *
 * Input: how (1 byte: 0-2 the road as it came; 3 a ring; + 4: before WELCOME, + 8: share HOST, + 16: no features, + 32:
 * header made right, so that what is behind it is reached, + 64: slots as short as version 1's), descriptors (1 byte), then
 * the message, or tail, head and slots.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/wire/ring.h"
#include "tests/fuzz_util.h"
#include "tests/interop/wire_util.h"

enum { HOW_RING = 3, HOW_EARLY = 4, HOW_HOST = 8, HOW_PLAIN = 16, HOW_REPAIR = 32, HOW_SMALL = 64 };

static void broken(const char *what)
{
    fprintf(stderr, "fuzz_wire: broken promise: %s\n", what);
    abort();
}

static void judge(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length, tandem_status status,
                  const char *why)
{
    const char *promise;

    if (status == TANDEM_ERROR_PROTOCOL) {
        if (!*why || strlen(why) > 399)
            broken("a refusal without its reason");
        return;
    }
    if (status != TANDEM_OK)
        broken("another status");
    promise = wire_promise(rules, road, bytes, length);
    if (promise)
        broken(promise);
}

static void check_message(td_wire_rules rules, td_wire_road road, bool repair, uint32_t fds, const uint8_t *data,
                          size_t size)
{
    const size_t room = repair ? sizeof(td_wire_message) : size;
    char why[400] = "";
    uint8_t *copy = malloc(room ? room : 1); /* exactly as long as what came: a byte read beyond it is seen */
    size_t length = size < room ? size : room;

    if (!copy)
        return;
    memset(copy, 0, room);
    if (length)
        memcpy(copy, data, length);
    if (repair && length >= sizeof(td_wire_header)) {
        td_wire_header h;

        memcpy(&h, copy, sizeof h);
        h.type = wire_types[h.type % WIRE_TYPES];
        road = wire_road(h.type);
        h = td_wire_new((td_wire_type)h.type, road == TD_WIRE_TO_DAEMON ? rules.next_serial : 0).header;
        if (road == TD_WIRE_TO_CLIENT && h.type != TD_WIRE_RESET && h.type != TD_WIRE_BYE)
            h.serial = rules.next_serial - 1;
        rules.ready = h.type != TD_WIRE_HELLO && h.type != TD_WIRE_WELCOME;
        memcpy(copy, &h, sizeof h);
        length = h.bytes;
        fds = h.fds;
    }
    judge(&rules, road, copy, length, td_wire_check(&rules, road, copy, length, fds, why, sizeof why), why);
    free(copy);
}

static void check_ring(td_wire_rules rules, td_wire_sizes sizes, const uint8_t *data, size_t size)
{
    static uint64_t mapped[TD_WIRE_RING_BYTES / 8]; /* to allocate so much each time takes AddressSanitizer most of its time */
    td_shared_ring *const shared = (td_shared_ring *)mapped;
    td_ring ring = {shared, 0, sizes};
    td_wire_message message;
    char why[400] = "";
    uint32_t indices[2] = {0}, taken = 0;
    tandem_status status;

    memset(mapped, 0, sizeof mapped);
    memcpy(indices, data, size < sizeof indices ? size : sizeof indices);
    atomic_store(&shared->tail, indices[0]);
    ring.own = indices[1];
    for (size_t i = 8, at = 0; i + 8 <= size && at < TD_WIRE_SLOTS * sizes.slot_bytes / 8; i += 8, at++) {
        uint64_t word;

        memcpy(&word, data + i, 8);
        atomic_store_explicit(&td_ring_slot(&ring, 0)[at], word, memory_order_relaxed);
    }
    for (;;) {
        const td_wire_rules before = rules;

        status = td_ring_take(&ring, &rules, &message, why, sizeof why);
        if (status == TANDEM_ERROR_BUSY)
            break;
        if (++taken > TD_WIRE_SLOTS + 1)
            broken("more messages than slots");
        judge(&before, TD_WIRE_RING, &message, sizes.slot_bytes, status, why);
        if (status == TANDEM_ERROR_PROTOCOL && indices[0] - indices[1] > TD_WIRE_SLOTS)
            break;
    }
    if (taken == 0 && indices[0] != indices[1])
        broken("a message that was not seen");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    td_wire_rules rules = wire_rules(TD_WIRE_PING);
    uint8_t how;

    if (size < 2)
        return 0;
    how = data[0];
    rules.ready = !(how & HOW_EARLY);
    if (how & HOW_HOST)
        rules.share = TD_WIRE_SHARE_HOST;
    if (how & HOW_PLAIN)
        rules.features = 0;
    if ((how & 3) == HOW_RING)
        check_ring(rules, how & HOW_SMALL ? td_wire_sizes_first() : td_wire_sizes_here(), data + 2, size - 2);
    else
        check_message(rules, (td_wire_road)(1 << (how & 3)), how & HOW_REPAIR, data[1], data + 2, size - 2);
    return 0;
}

#ifndef TANDEM_LIBFUZZER
static bool make_corpus(const char *folder)
{
    static uint8_t bytes[8192];
    char name[64];
    bool ok = true;

    for (int i = 0; i < WIRE_TYPES; i++) {
        const td_wire_message m = wire_sample(wire_types[i]);
        const td_wire_road road = wire_road(wire_types[i]);

        bytes[0] = (uint8_t)((road == TD_WIRE_TO_DAEMON ? 0 : road == TD_WIRE_TO_CLIENT ? 1 : 2) |
                             (wire_rules(wire_types[i]).ready ? 0 : HOW_EARLY));
        bytes[1] = (uint8_t)m.header.fds;
        memcpy(bytes + 2, &m, m.header.bytes);
        snprintf(name, sizeof name, "%02d_%s", wire_types[i], td_wire_name(wire_types[i]));
        ok = ok && fuzz_write(folder, name, bytes, 2 + m.header.bytes);
    }
    for (int i = 0; i < 3; i++) { /* rings: right, too full, at the end of 32 bits */
        static const uint32_t indices[3][2] = {{2, 0}, {65, 0}, {1, 0xffffffff}};
        const td_wire_message m = wire_sample(TD_WIRE_JOB);

        memset(bytes, 0, sizeof bytes);
        bytes[0] = HOW_RING;
        memcpy(bytes + 2, indices[i], 8);
        memcpy(bytes + 10, &m, m.header.bytes);
        memcpy(bytes + 10 + TD_WIRE_SLOT_BYTES, &m, m.header.bytes);
        snprintf(name, sizeof name, "ring_%d", i);
        ok = ok && fuzz_write(folder, name, bytes, 10 + 2 * TD_WIRE_SLOT_BYTES);
    }
    return ok;
}

int main(int argc, char **argv)
{
    enum { DEFAULT_RUNS = 1000000 };

    return fuzz_main(argc, argv, "fuzz_wire", DEFAULT_RUNS, make_corpus);
}
#endif
