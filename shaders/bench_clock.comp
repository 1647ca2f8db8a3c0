/* See bench_common.glsl: the same, and the first group of a check says when it began.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_realtime_clock : require
#define TD_BENCH_CLOCK

#include "bench_common.glsl"
