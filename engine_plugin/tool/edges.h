/* Whether a frame's edges are to stay hard: whether its rays all went through the middle of pixels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_EDGES_H
#define TD_TOOL_EDGES_H

#include "engine_plugin/tool/picture.h"

/* By depths, where there are some, on surfaces that normals, of the same size where there are some, say are smooth. False, too, where
 * too little of the frame tells. */
bool tool_edges_are_hard(const tool_picture *depth, const tool_picture *normal);

#endif
