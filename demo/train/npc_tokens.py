#!/usr/bin/env python3
"""The tokenizer of the model of characters: byte-level BPE that never merges a space with anything but the most frequent whole words,
so that a name has the same tokens wherever it stands, and can be copied one by one.

    npc_tokens.py OUT.json [--words 3072]      makes it from the texts of npc_text.py; needs PyPI's tokenizers

Reading it and encoding need nothing but Python. Texts are cut as `tokenizer.ggml.pre` "smollm" says: digits one by one, then GPT-2's.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import collections
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
FILE = HERE / "npc_tokens.json"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CUTS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|\d| ?[^\W\d_]+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")


def bytes_as_letters():
    """How byte-level vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


LETTERS = bytes_as_letters()


class Tokens:
    def __init__(self, path=FILE):
        self.merges = [tuple(merge.split(" ")) for merge in json.loads(pathlib.Path(path).read_text())["merges"]]
        self.pieces = SPECIAL + list(LETTERS.values()) + [a + b for a, b in self.merges]
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        self.ranks = {merge: i for i, merge in enumerate(self.merges)}
        self.bytes = {letter: byte for byte, letter in LETTERS.items()}
        self.end, self.start, self.stop = 0, 1, 2
        self.known = {}

    def __len__(self):
        return len(self.pieces)

    def word(self, word):
        parts = [LETTERS[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def encode(self, text):
        known, out = self.known, []
        for word in CUTS.findall(text):
            ids = known.get(word)
            if ids is None:
                if len(known) > 1 << 18:
                    known.clear()
                ids = known[word] = self.word(word)
            out += ids
        return out

    def decode(self, ids):
        """Without special tokens."""
        letters = "".join(self.pieces[i] for i in ids if i >= len(SPECIAL))
        return bytes(self.bytes[letter] for letter in letters).decode(errors="replace")


def train(count):
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    import npc_text
    texts = []
    for seed in range(6000):
        card, _, turns = npc_text.document(f"tokens {seed}", turns=14)
        texts += [npc_text.OPENING + card, *(turn.user for turn in turns), *(turn.text() for turn in turns)]
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=count, show_progress=False, initial_alphabet=list(LETTERS.values())))
    merges = [tuple(merge) for merge in json.loads(bpe.to_str())["model"]["merges"]]
    room = count - len(SPECIAL) - len(LETTERS)
    kept = room * 2 // 3
    whole = {a + b for a, b in merges[:kept]} | set(LETTERS.values())
    often = collections.Counter(word[1:] for text in texts for word in CUTS.findall(text) if word[0] == " " and len(word) > 1)
    spaced = [(LETTERS[32], word) for word, _ in often.most_common() if word in whole][:room - kept]
    return merges[:room - len(spaced)] + spaced


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, nargs="?", default=FILE)
    parser.add_argument("--words", type=int, default=3072, help="tokens, with bytes and special ones")
    a = parser.parse_args()
    a.out.write_text(json.dumps({"merges": [" ".join(merge) for merge in train(a.words)]}, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{a.out}: {len(Tokens(a.out))} tokens")


if __name__ == "__main__":
    main()
