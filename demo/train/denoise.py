#!/usr/bin/env python3
"""Trains the denoiser on frames, in runs of some minutes that go on where the last one ended.

    denoise.py CHECKPOINT.pt --frames FOLDER... [--held-out FOLDER] [options]

Frames are safetensors as `tandem help denoise` describes them, with `reference`; NAME.CC.safetensors are copies of one that differ
in their samples, which may leave the reference to the first. All are kept in the device's memory. The same frames, options and
device give the same weights, as near as the device adds up alike, as long as the rate falls by steps.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import network

INPUTS = ("color", "albedo", "normal", "depth")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="made if it is not there, else gone on with")
    parser.add_argument("--frames", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=pathlib.Path, help="frames that the PSNR is printed of")
    parser.add_argument("--steps", type=int, default=40000, help="of all runs together: the rate falls to 0 until then")
    parser.add_argument("--total-minutes", type=float, default=0, help="instead: until so many minutes of all runs together")
    parser.add_argument("--run-steps", type=int, default=0, help="of this run, at most")
    parser.add_argument("--minutes", type=float, default=9, help="of this run, at most")
    parser.add_argument("--crop", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--widths", default="48,64,96", help="channels of the three levels")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, which takes a minute at first")
    parser.add_argument("--log", type=pathlib.Path, help="a line of JSON every 200 steps, added at its end")
    return parser.parse_args()


# --- Frames ---


def load_frames(folders, device):
    """Each frame's copies, as [channels, height, width]; references in float32, all else in halves where that is exact enough."""
    scenes = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.safetensors")):
        tensors = {name: tensor.permute(2, 0, 1).contiguous() for name, tensor in load_file(path).items()}
        frame = {name: tensors[name].to(device, torch.float32 if name == "color" else torch.float16) for name in INPUTS if name in tensors}
        name = path.name.rsplit(".", 2)[0]
        scene = scenes.setdefault((path.parent, name), {"copies": []})
        if "reference" in tensors:
            scene["reference"] = tensors["reference"].to(device, torch.float32)
        scene["copies"].append(frame)
    scenes = [scene for scene in scenes.values() if "reference" in scene]
    if not scenes:
        raise SystemExit("no frames with a reference in " + ", ".join(map(str, folders)))
    return scenes


def orthogonal(generator):
    """A turn of the world, or a mirror image of it: no axis is known to the network."""
    q, r = torch.linalg.qr(torch.randn(3, 3, generator=generator))
    return q * r.diagonal().sign()


def crop_of(scenes, size, generator):
    def below(n):
        return int(torch.randint(n, (), generator=generator))

    def chance(p):
        return float(torch.rand((), generator=generator)) < p

    scene = scenes[below(len(scenes))]
    frame = scene["copies"][below(len(scene["copies"]))]
    _, height, width = frame["color"].shape
    y, x = below(max(1, height - size + 1)), below(max(1, width - size + 1))
    crop = {name: tensor[:, y : y + size, x : x + size].float() for name, tensor in frame.items()}
    crop["reference"] = scene["reference"][:, y : y + size, x : x + size]
    for axis in (1, 2):
        if chance(0.5):
            crop = {name: tensor.flip(axis) for name, tensor in crop.items()}
    if chance(0.5):
        crop = {name: tensor.transpose(1, 2) for name, tensor in crop.items()}
    gain = math.exp(float(torch.rand((), generator=generator)) * 6 - 3)
    crop["color"], crop["reference"] = crop["color"] * gain, crop["reference"] * gain
    crop["normal"] = torch.einsum("ij,jyx->iyx", orthogonal(generator).to(crop["normal"]), crop["normal"])
    if chance(0.05):  # pixels that are missing
        hole = torch.rand(crop["color"].shape[1:], generator=generator).to(crop["color"].device) < 0.02
        crop["color"] = crop["color"].masked_fill(hole, math.nan)
    for name, share, value in (("albedo", 0.04, 1), ("normal", 0.06, 0), ("depth", 0.1, 0)):  # what an engine may leave out
        if chance(share):
            crop[name] = torch.full_like(crop[name], value)
    return crop


def batch_of(scenes, count, size, generator):
    crops = [crop_of(scenes, size, generator) for _ in range(count)]
    return {name: torch.stack([crop[name] for crop in crops]) for name in crops[0]}


# --- Loss ---


def loss_of(out, light, exposure, batch):
    """Of logarithms, their slopes, what is shown, and light where the albedo is smooth, so that the reference has one."""
    reference, albedo = batch["reference"], batch["albedo"]
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


def psnr_of(x, reference):
    def shown(x):
        return x.nan_to_num(0, 0, 0).clamp_min(0) / (1 + x.nan_to_num(0, 0, 0).clamp_min(0))
    return float(-10 * torch.log10((shown(x) - shown(reference)).square().mean()))


@torch.no_grad()
def evaluate(net, scenes):
    """Mean PSNR of what is shown, x / (1 + x): of what comes in, and of what comes out."""
    sums = torch.zeros(2, dtype=torch.float64)
    for scene in scenes:
        frame = {name: tensor[None].float() for name, tensor in scene["copies"][0].items()}
        out = net(*(frame[name] for name in INPUTS))[0][0]
        sums += torch.tensor([psnr_of(frame["color"][0], scene["reference"]), psnr_of(out, scene["reference"])])
    return [round(float(x) / len(scenes), 3) for x in sums]


# --- Training ---


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    options = {"widths": tuple(map(int, a.widths.split(",")))}
    state = torch.load(a.checkpoint, map_location="cpu", weights_only=True) if a.checkpoint.exists() else None
    net = network.Denoiser(**(state["options"] if state else options)).to(a.device)
    mean = network.Denoiser(**(state["options"] if state else options)).to(a.device)  # of weights, over some hundred steps: what is exported
    mean.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=a.rate, weight_decay=1e-4, fused=a.device.startswith("cuda"))
    step, spent = 0, 0.0
    if state:
        net.load_state_dict(state["training"])
        mean.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent = state["step"], state["seconds"]
    scenes = load_frames(a.frames, a.device)
    held_out = load_frames([a.held_out], a.device) if a.held_out else None
    forward = torch.compile(net) if a.compile else net
    start, first, sums = time.monotonic(), step, 0.0

    def save():
        temporary = a.checkpoint.with_suffix(".tmp")
        torch.save({"options": dict(state["options"] if state else options), "weights": mean.state_dict(), "training": net.state_dict(),
                    "optimizer": optimizer.state_dict(), "step": step, "seconds": spent + time.monotonic() - start}, temporary)
        temporary.replace(a.checkpoint)

    print(f"{len(scenes)} scenes, from step {step} on", flush=True)

    def progress():
        """Of all runs: 0 to 1."""
        return (spent + time.monotonic() - start) / (60 * a.total_minutes) if a.total_minutes else step / a.steps

    while progress() < 1 and time.monotonic() - start < 60 * a.minutes and not 0 < a.run_steps <= step - first:
        generator = torch.Generator().manual_seed(a.seed * 1_000_003 + step)
        warm = min(1, (step + 1) / 500)
        for group in optimizer.param_groups:
            group["lr"] = a.rate * warm * 0.5 * (1 + math.cos(math.pi * progress()))
        batch = batch_of(scenes, a.batch, a.crop, generator)
        with torch.autocast(a.device.split(":")[0], torch.bfloat16, enabled=a.device.startswith("cuda")):
            out, light, exposure = forward(*(batch[name] for name in INPUTS))
        loss = loss_of(out.float(), light.float(), exposure.float(), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        with torch.no_grad():
            share = min(0.998, step / (step + 10))
            for average, now in zip(mean.parameters(), net.parameters()):
                average.lerp_(now, 1 - share)
        sums += loss.detach()
        if step % 200 == 0:
            line = {"step": step, "loss": round(float(sums) / 200, 5), "seconds": round(time.monotonic() - start, 1)}
            if held_out and step % 2000 == 0:
                line["held_out"] = evaluate(mean, held_out)
            sums = 0.0
            print(json.dumps(line), flush=True)
            if step % 2000 == 0:
                save()
            if a.log:
                with open(a.log, "a") as log:
                    log.write(json.dumps(line) + "\n")
    save()
    print(f"step {step}, {100 * min(1, progress()):.0f} % -> {a.checkpoint}" + (f", held out {evaluate(mean, held_out)}" if held_out else ""))


if __name__ == "__main__":
    main()
