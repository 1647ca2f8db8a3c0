"""Measures on a GPU what account.py estimates with and what it is judged by: single instructions, and kernels of attention.

SPDX-License-Identifier: Apache-2.0

usage: measure.py --rates rates.sm_90a.cubin --attention attention_mma.sm_90a.cubin --json OUT

Needs Python and CUDA's driver, nothing else. Cubins by `nvcc -cubin -arch=sm_90a -O3 -std=c++17 -I. -Iinterop/include FILE.cu`, of rates.cu
beside this file and of kernels/attention/cuda/attention_mma.cu. Takes about a minute.
"""

import argparse
import ctypes
import datetime
import json
import random
import statistics
import struct
import sys
import time

KINDS = ("ffma", "fadd", "fmnmx", "lop3", "imad", "ex2", "i2f", "f2fp_f16", "f2fp_e4m3", "mma_f16", "mma_s8", "shfl", "lds", "ldsm", "ldgsts",
         "bar")
INSTRUCTIONS = 64 * 64  # of a chain, as in rates.cu
ENTRIES = {"attn_8b_f16": (8, 2), "attn_8b_fp8": (8, 1), "attn_f16": (16, 2)}  # bits of Q and K, bytes of P V
DIMS = (32, 64, 96, 128, 256)
# (batch * heads, queries and keys, causal)
SHAPES = [(128, 4096, 0), (128, 4096, 1), (128, 1024, 0), (16, 4096, 0)]
ROUNDS = 7
THREADS, RATE_THREADS = 128, 512  # of a block of attention; of one that measures a rate: four warps for each quarter
DTYPE_F16 = 1
MULTIPROCESSOR_COUNT = 16


class Cuda:
    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.context, device = ctypes.c_void_p(), ctypes.c_int()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)
        self.device = device

    def __call__(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result:
            raise SystemExit(f"{name} returned {result}")

    def attribute(self, which):
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), which, self.device)
        return value.value

    def name(self):
        text = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", text, 128, self.device)
        return text.value.decode()

    def module(self, path):
        module, data = ctypes.c_void_p(), open(path, "rb").read()
        self("cuModuleLoadData", ctypes.byref(module), data)
        return module

    def function(self, module, name):
        function = ctypes.c_void_p()
        if self.lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode()):
            return None
        return function

    def memory(self, size):
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def fill(self, at, size, block):
        """The block of bytes, over and over."""
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(at), block, ctypes.c_size_t(min(size, len(block))))
        done = len(block)
        while done < size:
            now = min(done, size - done)
            self("cuMemcpyDtoD_v2", ctypes.c_uint64(at + done), ctypes.c_uint64(at), ctypes.c_size_t(now))
            done += now

    def read(self, at, form):
        data = ctypes.create_string_buffer(struct.calcsize(form))
        self("cuCtxSynchronize")
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(len(data)))
        return struct.unpack(form, data.raw[:struct.calcsize(form)])

    def launch(self, function, grid, block, shared, parameters):
        """parameters: bytes of each."""
        buffers = [ctypes.create_string_buffer(p, len(p)) for p in parameters]
        pointers = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(b) for b in buffers))
        self("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, pointers, None)

    def event(self):
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 0)
        return event

    def microseconds(self, begin, end):
        ms = ctypes.c_float()
        self("cuEventSynchronize", end)
        self("cuEventElapsedTime", ctypes.byref(ms), begin, end)
        return 1e3 * ms.value


def pointers(*values):
    return [struct.pack("<Q", v) for v in values]


class Rates:
    def __init__(self, cuda, path):
        self.cuda, self.module = cuda, cuda.module(path)
        self.cycles, self.kept, self.source = cuda.memory(64), cuda.memory(1 << 22), cuda.memory(1 << 20)
        words = [64 * ((i // 16 + 4099) % 16384) for i in range(1 << 18)]  # where the next load is from: a chain through a MiB
        cuda.fill(self.source, 1 << 20, struct.pack(f"<{1 << 18}I", *words))

    def run(self, name, threads, blocks):
        function = self.cuda.function(self.module, name)
        if function is None:
            return None
        best = None
        for _ in range(3):
            self.cuda.launch(function, blocks, threads, 16384, pointers(self.cycles, self.kept, self.source))
            cycles = self.cuda.read(self.cycles, "<Q")[0] / INSTRUCTIONS
            best = cycles if best is None else min(best, cycles)
        return best

    def measure(self):
        everywhere = self.cuda.attribute(MULTIPROCESSOR_COUNT)
        cycles, lags = {}, {}
        for kind in KINDS:
            whole, alone = self.run(f"rate_{kind}", RATE_THREADS, everywhere), self.run(f"lag_{kind}", 32, 1)
            if whole is not None:
                cycles[kind], lags[kind] = whole / 4, alone  # four warps share a quarter
        lags["bar_of_block"] = self.run("lag_bar", THREADS, 1)
        lags["global"] = self.run("lag_global", 1, 1)
        return cycles, lags

    def fetch(self):
        """Cycles of a quarter for each of a warp's instructions in a row, and for each 24 of them with a branch behind, by how many warps
        share it."""
        everywhere = self.cuda.attribute(MULTIPROCESSOR_COUNT)
        turns = 16 / INSTRUCTIONS
        return {name: [self.run(name, 128 * warps, everywhere) / (turns * of * warps) for warps in (1, 2, 3, 4)]
                for name, of in (("long_ffma", 1024), ("jump_ffma", 32))}

    def mhz(self):
        self.cuda.launch(self.cuda.function(self.module, "clock_now"), 1, 1, 0, pointers(self.cycles, self.kept, self.source))
        cycles, ns = self.cuda.read(self.cycles, "<2Q")
        return 1e3 * cycles / ns


def stage_bytes(row_bytes, pv_bytes, d):
    return 64 * (row_bytes + 16) + 2 * 64 * 4 + d * (64 * pv_bytes + 16)


def shared_bytes(row_bytes, pv_bytes, d):
    """As TD_ATTENTION_SHARED_BYTES of kernels/attention/params.h."""
    one = stage_bytes(row_bytes, pv_bytes, d)
    return 2 * one if 2 * one <= 47 * 1024 else one


def halves(count):
    numbers = random.Random(1)
    return struct.pack(f"<{count}e", *(numbers.gauss(0, 1) for _ in range(count)))


class Attention:
    """Codes of the largest shape; every shape lies at their beginning."""

    def __init__(self, cuda, path):
        self.cuda, self.module = cuda, cuda.module(path)
        planes, rows, most = max(s[0] for s in SHAPES), max(s[1] for s in SHAPES), max(DIMS)
        size = planes * rows * most
        self.small, self.half = random.Random(2).randbytes(1 << 20), halves(1 << 19)
        e4m3 = bytes(b & 0xbf for b in self.small)  # neither NaN nor large
        self.codes = {8: [cuda.memory(size) for _ in range(2)], 16: [cuda.memory(2 * size) for _ in range(2)]}
        self.v = {1: cuda.memory(size), 2: cuda.memory(2 * size)}
        for at in self.codes[8]:
            cuda.fill(at, size, self.small)
        for at in self.codes[16] + [self.v[2]]:
            cuda.fill(at, 2 * size, self.half)
        cuda.fill(self.v[1], size, e4m3)
        self.scales, self.ones, self.out = cuda.memory(4 * planes * rows), cuda.memory(4 * planes * rows), cuda.memory(2 * size)
        cuda.fill(self.scales, 4 * planes * rows, struct.pack("<256f", *[0.01] * 256))
        cuda.fill(self.ones, 4 * planes * rows, struct.pack("<256f", *[1.0] * 256))
        self.begin, self.end = cuda.event(), cuda.event()

    def parameters(self, entry, planes, n, causal, d):
        """A td_params_attention (kernels/attention/params.h)."""
        bits, pv_bytes = ENTRIES[entry]
        scale = self.scales if bits == 8 else self.ones
        o = struct.pack("<Q3q4I", self.out, planes * n * d, n * d, d, DTYPE_F16, planes, n, d)
        return (struct.pack("<10Q", 0, *self.codes[bits], self.v[pv_bytes], scale, scale, self.ones, 0, 0, 0) + o +
                struct.pack("<Q3q3Q", 0, 0, 0, 0, 0, 0, 0) + struct.pack("<f7I", d ** -0.5, planes, planes, n, n, n, d, causal) +
                struct.pack("<BBH4I", 0, 1, 64, planes, 0, 0, 0) + bytes(4))

    def measure(self, entry, d, shape):
        planes, n, causal = shape
        bits, pv_bytes = ENTRIES[entry]
        function, shared = self.cuda.function(self.module, f"{entry}_d{d}"), shared_bytes(d * bits // 8, pv_bytes, d)
        self.cuda("cuFuncSetAttribute", function, 8, shared)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        resident, registers = ctypes.c_int(), ctypes.c_int()
        self.cuda("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(resident), function, THREADS, ctypes.c_size_t(shared))
        self.cuda("cuFuncGetAttribute", ctypes.byref(registers), 4, function)
        parameters = [self.parameters(entry, planes, n, causal, d)]
        times = []
        for turn in range(ROUNDS + 1):
            self.cuda("cuEventRecord", self.begin, None)
            self.cuda.launch(function, planes * n // 64, THREADS, shared, parameters)
            self.cuda("cuEventRecord", self.end, None)
            us = self.cuda.microseconds(self.begin, self.end)
            if turn:
                times.append(us)
        written = self.cuda.read(self.out + 2 * (planes * n * d - 64), "<64e")
        return {"entry": entry, "head_dim": d, "planes": planes, "n": n, "causal": causal, "us": statistics.median(times),
                "least_us": min(times), "most_us": max(times), "resident": resident.value, "registers": registers.value,
                "shared_bytes": shared, "finite": all(abs(x) < 65504 for x in written)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", required=True)
    parser.add_argument("--attention", required=True)
    parser.add_argument("--json", required=True)
    a = parser.parse_args()
    cuda, begin = Cuda(), time.monotonic()
    rates = Rates(cuda, a.rates)
    report = {"bench": "account", "device": cuda.name(), "multiprocessors": cuda.attribute(MULTIPROCESSOR_COUNT),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
    report["mhz"] = rates.mhz()
    report["cycles"], report["lags"] = rates.measure()
    report["fetch"] = rates.fetch()
    print(json.dumps(report, indent=1), flush=True)
    attention = Attention(cuda, a.attention)
    report["kernels"] = []
    for entry in ENTRIES:
        for d in DIMS:
            for shape in SHAPES:
                row = attention.measure(entry, d, shape)
                row["mhz"] = rates.mhz()
                report["kernels"].append(row)
                print(entry, d, shape, f"{row['us']:.1f} us, {row['mhz']:.0f} MHz", flush=True)
                with open(a.json, "w") as out:
                    json.dump(report, out, indent=1)
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
