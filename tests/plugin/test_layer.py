"""VK_LAYER_TANDEM_effect under programs that know nothing of it, on lavapipe and a display of Xvfb: layer_game, whose picture is the
same in each frame, and vkcube. What becomes of a picture is compared with what the filter is said to make of it, validation
layers below are silent, and whatever goes wrong the picture is the program's own.

SPDX-License-Identifier: Apache-2.0

usage: test_layer.py BUILD_FOLDER [unittest arguments]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
GAME, TOOL, LAYER = BUILD / "layer_game", BUILD / "tandem", BUILD / "libVkLayer_tandem_effect.so"
CUBE = shutil.which("vkcube")
COMPLAINTS = re.compile(r"VUID-[\w-]+|SYNC-HAZARD-[\w-]+|UNASSIGNED-[\w-]+")
VALIDATION = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
              "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"}
DENOISE = {"TANDEM_LAYER_EFFECT": "denoise-film", "TANDEM_LAYER_HUD": "0", "TANDEM_LAYER_SIGMA": "8"}
# A pixel is rounded to a code, and its tokens to halves.
NEAR = 0.55
# With 10 bits the rounding is an eighth of a step of 8.
DEEP = 0.25


class Screen:
    """An X server with a screen of some depth: the name of its display."""

    def __init__(self, depth):
        self.folder = folder / f"screen{depth}"
        self.folder.mkdir()
        self.ready, tell = os.pipe()  # which stays open, as the server writes to it in pieces
        self.process = subprocess.Popen(["Xvfb", "-displayfd", str(tell), "-screen", "0", f"640x480x{depth}", "-nolisten", "tcp",
                                         "-noreset", "-fbdir", self.folder],
                                        pass_fds=[tell], stderr=subprocess.DEVNULL)
        os.close(tell)
        self.display = ":" + os.read(self.ready, 16).decode().strip()

    def __enter__(self):
        return self.display

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=30 * limits.WALL)
        os.close(self.ready)


def setUpModule():
    global folder, display, server, screen
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-layer-"))
    (folder / "run").mkdir(mode=0o700)
    shown = Screen(24)
    display, server, screen = shown.display, shown.process, shown.folder / "Xvfb_screen0"


def tearDownModule():
    server.terminate()
    server.wait(timeout=30 * limits.WALL)
    shutil.rmtree(folder)


def test_layer(name):
    """The environment in which loaders find VK_LAYER_TEST_NAME, and the validation layers."""
    layers = folder / name
    layers.mkdir(exist_ok=True)
    (layers / f"{name}.json").write_text(json.dumps({"file_format_version": "1.2.0", "layer": {
        "name": f"VK_LAYER_TEST_{name}", "type": "GLOBAL", "library_path": str(BUILD / f"liblayer_{name}.so"),
        "api_version": "1.3.0", "implementation_version": "1", "description": name}}))
    return {"VK_LAYER_PATH": f"{layers}:/usr/share/vulkan/explicit_layer.d"}


def environment(layer=True, **more):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_L", "VK_LAYER", "VK_INSTANCE"))}
    env |= {"DISPLAY": display, "SDL_VIDEODRIVER": "x11", "XDG_DATA_HOME": str(BUILD), "XDG_RUNTIME_DIR": str(folder / "run")}
    return env | ({"TANDEM_LAYER": "1"} if layer else {}) | more


def game(*words, layer=True, **more):
    """(What became of each window's picture, what was complained of.)"""
    run = limits.run([GAME, *words], env=environment(layer, **more), capture_output=True, text=True, seconds=60)
    assert run.returncode == 0, (words, run.returncode, run.stdout[-2000:], run.stderr[-2000:])
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return reports, sorted(set(COMPLAINTS.findall(run.stdout + run.stderr)))


def tool(*words):
    return limits.run([TOOL, "layer", *words], env=environment(False), capture_output=True, text=True, seconds=20)


def status(*words):
    run = tool("status", *words)
    assert run.returncode == 0, run
    return dict(line.split(" ", 1) for line in run.stdout.splitlines())


def wait_until(what, seconds=5):
    until = time.monotonic() + seconds * limits.WALL
    while time.monotonic() < until:
        try:
            found = what()
        except AssertionError:
            found = None
        if found:
            return found
        assert server.poll() is None, "Xvfb has ended"
        time.sleep(0.05)
    raise AssertionError("it did not come to that in time")


def picture():
    """The screen: rows of bytes, four a pixel; blue, green, red."""
    data = screen.read_bytes()
    header, _, _, _, width, height = struct.unpack(">6I", data[:24])
    line, colors = struct.unpack(">I", data[48:52])[0], struct.unpack(">I", data[76:80])[0]
    first = header + 12 * colors
    return [data[first + y * line:first + y * line + 4 * width] for y in range(height)]


def mapped(process):
    return LAYER.name in pathlib.Path(f"/proc/{process.pid}/maps").read_text()


def has_devices(process):
    """Whether it has asked for devices, whose threads lavapipe begins then: layers are there since it had an instance."""
    return any("llvmpipe" in path.read_text() for path in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm"))


class Running:
    """A program that goes on until the block ends."""

    def __init__(self, command, layer=True, cpu_seconds=120, **more):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), env=environment(layer, **more), stdout=self.log,
                                        stderr=subprocess.STDOUT, preexec_fn=limits.cpu(cpu_seconds))

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)
        self.log.close()


class Chain(unittest.TestCase):
    """Where the layer is, and where it is not."""

    def test_it_is_loaded_where_it_is_asked_for(self):
        for more, loaded in (({}, False), ({"TANDEM_LAYER": "0"}, False), ({"TANDEM_LAYER": "1"}, True),
                             ({"TANDEM_LAYER": "1", "DISABLE_TANDEM_LAYER": "1"}, False)):
            with self.subTest(more), Running([GAME, "--hold", "--frames", "0"], layer=False, **more) as process:
                wait_until(lambda: has_devices(process))
                self.assertEqual(mapped(process), loaded)

    def test_nothing_to_do_is_nothing_done(self):
        (report,), complaints = game(TANDEM_LAYER_EFFECT="none", TANDEM_LAYER_HUD="0", **VALIDATION)
        self.assertEqual((report["largest"], complaints), (0, []))

    def test_validation_is_there(self):
        """What it says of a program that is wrong is found: else its silence would say nothing."""
        self.assertIn("VUID-vkCmdCopyBufferToImage-dstImageLayout-00180", game("--fault", **DENOISE, **VALIDATION)[1])

    def test_what_it_adds_may_be_refused(self):
        """By the layer or driver below: then the program has what it asked for."""
        more = test_layer("grudge") | {"VK_INSTANCE_LAYERS": "VK_LAYER_TEST_grudge"}
        (report,), _ = game("--expect", "8", "1", **DENOISE, **more)
        self.assertLess(report["off"], NEAR)
        below = more | {"VK_INSTANCE_LAYERS": f"VK_LAYER_KHRONOS_validation:{more['VK_INSTANCE_LAYERS']}"}
        for grudge, words in (("device", ()), ("swapchain", ("--blind",)), ("first", ()), ("second", ()), ("image", ()),
                              ("memory", ()), ("pipeline", ())):
            for hud in "01" if grudge in ("image", "pipeline") else "0":
                (report,), complaints = game(*words, **DENOISE | {"TANDEM_LAYER_HUD": hud}, **below, GRUDGE=grudge)
                self.assertEqual((report["largest"], complaints), (0, []), grudge)
        # With Vulkan 1.1, which the program asks for, there is an effect as well; with 1.0 there is none.
        (report,), _ = game("--expect", "8", "1", **DENOISE, **more, GRUDGE="instance")
        self.assertLess(report["off"], NEAR)
        (report,), _ = game("--vulkan", "0", **DENOISE, **more, GRUDGE="instance")
        self.assertEqual(report["largest"], 0)


class Picture(unittest.TestCase):
    """What is shown."""

    def test_the_filter_is_what_it_is_said_to_be(self):
        for words in (("--srgb", "--thread"), ("--windows", "2", "--vulkan", "0"), ("--features", "--vulkan", "2", "--forget"),
                      ("--mutable", "--vulkan", "2", "--size", "333", "97")):
            with self.subTest(words):
                reports, complaints = game(*words, "--expect", "8", "1", **DENOISE, **VALIDATION)
                self.assertEqual((len(reports), complaints), (1 + ("--windows" in words), []))
                for report in reports:
                    self.assertLess(report["off"], NEAR)
                    self.assertLess(report["noise"], 0.3 * report["noise_before"])
                    self.assertEqual(report["alpha"], 255)

    def test_ten_and_sixteen_bits(self):
        """In formats that few windows have, of a layer below ours; with values beyond white, and with one that is no
        number. Without the effect each bit is the program's."""
        more = test_layer("deep") | {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation:VK_LAYER_TEST_deep",
                                     "VK_LAYER_ENABLES": VALIDATION["VK_LAYER_ENABLES"]}
        for sigma, *words in (("8", "a2b10"), ("8", "a2r10"), ("2", "half", "--bright", "12", "--nan"), ("8", "light"),
                              ("8", "light", "--bright", "400", "--nan")):
            with self.subTest(words):
                words = ("--size", "96", "64", "--frames", "4", "--format", *words)
                (plain,), complaints = game(*words, **DENOISE | {"TANDEM_LAYER_EFFECT": "none"}, **more)
                self.assertEqual((plain["largest"], complaints), (0, []))
                (report,), complaints = game(*words, "--expect", sigma, "1", **DENOISE | {"TANDEM_LAYER_SIGMA": sigma}, **more)
                self.assertEqual((complaints, report["strange"], report["alpha"]), ([], int("--nan" in words), 255))
                self.assertLess(report["off"], DEEP)
                self.assertLess(report["noise"], 0.45 * report["noise_before"])

    def test_a_screen_of_ten_bits(self):
        """Which lavapipe shows as A2R10G10B10, whose images its shaders cannot store, as on most devices."""
        with Screen(30) as deep:
            (report,), complaints = game("--format", "a2r10", "--expect", "8", "1", **DENOISE, **VALIDATION, DISPLAY=deep)
        self.assertEqual(complaints, [])
        self.assertLess(report["off"], DEEP)
        self.assertLess(report["noise"], 0.4 * report["noise_before"])

    def test_by_copies(self):
        """On the rung on which nothing is shared, each frame needs its releases and acquires; another rung from then on."""
        more = DENOISE | {"TANDEM_LAYER_RUNG": "copy"}
        (report,), complaints = game("--expect", "8", "1", **more, **VALIDATION)
        self.assertLess(report["off"], NEAR)
        self.assertEqual(complaints, [])
        with Running([GAME, "--hold", "--windows", "2"], **more):
            wait_until(lambda: int(status()["changed"]) > 2)
            for rung in ("copy", "cpu"):
                self.assertEqual(tool("set", f"rung={rung}").returncode, 0)
                wait_until(lambda: status()["rung"] == rung)
                changed = int(status()["changed"])
                wait_until(lambda: int(status()["changed"]) > changed + 2)
            self.assertEqual(tool("set", "rung=inline").returncode, 0)
            self.assertIn("inline", wait_until(lambda: status()["why"] != "-" and status()["why"]))

    def test_sharpen_goes_the_other_way(self):
        more = DENOISE | {"TANDEM_LAYER_EFFECT": "sharpen", "TANDEM_LAYER_AMOUNT": "0.5"}
        (report,), complaints = game("--expect", "8", "-0.5", **more, **VALIDATION)
        self.assertLess(report["off"], NEAR)
        self.assertGreater(report["noise"], 1.2 * report["noise_before"])
        self.assertEqual(complaints, [])

    def test_resized(self):
        reports, complaints = game("--resize", "--frames", "24", "--windows", "2", **DENOISE, **VALIDATION)
        self.assertEqual(complaints, [])
        for report in reports:
            self.assertLess(report["noise"], 0.3 * report["noise_before"])

    def test_the_hud(self):
        """Its letters are those of the font, in the upper left corner; below it nothing is changed."""
        (report,), complaints = game("--size", "300", "200", **DENOISE | {"TANDEM_LAYER_EFFECT": "none", "TANDEM_LAYER_HUD": "1"},
                                     **VALIDATION)
        self.assertEqual((report["noise"], complaints), (report["noise_before"], []))
        self.assertGreater(report["largest"], 90)
        with Running([GAME, "--hold", "--size", "300", "200"], **DENOISE | {"TANDEM_LAYER_HUD": "1"}):
            wait_until(lambda: int(status()["changed"]) > 3)
            lines = wait_until(lambda: [line for line in self.letters()][1:])
        self.assertRegex(lines[0], r"^frame +\d+\.\d ms +\d+/s +cost \d+\.\d\d ms *$")

    def letters(self):
        """What is written at the upper left of the window, read by the font."""
        source = (pathlib.Path(__file__).resolve().parents[2] / "engine_plugin/layer/font.c").read_text()
        glyphs = [tuple(int(x, 16) for x in row.split(",")) for row in re.findall(r"^    \{(.*?)\}", source, re.M)]
        rows = picture()
        # The window is where something is lit, as the root is black.
        top = next(y for y, row in enumerate(rows) if any(row[1::4]))
        left = min(next(x for x, code in enumerate(row[1::4]) if code) for row in rows[top:top + 34])
        found = []
        for line in range(2):
            text = ""
            for column in range(44):
                x, y = left + 4 + 6 * column, top + 4 + 13 * line
                bits = tuple(sum(0x80 >> i for i in range(6) if rows[y + j][4 * (x + i) + 1] > 200) for j in range(13))
                text += chr(32 + glyphs.index(bits)) if bits in glyphs else "~"
            found.append(text)
        return found

    def test_a_users_model(self):
        """A network that multiplies light with itself: in linear light, whatever the swapchain is."""
        image = ["height", "width", 3]
        graph = {"version": 1, "numbers": {"width": 4096, "height": 4096},
                 "tensors": {"color": {"role": "input", "dtype": "F32", "shape": image},
                             "albedo": {"role": "input", "dtype": "F32", "shape": image},
                             "squared": {"role": "temporary", "dtype": "F32", "shape": image},
                             "out": {"role": "output", "dtype": "F32", "shape": image}},
                 "nodes": [{"operation": "binary", "batch": 1, "heads": "height", "rows": "width", "channels": 3, "kind": 1,
                            "views": {"a": a, "b": b, "y": y}} for a, b, y in (("color", "color", "squared"),
                                                                             ("squared", "albedo", "out"))]}

        def save(name, text):
            header = json.dumps({"__metadata__": {"tandem.graph": text}}).encode()
            (folder / name).write_bytes(struct.pack("<Q", len(header)) + header)
            return f"model={folder / name}"

        def squared(code):
            light = code / 255 / 12.92 if code <= 0.04045 * 255 else ((code / 255 + 0.055) / 1.055) ** 2.4
            light *= light
            return 255 * (12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055)

        model = save("squares.safetensors", json.dumps(graph))
        (before,), _ = game("--noise", "0", layer=False)
        deep = test_layer("deep") | {"VK_INSTANCE_LAYERS": f"{VALIDATION['VK_INSTANCE_LAYERS']}:VK_LAYER_TEST_deep"}
        for words, more in (((), {}), (("--srgb",), {}), (("--format", "a2r10"), deep), (("--format", "a2b10"), deep)):
            (after,), complaints = game("--noise", "0", *words, **DENOISE | {"TANDEM_LAYER_EFFECT": model}, **VALIDATION | more)
            self.assertEqual(complaints, [])
            for a, b in zip(after["middle"], before["middle"]):
                self.assertLess(abs(a - squared(b)), NEAR, (words, after, before))
        graph["numbers"]["edges"] = 2  # which 2 leaves as they are: with 1 these were nodes of two channels
        for node in graph["nodes"]:
            node["channels"] = "edges + 1"
        (after,), _ = game("--noise", "0", **DENOISE | {"TANDEM_LAYER_EFFECT": save("edges.safetensors", json.dumps(graph))})
        for a, b in zip(after["middle"], before["middle"]):
            self.assertLess(abs(a - squared(b)), NEAR, (after, before))
        graph["tensors"]["out"]["shape"] = ["height * 2", "width", 3]
        for text in ("{", json.dumps(graph)):
            (report,), _ = game(**DENOISE | {"TANDEM_LAYER_EFFECT": save("wrong.safetensors", text)})
            self.assertEqual(report["largest"], 0)


class Control(unittest.TestCase):
    """`tandem layer`, and who else may come to the socket."""

    def test_without_a_program(self):
        for words in (("status",), ("toggle",), ("status", "--program", "1")):
            run = tool(*words)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (1, "", 1), run)
        for words in ((), ("set",), ("jump",), ("status", "--program", "x"), ("toggle", "mouse"), ("status", "--loud")):
            self.assertEqual(tool(*words).returncode, 2, words)
        nowhere = {name: value for name, value in environment(False).items() if name != "XDG_RUNTIME_DIR"}
        run = limits.run([TOOL, "layer", "status"], env=nowhere, capture_output=True, text=True, seconds=20)
        self.assertEqual((run.returncode, run.stdout), (1, ""), run)
        self.assertIn("XDG_RUNTIME_DIR is not set", run.stderr)

    def test_settings(self):
        with Running([GAME, "--hold"], **DENOISE) as process:
            wait_until(lambda: float(status()["cost_ms"]) > 0)
            now = status("--program", str(process.pid))
            self.assertEqual([now[name] for name in ("program", "on", "effect", "hud", "rung", "size", "sigma", "why")],
                             [str(process.pid), "yes", "denoise-film", "no", "cpu", "160x120", "8.000", "-"])
            self.assertEqual(tool("toggle").returncode, 0)
            self.assertEqual(status()["on"], "no")
            wait_until(lambda: float(status()["frame_ms"]) < 0.5 * float(now["frame_ms"]))
            changed = status()["changed"]
            self.assertEqual(tool("toggle").returncode, 0)
            wait_until(lambda: int(status()["changed"]) > int(changed))
            self.assertEqual(tool("set", "effect=sharpen", "amount=0.25", "hud=on").returncode, 0)
            now = status()
            self.assertEqual([now[name] for name in ("effect", "amount", "hud")], ["sharpen", "0.250", "yes"])
            for word, words in (("effect=blur", "denoise-film"), ("amount=3", "0 to 2"), ("amount=nan", "0 to 2"),
                                ("amount=", "0 to 2"), ("sigma=0", "1 to 64"), ("color=red", "no setting"), ("rung=top", "inline, timeline"), ("hud=maybe", "on or off"),
                                ("effect", "name=value"), ("effect=model=", "1 to 1023")):
                run = tool("set", "amount=1", word)
                self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1), run)
                self.assertIn(words, run.stderr)
            self.assertEqual(status()["amount"], "0.250", "all are taken, or none")
            self.assertEqual(tool("set", "effect=model=nowhere.safetensors").returncode, 0)
            self.assertIn("nowhere", wait_until(lambda: status()["why"] != "-" and status()["why"]))
            self.assertEqual(tool("set", "effect=denoise-film").returncode, 0)
            wait_until(lambda: status()["why"] == "-")

    def test_hostile_bytes(self):
        with Running([GAME, "--hold"], **DENOISE):
            wait_until(lambda: int(status()["changed"]) > 0)
            path = folder / "run/tandem-layer-0"
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            silent.connect(str(path))
            for message in (b"\0", b"\xff" * 64, b"status\0", b"set\n" + b"a" * 100000, b"set\neffect=model=" + b"b" * 3000,
                            b"set\n\n\n=\n", b"toggle\nhud\n", os.urandom(500), b"set\n" + b"%n%s" * 100):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                    client.settimeout(20)
                    client.connect(str(path))
                    try:
                        client.send(message)
                    except OSError:
                        continue  # longer than messages are
                    self.assertTrue(client.recv(5000).startswith(b"error\n"), message[:40])
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(path))
            silent.close()
            now = status()
            self.assertEqual((now["on"], now["effect"], now["hud"]), ("yes", "denoise-film", "no"))

    def test_two_programs(self):
        with Running([GAME, "--hold"], **DENOISE) as one, Running([GAME, "--hold"], **DENOISE) as two:
            wait_until(lambda: tool("status").stdout.count("program ") == 2)
            self.assertEqual(tool("toggle", "--program", str(two.pid)).returncode, 0)
            self.assertEqual((status("--program", str(one.pid))["on"], status("--program", str(two.pid))["on"]), ("yes", "no"))
            one.kill()
            one.wait()
            wait_until(lambda: status()["program"] == str(two.pid))


@unittest.skipUnless(CUBE, "vkcube is not installed: apt-get install vulkan-tools")
class Cube(unittest.TestCase):
    """vkcube asks for Vulkan 1.0, and an image usage of a color attachment alone."""

    def roughness(self):
        """The mean step from a pixel of the window to the next, below the HUD."""
        rows = [row[1::4] for row in picture() if any(row[1::4])][60:]
        steps = [abs(a - b) for row in rows for a, b in zip(row, row[1:]) if a and b]
        return sum(steps) / len(steps)

    def roughness_with(self, effect):
        assert tool("set", f"effect={effect}").returncode == 0
        before = int(status()["presented"])
        wait_until(lambda: int(status()["presented"]) > before + 4)
        return self.roughness()

    def test_screenshots(self):
        """It turns meanwhile, so that the effects take turns, too."""
        cube = [CUBE, "--c", "1000000", "--width", "200", "--height", "200"]
        with Running(cube, TANDEM_LAYER_EFFECT="none", TANDEM_LAYER_SIGMA="64") as process:
            wait_until(lambda: int(status()["presented"]) > 3 and any(any(row) for row in picture()))
            sums = {"none": 0.0, "denoise-film": 0.0, "sharpen": 0.0}
            for _ in range(4):
                for effect in sums:
                    sums[effect] += self.roughness_with(effect)
            self.assertLess(sums["denoise-film"], 0.85 * sums["none"], sums)
            self.assertGreater(sums["sharpen"], 1.1 * sums["none"], sums)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=10 * limits.WALL), -signal.SIGTERM)

    def test_validation_is_silent(self):
        run = limits.run([CUBE, "--c", "12", "--width", "200", "--height", "200"], env=environment(**VALIDATION),
                         capture_output=True, text=True, seconds=60)
        self.assertEqual((run.returncode, COMPLAINTS.findall(run.stdout + run.stderr)), (0, []))


if __name__ == "__main__":
    if not GAME.exists() or not shutil.which("Xvfb"):
        print("SKIP: layer_game was not built, or there is no Xvfb")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
