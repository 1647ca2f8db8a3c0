"""A small language model with made-up weights that can be asked anything: a GGUF file of Llama's architecture, ChatML, with the
bytes as its words.

SPDX-License-Identifier: Apache-2.0
"""
import random
import struct

CONTEXT, DIM, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 1024, 64, 128, 2, 1, 32, 2
F32, F16, ALIGNMENT = 0, 1, 32
INT, U32, FLOAT, STRING, ARRAY = 5, 4, 6, 8, 9


def words():
    """As byte-level vocabularies write bytes, and ChatML's two."""
    printed = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    others = [b for b in range(256) if b not in printed]
    names = {b: chr(b) for b in printed} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [names[b] for b in range(256)] + ["<|im_start|>", "<|im_end|>"]


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def keys(vocabulary):
    numbers = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": DIM, "feed_forward_length": HIDDEN,
               "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
               "attention.value_length": HEAD_DIM, "rope.dimension_count": HEAD_DIM}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
             "tokenizer.chat_template": "{{'<|im_start|>' + role}}"}
    kinds = [1] * 256 + [3, 3]
    yield from (string(f"llama.{k}") + struct.pack("<II", U32, v) for k, v in numbers.items())
    yield from (string(f"llama.{k}") + struct.pack("<If", FLOAT, v) for k, v in floats.items())
    yield from (string(k) + struct.pack("<I", STRING) + string(v) for k, v in texts.items())
    yield string("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, len(vocabulary)) + b"".join(map(string, vocabulary))
    yield string("tokenizer.ggml.merges") + struct.pack("<IIQ", ARRAY, STRING, 0)
    yield string("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", ARRAY, INT, len(kinds), *kinds)
    yield string("tokenizer.ggml.eos_token_id") + struct.pack("<II", U32, 257)


def tensors(count):
    """(name, columns, rows)."""
    yield "token_embd.weight", DIM, count
    for i in range(LAYERS):
        for name, columns, rows in (("attn_norm", DIM, 1), ("attn_q", DIM, HEADS * HEAD_DIM), ("attn_k", DIM, KV_HEADS * HEAD_DIM),
                                    ("attn_v", DIM, KV_HEADS * HEAD_DIM), ("attn_output", HEADS * HEAD_DIM, DIM),
                                    ("ffn_norm", DIM, 1), ("ffn_gate", DIM, HIDDEN), ("ffn_up", DIM, HIDDEN),
                                    ("ffn_down", HIDDEN, DIM)):
            yield f"blk.{i}.{name}.weight", columns, rows
    yield "output_norm.weight", DIM, 1


def write(path):
    dice, vocabulary = random.Random(1), words()
    described, data, values = [], b"", list(keys(vocabulary))
    for name, columns, rows in tensors(len(vocabulary)):
        size = 1.7 / columns ** 0.5
        norm = rows == 1
        numbers = [1.0] * columns if norm else [size * (2 * dice.random() - 1) for _ in range(columns * rows)]
        described.append(string(name) + (struct.pack("<IQ", 1, columns) if norm else struct.pack("<IQQ", 2, columns, rows))
                         + struct.pack("<IQ", F32 if norm else F16, len(data)))
        data += struct.pack(f"<{len(numbers)}{'f' if norm else 'e'}", *numbers)
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(described), len(values)) + b"".join(values) + b"".join(described)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
