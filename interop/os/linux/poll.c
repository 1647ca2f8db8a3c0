/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/poll.h"

#include <assert.h>
#include <poll.h>
#include <stddef.h>

/* It is the system's own list. */
static_assert(sizeof(td_polled) == sizeof(struct pollfd) && offsetof(td_polled, wants) == offsetof(struct pollfd, events) &&
                  offsetof(td_polled, found) == offsetof(struct pollfd, revents),
              "as poll() has them");
static_assert((int)TD_POLL_READS == POLLIN && (int)TD_POLL_WRITES == POLLOUT && (int)TD_POLL_GONE == (POLLERR | POLLHUP),
              "as poll() calls them");

bool td_poll(td_polled *list, uint32_t count, int timeout_ms)
{
    if (poll((struct pollfd *)(void *)list, count, timeout_ms) >= 0)
        return true;
    for (uint32_t i = 0; i < count; i++)
        list[i].found = 0;
    return false;
}
