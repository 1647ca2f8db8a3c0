#!/usr/bin/env python3
"""Trains gi, indirect light from direct light, on frames, in runs of some minutes that go on where the last one ended.

    gi.py CHECKPOINT.pt --frames FOLDER... [--held-out FOLDER] [options]

Frames are safetensors as `tandem help gi` describes them, with `indirect`, as `tandem-frames --gi` writes them. All are kept in the
device's memory. The same frames, options and device give the same weights, as near as the device adds up alike, as long as the rate
falls by steps.
SPDX-License-Identifier: Apache-2.0
"""
import concurrent.futures
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import gi_network
import training
from training import shown

GUIDES = ("albedo", "normal", "depth", "ray")  # what halves are exact enough for
NAMES = gi_network.INPUTS + ("indirect",)
LEAST_KEY, MOST_KEY = math.exp(-5), math.exp(3.5)  # of exposures that losses are taken at
MEGAPIXELS = 0.65  # of a step


def arguments():
    parser = training.parser_of(__doc__, 30000, 1.2e-3)
    parser.add_argument("--batch", type=int, default=0, help="frames of a step; default: some 0.65 million pixels")
    parser.add_argument("--width", type=int, default=128, help="channels of a token")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=4, help="layers")
    return parser.parse_args()


# --- Frames ---


def load(folders, device):
    """Of each size a dict of tensors [frames, channels, height, width]."""
    paths = sorted(path for folder in folders for path in folder.glob("*.safetensors"))
    sizes = {}

    def read(path):
        file = load_file(path)
        return {name: file[name].permute(2, 0, 1).to(torch.float16 if name in GUIDES else torch.float32) for name in NAMES}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for frame in pool.map(read, paths):
            sizes.setdefault(frame["direct"].shape, []).append(frame)
    if not sizes:
        raise SystemExit("no frames in " + ", ".join(map(str, folders)))

    def stack(frames, name):
        whole = torch.empty((len(frames), *frames[0][name].shape), dtype=frames[0][name].dtype, device=device)
        for i, frame in enumerate(frames):
            whole[i] = frame[name]
        return whole
    return [{name: stack(frames, name) for name in NAMES} for frames in sizes.values()]


def batch_of(groups, count, generator):
    """Some frames of one size, with the key of each. What is not to be learnt is made different each time: which way the world is
    turned about the vertical, left and right, and which colour is which."""
    which = int(torch.multinomial(torch.tensor([float(group["direct"][:, 0].numel()) for group in groups]), 1, generator=generator))
    group = groups[which]
    frames, _, height, width = group["direct"].shape
    count = count or max(1, round(1e6 * MEGAPIXELS / height / width))
    picked = torch.randint(frames, (count,), generator=generator)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    turn = torch.zeros(count, 3, 3)
    turn[:, 0, 0], turn[:, 0, 2], turn[:, 2, 0], turn[:, 2, 2] = angle.cos(), angle.sin(), -angle.sin(), angle.cos()
    turn[:, 1, 1] = 1
    turn[:, :, 0] *= 1 - 2 * torch.randint(2, (count, 1), generator=generator)
    colors = torch.stack([torch.randperm(3, generator=generator) for _ in range(count)])
    flips = torch.randint(2, (count, 1), generator=generator)
    key = torch.exp(math.log(LEAST_KEY) + torch.rand(count, generator=generator) * math.log(MOST_KEY / LEAST_KEY))
    device = group["direct"].device
    picked, turn, colors, flips, key = (x.to(device, non_blocking=True) for x in (picked, turn, colors, flips, key))
    column = torch.arange(width, device=device)
    columns = torch.where(flips > 0, width - 1 - column, column)[:, None, None, :]
    batch = {}
    for name in NAMES:
        x = group[name][picked].float()
        x = x.gather(3, columns.expand_as(x))
        if name in ("direct", "indirect", "albedo"):
            x = x.gather(1, colors[:, :, None, None].expand_as(x))
        elif name in ("normal", "ray"):
            x = torch.einsum("nij,njyx->niyx", turn, x)
        batch[name] = x
    batch["key"] = key.view(-1, 1, 1, 1)
    return batch


# --- Loss ---


def loss_of(out, exposure, batch):
    """Of logarithms and their slopes, of means over some pixels, as a median of noise is not its mean; and of the logarithm of each
    frame's error as it is shown, so that each counts as much."""
    wanted = batch["indirect"]
    a, b = (F.avg_pool2d(x * exposure, 4).log1p() for x in (out, wanted))
    loss = 0.5 * (a - b).abs().mean()
    for axis in (-1, -2):
        loss = loss + 0.25 * (a.diff(dim=axis) - b.diff(dim=axis)).abs().mean()
    gain = batch["key"] * exposure
    c, d = (shown((batch["direct"] + x) * gain) for x in (out, wanted))
    return loss + 0.1 * ((c - d).square().mean((1, 2, 3)) + 1e-8).log().mean()


# --- Held-out frames ---


@torch.no_grad()
def evaluate(net, groups):
    """Mean PSNR of what is shown, x / (1 + x), of direct light alone, and with what comes out."""
    rows = []
    for group in groups:
        for i in range(len(group["direct"])):
            frame = {name: x[i : i + 1].float() for name, x in group.items()}
            out = net(*(frame[name] for name in gi_network.INPUTS))[0]
            wanted = shown(frame["direct"] + frame["indirect"])
            rows.append([float(-10 * ((shown(frame["direct"] + x) - wanted).square().mean() + 1e-20).log10()) for x in (0 * out, out)])
    return {name: round(sum(row[i] for row in rows) / len(rows), 3) for i, name in enumerate(("none", "gi"))}


# --- Training ---


def main():
    a = arguments()
    run = training.Training(a, gi_network.Gi, {"width": a.width, "heads": a.heads, "depth": a.depth}, betas=(0.9, 0.98), weight_decay=0.01)
    groups = load(a.frames, a.device)
    held_out = load([a.held_out], a.device) if a.held_out else None
    for parameter in run.parameters:
        parameter.grad = torch.zeros_like(parameter)

    def compute(batch):
        [frames] = batch
        torch._foreach_zero_([parameter.grad for parameter in run.parameters])
        with run.autocast():
            out, exposure = run.net(*(frames[name] for name in gi_network.INPUTS))
        loss = loss_of(out.float(), exposure.float(), frames)
        loss.backward()
        return loss.detach()

    print(f"{sum(len(group['direct']) for group in groups)} frames, {run.seconds():.1f} s to load; from step {run.step} on", flush=True)
    run.run(lambda step, generator: [batch_of(groups, a.batch, generator)],
            training.Recorded(compute) if run.is_gpu and not a.eager else compute, (lambda net: evaluate(net, held_out)) if held_out else None)


if __name__ == "__main__":
    main()
