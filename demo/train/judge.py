#!/usr/bin/env python3
"""Judges denoisers on frames with references: the input, box filters, a model by `tandem denoise`, and Open Image Denoise.

    judge.py TANDEM FRAMES [--model M.safetensors ...]

TANDEM is the tool. PSNR and SSIM are of x / (1 + x), as `tandem help denoise` says, means over all frames. Open Image Denoise takes
part where PyPI's pyoidn is installed. Needs numpy and safetensors.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

try:
    import pyoidn
except ImportError:
    pyoidn = None


def box(color, radius):
    padded = np.pad(color, ((radius, radius), (radius, radius), (0, 0)), "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1, 2 * radius + 1), (0, 1))
    return windows.mean((-1, -2))


class Judge:
    def __init__(self, tandem, models):
        self.tandem, self.models = tandem, models
        self.folder = tempfile.TemporaryDirectory()
        self.at = pathlib.Path(self.folder.name)
        self.rows = {}

    def note(self, row, text):
        psnr, before, ssim, _, error, _ = map(float, re.search(
            r"PSNR (\S+) dB \(input (\S+)\), SSIM (\S+) \((\S+)\), relMSE (\S+) \((\S+)\)", text).groups())
        self.rows.setdefault(row, []).append((psnr, ssim, error))

    def run(self, model, frame, reference):
        return subprocess.run([self.tandem, "denoise", "--model", model, "--frame", frame, "--reference", reference, "--out",
                               self.at / "out.safetensors"], check=True, capture_output=True, text=True).stdout

    def picture(self, row, picture, reference):
        """By the tool's own numbers: those of what goes into a model are printed, too."""
        path = self.at / "picture.safetensors"
        save_file({"color": np.ascontiguousarray(picture, np.float32)}, path)
        text = self.run(self.models[0], path, reference)
        _, psnr, _, ssim, _, error = re.search(r"PSNR (\S+) dB \(input (\S+)\), SSIM (\S+) \((\S+)\), relMSE (\S+) \((\S+)\)", text).groups()
        self.rows.setdefault(row, []).append((float(psnr), float(ssim), float(error)))

    def oidn(self, frame, quality, light):
        """Of radiance, or of light: radiance divided by albedo."""
        images = {name: np.nan_to_num(np.ascontiguousarray(frame[name], np.float32), posinf=0, neginf=0)
                  for name in ("color", "albedo", "normal") if name in frame}
        color = images.pop("color")
        if "albedo" not in images:
            return pyoidn.denoise(color, hdr=True, quality=quality)
        dark = images["albedo"].max(-1, keepdims=True) < 0.02
        albedo = np.where(dark, 1, np.maximum(images["albedo"], 0.02)) if light else np.float32(1)
        out = pyoidn.denoise(np.ascontiguousarray(color / albedo, np.float32), **images, hdr=True, quality=quality)
        return out * albedo

    def frame(self, path):
        frame = load_file(path)
        self.picture("input", frame["color"], path)
        for radius in (1, 2, 3):
            self.picture(f"box {2 * radius + 1}x{2 * radius + 1}", box(frame["color"], radius), path)
        if pyoidn:
            for quality in ("fast", "high"):
                self.picture(f"OIDN {quality}", self.oidn(frame, quality, False), path)
            self.picture("OIDN high on light", self.oidn(frame, "high", True), path)
        for model in self.models:
            self.note(pathlib.Path(model).stem, self.run(model, path, path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("frames", type=pathlib.Path)
    parser.add_argument("--model", action="append", required=True)
    a = parser.parse_args()
    judge = Judge(a.tandem, a.model)
    for path in sorted(a.frames.glob("*.safetensors")):
        judge.frame(path)
    print(f"{'':24} PSNR dB   SSIM    relMSE")
    for row, values in judge.rows.items():
        psnr, ssim, error = np.mean(values, 0)
        print(f"{row:24} {psnr:7.2f} {ssim:7.4f} {error:9.4g}")


if __name__ == "__main__":
    main()
