"""`tandem probe fp22` from outside: what it says with a GPU and without, and its manners.

SPDX-License-Identifier: Apache-2.0

usage: test_tool_probe.py BUILD_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits

TOOL = None
WGMMA, MMA, F16 = "wgmma m64n8k32 e4m3", "mma.sync m16n8k32 e4m3", "mma.sync m16n8k16 f16"
INTO_F16 = WGMMA + " into fp16"


def probe(*args):
    return limits.run([TOOL, "probe", *args], capture_output=True, text=True, seconds=100)


def report(*args):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "probe.json"
        done = probe("fp22", "--json", str(path), *args)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(path.read_text())


class Probe(unittest.TestCase):
    def test_models_alone_are_labelled_as_models(self):
        text, got = report("--backend", "cpu", "--tiles", "8")
        self.assertTrue(text.startswith("no GPU: "))
        self.assertEqual(text.count("the twin's model, nothing measured"), 6)
        self.assertNotIn("measured on this GPU", text)
        self.assertIsNone(got["gpu"])
        self.assertEqual({u["source"] for u in got["units"]}, {"model"})
        self.assertEqual(got["conclusion"], "no FP8 tensor core was measured")
        kept = {(u["unit"], u["sm"]): (u["mantissa_bits_kept"], u["one_product_seen_up_to"]) for u in got["units"]}
        precise = {(MMA, 90), (MMA, 120), (F16, 90)}
        few = {(WGMMA, 90): (13, 13), (INTO_F16, 90): (10, 10), (MMA, 89): (13, 13)}
        self.assertEqual(kept, few | dict.fromkeys(precise, (23, 23)))
        for unit in got["units"]:
            self.assertEqual(unit["is_fp22"], unit["mantissa_bits_kept"] == 13)
            self.assertNotIn("equal", unit)

    def test_what_the_gpu_at_hand_says(self):
        text, got = report()
        if got["gpu"] is None:
            self.assertNotEqual(os.environ.get("TANDEM_EXPECT_GPU"), "1", got["reason"])
            self.assertIn(got["reason"], text)
            self.skipTest(f"gpu: {got['reason']}")
        units = {u["unit"]: u for u in got["units"]}
        for unit in units.values():
            self.assertEqual(unit["source"], "gpu")
            if unit["ran"]:
                self.assertEqual(unit["equal"] + unit["unequal"], unit["elements"])
        if got["gpu"]["sm"] == 90 and got["gpu"]["kernels"] == "sm_90":
            self.assertEqual([u["unequal"] for u in units.values()], [0, 0, 0, 0])
            self.assertTrue(units[WGMMA]["is_fp22"])
            self.assertFalse(units[MMA]["is_fp22"])
            self.assertIn("carried out as FP16", units[MMA]["remark"])
            self.assertIn("FP22 as the paper says", got["conclusion"])

    def test_cuda_without_a_gpu_is_an_error(self):
        if report()[1]["gpu"]:
            self.skipTest("there is a GPU")
        done = probe("fp22", "--backend", "cuda")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertTrue(done.stderr.startswith("tandem probe: ") and done.stderr.count("\n") == 1)

    def test_wrong_command_lines(self):
        for args, says in (
            ((), "fp22"),
            (("fp23",), '"fp23"'),
            (("fp22", "--tiles", "0"), '--tiles "0"'),
            (("fp22", "--tiles", "1048577"), '--tiles "1048577"'),
            (("fp22", "--seed", "-1"), '--seed "-1"'),
            (("fp22", "--backend", "gpu"), '--backend "gpu"'),
            (("fp22", "--json"), "--json needs a value"),
            (("fp22", "more"), '"more"'),
        ):
            done = probe(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertIn(says, done.stderr)

    def test_a_file_that_cannot_be_written(self):
        done = probe("fp22", "--backend", "cpu", "--tiles", "1", "--json", "/nonexistent/probe.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/probe.json", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    TOOL = str(pathlib.Path(sys.argv.pop(1)).resolve() / "tandem")
    if not os.access(TOOL, os.X_OK):
        sys.exit(f"test_tool_probe: {TOOL} is not there")
    unittest.main(verbosity=2)
