"""`tandem denoise`: its files, what it prints beside numpy, and its manners, by a network that multiplies color and albedo.

SPDX-License-Identifier: Apache-2.0

usage: test_denoise.py BUILD_FOLDER [unittest arguments]
"""
import json
import pathlib
import re
import struct
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import numpy as np
import oracle as R
from tool import rig
from tool.rig import FOLDER, SOURCE, tool

f32 = np.float32
IMAGE = ["height", "width", 3]
GRAPH = {
    "version": 1,
    "numbers": {"width": 4096, "height": 4096},
    "tensors": {
        "color": {"role": "input", "dtype": "F32", "shape": IMAGE},
        "albedo": {"role": "input", "dtype": "F32", "shape": IMAGE},
        "out": {"role": "output", "dtype": "F32", "shape": IMAGE},
    },
    "nodes": [{"operation": "binary", "batch": 1, "heads": "height", "rows": "width", "channels": 3, "kind": 1,
               "views": {"a": "color", "b": "albedo", "y": "out"}}],
}


def model(path, graph=GRAPH):
    R.save(path, {}, {"tandem.graph": json.dumps(graph)})
    return path


def pfm(path, picture, order="<"):
    kind = b"PF" if picture.shape[2] == 3 else b"Pf"
    head = kind + b"\n%d %d\n%s\n" % (picture.shape[1], picture.shape[0], b"-1.0" if order == "<" else b"1.0")
    path.write_bytes(head + np.ascontiguousarray(picture[::-1]).astype(order + "f4").tobytes())
    return path


def load_pfm(path):
    kind, size, scale, data = path.read_bytes().split(b"\n", 3)
    width, height = map(int, size.split())
    assert (kind, scale) == (b"PF", b"-1.0")
    return np.frombuffer(data, "<f4").reshape(height, width, 3)[::-1]


def exr(path, picture):
    """The plainest EXR: scanlines of halves, not packed."""
    height, width, _ = picture.shape

    def attribute(name, kind, value):
        return name + b"\0" + kind + b"\0" + struct.pack("<i", len(value)) + value

    box = struct.pack("<4i", 3, -2, 3 + width - 1, -2 + height - 1)  # the data window need not begin at 0
    channels = b"".join(name + b"\0" + struct.pack("<iBBBBii", 1, 0, 0, 0, 0, 1, 1) for name in (b"layer.B", b"layer.G", b"layer.R"))
    head = b"\x76\x2f\x31\x01\x02\0\0\0" + b"".join((
        attribute(b"channels", b"chlist", channels + b"\0"), attribute(b"compression", b"compression", b"\0"),
        attribute(b"dataWindow", b"box2i", box), attribute(b"displayWindow", b"box2i", box),
        attribute(b"lineOrder", b"lineOrder", b"\0"), attribute(b"pixelAspectRatio", b"float", struct.pack("<f", 1)),
        attribute(b"screenWindowCenter", b"v2f", struct.pack("<2f", 0, 0)), attribute(b"screenWindowWidth", b"float", struct.pack("<f", 1)),
    )) + b"\0"
    line = 8 + 6 * width
    table = b"".join(struct.pack("<Q", len(head) + 8 * height + y * line) for y in range(height))
    rows = b"".join(struct.pack("<ii", y - 2, 6 * width) + picture[y].T[::-1].astype("<f2").tobytes() for y in range(height))
    path.write_bytes(head + table + rows)
    return path


def shown(x):
    x = np.where(np.isfinite(x), np.maximum(x, 0), 0).astype(np.float64)
    return x / (1 + x)


def quality(x, r):
    """PSNR, SSIM and relMSE, as `tandem help denoise` says."""
    a, b = shown(x), shown(r)
    psnr = -10 * np.log10(np.mean((a - b) ** 2))
    weights = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5 ** 2))
    weights /= weights.sum()

    def mean(z):
        for axis in (0, 1):
            windows = np.lib.stride_tricks.sliding_window_view(z, 11, axis)
            z = windows @ weights
        return z

    ma, mb, va, vb, cov = mean(a), mean(b), mean(a * a), mean(b * b), mean(a * b)
    va, vb, cov = va - ma * ma, vb - mb * mb, cov - ma * mb
    ssim = np.mean((2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma * ma + mb * mb + 1e-4) * (va + vb + 9e-4)))
    p, q = (np.where(np.isfinite(z), np.maximum(z, 0), 0).astype(np.float64) for z in (x, r))
    return psnr, ssim, np.mean((p - q) ** 2 / (q * q + 0.01))


class Denoise(unittest.TestCase):
    def setUp(self):
        r = np.random.default_rng(5)
        self.model = model(FOLDER / "denoise_model.safetensors")
        self.color = r.lognormal(-1, 1, (37, 24, 3)).astype(f32)
        self.albedo = r.random((37, 24, 3)).astype(f32)
        self.reference = (self.color * self.albedo * r.lognormal(0, 0.2, self.color.shape)).astype(f32)

    def denoise(self, *args):
        run = tool("denoise", "--model", self.model, "--rung", "cpu", *args)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def refused(self, status, words, *args):
        run = tool("denoise", *args)
        self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (status, "", 1), run.stderr)
        self.assertIn(words, run.stderr)

    def frame(self, name, **tensors):
        path = FOLDER / name
        R.save(path, {key: ("F16" if x.dtype == np.float16 else "F32", x) for key, x in tensors.items()})
        return path

    def test_frames(self):
        out = FOLDER / "denoised.safetensors"
        for dtype in (np.float32, np.float16):
            color, albedo = self.color.astype(dtype), self.albedo.astype(dtype)
            text = self.denoise("--frame", self.frame("frame.safetensors", color=color, albedo=albedo, other=np.zeros(3, f32)), "--out", out)
            self.assertRegex(text, r"^24 x 37 on cpu \([\w-]+\): [\d.]+ ms -> ")
            tensors, _ = R.load(out)
            self.assertEqual({name: kind for name, (kind, _) in tensors.items()}, {"color": "F32"})
            np.testing.assert_array_equal(tensors["color"][1], color.astype(f32) * albedo.astype(f32))
        self.denoise("--frame", self.frame("frame.safetensors", color=self.color), "--out", out)
        np.testing.assert_array_equal(R.load(out)[0]["color"][1], self.color)  # without an albedo it is 1

    def test_as_pytorch(self):
        """A network by demo/train/export.py, to what PyTorch computes in float32: weights and what is between layers are halves here."""
        folder, out = SOURCE / "tests/kernels/denoiser", FOLDER / "denoised.safetensors"
        self.model = folder / "model.safetensors"
        for edges, name in (("smooth", "expected"), ("hard", "expected_hard")):
            expected = R.load(folder / "frame.safetensors")[0][name][1]
            self.denoise("--frame", folder / "frame.safetensors", "--out", out, "--edges", edges)
            error = np.abs(R.load(out)[0]["color"][1] - expected) / (0.05 + np.abs(expected))
            self.assertLess(error.max(), 5e-3)
            self.assertLess(error.mean(), 3e-4)

    def test_hard_edges(self):
        """What goes through the middle of pixels keeps an edge, which else is mixed with what is beside it."""
        out = FOLDER / "denoised.safetensors"
        albedo = np.full((24, 40, 3), 0.2, f32)
        albedo[:, 20:] = 0.9
        frame = self.frame("edge.safetensors", color=albedo, albedo=albedo, depth=np.ones((24, 40, 1), f32))
        for preset in ("denoise", "denoise-fast"):
            self.model, error = SOURCE / f"demo/assets/{preset}.safetensors", {}
            for edges in ("smooth", "hard"):
                self.denoise("--frame", frame, "--out", out, "--edges", edges)
                error[edges] = np.abs(R.load(out)[0]["color"][1] - albedo).max()
            self.assertLess(error["hard"], 1e-3)
            self.assertGreater(error["smooth"], 0.01)
        start = ("--model", model(FOLDER / "denoise_model.safetensors"), "--frame", frame, "--out", out, "--rung", "cpu", "--edges")
        self.refused(1, '--edges hard: the model has no number "edges"', *start, "hard")
        self.refused(2, '--edges "sharp": must be auto, smooth or hard', *start, "sharp")

    def test_edges_are_found(self):
        """By depths: of planes and a ball, through the middle of pixels or of samples anywhere in them; of a sequence by its first frame."""
        height, width, out = 90, 160, FOLDER / "denoised.safetensors"
        rng = np.random.default_rng(8)

        def guides(samples, dtype):
            """Means of so many samples, or of the middle alone."""
            depth, normal = np.zeros((height, width)), np.zeros((height, width, 3))
            planes = np.array([[0, 1, 0, 1], [-0.9, 0, 1, 6], [0.8, 0, 1, 5]])  # n p = d
            for _ in range(samples or 1):
                down, right = rng.random((2, height, width)) if samples else np.full((2, height, width), 0.5)
                ray = np.stack((np.arange(width) + right - width / 2, np.arange(height)[:, None] + down - height / 2,
                                np.full((height, width), width / 1.6)), -1) / (width / 1.6)
                facing = np.maximum(ray @ planes[:, :3].T, 1e-6)
                of_planes = planes[:, 3] / facing
                b, q = ray @ (0, 0.3, 3), (ray * ray).sum(-1)  # a ball of radius 0.9
                root = b * b - q * (0.3**2 + 3**2 - 0.9**2)
                ball = (b - np.sqrt(np.maximum(root, 0))) / q
                on_ball, of_ball = (root > 0) & (ball < of_planes.min(-1)), ray * ball[..., None] - (0, 0.3, 3)
                depth += np.where(on_ball, ball, of_planes.min(-1)) / (samples or 1)
                n = np.where(on_ball[..., None], of_ball, -planes[of_planes.argmin(-1), :3])
                normal += n / np.linalg.norm(n, axis=-1, keepdims=True) / (samples or 1)
            return {"depth": depth[..., None].astype(dtype), "normal": normal.astype(dtype)}

        self.model = SOURCE / "demo/assets/denoise-fast.safetensors"
        color = {"color": rng.random((height, width, 3)).astype(f32)}
        for dtype in (np.float32, np.float16):
            for samples in (0, 1, 4, 16):
                frame = self.frame("edges.safetensors", **color, **guides(samples, dtype))
                said = self.denoise("--frame", frame, "--out", out)
                self.assertEqual("hard edges" in said, samples == 0, (dtype, samples, said))
                self.assertNotIn("hard edges", self.denoise("--frame", frame, "--out", out, "--edges", "smooth"))
        self.assertNotIn("hard edges", self.denoise("--frame", self.frame("edges.safetensors", **color), "--out", out))
        flat = {"depth": np.full((height, width, 1), 3, f32), "normal": np.zeros((height, width, 3), f32)}
        self.assertNotIn("hard edges", self.denoise("--frame", self.frame("edges.safetensors", **color, **flat), "--out", out))
        for first in (0, 1):
            for i in range(3):
                self.frame(f"edges.{i}.safetensors", **color, **guides(first if i == 0 else 1 - first, f32))
            said = self.denoise("--sequence", FOLDER / "edges.%d.safetensors", "--out", FOLDER / "clean.%d.safetensors", "--cut", "2")
            self.assertEqual(["hard edges" in line for line in said.splitlines()], [first == 0, first == 0, first == 1])

    def test_dark_albedo(self):
        """What is dark, and whose albedo has noise, as metal's of another renderer, has neighbours that are divided by albedos alike: none
        becomes much brighter than all that was measured. With a darkest divisor of 0.02, and 1 below that, it were some twentyfold."""
        r, out = np.random.default_rng(5), FOLDER / "denoised.safetensors"
        color = r.uniform(0.5, 1, (24, 37, 3)).astype(f32)
        albedo = r.uniform(0.001, 0.04, (24, 37, 3)).astype(f32)
        for self.model in (SOURCE / "tests/kernels/denoiser/model.safetensors", SOURCE / "demo/assets/denoise.safetensors"):
            self.denoise("--frame", self.frame("dark.safetensors", color=color, albedo=albedo, depth=np.ones((24, 37, 1), f32)), "--out", out)
            self.assertLessEqual(R.load(out)[0]["color"][1].max(), 1.001)

    def test_history(self):
        """A network with history: to what PyTorch computes of a frame and what the one before left, from a file and from frame to frame."""
        folder, out, number = SOURCE / "tests/kernels/denoiser", FOLDER / "denoised.safetensors", 0
        self.model = folder / "model_history.safetensors"
        tensors = {name: array for name, (_, array) in R.load(folder / "frame_history.safetensors")[0].items()}
        frame = self.frame("now.safetensors", **{name: tensors[name] for name in ("color", "albedo", "normal", "depth", "motion", "valid")})
        before = {"history": tensors["history_before"], "normal": tensors["normal_before"], "depth": tensors["depth_before"]}
        text = self.denoise("--frame", frame, "--previous", self.frame("before.safetensors", **before), "--out", out)
        self.assertNotIn("cut", text)
        got = {name: array for name, (_, array) in R.load(out)[0].items()}
        self.assertEqual(set(got), {"color", "history", "normal", "depth"})
        for name, expected in (("color", tensors["expected"]), ("history", tensors["expected_history"])):
            error = np.abs(got[name] - expected) / (0.05 + np.abs(expected))
            self.assertLess(np.quantile(error, 0.999), 5e-3, name)  # some pixels' surfaces are nearly another
            self.assertLess(error.mean(), 5e-4, name)
        np.testing.assert_array_equal(got["normal"], tensors["normal"].astype(f32))
        # A cut, said or found, is as the first frame.
        self.denoise("--frame", frame, "--out", out)
        first = R.load(out)[0]["color"][1]
        self.assertFalse(np.array_equal(first, got["color"]))
        for more, change in ((("--cut", "7,0"), {}), ((), {"depth": before["depth"] * 2})):
            text = self.denoise("--frame", frame, "--previous", self.frame("before.safetensors", **{**before, **change}), "--out", out, *more)
            self.assertIn(", cut ->", text)
            np.testing.assert_array_equal(R.load(out)[0]["color"][1], first)
        # A sequence is the same as its frames, one after the other.
        for number in (1, 2, 3):
            self.frame(f"h.{number}.safetensors", **{name: tensors[name] for name in ("color", "albedo", "normal", "depth", "motion", "valid")})
        self.denoise("--sequence", FOLDER / "h.%d.safetensors", "--out", FOLDER / "i.%d.safetensors", "--cut", "3")
        self.denoise("--frame", FOLDER / "h.2.safetensors", "--previous", FOLDER / "i.1.safetensors", "--out", out)
        second = R.load(FOLDER / "i.2.safetensors")[0]
        for name, (_, array) in R.load(out)[0].items():
            np.testing.assert_array_equal(array, second[name][1])
        np.testing.assert_array_equal(R.load(FOLDER / "i.3.safetensors")[0]["color"][1], first)
        start = ["--model", self.model, "--frame", frame, "--out", out]
        small = {name: x[:5] for name, x in before.items()}
        for status, words, *args in (
            (1, 'has no tensor "history"', "--previous", frame),
            (1, '"normal" and "history" differ in size', "--previous", self.frame("bad.safetensors", **{**before, "normal": before["normal"][:5]})),
            (1, "is 51 x 5, color 51 x 37", "--previous", self.frame("small.safetensors", **small)),
            (2, '--cut "1,,2" is no list', "--cut", "1,,2"), (2, '--cut "x" is no list', "--cut", "x"),
            (2, "--motion goes with --color", "--motion", frame),
        ):
            self.refused(status, words, *start, *args)
        self.refused(1, 'the network has no history', "--model", model(FOLDER / "denoise_model.safetensors"), *start[2:], "--previous", FOLDER / "before.safetensors")

    def test_motion_pictures(self):
        """Motion and valid as pictures are as those of a frame."""
        folder = SOURCE / "tests/kernels/denoiser"
        self.model = folder / "model_history.safetensors"
        r, pictures, frame = np.random.default_rng(3), [], {}
        for name, channels in (("color", 3), ("motion", 2), ("valid", 1)):
            frame[name] = (3 * r.random((20, 24, channels))).astype(f32).round(2 if channels == 3 else 0)
            whole = frame[name] if channels != 2 else np.concatenate((frame[name], frame[name][..., :1]), -1)
            pictures += ["--" + name, pfm(FOLDER / f"m.{name}.pfm", whole)]
        before = self.frame("before.safetensors", history=r.random((20, 24, 4)).astype(f32))
        outs = [FOLDER / "m1.safetensors", FOLDER / "m2.safetensors"]
        self.denoise(*pictures, "--previous", before, "--out", outs[0])
        self.denoise("--frame", self.frame("m.safetensors", **frame), "--previous", before, "--out", outs[1])
        one, two = (R.load(out)[0]["color"][1] for out in outs)
        np.testing.assert_array_equal(one, two)

    def small(self, height, width, rows, columns):
        """A frame whose color is of so many rows and columns, and the same in NaN, placed by the rule that users are told."""
        r = np.random.default_rng(height)
        guides = {"albedo": r.random((height, width, 3)), "normal": r.normal(size=(height, width, 3)).clip(-1, 1),
                  "depth": 5 * r.random((height, width, 1)), "motion": r.normal(0, 2, (height, width, 2)),
                  "valid": np.ones((height, width, 1))}
        guides = {name: x.astype(f32) for name, x in guides.items()}
        color, placed = r.lognormal(-1, 1, (rows, columns, 3)).astype(f32), np.full((height, width, 3), np.nan, f32)
        for i in range(rows):
            for j in range(columns):
                placed[(2 * i + 1) * height // (2 * rows), (2 * j + 1) * width // (2 * columns)] = color[i, j]
        self.assertEqual(np.isfinite(placed).sum(), color.size)
        return color, placed, guides

    def test_upscale(self):
        """A small color is to the bit what it is in a frame that is otherwise missing; in files of all kinds, along a path."""
        folder, out, whole = SOURCE / "tests/kernels/denoiser", FOLDER / "up.safetensors", FOLDER / "whole.safetensors"
        for name, height, width, rows, columns in (("model", 36, 50, 18, 25), ("model", 37, 51, 25, 34), ("model", 37, 51, 19, 26),
                                                   ("model_history", 33, 47, 22, 31), ("model", 37, 51, 36, 51)):
            self.model = folder / (name + ".safetensors")
            color, placed, guides = self.small(height, width, rows, columns)
            reference = np.abs(np.random.default_rng(1).normal(size=placed.shape)).astype(f32)
            frame = self.frame("small.safetensors", color=color, reference=reference, **guides)
            text = self.denoise("--frame", frame, "--reference", frame, "--out", out)
            self.assertRegex(text, rf"^{width} x {height} of {columns} x {rows} on cpu .* ms, PSNR ")
            expected_text = self.denoise("--frame", self.frame("placed.safetensors", color=placed, reference=reference, **guides),
                                         "--reference", frame, "--out", whole)
            self.assertRegex(expected_text, rf"^{width} x {height} on cpu")
            psnr = [re.search(r"PSNR ([\d.]+) dB \(input ([\d.]+)\)", each).groups() for each in (text, expected_text)]
            self.assertEqual(psnr[0][0], psnr[1][0])
            self.assertGreater(float(psnr[0][1]), float(psnr[1][1]))  # by bicubic interpolation, not mostly black
            got, expected = R.load(out)[0], R.load(whole)[0]
            self.assertEqual(set(got), set(expected))
            for key in expected:
                self.assertEqual(got[key][1].tobytes(), expected[key][1].tobytes(), (name, key))
            self.assertEqual(got["color"][1].shape, (height, width, 3))
            if name == "model_history":
                for number, each in ((1, color), (2, color[::-1])):
                    self.frame(f"up.{number}.safetensors", color=each, **guides)
                    again = placed.copy()
                    again[np.isfinite(again)] = each.ravel()
                    self.frame(f"whole.{number}.safetensors", color=again, **guides)
                for each in ("up", "whole"):
                    names = (FOLDER / f"{each}{out}.%d.safetensors" for out in ("", "_out"))
                    self.denoise("--sequence", next(names), "--out", next(names))
                for number in (1, 2):
                    one, two = (R.load(FOLDER / f"{each}_out.{number}.safetensors")[0] for each in ("up", "whole"))
                    for key in two:
                        self.assertEqual(one[key][1].tobytes(), two[key][1].tobytes(), (number, key))
                start = R.load(FOLDER / "up_out.1.safetensors")[0]["color"][1]
                self.assertFalse(np.array_equal(R.load(FOLDER / "up_out.2.safetensors")[0]["color"][1], start))
        color, placed, guides = self.small(37, 24, 19, 12)
        self.model = folder / "model.safetensors"
        names = ("albedo", "normal", "depth")
        pictures = [x for name in names for x in ("--" + name, pfm(FOLDER / f"up.{name}.pfm", guides[name]))]
        self.denoise("--color", pfm(FOLDER / "up.color.pfm", color), *pictures, "--out", FOLDER / "up.pfm")
        guides = {name: guides[name] for name in names}
        self.denoise("--frame", self.frame("placed.safetensors", color=placed, **guides), "--out", whole)
        np.testing.assert_array_equal(load_pfm(FOLDER / "up.pfm"), R.load(whole)[0]["color"][1])
        path = exr(FOLDER / "up.exr", color)
        run = tool("denoise", "--model", self.model, "--rung", "cpu", "--color", path, *pictures, "--out", FOLDER / "up.pfm")
        if "that this build knows" not in run.stderr:
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            half = placed.astype(np.float16).astype(f32)
            self.denoise("--frame", self.frame("placed.safetensors", color=half, **guides), "--out", whole)
            np.testing.assert_array_equal(load_pfm(FOLDER / "up.pfm"), R.load(whole)[0]["color"][1])

    def test_upscale_refusals(self):
        color, _, guides = self.small(36, 50, 18, 25)
        out, model = FOLDER / "up.safetensors", SOURCE / "tests/kernels/denoiser/model_history.safetensors"
        fit = "; color has the same size, or is upscaled, by 2 at most, across as much as down"
        for words, change in (
            (f"albedo is 50 x 36, color 25 x 17{fit}", {"color": color[:17]}),
            (f"albedo is 50 x 36, color 24 x 18{fit}", {"color": color[:, :24]}),
            (f"albedo is 50 x 36, color 50 x 18{fit}", {"color": np.concatenate((color, color), 1)}),
            (f"albedo is 50 x 36, color 25 x 37{fit}", {"color": np.ones((37, 25, 3), f32)}),
            (f"albedo is 50 x 36, color 100 x 72{fit}", {"color": np.ones((72, 100, 3), f32)}),
            (f"normal is 50 x 36, color 25 x 17{fit}", {"color": color[:17], "albedo": None}),
            ("normal is 25 x 18, albedo 50 x 36", {"normal": guides["normal"][:18, :25]}),
            ("depth is 25 x 18, albedo 50 x 36", {"depth": guides["depth"][:18, :25]}),
            ("motion is 25 x 18, albedo 50 x 36", {"motion": guides["motion"][:18, :25]}),
            ("motion is 50 x 36, color 25 x 18; to upscale, albedo, normal or depth of the output's size is needed",
             {"albedo": None, "normal": None, "depth": None}),
        ):
            tensors = {name: x for name, x in {"color": color, **guides, **change}.items() if x is not None}
            frame = self.frame("bad.safetensors", **tensors)
            self.refused(1, words, "--model", model, "--rung", "cpu", "--frame", frame, "--out", out)
        frame = self.frame("small.safetensors", color=color, **guides)
        start = ("--model", model, "--rung", "cpu", "--frame", frame, "--out", out)
        self.refused(1, "--reference is 25 x 18, albedo 50 x 36", *start, "--reference", frame)
        self.refused(1, "history_before is 25 x 18, albedo 50 x 36", *start, "--previous",
                     self.frame("before.safetensors", history=np.ones((18, 25, 4), f32)))

    def test_pictures(self):
        color, albedo, out = pfm(FOLDER / "color.pfm", self.color), pfm(FOLDER / "albedo.pfm", self.albedo, ">"), FOLDER / "out.pfm"
        self.denoise("--color", color, "--albedo", albedo, "--out", out)
        np.testing.assert_array_equal(load_pfm(out), self.color * self.albedo)
        gray = pfm(FOLDER / "gray.pfm", self.color[..., :1])
        self.refused(1, "has one channel, not three", "--model", self.model, "--color", gray, "--out", out)

    def test_png(self):
        color, out = pfm(FOLDER / "color.pfm", self.color), FOLDER / "out.png"
        run = tool("denoise", "--model", self.model, "--rung", "cpu", "--color", color, "--out", out)
        if "that this build knows" in run.stderr:
            self.skipTest("built without libpng")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.denoise("--color", out, "--out", FOLDER / "again.pfm")
        linear, codes = np.clip(self.color, 0, 1), load_pfm(FOLDER / "again.pfm")
        srgb = lambda x: np.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)
        self.assertLess(np.abs(srgb(linear) - srgb(codes)).max(), 0.51 / 255 + 1e-3)

    def test_exr(self):
        path, out = exr(FOLDER / "color.exr", self.color), FOLDER / "out.exr"
        run = tool("denoise", "--model", self.model, "--rung", "cpu", "--color", path, "--out", out)
        if "that this build knows" in run.stderr:
            self.skipTest("built without OpenEXR")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.denoise("--color", out, "--out", FOLDER / "again.pfm")
        np.testing.assert_array_equal(load_pfm(FOLDER / "again.pfm"), self.color.astype(np.float16).astype(f32))
        whole = path.read_bytes()
        for cut in (0, 3, 40, 300, len(whole) - 1):
            path.write_bytes(whole[:cut])
            self.refused(1, '--color "', "--model", self.model, "--color", path, "--out", out)

    def test_quality(self):
        color = self.color.copy()
        color[3, 4] = np.nan, np.inf, -1
        frame = self.frame("frame.safetensors", color=color, albedo=self.albedo, reference=self.reference)
        text = self.denoise("--frame", frame, "--reference", frame, "--out", FOLDER / "denoised.safetensors")
        number = r"(-?[\d.e+-]+)"
        found = re.search(rf"PSNR {number} dB \(input {number}\), SSIM {number} \({number}\), relMSE {number} \({number}\)", text)
        after, before = ([float(found[i]) for i in (first, first + 2, first + 4)] for first in (1, 2))
        for got, picture in ((after, color * self.albedo), (before, color)):
            for a, b, near in zip(got, quality(picture, self.reference), (0.006, 6e-5, 1e-3)):
                self.assertLess(abs(a - b), near * max(1, abs(b)), (got, quality(picture, self.reference)))

    def test_sequences(self):
        for number in (1, 2, 3):
            self.frame(f"s.{number:04}.safetensors", color=self.color * f32(number), reference=self.reference)
        text = self.denoise("--sequence", FOLDER / "s.%04d.safetensors", "--out", FOLDER / "t.%d.pfm", "--reference", FOLDER / "s.%04d.safetensors")
        self.assertEqual(text.count("PSNR"), 3)
        for number in (1, 2, 3):
            np.testing.assert_array_equal(load_pfm(FOLDER / f"t.{number}.pfm"), self.color * f32(number))
        for bad in ("t.pfm", "t.%s.pfm", "t.%d.%d.pfm", "t.%00d.pfm", "t.%"):
            self.refused(1, "one %d or %04d", "--model", self.model, "--sequence", FOLDER / "s.%04d.safetensors", "--out", FOLDER / (bad + ".pfm"))
        self.refused(1, "there is no frame 0 or 1", "--model", self.model, "--sequence", FOLDER / "u.%d.safetensors", "--out", FOLDER / "t.%d.pfm")

    def test_refusals(self):
        frame, out = self.frame("frame.safetensors", color=self.color), FOLDER / "out.pfm"
        start = ["--model", self.model]
        for status, words, *args in (
            (2, "--model is missing"),
            (2, "--out is missing", *start),
            (2, "one of --color, --frame and --sequence", *start, "--out", out),
            (2, "one of --color, --frame and --sequence", *start, "--out", out, "--frame", frame, "--color", frame),
            (2, "--depth goes with --color", *start, "--out", out, "--frame", frame, "--depth", frame),
            (2, '--rung "nine" is none of', *start, "--out", out, "--frame", frame, "--rung", "nine"),
            (1, "pictures that this build knows end in .pfm", *start, "--out", FOLDER / "out.jpg", "--frame", frame),
            (1, "No such file", *start, "--out", out, "--frame", FOLDER / "nowhere.safetensors"),
            (1, "No such file", *start, "--out", out, "--color", FOLDER / "nowhere.pfm"),
            (1, "No such file", *start, "--out", FOLDER / "nowhere/out.pfm", "--frame", frame),
            (1, 'has no tensor "color"', *start, "--out", out, "--frame", self.model),
            (1, 'has no tensor "reference" or "color"', *start, "--out", out, "--frame", frame, "--reference", self.model),
            (1, "--reference is 9 x 5, color 24 x 37", *start, "--out", out, "--frame", frame, "--reference", pfm(FOLDER / "r.pfm", np.zeros((5, 9, 3)))),
        ):
            self.refused(status, words, *args)
        for words, tensor in (("must be [height, width, 3], F16 or F32", self.color[..., :2]), ("must have 1 to 16384", np.zeros((0, 4, 3), f32))):
            self.refused(1, words, *start, "--out", out, "--frame", self.frame("bad.safetensors", color=tensor))
        for words, change in (
            ("a denoiser's numbers are height, width and edges", {"numbers": {"width": 9, "rows": 9}, "tensors": {
                name: {**of, "shape": ["rows", "width", 3]} for name, of in GRAPH["tensors"].items()}, "nodes": [{**GRAPH["nodes"][0], "heads": "rows"}]}),
            ('"albedo" must be F32, [height, width, 3]', {"tensors": {**GRAPH["tensors"], "albedo": {"role": "input", "dtype": "F16", "shape": IMAGE}}}),
            ("numbers[1] is 37; height must be 1 to 36", {"numbers": {"width": 4096, "height": 36}}),
        ):
            self.refused(1, words, "--model", model(FOLDER / "bad_model.safetensors", {**GRAPH, **change}), "--frame", frame, "--out", out)
        cut = FOLDER / "cut.pfm"
        cut.write_bytes(pfm(cut, self.color).read_bytes()[:-1])
        self.refused(1, "ends before its last row", *start, "--color", cut, "--out", out)
        cut.write_bytes(b"PF\n0 3\n-1.0\n")
        self.refused(1, "has no width and height", *start, "--color", cut, "--out", out)


if __name__ == "__main__":
    with rig.folder:
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_denoise: {result.testsRun} tests, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
