/* What the parts of test_abi share. SPDX-License-Identifier: Apache-2.0 */
#ifndef TANDEM_TESTS_ABI_RIG_H
#define TANDEM_TESTS_ABI_RIG_H

#include "tandem/plugin.h"
#include "tests/cases.h"
#include "tests/plugin/daemon_util.h"

extern group_daemon served; /* today's */
extern const test_cases abi_structs_cases, abi_npc_structs_cases, abi_wire_cases;

/* growth.c: what a struct has to stand that grows, through a call that is given it. */
enum { MORE = 64, UNTOUCHED = 0xaa }; /* bytes of a longer one; what is not written */
extern char last_text[600];           /* of the last call that failed, as tell() has it */
tandem_status tell(tandem_session *s, tandem_status status);
/* As a caller has it whose sizeof is `bytes`; AddressSanitizer sees what is read beyond it. */
void *resized(const void *ours, size_t own_bytes, uint32_t bytes);
/* Of one that goes in: what is not known of a longer one is 0, or said; a shorter one has what it needs in its first bytes. */
typedef tandem_status (*call_with)(tandem_session *s, const void *given);
void longer(tandem_session *s, const char *name, const void *ours, size_t own_bytes, call_with call, tandem_status as_ours);
void shorter(tandem_session *s, const void *ours, size_t own_bytes, uint32_t bytes, call_with call, tandem_status wanted);
/* Of one that is filled: exactly the caller's bytes are written, as much of ours as there is room for, and zeros. */
typedef tandem_status (*fill)(tandem_session *s, void *out);
void out_of(tandem_session *s, size_t own_bytes, uint32_t step, fill call, tandem_status wanted);
/* Of several: each lies where the caller's sizeof says. */
typedef tandem_status (*fill_list)(uint32_t *count, void *list);
void list_of(size_t own_bytes, fill_list call);

#endif
