/* Graphs as JSON texts, and as safetensors files that have one beside the weights. The format:
 * kernels/PROGRAM.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_GRAPH_FILE_H
#define TANDEM_GRAPH_FILE_H

#include "kernels/model/safetensors.h"
#include "kernels/program.h"

#define TD_GRAPH_KEY "tandem.graph" /* of the file's metadata */
enum { TD_GRAPH_VERSION = 1 };

/* PROTOCOL where the text is no graph, naming what is wrong and where, as `nodes[3].views.w: no
 * tensor "wq"`; NOMEM. */
tandem_status td_graph_read(const char *text, size_t bytes, td_graph **graph, char *why,
                            size_t why_bytes);

/* The graph of a file, whose weights the file has: of the same names, dtypes and shapes; those of a
 * dtype that safetensors have no name for (blocks, codes) as U8, of one dimension, with as many
 * bytes. */
tandem_status td_graph_file_read(const td_safetensors *file, td_graph **graph, char *why,
                                 size_t why_bytes);

/* The program's view TD_PROGRAM_WEIGHTS: program->weight_bytes from the file that its graph is
 * from. */
tandem_status td_graph_file_weights(const td_safetensors *file, const td_program *program, void *to,
                                    char *why, size_t why_bytes);

#endif
