#!/usr/bin/env python3
"""Makes ../models.tar.xz: small language models with random weights of each architecture and option, as GGUF files and
as the folders that transformers has, and what transformers computes of them in float32.

SPDX-License-Identifier: Apache-2.0

    make_models.py        needs torch, transformers, gguf and safetensors, and tar with xz

NAME.gguf            the model
NAME/                the same, as save_pretrained() writes it; of some
NAME.safetensors     ids I32 [tokens], and logits F32 [tokens, words]
NAME/tokens.json     of some: texts, and what PyPI's tokenizers makes of them by NAME/tokenizer.json

Weights are few different numbers, so that they pack well. Those in blocks are random blocks, multiplied out by gguf.
"""
import pathlib
import subprocess
import sys
import tempfile

import json

import gguf
import numpy
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers import normalizers, processors

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "plugin" / "tokenizer"))
import make  # noqa: E402

TOKENS, WORDS = 24, 64
TYPES = gguf.GGMLQuantizationType
SMALL = dict(vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=48, rms_norm_eps=1e-5, bos_token_id=0,
             eos_token_id=1, pad_token_id=2)
WIDE = SMALL | dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2)
GEMMA = dict(hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh")


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


# name: configuration, its options, GGUF's architecture
MODELS = {
    "llama": ("Llama", SMALL | dict(rope_parameters=rope(), tie_word_embeddings=False), "llama"),
    "llama_tied_biases": ("Llama", SMALL | dict(rope_parameters=rope(theta=500.0), tie_word_embeddings=True,
                                                attention_bias=True, mlp_bias=True), "llama"),
    "llama_linear": ("Llama", SMALL | dict(rope_parameters=rope("linear", factor=4.0)), "llama"),
    "llama_llama3": ("Llama", SMALL | dict(rope_parameters=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
        "llama"),
    "llama_yarn": ("Llama", SMALL | dict(rope_parameters=rope(
        "yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=16)), "llama"),
    "mistral": ("Mistral", SMALL | dict(rope_parameters=rope(), sliding_window=7), "llama"),
    "qwen2": ("Qwen2", SMALL | dict(rope_parameters=rope(theta=1e6), tie_word_embeddings=True,
                                    use_sliding_window=False), "qwen2"),
    "qwen3": ("Qwen3", SMALL | dict(rope_parameters=rope(theta=1e6), tie_word_embeddings=False), "qwen3"),
    "qwen3_yarn": ("Qwen3", SMALL | dict(rope_parameters=rope(
        "yarn", 1e6, factor=2.0, original_max_position_embeddings=24), tie_word_embeddings=True), "qwen3"),
    "gemma": ("Gemma", SMALL | GEMMA | dict(rope_parameters=rope(), num_key_value_heads=1), "gemma"),
    "gemma2": ("Gemma2", SMALL | GEMMA | dict(
        rope_parameters=rope(), num_hidden_layers=4, sliding_window=5, attn_logit_softcapping=2.0,
        final_logit_softcapping=1.5, query_pre_attn_scalar=20), "gemma2"),
    "gemma3": ("Gemma3Text", SMALL | GEMMA | dict(
        rope_parameters={"full_attention": rope("linear", 1e6, factor=8.0), "sliding_attention": rope(theta=10000.0)},
        num_hidden_layers=7, sliding_window=5, query_pre_attn_scalar=32), "gemma3"),
    "types": ("Llama", WIDE | dict(rope_parameters=rope(), tie_word_embeddings=False), "llama"),
    "types_k": ("Llama", WIDE | dict(rope_parameters=rope(), tie_word_embeddings=True), "llama"),
}
# By parts of GGUF's names; the others are F32.
QUANTISED = {
    "types": {"token_embd.": TYPES.F16, "output.": TYPES.Q8_0, "attn_q.": TYPES.Q4_0, "attn_k.": TYPES.Q4_0,
              "attn_v.": TYPES.Q8_0, "attn_output.": TYPES.BF16, "ffn_gate.": TYPES.Q4_1, "ffn_up.": TYPES.Q4_1,
              "ffn_down.": TYPES.Q8_0},
    "types_k": {"token_embd.": TYPES.Q6_K, "attn_q.": TYPES.Q4_K, "attn_k.": TYPES.Q4_K, "attn_v.": TYPES.Q6_K,
                "ffn_gate.": TYPES.Q5_K, "ffn_up.": TYPES.Q5_K, "ffn_down.": TYPES.Q4_K},
}
FOLDERS = ("llama", "llama_llama3", "mistral", "qwen2", "qwen3_yarn", "gemma2", "gemma3")
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
AFTER = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(name, arch):
    """"model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight" """
    parts = name.split(".")
    body, kind = ".".join(parts[:-1]), parts[-1]
    if not body.startswith("model.layers."):
        return f"{NAMES[body]}.{kind}"
    layer, body = parts[2], ".".join(parts[3:-1])
    names = NAMES | AFTER if arch in ("gemma2", "gemma3") else NAMES
    return f"blk.{layer}.{names[body]}.{kind}"


def neighbours(x, heads):
    """Channels i and i + half of each head side by side, as files of the architecture llama have them."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def back(x, heads):
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def as_file_has_it(name, x, config, arch):
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return x + 1
    if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
        return neighbours(x, config.num_attention_heads if "attn_q" in name else config.num_key_value_heads)
    return x


def random_blocks(kind, shape, random):
    """Blocks of random codes, whose scales are such that weights are about as large as others'."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=numpy.uint8)
    half = {TYPES.Q4_K: {0: 2e-4, 2: 2e-3}, TYPES.Q5_K: {0: 1e-4, 2: 2e-3}, TYPES.Q6_K: {208: 4e-5}}[kind]
    for at, scale in half.items():
        blocks[:, :, at:at + 2] = numpy.array([scale], "float16").view(numpy.uint8)
    return blocks.reshape(shape[0], -1)


def make_weights(model, random):
    for name, weight in model.named_parameters():
        size = 0.25 if "norm" in name or name.endswith("bias") else 1.7 / weight.shape[-1] ** 0.5
        x = size * numpy.clip(numpy.round(4 * random.standard_normal(weight.shape)), -12, 12) / 4
        if name.endswith("norm.weight") and not type(model).__name__.startswith("Gemma"):
            x = 1 + x
        weight.data = torch.tensor(x).bfloat16().float()


def put_keys(writer, config, arch):
    key = writer.add_key_value if hasattr(writer, "add_key_value") else None
    assert key
    u32, f32, text = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING
    for name, attribute in (("block_count", "num_hidden_layers"), ("context_length", "max_position_embeddings"),
                            ("embedding_length", "hidden_size"), ("feed_forward_length", "intermediate_size"),
                            ("attention.head_count", "num_attention_heads"),
                            ("attention.head_count_kv", "num_key_value_heads"), ("attention.key_length", "head_dim"),
                            ("attention.value_length", "head_dim")):
        key(f"{arch}.{name}", getattr(config, attribute), u32)
    key(f"{arch}.attention.layer_norm_rms_epsilon", config.rms_norm_eps, f32)
    rotation = config.rope_parameters
    if arch == "gemma3":
        key(f"{arch}.rope.freq_base_swa", rotation["sliding_attention"]["rope_theta"], f32)
        rotation = rotation["full_attention"]
    key(f"{arch}.rope.freq_base", rotation["rope_theta"], f32)
    if rotation["rope_type"] in ("linear", "yarn"):
        key(f"{arch}.rope.scaling.type", rotation["rope_type"], text)
        key(f"{arch}.rope.scaling.factor", rotation["factor"], f32)
    if rotation["rope_type"] == "yarn":
        key(f"{arch}.rope.scaling.original_context_length", rotation["original_max_position_embeddings"], u32)
        for name in ("beta_fast", "beta_slow"):
            if name in rotation:
                key(f"{arch}.rope.scaling.yarn_{name}", rotation[name], f32)
    if getattr(config, "sliding_window", None) and arch != "qwen2":
        key(f"{arch}.attention.sliding_window", config.sliding_window, u32)
    if getattr(config, "attn_logit_softcapping", None):
        key(f"{arch}.attn_logit_softcapping", config.attn_logit_softcapping, f32)
        key(f"{arch}.final_logit_softcapping", config.final_logit_softcapping, f32)
    if getattr(config, "query_pre_attn_scalar", config.head_dim) != config.head_dim:
        key(f"{arch}.attention.scale", config.query_pre_attn_scalar ** -0.5, f32)


def llama3_divisors(config):
    """As convert_hf_to_gguf.py writes them: a tensor of their own."""
    rotation, pairs = config.rope_parameters, config.head_dim // 2
    frequency = rotation["rope_theta"] ** -(numpy.arange(pairs) / pairs)
    low, high = rotation["low_freq_factor"], rotation["high_freq_factor"]
    turns = rotation["original_max_position_embeddings"] * frequency / (2 * numpy.pi)
    smooth = numpy.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rotation["factor"] + smooth)).astype("float32")


def write(folder, name):
    kind, options, arch = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval().float()
    random = numpy.random.default_rng(len(name))
    make_weights(model, random)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", arch)
    put_keys(writer, config, arch)
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    for at, weight in model.named_parameters():
        own = gguf_name(at, arch)
        x = as_file_has_it(own, weight.data.numpy(), config, arch)
        dtype = next((t for part, t in QUANTISED.get(name, {}).items() if part in own and x.ndim == 2), TYPES.F32)
        if dtype == TYPES.F32:
            writer.add_tensor(own, x)
            continue
        raw = random_blocks(dtype, x.shape, random) if dtype.name.endswith("_K") else gguf.quantize(x, dtype)
        writer.add_tensor(own, raw, raw_dtype=dtype)
        x = gguf.dequantize(raw, dtype).astype("float32").reshape(x.shape)
        if ".attn_q." in own or ".attn_k." in own:
            x = back(x, config.num_attention_heads if "attn_q" in own else config.num_key_value_heads)
        weight.data = torch.tensor(x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = random.integers(0, WORDS, TOKENS)
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0].numpy()
    save_file({"ids": ids.astype("int32"), "logits": logits}, folder / f"{name}.safetensors")
    if name in FOLDERS:
        model.to(torch.bfloat16 if name == "qwen2" else torch.float32)
        model.save_pretrained(folder / name, max_shard_size="40KB" if name == "llama" else "1GB")
        (folder / name / "generation_config.json").unlink(missing_ok=True)
    print(f"{name:20} {(folder / f'{name}.gguf').stat().st_size:8} bytes, logits to {abs(logits).max():.2f}")


def byte_level():
    """As Llama 3 has it."""
    pattern = make.PATTERNS["llama-bpe"][0]
    it = make.Tokenizer(make.models.BPE())
    it.pre_tokenizer = pattern
    it.train_from_iterator(make.few_strings() * 2, make.trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=make.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        min_frequency=2, special_tokens=["<|begin|>", "<|im_end|>"]))
    model = json.loads(it.to_str())["model"]
    it.model = make.models.BPE(model["vocab"], [tuple(m) for m in model["merges"]], ignore_merges=True)
    it.pre_tokenizer, it.decoder = pattern, make.decoders.ByteLevel()
    it.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return it, dict(bos_token="<|begin|>", eos_token={"content": "<|im_end|>"}, chat_template="<|im_start|>")


def characters(prepends):
    """As Llama 2 and Gemma have them."""
    replace = normalizers.Replace(" ", "\u2581")
    norm = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prepends else replace
    it = make.Tokenizer(make.models.BPE())
    it.normalizer = norm
    specials = ["<unk>", "<s>", "</s>"]
    it.train_from_iterator(make.few_strings() * 2, make.trainers.BpeTrainer(
        vocab_size=700, special_tokens=specials + [f"<0x{i:02X}>" for i in range(256)], show_progress=False,
        max_token_length=8, limit_alphabet=90))
    model = json.loads(it.to_str())["model"]
    it = make.Tokenizer(make.models.BPE(model["vocab"], [tuple(m) for m in model["merges"]], byte_fallback=True,
                                        unk_token="<unk>", fuse_unk=True))
    it.normalizer = norm
    it.add_special_tokens([make.AddedToken(name, special=True, normalized=False) for name in specials])
    return it, dict(bos_token="<s>", eos_token="</s>", add_bos_token=True)


def write_tokenizer(folder, tokenizer, config):
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    texts = [text for text in make.all_strings() if "\u2581" not in text]
    (folder / "tokens.json").write_text(json.dumps(
        {"texts": texts, "ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]}))


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            write(pathlib.Path(folder), name)
        for name, (tokenizer, config) in {"llama": byte_level(), "mistral": characters(True),
                                          "gemma3": characters(False)}.items():
            write_tokenizer(pathlib.Path(folder) / name, tokenizer, config)
        subprocess.run(["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner",
                        "--format=ustar", "-cJf", str(HERE.parent / "models.tar.xz"), "."], cwd=folder, check=True,
                       env={"XZ_OPT": "-9e", "PATH": "/usr/bin:/bin"})
    print((HERE.parent / "models.tar.xz").stat().st_size, "bytes packed")


if __name__ == "__main__":
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    main()
