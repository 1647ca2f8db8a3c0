"""Makes static pages of the documents, with the benches as plots.

SPDX-License-Identifier: Apache-2.0

usage: site_pages.py --out DIR

Needs mkdocs, which Debian has. The documents stay as they are; what Markdown is to mkdocs and not to them, and where their links
go, is seen to here: a file that is linked becomes a page with its text, a folder a list of what is in it, and a link to nothing
is an error, as is what `mkdocs build --strict` finds, and in the pages that were made a link to a place that is not there.
"""
import argparse
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import plots

ROOT = HERE.parent.parent
AS_IT_IS = {".png", ".svg", ".json", ".jsonl"}
NAV = [
    ("Tandem", "README.md"), ("Installing", "engine_plugin/INSTALL.md"),
    ("For engines", [
        ("Into an engine", "engine_plugin/INTEGRATION.md"), ("By engine", "engine_plugin/ENGINES.md"),
        ("Examples", "engine_plugin/examples/index.md"), ("Python", "engine_plugin/python/README.md"),
        ("The Vulkan layer", "engine_plugin/layer/README.md"), ("Troubleshooting", "engine_plugin/TROUBLESHOOTING.md"),
        ("tandem.h", "engine_plugin/include/tandem/tandem.h.md"), ("vulkan.h", "engine_plugin/include/tandem/vulkan.h.md"),
        ("npc.h", "engine_plugin/include/tandem/npc.h.md"), ("types.h", "interop/include/tandem/types.h.md"),
    ]),
    ("In operation", [("The daemon", "engine_plugin/OPERATIONS.md"), ("Many machines", "engine_plugin/deploy/README.md")]),
    ("Networks", [("What runs", "engine_plugin/MODELS.md"), ("The demo", "demo/README.md"), ("Graphs", "kernels/PROGRAM.md"), ("Models that come with it", "demo/assets/README.md"),
                  ("Training them", "demo/train/README.md")]),
    ("Measured", [
        ("Speed and quality", "benches.md"), ("Figures", "MEASURED.md"), ("Accuracy of attention", "kernels/attention/ACCURACY.md"),
        ("Attention", "kernels/attention/NOTES.md"), ("Linear layers", "kernels/linear/NOTES.md"),
        ("Caches", "kernels/cache/NOTES.md"), ("Convolutions", "kernels/conv/NOTES.md"),
    ]),
    ("Inside", [
        ("Contributing", "CONTRIBUTING.md"), ("The daemon's protocol", "interop/PROTOCOL.md"),
        ("Layouts of attention", "kernels/attention/LAYOUTS.md"), ("The hardware", "kernels/cuda/HARDWARE.md"),
        ("Changes", "CHANGELOG.md"), ("Licence", "LICENSE.md"),
    ]),
]
LINK = re.compile(r"(\]\()([^()\s]+)(\))")


def fail(text):
    sys.exit(f"site: {text}")


def documents(root):
    """All Markdown of a tree, builds aside."""
    return [path for path in sorted(root.rglob("*.md"))
            if not any(part.startswith((".", "build", "out")) for part in path.relative_to(root).parts[:-1])]


class Stage:
    """The folder that mkdocs reads."""

    def __init__(self, root, folder):
        self.root, self.folder, self.done = root, folder, set()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def page_of(self, target):
        """Makes sure that there is something to see of a file or folder: its place, from the root."""
        name = target.relative_to(self.root).as_posix()
        if target.is_dir():
            shown = f"{name}/README.md" if (target / "README.md").exists() else f"{name}/index.md"
        elif target.suffix == ".md" or target.suffix in AS_IT_IS:
            shown = name
        else:
            shown = f"{name}.md"
        if shown in self.done or target.suffix == ".md" or shown.endswith("/README.md"):
            return shown
        self.done.add(shown)
        if target.is_dir():
            inside = [path for path in sorted(target.iterdir()) if not path.name.startswith((".", "__"))]
            lines = [f"- [{path.name}{'/' if path.is_dir() else ''}]({self.beside(shown, path)})" if self.is_text(path) else
                     f"- {path.name}" for path in inside]
            self.write(shown, f"# {name}\n\n" + "\n".join(lines) + "\n")
        elif target.suffix in AS_IT_IS:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, self.folder / name)
        else:
            text = target.read_text()
            fence = "~" * (3 + max([0, *map(len, re.findall("~{3,}", text))]))
            self.write(shown, f"# {target.name}\n\n`{name}`\n\n{fence}\n{text}\n{fence}\n")
        return shown

    @staticmethod
    def is_text(path):
        return path.is_dir() or path.suffix in AS_IT_IS or b"\0" not in path.read_bytes()[:65536]

    def beside(self, page, target):
        """How a page links to what is to be seen of a file."""
        return pathlib.PurePosixPath(*[".."] * page.count("/"), self.page_of(target)).as_posix()

    def linked(self, page, source, match):
        place, _, anchor = match[2].partition("#")
        if "://" in place or not place:
            return match[0]
        target = (source.parent / place).resolve()
        if not target.exists() or not target.is_relative_to(self.root):
            fail(f"{source.relative_to(self.root)}: {match[2]} is not there")
        return match[1] + self.beside(page, target) + ("#" + anchor if anchor else "") + match[3]

    def document(self, source):
        page = source.relative_to(self.root).as_posix()
        lines, fenced, before = [], False, ""
        for line in source.read_text().splitlines():
            if line.startswith("```"):
                fenced = not fenced
            elif not fenced:
                parts = re.split(r"(`+[^`]*`+)", line)
                line = "".join(part if part.startswith("`") else LINK.sub(lambda m: self.linked(page, source, m), part)
                               for part in parts)
                # A table or list ends a paragraph, which not all Markdown knows.
                kind = line[:2] if line.startswith(("- ", "* ")) else line[:1] if line.startswith("|") else None
                if kind and before.strip() and not before.startswith((kind, "  ")):
                    lines.append("")
            lines.append(line)
            before = line
        self.write(page, "\n".join(lines) + "\n")

    def benches(self):
        text = ["# Speed and quality", "", "Each plot is drawn from what `tandem bench` and `tandem eval` wrote, which is linked "
                "below it; MEASURED.md has the figures as tables, with what they say and where they fall short.", ""]
        for name, (heading, draw, files, said) in plots.PLOTS.items():
            self.write(f"benches/{name}.svg", draw())
            of = [plots.read(file) for file in files]
            where = sorted({f"{one.get('device') or one.get('machine')}, {one['date'][:10]}" for one in of if "date" in one})
            links = [f"[{file}.json]({self.beside('benches.md', self.root / f'tests/measured/{file}.json')})" for file in files]
            said = LINK.sub(lambda m: self.linked("benches.md", self.root / "benches.md", m), said)
            text += [f"## {heading}", "", said, "", f"![{heading}](benches/{name}.svg)", "",
                     f"*{'; '.join(where)}: {', '.join(links)}*", ""]
        self.write("benches.md", "\n".join(text))


def configuration(out, docs):
    def entries(nav):
        return [{title: entries(what) if isinstance(what, list) else what} for title, what in nav]

    return json.dumps({  # which is YAML, too
        "site_name": "Tandem", "docs_dir": str(docs), "site_dir": str(out), "nav": entries(NAV), "use_directory_urls": False,
        "theme": {"name": "mkdocs", "highlightjs": False, "nav_style": "dark"}, "extra_css": ["site.css"],
        "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": False}}],
    })


def build(root, out, change=lambda docs: None):
    """Returns what is wrong; `change` may change what mkdocs is about to read."""
    with tempfile.TemporaryDirectory() as name:
        docs = pathlib.Path(name) / "docs"
        stage = Stage(root, docs)
        for source in documents(root):
            stage.document(source)
        stage.benches()
        for _, entry in NAV:
            for page in [entry] if isinstance(entry, str) else [place for _, place in entry]:
                if not (docs / page).exists():
                    stage.page_of(root / re.sub(r"(/index)?\.md$", "", page))
        shutil.copyfile(HERE / "site.css", docs / "site.css")
        change(docs)
        (pathlib.Path(name) / "mkdocs.yml").write_text(configuration(out, docs))
        run = subprocess.run(["mkdocs", "build", "--strict", "--clean", "-f", f"{name}/mkdocs.yml"],
                             capture_output=True, text=True, check=False)
    if run.returncode:
        said = [line for line in (run.stdout + run.stderr).splitlines() if line.strip() and not line.startswith("INFO")]
        return [f"mkdocs: {line}" for line in said]
    return broken(out)


class Page(html.parser.HTMLParser):
    """What a page links to and loads, and what can be linked to in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        if "id" in of:
            self.ids.add(of["id"])
        if tag == "a" and of.get("href"):
            self.links.append(of["href"])
        elif of.get("src") or (tag == "link" and of.get("href")):
            self.loads.append(of.get("src") or of["href"])


def broken(out):
    """Links of all pages to what is not there; and what they would load from elsewhere."""
    out = out.resolve()
    pages = {path: Page(path.read_text()) for path in sorted(out.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links + page.loads:
            where = f"{path.relative_to(out)}: {link}"
            place, _, anchor = urllib.parse.unquote(link).partition("#")
            if re.match(r"\w+:|//", link):
                wrong += [f"{where} is elsewhere"] if link in page.loads else []
                continue
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(out) or not target.is_file():
                wrong.append(f"{where} is not there")
            elif anchor and target in pages and anchor not in pages[target].ids:
                wrong.append(f"{where}: there is no such heading")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out.resolve()
    if not shutil.which("mkdocs"):
        fail("mkdocs is missing: apt-get install mkdocs")
    wrong = build(ROOT, out)
    if wrong:
        fail("\n".join(wrong))
    print(f"{len(list(out.rglob('*.html')))} pages: {out / 'index.html'}")


if __name__ == "__main__":
    main()
