"""What trains both networks: recorded steps, and the loop that goes on where the last run ended.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import pathlib
import time

import torch


def parser_of(text, steps, rate):
    """Options that both have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="made if it is not there, else gone on with")
    parser.add_argument("--frames", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=pathlib.Path, help="frames that the PSNR is printed of")
    parser.add_argument("--steps", type=int, default=steps, help="of all runs together: the rate falls to 0 until then")
    parser.add_argument("--total-minutes", type=float, default=0, help="instead: until so many minutes of all runs together")
    parser.add_argument("--run-steps", type=int, default=0, help="of this run, at most")
    parser.add_argument("--minutes", type=float, default=9, help="of this run, at most")
    parser.add_argument("--until", type=float, default=0, help="of this run: until that time, in seconds since 1970")
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="on a GPU, too, kernel by kernel, not as CUDA graphs")
    parser.add_argument("--every", type=int, default=200, help="steps between lines; ten times as many between checkpoints")
    parser.add_argument("--log", type=pathlib.Path, help="those lines, as JSON, added at its end")
    return parser


def shown(x):
    x = x.nan_to_num(0, 0, 0).clamp_min(0)
    return x / (1 + x)


class Recorded:
    """A step's loss, or the parts that it is the sum of, and its gradients as CUDA graphs, one for each shape of a batch, which is a list of frames: to launch some thousand
    kernels one by one takes longer than they do."""

    def __init__(self, compute):
        self.compute, self.graphs = compute, {}

    def record(self, batch):
        inputs = [{name: x.clone() for name, x in frame.items()} for frame in batch]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                expected = float(self.compute(inputs).sum())
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.compute(inputs)
        graph.replay()
        if not abs(float(loss.sum()) - expected) <= 0.01 * abs(expected):
            raise RuntimeError(f"a recorded step has a loss of {float(loss.sum())}, which is {expected}")
        return graph, inputs, loss

    def __call__(self, batch):
        key = tuple(tuple(sorted((name, tuple(x.shape)) for name, x in frame.items())) for frame in batch)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        graph, inputs, loss = self.graphs[key]
        for own, frame in zip(inputs, batch):
            for name, x in frame.items():
                own[name].copy_(x)
        graph.replay()
        return loss


class Training:
    """A checkpoint's network, the mean of its weights over some hundred steps, which is what is exported, and their optimizer; a new one
    where there is no checkpoint, with the options that `fresh` says and, unless that is None, the state `weights`."""

    def __init__(self, a, make, fresh, weights=None, **optimizer):
        self.a = a
        torch.manual_seed(a.seed)
        self.is_gpu = a.device.startswith("cuda")
        if self.is_gpu:
            torch.backends.cudnn.allow_tf32 = True  # but of no other product: losses have small differences of large sums
            torch.backends.cudnn.benchmark = True
        state = torch.load(a.checkpoint, map_location="cpu", weights_only=True) if a.checkpoint.exists() else None
        self.options = dict(state["options"]) if state else fresh
        self.net, self.mean = (make(**self.options).to(a.device, memory_format=torch.channels_last) for _ in range(2))
        if weights and not state:
            self.net.load_state_dict(weights)
        self.mean.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=a.rate, fused=self.is_gpu, **optimizer)
        self.step, self.spent = 0, 0.0
        if state:
            self.net.load_state_dict(state["training"])
            self.mean.load_state_dict(state["weights"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.spent = state["step"], state["seconds"]
        self.parameters = list(self.net.parameters())
        self.start = time.monotonic()
        self.end = min(self.start + 60 * a.minutes, self.start + a.until - time.time() if a.until else math.inf)

    def seconds(self):
        return time.monotonic() - self.start

    def progress(self):
        """Of all runs: 0 to 1."""
        a = self.a
        return (self.spent + self.seconds()) / (60 * a.total_minutes) if a.total_minutes else self.step / a.steps

    def autocast(self):
        return torch.autocast(self.a.device.split(":")[0], torch.bfloat16, enabled=self.is_gpu, cache_enabled=self.a.eager)

    def save(self):
        temporary = self.a.checkpoint.with_suffix(".tmp")
        torch.save({"options": self.options, "weights": self.mean.state_dict(), "training": self.net.state_dict(),
                    "optimizer": self.optimizer.state_dict(), "step": self.step, "seconds": self.spent + self.seconds()}, temporary)
        temporary.replace(self.a.checkpoint)

    def run(self, batch_at, compute, evaluate, parts=("loss",)):
        """batch_at(step, generator) makes a batch, compute(batch) its gradients and its loss, as what those `parts` add to it, evaluate(net),
        where it is not None, what is printed of held-out frames."""
        a, first, averages, sums = self.a, self.step, list(self.mean.parameters()), torch.zeros(len(parts), device=self.a.device)
        while self.progress() < 1 and time.monotonic() < self.end and not 0 < a.run_steps <= self.step - first:
            generator = torch.Generator().manual_seed(a.seed * 1_000_003 + self.step)
            warm = min(1, (self.step + 1) / 500)
            for group in self.optimizer.param_groups:
                group["lr"] = a.rate * warm * 0.5 * (1 + math.cos(math.pi * self.progress()))
            loss = compute(batch_at(self.step, generator))
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            for parameter in self.parameters:  # where one is not finite, none is now: such a step is none
                parameter.grad.nan_to_num_(0, 0, 0)
            self.optimizer.step()
            self.step += 1
            with torch.no_grad():
                torch._foreach_lerp_(averages, self.parameters, 1 - min(0.998, self.step / (self.step + 10)))
            sums += loss
            if self.step % a.every == 0:
                means = [x / a.every for x in sums.tolist()]
                line = {"step": self.step, "loss": round(sum(means), 5), "seconds": round(self.seconds(), 1)}
                if len(parts) > 1:
                    line["parts"] = {part: round(x, 5) for part, x in zip(parts, means)}
                if evaluate and self.step % (10 * a.every) == 0:
                    line["held_out"] = evaluate(self.mean)
                sums.zero_()
                print(json.dumps(line), flush=True)
                if self.step % (10 * a.every) == 0:
                    self.save()
                if a.log:
                    with open(a.log, "a") as log:
                        log.write(json.dumps(line) + "\n")
        self.save()
        print(f"step {self.step}, {100 * min(1, self.progress()):.0f} % -> {a.checkpoint}" +
              (f", held out {evaluate(self.mean)}" if evaluate else ""))
