"""`tandem` from outside: its codes bit for bit, its output against float64, its manners with bad input.

SPDX-License-Identifier: Apache-2.0

usage: test_tool.py BUILD_FOLDER [unittest arguments]
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import numpy as np
except ImportError:
    sys.exit("test_tool: numpy is missing; on Debian: apt-get install python3-numpy")
import oracle as R

TOOL = None
FOLDER = None
f32 = np.float32
compared = 0


def tool(*args, **more):
    return subprocess.run(
        [TOOL, *map(str, args)], capture_output=True, text=True, timeout=120, errors="replace", **more
    )


def inputs(seed, b, h, hk, n, nk, d, spread=1.0):
    r = np.random.default_rng(seed)
    return [(spread * r.standard_normal(s)).astype(f32) for s in ((b, h, n, d), (b, hk, nk, d), (b, hk, nk, d))]


def write(arrays, dtypes):
    """Writes q, k, v; returns their values after the rounding to each dtype."""
    dtypes = [dtypes] * 3 if isinstance(dtypes, str) else dtypes
    coded = [R.encode(x, t) for x, t in zip(arrays, dtypes)]
    R.save(FOLDER / "in.safetensors", {n: (t, x) for n, t, x in zip("qkv", dtypes, coded)})
    return [R.decode(x, t) for x, t in zip(coded, dtypes)]


class Done:
    pass


def attend(arrays, dtypes, precision, *options):
    """Runs the tool; what it wrote, and the values that it read."""
    done = Done()
    done.q, done.k, done.v = write(arrays, dtypes)
    out = FOLDER / "out.safetensors"
    out.unlink(missing_ok=True)
    run = tool("attend", "--in", FOLDER / "in.safetensors", "--out", out, "--precision", precision, "--json", *options)
    if run.returncode and "--codes" in options and "so there are no codes to write" in run.stderr:
        if out.exists():
            raise AssertionError("there are no codes, and yet a file")
        done = attend(arrays, dtypes, precision, *(o for o in options if o != "--codes"))
        if not done.metadata["kernel"].startswith(("attn_f16_wgmma", "attn_bf16_wgmma")):
            raise AssertionError(f"{precision} {options}: no codes by {done.metadata['kernel']}")
        return done
    if run.returncode:
        raise AssertionError(f"{precision} {options}: exit {run.returncode}: {run.stderr}")
    done.report = json.loads(run.stdout)
    tensors, done.metadata = R.load(out)
    done.dtypes = {name: t for name, (t, _) in tensors.items()}
    done.codes = {name: x for name, (_, x) in tensors.items()}
    if "--codes" in options and "q_codes" not in tensors:
        raise AssertionError(f"{precision} {options}: exit 0, and no codes")
    done.o = R.decode(*reversed(tensors["o"]))
    done.lse = done.codes["lse"]
    return done


def same_bits(a, b):
    """Equal bit for bit; any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        a, b = np.where(np.isnan(a), a.dtype.type(np.nan), a), np.where(np.isnan(b), b.dtype.type(np.nan), b)
    return a.tobytes() == b.tobytes()


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
        most = (3e-3 if late else 1e-3) + 2e-6 * np.abs(lse[there]).max(initial=0)  # late: sums of P in fp16
        self.assertLess(np.abs(got.lse[there] - lse[there]).max(initial=0), most)
        return got

    def test_every_head_dim_and_dtype(self):
        for d, dtype in itertools.product((32, 64, 80, 96, 128, 256), ("F16", "BF16", "F32")):
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


class Words(unittest.TestCase):
    """The command line itself."""

    def one_line(self, run, status, *words):
        shown = f"{run.args[1:]}: exit {run.returncode}, stdout {run.stdout[:200]!r}, stderr {run.stderr[:400]!r}"
        self.assertEqual(run.returncode, status, shown)
        self.assertEqual(run.stderr.count("\n"), 1, shown)
        self.assertTrue(run.stderr.startswith("tandem"), shown)
        for word in words:
            self.assertIn(word, run.stderr, shown)
        self.assertEqual(run.stdout, "", shown)

    def test_help_and_version(self):
        for args in (["--help"], ["-h"], ["help"]):
            run = tool(*args)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn("attend", run.stdout)
        for args in (["help", "attend"], ["attend", "--help"]):
            text = tool(*args).stdout
            for name in (
                "q_codes",
                "k_codes",
                "v_codes",
                "q_scale",
                "k_scale",
                "v_scale",
                "q_mean",
                "k_mean",
                "v_mean",
                "delta_s",
                "lse",
                "o_f64",
                "--session",
                "--sm",
                "--isa",
                "--threads",
            ):
                self.assertIn(name, text)
            self.assertLessEqual(max(map(len, text.splitlines())), 100)
        run = tool("version")
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stdout, r"^tandem \d+\.\d+\.\d+\n$")

    def test_tune(self):
        self.assertIn("--check F", tool("tune", "--help").stdout)
        self.assertEqual(tool("tune", "--help").stdout, tool("help", "tune").stdout)
        times = [[1.5 * 4**n * 2**p for n in range(8)] for p in range(8)]
        half = [[x * (0.5 if n > 2 else 2) for n, x in enumerate(row)] for row in times]
        table = {"tandem": "choice", "version": 2, "device": "a GPU", "sm": 90, "multiprocessors": 132, "parts": [
            {"head_dim": 64, "causal": 0, "f16": {"kernel": times}, "8b": {"kernel": half, "prologue": [[0.1] * 8] * 8}}]}
        path = FOLDER / "tuning.json"
        path.write_text(json.dumps(table))
        done = tool("tune", "--check", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split() for line in done.stdout.splitlines()[2:]]
        self.assertEqual(rows, [[str(2**p)] + ["f16"] * 3 + ["8b"] * 5 for p in range(8)])
        session = json.loads(tool("info", "--json", "--tuning", path).stdout)["host_session"]
        self.assertIn(session["auto_by"], ("rule", "shipped table"))
        self.assertIn("what was given is not used: ", session["auto_reason"])
        table["parts"][0]["f16"]["kernel"][7][7] = -3
        path.write_text(json.dumps(table))
        for words, status, said in (
            (("--check", path), 1, "parts[0].f16.kernel[7][7] is -3"),
            (("--check", FOLDER / "nothing.json"), 1, "nothing.json"),
            (("--check", path, "--quick"), 2, "--check"),
            (("--dim", "63"), 2, '--dim "63"'),
            (("--dim", "64,64"), 2, "64 is there twice"),
            (("--shapes", "9"), 2, "go with --prove"),
            (("--prove", "--quick"), 2, "do not go with --prove"),
            (("--prove", "--shapes", "0"), 2, '--shapes "0"'),
            (("--prove", "--dim", "64"), 2, "--dim"),
            (("--check", path, "--dim", "64"), 2, "--dim"),
            (("--check", path, "--backend", "cpu"), 2, "--backend"),
            (("--backend", "cuda"), 2, "--backend"),
            (("--prove", "--tuning", path, "--backend", "cpu"), 1, "parts[0].f16.kernel[7][7] is -3"),
            (("--out", FOLDER / "no/such/folder/x.json"), 1, "no/such/folder"),
        ):
            done = tool("tune", *words)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        for rubbish in (path.read_bytes(), b"", b"rubbish", b"{}", bytes(range(256)) * 1000):
            path.write_bytes(rubbish)
            for options in ((), ("--json",)):
                self.one_line(tool("info", "--tuning", path, *options), 1, "--tuning", path.name)
        path.write_text(json.dumps(table))
        self.one_line(tool("info", "--tuning", path), 1, "parts[0].f16.kernel[7][7] is -3")
        self.one_line(tool("info", "--tuning", FOLDER / "nothing.json"), 1, "nothing.json")
        done = tool("bench", "attention", "--backend", "cpu", "--tuning", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("parts[0].f16.kernel[7][7]", done.stderr)

    def test_auto_beside_the_best(self):
        out = FOLDER / "auto.json"
        done = tool("bench", "attention", "--backend", "cpu", "--only", "small", "--n", "256", "--dim", "64",
                    "--rounds", "1", "--json", out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("auto by the rule", done.stdout)
        self.assertIn("of the best's time", done.stdout)
        report = json.loads(out.read_text())
        self.assertEqual(report["auto_by"], "rule")
        for shape in report["shapes"]:
            whole = {row["precision"]: row for row in shape["rows"] if row["what"] == "end to end"}
            us = {precision: whole[precision]["us"]["median"] for precision in whole}
            self.assertAlmostEqual(shape["auto_to_best"], us["auto"] / min(us["8b"], us["f16"]), 4)
            once = {p: whole[p]["one_call"]["us"]["median"] for p in whole}
            self.assertAlmostEqual(shape["auto_to_best_one_call"], once["auto"] / min(once["8b"], once["f16"]), 4)

        done = tool("tune", "--prove", "--backend", "cpu", "--shapes", "2", "--json", out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(out.read_text())
        self.assertEqual(len(report["shapes"]), 2)
        for shape in report["shapes"]:
            us = {"f16": shape["f16_us"], "8b": shape["8b_us"]}
            self.assertEqual(shape["auto"], "8b" if shape["kv_len"] >= 256 else "f16")
            self.assertAlmostEqual(shape["loss"], us[shape["auto"]] / min(us.values()) - 1, 4)
        self.assertEqual(report["over_5_percent"], sum(shape["loss"] > 0.05 for shape in report["shapes"]))

    def test_shipped_tables(self):
        source = pathlib.Path(__file__).resolve().parent.parent
        out = FOLDER / "tables.inc"
        r = np.random.default_rng(3)

        def table(device, dims):
            times = lambda: [[None if x < 2 else float(x) for x in row] for row in np.exp(r.uniform(0, 12, (8, 8)))]
            cost = lambda: {"kernel": times(), "prologue": None, "few": times()}
            parts = [{"head_dim": d, "causal": c, "f16": cost(), "8b": cost(), "4b": None} for d in dims for c in (0, 1)]
            return {"tandem": "choice", "version": 2, "device": device, "sm": 90, "multiprocessors": 7, "parts": parts}

        tables = [table("GPU B", [64, 128]), table("GPU A", [80]), table("GPU B", [96])]
        for t in tables:
            (FOLDER / "tuning.json").write_text(json.dumps(t))
            run = [sys.executable, source / "kernels/attention/tuning_ship.py", FOLDER / "tuning.json", "--out", out]
            self.assertEqual(subprocess.run(run, capture_output=True).returncode, 0)
        (FOLDER / "t.c").write_text(
            '#include "kernels/attention/tuning.h"\n#include <stdio.h>\nstatic const td_choice_table tables[] = {\n'
            f'#include "{out}"\n}};\nint main(void) {{ for (int t = 0; t < 2; t++) {{ const td_choice_table *a = '
            '&tables[t]; printf("%s %u %u\\n", a->device, a->sm, a->multiprocessors); for (unsigned p = 0; p < a->count;'
            ' p++) { printf("%u %u\\n", a->parts[p].head_dim, a->parts[p].causal); const float *x = (const float *)'
            '&a->parts[p].costs; for (int i = 0; i < 576; i++) printf("%g ", (double)x[i]); printf("\\n"); } } }\n'
        )
        compiled = subprocess.run(
            [os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", f"-I{source}", f"-I{source}/interop/include",
             "-o", FOLDER / "t", FOLDER / "t.c"], capture_output=True, text=True)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        lines = iter(subprocess.run([FOLDER / "t"], capture_output=True, text=True).stdout.splitlines())
        for t in (tables[1], tables[2]):
            self.assertEqual(next(lines), f"{t['device']} 90 7")
            for part in t["parts"]:
                self.assertEqual(next(lines), f"{part['head_dim']} {part['causal']}")
                costs = [(part[c] or {}).get(name) or [[0] * 8] * 8
                         for c in ("f16", "8b", "4b") for name in ("kernel", "prologue", "few")]
                wanted = np.array([[x or 0 for x in row] for grid in costs for row in grid]).ravel()
                np.testing.assert_allclose(np.array(next(lines).split(), float), wanted, rtol=1e-3)

    def test_info(self):
        text = tool("info")
        self.assertEqual(text.returncode, 0, text.stderr)
        run = tool("info", "--json")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        info = json.loads(run.stdout)
        self.assertEqual(f"tandem {info['version']}\n", tool("version").stdout)
        self.assertIn(info["host_session"]["backend"], ("cpu", "cuda"))
        self.assertTrue(info["cpu"]["isa"])
        self.assertTrue(info["host_session"]["rung_reason"])
        self.assertTrue(info["vulkan"]["requirements"])
        self.assertIn(info["cpu"]["isa"], text.stdout)
        for device in info["vulkan"]["devices"]:
            self.assertTrue(device["name"] in text.stdout and device["requirements"])
            if device["session"]["rung"]:
                self.assertIn(device["session"]["rung"], ("inline", "timeline", "host", "copy", "cpu"))
                self.assertTrue(device["session"]["rung_reason"])
            for need in device["requirements"]:
                self.assertTrue(need["required"] or need["buys"], need)
        if not info["vulkan"]["devices"]:
            self.assertTrue(info["vulkan"]["reason"])

    def test_info_without_any_driver(self):
        nothing = dict(os.environ, VK_DRIVER_FILES="/nonexistent.json", VK_ICD_FILENAMES="/nonexistent.json")
        run = tool("info", "--json", env=nothing)
        self.assertEqual(run.returncode, 0, run.stderr)
        info = json.loads(run.stdout)
        self.assertEqual(info["vulkan"]["devices"], [])
        self.assertTrue(info["vulkan"]["reason"])
        self.assertIn(info["host_session"]["rung"], ("cpu", "host", "timeline", "inline", "copy"))

    def test_wrong_command_lines(self):
        files = ["--in", "a", "--out", "b"]
        whole = ["attend", *files, "--precision", "8b"]
        table = [
            ([], "command"),
            (["atend"], "atend"),
            (["--frob"], "--frob"),
            (["version", "x"], "x"),
            (["help", "me"], "me"),
            (["info", "--jsn"], "--jsn"),
            (["info", "--json=1"], "--json"),
            (["info", "now"], "now"),
            (["attend"], "--in"),
            (["attend", "--in", "a", "--out", "b"], "--precision"),
            (["attend", "--in", "a", "--precision", "8b"], "--out"),
            (["attend", *files, "--precision"], "--precision"),
            (["attend", *files, "--precision", "8B"], "8B"),
            (["attend", *files, "--precision="], "--precision"),
            ([*whole, "--smooth", "kx"], "kx"),
            ([*whole, "--smooth", "nonek"], "nonek"),
            ([*whole, "--granularity", "row"], "row"),
            ([*whole, "--backend", "gpu"], "gpu"),
            ([*whole, "--isa", "sse"], "sse"),
            ([*whole, "--sm", "90"], "--sm"),
            ([*whole, "--backend", "twin", "--sm", "75"], "75"),
            ([*whole, "--scale", "0"], "--scale"),
            ([*whole, "--scale", "nan"], "nan"),
            ([*whole, "--scale", "1e99"], "1e99"),
            ([*whole, "--scale", "1x"], "1x"),
            ([*whole, "--threads", "0"], "--threads"),
            ([*whole, "--threads", "-1"], "-1"),
            ([*whole, "--threads", "99999999999999999999"], "--threads"),
            ([*whole, "--causal=yes"], "yes"),
            ([*whole, "extra"], "extra"),
            ([*whole, "--codes", "--session"], "--codes"),
            ([*whole, "--session", "--backend", "twin"], "twin"),
            (["attend", *files, "--precision", "ref", "--codes"], "--codes"),
            (["attend", *files, "--precision", "ref", "--smooth", "k"], "--smooth"),
            (["attend", *files, "--precision", "ref", "--backend", "cuda"], "cuda"),
            ([*whole, "--bad\noption"], "--bad?option"),
            # What the precision or the backend would ignore.
            (["attend", *files, "--precision", "f16", "--granularity", "tensor"], "--granularity"),
            (["attend", *files, "--precision", "ref", "--granularity", "tensor"], "--granularity"),
            (["attend", *files, "--precision", "ref", "--isa", "c"], "--isa"),
            (["attend", *files, "--precision", "ref", "--session"], "--session"),
            ([*whole, "--isa", "c", "--backend", "twin"], "--isa"),
            ([*whole, "--isa", "c", "--backend", "cuda"], "--isa"),
            ([*whole, "--threads", "1", "--backend", "cuda"], "--threads"),
            (["bench", "attention", "--backend", "cpu", "--precision", "f16", "--tuning", "F"], "--tuning"),
            (["bench", "attention", "--backend", "cpu", "--no-cudnn"], "--no-cudnn"),
            (["bench", "attention", "--backend", "cpu", "--precision", "none"], "--precision none"),
            (["bench", "attention", "--no-cudnn", "--precision", "none"], "--no-cudnn"),
            (["bench", "attention", "--precision", "8b,none"], '"8b,none"'),
            (["accuracy", "--quick", "--in", "F"], "--quick"),
            (["accuracy", "--figures", "F", "--table", "4"], "--table"),
            (["accuracy", "--figures", "F", "--json", "G"], "--json"),
            (["accuracy", "--figures", "F", "--backend", "cuda"], "--backend"),
            (["accuracy", "--figures", "F", "--quick"], "--quick"),
            (["accuracy", "--figures", "F", "--in", "G", "--causal"], "--causal"),
            (["accuracy", "--table", "4", "--backend", "cuda"], "--backend cuda"),
        ]
        for args, word in table:
            self.one_line(tool(*args), 2, word)

    def test_lists(self):
        """An error of a list names the option, the word that is wrong and the legal ones."""
        for command, option, bad, legal in (
            (("bench", "attention"), "--n", ("0", "17", "1024,17", "1024,", ",1024", "1024,1024", "x", "9" * 300),
             "256, 512, 1024, 2048, 4096, 8192, 16384, 32768"),
            (("bench", "attention"), "--dim", ("0", "32", "64,65"), "64, 80, 96, 128"),
            (("bench", "attention"), "--precision", ("2b", "8b,"), "8b, f16, 4b, auto, none"),
            (("bench", "handover"), "--payloads", ("1G", "8M,,64M"), "64B, 256K, 8M, 64M, demo"),
            (("tune",), "--dim", ("0", "64,63"), "32, 64, 80, 96, 128, 256"),
        ):
            for value in bad:
                run = tool(*command, option, value)
                words = value.split(",")
                twice = len(set(words)) < len(words) and "" not in words
                self.one_line(run, 2, f'{option} "{value[:200]}', "is there twice" if twice else f"is none of {legal}")
        for value in (("--n", "1024", "--dim", "64,80"), ("--dim", "80", "--only", "small")):
            self.one_line(tool("bench", "attention", "--backend", "cpu", *value), 2, "--dim 80")

    def test_bad_files(self):
        q, k, v = inputs(1, 1, 2, 2, 6, 7, 32)
        good = {"q": ("F32", q), "k": ("F32", k), "v": ("F32", v)}
        path, out = FOLDER / "bad.safetensors", FOLDER / "kept.safetensors"
        out.write_bytes(b"as it was")

        def run(precision="8b", *more):
            return tool("attend", "--in", path, "--out", out, "--precision", precision, *more)

        R.save(path, good)
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        entries = json.loads(raw[8 : 8 + size])
        data = raw[8 + size :]
        files = 0

        def check(content, *words):
            nonlocal files
            path.write_bytes(content)
            for precision in ("8b", "ref"):
                self.one_line(run(precision), 1, *words)
            files += 1

        for cut in (0, 1, 7, 8, 9, size // 2, size + 7, size + 8, len(raw) - 1):
            check(raw[:cut])
        check(raw + b"\0")
        for lie in (0, size - 1, size + 1, len(raw), 2**31, 2**63, 2**64 - 1):
            check(struct.pack("<Q", lie) + raw[8:])
        for text in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"q": 3}',
            b'{"q": {}}',
            b"\xff\xfe{}",
            b"{" * 5000,
            b"[" * 100000,
            b'{"q":' * 3000,
        ):
            check(struct.pack("<Q", len(text)) + text + data)

        def with_q(**changes):
            changed = json.loads(json.dumps(entries))
            changed["q"].update(changes)
            text = json.dumps(changed).encode()
            return struct.pack("<Q", len(text)) + text + data

        a, b = entries["q"]["data_offsets"]
        for offsets in (
            [a, b + 4],
            [a + 4, b],
            [b, a],
            [a, 2**40],
            [2**63, 2**63 + b - a],
            [-4, b - 4],
            [a],
            [a, b, b],
            "0",
            [a + 0.5, b],
            [2**64, 2**64 + b],
            None,
        ):
            check(with_q(data_offsets=offsets))
        for shape in (
            [1, 2, 6, 64],
            [1, 2, 6, 2**62],
            [2**32, 2**32, 1, 1],
            [-1, -2, 6, 32],
            [],
            None,
            [1, 2, "6", 32],
            [1, 2, 6.5, 32],
        ):
            check(with_q(shape=shape))
        for dtype in ("F33", "", None, 3, "F" * 1000):
            check(with_q(dtype=dtype))
        check(struct.pack("<Q", 2) + b"{}", "q")
        for name in "qkv":
            R.save(path, {n: t for n, t in good.items() if n != name})
            check(path.read_bytes(), name)
            for dtype, array in (
                ("I32", np.zeros((1, 2, 6, 32), "i4")),
                ("F64", np.zeros((1, 2, 6, 32))),
                ("U8", np.zeros((1, 2, 6, 32), "u1")),
            ):
                R.save(path, dict(good, **{name: (dtype, array)}))
                check(path.read_bytes(), name, dtype)
            for shape in ((1, 2, 192), (2, 6, 1, 1, 32), (384,), ()):
                R.save(path, dict(good, **{name: ("F32", np.zeros(shape, f32))}))
                check(path.read_bytes(), name)

        def shapes(qs, ks, vs, *words):
            R.save(path, {n: ("F32", np.zeros(s, f32)) for n, s in zip("qkv", (qs, ks, vs))})
            check(path.read_bytes(), *words)

        shapes((1, 3, 6, 32), (1, 2, 7, 32), (1, 2, 7, 32), "3", "2")
        shapes((1, 2, 6, 32), (1, 2, 7, 32), (1, 2, 8, 32), "7", "8")
        shapes((1, 2, 6, 32), (1, 2, 7, 32), (1, 1, 7, 32), "2", "1")
        shapes((1, 2, 6, 32), (2, 2, 7, 32), (2, 2, 7, 32), "1", "2")
        shapes((1, 2, 6, 32), (1, 2, 7, 64), (1, 2, 7, 64), "32", "64")
        shapes((1, 2, 6, 32), (1, 2, 7, 32), (1, 2, 7, 64), "32", "64")
        shapes((1, 2, 6, 48), (1, 2, 7, 48), (1, 2, 7, 48), "48")
        shapes((1, 1, 6, 512), (1, 1, 7, 512), (1, 1, 7, 512), "512")
        shapes((1, 2, 0, 32), (1, 2, 7, 32), (1, 2, 7, 32), "q", "0")
        shapes((1, 2, 6, 32), (1, 2, 0, 32), (1, 2, 0, 32), "k", "0")
        self.assertGreater(files, 80)

        path.unlink()
        self.one_line(run(), 1, "bad.safetensors")
        path.mkdir()
        self.one_line(run(), 1, "bad.safetensors")
        path.rmdir()
        self.assertEqual(out.read_bytes(), b"as it was")
        self.assertEqual([p.name for p in FOLDER.iterdir() if "kept" in p.name], ["kept.safetensors"])

        R.save(path, good)
        out = FOLDER / "no such folder" / "out.safetensors"
        self.one_line(run(), 1, "no such folder")
        out = FOLDER / "folder"
        out.mkdir()
        before = sorted(FOLDER.iterdir())
        self.one_line(run(), 1, "folder")
        self.assertEqual(sorted(FOLDER.iterdir()), before)
        out.rmdir()
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w") as full:
                run = subprocess.run([TOOL, "help", "attend"], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1))

    def test_no_cuda_is_said(self):
        run = tool("info", "--json")
        if json.loads(run.stdout)["cuda"]["device"]:
            return
        write(inputs(1, 1, 1, 1, 5, 5, 32), "F32")
        files = ("attend", "--in", FOLDER / "in.safetensors", "--out", FOLDER / "out.safetensors", "--precision", "8b")
        self.one_line(tool(*files, "--backend", "cuda"), 1)
        self.one_line(tool(*files, "--backend", "cuda", "--session"), 1)
        done = tool(*files, "--backend", "auto", "--json")
        self.assertEqual(done.returncode, 0)
        self.assertTrue(json.loads(done.stdout)["backend_reason"])


TOPICS = """sample-qkv attend accuracy calibrate doctor info top bench bench-handover bench-attention bench-daemon tune probe
version help""".split()
SOURCE = pathlib.Path(__file__).resolve().parent.parent
# Where an option is read, if not in demo/tool_TOPIC.c.
FILES = {"version": None, "help": None, "bench": None}


class Manual(unittest.TestCase):
    """Texts of help, and what is made from them: man pages and completion."""

    def text(self, topic):
        return tool("help", *topic.split("-", 1) if topic.startswith("bench-") else (topic,)).stdout

    def options(self, topic):
        """{option: its value's words, or None} of a text of help."""
        found = {}
        for line in self.text(topic).splitlines():
            if line.startswith("  --"):
                name, _, value = line[2:].split("  ")[0].partition(" ")
                found[name] = value.split("|") if "|" in value else None
        return found

    def test_every_topic_has_its_own_help(self):
        overview = tool("--help").stdout
        for topic in TOPICS:
            words = topic.split("-", 1) if topic.startswith("bench-") else [topic]
            shown = tool(*words, "--help")
            self.assertEqual((shown.returncode, shown.stderr, shown.stdout), (0, "", self.text(topic)))
            self.assertTrue(shown.stdout.startswith(f"usage: tandem {' '.join(words)}"), shown.stdout[:80])
            self.assertLessEqual(max(map(len, shown.stdout.splitlines())), 115)
            if len(words) == 1:
                self.assertIn(f"\n  {topic} ", overview)
        self.assertEqual(tool("probe", "fp22", "--help").stdout, self.text("probe"))

    def test_every_option_is_explained(self):
        """What a command reads is in its help, and what is in its help it knows, with the same words."""
        for topic in TOPICS:
            source = FILES.get(topic, f"tool_{topic.replace('-', '_')}.c")
            explained = self.options(topic)
            if not source:
                continue
            read = set(re.findall(r'\{"(--[a-z0-9-]+)", (?:&|NULL)', (SOURCE / "demo" / source).read_text()))
            inputs = {"--in"} if topic in ("accuracy", "calibrate") else set()  # lists of files, which are read apart
            self.assertEqual(read | inputs, set(explained), topic)
            for option, words in explained.items():
                if words:
                    needs = ["fp22"] if topic == "probe" else []
                    needs += ["--in", "F", "--out", "G", "--precision", "8b"] if topic == "attend" else []
                    needs += ["--out", "G"] if topic == "sample-qkv" else []
                    needs += ["--prove"] if topic == "tune" else []
                    run = tool(*topic.replace("bench-", "bench ").split(), *needs, option, "no-such-word")
                    self.assertEqual(run.returncode, 2, run.stderr)
                    for word in ["no-such-word", *words]:
                        self.assertIn(word, run.stderr, (topic, option))

    def test_man_pages(self):
        folder = pathlib.Path(TOOL).parent / "demo/manual"
        names = ["tandem"] + [f"tandem-{t}" for t in TOPICS if not t.startswith("bench-")]
        self.assertEqual(sorted(p.stem for p in folder.glob("*.1")), sorted(names), "the pages that the build made")
        for name in names:
            page = tool("help", "--man", *[name[7:]] if name != "tandem" else []).stdout
            self.assertEqual(page, (folder / f"{name}.1").read_text())
            for checker in (["groff", "-man", "-Tutf8", "-ww", "-z"], ["mandoc", "-Tlint", "-Wwarning"]):
                if not shutil.which(checker[0]):
                    continue
                run = subprocess.run(checker, input=page, capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""), name)
        if shutil.which("groff"):
            page = tool("help", "--man", "bench").stdout
            run = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou"], input=page, capture_output=True, text=True)
            for words in ("tandem-bench - ", "--payloads", "--run-ms N", "--socket", "Exit status 1, too"):
                self.assertIn(words, " ".join(run.stdout.split()))

    def complete(self, *words):
        script = f'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tandem; printf "%s\\n" "${{COMPREPLY[@]}}"'
        script = pathlib.Path(TOOL).parent / "demo/manual/tandem.bash", script
        run = subprocess.run(["bash", "-c", script[1], "bash", script[0], "tandem", *words],
                             capture_output=True, text=True, cwd=FOLDER, timeout=20)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("att"), ["attend"])
        self.assertEqual(self.complete("help", "cal"), ["calibrate"])
        self.assertEqual(self.complete(""), [t for t in TOPICS if not t.startswith("bench-")])
        self.assertEqual(self.complete("bench", "at"), ["attention"])
        self.assertEqual(self.complete("bench", "handover", "--pay"), ["--payloads"])
        self.assertEqual(self.complete("probe", "f"), ["fp22"])
        self.assertEqual(self.complete("attend", "--backend", ""), ["auto", "cpu", "cuda", "twin"])
        self.assertEqual(self.complete("attend", "--backend", "=", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("attend", "--precision", "="), ["8b", "4b", "f16", "ref"])
        self.assertEqual(self.complete("attend", "--threads", ""), [])
        (FOLDER / "a file.safetensors").write_text("")
        self.assertIn("file.safetensors", self.complete("attend", "--in", "a fi"))
        for topic in TOPICS:
            words = topic.replace("bench-", "bench ").split()
            if topic != "bench":
                self.assertEqual(self.complete(*words, "--"), ["--help", *self.options(topic)], topic)


    def test_other_shells(self):
        """zsh's and fish's scripts have every option with its words; where the shells are here, they take them."""
        folder = pathlib.Path(TOOL).parent / "demo/manual"
        for shell in ("bash", "zsh", "fish"):
            script = tool("help", f"--{shell}").stdout
            self.assertEqual(script, (folder / f"tandem.{shell}").read_text())
            if shutil.which(shell):
                run = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stderr), (0, ""), shell)
        zsh, fish = ((folder / f"tandem.{shell}").read_text() for shell in ("zsh", "fish"))
        for topic in TOPICS:
            first, _, part = topic.partition("-") if topic.startswith("bench-") else (topic, "", "")
            arm = zsh.split(f"\n    '{f'{first} {part}'.strip()}')\n")[1].split(";;")[0]
            on = f"'__fish_seen_subcommand_from {first}" + (f"; and __fish_seen_subcommand_from {part}" if part else "") + "' "
            for option, words in self.options(topic).items() if topic != "bench" else ():  # its parts have them
                spec = re.search(rf"'{option}(=?)\[[^][]+\](?::value:\(([^)]*)\)|:file:_files)?'", arm)
                line = re.search(rf"complete -c tandem -n {re.escape(on)}-l {option[2:]}( -r -F| -x -a '([^']*)')? -d '[^']+'\n", fish)
                self.assertTrue(spec and line, (topic, option))
                self.assertEqual(bool(spec[1]), bool(line[1]))
                if words:
                    self.assertEqual((spec[2].split(), line[2].split()), (words, words))
        if shutil.which("fish"):
            run = subprocess.run(["fish", "--no-config", "-c", f"source {folder}/tandem.fish; complete -C 'tandem attend --backend '"],
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual([line.split("\t")[0] for line in run.stdout.splitlines()], ["auto", "cpu", "cuda", "twin"])


class FirstSteps(unittest.TestCase):
    def test_sample(self):
        path = FOLDER / "qkv.safetensors"
        for kind, dtype, shape in (("normal", "F16", (1, 2, 70, 64)), ("outliers", "BF16", (2, 3, 10, 128)),
                                   ("video", "F32", (1, 1, 300, 80))):
            options = [x for name, value in zip(("batch", "heads", "n", "d"), shape) for x in (f"--{name}", value)]
            contents = []
            for seed in (1, 1, 2):
                run = tool("sample-qkv", "--out", path, "--kind", kind, "--dtype", dtype.lower(), "--seed", seed, *options)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                contents.append(path.read_bytes())
            self.assertEqual(contents[0], contents[1])
            self.assertNotEqual(contents[0], contents[2])
            tensors, metadata = R.load(path)
            self.assertEqual((metadata["kind"], metadata["seed"]), (kind, "2"))
            x = {name: R.decode(array, t).astype(float) for name, (t, array) in tensors.items()}
            self.assertEqual({(name, t, a.shape) for name, (t, a) in tensors.items()},
                             {(name, dtype, shape) for name in "qkv"})
            heads = np.concatenate([x["q"].reshape(-1, *shape[2:]), x["k"].reshape(-1, *shape[2:])])
            self.assertTrue(np.isfinite(heads).all() and len({h.tobytes() for h in heads}) == len(heads))
            channels = np.abs(heads.mean(1)).max()  # how far a channel's mean is from 0
            self.assertTrue(channels < 1 if kind == "normal" else channels > 3, (kind, channels))
            if kind == "normal":
                self.assertLess(abs(x["v"].std() - 1), 0.1)
        self.assertEqual(tool("sample-qkv", "--out", path).returncode, 0)
        self.assertEqual(R.load(path)[0]["q"][1].shape, (1, 8, 1024, 64))

    def test_bad_samples(self):
        out = ("--out", FOLDER / "s.safetensors")
        for args, status, words in (
            ((), 2, ["--out"]),
            ((*out, "--kind", "odd"), 2, ['--kind "odd"', "normal, outliers, video"]),
            ((*out, "--dtype", "F64"), 2, ['--dtype "F64"', "F16, BF16, F32"]),
            ((*out, "--d", "63"), 2, ['--d "63"', "32, 64, 80, 96, 128, 256"]),
            ((*out, "--n", "0"), 2, ['--n "0"', "1 to 1048576"]),
            ((*out, "--heads", "1025"), 2, ['--heads "1025"']),
            ((*out, "--batch", "-1"), 2, ['--batch "-1"']),
            ((*out, "--seed", "x"), 2, ['--seed "x"']),
            ((*out, "--batch", "1024", "--heads", "1024", "--n", "1048576"), 2, ["--n 1048576", "at most 4294967296"]),
            (("--out", FOLDER / "none" / "s"), 1, ["--out", "none"]),
        ):
            Words.one_line(self, tool("sample-qkv", *args), status, *words)

    def test_what_the_readme_shows(self):
        """The commands of README, as they stand there, one after the other in an empty folder."""
        shown = [line.split("#")[0].split() for line in (SOURCE / "README.md").read_text().splitlines()
                 if line.startswith("build/tandem ")]
        self.assertEqual(shown[0][:2], ["build/tandem", "sample-qkv"])
        self.assertIn("attend", [words[1] for words in shown])
        with tempfile.TemporaryDirectory() as folder:
            for words in shown:
                if words[1] in ("bench", "tune"):  # minutes, and a GPU
                    words = [*words, "--help"]
                run = tool(*words[1:], cwd=folder)
                self.assertEqual((run.returncode, run.stderr), (0, ""), words)
            tensors, _ = R.load(pathlib.Path(folder) / "o.safetensors")
            self.assertTrue({"o", "lse", "q_codes", "v_codes"} <= set(tensors))
            q, k, v = (R.decode(*reversed(R.load(pathlib.Path(folder) / "qkv.safetensors")[0][n])) for n in "qkv")
            self.assertLess(R.rel_l1(R.decode(*reversed(tensors["o"])), R.exact(q, k, v)[0]), 0.05)


class Bench(unittest.TestCase):
    """`tandem bench`: what it reports, on whatever is here, and its manners."""

    def run_bench(self, *args):
        out = FOLDER / "bench.json"
        out.unlink(missing_ok=True)
        run = tool("bench", *args, "--json", out)
        self.assertEqual(run.returncode, 0, f"{args}: {run.stdout[-600:]} {run.stderr}")
        report = json.loads(out.read_text())
        self.assertTrue(report["device"] and report["date"])
        self.assertTrue(run.stdout.splitlines()[-1].startswith("verdict: "), run.stdout[-300:])
        self.assertEqual(report["missed"], sum(t["met"] is False for t in report["targets"]))
        return report, run.stdout

    def spread(self, stat):
        self.assertLessEqual(stat["min"], stat["median"])
        self.assertLessEqual(stat["median"], stat["p99"])
        self.assertLessEqual(stat["p99"], stat["max"])
        return stat["count"]

    def test_handover(self):
        if not json.loads(tool("info", "--json").stdout)["vulkan"]["devices"]:
            self.skipTest("no Vulkan device")
        report, text = self.run_bench("handover", "--payloads", "64B,256K", "--rounds", "2", "--round-ms", "2", "--quick")
        self.assertEqual([p["payload"] for p in report["payloads"]], ["64 B", "256 KiB"])
        for payload in report["payloads"]:
            measured = []
            for lane in payload["lanes"]:
                self.assertEqual(lane["wrong"], 0)
                if lane["round_trip_us"] is None:
                    self.assertTrue(lane["not_measured"], f"{lane['lane']} is silent")
                    continue
                measured.append(lane["rung"])
                self.assertGreater(lane["frames"], 4)
                # Every frame with its times; whether the GPU began late is another matter.
                if payload["bytes"] > 64:
                    self.assertEqual(self.spread(lane["round_trip_us"]), lane["gap_in_us"]["count"])
                    self.assertEqual(lane["gap_in_us"]["count"], lane["gap_out_us"]["count"])
                self.assertEqual(self.spread(lane["in_flight_3_us"]), 2)
                if lane["job_us"]:
                    self.assertGreater(lane["job_us"]["median"], 0)
                    self.assertGreater(lane["round_trip_us"]["median"], lane["job_us"]["median"])
                self.assertTrue(lane["job_us"] or payload["bytes"] == 64)
                self.assertIn(lane["lane"], text)
            self.assertIn(None, measured, "no floor")
            self.assertIn("cpu", measured, "the lowest rung is there on every machine")
        self.assertNotIn("desc.rung", text)
        for lane in report["payloads"][0]["lanes"]:  # reasons are whole
            if lane["round_trip_us"] is None:
                self.assertIn(re.sub(r"^desc\.rung is .*?\): ", "", lane["not_measured"]) + "\n", text)
        waits = {(w["lane"], w["by"]) for w in report["waiting"] if w["latency_us"]}
        self.assertTrue({("cpu", "tandem_point_wait"), ("cpu", "tandem_point_fd")} <= waits, waits)
        if len(os.sched_getaffinity(0)) > 1:
            small = report["small_job"]
            rows = {(r["beside"], r["pace"]): r for r in small["rows"]}
            paces = ("one after the other", "240 a second")
            self.assertEqual(set(rows), {(b, p) for b in ("quiet", "beside a busy thread") for p in paces})
            for row in rows.values():
                self.assertGreater(self.spread(row["latency_us"]), 0)  # how many is the machine's affair
                self.assertTrue(row["latency_us"]["median"] <= row["p95_us"] <= row["latency_us"]["p99"], row)
            self.assertLess(small["idle_core"], 0.02)
            self.assertEqual(sum("small job" in t["target"] for t in report["targets"]), 5)

    def test_attention(self):
        report, text = self.run_bench("attention", "--backend", "cpu", "--n", "256", "--dim", "64", "--rounds", "1",
                                      "--run-ms", "0", "--precision", "8b,f16,4b")
        self.assertEqual([(s["heads"], s["n"], s["d"]) for s in report["shapes"]], [(4, 256, 64), (8, 256, 64)])
        worst = {"8b": 0.1, "f16": 2e-3, "4b": 0.5}
        for shape in report["shapes"]:
            rows = {(r["precision"], r["what"]): r for r in shape["rows"]}
            self.assertEqual(len(rows), 6)
            for (precision, _), row in rows.items():
                self.assertEqual(self.spread(row["us"]), 1)
                self.assertEqual(self.spread(row["one_call"]["us"]), 11)
                self.assertTrue(0 < row["relative_l1"] < worst[precision], row)
                self.assertAlmostEqual(row["tflops"], 4 * shape["heads"] * 256 * 256 * 64 / row["us"]["median"] * 1e-6)

    def test_exit_status(self):
        """A target that is missed fails the bench under --strict alone; one without measurements always."""
        shape = ("attention", "--backend", "cpu", "--n", "256", "--dim", "64", "--rounds", "1", "--run-ms", "0")
        run = tool("bench", *shape, "--precision", "f16", "--only", "small", "--causal", "no", "--strict")
        self.assertEqual((run.returncode, run.stderr), (0, ""))  # the CPU has no targets here
        handover = ("handover", "--payloads", "64B", "--rounds", "1", "--round-ms", "1", "--quick", "--no-waiting")
        out = FOLDER / "strict.json"
        slow = ["nice", "-n", "19"] if json.loads(tool("info", "--json").stdout)["vulkan"]["devices"] else None
        if not slow:
            self.skipTest("no Vulkan device")
        for strict in ((), ("--strict",)):
            run = subprocess.run([*slow, TOOL, "bench", *handover, "--json", out, *strict], capture_output=True, text=True,
                                 timeout=120)
            missed = json.loads(out.read_text())["missed"]
            self.assertEqual(run.returncode, 1 if strict and missed else 0, (missed, run.stderr))
            self.assertEqual("--strict: " in run.stderr, bool(strict and missed))

    def test_ended_early(self):
        """What has been measured is in the file before the rest is."""
        out = FOLDER / "early.json"
        args = ["bench", "attention", "--backend", "cpu", "--only", "small", "--dim", "64", "--rounds", "1", "--run-ms", "0",
                "--precision", "f16", "--json", out]
        run = subprocess.Popen([str(a) for a in (TOOL, *args)], stdout=subprocess.DEVNULL)
        try:
            report = None
            for _ in range(600):
                try:
                    report = json.loads(out.read_text())
                    break
                except (FileNotFoundError, json.JSONDecodeError):  # not yet, or being written
                    time.sleep(0.05)
            self.assertIsNone(run.poll(), "the bench was over before")
            self.assertTrue(report and report["shapes"] and "missed" not in report, report)
        finally:
            run.kill()
            run.wait()

    def test_words(self):
        for args, words in [
            ([], ["handover", "attention"]),
            (["lunch"], ["lunch", "handover", "attention"]),
            (["handover", "--payloads", "64B,1G"], ["--payloads", "1G"]),
            (["handover", "--rounds", "0"], ["--rounds", "0"]),
            (["handover", "--round-ms", "x"], ["--round-ms", "x"]),
            (["attention", "--backend", "tpu"], ["--backend", "tpu"]),
            (["attention", "--n", "many"], ["--n"]),
            (["attention", "--precision", "2b"], ["--precision", "2b"]),
            (["attention", "--causal", "perhaps"], ["--causal", "perhaps"]),
            (["attention", "--only", "medium"], ["--only", "medium"]),
            (["attention", "--run-ms", "-1"], ["--run-ms", "-1"]),
            (["attention", "--n", "17"], ["--n"]),
            (["linear", "--rounds", "1"], ["--rounds", "1"]),
            (["linear", "--run-ms", "0"], ["--run-ms", "0"]),
        ]:
            run = tool("bench", *args)
            self.assertEqual((run.returncode, run.stdout), (2, ""), args)
            self.assertEqual(run.stderr.count("\n"), 1)
            for word in words:
                self.assertIn(word, run.stderr)
        for bench in ("handover", "attention", "linear", "daemon"):
            for path in (FOLDER / "none" / "b.json", FOLDER):
                run = tool("bench", bench, "--json", path, "--quick")
                self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1), run.stderr)
                self.assertIn(f'--json "{path}"', run.stderr)
        text = tool("help", "bench").stdout
        self.assertTrue("handover:" in text and "attention:" in text and max(map(len, text.splitlines())) <= 100)


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


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_tool.py BUILD_FOLDER [unittest arguments]")
    TOOL = str(pathlib.Path(sys.argv[1]).resolve() / "tandem")
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        FOLDER = pathlib.Path(folder)
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    print(
        f"test_tool: {result.testsRun - skipped} tests, {bad} failed, {skipped} skipped (they need a CUDA device), "
        f"{compared} codes and scales bit-equal to numpy"
    )
    sys.exit(1 if bad or result.testsRun == skipped else 0)
