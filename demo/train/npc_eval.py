#!/usr/bin/env python3
"""Judges the model of characters as `tandem npc` runs it: talks with held-out cards, whose names, places and things were never trained
on, for each precision of attention and each format of caches; and the perplexity of what the characters ought to say.

    npc_eval.py --tandem build/tandem --model demo/assets/npc.gguf [--cards 60] [--json F]

Each conversation is a real one: what the model said is its history. Where the runtime refuses a precision with caches, some questions
are answered by npc_whole.py instead, without a grammar, after what ought to have been said before. Needs numpy, and nothing of PyTorch.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import datetime
import functools
import json
import math
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

import npc_data
import npc_text
import npc_tokens
import npc_whole

WAYS = [("f16", "f16"), ("8b", "f16"), ("4b", "f16"), ("f16", "k8v8"), ("f16", "k4v8")]
KINDS_OF_ACTION = {"give": {"item", "price"}, "take": {"item", "pay"}, "mood": {"mood"}, "quest": {"state"}, "follow": set(), "stay": set(), "refuse": set()}
SEED = "judged"


class Refused(Exception):
    """The tool does not compute in this way."""


def is_valid(line, card):
    """An action of the schema, which gives nothing that is not on the card."""
    try:
        action = json.loads(line)
    except ValueError:
        return False
    if not isinstance(action, dict) or set(action) != {"action"} | KINDS_OF_ACTION.get(action.get("action"), {"?"}):
        return False
    things = {*card.sells, *card.had}
    return all({"item": lambda v: isinstance(v, str) and v and (action["action"] != "give" or v in things),
                "price": lambda v: type(v) is int and v >= 0, "pay": lambda v: type(v) is int and v >= 0,
                "mood": lambda v: v in npc_text.words.MOODS, "state": lambda v: v in ("taken", "done"), "action": lambda v: True}[key](value)
               for key, value in action.items())


def dialogues(count, turns, seed=SEED):
    for number in range(count):
        seed_of_one = f"{seed} {number}"
        card = npc_text.Card(npc_text.random.Random(seed_of_one).random, True)
        had = list(card.has)
        text, card, told = npc_text.document(seed_of_one, True, turns)
        card.had = had
        yield text, card, told


def converse(a, text, told, options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text + "\n")
        file.flush()
        run = subprocess.run([a.tandem, "npc", "--model", a.model, "--card", file.name, "--temperature", "0", "--json", *options],
                             input="".join(turn.user + "\n" for turn in told), capture_output=True, text=True, timeout=600)
    if run.returncode:
        raise Refused(run.stderr.strip())
    return [json.loads(line) for line in run.stdout.splitlines()]


def share(flags):
    return round(sum(flags) / len(flags), 5) if flags else None


def talked(a, options):
    """Of all conversations of a way: which shares of replies are right."""
    right = {key: [] for key in ("facts", "refusals", "actions", "calm", "tone", "valid", "ended")}
    wrong = []
    for text, card, told in dialogues(a.cards, a.turns):
        for turn, reply in zip(told, converse(a, text, told, options), strict=True):
            judged = npc_text.judge(turn, reply["reply"])
            line = npc_text.split_reply(reply["reply"])[1]
            right["ended"].append(reply["end"] == "ended")
            if turn.facts:
                right["facts"].append(judged["facts"])
            if turn.refusal:
                right["refusals"].append(judged["refusal"])
            right["actions" if turn.action else "calm"].append(judged["action"])
            right["tone"].append(judged["tone"])
            if line is not None:
                right["valid"].append(is_valid(line, card))
            if not all(judged.values()):
                wrong.append((turn.kind, turn.user, reply["reply"], turn.facts, turn.action))
    return {"replies": len(right["ended"]), "facts_asked": len(right["facts"]), "facts_exact": share(right["facts"]),
            "refusals_asked": len(right["refusals"]), "refusals_right": share(right["refusals"]),
            "actions_asked": len(right["actions"]), "actions_right": share(right["actions"]), "no_action_right": share(right["calm"]),
            "actions_made": len(right["valid"]), "actions_valid": share(right["valid"]), "in_tone": share(right["tone"]),
            "ended": share(right["ended"])}, wrong


def answered(a, tokens, model, precision):
    """The same shares for every third turn, with attention by `tandem attend`."""
    right = {key: [] for key in ("facts_exact", "refusals_right", "actions_right", "no_action_right", "actions_valid", "in_tone")}
    wrong, count = [], 0
    for number, (text, card, told) in enumerate(dialogues(a.cards, a.turns)):
        prompt = npc_data.turn_tokens(tokens, "system", npc_text.OPENING + text)
        for i, turn in enumerate(told):
            prompt += npc_data.turn_tokens(tokens, "user", turn.user)
            if (i + number) % 3 == 0 and count < a.whole:
                count += 1
                reply = tokens.decode(npc_whole.Whole(a.tandem, model, precision).greedy(prompt + npc_data.opening(tokens), tokens.stop))
                judged, line = npc_text.judge(turn, reply), npc_text.split_reply(reply)[1]
                right["actions_right" if turn.action else "no_action_right"].append(judged["action"])
                for key, what, asked in (("facts_exact", "facts", turn.facts), ("refusals_right", "refusal", turn.refusal), ("in_tone", "tone", True)):
                    right[key] += [judged[what]] if asked else []
                right["actions_valid"] += [is_valid(line, card)] if line is not None else []
                if not all(judged.values()):
                    wrong.append((turn.kind, turn.user, reply, turn.facts, turn.action))
            prompt += npc_data.turn_tokens(tokens, "assistant", turn.text())
    return {"by": "npc_whole.py", "replies": count, "facts_asked": len(right["facts_exact"]), "refusals_asked": len(right["refusals_right"]),
            "actions_asked": len(right["actions_right"]), "actions_made": len(right["actions_valid"]),
            **{key: share(flags) for key, flags in right.items()}}, wrong


def logits_of(a, ids, options):
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        subprocess.run([a.tandem, "logits", "--model", a.model, "--tokens", ",".join(map(str, ids)), "--out", file.name, *options], check=True, timeout=600)
        data = pathlib.Path(file.name).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])["logits"]["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], np.float32).reshape(len(ids), -1)


def whole_logits(a, model, precision, ids):
    return npc_whole.Whole(a.tandem, model, precision).read(ids)


def perplexity(a, tokens, logits_of, exact=None):
    """Of what characters ought to say; and how far the distributions are from the exact ones, where there are any."""
    losses, divergences, all_logits = [], [], []
    for number in range(a.documents):
        row = np.array(npc_data.row(tokens, f"{SEED} {number}", npc_data.CONTEXT, held=True))
        ids, said = row & (npc_data.REPLY - 1), np.flatnonzero(row[1:] >= npc_data.REPLY)
        logits = logits_of(ids[:said[-1] + 1].tolist()).astype(np.float64)[said]
        logits -= logits.max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        losses += (-logs[np.arange(len(said)), ids[said + 1]]).tolist()
        if exact is not None:
            divergences += (np.exp(exact[number]) * (exact[number] - logs)).sum(1).tolist()
        all_logits.append(logs)
    return {"tokens": len(losses), "perplexity": round(math.exp(np.mean(losses)), 5), "kl": float(f"{np.mean(divergences):.3g}") if exact is not None else 0.0}, all_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default="build/tandem")
    parser.add_argument("--model", default="demo/assets/npc.gguf")
    parser.add_argument("--cards", type=int, default=60)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--documents", type=int, default=30, help="full contexts that the perplexity is of")
    parser.add_argument("--whole", type=int, default=48, help="questions for npc_whole.py, some seconds each")
    parser.add_argument("--options", default="", help="more of them for the tool, as '--rung cpu'")
    parser.add_argument("--wrong", type=int, default=0, help="so many wrong answers of each way are printed")
    parser.add_argument("--json", type=pathlib.Path)
    a = parser.parse_args()
    tokens, more, rows, exact = npc_tokens.Tokens(), a.options.split(), [], None
    model = npc_whole.read_gguf(a.model)
    for attention, kv, free in [(*way, False) for way in WAYS] + [("f16", "f16", True)]:
        options = ["--attention", attention, "--kv", kv, *more]
        row = {"attention": attention, "kv": kv, "grammar": not free}
        try:
            shares, wrong = talked(a, options + ["--free"] if free else options)
            numbers = functools.partial(logits_of, a, options=options)
        except Refused as why:
            row |= {"grammar": False, "refused": str(why)}
            shares, wrong = answered(a, tokens, model, attention)
            numbers = functools.partial(whole_logits, a, model, attention)
        row |= shares
        if not free:
            measured, logs = perplexity(a, tokens, numbers, exact)
            exact = exact or logs
            row |= measured
        rows.append(row)
        print(json.dumps(row), flush=True)
        for kind, user, reply, facts, action in wrong[:a.wrong]:
            print(f"    {kind}: {user}\n      {reply!r}\n      {facts} {action}")
    report = {"bench": "npc model", "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "model": pathlib.Path(a.model).name,
              "model_bytes": pathlib.Path(a.model).stat().st_size, "cards": a.cards, "rows": rows}
    if a.json:
        a.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
