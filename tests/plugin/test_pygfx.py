"""A denoiser in frames of pygfx, of a scene that is pygfx's own: the example of its README, as its package has it, run as it is on
lavapipe, off the screen. Its cube is made transparent by pygfx's stochastic way, whose noise engine_plugin/python/examples takes
away within the frame; what is right is what pygfx's blending shows. Fetches pygfx from PyPI once.

SPDX-License-Identifier: Apache-2.0

usage: test_pygfx.py BUILD_FOLDER [unittest arguments]
"""
import importlib.metadata
import os
import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True
BUILD = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from tool import pypi

os.environ |= {"WGPU_BACKEND_TYPE": "Vulkan", "TANDEM_LIBRARY": str(BUILD / "libtandem.so.0")}
PACKAGES = pypi.folder_of(BUILD, "pygfx==0.17.0")
if not PACKAGES:
    sys.exit(pypi.SKIPPED)
sys.path[:0] = [str(PACKAGES), str(ROOT / "engine_plugin/python"), str(ROOT / "engine_plugin/python/examples")]
import numpy as np
import pygfx as gfx
from rendercanvas.offscreen import RenderCanvas
import pygfx_denoise
import tandem

FRAMES, BEGUN_AT = 3, 40  # of the cube's turning


def example():
    """What pygfx's README shows: its only program."""
    (code,) = re.findall(r"```python\n(.*?)```", importlib.metadata.metadata("pygfx").get_payload(), re.S)
    assert "gfx.show(cube, before_render=animate)" in code, code
    return code


def frames(alpha_mode, passes=(), size=(240, 180), opacity=0.5):
    """Some frames of it as floats [height, width, 3], on a canvas that nobody sees."""
    canvas = RenderCanvas(size=size, pixel_ratio=1)
    renderer = gfx.renderers.WgpuRenderer(canvas)
    renderer.pixel_scale, renderer.ppaa = 1, "none"
    renderer.effect_passes = passes
    show, scene = gfx.show, {"__name__": "__main__"}
    gfx.show = lambda thing, **fields: gfx.Display(renderer=renderer, **fields).show(thing)
    try:
        exec(example(), scene)  # as somebody runs it, up to where a window would take over
    finally:
        gfx.show = show
    scene["cube"].material.alpha_mode, scene["cube"].material.opacity = alpha_mode, opacity
    for _ in range(BEGUN_AT):
        scene["animate"]()
    return [np.asarray(canvas.draw())[..., :3].astype(float) for _ in range(FRAMES)]


def psnr(pictures, wanted):
    return [float(10 * np.log10(255 ** 2 / max(1e-9, ((a - b) ** 2).mean()))) for a, b in zip(pictures, wanted)]


class Pygfx(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.session = tandem.Session(rung="cpu")
        cls.denoise = pygfx_denoise.DenoisePass(tandem.Denoiser(cls.session, ROOT / "demo/assets/denoise.safetensors"))

    @classmethod
    def tearDownClass(cls):
        cls.denoise = None
        cls.session.close()

    def test_noise_of_transparency(self):
        wanted, noisy = frames("blend"), frames("dither")
        self.assertFalse(np.array_equal(wanted[0], wanted[1]), "the cube turns")
        cleaned = frames("dither", [self.denoise])
        before, after = psnr(noisy, wanted), psnr(cleaned, wanted)
        print("dB to blending, without and with:", *(f"{b:.1f} {a:.1f}" for b, a in zip(before, after)))
        for b, a in zip(before, after):
            self.assertGreater(a, b + 12)
        # Where nothing is transparent there is nothing to be taken away, but for what neighbours of a smooth background differ by.
        sky = (slice(0, 30), slice(0, 60))
        for c, n in zip(cleaned, noisy):
            self.assertLessEqual(np.abs(c[sky] - n[sky]).max(), 3)
            self.assertLess(np.abs(c[sky] - n[sky]).mean(), 0.5)

    def test_what_has_no_noise(self):
        wanted = frames("solid", opacity=1)
        found = psnr(frames("solid", [self.denoise], opacity=1), wanted)
        print("dB without noise:", *(f"{x:.1f}" for x in found))
        self.assertGreater(min(found), 46)  # 44 where edges are smoothed

    def test_copies(self):
        """There and back, with nothing done between, is the picture."""
        class Nothing:
            def reset(self):
                pass

            def __call__(self, color, hard_edges):
                return color

        for copied, wanted in zip(frames("dither", [pygfx_denoise.DenoisePass(Nothing())]), frames("dither")):
            self.assertLessEqual(np.abs(copied - wanted).max(), 1)

    def test_between_passes_and_of_another_size(self):
        """Passes of pygfx's own behind it see what it made; canvases of another size need no other pass."""
        fog = gfx.renderers.wgpu.FogPass("#fff")
        with_fog, without = frames("dither", [self.denoise, fog], (96, 64)), frames("dither", [self.denoise], (96, 64))
        self.assertEqual(with_fog[0].shape, (64, 96, 3))
        self.assertGreater(with_fog[0].mean(), without[0].mean() + 5)
        self.assertGreater(psnr(without, frames("blend", size=(96, 64)))[0], psnr(frames("dither", size=(96, 64)),
                                                                                  frames("blend", size=(96, 64)))[0] + 5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
