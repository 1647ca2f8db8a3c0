"""Writes the model of characters as GGUF v3, as llama.cpp's converters name things. Needs numpy alone.

SPDX-License-Identifier: Apache-2.0
"""
import struct

import numpy as np

import npc_tokens

ALIGNMENT = 32
F32, F16, Q8_0 = 0, 1, 8
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        inner, all_of = v
        return struct.pack("<IQ", inner, len(all_of)) + b"".join(value(inner, one) for one in all_of)
    return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], v)


def q8_0(weights):
    """Blocks of 32 weights of a row: a scale, then as many int8."""
    blocks = weights.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    codes = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)).astype(np.int8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)], 1).tobytes()


def metadata(sizes, tokens, about):
    arch = "llama"
    keys = [("general.architecture", STRING, arch), ("general.type", STRING, "model"), ("general.name", STRING, about["name"]),
            ("general.description", STRING, about["description"]), ("general.license", STRING, "apache-2.0"),
            ("general.file_type", U32, about["file_type"]), ("general.quantization_version", U32, 2)]
    keys += [(f"{arch}.{name}", U32, number) for name, number in {
        "block_count": sizes["layers"], "context_length": sizes["context"], "embedding_length": sizes["dim"],
        "feed_forward_length": sizes["hidden"], "attention.head_count": sizes["heads"], "attention.head_count_kv": sizes["kv_heads"],
        "attention.key_length": sizes["head_dim"], "attention.value_length": sizes["head_dim"], "rope.dimension_count": sizes["head_dim"],
        "vocab_size": len(tokens)}.items()]
    keys += [(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT, sizes["epsilon"]), (f"{arch}.rope.freq_base", FLOAT, sizes["rope_base"])]
    control, normal = 3, 1
    keys += [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "smollm"),
             ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens.pieces)),
             ("tokenizer.ggml.token_type", ARRAY, (I32, [control if i < len(npc_tokens.SPECIAL) else normal for i in range(len(tokens))])),
             ("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(merge) for merge in tokens.merges])),
             ("tokenizer.ggml.bos_token_id", U32, tokens.end), ("tokenizer.ggml.eos_token_id", U32, tokens.stop),
             ("tokenizer.ggml.unknown_token_id", U32, tokens.end), ("tokenizer.ggml.padding_token_id", U32, tokens.end),
             ("tokenizer.ggml.add_bos_token", BOOL, False), ("tokenizer.chat_template", STRING, TEMPLATE)]
    return b"".join(text(name) + struct.pack("<I", kind) + value(kind, v) for name, kind, v in keys), len(keys)


def write(path, sizes, tensors, tokens, name, description, kind="q8_0"):
    """tensors: names of GGUF's and float32 arrays, rows first."""
    wide = {"q8_0": Q8_0, "f16": F16, "f32": F32}[kind]
    head, count = metadata(sizes, tokens, {"name": name, "description": description, "file_type": {Q8_0: 7, F16: 1, F32: 0}[wide]})
    infos, data, offset = [], [], 0
    for tensor, array in tensors.items():
        of = wide if array.ndim > 1 else F32
        data.append({F32: lambda a: a.astype("<f4").tobytes(), F16: lambda a: a.astype("<f2").tobytes(), Q8_0: q8_0}[of](array))
        infos.append(text(tensor) + struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}Q", *reversed(array.shape)) + struct.pack("<IQ", of, offset))
        data[-1] += bytes(-len(data[-1]) % ALIGNMENT)
        offset += len(data[-1])
    start = b"GGUF" + struct.pack("<IQQ", 3, len(infos), count) + head + b"".join(infos)
    path.write_bytes(start + bytes(-len(start) % ALIGNMENT) + b"".join(data))
