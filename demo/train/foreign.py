#!/usr/bin/env python3
"""Frames of another renderer, Mitsuba 3, to judge denoisers by: scenes at random, of its own shapes and materials.

    foreign.py OUT --first N --count N [--width W --height H --samples N --reference N --copies N
                   --length N --half]

Writes OUT/foreign.NNNN.CC.safetensors as `tandem help denoise` says frames are: color, albedo, normal, depth, all of the
same samples, and reference; copies differ in their samples alone, and leave it to the first. With --length frames of a path, as the
camera moves, each with a reference, and with motion and valid. Needs PyPI's mitsuba, safetensors and numpy.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import pathlib

import mitsuba as mi
import numpy as np
from safetensors.numpy import save_file

mi.set_variant("scalar_rgb")
mi.set_log_level(mi.LogLevel.Error)
from mitsuba import ScalarTransform4f as T


def material(rng, shiny=True):
    color = {"type": "rgb", "value": [float(x) for x in np.clip(rng.uniform(0.05, 0.9) * rng.uniform(0.4, 1.3, 3), 0.02, 0.95)]}
    if rng.random() < 0.4:
        other = {"type": "rgb", "value": [float(x) for x in rng.uniform(0.05, 0.9, 3)]}
        scale = float(np.exp(rng.uniform(np.log(2), np.log(40))))
        color = {"type": "checkerboard", "color0": color, "color1": other, "to_uv": T().scale([scale, scale, 1])}
    kind = rng.random() if shiny else 0
    if kind < 0.62:
        return {"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": color}}
    if kind < 0.78:
        return {"type": "twosided", "bsdf": {"type": "roughplastic", "diffuse_reflectance": color, "alpha": float(rng.uniform(0.05, 0.3))}}
    if kind < 0.90:
        return {"type": "twosided", "bsdf": {"type": "roughconductor", "material": str(rng.choice(["Au", "Cu", "Al", "Ag"])),
                                             "alpha": float(rng.uniform(0.05, 0.4))}}
    if kind < 0.95:
        return {"type": "twosided", "bsdf": {"type": "conductor", "material": "Ag"}}
    return {"type": "dielectric", "int_ior": 1.5}


def placed(rng, position, size):
    axis = rng.normal(size=3)
    turn = T().rotate([float(x) for x in axis], float(rng.uniform(0, 360))) if rng.random() < 0.4 else T().rotate([0, 1, 0], float(rng.uniform(0, 360)))
    return T().translate([float(x) for x in position]) @ turn @ T().scale([float(x) for x in size])


def scene_of(seed):
    """A dict of Mitsuba's, the eye and where it looks."""
    rng = np.random.default_rng(seed)
    inside = rng.random() < 0.6
    scene = {"type": "scene"}
    half = rng.uniform(2.0, 4.0, 2) if inside else np.array([14.0, 14.0])
    height = float(rng.uniform(2.4, 3.6))
    floor = T().rotate([1, 0, 0], -90) @ T().scale([float(half[0]), float(half[1]), 1])
    scene["floor"] = {"type": "rectangle", "to_world": floor, "bsdf": material(rng)}
    if inside:
        walls = {"ceiling": T().translate([0, height, 0]) @ T().rotate([1, 0, 0], 90) @ T().scale([float(half[0]), float(half[1]), 1])}
        for name, angle, depth, wide in (("back", 0, half[1], half[0]), ("front", 180, half[1], half[0]),
                                         ("left", 90, half[0], half[1]), ("right", -90, half[0], half[1])):
            walls[name] = T().rotate([0, 1, 0], angle) @ T().translate([0, height / 2, -float(depth)]) @ T().scale([float(wide), height / 2, 1])
        for name, at in walls.items():
            scene[name] = {"type": "rectangle", "to_world": at, "bsdf": material(rng, rng.random() < 0.2)}
        for i in range(int(rng.integers(1, 4))):
            size = float(np.exp(rng.uniform(np.log(0.08), np.log(0.8))))
            at = T().translate([float(rng.uniform(-0.7, 0.7) * half[0]), height - 0.01, float(rng.uniform(-0.7, 0.7) * half[1])])
            power = float(rng.uniform(2, 12) / size ** 2 / (1 + i)) * np.array([1, rng.uniform(0.8, 1.0), rng.uniform(0.6, 1.1)])
            scene[f"light{i}"] = {"type": "rectangle", "to_world": at @ T().rotate([1, 0, 0], 90) @ T().scale([size, size, 1]),
                                  "emitter": {"type": "area", "radiance": {"type": "rgb", "value": [float(x) for x in power]}},
                                  "bsdf": {"type": "diffuse", "reflectance": {"type": "rgb", "value": 0.0}}}
    else:
        sky = rng.uniform(0.3, 1.2) * np.array([rng.uniform(0.5, 1.0), rng.uniform(0.7, 1.0), 1.0])
        scene["sky"] = {"type": "constant", "radiance": {"type": "rgb", "value": [float(x) for x in sky]}}
        if rng.random() < 0.7:
            to = [float(rng.uniform(-1, 1)), -float(rng.uniform(0.4, 1.5)), float(rng.uniform(-1, 1))]
            scene["sun"] = {"type": "directional", "direction": to,
                            "irradiance": {"type": "rgb", "value": [float(x) for x in rng.uniform(2, 8) * np.array([1, 0.9, 0.75])]}}
    reach = half * 0.8 if inside else np.array([4.0, 4.0])
    for i in range(int(rng.integers(6, 26))):
        size = float(np.exp(rng.uniform(np.log(0.08), np.log(0.7))))
        stretch = np.exp(rng.uniform(-0.7, 0.7, 3)) * size
        shape = str(rng.choice(["sphere", "cube", "cylinder", "disk", "poles"]))
        x, z = rng.uniform(-1, 1, 2) * reach
        y = float(rng.uniform(0, 1.2)) if rng.random() < 0.3 else size * 0.9
        bsdf = material(rng)
        if shape == "poles":  # thin geometry
            for k in range(int(rng.integers(4, 12))):
                thin = T().translate([float(x + 0.12 * k), 0, float(z)]) @ T().rotate([1, 0, 0], -90) @ T().scale([0.012, 0.012, float(rng.uniform(0.8, 1.6))])
                scene[f"pole{i}_{k}"] = {"type": "cylinder", "to_world": thin, "bsdf": bsdf}
        else:
            scene[f"object{i}"] = {"type": shape, "to_world": placed(rng, (x, y, z), stretch if shape == "cube" else [size] * 3), "bsdf": bsdf}
    out = float(rng.uniform(0.6, 0.95))
    angle = rng.uniform(0, 2 * np.pi)
    far = reach * out if inside else np.array([6.0, 6.0])
    eye = np.array([np.cos(angle) * far[0], rng.uniform(0.7, 1.9), np.sin(angle) * far[1]])
    target = np.array([rng.uniform(-0.8, 0.8), rng.uniform(0.3, 1.2), rng.uniform(-0.8, 0.8)])
    return scene, eye, target, float(rng.uniform(45, 75))


def render(scene, integrator, spp, seed):
    return np.array(mi.render(scene, integrator=integrator, spp=spp, seed=seed)).astype(np.float32)


def view_of(eye, target):
    """Axes of an image: to the right, down, forward."""
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, (0, 1, 0))
    right /= np.linalg.norm(right)
    return right, -np.cross(right, forward), forward


def pixels_of(position, eye, target, field, width, height):
    """Where points are in an image, in pixels: its middle is (width / 2, height / 2)."""
    right, down, forward = view_of(eye, target)
    away = position - eye
    depth = np.maximum(away @ forward, 1e-6)
    scale = width / 2 / np.tan(np.radians(field) / 2)
    return np.stack((width / 2 + scale * (away @ right) / depth, height / 2 + scale * (away @ down) / depth), -1), away @ forward


def motion_of(position, hit, now, then, before, size):
    """`motion` and `valid` from the last frame's positions: a point was seen there if what its pixel shows is as far."""
    width, height = size
    there, depth = pixels_of(position, *then, width, height)
    here, _ = pixels_of(position, *now, width, height)
    x, y = (np.floor(there[..., i]).astype(int) for i in (0, 1))
    inside = (x >= 0) & (y >= 0) & (x < width) & (y < height) & (depth > 0)
    x, y = x.clip(0, width - 1), y.clip(0, height - 1)
    distance = np.linalg.norm(position - then[0], axis=-1)
    was = np.linalg.norm(before[0] - then[0], axis=-1)[y, x]
    same = np.where(hit, before[1][y, x] & (np.abs(distance - was) <= 0.03 * distance), ~before[1][y, x])
    return there - here, (inside & same)[..., None]


def mean_of(scene, path, reference, seed):
    each = max(1, reference // 64)
    parts = (render(scene, path, each, seed + i)[..., :3] for i in range(max(1, reference // each)))
    return np.mean([np.where(np.isfinite(part), part, 0) for part in parts], axis=0)


def frames(seed, width, height, samples, reference, copies, length):
    """Copies of a frame, of which the first has a reference; or frames of a path, of which all have."""
    description, eye, target, field = scene_of(seed)
    step = np.random.default_rng(seed + 1_000_000).uniform(-0.04, 0.04, 3)
    path = mi.load_dict({"type": "path", "max_depth": 6})
    aov = mi.load_dict({"type": "aov", "aovs": "a:albedo,n:sh_normal,p:position", "img": {"type": "path", "max_depth": 6}})
    before = then = None
    for number in range(length or copies):
        now = (eye + step * number if length else eye, target, field)
        if number == 0 or length:
            look = T().look_at(origin=[float(x) for x in now[0]], target=[float(x) for x in target], up=[0, 1, 0])
            sensor = {"type": "perspective", "fov": field, "fov_axis": "x", "to_world": look,
                      "film": {"type": "hdrfilm", "width": width, "height": height, "rfilter": {"type": "box"}, "pixel_format": "rgb",
                               "component_format": "float32"},
                      "sampler": {"type": "independent"}}
            scene = mi.load_dict({**description, "sensor": sensor})
        image = render(scene, aov, samples, seed * 1000 + number)
        color, albedo, normal, position = image[..., :3], image[..., 3:6], image[..., 6:9], image[..., 9:12]
        hit = np.linalg.norm(normal, axis=-1, keepdims=True) > 1e-4
        away = np.sum(normal * (position - now[0]), -1, keepdims=True) > 0
        normal = np.where(away, -normal, normal)
        forward = view_of(now[0], target)[2]
        depth = np.where(hit, ((position - now[0]) @ forward)[..., None], 0)
        # Mitsuba's albedo of a mirror or of glass is what it reflects without Fresnel: 1, or 0 where it says none.
        albedo = np.where(hit & (albedo.max(-1, keepdims=True) < 1e-4), 1.0, np.minimum(albedo, 1)) * hit
        frame = {"color": color, "albedo": albedo, "normal": normal, "depth": depth}
        if length:
            # The sky is far away: where its pixels' middles look.
            y, x = np.mgrid[:height, :width] + 0.5
            right, down, _ = view_of(now[0], target)
            scale = width / 2 / np.tan(np.radians(field) / 2)
            sky = now[0] + 1e5 * (forward + (x - width / 2)[..., None] / scale * right + (y - height / 2)[..., None] / scale * down)
            position, hit = np.where(hit, position, sky), hit[..., 0]
            if number:
                frame["motion"], frame["valid"] = motion_of(position, hit, now, then, before, (width, height))
            else:
                frame["motion"], frame["valid"] = np.zeros((height, width, 2)), np.zeros((height, width, 1))
            before, then = (position, hit), now
        if number == 0 or length:
            frame["reference"] = mean_of(scene, path, reference, seed * 1000 + 500 + 100_000 * number)
        yield number, frame


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name, default in (("first", 0), ("count", 1), ("width", 480), ("height", 270), ("samples", 1), ("reference", 1024), ("copies", 1), ("length", 0)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--half", action="store_true", help="tensors in F16, in half of the bytes: for carrying them about")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for seed in range(a.first, a.first + a.count):
        for copy, tensors in frames(seed, a.width, a.height, a.samples, a.reference, a.copies, a.length):
            path = a.out / f"foreign.{seed:04}.{copy:02}.safetensors"
            if a.half:
                tensors = {k: np.clip(v, -65504, 65504).astype(np.float16) for k, v in tensors.items()}
            save_file({k: np.ascontiguousarray(v, v.dtype if a.half else np.float32) for k, v in tensors.items()}, path)


if __name__ == "__main__":
    main()
