/* The launcher: a process that starts and ends workers and opens files, which the broker may not do once it is confined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_LAUNCHER_H
#define TANDEM_DAEMON_LAUNCHER_H

#include <stdio.h>

#include "engine_plugin/daemon/config.h"
#include "engine_plugin/daemon/pass.h"
#include "interop/os/descriptor.h"
#include "interop/wire/wire.h"

typedef enum td_launcher_message_kind {
    TD_LAUNCHER_SPAWN = 1, /* with the worker's end of its socket, and its queue */
    TD_LAUNCHER_SPAWNED = 2,
    TD_LAUNCHER_KILL = 3,
    TD_LAUNCHER_ENDED = 4,
    TD_LAUNCHER_OPEN = 5, /* a file beneath the model directories */
    TD_LAUNCHER_OPENED = 6,
    TD_LAUNCHER_CONFIG = 7, /* read it again */
} td_launcher_message_kind;
typedef struct td_launcher_message {
    uint32_t kind, serial;
    int32_t pid, status; /* ENDED: the signal that ended it, or 0; else tandem_status */
    uint64_t device, inode; /* CONFIG: of our socket, whose mode goes by the configuration */
    char text[TD_WIRE_PATH_BYTES];
    td_config config;
} td_launcher_message;
/* A launcher's answer to OPEN: the file, which is closed here, or why there is none. */
static inline void td_launcher_pass_opened(int broker, td_launcher_message *m, int fd, const char *why)
{
    m->kind = TD_LAUNCHER_OPENED;
    m->status = fd >= 0 ? TANDEM_OK : TANDEM_ERROR_IO;
    if (fd < 0)
        snprintf(m->text, sizeof m->text, "%s", why);
    td_pass(broker, m, sizeof *m, &fd, fd >= 0);
    td_fd_close(&fd);
}
/* Forks; returns the socket to it, or -1. config_given: that it is not there is an error. socket_path: NULL if its mode is
 * none of our business. */
int td_launcher_start(const td_config *config, const char *config_path, bool config_given, const char *socket_path);
/* Others may connect if any are allowed to: who they are the kernel says. 0, or -1 and errno: EEXIST if something else lies
 * there than that socket, which stays as it is. */
int td_socket_mode(const char *path, uint64_t device, uint64_t inode, const td_config *config);

#endif
