"""`tandem gi` and `tandem eval gi`: to what PyTorch computes, beside numpy, and what they refuse.

SPDX-License-Identifier: Apache-2.0

usage: test_gi.py BUILD_FOLDER [unittest arguments]
"""
import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import numpy as np
import oracle as R
from tool import rig
from tool.rig import FOLDER, SOURCE, tool

f32 = np.float32
FIXTURES = SOURCE / "tests/kernels/gi"
MODEL = FIXTURES / "model.safetensors"
INPUTS = ("direct", "albedo", "normal", "depth", "ray")


def shown(x):
    return x.astype(np.float64) / (1 + x.astype(np.float64))


def psnr(x, r):
    return -10 * np.log10(np.mean((shown(x) - shown(r)) ** 2))


def tensors_of(path):
    return {name: array.astype(f32) for name, (_, array) in R.load(path)[0].items()}


def save(path, tensors):
    R.save(path, {name: ("F32", x.astype(f32)) for name, x in tensors.items()})
    return path


def floor(ambient, height=24, width=32):
    """A floor under an eye, with a wall of another colour, lit by an ambient light alone."""
    y, x = np.mgrid[:height, :width]
    ray = np.stack(((x + 0.5) / width * 2 - 1, 0.7 - (y + 0.5) / height * 1.4, -np.ones(x.shape)), -1)
    down = ray[..., 1:2] < -0.25
    depth = np.where(down, -1 / np.minimum(ray[..., 1:2], -0.25), 4)
    normal = np.where(down, [0, 1, 0], [0, 0, 1])
    albedo = np.where(down, [0.6, 0.5, 0.4], [0.2, 0.4, 0.7])
    direct = albedo * (1 + x[..., None] / width)
    return {"direct": direct, "albedo": albedo, "normal": normal, "depth": depth, "ray": ray, "indirect": albedo * ambient}


class Gi(unittest.TestCase):
    def light(self, *args, frame=FIXTURES / "frame.safetensors", out=FOLDER / "lit.safetensors"):
        run = tool("gi", "--model", MODEL, "--frame", frame, "--out", out, "--rung", "cpu", *args)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def refused(self, status, words, *args):
        run = tool(*args)
        self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (status, "", 1), run.stderr)
        self.assertIn(words, run.stderr)

    def test_as_pytorch(self):
        """A network by demo/train/gi_export.py, to what PyTorch computes in float32, in each precision of attention."""
        given = tensors_of(FIXTURES / "frame.safetensors")
        there = np.isfinite(given["direct"]).all(-1)
        results = []
        for precision, most in (("f16", 2e-3), ("8b", 0.02), ("4b", 0.05)):
            text = self.light("--precision", precision)
            self.assertRegex(text, r"^83 x 61 on cpu \([\w-]+\): [\d.]+ ms -> ")
            got = tensors_of(FOLDER / "lit.safetensors")
            self.assertEqual(set(got), {"indirect", "color"})
            error = np.abs(got["indirect"] - given["expected"]).mean() / np.abs(given["expected"]).mean()
            self.assertLess(error, most, precision)
            np.testing.assert_array_equal(got["color"][there], (given["direct"] + got["indirect"])[there])
            self.assertFalse(got["indirect"][given["albedo"].max(-1) == 0].any())
            results.append(got["indirect"])
        self.assertFalse(np.array_equal(results[0], results[1]) or np.array_equal(results[1], results[2]))
        self.light()  # as the model says
        np.testing.assert_array_equal(tensors_of(FOLDER / "lit.safetensors")["indirect"], results[1])

    def test_exposure(self):
        """Sixteen times as much direct light gives sixteen times as much indirect light."""
        frame = {name: x for name, x in tensors_of(FIXTURES / "frame.safetensors").items() if name in INPUTS}
        frame["direct"] = np.nan_to_num(frame["direct"]).clip(0, 100)
        lit = []
        for gain in (1, 16):
            self.light("--precision", "f16", frame=save(FOLDER / "gain.safetensors", {**frame, "direct": gain * frame["direct"]}))
            lit.append(tensors_of(FOLDER / "lit.safetensors")["indirect"])
        self.assertLess(np.abs(lit[1] / 16 - lit[0]).mean(), 2e-3 * lit[0].mean())

    def test_report(self):
        frame = floor(np.array([0.3, 0.2, 0.1]))
        text = self.light(frame=save(FOLDER / "floor.safetensors", frame))
        self.assertIn(f"(direct {psnr(frame['direct'], frame['direct'] + frame['indirect']):.2f})", text)
        color = tensors_of(FOLDER / "lit.safetensors")["color"]
        self.assertIn(f"PSNR {psnr(color, frame['direct'] + frame['indirect']):.2f} dB", text)
        self.light(frame=FOLDER / "floor.safetensors", out=FOLDER / "lit.pfm")
        kind, size, _, data = (FOLDER / "lit.pfm").read_bytes().split(b"\n", 3)
        self.assertEqual((kind, size), (b"PF", b"32 24"))
        np.testing.assert_array_equal(np.frombuffer(data, "<f4").reshape(24, 32, 3)[::-1], color)

    def test_refusals(self):
        frame, start = floor(np.ones(3)), ["gi", "--model", MODEL, "--out", FOLDER / "o.safetensors"]
        whole = save(FOLDER / "whole.safetensors", frame)
        without = save(FOLDER / "without.safetensors", {name: x for name, x in frame.items() if name != "ray"})
        small = save(FOLDER / "small.safetensors", {**frame, "depth": frame["depth"][:5]})
        flat = save(FOLDER / "flat.safetensors", {**frame, "albedo": frame["albedo"][..., :1]})
        ray = frame["ray"].copy()
        ray[3, 2, 1] = np.nan
        nowhere = save(FOLDER / "nowhere.safetensors", {**frame, "ray": ray})
        colored = save(FOLDER / "colored.safetensors", {**frame, "color": frame["direct"]})
        denoiser = SOURCE / "tests/kernels/denoiser/model.safetensors"
        for status, words, *args in (
            (2, "--frame is missing", *start), (2, "--model is missing", "gi", "--frame", whole, "--out", "x"),
            (2, "half", *start, "--frame", whole, "--precision", "half"),
            (1, "nowhere", *start, "--frame", "nowhere.safetensors"), (1, 'has no tensor "ray"', *start, "--frame", without),
            (1, '"ray" is nan in row 3, column 2; it must be finite', *start, "--frame", nowhere),
            (1, '"depth" and "direct" differ in size', *start, "--frame", small),
            (1, '"albedo" must be [height, width, 3]', *start, "--frame", flat),
            (1, "No such file", "gi", "--model", "/nowhere", "--frame", whole, "--out", FOLDER / "o.safetensors"),
            (1, 'no output "indirect": it is no network for indirect light', "gi", "--model", denoiser, *start[3:], "--frame", whole),
            (1, 'no output "out": it is no denoiser', "denoise", "--model", MODEL, "--frame", colored, *start[3:]),
            (1, "pictures that this build knows", *start[:3], "--frame", whole, "--out", "x.jpg"),
            (1, 'has no tensor "color"', "denoise", "--model", denoiser, "--frame", whole, "--out", FOLDER / "o.safetensors"),
        ):
            self.refused(status, words, *args)


class Eval(unittest.TestCase):
    def judge(self, folder, *args):
        out = FOLDER / "judged.json"
        run = tool("eval", "gi", "--frames", folder, "--rung", "cpu", "--json", out, *args)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        report = json.loads(out.read_text())
        return report, {row["name"]: row for row in report["rows"]}, run.stdout

    def test_rows(self):
        """An ambient light of the frame's own is found where it is all there is; the number for all frames is the best of those tried."""
        folder = FOLDER / "ambient"
        folder.mkdir()
        frames = [floor(np.array(color)) for color in ([0.3, 0.2, 0.1], [1.5, 2.5, 0.7])]
        for i, frame in enumerate(frames):
            save(folder / f"s.{i}.safetensors", frame)
        report, rows, text = self.judge(folder, "--model", MODEL)
        self.assertEqual(report["frames"], 2)
        totals = [frame["direct"] + frame["indirect"] for frame in frames]
        self.assertAlmostEqual(rows["direct light alone"]["psnr_db"],
                               np.mean([psnr(f["direct"], t) for f, t in zip(frames, totals)]), places=2)
        self.assertGreater(rows["constant ambient, best"]["psnr_db"], 55)

        def with_strength(k):
            means = [(f["direct"] / f["albedo"]).mean((0, 1)) for f in frames]
            return np.mean([psnr(f["direct"] + k * m * f["albedo"], t) for f, m, t in zip(frames, means, totals)])
        tried = 2.0 ** (np.arange(41) / 5 - 4)
        self.assertAlmostEqual(rows["constant ambient"]["psnr_db"], max(map(with_strength, tried)), places=2)
        self.assertAlmostEqual(rows["constant ambient"]["ambient"], tried[np.argmax([with_strength(k) for k in tried])], places=4)
        for name in ("ambient, SSAO", "screen-space bounce"):  # the wall hides something of the floor
            self.assertTrue(rows["direct light alone"]["psnr_db"] < rows[name + ", best"]["psnr_db"] < 55, rows)
            self.assertGreaterEqual(rows[name + ", best"]["psnr_db"], rows[name]["psnr_db"])
        ours = [rows[f"model.safetensors {precision}"]["psnr_db"] for precision in ("f16", "8b", "4b")]
        self.assertEqual(len(set(ours)), 3)
        for frame, total in zip(frames, totals):
            tool("gi", "--model", MODEL, "--frame", save(FOLDER / "one.safetensors", frame), "--out", FOLDER / "one_lit.safetensors",
                 "--precision", "f16", "--rung", "cpu")
            frame["psnr"] = psnr(tensors_of(FOLDER / "one_lit.safetensors")["color"], total)
        self.assertAlmostEqual(ours[0], np.mean([frame["psnr"] for frame in frames]), places=2)
        self.assertIn("constant ambient", text)

    def test_bounce(self):
        """Light of a bright wall on the floor before it is found in screen space, and none of a lamp's."""
        folder = FOLDER / "bounce"
        folder.mkdir()
        frame = floor(np.zeros(3), 48, 64)
        wall = frame["normal"][..., 2:] > 0
        away = 4 - frame["depth"]  # half of a floor's sky is a high wall at its foot
        part = np.where(wall, 0, (1 - away / np.hypot(away, 3.8)) / 2)
        frame["direct"] = np.where(wall, 5 * frame["albedo"], 0.1 * frame["albedo"])
        frame["indirect"] = part * frame["albedo"] * 5 * np.array([0.2, 0.4, 0.7])
        save(folder / "a.0.safetensors", frame)
        _, rows, _ = self.judge(folder)
        self.assertGreater(rows["screen-space bounce, best"]["psnr_db"], rows["constant ambient, best"]["psnr_db"] + 1)
        frame["albedo"] = np.where(wall, 0, frame["albedo"])
        frame["indirect"] = np.where(wall, 0, frame["indirect"])
        save(folder / "a.0.safetensors", frame)
        _, lamps, _ = self.judge(folder)
        self.assertLess(abs(lamps["screen-space bounce, best"]["psnr_db"] - lamps["constant ambient, best"]["psnr_db"]), 1)

    def test_sheet(self):
        folder = FOLDER / "sheet"
        folder.mkdir()
        save(folder / "a.0.safetensors", floor(np.ones(3)))
        out = FOLDER / "gi.png"
        run = tool("eval", "gi", "--frames", folder, "--sheet", out)
        if "that this build knows" in run.stderr:
            self.skipTest("built without libpng")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual([int.from_bytes(out.read_bytes()[at : at + 4], "big") for at in (16, 20)], [8 * 196, 196])

    def test_refusals(self):
        folder = FOLDER / "refused"
        folder.mkdir()
        frame = floor(np.ones(3))
        save(folder / "a.0.safetensors", {name: x for name, x in frame.items() if name != "indirect"})
        kinds = FOLDER / "kinds"
        kinds.mkdir()
        save(kinds / "a.0.safetensors", frame)
        for status, words, *args in (
            (2, "--no-oidn is not for gi", "--frames", folder, "--no-oidn"), (2, "--frames is missing",),
            (1, "no such folder", "--frames", folder / "nowhere"), (1, 'has no tensor "indirect"', "--frames", folder),
            (1, "more than 8", "--frames", folder, "--model", ",".join([str(MODEL)] * 9)),
            (1, 'has no output "indirect"', "--frames", kinds, "--model", SOURCE / "tests/kernels/denoiser/model.safetensors"),
            (1, "No such file", "--frames", folder, "--model", "/nowhere.safetensors"),
        ):
            run = tool("eval", "gi", *args)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (status, "", 1), run.stderr)
            self.assertIn(words, run.stderr)


if __name__ == "__main__":
    with rig.folder:
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_gi: {result.testsRun} tests, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
