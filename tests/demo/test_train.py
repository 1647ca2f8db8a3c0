"""`demo/train/run.sh`, `gi.py` and `npc.py`: two runs, each going on where the last one ended, to a model that the tool takes.

SPDX-License-Identifier: Apache-2.0

usage: test_train.py BUILD_FOLDER [unittest arguments]
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
import numpy as np
from tool import oracle as R

BUILD = pathlib.Path(sys.argv[1]).resolve()
RUN = pathlib.Path(__file__).resolve().parent.parent.parent / "demo/train/run.sh"
NEEDED = ("torch", "safetensors", "numpy")


class Characters(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_two_runs(self):
        """The second begins with what the first left; the file of the last has the logits that PyTorch computes."""
        sys.path.insert(0, str(RUN.parent))
        import torch

        import npc_model
        script = [sys.executable, RUN.with_name("npc.py")]
        with tempfile.TemporaryDirectory(prefix="tandem-npc-") as folder:
            out = pathlib.Path(folder)
            for _ in range(2):
                run = limits.run([*script, "train", "--out", out, "--preset", "tiny", "--batch", "1", "--rows", "64", "--workers", "1", "--seconds", "1",
                                  "--total-seconds", "2", "--questions", "1", "--device", "cpu"], seconds=120, capture_output=True, text=True)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
            ends = [line for line in map(json.loads, (out / "npc.jsonl").read_text().splitlines()) if "final" in line]
            self.assertGreater(ends[1]["step"], ends[0]["step"])
            run = limits.run([*script, "export", out / "npc.pt", out / "npc.gguf", "--type", "f32"], seconds=120, capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            ids = np.random.default_rng(0).integers(3, 3000, 50)
            run = limits.run([BUILD / "tandem", "logits", "--model", out / "npc.gguf", "--tokens", ",".join(map(str, ids)), "--out",
                              out / "logits.safetensors", "--kv", "f32", "--rung", "cpu"], seconds=60, capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            saved = torch.load(out / "npc.pt", weights_only=True)
            model = npc_model.Model(saved["sizes"])
            model.load_state_dict(saved["model"])
            with torch.no_grad():
                expected = model.logits(model(torch.tensor(ids)[None]))[0].numpy()
            np.testing.assert_allclose(R.load(out / "logits.safetensors")[0]["logits"][1], expected, atol=1e-4)


class Gi(unittest.TestCase):
    @unittest.skipUnless(all(map(importlib.util.find_spec, NEEDED)), "PyTorch or safetensors is not installed")
    def test_two_runs(self):
        """On frames of two sizes; the second begins with what the first left, and the tool computes what is exported."""
        with tempfile.TemporaryDirectory(prefix="tandem-gi-") as folder:
            out = pathlib.Path(folder)
            for size in ("32x24", "40x33"):
                width, height = size.split("x")
                run = limits.run([BUILD / "tandem-frames", "--gi", "--out", out, "--name", size, "--count", "4", "--width", width, "--height", height,
                                  "--reference", "4"], seconds=120, capture_output=True, text=True)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
            script = [sys.executable, RUN.with_name("gi.py"), out / "gi.pt", "--frames", out, "--held-out", out, "--width", "32", "--heads", "1",
                      "--depth", "1", "--batch", "2", "--every", "1", "--run-steps", "2", "--steps", "4", "--device", "cpu", "--log", out / "gi.jsonl"]
            for first in (0, 2):
                run = limits.run(script, seconds=120, capture_output=True, text=True)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertIn(f"from step {first} on", run.stdout)
            self.assertEqual([json.loads(line)["step"] for line in (out / "gi.jsonl").read_text().splitlines()], [1, 2, 3, 4])
            model, frame = out / "gi.safetensors", next(out.glob("40x33.*"))
            run = limits.run([sys.executable, RUN.with_name("gi_export.py"), out / "gi.pt", model], seconds=120, capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            run = limits.run([BUILD / "tandem", "gi", "--model", model, "--frame", frame, "--out", out / "lit.safetensors"], seconds=120,
                             capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertTrue(np.isfinite(R.load(out / "lit.safetensors")[0]["indirect"][1]).all())


@unittest.skipUnless(all(map(importlib.util.find_spec, NEEDED)), "PyTorch or safetensors is not installed")
class Denoiser(unittest.TestCase):
    """Parts of denoise.py."""

    def setUp(self):
        sys.path.insert(0, str(RUN.parent))
        self.addCleanup(sys.path.remove, str(RUN.parent))

    def test_weights_there_and_back(self):
        """What is read of a file is exported as that very file."""
        import export
        import network
        file = RUN.parents[1] / "assets/denoise.safetensors"
        options, weights = export.read(file)
        net = network.Denoiser(**options)
        net.load_state_dict(weights)
        with tempfile.TemporaryDirectory(prefix="tandem-weights-") as folder:
            again = pathlib.Path(folder) / "again.safetensors"
            export.write(export.graph_of(net), again)
            self.assertEqual(again.read_bytes(), file.read_bytes())
        for other in (file.with_name("gi.safetensors"), pathlib.Path(__file__)):
            with self.assertRaisesRegex(SystemExit, f"{other.name}: not a denoiser of export.py"):
                export.read(other)

    def test_widened(self):
        """A file of fewer channels, widened, says the same, and learns by its new ones."""
        import denoise
        import network
        import torch
        file = RUN.parents[1] / "assets/denoise-fast.safetensors"
        nets = []
        for widths in (None, network.PRESETS["fast"], network.PRESETS["high"]):
            options, weights = denoise.beginning(file, widths)
            nets.append(network.Denoiser(**options))
            nets[-1].load_state_dict(weights)
        self.assertEqual([net.widths for net in nets], [network.PRESETS[preset] for preset in ("fast", "fast", "high")])
        generator = torch.Generator().manual_seed(1)
        color, albedo, normal, depth, history = (torch.rand(1, channels, 24, 40, generator=generator) for channels in (3, 3, 3, 1, 4))
        said = [net(color, albedo, normal, depth, history) for net in nets]
        for other in said[1:]:
            for a, b in zip(said[0], other):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        said[2][0].log1p().sum().backward()
        self.assertGreater(float(nets[2].half2.weight.grad[:, 32:].abs().max()), 0)
        with self.assertRaisesRegex(SystemExit, "denoise.safetensors: has .48, 64, 96. channels, more than .32, 64, 96."):
            denoise.beginning(file.with_name("denoise.safetensors"), (32, 64, 96))

    def test_exposure(self):
        """Of pixels that are there: as many tiles' means, however few pixels they are of."""
        import network
        import torch
        tiles = torch.exp(torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(1)))
        color = tiles.repeat_interleave(16, 2).repeat_interleave(16, 3)[..., :40, :].expand(-1, 3, -1, -1).clone()
        depth = torch.ones_like(color[:, :1])

        def exposure():
            return float(network.demodulate(color, color / 10, color, depth)[3])
        expected = float(torch.exp(-tiles.log().mean()))
        self.assertAlmostEqual(exposure(), expected, delta=1e-5 * expected)
        color[:, 1, ::2] = torch.nan
        color[..., 1::3] = torch.inf
        self.assertAlmostEqual(exposure(), expected, delta=1e-5 * expected)
        color[..., :16, 32:48] = torch.nan
        tiles[0, 0, 0, 2] = 1  # does not count
        expected = float(torch.exp(-tiles.log().sum() / 11))
        self.assertAlmostEqual(exposure(), expected, delta=1e-5 * expected)

    def test_hard_edges(self):
        """A frame of a floor is known by its depths, in a batch each frame is told its own, and where it is told none is mixed."""
        import batches
        import network
        import torch
        generator = torch.Generator().manual_seed(4)
        rows, jitter = torch.arange(40.0).view(-1, 1, 1).expand(40, 60, 1), torch.rand(40, 60, 1, generator=generator)
        normal = torch.tensor([0.0, 1.0, 0.0]).expand(40, 60, 3)
        for dtype in (torch.float32, torch.float16):
            for within, hard in ((0.5, True), (jitter, False)):
                depth = (30 / (rows + within)).to(dtype)
                self.assertEqual(batches.edges_are_hard(depth, normal), hard)
                self.assertEqual(batches.edges_are_hard(depth, None), hard)
        self.assertFalse(batches.edges_are_hard(torch.zeros(40, 60, 1), normal))
        torch.manual_seed(5)
        net = network.Denoiser(widths=(16, 16, 16))
        color, albedo, normal, depth = (torch.rand(2, channels, 12, 20, generator=generator) for channels in (3, 3, 3, 1))
        smooth, hard = (net(color, albedo, normal, depth, hard=each)[0] for each in (False, True))
        told = net(color, albedo, normal, depth, hard=torch.tensor([True, False]).view(2, 1, 1, 1))[0]
        self.assertTrue(torch.equal(told, torch.cat((hard[:1], smooth[1:]))))
        self.assertFalse(torch.equal(hard, smooth))
        group = self.make_group()
        group.hard[2] = True
        for t, frame in enumerate(batches.batch_of([group], 8, 4, 48, torch.Generator().manual_seed(3))):
            self.assertEqual(frame["hard"].flatten().tolist(), [t == 2] * 8)

    def make_group(self, size=72):
        """A path of four frames, whose pixels are all different."""
        import batches
        import torch
        group, generator = batches.Group(), torch.Generator().manual_seed(2)
        frames = [{"color": torch.rand(size, size, 3, generator=generator) + 0.1, "motion": torch.zeros(size, size, 2)} for _ in range(4)]
        group.stack(frames, [frame["color"] for frame in frames])
        group.clips, group.is_path = [[(i, i) for i in range(4)]], [True]
        return group

    def test_sparse_crops(self):
        """Every clip, or none, has color but at the pixels of a smaller render: the same ones in all frames, or each its own."""
        import batches
        import torch
        batch = batches.batch_of([self.make_group()], 64, 4, 48, torch.Generator().manual_seed(3), 1.0)
        there = torch.stack([frame["color"].isfinite().all(1) for frame in batch])
        seen, patterns = set(), set()
        for clip in range(64):
            rows, columns = there[:, clip].any(2), there[:, clip].any(1)
            holes = (there[:, clip] != rows[:, :, None] & columns[:, None, :]).float().mean()
            self.assertLess(holes, 0.02)  # of those that miss some pixels anyway
            share = int(rows[0].sum())
            self.assertIn(share, (24, 32))
            period = 2 if share == 24 else 3
            for lines in (rows, columns):
                self.assertTrue((lines.view(4, -1, period) == lines.view(4, -1, period)[:, :1]).all())
                self.assertTrue((lines.sum(1) == share).all())
            patterns.update((period, tuple(lines[0, :period].tolist())) for lines in (rows, columns))
            seen.add((period, bool((rows == rows[:1]).all() and (columns == columns[:1]).all())))
        self.assertEqual(seen, {(2, True), (2, False), (3, True), (3, False)})
        self.assertEqual(len(patterns), 5)
        for frame in batch:
            self.assertTrue(frame["reference"].isfinite().all())
        batch = batches.batch_of([self.make_group()], 64, 1, 48, torch.Generator().manual_seed(3), 0.0)
        self.assertGreater(batch[0]["color"].isfinite().float().mean(), 0.99)

    def test_losses(self):
        """SSIM is that of the tool, and relMSE, but for errors that are several times a pixel's reference; flicker its root of a mean square; nothing is lost where the result is the reference."""
        import denoise
        import torch
        generator = torch.Generator().manual_seed(4)
        reference = torch.rand(2, 3, 24, 30, generator=generator) ** 2
        out = (reference + 0.1 * torch.randn(2, 3, 24, 30, generator=generator)).clamp_min(0)
        frame = {"reference": reference, "albedo": torch.ones_like(reference), "motion": torch.zeros(2, 2, 24, 30)}
        exposure = torch.full((2, 1, 1, 1), 2.5)  # 1 / 0.4: what is shown is x / (1 + x)
        parts = dict(zip(denoise.PARTS, map(float, denoise.losses_of(out, out, exposure, frame))))
        a, b = (x.double().numpy() for x in (out, reference))
        self.assertAlmostEqual(parts["relative"], np.mean(9 * np.log1p((a - b) ** 2 / (b * b + 0.01) / 9)), delta=1e-4 * parts["relative"])
        self.assertAlmostEqual(parts["relative"], np.mean((a - b) ** 2 / (b * b + 0.01)), delta=0.1 * parts["relative"])
        self.assertAlmostEqual(parts["structure"], 1 - self.ssim(a / (1 + a), b / (1 + b)), delta=1e-4)
        for part, loss in zip(denoise.PARTS, denoise.losses_of(reference, reference, exposure, frame)):
            self.assertAlmostEqual(float(loss), 0, delta=1e-6, msg=part)

        # A result that follows the reference from frame to frame does not flicker, whatever it lacks; what is not seen again counts for nothing.
        then = torch.rand(2, 3, 24, 30, generator=generator)
        now = then.roll(3, 3)
        frame["motion"][:, 0] = -3.3
        frame["motion"][0, 1, 5] = torch.nan
        frame["valid"] = torch.ones(2, 1, 24, 30)
        frame["valid"][:, :, 7] = 0
        worse = now.clone()
        worse[:, :, 7], worse[0, :, 5], worse[..., :3] = 9, 9, 9
        still = float(denoise.flicker_of((worse, worse), (then, then), exposure, frame))
        self.assertAlmostEqual(still, 1e-3, delta=1e-6)
        self.assertAlmostEqual(float(denoise.flicker_of((worse, now), (then, then), exposure, frame)), still, delta=1e-6)
        other = now + 0.5
        change = (other / (1 + other) - now / (1 + now)).double().numpy()
        seen = np.ones((2, 24, 30), bool)
        seen[..., :3], seen[:, 7], seen[0, 5] = False, False, False
        logs = ((1 + 2.5 * other).log() - (1 + 2.5 * now).log()).double().numpy()
        expected = np.mean([np.sqrt((c.transpose(1, 2, 0)[s] ** 2).mean() + 1e-6) + l.transpose(1, 2, 0)[s].mean() for c, l, s in zip(change, logs, seen)])
        self.assertAlmostEqual(float(denoise.flicker_of((other, now), (then, then), exposure, frame)), expected, delta=1e-5)

    @staticmethod
    def ssim(a, b):
        weights = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
        weights /= weights.sum()

        def mean(x):
            for axis in (2, 3):
                x = np.lib.stride_tricks.sliding_window_view(x, 11, axis) @ weights
            return x
        ma, mb = mean(a), mean(b)
        va, vb, covariance = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
        return np.mean((2 * ma * mb + 1e-4) * (2 * covariance + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))


class Train(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-train-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    maxDiff = None

    def run_it(self, *args):
        return limits.run(["sh", RUN, "--build", BUILD, "--python", sys.executable, "--out", self.folder / "out", *args], seconds=300,
                          capture_output=True, text=True)

    def test_refusals(self):
        for words, *args in (("\"\" is none",), ("\"five\" is none", "--run", "five"), ("must be less than --runs, 2", "--run", "2", "--runs", "2"),
                             ("at least 1", "--run", "0", "--minutes", "0"), ("must be as 320x192", "--run", "0", "--size", "7"),
                             ("unknown option --sizes", "--run", "0", "--sizes", "7"), ("needs a value", "--run"),
                             ("no such folder", "--run", "0", "--held-out", "nowhere"),
                             ("no such file", "--run", "0", "--weights", "nowhere"), ("needs --frames", "--run", "0", "--beside", "nowhere"),
                             ("must be 1 to 25", "--run", "0", "--processes", "26"), ("--first 1e3: must", "--run", "0", "--first", "1e3"), ("has no tandem", "--run", "0", "--build", "nowhere")):
            run = self.run_it(*args)
            self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
            self.assertIn(words, run.stderr)

    @unittest.skipUnless(all(map(importlib.util.find_spec, NEEDED)), "PyTorch or safetensors is not installed")
    def test_two_runs(self):
        common = ("--runs", "2", "--minutes", "4", "--render-share", "2", "--size", "32x32", "--reference", "8")
        options = "--widths 16,16,16 --crop 32 --batch 4 --every 1 --run-steps 2"
        run = self.run_it("--run", "1", *common)
        self.assertIn("goes on from a checkpoint", run.stderr)
        held_out = self.folder / "held"
        held_out.mkdir()
        picture = np.random.default_rng(0).random((20, 24, 3)).astype(np.float32)
        R.save(held_out / "a.0.safetensors", {"color": ("F32", picture), "reference": ("F32", np.full_like(picture, 0.5))})
        for number in (0, 1):
            run = self.run_it("--run", str(number), *common, "--options", options, *(("--held-out", held_out) if number else ()))
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn(f"from step {2 * number} on", run.stdout)
        out = self.folder / "out"
        lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        self.assertIn("denoise.safetensors", (out / "judged.txt").read_text())
        rows = {row["name"]: row["psnr_db"] for row in json.loads((out / "judged.json").read_text())["rows"]}
        self.assertGreater(rows["denoise.safetensors"], rows["input"])
        _, metadata = R.load(out / "denoise.safetensors")
        self.assertIn("tandem.graph", metadata)
        again = self.folder / "again.safetensors"
        run = limits.run([BUILD / "tandem", "denoise", "--model", out / "denoise.safetensors", "--frame", held_out / "a.0.safetensors", "--out", again],
                         seconds=120, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertTrue(np.isfinite(R.load(again)[0]["color"][1]).all())

    @unittest.skipUnless(all(map(importlib.util.find_spec, NEEDED)), "PyTorch or safetensors is not installed")
    def test_beside(self):
        """Two runs at the same time: each trains on the frames of both; one begins with weights, of which it tells the width."""
        import torch
        sys.path.insert(0, str(RUN.parent))
        self.addCleanup(sys.path.remove, str(RUN.parent))
        import export
        import network
        weights, runs = self.folder / "weights.safetensors", []
        export.write(export.graph_of(network.Denoiser(widths=(16, 16, 32), history=True)), weights)
        for own, other, *more in ((0, 1, "--weights", weights), (1, 0, "--first", "7000000")):
            runs.append(subprocess.Popen(["sh", RUN, "--build", BUILD, "--python", sys.executable, "--out", self.folder / f"out{own}", "--run", "0", "--runs", "1",
                                          "--minutes", "60", "--render-share", "0", "--size", "32x32", "--reference", "8", "--processes", "2",
                                          "--frames", self.folder / f"frames{own}", "--beside", self.folder / f"frames{other}", *more,
                                          "--options", "--widths 16,32,32 --crop 32 --batch 4 --every 1 --run-steps 2"],
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limits.cpu(300)))
        told = [run.communicate(timeout=300 * limits.WALL) for run in runs]
        made = [{path.name for path in (self.folder / f"frames{own}").glob("*.00.safetensors")} for own in (0, 1)]
        self.assertFalse(made[0] & made[1])
        for own, (run, (out, err)) in enumerate(zip(runs, told)):
            self.assertEqual((run.returncode, err), (0, ""))
            self.assertEqual({name.split(".")[0] for name in made[own]}, {"still", "path"})
            self.assertIn(f"\n{len(made[0] | made[1])} clips", out)
            lines = [json.loads(line) for line in (self.folder / f"out{own}/train.jsonl").read_text().splitlines()]
            for line in lines:
                self.assertAlmostEqual(sum(line["parts"].values()), line["loss"], delta=1e-4)
            self.assertEqual([line["parts"]["flicker"] > 0 for line in lines], [False, True])
            options = torch.load(self.folder / f"out{own}/denoise.pt", weights_only=True)["options"]
            self.assertEqual(options["widths"], (16, 32, 32))  # the one was widened to it


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"test_train: {result.testsRun} tests, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad else 0)
