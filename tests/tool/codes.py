"""What --codes writes and what the tool computes from it, against numpy; and numpy's side against itself.

SPDX-License-Identifier: Apache-2.0
"""
import itertools
import json
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import oracle as R
from tool.rig import FOLDER, attend, f32, inputs, same_bits, tool, write

compared = 0
ROUNDING = {
    "F32": 4e-4,
    "F16": 7e-4,
    "BF16": 3e-3,
}  # of o, on top of the few P codes that fall to the other side of a tie


class Codes(unittest.TestCase):
    """What --codes writes against the recomputation in numpy, and o against what follows from the codes."""

    def check(
        self,
        arrays,
        dtypes,
        precision,
        *options,
        granularity="thread-ada",
        smooth=None,
        causal=False,
        scale=0.0,
        v_kind="E4M3",
        tolerance=None,
    ):
        global compared
        if smooth is None:
            smooth = {"8b": "k", "4b": "qk", "f16": ""}[precision]
        else:
            options += ("--smooth", smooth or "none")
        if "--backend" not in options:
            options += ("--backend", "cpu")
        options += ("--codes",) + (("--causal",) if causal else ()) + (("--scale", repr(scale)) if scale else ())
        got = attend(arrays, dtypes, precision, *options)
        want = R.quantise(got.q, got.k, got.v, precision, granularity, smooth, v_kind)
        direct = "q_codes" not in got.codes  # the kernel reads the tensors themselves
        self.assertEqual(sorted(got.codes), sorted(["o", "lse"] if direct else [*want, "o", "lse"]))
        for name, array in () if direct else want.items():
            if not same_bits(got.codes[name], array):
                differ = np.argwhere(np.asarray(got.codes[name] != array))
                self.fail(
                    f"{precision} {options}: {name} differs in {len(differ)} of {array.size}, at {differ[:3].tolist()}"
                )
            compared += array.size
        n, d = got.q.shape[2:]
        late = got.metadata["kernel"].startswith("attn_8b_wgmma")
        splits = (4 if d <= 64 else 3) if "_split" in got.metadata["kernel"] else 1
        o, lse = R.attend_codes(want if direct else got.codes, n, causal, scale, d, got.q, late, splits)
        finite = np.isfinite(o)
        self.assertTrue((np.isfinite(got.o) == finite).all(), f"{precision} {options}: NaN elsewhere in o")
        error = R.rel_l1(np.where(finite, got.o, 0), np.where(finite, o, 0))
        self.assertLess(error, tolerance or ROUNDING[got.dtypes["o"]], f"o of {precision} {options}")
        self.assertTrue((np.isneginf(got.lse) == np.isneginf(lse)).all())
        there = np.isfinite(lse)
        self.assertTrue((np.isnan(got.lse) == np.isnan(lse)).all())
        # late: an R of 256 keys adds up P in 8 steps, each rounded to fp16, by up to 2^-11 of its sum and evenly, where
        # sums grow evenly: 2^-11 * sqrt(sum((k / 8)^2) / 3) = 5e-4 of l is the most that its deviation can be, and lse's,
        # being ln l; three of these. What is cut off behind 13 bits is less, and more R's are off by less.
        most = (1.5e-3 if late else 1e-3) + 2e-6 * np.abs(lse[there]).max(initial=0)
        self.assertLess(np.abs(got.lse[there] - lse[there]).max(initial=0), most)
        return got

    def test_every_head_dim_and_dtype(self):
        for d, dtype in itertools.product((32, 40, 64, 72, 80, 96, 128, 192, 256), ("F16", "BF16", "F32")):
            for precision in ("8b", "f16"):
                self.check(inputs(d, 1, 2, 1, 65, 200, d), dtype, precision)

    def test_mixed_dtypes(self):
        got = self.check(inputs(1, 1, 2, 2, 70, 90, 64), ("BF16", "F32", "F16"), "8b")
        self.assertEqual(got.dtypes["o"], "BF16")

    def test_lengths_and_causal(self):
        for n, nk in ((1, 1), (1, 300), (63, 63), (64, 64), (65, 65), (200, 200), (200, 65), (65, 200), (129, 1)):
            for causal, precision in itertools.product((False, True), ("8b", "f16")):
                self.check(inputs(n, 1, 4, 2, n, nk, 64), "F16", precision, causal=causal)

    def test_granularities_and_smoothing(self):
        x = inputs(2, 1, 2, 1, 200, 300, 64)
        for granularity in ("tensor", "block", "warp", "thread", "thread-ada", "thread-hopper", "token"):
            for smooth in ("", "k", "qk", "kv"):
                got = self.check(
                    x,
                    "F16",
                    "8b",
                    "--granularity",
                    granularity,
                    smooth=smooth,
                    granularity="thread-ada" if granularity == "thread" else granularity,
                )
                self.assertEqual(got.metadata["smooth"], smooth or "none")
        for smooth in ("q", "v", "qv", "qkv"):
            self.check(x, "F16", "8b", smooth=smooth)

    def test_batches_heads_scale(self):
        for h, hk in ((6, 6), (6, 3), (6, 1)):
            self.check(inputs(h, 2, h, hk, 130, 140, 32), "F16", "8b", smooth="qkv", scale=0.3, causal=True)
        self.check(inputs(9, 1, 1, 1, 70, 70, 64), "F32", "8b", scale=-0.05)

    def test_four_bits(self):
        for smooth in ("", "k", "qk"):
            for granularity in ("thread-ada", "token", "tensor"):
                got = self.check(
                    inputs(3, 1, 2, 2, 200, 200, 64),
                    "F16",
                    "4b",
                    "--granularity",
                    granularity,
                    smooth=smooth,
                    granularity=granularity,
                )
                self.assertLessEqual(np.abs(got.codes["q_codes"]).max(), 7)
                self.assertEqual(got.metadata["qmax"], "7")

    def test_clipped_scales_of_four_bits(self):
        """Every step of the rule in the help, in Q and in K: a clipped group has more codes of +-7 than one."""
        seen = set()
        for d in (32, 64, 128, 256):
            for granularity in ("token", "thread-ada", "thread-hopper", "warp", "block", "tensor"):
                options = ("--granularity", granularity)
                got = self.check(inputs(6, 1, 2, 1, 130, 140, d), "F16", "4b", *options, granularity=granularity)
                for x in "qk":
                    clip = float(got.metadata[f"{x}_clip"])
                    seen.add((x, clip))
                    self.assertEqual(clip, R.int4_clip(d, granularity, x == "k"))
                    if granularity == "token":
                        many = (np.abs(got.codes[f"{x}_codes"]) == 7).sum(-1).mean()
                        self.assertGreater(many, 2 if clip < 1 else 1)
        self.assertEqual(len(seen), 6)
        for precision, smooth in (("8b", "qk"), ("4b", "k"), ("4b", "q"), ("4b", "")):
            got = self.check(inputs(7, 1, 2, 1, 70, 80, 128), "F16", precision, smooth=smooth)
            self.assertEqual((got.metadata["q_clip"], got.metadata["k_clip"]), ("1", "1"))

    def test_large_and_tiny_values(self):
        q, k, v = inputs(4, 1, 2, 1, 100, 130, 64)
        self.check([q * f32(1e-3), k * f32(1e6), v * f32(1e7)], "F32", "f16")
        self.check([q * f32(1e-3), k * f32(1e6), v * f32(1e7)], "F32", "8b")
        self.check([q * f32(1e6), k * f32(1e-6), v * f32(1e-20)], "BF16", "8b")
        self.check([q * f32(0), k * f32(1e-38), v * f32(0)], "F32", "8b")
        self.check([q, k, v], "F32", "f16", smooth="qkv")

    def test_outliers_and_bias(self):
        q, k, v = inputs(5, 1, 2, 1, 150, 200, 64)
        k[..., 5] += 30
        v += 8
        self.check([q, k, v], "F16", "8b", smooth="kv")
        self.check([q, k, v], "F16", "4b", smooth="qk")

    def test_bad_numbers_stay_in_their_rows(self):
        q, k, v = inputs(6, 1, 2, 2, 100, 150, 64)
        q[0, 0, 3, 5], q[0, 1, 99, 0] = np.nan, np.inf
        v[0, 1, 120, 2] = np.nan
        k[0, 0, 140, 1] = -np.inf
        for precision in ("8b", "f16"):
            for dtype in ("F16", "BF16", "F32"):
                got = self.check([q, k, v], dtype, precision, causal=True)
                rows = np.isnan(got.o).any(-1)
                want = np.zeros_like(rows)
                want[0, 0, [3, *range(90, 100)]] = want[0, 1, [99, *range(70, 99)]] = True
                self.assertTrue((rows == want).all(), f"{precision} {dtype}: {np.argwhere(rows != want)[:5].tolist()}")

    def test_every_instruction_set(self):
        ran = []
        for isa in ("c", "avx2", "avx512-vnni"):
            x = inputs(8, 1, 4, 2, 150, 210, 80)
            write(x, "F16")
            probe = tool(
                "attend",
                "--in",
                FOLDER / "in.safetensors",
                "--out",
                FOLDER / "out.safetensors",
                "--precision",
                "f16",
                "--isa",
                isa,
            )
            if probe.returncode:
                self.assertIn("this CPU has no more than", probe.stderr)
                continue
            for precision, smooth in (("8b", "k"), ("8b", "qkv"), ("4b", "qk"), ("f16", "")):
                for dtype in ("F16", "BF16", "F32"):
                    got = self.check(
                        x, dtype, precision, "--isa", isa, "--backend", "cpu", smooth=smooth, causal=dtype != "F16"
                    )
                    self.assertEqual(got.metadata["device"], isa)
            ran.append(isa)
        self.assertIn("c", ran)

    def test_twins(self):
        x = inputs(7, 1, 2, 1, 130, 200, 64)
        for sm in (80, 86, 89, 90, 120):
            v_kind = "F16" if sm < 89 else "E4M3"
            for smooth in ("k", "qkv"):
                got = self.check(
                    x,
                    "F16",
                    "8b",
                    "--backend",
                    "twin",
                    "--sm",
                    sm,
                    smooth=smooth,
                    v_kind=v_kind,
                    tolerance=5e-3,
                    granularity="thread-hopper" if sm == 90 else "thread-ada",
                )
                self.assertEqual((got.metadata["backend"], got.metadata["sm"]), ("twin", str(sm)))
            self.check(x, "F16", "f16", "--backend", "twin", "--sm", sm)


class Hopper(Codes):
    """The same on the twin of sm_90, whose 8b adds up in fp16."""

    test_every_instruction_set = test_twins = None  # these are about the CPU
    backend, where = "twin", ("--sm", "90")

    def setUp(self):
        self.v_kind, self.thread = "E4M3", "thread-hopper"

    def check(self, arrays, dtypes, precision, *options, **more):
        if "--granularity" not in options or "thread" in options:
            more["granularity"] = self.thread
        more.setdefault("v_kind", self.v_kind)
        more.setdefault("tolerance", 5e-3)
        got = super().check(arrays, dtypes, precision, *options, "--backend", self.backend, *self.where, **more)
        self.assertEqual(got.metadata["backend"], self.backend)
        return got


class Cuda(Hopper):
    """The same on the first CUDA device: not a bit of the prologue differs, whatever computes it."""

    backend, where = "cuda", ()
    rungs = ("cpu", "host", "copy", "timeline", "inline")

    def setUp(self):
        cuda = json.loads(tool("info", "--json").stdout)["cuda"]
        if not cuda["device"]:
            self.skipTest(f"no CUDA device: {cuda['reason']}")
        if not cuda["runs"]:
            self.skipTest(f"no kernel for {cuda['device']}: {cuda['reason']}")
        self.v_kind = "F16" if int("".join(filter(str.isdigit, cuda["runs"]))) < 89 else "E4M3"
        self.thread = "thread-hopper" if cuda["sm"] == 90 else "thread-ada"

    def test_a_session_gives_the_same(self):
        x = inputs(1, 5, 16, 2, 130, 200, 64)  # with fewer heads a session's 8b adds up in another order
        for precision in ("8b", "f16"):
            results = [attend(x, "F16", precision, "--backend", "cuda", *more) for more in ((), ("--session",))]
            self.assertTrue(same_bits(results[0].codes["o"], results[1].codes["o"]))
            self.assertTrue(same_bits(results[0].lse, results[1].lse))

    def test_a_network_on_each_rung(self):
        """The tool makes a Vulkan device where a rung needs one."""
        script = pathlib.Path(__file__).resolve().parent.parent / "bench" / "random_gguf.py"
        model, out, logits = FOLDER / "tiny.gguf", FOLDER / "logits.safetensors", {}
        subprocess.run([sys.executable, "-B", script, model, "--shape", "tiny"], check=True, stdout=subprocess.DEVNULL)
        for rung in self.rungs:
            run = tool("logits", "--model", model, "--tokens", "1,2,3,4,5", "--rung", rung, "--out", out)
            self.assertEqual((run.returncode, run.stderr), (0, ""), rung)
            logits[rung] = R.load(out)[0]["logits"][1].astype(np.float64)
            self.assertLess(np.abs(logits[rung] - logits["cpu"]).max(), 0.02 * np.abs(logits["cpu"]).max(), rung)


class Oracle(unittest.TestCase):
    """The checker checked: numbers that can be worked out by hand."""

    def test_e4m3(self):
        self.assertEqual(
            [float(R.e4m3_decode(c)) for c in (0x00, 0x01, 0x08, 0x38, 0x7E, 0xFE, 0x3A)],
            [0, 2.0**-9, 2.0**-6, 1, 448, -448, 1.25],
        )
        codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8)
        self.assertTrue((R.e4m3_encode(R.e4m3_decode(codes)) == codes).all())
        self.assertEqual(
            R.e4m3_encode(f32([17, 19, 1000, -1000, 2.0**-10, 3 * 2.0**-10, 1e-30])).tolist(),
            [0x58, 0x5A, 0x7E, 0xFE, 0x00, 0x02, 0x00],
        )

    def test_bf16_and_fma(self):
        self.assertEqual(
            R.to_bf16(f32([1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf])).tolist(), [0x3F80, 0x3F80, 0x3F82, 0x7F80]
        )
        e = f32(2.0**-12)
        self.assertEqual(R.fma(f32(1 + e), f32(1 - e), f32(-1)), -f32(2.0**-24))
        r = np.random.default_rng(0)
        a, b, c = r.standard_normal((3, 1000)).astype(f32)
        exact = [f32(np.longdouble(x) * np.longdouble(y) + np.longdouble(z)) for x, y, z in zip(a, b, c)]
        self.assertTrue((R.fma(a, b, c) == exact).all())

    def test_groups(self):
        self.assertEqual(R.group_of_rows(32, "thread-ada", False)[[0, 8, 16, 24, 1]].tolist(), [0, 0, 0, 0, 1])
        self.assertEqual(np.unique(R.group_of_rows(128, "thread-ada", False)).size, 32)
        self.assertEqual(np.unique(R.group_of_rows(64, "thread-ada", True)).size, 4)
        self.assertEqual(np.nonzero(R.group_of_rows(64, "thread-ada", True) == 1)[0][:4].tolist(), [2, 3, 10, 11])
        self.assertEqual(np.unique(R.group_of_rows(64, "thread-hopper", False)).size, 32)
        self.assertEqual((R.group_of_rows(128, "thread-hopper", True) == 0).sum(), 32)

    def test_softmax_by_hand(self):
        q, k, v = np.zeros((1, 1, 1, 32)), np.zeros((1, 1, 2, 32)), np.zeros((1, 1, 2, 32))
        q[..., 0], k[0, 0, 1, 0], v[0, 0, 1, :] = 1, np.log(3), 1
        o, lse = R.exact(q, k, v, False, 1.0)
        self.assertAlmostEqual(o[0, 0, 0, 0], 0.75)
        self.assertAlmostEqual(lse[0, 0, 0], np.log(4))
        o, lse = R.exact(np.zeros((1, 1, 3, 32)), k, v + 1, True)
        self.assertTrue((o[0, 0, 0] == 0).all() and np.isneginf(lse[0, 0, 0]) and (o[0, 0, 1] == 1).all())
