"""`tandem-frames`: what it writes keeps to the conventions of `tandem help denoise`, and is the same each time.

SPDX-License-Identifier: Apache-2.0

usage: test_frames.py BUILD_FOLDER [unittest arguments]
"""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
import numpy as np
from tool import oracle as R

FRAMES = pathlib.Path(sys.argv[1]).resolve() / "tandem-frames"


class Frames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-frames-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, name, *args):
        return limits.run([FRAMES, "--out", self.folder, "--name", name, "--width", "24", "--height", "16", *args], seconds=200,
                          capture_output=True, text=True)

    def load(self, name, scene, copy):
        tensors, _ = R.load(self.folder / f"{name}.{scene:06}.{copy:02}.safetensors")
        return {key: array for key, (_, array) in tensors.items()}

    def test_copies(self):
        for name in "ab":
            run = self.make(name, "--first", "2", "--count", "3", "--samples", "1,3", "--reference", "20")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
        for scene in (2, 3, 4):
            first, second = (self.load("a", scene, copy) for copy in (0, 1))
            again = self.load("b", scene, 0)
            self.assertEqual({key: x.shape for key, x in first.items()}, {
                "color": (16, 24, 3), "albedo": (16, 24, 3), "normal": (16, 24, 3), "depth": (16, 24, 1), "reference": (16, 24, 3)})
            self.assertEqual(set(second), set(first) - {"reference"})
            for key, x in first.items():
                self.assertTrue(np.isfinite(x).all(), key)
                np.testing.assert_array_equal(x, again[key])
            self.assertTrue((first["color"] >= 0).all() and first["color"].any())
            self.assertFalse(np.array_equal(first["color"], second["color"]))
            sky = first["depth"][..., 0] == 0
            self.assertFalse(first["albedo"][sky].any() or first["normal"][sky].any())
            np.testing.assert_allclose(np.linalg.norm(first["normal"][~sky], axis=-1), 1, atol=1e-4)
            self.assertTrue((first["depth"] >= 0).all() and (first["albedo"] <= 1).all())

    def test_middle(self):
        """Rays through the middle of a pixel meet the same with each sample, those that go anywhere in it do not; of many scenes it is
        about the share that was asked for, whatever else is made of them."""
        run = self.make("all", "--middle", "100", "--count", "2", "--samples", "1,4", "--reference", "1")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        for scene in range(2):
            first, second = (self.load("all", scene, copy) for copy in (0, 1))
            for key in ("albedo", "normal", "depth"):
                np.testing.assert_allclose(first[key], second[key], rtol=1e-4, atol=1e-5, err_msg=key)
            self.assertFalse(np.array_equal(first["color"], second["color"]))
        for name, *more in (("some", "--middle", "40"), ("none",)):
            run = self.make(name, *more, "--first", "5", "--count", "15", "--samples", "1,1", "--reference", "1", "--bounces", "1")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
        middle = [np.array_equal(*(self.load("some", scene, copy)["normal"] for copy in (0, 1))) for scene in range(5, 20)]
        self.assertTrue(3 <= sum(middle) <= 9, middle)
        for scene in (5 + middle.index(False), 5 + middle.index(True)):
            same = np.array_equal(self.load("some", scene, 0)["depth"], self.load("none", scene, 0)["depth"])
            self.assertEqual(same, not middle[scene - 5])

    def test_gi(self):
        """Direct light and the rest: together they are the color of the same samples, and lamps, the sky and what mirrors get no rest.
        Depth and ray say where a pixel's surface is: a plane's normal is across what leads to neighbours."""
        for name, *more in (("gi", "--gi"), ("color", "--samples", "1")):
            run = self.make(name, "--first", "2", "--count", "8", "--reference", "40", *more)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
        made = sorted(self.folder.glob("gi.*"))
        self.assertGreater(len(made), 3)
        across = []
        for path in made:
            scene = int(path.name.split(".")[1])
            frame = self.load("gi", scene, 0)
            self.assertEqual({key: x.shape[2] for key, x in frame.items()}, {"direct": 3, "indirect": 3, "albedo": 3, "normal": 3, "depth": 1, "ray": 3})
            np.testing.assert_allclose(frame["direct"] + frame["indirect"], self.load("color", scene, 0)["reference"], rtol=1e-3, atol=1e-5)
            self.assertTrue(frame["indirect"].any() and (frame["indirect"] >= 0).all() and (frame["direct"] >= 0).all())
            dark = frame["albedo"].max(-1) == 0
            self.assertLess(np.abs(frame["indirect"][dark]).max(initial=0), 1e-5 * frame["direct"].max())
            place = frame["depth"] * frame["ray"]
            flat = (np.abs(np.diff(frame["normal"], axis=1)).max(-1) < 1e-4) & (frame["depth"][:, 1:, 0] > 0) & (frame["depth"][:, :-1, 0] > 0)
            step = np.diff(place, axis=1) / frame["depth"][:, 1:]
            across.append(np.abs((step * frame["normal"][:, 1:]).sum(-1))[flat] / np.linalg.norm(step, axis=-1)[flat])
        self.assertLess(np.median(np.concatenate(across)), 0.05)

    def test_path(self):
        run = self.make("path", "--length", "2", "--reference", "1")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        frame = self.load("path", 0, 1)
        self.assertEqual(frame["motion"].shape, (16, 24, 2))
        self.assertTrue(0 < np.abs(frame["motion"]).max() < 24)
        self.assertIn("reference", frame)
        self.assertTrue(set(np.unique(frame["valid"])) <= {0, 1})
        out = np.zeros((16, 24), bool)  # what was beyond the image was not seen
        y, x = np.mgrid[:16, :24]
        for at, motion, most in ((x, frame["motion"][..., 0], 24), (y, frame["motion"][..., 1], 16)):
            out |= (at + 1 + motion < 0) | (at + motion > most)
        self.assertFalse(frame["valid"][out].any())

    def test_motion(self):
        """Where motion leads there was the same surface: over some scenes, as things and the camera move, more so than at the same pixel."""
        run = self.make("path", "--length", "2", "--reference", "1", "--count", "3", "--width", "256", "--height", "128", "--bounces", "1")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        errors, seen = np.zeros(2), []
        for scene in range(3):
            then, now = self.load("path", scene, 0), self.load("path", scene, 1)
            y, x = np.mgrid[:128, :256]
            at = [np.clip(np.rint(a + now["motion"][..., i]).astype(int), 0, n - 1) for a, i, n in ((y, 1, 128), (x, 0, 256))]
            valid = now["valid"][..., 0] > 0
            seen.append(valid.mean())
            for i, there in enumerate((then["albedo"][at[0], at[1]], then["albedo"])):
                errors[i] += np.abs(there - now["albedo"])[valid].sum()
        self.assertLess(errors[0], 0.95 * errors[1])
        self.assertTrue(0.6 < min(seen) and max(seen) <= 1 and min(seen) < 1, seen)

    def test_seconds(self):
        run = self.make("long", "--count", "1000000", "--reference", "1", "--samples", "1", "--seconds", "1")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        made = int(run.stdout.split()[0])
        self.assertTrue(1 <= made < 1000)
        self.assertEqual(made, len(list(self.folder.iterdir())))

    def test_refusals(self):
        for words, *args in (("--out is missing", "--count", "1"), ("unknown option", "--out", "x", "--size", "1"), ("has no value", "--out"),
                             ("exclude one another", "--out", "x", "--gi", "--length", "2"),
                             ("is no number from 1 to 1000000", "--out", "x", "--count", "0"), ("is no number from 0 to 100", "--out", "x", "--middle", "101"), ("is no number", "--out", "x", "--samples", "1,,1")):
            run = limits.run([FRAMES, *args], seconds=60, capture_output=True, text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)
        run = self.make("x/y", "--reference", "1", "--samples", "1")
        self.assertEqual(run.returncode, 1)
        self.assertIn("x/y.000000.00.safetensors", run.stderr)


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_frames: {result.testsRun} tests, {bad} failed")
    sys.exit(1 if bad else 0)
