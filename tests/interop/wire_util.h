/* One right message of each type, and what lets it pass: for the wire's test and its fuzzer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_WIRE_UTIL_H
#define TANDEM_TEST_WIRE_UTIL_H

#include "interop/wire/wire.h"
#include "kernels/operation.h"

enum {
    WIRE_TYPES = 35,
    WIRE_MEMS = 64,
    WIRE_TIMELINES = 32,
    WIRE_MODELS = 8,
    WIRE_INSTANCES = 16,
    WIRE_SERIAL = 7,
    WIRE_TICKET = 9
};
#define WIRE_MEM_BYTES (1ull << 30)
extern const uint16_t wire_types[WIRE_TYPES];

/* The road that a type comes on; BYE: to the client. */
td_wire_road wire_road(uint32_t type);
/* What a receiver of this type goes by: behind WELCOME unless the type comes before it; all features, share OPAQUE,
 * next_serial WIRE_SERIAL, next_ticket WIRE_TICKET. */
td_wire_rules wire_rules(uint32_t type);
td_wire_message wire_sample(uint32_t type);
/* Whether what td_wire_check() let pass is what PROTOCOL.md promises to whoever reads it; the text says what is not. */
const char *wire_promise(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length);

#endif
