"""Cards, as their makers describe them, for account.py. Nothing here was measured by us.

SPDX-License-Identifier: Apache-2.0

Sources:
  guide   CUDA C++ Programming Guide 13.0: "Throughput of Native Arithmetic Instructions", results per clock cycle and multiprocessor; and
          "Technical Specifications per Compute Capability": warps, registers and shared memory of a multiprocessor
  paper   NVIDIA's architecture white papers (A100; GA102; Ada GPU; RTX Blackwell) and data sheets (A10, L40S): multiprocessors, boost clock,
          dense tensor rates. Where these are given in TFLOPS: products per clock and multiprocessor = TFLOPS / (2 x multiprocessors x clock)
Nobody publishes lags: those measured on an H200 stand in for all.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent.parent / "kernels"), str(HERE.parent.parent)]
import machine
import test_sass

# guide: results per clock and multiprocessor
NATIVE = {
    80: {"fp32": 64, "int32": 64, "conversion": 16, "special": 16, "shuffle": 32},
    86: {"fp32": 128, "int32": 64, "conversion": 64, "special": 16, "shuffle": 32},
    89: {"fp32": 128, "int32": 64, "conversion": 64, "special": 16, "shuffle": 32},
    120: {"fp32": 128, "int32": 64, "conversion": 64, "special": 16, "shuffle": 32},
}
LIMITS = {80: {"warps": 64, "registers": 65536, "shared_bytes": 164 * 1024}, 86: {"warps": 48, "registers": 65536, "shared_bytes": 100 * 1024},
          89: {"warps": 48, "registers": 65536, "shared_bytes": 100 * 1024}, 120: {"warps": 48, "registers": 65536, "shared_bytes": 100 * 1024}}
SHARED_BYTES_PER_CLOCK = 128  # guide: 32 banks of 4 bytes

# paper: multiplications (with additions) of tensor cores per clock and multiprocessor; f16 with fp32 sums, which GeForce cards have at half rate
CARDS = [
    {"name": "A100 SXM", "sm": 80, "multiprocessors": 108, "mhz": 1410, "f16": 1024, "s8": 2048, "s4": 4096},
    {"name": "GeForce RTX 3090", "sm": 86, "multiprocessors": 82, "mhz": 1695, "f16": 256, "s8": 1024, "s4": 2048},
    {"name": "A10", "sm": 86, "multiprocessors": 72, "mhz": 1695, "f16": 512, "s8": 1024, "s4": 2048},
    {"name": "GeForce RTX 4090", "sm": 89, "multiprocessors": 128, "mhz": 2520, "f16": 256, "s8": 1024, "s4": 2048, "e4m3": 512},
    {"name": "L40S", "sm": 89, "multiprocessors": 142, "mhz": 2520, "f16": 512, "s8": 1024, "s4": 2048, "e4m3": 1024},
    {"name": "GeForce RTX 5090", "sm": 120, "multiprocessors": 170, "mhz": 2407, "f16": 256, "s8": 1024, "e4m3": 512},
]
for _card in CARDS:
    _card.update(LIMITS[_card["sm"]])

PRODUCTS = {"f16": 16 * 8 * 16, "s8": 16 * 8 * 32, "s4": 16 * 8 * 64, "e4m3": 16 * 8 * 32}  # of an instruction
ENTRIES = {"attn_4b_f16": (4, 2), "attn_4b_fp8": (4, 1), "attn_8b_f16": (8, 2), "attn_8b_fp8": (8, 1), "attn_f16": (16, 2)}


def entries_of(sm):
    return {name: it for name, it in ENTRIES.items() if name in test_sass.REGISTERS[str(sm)]}


def registers_of(sm, entry, d):
    return test_sass.REGISTERS[str(sm)][entry][test_sass.DIMS.index(d)]


def machine_of(card, lags):
    """Cycles that a quarter's pipe is busy with 32 threads' instruction: 32 results of a fourth of the multiprocessor's rate."""
    native = NATIVE[card["sm"]]
    each = {kind: 4 * 32 / rate for kind, rate in native.items()}
    ldmatrix = 4 * 512 / SHARED_BYTES_PER_CLOCK
    cycles = {"ffma": each["fp32"], "fadd": each["fp32"], "imad": each["int32"], "fmnmx": each["int32"], "lop3": each["int32"],
              "ex2": each["special"], "i2f": each["conversion"], "f2fp_f16": each["int32"], "f2fp_e4m3": each["int32"],
              "shfl": each["shuffle"], "lds": 4 * 128 / SHARED_BYTES_PER_CLOCK, "ldsm": ldmatrix, "ldgsts": ldmatrix, "bar": lags["bar_of_block"]}
    cycles.update({f"mma_{kind}": 4 * PRODUCTS[kind] / card[kind] for kind in PRODUCTS if kind in card})
    moved = {"i2f": "mufu"} if native["conversion"] == native["special"] else None  # of the unit for special functions there
    waits = {**lags, "bar": lags["bar_of_block"], "other": lags["lds"], "ldgsts": lags["global"]}
    return machine.Machine(cycles, waits, moved)
