"""Reads every #include, and of the objects in a build folder what each source calls, and fails where an arrow of the tower
points upward, or between two rooms of one floor; where files call each other in a circle; where what is to know no operation
by name does; where the operating system is asked by others than interop/os/ and our programs; where a file is too long to be
read in one go; and where CONTRIBUTING.md, which tells newcomers all this, names a file that is not there.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Room -> the rooms that it may see besides itself; "api": it may call what the public headers declare, whichever room that is in.
# The first pattern that matches a path decides its room.
GROUND = {"types", "base", "os", "operation"}
SHARING = GROUND | {"vk", "cu", "wire"}
# A family of kernels is a folder; families do not know each other.
FAMILIES = {folder.name for folder in pathlib.Path(__file__).resolve().parent.parent.glob("kernels/*") if folder.is_dir()}
FAMILIES -= {"cpu", "cuda", "model"}
MATH = GROUND | {"math", "cpu", "cuda"} | FAMILIES
PUBLIC = {"types", "public"}
# tandemd's units in the order in which they stand on each other: each is a room, which sees those in front of it.
UNITS = """limits log pass config confine manager costs schedule worker_queue worker_message follower loader
    worker_instances worker launcher
    state quotas descriptors replies worker_requests networks queue_jobs queue_dispatch clients accept
    answers blame worker_process queue metrics http start broker main""".split()
DAEMON = {f"daemon/{unit}" for unit in UNITS}
BELOW_DAEMON = SHARING | MATH | PUBLIC | {"model", "exec", "run", "client"}
# What tests of any floor may look at: all but the programs. (Those of the plugin see what writes stamps for the tool, too.)
BELOW = SHARING | MATH | PUBLIC | {"model", "exec", "run", "npc", "characters", "client", "plugin", "shaders", "integrate", "setup"}
ROOMS = [
    ("interop/include/", "types", set()),
    ("interop/base", "base", {"types"}),
    ("interop/operation", "operation", {"types", "base"}),
    ("interop/struct", "struct", {"types", "base"}),
    ("interop/os/", "os", {"types", "base"}),
    ("interop/vk/", "vk", GROUND | {"shaders"}),
    ("interop/cu/", "cu", GROUND),
    ("interop/wire/", "wire", GROUND),
    ("kernels/cpu/", "cpu", GROUND | {"math"}),
    ("kernels/cuda/", "cuda", GROUND | {"math"} | FAMILIES),
    ("kernels/model/", "model", MATH),
    *((f"kernels/{family}/", family, (MATH - FAMILIES) | {family}) for family in sorted(FAMILIES)),
    ("kernels/", "math", MATH),
    ("engine_plugin/include/", "public", PUBLIC),
    ("engine_plugin/exec/", "exec", SHARING | MATH | PUBLIC | {"model"}),
    ("engine_plugin/run/", "run", PUBLIC),
    *((f"engine_plugin/npc/{face}.", "characters", SHARING | MATH | PUBLIC | {"struct", "model", "exec", "run", "client", "npc"})
      for face in ("characters", "characters_grammar", "characters_parts", "embedder", "language", "reply_tokens", "stage", "stage_parts",
                   "stage_pages", "stage_copy", "stage_save")),  # tandem/npc.h
    ("engine_plugin/npc/", "npc", PUBLIC | {"base", "model", "math"} | {"api"}),
    ("engine_plugin/client/", "client", SHARING | MATH | PUBLIC | {"struct", "model", "exec", "run"}),
    *((f"engine_plugin/daemon/{unit}{end}", f"daemon/{unit}", BELOW_DAEMON | {f"daemon/{below}" for below in UNITS[:at]})
      for at, unit in enumerate(UNITS) for end in (".", "_windows.")),
    ("engine_plugin/plugin/", "plugin", SHARING | MATH | PUBLIC | {"model", "exec", "client", "characters"}),
    ("shaders/", "shaders", set()),
    ("engine_plugin/examples/", "examples", PUBLIC | {"api"}),
    ("engine_plugin/conform/", "conform", PUBLIC),
    ("engine_plugin/python/", "python", set()),
    ("engine_plugin/deploy/", "deploy", set()),  # of the programs, what they say
    ("engine_plugin/bindings/", "bindings", PUBLIC),  # texts of headers, with their includes
    ("engine_plugin/serve/", "serve", PUBLIC | {"base", "os", "tool", "api"}),
    ("demo/integrate.", "integrate", PUBLIC),  # what engine programmers copy, and
    ("engine_plugin/setup/", "setup", PUBLIC | {"base", "os", "integrate"} | {"api"}),
    ("engine_plugin/layer/", "layer", PUBLIC | {"base", "os", "integrate", "shaders"} | {"api"}),
    ("engine_plugin/tool/", "tool",
     SHARING | MATH | PUBLIC | {"integrate", "setup", "model", "exec", "npc", "characters", "client", "plugin", "shaders", "layer"}),
    ("demo/", "demo", PUBLIC | {"base", "os", "model", "shaders", "integrate", "setup"}),
    ("tests/emu/", "emu", MATH),
    ("tests/interop/", "tests of interop", BELOW | {"tests"}),
    ("tests/kernels/", "tests of kernels", BELOW | {"tests", "emu", "tests of interop"}),
    ("tests/plugin/", "tests of plugin", BELOW | {"layer", "tool", "examples", "tests", "tests of interop", "tests of kernels"}),
    ("tests/daemon/", "tests of daemon", BELOW | DAEMON | {"tests", "tests of interop", "tests of kernels", "tests of plugin"}),
    ("tests/bench/", "bench", BELOW | {"tool"}),
    ("tests/tool/", "tests of tool", BELOW | {"tool", "bench", "examples", "tests", "tests of interop", "tests of kernels", "tests of plugin"}),
    ("tests/demo/", "tests of demo", BELOW | {"demo", "tests", "tests of kernels"}),
    ("tests/windows/", "tests of windows", BELOW | {"layer", "tests", "tests of interop", "tests of plugin"}),
    ("tests/", "tests", GROUND),
]
TESTS = {name for prefix, name, _ in ROOMS if prefix.startswith("tests/")}
# What is compiled into none of our libraries and programs, or not always.
UNCOMPILED = {"kernels/cuda/cubins_none.c"}
WINDOWS = re.compile(r"/windows/|_windows\.c$")  # compiled for it alone, by test_windows
# What goes by its arguments alone: it keeps nothing, and calls nothing but its like, and what a compiler makes of a copy.
PURE = {"daemon/costs", "daemon/schedule"}
COPIES = {"memcpy", "memmove", "memset", "memcmp"}
# Whose calls are looked at; but for what has functions by the names of the library's, and of libc's, to stand in front of them.
CALLERS = ("interop/", "kernels/", "engine_plugin/")
IN_FRONT = "engine_plugin/conform/"
# Headers from outside that only these rooms may see. All may see those of ISO C; any other is the operating system's.
OUTSIDE = [
    (re.compile(r"vulkan/"), {"vk", "public", "client", "plugin", "tool", "layer", "integrate", "setup", "demo", "examples", "conform"} |
     TESTS),
    (re.compile(r"(cuda|cudart|cuda_\w+|curand|cublas|nvrtc)\.h|cuda/|mma\.h"), {"cuda"}),
    (re.compile(r"math_constants\.h|type_traits"), {"cuda"} | TESTS),
    (re.compile(r"nvtx3/"), {"exec"}),
    (re.compile(r"immintrin|cpuid"), {"cpu"} | TESTS | FAMILIES),
    (re.compile(r"zstd"), {"cuda"} | TESTS),
    (re.compile(r"jansson"), {"model", "client", "tool", "serve", "integrate", "demo"} | TESTS),
    (re.compile(r"microhttpd"), {"serve"}),
    (re.compile(r"pcre2"), {"npc"}),
    (re.compile(r"SDL"), {"demo"} | TESTS),
    (re.compile(r"imgui|backends/imgui"), {"demo"}),
]
ISO_C = re.compile(r"(assert|c?math|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|setjmp|stdalign|stdarg|stdatomic"
                   r"|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|time|uchar|wchar|wctype)\.h")
SYSTEM = {"os", "tool", "serve", "integrate", "demo", "examples", "bindings", "conform"} | TESTS | DAEMON
OURS = ("interop/", "kernels/", "engine_plugin/", "demo/", "tandem/", "tests/")
# These public headers are for engines without Vulkan.
NO_VULKAN = {"engine_plugin/include/tandem/tandem.h", "interop/include/tandem/types.h"}
SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp", ".comp", ".vert", ".frag", ".glsl", ".py"}
# What moves, binds, checks and sends operations goes by their descriptions: these floors name no view of one, and none. (RUN is
# a network of them, which has no description.)
NAMELESS = ("interop/", "engine_plugin/")
BUT = ("interop/include/", "engine_plugin/include/", "engine_plugin/layer/", "engine_plugin/tool/", "engine_plugin/examples/",
       "engine_plugin/python/", "engine_plugin/conform/")
NAMES = re.compile(r"""(?:->|\.)(?:q|k|v|o|lse)\b|"(?:q|k|v|o|lse)"|\blse\b|\bTD_VIEW_[A-Z]+\b|\btandem_attention\b|\btd_attention_\w+"""
                   r"""|\btd_operation_attention\b|\bTANDEM_OPERATION_(?!H\b|RUN\b)\w+|kernels/attention/attention\.h|\blast_keys\b""")
# Who computes a session's jobs is behind its table, td_backend: of client/, only the files of one of the two ask.
CLIENT = "engine_plugin/client/"
ONE_BACKEND = CLIENT + "remote"
ASKS_BACKEND = re.compile(r"\b(?:s|session)->remote\b|[!=]= *&td_backend_\w+")
# The most lines of a file, by where it is, but for some that have yet to be split: those have no more than here.
MOST_LINES = {"kernels/": 700, "interop/": 1000, "engine_plugin/": 1000, "demo/": 1000, "tests/": 1000}
LONG = {"tests/emu/emu.cpp": 1070}
# What CONTRIBUTING.md names, and its walks: "### An executor: 5 files", then a list of them.
PATH = re.compile(r"(?<![\w/.-])(?:interop|kernels|engine_plugin|demo|shaders|tests)/[\w./-]*")
WALK = re.compile(r"^### (.*): (\d+) files?\n((?:(?!^#).*\n)*)", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def most_lines(path):
    return next((most for floor, most in MOST_LINES.items() if path.startswith(floor)), float("inf"))


def room_of(path):
    """A family's kernels see what those of kernels/cuda see, wherever they are."""
    if path.startswith("kernels/") and path.endswith((".cu", ".cuh")):
        path = "kernels/cuda/"
    for prefix, name, sees in ROOMS:
        if path.startswith(prefix):
            return name, sees | {name}
    return None, set()


def resolve(root, source, quote, name):
    """The path of an included file from the project's root; None if it is from outside or made by the build."""
    folders = [source.parent] if quote == '"' else []
    for folder in folders + [root, root / "interop/include", root / "engine_plugin/include", root / "shaders"]:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None


def check(root):
    """(files seen, includes followed, what is wrong)."""
    root = pathlib.Path(root).resolve()
    files = followed = 0
    wrong = []
    for top in ("interop", "kernels", "engine_plugin", "demo", "shaders", "tests"):
        for source in sorted((root / top).rglob("*")):
            if source.suffix not in SUFFIXES:
                continue
            here = source.relative_to(root).as_posix()
            room, sees = room_of(here)
            if room is None:
                wrong.append(f"{here}: is in no room")
                continue
            files += 1
            text = source.read_text(errors="replace")
            lines, most = text.count("\n"), LONG.get(here, most_lines(here))
            if source.suffix != ".inc" and lines > most:
                wrong.append(f"{here}: has {lines} lines, more than {most}: split it")
            if here.startswith(NAMELESS) and not here.startswith(BUT):
                for number, line in enumerate(text.split("\n"), 1):
                    wrong += [f"{here}:{number}: names {name}, which is an operation's own" for name in NAMES.findall(line)]
            if here.startswith(CLIENT) and not here.startswith(ONE_BACKEND):
                wrong += [f"{here}: has {asks}: what differs by who computes belongs into td_backend"
                          for asks in ASKS_BACKEND.findall(text)]
            for quote, name in INCLUDE.findall(text):
                there = resolve(root, source, quote, name)
                if there is None:
                    if name.startswith(OURS):
                        wrong.append(f"{here}: includes {name}, which is not there")
                    outside = [rooms for pattern, rooms in OUTSIDE if pattern.match(name)]
                    if quote == "<" and not outside and not name.startswith(OURS) and not ISO_C.fullmatch(name):
                        outside = [SYSTEM]
                    wrong += [f"{here}: {room} must not see <{name}>" for rooms in outside
                              if room not in rooms or here in NO_VULKAN]
                    continue
                followed += 1
                target, _ = room_of(there)
                if target not in sees:
                    wrong.append(f"{here}: {room} must not see {target} ({there})")
    return files, followed, wrong


def objects_of(root, build):
    """Source -> its object, of all floors below the demo."""
    found = {}
    for path in sorted(build.rglob("*.dir/**/*.o")):
        folder, _, rest = path.relative_to(build).as_posix().partition("CMakeFiles/")
        source = folder + rest.split("/", 1)[1][:-len(".o")]
        if source.startswith(CALLERS) and not source.startswith(IN_FRONT) and (root / source).is_file():
            found[source] = path
    return found


class References:
    """What objects name of each other, and of what is outside."""

    def __init__(self, objects):
        paths = {path.as_posix(): source for source, path in objects.items()}
        defines, uses = {}, []
        self.edges = {source: {} for source in objects}  # source -> the sources that define what it calls or reads -> names
        self.outside = {source: set() for source in objects}  # source -> names of what is not ours
        self.keepers = set()  # sources with variables
        self.functions = set()
        listed = subprocess.run(["nm", "--format=posix", "--print-file-name", *paths], check=True, capture_output=True,
                                text=True).stdout
        for line in listed.splitlines():
            path, _, symbol = line.partition(": ")
            source, name, kind = paths[path], *symbol.split()[:2]
            if kind == "U":
                uses.append((source, name))
            elif kind.isupper() or kind in "iu":
                defines.setdefault(name, set()).add(source)
                self.functions |= {name} if kind in "TWi" else set()
            self.keepers |= {source} if kind in "bBdDC" else set()
        for source, name in uses:
            self.outside[source] |= set() if name in defines else {name}
            for target in defines.get(name, set()) - {source}:
                self.edges[source].setdefault(target, set()).add(name)


def circles(edges):
    """Sets of sources each of which can be reached from each other one."""
    def reached(source):
        seen, ahead = set(), [source]
        while ahead:
            new = edges[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    behind = {source: reached(source) for source in edges}
    return {frozenset(other for other in behind[source] if source in behind[other]) for source in edges if source in behind[source]}


def check_calls(root, build):
    """(objects seen, references followed, what is wrong)."""
    root = pathlib.Path(root).resolve()
    objects = objects_of(root, pathlib.Path(build).resolve())
    sources = {path.relative_to(root).as_posix() for folder in CALLERS for path in (root / folder).rglob("*.c")}
    sources = {source for source in sources if not source.startswith(IN_FRONT)}
    wrong = [f"{source}: has no object in the build folder; build everything first"
             for source in sorted(sources - objects.keys() - UNCOMPILED) if not WINDOWS.search(source)]
    seen = References(objects)
    for source, targets in sorted(seen.edges.items()):
        room, sees = room_of(source)
        for target, names in sorted(targets.items()):
            hidden = sorted(name for name in names if not ("api" in sees and name.startswith("tandem_")))
            if room_of(target)[0] not in sees and hidden:
                wrong.append(f"{source}: {room} must not call {room_of(target)[0]} ({hidden[0]} of {target})")
            if room in PURE and room_of(target)[0] not in PURE:
                wrong.append(f"{source}: {room} is pure and must not call {min(names)} of {target}")
        if room in PURE:
            wrong += [f"{source}: {room} is pure and must not call {name}"
                      for name in sorted(seen.outside[source] - COPIES) if not name.startswith("_")]
            wrong += [f"{source}: {room} is pure and must not keep anything"] if source in seen.keepers else []
    calls = {source: {target for target, names in targets.items() if names & seen.functions}
             for source, targets in seen.edges.items()}
    # What is called through a table of functions, such as a description, its caller need not know.
    wrong += [f"{min(circle)}: calls in a circle with {', '.join(sorted(circle - {min(circle)}))}" for circle in circles(calls)]
    return len(objects), sum(map(len, seen.edges.values())), wrong


def check_contributing(text, exists):
    """(paths named, what is wrong): each path is there, and a walk has as many files as its heading says."""
    paths = [path.rstrip(".") for path in PATH.findall(text)]
    wrong = [f"CONTRIBUTING.md: names {path}, which is not there" for path in paths if not exists(path)]
    for walk, count, steps in WALK.findall(text):
        files = {path for step in re.findall(r"^\d+[.] .*", steps, re.M) for path in PATH.findall(step)[:1]}
        if len(files) != int(count):
            wrong.append(f"CONTRIBUTING.md: {walk.lower()} names {len(files)} files, not {count}")
    return len(paths), wrong


def prove_that_paths_are_seen():
    """A small text that is right, then one with a path or a file too many after the other."""
    sound = ("See `tests/a.c`.\n### A walk: 2 files\n1. `tests/a.c`: x.\n2. *like* `demo/b.c`: as tests/a.c.\n"
             "### Another: 1 file\n1. `demo/b.c`: y.\n")
    broken = [("See `tests/a.c`", "See `tests/c.c`"), ("`demo/b.c`: y", "`demo/c.c`: y"), ("2 files", "3 files"),
              ("*like* `demo/b.c`", "*like* `tests/a.c`")]
    there = {"tests/a.c", "demo/b.c"}.__contains__
    assert check_contributing(sound, there) == (5, []), check_contributing(sound, there)
    for right, mistake in broken:
        wrong = check_contributing(sound.replace(right, mistake), there)[1]
        assert len(wrong) == 1, (mistake, wrong)
    return len(broken)


def prove_that_it_can_fail():
    """A small tower that stands, then one broken arrow after the other."""
    sound = {
        "interop/include/tandem/types.h": "#include <stdint.h>\n",
        "interop/base.h": '#include "tandem/types.h"\n',
        "interop/os/threads.h": '#include <pthread.h>\n#include "interop/base.h"\n',
        "interop/vk/vk.h": '#include <vulkan/vulkan_core.h>\n#include "interop/base.h"\n',
        "interop/cu/cu.h": '#include "interop/base.h"\n',
        "kernels/plan.h": "",
        "kernels/cpu/cpu.h": '#include "kernels/plan.h"\n#include "interop/os/threads.h"\n',
        "kernels/attention/op.h": '#include "kernels/cpu/cpu.h"\n',
        "kernels/linear/op.h": "",
        "kernels/cuda/x.cuh": '#include "kernels/plan.h"\n#include <cuda_fp16.h>\n',
        "kernels/model/lm.h": '#include "kernels/plan.h"\n',
        "engine_plugin/include/tandem/tandem.h": '#include "tandem/types.h"\n',
        "engine_plugin/exec/exec.h": '#include "interop/cu/cu.h"\n#include "kernels/plan.h"\n',
        "engine_plugin/run/life.h": '#include "tandem/tandem.h"\n',
        "engine_plugin/npc/npc.h": '#include "kernels/model/lm.h"\n#include <pcre2.h>\n',
        "engine_plugin/client/client.h": '#include "engine_plugin/run/life.h"\n#include "engine_plugin/exec/exec.h"\n#include "tandem/tandem.h"\n',
        "engine_plugin/plugin/plugin.c": '#include "engine_plugin/client/client.h"\n',
        "engine_plugin/daemon/log.h": "",
        "engine_plugin/daemon/schedule.h": "",
        "engine_plugin/daemon/state.h": '#include "engine_plugin/daemon/schedule.h"\n#include "engine_plugin/client/client.h"\n',
        "engine_plugin/daemon/main.c": '#include "engine_plugin/daemon/state.h"\n#include "engine_plugin/daemon/log.h"\n',
        "engine_plugin/tool/tool.h": '#include "engine_plugin/client/client.h"\nstruct tandem_attention;\n',
        "demo/integrate.h": '#include <tandem/tandem.h>\n',
        "demo/demo.h": '#include "demo/integrate.h"\n',
        "tests/cases.h": "",
        "tests/interop/rig.h": '#include "tests/cases.h"\n#include "interop/vk/vk.h"\n#include <vulkan/vulkan.h>\n',
        "tests/plugin/test_a.c": '#include "tests/interop/rig.h"\n#include "engine_plugin/client/client.h"\n',
        "tests/daemon/test_b.c": '#include "engine_plugin/daemon/state.h"\n',
        "tests/demo/test_c.c": '#include "demo/demo.h"\n#include "kernels/plan.h"\n',
        "tests/tool/test_a.py": "",
    }
    broken = [
        ("interop/base.h", '#include "kernels/plan.h"'),
        ("interop/base.h", '#include "vk/vk.h"'),
        ("interop/base.h", '#include "interop/os/threads.h"'),
        ("interop/os/threads.h", '#include "interop/vk/vk.h"'),
        ("interop/base.h", "#include <unistd.h>"),
        ("interop/vk/vk.h", "#include <fcntl.h>"),
        ("kernels/model/lm.h", "#include <sys/mman.h>"),
        ("engine_plugin/client/client.h", "#include <pthread.h>"),
        ("engine_plugin/include/tandem/tandem.h", "#include <sys/types.h>"),
        ("interop/vk/vk.h", '#include "interop/cu/cu.h"'),
        ("interop/cu/cu.h", "#include <vulkan/vulkan.h>"),
        ("interop/cu/cu.h", "#include <cuda.h>"),
        ("kernels/plan.h", '#include "interop/vk/vk.h"'),
        ("kernels/plan.h", '#  include "kernels/model/lm.h"'),
        ("kernels/cpu/cpu.h", '#include "../cuda/x.cuh"'),
        ("kernels/cpu/cpu.h", '#include "tandem/tandem.h"'),
        ("kernels/cpu/cpu.h", '#include "kernels/attention/op.h"'),
        ("kernels/attention/op.h", '#include "kernels/model/lm.h"'),
        ("kernels/attention/op.h", "#include <jansson.h>"),
        ("kernels/attention/op.h", '#include "kernels/linear/op.h"'),
        ("kernels/model/lm.h", '#include "engine_plugin/exec/exec.h"'),
        ("kernels/model/lm.h", "#include <pcre2.h>"),
        ("engine_plugin/npc/npc.h", '#include "engine_plugin/exec/exec.h"'),
        ("engine_plugin/include/tandem/tandem.h", '#include "interop/base.h"'),
        ("engine_plugin/include/tandem/tandem.h", "#include <vulkan/vulkan_core.h>"),
        ("engine_plugin/exec/exec.h", '#include "engine_plugin/client/client.h"'),
        ("engine_plugin/run/life.h", '#include "engine_plugin/exec/exec.h"'),
        ("engine_plugin/client/client.h", '#include "engine_plugin/daemon/state.h"'),
        ("engine_plugin/plugin/plugin.c", '#include "engine_plugin/daemon/state.h"'),
        ("engine_plugin/client/client.h", '#include "demo/demo.h"'),
        ("engine_plugin/client/client.h", '#include "engine_plugin/tool/tool.h"'),
        ("engine_plugin/tool/tool.h", '#include "demo/demo.h"'),
        ("demo/demo.h", '#include "engine_plugin/client/client.h"'),
        ("demo/demo.h", '#include "engine_plugin/tool/tool.h"'),
        ("demo/integrate.h", '#include "interop/base.h"'),
        ("engine_plugin/client/client.h", '#include "demo/gone.h"'),
        ("kernels/plan.h", "#include <tandem/gone.h>"),
        ("engine_plugin/client/client.h", "int f(struct op *op) { return op->q; }"),
        ("engine_plugin/exec/exec.h", 'static const char *const name = "lse";'),
        ("engine_plugin/daemon/state.h", "int cost(const tandem_attention *op);"),
        ("engine_plugin/daemon/log.h", '#include "engine_plugin/daemon/state.h"'),
        ("engine_plugin/daemon/schedule.h", '#include "state.h"'),
        ("interop/vk/vk.h", "enum { FIRST = TD_VIEW_Q };"),
        ("engine_plugin/client/client.h", "int f(tandem_session *s) { return s->remote != 0; }"),
        ("engine_plugin/client/client.h", "int f(tandem_session *s) { return s->ops == &td_backend_remote; }"),
        ("engine_plugin/client/client.h", "\n" * 1000),
        ("interop/cu/cu.h", "/* */\n" * 1000),
        ("kernels/plan.h", "\n" * 700),
        ("tests/plugin/test_a.c", "\n" * 1000),
        ("tests/tool/test_a.py", "\n" * 1000),
        ("tests/cases.h", '#include "tests/interop/rig.h"'),
        ("tests/interop/rig.h", '#include "tests/plugin/test_a.c"'),
        ("tests/plugin/test_a.c", '#include "engine_plugin/daemon/state.h"'),
        ("tests/plugin/test_a.c", '#include "demo/demo.h"'),
        ("tests/demo/test_c.c", '#include "engine_plugin/tool/tool.h"'),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in sound.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        assert check(root)[2] == [], check(root)[2]
        for name in ("engine_plugin/client/client.h", "kernels/plan.h"):  # just short enough
            (root / name).write_text(sound[name] + "\n" * (most_lines(name) - sound[name].count("\n")))
            assert check(root)[2] == [], check(root)[2]
            (root / name).write_text(sound[name])
        for name, line in broken:
            (root / name).write_text(sound[name] + line + "\n")
            wrong = check(root)[2]
            assert len(wrong) == 1 and wrong[0].startswith(name), (name, line, wrong)
            (root / name).write_text(sound[name])
    return len(broken)


def prove_that_calls_are_seen():
    """Objects of a small tower that stands, then one with a call too many after the other."""
    def define(name, *calls):
        declared = "".join(f"int {call}(void);\n" for call in calls)
        return declared + f"int {name}(void) {{ return 0{''.join(f' + {call}()' for call in calls)}; }}\n"

    sound = {
        "interop/base.c": define("base"),
        "interop/wire/ring.c": define("ring", "base"),
        "interop/wire/conn.c": define("conn", "ring", "base"),
        "kernels/plan.c": define("plan", "base"),
        "kernels/operation.c": "int linear(void);\n" + define("find", "plan") + "int (*const described)(void) = linear;\n",
        "kernels/linear/op.c": ("extern int (*const described)(void);\nint through(void) { return described(); }\n"
                                + define("linear", "plan")),
        "engine_plugin/exec/stream.c": define("stream", "plan", "conn", "wait_in_vain"), # of a library from outside
        "engine_plugin/client/jobs.c": define("jobs", "stream"),
        "engine_plugin/client/wait.c": define("wait_for", "jobs"),
        "engine_plugin/client/session.c": define("tandem_submit", "jobs"),
        "engine_plugin/npc/speaker.c": define("speak", "tandem_submit"),
        "engine_plugin/daemon/log.c": define("say", "base"),
        "engine_plugin/daemon/costs.c": ("#include <string.h>\n" + define("cost")
                                         + "void copy(char *to, const char *from, size_t n) { memcpy(to, from, n); }\n"),
        "engine_plugin/daemon/schedule.c": define("decide", "cost"),
        "engine_plugin/daemon/quotas.c": define("fits"),
        "engine_plugin/daemon/clients.c": define("clients", "say", "fits", "jobs"),
        "engine_plugin/daemon/broker.c": define("broker", "clients", "say"),
    }
    broken = [
        ("interop/base.c", "ring", "base must not call wire"),
        ("kernels/plan.c", "jobs", "math must not call client"),
        ("kernels/linear/op.c", "stream", "linear must not call exec"),
        ("engine_plugin/exec/stream.c", "wait_for", "exec must not call client"),
        ("engine_plugin/exec/stream.c", "tandem_submit", "exec must not call client"),
        ("engine_plugin/npc/speaker.c", "jobs", "npc must not call client"),
        ("engine_plugin/client/jobs.c", "clients", "client must not call daemon/clients"),
        ("engine_plugin/daemon/log.c", "fits", "daemon/log must not call daemon/quotas"),
        ("engine_plugin/daemon/quotas.c", "broker", "daemon/quotas must not call daemon/broker"),
        ("engine_plugin/daemon/schedule.c", "say", "daemon/schedule is pure and must not call say"),
        ("engine_plugin/daemon/schedule.c", "clock_gettime", "daemon/schedule is pure and must not call clock_gettime"),
        ("interop/wire/ring.c", "conn", "in a circle with interop/wire/ring.c"),
        ("kernels/linear/op.c", "find", "in a circle with kernels/operation.c"), # each arrow may be there, but not both
        ("engine_plugin/client/jobs.c", "wait_for", "in a circle with engine_plugin/client/wait.c"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        objects = root / "build/CMakeFiles/all.dir"

        def build(name, text):
            for path in (root / name, objects / name):
                path.parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
            subprocess.run(["cc", "-c", "-o", objects / (name + ".o"), root / name], check=True)

        for name, text in sound.items():
            build(name, text)
        assert check_calls(root, root / "build")[2] == [], check_calls(root, root / "build")[2]
        for name, call, expected in broken:
            build(name, sound[name] + define("more", call))
            wrong = check_calls(root, root / "build")[2]
            assert any(expected in line for line in wrong), (name, call, wrong)
            build(name, sound[name])
        costs = "engine_plugin/daemon/costs.c"
        build(costs, sound[costs] + "int next(void) { static int last; return ++last; }\n")
        assert [line[-8:] for line in check_calls(root, root / "build")[2]] == ["anything"]
        build(costs, sound[costs])
        (objects / "interop/base.c.o").unlink()
        assert [line[:15] for line in check_calls(root, root / "build")[2]] == ["interop/base.c:"]
    return len(broken) + 2


if __name__ == "__main__":
    top = pathlib.Path(__file__).resolve().parent.parent
    caught = prove_that_it_can_fail() + prove_that_calls_are_seen() + prove_that_paths_are_seen()
    files, followed, wrong = check(top)
    objects, calls, wrong_calls = check_calls(top, sys.argv[1])
    paths, wrong_paths = check_contributing((top / "CONTRIBUTING.md").read_text(), lambda path: (top / path).exists())
    wrong += wrong_calls + wrong_paths
    for line in wrong:
        print(line)
    print(f"{files} files, {followed} includes, {objects} objects, {calls} calls from one to another, {paths} paths, {len(wrong)} wrong; "
          f"{caught} of {caught} planted faults found")
    sys.exit(1 if wrong or files < 10 or followed < 10 or objects < 10 or calls < 10 or paths < 10 else 0)
