#!/usr/bin/env python3
"""Makes fixtures.safetensors: what transformers computes of prompts.txt in float32, with SmolLM2's own weights.

SPDX-License-Identifier: Apache-2.0

    make_fixtures.py MODEL.gguf    the package's file; needs torch, transformers and gguf

Each line of prompts.txt is what a user says; the model's answer are the most likely tokens, GREEDY of them, and a
prompt is left out where two tokens are nearly as likely, so that the answer does not depend on how sums are rounded.
Then come texts, of sentences that tests/kernels/minilm has, without an answer.

lengths, prompts I32 [sequences]: tokens of each, and how many of them are not an answer; ids I32 [all tokens, one
sequence after the other]; for each token the logits of the next one: tops I32 and top_logits F32 [tokens, TOP], the
largest ones; sums F32 [tokens], log(sum(exp(logits))); and whole F16 [words], all of the last token's of sequence 0.
"""
import pathlib
import sys

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "minilm"))
import minilm  # noqa: E402

GREEDY, TOP, SENTENCES_OF_TEXT, MOST_OF_TEXT = 32, 8, 15, 160
LEAST_MARGIN = 0.05  # of a logit to the one after it


def answer(model, ids):
    """The tokens with an answer behind, and the smallest margin. By no generate(), which has rules of its own."""
    margins, out = [], model(torch.tensor([ids]), use_cache=True)
    for _ in range(GREEDY):
        best = out.logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        ids = ids + [int(best.indices[0])]
        out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return ids, min(margins)


def sequences(model, tokenizer):
    """(tokens, how many are the prompt's)"""
    for line in (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines():
        ids = tokenizer.apply_chat_template([{"role": "user", "content": line}], add_generation_prompt=True,
                                            return_dict=False)
        answered, margin = answer(model, ids)
        print(f"{margin:.3f}", repr(tokenizer.decode(answered[len(ids):])), flush=True)
        if margin >= LEAST_MARGIN:
            yield answered, len(ids)
    sentences = (HERE.parent / "minilm/sentences.txt").read_text(encoding="utf-8").splitlines()
    for first in range(0, len(sentences) - SENTENCES_OF_TEXT, SENTENCES_OF_TEXT):
        ids = tokenizer(" ".join(sentences[first:first + SENTENCES_OF_TEXT]))["input_ids"]
        yield ids[:MOST_OF_TEXT], len(ids[:MOST_OF_TEXT])


def main(path):
    path = pathlib.Path(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    out = {name: [] for name in ("lengths", "prompts", "ids", "tops", "top_logits", "sums")}
    with torch.no_grad():
        for ids, prompt in sequences(model, tokenizer):
            logits = model(torch.tensor([ids])).logits[0]
            best = logits.topk(TOP)
            if not out["ids"]:
                out["whole"] = logits[-1].numpy()
            out["lengths"].append(len(ids))
            out["prompts"].append(prompt)
            out["ids"] += ids
            out["tops"].append(best.indices.numpy())
            out["top_logits"].append(best.values.numpy())
            out["sums"].append(logits.logsumexp(dim=1).numpy())
    ints = ("lengths", "prompts", "ids")
    arrays = {name: numpy.array(out[name], dtype="int32") for name in ints}
    arrays["tops"] = numpy.concatenate(out["tops"]).astype("int32")
    arrays |= {name: numpy.concatenate(out[name]).astype("float32") for name in ("top_logits", "sums")}
    arrays["whole"] = out["whole"].astype("float16")
    print(len(out["lengths"]), "sequences,", len(out["ids"]), "tokens")
    minilm.write_safetensors(HERE / "fixtures.safetensors", arrays, {})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
