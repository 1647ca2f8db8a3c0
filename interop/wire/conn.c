/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/wire/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

static_assert((int)TD_WIRE_MAX_FDS <= (int)TD_CHANNEL_MOST_FDS, "a message can be sent");

/* What the queue holds of a message; its bytes follow, padded to 8. */
typedef struct entry {
    uint32_t bytes, fds;
    int fd[TD_WIRE_MAX_FDS + TD_WIRE_MAX_FDS % 2]; /* keeps messages on multiples of 8 */
} entry;
static_assert(sizeof(entry) % 8 == 0, "messages behind it are aligned");

static void close_all(int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        td_fd_close(&fds[i]);
}

/* The channel is there. */
static tandem_status begin(td_conn *conn, char *why, size_t why_bytes)
{
    td_channel_peer peer;
    const tandem_status status = td_channel_peer_of(conn->fd, &peer, why, why_bytes);

    if (status != TANDEM_OK) {
        td_fd_close(&conn->fd);
        return status;
    }
    conn->pid = peer.process;
    conn->uid = peer.user;
    conn->gid = peer.group;
    return TANDEM_OK;
}

tandem_status td_listener_accept(td_listener *listener, td_conn *conn, char *why, size_t why_bytes)
{
    const tandem_status status = td_listener_next(listener, &conn->fd, why, why_bytes);

    conn->queued_bytes = 0;
    return status == TANDEM_OK ? begin(conn, why, why_bytes) : status;
}

tandem_status td_conn_connect(td_conn *conn, const char *path, char *why, size_t why_bytes)
{
    const tandem_status status = td_channel_connect(path, &conn->fd, why, why_bytes);

    conn->queued_bytes = 0;
    return status == TANDEM_OK ? begin(conn, why, why_bytes) : status;
}

tandem_status td_conn_adopt(td_conn *conn, int fd, char *why, size_t why_bytes)
{
    const tandem_status status = td_channel_adopt(fd, &conn->fd, why, why_bytes);

    conn->queued_bytes = 0;
    return status == TANDEM_OK ? begin(conn, why, why_bytes) : status;
}

/* Takes the first message off the queue. */
static void drop_first(td_conn *conn)
{
    entry first;
    uint32_t bytes;

    memcpy(&first, conn->queue, sizeof first);
    close_all(first.fd, first.fds);
    bytes = (uint32_t)(sizeof first + td_align_up(first.bytes, 8));
    conn->queued_bytes -= bytes;
    memmove(conn->queue, conn->queue + bytes, conn->queued_bytes);
}

void td_conn_close(td_conn *conn)
{
    while (conn->queued_bytes)
        drop_first(conn);
    td_fd_close(&conn->fd);
}

static tandem_status gone(const td_conn *conn, char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer (process %d) is gone", (int)conn->pid);
}

static tandem_status send_now(const td_conn *conn, const void *bytes, uint32_t length, const int *fds, uint32_t fd_count,
                              char *why, size_t why_bytes)
{
    const tandem_status status = td_channel_send(conn->fd, bytes, length, fds, fd_count, why, why_bytes);

    return status == TANDEM_ERROR_LOST ? gone(conn, why, why_bytes) : status;
}

tandem_status td_conn_flush(td_conn *conn, char *why, size_t why_bytes)
{
    while (conn->queued_bytes) {
        tandem_status status;
        entry first;

        memcpy(&first, conn->queue, sizeof first);
        status = send_now(conn, conn->queue + sizeof first, first.bytes, first.fd, first.fds, why, why_bytes);
        if (status != TANDEM_OK)
            return status == TANDEM_ERROR_BUSY ? td_fail(why, why_bytes, status, "%" PRIu32 " bytes are queued still",
                                                         conn->queued_bytes)
                                               : status;
        drop_first(conn);
    }
    return TANDEM_OK;
}

tandem_status td_conn_send(td_conn *conn, const void *message, const int *fds, char *why, size_t why_bytes)
{
    const td_wire_header *h = message;
    tandem_status status;
    entry last = {.bytes = h->bytes, .fds = h->fds};
    uint64_t need;

    if (h->bytes < sizeof *h || h->bytes > sizeof(td_wire_message) || h->fds > TD_WIRE_MAX_FDS || (h->fds && !fds))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a message of %" PRIu32 " bytes with %u descriptors", h->bytes,
                       h->fds);
    status = td_conn_flush(conn, why, why_bytes);
    if (status == TANDEM_OK)
        status = send_now(conn, message, h->bytes, fds, h->fds, why, why_bytes);
    if (status != TANDEM_ERROR_BUSY)
        return status;
    need = sizeof last + td_align_up(h->bytes, 8);
    if (need > TD_CONN_QUEUE_BYTES - conn->queued_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST,
                       "the peer (process %d) does not read: %" PRIu32 " bytes are queued", (int)conn->pid,
                       conn->queued_bytes);
    for (uint32_t i = 0; i < h->fds; i++) {
        last.fd[i] = td_fd_dup(fds[i]);
        if (last.fd[i] < 0) {
            status = td_fail(why, why_bytes, errno == EBADF ? TANDEM_ERROR_ARG : TANDEM_ERROR_NOMEM,
                             "descriptor %d cannot be queued: %s", fds[i], strerror(errno));
            close_all(last.fd, i);
            return status;
        }
    }
    memcpy(conn->queue + conn->queued_bytes, &last, sizeof last);
    memcpy(conn->queue + conn->queued_bytes + sizeof last, message, h->bytes);
    conn->queued_bytes += (uint32_t)need;
    return TANDEM_OK;
}

tandem_status td_conn_recv(td_conn *conn, td_wire_rules *rules, td_wire_road road, td_wire_message *message,
                           int fds[TD_WIRE_MAX_FDS], char *why, size_t why_bytes)
{
    td_channel_got got;
    tandem_status status = td_channel_receive(conn->fd, message, sizeof *message, fds, TD_WIRE_MAX_FDS, &got, why, why_bytes);

    if (status != TANDEM_OK)
        return status == TANDEM_ERROR_LOST ? gone(conn, why, why_bytes) : status;
    memset((char *)message + got.bytes, 0, sizeof *message - got.bytes); /* what the peer does not know of it */
    if (got.is_longer) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "message is longer than the %zu bytes of the longest",
                         sizeof *message);
    } else if (got.lost_fds) {
        status = TANDEM_ERROR_PROTOCOL;
        if (got.bytes >= sizeof message->header && got.fds < message->header.fds && got.no_fd_left)
            status = td_wire_check(rules, road, message, got.bytes, message->header.fds, why, why_bytes);
        else
            td_fail(why, why_bytes, status, "control data was cut: message comes with more than may be");
        if (status == TANDEM_OK) {
            td_wire_took(rules, road, message);
            status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%s came without its descriptor: none is left here",
                             td_wire_name(message->header.type));
        }
    } else if (got.bytes == 0) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer (process %d) has closed", (int)conn->pid);
    } else {
        status = td_wire_check(rules, road, message, got.bytes, got.fds, why, why_bytes);
        if (status == TANDEM_OK)
            td_wire_took(rules, road, message);
    }
    if (status != TANDEM_OK)
        close_all(fds, TD_WIRE_MAX_FDS);
    return status;
}

tandem_status td_conn_wait(td_conn *conn, uint64_t timeout_ns, char *why, size_t why_bytes)
{
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        const uint64_t gone_ns = td_now_ns() - begin_ns, left_ns = gone_ns < timeout_ns ? timeout_ns - gone_ns : 0;
        uint32_t ready;
        tandem_status status =
            td_channel_wait(conn->fd, conn->queued_bytes != 0, -1, left_ns, &ready, why, why_bytes);

        if (status != TANDEM_OK)
            return status;
        if (ready & TD_CHANNEL_NONE)
            return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the connection is closed");
        if (ready & TD_CHANNEL_READS)
            return TANDEM_OK;
        if (ready) {
            status = td_conn_flush(conn, why, why_bytes);
            if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
                return status;
        }
        if (!left_ns)
            return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nothing came within %" PRIu64 " ms",
                           timeout_ns / 1000000);
    }
}

int td_conn_process(const td_conn *conn)
{
    return td_channel_process(conn->fd, &(td_channel_peer){conn->pid, conn->uid, conn->gid});
}
