"""How many tiles of keys attention could skip, with a bound on what that costs.

SPDX-License-Identifier: Apache-2.0

usage: skip_tiles.py [--normal LIST] [--qkv NAME=F.safetensors ...] [--tandem build/tandem --model F.gguf --text F --tokens LIST]
                     [--json OUT]        needs numpy, for --model also gguf (PyPI)

After Q K^T a tile of keys whose largest score lies more than tau = ln(kv_len / eps) below the largest one of the tiles before
it adds at most eps / kv_len of a row's sum a key, so that leaving out exponentials and P V of all such tiles moves no output by
more than 2 eps max|V|. A kernel can leave them out only where that is so for all rows that are computed together; tiles
come in the order of keys. Of each head of each layer this counts
    16x64    a warp of the kernels by mma.sync          64x64    their block
    64x128   a warpgroup of those by wgmma              128x128  what peers have
among the tiles that are computed at all (with a causal mask those above the diagonal are not), and takes the largest |O - O'|,
in units of 2 eps max|V|, which is the bound.
--model   Q, K and V of each layer as the model computes them of a text, causal; LIST: of so many tokens
--qkv     of a file as `tandem attend` reads it (`tandem-demo --headless --effect filter --dump`), not causal
--normal  N(0, 1), one head each; LIST of d:n:causal
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from tool import oracle as R

EPSILONS = (1e-2, 1e-3, 1e-4)
TILES = {"16x64": (16, 64), "64x64": (64, 64), "64x128": (64, 128), "128x128": (128, 128)}
STRIP = 128  # rows at a time


class Count:
    """Tiles of one input, by shape and epsilon."""

    def __init__(self, keys):
        self.keys, self.tiles = keys, dict.fromkeys(TILES, 0)
        self.skipped = {(t, e): 0 for t in TILES for e in EPSILONS}
        self.error = dict(self.skipped)
        self.heads, self.row_tiles, self.most_of_a_head = 0, 0, 0.0

    def report(self, name):
        rows = [{"tile": t, "eps": e, "skipped": self.skipped[t, e], "share": self.skipped[t, e] / self.tiles[t],
                 "error_of_bound": self.error[t, e]} for t in TILES for e in EPSILONS]
        return {"name": name, "keys": self.keys, "heads": self.heads, "tiles": self.tiles, "rows": rows,
                "most_of_a_head": self.most_of_a_head}


def below(s, keys):
    """By how much the largest score of each tile of keys lies below the largest one of the tiles before it, row by row."""
    count = -(-s.shape[1] // keys)
    whole = s.shape[1] // keys * keys
    tops = s[:, :whole].reshape(len(s), -1, keys).max(2)
    if whole < s.shape[1]:
        tops = np.concatenate([tops, s[:, whole:].max(1, keepdims=True)], 1)
    before = np.maximum.accumulate(tops, 1)
    out = np.full((len(s), count), -np.inf, np.float32)
    out[:, 1:] = before[:, :-1] - tops[:, 1:]
    return out


def grouped(margin, first, seen, shape, causal):
    """The least of the margins of rows that are computed together; and which of these tiles are computed at all."""
    rows, keys = shape
    least = np.stack([margin[g:g + rows].min(0) for g in range(0, len(margin), rows)])
    last = np.array([min(seen, first + min(len(margin), g + rows)) if causal else seen for g in range(0, len(margin), rows)])
    return least, np.arange(least.shape[1])[None] * keys < last[:, None]


def attend(q, k, v, scale, causal, count):
    """O of one head, in strips of rows; what could be skipped is added to `count`."""
    n, m = len(q), len(k)
    out = np.empty_like(q[:, :v.shape[1]])
    most = np.abs(v).max()
    skipped, tiles = 0, 0
    for first in range(0, n, STRIP):
        rows = min(STRIP, n - first)
        seen = min(m, first + rows) if causal else m
        s = (q[first:first + rows] @ k[:seen].T) * np.float32(scale)
        if causal:
            s[np.arange(seen)[None] > (first + np.arange(rows))[:, None]] = -np.inf
        margins = {keys: below(s, keys) for keys in (64, 128)}
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        o = out[first:first + rows] = p @ v[:seen]
        for name, shape in TILES.items():
            least, there = grouped(margins[shape[1]], first, seen, shape, causal)
            count.tiles[name] += int(there.sum())
            for eps in EPSILONS:
                mask = there & (least > np.log(m / eps))
                count.skipped[name, eps] += int(mask.sum())
                if name == "64x64" and eps == EPSILONS[0]:
                    skipped, tiles = skipped + int(mask.sum()), tiles + int(there.sum())
                if not mask.any():
                    break  # none with a smaller epsilon, either
                dropped = np.repeat(np.repeat(mask, shape[0], 0)[:rows], shape[1], 1)[:, :seen]
                gone = p * dropped
                weight = gone.sum(1, keepdims=True)
                error = np.abs(gone @ v[:seen] - weight * o).max(1, keepdims=True) / (1 - weight)
                count.error[name, eps] = max(count.error[name, eps], float(error.max() / (2 * eps * most)))
    count.heads += 1
    count.most_of_a_head = max(count.most_of_a_head, skipped / tiles)
    return out


class Llama:
    """A GGUF file of the architecture llama, in float32."""

    def __init__(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        self.tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}

        def key(name):
            return reader.fields["llama." + name].contents()
        self.layers, self.heads, self.kv_heads = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
        self.epsilon, self.base = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base")
        self.width = self.tensors["blk.0.attn_q.weight"].shape[0] // self.heads

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.tensors[name]

    def turned(self, x):
        rates = self.base ** (-np.arange(0, self.width, 2, dtype=np.float32) / self.width)
        angles = np.outer(np.arange(len(x), dtype=np.float32), rates)[:, None]
        a, b = x[..., ::2], x[..., 1::2]
        return np.stack([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1).reshape(x.shape)

    def read(self, ids, count):
        """The perplexity of a text, for comparing with `tandem perplexity`; heads are added to `count`."""
        x = self.tensors["token_embd.weight"][ids]
        for i in range(self.layers):
            w = {n: self.tensors[f"blk.{i}.{n}.weight"] for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q, k, v = ((h @ w[n].T).reshape(len(ids), -1, self.width) for n in ("attn_q", "attn_k", "attn_v"))
            q, k, group = self.turned(q), self.turned(k), self.heads // self.kv_heads
            o = [attend(q[:, j], k[:, j // group], v[:, j // group], self.width**-0.5, True, count) for j in range(self.heads)]
            x = x + np.concatenate(o, 1) @ w["attn_output"].T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        x, out = self.norm(x, "output_norm.weight"), self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        loss = 0.0
        for first in range(0, len(ids) - 1, STRIP):
            logits = x[first:min(first + STRIP, len(ids) - 1)] @ out.T
            logits -= logits.max(1, keepdims=True)
            loss += float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), ids[first + 1:first + 1 + len(logits)]]).sum())
        return float(np.exp(loss / (len(ids) - 1)))


def of_model(tandem, path, text, tokens, name):
    words = pathlib.Path(text).read_bytes()
    done = subprocess.run([tandem, "tokenize", "--model", path, "--ids", "-"], check=True, capture_output=True, input=words)
    ids = np.array([int(word) for word in done.stdout.split(b",")])
    if len(ids) < tokens:
        raise SystemExit(f"{text} has {len(ids)} tokens, not {tokens}")
    count = Count(tokens)
    perplexity = Llama(path).read(ids[:tokens], count)
    return {**count.report(name), "perplexity": perplexity, "causal": True}


def of_file(path, name):
    """Of Q, K, V [batch, heads, rows, channels] of a safetensors file."""
    tensors, _ = R.load(path)
    q, k, v = (tensors[name][1].astype(np.float32) for name in "qkv")
    count = Count(k.shape[2])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            at = b, h * k.shape[1] // q.shape[1]
            attend(q[b, h], k[at], v[at], q.shape[-1]**-0.5, False, count)
    return {**count.report(name), "causal": False}


def of_normal(d, n, causal):
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((n, d), np.float32) for _ in range(3))
    count = Count(n)
    attend(q, k, v, d**-0.5, causal, count)
    return {**count.report(f"N(0,1) d{d}"), "causal": causal}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tandem", default="build/tandem")
    parser.add_argument("--model")
    parser.add_argument("--text", default="engine_plugin/INTEGRATION.md")
    parser.add_argument("--tokens", default="2048")
    parser.add_argument("--qkv", action="append", default=[])
    parser.add_argument("--normal", default="")
    parser.add_argument("--json")
    a = parser.parse_args()
    rows = [of_normal(int(d), int(n), causal == "1") for d, n, causal in (word.split(":") for word in a.normal.split(",") if word)]
    rows += [of_file(path, name) for name, path in (word.split("=", 1) for word in a.qkv)]
    if a.model:
        rows += [of_model(a.tandem, a.model, a.text, int(tokens), "SmolLM2") for tokens in a.tokens.split(",")]
    report = {"bench": "skip_tiles", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "inputs": rows}
    text = json.dumps(report, indent=1) + "\n"
    if a.json:
        pathlib.Path(a.json).write_text(text)
    for row in rows:
        shares = " ".join(f"{r['tile']}@{r['eps']:g} {100 * r['share']:.3f}% ({r['error_of_bound']:.2g})" for r in row["rows"])
        spoken = f", perplexity {row['perplexity']:.3f}" if "perplexity" in row else ""
        print(f"{row['name']} {row['keys']} keys{spoken}, {row['heads']} heads, at most {100 * row['most_of_a_head']:.1f}% of one: {shares}", flush=True)


if __name__ == "__main__":
    main()
