"""`demo/train/run.sh`: two runs, each going on where the last one ended, to a model that `tandem denoise` takes.

SPDX-License-Identifier: Apache-2.0

usage: test_train.py BUILD_FOLDER [unittest arguments]
"""
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
import numpy as np
from tool import oracle as R

BUILD = pathlib.Path(sys.argv[1]).resolve()
RUN = pathlib.Path(__file__).resolve().parent.parent.parent / "demo/train/run.sh"
NEEDED = ("torch", "safetensors", "numpy")


class Train(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-train-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    maxDiff = None

    def run_it(self, *args):
        return limits.run(["sh", RUN, "--build", BUILD, "--python", sys.executable, "--out", self.folder / "out", *args], seconds=300,
                          capture_output=True, text=True)

    def test_refusals(self):
        for words, *args in (("\"\" is none",), ("\"five\" is none", "--run", "five"), ("must be less than --runs, 2", "--run", "2", "--runs", "2"),
                             ("at least 1", "--run", "0", "--minutes", "0"), ("must be as 320x192", "--run", "0", "--size", "7"),
                             ("unknown option --sizes", "--run", "0", "--sizes", "7"), ("needs a value", "--run"),
                             ("no such folder", "--run", "0", "--held-out", "nowhere"), ("has no tandem", "--run", "0", "--build", "nowhere")):
            run = self.run_it(*args)
            self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
            self.assertIn(words, run.stderr)

    @unittest.skipUnless(all(map(importlib.util.find_spec, NEEDED)), "PyTorch or safetensors is not installed")
    def test_two_runs(self):
        common = ("--runs", "2", "--minutes", "4", "--render-share", "2", "--size", "32x32", "--reference", "8")
        options = "--widths 16,16,16 --crop 32 --batch 4 --every 1 --run-steps 2"
        run = self.run_it("--run", "1", *common)
        self.assertIn("goes on from a checkpoint", run.stderr)
        held_out = self.folder / "held"
        held_out.mkdir()
        picture = np.random.default_rng(0).random((20, 24, 3)).astype(np.float32)
        R.save(held_out / "a.0.safetensors", {"color": ("F32", picture), "reference": ("F32", np.full_like(picture, 0.5))})
        for number in (0, 1):
            run = self.run_it("--run", str(number), *common, "--options", options, *(("--held-out", held_out) if number else ()))
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn(f"from step {2 * number} on", run.stdout)
        out = self.folder / "out"
        lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        self.assertIn("denoise.safetensors", (out / "judged.txt").read_text())
        rows = {row["name"]: row["psnr_db"] for row in json.loads((out / "judged.json").read_text())["rows"]}
        self.assertGreater(rows["denoise.safetensors"], rows["input"])
        _, metadata = R.load(out / "denoise.safetensors")
        self.assertIn("tandem.graph", metadata)
        again = self.folder / "again.safetensors"
        run = limits.run([BUILD / "tandem", "denoise", "--model", out / "denoise.safetensors", "--frame", held_out / "a.0.safetensors", "--out", again],
                         seconds=120, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertTrue(np.isfinite(R.load(again)[0]["color"][1]).all())


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_train: {result.testsRun} tests, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
