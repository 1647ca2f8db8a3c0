"""`tandem run` on a small network, against numpy, and on the example of kernels/PROGRAM.md.

SPDX-License-Identifier: Apache-2.0
"""
import json
import pathlib
import subprocess
import time
import unittest

import numpy as np
import oracle as R
from tool.plan import model
from tool.rig import FOLDER, TOOL, tool
from tool.words import Words

# y = x w; the mean of y's first `length` rows is added to `total`, which `sum` is then.
GRAPH = {
    "version": 1,
    "numbers": {"rows": 64, "unsaid": 9},
    "tensors": {
        "x": {"role": "input", "dtype": "F32", "shape": ["rows", 8]},
        "length": {"role": "uniform", "dtype": "I32", "shape": [1]},
        "w": {"role": "weight", "dtype": "F32", "shape": [1, 8]},
        "total": {"role": "state", "dtype": "F32", "shape": [1, 8]},
        "mean": {"role": "temporary", "dtype": "F32", "shape": [1, 8]},
        "y": {"role": "output", "dtype": "F32", "shape": ["rows", 8]},
        "sum": {"role": "output", "dtype": "F32", "shape": [1, "7 + unsaid"]},
    },
    "nodes": [
        {"operation": "binary", "batch": 1, "heads": 1, "rows": "rows", "channels": 8, "kind": 1,
         "views": {"a": "x", "b": {"tensor": "w", "strides": [0, 0, 0]}, "y": "y"}},
        {"operation": "pool", "batch": 1, "heads": 1, "rows": "rows", "channels": 8,
         "views": {"x": "y", "length": "length", "y": "mean"}},
        {"operation": "binary", "batch": 1, "heads": 1, "rows": 1, "channels": 8,
         "views": {"a": "total", "b": "mean", "y": "total"}},
        {"operation": "pool", "batch": 1, "heads": 1, "rows": 1, "channels": 8, "views": {"x": "total", "y": "sum"}},
    ],
}


class Run(unittest.TestCase):
    one_line = Words.one_line

    def files(self):
        self.model, self.input, self.output = (FOLDER / f"run_{name}.safetensors" for name in ("model", "in", "out"))
        self.w = np.arange(8, dtype=np.float32).reshape(1, 8) / 4
        self.x = np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)
        R.save(self.model, {"w": ("F32", self.w)}, {"tandem.graph": json.dumps(GRAPH)})
        self.save(x=("F32", self.x), length=("I32", np.array([3], np.int32)))

    def save(self, **tensors):
        R.save(self.input, tensors)

    def run_tool(self, *more):
        return tool("run", "--model", self.model, "--in", self.input, "--out", self.output, *more)

    def test_results(self):
        self.files()
        for runs in (1, 4):
            run = self.run_tool("--set", "unsaid=1", "--runs", str(runs), "--rung", "cpu")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            times = rf"{runs} runs, least [\d.]+ ms, median " if runs > 1 else ""
            self.assertRegex(run.stdout,
                             rf" on cpu \(.*\), rows 5, unsaid 1: \d+ records, {times}[\d.]+ ms -> ")
            out = {name: array for name, (_, array) in R.load(self.output)[0].items()}
            self.assertEqual(set(out), {"y", "sum"})
            np.testing.assert_array_equal(out["y"], self.x * self.w)
            self.assertEqual(out["sum"].shape, (1, 8))
            expected = runs * (self.x * self.w)[:3].mean(0, dtype=np.float64)
            np.testing.assert_allclose(out["sum"][0], expected, rtol=1e-5)

    def test_in_tandemd(self):
        """The same bytes, whoever computes."""
        self.files()
        socket, config, log = (FOLDER / f"run_{name}" for name in ("socket", "config", "log"))
        config.write_text(f"backend = cpu\nmodel_dir = {FOLDER.resolve()}\n")
        with open(log, "w") as to:
            daemon = subprocess.Popen([pathlib.Path(TOOL).parent / "tandemd", "--socket", socket, "--config", config], stderr=to)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        end = time.monotonic() + 30
        while "computes on" not in log.read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        written = []
        for where in ((), ("--socket", socket)):
            run = self.run_tool("--set", "unsaid=1", "--runs", "3", "--rung", "cpu", *where)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            written.append(self.output.read_bytes())
        self.assertEqual(*written)

    def test_example(self):
        path, into, out = (FOLDER / f"example_{name}.safetensors" for name in ("model", "in", "out"))
        model(path)
        R.save(into, {"x": ("F16", np.ones((2, 7, 64), np.float16)), "at": ("I32", np.arange(14, dtype=np.int32))})
        run = tool("run", "--model", path, "--in", into, "--out", out, "--rung", "cpu")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertIn(", batch 2, tokens 7: ", run.stdout)
        self.assertEqual({name: a.shape for name, (_, a) in R.load(out)[0].items()}, {"y": (2, 7, 64), "mean": (1, 64)})

    def test_refusals(self):
        self.files()
        good = dict(x=("F32", self.x), length=("I32", np.array([3], np.int32)))
        none = FOLDER / "none.safetensors"
        R.save(none, good)
        files = ["--model", self.model, "--in", self.input, "--out", self.output]
        for args, status, *words in (
            ([], 2, "--model is missing"),
            (files[:2], 2, "--in is missing"),
            (files[:4], 2, "--out is missing"),
            (files, 2, '"unsaid" is not the size of any input: --set unsaid=N says it'),
            ([*files, "--set", "columns=1"], 2, '"columns" is no number of this model'),
            ([*files, "--set", "unsaid=10"], 2, "unsaid must be a number from 1 to 9"),
            ([*files, "--rung", "nine"], 2, '--rung "nine" is none of'),
            ([*files, "--precision", "f8"], 2, '--precision "f8" is none of'),
            ([*files, "--runs", "0"], 2, '--runs "0" must be a number'),
            ([*files, "--set", "unsaid=2"], 1, "nodes[3].views.y"),
            ([*files, "--set", "unsaid=1,rows=4"], 1, '--in: "x" is 5 x 8', "it must be 4 x 8"),
            ([*files, "--set", "unsaid=1", "--rung", "inline"], 1, "inline"),
            (["--model", none, *files[2:]], 1, 'no "tandem.graph"'),
            (["--model", FOLDER / "nowhere", *files[2:]], 1, "No such file"),
            ([*files[:2], "--in", FOLDER / "nowhere", *files[4:]], 1, "No such file"),
            ([*files[:4], "--out", FOLDER / "nowhere/out"], 1, "--out", "No such file"),
        ):
            self.one_line(tool("run", *args), status, *words)
        for change, words in (
            ({"x": None}, '"rows" is not the size of any input'),
            ({"length": None}, '--in has no tensor "length"'),
            ({"x": ("F16", self.x.astype(np.float16))}, '"x" is F16; the network has F32'),
            ({"length": ("I32", np.array([3, 3], np.int32))}, '"length" is 2 (8 bytes)'),
            ({"x": ("F32", self.x[:, :7])}, '"x" is 5 x 7'),
            ({"x": ("F32", self.x.reshape(1, 5, 8))}, '"rows" is not the size of any input'),
        ):
            self.save(**{name: tensor for name, tensor in {**good, **change}.items() if tensor})
            run = self.run_tool("--set", "unsaid=1")
            self.one_line(run, 2 if "--set" in run.stderr else 1, words)
