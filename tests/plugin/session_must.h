/* What a call of a session must return; a failure says what the session says of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_SESSION_MUST_H
#define TANDEM_TESTS_SESSION_MUST_H

#include <string.h>

#include "tandem/tandem.h"

static inline void session_must(tandem_session *s, tandem_status status)
{
    char why[600] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(s, why, sizeof why);
    fail_msg("%s: %s", tandem_status_text(status), why);
}

static inline void session_must_fail(tandem_session *s, tandem_status status, tandem_status with, const char *says)
{
    char why[600] = "";

    assert_int_equal(status, with);
    tandem_error_text(s, why, sizeof why);
    if (!strstr(why, says))
        fail_msg("\"%s\" does not say \"%s\"", why, says);
}

#endif
