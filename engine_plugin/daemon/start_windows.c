/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/start.h"
#include "engine_plugin/daemon/worker.h"
#include "interop/os/descriptor.h"

const char td_start_help[] =
    "Computes for many engines: they share memory with it over a named pipe, and go on when it fails. Stays in the\n"
    "foreground until Ctrl-C, which lets running jobs end, at most 2 s.\n"
    "\n"
    "  --socket PIPE   where to listen: \\\\.\\pipe\\NAME; \\\\.\\pipe\\tandem-0-USER if not given, with the last part of the\n"
    "                  user's identifier (SID). Nobody but that user can connect, whatever allow_uid says\n"
    "  --config FILE   %APPDATA%\\tandem\\tandemd.conf if not given and there\n";

tandem_status td_start_check_place(const char *path, char *why, size_t why_bytes)
{
    (void)path, (void)why, (void)why_bytes; /* who else makes such a pipe is seen when this one cannot be made */
    return TANDEM_OK;
}

bool td_start_config(char *path, size_t bytes)
{
    const char *folder = getenv("APPDATA");
    const int length = folder && *folder ? snprintf(path, bytes, "%s\\tandem\\tandemd.conf", folder) : 0;

    return length > 0 && length < (int)bytes;
}

bool td_start_inherits(void)
{
    return false;
}

tandem_status td_start_listen(td_listener *listener, const td_config *config, const char *socket, char *why, size_t why_bytes)
{
    if (config->allow_count)
        td_say(TD_LOG_WARN, "allow_uid is not heeded: on Windows nobody connects but the daemon's own user");
    return td_listener_open(listener, socket, why, why_bytes);
}

void td_start_signals(void)
{
    _setmode(_fileno(stderr), _O_BINARY); /* the log's lines end as they are written */
}

void td_start_limits(void)
{
}

/* --worker BACKEND THREADS PIPE QUEUE: the latter are handles that it has inherited. */
int td_start_worker(int argc, char **argv)
{
    char why[TD_TEXT_BYTES] = "usage";
    int pipe, channel = -1;

    if (argc == 6) {
        pipe = (int)strtol(argv[4], NULL, 10);
        if (td_channel_adopt(pipe, &channel, why, sizeof why) == TANDEM_OK) {
            td_fd_close(&pipe);
            return td_worker_main(channel, (int)strtol(argv[5], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10),
                                  (uint32_t)strtoul(argv[3], NULL, 10));
        }
    }
    fprintf(stderr, "tandemd: --worker is for the daemon itself: %s\n", why);
    return 2;
}
