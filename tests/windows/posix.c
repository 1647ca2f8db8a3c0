/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/windows/posix.h"

#include <direct.h>
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>

#include <pthread.h>
#include <windows.h>

#undef free

/* The blocks that are aligned and not yet freed: few at a time. */
enum { MOST = 65536 };
static void *aligned[MOST];
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *td_posix_aligned_alloc(size_t alignment, size_t bytes)
{
    void *memory = _aligned_malloc(bytes, alignment);

    pthread_mutex_lock(&lock);
    if (memory && count == MOST) {
        _aligned_free(memory);
        memory = NULL;
    }
    if (memory)
        aligned[count++] = memory;
    pthread_mutex_unlock(&lock);
    return memory;
}

static bool take(void *memory)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (size_t i = count; memory && i-- && !found;)
        if (aligned[i] == memory) {
            aligned[i] = aligned[--count];
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

void td_posix_free(void *memory)
{
    if (take(memory))
        _aligned_free(memory);
    else
        free(memory);
}

int td_posix_setenv(const char *name, const char *value, int replace)
{
    return !replace && getenv(name) ? 0 : _putenv_s(name, value);
}

int td_posix_unsetenv(const char *name)
{
    return _putenv_s(name, "");
}

char *td_posix_mkdtemp(char *name)
{
    char *x = name + strlen(name) - 6;
    static unsigned made;

    for (int tries = 0; tries < 100; tries++) {
        snprintf(x, 7, "%06x", (made++ * 7919u + (unsigned)GetCurrentProcessId() * 131u) & 0xffffff);
        if (!_mkdir(name))
            return name;
    }
    return NULL;
}

int td_posix_mkstemp(char *name)
{
    char *x = name + strlen(name) - 6;
    static unsigned made;

    for (int tries = 0; tries < 100; tries++) {
        HANDLE file;

        snprintf(x, 7, "%06x", (made++ * 7919u + (unsigned)GetCurrentProcessId() * 131u) & 0xffffff);
        file = CreateFileA(name, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                           CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
        if (file != INVALID_HANDLE_VALUE)
            return _open_osfhandle((intptr_t)file, _O_RDWR | _O_BINARY);
    }
    return -1;
}

char *td_posix_strndup(const char *text, size_t bytes)
{
    const char *end = memchr(text, 0, bytes);
    const size_t length = end ? (size_t)(end - text) : bytes;
    char *copy = malloc(length + 1);

    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

int td_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    *memory = td_posix_aligned_alloc(alignment, bytes);
    return *memory ? 0 : 12; /* ENOMEM */
}
