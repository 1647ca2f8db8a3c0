"""`tandem npc`: cards, what is refused of them, and conversations with the model of demo/assets on cards that it was not trained on.

SPDX-License-Identifier: Apache-2.0
"""
import hashlib
import json
import os
import pathlib
import sys
import unittest

from tool.models import vocabulary
from tool.rig import FOLDER, SOURCE, TOOL, tool
from tool.words import Words

sys.path.insert(0, str(SOURCE / "demo" / "train"))
import npc_data
import npc_eval
import npc_text
import npc_tokens

ASSETS = SOURCE / "demo" / "assets"
MODEL, CARD = ASSETS / "npc.gguf", ASSETS / "cards" / "brom.txt"


class Cards(unittest.TestCase):
    one_line = Words.one_line

    def test_refusals(self):
        model, card = FOLDER / "speechless.gguf", FOLDER / "card.txt"
        model.write_bytes(vocabulary(tokenizer_chat_template="{{'<|im_start|>' + role}}")[1])
        for text, *words in (
            ("", 'there is no line "name: ...'),
            ("# name: a\n", 'there is no line "name: ...'),
            ("name: A\nwisdom: much", 'line 2: "wisdom" is no key with a colon; there are name, trade, place'),
            ("name: A\n\nno colon here\n", 'line 3: "no colon here" is no key'),
            ("name: A\nname: B", 'line 2: "name" is there twice'),
            ("name:  ", 'line 1: "name" has no value'),
            ("name: A\nmood: hungry", '"hungry" is no mood; there are cheerful, calm'),
            ("name: A\nsells: iron dagger", '"iron dagger" is not sold as'),
            ("name: A\nsells: pie for 0 coins", "is not sold as"),
            ("name: A\nsells: pie for 3 coins, for 4 coins", "is not sold as"),
            ("name: A\nsells: pie for 3 coins,", "is not sold as"),
            ("name: A\nsells: pie for 3 coins, lamp for 999999 coins", "is not sold as"),
            ("name: A\nhas: a key,, a map", "a thing has no name"),
            ("name: A\nhas: " + ", ".join(f"key{i}" for i in range(65)), "more than 64 things"),
            ("name: A\nknows: Mira", '"Mira" is nobody as "sister Mira"'),
            ("name: A\nquest: bring ring, reward 3 coins", "a quest is none, or as"),
            ("name: A\nquest: bring ring, reward 3 coins, lost", "a quest is none, or as"),
            ("name: A\nquest: bring ring, reward 3 coins, open, soon", "a quest is none, or as"),
            ('name: A "the Great"', '"name" has a character that cards do without'),
            ("name: A\nhas: back\\slash", '"has" has a character'),
            ("name: A\nplace: \x1b[31mB", '"place" has a character'),
            ("name: A\0B", "it has a byte of 0"),
            ("name: " + "A" * 2000, "it has more than 1023 bytes"),
            ("# more\n" * 3000 + "name: A", "it has more than 16384 bytes"),
        ):
            card.write_text(text)
            self.one_line(tool("npc", "--model", model, "--card", card, input=""), 1, f"--card '{card}': ", *words)
        card.write_text("name: A")
        for args, status, *words in (
            (("--model", FOLDER / "none.gguf", "--card", card), 1, "--model", "none.gguf", "No such file"),
            (("--model", model, "--card", FOLDER / "none.txt"), 1, "--card", "none.txt", "No such file"),
            (("--model", model, "--card", FOLDER), 1, "--card", "Is a directory"),
            (("--model", model, "--card", card), 1, "general.architecture", "is not there"),
            (("--tokens", "0"), 2, '--tokens "0" is not a number from 1 to'),
            (("--temperature", "hot"), 2, '--temperature "hot" is not a number'),
            (("--kv", "k8v8", "--attention", "8b"), 2, "--attention must be f16 or auto"),
            (("--model", MODEL, "Hello"), 2, 'unexpected argument "Hello"'),
        ):
            self.one_line(tool("npc", *args, input=""), status, *words)

    def test_what_a_card_may_say(self):
        """Each card of the text that the model was trained on, and those beside the model."""
        card = FOLDER / "card.txt"
        texts = [npc_text.document(seed, seed % 2 == 1, 1)[0] for seed in range(6)]
        for text in texts + [path.read_text() for path in sorted((ASSETS / "cards").glob("*.txt"))]:
            card.write_text(text)
            run = tool("npc", "--model", MODEL, "--card", card, input="")
            self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""), text)


class Conversations(unittest.TestCase):
    one_line = Words.one_line

    def talk(self, *args, lines=("What is your name?",), **more):
        run = tool("npc", *args, input="".join(line + "\n" for line in lines), **more)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def test_beside_the_program(self):
        """Without a word of files it is the model and the card that lie there."""
        said = self.talk("--temperature", "0")
        self.assertIn("Brom Ulvarin", said)
        self.assertEqual(said, self.talk("--temperature", "0", "--model", MODEL, "--card", CARD))
        self.assertEqual((pathlib.Path(TOOL).parent / "npc.gguf").read_bytes(), MODEL.read_bytes())

    def test_actions_have_lines_of_their_own(self):
        lines = ["I'll take the iron dagger.", "Where is your sister?", "Follow me!"]
        shown = self.talk("--temperature", "0", "--card", CARD, lines=lines).splitlines()
        told = [json.loads(line) for line in self.talk("--temperature", "0", "--card", CARD, "--json", lines=lines).splitlines()]
        self.assertEqual([reply["user"] for reply in told], lines)
        self.assertEqual(shown, [line for reply in told for line in [reply["said"], *(
            ["-> " + reply["reply"].split("\n")[1]] if reply["action"] else [])]])
        self.assertEqual([reply["action"] for reply in told],
                         [{"action": "give", "item": "iron dagger", "price": 12}, None, {"action": "refuse"}])
        self.assertIn("Eastmoor", told[1]["said"])
        self.assertLess(told[1]["read_tokens"], 60, "the card is read once")

    def test_seeds(self):
        """What is drawn goes by the seed alone."""
        lines = ["Hello there.", "How are you?", "What do you know about the moon landing?"]
        one, two, other = (self.talk("--temperature", "1", "--seed", seed, "--card", CARD, lines=lines) for seed in (1, 1, 2))
        self.assertEqual(one, two)
        self.assertNotEqual(one, other)

    def test_held_out_cards(self):
        """Names, places and things of these were in no text that it was trained on. The figures of many more are in
        tests/measured/cpu-npc-model.json."""
        right, asked, cards = 0, 0, 1 if "TANDEM_SANITIZED" in os.environ else 4
        for text, card, told in npc_eval.dialogues(cards, 12):
            path = FOLDER / "held.txt"
            path.write_text(text)
            replies = [json.loads(line) for line in self.talk(
                "--model", MODEL, "--card", path, "--temperature", "0", "--json", lines=[turn.user for turn in told]).splitlines()]
            for turn, reply in zip(told, replies, strict=True):
                line = npc_text.split_reply(reply["reply"])[1]
                self.assertEqual(reply["end"], "ended", reply)
                if line is not None:
                    self.assertTrue(npc_eval.is_valid(line, card), reply)
                if turn.facts:
                    asked += 1
                    right += npc_text.judge(turn, reply["reply"])["facts"]
        self.assertGreater(asked, 25 * cards // 4)
        self.assertGreaterEqual(right / asked, 0.9)

    def test_a_line_that_is_too_long(self):
        self.one_line(tool("npc", "--model", MODEL, "--card", CARD, input="a" * 5000 + "\n"), 1, "a line has more than 4094 bytes")

    def test_what_is_no_text(self):
        """Special tokens by name, and what would steer a terminal."""
        said = self.talk("--model", MODEL, "--card", CARD, lines=["<|im_end|>\x1b[2J \t", "<|im_start|>system"])
        self.assertFalse(set(said) & {"\x1b", "\x07"})


class Tokens(unittest.TestCase):
    def test_the_trainer_cuts_texts_as_the_tool_does(self):
        tokens = npc_tokens.Tokens()
        for seed in range(6):
            row = npc_data.row(tokens, seed, 400, held=seed % 2 == 1)
            ids = [token & (npc_data.REPLY - 1) for token in row]
            ids = ids[:ids.index(0)] if 0 in ids else ids
            text = tool("tokenize", "--model", MODEL, "--decode", "-", input=",".join(map(str, ids))).stdout[:-1]
            shown = tool("tokenize", "--model", MODEL, "--special", "--ids", "-", input=text).stdout
            self.assertEqual([int(i) for i in shown.split(",")], ids)

    def test_words_that_are_held_out(self):
        """No name, place or thing of a held-out card is one of training's, and the judge takes what the grammar says."""
        def things(card):
            return {*card.name.split(), card.place, *card.knows, *card.sells, *card.has, card.quest} - {None}
        seen, held = set(), set()
        for seed in range(300):
            for is_held, into in ((False, seen), (True, held)):
                _, card, told = npc_text.document(seed, is_held, 8)
                into |= things(card)
                for turn in told:
                    self.assertTrue(all(npc_text.judge(turn, turn.text()).values()), (turn.reply, turn.facts))
        self.assertEqual(seen & held, set())

    def test_the_file_is_what_the_readme_tells_of(self):
        self.assertIn(hashlib.sha256(MODEL.read_bytes()).hexdigest(), (ASSETS / "README.md").read_text())
        self.assertLessEqual(MODEL.stat().st_size, 8_000_000)
