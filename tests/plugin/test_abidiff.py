"""What libtandem.so exports has all that the first headers had, where they had it: nothing is gone, moved or of another type, and
what is new comes at a struct's end. By abidiff (abigail-tools), from a library of stubs that is compiled from the headers in
tests/plugin/abi/91e7f33 to one of today's, and from that to the library in the build folder, which has to be the same.

SPDX-License-Identifier: Apache-2.0

usage: test_abidiff.py BUILD_FOLDER

abidiff has no setting for "only at the end" that does not hide what else has changed in the same type. So its report is read: each
line is of a kind that is known here to be harmless, or it is what this test fails with. What debug information does not show,
values of enumerators, and which structs must not even grow, tests/plugin/abi/layout.c sees to. At the end the test is tried on
headers with mistakes.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIRST = ROOT / "tests/plugin/abi/91e7f33"
TODAY = [ROOT / "engine_plugin/include", ROOT / "interop/include"]

# Lines that say where a change is.
PLACES = [re.compile(line) for line in (
    r"Functions changes summary: 0 Removed, \d+ Changed( \(\d+ filtered out\))?, \d+ Added( \(\d+ filtered out\))? functions?",
    r"Variables changes summary: 0 Removed, 0 Changed, 0 Added variables?",
    r"\d+ functions? with some indirect sub-type changes?:",
    r"\[C\] 'function .*' at \S+ has some indirect sub-type changes:",
    r"(return )?type( of '.*')? changed:",
    r"parameter \d+ of type '.*' has sub-type changes:",
    r"in (pointed to|referenced|unqualified underlying) type '.*?'( at \S+)?:",
    r"underlying type '(struct|union) \w+' at \S+ changed:",
    r"(unqualified underlying|pointed to) type '.*' changed at \S+, as reported earlier",
    r"type size hasn't changed",
    r"\d+ data member (insertion|change)s?( \(\d+ filtered\))?:",
)]
# A struct that got longer, and what came to it.
GREW = re.compile(r"type size changed from (\d+) to (\d+) \(in bits\)")
CAME = re.compile(r"'.*', at offset (\d+) \(in bits\) at \S+")
# The job's union had no name at first, and one operation: in place of what is in it, each as it is at offset 0.
UNION = [re.compile(line) for line in (
    r"entity changed from 'union \{tandem_attention attention;\}' to compatible type 'typedef tandem_operands' at \S+",
    r"type name changed from '__anonymous_union__' to 'tandem_operands'",
    r"and name of '__anonymous_union__::attention' changed to 'tandem_operands::attention' at \S+",
    r"'(tandem_(\w+) \2|uint64_t reserved\[128\])' at \S+",
)]


def stubs(folder, includes, text_of, name):
    """A library with the functions of these headers, none of which does anything."""
    code = ["#include <tandem/plugin.h>"]
    for header in ("tandem.h", "vulkan.h", "npc.h", "plugin.h"):
        text = re.sub(r"/\*.*?\*/", "", text_of(header), flags=re.S)
        code += [function + " { __builtin_trap(); }" for function in re.findall(r"^TANDEM_API ([^;]*);", text, flags=re.M)]
    source, library = folder / (name + ".c"), folder / (name + ".so")
    source.write_text("\n".join(code) + "\n")
    subprocess.run(["gcc", "-std=gnu17", "-g", "-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libtandem.so.0",
                    *[f"-I{path}" for path in includes], str(source), "-o", str(library)], check=True)
    return library, len(code) - 1


def headers(includes):
    """The text of a public header of theirs; nothing, where they have none of that name."""
    def text_of(header):
        return "".join((path / "tandem" / header).read_text() for path in includes if (path / "tandem" / header).exists())
    return text_of


def report(old, new, *options):
    done = subprocess.run(["abidiff", *options, str(old), str(new)], capture_output=True, text=True, check=False)
    if done.returncode & 3 or done.returncode < 0:  # it could not compare them
        sys.exit(f"abidiff {old} {new}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode, done.stdout


def harmful(text):
    """The lines of a report that say more than that something was added."""
    wrong, size = [], {}
    for line in filter(str.strip, text.splitlines()):
        said, depth = line.strip(), len(line) - len(line.lstrip())
        grew, came = GREW.fullmatch(said), CAME.fullmatch(said)
        if grew:
            size = {d: bits for d, bits in size.items() if d < depth} | {depth: int(grew[1])}
            good = int(grew[1]) < int(grew[2])
        elif came:  # two deeper than the struct's size, which is the last that was said
            good = depth - 2 in size and int(came[1]) >= size[depth - 2]
        else:
            good = any(kind.fullmatch(said) for kind in PLACES + UNION)
        if not good:
            wrong.append(said)
    return wrong


def prove_that_it_can_fail(folder, first):
    """Today's headers, with one mistake after the other."""
    mistakes = [
        ("tandem.h", r"^TANDEM_API tandem_status tandem_cancel\([^;]*;", "", "a function is gone"),
        ("tandem.h", r"uint64_t timeout_ns,(\s+tandem_job_report)", r"uint32_t timeout_ns,\1", "a parameter is another"),
        ("tandem.h", r"^    uint32_t timing; .*$", "", "a field is gone"),
        ("tandem.h", r"^    uint32_t cpu_threads;", "    uint64_t fresh;\n    uint32_t cpu_threads;", "a field came in the middle"),
        ("tandem.h", r"^    char device\[128\];", "    char device[120];", "a field is shorter"),
        ("tandem.h", r"^    uint64_t jobs_submitted, jobs_done,", "    uint64_t jobs_done, jobs_submitted,", "two fields changed places"),
        ("types.h", r"^    float scale; ", "    uint32_t scale; ", "a field's type is another"),
        ("types.h", r"^    int32_t status; ", "    int64_t status; ", "a field is wider"),
        ("types.h", r"^    uint64_t end_ns; .*$", "", "the last field is gone"),
        ("types.h", r"^    tandem_attention attention;.*$", "", "an operation is gone"),
        ("plugin.h", r"^    tandem_status \(\*cancel\)[^;]*;", "", "the table lacks a function"),
        ("vulkan.h", r"^    const char \*buys;", "    uint32_t fresh[2];\n    const char *buys;", "a requirement's field moved"),
    ]
    missed = []
    for at, (header, pattern, instead, what) in enumerate(mistakes):
        include = folder / f"mistake{at}"
        shutil.copytree(TODAY[0], include)
        shutil.copytree(TODAY[1], include, dirs_exist_ok=True)
        path = include / "tandem" / header
        changed, count = re.subn(pattern, instead, path.read_text(), count=1, flags=re.M)
        if not count:
            missed.append(f"{what}: no such line in {header}")
            continue
        path.write_text(changed)
        library, _ = stubs(folder, [include], headers([include]), f"mistake{at}")
        if not harmful(report(first, library, "--harmless", "--no-added-syms")[1]):
            missed.append(f"{what}: not found")
    return len(mistakes), missed


def main():
    if not shutil.which("abidiff"):
        print("abidiff is not installed (abigail-tools)")
        sys.exit(77)
    built = pathlib.Path(sys.argv[1]) / "libtandem.so"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first, functions = stubs(folder, [FIRST], headers([FIRST]), "first")
        today, more = stubs(folder, TODAY, headers(TODAY), "today")
        status, differs = report(today, built)
        wrong = [f"the library is not what its headers say: {line}" for line in differs.splitlines()] if status else []
        text = report(first, today, "--harmless", "--no-added-syms")[1]
        wrong += harmful(text)
        if wrong:
            print(text)
        count, missed = prove_that_it_can_fail(folder, first)
    for line in wrong + missed:
        print(line)
    print(f"{functions} functions of the first headers, {more} of today's; {count - len(missed)} of {count} mistakes found")
    sys.exit(1 if wrong or missed or functions != 33 else 0)


if __name__ == "__main__":
    main()
