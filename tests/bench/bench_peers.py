#!/usr/bin/env python3
"""PyTorch's attention on the shapes of `tandem bench attention`, and whether the cuDNN of both agrees within 3 %.

SPDX-License-Identifier: Apache-2.0

usage: bench_peers.py BUILD_FOLDER [--json F] [--n 1024,4096] [--dim 64,128] [--causal yes|no|both] [--only large|small]
                      [--rounds N] [--run-ms N]

cuDNN, FlashAttention-2 and the memory-efficient kernel through scaled_dot_product_attention, fp16, N(0,1); as in the
tool, calls are in a CUDA graph and rotate through tensors that do not fit into the L2 together, and each function has
the GPU for a quarter of a second at a time. PyTorch is timed before and after the tool, since the GPU's clock falls as
it gets warm. Exit status 77: no PyTorch, or no GPU for it.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

TOLERANCE = 0.03
CALLS = 20  # of a small shape, in one graph


def numbers(text):
    return [int(x) for x in text.split(",")]


def arguments():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    p.add_argument("build")
    p.add_argument("--json")
    p.add_argument("--n", default="1024,4096,16384")
    p.add_argument("--dim", default="64,128")
    p.add_argument("--causal", default="both", choices=["yes", "no", "both"])
    p.add_argument("--only", default="large", choices=["large", "small"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--run-ms", type=int, default=250)
    return p.parse_args()


def time_shape(torch, functions, shape, rounds, run_ms):
    """Median, least and most microseconds a call of each function, measured in turn."""
    batch, heads, n, d, causal, small = shape
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(64, 2 * l2 // (4 * batch * heads * n * d * 2) + 1)
    calls = CALLS if small else sets
    tensors = [[torch.randn(batch, heads, n, d, dtype=torch.float16, device="cuda") for _ in range(3)]
               for _ in range(max(sets, calls))]
    graphs = {}
    for name, function in functions.items():
        try:
            with torch.no_grad():
                function(*tensors[0], causal)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for i in range(calls):
                        function(*tensors[i], causal)
            graphs[name] = graph
        except RuntimeError as error:
            print(f"    {name}: {str(error).splitlines()[0]}")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = {name: [] for name in graphs}
    for turn in range(rounds):
        for name, graph in graphs.items():
            graph.replay()
            spent = 0
            while spent == 0 or spent < (run_ms / 10 if small else run_ms):
                begin.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                spent += begin.elapsed_time(end)
                times[name].append(1e3 * begin.elapsed_time(end) / calls)
    return {name: {"median": statistics.median(t), "min": min(t), "max": max(t)} for name, t in times.items()}


def main():
    args = arguments()
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        print("SKIP: no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("SKIP: PyTorch sees no GPU")
        return 77

    def backend(kind):
        def call(q, k, v, causal):
            with sdpa_kernel(kind):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return call

    functions = {"cudnn": backend(SDPBackend.CUDNN_ATTENTION), "flash": backend(SDPBackend.FLASH_ATTENTION),
                 "efficient": backend(SDPBackend.EFFICIENT_ATTENTION)}
    small = args.only == "small"
    shapes = [(1 if small else 4, heads, n, d, causal, small)
              for d in numbers(args.dim) for causal in (False, True) for heads in ((4, 8, 16) if small else (32,))
              for n in numbers(args.n)
              if args.causal in ("both", "yes" if causal else "no") and not (small and causal)]
    passes = [{s: time_shape(torch, functions, s, args.rounds, args.run_ms) for s in shapes}]
    torch.cuda.empty_cache()

    import nvidia
    folders = [f for p in nvidia.__path__ for f in sorted(glob.glob(os.path.join(p, "*", "lib")))]
    env = dict(os.environ)
    env["LD_LIBRARY_PATH"] = ":".join(folders + [env["LD_LIBRARY_PATH"]] * bool(env.get("LD_LIBRARY_PATH")))
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as folder:
        out = os.path.join(folder, "ours.json")
        tool = [os.path.join(args.build, "tandem"), "bench", "attention", "--json", out, "--only", args.only, "--n",
                args.n, "--dim", args.dim, "--causal", args.causal, "--precision", "none", "--rounds", str(args.rounds),
                "--run-ms", str(args.run_ms)]
        done = subprocess.run(tool, env=env, timeout=600)
        if done.returncode:
            print(f"FAIL: the tool ended with {done.returncode}")
            return 1
        with open(out) as file:
            ours = json.load(file)
    passes.append({s: time_shape(torch, functions, s, args.rounds, args.run_ms) for s in shapes})

    in_tool = {}
    for s in ours["shapes"]:
        for row in s["rows"]:
            if row["what"] == "cudnn" and row["us"]:
                in_tool[(s["batch"], s["heads"], s["n"], s["d"], s["causal"], s["small"])] = row["us"]["median"]
    report, apart = [], 0
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()} (the tool: {ours['cudnn']})")
    for shape in shapes:
        batch, heads, n, d, causal, _ = shape
        entry = {"batch": batch, "heads": heads, "n": n, "d": d, "causal": causal, "tool_cudnn_us": in_tool.get(shape)}
        text = f"b{batch} h{heads:<2} d{d:<3} n{n:<5} {'causal' if causal else '      '}"
        for name in functions:
            both = [p[shape][name] for p in passes if name in p[shape]]
            entry[name] = both
            if both:
                us = statistics.mean(t["median"] for t in both)
                flops = 4 * batch * heads * n * n * d / us * 1e-6 * (0.5 if causal else 1)
                text += f" | {name} {us:.1f} us {flops:.0f} TF"
        if entry["cudnn"] and shape in in_tool:
            low, high = min(t["median"] for t in entry["cudnn"]), max(t["median"] for t in entry["cudnn"])
            mine = in_tool[shape]
            # Between PyTorch's own two passes is agreement, too.
            off = mine / high - 1 if mine > high else mine / low - 1 if mine < low else 0.0
            entry["apart"] = off
            apart += abs(off) > TOLERANCE
            text += f" | tool {mine:.1f} us, {100 * off:+.1f} %{' APART' if abs(off) > TOLERANCE else ''}"
        print(text)
        report.append(entry)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"bench": "peers", "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                       "device": torch.cuda.get_device_name(0), "date": ours["date"], "shapes": report}, file, indent=1)
    compared = sum("apart" in e for e in report)
    print(f"{compared} of {len(report)} shapes compared, {apart} more than {100 * TOLERANCE:.0f} % apart")
    return 1 if apart or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
