/* Structs that callers hand in and out, of whichever version they were built with.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each begins with a uint32_t struct_bytes and grows at its end alone, where 0 means what was before. So a struct that is
 * shorter than ours is one whose missing bytes are 0, and a longer one is ours if what is not known here is 0. Of one that
 * is filled only the caller's bytes are written, and all of them.
 */
#ifndef TANDEM_STRUCT_H
#define TANDEM_STRUCT_H

#include "interop/base.h"

/* Whether struct_bytes can be the sizeof of such a struct; else ARG. `name` is the caller's. */
#define TD_STRUCT_CHECK(name, theirs, why, why_bytes) \
    td_struct_check(name, theirs, sizeof *(theirs), _Alignof(__typeof__(*(theirs))), why, why_bytes)
/* And copies it to ours, whose struct_bytes is our own. UNSUPPORTED, with an offset: something that is not known here is
 * not 0; all else is copied then. After ARG ours is 0. */
#define TD_STRUCT_IN(name, theirs, ours, why, why_bytes) \
    td_struct_in(name, theirs, ours, sizeof *(ours), _Alignof(__typeof__(*(ours))), why, why_bytes)
/* Fills theirs, which passed the check, but its struct_bytes. */
#define TD_STRUCT_OUT(theirs, ours) td_struct_out(theirs, ours, sizeof *(ours))

tandem_status td_struct_check(const char *name, const void *theirs, size_t bytes, size_t alignment, char *why,
                              size_t why_bytes);
tandem_status td_struct_in(const char *name, const void *theirs, void *ours, size_t bytes, size_t alignment, char *why,
                           size_t why_bytes);
void td_struct_out(void *theirs, const void *ours, size_t bytes);

#endif
