/* The channel through which `tandem layer` asks a running program's layer, and sets what it does.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * tandem-layer-N among the user's channels (interop/os/channel.h), of which each program with the
 * layer takes the first that is free: a socket in $XDG_RUNTIME_DIR, or on Windows a named pipe, for
 * the same user alone. A connection is one message and one answer, of words a line each:
 *     status             -> "ok", then a `name value` a line
 *     toggle [hud]       -> "ok"
 *     set NAME=VALUE     -> "ok", or "error" and what is wrong
 * Whatever else comes is refused.
 */
#ifndef TANDEM_LAYER_CONTROL_H
#define TANDEM_LAYER_CONTROL_H

#include <stdio.h>

#include "interop/os/channel.h"

enum { LAYER_PLACES = 16, LAYER_MESSAGE_BYTES = 4096 };

/* The place with a number below LAYER_PLACES.
 * Returns: what td_channel_named() does. */
static inline tandem_status layer_control_place(int number, char path[TD_CHANNEL_PATH_BYTES],
                                                char *why, size_t why_bytes)
{
    char name[32];

    snprintf(name, sizeof name, "tandem-layer-%d", number);
    return td_channel_named(name, path, why, why_bytes);
}

/* Starts the thread that listens, once a process; where there is no place for it, there is none.
 * Threads: any.
 * Blocks: never. */
void layer_control_begin(void);

#endif
