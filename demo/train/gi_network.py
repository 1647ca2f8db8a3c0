"""Indirect light of direct light, in PyTorch: what gi_export.py writes as a graph, and gi.py trains.

Convolutions make tokens of 8x8 pixels out of direct light, albedo, normal and depth; each learns where in the world it lies.
Some layers of a transformer, whose attention is over all tokens of the frame, carry light from each to each. On the way back to
pixels, coarse features meet fine ones of the same convolutions, so that the result has the edges of the G-buffer.

The frame's exposure is taken out before and put back behind, so what is learnt does not depend on it.

Tensors here are [frames, channels, height, width]; the operations' definitions are in interop/include/tandem/types.h.
SPDX-License-Identifier: Apache-2.0
"""
import torch
import torch.nn.functional as F
from torch import nn

import network

INPUTS = ("direct", "albedo", "normal", "depth", "ray")
CHANNELS = {"direct": 3, "albedo": 3, "normal": 3, "depth": 1, "ray": 3, "indirect": 3}
PATCH = 8  # pixels a side of a token
SHUFFLED = 8  # channels of a pixel that come out of the head, as conv has them, of which 3 are used
FEATURE_LIGHT, FEATURE_DEPTH = 0, 9  # where a pixel's features have log(1 + light), and depth
EPSILON = 1e-5


class Layer(nn.Module):
    """Attention of each token over all, then a perceptron of one hidden layer."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=EPSILON), nn.RMSNorm(width, eps=EPSILON)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in (self.out, self.down):
            nn.init.normal_(layer.weight, 0, 0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gi(nn.Module):
    """half, quarter: channels at a half and a quarter of the resolution; width: of tokens."""

    def __init__(self, width=128, heads=2, depth=4, hidden=384, half=32, quarter=48):
        super().__init__()
        self.width, self.half, self.quarter = width, half, quarter

        def conv(ins, outs, size=3, stride=1):
            layer = nn.Conv2d(ins, outs, size, stride, size // 2)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            return layer
        self.enter = conv(4 * network.FEATURES, half)
        self.down1, self.down2 = conv(half, quarter, stride=2), conv(quarter, width, stride=2)
        self.ray, self.place = nn.Linear(3, width), nn.Linear(3, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=EPSILON)
        self.up2, self.up1 = conv(quarter + width, quarter), conv(half + quarter, half)
        self.head = conv(half, 4 * SHUFFLED, 1)
        with torch.no_grad():
            self.head.weight.mul_(0.3)
            self.head.bias.fill_(1.0)

    def forward(self, direct, albedo, normal, depth, ray):
        """Radiance of indirect light, and the exposure."""
        def up(x, like):
            return x.repeat_interleave(2, -2).repeat_interleave(2, -1)[..., : like.shape[-2], : like.shape[-1]]
        height, width = direct.shape[-2:]
        light, _, features, exposure = network.demodulate(direct, albedo, normal, depth)
        half = F.relu(self.enter(F.pixel_unshuffle(F.pad(features, (0, width % 2, 0, height % 2)), 2)))
        quarter = F.relu(self.down1(half))
        x = self.down2(quarter)
        rows, columns = x.shape[-2:]
        sampled, ray = (y[:, :, ::PATCH, ::PATCH].permute(0, 2, 3, 1).flatten(1, 2) for y in (torch.cat((features, light[:, :3]), 1), ray))
        # Where a token's first pixel lies, in units of the mean depth, squeezed into a ball; and in which direction.
        place = ray * sampled[..., FEATURE_DEPTH : FEATURE_DEPTH + 1]
        x = x.flatten(2).transpose(1, 2) + self.ray(ray) + self.place(place)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x).transpose(1, 2).unflatten(2, (rows, columns))
        quarter = F.relu(self.up2(torch.cat((quarter, up(x, quarter)), 1)))
        half = F.relu(self.up1(torch.cat((half, up(quarter, half)), 1)))
        root = F.pixel_shuffle(self.head(half), 2)[:, :3, :height, :width].float()
        return root.square() * albedo * scale_of(sampled), exposure


def scale_of(sampled):
    """A mean of light that no lamp dominates, [frames, 3, 1, 1]: what results are in units of. Each value counts
    1 + tanh(-log(1 + exposure * light)) times."""
    logs, light = sampled[..., FEATURE_LIGHT : FEATURE_LIGHT + 3].float(), sampled[..., -3:].float()
    return (light * (1 + torch.tanh(-logs))).mean(1)[:, :, None, None]
