#!/usr/bin/env python3
"""Trains the model of characters on text of npc_text.py, and writes it as GGUF.

    npc.py train --out FOLDER [--seconds 300]     makes FOLDER/npc.pt, npc_optimizer.pt, npc.jsonl
                                                  and npc.gguf, or goes on from the first two
    npc.py export CHECKPOINT.pt OUT.gguf [--type q8_0|f16|f32]

Needs PyTorch and numpy. Text is made while the model trains, by as many processes as there are cores, so nothing is read but
npc_tokens.json.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import os
import pathlib
import time

import numpy as np

import npc_data
import npc_gguf
import npc_tokens


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--out", type=pathlib.Path, required=True)
    train.add_argument("--seconds", type=float, default=300, help="of this run's training; what else it does takes some 30 more")
    train.add_argument("--total-seconds", type=float, default=0, help="of all runs together: the rate falls to 0 until then; default: of this one")
    train.add_argument("--preset", choices=["full", "small", "tiny"], default="full", help="all but full are to try things out")
    train.add_argument("--batch", type=int, default=96, help="rows of a step, of 768 tokens each")
    train.add_argument("--rate", type=float, default=0.02)
    train.add_argument("--rows", type=int, default=1 << 17, help="that are held, and renewed again and again")
    train.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    train.add_argument("--seed", type=int, default=1)
    train.add_argument("--every", type=float, default=30, help="seconds between judgements and checkpoints")
    train.add_argument("--questions", type=int, default=256, help="of a judgement; of the last eight times as many")
    train.add_argument("--device")
    train.add_argument("--eager", action="store_true", help="without torch.compile")
    export = commands.add_parser("export")
    export.add_argument("checkpoint", type=pathlib.Path)
    export.add_argument("out", type=pathlib.Path)
    export.add_argument("--type", choices=["q8_0", "f16", "f32"], default="q8_0")
    return parser.parse_args()


def share_of_rate(progress, steps):
    """It rises for some steps, and falls in the last half of the time."""
    return min(1.0, (steps + 1) / 100) * min(1.0, 2 * (1 - progress) + 0.005)


def export_model(model, tokens, out, kind="q8_0"):
    npc_gguf.write(out, model.sizes, model.tensors(), tokens, "Tandem characters",
                   "Characters of a card that talk; trained by demo/train/npc.py on text of its own grammar alone.", kind)
    return out.stat().st_size


def train(a):
    a.out.mkdir(parents=True, exist_ok=True)
    tokens = npc_tokens.Tokens()
    pool = npc_data.Pool(a.rows, a.workers, a.seed + int(time.time()) if (a.out / "npc.pt").exists() else a.seed)
    import torch

    import npc_model
    torch.manual_seed(a.seed)
    device = a.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model = npc_model.Model(npc_model.sizes_of(a.preset, len(tokens))).to(device)
    optimizer = npc_model.Muon(model, a.rate)
    step, spent = 0, 0.0
    path, state_path = a.out / "npc.pt", a.out / "npc_optimizer.pt"
    if path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load(torch.load(state_path, map_location=device, weights_only=True))
        step, spent = saved["step"], saved["spent"]
    total = a.total_seconds or spent + a.seconds
    print(f"{sum(w.numel() for w in model.parameters()) / 1e6:.2f} million weights, {device}, {a.workers} processes make text", flush=True)
    questions = npc_data.Questions(tokens, 8 * a.questions, "held out")
    if device.startswith("cuda"):
        model.kind = torch.bfloat16

    compiled = not a.eager and device.startswith("cuda")
    parts = [torch.compile(npc_model.block), torch.compile(npc_model.losses_of)] if compiled else []
    random_numbers = np.random.default_rng(a.seed + step)

    def batch():
        rows = torch.from_numpy(pool.draw(random_numbers, a.batch).astype(np.int32))
        return rows.pin_memory().to(device, non_blocking=True).long() if device.startswith("cuda") else rows.long()

    def judged(count):
        some = npc_data.Questions.__new__(npc_data.Questions)
        some.prompts, some.turns = questions.prompts[:count], questions.turns[:count]
        replies = npc_model.greedy(model, some.prompts, tokens, device=device)
        return some.judge(tokens, replies), replies

    def save():  # in half the bits, which is near enough to go on from
        halves = {name: w.half() for name, w in model.state_dict().items()}
        torch.save({"model": halves, "step": step, "spent": spent, "sizes": model.sizes}, path)
        torch.save(optimizer.state(), state_path)
    pool.wait(4 * a.batch)
    try:  # a GPU without a compiler trains, too
        npc_model.loss_of(model, batch(), *parts)[0].backward()
    except Exception as why:
        if not parts:
            raise
        print(f"without torch.compile: {type(why).__name__}: {str(why)[:300]}", flush=True)
        parts = []
    for w in model.parameters():
        w.grad = None
    pool.wait(min(pool.rows, 20 * a.batch))
    begin = last = time.time()
    ahead, before, sums, count, first_step = batch(), spent, torch.zeros(2, device=device), 0, step
    with open(a.out / "npc.jsonl", "a") as log:
        while (progress := spent / total) < 1 and spent - before < a.seconds:
            loss, said = npc_model.loss_of(model, ahead, *parts)
            loss.backward()
            ahead = batch()
            optimizer.step(share_of_rate(progress, step))
            sums += torch.stack([loss.detach(), said])
            step, count = step + 1, count + 1
            if step % 50 == 0:
                loss, said = (sums / count).tolist()  # waits for the device
                if not math.isfinite(loss):
                    raise SystemExit(f"step {step}: the loss is {loss}")
                spent = before + time.time() - begin
                sums.zero_()
                count = 0
                line = {"step": step, "loss": round(said, 5), "all": round(loss, 5), "seconds": round(spent, 1),
                        "tokens_per_s": round((step - first_step) * a.batch * npc_data.CONTEXT / (spent - before)), "rows": int(pool.made.sum())}
                if time.time() - last > a.every:
                    line |= judged(a.questions)[0]
                    save()
                    last = time.time()
                    print(json.dumps(line), flush=True)
                log.write(json.dumps(line) + "\n")
                log.flush()
            elif not device.startswith("cuda"):
                spent = before + time.time() - begin
        save()
        right, replies = judged(8 * a.questions)
        line = {"step": step, "final": True, "questions": 8 * a.questions, "seconds": round(spent, 1), **right,
                "bytes": export_model(model, tokens, a.out / "npc.gguf")}
        print(json.dumps(line), flush=True)
        log.write(json.dumps(line) + "\n")
    pool.close()
    for turn, reply in list(zip(questions.turns, replies))[:24]:
        print(f"  {turn.kind}: {turn.user}\n    {tokens.decode(reply)!r}")


def main():
    a = arguments()
    if a.command == "train":
        return train(a)
    import torch

    import npc_model
    saved = torch.load(a.checkpoint, map_location="cpu", weights_only=True)
    model = npc_model.Model(saved["sizes"])
    model.load_state_dict(saved["model"])
    print(f"{a.out}: {export_model(model, npc_tokens.Tokens(), a.out, a.type)} bytes")


if __name__ == "__main__":
    main()
