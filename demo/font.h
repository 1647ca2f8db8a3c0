/* The overlay's fonts, built in: DejaVu Sans and DejaVu Sans Mono as TrueType files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_FONT_H
#define TANDEM_DEMO_FONT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const unsigned char tandem_font_sans[], tandem_font_mono[];
extern const size_t tandem_font_sans_size, tandem_font_mono_size;

#ifdef __cplusplus
}
#endif
#endif
