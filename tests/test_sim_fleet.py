"""sim_fleet.py against what can be worked out by hand, and its files.

SPDX-License-Identifier: Apache-2.0

usage: test_sim_fleet.py [BUILD_FOLDER]
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

import sim_fleet

MEASURED = pathlib.Path(__file__).resolve().parent / "measured"
NODE = ["--read", "10000", "--speak", "1:100,4:300,8:400"]


def run(*words):
    """(what it returns, what it prints)."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = sim_fleet.main([*map(str, words)])
    return found, printed.getvalue()


def row(*words):
    rows, _ = run(*NODE, "--nodes", 1, *words)[0]
    return rows[0]


class Simulation(unittest.TestCase):
    def test_one_alone(self):
        """It keeps its slot: what it says is read, then one token is computed."""
        first = row("--characters", 1, "--slots", 1, "--said", 50, "--think", 1, "--seconds", 400)["first_ms"]
        self.assertAlmostEqual(first["median"], 1e3 * (50 / 10000 + 1 / 100), places=6)
        self.assertAlmostEqual(first["p99"], first["median"], places=6)

    def test_many_in_one_slot(self):
        """Each takes it from another, and reads all but the world: of the persona 100 tokens, 40 of the dialogue, and what is said."""
        first = row("--characters", 50, "--slots", 1, "--said", 20, "--reply", 20, "--context", 40, "--persona", 200, "--world", 100,
                    "--think", 5000, "--seconds", 80000)["first_ms"]
        self.assertAlmostEqual(first["median"], 1e3 * ((100 + 40 + 20) / 10000 + 1 / 100), places=6)

    def test_who_has_time(self):
        """Characters that are never in each other's way: as many turns as their own time allows."""
        found = row("--characters", 20, "--slots", 32, "--think", 50, "--seconds", 8000)
        alone = 24 / 10000 + 40 / 100
        self.assertAlmostEqual(found["turns_per_s"] / (20 / (50 + alone)), 1, delta=0.03)
        self.assertAlmostEqual(found["busy"] / (20 * alone / (50 + alone)), 1, delta=0.12)  # two at once are busy once

    def test_what_is_too_much(self):
        """A node's speed is the limit: 8 speak at 400 tokens a second, for as much of its time as it does not read."""
        found = row("--characters", 2000, "--slots", 8, "--think", 10, "--seconds", 200, "--persona", 0, "--world", 0, "--context", 0)
        reads = 24 / 10000
        most = 1 / (40 / 400 + reads)
        self.assertLess(found["turns_per_s"], 1.01 * most)
        self.assertGreater(found["turns_per_s"], 0.9 * most)
        self.assertGreater(found["busy"], 0.99)
        self.assertGreater(found["first_ms"]["p99"], 30e3)

    def test_more_nodes(self):
        rows, _ = run(*NODE, "--characters", 400, "--nodes", "1,2,4,8", "--slots", 8)[0]
        times = [one["first_ms"]["p99"] for one in rows]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertEqual(run(*NODE, "--characters", 400, "--nodes", "1,2,4,8", "--slots", 8)[0][0], rows)  # the same each time

    def test_speeds_between(self):
        table = [(1, 100.0), (4, 300.0), (8, 400.0)]
        self.assertEqual([sim_fleet.speed(table, n) for n in (1, 2, 4, 6, 8, 30)], [100, 100 + 200 / 3, 300, 350, 400, 400])

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            png, out, npc = (pathlib.Path(folder) / name for name in ("a.png", "a.json", "npc.json"))
            (rows, enough), printed = run(*NODE, "--characters", 600, "--slots", 8, "--png", png, "--json", out, "--seconds", 60)
            self.assertIn(f"600 characters: {enough} nodes", printed)
            for one in rows:
                self.assertEqual(one["first_ms"]["p99"] <= 500, one["nodes"] >= enough, one)
            self.assertIn(enough - 1, [one["nodes"] for one in rows])
            self.assertEqual(json.loads(out.read_text())["nodes"], enough)
            self.assertEqual(png.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            npc.write_text(json.dumps({"tokens_per_s": {"prompt": {"median": 10000}, "decode": {"median": 90}},
                                       "slots": {"1": {"median": 100}, "8": {"median": 400}, "4": {"median": 300}, "32": None}}))
            self.assertEqual(run("--npc", npc, "--characters", 600, "--slots", 8, "--seconds", 60)[0], (rows, enough))
        o = sim_fleet.arguments(["--npc", str(MEASURED / "cpu-npc.json")])
        self.assertGreater(o.read, o.speak[0][1])

    def test_what_is_refused(self):
        for words, why in (([], "missing"), (["--read", "1"], "missing"), ([*NODE, "--speak", "1-2"], "'1-2' is not like"),
                           ([*NODE, "--nodes", "0"], "above 0"), ([*NODE, "--world", "600"], "--world must be"),
                           ([*NODE, "--think", "0"], "--think must be above 0"), ([*NODE, "--read-share", "1"], "--read-share must")):
            errors = io.StringIO()
            with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(errors):
                sim_fleet.main(words)
            self.assertEqual(caught.exception.code, 2)
            self.assertIn(why, errors.getvalue())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
