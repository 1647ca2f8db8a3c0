// G-buffer and noisy radiance -> the images that become Q, K and V; see filter_shared.h.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#include "filter_shared.h"

layout(local_size_x = 8, local_size_y = 8) in;

layout(set = 0, binding = 0, rgba32f) uniform readonly image2D radiance_image;
layout(set = 0, binding = 1, rgba16f) uniform readonly image2D albedo_image;
layout(set = 0, binding = 2, rgba16f) uniform readonly image2D normal_image;
layout(set = 0, binding = 3, rgba32f) uniform readonly image2D position_image;
layout(set = 0, binding = 4, rgba16f) uniform writeonly image2D feature0_image;
layout(set = 0, binding = 5, rgba16f) uniform writeonly image2D feature1_image;
layout(set = 0, binding = 6, rgba16f) uniform writeonly image2D feature2_image;
layout(set = 0, binding = 7, rgba16f) uniform writeonly image2D feature3_k_image;
layout(set = 0, binding = 8, rgba16f) uniform writeonly image2D feature3_q_image;
layout(set = 0, binding = 9, rgba16f) uniform writeonly image2D value_image;

layout(push_constant) uniform push_block {
    vec4 middle; // of the room; w: metres from there, beyond which all is equally far, as the sky is: an outlier costs the rest its codes
    uvec2 size;
} push;

void main()
{
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(push.size))))
        return;
    vec3 radiance = imageLoad(radiance_image, at).rgb;
    vec4 albedo = imageLoad(albedo_image, at);
    vec3 normal = imageLoad(normal_image, at).xyz;
    vec3 position = imageLoad(position_image, at).xyz;
    bool shines = albedo.a > 0.5;

    vec2 angle = vec2(at) * (6.28318530718 / TD_FILTER_PERIOD);
    vec2 cosine = cos(angle), sine = sin(angle);
    vec4 f0 = vec4(TD_FILTER_NORMAL * normal, TD_FILTER_PLACE * cosine.x);
    vec4 f1 = vec4(TD_FILTER_POSITION * clamp(position - push.middle.xyz, -push.middle.w, push.middle.w), TD_FILTER_PLACE * sine.x);
    vec4 f2 = vec4(shines ? vec3(0.0) : TD_FILTER_ALBEDO * albedo.rgb, TD_FILTER_PLACE * cosine.y);
    vec2 f3 = vec2(TD_FILTER_PLACE * sine.y, shines ? TD_FILTER_SHINES : 0.0);
    float squared = dot(f0, f0) + dot(f1, f1) + dot(f2, f2) + dot(f3, f3);
    vec3 value = shines ? vec3(0.0) : radiance / max(albedo.rgb, vec3(TD_ALBEDO_FLOOR));

    imageStore(feature0_image, at, TD_FILTER_GAIN * f0);
    imageStore(feature1_image, at, TD_FILTER_GAIN * f1);
    imageStore(feature2_image, at, TD_FILTER_GAIN * f2);
    imageStore(feature3_k_image, at, TD_FILTER_GAIN * vec4(f3, -0.5 * squared, 0.0));
    imageStore(feature3_q_image, at, TD_FILTER_GAIN * vec4(f3, 1.0, 0.0));
    imageStore(value_image, at, vec4(min(value, vec3(TD_RADIANCE_LIMIT)), 0.0));
}
