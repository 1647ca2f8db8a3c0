"""The layer under programs that nobody here wrote, by hand, as some are large: vkcube, vkcubepp, SuperTuxKart, Warzone 2100, OpenGL by
zink, wgpu and pygfx, Direct3D 12 by vkd3d, and vkcube for Windows under Wine, each alone, beside MangoHud, beside vkBasalt and beside both. Screenshots without the effect, with denoise-film and with sharpen
take turns, so that what moves is the same for all; their roughness has to fall and to rise. Validation complains of nothing that it
does not complain of without the layer. A program that is not there is named, and left out.

SPDX-License-Identifier: Apache-2.0

usage: layer_programs.py BUILD_FOLDER [PROGRAM | alone | MangoHud | vkBasalt | both ...]
    apt-get install vulkan-tools mesa-utils mangohud vkbasalt supertuxkart warzone2100 vkd3d-demos wine64
    PYTHON=VENV/bin/python with pygfx, glfw, rendercanvas; VKCUBE_EXE=F as vkcube_exe.sh builds it
"""
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_layer as layer

SCENE = """
import numpy, pygfx as gfx, pylinalg
from rendercanvas.glfw import RenderCanvas, loop
canvas = RenderCanvas(size=(320, 240), update_mode="continuous", max_fps=60)
renderer, scene, turns = gfx.WgpuRenderer(canvas), gfx.Scene(), 0
grain = (numpy.random.default_rng(1).random((64, 64, 3)) * 50 + 100).astype("u1")
box = gfx.Mesh(gfx.box_geometry(1, 1, 1), gfx.MeshBasicMaterial(map=gfx.Texture(grain, dim=2)))
scene.add(gfx.Background.from_color("#445566"), box, gfx.AmbientLight())
camera = gfx.PerspectiveCamera(70, 4 / 3)
camera.local.z = 2
def draw():
    global turns
    turns += 1
    box.local.rotation = pylinalg.quat_from_euler((turns * 0.02, turns * 0.03, 0))
    renderer.render(scene, camera)
canvas.request_draw(draw)
loop.run()
"""
KART = """supertuxkart --render-driver=vulkan --screensize=320x240 --windowed --no-sound --no-start-screen --numkarts=3 --anisotropic=0
    --profile-time=600 --track=olivermath"""
PROGRAMS = {
    "vkcube": ("vkcube --c 1000000 --width 320 --height 240".split(), {}),
    "vkcubepp": ("vkcubepp --c 1000000".split(), {}),
    "zink": (["glxgears"], {"MESA_LOADER_DRIVER_OVERRIDE": "zink", "LIBGL_ALWAYS_SOFTWARE": "1"}),
    "pygfx": ([os.environ.get("PYTHON", "python3"), "-c", SCENE], {"WGPU_BACKEND_TYPE": "Vulkan"}),
    "supertuxkart": (KART.split(), {}),
    "warzone2100": ("warzone2100 --gfxbackend=vulkan --resolution=640x480 --window --nosound".split(), {}),
    "vkd3d": (["vkd3d-gears"], {}),
    "wine": (["wine64", os.environ.get("VKCUBE_EXE", "vkcube.exe"), *"--c 1000000 --width 320 --height 240".split()], {"WINEDEBUG": "-all"}),
}
MANGOHUD = {"MANGOHUD": "1", "MANGOHUD_CONFIG": "fps_only,font_size=12"} # else it covers most of a small window
BESIDE = {"alone": {}, "MangoHud": MANGOHUD, "vkBasalt": {"ENABLE_VKBASALT": "1"}, "both": MANGOHUD | {"ENABLE_VKBASALT": "1"}}
ROUNDS, SHOTS = 4, 4


def roughness():
    """The mean step from a pixel of the window's green to the next, but for the upper part, where HUDs are."""
    rows = [row[1::4] for row in layer.picture()]
    lit = [row for row in rows if any(row)]
    rows = lit[len(lit) * 2 // 5:]
    steps = [abs(a - b) for row in rows for a, b in zip(row, row[1:])]
    return sum(steps) / max(1, len(steps))


def mean_of(effect):
    assert layer.tool("set", f"effect={effect}").returncode == 0
    before = int(layer.status()["presented"])
    layer.wait_until(lambda: int(layer.status()["presented"]) > before + 5)
    values = []
    for _ in range(SHOTS):
        values.append(roughness())
        time.sleep(0.1)
    return sum(values) / len(values)


def look(command, more):
    """What is wrong, and figures."""
    program = layer.Running(command, cpu_seconds=1200, TANDEM_LAYER_EFFECT="none", TANDEM_LAYER_HUD="0", TANDEM_LAYER_SIGMA="20", **more)
    with program as process:
        layer.wait_until(lambda: process.poll() is not None or int(layer.status()["presented"]) > 20, seconds=15)
        time.sleep(2)
        if process.poll() is not None:
            program.log.seek(0)
            return "IT ENDED", program.log.read()[-200:].strip()
        sums = {"none": 0.0, "denoise-film": 0.0, "sharpen": 0.0}
        for _ in range(ROUNDS):
            for effect in sums:
                sums[effect] += mean_of(effect) / ROUNDS
        now = layer.status()
        process.terminate()
        process.wait(timeout=60)
    plain, smooth, sharp = sums.values()
    figures = f"{now['size']}, {plain:.2f} -> {smooth:.2f}, {sharp:.2f}; cost {now['cost_ms']} ms"
    return ("" if smooth < plain < sharp else "NO DIFFERENCE AS IT SHOULD BE"), figures


def complained(command, more, with_layer):
    env = layer.environment(with_layer, **more, **layer.VALIDATION)
    run = subprocess.run(["timeout", "25", *command], env=env, capture_output=True, text=True, errors="replace")
    return set(layer.COMPLAINTS.findall(run.stdout + run.stderr))


def main():
    wrong = 0
    layer.setUpModule()
    os.environ["PATH"] += ":/usr/games:/usr/lib/wine"
    os.environ["HOME"] = str(layer.folder)
    words = sys.argv[2:]
    for name, (command, more) in PROGRAMS.items():
        if PROGRAMS.keys() & words and name not in words:
            continue
        if not shutil.which(command[0]):
            print(f"{name}: {command[0]} is not installed", flush=True)
            continue
        for beside, others in BESIDE.items():
            if BESIDE.keys() & words and beside not in words:
                continue
            try:
                fault, figures = look(command, more | others)
            except AssertionError as error:
                fault, figures = f"FAILED: {error}", ""
            wrong += bool(fault)
            print(f"{name}, {beside}: {figures} {fault}", flush=True)
        added = complained(command, more, True) - complained(command, more, False)
        wrong += bool(added)
        print(f"{name}: validation says {', '.join(sorted(added)) or 'nothing'} that it does not say without the layer", flush=True)
    layer.tearDownModule()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
