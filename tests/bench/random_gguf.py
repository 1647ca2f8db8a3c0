#!/usr/bin/env python3
"""Writes GGUF models of random weights in the shapes of known ones: what `tandem bench npc` and llama.cpp's llama-bench take, which
time a model alone and draw no tokens.

    random_gguf.py OUT.gguf --shape 8b|1b|0.5b|tiny [--type q8_0|q4_0|f16]

Needs numpy alone.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import pathlib
import struct

import numpy as np

# Layers, channels, heads, heads of keys, channels of a head, hidden ones, words: Llama 3 8B, Llama 3.2 1B, Qwen2.5 0.5B as a llama.
SHAPES = {
    "8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "1b": (16, 2048, 32, 8, 64, 8192, 128256),
    "0.5b": (24, 896, 14, 2, 64, 4864, 151936),
    "tiny": (2, 256, 4, 2, 64, 512, 1024),
}
TYPES = {"f16": (1, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34)}  # GGML's number, weights and bytes of a block
F32 = (0, 1, 4)
ALIGNMENT = 32


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def keys(shape):
    layers, channels, heads, kv_heads, head, hidden, _ = SHAPES[shape]
    numbers = {"block_count": layers, "embedding_length": channels, "feed_forward_length": hidden, "context_length": 65536,
               "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
               "attention.value_length": head, "rope.dimension_count": head}
    out = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    out += [text("llama." + name) + struct.pack("<II", 4, value) for name, value in numbers.items()]
    out += [text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5),
            text("llama.rope.freq_base") + struct.pack("<If", 6, 500000.0)]
    return out


def tensors(shape, kind):
    layers, channels, heads, kv_heads, head, hidden, words = SHAPES[shape]
    yield "token_embd.weight", (channels, words), kind
    if shape == "8b":
        yield "output.weight", (channels, words), kind
    yield "output_norm.weight", (channels,), F32
    for i in range(layers):
        for name, rows, columns in (("attn_q", channels, heads * head), ("attn_k", channels, kv_heads * head),
                                    ("attn_v", channels, kv_heads * head), ("attn_output", heads * head, channels),
                                    ("ffn_gate", channels, hidden), ("ffn_up", channels, hidden), ("ffn_down", hidden, channels)):
            yield f"blk.{i}.{name}.weight", (rows, columns), kind
        yield f"blk.{i}.attn_norm.weight", (channels,), F32
        yield f"blk.{i}.ffn_norm.weight", (channels,), F32


def blocks(random, kind, count):
    """So many blocks: weights of a standard deviation of some 0.02."""
    number, weights, size = kind
    if number == 0:
        return np.ones(count, np.float32).tobytes()
    if number == 1:
        return (0.02 * random.standard_normal(count, np.float32)).astype(np.float16).tobytes()
    out = random.integers(0, 256, (count, size), np.uint8)
    out[:, :2] = np.full(count, 0.02 / (73 if weights == 32 and size == 34 else 4.6), np.float16).view(np.uint8).reshape(-1, 2)
    return out.tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    random = np.random.default_rng(a.seed)
    head, offset, plan = keys(a.shape), 0, []
    infos = []
    for name, shape, kind in tensors(a.shape, TYPES[a.type]):
        count = int(np.prod(shape)) // kind[1]
        infos.append(text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) +
                     struct.pack("<IQ", kind[0], offset))
        plan.append((kind, count))
        offset += (count * kind[2] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    start = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(head)) + b"".join(head + infos)
    # Some millions of blocks, again and again: a large model is written as fast as the disk takes it.
    some = {kind: blocks(random, kind, min(1 << 20, max(count for of, count in plan if of == kind))) for kind, _ in set(plan)}
    with open(a.out, "wb") as file:
        file.write(start + bytes(-len(start) % ALIGNMENT))
        for kind, count in plan:
            left = count * kind[2]
            padding = -left % ALIGNMENT
            while left:
                left -= file.write(some[kind][:left])
            file.write(bytes(padding))
    print(f"{a.out}: {a.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
