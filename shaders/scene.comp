// The renderer: a scene path-traced with next-event estimation, and the G-buffer of what each pixel sees.
//
// SPDX-License-Identifier: Apache-2.0
//
// Mirrors are looked through: the G-buffer describes the first surface that scatters, at the length of the whole path
// to it, so that reflections are filtered as sharply as what they reflect. Emission seen by the camera, and the sky, are kept
// apart in the G-buffer: they have no noise, and the filter never touches them. Lamps and the sun are seen in what is glossy or
// of glass, yet send no light around by it: no caustics.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "scene_shared.h"

layout(local_size_x = 8, local_size_y = 8) in;

layout(constant_id = 0) const uint SPHERES = 1;
layout(constant_id = 1) const uint BOXES = 1;
layout(constant_id = 2) const uint LIGHTS = 1;
layout(constant_id = 3) const uint GROUPS = 0;
layout(constant_id = 4) const uint TRAITS = 0; // TD_TRAIT_*

layout(set = 0, binding = 0, std140) uniform scene_uniform { td_scene_block scene; };
layout(set = 0, binding = 1, rgba32f) uniform image2D radiance_image;             // rgb: mean of all samples
layout(set = 0, binding = 2, rgba16f) uniform writeonly image2D albedo_image;     // rgb, or the emission where w is 1; -1: of what moves
layout(set = 0, binding = 3, rgba16f) uniform writeonly image2D normal_image;     // xyz; w: distance along the path
layout(set = 0, binding = 4, rgba32f) uniform writeonly image2D position_image;   // xyz; w: distance to what is hit first, be it a mirror

layout(push_constant) uniform push_block { td_scene_push push; };

const uint FIRST_BOX = TD_SCENE_SPHERES; // where boxes begin among numbers of what is hit
const float PI = 3.14159265359;
const float FAR = 1e30;
const float EPSILON = 1e-3;
const float INDIRECT_LIMIT = 6.0; // radiance that one bounce may bring: no fireflies, in the reference neither
const float GLOSS_LIMIT = 12.0;   // and what is seen in a gloss
const float GLASS = 1.5;          // its index
const float GLASS_SHADE = 0.3;    // the share of a light that glass keeps from what is behind it

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

struct hit_info {
    float distance;
    vec3 normal;
    vec2 uv; // metres on the surface
    vec3 place; // metres, from the middle of what was hit
    float thick; // of a sphere: its radius
    uint material;
    int light; // which one was hit, or -1
    bool moves; // what was hit is not where it was in the frame before
};

vec3 turn(vec3 v, float c, float s)
{
    return vec3(c * v.x - s * v.z, v.y, s * v.x + c * v.z);
}

vec2 plane_uv(vec3 p, vec3 n)
{
    vec3 a = abs(n);
    return a.x > 0.5 ? p.zy : a.y > 0.5 ? p.xz : p.xy;
}

// No component is 0: a ray along a wall would be nowhere when it is divided by.
vec3 tilted(vec3 direction)
{
    return mix(direction, vec3(1e-7), lessThan(abs(direction), vec3(1e-7)));
}

// Distances, or FAR. Normals and texture coordinates are worked out later, for the nearest only.
float sphere_distance(uint i, vec3 origin, vec3 direction)
{
    vec4 sphere = scene.spheres[i];
    vec3 o = origin - sphere.xyz;
    float b = dot(o, direction);
    float h = b * b - dot(o, o) + sphere.w * sphere.w;
    float t = -b - sqrt(max(h, 0.0));
    return h > 0.0 && t > EPSILON ? t : FAR;
}

// Where a line enters and leaves an endless round column about 0.
vec2 round_span(vec2 origin, vec2 direction, float radius)
{
    float a = max(dot(direction, direction), 1e-12), b = dot(origin, direction) / a;
    float h = b * b - (dot(origin, origin) - radius * radius) / a, root = sqrt(max(h, 0.0));
    return h > 0.0 ? vec2(-b - root, -b + root) : vec2(FAR, -FAR);
}

float shape_distance(uint shape, vec3 extent, vec3 o, vec3 d, float enter, float leave)
{
    if (shape == TD_SHAPE_COLUMN) {
        vec2 span = round_span(o.xz, d.xz, extent.x);
        enter = max(enter, span.x);
        return enter < min(leave, span.y) && enter > EPSILON ? enter : FAR;
    }
    vec2 hollow = round_span(vec2(o.x, o.y + extent.y), d.xy, extent.x - 0.06);
    float from = max(enter, EPSILON);
    if (from >= leave)
        return FAR;
    bool within = hollow.x < from && from < hollow.y;
    float t = within ? hollow.y : enter;
    return t > EPSILON && t < leave ? t : FAR;
}

float box_distance(uint i, vec3 origin, vec3 direction)
{
    vec4 center = scene.boxes[i].center, extent = scene.boxes[i].extent;
    vec3 o = turn(origin - center.xyz, center.w, extent.w);
    vec3 d = tilted(turn(direction, center.w, extent.w));
    vec3 inverse = 1.0 / d;
    vec3 middle = -o * inverse;
    vec3 reach = extent.xyz * abs(inverse);
    vec3 near = middle - reach, far = middle + reach;
    float enter = max(max(near.x, near.y), near.z), leave = min(min(far.x, far.y), far.z);
    if ((TRAITS & TD_TRAIT_SHAPES) != 0u && enter < leave && scene.box_material[i].y != TD_SHAPE_BOX)
        return shape_distance(scene.box_material[i].y, extent.xyz, o, d, enter, leave);
    return enter < leave && enter > EPSILON ? enter : FAR;
}

vec3 shape_normal(uint shape, vec3 extent, vec3 local)
{
    vec3 share = abs(local) / extent;
    if (shape == TD_SHAPE_COLUMN && share.y < 1.0 - 1e-3)
        return normalize(vec3(local.x, 0.0, local.z));
    vec2 in_arch = vec2(local.x, local.y + extent.y);
    if (shape == TD_SHAPE_ARCH && abs(length(in_arch) - extent.x + 0.06) < 2e-3 && share.z < 1.0 - 1e-4)
        return vec3(-normalize(in_arch), 0.0);
    return share.x >= share.y && share.x >= share.z && shape != TD_SHAPE_COLUMN ? vec3(sign(local.x), 0.0, 0.0)
           : share.y >= share.z || shape == TD_SHAPE_COLUMN ? vec3(0.0, sign(local.y), 0.0) : vec3(0.0, 0.0, sign(local.z));
}

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

// Noise of so many octaves. A loop, since what runs on a CPU skips no branch, but a loop of no rounds.
float clouds(vec3 p, uint octaves)
{
    float sum = 0.0;
    for (uint i = 0u; i < octaves; i++) {
        sum += (i == 0u ? 0.64 : 0.36) * noise(p);
        p = 2.9 * p + 5.0;
    }
    return sum;
}

// A leaf of its own for each cell: which way it faces, and w: its share of the other colour.
vec4 leaf_of(vec3 place, float cells)
{
    vec3 bent = place * cells + 0.4 * sin(1.7 * cells * place.yzx + 0.6 * place.zxy);
    ivec3 c = ivec3(floor(bent));
    uint bits = mix_bits(uint(c.x) + mix_bits(uint(c.y) + mix_bits(uint(c.z))));
    vec4 four = vec4(bits & 255u, bits >> 8 & 255u, bits >> 16 & 255u, bits >> 24) / 255.0;
    return vec4(2.0 * four.xyz - 1.0, four.w);
}

// What is not flat: leaves and ripples.
vec3 bent_normal(uint material, vec3 place, vec3 normal)
{
    uint kind = uint(scene.materials[material].color_a.w);
    float cells = scene.materials[material].color_b.w;
    if (kind == TD_TEXTURE_LEAVES)
        return normalize(normal + 0.75 * leaf_of(place, cells).xyz);
    if (kind == TD_TEXTURE_RIPPLES) {
        vec2 at = place.xz * cells;
        float come = scene.materials[material].finish.z;
        return normalize(normal + 0.05 * vec3(sin(at.x + 0.6 * at.y + 2.0 * come) + 0.6 * sin(2.3 * at.x - 1.7 * at.y - 3.1 * come), 0.0,
                                              sin(at.y - 0.5 * at.x - 2.3 * come) + 0.6 * sin(2.6 * at.y + 1.9 * at.x + 2.7 * come)));
    }
    return normal;
}

// Does a ray come as near as `most` to a group?
bool meets_group(uint g, vec3 origin, vec3 direction, float most)
{
    vec4 bound = scene.group_bounds[g];
    vec3 o = origin - bound.xyz;
    float b = dot(o, direction), c = dot(o, o) - bound.w * bound.w, h = b * b - c;
    return c < 0.0 || (b < 0.0 && h > 0.0 && -b - sqrt(max(h, 0.0)) < most);
}

hit_info trace(vec3 origin, vec3 direction)
{
    hit_info hit;
    hit.light = -1;
    // The room is a box seen from within: every ray leaves it somewhere.
    direction = tilted(direction);
    vec3 walls = (mix(scene.room_min.xyz, scene.room_max.xyz, greaterThan(direction, vec3(0.0))) - origin) / direction;
    hit.distance = min(min(walls.x, walls.y), walls.z);
    int nearest = -1;
    [[unroll]] for (uint i = 0u; i < SPHERES; i++) {
        float t = sphere_distance(i, origin, direction);
        nearest = t < hit.distance ? int(i) : nearest;
        hit.distance = min(hit.distance, t);
    }
    [[unroll]] for (uint i = 0u; i < BOXES; i++) {
        float t = box_distance(i, origin, direction);
        nearest = t < hit.distance ? int(FIRST_BOX + i) : nearest;
        hit.distance = min(hit.distance, t);
    }
    uint moves = 0u;
    for (uint g = 0u; g < GROUPS; g++) {
        uvec4 group = scene.groups[g];
        int other = nearest;
        bool meets = meets_group(g, origin, direction, hit.distance);
        uint spheres = meets ? group.y : group.x, boxes = meets ? group.w : group.z;
        for (uint i = group.x; i < spheres; i++) {
            float t = sphere_distance(i, origin, direction);
            nearest = t < hit.distance ? int(i) : nearest;
            hit.distance = min(hit.distance, t);
        }
        for (uint i = group.z; i < boxes; i++) {
            float t = box_distance(i, origin, direction);
            nearest = t < hit.distance ? int(FIRST_BOX + i) : nearest;
            hit.distance = min(hit.distance, t);
        }
        moves = nearest != other ? scene.group_moves[g].x : moves;
    }
    [[unroll]] for (uint i = 0u; i < LIGHTS; i++) {
        vec3 n = scene.lights[i].normal.xyz;
        float facing = dot(direction, n);
        float t = dot(scene.lights[i].center.xyz - origin, n) / facing;
        vec3 p = origin + t * direction - scene.lights[i].center.xyz;
        vec3 u = scene.lights[i].edge_u.xyz, v = scene.lights[i].edge_v.xyz;
        bool inside = abs(dot(p, u)) <= dot(u, u) && abs(dot(p, v)) <= dot(v, v);
        if (facing < 0.0 && t > EPSILON && t < hit.distance && inside) {
            hit.distance = t;
            hit.light = int(i);
        }
    }
    hit.moves = moves != 0u && hit.light < 0;
    vec3 p = origin + hit.distance * direction;
    if (nearest < 0 || hit.light >= 0) {
        bvec3 which = bvec3(walls.x <= walls.y && walls.x <= walls.z, walls.y < walls.x && walls.y <= walls.z,
                            walls.z < walls.x && walls.z < walls.y);
        uint axis = which.x ? 0u : which.y ? 1u : 2u;
        hit.normal = -sign(direction) * vec3(which);
        hit.material = direction[axis] > 0.0 ? scene.walls_max[axis] : scene.walls_min[axis];
        hit.uv = plane_uv(p, hit.normal);
        hit.place = p;
    } else if (nearest < int(FIRST_BOX)) {
        vec4 sphere = scene.spheres[nearest];
        hit.normal = (p - sphere.xyz) / sphere.w;
        hit.material = scene.sphere_material[nearest].x;
        hit.uv = plane_uv(p - sphere.xyz, hit.normal);
        hit.place = p - sphere.xyz + 3.0 * float(nearest);
        hit.thick = sphere.w;
    } else {
        uint i = uint(nearest) - FIRST_BOX;
        vec4 center = scene.boxes[i].center, extent = scene.boxes[i].extent;
        vec3 local = turn(p - center.xyz, center.w, extent.w);
        vec3 n = shape_normal((TRAITS & TD_TRAIT_SHAPES) != 0u ? scene.box_material[i].y : TD_SHAPE_BOX, extent.xyz, local);
        hit.material = scene.box_material[i].x;
        hit.uv = plane_uv(local, n);
        hit.place = local + 3.0 * float(i);
        hit.normal = turn(n, center.w, -extent.w);
    }
    if ((TRAITS & TD_TRAIT_TEXTURES) != 0u)
        hit.normal = bent_normal(hit.material, hit.place, hit.normal);
    return hit;
}

bool blocked(vec3 origin, vec3 direction, float distance)
{
    float nearest = FAR;
    bool dark = (TRAITS & TD_TRAIT_GLASS) == 0u || random01() < GLASS_SHADE; // what glass does
    [[unroll]] for (uint i = 0u; i < SPHERES; i++)
        nearest = min(nearest, sphere_distance(i, origin, direction));
    [[unroll]] for (uint i = 0u; i < BOXES; i++)
        nearest = min(nearest, box_distance(i, origin, direction));
    for (uint g = 0u; g < GROUPS; g++) {
        uvec4 group = scene.groups[g];
        bool meets = nearest >= distance && (dark || scene.group_moves[g].y == 0u) && meets_group(g, origin, direction, distance);
        uint spheres = meets ? group.y : group.x, boxes = meets ? group.w : group.z;
        for (uint i = group.x; i < spheres; i++)
            nearest = min(nearest, sphere_distance(i, origin, direction));
        for (uint i = group.z; i < boxes; i++)
            nearest = min(nearest, box_distance(i, origin, direction));
    }
    return nearest < distance;
}

vec3 surface_color(hit_info hit)
{
    vec4 a = scene.materials[hit.material].color_a, b = scene.materials[hit.material].color_b;
    vec2 cell = hit.uv * b.w;
    uint texture_kind = uint(a.w);
    bool other = false;
    if ((TRAITS & TD_TRAIT_TEXTURES) != 0u) {
        bool cloudy = texture_kind == TD_TEXTURE_CLOUDY;
        float share = clouds(hit.place * b.w, cloudy ? 2u : 0u);
        if (cloudy || texture_kind == TD_TEXTURE_LEAVES)
            return mix(a.rgb, b.rgb, cloudy ? share : leaf_of(hit.place, b.w).w);
    }
    if (texture_kind == TD_TEXTURE_CHECKER) {
        ivec2 c = ivec2(floor(cell));
        other = ((c.x + c.y) & 1) != 0;
    } else if (texture_kind == TD_TEXTURE_STRIPES) {
        other = fract(cell.x) > 0.6;
    } else if (texture_kind == TD_TEXTURE_BRICKS) {
        vec2 brick = vec2(cell.x * 0.5 + 0.5 * floor(cell.y) * 0.5, cell.y);
        other = fract(brick.x) < 0.05 || fract(brick.y) < 0.1;
    }
    return other ? b.rgb : a.rgb;
}

bool is_mirror(hit_info hit)
{
    return uint(scene.materials[hit.material].color_a.w) == TD_TEXTURE_MIRROR;
}

uint finish_of(hit_info hit)
{
    return (TRAITS & TD_TRAIT_FINISHES) != 0u ? uint(scene.materials[hit.material].finish.x) : TD_FINISH_MATT;
}

bool is_sky(hit_info hit)
{
    return (TRAITS & TD_TRAIT_SKY) != 0u && hit.light < 0 && uint(scene.materials[hit.material].color_a.w) == TD_TEXTURE_SKY;
}

// Is it seen as bright as it is, whatever lights it?
bool shines(hit_info hit)
{
    return hit.light >= 0 || is_sky(hit) || finish_of(hit) == TD_FINISH_GLOW;
}

vec3 sky(hit_info hit, vec3 direction)
{
    float cosine = dot(direction, scene.sun.xyz), near = pow(max(cosine, 0.0), 24.0);
    vec3 low = scene.materials[hit.material].color_a.rgb, high = scene.materials[hit.material].color_b.rgb;
    vec2 plane = direction.xz / (direction.y + 0.12);
    float veil = smoothstep(0.48, 0.9, clouds(vec3(1.1 * plane + vec2(3.0, 7.0), 0.5), is_sky(hit) ? 2u : 0u));
    vec3 clear = mix(low, high, sqrt(clamp(direction.y, 0.0, 1.0)));
    return mix(clear, 1.25 * low, 0.6 * veil * smoothstep(0.0, 0.2, direction.y)) + near * 0.25 * scene.sun_color.rgb / PI;
}

// What is seen straight, or in a mirror.
vec3 shown_light(hit_info hit, vec3 direction)
{
    if ((TRAITS & (TD_TRAIT_SKY | TD_TRAIT_FINISHES)) == 0u || hit.light >= 0)
        return scene.lights[max(hit.light, 0)].emission.rgb;
    if (!is_sky(hit))
        return scene.materials[hit.material].color_a.rgb * scene.materials[hit.material].finish.y;
    bool sun = dot(direction, scene.sun.xyz) > cos(scene.sun.w);
    return sky(hit, direction) + (sun ? scene.sun_color.rgb * 20.0 : vec3(0.0));
}

// Light that reaches p straight from the sun.
vec3 sun_light(vec3 p, vec3 normal)
{
    vec3 spread = 2.0 * vec3(random01(), random01(), random01()) - 1.0;
    vec3 direction = normalize(scene.sun.xyz + scene.sun.w * spread);
    float cosine = dot(normal, direction);
    return cosine > 0.0 && !blocked(p + EPSILON * normal, direction, FAR) ? scene.sun_color.rgb * cosine / PI : vec3(0.0);
}

// Light that reaches p straight from one light, chosen at random, over the surface's cosine lobe.
vec3 lamp_light(vec3 p, vec3 normal)
{
    uint i = min(uint(random01() * float(LIGHTS)), LIGHTS - 1u);
    float a = 2.0 * random01() - 1.0, b = 2.0 * random01() - 1.0;
    vec3 target = scene.lights[i].center.xyz + a * scene.lights[i].edge_u.xyz + b * scene.lights[i].edge_v.xyz;
    vec3 to_light = target - p;
    float squared = dot(to_light, to_light);
    float distance = sqrt(squared);
    vec3 direction = to_light / distance;
    float cosine = dot(normal, direction), light_cosine = -dot(scene.lights[i].normal.xyz, direction);
    if (cosine <= 0.0 || light_cosine <= 0.0 || blocked(p + EPSILON * normal, direction, distance - 2.0 * EPSILON))
        return vec3(0.0);
    float weight = cosine * light_cosine * scene.lights[i].edge_u.w * float(LIGHTS) / (PI * max(squared, 1e-4));
    return scene.lights[i].emission.rgb * weight;
}

vec3 direct_light(vec3 p, vec3 normal)
{
    vec3 sum = lamp_light(p, normal);
    return (TRAITS & TD_TRAIT_SKY) != 0u ? sum + sun_light(p, normal) : sum;
}

float schlick(float cosine)
{
    return 0.04 + 0.96 * pow(1.0 - clamp(cosine, 0.0, 1.0), 5.0);
}

// A mirror's direction, spread by roughness.
vec3 rough_reflection(vec3 direction, vec3 normal, float roughness)
{
    float alpha = roughness * roughness, z = random01(), phi = 2.0 * PI * random01();
    float cosine = sqrt((1.0 - z) / (1.0 + (alpha * alpha - 1.0) * z)), sine = sqrt(max(0.0, 1.0 - cosine * cosine));
    float sgn = normal.z >= 0.0 ? 1.0 : -1.0;
    float a = -1.0 / (sgn + normal.z), b = normal.x * normal.y * a;
    vec3 tangent = vec3(1.0 + sgn * normal.x * normal.x * a, sgn * b, -sgn * normal.x);
    vec3 other = vec3(b, sgn + normal.y * normal.y * a, -normal.y);
    vec3 way = reflect(direction, normalize(sine * cos(phi) * tangent + sine * sin(phi) * other + cosine * normal));
    return dot(way, normal) > 0.0 ? way : reflect(direction, normal);
}

// On through a ball of glass, or off it: `p` and `way` become where and how a ray goes on.
void pass_glass(hit_info hit, inout vec3 p, inout vec3 way)
{
    if (random01() < schlick(-dot(way, hit.normal))) {
        way = reflect(way, hit.normal);
        p += EPSILON * hit.normal;
        return;
    }
    vec3 within = refract(way, hit.normal, 1.0 / GLASS);
    float chord = -2.0 * hit.thick * dot(within, hit.normal);
    p += chord * within;
    vec3 out_normal = normalize(hit.normal * hit.thick + chord * within);
    way = refract(within, -out_normal, GLASS);
    p += EPSILON * out_normal;
}

vec3 cosine_direction(vec3 normal)
{
    float phi = 2.0 * PI * random01(), z = random01();
    float r = sqrt(z);
    float sgn = normal.z >= 0.0 ? 1.0 : -1.0;
    float a = -1.0 / (sgn + normal.z), b = normal.x * normal.y * a;
    vec3 tangent = vec3(1.0 + sgn * normal.x * normal.x * a, sgn * b, -sgn * normal.x);
    vec3 other = vec3(b, sgn + normal.y * normal.y * a, -normal.y);
    return normalize(r * cos(phi) * tangent + r * sin(phi) * other + sqrt(1.0 - z) * normal);
}

// What a ray sees, mirrors looked through.
struct seen {
    hit_info hit;
    vec3 origin, direction, tint;
    float path, nearest; // to the hit; to what is hit first, be it a mirror
};

seen look(vec3 origin, vec3 direction)
{
    seen s;
    s.origin = origin;
    s.direction = direction;
    s.tint = vec3(1.0);
    s.hit = trace(s.origin, s.direction);
    s.path = s.nearest = s.hit.distance;
    for (int i = 0; i < 3 && !shines(s.hit) && is_mirror(s.hit); i++) {
        s.tint *= surface_color(s.hit);
        s.origin += s.hit.distance * s.direction + EPSILON * s.hit.normal;
        s.direction = reflect(s.direction, s.hit.normal);
        s.hit = trace(s.origin, s.direction);
        s.path += s.hit.distance;
    }
    return s;
}

void main()
{
    uvec2 pixel = gl_GlobalInvocationID.xy;
    if (pixel.x >= push.size.x || pixel.y >= push.size.y)
        return;
    seen first;
    vec3 sum = vec3(0.0), eye_direction, albedo, emission;
    bool emits;
    for (uint s = 0u; s < push.size.z; s++) {
        uint stream = mix_bits(push.size.w + s + mix_bits(push.random.x + mix_bits(push.random.y)));
        random_state = mix_bits(pixel.x + mix_bits(pixel.y + stream));
        if (s == 0u || push.random.w != 0u) {
            vec2 place = push.random.w != 0u ? vec2(random01(), random01()) : vec2(0.5);
            vec2 ndc = (vec2(pixel) + place) / vec2(push.size.xy) * 2.0 - 1.0;
            eye_direction = normalize(push.forward.xyz + ndc.x * push.right.xyz - ndc.y * push.up.xyz);
            first = look(push.eye.xyz, eye_direction);
            emits = shines(first.hit);
            emission = emits ? first.tint * shown_light(first.hit, first.direction) : vec3(0.0);
            albedo = emits || is_mirror(first.hit) ? vec3(0.0) : first.tint * surface_color(first.hit);
        }
        vec3 through = albedo, radiance = emission;
        hit_info hit = first.hit;
        vec3 p = first.origin + hit.distance * first.direction;
        vec3 way = first.direction;
        bool alive = !emits && !is_mirror(hit), clear = true; // clear: nothing matt on the way
        for (uint bounce = 0u; alive; bounce++) {
            uint finish = finish_of(hit);
            float roughness = scene.materials[hit.material].finish.y;
            if ((TRAITS & TD_TRAIT_GLASS) != 0u && finish == TD_FINISH_GLASS) {
                pass_glass(hit, p, way);
            } else if (is_mirror(hit)) {
                way = reflect(way, hit.normal);
                clear = false;
            } else if (finish == TD_FINISH_METAL) {
                way = rough_reflection(way, hit.normal, roughness);
            } else if (finish == TD_FINISH_COATED && random01() < schlick(-dot(way, hit.normal))) {
                through /= max(surface_color(hit), vec3(1e-3));
                way = rough_reflection(way, hit.normal, roughness);
            } else {
                vec3 arrived = through * direct_light(p, hit.normal);
                radiance += bounce == 0u ? arrived : min(arrived, INDIRECT_LIMIT * albedo);
                way = cosine_direction(hit.normal);
                clear = false;
            }
            if (bounce == push.random.z)
                break;
            vec3 from = finish == TD_FINISH_GLASS ? p : p + EPSILON * hit.normal;
            hit = trace(from, way);
            p = from + hit.distance * way;
            alive = !shines(hit);
            if (alive)
                through *= surface_color(hit);
            else if ((TRAITS & TD_TRAIT_FINISHES) != 0u && clear)
                radiance += min(through * shown_light(hit, way), GLOSS_LIMIT);
            else if (is_sky(hit))
                radiance += min(through * sky(hit, way), INDIRECT_LIMIT * albedo);
        }
        sum += radiance;
    }
    ivec2 at = ivec2(pixel);
    vec3 mean = sum / float(push.size.z);
    if (push.size.w > 0u) {
        float there = float(push.size.w), added = float(push.size.z);
        mean = (imageLoad(radiance_image, at).rgb * there + mean * added) / (there + added);
    }
    imageStore(radiance_image, at, vec4(mean, 1.0));
    if (push.size.w == 0u) {
        imageStore(albedo_image, at, vec4(emits ? emission : albedo, emits ? 1.0 : first.hit.moves ? -1.0 : 0.0));
        imageStore(normal_image, at, vec4(first.hit.normal, first.path));
        imageStore(position_image, at, vec4(push.eye.xyz + first.path * eye_direction, first.nearest));
    }
}
