"""`tandem eval denoise`: its rows beside numpy, on still frames and on a path; its sheet, its JSON, and what it refuses.

SPDX-License-Identifier: Apache-2.0

usage: test_eval.py BUILD_FOLDER [unittest arguments]
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


def shown(x):
    return x.astype(np.float64) / (1 + x.astype(np.float64))


def psnr(x, r):
    return -10 * np.log10(np.mean((shown(x) - shown(r)) ** 2))


def box(x, radius):
    """The mean of what is in the picture."""
    sums, counts = np.zeros(x.shape), np.zeros(x.shape)
    height, width = x.shape[:2]
    for i in range(-radius, radius + 1):
        for j in range(-radius, radius + 1):
            rows, columns = np.arange(height) + i, np.arange(width) + j
            there = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))[None]
            sums += np.where(there[..., None], x[rows.clip(0, height - 1)][:, columns.clip(0, width - 1)], 0)
            counts += there[..., None]
    return (sums / counts).astype(f32)


def cubic(at, length):
    """Catmull and Rom's, through numbers at those of `length` places: what each place takes of each."""
    matrix = np.zeros((length, len(at)))
    for x in range(length):
        i = max(0, sum(place <= x for place in at) - 1)
        t = (x - at[i]) / (at[i + 1] - at[i]) if i + 1 < len(at) and x > at[i] else 0
        for tap, weight in enumerate((-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)):
            matrix[x, min(max(i + tap - 1, 0), len(at) - 1)] += weight / 2
    return matrix


class Eval(unittest.TestCase):
    def setUp(self):
        self.folder = FOLDER / self.id().rsplit(".", 1)[1]
        self.folder.mkdir()
        self.random = np.random.default_rng(3)

    def frame(self, name, **tensors):
        R.save(self.folder / name, {key: ("F32", x.astype(f32)) for key, x in tensors.items()})
        return tensors

    def scene(self, **more):
        reference = self.random.lognormal(-1, 0.3, (20, 24, 3)).astype(f32)
        return {"color": (reference * self.random.lognormal(0, 0.5, reference.shape)).astype(f32), "reference": reference,
                "albedo": self.random.random((20, 24, 3)).astype(f32), "normal": self.random.normal(0, 0.3, (20, 24, 3)).astype(f32),
                "depth": 3 + self.random.random((20, 24, 1)).astype(f32), **more}

    def judge(self, *args):
        run = tool("eval", "denoise", "--frames", self.folder, "--no-oidn", "--rung", "cpu", "--json", self.folder / "out.json", *args)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        report = json.loads((self.folder / "out.json").read_text())
        wide = max(36, *(len(row["name"]) for row in report["rows"]))
        for row in report["rows"]:
            self.assertIn(f"\n{row['name']:{wide}} {row['psnr_db']:8.2f}", run.stdout)
        return report, {row["name"]: row for row in report["rows"]}

    def test_stills(self):
        """Of copies the first counts; what is another size, or has less, does too."""
        scenes = [self.frame("a.00.safetensors", **self.scene()), self.frame("b.00.safetensors", color=np.ones((5, 7, 3)), reference=np.full((5, 7, 3), 3))]
        self.frame("a.01.safetensors", color=np.zeros((20, 24, 3)))
        self.frame("c.safetensors", color=np.ones((5, 7, 3)))  # no reference: not judged
        report, rows = self.judge()
        self.assertEqual((report["clips"], report["no_oidn"]), (2, "--no-oidn"))
        self.assertEqual(list(rows), ["input", "box 3x3", "box 5x5", "box 7x7", "joint bilateral", "a-trous"])
        for name, radius in (("input", 0), ("box 3x3", 1), ("box 5x5", 2), ("box 7x7", 3)):
            expected = np.mean([psnr(box(s["color"], radius), s["reference"]) for s in scenes])
            self.assertLess(abs(rows[name]["psnr_db"] - expected), 1e-3, name)
            self.assertEqual((rows[name]["frames"], rows[name]["flicker"], rows[name]["ms"]), (2, None, None))

    def test_guides(self):
        """Where all surfaces differ nothing is mixed. Where normals are of three kinds light of the same kind is, whatever the albedo."""
        r, shape = self.random, (20, 24, 3)
        kinds, albedo = r.integers(0, 3, (20, 24)), 0.1 + 0.9 * r.random(shape)
        light = np.array([0.2, 1.0, 5.0])[kinds][..., None] * np.ones(3)
        noisy = light * r.lognormal(0, 0.3, shape)
        guides = {"albedo": albedo, "normal": 9 * np.eye(3)[kinds]}
        self.frame("a.00.safetensors", color=noisy * albedo, reference=light * albedo, **guides)
        _, rows = self.judge()
        for name in ("joint bilateral", "a-trous"):
            self.assertGreater(rows[name]["psnr_db"], rows["input"]["psnr_db"] + 6)
        self.assertLess(rows["box 5x5"]["psnr_db"], rows["input"]["psnr_db"])
        depth = 2.0 ** np.arange(480).reshape(20, 24, 1).clip(0, 100)
        self.frame("a.00.safetensors", color=noisy[:4], reference=noisy[:4], depth=depth[:4])
        _, rows = self.judge()
        self.assertGreater(rows["joint bilateral"]["psnr_db"], 60)  # all depths are twice the one before
        self.assertLess(rows["box 3x3"]["psnr_db"], 40)

    def test_path(self):
        """From the fourth frame on; what flickers is what changes otherwise than the reference along the motion."""
        base = self.random.lognormal(-1, 0.5, (20, 60, 3)).astype(f32)
        frames = []
        for number in range(5):  # the picture moves left by 3 pixels a frame: what is at x was at x + 3
            reference = base[:, 3 * number : 3 * number + 24]
            motion = np.zeros((20, 24, 2)) + (3, 0)
            frames.append(self.frame(f"p.{number:02}.safetensors", color=reference * self.random.lognormal(0, 0.3, reference.shape),
                                     reference=reference, motion=motion, valid=np.ones((20, 24, 1)),
                                     normal=np.ones((20, 24, 3)), depth=np.ones((20, 24, 1))))
        model = SOURCE / "tests/kernels/denoiser/model_history.safetensors"
        report, rows = self.judge("--model", f"{model},{SOURCE / 'tests/kernels/denoiser/model.safetensors'}")
        self.assertEqual(report["clips"], 1)
        counted = frames[3:]
        self.assertLess(abs(rows["input"]["psnr_db"] - np.mean([psnr(f["color"], f["reference"]) for f in counted])), 1e-3)
        flicker = []
        for now, then in zip(counted, frames[2:]):
            change = lambda key: shown(now[key])[:, :-3] - shown(then[key])[:, 3:]
            flicker.append(np.sqrt(np.mean((change("color") - change("reference")) ** 2)))
        np.testing.assert_array_equal(counted[0]["reference"][:, :-3], frames[2]["reference"][:, 3:])  # so motion is as said
        self.assertLess(abs(rows["input"]["flicker"] - 1e3 * np.mean(flicker)), 1e-2)
        alone, with_history = rows["model_history.safetensors"], rows["model_history.safetensors + history"]
        self.assertNotEqual(alone["psnr_db"], with_history["psnr_db"])
        self.assertGreater(with_history["ms"], 0)
        self.assertIn("model.safetensors", rows)
        self.assertNotIn("model.safetensors + history", rows)

    def test_upscale(self):
        """Rows of what is left of frames that are rendered smaller: as `tandem denoise` has them, and small frames of them."""
        def kept(length, halves):
            count = (2 * length + halves - 1) // halves
            return [(2 * i + 1) * length // (2 * count) for i in range(count)]

        scenes = [self.frame("a.00.safetensors", **self.scene()),
                  self.frame("b.00.safetensors", **{name: x[:19, :21] for name, x in self.scene().items()})]
        model = SOURCE / "tests/kernels/denoiser/model.safetensors"
        report, rows = self.judge("--model", model, "--upscale")
        names = ["model.safetensors" + size for size in ("", ", 2x", ", 2x bicubic", ", 1.5x", ", 1.5x bicubic")]
        self.assertEqual(list(rows)[6:], names)
        for name, halves in (("2x", 4), ("1.5x", 3)):
            expected, small = [], []
            for s in scenes:
                height, width = s["color"].shape[:2]
                take = np.ix_(kept(height, halves), kept(width, halves))
                for part, out in (("color", expected), ("", small)):
                    frame = {key: x[take] if part in key else x for key, x in s.items()}
                    R.save(FOLDER / "in.safetensors", {key: ("F32", np.ascontiguousarray(x, f32)) for key, x in frame.items()})
                    run = tool("denoise", "--model", model, "--rung", "cpu", "--frame", FOLDER / "in.safetensors",
                               "--out", FOLDER / "out.safetensors")
                    self.assertEqual((run.returncode, run.stderr), (0, ""))
                    out.append(R.load(FOLDER / "out.safetensors")[0]["color"][1])
            psnrs = [psnr(x, s["reference"]) for x, s in zip(expected, scenes)]
            self.assertLess(abs(rows["model.safetensors, " + name]["psnr_db"] - np.mean(psnrs)), 1e-3)
            # Rows and columns are interpolated one after the other here, by matrices.
            psnrs = []
            for x, s in zip(small, scenes):
                matrices = [cubic(kept(length, halves), length) for length in s["color"].shape[:2]]
                psnrs.append(psnr(np.einsum("yi,xj,ijc->yxc", *matrices, x.astype(np.float64)).clip(0), s["reference"]))
            self.assertLess(abs(rows[f"model.safetensors, {name} bicubic"]["psnr_db"] - np.mean(psnrs)), 1e-3)

    def test_upscale_path(self):
        """With history: where nothing changes it is worth something to a small frame, too, and motion is in its own pixels."""
        reference, r = np.ones((20, 24, 3)), self.random
        for number in range(5):
            self.frame(f"p.{number:02}.safetensors", color=reference * r.lognormal(0, 0.3, reference.shape), reference=reference,
                       motion=np.zeros((20, 24, 2)) + (4, 2), valid=reference[..., :1], normal=reference, depth=reference[..., :1])
        _, rows = self.judge("--model", SOURCE / "tests/kernels/denoiser/model_history.safetensors", "--upscale")
        names = [f"model_history.safetensors{history}{size}" for size in ("", ", 2x", ", 2x bicubic", ", 1.5x", ", 1.5x bicubic")
                 for history in ("", " + history")]
        self.assertEqual(list(rows)[6:], names)
        for alone, with_history in zip(names[::2], names[1::2]):
            self.assertNotEqual(rows[alone]["psnr_db"], rows[with_history]["psnr_db"])
            self.assertGreater(rows[with_history]["flicker"], 0)

    def test_sheet(self):
        self.frame("a.00.safetensors", **self.scene())
        out = self.folder / "sheet.png"
        run = tool("eval", "denoise", "--frames", self.folder, "--no-oidn", "--sheet", out)
        if "that this build knows" in run.stderr:
            self.skipTest("built without libpng")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        header = out.read_bytes()[:24]
        self.assertEqual(int.from_bytes(header[16:20], "big"), 7 * 196)
        self.assertEqual(int.from_bytes(header[20:24], "big"), 196)
        self.assertIn("a line for each of 1 clips", run.stdout)

    def test_refusals(self):
        (self.folder / "empty").mkdir()
        self.frame("a.00.safetensors", color=np.ones((5, 7, 3)))
        self.frame("empty/notes.txt", color=np.ones((5, 7, 3)))
        bad = FOLDER / "eval_bad"
        bad.mkdir()
        (bad / "x.safetensors").write_bytes(b"no safetensors")
        sizes = FOLDER / "eval_sizes"
        sizes.mkdir()
        R.save(sizes / "x.safetensors", {"color": ("F32", np.ones((5, 7, 3), f32)), "reference": ("F32", np.ones((5, 8, 3), f32))})
        start = ["denoise", "--no-oidn"]
        for status, words, *args in (
            (2, "nothing to judge given: must be denoise",), (2, 'unknown "sharpen": must be denoise', "sharpen"), (2, "--frames is missing", "denoise"),
            (2, "exclude one another", *start, "--frames", self.folder, "--oidn", "x"),
            (2, "--upscale is for denoise with --model", *start, "--frames", self.folder, "--upscale"),
            (2, "--upscale is for denoise with --model", "gi", "--frames", self.folder, "--model", "x", "--upscale"),
            (1, "no such folder", *start, "--frames", self.folder / "nowhere"), (1, "has no safetensors", *start, "--frames", self.folder / "empty"),
            (1, 'no frame has a "reference"', *start, "--frames", self.folder), (1, "x.safetensors", *start, "--frames", bad),
            (1, "its tensors differ in size", *start, "--frames", sizes),
            (1, '--oidn "/nowhere.so"', "denoise", "--frames", self.folder, "--oidn", "/nowhere.so"),
            (1, "No such file", *start, "--frames", self.folder, "--model", "/nowhere.safetensors"),
            (1, "more than 8", *start, "--frames", self.folder, "--model", ",".join([str(SOURCE / "tests/kernels/denoiser/model.safetensors")] * 9)),
            (1, "pictures that this build knows", *start, "--frames", self.folder, "--sheet", "x.jpg"),
        ):
            run = tool("eval", *args)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (status, "", 1), run.stderr)
            self.assertIn(words, run.stderr)


if __name__ == "__main__":
    with rig.folder:
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_eval: {result.testsRun} tests, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
