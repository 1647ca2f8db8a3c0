#!/usr/bin/env python3
"""Writes what test_tokenizer and test_smollm2 compare with: tokens by other people's libraries.

SPDX-License-Identifier: Apache-2.0

    make.py MODEL.gguf     writes smollm2.json, bpe.json and sentencepiece.json beside this script

Needs PyPI's tokenizers 0.22.2, sentencepiece 0.2.3 and gguf 0.19.0; MODEL.gguf is what `tandem fetch
smollm2` brings. The two small vocabularies are trained here, on the strings below.
"""
import io
import json
import pathlib
import random
import sys

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
CONTROL = 3

WORDS = """The blacksmith asked for three silver coins and a loaf of bread before sunrise
Don't you think we'll see what they've said, I'm sure he'd know it's YOU'RE turn THEY'LL can'T
naïve café Ångström façade Straße œuvre İstanbul ıssız ſ'ſ Größe
Привет, мир! Как дела? Ёлка и съезд
你好，世界！今天天气怎么样？我想买一把剑。
こんにちは世界。カタカナとひらがな、漢字もあります。
안녕하세요 세계! 대장장이는 어디에 있나요?
مرحبا بالعالم، كيف حالك؟ السَّلَامُ عَلَيْكُمْ
שלום עולם! מה שלומך? בְּרֵאשִׁית
नमस्ते दुनिया! आप कैसे हैं? क्षत्रिय
สวัสดีชาวโลก ราคาเท่าไหร่
வணக்கம் உலகம்
Γειά σου Κόσμε! Ὀδυσσεύς
ქართული ენა, Հայերեն լեզու
e\u0301 a\u0308 n\u0303 o\u0302\u0323 Z\u0351\u036b\u0343
👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 🏳️‍🌈 ❤️ 🤷🏻‍♀️ 😀😃😄
½ ¼ ² ³ ⅷ Ⅻ ① ٣٤٥ १२३ 四 𝟘𝟙 ௧௨""".split("\n")

CODE = """int main(void) { return printf("%d\\n", x[3] >> 2) != 0; }
def f(x):\n    if x is None:\n        return {'a': [1, 2.5e-3, 0xff]}\n
for (size_t i = 0; i < n; ++i)\n\t\tsum += a[i]*b[i]; // TODO: fix
SELECT * FROM npc WHERE gold >= 1000 AND name LIKE '%smith%';
<a href="https://example.org/?q=1&r=2#x">link</a><br/>
let v: Vec<&'static str> = s.split("::").collect::<_>()?;
{"role": "user", "content": "hi\\u0041"}
$ sudo apt-get install -y --no-install-recommends libpcre2-dev && echo ok || exit 1
#include <stdio.h>\r\n#define MAX(a, b) ((a) > (b) ? (a) : (b))\r\n
\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{\\infty} \\alpha_i x^i""".split("\n")

SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n ", "a  b", "a   b    c", " a", "a ", "  a  ",
          "\ta\t",
          "a\n b", "a \n\n  b", "x\r\ny\r\n\r\nz", "\u00a0", "a\u00a0b", "\u2003\u2003a", "a\u3000\u3000b", "\u180ea", "a\u200bb",
          "\u2028\u2029", "a\u0085b", "\ufeffa", " \u00a0 x", "tab\t\t\tend", "trailing   ", "\v\f", "\u1680 \u205f \u202f",
          "a" * 40, " " * 40, "\n" * 40, "=" * 70, "-" * 33 + "\n", "ab" * 30, "\u0301\u0301", "a \u0301b", "1 \u0301"]

DIGITS = ["0", "7", "42", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "v2.0.1-rc3", "2026-11-26T00:21:40Z",
          "0x1F", "1e10", "5kg", "a1b2c3", "007", " 12", "12 ", "1 2  3", "½", "x²", "Ⅻ12", "٣٤٥", "१२३४", "12٣", "$9.99", "100%",
          "+49 30 1234-5678", "#1", "1st 2nd 3rd", "𝟘𝟙𝟚"]

CONTRACTIONS = ["don't", "DON'T", "it's", "It'S", "we'll've", "'s", "'S", "'ſ", "'t", "'re", "'RE", "I'm", "I'M", "y'all'd've",
                "rock 'n' roll", "'tis", "the dogs' bowls", "O'Neill", "don\u2019t", "''s", "a's's", "'ll", "'d'd", " 's", "x'", "'"]

CASES = ["HelloWorld", "helloWorld", "HELLO", "XMLHttpRequest", "iPhone", "McDonald", "aB", "Ab", "ABc", "abC", "ǅ", "ǅa", "ªº", "ʰx",
         "Éa", "éA", "ΣΑΣ", "Ιδ", "ЁёЖж", "A\u0301b", "a\u0301B", "/path/to/File.txt", "a/b//c", "!!/\n", "?!\r\n", "…", "—", "“quoted”",
         "«да»", "_snake_case_", "__init__", "kebab-case", "a.b.c", "@user", "e.g.,", "(a)[b]{c}", ";;", "!@#$%^&*()", "\\", "~`|"]

CONTROLS = ["\x01\x02\x03", "a\x07b", "\x1b[31mred\x1b[0m", "\x7f", "\x04\x06\x13\x14", "\x80\x9f", "\ufffd", "\ufffe", "\U0010ffff",
            "\U00040000", "\ue000"]

SPECIALS = ["<|im_start|>user\nHello<|im_end|>\n", "<|endoftext|>", "<|im_end|><|im_end|>", " <|im_start|> ", "<|im_start|",
            "<<|im_end|>>", "<|im_start|><|im_start|>assistant\n", "a<|endoftext|>b", "<repo_name>x<file_sep>y", "<|im_end|>\n\n",
            "<|IM_END|>", "<empty_output>", "<filename>a.c\n<gh_stars>5", "<issue_start><issue_comment>hi<issue_closed>"]

CHARACTERS = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x3ff), (0x400, 0x45f), (0x5d0, 0x5ea), (0x620, 0x652), (0x900, 0x94d),
              (0xe01, 0xe3a), (0x2000, 0x206f), (0x2190, 0x21ff), (0x3040, 0x30ff), (0x4e00, 0x4fff), (0xac00, 0xadff),
              (0x1f300, 0x1f64f), (0x300, 0x36f), (0x9, 0xd), (0x30, 0x39)]


def random_strings(count, most, dice):
    """Runs of characters of one range, one behind the other."""
    for _ in range(count):
        text = ""
        for _ in range(dice.randint(1, most)):
            first, last = dice.choice(CHARACTERS)
            text += "".join(chr(dice.randint(first, last)) for _ in range(dice.randint(1, 4)))
        yield text


def all_strings():
    dice = random.Random(22)
    return WORDS + CODE + SPACES + DIGITS + CONTRACTIONS + CASES + CONTROLS + list(random_strings(110, 6, dice))


def few_strings():
    """What patterns differ in."""
    return WORDS + CODE[:4] + SPACES + DIGITS + CONTRACTIONS + CASES


def write(name, **content):
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for key, value in content.items()]
    text = "{" + ",\n".join(lines).replace("},{", "},\n{") + "}\n"
    assert json.loads(text) == content
    (HERE / name).write_text(text)
    print(name, len(text.encode()), "bytes")


# --- Byte-level BPE ---

CONTRACTED = "'s|'t|'re|'ve|'m|'ll|'d"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
CAPITALS, SMALLS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALLS}+%s|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALLS}*%s"


def by_regex(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS_GPT2 = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])
# As the models' own tokenizer.json have them; True: with ignore_merges.
PATTERNS = {
    "gpt-2": (GPT2, False),
    "smollm": (DIGITS_GPT2, False),
    "llama-bpe": (by_regex(rf"(?i:{CONTRACTED})|{LETTERS}|\p{{N}}{{1,3}}|{REST % ''}"), True),
    "dbrx": (by_regex(rf"(?i:{CONTRACTED})|{LETTERS}|\p{{N}}{{1,3}}|{REST % ''}"), False),
    "qwen2": (by_regex(rf"(?i:{CONTRACTED})|{LETTERS}|\p{{N}}|{REST % ''}"), False),
    "tekken": (by_regex(rf"{CASED % ('', '')}|\p{{N}}|{REST % '/'}"), True),
    "gpt-4o": (by_regex(rf"{CASED % ((f'(?i:{CONTRACTED})?',) * 2)}|\p{{N}}{{1,3}}|{REST % '/'}"), False),
}


def byte_level(vocabulary, merges, pattern, ignore_merges=False, special=()):
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pattern
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def ids_of(tokenizer, text, special=True):
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text, add_special_tokens=False).ids


def entry(tokenizer, text):
    """`plain`: where special tokens are not looked for; `decoded`: where bytes got lost."""
    ids = ids_of(tokenizer, text)
    it = {"text": text, "ids": ids}
    plain = ids_of(tokenizer, text, special=False)
    if plain != ids:
        it["plain"] = plain
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    if decoded != text:
        it["decoded"] = decoded
    return it


def read_smollm2(path):
    reader = gguf.GGUFReader(path)

    def strings(key):
        field = reader.fields[key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    kinds = reader.fields["tokenizer.ggml.token_type"]
    tokens = strings("tokenizer.ggml.tokens")
    special = [tokens[i] for i, part in enumerate(kinds.data) if kinds.parts[part][0] == CONTROL]
    merges = [tuple(merge.split(" ")) for merge in strings("tokenizer.ggml.merges")]
    return byte_level({token: i for i, token in enumerate(tokens)}, merges, DIGITS_GPT2, special=special)


def write_smollm2(path):
    tokenizer, dice = read_smollm2(path), random.Random(7)
    random_ids = [[dice.randrange(tokenizer.get_vocab_size()) for _ in range(12)] for _ in range(20)]
    random_ids += [[dice.choice([138, 187, 119, 235, 250, 117, 99, 223, 1]) for _ in range(9)] for _ in range(20)]
    write("smollm2.json", texts=[entry(tokenizer, text) for text in all_strings() + SPECIALS],
          decodes=[{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)} for ids in random_ids])


def write_bpe():
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = GPT2
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  min_frequency=2)
    trained.train_from_iterator(few_strings() * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens, merges = sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]
    tokens.append("Hel" + "lo")  # whole words that no merge makes
    tokens.append("Ġsilver")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    write("bpe.json", tokens=tokens, merges=[" ".join(m) for m in merges], texts=few_strings() + ["Hello silver Hello"],
          ids={name: [ids_of(byte_level(vocabulary, merges, pattern, whole), text) for text in few_strings() + ["Hello silver Hello"]]
               for name, (pattern, whole) in PATTERNS.items()})


# --- SentencePiece ---


def kind_of(model, i):
    return (2 if model.is_unknown(i) else CONTROL if model.is_control(i) else 6 if model.is_byte(i) else 5 if model.is_unused(i)
            else 4 if model.id_to_piece(i) == "<npc>" else 1)


def write_sentencepiece():
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 3 + CODE), model_writer=file, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["<npc>"],
        character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    texts = all_strings() + ["<npc>", "a<npc>b", "<npc> x", "x <npc>", "<npc><npc>y", "\u2581a\u2581", "a\u2581\u2581b", "<s>a</s>"]
    count = model.get_piece_size()
    write("sentencepiece.json", tokens=[model.id_to_piece(i) for i in range(count)],
          scores=[model.get_score(i) for i in range(count)], types=[kind_of(model, i) for i in range(count)],
          texts=[{"text": text, "ids": model.encode(text)} for text in texts])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_smollm2(sys.argv[1])
    write_bpe()
    write_sentencepiece()
