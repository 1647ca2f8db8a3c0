#!/usr/bin/env python3
"""How far a language model's logits are from those in float32, by the precision of its attention.

SPDX-License-Identifier: Apache-2.0

usage: bench_logits.py BUILD_FOLDER [--model F] [--rung R] [--every N] [--json F] [--strict]

Of every N-th text in tests/kernels/smollm2 (default: of each): `tandem logits --kv f32 --rung cpu`, then f16, 8b and 4b by
--rung. Of all tokens the mean of Kullback and Leibler's divergence over all words, the largest, how many have the same most likely
next one, and of how many of those whose two most likely ones are a tenth of a logit apart in float32, or more. model: default what
`tandem fetch smollm2` brings. Exit status 77: no numpy; 1: something failed, or with --strict a target was missed.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("no numpy")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from tool import oracle as R

MOST_KL = {"f16": 1e-3, "8b": 5e-3}
APART = 0.1


def read(path):
    return {name: tensor for name, (_, tensor) in R.load(path)[0].items()}


def log_softmax(logits):
    logits = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def logits_of(a, ids, *options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits.safetensors"
        subprocess.run([a.build / "tandem", "logits", "--model", a.model, "--tokens", ",".join(map(str, ids)), "--out", out, *options],
                       check=True, timeout=300)
        return read(out)["logits"]


def measure(a, sequences):
    rows = {way: {"kl": [], "same": [], "same_apart": []} for way in ("f16", "8b", "4b")}
    for ids in sequences:
        exact = log_softmax(logits_of(a, ids, "--kv", "f32", "--rung", "cpu"))
        two = np.sort(exact, 1)[:, -2:]
        apart = two[:, 1] - two[:, 0] >= APART
        for way, row in rows.items():
            got = log_softmax(logits_of(a, ids, "--attention", way, "--rung", a.rung))
            same = got.argmax(1) == exact.argmax(1)
            row["kl"] += (np.exp(exact) * (exact - got)).sum(1).tolist()
            row["same"] += same.tolist()
            row["same_apart"] += same[apart].tolist()
    return [{"attention": way, "tokens": len(row["kl"]), "kl": float(f"{np.mean(row['kl']):.3g}"), "kl_most": float(f"{max(row['kl']):.3g}"),
             "same": round(float(np.mean(row["same"])), 4), "same_apart": round(float(np.mean(row["same_apart"])), 4)}
            for way, row in rows.items()]


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("--model")
    p.add_argument("--rung", default="cpu")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("--strict", action="store_true")
    a = p.parse_args()
    a.build = a.build.resolve()
    a.model = a.model or subprocess.run([a.build / "tandem", "fetch", "smollm2"], check=True, capture_output=True, text=True).stdout.strip()
    texts = read(ROOT / "tests/kernels/smollm2/fixtures.safetensors")
    rows = measure(a, np.split(texts["ids"], np.cumsum(texts["lengths"])[:-1])[::a.every])
    for row in rows:
        print(f"{row['attention']:>3}: {row['tokens']} tokens, divergence {row['kl']:.2g}, at most {row['kl_most']:.2g}; "
              f"the same next one {100 * row['same']:.2f} %, where two are {APART} apart {100 * row['same_apart']:.2f} %")
    report = {"bench": "logits", "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "model": pathlib.Path(a.model).name, "rung": a.rung, "every": a.every, "apart": APART, "rows": rows}
    if a.json:
        a.json.write_text(json.dumps(report, indent=1) + "\n")
    missed = [row["attention"] for row in rows if row["kl"] > MOST_KL.get(row["attention"], np.inf)]
    return 1 if missed and a.strict else 0


if __name__ == "__main__":
    sys.exit(main())
