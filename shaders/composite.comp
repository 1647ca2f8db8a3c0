// Filtered light times albedo, plus what shines, or the network's picture; and how far the quantised result is from the exact one.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#include "filter_shared.h"

layout(local_size_x = 8, local_size_y = 8) in;

layout(set = 0, binding = 0, rgba32f) uniform readonly image2D radiance_image;
layout(set = 0, binding = 1, rgba16f) uniform readonly image2D albedo_image;
layout(set = 0, binding = 2, rgba16f) uniform readonly image2D filtered_image;
layout(set = 0, binding = 3, rgba16f) uniform readonly image2D exact_image;
layout(set = 0, binding = 4, rgba16f) uniform writeonly image2D result_image;       // a: error on x / (1 + x)
layout(set = 0, binding = 5, rgba16f) uniform writeonly image2D result_exact_image;

layout(push_constant) uniform push_block {
    uvec2 size;
    uint has_filtered, has_exact; // 0: that image holds nothing of this frame; 2: it is the picture, with its albedo
} push;

vec3 compose(ivec2 at, vec3 light)
{
    vec4 albedo = imageLoad(albedo_image, at);
    return albedo.a > 0.5 ? albedo.rgb : max(albedo.rgb, vec3(TD_ALBEDO_FLOOR)) * light;
}

void main()
{
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(push.size))))
        return;
    vec3 result = imageLoad(radiance_image, at).rgb;
    if (push.has_filtered != 0u) {
        vec3 filtered = imageLoad(filtered_image, at).rgb;
        result = push.has_filtered == 2u ? filtered : compose(at, filtered);
    }
    vec3 exact = push.has_exact != 0u ? compose(at, imageLoad(exact_image, at).rgb) : result;
    vec3 error = abs(result / (1.0 + result) - exact / (1.0 + exact));
    imageStore(result_image, at, vec4(result, dot(error, vec3(1.0 / 3.0))));
    imageStore(result_exact_image, at, vec4(exact, 1.0));
}
