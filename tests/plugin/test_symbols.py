"""What libtandem.so.0 exports is what its headers say, each function below the version that it came with: programs that are linked
with it say which they need, one that needs a newer library is refused by the loader with that name, and one that was linked with
a library without versions runs, as one does that asks at run time.

SPDX-License-Identifier: Apache-2.0

usage: test_symbols.py BUILD_FOLDER
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIRST = ROOT / "tests/plugin/abi/91e7f33"
TODAY = [ROOT / "engine_plugin/include", ROOT / "interop/include"]


def functions(includes):
    """What these headers declare."""
    text = "".join(path.read_text() for folder in includes for path in sorted((folder / "tandem").glob("*.h")))
    return set(re.findall(r"^TANDEM_API [^;(]*?(tandem_\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S), flags=re.M))


def output(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def exported(library):
    """{name: version} of what it exports, versions themselves left out."""
    lines = output("readelf", "--dyn-syms", "-W", library).splitlines()
    found = [line.split()[-1] for line in lines if re.match(r"\s*\d+: ", line) and " UND " not in line and " ABS " not in line]
    return {name: version for name, _, version in (symbol.replace("@@", "@").partition("@") for symbol in found)}


def needed(program):
    """The versions of libtandem.so.0 that a program says it needs."""
    return set(re.findall(r"Name: (TANDEM_\S+)", output("readelf", "-V", "-W", program)))


class Linker:
    def __init__(self, folder, build):
        self.folder, self.build = folder, build

    def program(self, name, code, includes, library):
        source = self.folder / f"{name}.c"
        source.write_text(code)
        subprocess.run(["gcc", "-std=gnu17", *[f"-I{path}" for path in includes], str(source), str(library), "-o",
                        str(self.folder / name), "-lm", "-Wl,--allow-shlib-undefined"], check=True)
        return self.folder / name

    def stub(self, name, symbols, script=None):
        """A library of that soname with these functions, none of which does anything."""
        source, library = self.folder / f"{name}.c", self.folder / f"{name}.so"
        source.write_text("".join(f"void {symbol}(void) {{ __builtin_trap(); }}\n" for symbol in sorted(symbols)))
        options = []
        if script:
            (self.folder / f"{name}.map").write_text(script)
            options = [f"-Wl,--version-script={self.folder / name}.map"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libtandem.so.0", *options, str(source), "-o", str(library)],
                       check=True)
        return library

    def run(self, program, *arguments):
        done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=100,
                              env=os.environ | {"LD_LIBRARY_PATH": str(self.build)})
        return done.returncode, done.stdout + done.stderr


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    library = build / "libtandem.so.0"
    first, today = functions([FIRST]), functions(TODAY)
    wrong = []

    def want(condition, text):
        if not condition:
            wrong.append(text)

    versions = exported(library)
    want(set(versions) == today, f"exported, but in no header, or the reverse: {sorted(set(versions) ^ today)}")
    for name, version in sorted(versions.items()):
        want(version == ("TANDEM_0.1" if name in first else "TANDEM_0.2"), f"{name} is of {version}")

    with tempfile.TemporaryDirectory() as name:
        link = Linker(pathlib.Path(name), build)
        uses = "#include <tandem/npc.h>\nint main(int n, char **a) { (void)a; return n > 1 ? tandem_%s(0, 0, 0) : 0; }\n"
        old = link.program("old", uses % "error_text", TODAY, library)
        new = link.program("new", uses.replace("tandem_%s(0, 0, 0)", "(tandem_npc_destroy(0), 0)"), TODAY, library)
        for program, versions in ((old, {"TANDEM_0.1"}), (new, {"TANDEM_0.2"})):
            want(needed(program) == versions, f"a program needs {needed(program)} instead of {versions}")
            want(link.run(program)[0] == 0, f"{program.name} does not run: {link.run(program)}")

        later = link.stub("later", ["tandem_of_later"], "TANDEM_0.9 { global: tandem_*; };\n")
        late = link.program("late", "void tandem_of_later(void);\nint main(void) { tandem_of_later(); }\n", [], later)
        status, text = link.run(late)
        want(status and "version `TANDEM_0.9' not found" in text, f"a library that is too old is not refused: {status} {text}")

        # As it was linked when the library had no versions.
        game = link.program("game", f'#include "{FIRST / "game.c"}"\n', [FIRST], link.stub("first", first))
        want(not needed(game), f"the first game needs {needed(game)}: this test is wrong")
        status, text = link.run(game, name)
        want(status == 0, f"a game of the time before versions does not run: {status} {text}")

        code = r"""#define _GNU_SOURCE
#include <dlfcn.h>
int main(void)
{
    void *library = dlopen("libtandem.so.0", RTLD_NOW);

    if (!library)
        return 1;
    return !dlsym(library, "tandem_get_api") || !dlsym(library, "tandem_npc_create")
           || dlsym(library, "tandem_get_api") != dlvsym(library, "tandem_get_api", "TANDEM_0.1")
           || dlvsym(library, "tandem_npc_create", "TANDEM_0.1") ? 2 : 0;
}
"""
        status, text = link.run(link.program("asks", code, [], "-ldl"))
        want(status == 0, f"dlsym: {status} {text}")

    for line in wrong:
        print(line)
    print(f"{len(first)} functions of TANDEM_0.1, {len(today - first)} of TANDEM_0.2")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
