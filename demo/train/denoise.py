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
    parser.add_argument("--preset", choices=network.PRESETS, help="how wide the network is, and how slow; default: balanced")
    parser.add_argument("--widths", help="instead: channels of the three levels, as 48,64,96; multiples of 16")
    parser.add_argument("--weights", type=pathlib.Path, help="a model of export.py's, to begin with where there is no checkpoint: history\n"
                        "is that one's, and width, unless --preset or --widths asks for more: then it is widened")
    parser.add_argument("--sparse", type=float, default=0.25, help="share of clips with color at fewer pixels, as they are upscaled")
    parser.add_argument("--tone", type=float, default=0.03, help="weight of the logarithm of each crop's error as it is shown")
    parser.add_argument("--relative", type=float, default=0.2, help="weight of relMSE, which dark pixels beside bright edges have most of")
    parser.add_argument("--structure", type=float, default=0.3, help="weight of 1 - SSIM")
    parser.add_argument("--flicker", type=float, default=1.0, help="weight of what changes from frame to frame and should not")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, which takes a minute at first")
    a = parser.parse_args()
    if a.crop < WINDOW:
        parser.error(f"--crop {a.crop}: must be at least {WINDOW}")
    return a


# --- Loss ---

PARTS = ("log", "slope", "tone", "light", "relative", "structure", "flicker")
WINDOW, SIGMA = 11, 1.5  # of SSIM
LEAST_TONE = 3e-5  # mean square of what is shown, 45 dB: below, a crop is as good as it need be
MOST_RELATIVE = 3  # times as much as a reference: the more an error is beyond, the less it pulls, as a firefly's does


def blurred(x):
    """By SSIM's Gaussian, where all of it is within the image. Two products of matrices: a convolution of one channel is slow."""
    weights = torch.exp(-(torch.arange(WINDOW, device=x.device) - WINDOW // 2).square() / (2 * SIGMA**2))
    weights = weights / weights.sum()

    def band(n):
        offset = torch.arange(n, device=x.device) - torch.arange(n - WINDOW + 1, device=x.device)[:, None]
        return torch.where((offset >= 0) & (offset < WINDOW), weights[offset.clamp(0, WINDOW - 1)], torch.zeros_like(weights[:1]))
    return band(x.shape[-2]) @ (x @ band(x.shape[-1]).T)


def ssim_of(a, b):
    """As `tandem help denoise` has it, of what is shown."""
    mean_a, mean_b, squares, products = blurred(torch.cat((a, b, a * a + b * b, a * b), 1)).chunk(4, 1)
    both, means = mean_a * mean_b, mean_a.square() + mean_b.square()
    return ((2 * both + 1e-4) * (2 * (products - both) + 9e-4) / ((means + 1e-4) * (squares - means + 9e-4))).mean()


def losses_of(out, light, exposure, frame):
    """Of logarithms, their slopes, what is shown, light where the albedo is smooth, so that the reference has one; relMSE and SSIM. All
    but the last part of PARTS."""
    reference, albedo = frame["reference"], frame["albedo"]
    a, b = (x.mul(exposure).log1p() for x in (out, reference))
    slope = sum((a.diff(dim=axis) - b.diff(dim=axis)).abs().mean() for axis in (-1, -2))
    key = 0.4 * exposure  # the middle gray of what is shown
    e, r = out * key, reference * key
    c, d = e / (1 + e), r / (1 + r)
    # Each crop's error by its logarithm, near enough, as PSNR has it: quiet ones count, too.
    tone = (1 + (c - d).square().mean((1, 2, 3)) / LEAST_TONE).log().mean()
    smooth = (F.max_pool2d(albedo, 3, 1, 1) + F.max_pool2d(-albedo, 3, 1, 1)).amax(1, keepdim=True) < 0.02
    bright = albedo.amin(1, keepdim=True) > 0.05
    where = (smooth & bright).float()
    wanted = (reference / albedo.clamp_min(0.05) * exposure).log1p()
    of_light = ((light * exposure).log1p() - wanted).abs().mul(where).mean()
    relative = MOST_RELATIVE**2 * ((e - r).square() / (r.square() + 0.01) / MOST_RELATIVE**2).log1p().mean()
    return [(a - b).abs().mean(), slope, tone, of_light, relative, 1 - ssim_of(c, d)]


def flicker_of(now, then, exposure, frame):
    """How differently from its reference the result changes along the motion: `now` and `then` are pairs of result and reference. As
    `tandem eval denoise` has it: from the nearest pixel, wherever a pixel was seen before, be it of another surface, and of each frame
    the root of the mean square of what is shown; and of logarithms, their mean."""
    height, width = now[0].shape[-2:]
    rows, columns = (torch.arange(n, device=exposure.device) + 0.5 for n in (height, width))
    motion = frame["motion"]
    y, x = rows.view(1, -1, 1) + motion[:, 1], columns.view(1, 1, -1) + motion[:, 0]
    seen = ((y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None]  # not where motion is not finite
    if "valid" in frame:
        seen = seen & (frame["valid"] > 0)
    y, x = (torch.where(seen[:, 0], at, torch.zeros_like(at)).long() for at in (y, x))
    at = y * width + x
    both = torch.cat(then, 1).flatten(2)
    moved = both.gather(2, at.flatten(1)[:, None].expand_as(both)).view(len(both), 2, 3, height, width)
    now, moved = torch.stack(now, 1) * exposure[:, None], moved * exposure[:, None]
    counts = seen.sum((1, 2, 3)).clamp_min(1)

    def difference(of):
        a, b = (of(now) - of(moved)).unbind(1)
        return torch.where(seen, a - b, torch.zeros_like(a))
    squares = difference(lambda x: 0.4 * x / (1 + 0.4 * x)).square().mean(1).sum((1, 2)) / counts
    return (squares + 1e-6).sqrt().mean() + (difference(torch.log1p).abs().mean(1).sum((1, 2)) / counts).mean()


def clip_loss(forward, batch, autocast, weights):
    """What each of PARTS, times its weight, adds to the mean over a clip's frames; each has the history that those before left."""
    sums, history, then = 0.0, None, None
    for t, frame in enumerate(batch):
        frame["guides"] = (frame["normal"], frame["depth"])
        if t:
            frame["before"] = batch[t - 1]["guides"]
            history = network.reproject(history, frame["motion"], frame.get("valid"), frame["guides"], frame["before"])
        with autocast():
            out, history, exposure = forward(*(frame[name] for name in batches.INPUTS), history, frame["hard"])
        out, history, exposure = out.float(), history.float(), exposure.float()
        now = (out, frame["reference"])
        losses = losses_of(out, history[:, :3], exposure, frame)
        flicker = flicker_of(now, then, exposure, frame) if t else torch.zeros_like(losses[0])
        sums = sums + torch.stack([*losses, flicker])
        then = now
    return sums * weights / len(batch)


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
                alone, left, _ = net(*inputs, None, tensors["hard"])
                row = {"input": psnr_of(tensors["color"], tensors["reference"]), "alone": psnr_of(alone, tensors["reference"])}
                if net.history and is_path:
                    if history is not None:
                        history = network.reproject(history, tensors["motion"], tensors.get("valid"), guides, before)
                        out, left, _ = net(*inputs, history, tensors["hard"])
                        row["with history"] = psnr_of(out, tensors["reference"])
                    history, before = left, guides
            rows.append(row)
    names = [name for name in ("input", "alone", "with history") if any(name in row for row in rows)]
    return {name: round(sum(row[name] for row in rows if name in row) / sum(name in row for row in rows), 3) for name in names}


# --- Training ---


def beginning(path, widths):
    """A model file's options and state, widened to `widths` if they are there and others."""
    options, state = export.read(path)
    if widths in (None, options["widths"]):
        return options, state
    if any(wide < width for wide, width in zip(widths, options["widths"])):
        raise SystemExit(f"--weights {path}: has {options['widths']} channels, more than {widths}")
    net = network.Denoiser(**options)
    net.load_state_dict(state)
    return {**options, "widths": widths}, net.widened(widths).state_dict()


def main():
    a = arguments()
    widths = tuple(map(int, a.widths.split(","))) if a.widths else network.PRESETS[a.preset] if a.preset else None
    fresh, begin = beginning(a.weights, widths) if a.weights else ({"widths": widths or network.PRESETS["balanced"], "history": a.length > 1}, None)
    run = training.Training(a, network.Denoiser, fresh, begin, weight_decay=1e-4)
    groups = batches.load(a.frames, a.device)
    held_out = batches.load([a.held_out], a.device) if a.held_out else None
    weights = {"log": 1, "slope": 0.5, "tone": a.tone, "light": 0.25, "relative": a.relative, "structure": a.structure, "flicker": a.flicker}
    weights = torch.tensor([weights[part] for part in PARTS], device=a.device)
    forward = torch.compile(run.net) if a.compile else run.net
    is_recorded = run.is_gpu and not a.eager
    for parameter in run.parameters if is_recorded else ():
        parameter.grad = torch.zeros_like(parameter)

    def compute(batch):
        """clip_loss() and the gradients of its sum, where they are recorded into the same memory each time."""
        if is_recorded:
            torch._foreach_zero_([parameter.grad for parameter in run.parameters])
        parts = clip_loss(forward, [dict(frame) for frame in batch], run.autocast, weights)
        if not is_recorded:
            run.optimizer.zero_grad(set_to_none=True)
        parts.sum().backward()
        return parts.detach()

    def batch_at(step, generator):
        length = a.length if run.options["history"] and step % 2 else 1
        return batches.batch_of(groups, max(1, a.batch // length), length, a.crop, generator, a.sparse)

    print(f"{batches.count(groups)} clips, {run.seconds():.1f} s to load; from step {run.step} on", flush=True)
    run.run(batch_at, training.Recorded(compute) if is_recorded else compute, (lambda net: evaluate(net, held_out)) if held_out else None, PARTS)


if __name__ == "__main__":
    main()
