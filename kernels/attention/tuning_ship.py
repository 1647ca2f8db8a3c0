#!/usr/bin/env python3
"""Puts a table that `tandem tune` measured into the build, for all GPUs of that name.

SPDX-License-Identifier: Apache-2.0

usage: tuning_ship.py TUNING.json [--out FILE]

FILE is kernels/attention/tuning_tables.inc beside this script if not given. The table of the same device is replaced, those of others
stay. `tandem tune --check` first: this script believes what it reads.
"""

import json
import pathlib
import re
import sys

COSTS, TIMES, BLOCK = ("f16", "8b", "4b"), ("kernel", "prologue", "few"), r"/\* (.+) \*/\n(\{\n(?:.*\n)*?\},\n)"


def number(us):
    text = f"{us or 0:.4g}"
    return (text if "." in text or "e" in text else text + ".0") + "f" if us else "0"


def times(name, grid, indent):
    if not grid or not any(us for row in grid for us in row):
        return []
    rows = ["{" + ", ".join(map(number, row)) + "}" for row in grid]
    return [f"{indent}.{name} = {{{rows[0]},"] + [f"{indent}    {row}," for row in rows[1:-1]] + [f"{indent}    {rows[-1]}}},"]


def initializer(table):
    lines = ["{", f"    .sm = {table['sm']},", f"    .multiprocessors = {table['multiprocessors']},",
             f"    .device = {json.dumps(table['device'])},", f"    .count = {len(table['parts'])},", "    .parts = {"]
    for part in table["parts"]:
        lines += ["        {", f"            .head_dim = {part['head_dim']},", f"            .causal = {part['causal']},",
                  "            .costs = {"]
        for index, cost in enumerate(COSTS):
            inner = [line for name in TIMES for line in times(name, (part.get(cost) or {}).get(name), " " * 20)]
            if inner:
                lines += [" " * 16 + f"[{index}] = {{", *inner, " " * 16 + "},"]
        lines += ["            },", "        },"]
    return "\n".join(lines + ["    },", "},\n"])


def main(words):
    out = pathlib.Path(__file__).with_name("tuning_tables.inc")
    if len(words) == 3 and words[1] == "--out":
        out = pathlib.Path(words[2])
    elif len(words) != 1:
        sys.exit(__doc__.split("\n\n")[2])
    table = json.loads(pathlib.Path(words[0]).read_text())
    if table.get("tandem") != "choice" or table.get("version") != 2:
        sys.exit(f"tuning_ship: {words[0]} is no table of this version of `tandem tune`")
    if not re.fullmatch(r"[ -)+-.0-~]{1,63}", table["device"]):
        sys.exit(f"tuning_ship: the device is {table['device']!r}")
    text = out.read_text() if out.exists() else ""
    tables = dict(re.findall(BLOCK, text))
    tables[table["device"]] = initializer(table)
    head = "/* Written by tuning_ship.py, included by tuning_shipped.c. SPDX-License-Identifier: Apache-2.0 */\n"
    out.write_text(head + "".join(f"/* {name} */\n{tables[name]}" for name in sorted(tables)))
    print(f"{out}: {', '.join(sorted(tables))}")


if __name__ == "__main__":
    main(sys.argv[1:])
