/* A small network in a file, for tests of sessions.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It multiplies rows of x by w, which is y, takes the mean of the first `length` of them, and adds
 * that to `total`, its state, which `sum` is then. With w of ones, x all ones and one run after
 * another sum is 1, 2, 3 and so on.
 */
#ifndef TD_TESTS_NETWORK_UTIL_H
#define TD_TESTS_NETWORK_UTIL_H

enum { NETWORK_CHANNELS = 8, NETWORK_ROWS = 64 /* at most */ };
enum { NETWORK_X, NETWORK_Y, NETWORK_SUM, NETWORK_BINDINGS };

extern const char network_text[];

/* A file with a text as its graph (NULL: none) and w, of ones: its path, the same each time. */
const char *network_file(const char *text);
void network_file_remove(void);

#endif
