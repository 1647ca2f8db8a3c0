"""Each struct of the public headers has the tests that its growing needs: in abi/layout.c that it ends behind its last member,
and where it says its size (struct_bytes), in abi/structs.c or abi/npc_structs.c that shorter and longer ones are taken.

SPDX-License-Identifier: Apache-2.0

usage: test_growth.py [BUILD_FOLDER]
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADERS = [path for folder in ("interop/include/tandem", "engine_plugin/include/tandem") for path in (ROOT / folder).glob("*.h")]
STRUCT = re.compile(r"^(?:typedef )?(?:struct|union) (tandem_\w+) \{\n((?:.*\n)*?)\}", re.M)
# The table of functions, which nobody gives or fills: a game that is built with the first one goes by its size, test_abi.
TABLE = "tandem_api"


def check(headers, layout, structs):
    """(structs seen, what is wrong)"""
    found = STRUCT.findall(headers)
    wrong = [f"{name} is not among those of abi/layout.c" for name, _ in found
             if not re.search(rf"^LAST\({name}, (\w+)\);", layout, re.M)]
    wrong += [f"{name} is not among those of abi/*structs.c" for name, members in found
              if "uint32_t struct_bytes;" in members and name != TABLE and not re.search(rf"\b{name}\b", structs)]
    return len(found), wrong


def prove_that_it_can_fail(headers, layout, structs):
    new = "typedef struct tandem_new {\n    uint32_t struct_bytes;\n} tandem_new;\n"
    assert len(check(headers + new, layout, structs)[1]) == 2
    assert len(check(headers + new, layout + "LAST(tandem_new, struct_bytes);\n", structs)[1]) == 1
    assert check(headers + new.replace("struct_bytes", "bytes"), layout + "LAST(tandem_new, bytes);\n", structs)[1] == []


if __name__ == "__main__":
    texts = ("".join(path.read_text() for path in HEADERS), (ROOT / "tests/plugin/abi/layout.c").read_text(),
             "".join((ROOT / f"tests/plugin/abi/{name}.c").read_text() for name in ("structs", "npc_structs")))
    count, wrong = check(*texts)
    for line in wrong:
        print(line)
    if not wrong:
        prove_that_it_can_fail(*texts)
    print(f"{count} structs, {len(wrong)} without a test")
    sys.exit(1 if wrong or count < 20 else 0)
