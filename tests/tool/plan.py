"""`tandem plan` on the example of kernels/PROGRAM.md.

SPDX-License-Identifier: Apache-2.0
"""
import json
import re
import shutil
import unittest

import numpy as np
import limits
import oracle as R
from tool.rig import FOLDER, SOURCE, tool
from tool.words import Words


def model(path, graph=None):
    """The example with weights of its shapes; returns its graph."""
    text = (SOURCE / "kernels/PROGRAM.md").read_text()
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    dtypes = {"F16": np.float16, "F32": np.float32}
    weights = {name: (t["dtype"], np.zeros(t["shape"], dtypes[t["dtype"]]))
               for name, t in example["tensors"].items() if t["role"] == "weight"}
    R.save(path, weights, {"tandem.graph": json.dumps(example) if graph is None else graph})
    return example


class Plan(unittest.TestCase):
    one_line = Words.one_line

    def test_table(self):
        path = FOLDER / "model.safetensors"
        graph = model(path)
        for device in ("cpu", "80", "86", "89", "90", "120"):
            for more in ([], ["--inline"], ["--commit"]):
                run = tool("plan", "--model", path, "--set", "tokens=65,batch=3", "--device", device, *more)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertIn(", batch 3, tokens 65\n", run.stdout)
                rows = re.findall(r"^ +(\d+)  (\w+) +(\d+) +(\d+) +([\d.]+) +(\d+)$", run.stdout, re.M)
                self.assertEqual([r[1] for r in rows], [n["operation"] for n in graph["nodes"]])
                end = re.search(r"^ +end  commit +(\d+) +(\d+) ", run.stdout, re.M)
                begin = re.search(r"^ +begin  fetch +(\d+) +(\d+) ", run.stdout, re.M)
                self.assertEqual(begin and begin[1], None if device == "cpu" else "1")  # lengths come from the host
                total = re.search(r"^ +all +(\d+) +(\d+) ", run.stdout, re.M)
                self.assertEqual(int(end[1]), 4 if "--commit" in more else 2)  # claim, the state, outputs
                for column in (1, 2):
                    self.assertEqual(int(total[column]),
                                     int(begin[column] if begin else 0) + int(end[column]) + sum(int(r[column + 1]) for r in rows))
                chain = int(total[2]) + 1
                self.assertIn(f"at least {1.2 * chain:.0f} us in a CUDA graph and {2.3 * chain:.0f} us in", run.stdout)
                self.assertAlmostEqual(float(rows[0][4]), 2e-6 * 3 * 65 * 192 * 64, 3)
                self.assertIn('binding 1: output "y", %d bytes\n' % (3 * 65 * 64 * 4), run.stdout)
        largest = tool("plan", "--model", path).stdout
        self.assertIn("compute capability 90, batch 8, tokens 512\n", largest)

    def test_drawing(self):
        path = FOLDER / "model.safetensors"
        graph = model(path)
        run = tool("plan", "--model", path, "--dot")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(len(re.findall(r"^  n\d+ \[", run.stdout, re.M)), len(graph["nodes"]))
        self.assertIn('  n0 -> n1 [label="k: 4096 x 192"];\n', run.stdout)
        self.assertRegex(run.stdout, r'\n  n4 -> t\d+ \[label="sum"\];\n')
        if shutil.which("dot"):
            drawn = limits.run(["dot", "-Tsvg"], input=run.stdout, capture_output=True, text=True, seconds=60)
            self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))

    def test_refusals(self):
        path, wrong, none = (FOLDER / f"{name}.safetensors" for name in ("model", "wrong", "none"))
        model(path)
        model(wrong, graph='{"version": 1, "tensors": {}, "nodes": [{"operation": "convert", "views": {}}]}')
        R.save(none, {"w": ("F32", np.zeros(1, np.float32))})
        gguf = FOLDER / "model.gguf"
        gguf.write_bytes(b"GGUF" + bytes(60))
        for args, status, *words in (
            ([], 2, "--model is missing"),
            (["--model", path, "--device", "75"], 2, '--device "75" is none of'),
            (["--model", path, "--set", "rows=1"], 2, '"rows" is no number of this model'),
            (["--model", path, "--set", "tokens"], 2, "tokens must be a number from 1 to 512"),
            (["--model", path, "--set", "tokens=0"], 2, "tokens must be a number from 1 to 512"),
            (["--model", path, "--set", "batch=2,tokens=513"], 2, "tokens must be a number from 1 to 512"),
            (["--model", path, "--set", "batch=2,"], 2, "is no number of this model"),
            (["--model", FOLDER / "nowhere"], 1, f"--model '{FOLDER / 'nowhere'}': No such file"),
            (["--model", gguf], 1, "it is a GGUF file, not safetensors"),
            (["--model", none], 1, 'no "tandem.graph"'),
            (["--model", wrong], 1, 'nodes[0].operation: "convert" is none'),
        ):
            self.one_line(tool("plan", *args), status, *words)
