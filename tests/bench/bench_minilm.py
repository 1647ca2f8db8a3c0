#!/usr/bin/env python3
"""The encoder of all-MiniLM-L6-v2 as a program of ours beside PyTorch, in one run, on 128 tokens.

SPDX-License-Identifier: Apache-2.0

usage: bench_minilm.py BUILD_FOLDER [--cpu] [--json F] [--strict] [--model F] [--runs N]

On a GPU, one sentence: PyTorch in fp16, eager and as a CUDA graph, and ours by a graph, by launches and inline; all
times are from the begin of a run to its end on the device. --cpu: a sentence, and eight of other lengths, in PyTorch's
float32 and ours on two threads. PyTorch's encoder is written out below: fewer launches than transformers' BertModel.
It is timed before and after ours, as clocks fall. Both have the weights of one file: minilm.py's, or made up.
Exit status 77: no PyTorch, numpy or GPU; 1: something failed, embeddings differ, or with --strict a target was missed.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "kernels/minilm"))
import minilm

TOKENS, CPU_THREADS = 128, 2
GRAPH_US, INLINE_US, CPU_RATIO = 150, 200, 1.3  # at most
COSINE = 0.9999  # at least: between fp16 and float32
FIRST = 50  # runs that warm up


def arguments():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--json")
    p.add_argument("--strict", action="store_true")
    p.add_argument("--model", type=pathlib.Path)
    p.add_argument("--runs", type=int)
    args = p.parse_args()
    args.runs = args.runs or (40 if args.cpu else 500)
    return args


# --- The network in PyTorch ---


class Encoder:
    """As minilm.graph says, with the weights of such a file."""

    def __init__(self, torch, weights, device, dtype):
        self.torch, self.functional = torch, torch.nn.functional
        self.w = {name: torch.from_numpy(w.copy()).to(device, torch.long if name == "count" else dtype)
                  for name, w in weights.items()}

    def linear(self, name, x):
        return self.functional.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, name, x):
        return self.functional.layer_norm(x, (minilm.DIM,), self.w[name + ".weight"], self.w[name + ".bias"],
                                          minilm.EPSILON)

    def attention(self, qkv, mask):
        batch, tokens, _ = qkv.shape
        q, k, v = qkv.view(batch, tokens, 3, minilm.HEADS, minilm.HEAD_DIM).permute(2, 0, 3, 1, 4)
        mixed = self.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed.transpose(1, 2).reshape(batch, tokens, minilm.DIM)

    def __call__(self, ids, there):
        """there: [batch, tokens], whether a token is one of its sentence; None: all are."""
        mask = None if there is None else there[:, None, None, :]
        x = self.functional.embedding(ids, self.w["words"]) + self.w["positions"][:ids.shape[1]]
        x = self.norm("embedded", x)
        for i in range(minilm.LAYERS):
            mixed = self.attention(self.linear(f"{i}.qkv", x), mask)
            x = self.norm(f"{i}.attended", x + self.linear(f"{i}.out", mixed))
            wide = self.functional.gelu(self.linear(f"{i}.wide", x))
            x = self.norm(f"{i}.norm", x + self.linear(f"{i}.narrow", wide))
        x = x.float()
        if there is None:
            mean = x.mean(1)
        else:
            mean = (x * there[:, :, None]).sum(1) / there.sum(1, keepdim=True)
        return self.functional.normalize(mean)


def make_up(numpy, graph):
    """Weights as large as a trained network's about, all sums of them finite."""
    random, weights = numpy.random.default_rng(19), {}
    for name, t in graph["tensors"].items():
        if t["role"] != "weight":
            continue
        if name == "count":
            weights[name] = numpy.arange(minilm.TOKENS, dtype="int32")
        else:
            w = random.standard_normal(t["shape"], dtype="float32") * 0.05 + (len(t["shape"]) == 1)
            weights[name] = w.astype({"F16": "float16", "F32": "float32"}[t["dtype"]])
    return weights


def sentences(numpy, batch):
    """Ids and lengths: one of all tokens, or of fewer and fewer."""
    ids = numpy.arange(batch * TOKENS, dtype="int32").reshape(batch, TOKENS) * 233 % minilm.WORDS
    return ids, (TOKENS - numpy.arange(batch) * (TOKENS // 10)).astype("int32")


# --- Times ---


def summary(us):
    us = sorted(us)
    return {"median": statistics.median(us), "min": us[0], "max": us[-1], "runs": len(us)}


def time_on_gpu(torch, run, runs):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    us = []
    for i in range(-FIRST, runs):
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 0:
            us.append(1e3 * begin.elapsed_time(end))
    return summary(us)


def clock_mhz():
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def run_tool(args, model, into, out, rung, runs, cores=None):
    """Least and median microseconds of `tandem run`'s jobs."""
    tool = [args.build / "tandem", "run", "--model", model, "--in", into, "--out", out, "--rung", rung, "--runs", str(runs)]
    only = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    done = subprocess.run(tool, capture_output=True, text=True, timeout=300, preexec_fn=only, check=False)
    said = re.search(r"(\d+) records, \d+ runs, least ([\d.]+) ms, median ([\d.]+) ms -> ", done.stdout)
    if done.returncode or not said:
        sys.exit(f"FAIL: tandem run ended with {done.returncode}: {done.stdout}{done.stderr}")
    return {"records": int(said[1]), "min": 1e3 * float(said[2]), "median": 1e3 * float(said[3]), "runs": runs}


def run_benches(args, model):
    """Of each graph by each kind of stream: what test_minilm_gpu and test_inline print."""
    rows = {}
    for bench in (["test_minilm_gpu", "--bench"], ["test_inline", "--bench-minilm"]):
        done = subprocess.run([(args.build / bench[0]).resolve(), *bench[1:], model], cwd=args.build, capture_output=True,
                              text=True, timeout=300, check=False)
        if done.returncode:
            sys.exit(f"FAIL: {' '.join(bench)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        for row in re.finditer(r"^(\S+) +(launches|graphs|inline) +(\d+) +(\d+)((?: +[\d.]+){3})$", done.stdout, re.M):
            least, median, most = map(float, row[5].split())
            rows[f"{row[1]} {row[2]}"] = {"records": int(row[3]), "floor": int(row[4]), "min": least, "median": median,
                                          "90%": most}
    for wanted in ("f16 launches", "f16 graphs", "f16 inline"):
        if wanted not in rows:
            sys.exit(f"FAIL: no time of {wanted}")
    return rows


def least_cosine(numpy, a, b):
    return float(((a * b).sum(1) / (numpy.linalg.norm(a, axis=1) * numpy.linalg.norm(b, axis=1))).min())


# --- The benches ---


class Bench:
    def __init__(self, args, torch, numpy, folder):
        self.args, self.torch, self.numpy, self.folder = args, torch, numpy, folder
        built = args.build / "minilm" / "minilm.safetensors"
        self.model = (args.model or (built if built.exists() else folder / "made-up.safetensors")).resolve()
        if not self.model.exists():
            graph = minilm.graph(**minilm.GRAPHS["f16"])
            minilm.write_safetensors(self.model, make_up(numpy, graph), {"tandem.graph": json.dumps(graph)})
        self.weights = minilm.read_safetensors(self.model.read_bytes())
        self.targets = []

    def target(self, what, value, most):
        met = value <= most
        self.targets.append({"what": what, "value": value, "most": most, "met": met})
        print(f"  {'met   ' if met else 'MISSED'} {what}: {value:.3g} (at most {most:.3g})")

    def write_input(self, ids, lengths):
        path = self.folder / "in.safetensors"
        minilm.write_safetensors(path, {"ids": ids, "lengths": lengths}, {})
        return path

    def check(self, what, embeddings, expected):
        cosine = least_cosine(self.numpy, embeddings, expected)
        print(f"  {what}: cosine with PyTorch's float32 at least {cosine:.7f}")
        if not cosine >= COSINE:
            sys.exit(f"FAIL: embeddings of {what} differ")

    def gpu(self):
        torch, args = self.torch, self.args
        ids, lengths = sentences(self.numpy, 1)
        into, out = self.write_input(ids, lengths), self.folder / "out.safetensors"
        with torch.inference_mode():
            expected = Encoder(torch, self.weights, "cpu", torch.float32)(torch.from_numpy(ids).long(), None).numpy()
            encoder = Encoder(torch, self.weights, "cuda", torch.float16)
            on_gpu = torch.from_numpy(ids).long().cuda()
            eager = lambda: encoder(on_gpu, None)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    eager()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                embeddings = eager()
            passes = []
            clocks = []
            for turn in range(2):
                passes.append({"eager": time_on_gpu(torch, eager, args.runs),
                               "graph": time_on_gpu(torch, graph.replay, args.runs)})
                clocks.append(clock_mhz())
                if turn == 0:
                    ours = run_benches(args, self.model)
                    clocks.append(clock_mhz())
        run_tool(args, self.model, into, out, "auto", 2)
        name = torch.cuda.get_device_name(0)
        print(f"{name}, clocks {', '.join(map(str, clocks))} MHz; PyTorch {torch.__version__}; {TOKENS} tokens, batch 1, "
              f"weights {self.model.name}")
        self.check("PyTorch in fp16", embeddings.cpu().numpy(), expected)
        self.check("ours", minilm.read_safetensors(out.read_bytes())["embeddings"], expected)
        for kind in ("eager", "graph"):
            print(f"  PyTorch {kind:<20} " + ", ".join(f"{p[kind]['median']:.1f}" for p in passes) + " us")
        for kind, row in ours.items():
            print(f"  ours, {kind:<22} {row['median']:.1f} us, {row['records']} records, floor {row['floor']} us")
        by_graph = ours["f16 graphs"]["median"]
        self.target("by graph, us", by_graph, GRAPH_US)
        self.target("inline, us", ours["f16 inline"]["median"], INLINE_US)
        self.target("by graph, of PyTorch's CUDA graph", by_graph / min(p["graph"]["median"] for p in passes), 1)
        return {"device": name, "clocks_mhz": clocks, "batch": 1, "pytorch": passes, "ours": ours}

    def cpu(self):
        torch, args = self.torch, self.args
        cores = sorted(os.sched_getaffinity(0))[:CPU_THREADS]
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(CPU_THREADS)
        encoder, shapes = Encoder(torch, self.weights, "cpu", torch.float32), []
        print(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {len(cores)} cores, {TOKENS} tokens")
        for batch in (1, 8):
            ids, lengths = sentences(self.numpy, batch)
            into, out = self.write_input(ids, lengths), self.folder / "out.safetensors"
            there = torch.arange(TOKENS)[None, :] < torch.from_numpy(lengths)[:, None] if batch > 1 else None
            theirs, ours = [], []
            for _ in range(args.runs // 10 + 1):  # in turn, as others may have the cores for a while
                with torch.inference_mode():
                    for i in range(-2, 10):
                        begin = time.perf_counter()
                        expected = encoder(torch.from_numpy(ids).long(), there).numpy()
                        if i >= 0:
                            theirs.append(1e6 * (time.perf_counter() - begin))
                ours.append(run_tool(args, self.model, into, out, "cpu", 12, cores))
            self.check(f"ours, batch {batch}", minilm.read_safetensors(out.read_bytes())["embeddings"], expected)
            theirs, least = summary(theirs), min(o["min"] for o in ours)
            median = statistics.median(o["median"] for o in ours)
            print(f"  batch {batch}: PyTorch least {1e-3 * theirs['min']:.2f}, median {1e-3 * theirs['median']:.2f} ms; ours "
                  f"least {1e-3 * least:.2f}, median {1e-3 * median:.2f} ms")
            self.target(f"batch {batch}, of PyTorch's time", least / theirs["min"], CPU_RATIO)
            shapes.append({"batch": batch, "pytorch": theirs, "ours": {"min": least, "median": median}})
        return {"device": "cpu", "threads": len(cores), "shapes": shapes}


def main():
    args = arguments()
    try:
        import numpy
        import torch
    except ImportError as error:
        print(f"SKIP: {error}")
        return 77
    if not args.cpu and not torch.cuda.is_available():
        print("SKIP: PyTorch sees no GPU")
        return 77
    with tempfile.TemporaryDirectory(prefix="tandem-minilm-") as folder:
        bench = Bench(args, torch, numpy, pathlib.Path(folder))
        measured = bench.cpu() if args.cpu else bench.gpu()
    report = {"bench": "minilm", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "torch": torch.__version__, "tokens": TOKENS, "weights": bench.model.name, "unit": "us", **measured,
              "targets": bench.targets}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    missed = sum(not t["met"] for t in bench.targets)
    if args.strict and missed:
        print(f"bench_minilm: --strict: {missed} target{' was' if missed == 1 else 's were'} missed")
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
