"""What a quarter of a multiprocessor does with instructions: pipes, and a simulation of its warps.

SPDX-License-Identifier: Apache-2.0

A quarter issues an instruction a cycle, of a warp whose stall counts and scoreboards allow it and whose pipe is free. A pipe is busy for so
many cycles; what goes by a queue (loads, exponentials) may be issued while earlier ones wait. Results of those come after a lag.
"""

import collections

# What of the rates an instruction goes by: the first prefix that fits. Without a pipe only the issue slot counts.
KINDS = [
    ("HMMA.16816", "mma_f16"), ("IMMA.16832", "mma_s8"), ("IMMA.16864", "mma_s4"), ("QMMA.16832", "mma_e4m3"),
    ("MUFU", "ex2"), ("I2FP", "i2f"), ("I2F", "i2f"), ("F2FP.SATFINITE", "f2fp_e4m3"), ("F2FP", "f2fp_f16"),
    ("SHFL", "shfl"), ("LDSM", "ldsm"), ("LDS", "lds"), ("STS", "lds"), ("LDL", "lds"), ("STL", "lds"), ("LDGSTS", "ldgsts"), ("LDG", "ldgsts"), ("STG", "ldgsts"),
    ("BAR", "bar"),
    ("FFMA", "ffma"), ("FMUL", "ffma"), ("FADD", "fadd"), ("IMAD", "imad"),
    ("FMNMX", "fmnmx"), *((name, "lop3") for name in ("IADD", "VIADD", "LOP3", "SHF", "ISETP", "FSETP", "SEL", "FSEL", "MOV", "PRMT",
                                                      "LEA", "PLOP3", "IMNMX", "VIMNMX", "IABS", "CS2R", "HADD2", "HMUL2")),
]
PIPES = {"mma_f16": "tensor", "mma_s8": "tensor", "mma_s4": "tensor", "mma_e4m3": "tensor", "ex2": "mufu", "shfl": "lsu", "lds": "lsu",
         "ldsm": "lsu", "ldgsts": "lsu", "bar": "barrier", "ffma": "fma", "fadd": "fma", "imad": "fma", "fmnmx": "alu", "lop3": "alu",
         "i2f": "alu", "f2fp_f16": "alu", "f2fp_e4m3": "alu"}
QUEUED = {"mufu", "lsu"}
QUEUE = 6       # instructions that wait in front of such a pipe
READ_CYCLES = 8  # until operands have been read


def kind_of(name):
    for prefix, kind in KINDS:
        if name.startswith(prefix):
            return kind
    return None


class Machine:
    """cycles: that an instruction of a kind has its pipe for; lags: until the result of one by scoreboard is there;
    moved: kinds whose pipe is another one on this GPU; slots: cycles of an instruction in a long row of them, by how many warps share the
    quarter; jump: cycles that a warp waits behind a branch that is taken."""

    def __init__(self, cycles, lags, moved=None, slots=(1, 1, 1, 1), jump=0):
        self.cycles, self.lags, self.pipes = cycles, lags, {**PIPES, **(moved or {})}
        self.slots, self.jump = slots, jump
        self.known = {}

    def account(self, step):
        """{pipe: cycles} of one warp's step, with its issue slots."""
        out = collections.Counter(issue=len(step))
        for i in step:
            kind = kind_of(i.name)
            if kind and kind != "bar":
                out[self.pipes[kind]] += self.cycles[kind]
        return out

    def simulate(self, step, warps, steps=6):
        """Cycles that `warps` of a quarter take for a step each, once all are under way."""
        if (id(step), warps) in self.known:  # of other shapes
            return self.known[id(step), warps]
        following = step[1:] + step[:1]
        jumps = [self.jump if after.at != i.at + 16 and i.name.startswith("BRA") else 0 for i, after in zip(step, following)]
        shown = [(kind_of(i.name), i.stall + wait, i.sets, i.reads, i.waits) for i, wait in zip(step, jumps)]
        slot = self.slots[min(warps, len(self.slots)) - 1]
        size, total = len(shown), steps * len(shown)
        at, ready, free = [0] * warps, [w * 2 * size // warps for w in range(warps)], collections.Counter()
        boards = [[[] for _ in range(6)] for _ in range(warps)]
        ends = [[] for _ in range(warps)]
        now, last = 0, 0
        while any(n < total for n in at):
            soonest, chosen = None, None
            for turn in range(warps):
                w = (last + 1 + turn) % warps  # in turn
                if at[w] >= total:
                    continue
                kind, stall, sets, reads, waits = shown[at[w] % size]
                when = ready[w]
                for board in waits:
                    when = max(when, max(boards[w][board], default=0))
                pipe = self.pipes.get(kind)
                if pipe:
                    slack = QUEUE * self.cycles[kind] if pipe in QUEUED else 0
                    when = max(when, free[pipe] - slack)
                if soonest is None or when < soonest:
                    soonest, chosen = when, w
                if when <= now:
                    break
            now, w = max(now, soonest), chosen
            kind, stall, sets, reads, waits = shown[at[w] % size]
            for board in waits:
                boards[w][board] = []
            pipe, begin = self.pipes.get(kind), now
            if pipe and kind != "bar":
                begin = max(now, free[pipe])
                free[pipe] = begin + self.cycles[kind]
            if sets is not None:
                boards[w][sets].append(begin + self.lags.get(kind, self.lags["other"]))
            if reads is not None:
                boards[w][reads].append(begin + READ_CYCLES)
            ready[w] = now + (max(stall, self.lags["bar"]) if kind == "bar" else stall)
            at[w] += 1
            if at[w] % size == 0:
                ends[w].append(now)
            last, now = w, now + slot
        # from the end of each warp's second step to that of its last: all of them were under way
        spans = [(e[-1] - e[1]) / (len(e) - 2) for e in ends]
        self.known[id(step), warps] = sum(spans) / len(spans)
        return self.known[id(step), warps]
