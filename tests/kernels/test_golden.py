"""Plans are what they were: print_plans beside tests/kernels/golden/plans.txt.xz.

SPDX-License-Identifier: Apache-2.0

usage: test_golden.py BUILD_FOLDER [--write]

A change of how plans are made must not change what they are. Where it is meant to, --write keeps the new plans, and the
commit says which choices changed and what that does to their times.
"""

import itertools
import lzma
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden/plans.txt.xz"
SHOWN = 3


def plans(text):
    """{job: {target: [lines]}}"""
    out = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            job = out.setdefault(line, {})
        elif not line.startswith("   "):
            plan = job.setdefault(line.split(":")[0].strip(), [line])
        else:
            plan.append(line)
    return out


def show(job, target, was, now):
    print(f"{job}\n  on {target}:")
    for a, b in itertools.zip_longest(was, now, fillvalue="(nothing)"):
        if a != b:
            print(f"    was {a.strip()}\n    now {b.strip()}")


def main():
    build, write = pathlib.Path(sys.argv[1]), "--write" in sys.argv[2:]
    text = limits.run([build / "print_plans"], capture_output=True, text=True, check=True, seconds=100).stdout
    if write:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        return 0
    was, now = plans(lzma.decompress(GOLDEN.read_bytes()).decode()), plans(text)
    if len(was) < 500 or any(len(targets) != 6 for targets in was.values()):
        print(f"{GOLDEN.name} has not 500 jobs for six targets")
        return 1
    if list(was) != list(now):
        print(f"print_plans makes other jobs than those in {GOLDEN.name}")
        return 1
    changed = [(job, t) for job in was for t in was[job] if was[job][t] != now[job].get(t)]
    for job, target in changed[:SHOWN]:
        show(job, target, was[job][target], now[job].get(target, []))
    total = sum(map(len, was.values()))
    print(f"test_golden: {total - len(changed)} of {total} plans are as they were")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
