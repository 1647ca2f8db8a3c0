"""Kernels as the disassembler shows them, and the path that a usual step of attention takes through one.

SPDX-License-Identifier: Apache-2.0
"""

import collections
import re
import subprocess

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);\s*/\* (0x[0-9a-f]{16}) \*/")
HIGH = re.compile(r"^\s*/\* (0x[0-9a-f]{16}) \*/\s*$")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")

# stall: cycles until the warp's next instruction; sets, reads: the scoreboard that is held until the result is there, until the
# operands have been read, or None; waits: those that must be free before.
Instruction = collections.namedtuple("Instruction", "at name guard text target stall sets reads waits")


def disassemble(nvdisasm, cubin):
    """{entry: ([Instruction], {label: index of the instruction behind it})}"""
    text = subprocess.run([nvdisasm, "-c", "-hex", cubin], check=True, capture_output=True, text=True).stdout
    kernels, code, labels, pending = {}, None, None, None
    for line in text.splitlines():
        if line.startswith("\t.section") or line.startswith("//---"):
            code = None
        elif line.startswith(".text."):
            code, labels = kernels.setdefault(line[6:].rstrip(":"), ([], {}))
        elif code is not None and (found := LABEL.match(line)):
            labels[found.group(1)] = len(code)
        elif code is not None and (found := LINE.search(line)):
            pending = int(found.group(1), 16), found.group(2).strip()
        elif code is not None and pending and (found := HIGH.match(line)):
            code.append(decoded(*pending, int(found.group(1), 16) >> 41))
            pending = None
    return kernels


def decoded(at, text, control):
    words = text.split(None, 1)
    guard = words[0] if words[0].startswith("@") else ""
    body = words[1] if guard else text
    target = TARGET.search(body)
    sets, reads = control >> 5 & 7, control >> 8 & 7
    return Instruction(at, body.split()[0], guard, body, target.group(1) if target else None, max(1, control & 15),
                       None if sets == 7 else sets, None if reads == 7 else reads,
                       tuple(i for i in range(6) if control >> 11 >> i & 1))


def step(code, labels):
    """The instructions of a usual step over a tile of keys, neither the first nor the last one: the loop that has the products.

    Of what branches jump over it has what copies the next tile (LDGSTS). Without that are what a test dumps, what a mask or smoothing adds,
    and what is met by one of several kinds of tensors."""
    loops = [(labels[i.target], n) for n, i in enumerate(code) if i.name.startswith("BRA") and i.target and labels[i.target] <= n]
    products = [n for n, i in enumerate(code) if i.name.startswith(("HMMA", "IMMA", "QMMA", "OMMA"))]
    around = [(end - begin, begin, end) for begin, end in loops if begin <= products[0] and products[-1] <= end]
    if not around:
        raise ValueError("no loop has all of its products")
    _, begin, end = min(around)
    out, n = [], begin
    while n <= end:
        i = code[n]
        out.append(i)
        to = labels[i.target] if i.name.startswith("BRA") and i.target else None
        if to is not None and n < to <= end and not any(j.name.startswith("LDGSTS") for j in code[n + 1:to]):
            n = to
        else:
            n += 1
    return out
