"""The documents say what the benches' JSON say, and the check of that finds what is otherwise.

SPDX-License-Identifier: Apache-2.0

usage: test_figures.py BUILD_FOLDER [unittest arguments]
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import claims
import limits

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLES = ROOT / "tests/bench/tables.py"


def tables(root, *arguments):
    return limits.run([sys.executable, TABLES, "--root", root, *arguments], capture_output=True, text=True, seconds=60)


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = pathlib.Path(folder.name)
        for name in ("README.md", "MEASURED.md", "demo/README.md", "engine_plugin/MODELS.md", "engine_plugin/INTEGRATION.md", "engine_plugin/OPERATIONS.md", "kernels/attention/NOTES.md", "kernels/cache/NOTES.md",
                     "kernels/linear/NOTES.md", "demo/assets/README.md"):
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.copy / name)
        shutil.copytree(ROOT / "tests/measured", self.copy / "tests/measured")
        self.document = self.copy / "MEASURED.md"

    def replace(self, before, after):
        text = self.document.read_text()
        self.assertEqual(text.count(before), 1, before)
        self.document.write_text(text.replace(before, after))

    def fails(self, *words):
        done = tables(self.copy, "--check")
        self.assertEqual(done.returncode, 1, done.stdout)
        for word in words:
            self.assertIn(word, done.stdout)

    def test_documents(self):
        done = tables(ROOT, "--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_each_measurement_is_cited(self):
        """tests/measured has no file that no document's figure comes from."""
        self.assertEqual({path.name for path in (ROOT / "tests/measured").iterdir()}, set(claims.FILES.values()))
        for name in claims.FILES:
            self.assertTrue(any(re.search(rf"{{[^}}]*\b{name}\b", template) for _, template in claims.CLAIMS), name)

    def test_wrong_figure(self):
        original = self.document.read_text()
        figure = re.search(r"same times within ([\d.]+) %", original).group(1)
        self.replace(f"same times within {figure} %", "same times within 99 %")
        self.fails("MEASURED.md:", f"99 where the JSON says {figure}")
        self.assertEqual(tables(self.copy, "--write").returncode, 0)
        self.assertEqual(self.document.read_text(), original)

    def test_figure_without_json(self):
        self.replace("## Attention", "It starts in 7.5 ms.\n\n## Attention")
        self.fails("7.5 is of no JSON")

    def test_shapes_are_figures_elsewhere(self):
        self.replace("## Attention", "At d 512, batch 7, it has 77 heads and 999 tokens.\n\n## Attention")
        self.fails(*(f"{figure} is of no JSON" for figure in (512, 7, 77, 999)))

    def test_sentence_that_is_gone(self):
        self.replace("Three in flight,\n`inline` has", "With three,\n`inline` will have")
        self.fails("stands 0 times, not once", "of no JSON")

    def test_new_measurement(self):
        path = self.copy / "tests/measured/h200-demo.json"
        report = json.loads(path.read_text())
        frame = report["frame"]
        before = f"{frame['p50_ms']:.2f}"
        frame["p50_ms"] = 7.25
        path.write_text(json.dumps(report))
        self.fails(f"{before} where the JSON says 7.25")
        tables(self.copy, "--write")
        self.assertIn(f"960x540, `inline`: 7.25 ms ({frame['p99_ms']:.2f})", self.document.read_text())

    def test_measurement_that_is_gone(self):
        path = self.copy / "tests/measured/h200-demo.json"
        report = json.loads(path.read_text())
        del report["psnr"]
        path.write_text(json.dumps(report))
        self.fails("no figure in the JSON for | input, best box filter")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
