"""Outputs against float64, what does not change them, and what is written beside them.

SPDX-License-Identifier: Apache-2.0
"""
import unittest

import numpy as np
import oracle as R
from tool.rig import FOLDER, attend, f32, inputs, same_bits, tool, write


class Accuracy(unittest.TestCase):
    def test_f16_is_exact(self):
        for n, d, causal in ((1, 64, False), (200, 128, True), (300, 80, False)):
            got = attend(inputs(n, 1, 2, 1, n, n, d), "F16", "f16", *(["--causal"] if causal else []))
            o, lse = R.exact(got.q, got.k, got.v, causal)
            self.assertLess(R.rel_l1(got.o, o), 2e-3)
            self.assertLess(np.abs(got.lse - lse).max(), 2e-3)

    def test_eight_bits_are_eight_bits(self):
        for n, d, causal, seed in (
            (256, 64, False, 1),
            (512, 128, False, 2),
            (512, 128, True, 3),
            (1024, 64, False, 4),
        ):
            got = attend(inputs(seed, 1, 2, 1, n, n, d), "F16", "8b", *(["--causal"] if causal else []))
            o, lse = R.exact(got.q, got.k, got.v, causal)
            error = R.rel_l1(got.o, o)
            self.assertTrue(0.005 <= error <= 0.05, f"n {n} d {d} causal {causal}: relative L1 {error}")
            self.assertGreater(R.cosine(got.o, o), 0.998)
            self.assertLess(np.abs(got.lse - lse).max(), 0.05)

    def test_four_bits_are_four_bits(self):
        got = attend(inputs(5, 1, 2, 2, 512, 512, 64), "F16", "4b")
        o, _ = R.exact(got.q, got.k, got.v)
        error = R.rel_l1(got.o, o)
        self.assertTrue(0.05 <= error <= 0.35, error)
        self.assertEqual(got.metadata["smooth"], "qk")

    def test_smoothing_k_helps_with_outlier_channels(self):
        q, k, v = inputs(6, 1, 2, 1, 300, 300, 64)
        k[..., ::16] += 60
        errors = {}
        for smooth in ("none", "k"):
            got = attend([q, k, v], "F16", "8b", "--smooth", smooth)
            o, lse = R.exact(got.q, got.k, got.v)
            errors[smooth] = R.rel_l1(got.o, o)
        self.assertLess(np.abs(got.lse - lse).max(), 0.1)
        self.assertLess(errors["k"], 0.05)
        self.assertGreater(errors["none"], 2 * errors["k"])

    def test_ref_is_the_formula(self):
        for n, nk, causal, scale in ((65, 200, False, 0), (200, 65, True, 0), (70, 70, True, 0.25), (1, 1, False, -2)):
            options = (["--causal"] if causal else []) + (["--scale", scale] if scale else [])
            got = attend(inputs(n, 2, 4, 2, n, nk, 80), "F32", "ref", *options)
            o, lse = R.exact(got.q, got.k, got.v, causal, scale)
            self.assertLess(R.rel_l1(got.codes["o_f64"], o), 1e-9)
            self.assertTrue((got.codes["o"] == got.codes["o_f64"].astype(f32)).all())
            there = np.isfinite(lse)
            self.assertTrue((np.isfinite(got.codes["lse_f64"]) == there).all())
            self.assertLess(
                np.abs(got.codes["lse_f64"][there] - lse[there]).max(initial=0),
                1e-9 * (1 + np.abs(lse[there]).max(initial=0)),
            )
            self.assertTrue((got.lse[there] == got.codes["lse_f64"][there].astype(f32)).all())
        for dtype, bits in (("F16", np.float16), ("BF16", None)):
            got = attend(inputs(8, 1, 1, 1, 40, 50, 32), dtype, "ref")
            want = got.codes["o_f64"].astype(bits) if bits else R.to_bf16(got.codes["o_f64"].astype(f32))
            self.assertTrue((got.codes["o"] == want).all() if bits else (got.codes["o"] != want).mean() < 0.001)


class Runs(unittest.TestCase):
    def test_threads_do_not_change_the_result(self):
        x = inputs(1, 1, 4, 2, 200, 200, 64)
        results = [attend(x, "F16", "8b", "--codes", "--backend", "cpu", "--threads", t).codes for t in (1, 2, 7)]
        for other in results[1:]:
            for name in results[0]:
                self.assertTrue(same_bits(results[0][name], other[name]), name)

    def test_a_session_gives_the_same(self):
        for seed, (precision, options) in enumerate(
            (
                ("8b", ()),
                ("8b", ("--causal", "--smooth", "qkv", "--granularity", "warp")),
                ("f16", ()),
                ("4b", ()),
                ("8b", ("--scale", "0.2", "--threads", "1")),
            )
        ):
            x = inputs(seed, 2, 4, 2, 130, 200, 64)
            plan = attend(x, ("F16", "BF16", "F32"), precision, "--backend", "cpu", *options)
            session = attend(x, ("F16", "BF16", "F32"), precision, "--backend", "cpu", "--session", *options)
            self.assertTrue(same_bits(plan.codes["o"], session.codes["o"]))
            self.assertTrue(same_bits(plan.lse, session.lse))
            self.assertEqual(plan.metadata, session.metadata)

    def test_extra_tensors_and_metadata_are_ignored(self):
        q, k, v = inputs(2, 1, 1, 1, 10, 10, 32)
        R.save(
            FOLDER / "in.safetensors",
            {
                "a": ("I32", np.arange(3, dtype="i4")),
                "v": ("F32", v),
                "k": ("F32", k),
                "q": ("F32", q),
                "empty": ("F32", np.zeros((0,), f32)),
            },
            {"who": 'cares " \\ \u00e9'},
        )
        run = tool(
            "attend", "--in", FOLDER / "in.safetensors", "--out", FOLDER / "out.safetensors", "--precision", "f16"
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        tensors, _ = R.load(FOLDER / "out.safetensors")
        self.assertLess(R.rel_l1(tensors["o"][1], R.exact(q, k, v)[0]), 2e-3)

    def test_result_may_replace_the_input(self):
        x = write(inputs(3, 1, 1, 1, 10, 10, 32), "F32")
        path = FOLDER / "in.safetensors"
        run = tool("attend", "--in", path, "--out", path, "--precision", "f16")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertLess(R.rel_l1(R.load(path)[0]["o"][1], R.exact(*x)[0]), 2e-3)

    def test_report(self):
        got = attend(inputs(4, 1, 2, 1, 64, 64, 32), "F16", "8b", "--codes", "--backend", "cpu")
        self.assertEqual(got.report["tensors"]["q_codes"], {"dtype": "I8", "shape": [1, 2, 64, 32]})
        self.assertEqual(got.metadata["granularity"], "thread-ada")
        self.assertGreater(got.report["ms"], 0)
        for key in (
            "tandem",
            "precision",
            "smooth",
            "granularity",
            "mapping",
            "qmax",
            "q_clip",
            "k_clip",
            "qk_rounding",
            "v_rounding",
            "backend",
            "device",
        ):
            self.assertTrue(got.metadata[key], key)
