"""The bench's reports, its exit status, and its words.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import pathlib
import re
import subprocess
import time
import unittest
import unittest.mock

import limits
from tool import tiny_model
from tool.rig import FOLDER, TOOL, tool

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


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
                    # A frame is longer than its job. By Vulkan alone, and inline, jobs are those of the frames between,
                    # which on a busy machine say nothing of each other.
                    if lane["job_us"]["count"] == lane["round_trip_us"]["count"] and lane["rung"] not in (None, "inline"):
                        for at in ("min", "median", "max"):
                            self.assertGreater(lane["round_trip_us"][at], lane["job_us"][at])
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
                parts = [row[part]["min"] for part in ("begin_us", "compute_us", "return_us")]
                self.assertTrue(min(parts) >= 0 and sum(parts) <= row["latency_us"]["min"] + 1e-3, row)
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
                self.assertIsNone(row["joules"])  # NVML's, of a GPU

    def test_against(self):
        """What got slower than in an earlier run; how much slower a machine is today than it was is no affair of this test, so the
        earlier run is rewritten."""
        args = ("attention", "--backend", "cpu", "--n", "256", "--dim", "64", "--rounds", "1", "--run-ms", "0", "--precision", "8b,f16",
                "--only", "small")
        report, _ = self.run_bench(*args)
        path, strict, fast = FOLDER / "before.json", (*args, "--against", FOLDER / "before.json", "--strict"), 1e-6

        def against(scale, *more, change=None):
            before = json.loads(json.dumps(report))
            for shape in before["shapes"]:
                for row in shape["rows"]:
                    for us in (row["us"], row["one_call"]["us"]):
                        us["median"] *= scale
            if change:
                change(before)
            path.write_text(json.dumps(before))
            return tool("bench", *strict, *more)

        run = against(1e6)
        self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)
        self.assertIn("against that: 16 medians, 0 more than 2 % slower, 16 faster by as much; 0 not in it\n", run.stdout)
        run = against(fast)
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stdout.count("  SLOWER b1 h"), 16, run.stdout)
        for words in ("n256   8b kernel, sustained: ", "f16 end to end, one call at a time: "):
            self.assertIn(words, run.stdout)
        self.assertIn("--strict: 16 medians are slower than before", run.stderr)
        self.assertEqual(tool("bench", *strict[:-1]).returncode, 0)  # without --strict it is only said

        def without(before):
            del before["shapes"][0]["rows"][0]
            before["shapes"][1]["rows"][1]["us"] = None
        run = against(fast, change=without)
        self.assertIn("against that: 13 medians, 13 more than 2 % slower, 0 faster by as much; 3 not in it\n", run.stdout)
        self.assertIn("16 more than 1000 % slower", against(fast, "--slower", "1000").stdout)
        run = against(1, change=lambda before: before.update(device="another"))
        self.assertEqual(run.returncode, 1)
        self.assertIn('that was measured on "another", this on "CPU"', run.stderr)
        for text, word in (("{", "end of file"), ('{"bench": "linear", "shapes": []}', "not what"), ('{"bench": "attention"}', "not what"),
                           ("[1]", "not what")):
            path.write_text(text)
            run = tool("bench", *strict)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (1, "", 1), run.stderr)
            self.assertIn(f'--against "{path}": ', run.stderr)
            self.assertIn(word, run.stderr)

    def test_effect(self):
        model = SOURCE / "demo" / "assets" / "denoise.safetensors"
        report, text = self.run_bench("effect", "--model", model, "--sizes", "64x48,33x17", "--rungs", "cpu,inline", "--frames", "4", "--no-oidn")
        cpu, inline = report["rungs"]
        self.assertEqual([(row["width"], row["height"]) for row in cpu["rows"]], [(64, 48), (33, 17)])
        for row in cpu["rows"] + inline["rows"]:
            self.assertEqual((row["gpu_ms"]["count"], row["call_ms"]["count"]), (4, 4))
            self.assertTrue(0 < row["gpu_ms"]["median"] <= row["gpu_ms"]["p99"] and row["memory_bytes"] > 0)
        self.assertTrue(inline["rows"] or inline["why"])
        gi, text = self.run_bench("effect", "--model", SOURCE / "demo" / "assets" / "gi.safetensors", "--sizes", "64x48", "--rungs", "cpu",
                                  "--frames", "2", "--precision", "f16")
        self.assertEqual((gi["precision"], gi["rungs"][0]["rows"][0]["gpu_ms"]["count"], gi["no_oidn"]), ("f16", 2, "it makes no light"))
        for words, expected in ((("--sizes", "64"), '--sizes "64" must be'), (("--sizes", "8x8"), '--sizes "8x8" must be'),
                                (("--rungs", "auto"), "auto is no rung"), (("--rungs", "fast"), "fast"), (("--frames", "0"), "--frames")):
            run = tool("bench", "effect", "--model", model, *words)
            self.assertEqual(run.returncode, 2)
            self.assertIn(expected, run.stderr)
        run = tool("bench", "effect", "--model", FOLDER / "none", "--rungs", "cpu")
        self.assertEqual(run.returncode, 1)
        self.assertIn("none", run.stdout)

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
            run = limits.run([*slow, TOOL, "bench", *handover, "--json", out, *strict], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, seconds=120)
            missed = json.loads(out.read_text())["missed"]
            self.assertEqual(run.returncode, 1 if strict and missed else 0, (missed, run.stdout))
            self.assertEqual(run.stdout.count("  MISSED "), missed)
            # In one file with the rest it is the last line: gpu.sh tells missed targets from failures by that.
            self.assertEqual("--strict: " in run.stdout.splitlines()[-1], bool(strict and missed), run.stdout)

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

    def npc(self, *args):
        return self.run_bench("npc", "--model", self.model, "--rung", "cpu", "--threads", "2", "--prompt", "70", "--tokens", "9",
                              "--rounds", "2", *args)

    def test_npc(self):
        """A language model, and what llama-bench says, which is called as its help has it."""
        self.model, peer, called = FOLDER / "npc.gguf", FOLDER / "llama-bench", FOLDER / "called"
        tiny_model.write(self.model)
        report, text = self.npc("--no-llama")
        self.assertEqual(report["bench"], "npc")
        self.assertEqual([self.spread(report["tokens_per_s"][what]) for what in ("prompt", "decode")], [2, 2])
        self.assertEqual((report["llama_cpp"], report["no_llama_cpp"]), ({"prompt": None, "decode": None}, "--no-llama"))
        self.assertEqual((report["rung"], report["prompt"], report["tokens"], report["depth"]), ("cpu", 70, 9, 0))
        self.assertGreater(report["weight_bytes"], 100000)
        self.assertEqual(report["cache_bytes"], 2 * 2 * 70 * 32 * 2)  # layers, K and V, tokens, channels, fp16
        self.assertIn("tokens one by one", text.replace(", one", " one"))
        peer.write_text(f'#!/bin/sh\necho "$@" >>{called}\n'
                        'echo \'[{"n_prompt": 70, "n_gen": 0, "avg_ts": 1e9}, {"n_prompt": 0, "n_gen": 9, "avg_ts": 0.5}]\'\n')
        peer.chmod(0o755)
        report, text = self.npc("--llama-bench", peer, "--depth", "3", "--strict")
        self.assertEqual(called.read_text().splitlines(),
                         [f"-m {self.model} -p 70 -n 9 -d 3 -t 2 -ngl 0 -r 1 -o json"] * 2)
        self.assertEqual([report["llama_cpp"][what]["median"] for what in ("prompt", "decode")], [1e9, 0.5])
        self.assertIsNone(report["no_llama_cpp"])
        self.assertEqual([target["met"] for target in report["targets"]], [True])
        for said, why in (("echo nothing", "no rates"), ("exit 3", "ended with 3"), ("echo '[]'", "no rates")):
            peer.write_text(f"#!/bin/sh\n{said}\n")
            report, text = self.npc("--llama-bench", peer)
            self.assertIn(why, report["no_llama_cpp"])
            self.assertIn(why, text)
        self.assertIn("channels", report["no_slots"])  # of heads, which have no pages in common
        self.model = FOLDER / "slots.gguf"
        with unittest.mock.patch.object(tiny_model, "HEAD_DIM", 64):
            tiny_model.write(self.model)
        report, text = self.npc("--no-llama")
        self.assertIsNone(report["no_slots"])
        self.assertEqual([self.spread(report["slots"][count]) for count in ("1", "4", "8", "32")], [2] * 4)
        self.assertIn("32 characters at once", text)
        run = tool("bench", "npc", "--model", FOLDER / "none.gguf")
        self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (1, "", 1))
        self.assertIn("none.gguf", run.stderr)

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
            (["attention", "--slower", "3"], ["--slower", "--against"]),
            (["attention", "--against", "a", "--slower", "x"], ["--slower", "x"]),
            (["linear", "--rounds", "1"], ["--rounds", "1"]),
            (["linear", "--run-ms", "0"], ["--run-ms", "0"]),
            (["npc"], ["npc", "--model"]),
            (["npc", "--model", "a.gguf", "--rounds", "0"], ["npc", "--rounds", "0"]),
            (["npc", "--model", "a.gguf", "--rung", "down"], ["npc", "down"]),
        ]:
            run = tool("bench", *args)
            self.assertEqual((run.returncode, run.stdout), (2, ""), args)
            self.assertEqual(run.stderr.count("\n"), 1)
            for word in words:
                self.assertIn(word, run.stderr)
        for bench in ("handover", "attention", "linear", "daemon", "npc", "effect"):
            more = ("--model", FOLDER / "none") if bench in ("npc", "effect") else ()
            for path in (FOLDER / "none" / "b.json", FOLDER):
                run = tool("bench", bench, "--json", path, "--quick", *more)
                self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1), run.stderr)
                self.assertIn(f'--json "{path}"', run.stderr)
        text = tool("help", "bench").stdout
        self.assertTrue("handover:" in text and "attention:" in text and max(map(len, text.splitlines())) <= 100)
