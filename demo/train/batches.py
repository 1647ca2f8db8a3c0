"""Frames with references, kept on the device, and batches of crops of them.

SPDX-License-Identifier: Apache-2.0
"""
import math
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file

INPUTS = ("color", "albedo", "normal", "depth")
GUIDES = INPUTS[1:] + ("motion", "valid")  # what halves are exact enough for
ABSENT = {"albedo": 1, "normal": 0, "depth": 0, "motion": 0, "valid": 1}
MISSING = 1 / 16  # of crops: some pixels without radiance


class Group:
    """Frames of one size, one after the other, as [frames, height, width, channels]. A clip is frames whose samples differ: of a path,
    each with a reference of its own, or copies of one."""

    def __init__(self):
        self.tensors, self.references, self.clips, self.is_path, self.hard = {}, [], [], [], []

    def stack(self, frames, references):
        self.hard = torch.stack([frame.get("hard", torch.tensor(False, device=references[0].device)) for frame in frames])
        for name in INPUTS + ("motion", "valid"):
            tensors = [frame.get(name) for frame in frames]
            there = next((x for x in tensors if x is not None), None)
            if there is not None:
                self.tensors[name] = torch.stack([x if x is not None else torch.full_like(there, ABSENT[name]) for x in tensors])
        self.references = torch.stack(references)
        return self


def edges_are_hard(depth, normal):
    """Whether rays went through the middle of pixels, as tool/edges.c finds it: of planes the reciprocal of the depth is linear then."""
    near = 1 / depth[..., 0].double()
    seen = linear = 0
    for axis in (0, 1):
        a, b, c = (near.narrow(axis, i, near.shape[axis] - 2) for i in range(3))
        slope = (c - a).abs() / 2
        counts = (a > 0) & (b > 0) & (c > 0) & (slope > 4e-3 * b) & (slope < 0.1 * b)
        if normal is not None:
            x, y = (normal.float().narrow(axis, i, normal.shape[axis] - 1) for i in range(2))
            same = (x * y).sum(-1) > 0.99 * ((x * x).sum(-1) * (y * y).sum(-1)).sqrt()
            counts &= same.narrow(axis, 0, a.shape[axis]) & same.narrow(axis, 1, a.shape[axis])
        seen += int(counts.sum())
        linear += int((counts & ((a - 2 * b + c).abs() < 0.05 * slope + 5e-4 * b)).sum())
    return seen >= 200 and linear > 0.75 * seen


def read(path, device):
    """A file's tensors, on the device, as they are kept, and whether edges are hard."""
    file = load_file(path)
    hard = torch.tensor("depth" in file and edges_are_hard(file["depth"], file.get("normal")), device=device)
    return {"hard": hard, **{name: x.to(device, torch.float16 if name in GUIDES else torch.float32) for name, x in file.items()
                             if name in (*INPUTS, *GUIDES, "reference")}}


def load(folders, device):
    """A Group for each size. A scene's files are NAME.CC.safetensors, in the order of CC; those without a reference have that of the
    one before."""
    scenes = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.safetensors")):
        scenes.setdefault((path.parent, path.name.rsplit(".", 2)[0]), []).append(path)
    sizes = {}
    with ThreadPoolExecutor() as pool:  # some thousand files: what takes time is to convert and copy them, which waits for no lock
        files_of = [list(files) for files in [pool.map(read, paths, [device] * len(paths)) for paths in scenes.values()]]
    for files in files_of:
        if "reference" not in files[0]:
            continue
        frames, references, group = sizes.setdefault(tuple(files[0]["color"].shape[:2]), ([], [], Group()))
        clip = []
        for tensors in files:
            if "reference" in tensors:
                references.append(tensors["reference"])
            frames.append({name: tensors[name] for name in INPUTS + ("motion", "valid", "hard") if name in tensors})
            clip.append((len(frames) - 1, len(references) - 1))
        group.clips.append(clip)
        group.is_path.append(clip[-1][1] > clip[0][1])
    if not sizes:
        raise SystemExit("no frames with a reference in " + ", ".join(map(str, folders)))
    return [group.stack(frames, references) for frames, references, group in sizes.values()]


def count(groups):
    return sum(len(group.clips) for group in groups)


def frame_of(group, frame, reference):
    """A whole frame as the network has it: [1, channels, height, width]."""
    out = {name: tensor[frame].permute(2, 0, 1)[None].float() for name, tensor in group.tensors.items()}
    for name in ("albedo", "normal", "depth"):
        if name not in out:
            out[name] = torch.full_like(out["color"][:, : 1 if name == "depth" else 3], ABSENT[name])
    out["reference"] = group.references[reference].permute(2, 0, 1)[None]
    out["hard"] = group.hard[frame].view(1, 1, 1, 1)
    return out


def orthogonal(size, generator):
    """Turns of the world, or mirror images of it: no axis is known to the network."""
    q, r = torch.linalg.qr(torch.randn(size, 3, 3, generator=generator))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def batch_of(groups, clips, length, size, generator, sparse=0.0):
    """`length` frames of each of so many clips, one after the other: a list of dicts of [clips, channels, size, size]. That share of clips
    is `sparse`, of which color is missing where a render of 2/3 or half the size has no pixel. Crops are taken with one index a tensor:
    a GPU starts few kernels for it, and waits for none of the CPU's."""
    def below(most):
        return (torch.rand(clips, generator=generator) * torch.as_tensor(most)).long()

    def chance(p):
        return torch.rand(clips, generator=generator) < p

    which = int(torch.multinomial(torch.tensor([float(len(group.clips)) for group in groups]), 1, generator=generator))
    group, device = groups[which], groups[which].references.device
    height, width = group.references.shape[1:3]
    if min(height, width) < size:
        raise SystemExit(f"frames of {width} x {height} are smaller than the crop, {size}")
    frames, references = torch.zeros(length, clips, dtype=torch.long), torch.zeros(length, clips, dtype=torch.long)
    for clip, number in enumerate(below(len(group.clips)).tolist()):
        of = group.clips[number]
        if group.is_path[number]:  # frames as they follow one another, or backwards not: motion leads to the one before
            first = int(torch.randint(max(1, len(of) - length + 1), (), generator=generator))
            picked = [of[min(first + t, len(of) - 1)] for t in range(length)]
        else:
            order = torch.randperm(len(of), generator=generator).tolist()
            picked = [of[order[t % len(of)]] for t in range(length)]
        for t, (frame, reference) in enumerate(picked):
            frames[t, clip], references[t, clip] = frame, reference
    # A crop may pan over the frames, too, by whole pixels, in half of all clips.
    origin = torch.stack((below(height - size + 1), below(width - size + 1)))
    pan = torch.randint(-6, 7, (length, 2, clips), generator=generator) * chance(0.5)
    pan[0] = 0
    origin = (origin + pan.cumsum(0)).clamp(torch.zeros(2, 1, dtype=torch.long), torch.tensor([[height - size], [width - size]]))
    flips, turned = torch.stack((chance(0.5), chance(0.5))), chance(0.5)
    gain = torch.exp(torch.rand(clips, generator=generator) * 6 - 3)
    turn = orthogonal(clips, generator)
    holes = chance(MISSING)
    # Of every three rows and columns two are there, or one of two: from which on is each frame's own affair, as if it were jittered, or
    # the clip's. A period of 1 stands for none that is missing.
    period = torch.where(chance(sparse), torch.where(chance(0.5), 2, 3), 1)
    phase = (torch.rand((length, 2, clips), generator=generator) * period).long()
    phase = torch.where(chance(0.5), phase, phase[:1])
    left_out = {"albedo": chance(0.04), "normal": chance(0.06), "depth": chance(0.1)}  # what an engine may leave out
    numbers = torch.cat((frames.flatten(), references.flatten(), origin.flatten(), flips.flatten().long(), turned.long(), holes.long(),
                         period, phase.flatten(), *(x.long() for x in left_out.values())))
    reals = torch.cat((gain, turn.flatten()))
    if device.type == "cuda":
        numbers, reals = (x.pin_memory().to(device, non_blocking=True) for x in (numbers, reals))
    frames, references, origin, flips, turned, holes, period, phase, *gone = numbers.split(
        [length * clips, length * clips, 2 * length * clips, 2 * clips, clips, clips, clips, 2 * length * clips, clips, clips, clips])
    frames, references, origin, flips = frames.view(length, clips), references.view(length, clips), origin.view(length, 2, clips), flips.view(2, clips)
    phase = phase.view(length, 2, clips, 1)
    gain, turn = reals[:clips].view(-1, 1, 1, 1), reals[clips:].view(clips, 3, 3)

    axis = torch.arange(size, device=device)
    swap = turned.bool().view(-1, 1, 1)
    y, x = torch.where(swap, axis.view(1, 1, -1), axis.view(1, -1, 1)), torch.where(swap, axis.view(1, -1, 1), axis.view(1, 1, -1))
    y, x = (torch.where(flip.bool().view(-1, 1, 1), size - 1 - at, at) for flip, at in zip(flips, (y, x)))
    noise = torch.Generator(device=device)
    noise.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    out = []
    for t in range(length):
        rows, columns = y + origin[t, 0].view(-1, 1, 1), x + origin[t, 1].view(-1, 1, 1)

        def take(tensor, of):
            return tensor[of.view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2).float()
        frame = {name: take(tensor, frames[t]) for name, tensor in group.tensors.items()}
        frame["hard"] = group.hard[frames[t]].view(-1, 1, 1, 1)
        for name, missing in zip(left_out, gone):
            channels = 1 if name == "depth" else 3
            absent = torch.full((clips, channels, size, size), float(ABSENT[name]), device=device)
            frame[name] = torch.where(missing.bool().view(-1, 1, 1, 1), absent, frame[name]) if name in frame else absent
        frame["normal"] = torch.einsum("nij,njyx->niyx", turn, frame["normal"])
        hole = (torch.rand((clips, 1, size, size), generator=noise, device=device) < 0.02) & holes.bool().view(-1, 1, 1, 1)
        traced = ((axis + phase[t]) % period[:, None] > 0) | (period[:, None] == 1)
        hole |= ~(traced[0, :, None, :, None] & traced[1, :, None, None, :])
        frame["color"] = (frame["color"] * gain).masked_fill(hole, math.nan)
        frame["reference"] = take(group.references, references[t]) * gain
        if t:
            moved = frame.get("motion", torch.zeros((clips, 2, size, size), device=device))
            moved = moved + (origin[t] - origin[t - 1]).flip(0).T.reshape(clips, 2, 1, 1)
            moved = moved * (1 - 2 * flips.flip(0)).T.reshape(clips, 2, 1, 1)
            frame["motion"] = torch.where(swap[:, None], moved.flip(1), moved)
        out.append(frame)
    return out
