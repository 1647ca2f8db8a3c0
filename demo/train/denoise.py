#!/usr/bin/env python3
"""Trains the denoiser on frames, in runs of some minutes that go on where the last one ended.

    denoise.py CHECKPOINT.pt --frames FOLDER... [--held-out FOLDER] [options]

Frames are safetensors as `tandem help denoise` describes them, with `reference`; NAME.CC.safetensors are copies of one that differ
in their samples, which may leave the reference to the first, or frames of a path, each with one, and with `motion`. All are kept in
the device's memory. The same frames, options and device give the same weights, as near as the device adds up alike, as long as the
rate falls by steps.
SPDX-License-Identifier: Apache-2.0
"""

import pathlib

import torch
import torch.nn.functional as F

import batches
import export
import network
import training
from training import shown


def arguments():
    parser = training.parser_of(__doc__, 40000, 1.5e-3)
    parser.add_argument("--crop", type=int, default=160)
    parser.add_argument("--batch", type=int, default=32, help="crops of a step, all frames of clips counted")
    parser.add_argument("--length", type=int, default=4, help="frames of a clip, in half of all steps; 1: no history")
    parser.add_argument("--preset", choices=network.PRESETS, default="balanced", help="how wide the network is, and how slow")
    parser.add_argument("--widths", help="instead: channels of the three levels, as 48,64,96; multiples of 16")
    parser.add_argument("--weights", type=pathlib.Path, help="a model of export.py's, to begin with where there is no checkpoint: width and\n"
                        "history are that one's")
    parser.add_argument("--sparse", type=float, default=0.25, help="share of clips with color at fewer pixels, as they are upscaled")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, which takes a minute at first")
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


# --- Held-out frames ---


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
    widths = tuple(map(int, a.widths.split(","))) if a.widths else network.PRESETS[a.preset]
    fresh, begin = export.read(a.weights) if a.weights else ({"widths": widths, "history": a.length > 1}, None)
    run = training.Training(a, network.Denoiser, fresh, begin, weight_decay=1e-4)
    groups = batches.load(a.frames, a.device)
    held_out = batches.load([a.held_out], a.device) if a.held_out else None
    forward = torch.compile(run.net) if a.compile else run.net
    is_recorded = run.is_gpu and not a.eager
    for parameter in run.parameters if is_recorded else ():
        parameter.grad = torch.zeros_like(parameter)

    def compute(batch):
        """clip_loss() and its gradients, where they are recorded into the same memory each time."""
        if is_recorded:
            torch._foreach_zero_([parameter.grad for parameter in run.parameters])
        loss = clip_loss(forward, [dict(frame) for frame in batch], run.autocast)
        if not is_recorded:
            run.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    def batch_at(step, generator):
        length = a.length if run.options["history"] and step % 2 else 1
        return batches.batch_of(groups, max(1, a.batch // length), length, a.crop, generator, a.sparse)

    print(f"{batches.count(groups)} clips, {run.seconds():.1f} s to load; from step {run.step} on", flush=True)
    run.run(batch_at, training.Recorded(compute) if is_recorded else compute, (lambda net: evaluate(net, held_out)) if held_out else None)


if __name__ == "__main__":
    main()
