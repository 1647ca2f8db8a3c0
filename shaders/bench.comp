/* See bench_common.glsl.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "bench_common.glsl"
