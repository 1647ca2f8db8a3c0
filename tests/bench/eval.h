/* What `tandem eval denoise` and `tandem eval gi` share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_EVAL_H
#define TD_BENCH_EVAL_H

#include "engine_plugin/tool/picture.h"

enum { BENCH_EVAL_MODELS = 8 };

typedef struct bench_eval_arguments {
    const char *frames, *models, *json, *sheet, *socket;
    uint32_t rung;
} bench_eval_arguments;

/* Names of a folder's safetensors, sorted; also where it fails, what there is of them is freed by
 * bench_free_names(). */
bool bench_list_frames(const char *folder, char ***names, size_t *count, char *why,
                       size_t why_bytes);
void bench_free_names(char **names, size_t count);

/* Pictures beside one another: a line for each of some frames, of which a cell has the middle.
 * Zeroed is empty. */
enum { BENCH_SHEET_LINES = 12 };
typedef struct bench_sheet {
    tool_picture picture;
    uint32_t columns, line; /* lines that were begun */
} bench_sheet;
/* Begins a line, of BENCH_SHEET_LINES at most; false when memory is short. */
bool bench_sheet_begin(bench_sheet *sheet, uint32_t columns);
/* A cell of that line. */
void bench_sheet_draw(bench_sheet *sheet, uint32_t column, const tool_picture *from, double gain);
/* How bright a line should be: by what is to be seen. */
double bench_sheet_gain(const tool_picture *reference);
bool bench_sheet_save(bench_sheet *sheet, const char *path, char *why, size_t why_bytes);

/* An exit status. */
int bench_eval_gi(const bench_eval_arguments *arguments);

#endif
