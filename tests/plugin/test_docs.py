"""What the documents for engine programmers quote is in the sources, where they link to there is something, and each statement about
an engine that others wrote has its source.

SPDX-License-Identifier: Apache-2.0

usage: test_docs.py [BUILD_FOLDER]
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLUGIN = ROOT / "engine_plugin"
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)")


def literals():
    """Texts of the library, with those that stand one behind the other as one; a format's values are a mark."""
    found = []
    for folder in ("interop", "kernels", "engine_plugin"):
        for path in (ROOT / folder).rglob("*.c"):
            text = path.read_text()
            text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace('\\"', "'")
            # "a" PRIu64 "b" and "a" "b" are one text.
            text = re.sub(r'"\s*(?:PRI\w+|VK_\w+_EXTENSION_NAME)\s*"', '', text)
            text = re.sub(r'"\s*\n?\s*"', "", text)
            found += LITERAL.findall(text)
    return [re.sub(r"%[-+ #0]*[\d.*]*(?:ll|[lhzjt])?[a-zA-Z]?", "\0", one) for one in found]


def is_said(message, texts):
    """Whether one text has all parts of the message in their order, with a value where it has an ellipsis."""
    parts = [re.escape(part.strip()) for part in message.split("…")]
    pattern = re.compile(r"\W*[\0\w]*\0[\0\w]*\W*".join(part for part in parts if part) if len(parts) > 1 else parts[0])
    if parts[-1] == "":
        pattern = re.compile(pattern.pattern + r"\W*\0")
    return any(pattern.search(text) for text in texts)


def check_messages(text, texts):
    """(messages, those that nobody says)"""
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    return rows, [f"TROUBLESHOOTING.md: nobody says '{row}'" for row in rows if not is_said(row, texts)]


def anchors(text):
    names = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


def check_links(path, text):
    """(links to files, what is wrong)"""
    links = [link for link in LINK.findall(text) if not link.startswith("http")]
    wrong = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            wrong.append(f"{path.name}: {link} is not there")
        elif anchor and anchor not in anchors(target.read_text()):
            wrong.append(f"{path.name}: {link}: there is no such heading")
    return links, wrong


SECTIONS = ("Unity", "Unreal", "Godot", "Vulkan-Hpp", "wgpu")


def check_sources(text):
    """(statements, what is wrong): of each engine there are some with sources, and no name of its code is without one."""
    statements, wrong = 0, []
    for section in SECTIONS:
        body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        items = re.findall(r"^- (.*(?:\n  .*)*)", body[1], re.M) if body else []
        with_source = [item for item in items if "](https://" in item]
        statements += len(items)
        if len(with_source) < 2:
            wrong.append(f"ENGINES.md: {section} has {len(with_source)} statements with a source")
        wrong += [f"ENGINES.md: {section}: no source for {name}" for item in items if item not in with_source
                  for name in re.findall(r"`[A-Za-z_:]+\(\)`|`[A-Z]\w*::\w+`", item) if "tandem_" not in name]
    return statements, wrong


def prove_that_it_can_fail(texts):
    assert check_messages("| `the job has not ended in tune` | x |\n", texts)[1]
    assert check_messages("| `desc.rung is …; it must be 1` | x |\n", texts)[1]
    assert not check_messages("| `the job has not ended in time` | x |\n", texts)[1]
    assert check_links(PLUGIN / "X.md", "[a](NONE.md) [b](INTEGRATION.md#no-such) [c](INTEGRATION.md#once)")[1] == [
        "X.md: NONE.md is not there", "X.md: INTEGRATION.md#no-such: there is no such heading"]
    engines = "".join(f"## {name}\n- `f()` is. ([x](https://x))\n- `g()` is ([x](https://x))\n" for name in SECTIONS)
    assert not check_sources(engines)[1]
    assert check_sources(engines + "- `h()` does.\n")[1] == ["ENGINES.md: wgpu: no source for `h()`"]
    assert check_sources(engines.replace("## Godot\n- `f()` is. ([x](https://x))\n", "## Godot\n"))[1]


if __name__ == "__main__":
    said = literals()
    rows, wrong = check_messages((PLUGIN / "TROUBLESHOOTING.md").read_text(), said)
    links = 0
    for document in (ROOT / "README.md", ROOT / "MEASURED.md", ROOT / "demo/README.md", *PLUGIN.glob("*.md"), PLUGIN / "python/README.md"):
        there, broken = check_links(document, document.read_text())
        links, wrong = links + len(there), wrong + broken
    statements, unproven = check_sources((PLUGIN / "ENGINES.md").read_text())
    wrong += unproven
    prove_that_it_can_fail(said)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(rows)} messages, {links} links, {statements} statements about engines, {len(wrong)} wrong")
    sys.exit(1 if wrong or len(rows) < 25 or links < 20 else 0)
