"""The documents become pages whose links all lead somewhere, with the benches as plots whose figures are those of the JSON; what is
planted in them as a mistake is found.

SPDX-License-Identifier: Apache-2.0

usage: test_site.py [BUILD_FOLDER]
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import plots
import site_pages


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.temporary.name) / "site"
        run = subprocess.run([sys.executable, "-B", str(HERE / "site_pages.py"), "--out", str(cls.out)], capture_output=True,
                             text=True, check=False, timeout=300)
        assert run.returncode == 0, run.stdout + run.stderr

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def page(self, name):
        return (self.out / name).read_text()

    def test_every_document_is_a_page(self):
        for source in site_pages.documents(site_pages.ROOT):
            place = source.relative_to(site_pages.ROOT)
            page = place.with_name("index.html") if place.name == "README.md" else place.with_suffix(".html")
            heading = re.search(r"^# (.*)$", source.read_text(), re.M)[1].replace("`", "")
            shown = re.search(r"<h1[^>]*>(.*?)</h1>", self.page(page), re.S)[1]
            self.assertEqual(re.sub(r"<[^>]*>", "", shown).replace("&amp;", "&"), heading, place)

    def test_tables_and_lists_are_such(self):
        """No row or item is left as text, which it would be without an empty line before the first."""
        for path in self.out.rglob("*.html"):
            text = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", path.read_text(), flags=re.S)
            self.assertEqual(re.findall(r"^(?:<p>)?(?:\|.*\||- .*)$", text, re.M), [], path)
        for source, page in (("README.md", "index.html"), ("MEASURED.md", "MEASURED.html")):
            tables = re.findall(r"^\|(?:-+\|)+$", (site_pages.ROOT / source).read_text(), re.M)
            shown = self.page(page).split('id="mkdocs_keyboard_modal"')[0]  # which is a table of mkdocs's own
            self.assertEqual(shown.count("<table"), len(tables), page)

    def test_plots_are_of_the_json(self):
        page = self.page("benches.html")
        for name, (_, _, files, _) in plots.PLOTS.items():
            self.assertIn(f'src="benches/{name}.svg"', page)
            for file in files:
                self.assertIn(f'href="tests/measured/{file}.json"', page)
            root = xml.etree.ElementTree.fromstring(self.page(f"benches/{name}.svg"))
            size = [float(x) for x in root.get("viewBox").split()[2:]]
            for element in root.iter():
                for key, most in (("x", size[0]), ("y", size[1]), ("cx", size[0]), ("cy", size[1])):
                    self.assertTrue(0 <= float(element.get(key, 0)) <= most, (name, element.attrib))
                if element.tag.endswith("text"):  # its letters have room
                    wide = plots.LETTER * float(element.get("font-size")) / 12 * len(element.text)
                    x, anchor = float(element.get("x")), element.get("text-anchor")
                    if not element.get("transform"):
                        self.assertGreaterEqual(x - {"start": 0, "middle": wide / 2, "end": wide}[anchor], 0, (name, element.text))
                        self.assertLessEqual(x + {"start": wide, "middle": wide / 2, "end": 0}[anchor], size[0], (name, element.text))
        row = next(r for r in plots.read("h200-attention-peers")["rows"] if (r["d"], r["n"], r["causal"]) == (128, 16384, False))
        texts = [e.text for e in xml.etree.ElementTree.fromstring(self.page("benches/attention.svg")).iter() if e.text]
        for key in ("ours_8b_kernel", "ours_f16", "fa3_fp8", "cudnn_fp16"):
            self.assertIn(plots.short(row["tflops"][key]), texts)

    def test_a_bar_is_as_long_as_its_value(self):
        svg = xml.etree.ElementTree.fromstring(plots.bars("t", "u", ["a", "b"], [("x", [1.0, 4.0]), ("y", [2.0, None])]))
        bars = [float(e.get("width")) for e in svg.iter() if e.tag.endswith("rect") and e.get("fill") in plots.OURS and not e.get("rx")]
        self.assertEqual(len(bars), 3)
        for bar, value in zip(bars, (1, 4, 2)):
            self.assertAlmostEqual(bar / bars[0], value, delta=0.01)

    def test_mistakes_are_found(self):
        def planted(text):
            def change(docs):
                path = docs / "CHANGELOG.md"
                path.write_text(path.read_text() + "\n" + text + "\n")
            with tempfile.TemporaryDirectory() as out:
                return site_pages.build(site_pages.ROOT, pathlib.Path(out), change)

        self.assertTrue(any("nowhere.md" in line for line in planted("[a](nowhere.md)")))
        self.assertTrue(any("LICENCE" in line for line in planted("[a](LICENCE)")))
        self.assertTrue(any("#no-such" in line for line in planted("[a](README.md#no-such)")))
        self.assertTrue(any("elsewhere" in line for line in planted("![a](https://example.org/a.png)")))

    def test_a_document_that_links_to_nothing(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name).resolve()
            (root / "a.md").write_text("# a\n\n[b](b.c)\n")
            with self.assertRaisesRegex(SystemExit, "a.md: b.c is not there"):
                site_pages.Stage(root, root / "docs").document(root / "a.md")


if __name__ == "__main__":
    if not shutil.which("mkdocs"):
        print("mkdocs is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
