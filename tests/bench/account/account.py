"""An account of the attention kernels by mma.sync, instruction by instruction, and how long they would take on cards that nobody here has.

SPDX-License-Identifier: Apache-2.0

usage: account.py judge --nvdisasm F --measured H200.json --cubin attention_mma.sm_90a.cubin [--json OUT]
       account.py cards --nvdisasm F --measured H200.json --cubins FOLDER [--json OUT]

The disassembler is in the package nvidia-cuda-nvdisasm of PyPI. Of a step over 64 keys of 16 rows, a warp's share, this counts what each pipe
of a quarter of a multiprocessor is busy for, and lets machine.py run as many warps side by side as the kernel has there.
    time = the longest of the pipes, the issue slots, and what the simulation says, times steps, over multiprocessors and clock
judge  on the GPU where measure.py was: by its rates alone, beside the kernels' own times, which no estimate has seen
cards  on the cards of cards.py, by published rates: FOLDER has attention_mma.sm_80.cubin and so on
"""

import argparse
import datetime
import heapq
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cards
import machine
import measure
import sass

STRAIGHT = 24         # instructions in front of each branch of jump_ffma, see rates.cu; with it a comparison and the branch
ROWS, KEYS = 64, 64  # of a block, of a step
DIVIDE_CYCLES = 100   # of a quotient of O and l: a reciprocal, its corrections one after the other, a check, a branch, a store


def resident(registers, shared, card):
    """Blocks of four warps that a multiprocessor holds."""
    by_registers = card["registers"] // (128 * (-(-registers // 8) * 8))
    return max(1, min(by_registers, card["shared_bytes"] // (shared + 1024), card["warps"] // 4))


def cycles_of_step(step, m, warps):
    """(cycles that so many warps of a quarter take for a step each, pipes of one)"""
    pipes = m.account(step)
    return max(max(pipes.values()) * warps, m.simulate(step, warps)), pipes


def blocks_of(planes, n, causal):
    """Steps of each block, in the order in which the grid has them."""
    tiles = n // ROWS
    return [((tiles - t) if causal else n // KEYS) for _ in range(planes) for t in range(tiles)]


def last_end(blocks, places, step_cycles, begin_cycles):
    """When the last block ends: each takes the place that is free first."""
    ends = [0.0] * min(places, len(blocks))
    heapq.heapify(ends)
    for steps in blocks:
        heapq.heapreplace(ends, ends[0] + begin_cycles + steps * step_cycles)
    return max(ends)


def estimate(step, m, card, blocks_each, head_dim, planes, n, causal):
    """Microseconds of a launch, and where they come from."""
    blocks, multiprocessors = blocks_of(planes, n, causal), card["multiprocessors"]
    held = min(blocks_each, -(-len(blocks) // multiprocessors))
    cycles, pipes = cycles_of_step(step, m, held)
    # Q and K come from memory; at the end a thread divides one of its head_dim / 2 elements after the other and loads its scale for it
    begin = 3 * m.lags["global"] + head_dim / 2 * (m.lags["global"] + DIVIDE_CYCLES)
    us = last_end(blocks, multiprocessors * held, cycles, begin) / card["mhz"]
    return us, {"step_cycles": cycles / held, "pipes": dict(pipes), "limit": max(pipes, key=pipes.get), "blocks": held}


def measured_machine(report):
    """What measure.py found: pipes' cycles, lags."""
    cycles = {**report["cycles"], "mma_s4": report["cycles"]["mma_s8"], "mma_e4m3": report["cycles"]["mma_s8"]}
    lags = {**report["lags"], "bar": report["lags"]["bar_of_block"], "other": report["lags"]["lds"], "ldgsts": report["lags"]["global"]}
    long, jump = report["fetch"]["long_ffma"], report["fetch"]["jump_ffma"]
    return machine.Machine(cycles, lags, slots=long, jump=max(0.0, jump[0] - (STRAIGHT + 2) * long[0]))


def judge(a, report):
    kernels, m = sass.disassemble(a.nvdisasm, a.cubin), measured_machine(report)
    rows, steps = [], {name: sass.step(*kernels[name]) for name in {f"{c['entry']}_d{c['head_dim']}" for c in report["kernels"]}}
    for case in report["kernels"]:
        step = steps[f"{case['entry']}_d{case['head_dim']}"]
        card = {"multiprocessors": report["multiprocessors"], "mhz": case["mhz"]}
        us, why = estimate(step, m, card, case["resident"], case["head_dim"], case["planes"], case["n"], case["causal"])
        rows.append({**{k: case[k] for k in ("entry", "head_dim", "planes", "n", "causal")}, "us": case["us"], "estimate_us": us,
                     "error": us / case["us"] - 1, "validated": case["entry"] != "attn_8b_fp8", **why})
        r = rows[-1]
        print(f"{r['entry']:12} d{r['head_dim']:<3} x{r['planes']:<3} n{r['n']:<5} {'causal' if r['causal'] else '      '} {r['us']:9.1f} us, estimate "
              f"{us:9.1f} ({100 * r['error']:+.1f} %)  {r['blocks']} blocks, {r['step_cycles']:.0f} cycles a step, {r['limit']} {max(r['pipes'].values()):.0f}")
    held_out = [abs(r["error"]) for r in rows if r["validated"]]
    within = sum(e <= 0.1 for e in held_out)
    print(f"{within} of {len(held_out)} within 10 %, worst {100 * max(held_out):.1f} %, mean {100 * sum(held_out) / len(held_out):.1f} %")
    return {**report, "within_10_percent": within, "cases": len(held_out), "mean_error": sum(held_out) / len(held_out), "worst_error": max(held_out),
            "estimates": rows}


def on_cards(a, report):
    rows = []
    for card in cards.CARDS:
        m = cards.machine_of(card, report["lags"])
        kernels = sass.disassemble(a.nvdisasm, pathlib.Path(a.cubins) / f"attention_mma.sm_{card['sm']}.cubin")
        for entry, (bits, pv_bytes) in sorted(cards.entries_of(card["sm"]).items()):
            for d in measure.DIMS:
                code = kernels[f"{entry}_d{d}"]
                step = sass.step(*code)
                held = resident(cards.registers_of(card["sm"], entry, d), measure.shared_bytes(row_bytes(bits, d), pv_bytes, d), card)
                us, why = estimate(step, m, card, held, d, 128, 4096, 0)
                tflops = 4 * 128 * 4096 * 4096 * d / us * 1e-6
                rows.append({"card": card["name"], "sm": card["sm"], "entry": entry, "head_dim": d, "us": us, "tflops": tflops, "predicted": True,
                             "validated": not entry.endswith("fp8") and not entry.startswith("attn_4b"), **why})
                print(f"{card['name']:24} {entry:12} d{d:<3} {us:9.0f} us {tflops:6.0f} TFLOPS, predicted; {why['blocks']} blocks, "
                      f"{why['step_cycles']:.0f} cycles a step; " + ", ".join(f"{p} {c:.0f}" for p, c in sorted(why["pipes"].items())))
    return {"bench": "account of cards", "rows": rows}


def row_bytes(bits, d):
    """Of a row of codes, as TD_PACKED_ROW_BYTES where two share a byte."""
    return -(-d // 64) * 32 if bits == 4 else d * bits // 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("judge", "cards"))
    parser.add_argument("--nvdisasm", required=True)
    parser.add_argument("--measured", required=True)
    parser.add_argument("--cubin")
    parser.add_argument("--cubins")
    parser.add_argument("--json")
    a = parser.parse_args()
    report = json.loads(pathlib.Path(a.measured).read_text())
    out = judge(a, report) if a.what == "judge" else on_cards(a, report)
    out["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
