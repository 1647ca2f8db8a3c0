"""Rows of tokens that the model of characters is trained on, made by processes of their own while it is, and questions to judge it by.

SPDX-License-Identifier: Apache-2.0
"""
import mmap
import multiprocessing
import os
import random
import time

import numpy as np

import npc_text
import npc_tokens

CONTEXT = 768
REPLY = 0x8000  # marks tokens that the character says


def turn_tokens(tokens, role, text):
    return [tokens.start, *tokens.encode(role + "\n" + text), tokens.stop, *tokens.encode("\n")]


def opening(tokens):
    return [tokens.start, *tokens.encode("assistant\n")]


def row(tokens, seed, length, held=False):
    """A card and as many turns as there is room for, then zeros."""
    draw = random.Random(seed).random
    card = npc_text.Card(draw, held)
    out = turn_tokens(tokens, "system", npc_text.OPENING + card.text())
    told = npc_text.Dialogue(card)
    opens, closes = opening(tokens), tokens.encode("\n")
    while True:
        turn = told.next()
        asks = turn_tokens(tokens, "user", turn.user) + opens
        says = [token | REPLY for token in tokens.encode(turn.text())] + [tokens.stop | REPLY]
        if len(out) + len(asks) + len(says) + 1 > length:
            return out + [0] * (length - len(out))
        out += asks + says + closes


class Questions:
    """Turns of dialogues with held-out cards: what was said until then, and what is right."""

    def __init__(self, tokens, count, seed, held=True, turns=10):
        self.prompts, self.turns = [], []
        number = 0
        while len(self.turns) < count:
            card, _, told = npc_text.document(f"{seed} {number}", held, turns)
            number += 1
            prompt = turn_tokens(tokens, "system", npc_text.OPENING + card)
            for turn in told:
                prompt = prompt + turn_tokens(tokens, "user", turn.user)
                if len(prompt) < CONTEXT - 80:
                    self.prompts.append(prompt + opening(tokens))
                    self.turns.append(turn)
                prompt = prompt + turn_tokens(tokens, "assistant", turn.text())
        del self.prompts[count:], self.turns[count:]

    def judge(self, tokens, replies):
        """Shares of replies, each tokens up to the end, that are right in each respect."""
        counts, right = {}, {}
        for turn, reply in zip(self.turns, replies):
            for what, is_right in npc_text.judge(turn, tokens.decode(reply)).items():
                asked = {"facts": turn.facts, "refusal": turn.refusal, "action": turn.action}.get(what, True)
                for key in [what, what + "_asked"] if asked else [what]:
                    counts[key] = counts.get(key, 0) + 1
                    right[key] = right.get(key, 0) + is_right
        return {key: round(right[key] / counts[key], 4) for key in sorted(counts) if key != "tone_asked"}


class Pool:
    """Rows in memory that all processes share, renewed without end. To be made before anything uses a GPU."""

    def __init__(self, rows, workers, seed, length=CONTEXT + 1):
        self.rows, self.workers, self.length = rows // workers * workers, workers, length
        self.memory = mmap.mmap(-1, 2 * self.rows * length)
        self.counters = mmap.mmap(-1, 8 * workers)
        self.all = np.frombuffer(self.memory, np.uint16).reshape(self.rows, length)
        self.made = np.frombuffer(self.counters, np.int64)
        fork = multiprocessing.get_context("fork")
        self.processes = [fork.Process(target=self.work, args=(worker, seed), daemon=True) for worker in range(workers)]
        for process in self.processes:
            process.start()

    def work(self, worker, seed):
        os.nice(5)
        tokens, parent = npc_tokens.Tokens(), os.getppid()
        share = self.rows // self.workers
        while os.getppid() == parent:
            number = int(self.made[worker])
            self.all[worker * share + number % share] = row(tokens, f"{seed} {worker} {number}", self.length)
            self.made[worker] = number + 1

    def wait(self, rows):
        while self.made.sum() < rows or self.made.min() == 0:
            time.sleep(0.1)

    def draw(self, random_numbers, count):
        """So many rows, of any that were made."""
        share = self.rows // self.workers
        worker = random_numbers.integers(0, self.workers, count)
        filled = np.minimum(self.made[worker], share)
        return self.all[worker * share + (random_numbers.random(count) * filled).astype(np.int64)]

    def close(self):
        for process in self.processes:
            process.terminate()
