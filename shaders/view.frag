// The picture as it is shown: two images side by side of a wipe, or how far apart they are.
//
// SPDX-License-Identifier: Apache-2.0
#version 450

layout(location = 0) in vec2 uv;
layout(location = 0) out vec4 color;

layout(set = 0, binding = 0) uniform sampler2D left_image;
layout(set = 0, binding = 1) uniform sampler2D right_image;
layout(set = 0, binding = 2) uniform sampler2D error_image;

layout(push_constant) uniform push_block {
    float wipe;       // share of the width that shows the left image
    float line;       // half the width of the line between the two, 0: none
    float error_gain; // 0: the pictures; else the error times this, as a heatmap
} push;

// Black, violet, red, yellow, white, in even steps of brightness.
vec3 heat(float x)
{
    x = clamp(x, 0.0, 1.0);
    return clamp(vec3(min(2.2 * x + 0.02, 1.0), 1.9 * x * x * x + 0.35 * x * x,
                      x < 0.4 ? 1.3 * x : max(0.52 - 1.6 * (x - 0.4),
                 4.0 * (x - 0.75))), 0.0, 1.0);
}

void main()
{
    if (push.error_gain > 0.0) {
        color = vec4(heat(texture(error_image, uv).a * push.error_gain), 1.0);
        return;
    }
    vec3 light = uv.x < push.wipe ? texture(left_image, uv).rgb : texture(right_image, uv).rgb;
    light = max(light, vec3(0.0));
    light = pow(light / (1.0 + light), vec3(1.0 / 2.2));
    color = vec4(abs(uv.x - push.wipe) < push.line ? vec3(1.0, 0.75, 0.2) : light, 1.0);
}
