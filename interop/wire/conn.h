/* The wire's socket: whole messages, with exactly the descriptors that they claim.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Nothing here blocks but td_conn_wait(), which has a bound. A connection is one thread's at a time.
 * Statuses: BUSY nothing to take (or to accept) now; LOST the peer is gone; PROTOCOL it lies; NOMEM no descriptors left
 * here; IO the kernel says no. After LOST, PROTOCOL and IO a connection is of no more use than to be closed; only what
 * the peer said before it went can still be taken after td_conn_send() said LOST.
 */
#ifndef TANDEM_CONN_H
#define TANDEM_CONN_H

#include "interop/os/channel.h"
#include "interop/wire/wire.h"

enum { TD_CONN_QUEUE_BYTES = 16384, TD_CONN_PATH_BYTES = TD_CHANNEL_PATH_BYTES };

typedef struct td_conn {
    int fd; /* a channel */
    int32_t pid; /* who was there when the connection was made, as the kernel says */
    uint32_t uid, gid;
    uint32_t queued_bytes; /* that the peer has not read yet */
    unsigned char queue[TD_CONN_QUEUE_BYTES];
} td_conn;

/* The next who has connected. BUSY if nobody has; NOMEM: somebody was turned away. */
tandem_status td_listener_accept(td_listener *listener, td_conn *conn, char *why, size_t why_bytes);
/* BUSY: more wait to be accepted than the daemon's backlog holds. LOST: nobody listens. */
tandem_status td_conn_connect(td_conn *conn, const char *path, char *why, size_t why_bytes);
/* Over a duplicate of a connected SOCK_SEQPACKET socket. */
tandem_status td_conn_adopt(td_conn *conn, int fd, char *why, size_t why_bytes);
void td_conn_close(td_conn *conn);

/* Sends a message, or queues it with duplicates of its descriptors (header.fds of them). LOST: the peer is gone, or has
 * not read for so long that the queue is full. */
tandem_status td_conn_send(td_conn *conn, const void *message, const int *fds, char *why, size_t why_bytes);
/* Sends what was queued; BUSY if something is left. To be called when the socket can be written again. */
tandem_status td_conn_flush(td_conn *conn, char *why, size_t why_bytes);

/* Takes one message that td_wire_check() lets pass, and counts it. fds[] holds header.fds descriptors, which are the
 * caller's, or -1; on every status but OK all are -1. NOMEM: the message is there and right, its descriptors are not,
 * because this process has none left: answer it with ERROR NOMEM. */
tandem_status td_conn_recv(td_conn *conn, td_wire_rules *rules, td_wire_road road, td_wire_message *message,
                           int fds[TD_WIRE_MAX_FDS], char *why, size_t why_bytes);
/* Sleeps until there is something to take (or the peer is gone: OK too, td_conn_recv() says which), and flushes
 * meanwhile; BUSY after timeout_ns. */
tandem_status td_conn_wait(td_conn *conn, uint64_t timeout_ns, char *why, size_t why_bytes);
/* A descriptor that becomes readable when the peer's process ends; the caller's, -1 if there is none to be had. A process
 * may leave its socket to a child, which then holds it open. */
int td_conn_process(const td_conn *conn);

#endif
