#!/usr/bin/env python3
"""Makes what `test_denoise` compares with: a small denoiser of random weights by demo/train/export.py, and what PyTorch computes of a
frame.

    make_fixtures.py    needs torch, numpy and safetensors

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "demo/train"))
import numpy as np
import torch
from safetensors.numpy import save_file

import export
import network

HEIGHT, WIDTH = 37, 51


def make_network():
    torch.manual_seed(1)
    net = network.Denoiser(widths=(16, 32, 16), radius=(1, 2, 2, 3))
    for parameter in net.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0, 0.3)
    for head in (net.head0, net.head1, net.head2, net.head3):
        torch.nn.init.normal_(head.weight, 0, 0.05)
    return net


def make_frame():
    rng = np.random.default_rng(0)
    frame = {"color": rng.lognormal(-1, 1.5, (HEIGHT, WIDTH, 3)), "albedo": rng.random((HEIGHT, WIDTH, 3)),
             "normal": rng.normal(size=(HEIGHT, WIDTH, 3)).clip(-1, 1), "depth": 5 * rng.random((HEIGHT, WIDTH, 1))}
    frame = {name: np.ascontiguousarray(values, np.float16) for name, values in frame.items()}
    frame["color"][3, 4, 1] = np.nan  # missing pixels, alone and many
    frame["color"][10:26, 20:40] = np.inf
    frame["albedo"][5:9, 5:9] = 0  # a light
    frame["depth"][:4] = 0  # the sky
    return frame


def main():
    net, frame = make_network(), make_frame()
    export.export(net, HERE / "model.safetensors")
    with torch.no_grad():
        out = net(*(torch.from_numpy(frame[name]).float().permute(2, 0, 1)[None] for name in ("color", "albedo", "normal", "depth")))[0]
    frame["expected"] = out[0].permute(1, 2, 0).contiguous().numpy()
    save_file(frame, HERE / "frame.safetensors")


if __name__ == "__main__":
    main()
