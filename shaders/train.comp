// Frames for training: a path tracer of triangles, with what a denoiser is given beside radiance.
//
// SPDX-License-Identifier: Apache-2.0
//
// Conventions are those of `tandem help denoise`: rays are jittered in their pixel, or go through its middle, and the G-buffer is of
// the same samples' first hit. Lights and the sun are sampled from what is diffuse; all else meets lights and the sky on its way.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "train_shared.h"

layout(local_size_x = 8, local_size_y = 8) in;

layout(set = 0, binding = 0, std430) readonly buffer world_buffer { td_train_world world; };
layout(set = 0, binding = 1, std430) readonly buffer node_buffer { td_train_node nodes[]; };
layout(set = 0, binding = 2, std430) readonly buffer triangle_buffer { td_train_triangle triangles[]; };
layout(set = 0, binding = 3, std430) readonly buffer material_buffer { td_train_material materials[]; };
layout(set = 0, binding = 4, std430) readonly buffer light_buffer { td_train_light lights[]; };
layout(set = 0, binding = 5, std430) buffer sum_buffer { float sums[]; };

layout(push_constant) uniform push_block { td_train_push push; };

const float PI = 3.14159265359;
const float FAR = 1e30;
const float EPSILON = 1e-4;
const float LIMIT = 200.0; // what light that bounced may bring a sample, in the reference, too
const float GLASS = 1.5;
const uint STACK = 32u;

uint random_state;

float random01()
{
    random_state = random_state * 747796405u + 2891336453u;
    uint word = ((random_state >> ((random_state >> 28) + 4u)) ^ random_state) * 277803737u;
    word = (word >> 22) ^ word;
    return float(word >> 8) * (1.0 / 16777216.0);
}

uint mix_bits(uint x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// --- Geometry ---

struct hit_info {
    float distance; // FAR: none
    uint triangle;
    vec2 at; // weights of the second and third corner
};

float enter(vec3 low, vec3 high, vec3 origin, vec3 inverse, float nearest)
{
    vec3 a = (low - origin) * inverse, b = (high - origin) * inverse;
    vec3 near = min(a, b), far = max(a, b);
    float first = max(max(near.x, near.y), max(near.z, 0.0)), last = min(min(far.x, far.y), min(far.z, nearest));
    return first <= last ? first : FAR;
}

void meet(uint i, vec3 origin, vec3 direction, inout hit_info hit)
{
    vec3 edge1 = triangles[i].edge1.xyz, edge2 = triangles[i].edge2.xyz;
    vec3 p = cross(direction, edge2);
    float determinant = dot(edge1, p);
    if (abs(determinant) < 1e-12)
        return;
    vec3 from = origin - triangles[i].corner.xyz, q = cross(from, edge1);
    float u = dot(from, p) / determinant, v = dot(direction, q) / determinant, t = dot(edge2, q) / determinant;
    if (u >= 0.0 && v >= 0.0 && u + v <= 1.0 && t > EPSILON && t < hit.distance)
        hit = hit_info(t, i, vec2(u, v));
}

// The nearest hit before `most`; any, if that is enough.
hit_info trace(vec3 origin, vec3 direction, float most, bool any)
{
    hit_info hit = hit_info(most, 0u, vec2(0.0));
    vec3 inverse = 1.0 / mix(direction, vec3(1e-9), lessThan(abs(direction), vec3(1e-9)));
    uint stack[STACK], depth = 0u, node = 0u;
    for (;;) {
        uvec4 of = nodes[node].of;
        for (uint i = 0u; i < of.y; i++)
            meet(of.x + i, origin, direction, hit);
        if (any && hit.distance < most)
            break;
        if (of.y == 0u) {
            float a = enter(nodes[of.x].low.xyz, nodes[of.x].high.xyz, origin, inverse, hit.distance);
            float b = enter(nodes[of.x + 1u].low.xyz, nodes[of.x + 1u].high.xyz, origin, inverse, hit.distance);
            uint near = a <= b ? of.x : of.x + 1u, far = a <= b ? of.x + 1u : of.x;
            if (min(a, b) < FAR) {
                if (max(a, b) < FAR && depth < STACK)
                    stack[depth++] = far;
                node = near;
                continue;
            }
        }
        if (depth == 0u)
            break;
        node = stack[--depth];
    }
    hit.distance = hit.distance < most ? hit.distance : FAR;
    return hit;
}

vec3 cosine_direction(vec3 normal)
{
    float phi = 2.0 * PI * random01(), z = random01(), r = sqrt(z);
    float sgn = normal.z >= 0.0 ? 1.0 : -1.0;
    float a = -1.0 / (sgn + normal.z), b = normal.x * normal.y * a;
    vec3 tangent = vec3(1.0 + sgn * normal.x * normal.x * a, sgn * b, -sgn * normal.x);
    vec3 other = vec3(b, sgn + normal.y * normal.y * a, -normal.y);
    return normalize(r * cos(phi) * tangent + r * sin(phi) * other + sqrt(1.0 - z) * normal);
}

// --- Surfaces ---

float noise(vec3 p)
{
    vec3 cell = floor(p), f = fract(p);
    f = f * f * (3.0 - 2.0 * f);
    float corner[8];
    for (int i = 0; i < 8; i++) {
        ivec3 c = ivec3(cell) + ivec3(i & 1, i >> 1 & 1, i >> 2);
        corner[i] = float(mix_bits(uint(c.x) + mix_bits(uint(c.y) + mix_bits(uint(c.z)))) >> 8) / 16777216.0;
    }
    vec4 x = mix(vec4(corner[0], corner[2], corner[4], corner[6]), vec4(corner[1], corner[3], corner[5], corner[7]), f.x);
    vec2 y = mix(x.xz, x.yw, f.y);
    return mix(y.x, y.y, f.z);
}

vec3 surface_color(uint material, vec3 p)
{
    vec4 a = materials[material].color_a, b = materials[material].color_b;
    vec3 cell = p * b.w + 0.013;
    uint kind = uint(a.w);
    float other = 0.0;
    if (kind == TD_TEXTURE_CHECKER) {
        ivec3 c = ivec3(floor(cell));
        other = float((c.x + c.y + c.z) & 1);
    } else if (kind == TD_TEXTURE_STRIPES) {
        other = fract(cell.x + 0.4 * cell.y) > 0.6 ? 1.0 : 0.0;
    } else if (kind == TD_TEXTURE_BRICKS) {
        vec2 brick = vec2((cell.x + cell.z) * 0.5 + 0.5 * floor(cell.y) * 0.5, cell.y);
        other = fract(brick.x) < 0.05 || fract(brick.y) < 0.1 ? 1.0 : 0.0;
    } else if (kind == TD_TEXTURE_NOISE) {
        other = 0.6 * noise(cell) + 0.3 * noise(2.1 * cell) + 0.1 * noise(4.3 * cell);
    }
    return mix(a.rgb, b.rgb, other);
}

vec3 sky(vec3 direction)
{
    return mix(world.sky_low.rgb, world.sky_high.rgb, sqrt(max(direction.y, 0.0))) * world.sky_low.w;
}

// Light that comes straight from a light or the sun, as a diffuse surface of albedo 1 sends it on.
vec3 direct_light(vec3 p, vec3 normal)
{
    uint count = world.counts.x;
    vec3 sum = vec3(0.0);
    if (count > 0u) {
        float chosen = random01();
        uint i = 0u;
        while (i + 1u < count && lights[i].corner.w < chosen)
            i++;
        float a = random01(), b = random01();
        if (a + b > 1.0) {
            a = 1.0 - a;
            b = 1.0 - b;
        }
        vec3 way = lights[i].corner.xyz + a * lights[i].edge1.xyz + b * lights[i].edge2.xyz - p;
        vec3 area = 0.5 * cross(lights[i].edge1.xyz, lights[i].edge2.xyz);
        float squared = dot(way, way), distance = sqrt(squared);
        float cosine = dot(normal, way) / distance, towards = abs(dot(area, way)) / distance;
        if (cosine > 0.0 && trace(p, way / distance, distance - 4.0 * EPSILON, true).distance == FAR)
            sum += lights[i].emission.rgb * (cosine * towards / (PI * max(squared, 1e-5) * lights[i].edge1.w));
    }
    if (dot(world.sun_color.rgb, vec3(1.0)) > 0.0) {
        vec3 way = normalize(world.sun.xyz + world.sun.w * (2.0 * vec3(random01(), random01(), random01()) - 1.0));
        float cosine = dot(normal, way);
        if (cosine > 0.0 && trace(p, way, FAR, true).distance == FAR)
            sum += world.sun_color.rgb * cosine / PI;
    }
    return sum;
}

float schlick(float cosine, float f0)
{
    return f0 + (1.0 - f0) * pow(1.0 - clamp(cosine, 0.0, 1.0), 5.0);
}

// A mirror's direction, spread by roughness: GGX's visible normals would be better, and its weights are nearly 1 as well.
vec3 rough_reflection(vec3 direction, vec3 normal, float roughness)
{
    float alpha = roughness * roughness, z = random01(), phi = 2.0 * PI * random01();
    float cosine = sqrt((1.0 - z) / (1.0 + (alpha * alpha - 1.0) * z)), sine = sqrt(max(0.0, 1.0 - cosine * cosine));
    float sgn = normal.z >= 0.0 ? 1.0 : -1.0;
    float a = -1.0 / (sgn + normal.z), b = normal.x * normal.y * a;
    vec3 tangent = vec3(1.0 + sgn * normal.x * normal.x * a, sgn * b, -sgn * normal.x), other = vec3(b, sgn + normal.y * normal.y * a, -normal.y);
    vec3 way = reflect(direction, normalize(sine * cos(phi) * tangent + sine * sin(phi) * other + cosine * normal));
    return dot(way, normal) > 0.0 ? way : reflect(direction, normal);
}

// --- A sample ---

struct guide {
    vec3 albedo, normal, position, velocity;
    float depth; // 0: the sky
};

// `direct`: emitters and the sky as they are seen, what surfaces scatter of lights, sun and sky, and all that metal, mirrors, glass and
// clear coats show. The rest is what surfaces scatter of one another.
vec3 sample_path(vec3 origin, vec3 direction, out guide first, out vec3 direct)
{
    bool shows_albedo = (push.random.w & TD_TRAIN_DIFFUSE_ALBEDO) == 0u;
    vec3 through = vec3(1.0), sum = vec3(0.0);
    bool sees_lights = true; // what was met last does not sample them
    bool scatters = false;   // what was met first
    first = guide(vec3(0.0), vec3(0.0), origin + 1e4 * direction, vec3(0.0), 0.0);
    direct = vec3(0.0);
    for (uint bounce = 0u; bounce <= push.random.z; bounce++) {
        hit_info hit = trace(origin, direction, FAR, false);
        if (hit.distance == FAR) {
            sum += through * sky(direction);
            direct = bounce == 1u ? sum : direct;
            break;
        }
        uint i = hit.triangle, material = triangles[i].of.x, kind = uint(materials[material].kind.x);
        vec3 flat_normal = normalize(cross(triangles[i].edge1.xyz, triangles[i].edge2.xyz));
        vec3 normal = normalize(triangles[i].normal0.xyz * (1.0 - hit.at.x - hit.at.y) + triangles[i].normal1.xyz * hit.at.x + triangles[i].normal2.xyz * hit.at.y);
        bool outside = dot(direction, flat_normal) < 0.0;
        flat_normal = outside ? flat_normal : -flat_normal;
        normal = outside ? normal : -normal;
        normal = dot(normal, direction) < -0.01 ? normal : flat_normal;
        vec3 p = origin + hit.distance * direction, velocity = triangles[i].velocity.xyz;
        vec3 color = surface_color(material, p - float(world.counts.y) * velocity), emission = materials[material].emission.rgb;
        bool emits = dot(emission, vec3(1.0)) > 0.0;
        if (bounce == 0u) {
            bool clear = kind == TD_TRAIN_MIRROR || kind == TD_TRAIN_GLASS, dark = emits || (!shows_albedo && kind >= TD_TRAIN_METAL);
            first = guide(dark ? vec3(0.0) : clear ? vec3(1.0) : color, normal, p, velocity, dot(p - world.eye.xyz, world.forward.xyz));
        }
        if (emits) {
            if (sees_lights)
                sum += bounce == 0u ? emission : min(through * emission, vec3(LIMIT));
            break;
        }
        float roughness = materials[material].kind.y;
        vec3 above = p + EPSILON * flat_normal;
        sees_lights = true;
        if (kind == TD_TRAIN_MIRROR || kind == TD_TRAIN_METAL) {
            direction = kind == TD_TRAIN_MIRROR ? reflect(direction, normal) : rough_reflection(direction, normal, roughness);
            through *= color;
            origin = above;
        } else if (kind == TD_TRAIN_GLASS) {
            float eta = outside ? 1.0 / GLASS : GLASS;
            vec3 refracted = refract(direction, normal, eta);
            float cosine = outside ? -dot(direction, normal) : abs(dot(refracted, normal));
            bool reflects = refracted == vec3(0.0) || random01() < schlick(cosine, 0.04);
            direction = reflects ? reflect(direction, normal) : refracted;
            origin = reflects ? above : p - EPSILON * flat_normal;
            through *= color;
        } else if (kind == TD_TRAIN_PLASTIC && random01() < schlick(-dot(direction, normal), 0.04)) {
            direction = rough_reflection(direction, normal, roughness);
            origin = above;
        } else {
            vec3 arrived = through * color * direct_light(above, normal);
            sum += bounce == 0u ? arrived : min(arrived, vec3(LIMIT));
            direct = bounce == 0u ? sum : direct;
            scatters = scatters || bounce == 0u;
            through *= color;
            direction = cosine_direction(normal);
            origin = above;
            sees_lights = false;
        }
        if (dot(direction, flat_normal) <= 0.0 && kind != TD_TRAIN_GLASS)
            break;
        float survives = min(max(through.x, max(through.y, through.z)), 0.95);
        if (bounce >= 3u) {
            if (random01() >= survives)
                break;
            through /= survives;
        }
    }
    direct = scatters ? direct : sum;
    return sum;
}

// Where a point was in the frame before, in pixels.
vec2 pixel_before(vec3 position)
{
    vec3 way = position - world.eye_before.xyz;
    vec3 right = world.right_before.xyz, up = world.up_before.xyz;
    float depth = max(dot(way, world.forward_before.xyz), 1e-4);
    vec2 ndc = vec2(dot(way, right) / dot(right, right), -dot(way, up) / dot(up, up)) / depth;
    return (ndc * 0.5 + 0.5) * vec2(push.size.xy);
}

// Whether a point was seen in the frame before, and in the image. What hid it is taken to have moved as it did.
bool seen_before(guide first, vec2 pixel)
{
    vec3 eye = world.eye_before.xyz + first.velocity, way = first.position - eye;
    float distance = length(way);
    return pixel.x >= 0.0 && pixel.y >= 0.0 && pixel.x < float(push.size.x) && pixel.y < float(push.size.y) &&
           dot(way, world.forward_before.xyz) > 0.0 && trace(eye, way / distance, distance * 0.999, true).distance == FAR;
}

void main()
{
    uvec2 pixel = gl_GlobalInvocationID.xy;
    if (pixel.x >= push.size.x || pixel.y >= push.size.y)
        return;
    float sum[TD_TRAIN_CHANNELS];
    for (uint c = 0u; c < TD_TRAIN_CHANNELS; c++)
        sum[c] = 0.0;
    for (uint s = 0u; s < push.size.z; s++) {
        random_state = mix_bits(pixel.x + mix_bits(pixel.y + mix_bits(push.size.w + s + mix_bits(push.random.x + mix_bits(push.random.y)))));
        vec2 within = vec2(random01(), random01());
        vec2 place = vec2(pixel) + ((push.random.w & TD_TRAIN_MIDDLE) != 0u ? vec2(0.5) : within), ndc = place / vec2(push.size.xy) * 2.0 - 1.0;
        vec3 direction = normalize(world.forward.xyz + ndc.x * world.right.xyz - ndc.y * world.up.xyz);
        guide first;
        vec3 direct, color = sample_path(world.eye.xyz, direction, first, direct);
        vec2 before = pixel_before(first.position - first.velocity), motion = before - place;
        float valid = (push.random.w & TD_TRAIN_MOVES) != 0u && seen_before(first, before) ? 1.0 : 0.0;
        float values[TD_TRAIN_CHANNELS] = float[](color.x, color.y, color.z, first.albedo.x, first.albedo.y, first.albedo.z,
                                                  first.normal.x, first.normal.y, first.normal.z, first.depth, motion.x, motion.y, valid,
                                                  direct.x, direct.y, direct.z);
        for (uint c = 0u; c < TD_TRAIN_CHANNELS; c++)
            sum[c] += values[c];
    }
    uint at = (pixel.y * push.size.x + pixel.x) * TD_TRAIN_CHANNELS;
    for (uint c = 0u; c < TD_TRAIN_CHANNELS; c++)
        sums[at + c] = push.size.w > 0u ? sums[at + c] + sum[c] : sum[c];
}
