"""Compiles what is above interop/os/ in the library as if there were no operating system: as C17 without extensions, and with no
headers but those of ISO C, of the compiler, of the libraries that it is made with, and of interop/os/. All others cannot be found.

SPDX-License-Identifier: Apache-2.0

usage: test_portable.py BUILD_FOLDER

Threads are POSIX's, see interop/os/thread.h: of those there is what MinGW's winpthreads has as well, and no more of it than the
library needs. Nothing is linked or run.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BELOW = "interop/os/"
ISO_C = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp stdalign stdarg stdatomic stdbool stddef
    stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype""".split()
OF_COMPILER = ["immintrin.h", "cpuid.h"]  # where it is one for x86
LIBRARIES = ["jansson.h", "pcre2.h", "vulkan/vulkan_core.h", "zstd.h", "zstd_errors.h"]
PTHREAD = """typedef struct pthread_t { long of; } *pthread_t;
typedef struct pthread_mutex_t { long of; } pthread_mutex_t;
typedef struct pthread_cond_t { long of; } pthread_cond_t;
#define PTHREAD_MUTEX_INITIALIZER {0}
pthread_t pthread_self(void);
int pthread_equal(pthread_t a, pthread_t b);
int pthread_join(pthread_t thread, void **result);
int pthread_detach(pthread_t thread);
int pthread_mutex_init(pthread_mutex_t *mutex, const void *none);
int pthread_mutex_destroy(pthread_mutex_t *mutex);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
int pthread_cond_destroy(pthread_cond_t *cond);
int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int pthread_cond_signal(pthread_cond_t *cond);
int pthread_cond_broadcast(pthread_cond_t *cond);
"""
C17 = ["-std=c17", "-Werror=implicit-function-declaration", "-fsyntax-only"]


def library(build):
    """[(source, compiler, its -I, -D and -m)] of what the build makes the library of."""
    commands = json.loads((build / "compile_commands.json").read_text())
    sources = []
    for entry in commands:
        words = shlex.split(entry["command"])
        if any("tandem_objects.dir/" in word for word in words):
            compiler = next(word for word in words if "ccache" not in word)
            sources.append((pathlib.Path(entry["file"]).resolve().relative_to(ROOT).as_posix(), compiler,
                            [word for word in words if re.match(r"-[IDm]", word)]))
    return sources


def search_folders(compiler):
    told = subprocess.run([compiler, "-xc", "-E", "-v", "/dev/null"], capture_output=True, text=True, check=True).stderr
    listed = told.split("#include <...> search starts here:")[1].split("End of search list")[0]
    return [pathlib.Path(line.strip()) for line in listed.strip().split("\n")]


def allowed_headers(compiler, folder):
    """Links to the headers that may be found, each under the name that it has for #include: the arguments for the compiler."""
    text = "#define PCRE2_CODE_UNIT_WIDTH 8\n" + "".join(f"#include <{name}.h>\n" for name in ISO_C)
    text += "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in OF_COMPILER)
    text += "".join(f"#include <{name}>\n" for name in LIBRARIES)
    rule = subprocess.run([compiler, "-std=c17", "-M", "-xc", "-"], input=text, capture_output=True, text=True, check=True).stdout
    searched = search_folders(compiler)
    for name in rule.replace("\\\n", " ").split()[1:]:
        path = pathlib.Path(name)
        at = next((i for i, one in enumerate(searched) if path.is_relative_to(one)), None)
        if at is None:
            continue  # <stdin>
        link = folder / str(at) / path.relative_to(searched[at])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (folder / "pthread.h").write_text(PTHREAD)
    folders = [folder / str(i) for i in range(len(searched))] + [folder]
    return ["-nostdinc", *(word for one in folders for word in ("-isystem", str(one)))]


def compile_one(compiler, arguments, source, text=None):
    """What the compiler says against it, or nothing."""
    ran = subprocess.run([compiler, *C17, *arguments, "-xc", str(ROOT / source) if text is None else "-"],
                         input=text, capture_output=True, text=True, cwd=ROOT)
    return [line for line in ran.stderr.split("\n") if "error" in line] or [f"code {ran.returncode}"] if ran.returncode else []


def prove_that_it_can_fail(compiler, arguments):
    """Each of these is refused behind the client's own headers, which are not."""
    headers = '#include "engine_plugin/client/remote.h"\n#include "interop/os/file.h"\n'
    planted = [
        "#include <sys/mman.h>",
        "#include <unistd.h>",
        "#include <fcntl.h>",
        "#include <poll.h>",
        "#include <signal.h>",
        "#include <linux/futex.h>",
        "#define _GNU_SOURCE\n#include <dlfcn.h>",
        "int f(void) { return getpid(); }",
        "int f(int fd) { return close(fd); }",
        "int f(char *a) { return strdup(a) != 0; }",
        "void f(const struct timespec *t) { nanosleep(t, 0); }",
        "int f(pthread_t t) { return pthread_setaffinity_np(t, 0, 0); }",
    ]
    sound = "#include <stdio.h>\nint f(pthread_mutex_t *m) { return printf(\"%d\", pthread_mutex_lock(m)); }"
    assert compile_one(compiler, arguments, "", headers + sound) == [], compile_one(compiler, arguments, "", headers + sound)
    for fault in planted:
        assert compile_one(compiler, arguments, "", headers + fault + "\n"), fault
    return len(planted)


def main():
    sources = library(pathlib.Path(sys.argv[1]))
    assert any(source.startswith(BELOW) for source, *_ in sources)
    sources = [one for one in sources if not one[0].startswith(BELOW)]
    with tempfile.TemporaryDirectory() as folder:
        compiler, own = sources[0][1], sources[0][2]
        only = allowed_headers(compiler, pathlib.Path(folder))
        caught = prove_that_it_can_fail(compiler, only + own)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(lambda one: compile_one(one[1], only + one[2], one[0]), sources))
    wrong = [line for lines in said for line in lines]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"test_portable: {len(sources)} files of the library, {sum(map(bool, said))} need the operating system; "
          f"{caught} of {caught} planted faults found")
    sys.exit(1 if wrong or len(sources) < 50 else 0)


if __name__ == "__main__":
    main()
