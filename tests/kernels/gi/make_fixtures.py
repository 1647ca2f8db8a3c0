#!/usr/bin/env python3
"""Makes what `test_gi` compares with: a small gi of random weights by demo/train/gi_export.py, and what PyTorch computes of a frame.

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
import gi_export
import gi_network

HEIGHT, WIDTH = 61, 83


def make_network():
    torch.manual_seed(1)
    net = gi_network.Gi(width=64, heads=2, depth=1, hidden=64, half=16, quarter=16)
    for name, parameter in net.named_parameters():
        if parameter.dim() == 1 and "norm" not in name:
            torch.nn.init.normal_(parameter, 0, 0.3)
    for layer in net.layers:
        for linear in (layer.qkv, layer.out, layer.up, layer.down):
            torch.nn.init.normal_(linear.weight, 0, 0.15)
    return net


def make_frame():
    """Blocks of 5 pixels, each another surface: what is in a token differs, and so do tokens."""
    rng = np.random.default_rng(0)

    def blocks(values):
        return values.repeat(5, 0).repeat(5, 1)[:HEIGHT, :WIDTH]
    shape = (-(-HEIGHT // 5), -(-WIDTH // 5))
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    frame = {"direct": blocks(rng.lognormal(-1, 1.5, (*shape, 3))), "albedo": blocks(rng.random((*shape, 3))),
             "normal": blocks(rng.normal(size=(*shape, 3))), "depth": blocks(1 + 4 * rng.random((*shape, 1))),
             "ray": np.stack((1.2 * x / WIDTH - 0.6, 0.4 - 0.8 * y / HEIGHT, np.ones(x.shape)), -1)}
    frame["normal"] /= np.linalg.norm(frame["normal"], axis=-1, keepdims=True)
    frame = {name: np.ascontiguousarray(values, np.float16) for name, values in frame.items()}
    frame["direct"][3, 4, 1] = np.nan  # missing
    frame["albedo"][5:9, 5:19] = 0  # a lamp
    frame["direct"][5:9, 5:19] = 60000
    for name in ("depth", "normal", "albedo"):
        frame[name][:4] = 0  # the sky
    return frame


def main():
    net, frame = make_network(), make_frame()
    export.write(gi_export.graph_of(net), HERE / "model.safetensors")
    with torch.no_grad():
        out = net(*(torch.from_numpy(frame[name]).float().permute(2, 0, 1)[None] for name in gi_network.INPUTS))[0]
    frame["expected"] = out[0].permute(1, 2, 0).contiguous().numpy()
    save_file(frame, HERE / "frame.safetensors")


if __name__ == "__main__":
    main()
