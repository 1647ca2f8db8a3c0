"""The Python package, as pip installs the wheel that the build makes: its structs are C's, its results numpy's, and what is wrong
is an exception that names it.

SPDX-License-Identifier: Apache-2.0

usage: test_python.py BUILD_FOLDER [unittest arguments]
"""
import ctypes
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
BUILD = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import numpy as np
from tool import oracle as R
from tool import tiny_model

FOLDER = tempfile.TemporaryDirectory()
HERE = pathlib.Path(FOLDER.name)
rng = np.random.default_rng(1)


def install():
    """The wheel, and where it lies then."""
    subprocess.run(["cmake", "--build", BUILD, "--target", "tandem_wheel"], check=True, stdout=subprocess.DEVNULL)
    wheels = list((BUILD / "wheel").glob("*.whl"))
    assert len(wheels) == 1 and re.match(r"tandem_engine-\d+\.\d+\.\d+-py3-none-linux_\w+\.whl", wheels[0].name), wheels
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-index",
                    "--root-user-action=ignore", "--target", HERE / "site", wheels[0]], check=True)
    sys.path.insert(0, str(HERE / "site"))


install()
import tandem
from tandem import api


def exact_attention(q, k, v):
    weights = np.exp(q.astype(float) @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5)
    return weights / weights.sum(-1, keepdims=True) @ v


class Base(unittest.TestCase):
    def setUp(self):
        self.session = tandem.Session()
        self.addCleanup(self.session.close)

    def refuses(self, kind, text, call, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertIn(text, str(caught.exception))


class Layer(unittest.TestCase):
    """What is made from the headers is what a C compiler makes of them."""

    def test_layout(self):
        fields = [(s.__name__, name) for s in api.STRUCTS for name, _ in s._fields_]
        enums = {kind: list(kind) for kind in vars(api).values() if isinstance(kind, type) and issubclass(kind, api.IntEnum)
                 and kind is not api.IntEnum}
        headers = "".join(path.read_text() for folder in ("interop/include", "engine_plugin/include")
                          for path in (ROOT / folder).rglob("*.h"))
        members = re.findall(r"\b(TANDEM_\w+) = -?\d", re.sub(r"/\*.*?\*/", "", headers, flags=re.S))
        text = "#include <stdio.h>\n#include <tandem/plugin.h>\nint main(void)\n{\n"
        text += "".join(f'    printf("%zu\\n", sizeof({s.__name__}));\n' for s in api.STRUCTS).replace(
            "sizeof(tandem_vulkan)", "sizeof(struct tandem_vulkan)")
        text += "".join(f'    printf("%zu\\n", offsetof({"struct " * (s == "tandem_vulkan")}{s}, {name}));\n' for s, name in fields)
        text += "".join(f'    printf("%d\\n", (int){name});\n' for name in members) + "    return 0;\n}\n"
        (HERE / "layout.c").write_text(text)
        subprocess.run(["cc", "-I", ROOT / "interop/include", "-I", ROOT / "engine_plugin/include", HERE / "layout.c", "-o",
                        HERE / "layout"], check=True)
        said = list(map(int, subprocess.run([HERE / "layout"], check=True, capture_output=True, text=True).stdout.split()))
        ours = [ctypes.sizeof(s) for s in api.STRUCTS] + [getattr(getattr(api, s), name).offset for s, name in fields]
        self.assertEqual(said[:len(ours)], ours)
        self.assertEqual(sorted(said[len(ours):]), sorted(int(m) for values in enums.values() for m in values))
        self.assertGreater(len(members), 100)

    def test_functions(self):
        for name in api.FUNCTIONS:
            self.assertTrue(hasattr(api.C, name), name)
        self.assertEqual(tandem.__version__, "%d.%d.%d" % (api.C.tandem_version() >> 22, api.C.tandem_version() >> 12 & 1023,
                                                           api.C.tandem_version() & 4095))


class Sessions(Base):
    def test_devices(self):
        found = tandem.devices()
        self.assertEqual(found[-1]["backend"], api.Backend.CPU)
        self.assertTrue(found[-1]["name"] and found[-1]["isa"])

    def test_life(self):
        with tandem.Session(rung="cpu", cpu_threads=1) as session:
            info = session.info()
            self.assertEqual((info["backend"], info["cpu_threads"]), (api.Backend.CPU, 1))
            array = session.empty((4, 8))
            array[...] = 1
            session.norm(array)
        self.assertEqual(array.sum(), 32)  # it is there still
        session.close()
        self.refuses(tandem.ArgumentError, "the session is closed", session.info)
        self.refuses(tandem.ArgumentError, "the session is closed", session.norm, array)
        self.refuses(tandem.ArgumentError, "the session is closed", tandem.Model, session, "x")

    def test_refusals(self):
        self.refuses(tandem.ArgumentError, "desc.rung is 77", tandem.Session, rung=77)
        self.refuses(tandem.ArgumentError, "rung: 'lunch' is none of inline, timeline, host, copy, cpu", tandem.Session, rung="lunch")
        self.refuses(tandem.Unsupported, "inline", tandem.Session, rung="inline")
        self.refuses(TypeError, "has no 'speed'; it has backend", tandem.Session, speed=3)
        self.refuses(tandem.ArgumentError, "cpu_threads is -1, which a", tandem.Session, cpu_threads=-1)
        self.refuses(tandem.ArgumentError, "vulkan is not for sessions of Python", tandem.Session, vulkan=1)
        self.refuses(ValueError, "tuning", tandem.Session, tuning="nonsense")
        self.assertEqual(tandem.ArgumentError("x").status, api.Status.ERROR_ARG)

    def test_log(self):
        lines = []
        with tandem.Session(log=lambda level, text: lines.append((level, text))) as session:
            with self.assertRaises(tandem.FileError):
                tandem.Model(session, "/none")
        self.assertTrue(any(level == api.LogLevel.ERROR and "/none" in text for level, text in lines), lines)

    def test_forgotten(self):
        """Sessions and arrays that nobody closes give back what they have."""
        before = self.session.info()["host_bytes"]
        for _ in range(20):
            self.session.norm(self.session.empty((64, 1024)))
            tandem.Session(cpu_threads=1).empty(64)
        gc.collect()
        self.assertLess(self.session.info()["host_bytes"], before + 4 * 64 * 1024 * 4)


class Operations(Base):
    def test_attention(self):
        for shape in ((64, 32), (3, 64, 64), (2, 3, 65, 32)):
            q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in "qkv")
            for precision, near in (("f16", 3e-3), ("8b", 6e-2), (api.Precision.AUTO, 6e-2)):
                o = self.session.attention(q, k, v, precision=precision)
                self.assertEqual((o.shape, o.dtype), (shape, np.float32))
                self.assertLess(np.abs(o - exact_attention(q, k, v)).max(), near)

    def test_by_pointer(self):
        """Parts of arrays are read and written where they lie, and nothing beside them."""
        big = rng.standard_normal((4, 70, 96)).astype(np.float32)
        q, k, v = big[1:3, 3:67, 32:64], big[:2, :64, :32], big[2:, 5:69, 64:]
        out = np.full((2, 64, 40), 7, np.float32)
        result = self.session.attention(q, k, v, out=out[:, :, 4:36], precision="f16")
        self.assertTrue(np.shares_memory(result, out))
        self.assertLess(np.abs(out[:, :, 4:36] - exact_attention(q, k, v)).max(), 3e-3)
        self.assertTrue((out[:, :, :4] == 7).all() and (out[:, :, 36:] == 7).all())

    def test_norm_and_linear(self):
        x, w = rng.standard_normal((6, 64)).astype(np.float16), rng.standard_normal((24, 64)).astype(np.float16)
        bias = rng.standard_normal(24).astype(np.float32)
        wide, weight = x.astype(float), rng.random(64).astype(np.float32)
        rms = wide / np.sqrt((wide ** 2).mean(-1, keepdims=True) + 1e-5)
        self.assertLess(np.abs(self.session.norm(x, weight, kind="rms") - rms * weight).max(), 5e-3)
        layer = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
        self.assertLess(np.abs(self.session.norm(x, kind="layer") - layer).max(), 5e-3)
        self.assertLess(np.abs(self.session.linear(x, w, bias) - (wide @ w.astype(float).T + bias)).max(), 0.05)

    def test_jobs(self):
        x, y = self.session.empty((8, 64)), self.session.empty((8, 64))
        x[...] = 2
        shared = self.session.tensor(x)
        jobs = [self.session.submit("binary", a=shared, b=x, y=y, batch=1, heads=1, rows=8, channels=64) for _ in range(3)]
        reports = [job.wait(10) for job in jobs]
        self.assertEqual({r["state"] for r in reports}, {api.JobState.DONE})
        self.assertEqual((y == 4).all(), True)
        self.assertEqual(jobs[0].state, api.JobState.DONE)
        self.assertFalse(jobs[0].cancel())
        part = x[2:4, 8:24]  # of the same pages
        self.session.run("binary", a=part, b=part, y=y[4:6, 3:19], batch=1, heads=1, rows=2, channels=16, kind="multiply", scale=2)
        self.assertTrue((y[4:6, 3:19] == 8).all() and y.sum() == 4 * 8 * 64 + 4 * 32)
        self.refuses(tandem.ArgumentError, "it overlaps a", self.session.run, "binary", a=x, b=x, y=x, batch=1, heads=1, rows=8,
                     channels=64)

    def test_refusals(self):
        x, other = np.ones((8, 64), np.float32), tandem.Session()
        frozen = np.ones((8, 64), np.float32)
        frozen.flags.writeable = False
        self.session.norm(frozen)  # may be read
        for text, call in (
            ("elements of <f8", lambda: self.session.norm(x.astype(float))),
            ("stride of 2 elements", lambda: self.session.norm(x[:, ::2])),
            ("none may be below 0", lambda: self.session.norm(x[::-1])),
            ("has 5 dimensions", lambda: self.session.norm(x[None, None, None])),
            ("has no elements", lambda: self.session.norm(x[:0])),
            ("k is of shape (1, 1, 8, 32), not (1, 1, 8, 64)", lambda: self.session.attention(x, x[:, :32], x)),
            ("out is of shape", lambda: self.session.norm(x, out=np.empty((8, 32), np.float32))),
            ("weight is of shape", lambda: self.session.norm(x, np.ones(3, np.float32))),
            ("w has 32 columns, x 64", lambda: self.session.linear(x, x[:, :32])),
            ("'lunch' is none of attention, norm", lambda: self.session.run("lunch")),
            ("head_dim", lambda: self.session.attention(x[:, :41], x[:, :41], x[:, :41])),
            ("precision: '9b' is none of auto, f16", lambda: self.session.attention(x, x, x, precision="9b")),
            ("norm.y is read-only, and the job writes it", lambda: self.session.norm(x, out=frozen)),
            ("linear.q is read-only, and the job writes it", lambda: self.session.run("linear", x=frozen, q=frozen)),
            ("cannot be shared", lambda: self.session.empty((2, 3), "float64")),
            ("norm.x is of another session", lambda: self.session.run("norm", x=other.tensor(x))),
        ):
            self.refuses(tandem.ArgumentError, text, call)
        for call in (tandem.Model, tandem.Denoiser, tandem.Language):  # which ctypes would take for an address
            self.refuses(TypeError, "path is a int: it has to be a text", call, self.session, 5)
        self.refuses(tandem.FileError, "No such file", tandem.Model, self.session, os.fsdecode(b"/caf\xe9"))
        self.refuses(TypeError, "norm.x is a list", self.session.run, "norm", x=[1, 2])
        self.refuses(TypeError, "tandem_norm has no 'z'", self.session.run, "norm", x=x, z=1)

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        q, k, v = (torch.randn(2, 64, 64) for _ in "qkv")
        o = self.session.attention(q, k, v, precision="f16")
        self.assertIsInstance(o, torch.Tensor)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        self.assertLess((o - wanted).abs().max().item(), 3e-3)
        x = torch.randn(8, 64, dtype=torch.bfloat16)
        wanted = torch.nn.functional.layer_norm(x.float(), (64,))
        self.assertLess((self.session.norm(x, kind="layer").float() - wanted).abs().max().item(), 0.02)
        self.refuses(tandem.ArgumentError, "torch.float64", self.session.norm, torch.ones(2, 8, dtype=torch.float64))

    def test_torchs_interface(self):
        """What a tensor of torch is asked for, without torch."""
        class Tensor:
            is_cuda, dtype, shape = False, "torch.bfloat16", (4, 64)
            device = type("device", (), {"type": "cpu"})

            def __init__(self):
                self.bits = np.full((4, 64), 0x4000, np.uint16)  # 2.0
                self.data_ptr, self.stride = lambda: self.bits.ctypes.data, lambda: (64, 1)

        x, y = Tensor(), Tensor()
        self.session.run("binary", a=x, b=x, y=y, batch=1, heads=1, rows=4, channels=64)
        self.assertTrue((y.bits == 0x4080).all())  # 4.0


GRAPH = {
    "version": 1,
    "numbers": {"rows": 64},
    "tensors": {
        "x": {"role": "input", "dtype": "F32", "shape": ["rows", 8]},
        "factor": {"role": "uniform", "dtype": "F32", "shape": [1, 8]},
        "w": {"role": "weight", "dtype": "F32", "shape": [1, 8]},
        "t": {"role": "temporary", "dtype": "F32", "shape": ["rows", 8]},
        "y": {"role": "output", "dtype": "F32", "shape": ["rows", 8]},
    },
    "nodes": [
        {"operation": "binary", "batch": 1, "heads": 1, "rows": "rows", "channels": 8, "kind": 1,
         "views": {"a": "x", "b": {"tensor": "factor", "strides": [0, 0, 0]}, "y": "t"}},
        {"operation": "binary", "batch": 1, "heads": 1, "rows": "rows", "channels": 8,
         "views": {"a": "t", "b": {"tensor": "w", "strides": [0, 0, 0]}, "y": "y"}},
    ],
}


class Networks(Base):
    def test_run(self):
        path = HERE / "network.safetensors"
        weight = np.arange(8, dtype=np.float32)
        R.save(path, {"w": ("F32", weight.reshape(1, 8))}, {"tandem.graph": json.dumps(GRAPH)})
        model = tandem.Model(self.session, path)
        self.assertEqual(model.numbers, {"rows": 64})
        self.assertEqual([(b.name, b.role, b.shape) for b in model.bindings(rows=3)], [("x", "input", (3, 8)), ("y", "output", (3, 8))])
        self.assertEqual([(u.name, u.shape) for u in model.uniforms(rows=3)], [("factor", (1, 8))])
        self.assertEqual(model.tensor("w")[1], (1, 1, 1, 8))
        instance = model.instance()
        for rows in (3, 64):
            x = rng.standard_normal((rows, 8)).astype(np.float32)
            y = instance.run({"x": x}, {"factor": np.full(8, 2)}, rows=rows)["y"]
            self.assertLess(np.abs(y - (2 * x + weight)).max(), 1e-6)
        odd = np.frombuffer(bytearray(4 * 25), np.float32)[1:].reshape(3, 8)  # not from a multiple of 16 on
        self.assertTrue((instance.run({"x": odd}, {"factor": np.zeros(8)}, rows=3)["y"] == weight).all())
        for text, call in (
            ("the numbers are ['columns'], but the network's are ['rows']", lambda: model.bindings(columns=1)),
            ("rows is 65, not 1 to 64", lambda: instance.prepare(rows=65)),
            ("the inputs are [], but the network's are ['x']", lambda: instance.run({}, rows=3)),
            ("x is F32 (2, 8), but the network's is F32 (3, 8)", lambda: instance.run({"x": x[:2]}, {"factor": weight}, rows=3)),
            ("x is F16 (3, 8), but", lambda: instance.run({"x": x[:3].astype(np.float16)}, {"factor": weight}, rows=3)),
            ("the uniforms are [], but", lambda: instance.run({"x": x[:3]}, rows=3)),
            ("factor is of shape (3,)", lambda: instance.run({"x": x[:3]}, {"factor": np.ones(3)}, rows=3)),
            ("none", lambda: model.tensor("none")),
        ):
            self.refuses(tandem.ArgumentError, text, call)
        (HERE / "broken").write_bytes(b"nonsense" * 9)
        self.refuses(tandem.FormatError, "broken", tandem.Model, self.session, HERE / "broken")
        self.refuses(OSError, "/none", tandem.Model, self.session, "/none")

    def test_denoiser(self):
        """The network of the tool's own test, by what PyTorch computes of a frame."""
        folder = ROOT / "tests/kernels/denoiser"
        frame = {name: R.decode(*reversed(value)) for name, value in R.load(folder / "frame.safetensors")[0].items()}
        denoise = tandem.Denoiser(self.session, folder / "model.safetensors")
        given = {name: frame[name] for name in ("color", "albedo", "normal", "depth")}
        out = denoise(**given)
        wanted = frame["expected"]
        self.assertEqual(out.shape, wanted.shape)
        self.assertLess((np.abs(out - wanted) / (0.05 + np.abs(wanted))).max(), 5e-3)
        hard = frame["expected_hard"]
        self.assertLess((np.abs(denoise(**given, hard_edges=True) - hard) / (0.05 + np.abs(hard))).max(), 5e-3)
        denoise.reset()
        self.assertEqual(out.tobytes(), denoise(**given).tobytes())
        self.assertFalse(np.array_equal(out, denoise(frame["color"])))
        self.refuses(tandem.ArgumentError, "color is of shape (4, 5), not (height, width, 3)", denoise, np.ones((4, 5)))
        self.refuses(tandem.ArgumentError, "depth is of shape", denoise, frame["color"], depth=frame["color"])
        R.save(HERE / "no_denoiser.safetensors", {"w": ("F32", np.zeros((1, 8), np.float32))}, {"tandem.graph": json.dumps(GRAPH)})
        self.refuses(tandem.ArgumentError, "is no denoiser", tandem.Denoiser, self.session, HERE / "no_denoiser.safetensors")

    def test_a_denoiser_finds_hard_edges(self):
        """Of a floor by its depths, through the middle of pixels or anywhere in them; of frames in a row those of the first."""
        denoise = tandem.Denoiser(self.session, ROOT / "demo/assets/denoise.safetensors")
        noise, rows = np.random.default_rng(7), np.arange(40, dtype=np.float32).reshape(-1, 1, 1)
        given = {"color": noise.exponential(1, (40, 60, 3)).astype(np.float32),
                 "normal": np.broadcast_to(np.float32([0, 1, 0]), (40, 60, 3))}
        depths = {True: 30 / (rows + np.full((40, 60, 1), 0.5, np.float32)), False: 30 / (rows + noise.random((40, 60, 1), np.float32))}
        for first, depth in depths.items():
            out = []
            for hard in (None, first, not first):
                denoise.reset()
                out.append([denoise(**given, depth=depth, hard_edges=hard), denoise(**given, depth=depths[not first], hard_edges=hard)])
            for found, told, other in zip(*out):
                self.assertEqual(found.tobytes(), told.tobytes())
                self.assertNotEqual(found.tobytes(), other.tobytes())

    def test_a_denoiser_that_upscales(self):
        """A small color is to the bit what it is in a frame that is otherwise missing."""
        denoise = tandem.Denoiser(self.session, ROOT / "tests/kernels/denoiser/model.safetensors")
        noise = np.random.default_rng(6)
        for height, width, rows, columns in ((36, 50, 18, 25), (37, 51, 25, 34)):
            channels = {"albedo": 3, "normal": 3, "depth": 1}
            guides = {name: noise.random((height, width, n)).astype(np.float32) for name, n in channels.items()}
            color = noise.exponential(1, (rows, columns, 3)).astype(np.float32)
            placed = np.full((height, width, 3), np.nan, np.float32)
            for i in range(rows):
                for j in range(columns):
                    placed[(2 * i + 1) * height // (2 * rows), (2 * j + 1) * width // (2 * columns)] = color[i, j]
            out = denoise(color, **guides)
            self.assertEqual(out.shape, (height, width, 3))
            self.assertEqual(out.tobytes(), denoise(placed, **guides).tobytes())
            self.assertEqual(denoise(color, depth=guides["depth"]).shape, out.shape)
            self.refuses(tandem.ArgumentError, f"color is {rows} x {columns // 2}, the G-buffer {height} x {width}", denoise,
                         color[:, : columns // 2], **guides)
            self.refuses(tandem.ArgumentError, f"color is {height} x {width}, the G-buffer {rows} x {columns}", denoise, placed,
                         albedo=color)
            self.refuses(tandem.ArgumentError, "normal is of shape", denoise, color, albedo=guides["albedo"], normal=color)

    def test_a_denoiser_with_frames_before(self):
        """The weights of the demo: frames before make a picture that stands still better than it is alone, until they are forgotten."""
        denoise = tandem.Denoiser(self.session, ROOT / "demo/assets/denoise.safetensors")
        noise, shape = np.random.default_rng(5), (48, 64, 3)
        picture = np.full(shape, 0.3, np.float32)
        picture[:, 32:] = 0.8
        normal = np.zeros(shape, np.float32)
        normal[..., 2], depth = 1, np.ones((48, 64, 1), np.float32)
        frames = [picture * noise.exponential(1, shape[:2] + (1,)).astype(np.float32) for _ in range(6)]
        out = [denoise(frame, normal=normal, depth=depth) for frame in frames]
        errors = [float(np.abs(o - picture).mean()) for o in out]
        self.assertLess(errors[0], 0.5 * np.abs(frames[0] - picture).mean())
        denoise.reset()
        alone = float(np.abs(denoise(frames[-1], normal=normal, depth=depth) - picture).mean())
        self.assertLess(errors[-1], 0.9 * alone, errors)
        denoise.reset()
        self.assertEqual(denoise(frames[0], normal=normal, depth=depth).tobytes(), out[0].tobytes())
        invalid = denoise(frames[1], normal=normal, depth=depth, valid=np.zeros((48, 64, 1)))
        self.assertFalse(np.array_equal(invalid, out[1]))
        self.assertEqual(denoise(frames[1][:32], normal=normal[:32], depth=depth[:32]).shape, (32, 64, 3))
        self.refuses(tandem.ArgumentError, "motion is of shape (48, 64, 3), not (48, 64, 2)", denoise, frames[0], motion=normal)


class Npcs(Base):
    def setUp(self):
        super().setUp()
        tiny_model.write(HERE / "tiny.gguf")
        self.language = tandem.Language(self.session, HERE / "tiny.gguf", context=256)

    def test_answers(self):
        self.assertEqual(self.language.info()["context"], 256)
        npc = self.language.npc("A smith.")
        pieces = list(npc.stream("Hello.", most_tokens=12, sampling={"temperature": 1.5, "seed": 3}))
        whole = "".join(pieces)
        self.assertEqual(npc.history, [("user", "Hello."), ("npc", whole)])
        npc.history = []
        self.assertEqual(npc.say("Hello.", most_tokens=12, sampling={"temperature": 1.5, "seed": 3}), whole)
        schema = {"type": "object", "properties": {"gold": {"enum": [1, 2]}}, "required": ["gold"], "additionalProperties": False}
        self.assertIn(json.loads(npc.say("Cost?", json_schema=json.dumps(schema)))["gold"], (1, 2))
        self.assertEqual(npc.say("x", grammar='root ::= "a\\u00e9b"'.replace("\\u00e9", "\u00e9"), stops="b"), "a\u00e9")
        several = npc.say("y", replies=3, most_tokens=4, sampling={"temperature": 2, "seed": 1})
        self.assertIn(several, [npc.reply(i)["text"] for i in range(3)])
        npc.choose(2)
        self.assertEqual(npc.history[-1], ("npc", npc.reply(2)["text"]))
        self.assertEqual(npc.say("z", bias={ord("q"): 1e6}, most_tokens=3), "qqq")

    def test_frames(self):
        npc = self.language.npc()
        npc.begin("Hi.", most_tokens=5)
        said, polls = "", 0
        while True:
            news = npc.poll()
            said, polls = said + news["text"], polls + 1
            if news["state"] == api.NpcState.IDLE:
                break
        self.assertGreater(polls, 2)
        self.assertEqual(npc.history[-1][1], said)
        for piece in npc.stream("More?", most_tokens=200):  # left in the middle
            break
        self.assertEqual(npc.poll()["state"], api.NpcState.IDLE)
        self.refuses(tandem.Busy, "not over after 0 s", lambda: list(npc.stream("x", timeout=0, most_tokens=200)))

    def test_refusals(self):
        npc = self.language.npc()
        self.refuses(tandem.ArgumentError, "grammar", npc.say, "x", grammar="root ::= (")
        self.refuses(TypeError, "tandem_say has no 'loud'", npc.say, "x", loud=1)
        self.refuses(TypeError, "tandem_sampling has no 'heat'", npc.say, "x", sampling={"heat": 1})
        self.refuses(tandem.ArgumentError, "NUL", npc.say, "a\0b")
        self.refuses(tandem.ArgumentError, "text: 'utf-8' codec can't encode", npc.say, "a\ud800")
        self.refuses(TypeError, "text is a int: it has to be a text", npc.say, 5)
        self.refuses(TypeError, "stops is a int", npc.say, "a", stops=[5])
        self.refuses(tandem.ArgumentError, "stops has a NUL", npc.say, "a", stops=["b\0"])
        with self.assertRaises(tandem.ArgumentError):
            npc.history = [("wizard", "x")]
        npc.close()
        self.refuses(tandem.ArgumentError, "the character is closed", npc.say, "x")

    def test_logprobs(self):
        npc = self.language.npc()
        text = npc.say("Well?", logprobs=1, top_logprobs=2, most_tokens=6, grammar="root ::= [a-z]{6}")
        tokens = npc.tokens()
        self.assertEqual(b"".join(token for token, _, _ in tokens).decode(), text)
        for token, likely, tops in tokens:
            self.assertEqual(len(tops), 2)
            self.assertTrue(likely <= tops[0][1] and tops[1][1] <= tops[0][1] < 0)
        npc.say("And?", most_tokens=2)
        self.refuses(tandem.ArgumentError, "logprobs was 0", npc.tokens)

    def test_embeddings(self):
        self.refuses(tandem.Unsupported, "the language makes no embeddings", self.language.embedder)
        language = tandem.Language(self.session, HERE / "tiny.gguf", context=256, embeds=1)
        embedder = language.embedder()
        vector = embedder.embed("A smith.")
        self.assertEqual(len(vector), language.info()["embedding_count"])
        self.assertAlmostEqual(sum(x * x for x in vector), 1, 5)
        self.assertEqual(embedder.embed("A smith.", timeout=60), vector)
        embedder.begin("A smith.")
        while (polled := embedder.poll()) is None:
            pass
        self.assertEqual(polled, vector)
        self.assertNotEqual(language.embedder(before="").embed("A smith."), vector)
        self.refuses(tandem.Busy, "not there after 0 s", embedder.embed, "long " * 40, timeout=0)
        self.refuses(tandem.ArgumentError, "text is empty", embedder.embed, "")
        self.refuses(tandem.ArgumentError, "NUL", embedder.embed, "a\0b")
        embedder.close()
        self.refuses(tandem.ArgumentError, "the embedder is closed", embedder.embed, "x")
        self.refuses(tandem.FileError, "/none", tandem.Language, self.session, "/none")


class Readme(unittest.TestCase):
    def test_what_it_shows(self):
        first, second = re.findall(r"^```python\n(.*?)^```", (ROOT / "engine_plugin/python/README.md").read_text(), re.M | re.S)
        exec(compile(first, "README.md", "exec"), {})
        compile(second, "README.md", "exec")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
