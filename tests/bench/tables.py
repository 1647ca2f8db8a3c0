"""The figures in the documents are those of the benches' JSON: checks them, or writes them.

SPDX-License-Identifier: Apache-2.0

usage: tables.py [--check | --write] [--root DIR]

--check (default)  fails where a document says something else than its JSON, and where one that claims.COVERED names has a figure that is
                   neither from a JSON nor in the list of what is no measurement
--write            puts what the JSON say into the documents
What is said, and by which expression of which JSON, is in claims.py beside this file.
"""

import argparse
import json
import pathlib
import re
import sys
import types

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import claims

NUMBER = r"-?\d*\.?\d+"
# A number that stands alone: not part of a name (sm_90a, fp16), a size (960x540) or a date.
ALONE = re.compile(r"(?<![\w.,-])(?:\d+(?:\.\d+)*|\.\d+)(?!\w|-\d)")


class Figures:
    """tests/measured as names: `demo.frame.p50_ms` is what h200-demo.json has there."""

    def __init__(self, folder):
        self.folder = folder
        self.read = {}

    def __getitem__(self, name):
        if hasattr(claims, name):
            return getattr(claims, name)
        file = claims.FILES.get(name)
        if file is None:
            raise KeyError(name)
        if name not in self.read:
            text = (self.folder / file).read_text()
            self.read[name] = json.loads(text, object_hook=lambda o: types.SimpleNamespace(**o))
        return self.read[name]


FIELD = re.compile(r"\{(.+?)(?::([.\d]+f))?\}")


def fields(template):
    """(expression, format) of each figure of a template."""
    return [(m.group(1), m.group(2) or "") for m in FIELD.finditer(template)]


def label(template):
    """A template without its expressions, for messages."""
    return FIELD.sub("#", template)[:80]


def pattern_of(template):
    """What finds a claim in a document, whatever its figures are and wherever its lines break."""
    literals = FIELD.sub("\0", template).split("\0")
    return re.compile(f"({NUMBER})".join(r"\s+".join(map(re.escape, re.split(r"\s+", text))) for text in literals))


def values_of(template, figures):
    return [format(eval(expression, {}, figures), spec) for expression, spec in fields(template)]


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def checked(document, text, template, figures, wrong):
    """The document with the claim's figures in it; what was otherwise is added to `wrong`."""
    found = list(pattern_of(template).finditer(text))
    if len(found) != 1:
        wrong.append(f"{document}: stands {len(found)} times, not once: {label(template)}")
        return text
    match = found[0]
    try:
        values = values_of(template, figures)
    except Exception as error:
        wrong.append(f"{document}:{line_of(text, match.start())}: no figure in the JSON for {label(template)}: {error!r}")
        return text
    for i in range(len(values), 0, -1):  # from the back, so that places in front of it stay
        value = values[i - 1]
        if match.group(i) != value:
            line = line_of(text, match.start(i))
            wrong.append(f"{document}:{line}: {match.group(i)} where the JSON says {value}: {label(template)}")
            text = text[: match.start(i)] + value + text[match.end(i) :]
    return text


def blank(text, start, end):
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def uncovered(text, spans):
    """(line, figure) of what no claim has: code, links and what is no measurement aside."""
    for start, end in spans:
        text = blank(text, start, end)
    for known in [r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)", r"\d{4}-\d\d-\d\d"] + claims.NOT_MEASURED:
        for match in re.finditer(known, text, re.S):
            text = blank(text, *match.span())
    return [(line_of(text, m.start()), m.group()) for m in ALONE.finditer(text)]


def run(root, write):
    figures = Figures(root / "tests/measured")
    wrong = []
    for document in sorted({d for d, _ in claims.CLAIMS}):
        path = root / document
        text = original = path.read_text()
        templates = [template for d, template in claims.CLAIMS if d == document]
        for template in templates:
            text = checked(document, text, template, figures, wrong)
        spans = [m.span() for t in templates for m in pattern_of(t).finditer(text)]
        if document in claims.COVERED:
            wrong += [f"{document}:{line}: {figure} is of no JSON" for line, figure in uncovered(text, spans)]
        if write and text != original:
            path.write_text(text)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true")
    how.add_argument("--write", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent)
    arguments = parser.parse_args()
    wrong = run(arguments.root, arguments.write)
    print("\n".join(wrong) if wrong else f"{len(claims.CLAIMS)} claims are as measured")
    return 1 if wrong and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
