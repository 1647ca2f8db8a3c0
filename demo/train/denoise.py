#!/usr/bin/env python3
"""Trains the denoiser on frames, in runs of some minutes that go on where the last one ended.

    denoise.py CHECKPOINT.pt --frames FOLDER... [--held-out FOLDER] [options]

Frames are safetensors as `tandem help denoise` describes them, with `reference`; NAME.CC.safetensors are copies of one that differ
in their samples, which may leave the reference to the first, or frames of a path, each with one, and with `motion`. All are kept in
the device's memory. The same frames, options and device give the same weights, as near as the device adds up alike, as long as the
rate falls by steps.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

import batches
import network


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="made if it is not there, else gone on with")
    parser.add_argument("--frames", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=pathlib.Path, help="frames that the PSNR is printed of")
    parser.add_argument("--steps", type=int, default=40000, help="of all runs together: the rate falls to 0 until then")
    parser.add_argument("--total-minutes", type=float, default=0, help="instead: until so many minutes of all runs together")
    parser.add_argument("--run-steps", type=int, default=0, help="of this run, at most")
    parser.add_argument("--minutes", type=float, default=9, help="of this run, at most")
    parser.add_argument("--until", type=float, default=0, help="of this run: until that time, in seconds since 1970")
    parser.add_argument("--crop", type=int, default=160)
    parser.add_argument("--batch", type=int, default=32, help="crops of a step, all frames of clips counted")
    parser.add_argument("--length", type=int, default=4, help="frames of a clip, in half of all steps; 1: no history")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--preset", choices=network.PRESETS, default="balanced", help="how wide the network is, and how slow")
    parser.add_argument("--widths", help="instead: channels of the three levels, as 48,64,96; multiples of 16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, which takes a minute at first")
    parser.add_argument("--eager", action="store_true", help="on a GPU, too, kernel by kernel, not as CUDA graphs")
    parser.add_argument("--every", type=int, default=200, help="steps between lines; ten times as many between checkpoints")
    parser.add_argument("--log", type=pathlib.Path, help="those lines, as JSON, added at its end")
    return parser.parse_args()


# --- Loss ---


def loss_of(out, light, exposure, frame):
    """Of logarithms, their slopes, what is shown, and light where the albedo is smooth, so that the reference has one."""
    reference, albedo = frame["reference"], frame["albedo"]
    a, b = (x.mul(exposure).log1p() for x in (out, reference))
    loss = (a - b).abs().mean()
    for axis in (-1, -2):
        loss = loss + 0.5 * (a.diff(dim=axis) - b.diff(dim=axis)).abs().mean()
    key = 0.4 * exposure  # the middle gray of what is shown
    c, d = (x * key / (1 + x * key) for x in (out, reference))
    loss = loss + 4 * F.mse_loss(c, d)
    smooth = (F.max_pool2d(albedo, 3, 1, 1) + F.max_pool2d(-albedo, 3, 1, 1)).amax(1, keepdim=True) < 0.02
    bright = albedo.amin(1, keepdim=True) > 0.05
    where = (smooth & bright).float()
    wanted = (reference / albedo.clamp_min(0.05) * exposure).log1p()
    return loss + 0.25 * ((light * exposure).log1p() - wanted).abs().mul(where).mean()


def flicker_of(now, then, exposure, frame):
    """How differently from its reference the result changes along the motion: `now` and `then` are pairs of result and reference."""
    pairs = [torch.cat((x, torch.ones_like(x[:, :1])), 1) for x in then]
    moved = [network.reproject(x, frame["motion"], frame.get("valid"), frame["guides"], frame["before"]) for x in pairs]
    a, b = ((x * exposure).log1p() - (y[:, :3] * exposure).log1p() for x, y in zip(now, moved))
    return ((a - b).abs() * (moved[0][:, 3:] > 0)).mean()


def clip_loss(forward, batch, autocast):
    """The mean over a clip's frames; each has the history that those before left."""
    loss, history, then = 0.0, None, None
    for t, frame in enumerate(batch):
        frame["guides"] = (frame["normal"], frame["depth"])
        if t:
            frame["before"] = batch[t - 1]["guides"]
            history = network.reproject(history, frame["motion"], frame.get("valid"), frame["guides"], frame["before"])
        with autocast():
            out, history, exposure = forward(*(frame[name] for name in batches.INPUTS), history)
        out, history, exposure = out.float(), history.float(), exposure.float()
        now = (out, frame["reference"])
        loss = loss + loss_of(out, history[:, :3], exposure, frame)
        if t:
            loss = loss + 0.25 * flicker_of(now, then, exposure, frame)
        then = now
    return loss / len(batch)


class Recorded:
    """clip_loss() and its gradients as CUDA graphs, one for each shape of a batch: to launch some thousand kernels one by one takes
    longer than they do."""

    def __init__(self, forward, parameters, autocast):
        self.forward, self.parameters, self.autocast, self.graphs = forward, parameters, autocast, {}
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def compute(self, batch):
        torch._foreach_zero_([parameter.grad for parameter in self.parameters])
        loss = clip_loss(self.forward, [dict(frame) for frame in batch], self.autocast)
        loss.backward()
        return loss.detach()

    def record(self, batch):
        inputs = [{name: x.clone() for name, x in frame.items()} for frame in batch]
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
        key = tuple(tuple(sorted((name, tuple(x.shape)) for name, x in frame.items())) for frame in batch)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        graph, inputs, loss = self.graphs[key]
        for own, frame in zip(inputs, batch):
            for name, x in frame.items():
                own[name].copy_(x)
        graph.replay()
        return loss


# --- Held-out frames ---


def shown(x):
    x = x.nan_to_num(0, 0, 0).clamp_min(0)
    return x / (1 + x)


def psnr_of(x, reference):
    return float(-10 * torch.log10((shown(x) - shown(reference)).square().mean()))


@torch.no_grad()
def evaluate(net, groups):
    """Mean PSNR of what is shown, x / (1 + x), over the last frames of all clips: of what comes in, of what comes out of it alone, and,
    of paths, with the frames before."""
    rows = []
    for group in groups:
        for clip, is_path in zip(group.clips, group.is_path):
            history, before, row = None, None, {}
            for frame, reference in clip if is_path else clip[:1]:
                tensors = batches.frame_of(group, frame, reference)
                inputs, guides = [tensors[name] for name in batches.INPUTS], (tensors["normal"], tensors["depth"])
                alone, left, _ = net(*inputs, None)
                row = {"input": psnr_of(tensors["color"], tensors["reference"]), "alone": psnr_of(alone, tensors["reference"])}
                if net.history and is_path:
                    if history is not None:
                        history = network.reproject(history, tensors["motion"], tensors.get("valid"), guides, before)
                        out, left, _ = net(*inputs, history)
                        row["with history"] = psnr_of(out, tensors["reference"])
                    history, before = left, guides
            rows.append(row)
    names = [name for name in ("input", "alone", "with history") if any(name in row for row in rows)]
    return {name: round(sum(row[name] for row in rows if name in row) / sum(name in row for row in rows), 3) for name in names}


# --- Training ---


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    is_gpu = a.device.startswith("cuda")
    if is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    state = torch.load(a.checkpoint, map_location="cpu", weights_only=True) if a.checkpoint.exists() else None
    options = dict(state["options"]) if state else {"widths": tuple(map(int, a.widths.split(","))) if a.widths else network.PRESETS[a.preset], "history": a.length > 1}
    net = network.Denoiser(**options).to(a.device, memory_format=torch.channels_last)
    mean = network.Denoiser(**options).to(a.device, memory_format=torch.channels_last)  # of weights, over some hundred steps: what is exported
    mean.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=a.rate, weight_decay=1e-4, fused=is_gpu)
    step, spent = 0, 0.0
    if state:
        net.load_state_dict(state["training"])
        mean.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent = state["step"], state["seconds"]
    start, first = time.monotonic(), step
    end = min(start + 60 * a.minutes, start + a.until - time.time() if a.until else math.inf)
    groups = batches.load(a.frames, a.device)
    held_out = batches.load([a.held_out], a.device) if a.held_out else None
    forward = torch.compile(net) if a.compile else net
    parameters, averages = list(net.parameters()), list(mean.parameters())
    sums = torch.zeros((), device=a.device)

    def autocast():
        return torch.autocast(a.device.split(":")[0], torch.bfloat16, enabled=is_gpu, cache_enabled=a.eager)

    recorded = Recorded(forward, parameters, autocast) if is_gpu and not a.eager else None

    def save():
        temporary = a.checkpoint.with_suffix(".tmp")
        torch.save({"options": options, "weights": mean.state_dict(), "training": net.state_dict(), "optimizer": optimizer.state_dict(),
                    "step": step, "seconds": spent + time.monotonic() - start}, temporary)
        temporary.replace(a.checkpoint)

    print(f"{batches.count(groups)} clips, {time.monotonic() - start:.1f} s to load; from step {step} on", flush=True)

    def progress():
        """Of all runs: 0 to 1."""
        return (spent + time.monotonic() - start) / (60 * a.total_minutes) if a.total_minutes else step / a.steps

    while progress() < 1 and time.monotonic() < end and not 0 < a.run_steps <= step - first:
        generator = torch.Generator().manual_seed(a.seed * 1_000_003 + step)
        warm = min(1, (step + 1) / 500)
        for group in optimizer.param_groups:
            group["lr"] = a.rate * warm * 0.5 * (1 + math.cos(math.pi * progress()))
        length = a.length if options["history"] and step % 2 else 1
        batch = batches.batch_of(groups, max(1, a.batch // length), length, a.crop, generator)
        if recorded:
            loss = recorded(batch)
        else:
            loss = clip_loss(forward, batch, autocast)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for parameter in parameters:  # where one is not finite, none is now: such a step is none
            parameter.grad.nan_to_num_(0, 0, 0)
        optimizer.step()
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(averages, parameters, 1 - min(0.998, step / (step + 10)))
        sums += loss.detach()
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
    print(f"step {step}, {100 * min(1, progress()):.0f} % -> {a.checkpoint}" + (f", held out {evaluate(mean, held_out)}" if held_out else ""))


if __name__ == "__main__":
    main()
