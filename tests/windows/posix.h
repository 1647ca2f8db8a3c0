/* In front of each source of the tests on Windows: what they take from POSIX and MinGW has otherwise.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What aligned_alloc() gives goes to free() there, so here free() tells by whose a pointer is.
 */
#ifndef TD_TESTS_WINDOWS_POSIX_H
#define TD_TESTS_WINDOWS_POSIX_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *td_posix_aligned_alloc(size_t alignment, size_t bytes);
void td_posix_free(void *memory);
int td_posix_setenv(const char *name, const char *value, int replace);
int td_posix_unsetenv(const char *name);
char *td_posix_mkdtemp(char *name);
char *td_posix_strndup(const char *text, size_t bytes);
int td_posix_mkstemp(char *name); /* others may open it meanwhile */
int td_posix_memalign(void **memory, size_t alignment, size_t bytes);

#define aligned_alloc(alignment, bytes) td_posix_aligned_alloc(alignment, bytes)
#define free(memory) td_posix_free(memory)
#define setenv(name, value, replace) td_posix_setenv(name, value, replace)
#define unsetenv(name) td_posix_unsetenv(name)
#define mkdtemp(name) td_posix_mkdtemp(name)
#define mkstemp(name) td_posix_mkstemp(name)
#define posix_memalign(memory, alignment, bytes) td_posix_memalign(memory, alignment, bytes)
#define strndup(text, bytes) td_posix_strndup(text, bytes)

#endif
