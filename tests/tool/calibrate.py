"""`tandem calibrate --model` on a small transformer with random weights, and who reads its plans: `tandem run`, `plan`, `denoise`.

SPDX-License-Identifier: Apache-2.0
"""
import json
import re
import unittest

import numpy as np
import oracle as R
from tool.rig import FOLDER, SOURCE, tool
from tool.words import Words

D, TOKENS, LAYERS = 64, 96, 2


def graph():
    """Blocks of a projection, attention and another projection; what attention gathers is an output of each."""
    def tensor(role, shape, dtype="F16"):
        return {"role": role, "dtype": dtype, "shape": shape}

    tensors = {"x0": tensor("input", ["tokens", D])}
    nodes = []
    for i in range(1, LAYERS + 1):
        tensors |= {f"wqkv{i}": tensor("weight", [3 * D, D]), f"wo{i}": tensor("weight", [D, D]),
                    f"qkv{i}": tensor("temporary", ["tokens", 3 * D]), f"o{i}": tensor("output", ["tokens", D]),
                    f"x{i}": tensor("output", ["tokens", D])}
        heads = {f"{name}": {"tensor": f"qkv{i}", "offset": D * at, "strides": [f"tokens * {3 * D}", 32, 3 * D]}
                 for at, name in enumerate("qkv")}
        nodes += [{"operation": "linear", "rows": "tokens", "ins": D, "outs": 3 * D,
                   "views": {"x": f"x{i - 1}", "w": f"wqkv{i}", "y": f"qkv{i}"}},
                  {"operation": "attention", "batch": 1, "heads": 2, "kv_heads": 2, "q_len": "tokens", "kv_len": "tokens",
                   "head_dim": 32, "precision": 1, "views": {**heads, "o": {"tensor": f"o{i}", "strides": [f"tokens * {D}", 32, D]}}},
                  {"operation": "linear", "rows": "tokens", "ins": D, "outs": D,
                   "views": {"x": f"o{i}", "w": f"wo{i}", "residual": f"x{i - 1}", "y": f"x{i}"}}]
    return {"version": 1, "numbers": {"tokens": 512}, "tensors": tensors, "nodes": nodes}


def score(o, exact):
    o, exact = (a.astype(np.float64).ravel() for a in (o, exact))
    return float(o @ exact / np.sqrt((o @ o) * (exact @ exact)) * (1 - np.abs(o - exact).sum() / np.abs(exact).sum()))


class Calibrate(unittest.TestCase):
    one_line = Words.one_line

    def files(self):
        self.model, self.plan, self.out = (FOLDER / f"calibrate_{name}" for name in ("model.safetensors", "plan.json", "out.safetensors"))
        rng = np.random.default_rng(5)
        weights = {}
        for i in range(1, LAYERS + 1):
            weights[f"wqkv{i}"] = ("F16", (rng.standard_normal((3 * D, D)) * (0.25 if i == 1 else 0.6)).astype(np.float16))
            weights[f"wo{i}"] = ("F16", (rng.standard_normal((D, D)) * 0.1).astype(np.float16))
        R.save(self.model, weights, {"tandem.graph": json.dumps(graph())})
        self.inputs = [FOLDER / f"calibrate_in{i}.safetensors" for i in range(3)]
        for i, path in enumerate(self.inputs):
            R.save(path, {"x0": ("F16", (rng.standard_normal((TOKENS + 7 * i, D)) + 0.5).astype(np.float16))})

    def calibrate(self, *more):
        return tool("calibrate", "--model", self.model, "--in", *self.inputs, "--out", self.plan, "--rung", "cpu", *more)

    def layers(self):
        return {layer["node"]: layer for layer in json.loads(self.plan.read_text())["layers"]}

    def outputs(self, of, *more):
        run = tool("run", "--model", self.model, "--in", of, "--out", self.out, "--rung", "cpu", *more)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return {name: a for name, (_, a) in R.load(self.out)[0].items()}

    def test_scores(self):
        """The first layer's, whose q, k and v no precision changes, against what whole runs come to."""
        self.files()
        scores = dict.fromkeys(("8b", "4b"), 0)
        for path in self.inputs:
            exact = self.outputs(path, "--precision", "f16")["o1"]
            for precision in scores:
                scores[precision] += score(self.outputs(path, "--precision", precision)["o1"], exact) / len(self.inputs)
        run = self.calibrate()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        rows = re.findall(r"^ +(\d+)  (o\d) +(f16|8b|4b) +([\d.]+) +([\d.]+) +([\d.]+)  (\d): ([\d.]+)$", run.stdout, re.M)
        self.assertEqual([row[:2] for row in rows], [("1", "o1"), ("4", "o2")])
        self.assertEqual(float(rows[0][3]), 1)
        self.assertAlmostEqual(float(rows[0][4]), scores["8b"], 4)
        self.assertAlmostEqual(float(rows[0][5]), scores["4b"], 4)
        self.assertGreater(scores["8b"], scores["4b"])

    def test_choice(self):
        """Each layer gets the cheapest that meets the target."""
        self.files()
        rows = re.findall(r"^ +(\d+)  o\d +\S+ +([\d.]+) +([\d.]+) +([\d.]+)  ", self.calibrate().stdout, re.M)
        scores = {int(node): dict(zip(("f16", "8b", "4b"), map(float, rest))) for node, *rest in rows}
        between = (scores[1]["8b"] + scores[4]["8b"]) / 2
        for target in (0, 1, between, min(s["4b"] for s in scores.values()) - 1e-4):
            run = self.calibrate("--target", str(target).replace("0.", ".", 1))
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            for node, layer in self.layers().items():
                good = [p for p, s in scores[node].items() if s >= target]
                self.assertEqual(layer["precision"], good[-1])
                self.assertAlmostEqual(layer["similarity"], scores[node][good[-1]], 5)
            self.assertAlmostEqual(json.loads(self.plan.read_text()).get("min_similarity", 0), target, 6)

    def test_readers(self):
        self.files()
        plan = {"tandem": "precision plan", "version": 1, "layers": [{"node": 1, "output": "o1", "precision": "8b"}]}
        self.plan.write_text(json.dumps(plan))
        path = self.inputs[0]
        exact, coarse = (self.outputs(path, "--precision", p) for p in ("f16", "8b"))
        planned = self.outputs(path, "--plan", self.plan)
        np.testing.assert_array_equal(planned["o1"], coarse["o1"])
        self.assertFalse(np.array_equal(planned["o1"], exact["o1"]))
        self.assertFalse(np.array_equal(planned["o2"], coarse["o2"]))  # as the graph says: f16
        plan["layers"] += [{"node": 4, "output": "o2", "precision": "8b"}]
        self.plan.write_text(json.dumps(plan))
        np.testing.assert_array_equal(self.outputs(path, "--plan", self.plan)["o2"], coarse["o2"])
        run = tool("plan", "--model", self.model, "--plan", self.plan, "--device", "cpu")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.count("attention 8b"), 2)
        self.assertEqual(self.calibrate("--target", "1").returncode, 0)  # what calibrate writes is read
        np.testing.assert_array_equal(self.outputs(path, "--plan", self.plan)["o2"], exact["o2"])

    def test_time(self):
        self.files()
        run = self.calibrate("--at-most-ms", "100000")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, r"a run takes [\d.]+ ms")
        self.assertEqual({layer["precision"] for layer in self.layers().values()}, {"f16"})
        self.assertLessEqual(json.loads(self.plan.read_text())["ms"], 100000)
        for more in ((), ("--target", "1")):
            self.one_line(self.calibrate("--at-most-ms", "1e-6", *more), 1, "--at-most-ms 1e-06: a run takes ", "no layer can be cheaper",
                          *(["keep --target"] if more else []))

    def test_live(self):
        """`tandem run --quality`: each layer comes to the cheapest that is good enough, or to exact."""
        self.files()
        for target, expected in (("0.5", {"4b"}), ("1", {"f16"})):
            run = tool("run", "--model", self.model, "--in", self.inputs[0], "--out", self.out, "--rung", "cpu",
                       "--quality", target, "--runs", "24", "--precision", "8b")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            rows = re.findall(r"^ +(\d+)  o\d +(\S+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)  [01]: ([\d.]+)$", run.stdout, re.M)
            self.assertEqual([row[0] for row in rows], ["1", "4"])
            self.assertEqual({row[1] for row in rows}, expected)
            for _, _, changes, similarity, cosine, l1, worst in rows:
                self.assertEqual(changes, "1")
                self.assertAlmostEqual(float(similarity), float(cosine) * (1 - float(l1)), 4)
                self.assertLessEqual(float(worst), float(similarity) + 1e-6)
        run = tool("run", "--model", self.model, "--in", self.inputs[0], "--out", self.out, "--rung", "cpu", "--quality", "0",
                   "--precision", "8b")
        self.assertEqual(len(re.findall(r"^ +\d+  o\d +8b +0 ", run.stdout, re.M)), 2)  # watched

    def test_denoiser(self):
        """Its network has no attention: nothing to choose, and a plan for nothing is one."""
        model, frame, out = SOURCE / "demo/assets/denoise.safetensors", FOLDER / "plan_frame.safetensors", FOLDER / "plan_out.safetensors"
        rng = np.random.default_rng(3)
        R.save(frame, {"color": ("F32", rng.random((64, 64, 3), np.float32))})
        plan = FOLDER / "empty_plan.json"
        plan.write_text(json.dumps({"tandem": "precision plan", "version": 1, "layers": []}))
        results = []
        for more in ((), ("--plan", plan)):
            run = tool("denoise", "--model", model, "--frame", frame, "--out", out, "--rung", "cpu", *more)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            results.append(out.read_bytes())
        self.assertEqual(*results)
        plan.write_text(json.dumps({"tandem": "precision plan", "version": 1, "layers": [{"node": 0, "output": "o", "precision": "8b"}]}))
        self.one_line(tool("denoise", "--model", model, "--frame", frame, "--out", out, "--rung", "cpu", "--plan", plan), 1,
                      "layers[0].node: is 0, which is of", "no precision")

    def test_refusals(self):
        self.files()
        files = ["--model", self.model, "--in", self.inputs[0], "--out", self.plan]
        bad = FOLDER / "bad_plan.json"
        bad.write_text('{"tandem": "precision plan", "version": 1, "layers": [{"node": 1, "output": "o2", "precision": "8b"}]}')
        example = FOLDER / "no_layers.safetensors"
        one = {"version": 1, "tensors": {"x": {"role": "input", "dtype": "F16", "shape": [1]}, "y": {"role": "output", "dtype": "F16", "shape": [1]}},
               "nodes": [{"operation": "binary", "batch": 1, "heads": 1, "rows": 1, "channels": 1, "views": {"a": "x", "b": "x", "y": "y"}}]}
        R.save(example, {}, {"tandem.graph": json.dumps(one)})
        nothing = FOLDER / "no_layers_in.safetensors"
        R.save(nothing, {"x": ("F16", np.ones(1, np.float16))})
        for args, status, *words in (
            (files[:2], 2, "--in is missing"),
            (files[:4], 2, "--out is missing"),
            (files[2:], 2, "--model is missing"),
            ([*files, "--target", "1.5"], 2, '--target "1.5" must be a number from 0 to 1'),
            ([*files, "--at-most-ms", "0"], 2, '--at-most-ms "0" must be'),
            ([*files, "--rows", "0"], 2, '--rows "0" must be'),
            ([*files, "--percent", "3"], 2, "--percent goes without --model"),
            ([*files, "--rung", "nine"], 2, '--rung "nine" is none of'),
            ([*files, "--rung", "inline"], 1, "inline"),
            (["--model", FOLDER / "nowhere", *files[2:]], 1, "No such file"),
            ([*files[:2], "--in", FOLDER / "nowhere", *files[4:]], 1, "No such file"),
            ([*files[:4], "--out", FOLDER / "nowhere/plan"], 1, "--out"),
            (["--model", example, "--in", nothing, *files[4:]], 1, "has no layer of attention"),
        ):
            self.one_line(tool("calibrate", *args), status, *words)
        run = ["--model", self.model, "--in", self.inputs[0], "--out", self.out]
        for more, status, *words in (
            (["--plan", FOLDER / "nowhere"], 1, "--plan", "No such file"),
            (["--plan", bad], 1, 'layers[0].output: is "o2"; nodes[1] writes "o1"'),
            (["--quality", "2"], 2, '--quality "2" must be'),
            (["--at-most-ms", "x"], 2, '--at-most-ms "x" must be'),
        ):
            self.one_line(tool("run", *run, *more), status, *words)
        self.one_line(tool("plan", "--model", self.model, "--plan", bad), 1, 'layers[0].output: is "o2"; nodes[1] writes "o1"')
