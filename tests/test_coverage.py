"""That tests/coverage_lines.py counts what was run: a program of two functions, of which one is called, and one that was never run.

SPDX-License-Identifier: Apache-2.0

usage: test_coverage.py [BUILD_FOLDER]
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import coverage_lines


class Coverage(unittest.TestCase):
    def test_lines(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name).resolve()
            (root / "interop").mkdir()
            (root / "build").mkdir()
            (root / "interop/a.c").write_text("int two(void)\n{\n    return 2;\n}\nint main(int n, char **a)\n{\n    (void)a;\n"
                                              "    if (n > 1)\n        return two();\n    return 0;\n}\n")
            (root / "elsewhere.c").write_text("int three(void)\n{\n    return 3;\n}\n")
            subprocess.run(["gcc", "--coverage", "../interop/a.c", "../elsewhere.c", "-o", "a"], cwd=root / "build", check=True)
            coverage_lines.ROOT = root
            times = coverage_lines.collect(root / "build")
            self.assertEqual({name: set(lines.values()) for name, lines in times.items()}, {"interop/a.c": {0}})
            subprocess.run(["./a"], cwd=root / "build", check=True)
            lines = coverage_lines.collect(root / "build")["interop/a.c"]
            self.assertEqual([line for line, count in sorted(lines.items()) if not count], [1, 3, 9])
            subprocess.run(["./a", "b"], cwd=root / "build", check=False)
            lines = coverage_lines.collect(root / "build")["interop/a.c"]
            self.assertEqual([line for line, count in sorted(lines.items()) if not count], [])
            self.assertEqual(lines[8], 2)


if __name__ == "__main__":
    if not shutil.which("gcov"):
        print("gcov is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
