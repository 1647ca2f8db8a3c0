// The renderer's images -> what the denoiser's network reads of a frame: tensors [height, width, channels] of floats.
//
// SPDX-License-Identifier: Apache-2.0
//
// Where a point was in the frame before follows from the two cameras; of what moved itself, as people do, nothing is known of
// the frame before. What a mirror shows is taken to move as the mirror's surface does, which is nearer to the truth than where it seems to be. Lamps
// are given as the sky is, without normal and depth: a lamp in a ceiling would pass for the same surface, and its light would
// trail behind its edge.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "guides_shared.h"

layout(local_size_x = 8, local_size_y = 8) in;

layout(set = 0, binding = 0, rgba32f) uniform readonly image2D radiance_image;
layout(set = 0, binding = 1, rgba16f) uniform readonly image2D albedo_image;   // w: 1 where it is emission instead, -1 of what moves
layout(set = 0, binding = 2, rgba16f) uniform readonly image2D normal_image;
layout(set = 0, binding = 3, rgba32f) uniform readonly image2D position_image; // w: distance to what is hit first, a mirror too
layout(set = 0, binding = 4, std430) writeonly buffer color_buffer { float color[]; };
layout(set = 0, binding = 5, std430) writeonly buffer albedo_buffer { float albedo[]; };
layout(set = 0, binding = 6, std430) writeonly buffer motion_buffer { float motion[]; };
layout(set = 0, binding = 7, std430) writeonly buffer valid_buffer { float valid[]; };
layout(set = 0, binding = 8, std430) writeonly buffer normal_buffer { float normal[]; };
layout(set = 0, binding = 9, std430) writeonly buffer depth_buffer { float depth[]; };

layout(push_constant) uniform push_block { td_guides_push push; };

// Where a camera sees a point, in pixels; z: how far in front of it.
vec3 seen_at(vec3 point, vec3 eye, vec3 right, vec3 up)
{
    vec3 way = point - eye;
    float ahead = dot(way, normalize(cross(up, right)));
    vec2 ndc = vec2(dot(way, right) / dot(right, right), -dot(way, up) / dot(up, up)) / max(ahead, 1e-4);
    return vec3((ndc * 0.5 + 0.5) * vec2(push.size.xy), ahead);
}

void main()
{
    uvec2 pixel = gl_GlobalInvocationID.xy;
    if (pixel.x >= push.size.x || pixel.y >= push.size.y)
        return;
    ivec2 at = ivec2(pixel);
    vec3 radiance = imageLoad(radiance_image, at).rgb;
    vec4 surface = imageLoad(albedo_image, at);
    vec3 facing = imageLoad(normal_image, at).xyz;
    vec4 position = imageLoad(position_image, at);
    vec3 eye = push.eye.xyz, first = eye + position.w * normalize(position.xyz - eye);
    vec3 now = seen_at(first, eye, push.right.xyz, push.up.xyz);
    vec3 before = seen_at(first, push.eye_before.xyz, push.right_before.xyz, push.up_before.xyz);
    bool inside = before.z > 0.0 && all(greaterThanEqual(before.xy, vec2(0.0))) && all(lessThan(before.xy, vec2(push.size.xy)));
    bool shines = surface.w > 0.5;
    uint i = pixel.y * push.size.x + pixel.x;
    for (uint c = 0u; c < 3u; c++) {
        color[3u * i + c] = radiance[c];
        albedo[3u * i + c] = shines ? 0.0 : surface[c];
        normal[3u * i + c] = shines ? 0.0 : facing[c];
    }
    depth[i] = shines ? 0.0 : seen_at(position.xyz, eye, push.right.xyz, push.up.xyz).z;
    for (uint c = 0u; c < 2u; c++)
        motion[2u * i + c] = inside ? before[c] - now[c] : 0.0;
    valid[i] = inside && push.size.z != 0u && surface.w > -0.5 ? 1.0 : 0.0;
}
