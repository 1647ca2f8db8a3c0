/* The wire: what is right passes, what is wrong is refused with its name and value, and whatever a peer does with
 * descriptors, sockets and shared memory, this side has afterwards what it had before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <sys/resource.h>

#include "tests/interop/wire/rig.h"

int main(void)
{
    const test_cases *const parts[] = {
        &wire_messages_cases, &wire_greeting_cases, &wire_socket_cases, &wire_ring_cases, &wire_conversation_cases,
    };

    /* No memfd of this program's, whatever goes wrong, can take the machine's memory. */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){64 << 20, 64 << 20});
    return run_cases("tests", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
