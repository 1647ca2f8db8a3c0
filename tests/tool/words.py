"""The tool's words: help, refusals, exit status, tables and lists.

SPDX-License-Identifier: Apache-2.0
"""
import contextlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import time
import unittest

import numpy as np
import limits
import oracle as R
from tool.rig import FOLDER, SOURCE, TOOL, f32, inputs, tool, write


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
            (("--backend", "tpu"), 2, '--backend "tpu"'),
            (("--seconds", "0"), 2, '--seconds "0"'),
            (("--prove", "--seconds", "9"), 2, "--seconds"),
            (("--check", path, "--seconds", "9"), 2, "--check"),
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

    def test_tune_in_time(self):
        """A table of a CPU, which nobody goes by: whatever there is time for, the small shapes first, and a bar on a terminal alone."""
        out = FOLDER / "cpu-tuning.json"
        begin = time.monotonic()
        done = tool("tune", "--backend", "cpu", "--dim", "32", "--seconds", "2", "--out", out)
        self.assertLess(time.monotonic() - begin, 2 * limits.WALL)  # on a busy machine, where all of it takes minutes
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^CPU: \d+ points in \d+\.\d s; there was no time for \d+, see --seconds\nwritten to ")
        table = json.loads(out.read_text())
        self.assertEqual((table["device"], table["sm"]), ("CPU", 0))
        plain, causal = table["parts"]
        for precision in ("f16", "8b"):
            times = plain[precision]
            self.assertTrue(0 < times["kernel"][0][0] < 1e5 and 0 < times["prologue"][0][0] < 1e5 and times["few"][0][0] > 0, times)
            self.assertIsNone(times["kernel"][7][7], "32768 keys of 128 heads")
            self.assertIsNone(causal[precision] and causal[precision]["few"])
        measured = sum(x is not None for part in table["parts"] if part["8b"]
                       for key in ("kernel", "few") if part["8b"][key] for row in part["8b"][key] for x in row)
        self.assertEqual(measured, int(re.search(r"CPU: (\d+) points", done.stdout).group(1)))
        shown, terminal = pty.openpty()
        run = subprocess.Popen([TOOL, "tune", "--backend", "cpu", "--dim", "32", "--seconds", "1", "--quick", "--out", out],
                               stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        said = ""
        with contextlib.suppress(OSError):  # what reading a terminal that nobody has any more says
            while piece := os.read(shown, 4096):
                said += piece.decode()
        os.close(shown)
        self.assertEqual(run.wait(60), 0, said)
        self.assertIn("\r[", said)
        self.assertRegex(said, r"\[#+ *\] +\d+ %, \d+ of at most 1 s")
        self.assertTrue(said.endswith("\r\x1b[K"), said[-20:])

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
        source = SOURCE
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
            '#include "kernels/attention/tuning.h"\n#include <stdio.h>\nstatic const td_tuning_table tables[] = {\n'
            f'#include "{out}"\n}};\nint main(void) {{ for (int t = 0; t < 2; t++) {{ const td_tuning_table *a = '
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
                self.assertTrue(device["session"]["rung"] == "inline" or device["session"]["rung_reason"])
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
            (["bench", "attention", "--smooth-v", "--precision", "8b,auto"], "--smooth-v"),
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
        shapes((1, 2, 6, 88), (1, 2, 7, 88), (1, 2, 7, 88), "88")
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
