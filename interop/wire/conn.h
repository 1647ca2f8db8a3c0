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

#include <sys/types.h>

#include "interop/wire/wire.h"

enum { TD_CONN_QUEUE_BYTES = 16384, TD_CONN_PATH_BYTES = 108 };

typedef struct td_conn {
    int fd;
    pid_t pid; /* who was there when the connection was made, as the kernel says */
    uid_t uid;
    gid_t gid;
    uint32_t queued_bytes; /* that the peer has not read yet */
    unsigned char queue[TD_CONN_QUEUE_BYTES];
} td_conn;

typedef struct td_listener {
    int fd;
    int lock;  /* on path.lock: one daemon a path; -1 for a socket that was inherited */
    int spare; /* given up for a moment where no other descriptor is left, to turn somebody away */
    char path[TD_CONN_PATH_BYTES];
    uint64_t device, inode; /* what lies there, as long as it is ours */
} td_listener;

/* Listens at a path, mode 0600; takes over what a dead process left there, BUSY if a living one listens. */
tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes);
/* Listens on a duplicate of a socket from the service manager: ARG if it is not a listening SOCK_SEQPACKET one. */
tandem_status td_listener_adopt(td_listener *listener, int fd, char *why, size_t why_bytes);
/* NOMEM: somebody was turned away. */
tandem_status td_listener_accept(td_listener *listener, td_conn *conn, char *why, size_t why_bytes);
/* Accepts listeners that were never opened if they are zeroed and their descriptors -1. Removes the path, unless something
 * else lies there by now. */
void td_listener_close(td_listener *listener);

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
/* False once the peer has closed its end, though there may still be something to take. */
bool td_conn_alive(int fd);

/* A descriptor that becomes readable when the peer's process ends; the caller's, -1 if there is none to be had. A process
 * may leave its socket to a child, which then holds it open. */
int td_conn_process(const td_conn *conn);

#endif
