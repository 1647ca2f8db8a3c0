"""`tandem conform`: of each rule a program that breaks it is caught, and one that keeps it is not; nor are the examples, nor a
program that opens the library at run time; and what a program itself says and returns stays as it is.

SPDX-License-Identifier: Apache-2.0

usage: test_conform.py BUILD_FOLDER [unittest arguments]
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
BUILD = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "engine_plugin/examples"
FOLDER = tempfile.TemporaryDirectory()
HERE = pathlib.Path(FOLDER.name)
RULES = ["fd-leak", "double-close", "ownership", "unbounded-wait", "wrong-stage", "reuse", "stale", "lost-point"]
# What each case of conform/cases.c breaks, and words of what is said.
CASES = {
    "fd-leak": ["which tandem_point_fd() gave to the caller, is open at the end"],
    "double-close": ["is closed already"],
    "unbounded-wait": ["tandem_wait() waits without a bound"],
    "stale": ["the host reads a result at 0x"],
    "ownership": ["is acquired, but was not released before"],
    "ownership-again": ["which the engine has acquired: tandem_record_release() is missing", "not released since it was acquired last"],
    "wrong-stage": ["tandem_record_release(): access has TRANSFER_WRITE, but stage 0x800"],
    "wrong-stage-wait": ["at stages 0x800, but acquires it for 0x1000"],
    "reuse": ["is acquired, but the job on it is not over"],
    "reuse-seen": ["is acquired, but the job on it is not over"],
    "lost-point": ["a submit waits for 2 of the session's timeline"],
}


def conform(*words, **env):
    """(exit status, broken rules as (rule, text), all of stderr, stdout)"""
    ran = subprocess.run([BUILD / "tandem", "conform", *words], capture_output=True, text=True, timeout=120, cwd=HERE,
                         env={**os.environ, **env})
    broken = re.findall(r"^tandem conform: ([a-z-]+): (.*)$", ran.stderr, re.M)
    return ran.returncode, [one for one in broken if one[0] in RULES], ran.stderr, ran.stdout


def build(source, name):
    program = HERE / name
    (HERE / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-I", ROOT / "interop/include", "-I", ROOT / "engine_plugin/include", "-I", EXAMPLES, HERE / f"{name}.c",
                    "-o", program, "-L", BUILD, "-ltandem", "-lvulkan", f"-Wl,-rpath,{BUILD}"], check=True)
    return program


class Rules(unittest.TestCase):
    def test_each_has_a_program(self):
        self.assertEqual({next(rule for rule in RULES if case.startswith(rule)) for case in CASES}, set(RULES))
        source = (ROOT / "tests/tool/conform/cases.c").read_text()
        self.assertEqual(set(re.findall(r'\{"([a-z-]+)", \w+\}', source)), set(CASES))
        report = (ROOT / "engine_plugin/conform/report.c").read_text()
        self.assertEqual(set(re.findall(r'\[CONFORM_\w+\] = "([a-z-]+)"', report)), set(RULES))
        shown = subprocess.run([BUILD / "tandem", "help", "conform"], capture_output=True, text=True).stdout
        for rule in RULES:
            self.assertIn(f"\n  {rule} ", shown)

    def test_bad_and_good(self):
        for case, words in CASES.items():
            rule = next(rule for rule in RULES if case.startswith(rule))
            status, broken, said, _ = conform("--", BUILD / "conform_cases", case, "bad")
            self.assertEqual((status, {one[0] for one in broken}, len(broken)), (1, {rule}, len(words)), said)
            for text, (_, told) in zip(words, broken):
                self.assertIn(text, told)
            status, broken, said, _ = conform("--", BUILD / "conform_cases", case, "good")
            self.assertEqual((status, broken), (0, []), said)

    def test_images(self):
        """Packing and unpacking, by the example with a line less, or with more."""
        source = (EXAMPLES / "vulkan_image.c").read_text()
        release = re.search(r"    check\(tandem_record_release\(f->session, commands, s->x,.*?;\n", source, re.S)[0]
        acquire = re.search(r"    check\(tandem_record_acquire\(f->session, commands, s->y,.*?;\n", source, re.S)[0]
        submit = '    check(tandem_submit(f->session, &job, &s->ticket), "tandem_submit");\n'
        late = ("    tandem_job_report r = TANDEM_INIT(tandem_job_report);\n    job.deadline_ns = 1;\n" + submit +
                '    check(tandem_wait(f->session, s->ticket, 10000000000u, &r), "tandem_wait");\n'
                '    check(r.state != TANDEM_JOB_STALE, "being late");\n')
        for name, before, after, rule, text in (
            ("unreleased", release, "", "ownership", "into which images were packed: tandem_record_release() is missing"),
            ("unacquired", acquire, "", "ownership", "is unpacked, but was released and not acquired since"),
            ("late", submit, late, "stale", "is unpacked, but the job that should have written it ended without a result"),
        ):
            self.assertIn(before, source)
            status, broken, said, _ = conform("--", build(source.replace(before, after), name))
            self.assertEqual(status, 1, said)
            self.assertTrue(any(one[0] == rule and text in one[1] for one in broken), said)

    def test_examples_are_good(self):
        for name in ("hello", "hello_cpp", "vulkan_buffer", "vulkan_image", "cuda_stream"):
            status, broken, said, out = conform("--", BUILD / "examples" / name)
            self.assertEqual((status, broken), (0, []), said)
            self.assertTrue(out)


class Programs(unittest.TestCase):
    def test_opened_at_run_time(self):
        """By the table, and function by function as ctypes does."""
        library = BUILD / "libtandem.so.0"
        status, broken, said, out = conform("--", BUILD / "examples/dlopen", library)
        self.assertEqual((status, broken), (0, []), said)
        self.assertIn("a session on", out)
        source = (EXAMPLES / "dlopen.c").read_text()
        last = "    return api->session_destroy(&session) != TANDEM_OK;\n"
        self.assertIn(last, source)
        program = build(source.replace(last, "    api->point_wait(session, (tandem_point){0}, UINT64_MAX);\n" + last), "opens")
        status, broken, said, _ = conform("--", program, library)
        self.assertEqual((status, [one[0] for one in broken]), (1, ["unbounded-wait"]), said)
        python = "import tandem\ns = tandem.Session()\napi = tandem.api\napi.C.tandem_point_wait(s.handle, api.tandem_point(), 2**64 - 1)\n"
        status, broken, said, _ = conform("--", sys.executable, "-B", "-c", python, PYTHONPATH=str(ROOT / "engine_plugin/python"),
                                          TANDEM_LIBRARY=str(library))
        self.assertEqual((status, [one[0] for one in broken]), (1, ["unbounded-wait"]), said)

    def test_what_is_the_programs_own(self):
        self.assertEqual(conform("--", "sh", "-c", "echo out; exit 7")[::3], (7, "out\n"))
        status, _, said, _ = conform("--", "sh", "-c", "kill -TERM $$")
        self.assertEqual(status, 128 + 15)
        self.assertIn("was ended by signal 15: what it left open was not looked at", said)
        # Its own faults are its own, also where pages are watched.
        source, last = (ROOT / "tests/tool/conform/cases.c").read_text(), '    printf("%f\\n", ((volatile float *)host)[ROWS]);'
        self.assertIn(last, source)
        source = source.replace(last, "    *(volatile int *)8 = 1;\n" + last)
        program = build(source.replace('"engine_plugin/examples/vulkan_device.h"', '"vulkan_device.h"'), "faults")
        self.assertEqual(conform("--", program, "stale", "good")[0], 128 + 11)

    def test_report(self):
        report = HERE / "report"
        status, broken, _, _ = conform("--report", report, "--", BUILD / "conform_cases", "fd-leak", "bad")
        self.assertEqual((status, report.read_text().count("\n")), (1, 1))
        self.assertIn("fd-leak", report.read_text())
        self.assertEqual(conform("--report", report, "--", "true")[0], 0)
        self.assertEqual(report.read_text(), "")

    def test_command_line(self):
        for words, status, text in (
            ((), 2, "behind -- a program is missing"),
            (("--",), 2, "behind -- a program is missing"),
            (("true",), 2, '"true"'),
            (("--speed", "3", "--", "true"), 2, "--speed"),
            (("--", "/none/program"), 1, "/none/program: No such file"),
            (("--report", "/none/report", "--", "true"), 1, '--report "/none/report"'),
        ):
            code, _, said, _ = conform(*words)
            self.assertEqual(code, status, said)
            self.assertIn(text, said)
            self.assertEqual(said.count("\n"), 1, said)


if __name__ == "__main__":
    if not (BUILD / "libtandem_conform.so").exists() or not (BUILD / "conform_cases").exists():
        sys.exit("test_conform.py: libtandem_conform.so or conform_cases was not built")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
