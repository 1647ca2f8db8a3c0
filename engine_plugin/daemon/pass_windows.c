/* Messages between our own processes, as on any channel.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/daemon/pass.h"
#include "interop/os/channel.h"
#include "interop/os/descriptor.h"

tandem_status td_pass(int to, const void *message, size_t bytes, const int *fds, uint32_t fd_count)
{
    const tandem_status status = td_channel_send(to, message, (uint32_t)bytes, fds, fd_count, NULL, 0);

    return status == TANDEM_OK || status == TANDEM_ERROR_BUSY ? status : TANDEM_ERROR_LOST;
}

tandem_status td_fetch(int from, void *message, size_t bytes, int fds[2])
{
    td_channel_got got;
    const tandem_status status = td_channel_receive(from, message, bytes, fds, 2, &got, NULL, 0);
    const bool whole = got.bytes == bytes && !got.is_longer;

    if (status != TANDEM_OK || !got.bytes)
        return status == TANDEM_ERROR_BUSY ? status : TANDEM_ERROR_LOST;
    if (!whole || got.lost_fds || got.fds > 2) { /* some of the descriptors are no message's */
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
    }
    return whole ? TANDEM_OK : TANDEM_ERROR_PROTOCOL;
}
