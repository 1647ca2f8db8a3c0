"""The ctypes layer of the Python package, from the public headers: enums, structs and functions, as C has them.

SPDX-License-Identifier: Apache-2.0
"""
import os.path
import re

from headers import TABLE

HEAD = '''"""Tandem's C API for ctypes. Made by engine_plugin/bindings/generate.py from the headers, which say what everything does.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
from ctypes import CFUNCTYPE, POINTER
from enum import IntEnum

VERSION = %s

'''
PLAIN = {"uint8_t": "c_uint8", "uint32_t": "c_uint32", "int32_t": "c_int32", "uint64_t": "c_uint64", "int64_t": "c_int64",
         "size_t": "c_size_t", "int": "c_int", "float": "c_float", "char": "c_char"}
# Of Vulkan's what the headers name. Handles of 64 bits everywhere, dispatchable ones are pointers.
POINTERS = "VkInstance VkPhysicalDevice VkDevice VkQueue VkCommandBuffer PFN_vkGetInstanceProcAddr".split()
WORDS = "VkDeviceSize VkBuffer VkDeviceMemory VkImage VkImageView VkSemaphore".split()
HALVES = "VkFlags VkFormat VkImageLayout VkStructureType VkImageUsageFlags VkPipelineStageFlags VkAccessFlags".split()


def camel(name):
    return "".join(part.capitalize() for part in name.removeprefix("tandem_").split("_"))


def wrapped(items):
    """As many to a line as go there."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > 110:
            lines.append("")
        lines[-1] += item + " "
    return "".join(f"        {line.rstrip()}\n" for line in lines)


class Types:
    def __init__(self, headers):
        self.headers = headers
        self.defined = {"VkExtent2D"}

    def of(self, p):
        """The ctypes type of a member or a parameter."""
        if p.function:
            return self.callback(p)
        base = self.base(p.type)
        if p.type == "char" and p.pointer:
            text = "ctypes.c_char_p" if p.const else "POINTER(ctypes.c_char)"
            return text if p.pointer == 1 else f"POINTER({text})"
        if p.type == "void" and p.pointer:
            return "ctypes.c_void_p" if p.pointer == 1 else "POINTER(ctypes.c_void_p)"
        if p.pointer and base is None:  # nobody looks into it here
            return "ctypes.c_void_p" if p.pointer == 1 else "POINTER(ctypes.c_void_p)"
        if base is None:
            raise SystemExit(f"generate.py: what is {p.type} for ctypes?")
        for _ in range(p.pointer):
            base = f"POINTER({base})"
        return f"{base} * {p.array}" if p.array else base

    def base(self, name):
        if name in PLAIN:
            return f"ctypes.{PLAIN[name]}"
        if name in POINTERS:
            return "ctypes.c_void_p"
        if name in WORDS or name in self.headers.handles:
            return "ctypes.c_uint64"
        if name in HALVES:
            return "ctypes.c_uint32"
        if name in self.headers.enums:
            return "ctypes.c_int"
        return name if name in self.defined else None

    def callback(self, p):
        from headers import parameters
        takes = ["ctypes.c_void_p" if one.type == "char" and one.name == "text" and "size_t" in p.function else self.of(one)
                 for one in parameters(p.function)]
        returns = {"void": "None", "void *": "ctypes.c_void_p"}.get(p.type, None)
        if returns is None:
            raise SystemExit(f"generate.py: a callback that returns {p.type}?")
        return f"CFUNCTYPE({', '.join([returns, *takes])})"


def enum(name, values):
    """Without what all names begin with; but no name begins with a digit."""
    common = os.path.commonprefix([member for member, _ in values])
    common = common[:common.rfind("_") + 1]
    lines = [f"    {re.sub(r'^(?=[0-9])', '_', member.removeprefix(common))} = {value}" for member, value in values]
    return f"class {camel(name)}(IntEnum):\n" + "\n".join(lines) + "\n\n\n"


def api(headers):
    text = HEAD % (headers.version,)
    text += "\n" + "".join(enum(name, values) for name, values in headers.enums.items())
    text += "class VkExtent2D(ctypes.Structure):\n"
    text += '    _fields_ = [("width", ctypes.c_uint32), ("height", ctypes.c_uint32)]\n\n\n'
    types = Types(headers)
    for name, struct in headers.structs.items():
        if name == TABLE:
            continue
        text += f"class {name}(ctypes.{'Union' if struct.union else 'Structure'}):\n    _fields_ = [\n"
        text += wrapped(f'("{m.name}", {types.of(m)}),' for m in struct.members) + "    ]\n\n\n"
        types.defined.add(name)
    text += "STRUCTS = [\n" + "".join(f"    {name},\n" for name in headers.structs if name != TABLE) + "]\n\n"
    text += "# Views that operations write.\nWRITTEN = {\n"
    for name, views in headers.written.items():
        text += '    "%s": {"%s"},\n' % (name, '", "'.join(views)) if views else ""
    text += "}\n\nFUNCTIONS = {\n"
    for f in headers.functions:
        if f.name == "tandem_get_api":
            continue
        returns = {"tandem_status": "ctypes.c_int", "uint32_t": "ctypes.c_uint32", "const char *": "ctypes.c_char_p"}[f.returns]
        takes = []
        for p in f.parameters:
            takes.append(f"POINTER({types.base(p.type)})" if p.array else types.of(p))
        text += f'    "{f.name}": ({returns}, [{", ".join(takes)}]),\n'
    return text + '''}


def load(path):
    """The library, with its functions' types; those that an older one lacks are missing."""
    library = ctypes.CDLL(path)
    for name, (returns, takes) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = returns, takes
    return library
'''
