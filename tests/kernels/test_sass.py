"""What the compiler made of the kernels: registers and local memory from ptxas, instructions from cuobjdump.

SPDX-License-Identifier: Apache-2.0

usage: test_sass.py BUILD_FOLDER [unittest arguments]
Exits 77 for a build without nvcc. cuobjdump is not in every toolkit; it is looked for in $CUOBJDUMP, PATH,
$CUDA_HOME/bin, $CUDA_PATH/bin, beside the build's nvcc and in /usr/local/cuda/bin. Where it is missing, that part is
skipped and the checks of ptxas's own log still run.
"""

import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits

BUILD = None
DIMS = (32, 64, 96, 128, 256)

# Registers of a thread as nvcc 13.0 gave them, by head dim. They decide how many blocks share a multiprocessor.
REGISTERS = {
    "80": {
        "attn_4b_f16": (128, 164, 194, 210, 255),
        "attn_8b_f16": (128, 164, 200, 218, 255),
        "attn_f16": (126, 158, 200, 230, 255),
    },
    "86": {
        "attn_4b_f16": (128, 162, 194, 208, 255),
        "attn_8b_f16": (128, 162, 198, 226, 255),
        "attn_f16": (126, 160, 192, 232, 255),
    },
    "89": {
        "attn_4b_fp8": (128, 162, 166, 216, 254),
        "attn_8b_fp8": (128, 164, 168, 222, 254),
        "attn_8b_f16": (128, 162, 198, 226, 255),
        "attn_f16": (126, 160, 192, 232, 255),
    },
    "90a": {
        "attn_8b_fp8": (96, 128, 166, 168, 254),
        "attn_8b_f16": (128, 164, 206, 224, 255),
        "attn_f16": (128, 158, 188, 228, 255),
    },
    "120": {
        "attn_8b_fp8": (96, 128, 168, 168, 255),
        "attn_8b_f16": (128, 164, 196, 208, 255),
        "attn_f16": (124, 156, 182, 222, 255),
    },
}
MASKED = ("attn_masked_f16", "attn_masked_bf16")  # with lengths of keys or a bias, everywhere
# The same on codes.
MASKED_CODES = {
    "80": ("attn_masked_8b_f16", "attn_masked_4b_f16"),
    "86": ("attn_masked_8b_f16", "attn_masked_4b_f16"),
    "89": ("attn_masked_8b_fp8", "attn_masked_4b_fp8"),
    "90a": ("attn_masked_8b_fp8",),
    "120": ("attn_masked_8b_fp8",),
}
FEW, FEW_DIMS = ("attn_masked_few_f16", "attn_masked_few_bf16"), (32, 64, 96, 128)  # of them for few rows
# Kernels of wgmma, sm_90a alone: what a thread has at launch; setmaxnreg then gives those that compute up to 240.
# Warpgroups that compute, by head dim.
WGMMA = {
    "attn_8b_wgmma": {32: 4, 64: 4, 96: 3, 128: 3, 256: 2},
    "attn_8b_wgmma_short": {32: 3, 64: 3, 96: 2, 128: 2},
    "attn_8b_wgmma_walk": {32: 4, 64: 4, 96: 3, 128: 3},
    "attn_8b_wgmma_split": {32: 4, 64: 4, 96: 3, 128: 3},
    "attn_8b_wgmma_pair": {64: 4},
    "attn_8b_wgmma_dump": {32: 3, 64: 3, 96: 2, 128: 2, 256: 2},
    "attn_8b_wgmma_inline": {32: 3, 64: 4, 96: 3, 128: 3},
    "attn_8b_wgmma_inline_short": {32: 2, 64: 2, 96: 2, 128: 2},
    "attn_8b_wgmma_inline_split": {32: 3, 64: 3, 96: 3, 128: 2},
    "attn_8b_wgmma_inline_pair": {64: 4},
}
WGMMA_REGISTERS = {2: 168, 3: 128, 4: 96}
# Registers of a thread as setmaxnreg hands them out, of those that compute and of those that fetch.
INLINE_HANDED = {2: (232, 40), 3: (160, 32), 4: (112, 32)}
HANDED = {2: (240, 24), 3: (160, 32), 4: (112, 24)}
HANDED["attn_8b_wgmma_walk"] = {3: (160, 32), 4: (112, 32)}
HANDED |= {f"attn_8b_wgmma_inline{size}": INLINE_HANDED for size in ("", "_short", "_split", "_pair")}
WGMMA_F16_KINDS, WGMMA_F16 = ("attn_f16_wgmma", "attn_bf16_wgmma"), {64: 96, 80: 168, 96: 168, 128: 168}  # by head dim
# Those of them whose warpgroups share the keys, 512 threads of 128 registers, and those of two teams, 640 of 96 at launch;
# keys of a step.
F16_SPLIT = {f"{kernel}_split": dict.fromkeys(WGMMA_F16, 64) for kernel in WGMMA_F16_KINDS}
F16_TEAMS = {f"{kernel}{kind}": {64: 64} for kernel in WGMMA_F16_KINDS for kind in ("", "_split2")}
# Those of the same in command buffers: warpgroups that compute.
F16_INLINE = {
    f"attn_{kind}_wgmma_inline{size}": dict.fromkeys(dims, groups)
    for kind in ("f16", "bf16")
    for size, dims, groups in (("", (64, 80, 96, 128), 3), ("_short", (64, 80, 96, 128), 2))
}
F16_INLINE_KEYS = {64: 64, 80: 64, 96: 48, 128: 32}  # a step


def f16_inline_handed(groups, d):
    if groups == 2:
        return (208, 88) if d == 80 else (216, 72)
    return (144, 80) if d % 64 else (152, 56)


SLACK = 16  # registers that another version of nvcc may need more, as long as as many blocks fit

INT4, INT8, F16, FP8 = "IMMA.16864.S4", "IMMA.16832.S8", "HMMA.16816.F32", "QMMA.16832.F32.E4M3"
INT4_ARCHS, FP8_ARCHS = ("80", "86", "89"), ("89", "120")


def cubins():
    """{architecture: cubins of all images}"""
    found = {}
    for p in sorted((BUILD / "kernels/cuda").glob("*.sm_*.cubin")):
        found.setdefault(p.name.split(".sm_")[1][:-6], []).append(p)
    return found


def log_lines(arch):
    return [line for p in cubins()[arch] for line in p.with_name(p.name + ".log").read_text().splitlines()]


def ptxas_log(arch):
    """{entry: (registers, bytes of stack, bytes spilt)}"""
    found, name, stack, spilt = {}, None, 0, 0
    for line in log_lines(arch):
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack, spilt = m[1], None, None
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spilt = int(m[1]), int(m[2]) + int(m[3])
        elif m := re.search(r"Used (\d+) registers", line):
            found[name] = (int(m[1]), stack, spilt)
    return found


def blocks_that_fit(registers):
    """Blocks of 128 threads in 65536 registers, which are handed out in eights."""
    return 65536 // (128 * ((registers + 7) // 8 * 8))


def find_cuobjdump():
    places = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    places += [f"{os.environ[v]}/bin/cuobjdump" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    if m := re.search(r"^TANDEM_NVCC:\w+=(.+)$", (BUILD / "CMakeCache.txt").read_text(), re.M):
        places.append(str(pathlib.Path(m[1]).with_name("cuobjdump")))
    places.append("/usr/local/cuda/bin/cuobjdump")
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def sass(tool, cubin):
    """{entry: {opcode with its suffixes: how often}}"""
    done = limits.run([tool, "-sass", str(cubin)], capture_output=True, text=True, seconds=100)
    if done.returncode:
        raise AssertionError(f"{tool} -sass {cubin}: exit {done.returncode}: {done.stderr.strip()}")
    found, now = {}, None
    for line in done.stdout.splitlines():
        if m := re.search(r"Function : (\w+)", line):
            now = found.setdefault(m[1], {})
        elif m := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.a-z]*)", line):
            now[m[1]] = now.get(m[1], 0) + 1
    return found


def mma(opcodes):
    """The tensor core instructions among them, cut to the part that names the shape and the types."""
    kinds = set()
    for op in opcodes:
        if re.match(r"[A-Z]*MMA\.", op):
            kinds.add(next((k for k in (INT4, INT8, F16, FP8) if op.startswith(k)), op))
    return kinds


class Ptxas(unittest.TestCase):
    def test_every_architecture_has_its_kernels(self):
        for arch in cubins():
            if arch not in REGISTERS:
                continue
            want = {f"{kernel}_d{d}" for kernel in (*REGISTERS[arch], *MASKED, *MASKED_CODES[arch]) for d in DIMS}
            want |= {"attn_masked_keys", "attn_spans", "attn_unspanned"}
            want |= {f"{kernel}_d{d}" for kernel in FEW for d in FEW_DIMS}
            if arch == "90a":
                want |= {f"{kernel}_d{d}" for kernel in WGMMA for d in WGMMA[kernel]}
                want |= {f"{kernel}_d{d}" for kernel in WGMMA_F16_KINDS for d in WGMMA_F16}
                want |= {f"{kernel}_d{d}" for kernel in F16_SPLIT for d in F16_SPLIT[kernel]}
                want |= {f"{kernel}_d{d}" for kernel in F16_TEAMS for d in F16_TEAMS[kernel]}
                want |= {f"{kernel}_d{d}" for kernel in F16_INLINE for d in F16_INLINE[kernel]}
            self.assertEqual({n for n in ptxas_log(arch) if n.startswith("attn_")}, want, f"sm_{arch}")

    def test_attention_has_no_local_memory_up_to_128_channels_and_by_wgmma(self):
        seen = 0
        for arch in cubins():
            for name, (_, stack, spilt) in ptxas_log(arch).items():
                wide = name.endswith("_d256") and name != "attn_8b_wgmma_d256"
                if name.startswith("attn_") and not wide and "_dump_" not in name:
                    self.assertEqual((stack, spilt), (0, 0), f"{name} on sm_{arch}")
                    seen += 1
        self.assertGreater(seen, 0)

    def test_the_prologue_and_the_probes_have_no_local_memory(self):
        for arch in cubins():
            for name, (_, stack, spilt) in ptxas_log(arch).items():
                if not name.startswith("attn_"):
                    self.assertEqual((stack, spilt), (0, 0), f"{name} on sm_{arch}")

    def test_registers_are_as_recorded(self):
        for arch in cubins():
            log = ptxas_log(arch)
            for kernel, recorded in REGISTERS.get(arch, {}).items():
                for d, most in zip(DIMS, recorded):
                    registers = log[f"{kernel}_d{d}"][0]
                    what = f"{kernel}_d{d} on sm_{arch}: {registers} registers, {most} recorded"
                    self.assertLessEqual(registers, most + SLACK, what)
                    self.assertGreaterEqual(blocks_that_fit(registers), blocks_that_fit(most), what)

    def test_wgmma_is_not_serialised(self):
        """ptxas says so (C7510 and the like) where it waits for each wgmma, and then all the overlap is gone."""
        for arch in set(cubins()) & {"90a"}:
            log = "\n".join(log_lines(arch))
            serialized = [line for line in log.splitlines() if "serialized" in line and "_dump_" not in line]
            self.assertEqual(serialized, [])
            self.assertNotIn("setmaxnreg", log)
            for kernel, by_dim in WGMMA.items():
                for d, groups in by_dim.items():
                    self.assertLessEqual(ptxas_log(arch)[f"{kernel}_d{d}"][0], WGMMA_REGISTERS[groups])
            for kernel in WGMMA_F16_KINDS:
                for d, most in WGMMA_F16.items():
                    self.assertLessEqual(ptxas_log(arch)[f"{kernel}_d{d}"][0], most)
            for kernel, by_dim in F16_INLINE.items():
                for d, groups in by_dim.items():
                    self.assertLessEqual(ptxas_log(arch)[f"{kernel}_d{d}"][0], WGMMA_REGISTERS[groups])
            for kernel, by_dim in F16_SPLIT.items():
                for d in by_dim:
                    self.assertLessEqual(ptxas_log(arch)[f"{kernel}_d{d}"][0], 128)
            for kernel in F16_TEAMS:
                self.assertLessEqual(ptxas_log(arch)[f"{kernel}_d64"][0], WGMMA_REGISTERS[4])

    def test_setmaxnreg_hands_out_what_a_block_has(self):
        """Else those that ask for registers wait for ever."""
        for arch in set(cubins()) & {"90a"}:
            for kernel, by_dim in WGMMA.items():
                for d, groups in by_dim.items():
                    computes, fetches = HANDED.get(kernel, HANDED)[groups]
                    registers = ptxas_log(arch)[f"{kernel}_d{d}"][0]
                    self.assertGreaterEqual((groups + 1) * registers, groups * computes + fetches, f"{kernel}_d{d}")
            for kernel, by_dim in F16_INLINE.items():
                for d, groups in by_dim.items():
                    computes, fetches = f16_inline_handed(groups, d)
                    registers = ptxas_log(arch)[f"{kernel}_d{d}"][0]
                    self.assertGreaterEqual((groups + 1) * registers, groups * computes + fetches, f"{kernel}_d{d}")
            for kernel in F16_TEAMS:
                self.assertGreaterEqual(5 * ptxas_log(arch)[f"{kernel}_d64"][0], 4 * 112 + 32, kernel)


class Sass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tool = find_cuobjdump()
        if not tool:
            raise unittest.SkipTest("gpu: cuobjdump is not in this toolkit, so the instructions are not looked at")
        cls.of = {arch: {n: ops for p in paths for n, ops in sass(tool, p).items()} for arch, paths in cubins().items()}
        for arch, entries in cls.of.items():
            assert len(entries) == len(ptxas_log(arch)), f"cuobjdump shows {len(entries)} kernels of sm_{arch}"

    def kinds(self, arch, prefix):
        found = {n: mma(ops) for n, ops in self.of[arch].items() if n.startswith(prefix)}
        self.assertGreater(len(found), 0, f"{prefix} on sm_{arch}")
        return found.items()

    def test_4b_is_native_int4(self):
        for arch in set(INT4_ARCHS) & set(self.of):
            pv = FP8 if arch in FP8_ARCHS else F16
            for name, kinds in self.kinds(arch, "attn_4b_"):
                self.assertEqual(kinds, {INT4, pv}, f"{name} on sm_{arch}")

    def test_int4_is_nowhere_emulated(self):
        for arch in set(self.of) - set(INT4_ARCHS):
            self.assertFalse([n for n in self.of[arch] if "_4b_" in n], f"sm_{arch}")

    def test_8b_is_int8_and_fp8_where_there_is_fp8(self):
        for arch in self.of:
            for name, kinds in self.kinds(arch, "attn_8b_"):
                if "_wgmma_" in name:
                    d = int(name.rpartition("_d")[2])
                    widths = (d + 8,) if d <= 128 else (d // 2, d // 2 + 8)
                    shapes = {"IGMMA.64x64x32.S8.S8"} | {f"QGMMA.64x{n}x32.F16.E4M3.E4M3" for n in widths}
                    self.assertEqual(kinds, shapes, f"{name} on sm_{arch}")
                    continue
                pv = FP8 if "_fp8_" in name and arch in FP8_ARCHS else F16
                self.assertEqual(kinds, {INT8, pv}, f"{name} on sm_{arch}")

    def test_f16_is_f16(self):
        for arch in self.of:
            for name, kinds in self.kinds(arch, "attn_f16_"):
                if "_wgmma_" not in name:
                    self.assertEqual(kinds, {F16}, f"{name} on sm_{arch}")

    def test_f16_by_wgmma_transposes_v_itself(self):
        for arch in set(self.of) & {"90a"}:
            for kernel in WGMMA_F16_KINDS:
                for d in WGMMA_F16:
                    suffix = ".BF16" if "bf16" in kernel else ""
                    keys = 64 if d <= 64 else 128
                    shapes = {f"HGMMA.64x{keys}x16.F32{suffix}", f"HGMMA.64x{d}x16.F32{suffix}"}
                    self.assertEqual(mma(self.of[arch][f"{kernel}_d{d}"]), shapes, f"{kernel}_d{d}")
            for kernel, by_dim in (F16_SPLIT | F16_TEAMS | F16_INLINE).items():
                for d in by_dim:
                    suffix = ".BF16" if "bf16" in kernel else ""
                    keys = F16_INLINE_KEYS[d] if kernel in F16_INLINE else by_dim[d]
                    shapes = {f"HGMMA.64x{keys}x16.F32{suffix}", f"HGMMA.64x{d}x16.F32{suffix}"}
                    self.assertEqual(mma(self.of[arch][f"{kernel}_d{d}"]), shapes, f"{kernel}_d{d}")

    def test_probes_are_one_instruction_of_their_unit(self):
        for arch, entries in self.of.items():
            self.assertEqual(mma(entries["probe_mma_f16"]), {F16}, f"sm_{arch}")
            if "probe_mma_e4m3" in entries:  # sm_90 has no FP8 mma.sync: two fp16 ones
                self.assertEqual(mma(entries["probe_mma_e4m3"]), {FP8 if arch in FP8_ARCHS else F16}, f"sm_{arch}")
        if "90a" in self.of:
            (op,) = mma(self.of["90a"]["probe_wgmma_e4m3"])
            self.assertRegex(op, r"^QGMMA\.64x8x32\.F32\.E4M3")

    def test_no_local_memory_up_to_128_channels(self):
        for arch, entries in self.of.items():
            for name, ops in entries.items():
                wide = name.endswith("_d256") and name != "attn_8b_wgmma_d256"
                if name.startswith("attn_") and not wide and "_dump_" not in name:
                    self.assertFalse([op for op in ops if op.startswith(("LDL", "STL"))], f"{name} on sm_{arch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if not cubins():
        print("test_sass: this build has no cubins")
        sys.exit(77)
    unittest.main(verbosity=2)
