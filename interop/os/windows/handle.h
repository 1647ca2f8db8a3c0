/* Descriptors are handles, of which Windows keeps to the lower 32 bits so that programs of 32 and of 64 can hand them to each
 * other; none is 0 or less but those that stand for this process or thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_WINDOWS_HANDLE_H
#define TANDEM_OS_WINDOWS_HANDLE_H

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline HANDLE td_handle_of(int fd)
{
    return fd > 0 ? (HANDLE)(intptr_t)fd : NULL;
}

/* -1 for what Windows gives in place of a handle. */
static inline int td_fd_of(HANDLE handle)
{
    return handle && handle != INVALID_HANDLE_VALUE ? (int)(intptr_t)handle : -1;
}

/* The system's words for its error, in English where it has them. */
typedef struct td_windows_text {
    char text[200];
} td_windows_text;
td_windows_text td_windows_error(DWORD error);

/* A text of UTF-8 as Windows wants it; NULL and errno if it is none, or there is no memory. And the other way.
 * Owner: the caller, until free(). */
wchar_t *td_wide(const char *text);
char *td_narrow(const wchar_t *text);

/* How long a section is whose memory is all there; 0 if the handle is none that can be mapped so. */
uint64_t td_section_bytes(HANDLE section, DWORD access);

/* RtlGenRandom(), in advapi32, and in no header of MinGW's for C. */
BOOLEAN NTAPI SystemFunction036(void *to, ULONG bytes);

/* The user with whose rights a process runs; false if the system does not say. */
typedef struct td_windows_user {
    union {
        TOKEN_USER user;
        char room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } is;
} td_windows_user;
bool td_windows_user_of(HANDLE process, td_windows_user *user);
/* The last part of its identifier, which is no other's of this machine. */
uint32_t td_windows_user_number(td_windows_user *user);

/* A channel's descriptor is an event that is set while there is something to take. This ends the channel that has it, if one has. */
void td_channel_end(int fd);
/* The event that is set while a channel can be sent to; NULL if it is none. */
HANDLE td_channel_writes(int fd);

/* The event of a word in memory that is shared, which all who have mapped it know by name; NULL if there is none to be had. *local:
 * the word is in no such memory; then it has one if it was made before, or `make`. It is there until the memory is unmapped. */
typedef struct td_waker {
    struct td_waker *next;
    uint64_t offset;
    HANDLE event;
    atomic_bool led; /* one thread of this process waits for the event, and wakes the others */
} td_waker;
td_waker *td_waker_of(const void *word, bool make, bool *local);

#endif
