"""Texts of help, what is made from them, and the first steps that the README shows.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import numpy as np
import limits
import oracle as R
from tool.rig import FOLDER, SOURCE, TOOL, tool
from tool.words import Words

TOPICS = """sample-qkv attend accuracy calibrate run plan denoise gi eval fetch tokenize generate logits perplexity npc serve conform doctor info top layer bench
bench-handover bench-attention bench-linear bench-daemon bench-npc bench-effect tune probe version help""".split()
# Where an option is read, if not in engine_plugin/tool/TOPIC.c.
FILES = {"version": None, "help": None, "bench": None, "accuracy": "tests/bench/accuracy.c", "eval": "tests/bench/eval.c",
         "serve": "engine_plugin/serve/main.c" if pathlib.Path(TOOL).with_name("tandem-serve").exists() else None}
FILES |= {f"bench-{bench}": f"tests/bench/{bench}.c" for bench in ("handover", "attention", "linear", "daemon", "npc", "effect")}


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
            source = FILES.get(topic, f"engine_plugin/tool/{topic.replace('-', '_')}.c")
            explained = self.options(topic)
            if not source:
                continue
            read = set(re.findall(r'\{"(--[a-z0-9-]+)", (?:&|NULL)', (SOURCE / source).read_text()))
            inputs = {"--in"} if topic in ("accuracy", "calibrate") else set()  # lists of files, which are read apart
            self.assertEqual(read | inputs, set(explained), topic)
            for option, words in explained.items():
                if words:
                    needs = ["fp22"] if topic == "probe" else []
                    needs += ["--in", "F", "--out", "G", "--precision", "8b"] if topic == "attend" else []
                    needs += ["--out", "G"] if topic == "sample-qkv" else []
                    needs += ["--model", "M"] if topic in ("plan", "run", "denoise", "gi", "tokenize", "generate", "logits", "perplexity",
                                                           "serve") else []
                    needs += ["--prompt", "T"] if topic == "generate" else []
                    needs += ["--tokens", "1", "--out", "G"] if topic == "logits" else []
                    needs += ["--text", "T"] if topic == "perplexity" else []
                    needs += ["--in", "F", "--out", "G"] if topic == "run" else []
                    needs += ["--frame", "F", "--out", "G"] if topic in ("denoise", "gi") else []
                    needs += ["denoise", "--frames", "F"] if topic == "eval" else []
                    needs += ["--prove"] if topic == "tune" else []
                    run = tool(*topic.replace("bench-", "bench ").split(), *needs, option, "no-such-word")
                    self.assertEqual(run.returncode, 2, run.stderr)
                    for word in ["no-such-word", *words]:
                        self.assertIn(word, run.stderr, (topic, option))

    def test_man_pages(self):
        folder = pathlib.Path(TOOL).parent / "engine_plugin/tool/manual"
        names = ["tandem"] + [f"tandem-{t}" for t in TOPICS if not t.startswith("bench-")]
        self.assertEqual(sorted(p.stem for p in folder.glob("*.1")), sorted([*names, "tandemd"]), "the pages that the build made")
        for name in [*names, "tandemd"]:
            page = (folder / f"{name}.1").read_text()
            if name != "tandemd":
                self.assertEqual(page, tool("help", "--man", *[name[7:]] if name != "tandem" else []).stdout)
            for checker in (["groff", "-man", "-Tutf8", "-ww", "-z"], ["mandoc", "-Tlint", "-Wwarning"]):
                if not shutil.which(checker[0]):
                    continue
                run = limits.run(checker, input=page, capture_output=True, text=True, seconds=60)
                self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""), name)
        if shutil.which("groff"):
            page = tool("help", "--man", "bench").stdout
            run = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou"], input=page, capture_output=True, text=True)
            for words in ("tandem-bench - ", "--payloads", "--run-ms N", "--socket", "Exit status 1, too"):
                self.assertIn(words, " ".join(run.stdout.split()))
            # All that tandemd --help says is on its page, in that order.
            page = (folder / "tandemd.1").read_text()
            run = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=200n"], input=page, capture_output=True, text=True)
            rest = iter(run.stdout.split())
            text = limits.run([pathlib.Path(TOOL).with_name("tandemd"), "--help"], capture_output=True, text=True, seconds=60).stdout
            said = text.removeprefix("usage: ").replace("Exit status: ", "").split()
            self.assertGreater(len(said), 100)
            self.assertEqual([word for word in said if word not in rest], [])

    def complete(self, *words):
        script = f'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tandem; printf "%s\\n" "${{COMPREPLY[@]}}"'
        script = pathlib.Path(TOOL).parent / "engine_plugin/tool/manual/tandem.bash", script
        run = limits.run(["bash", "-c", script[1], "bash", script[0], "tandem", *words],
                         capture_output=True, text=True, cwd=FOLDER, seconds=20)
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
        folder = pathlib.Path(TOOL).parent / "engine_plugin/tool/manual"
        for shell in ("bash", "zsh", "fish"):
            script = tool("help", f"--{shell}").stdout
            self.assertEqual(script, (folder / f"tandem.{shell}").read_text())
            if shutil.which(shell):
                run = limits.run([shell, "-n"], input=script, capture_output=True, text=True, seconds=60)
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
            run = limits.run(["fish", "--no-config", "-c", f"source {folder}/tandem.fish; complete -C 'tandem attend --backend '"],
                             capture_output=True, text=True, seconds=60)
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
            ((*out, "--d", "63"), 2, ['--d "63"', "32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256"]),
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
        self.assertTrue({"sample-qkv", "attend"} <= {words[1] for words in shown})
        with tempfile.TemporaryDirectory() as folder:
            for words in shown:
                if words[1] in ("bench", "tune", "calibrate", "denoise", "gi", "fetch", "tokenize", "generate", "npc", "serve", "perplexity", "conform", "eval"):  # minutes, PyPI
                    words = [*words, "--help"]
                run = tool(*words[1:], cwd=folder)
                self.assertEqual((run.returncode, run.stderr), (0, ""), words)
            tensors, _ = R.load(pathlib.Path(folder) / "o.safetensors")
            self.assertTrue({"o", "lse", "q_codes", "v_codes"} <= set(tensors))
            q, k, v = (R.decode(*reversed(R.load(pathlib.Path(folder) / "qkv.safetensors")[0][n])) for n in "qkv")
            self.assertLess(R.rel_l1(R.decode(*reversed(tensors["o"])), R.exact(q, k, v)[0]), 0.05)
