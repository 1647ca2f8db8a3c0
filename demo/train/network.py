"""The denoiser's network in PyTorch: what export.py writes as a graph, and denoise.py trains.

A small U-Net over 2x2-pixel tokens predicts queries and keys, at four resolutions. Attention over neighbourhoods gathers
light, which is radiance divided by albedo: coarser levels from finer ones, then each level from itself and the coarser
one. A last one over 3x3 pixels joins neighbours after the albedo is multiplied back, so that edges of jittered samples come
out smooth. All of it is convex mixtures of what was measured: weights are of a softmax.

With history the light that came out of the finest level is kept, moved to where it is seen now, shown to the trunk, and one
more key of each pixel. It counts as often as there were frames that it is made of.

Tensors here are [frames, channels, height, width]; the operations' definitions are in interop/include/tandem/types.h.
SPDX-License-Identifier: Apache-2.0
"""
import torch
import torch.nn.functional as F
from torch import nn

LEVELS = 4
FEATURES = 12  # of a pixel
LEAST_ALBEDO = 0.1  # that light is divided by; what has none at all is an emitter: its light is its radiance
HISTORY_FEATURES = 4
MOST_FRAMES = 32  # that history counts as
FAR = -1e4  # a bias that leaves a neighbour no weight
SAME_DEPTH, SAME_NORMAL = 0.1, 0.5  # what a pixel that was seen before may differ by, and the least cosine
TILE = 16  # pixels a side, whose mean radiance counts once in the exposure


def luminance(color):
    red, green, blue = color.split(1, 1)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def measure(color, depth, valid):
    """Of each frame: 1 / geometric mean of its tiles' luminances, each the mean of those pixels that are `valid`, and the geometric mean
    of its depths."""
    def tiles(x):
        return F.avg_pool2d(x, TILE, ceil_mode=True, count_include_pad=False)

    def mean_log(x):
        there = x > 1e-8
        logs = torch.where(there, x.clamp_min(1e-8).log(), torch.zeros_like(x))
        return (logs.sum((1, 2, 3), keepdim=True) / there.sum((1, 2, 3), keepdim=True).clamp_min(1)).exp()

    valid = valid.to(color)
    return 1 / mean_log(tiles(luminance(color) * valid) / tiles(valid).clamp_min(1 / TILE**3)), mean_log(depth)


def clean(x):
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


def reproject(history, motion, valid=None, guides=None, before=None):
    """The frame before, as seen now: of each pixel the bilinear mean of the four around where `motion` says it was, each as often as it
    counts. Those that lie beyond the image, or whose normal or depth is another (`guides` and `before`: pairs of normal and depth),
    count for nothing; nor does any where `valid` is not above 0. Light and its weight, at most MOST_FRAMES."""
    frames, _, height, width = history.shape
    rows, columns = (torch.arange(n, device=history.device) for n in (height, width))
    known = motion.isfinite().all(1) & (motion.abs().amax(1) < 1e6)
    motion = torch.where(known[:, None], motion, torch.zeros_like(motion))
    y, x = rows.view(1, -1, 1) + motion[:, 1], columns.view(1, 1, -1) + motion[:, 0]
    top, left = y.floor(), x.floor()
    down, right = y - top, x - left
    top, left = top.long(), left.long()

    def at(x, row, column):  # its gradient is a scatter_add, which needs no sorting
        where = (row * width + column).view(frames, 1, -1).expand(-1, x.shape[1], -1)
        return x.flatten(2).gather(2, where).view(x.shape)
    sums = torch.zeros_like(history)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        share = (down if i else 1 - down) * (right if j else 1 - right)
        row, column = top + i, left + j
        counts = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        if guides is not None:
            normal, depth = (clean(g) for g in guides)
            normal_then, depth_then = (at(clean(g), row, column) for g in before)
            depth, depth_then = depth.clamp_min(0)[:, 0], depth_then.clamp_min(0)[:, 0]
            lengths = (normal * normal).sum(1) * (normal_then * normal_then).sum(1)
            counts &= (normal * normal_then).sum(1) >= SAME_NORMAL * lengths.sqrt()
            counts &= (depth - depth_then).abs() <= SAME_DEPTH * depth
        if valid is not None:
            counts &= valid[:, 0] > 0
        there = at(history, row, column)
        weight = torch.where(counts & (there[:, 3] > 0) & there.sum(1).isfinite(), there[:, 3] * share, torch.zeros_like(share))[:, None]
        there = clean(there)
        sums = sums + torch.cat((there[:, :3] * weight, weight), 1)
    some = sums[:, 3:] > 0
    light = torch.where(some, sums[:, :3] / torch.where(some, sums[:, 3:], torch.ones_like(sums[:, 3:])), torch.zeros_like(sums[:, :3]))
    return torch.cat((light, sums[:, 3:].clamp_max(MOST_FRAMES)), 1)


def demodulate(color, albedo, normal, depth, history=None):
    """Light with its weight, the albedo it was divided by, and features of pixels. `history`: light of frames before, as it is seen
    now."""
    valid = color.isfinite().all(1, keepdim=True)
    color = torch.where(valid, color, torch.zeros_like(color)).clamp_min(0)
    albedo, normal, depth = clean(albedo), clean(normal), clean(depth)
    depth = depth.clamp_min(0)
    emits = albedo.amax(1, keepdim=True) <= 0
    modulation = torch.where(emits, torch.ones_like(albedo), albedo.clamp(LEAST_ALBEDO, 1))
    light = color / modulation
    exposure, far = measure(color, depth, valid)
    features = [(light * exposure).log1p(), albedo.clamp(0, 1), normal.clamp(-1, 1), depth / (depth + far), valid.to(color), emits.to(color)]
    if history is not None:
        features += [(history[:, :3] * exposure).log1p(), history[:, 3:] / (1 + history[:, 3:])]
    features = torch.cat(features, 1)
    return torch.cat((light, valid.to(color)), 1), modulation, features, exposure


def windows(x, before, taps, step=1):
    """Of each pixel, or every other one, `taps` x `taps` pixels from `before` rows and columns ahead of it on, 0 beyond the image: a
    view [frames, channels, height, width, taps, taps]."""
    odd = [length % step for length in x.shape[-2:]]
    after = taps - step - before
    padded = F.pad(x, (before, after + odd[1], before, after + odd[0]))
    return padded.unfold(2, taps, step).unfold(3, taps, step)


def gather(q, k, v, bias, radius, k_coarse=None, v_coarse=None, coarse_radius=1, step=1, k_before=None, v_before=None):
    """Attention over a neighbourhood. step 1: of each pixel over its own level's within `radius`, and over the coarser level's
    within `coarse_radius` of the pixel that covers it. step 2: q is the coarser level's, over the 2 * radius squared pixels
    around the four that it covers. v's last channel is a weight, as is that of v_before: a value more of each pixel, whose key is
    k_before, and whose weight is added to what comes out."""
    taps, before = (2 * radius, radius - 1) if step == 2 else (2 * radius + 1, radius)
    height, width = q.shape[-2:]

    def score(query, key, where, bias):
        """`query` has dimensions of 1 for the window's; keys that are in no image are far from all."""
        there = where > 0
        return torch.where(there, (query * key).sum(1) + bias, torch.full_like(there, -1e30, dtype=q.dtype))

    def weighted(v):
        return torch.cat((v[:, :3] * v[:, 3:], v[:, 3:]), 1)

    image = torch.ones_like(k[:1, :1])
    fine = score(q[..., None, None], windows(k, before, taps, step), windows(image, before, taps, step)[:, 0], bias[: taps * taps].view(taps, taps))
    if k_coarse is None:
        weights = fine.flatten(-2).softmax(-1).view_as(fine)
        sums = (weights[:, None] * windows(weighted(v), before, taps, step)).sum((-1, -2))
    else:
        near = 2 * coarse_radius + 1
        rows, columns = k_coarse.shape[-2:]

        def four(x):  # [..., height, width] as the pixels of each coarse one: [..., rows, 2, columns, 2]
            x = F.pad(x, (0, 2 * columns - width, 0, 2 * rows - height))
            return x.unflatten(-2, (rows, 2)).unflatten(-1, (columns, 2))

        def spread(x):  # windows of coarse pixels, for the four that each covers
            return windows(x, coarse_radius, near)[:, :, :, None, :, None]

        def back(x):  # [frames, rows, 2, columns, 2, ...] as the image
            return x.flatten(3, 4).flatten(1, 2)[:, :height, :width]
        coarse = score(four(q)[..., None, None], spread(k_coarse), spread(torch.ones_like(k_coarse[:1, :1]))[:, 0], bias[taps * taps : taps * taps + near * near].view(near, near))
        all_scores = [fine.flatten(-2), back(coarse).flatten(-2)]
        if k_before is not None:
            all_scores.append(torch.where(v_before[:, 3] > 0, (q * k_before).sum(1) + bias[-1], torch.full_like(q[:, 0], -1e30))[..., None])
        both = torch.cat(all_scores, -1).softmax(-1)
        last = both[..., taps * taps + near * near :]
        both = both[..., : taps * taps + near * near]
        weights = both[..., : taps * taps].unflatten(-1, (taps, taps))
        others = four(both[..., taps * taps :].permute(0, 3, 1, 2)).permute(0, 2, 3, 4, 5, 1).unflatten(-1, (near, near))
        sums = (weights[:, None] * windows(weighted(v), before, taps)).sum((-1, -2))
        more = (others[:, None] * spread(weighted(v_coarse))).sum((-1, -2))
        sums = sums + more.flatten(4, 5).flatten(2, 3)[:, :, :height, :width]
        if k_before is not None:
            sums = sums + last.permute(0, 3, 1, 2) * weighted(v_before)
    there = sums[:, 3:] > 0
    count = there.to(sums) if v_before is None else there.to(sums) + v_before[:, 3:]
    return torch.cat((torch.where(there, sums[:, :3] / sums[:, 3:].clamp_min(1e-12), torch.zeros_like(sums[:, :3])), count), 1)


# Widths of presets. At 960x540 their convolutions, with history, are 26, 49 and 89 GFLOP; all gathers together 0.8.
PRESETS = {"fast": (32, 48, 64), "balanced": (48, 64, 96), "high": (64, 96, 128)}


class Denoiser(nn.Module):
    """widths: channels at a half, a quarter and an eighth of the resolution. history: whether frames before count, too."""

    def __init__(self, widths=PRESETS["balanced"], dim=8, radius=(2, 2, 2, 3), coarse_radius=1, final_radius=1, history=False):
        super().__init__()
        a, b, c = widths
        self.history, self.features = history, FEATURES + HISTORY_FEATURES * history
        self.widths, self.dim, self.radius, self.coarse_radius, self.final_radius = widths, dim, radius, coarse_radius, final_radius

        def conv(ins, outs, size=3, stride=1):
            return nn.Conv2d(ins, outs, size, stride, size // 2)
        self.enter = conv(4 * self.features, a)
        self.half1 = conv(a, a)
        self.down1, self.quarter = conv(a, b, stride=2), conv(b, b)
        self.down2, self.eighth, self.eighth2 = conv(b, c, stride=2), conv(c, c), conv(c, c)
        self.up2, self.quarter2 = conv(b + c, b), conv(b, b)
        self.up1, self.half2 = conv(a + b, a), conv(a, a)
        # Queries and keys: level 0 has q, k, and q, k of the last gather, k of history; others q of the gather down, q, k.
        self.head0, self.head1 = conv(a, (4 + history) * 4 * dim, 1), conv(a, 3 * dim, 1)
        self.head2, self.head3 = conv(b, 3 * dim, 1), conv(c, 3 * dim, 1)
        taps = [(2 * r + 1) ** 2 + (2 * coarse_radius + 1) ** 2 * (i + 1 < LEVELS) + (history and i == 0) for i, r in enumerate(radius)]
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in taps])
        self.bias_down = nn.ParameterList([nn.Parameter(torch.zeros(16)) for _ in range(LEVELS - 1)])
        self.bias_final = nn.Parameter(torch.zeros((2 * final_radius + 1) ** 2))
        with torch.no_grad():
            self.bias_final[len(self.bias_final) // 2] = 4.0
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def widened(self, widths):
        """A network of more channels that computes the same: what its new ones say counts for nothing before it is trained."""
        wide = Denoiser(widths, self.dim, self.radius, self.coarse_radius, self.final_radius, self.history)
        first = {"up2": (self.widths[1], widths[1]), "up1": (self.widths[0], widths[0])}  # of their inputs, which are two levels'
        state = wide.state_dict()
        for name, x in self.state_dict().items():
            to, layer = state[name], name.split(".")[0]
            if x.dim() < 4:
                to[: len(x)] = x
                continue
            outs, ins = x.shape[:2]
            old, new = first.get(layer, (ins, to.shape[1]))
            to[:outs] = 0
            to[:outs, :old] = x[:, :old]
            to[:outs, new : new + ins - old] = x[:, old:]
        wide.load_state_dict(state)
        return wide

    def heads(self, features):
        """Queries and keys of each level."""
        def up(x, like):
            return x.repeat_interleave(2, -2).repeat_interleave(2, -1)[..., : like.shape[-2], : like.shape[-1]]
        height, width = features.shape[-2:]
        tokens = F.pixel_unshuffle(F.pad(features, (0, width % 2, 0, height % 2)), 2)
        h = F.relu(self.half1(F.relu(self.enter(tokens))))
        q = F.relu(self.quarter(F.relu(self.down1(h))))
        e = F.relu(self.eighth2(F.relu(self.eighth(F.relu(self.down2(q))))))
        q = F.relu(self.quarter2(F.relu(self.up2(torch.cat((q, up(e, q)), 1)))))
        h = F.relu(self.half2(F.relu(self.up1(torch.cat((h, up(q, h)), 1)))))
        zero = F.pixel_shuffle(self.head0(h), 2)[..., :height, :width]
        return [x.split(self.dim, 1) for x in (zero, self.head1(h), self.head2(q), self.head3(e))]

    def hard_bias(self):
        """The last gather's where edges stay hard: that of the pixel alone."""
        is_other = torch.arange(len(self.bias_final), device=self.bias_final.device) != len(self.bias_final) // 2
        return torch.where(is_other, torch.full_like(self.bias_final, FAR), self.bias_final)

    def forward(self, color, albedo, normal, depth, history=None, hard=False):
        """What is shown, the light that it is made of with its weight, which is the next frame's history, and the exposure. `history`:
        that of the frame before, by reproject(); None: there is none. hard: rays went through the middle of pixels; or of which frames
        they did, [frames, 1, 1, 1]."""
        if self.history and history is None:
            history = torch.zeros_like(color[:, :1]).expand(-1, 4, -1, -1)
        light, modulation, features, exposure = demodulate(color, albedo, normal, depth, history if self.history else None)
        heads = self.heads(features)
        (q0, k0, q_final, k_final, *k_before), *rest = [[x.float() for x in head] for head in heads]
        keys, queries = [k0] + [head[2] for head in rest], [q0] + [head[1] for head in rest]
        lights = [light]
        for level in range(1, LEVELS):
            lights.append(gather(rest[level - 1][0], keys[level - 1], lights[-1], self.bias_down[level - 1], 2, step=2))
        out = gather(queries[-1], keys[-1], lights[-1], self.bias[-1], self.radius[-1])
        for level in reversed(range(LEVELS - 1)):
            more = {"k_before": k_before[0], "v_before": history} if level == 0 and self.history else {}
            out = gather(queries[level], keys[level], lights[level], self.bias[level], self.radius[level], keys[level + 1], out, self.coarse_radius, **more)
        shown = torch.cat((out[:, :3] * modulation, out[:, 3:]), 1)

        def joined(bias):
            return gather(q_final, k_final, shown, bias, self.final_radius)[:, :3]
        if isinstance(hard, torch.Tensor):
            result = torch.where(hard, joined(self.hard_bias()), joined(self.bias_final))
        else:
            result = joined(self.hard_bias() if hard else self.bias_final)
        return result, out, exposure
