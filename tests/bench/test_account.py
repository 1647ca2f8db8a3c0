"""The account of kernels: what it reads of a disassembly, how its machine runs warps, and what it takes cards for.

SPDX-License-Identifier: Apache-2.0

usage: test_account.py BUILD_FOLDER [unittest arguments]
"""

import pathlib
import stat
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "account"))
import account
import cards
import machine
import measure
import sass

# As nvdisasm writes it: instructions of 128 bits, whose highest 23 have stalls and scoreboards.
TEXT = """
\t.section\t.text.attn_d32,"ax",@progbits
.text.attn_d32:
        /*0000*/                   LDC R1, c[0x0][0x28] ;                  /* 0x00000a00ff017b82 */
                                                                           /* 0x000e620000000800 */
.L_x_1:
        /*0010*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;       /* 0x000000ff0200720c */
                                                                           /* 0x004fda0003f05270 */
        /*0020*/              @!P0 BRA `(.L_x_2) ;                         /* 0x0000000000308947 */
                                                                           /* 0x000fea0003800000 */
        /*0030*/                   LDGSTS.E.BYPASS.128 [R3], [R4.64] ;     /* 0x0000000004037fae */
                                                                           /* 0x000fe2000b901c44 */
.L_x_2:
        /*0040*/                   HMMA.16816.F32 R8, R4, R14, R8 ;        /* 0x0000000e0408723c */
                                                                           /* 0x000fe20000001808 */
        /*0050*/               @P1 BRA `(.L_x_3) ;                         /* 0x0000000000301947 */
                                                                           /* 0x000fea0003800000 */
        /*0060*/                   STG.E [R2.64], R8 ;                     /* 0x0000000802007986 */
                                                                           /* 0x000fe2000c101904 */
.L_x_3:
        /*0070*/               @P2 BRA `(.L_x_1) ;                         /* 0x0000000000302947 */
                                                                           /* 0x000fea0003800000 */
        /*0080*/                   EXIT ;                                  /* 0x000000000000794d */
                                                                           /* 0x000fea0003800000 */
"""


def one(name, stall=1, sets=None, reads=None, waits=()):
    return sass.Instruction(0, name, "", name, None, stall, sets, reads, waits)


class Disassembly(unittest.TestCase):
    def setUp(self):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write(f"#!/bin/sh\ncat <<'END'\n{TEXT}END\n")
        path = pathlib.Path(script.name)
        self.addCleanup(path.unlink)
        path.chmod(stat.S_IRWXU)
        self.code, self.labels = sass.disassemble(path, "any.cubin")["attn_d32"]

    def test_instructions(self):
        first, compare = self.code[:2]
        self.assertEqual((first.name, first.stall, first.sets, first.reads, first.waits), ("LDC", 1, 1, None, ()))
        self.assertEqual((compare.stall, compare.sets, compare.waits), (13, None, (2,)))
        self.assertEqual([i.guard for i in self.code if i.name == "BRA"], ["@!P0", "@P1", "@P2"])
        self.assertEqual(self.labels, {".L_x_1": 1, ".L_x_2": 4, ".L_x_3": 7})

    def test_step(self):
        """The loop without what a test dumps, with what copies the next tile."""
        names = [i.name.split(".")[0] for i in sass.step(self.code, self.labels)]
        self.assertEqual(names, ["ISETP", "BRA", "LDGSTS", "HMMA", "BRA", "BRA"])
        with self.assertRaises(ValueError):
            sass.step([i for i in self.code if not i.name.startswith("BRA")], self.labels)


class Warps(unittest.TestCase):
    def setUp(self):
        cycles = {"mma_f16": 8, "ffma": 1, "lop3": 2, "ex2": 8, "lds": 4}
        self.machine = machine.Machine(cycles, {"ex2": 20, "lds": 30, "other": 25, "bar": 10, "bar_of_block": 10})

    def test_pipes(self):
        step = [one("HMMA.16816.F32")] * 10 + [one("FFMA")] * 5 + [one("UIADD3")]
        self.assertEqual(self.machine.account(step), {"issue": 16, "tensor": 80, "fma": 5})
        self.assertAlmostEqual(self.machine.simulate(step, 2), 160, delta=2)  # by the tensor cores, whoever waits
        self.assertAlmostEqual(self.machine.simulate([one("FFMA")] * 50, 4), 200, delta=12)  # by issue

    def test_stalls(self):
        step = [one("FFMA", stall=4)] * 20
        self.assertAlmostEqual(self.machine.simulate(step, 1), 80, delta=1)
        self.assertAlmostEqual(self.machine.simulate(step, 4), 80, delta=4)  # four warps fill each other's stalls
        self.assertAlmostEqual(self.machine.simulate(step, 8), 160, delta=4)

    def test_scoreboards(self):
        step = [one("LDS", sets=0), one("FFMA", waits=(0,))] * 10
        alone = self.machine.simulate(step, 1)
        self.assertAlmostEqual(alone, 10 * 31, delta=5)
        self.assertLess(self.machine.simulate(step, 4), 1.2 * alone)
        apart = [one("LDS", sets=n % 6) for n in range(6)] + [one("FFMA", waits=(n,)) for n in range(6)]
        self.assertLess(self.machine.simulate(apart, 1), 70)  # lags at once

    def test_every_kind_has_a_pipe(self):
        for _, kind in machine.KINDS:
            self.assertIn(kind, machine.PIPES)


class Cards(unittest.TestCase):
    def test_cycles(self):
        lags = dict.fromkeys(("bar_of_block", "lds", "ldsm", "ex2", "global"), 20.0)
        expected = {"A100 SXM": (8, 8, 2, 8), "GeForce RTX 3090": (32, 16, 1, 2), "A10": (16, 16, 1, 2), "GeForce RTX 4090": (32, 16, 1, 2)}
        for card in cards.CARDS:
            cycles = cards.machine_of(card, lags).cycles
            got = tuple(cycles[kind] for kind in ("mma_f16", "mma_s8", "ffma", "i2f"))
            self.assertEqual(got, expected.get(card["name"], got), card["name"])
            self.assertEqual((cycles["ex2"], cycles["ldsm"], cycles["lop3"]), (8, 16, 2))
            for entry in cards.entries_of(card["sm"]):
                self.assertTrue(32 < cards.registers_of(card["sm"], entry, 64) <= 255)
        self.assertEqual(len(cards.CARDS), len({card["name"] for card in cards.CARDS}))

    def test_blocks(self):
        self.assertEqual(sorted(account.blocks_of(2, 256, 1)), [1, 1, 2, 2, 3, 3, 4, 4])
        self.assertEqual(account.blocks_of(1, 256, 0), [4] * 4)
        self.assertEqual(account.last_end([4] * 6, 4, 10, 3), 86)  # two turns
        self.assertEqual(account.last_end([4, 1, 1], 2, 10, 0), 40)
        card = {**cards.LIMITS[89], "sm": 89}
        self.assertEqual(account.resident(168, 30000, card), 3)
        self.assertEqual(account.resident(96, 43008, card), 2)  # by shared memory

    def test_launches(self):
        """Shared memory and parameters as the headers have them."""
        self.assertEqual(measure.shared_bytes(2 * 256, 2, 256), 71168)
        self.assertEqual(measure.shared_bytes(64, 1, 64), 2 * 10752)
        made = measure.Attention.__new__(measure.Attention)
        made.codes, made.v, made.scales, made.ones, made.out = {8: [1, 2]}, {2: 3}, 4, 5, 6
        self.assertEqual(len(made.parameters("attn_8b_f16", 128, 4096, 1, 64)), 240)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
