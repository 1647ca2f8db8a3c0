#!/usr/bin/env python3
"""Trains gi, indirect light from direct light, on frames, in runs of some minutes that go on where the last one ended.

    gi.py CHECKPOINT.pt --frames FOLDER... [--held-out FOLDER] [options]

Frames are safetensors as `tandem help gi` describes them, with `indirect`, as `tandem-frames --gi` writes them. All are kept in the
device's memory. The same frames, options and device give the same weights, as near as the device adds up alike, as long as the rate
falls by steps.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import gi_network
from denoise import shown

GUIDES = ("albedo", "normal", "depth", "ray")  # what halves are exact enough for
NAMES = gi_network.INPUTS + ("indirect",)
LEAST_KEY, MOST_KEY = math.exp(-5), math.exp(3.5)  # of exposures that losses are taken at
MEGAPIXELS = 0.65  # of a step


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="made if it is not there, else gone on with")
    parser.add_argument("--frames", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=pathlib.Path, help="frames that the PSNR is printed of")
    parser.add_argument("--steps", type=int, default=30000, help="of all runs together: the rate falls to 0 until then")
    parser.add_argument("--total-minutes", type=float, default=0, help="instead: until so many minutes of all runs together")
    parser.add_argument("--run-steps", type=int, default=0, help="of this run, at most")
    parser.add_argument("--minutes", type=float, default=9, help="of this run, at most")
    parser.add_argument("--until", type=float, default=0, help="of this run: until that time, in seconds since 1970")
    parser.add_argument("--batch", type=int, default=0, help="frames of a step; default: some 0.65 million pixels")
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--width", type=int, default=128, help="channels of a token")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=4, help="layers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="on a GPU, too, kernel by kernel, not as CUDA graphs")
    parser.add_argument("--every", type=int, default=200, help="steps between lines; ten times as many between checkpoints")
    parser.add_argument("--log", type=pathlib.Path, help="those lines, as JSON, added at its end")
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


class Recorded:
    """The loss of a batch and its gradients as CUDA graphs, one for each shape: to launch kernels one by one takes longer than they do."""

    def __init__(self, compute):
        self.compute, self.graphs = compute, {}

    def record(self, batch):
        inputs = {name: x.clone() for name, x in batch.items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                expected = float(self.compute(inputs))
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.compute(inputs)
        graph.replay()
        if not abs(float(loss) - expected) <= 0.01 * abs(expected):
            raise RuntimeError(f"a recorded step has a loss of {float(loss)}, which is {expected}")
        return graph, inputs, loss

    def __call__(self, batch):
        key = tuple(batch["direct"].shape)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        graph, inputs, loss = self.graphs[key]
        for name, x in batch.items():
            inputs[name].copy_(x)
        graph.replay()
        return loss


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
    torch.manual_seed(a.seed)
    is_gpu = a.device.startswith("cuda")
    if is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    state = torch.load(a.checkpoint, map_location="cpu", weights_only=True) if a.checkpoint.exists() else None
    options = dict(state["options"]) if state else {"width": a.width, "heads": a.heads, "depth": a.depth}
    net = gi_network.Gi(**options).to(a.device, memory_format=torch.channels_last)
    mean = gi_network.Gi(**options).to(a.device, memory_format=torch.channels_last)  # of weights, over some hundred steps: what is exported
    mean.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=a.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=is_gpu)
    step, spent = 0, 0.0
    if state:
        net.load_state_dict(state["training"])
        mean.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent = state["step"], state["seconds"]
    start, first = time.monotonic(), step
    end = min(start + 60 * a.minutes, start + a.until - time.time() if a.until else math.inf)
    groups = load(a.frames, a.device)
    held_out = load([a.held_out], a.device) if a.held_out else None
    parameters, averages = list(net.parameters()), list(mean.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    sums = torch.zeros((), device=a.device)

    def compute(batch):
        torch._foreach_zero_([parameter.grad for parameter in parameters])
        with torch.autocast(a.device.split(":")[0], torch.bfloat16, enabled=is_gpu, cache_enabled=a.eager):
            out, exposure = net(*(batch[name] for name in gi_network.INPUTS))
        loss = loss_of(out.float(), exposure.float(), batch)
        loss.backward()
        return loss.detach()

    forward = Recorded(compute) if is_gpu and not a.eager else compute

    def save():
        temporary = a.checkpoint.with_suffix(".tmp")
        torch.save({"options": options, "weights": mean.state_dict(), "training": net.state_dict(), "optimizer": optimizer.state_dict(),
                    "step": step, "seconds": spent + time.monotonic() - start}, temporary)
        temporary.replace(a.checkpoint)

    frames = sum(len(group["direct"]) for group in groups)
    print(f"{frames} frames, {time.monotonic() - start:.1f} s to load; from step {step} on", flush=True)

    def progress():
        """Of all runs: 0 to 1."""
        return (spent + time.monotonic() - start) / (60 * a.total_minutes) if a.total_minutes else step / a.steps

    while progress() < 1 and time.monotonic() < end and not 0 < a.run_steps <= step - first:
        generator = torch.Generator().manual_seed(a.seed * 1_000_003 + step)
        warm = min(1, (step + 1) / 500)
        for group in optimizer.param_groups:
            group["lr"] = a.rate * warm * 0.5 * (1 + math.cos(math.pi * progress()))
        loss = forward(batch_of(groups, a.batch, generator))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for parameter in parameters:  # where one is not finite, none is now: such a step is none
            parameter.grad.nan_to_num_(0, 0, 0)
        optimizer.step()
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(averages, parameters, 1 - min(0.998, step / (step + 10)))
        sums += loss
        if step % a.every == 0:
            line = {"step": step, "loss": round(float(sums) / a.every, 5), "seconds": round(time.monotonic() - start, 1)}
            if held_out and step % (10 * a.every) == 0:
                line["held_out"] = evaluate(mean, held_out)
            sums.zero_()
            print(json.dumps(line), flush=True)
            if step % (10 * a.every) == 0:
                save()
            if a.log:
                with open(a.log, "a") as log:
                    log.write(json.dumps(line) + "\n")
    save()
    print(f"step {step}, {100 * min(1, progress()):.0f} % -> {a.checkpoint}" +
          (f", held out {evaluate(mean, held_out)}" if held_out else ""))


if __name__ == "__main__":
    main()
