"""How much of the C of what ships the tests have run, by lines: of a tree that was built with gcc's --coverage, and tested.

SPDX-License-Identifier: Apache-2.0

usage: coverage_lines.py BUILD_FOLDER [--least PERCENT] [--lines FILE]     --lines: the lines of this file that no test ran
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIPS = ("interop/", "kernels/", "engine_plugin/", "demo/")
NOT = ("engine_plugin/examples/",)  # which engine programmers copy


def read(data):
    """[(file, line, times)] of what one object was run for."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(["gcov", "--json-format", "--stdout", str(data)], capture_output=True, text=True, check=False, cwd=folder)
    found = []
    for text in run.stdout.splitlines():
        if not text.startswith("{"):
            continue
        of = json.loads(text)
        for file in of["files"]:
            path = pathlib.Path(os.path.normpath(os.path.join(of["current_working_directory"], file["file"])))
            if path.is_relative_to(ROOT):
                name = path.relative_to(ROOT).as_posix()
                if name.startswith(SHIPS) and not name.startswith(NOT):
                    found += [(name, line["line_number"], line["count"]) for line in file["lines"]]
    return found


def collect(build):
    """{file: {line: times}}; what is compiled for several programs is there once, run by any."""
    times = collections.defaultdict(dict)
    notes = sorted(build.rglob("*.gcno"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(read, notes):
            for name, line, count in found:
                times[name][line] = max(times[name].get(line, 0), count)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--lines")
    arguments = parser.parse_args()
    times = collect(arguments.build.resolve())
    if not times:
        sys.exit(f"coverage: nothing in {arguments.build} was built with --coverage")
    if arguments.lines:
        print(*(line for line, count in sorted(times.get(arguments.lines, {}).items()) if not count))
        return
    folders = collections.defaultdict(lambda: [0, 0])
    for name, lines in times.items():
        for folder in ("/".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0], ""):
            folders[folder][0] += sum(count > 0 for count in lines.values())
            folders[folder][1] += len(lines)
    ran, whole = folders.pop("")
    for folder, (of, all_of) in sorted(folders.items()):
        print(f"{folder:28} {100 * of / all_of:5.1f} % of {all_of} lines")
    for name in sorted(times, key=lambda n: sum(not c for c in times[n].values()), reverse=True)[:10]:
        print(f"  not run: {sum(not c for c in times[name].values()):4} of {len(times[name]):4} in {name}")
    percent = 100 * ran / whole
    print(f"host code: {percent:.1f} % of {whole} lines")
    if percent < arguments.least:
        sys.exit(f"coverage: that is less than {arguments.least:g} %")


if __name__ == "__main__":
    main()
