/* Open Image Denoise beside our network, opened at run time where it is installed: nothing here needs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_OIDN_H
#define TANDEM_DEMO_OIDN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct demo_oidn demo_oidn;

/* From the library at `path`; NULL: from where libraries are. `cuda`: on a CUDA device, if it has one, else on the CPU with at most
 * `threads`, 0: all. Ready for frames of that size. NULL with the reason. */
demo_oidn *demo_oidn_open(const char *path, bool cuda, uint32_t threads, uint32_t width, uint32_t height, char *why,
                          size_t why_bytes);
void demo_oidn_close(demo_oidn *oidn);
/* Whether its library is where the system looks for it, or `path` is a file: nothing is opened, which may still fail. */
bool demo_oidn_is_there(const char *path);

/* Opens it as above on a thread of its own, since to load its network takes many frames' time. NULL with the reason. `path` is to
 * stay. ended: whether that is over: *opening is gone then, and *oidn as above. close: waits for it, and closes what it opened. */
typedef struct demo_oidn_opening demo_oidn_opening;
demo_oidn_opening *demo_oidn_begin(const char *path, bool cuda, uint32_t threads, uint32_t width, uint32_t height, char *why,
                                   size_t why_bytes);
bool demo_oidn_ended(demo_oidn_opening **opening, demo_oidn **oidn, char *why, size_t why_bytes);
void demo_oidn_begin_close(demo_oidn_opening *opening);
/* Version and device. */
const char *demo_oidn_name(const demo_oidn *oidn);

/* Images of width * height * 4 floats, as the renderer has them: where albedo's fourth is above 0.5 something shines. `ms`: the filter
 * alone takes so long. False with the reason. */
bool demo_oidn_run(demo_oidn *oidn, const float *color, const float *albedo, const float *normal, float *out, double *ms,
                   char *why, size_t why_bytes);

#endif
