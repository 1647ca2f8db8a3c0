/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/struct.h"

#include <inttypes.h>

enum { MOST_BYTES = 65536 }; /* no version of any struct is longer: what says so was never set */

static uint32_t bytes_of(const void *theirs)
{
    uint32_t bytes;

    memcpy(&bytes, theirs, sizeof bytes);
    return bytes;
}

tandem_status td_struct_check(const char *name, const void *theirs, size_t bytes, size_t alignment, char *why,
                              size_t why_bytes)
{
    const uint32_t said = bytes_of(theirs);

    if (said && said <= MOST_BYTES && said % alignment == 0)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.struct_bytes is %" PRIu32 ", not %zu: set it to its sizeof", name,
                   said, bytes);
}

tandem_status td_struct_in(const char *name, const void *theirs, void *ours, size_t bytes, size_t alignment, char *why,
                           size_t why_bytes)
{
    const tandem_status status = td_struct_check(name, theirs, bytes, alignment, why, why_bytes);
    const uint32_t own = (uint32_t)bytes, said = bytes_of(theirs);
    size_t unknown;

    memset(ours, 0, bytes);
    if (status != TANDEM_OK)
        return status;
    memcpy(ours, theirs, said < own ? said : own);
    memcpy(ours, &own, sizeof own);
    unknown = td_first_not_zero(theirs, own, said);
    if (unknown == said)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "%s.struct_bytes is %" PRIu32 ", of which this library knows %" PRIu32 ", but the byte at offset %zu is %u, not 0",
                   name, said, own, unknown, ((const uint8_t *)theirs)[unknown]);
}

void td_struct_out(void *theirs, const void *ours, size_t bytes)
{
    const uint32_t said = bytes_of(theirs);

    memset(theirs, 0, said);
    memcpy(theirs, ours, said < bytes ? said : bytes);
    memcpy(theirs, &said, sizeof said);
}
