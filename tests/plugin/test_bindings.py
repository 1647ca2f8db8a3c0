"""The bindings are what the public headers make of them today; and a header that changes is noticed.

SPDX-License-Identifier: Apache-2.0

usage: test_bindings.py [BUILD_FOLDER]
"""
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPES = "interop/include/tandem/types.h"
FOLDERS = ("interop/include", "engine_plugin/include", "engine_plugin/bindings", "engine_plugin/python/tandem")


def check(root):
    ran = subprocess.run([sys.executable, "-B", root / "engine_plugin/bindings/generate.py", "--check"], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def of_other_use(root):
    """Views that operations write, by the tables that jobs are checked with, and that Python takes for inputs, or the reverse."""
    api = runpy.run_path(str(root / "engine_plugin/python/tandem/_api.py"))
    wrong, seen = [], set()
    for path in sorted(root.glob("kernels/*/*.c")):
        text = path.read_text()
        table = re.findall(r'\] = (?:VIEW\(|\{")(\w+)"?(?:, offsetof\(\w+, \w+\))?, (\w+)', text) if ".views = {" in text else []
        if not table:
            continue
        struct = re.search(r"offsetof\((tandem_\w+), member\)", text)[1]
        operation = struct.removeprefix("tandem_")
        written = {name for name, how in table if how not in ("false", "TD_WRITES_NONE")}
        views = {name for name, of in api[struct]._fields_ if of is api["tandem_view"]}
        seen.add(operation)
        assert {name for name, _ in table} == views, (path, table, views)
        wrong += [f"{operation}.{name}" for name in sorted(written ^ api["WRITTEN"].get(operation, set()))]
    assert seen == {name for name, _ in api["tandem_operands"]._fields_} - {"reserved", "run"}, seen
    return wrong


def prove_that_forms_compile():
    """Functions of each form that headers may have, though none of today's has it, become C++ that compiles."""
    more = "".join(f"TANDEM_API tandem_status tandem_npc_{one};\n\n" for one in (
        "save_all(tandem_npc *npc, void *to, uint64_t *bytes)", "restore_all(tandem_npc *npc, const void *from, uint64_t bytes)",
        "two(tandem_npc *npc, uint32_t *first, uint64_t *second)", "many(tandem_npc *npc, const tandem_turn *turns, uint32_t turn_count)"))
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, root / name)
        header = root / "engine_plugin/include/tandem/npc.h"
        text = header.read_text()
        at = text.rindex("#ifdef __cplusplus")
        header.write_text(text[:at] + more + text[at:])
        subprocess.run([sys.executable, "-B", root / "engine_plugin/bindings/generate.py"], check=True)
        use = ("#include <tandem/vulkan.hpp>\nstd::vector<unsigned char> use(tandem::npc &n) { n.many({}); n.two(); "
               "n.restore_all(n.save_all()); return n.save_all(); }\n")
        subprocess.run(["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I", root / FOLDERS[0], "-I",
                        root / FOLDERS[1], "-xc++", "-"], input=use, text=True, check=True)
    return more.count(";")


def prove_that_it_can_fail():
    """A function more, a field more, a view that is written or no longer is, and forms that the generator does not know."""
    changes = [
        ("tandem/tandem.h", "TANDEM_API uint32_t tandem_version(void);",
         "TANDEM_API uint32_t tandem_version(void);\n\nTANDEM_API tandem_status tandem_new(tandem_session *session, uint32_t more);",
         "run engine_plugin/bindings/generate.py"),
        ("tandem/npc.h", "tandem_npc_poll(tandem_npc *npc, tandem_npc_news *news);",
         "tandem_npc_poll(tandem_npc *npc, tandem_npc_news *news, uint32_t more);", "run engine_plugin/bindings/generate.py"),
        ("tandem/tandem.h", "uint32_t cuda_driver_version; /* as 13000", "uint32_t more : 3; /* as 13000", "what is 'uint32_t more : 3'?"),
        (TYPES, "    tandem_view y;       /* as a; written */", "    tandem_view y;", "run engine_plugin/bindings/generate.py"),
        (TYPES, "tandem_view coarse; /* [", "tandem_view coarse; /* written, [", "run engine_plugin/bindings/generate.py"),
        (TYPES, "/* as a; written */", "/* as a; maybe written */", "which of 'y' is written by ' as a; maybe written '?"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in FOLDERS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name)
        assert check(root) == (0, ""), check(root)
        for name, before, after, says in changes:
            path = root / name if name == TYPES else root / "engine_plugin/include" / name
            text = path.read_text()
            assert before in text, before
            path.write_text(text.replace(before, after, 1))
            code, said = check(root)
            assert code == 1 and says in said, said
            path.write_text(text)
        shutil.copytree(ROOT / "kernels", root / "kernels", ignore=shutil.ignore_patterns("*.cu", "*.cuh"))
        path = root / "kernels/conv/operation.c"
        path.write_text(path.read_text().replace("VIEW(bias, false, true)", "VIEW(bias, true, true)"))
        assert of_other_use(root) == ["conv.bias"], of_other_use(root)
    return len(changes) + 1


if __name__ == "__main__":
    code, said = check(ROOT)
    print(said, end="")
    for view in of_other_use(ROOT):
        print(f"{view}: types.h and the operation do not say the same of whether it is written")
        code = 1
    if code == 0:
        print(f"the bindings are up to date; {prove_that_it_can_fail()} changes of headers are noticed, {prove_that_forms_compile()} "
              "forms of functions compile")
    sys.exit(code)
