/* SPDX-License-Identifier: Apache-2.0
 *
 * There are none yet: who asks for one is told so.
 */
#include "interop/os/channel.h"

static tandem_status none(char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "there is no tandemd on Windows yet: only sessions that compute in this process");
}

tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes)
{
    (void)path;
    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    return none(why, why_bytes);
}

tandem_status td_listener_adopt(td_listener *listener, int fd, char *why, size_t why_bytes)
{
    (void)fd;
    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    return none(why, why_bytes);
}

tandem_status td_listener_next(td_listener *listener, int *fd, char *why, size_t why_bytes)
{
    (void)listener;
    *fd = -1;
    return none(why, why_bytes);
}

void td_listener_close(td_listener *listener)
{
    (void)listener;
}

tandem_status td_channel_connect(const char *path, int *channel, char *why, size_t why_bytes)
{
    (void)path;
    *channel = -1;
    return none(why, why_bytes);
}

tandem_status td_channel_adopt(int fd, int *channel, char *why, size_t why_bytes)
{
    (void)fd;
    *channel = -1;
    return none(why, why_bytes);
}

tandem_status td_channel_peer_of(int channel, td_channel_peer *peer, char *why, size_t why_bytes)
{
    (void)channel;
    *peer = (td_channel_peer){0};
    return none(why, why_bytes);
}

int td_channel_process(int channel, const td_channel_peer *peer)
{
    (void)channel;
    (void)peer;
    return -1;
}

tandem_status td_channel_send(int channel, const void *message, uint32_t bytes, const int *fds, uint32_t fd_count, char *why,
                              size_t why_bytes)
{
    (void)channel;
    (void)message;
    (void)bytes;
    (void)fds;
    (void)fd_count;
    return none(why, why_bytes);
}

tandem_status td_channel_receive(int channel, void *message, size_t bytes, int *fds, uint32_t most_fds, td_channel_got *got,
                                 char *why, size_t why_bytes)
{
    (void)channel;
    (void)message;
    (void)bytes;
    for (uint32_t i = 0; i < most_fds; i++)
        fds[i] = -1;
    *got = (td_channel_got){0};
    return none(why, why_bytes);
}

tandem_status td_channel_wait(int channel, bool writes, int event, uint64_t timeout_ns, uint32_t *ready, char *why,
                              size_t why_bytes)
{
    (void)channel;
    (void)writes;
    (void)event;
    (void)timeout_ns;
    *ready = TD_CHANNEL_NONE;
    return none(why, why_bytes);
}

bool td_channel_is_open(int channel)
{
    (void)channel;
    return false;
}

void td_channel_shut(int channel)
{
    (void)channel;
}
