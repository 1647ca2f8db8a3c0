/* The ground: log, error text, sums that do not overflow. Everything stands on it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_BASE_H
#define TANDEM_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tandem/types.h"

typedef enum td_log_level { TD_LOG_ERROR = 0, TD_LOG_WARN = 1, TD_LOG_INFO = 2, TD_LOG_DEBUG = 3 } td_log_level;

/* A name of the caller's within a text, as printf("'" TD_NAME "'", TD_NAMED(path)): a long one ends in "...". */
#define TD_NAME "%.*s%s"
#define TD_NAMED(name) TD_NAME_MOST, (name), strlen(name) > TD_NAME_MOST ? "..." : ""
enum { TD_NAME_MOST = 200 };

/* Where log lines go. fn may be NULL: nowhere. One line a call, without a newline. fn may be called from any thread. */
typedef struct td_log {
    void (*fn)(void *user, int level, const char *text);
    void *user;
} td_log;

/* What the compiler checks texts and their arguments by. MinGW's takes `printf` for that of Microsoft's library, which is not the
 * one that is called here. */
#ifdef __MINGW32__
#define TD_PRINTF gnu_printf
#else
#define TD_PRINTF printf
#endif

void td_logf(const td_log *log, td_log_level level, const char *format, ...) __attribute__((format(TD_PRINTF, 3, 4)));

/* Formats into `text` (bytes may be 0); what does not fit is cut behind a word and ends in "...". */
void td_text(char *text, size_t bytes, const char *format, ...) __attribute__((format(TD_PRINTF, 3, 4)));
void td_text_list(char *text, size_t bytes, const char *format, va_list args);
/* The same, and returns `status`, so that a check can end in one return. */
tandem_status td_fail(char *text, size_t bytes, tandem_status status, const char *format, ...)
    __attribute__((format(TD_PRINTF, 4, 5)));

/* a * b and a + b; false on overflow. */
static inline bool td_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool td_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* Where the first byte is that is not 0, from `from` on and before `to`, which it is where there is none. */
size_t td_first_not_zero(const void *bytes, size_t from, size_t to);

/* x rounded up to a multiple of a power of two. */
static inline uint64_t td_align_up(uint64_t x, uint64_t power_of_two) { return (x + power_of_two - 1) & ~(power_of_two - 1); }

#endif
