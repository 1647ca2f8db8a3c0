/* Channels: whole messages both ways between two processes of one machine, with descriptors.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A channel is a descriptor. A message arrives whole or not at all, in the order in which it was sent, and the descriptors that
 * come with it are the receiver's own. (Linux: a Unix socket of type SOCK_SEQPACKET, and SCM_RIGHTS. Windows: a named pipe of
 * messages of at most 64 KiB, and handles that the receiver duplicates, which are lost if the sender ends before it does.)
 *
 * Nothing here blocks but td_channel_wait(). What a channel does for its descriptor goes for any of these functions: it is the
 * caller's until td_fd_close(), and one thread's at a time, but for td_channel_is_open() and td_channel_shut().
 */
#ifndef TANDEM_OS_CHANNEL_H
#define TANDEM_OS_CHANNEL_H

#include "interop/base.h"

enum { TD_CHANNEL_PATH_BYTES = 108, TD_CHANNEL_MOST_FDS = 4 };

/* Who is at the other end, as the system says: who was when the channel was made. */
typedef struct td_channel_peer {
    int32_t process;
    uint32_t user, group;
} td_channel_peer;

/* Where others connect to. */
typedef struct td_listener {
    int fd;
    int lock;  /* on path.lock: one listener a path; -1 for one that was inherited */
    int spare; /* given up for a moment where no other descriptor is left, to turn somebody away */
    char path[TD_CHANNEL_PATH_BYTES];
    uint64_t device, inode; /* what lies there, as long as it is ours (Windows: 0, and the pipes that wait to be connected to) */
} td_listener;

/* Listens at a path, for the same user alone; takes over what a dead process left there.
 * Once something lies at the path, it can be connected to.
 * Returns: BUSY if a living one listens; ARG for a path of over 103 bytes (Linux).
 * Owner: the caller, until td_listener_close(). */
tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes);
/* Listens on a duplicate of a descriptor that the service manager has opened.
 * Returns: ARG if it is none of a listener. */
tandem_status td_listener_adopt(td_listener *listener, int fd, char *why, size_t why_bytes);
/* The next who has connected.
 * Returns: BUSY if nobody has; NOMEM: somebody was turned away. *fd is -1 then. */
tandem_status td_listener_next(td_listener *listener, int *fd, char *why, size_t why_bytes);
/* Accepts listeners that were never opened if they are zeroed and their descriptors -1. Removes the path, unless something else
 * lies there by now. */
void td_listener_close(td_listener *listener);

/* Where a name is listened at among this user's programs. (Linux: $XDG_RUNTIME_DIR/NAME. Windows: \\.\pipe\NAME-USER, with the
 * last part of the user's identifier.)
 * Returns: UNSUPPORTED if there is no such place; ARG if it is too long. */
tandem_status td_channel_named(const char *name, char path[TD_CHANNEL_PATH_BYTES], char *why, size_t why_bytes);
/* Where they look for a daemon that is not named otherwise. */
static inline tandem_status td_channel_default(char path[TD_CHANNEL_PATH_BYTES], char *why, size_t why_bytes)
{
    return td_channel_named("tandem-0", path, why, why_bytes);
}

/* Connects to who listens at a path; makes a channel of a duplicate of a connected descriptor.
 * Returns: BUSY if more wait to be accepted than the listener's backlog holds, LOST if nobody listens; ARG if it is none. */
tandem_status td_channel_connect(const char *path, int *channel, char *why, size_t why_bytes);
tandem_status td_channel_adopt(int fd, int *channel, char *why, size_t why_bytes);

/* Two ends of a channel: ends[0] is one, ends[1] a descriptor for td_channel_adopt(), by whichever process it is given to. Whose
 * that is td_channel_given() says, before it sends descriptors. (Linux knows.) */
tandem_status td_channel_pair(int ends[2], char *why, size_t why_bytes);
void td_channel_given(int channel, int32_t process);

/* Who is there.
 * Returns: IO if the system does not say. */
tandem_status td_channel_peer_of(int channel, td_channel_peer *peer, char *why, size_t why_bytes);
/* A descriptor that becomes readable when that process ends, whoever holds its end of the channel open; -1 if there is none to
 * be had.
 * Owner: the caller. */
int td_channel_process(int channel, const td_channel_peer *peer);

/* Sends a message with up to TD_CHANNEL_MOST_FDS descriptors, which stay the caller's.
 * Returns: BUSY if it cannot be sent now: no `why`; LOST if the peer is gone; ARG for a descriptor that is none. */
tandem_status td_channel_send(int channel, const void *message, uint32_t bytes, const int *fds, uint32_t fd_count, char *why,
                              size_t why_bytes);

/* What came. */
typedef struct td_channel_got {
    size_t bytes; /* 0: the peer has closed */
    uint32_t fds; /* how many descriptors came: no more than there was room for were kept */
    bool is_longer;  /* than the room that there was */
    bool lost_fds;   /* not all descriptors came: there were too many, */
    bool no_fd_left; /* or this process can have no more */
} td_channel_got;

/* Takes a message, of at most `bytes`. fds[] gets what came with it, or -1, `most_fds` in all.
 * Returns: BUSY if there is none, LOST if the peer is gone and nothing it has said is left.
 * Owner: the caller, of fds[]. */
tandem_status td_channel_receive(int channel, void *message, size_t bytes, int *fds, uint32_t most_fds, td_channel_got *got,
                                 char *why, size_t why_bytes);

/* What td_channel_wait() was woken by. */
enum {
    TD_CHANNEL_READS = 1,  /* there is something to take, or the peer is gone */
    TD_CHANNEL_WRITES = 2, /* it can be written to again */
    TD_CHANNEL_EVENT = 4,
    TD_CHANNEL_NONE = 8, /* the descriptor is none */
};

/* Sleeps until there is something to take, or with `writes` can be sent again, or an event of event.h is set (or -1). It may
 * return before, with *ready 0.
 * Returns: IO if the system cannot wait.
 * Blocks: at most timeout_ns. */
tandem_status td_channel_wait(int channel, bool writes, int event, uint64_t timeout_ns, uint32_t *ready, char *why,
                              size_t why_bytes);

/* False once the peer has closed its end, though there may still be something to take.
 * Threads: any. */
bool td_channel_is_open(int channel);

/* Ends it for both sides, who both see that: its descriptor is still to be closed.
 * Threads: any. */
void td_channel_shut(int channel);

#endif
