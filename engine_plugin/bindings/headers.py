"""Reads the public headers: their enums, structs and functions, for what is generated from them.

SPDX-License-Identifier: Apache-2.0

They are written in one form, which this holds them to: what is not understood is an error, never left out.
"""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADERS = [ROOT / "interop/include/tandem/types.h",
           *(ROOT / f"engine_plugin/include/tandem/{name}.h" for name in ("tandem", "vulkan", "npc", "plugin"))]
OPERANDS, VIEW = "tandem_operands", "tandem_view"  # what operations are about, and their tensors
TABLE = "tandem_api"  # of functions, which programs that open the library at run time use


@dataclasses.dataclass
class Member:
    """Of a struct, or a function's parameter: `type` without its stars, `pointer` so many of them."""
    name: str
    type: str
    const: bool = False
    pointer: int = 0
    array: str = ""      # what is in [], or none
    function: str = ""   # what a pointer to a function takes, as text


@dataclasses.dataclass
class Struct:
    name: str
    members: list
    union: bool = False

    @property
    def sized(self):
        return bool(self.members) and self.members[0].name == "struct_bytes"


@dataclasses.dataclass
class Function:
    name: str
    returns: str
    parameters: list
    comment: str
    header: str


@dataclasses.dataclass
class Headers:
    enums: dict       # name -> [(name, value)]
    handles: list     # typedef uint64_t
    opaque: list      # structs that nobody looks into
    structs: dict
    functions: list
    version: tuple
    written: dict     # operation -> the views of its struct that it writes


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def declarator(text):
    """`const char *name[4]` as a Member."""
    text = " ".join(text.split())
    function = re.fullmatch(r"(.+?)\(\*(\w+)\)\((.*)\)", text)
    if function:
        return Member(function[2], function[1].strip(), pointer=1, function=function[3])
    found = re.fullmatch(r"(const )?(?:struct )?(\w+) ?((?:\*(?: ?const)? ?)*)(\w+)(?:\[(\w+)\])?", text)
    if not found:
        raise SystemExit(f"generate.py: what is '{text}'?")
    return Member(found[4], found[2], bool(found[1]), found[3].count("*"), found[5] or "")


def members(text):
    """Those of a struct's body; each declares one or more names."""
    found = []
    for line in without_comments(text).split(";"):
        line = " ".join(line.split())
        if not line:
            continue
        if "(" in line:
            found.append(declarator(line))
            continue
        first, *others = line.split(",")
        found.append(declarator(first))
        of = re.fullmatch(r"((?:const )?(?:struct )?\w+) ?.*", first)[1]
        found += [declarator(f"{of} {other.strip()}") for other in others]
    return found


def parameters(text):
    text = " ".join(text.split())
    return [] if text == "void" else [declarator(one) for one in text.split(",")]


def written(text):
    """Those views of a struct that its operation writes. Comments behind them say so: `written`, amid commas, colons and
    semicolons, or `o is written` where others are declared beside it."""
    found = []
    for names, comment in re.findall(rf"^ *{VIEW} ([^;]*);[ \t]*(?:/\*((?:(?!\*/).)*)\*/)?", text, re.S | re.M):
        said = len(found)
        for clause in re.split(r"[,:;]", comment):
            one = re.fullmatch(r"(\w+) is written", " ".join(clause.split()))
            found += [one[1]] if one else re.split(r",\s*", names) if clause.strip() == "written" else []
        if len(found) == said and re.search(r"\bwritten\b", comment):
            raise SystemExit(f"generate.py: which of '{names}' is written by '{comment}'?")
    return found


def read():
    texts = {path.name: path.read_text() for path in HEADERS}
    commented = "\n".join(texts.values())
    whole = without_comments(commented)
    enums = {}
    for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\} \1;", whole, re.S):
        enums[name] = [(member, int(value, 0)) for member, value in re.findall(r"(\w+) = (-?\w+)", body)]
        if len(enums[name]) != body.count("="):
            raise SystemExit(f"generate.py: a value of {name} is no number")
    structs = {}
    for kind, name, body in re.findall(r"^(?:typedef )?(struct|union) (\w+) \{\n(.*?)^\}", whole, re.S | re.M):
        structs[name] = Struct(name, members(body), kind == "union")
    functions = []
    for header, text in texts.items():
        found = re.findall(r"(?:/\*((?:(?!\*/).)*)\*/\s*)?^TANDEM_API ([\w *]+?)(\w+)\(([^;]*)\);", text, re.S | re.M)
        functions += [Function(name, " ".join(returns.split()), parameters(taken), comment, header)
                      for comment, returns, name, taken in found]
        if len(found) != len(re.findall(r"^TANDEM_API ", text, re.M)):
            raise SystemExit(f"generate.py: not all functions of {header} are understood")
    writes = {m.name: written(re.search(rf"^typedef struct {m.type} \{{\n(.*?)^\}}", commented, re.S | re.M)[1])
              for m in structs[OPERANDS].members if m.type in structs}
    opaque = [name for name in re.findall(r"typedef struct (\w+) \1;", whole) if name not in structs]
    version = tuple(int(re.search(rf"#define TANDEM_VERSION_{part} (\d+)", whole)[1]) for part in ("MAJOR", "MINOR", "PATCH"))
    return Headers(enums, re.findall(r"typedef uint64_t (\w+);", whole), opaque, structs, functions, version, writes)


if __name__ == "__main__":
    h = read()
    print(len(h.enums), "enums,", len(h.structs), "structs,", len(h.functions), "functions,", h.handles, h.opaque, h.version)
