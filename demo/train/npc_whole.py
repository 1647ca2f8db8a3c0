"""The model of characters in numpy, with attention by `tandem attend`: for precisions that its runtime takes no caches in.

SPDX-License-Identifier: Apache-2.0
"""
import json
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


def read_gguf(path):
    """Metadata, and tensors as float32, rows first: of F32, F16 and Q8_0."""
    data, at = pathlib.Path(path).read_bytes(), 4

    def take(form):
        nonlocal at
        value = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def string():
        nonlocal at
        size = take("<Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind == STRING:
            return string()
        if kind == ARRAY:
            inner, count = take("<I"), take("<Q")
            return [value(inner) for _ in range(count)]
        return take(NUMBERS[kind])
    take("<I")
    tensor_count, key_count = take("<Q"), take("<Q")
    keys = {string(): value(take("<I")) for _ in range(key_count)}
    infos = [(string(), [take("<Q") for _ in range(take("<I"))], take("<I"), take("<Q")) for _ in range(tensor_count)]
    start, tensors = (at + 31) // 32 * 32, {}
    for name, shape, kind, offset in infos:
        count = int(np.prod(shape))
        raw = np.frombuffer(data, np.uint8, {0: 4 * count, 1: 2 * count, 8: count // 32 * 34}[kind], start + offset)
        if kind == 8:
            blocks = raw.reshape(-1, 34)
            flat = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].copy().view(np.int8)
        else:
            flat = raw.view({0: np.float32, 1: np.float16}[kind]).astype(np.float32)
        tensors[name] = flat.reshape(shape[::-1])
    return keys, tensors


def save(path, arrays):
    head, offset = {}, 0
    for name, array in arrays.items():
        head[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(head).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(array.tobytes() for array in arrays.values()))


def load(path, name):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    info = json.loads(data[8:8 + size])[name]
    begin, end = info["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], {"F32": np.float32, "F16": np.float16}[info["dtype"]]).reshape(info["shape"]).astype(np.float32)


class Whole:
    """A sequence of tokens, which grows."""

    def __init__(self, tandem, model, precision):
        self.tandem, self.precision = tandem, precision
        keys, self.tensors = model
        self.layers, self.epsilon = keys["llama.block_count"], keys["llama.attention.layer_norm_rms_epsilon"]
        self.width = keys["llama.attention.key_length"]
        self.rates = keys["llama.rope.freq_base"] ** (-np.arange(0, self.width, 2, dtype=np.float32) / self.width)
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-whole-")
        self.cache = [None] * self.layers
        self.length = 0

    def attend(self, q, k, v):
        given, out = (pathlib.Path(self.folder.name) / name for name in ("in.safetensors", "out.safetensors"))
        save(given, {name: np.ascontiguousarray(x.transpose(1, 0, 2)[None], np.float16) for name, x in zip("qkv", (q, k, v))})
        subprocess.run([self.tandem, "attend", "--in", given, "--out", out, "--precision", self.precision, "--backend", "cpu",
                        *(["--causal"] if len(q) > 1 else [])], check=True, timeout=120, capture_output=True)
        return load(out, "o")[0].transpose(1, 0, 2)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.tensors[name]

    def turned(self, x):
        angles = np.outer(np.arange(self.length, self.length + len(x), dtype=np.float32), self.rates)[:, None]
        a, b = x[..., ::2], x[..., 1::2]
        return np.stack([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1).reshape(x.shape)

    def read(self, ids):
        """More tokens, all of the first ones or one: their logits."""
        x = self.tensors["token_embd.weight"][ids]
        for i in range(self.layers):
            w = {name: self.tensors[f"blk.{i}.{name}.weight"] for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q, k, v = ((h @ w[name].T).reshape(len(ids), -1, self.width) for name in ("attn_q", "attn_k", "attn_v"))
            q, k = self.turned(q), self.turned(k)
            if self.cache[i]:
                k, v = (np.concatenate(pair) for pair in zip(self.cache[i], (k, v)))
            self.cache[i] = k, v
            x = x + self.attend(q, k, v).reshape(len(ids), -1) @ w["attn_output"].T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        self.length += len(ids)
        return self.norm(x, "output_norm.weight") @ self.tensors["token_embd.weight"].T

    def greedy(self, ids, stop, most=72):
        out, logits = [], self.read(ids)
        while len(out) < most and (token := int(logits[-1].argmax())) != stop:
            out.append(token)
            logits = self.read([token])
        return out
