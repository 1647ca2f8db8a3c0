/* SPDX-License-Identifier: Apache-2.0
 *
 * Named pipes of messages. A channel's descriptor is an event, set while there is something to take or the peer is gone, so that
 * engines may wait for it; the pipe and the one message that is read ahead of being asked for are kept beside it, in a table.
 *
 * Handles are taken by who receives the message, out of the process at the other end: no number that a peer says can be a handle
 * of this process. Who sends keeps duplicates for that, until the other side's messages say how many it has taken so theirs, or the
 * channel ends: what was not taken by then is lost.
 */
#include "interop/os/channel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#include "interop/os/descriptor.h"
#include "interop/os/process.h"
#include "interop/os/windows/handle.h"

#include <winternl.h>

enum { MESSAGE_BYTES = 65536, BACKLOG = 16, MOST_GIVEN = 256, BUCKETS = 64 };
static const char prefix[] = "\\\\.\\pipe\\";

typedef struct frame {
    uint32_t fds, taken; /* taken: of all that has come the other way */
    int32_t fd[TD_CHANNEL_MOST_FDS];
    char bytes[MESSAGE_BYTES];
} frame;
enum { HEADER_BYTES = offsetof(frame, bytes) };

typedef struct pipe_channel {
    struct pipe_channel *next;
    int fd;        /* the event of `reading` */
    SRWLOCK lock;  /* of all below */
    HANDLE pipe;   /* NULL once it is shut */
    HANDLE peer;   /* its process; NULL if this one may not look */
    td_channel_peer is;
    OVERLAPPED reading, writing;
    bool reads, writes, ended; /* under way; the peer has closed */
    uint32_t taken;            /* handles, of those that came */
    uint32_t given_first, given;
    int given_fd[MOST_GIVEN]; /* a ring: what the peer has not yet said it has taken */
    frame in, out;
} pipe_channel;

static SRWLOCK table_lock = SRWLOCK_INIT;
static pipe_channel *table[BUCKETS];

static pipe_channel **bucket_of(int fd)
{
    return &table[(unsigned)fd / 4 % BUCKETS]; /* handles are multiples of 4 */
}

/* It stays there: nobody closes a channel that another still uses. */
static pipe_channel *channel_of(int fd)
{
    pipe_channel *c;

    AcquireSRWLockShared(&table_lock);
    c = *bucket_of(fd);
    while (c && c->fd != fd)
        c = c->next;
    ReleaseSRWLockShared(&table_lock);
    return c;
}

static bool is_gone(DWORD error)
{
    return error == ERROR_BROKEN_PIPE || error == ERROR_NO_DATA || error == ERROR_PIPE_NOT_CONNECTED ||
           error == ERROR_OPERATION_ABORTED || error == ERROR_INVALID_HANDLE;
}

/* Reads ahead: the event is set once that has come to an end. */
static void read_ahead(pipe_channel *c)
{
    const bool done = c->pipe && ReadFile(c->pipe, &c->in, sizeof c->in, NULL, &c->reading);

    c->reads = c->pipe && (done || GetLastError() == ERROR_IO_PENDING || GetLastError() == ERROR_MORE_DATA);
    if (!c->reads) {
        c->ended = true;
        SetEvent(c->reading.hEvent);
    }
}

/* Nothing of it is under way afterwards. */
static void shut_pipe(pipe_channel *c)
{
    DWORD bytes;

    if (!c->pipe)
        return;
    CancelIoEx(c->pipe, NULL);
    if (c->reads)
        GetOverlappedResult(c->pipe, &c->reading, &bytes, TRUE);
    if (c->writes)
        GetOverlappedResult(c->pipe, &c->writing, &bytes, TRUE);
    CloseHandle(c->pipe);
    c->pipe = NULL;
    c->reads = c->writes = false;
    c->ended = true;
    SetEvent(c->reading.hEvent);
    SetEvent(c->writing.hEvent);
}

static void free_channel(pipe_channel *c)
{
    shut_pipe(c);
    for (; c->given; c->given--)
        td_fd_close(&c->given_fd[c->given_first++ % MOST_GIVEN]);
    if (c->writing.hEvent)
        CloseHandle(c->writing.hEvent);
    if (c->peer)
        CloseHandle(c->peer);
    free(c);
}

void td_channel_end(int fd)
{
    pipe_channel **at, *c;

    AcquireSRWLockExclusive(&table_lock);
    for (at = bucket_of(fd); *at && (*at)->fd != fd;)
        at = &(*at)->next;
    c = *at;
    if (c)
        *at = c->next;
    ReleaseSRWLockExclusive(&table_lock);
    if (c)
        free_channel(c);
}

static bool is_connected(HANDLE pipe)
{
    enum { LOCAL_INFORMATION = 24, CONNECTED = 3 };
    struct {
        ULONG type, configuration, most, instances, in_quota, readable, out_quota, writable, state, end;
    } info;
    IO_STATUS_BLOCK io;

    return !NtQueryInformationFile(pipe, &io, &info, sizeof info, (FILE_INFORMATION_CLASS)LOCAL_INFORMATION) &&
           info.state == CONNECTED;
}

/* Who is at the other end. The number is that process's as long as the pipe is open after its process was. */
static bool know_peer(pipe_channel *c)
{
    const DWORD rights = PROCESS_DUP_HANDLE | PROCESS_QUERY_LIMITED_INFORMATION | SYNCHRONIZE;
    td_windows_user user;
    ULONG id = 0;
    DWORD flags = 0;

    if (!GetNamedPipeInfo(c->pipe, &flags, NULL, NULL, NULL) ||
        !(flags & PIPE_SERVER_END ? GetNamedPipeClientProcessId : GetNamedPipeServerProcessId)(c->pipe, &id))
        return false;
    c->is = (td_channel_peer){.process = (int32_t)id, .user = UINT32_MAX, .group = UINT32_MAX};
    c->peer = OpenProcess(rights, FALSE, id);
    if (c->peer && td_windows_user_of(c->peer, &user))
        c->is.user = c->is.group = td_windows_user_number(&user);
    return true;
}

/* Takes a connected pipe, whatever it returns. */
static tandem_status make_channel(HANDLE pipe, int *fd, char *why, size_t why_bytes)
{
    pipe_channel *c = calloc(1, sizeof *c);
    DWORD mode = PIPE_READMODE_MESSAGE;
    tandem_status status = TANDEM_OK;

    *fd = -1;
    if (!c) {
        CloseHandle(pipe);
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a channel");
    }
    c->pipe = pipe;
    c->fd = -1;
    c->reading.hEvent = CreateEventW(NULL, TRUE, FALSE, NULL);
    c->writing.hEvent = CreateEventW(NULL, TRUE, TRUE, NULL);
    if (!c->reading.hEvent || !c->writing.hEvent)
        status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "CreateEvent: %s", td_windows_error(GetLastError()).text);
    else if (!SetNamedPipeHandleState(pipe, &mode, NULL, NULL) || !know_peer(c))
        status = td_fail(why, why_bytes, is_gone(GetLastError()) ? TANDEM_ERROR_LOST : TANDEM_ERROR_IO, "a pipe: %s",
                         td_windows_error(GetLastError()).text);
    if (status != TANDEM_OK) {
        if (c->reading.hEvent)
            CloseHandle(c->reading.hEvent);
        free_channel(c);
        return status;
    }
    c->fd = *fd = td_fd_of(c->reading.hEvent);
    read_ahead(c);
    AcquireSRWLockExclusive(&table_lock);
    c->next = *bucket_of(c->fd);
    *bucket_of(c->fd) = c;
    ReleaseSRWLockExclusive(&table_lock);
    return TANDEM_OK;
}

/* Listeners. */

/* Pipes to be connected to, all of one name and with one event. */
typedef struct pipe_listener {
    HANDLE event;
    wchar_t *name;
    HANDLE pipe[BACKLOG];
    OVERLAPPED connecting[BACKLOG];
    bool is_connected[BACKLOG];
} pipe_listener;

static pipe_listener *listener_of(const td_listener *listener)
{
    return (pipe_listener *)(uintptr_t)listener->inode;
}

static tandem_status name_of(const char *path, wchar_t **name, char *why, size_t why_bytes)
{
    const size_t length = path ? strlen(path) : 0, least = sizeof prefix - 1;

    *name = NULL;
    if (length <= least || length >= TD_CHANNEL_PATH_BYTES || _strnicmp(path, prefix, least))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "socket path '%s' must be of a pipe: '%sNAME', of at most %d bytes",
                       path ? path : "", prefix, TD_CHANNEL_PATH_BYTES - 1);
    *name = td_wide(path);
    return *name ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_ARG, "socket path '%s' is not UTF-8", path);
}

/* The same user alone, and nobody from another machine. */
static HANDLE make_pipe(const wchar_t *name, bool first)
{
    union {
        ACL list;
        char room[sizeof(ACL) + sizeof(ACCESS_ALLOWED_ACE) + SECURITY_MAX_SID_SIZE];
    } acl;
    SECURITY_DESCRIPTOR security;
    SECURITY_ATTRIBUTES attributes = {sizeof attributes, &security, FALSE};
    td_windows_user user;

    if (!td_windows_user_of(GetCurrentProcess(), &user) || !InitializeAcl(&acl.list, sizeof acl, ACL_REVISION) ||
        !AddAccessAllowedAce(&acl.list, ACL_REVISION, FILE_ALL_ACCESS, user.is.user.User.Sid) ||
        !InitializeSecurityDescriptor(&security, SECURITY_DESCRIPTOR_REVISION) ||
        !SetSecurityDescriptorOwner(&security, user.is.user.User.Sid, FALSE) ||
        !SetSecurityDescriptorDacl(&security, TRUE, &acl.list, FALSE))
        return NULL;
    return CreateNamedPipeW(name,
                            PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED | (first ? FILE_FLAG_FIRST_PIPE_INSTANCE : 0),
                            PIPE_TYPE_MESSAGE | PIPE_READMODE_MESSAGE | PIPE_REJECT_REMOTE_CLIENTS, PIPE_UNLIMITED_INSTANCES,
                            MESSAGE_BYTES, MESSAGE_BYTES, 0, &attributes);
}

/* Whether it is there and waits for somebody, or somebody has come. */
static bool offer(pipe_listener *l, int i, bool first)
{
    DWORD error;

    l->is_connected[i] = false;
    if (!l->pipe[i]) {
        l->pipe[i] = make_pipe(l->name, first);
        if (l->pipe[i] == INVALID_HANDLE_VALUE)
            l->pipe[i] = NULL;
    }
    if (!l->pipe[i])
        return false;
    l->connecting[i] = (OVERLAPPED){.hEvent = l->event};
    error = ConnectNamedPipe(l->pipe[i], &l->connecting[i]) ? ERROR_PIPE_CONNECTED : GetLastError();
    l->is_connected[i] = error == ERROR_PIPE_CONNECTED || error == ERROR_NO_DATA; /* the latter has gone already */
    if (l->is_connected[i] || error == ERROR_IO_PENDING)
        return true;
    CloseHandle(l->pipe[i]);
    l->pipe[i] = NULL;
    SetLastError(error);
    return false;
}

static bool has_come(const pipe_listener *l, int i)
{
    return l->pipe[i] && (l->is_connected[i] || HasOverlappedIoCompleted(&l->connecting[i]));
}

/* Each that begins to wait resets what all have in common. */
static void tell(pipe_listener *l)
{
    ResetEvent(l->event);
    for (int i = 0; i < BACKLOG; i++)
        if (has_come(l, i))
            SetEvent(l->event);
}

/* Wine lets several be the first of a pipe's instances: an object by the pipe's name, which one can make. */
static bool take_name(td_listener *listener, const wchar_t *pipe)
{
    wchar_t name[TD_CHANNEL_PATH_BYTES + 32];
    HANDLE made;

    swprintf(name, sizeof name / sizeof *name, L"Local\\tandem-listener-%ls", pipe + sizeof prefix - 1);
    for (wchar_t *c = name + 6; *c; c++)
        *c = *c == L'\\' ? L'/' : *c;
    made = CreateEventW(NULL, TRUE, FALSE, name);
    if (made && GetLastError() == ERROR_ALREADY_EXISTS) {
        CloseHandle(made);
        SetLastError(ERROR_PIPE_BUSY);
        return false;
    }
    listener->lock = td_fd_of(made);
    return made != NULL;
}

tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes)
{
    pipe_listener *l = calloc(1, sizeof *l);
    tandem_status status;
    DWORD error;

    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1, .inode = (uintptr_t)l};
    if (!l)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a listener");
    status = name_of(path, &l->name, why, why_bytes);
    if (status == TANDEM_OK) {
        l->event = CreateEventW(NULL, TRUE, FALSE, NULL);
        listener->fd = td_fd_of(l->event);
        error = l->event && take_name(listener, l->name) && offer(l, 0, true) ? 0 : GetLastError();
        if (error) /* a pipe of this name is there, whose user may be another */
            status = td_fail(why, why_bytes,
                             error == ERROR_ACCESS_DENIED || error == ERROR_PIPE_BUSY ? TANDEM_ERROR_BUSY : TANDEM_ERROR_IO,
                             error == ERROR_ACCESS_DENIED || error == ERROR_PIPE_BUSY ? "%s: another listens there: %s"
                                                                                      : "%s: %s",
                             path, td_windows_error(error).text);
    }
    if (status != TANDEM_OK) {
        td_listener_close(listener);
        return status;
    }
    memcpy(listener->path, path, strlen(path) + 1);
    for (int i = 1; i < BACKLOG; i++)
        offer(l, i, false);
    tell(l);
    return TANDEM_OK;
}

tandem_status td_listener_adopt(td_listener *listener, int fd, char *why, size_t why_bytes)
{
    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "handle %d is no listener: on Windows none is inherited", fd);
}

tandem_status td_listener_next(td_listener *listener, int *fd, char *why, size_t why_bytes)
{
    pipe_listener *l = listener_of(listener);
    HANDLE came = NULL;
    tandem_status status;

    *fd = -1;
    for (int i = 0; i < BACKLOG; i++)
        if (!came && has_come(l, i)) {
            came = l->pipe[i];
            l->pipe[i] = NULL;
            offer(l, i, false);
        } else if (!l->pipe[i]) {
            offer(l, i, false); /* there was no handle for it before */
        }
    tell(l);
    if (!came)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nobody waits to be accepted");
    status = make_channel(came, fd, why, why_bytes);
    return status == TANDEM_ERROR_LOST ? td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "who has connected is gone") : status;
}

void td_listener_close(td_listener *listener)
{
    pipe_listener *l = listener_of(listener);
    DWORD bytes;

    for (int i = 0; l && i < BACKLOG; i++)
        if (l->pipe[i]) {
            CancelIoEx(l->pipe[i], &l->connecting[i]);
            if (!l->is_connected[i])
                GetOverlappedResult(l->pipe[i], &l->connecting[i], &bytes, TRUE);
            CloseHandle(l->pipe[i]);
        }
    if (l)
        free(l->name);
    free(l);
    listener->inode = 0;
    listener->path[0] = 0;
    td_fd_close(&listener->fd);
    td_fd_close(&listener->lock);
}

/* Channels. */

/* Names of pipes are anybody's: who listens must be the same user. */
static bool is_own(const pipe_channel *c)
{
    td_windows_user own, peer;

    return c && c->peer && td_windows_user_of(GetCurrentProcess(), &own) && td_windows_user_of(c->peer, &peer) &&
           EqualSid(own.is.user.User.Sid, peer.is.user.User.Sid);
}

tandem_status td_channel_named(const char *name, char path[TD_CHANNEL_PATH_BYTES], char *why, size_t why_bytes)
{
    const int length = snprintf(path, TD_CHANNEL_PATH_BYTES, "%s%s-%" PRIu32, prefix, name, td_process_user());

    return length < TD_CHANNEL_PATH_BYTES
               ? TANDEM_OK
               : td_fail(why, why_bytes, TANDEM_ERROR_ARG, "'" TD_NAME "' is too long for a pipe's name", TD_NAMED(name));
}

tandem_status td_channel_connect(const char *path, int *channel, char *why, size_t why_bytes)
{
    wchar_t *name;
    tandem_status status = name_of(path, &name, why, why_bytes);
    HANDLE pipe;
    DWORD error;

    *channel = -1;
    if (status != TANDEM_OK)
        return status;
    pipe = CreateFileW(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING,
                       FILE_FLAG_OVERLAPPED | SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION, NULL);
    error = GetLastError();
    free(name);
    if (pipe == INVALID_HANDLE_VALUE)
        return td_fail(why, why_bytes,
                       error == ERROR_PIPE_BUSY                                           ? TANDEM_ERROR_BUSY
                       : error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND ? TANDEM_ERROR_LOST
                       : error == ERROR_TOO_MANY_OPEN_FILES                               ? TANDEM_ERROR_NOMEM
                                                                                          : TANDEM_ERROR_IO,
                       "%s: %s", path, td_windows_error(error).text);
    status = make_channel(pipe, channel, why, why_bytes);
    if (status == TANDEM_OK && !is_own(channel_of(*channel))) {
        td_fd_close(channel);
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: who listens there is not of this user, or has more rights", path);
    }
    return status;
}

tandem_status td_channel_adopt(int fd, int *channel, char *why, size_t why_bytes)
{
    HANDLE self = GetCurrentProcess(), pipe = td_handle_of(fd), copy = NULL;

    *channel = -1;
    if (!pipe || GetFileType(pipe) != FILE_TYPE_PIPE || !is_connected(pipe))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "handle %d is no connected pipe", fd);
    if (!DuplicateHandle(self, pipe, self, &copy, 0, FALSE, DUPLICATE_SAME_ACCESS))
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "handle %d: %s", fd, td_windows_error(GetLastError()).text);
    return make_channel(copy, channel, why, why_bytes);
}

tandem_status td_channel_peer_of(int channel, td_channel_peer *peer, char *why, size_t why_bytes)
{
    const pipe_channel *c = channel_of(channel);

    *peer = c ? c->is : (td_channel_peer){0};
    return c ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d is no channel", channel);
}

int td_channel_process(int channel, const td_channel_peer *peer)
{
    const pipe_channel *c = channel_of(channel);
    HANDLE self = GetCurrentProcess(), copy = NULL;

    (void)peer;
    if (c && c->peer && !DuplicateHandle(self, c->peer, self, &copy, SYNCHRONIZE, FALSE, 0))
        copy = NULL;
    return td_fd_of(copy);
}

/* Whether what was sent last is on its way; LOST and BUSY as td_channel_send() has them. */
static tandem_status finish_write(pipe_channel *c)
{
    DWORD bytes;

    if (!c->pipe || c->ended)
        return TANDEM_ERROR_LOST;
    if (!c->writes)
        return TANDEM_OK;
    if (!GetOverlappedResult(c->pipe, &c->writing, &bytes, FALSE))
        return GetLastError() == ERROR_IO_INCOMPLETE ? TANDEM_ERROR_BUSY : TANDEM_ERROR_LOST;
    c->writes = false;
    return TANDEM_OK;
}

/* The newest of what was given. */
static void take_back(pipe_channel *c, uint32_t count)
{
    while (count--)
        td_fd_close(&c->given_fd[(c->given_first + --c->given) % MOST_GIVEN]);
}

static tandem_status give(pipe_channel *c, const int *fds, uint32_t count, char *why, size_t why_bytes)
{
    if (count > TD_CHANNEL_MOST_FDS || (count && !c->peer))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%" PRIu32 " handles cannot be sent to process %d", count,
                       (int)c->is.process);
    if (count > MOST_GIVEN - c->given)
        return TANDEM_ERROR_BUSY;
    for (uint32_t i = 0; i < count; i++) {
        const int copy = td_fd_dup(fds[i]);

        if (copy < 0) {
            const DWORD error = GetLastError();

            take_back(c, i);
            return td_fail(why, why_bytes, errno == EBADF ? TANDEM_ERROR_ARG : TANDEM_ERROR_NOMEM,
                           "descriptor %d cannot be sent: %s", fds[i], td_windows_error(error).text);
        }
        c->out.fd[i] = copy;
        c->given_fd[(c->given_first + c->given++) % MOST_GIVEN] = copy;
    }
    return TANDEM_OK;
}

static tandem_status send_locked(pipe_channel *c, const void *message, uint32_t bytes, const int *fds, uint32_t fd_count,
                                 char *why, size_t why_bytes)
{
    tandem_status status = finish_write(c);

    if (status == TANDEM_ERROR_LOST)
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer is gone");
    if (status == TANDEM_OK)
        status = give(c, fds, fd_count, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    c->out.fds = fd_count;
    c->out.taken = c->taken;
    memcpy(c->out.bytes, message, bytes);
    c->writes = WriteFile(c->pipe, &c->out, HEADER_BYTES + bytes, NULL, &c->writing) || GetLastError() == ERROR_IO_PENDING;
    if (c->writes)
        return TANDEM_OK;
    take_back(c, fd_count);
    SetEvent(c->writing.hEvent);
    return is_gone(GetLastError()) ? td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer is gone")
                                   : td_fail(why, why_bytes, TANDEM_ERROR_IO, "WriteFile of %" PRIu32 " bytes: %s", bytes,
                                             td_windows_error(GetLastError()).text);
}

tandem_status td_channel_send(int channel, const void *message, uint32_t bytes, const int *fds, uint32_t fd_count, char *why,
                              size_t why_bytes)
{
    pipe_channel *c = channel_of(channel);
    tandem_status status;

    if (!c)
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d is no channel", channel);
    if (bytes > MESSAGE_BYTES)
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "a message of %" PRIu32 " bytes: at most %d can be sent", bytes,
                       MESSAGE_BYTES);
    AcquireSRWLockExclusive(&c->lock);
    status = send_locked(c, message, bytes, fds, fd_count, why, why_bytes);
    ReleaseSRWLockExclusive(&c->lock);
    return status;
}

/* What is left of a message that is longer than any. */
static void skip_rest(pipe_channel *c)
{
    char rest[4096];
    DWORD bytes;

    do
        if (!ReadFile(c->pipe, rest, sizeof rest, NULL, &c->reading) && GetLastError() != ERROR_IO_PENDING &&
            GetLastError() != ERROR_MORE_DATA)
            return;
    while (!GetOverlappedResult(c->pipe, &c->reading, &bytes, TRUE) && GetLastError() == ERROR_MORE_DATA);
}

/* The peer has taken what was given to it first. */
static bool acknowledge(pipe_channel *c, uint32_t taken)
{
    const uint32_t count = taken - c->given_first;

    if (count > c->given)
        return false;
    for (uint32_t i = 0; i < count; i++)
        td_fd_close(&c->given_fd[c->given_first++ % MOST_GIVEN]);
    c->given -= count;
    return true;
}

/* Takes the handles of the message that has come, as many as there is room for. */
static void take_handles(pipe_channel *c, int *fds, uint32_t most_fds, td_channel_got *got)
{
    for (uint32_t i = 0; i < c->in.fds; i++) {
        HANDLE from = td_handle_of(c->in.fd[i]), copy = NULL;

        if (i < most_fds && !got->lost_fds) {
            if (c->peer && from &&
                DuplicateHandle(c->peer, from, GetCurrentProcess(), &copy, 0, FALSE, DUPLICATE_SAME_ACCESS)) {
                fds[i] = td_fd_of(copy);
            } else {
                got->lost_fds = true;
                got->no_fd_left = GetLastError() == ERROR_NO_SYSTEM_RESOURCES || GetLastError() == ERROR_TOO_MANY_OPEN_FILES;
            }
        }
        got->fds += !got->lost_fds;
    }
    c->taken += c->in.fds;
}

static tandem_status receive_locked(pipe_channel *c, void *message, size_t bytes, int *fds, uint32_t most_fds,
                                    td_channel_got *got, char *why, size_t why_bytes)
{
    DWORD came = 0, error = 0;

    if (c->reads && !GetOverlappedResult(c->pipe, &c->reading, &came, FALSE))
        error = GetLastError();
    if (error == ERROR_IO_INCOMPLETE)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nothing has come");
    if (!c->reads || (error && error != ERROR_MORE_DATA)) {
        c->reads = false;
        c->ended = true;
        SetEvent(c->reading.hEvent);
        return TANDEM_OK;
    }
    if (came < HEADER_BYTES || c->in.fds > TD_CHANNEL_MOST_FDS || !acknowledge(c, c->in.taken)) {
        shut_pipe(c);
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "a message of %lu bytes is none of a channel's", came);
    }
    got->bytes = came - HEADER_BYTES;
    got->is_longer = error == ERROR_MORE_DATA || got->bytes > bytes;
    if (got->bytes > bytes)
        got->bytes = bytes;
    memcpy(message, c->in.bytes, got->bytes);
    take_handles(c, fds, most_fds, got);
    if (error == ERROR_MORE_DATA)
        skip_rest(c);
    read_ahead(c);
    return TANDEM_OK;
}

tandem_status td_channel_receive(int channel, void *message, size_t bytes, int *fds, uint32_t most_fds, td_channel_got *got,
                                 char *why, size_t why_bytes)
{
    pipe_channel *c = channel_of(channel);
    tandem_status status;

    for (uint32_t i = 0; i < most_fds; i++)
        fds[i] = -1;
    *got = (td_channel_got){0};
    if (!c)
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d is no channel", channel);
    AcquireSRWLockExclusive(&c->lock);
    status = receive_locked(c, message, bytes, fds, most_fds, got, why, why_bytes);
    ReleaseSRWLockExclusive(&c->lock);
    return status;
}

tandem_status td_channel_wait(int channel, bool writes, int event, uint64_t timeout_ns, uint32_t *ready, char *why,
                              size_t why_bytes)
{
    const uint64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0);
    pipe_channel *c = channel_of(channel);
    HANDLE handle[3];
    uint32_t means[3], count = 0;
    DWORD flags;

    *ready = 0;
    if (channel >= 0 && !GetHandleInformation(td_handle_of(channel), &flags)) {
        *ready = TD_CHANNEL_NONE;
        return TANDEM_OK;
    }
    if (channel >= 0)
        handle[count] = td_handle_of(channel), means[count++] = TD_CHANNEL_READS;
    if (c && writes)
        handle[count] = c->writing.hEvent, means[count++] = TD_CHANNEL_WRITES;
    if (event >= 0)
        handle[count] = td_handle_of(event), means[count++] = TD_CHANNEL_EVENT;
    if (!count)
        Sleep(ms < INFINITE ? (DWORD)ms : INFINITE - 1);
    else if (WaitForMultipleObjects(count, handle, FALSE, ms < INFINITE ? (DWORD)ms : INFINITE - 1) == WAIT_FAILED)
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "WaitForMultipleObjects: %s", td_windows_error(GetLastError()).text);
    for (uint32_t i = 0; i < count; i++)
        if (WaitForSingleObject(handle[i], 0) == WAIT_OBJECT_0)
            *ready |= means[i];
    return TANDEM_OK;
}

HANDLE td_channel_writes(int fd)
{
    const pipe_channel *c = channel_of(fd);

    return c ? c->writing.hEvent : NULL;
}

/* Of a name that nobody guesses. The second end stays a pipe, which any process may adopt that gets it. */
tandem_status td_channel_pair(int ends[2], char *why, size_t why_bytes)
{
    uint64_t random[2];
    wchar_t name[64];
    HANDLE mine = NULL, theirs = INVALID_HANDLE_VALUE;
    tandem_status status;

    ends[0] = ends[1] = -1;
    if (SystemFunction036(random, sizeof random)) {
        swprintf(name, sizeof name / sizeof *name, L"\\\\.\\pipe\\tandem-%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
        mine = make_pipe(name, true);
    }
    if (mine && mine != INVALID_HANDLE_VALUE)
        theirs = CreateFileW(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, FILE_FLAG_OVERLAPPED, NULL);
    if (theirs == INVALID_HANDLE_VALUE) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a pipe: %s", td_windows_error(GetLastError()).text);
        if (mine && mine != INVALID_HANDLE_VALUE)
            CloseHandle(mine);
        return status;
    }
    status = make_channel(mine, &ends[0], why, why_bytes);
    if (status != TANDEM_OK)
        CloseHandle(theirs);
    else
        ends[1] = td_fd_of(theirs);
    return status;
}

void td_channel_given(int channel, int32_t process)
{
    pipe_channel *c = channel_of(channel);

    if (!c)
        return;
    AcquireSRWLockExclusive(&c->lock);
    if (c->peer)
        CloseHandle(c->peer);
    c->peer = OpenProcess(PROCESS_DUP_HANDLE | SYNCHRONIZE, FALSE, (DWORD)process);
    c->is.process = process;
    ReleaseSRWLockExclusive(&c->lock);
}

bool td_channel_is_open(int channel)
{
    pipe_channel *c = channel_of(channel);
    bool open;

    if (!c)
        return false;
    AcquireSRWLockExclusive(&c->lock);
    open = c->pipe && !c->ended && is_connected(c->pipe);
    ReleaseSRWLockExclusive(&c->lock);
    return open;
}

void td_channel_shut(int channel)
{
    pipe_channel *c = channel_of(channel);

    if (!c)
        return;
    AcquireSRWLockExclusive(&c->lock);
    shut_pipe(c);
    ReleaseSRWLockExclusive(&c->lock);
}
