/* A mem that the host reads and writes as it is, on every rung: for what is small, or comes from the host and goes back there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_NPC_HOST_MEM_H
#define TANDEM_NPC_HOST_MEM_H

#include "tandem/tandem.h"

typedef struct td_host_mem {
    tandem_mem mem;
    void *host;
    void *pages; /* ours, where the session's own memory is the GPU's alone */
} td_host_mem;

/* At least so many bytes. What goes wrong is said by tandem_error_text() of the session; *out is empty then. One thread at a time
 * for each. Blocks as tandem_mem_create() does. */
tandem_status td_host_mem_make(tandem_session *session, uint64_t bytes, td_host_mem *out);
/* Accepts empty ones. */
void td_host_mem_free(tandem_session *session, td_host_mem *m);

#endif
