/* What the layer's shaders and engine_plugin/layer agree on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_LAYER_SHARED_H
#define TD_LAYER_SHARED_H

#ifdef GL_core_profile
#define TD_UINT uint
#define TD_FLOAT float
#else
#include <stdint.h>
#define TD_UINT uint32_t
#define TD_FLOAT float
#endif

#define TD_LAYER_GROUP 8 /* each way, of all of them */

/* A pixel's token is what its 3 x 3 pixels look like: nine luminances and two differences of colours, times a gain. With
 * K = [f, -|f|^2 / 2] and Q = [f, 1] attention is a Gaussian of how different two pixels' surroundings are, whatever lies between
 * them: the mean of a pixel's neighbours that look alike, which takes away what is noise and nothing else. |f|^2 is of the rounded
 * numbers, and in three parts, as a half has 11 bits; the first by TD_LAYER_PART, as a half ends at 65504. Light is compared by
 * what sRGB makes of it, so that a step is as visible in the dark as where it is bright. */
#define TD_LAYER_DIM 16
#define TD_LAYER_RADIUS 3     /* of the neighbours */
#define TD_LAYER_CHROMA 0.5   /* how much the differences count */
#define TD_LAYER_PART 64.0
#define TD_LAYER_MOST 8.0     /* what is compared, as sRGB's codes: some 10000 cd/m2. What is beyond looks like that */

struct td_layer_tokens {
    TD_UINT width, height;
    TD_FLOAT gain;
    TD_UINT linear; /* the picture's numbers are light, not codes */
};

struct td_layer_mix {
    TD_UINT width, height;
    TD_FLOAT amount; /* 0: the image as it was, 1: the mean; beyond, and below 0, away from either */
    TD_UINT exchange; /* what comes out has red and blue in each other's place */
};

/* Letters of 6 x 13 pixels, from blank to tilde, four rows a word; then lines of text, four letters a word. */
#define TD_LAYER_GLYPHS 95
#define TD_LAYER_GLYPH_WIDTH 6
#define TD_LAYER_GLYPH_ROWS 13
#define TD_LAYER_GLYPH_WORDS 4
#define TD_LAYER_COLUMNS 44
#define TD_LAYER_LINES 3
#define TD_LAYER_MARGIN 4     /* around the text */
#define TD_LAYER_FONT_WORDS 380
#define TD_LAYER_TEXT_WORDS 33

struct td_layer_hud {
    TD_UINT width, height; /* of what is drawn, from the upper left corner on */
    TD_UINT scale;         /* pixels to a pixel of the font */
    TD_FLOAT white;
};

#endif
