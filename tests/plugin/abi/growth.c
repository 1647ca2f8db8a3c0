/* How structs are tested that grow: as callers have them who were built before, or after.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/plugin/abi/rig.h"

char last_text[600];

tandem_status tell(tandem_session *s, tandem_status status)
{
    if (status != TANDEM_OK)
        assert_int_equal(tandem_error_text(s, last_text, sizeof last_text), TANDEM_OK);
    return status;
}

void *resized(const void *ours, size_t own_bytes, uint32_t bytes)
{
    char *made = calloc(1, bytes);

    assert_non_null(made);
    memcpy(made, ours, own_bytes < bytes ? own_bytes : bytes);
    memcpy(made, &bytes, sizeof bytes);
    return made;
}

void longer(tandem_session *s, const char *name, const void *ours, size_t own_bytes, call_with call,
            tandem_status as_ours)
{
    static const uint32_t places[] = {0, 13, MORE - 1};
    const uint32_t bytes = (uint32_t)own_bytes + MORE;
    char *given = resized(ours, own_bytes, bytes), says[200];

    assert_int_equal(call(s, ours), as_ours);
    assert_int_equal(call(s, given), as_ours);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const size_t at = own_bytes + places[i];

        given[at] = 5;
        assert_int_equal(call(s, given), TANDEM_ERROR_UNSUPPORTED);
        snprintf(says, sizeof says,
                 "%s.struct_bytes is %u, of which this library knows %zu, but the byte at offset %zu is 5, not 0", name, bytes,
                 own_bytes, at);
        if (!strstr(last_text, says))
            fail_msg("'%s' does not say '%s'", last_text, says);
        given[at] = 0;
    }
    free(given);
}

void shorter(tandem_session *s, const void *ours, size_t own_bytes, uint32_t bytes, call_with call,
             tandem_status wanted)
{
    void *given = resized(ours, own_bytes, bytes);

    assert_true(bytes < own_bytes);
    assert_int_equal(call(s, given), wanted);
    free(given);
}

void out_of(tandem_session *s, size_t own_bytes, uint32_t step, fill call, tandem_status wanted)
{
    unsigned char *ours = resized("\0\0\0", 4, (uint32_t)own_bytes), *given;

    assert_int_equal(call(s, ours), wanted);
    for (uint32_t bytes = step; bytes <= own_bytes + MORE; bytes += step) {
        given = malloc(bytes + MORE);
        assert_non_null(given);
        memset(given, UNTOUCHED, bytes + MORE);
        memcpy(given, &bytes, sizeof bytes);
        assert_int_equal(call(s, given), wanted);
        assert_memory_equal(given, &bytes, sizeof bytes);
        for (uint32_t at = 4; at < bytes + MORE; at++)
            assert_int_equal(given[at], at >= bytes ? UNTOUCHED : at < own_bytes ? ours[at] : 0);
        free(given);
    }
    free(ours);
}

void list_of(size_t own_bytes, fill_list call)
{
    static _Alignas(8) unsigned char ours[1 << 16];
    uint32_t count = (uint32_t)(sizeof ours / own_bytes);

    memcpy(ours, &(uint32_t){(uint32_t)own_bytes}, 4);
    assert_int_equal(call(&count, ours), TANDEM_OK);
    for (uint32_t bytes = 8; bytes <= own_bytes + MORE; bytes += 8) {
        unsigned char *given = malloc((size_t)count * bytes + MORE);
        uint32_t room = count;

        assert_non_null(given);
        memset(given, UNTOUCHED, (size_t)count * bytes + MORE);
        memcpy(given, &bytes, sizeof bytes);
        assert_int_equal(call(&room, given), TANDEM_OK);
        assert_int_equal(room, count);
        for (uint32_t i = 0; i < count; i++) {
            const unsigned char *at = given + (size_t)i * bytes;

            assert_memory_equal(at, &bytes, sizeof bytes);
            for (uint32_t b = 4; b < bytes; b++)
                assert_int_equal(at[b], b < own_bytes ? ours[i * own_bytes + b] : 0);
        }
        for (uint32_t b = 0; b < MORE; b++)
            assert_int_equal(given[(size_t)count * bytes + b], UNTOUCHED);
        free(given);
    }
}
