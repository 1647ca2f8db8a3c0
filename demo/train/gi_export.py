#!/usr/bin/env python3
"""Writes a trained gi as the file that the runtime loads: weights, and the graph of operations (kernels/PROGRAM.md). Its
attention is 8b, unless an instance says otherwise.

    gi_export.py CHECKPOINT.pt OUT.safetensors

SPDX-License-Identifier: Apache-2.0
"""
import torch

import export
import gi_network
import network

GELU_TANH, TANH, MULTIPLY, ATTENTION_8B = 2, 4, 1, 2  # as types.h numbers them
HEIGHT, WIDTH = export.size_of(3)
TOKENS = f"{HEIGHT} * {WIDTH}"


def linear(graph, layer, name, x, residual=None, activation=0):
    outs, ins = layer.weight.shape
    views = {"x": x, "w": graph.weight(f"{name}.w", layer.weight, "F16"), "bias": graph.weight(f"{name}.bias", layer.bias[None], "F32")}
    if residual:
        views["residual"] = residual
    y = graph.tensor(name, "F16", TOKENS, outs)
    graph.node("linear", {"rows": TOKENS, "ins": ins, "outs": outs, "activation": activation}, **views, y=y)
    return y


def norm(graph, layer, name, x):
    channels = len(layer.weight)
    y = graph.tensor(name, "F16", TOKENS, channels)
    graph.node("norm", {"batch": 1, "heads": 1, "rows": TOKENS, "channels": channels, "epsilon": gi_network.EPSILON}, x=x,
               weight=graph.weight(f"{name}.w", layer.weight[None], "F32"), y=y)
    return y


def product(graph, name, dtype, height, width, a, b, channels=3, **numbers):
    """Of images, each [height, width, channels]."""
    y = name if name in graph.tensors else graph.tensor(name, dtype, height, width, channels)
    graph.node("binary", {"batch": 1, "heads": height, "rows": width, "channels": channels, "kind": MULTIPLY, **numbers}, a=a, b=b, y=y)
    return y


def each(tensor, width, channels, offset=0, step=1):
    """Of an image of that width every so many pixels, across and down, from a channel on."""
    return {"tensor": tensor, "offset": offset, "strides": [0, f"{step} * ({width}) * {channels}", step * channels]}


def add_layer(graph, layer, name, x):
    width = layer.out.weight.shape[0]
    dim = width // layer.heads
    qkv = linear(graph, layer.qkv, f"{name}.qkv", norm(graph, layer.norm1, f"{name}.norm1", x))
    mixed = graph.tensor(f"{name}.mixed", "F16", TOKENS, width)
    views = {part: {"tensor": qkv, "offset": i * width, "strides": [0, dim, 3 * width]} for i, part in enumerate("qkv")}
    graph.node("attention", {"batch": 1, "heads": layer.heads, "kv_heads": layer.heads, "q_len": TOKENS, "kv_len": TOKENS, "head_dim": dim,
                             "precision": ATTENTION_8B}, **views, o={"tensor": mixed, "strides": [0, dim, width]})
    x = linear(graph, layer.out, f"{name}.out", mixed, x)
    hidden = linear(graph, layer.up, f"{name}.up", norm(graph, layer.norm2, f"{name}.norm2", x), activation=GELU_TANH)
    return linear(graph, layer.down, f"{name}.down", hidden, x)


def add_scale(graph):
    """What results are in units of: gi_network.scale_of()."""
    step, half = gi_network.PATCH, export.size_of(1)[1]
    one = graph.weight("one", torch.ones(1, 3), "F32")
    everywhere = {"tensor": one, "strides": [0, 0, 0]}
    logs = product(graph, "logs", "F16", HEIGHT, WIDTH, each("tokens", half, 4 * network.FEATURES, gi_network.FEATURE_LIGHT, step // 2),
                   everywhere)
    counts = graph.tensor("counts", "F16", TOKENS, 3)
    graph.node("linear", {"rows": TOKENS, "ins": 3, "outs": 3, "activation": TANH}, x=logs, w=graph.weight("minus", -torch.eye(3), "F16"),
               residual=everywhere, y=counts)
    light = product(graph, "sampled", "F32", HEIGHT, WIDTH, each("light", "width", 4, 0, step), counts)
    graph.tensor("scale", "F32", 1, 3)
    graph.node("pool", {"batch": 1, "heads": 1, "rows": TOKENS, "channels": 3}, x=light, y="scale")
    return everywhere


def graph_of(net):
    graph = export.Graph()
    for name in gi_network.INPUTS:
        graph.tensor(name, "F32", "height", "width", gi_network.CHANNELS[name], role="input")
    graph.tensor("indirect", "F32", "height", "width", 3, role="output")
    graph.tensor("light", "F32", "height", "width", 4)
    graph.tensor("modulation", "F32", "height", "width", 3)
    half_height, half_width = export.size_of(1)
    graph.tensor("tokens", "F16", half_height, half_width, 4 * network.FEATURES)
    graph.node("demodulate", {"batch": 1, "height": "height", "width": "width"}, color="direct", albedo="albedo", normal="normal",
               depth="depth", light="light", modulation="modulation", tokens="tokens")
    everywhere = add_scale(graph)

    # Tokens of the runtime have one pixel's channels after the other's, PyTorch's pixel_unshuffle a channel's four pixels.
    order = torch.arange(4 * network.FEATURES).view(network.FEATURES, 4).T.reshape(-1)
    enter = torch.nn.Conv2d(4 * network.FEATURES, net.half, 3, 1, 1)
    enter.weight, enter.bias = torch.nn.Parameter(net.enter.weight[:, order]), net.enter.bias
    half = export.conv(graph, enter, "enter", "tokens", 1, 4 * network.FEATURES)
    quarter = export.conv(graph, net.down1, "down1", half, 1, net.half)
    x = export.conv(graph, net.down2, "down2", quarter, 2, net.quarter, relu=False)
    ray = product(graph, "ray_of_token", "F16", HEIGHT, WIDTH, each("ray", "width", 3, 0, gi_network.PATCH), everywhere)
    depth = each("tokens", half_width, 4 * network.FEATURES, gi_network.FEATURE_DEPTH, gi_network.PATCH // 2)
    place = product(graph, "place_of_token", "F16", HEIGHT, WIDTH, each("ray", "width", 3, 0, gi_network.PATCH), depth, b_channels=1)
    x = linear(graph, net.place, "place", place, linear(graph, net.ray, "direction", ray, x))
    for i, layer in enumerate(net.layers):
        x = add_layer(graph, layer, f"layer{i}", x)
    x = norm(graph, net.norm, "last", x)
    quarter = export.conv(graph, net.up2, "up2", quarter, 2, net.quarter, x, net.width)
    half = export.conv(graph, net.up1, "up1", half, 1, net.half, quarter, net.quarter)
    root = export.conv(graph, net.head, "root", half, 1, net.half, shuffle=2, relu=False)
    roots = each(root, f"2 * {half_width}", gi_network.SHUFFLED)
    lit = product(graph, "lit", "F32", "height", "width", roots, roots)
    def whole_rows(tensor):  # which are longer, so take less time
        return {"tensor": tensor, "strides": [0, "3 * width", "3 * width"]}
    reflected = graph.tensor("reflected", "F32", "height", "width", 3)
    graph.node("binary", {"batch": 1, "heads": "height", "rows": 1, "channels": "3 * width", "kind": MULTIPLY}, a=whole_rows(lit),
               b=whole_rows("albedo"), y=whole_rows(reflected))
    product(graph, "indirect", "F32", "height", "width", reflected, {"tensor": "scale", "strides": [0, 0, 0]})
    return graph


if __name__ == "__main__":
    export.main(__doc__, gi_network.Gi, graph_of)
