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


def make_network(history=False):
    torch.manual_seed(1)
    net = network.Denoiser(widths=(16, 32, 16), radius=(1, 2, 2, 3), history=history)
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


def rng_mask(share):
    return np.random.default_rng(int(100 * share)).random((HEIGHT, WIDTH, 1)) < share


def make_before(frame):
    """What the frame before left: moved by up to some pixels, of surfaces that are the same here and quite another there."""
    rng = np.random.default_rng(1)
    before = {"motion": rng.normal(0, 3, (HEIGHT, WIDTH, 2)), "valid": rng.random((HEIGHT, WIDTH, 1)) < 0.8,
              "normal_before": np.broadcast_to(frame["normal"].mean((0, 1)), (HEIGHT, WIDTH, 3)), "depth_before": 4 * np.ones((HEIGHT, WIDTH, 1)),
              "history_before": np.concatenate((rng.lognormal(-1, 1, (HEIGHT, WIDTH, 3)), rng.integers(0, 20, (HEIGHT, WIDTH, 1))), -1)}
    before = {name: np.ascontiguousarray(values, np.float16).astype(np.float32) for name, values in before.items()}  # as the file has them
    before["motion"][2, 3] = np.nan
    return before


def main():
    net, frame = make_network(), make_frame()
    export.write(export.graph_of(net), HERE / "model.safetensors")
    inputs = [torch.from_numpy(frame[name]).float().permute(2, 0, 1)[None] for name in ("color", "albedo", "normal", "depth")]
    with torch.no_grad():
        expected = {name: net(*inputs, hard=hard)[0][0].permute(1, 2, 0).contiguous().numpy()
                    for name, hard in (("expected", False), ("expected_hard", True))}
    save_file(frame | expected, HERE / "frame.safetensors")

    net, before = make_network(history=True), make_before(frame)
    export.write(export.graph_of(net), HERE / "model_history.safetensors")
    frame["normal"] = np.where(rng_mask(0.7), before["normal_before"].astype(np.float16), -before["normal_before"].astype(np.float16))
    frame["depth"] = np.where(rng_mask(0.8), np.float16(4), np.float16(1))
    now = {name: torch.from_numpy(frame[name]).float().permute(2, 0, 1)[None] for name in ("color", "albedo", "normal", "depth")}
    then = {name: torch.from_numpy(values).permute(2, 0, 1)[None] for name, values in before.items()}
    with torch.no_grad():
        seen = network.reproject(then["history_before"], then["motion"], then["valid"], (now["normal"], now["depth"]),
                                 (then["normal_before"], then["depth_before"]))
        out, history, _ = net(*now.values(), seen)
    print(f"{float((seen[:, 3] > 0).float().mean()):.2f} of all pixels have history")
    frame["expected"] = out[0].permute(1, 2, 0).contiguous().numpy()
    before["expected_history"] = history[0].permute(1, 2, 0).contiguous().numpy()
    save_file(frame | {name: values.astype(np.float32 if name == "expected_history" else np.float16) for name, values in before.items()},
              HERE / "frame_history.safetensors")


if __name__ == "__main__":
    main()
