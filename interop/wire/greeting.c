/* What two sides tell each other in HELLO and WELCOME, and what both go by then.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/wire/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "interop/os/machine.h"

/* --- Who it is --- */

static void hash(uint8_t out[16], const char *first, const char *second)
{
    const char *const parts[2] = {first, second};
    unsigned __int128 h = (unsigned __int128)0x6c62272e07bb0142 << 64 | 0x62b821756295c58d;

    for (int i = 0; i < 2; i++)
        for (const char *c = parts[i]; *c; c++) {
            h ^= (uint8_t)*c;
            h *= (unsigned __int128)1 << 88 | 0x13b;
        }
    memcpy(out, &h, 16);
}

void td_wire_identify(td_wire_identity *identity)
{
    char line[80];
    int digits = 0;

    memset(identity->host_id, 0, sizeof identity->host_id);
    memset(identity->boot_id, 0, sizeof identity->boot_id);
    if (td_machine_id(line, sizeof line))
        hash(identity->host_id, "tandem host 1", line);
    td_machine_boot_id(line, sizeof line);
    for (const char *c = line; *c && digits < 32; c++) {
        const int digit = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;

        if (digit < 0)
            continue;
        identity->boot_id[digits / 2] = (uint8_t)(identity->boot_id[digits / 2] << 4 | digit);
        digits++;
    }
}

static bool same(const char *name, const uint8_t mine[16], const uint8_t theirs[16], char *why, size_t why_bytes)
{
    char hex[2][33];

    if (!memcmp(mine, theirs, 16))
        return true;
    for (int i = 0; i < 16; i++) {
        snprintf(hex[0] + 2 * i, 3, "%02x", mine[i]);
        snprintf(hex[1] + 2 * i, 3, "%02x", theirs[i]);
    }
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is %s here and %s there", name, hex[0], hex[1]);
    return false;
}

tandem_status td_wire_match(const td_wire_identity *mine, const td_wire_identity *theirs, uint32_t share, char *why,
                            size_t why_bytes)
{
    static const uint8_t none[16];
    const bool drivers = memcmp(mine->driver_uuid, none, 16) && memcmp(theirs->driver_uuid, none, 16);

    if (share == TD_WIRE_SHARE_NONE)
        return TANDEM_OK;
    if (!same("host id", mine->host_id, theirs->host_id, why, why_bytes) ||
        !same("boot id", mine->boot_id, theirs->boot_id, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    if (share == TD_WIRE_SHARE_HOST)
        return TANDEM_OK;
    if (!memcmp(mine->device_uuid, none, 16))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "there is no device here");
    if (!same("device UUID", mine->device_uuid, theirs->device_uuid, why, why_bytes) ||
        (drivers && !same("driver UUID", mine->driver_uuid, theirs->driver_uuid, why, why_bytes)))
        return TANDEM_ERROR_UNSUPPORTED;
    if (mine->driver_id != theirs->driver_id || mine->driver_version != theirs->driver_version)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "driver is %" PRIu32 ", version 0x%" PRIx32 ", here and %" PRIu32 ", version 0x%" PRIx32 ", there",
                       mine->driver_id, mine->driver_version, theirs->driver_id, theirs->driver_version);
    return TANDEM_OK;
}

/* --- Version, sizes, features --- */

uint16_t td_wire_version(uint16_t min, uint16_t max)
{
    const uint16_t newest = max < TD_WIRE_VERSION ? max : TD_WIRE_VERSION;

    return newest >= min ? newest : 0;
}

uint64_t td_wire_ring_bytes(const td_wire_sizes *sizes)
{
    return TD_WIRE_SLOTS_AT + (uint64_t)TD_WIRE_SLOTS * sizes->slot_bytes + (uint64_t)TD_WIRE_REPORTS * sizes->report_bytes;
}

static td_wire_sizes sizes_of(uint32_t job_bytes, uint32_t slot_bytes, uint32_t report_bytes)
{
    td_wire_sizes sizes = {job_bytes, slot_bytes, report_bytes, 0};

    sizes.ring_bytes = (uint32_t)td_wire_ring_bytes(&sizes);
    return sizes;
}

td_wire_sizes td_wire_sizes_here(void)
{
    return sizes_of(sizeof(td_wire_job), TD_WIRE_SLOT_BYTES, TD_WIRE_REPORT_BYTES);
}

td_wire_sizes td_wire_sizes_first(void)
{
    return sizes_of(TD_WIRE_FIRST_JOB_BYTES, TD_WIRE_FIRST_SLOT_BYTES, TD_WIRE_FIRST_REPORT_BYTES);
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

td_wire_sizes td_wire_sizes_with(const td_wire_hello *hello)
{
    const td_wire_sizes here = td_wire_sizes_here(), there = hello->version_max > 1 ? hello->most : hello->sizes;

    return sizes_of(lesser(here.job_bytes, there.job_bytes), lesser(here.slot_bytes, there.slot_bytes),
                    lesser(here.report_bytes, there.report_bytes));
}

uint64_t td_wire_features_with(const td_wire_hello *hello)
{
    const uint64_t of_networks = TD_WIRE_NETWORKS | TD_WIRE_LANGUAGES | TD_WIRE_LAYERS | TD_WIRE_STATES;
    const bool has_networks = hello->version_max > 1 && hello->most.slot_bytes >= sizeof(td_wire_run);

    return hello->features & TD_WIRE_FEATURES & (has_networks ? UINT64_MAX : ~of_networks);
}

/* --- Operations: 4 bits each --- */

static uint32_t operation_get(const uint8_t *operations, uint32_t number)
{
    return number / 2 < TD_WIRE_OPERATION_BYTES ? operations[number / 2] >> (number % 2 * 4) & 15 : 0;
}

static void operation_set(uint8_t *operations, uint32_t number, uint32_t version)
{
    const uint32_t shift = number % 2 * 4;

    operations[number / 2] = (uint8_t)((operations[number / 2] & ~(15u << shift)) | version << shift);
}

/* There was one, number 1, in its first version. */
void td_wire_operations_first(uint8_t operations[TD_WIRE_OPERATION_BYTES])
{
    memset(operations, 0, TD_WIRE_OPERATION_BYTES);
    operation_set(operations, 1, 1);
}

void td_wire_operations_here(const td_wire_rules *rules, uint8_t operations[TD_WIRE_OPERATION_BYTES])
{
    memset(operations, 0, TD_WIRE_OPERATION_BYTES);
    for (uint32_t number = 1; number < 2 * TD_WIRE_OPERATION_BYTES; number++) {
        const td_operation_layout *layout = rules->operation(number);

        if (layout)
            operation_set(operations, number, layout->version);
    }
}

void td_wire_operations_with(const td_wire_rules *rules, const uint8_t theirs[TD_WIRE_OPERATION_BYTES],
                             uint8_t operations[TD_WIRE_OPERATION_BYTES])
{
    td_wire_operations_here(rules, operations);
    for (uint32_t number = 1; number < 2 * TD_WIRE_OPERATION_BYTES; number++)
        operation_set(operations, number, lesser(operation_get(operations, number), operation_get(theirs, number)));
}

tandem_status td_wire_takes(const td_wire_rules *rules, const td_operation_layout *layout, const tandem_operands *op,
                            char *why, size_t why_bytes)
{
    const uint32_t version = operation_get(rules->operations, layout->number);
    const uint32_t known = td_operation_bytes(layout, version);
    const size_t at = td_first_not_zero(op, known, layout->bytes);

    if (!version)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "operation %" PRIu32 " (%s) is none that tandemd knows",
                       layout->number, layout->name);
    if (at == layout->bytes)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "tandemd knows version %" PRIu32 " of %s, which has %" PRIu32 " bytes, but the byte at offset %zu is %u, not 0",
                   version, layout->name, known, at, ((const uint8_t *)op)[at]);
}

