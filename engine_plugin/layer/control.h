/* The socket through which `tandem layer` asks a running program's layer, and sets what it does.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * $XDG_RUNTIME_DIR/tandem-layer-N, of which each program with the layer takes the first that is
 * free: a socket of whole messages (interop/os/channel.h), for the same user alone. A connection is
 * one message and one answer, of words a line each:
 *     status             -> "ok", then a `name value` a line
 *     toggle [hud]       -> "ok"
 *     set NAME=VALUE     -> "ok", or "error" and what is wrong
 * Whatever else comes is refused.
 */
#ifndef TANDEM_LAYER_CONTROL_H
#define TANDEM_LAYER_CONTROL_H

enum { LAYER_SOCKETS = 16, LAYER_MESSAGE_BYTES = 4096 };
#define LAYER_SOCKET_FORMAT "%s/tandem-layer-%d"

/* Starts the thread that listens, once a process; without $XDG_RUNTIME_DIR there is none.
 * Threads: any.
 * Blocks: never. */
void layer_control_begin(void);

#endif
