#!/usr/bin/env python3
"""Writes a trained denoiser as the file that the runtime loads: weights, and the graph of operations (kernels/PROGRAM.md).

    export.py CHECKPOINT.pt OUT.safetensors

SPDX-License-Identifier: Apache-2.0
"""
import json
import sys

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import network

MOST = 3840  # pixels a side


class Graph:
    """Tensors and nodes as they come."""

    def __init__(self):
        self.tensors, self.nodes, self.weights, self.numbers = {}, [], {}, {"height": MOST, "width": MOST}

    def tensor(self, name, dtype, *shape, role="temporary"):
        self.tensors[name] = {"role": role, "dtype": dtype, "shape": list(shape)}
        return name

    def weight(self, name, values, dtype):
        self.weights[name] = np.ascontiguousarray(values.detach().cpu().float().numpy())  # write() rounds them
        return self.tensor(name, dtype, *values.shape, role="weight")

    def node(self, operation, numbers, **views):
        self.nodes.append({"operation": operation, **numbers, "views": views})


def size_of(level):
    """Height and width of a level, as expressions."""
    return tuple(f"ceil_div({axis}, {2 ** level})" if level else axis for axis in ("height", "width"))


def conv(graph, layer, name, x, level, channels, coarse=None, coarse_channels=0, shuffle=1, relu=True):
    """Adds a layer whose input is of that level; its output's name."""
    weight = layer.weight
    outs, stride = weight.shape[0], layer.stride[0]
    bias = layer.bias
    if shuffle == 2:  # PyTorch's pixel_shuffle has a channel's four pixels together, the runtime a pixel's channels
        order = torch.arange(outs).view(outs // 4, 4).T.reshape(-1)
        weight, bias = weight[order], bias[order]
    weight = weight.permute(0, 2, 3, 1).reshape(outs, -1)
    height, width = size_of(level + (stride == 2))
    if shuffle == 2:
        height, width = f"2 * {height}", f"2 * {width}"
    y = graph.tensor(name, "F16", height, width, outs // shuffle ** 2)
    rows, columns = size_of(level)
    views = {"x": x, "w": graph.weight(f"{name}.w", weight, "F16"), "bias": graph.weight(f"{name}.bias", bias[None], "F32"), "y": y}
    if coarse:
        views["coarse"] = coarse
    graph.node("conv", {"batch": 1, "height": rows, "width": columns, "channels": channels, "coarse_channels": coarse_channels, "outs": outs,
                        "size": layer.kernel_size[0], "stride": stride, "shuffle": shuffle, "relu": int(relu)}, **views)
    return y


HISTORY = (("motion", 2), ("valid", 1), ("normal_before", 3), ("depth_before", 1), ("history_before", 4))


def add_reproject(graph):
    """History: `history_before` is what `history` was after the frame before, of which normal_before and depth_before are."""
    for name, channels in HISTORY:
        graph.tensor(name, "F32", "height", "width", channels, role="input")
    graph.tensor("history", "F32", "height", "width", 4, role="output")
    graph.tensor("seen", "F32", "height", "width", 4)
    graph.node("reproject", {"batch": 1, "height": "height", "width": "width"}, history="history_before", motion="motion", valid="valid",
               normal="normal", depth="depth", normal_before="normal_before", depth_before="depth_before", o="seen")


def head_view(head, part, level, dim, parts):
    """Channels of a head: the part-th of its queries and keys."""
    width = f"2 * {size_of(1)[1]}" if level == 0 else size_of(level)[1]
    return {"tensor": head, "offset": part * dim, "strides": [0, f"{width} * {parts * dim}", parts * dim]}


def graph_of(net):
    graph, dim = Graph(), net.dim
    a, b, c = net.widths
    for name, channels in (("color", 3), ("albedo", 3), ("normal", 3), ("depth", 1)):
        graph.tensor(name, "F32", "height", "width", channels, role="input")
    graph.tensor("out", "F32", "height", "width", 3, role="output")
    graph.tensor("light", "F32", "height", "width", 4)
    graph.tensor("modulation", "F32", "height", "width", 3)
    graph.tensor("tokens", "F16", *size_of(1), 4 * net.features)
    if net.history:
        add_reproject(graph)
    graph.node("demodulate", {"batch": 1, "height": "height", "width": "width"}, color="color", albedo="albedo", normal="normal", depth="depth",
               light="light", modulation="modulation", tokens="tokens", **({"history": "seen"} if net.history else {}))

    # Tokens of the runtime have one pixel's channels after the other's, PyTorch's pixel_unshuffle a channel's four pixels.
    order = torch.arange(4 * net.features).view(net.features, 4).T.reshape(-1)
    enter = torch.nn.Conv2d(4 * net.features, a, 3, 1, 1)
    enter.weight, enter.bias = torch.nn.Parameter(net.enter.weight[:, order]), net.enter.bias
    h = conv(graph, enter, "enter", "tokens", 1, 4 * net.features)
    h = conv(graph, net.half1, "half1", h, 1, a)
    q = conv(graph, net.quarter, "quarter", conv(graph, net.down1, "down1", h, 1, a), 2, b)
    e = conv(graph, net.eighth, "eighth", conv(graph, net.down2, "down2", q, 2, b), 3, c)
    e = conv(graph, net.eighth2, "eighth2", e, 3, c)
    q = conv(graph, net.quarter2, "quarter2", conv(graph, net.up2, "up2", q, 2, b, e, c), 2, b)
    h = conv(graph, net.half2, "half2", conv(graph, net.up1, "up1", h, 1, a, q, b), 1, a)
    heads = [conv(graph, net.head0, "head0", h, 1, a, shuffle=2, relu=False), conv(graph, net.head1, "head1", h, 1, a, relu=False),
             conv(graph, net.head2, "head2", q, 2, b, relu=False), conv(graph, net.head3, "head3", e, 3, c, relu=False)]

    def part(level, which):
        return head_view(heads[level], which, level, dim, 4 + net.history if level == 0 else 3)

    def key(level):
        return part(level, 1 if level == 0 else 2)

    def gather(name, level, radius, bias, channels=4, step=1, **views):
        height, width = size_of(level)
        rows, columns = size_of(level + (step == 2))
        o = name if name in graph.tensors else graph.tensor(name, "F32", rows, columns, channels)
        biases = torch.atleast_2d(bias)  # one for each kind of edges, or for all
        of_bias = graph.weight(f"{name}.bias", biases, "F32")
        if len(biases) > 1:
            of_bias = {"tensor": of_bias, "offset": f"(edges - 1) * {biases.shape[1]}"}
        graph.node("gather", {"batch": 1, "height": height, "width": width, "dim": dim, "radius": radius, "step": step, "channels": channels,
                              "coarse_radius": net.coarse_radius}, **views, bias=of_bias, o=o)
        return o

    lights = ["light"]
    for level in range(1, network.LEVELS):
        lights.append(gather(f"light{level}", level - 1, 2, net.bias_down[level - 1], step=2, q=part(level, 0), k=key(level - 1), v=lights[-1]))
    last = network.LEVELS - 1
    out = gather(f"gathered{last}", last, net.radius[last], net.bias[last], q=part(last, 1), k=key(last), v=lights[last])
    for level in reversed(range(last)):
        query = part(0, 0) if level == 0 else part(level, 1)
        has_history = net.history and level == 0
        before = {"k_before": part(0, 4), "v_before": "seen"} if has_history else {}
        out = gather("history" if has_history else f"gathered{level}", level, net.radius[level], net.bias[level], q=query, k=key(level), v=lights[level],
                     k_coarse=key(level + 1), v_coarse=out, **before)
    graph.numbers["edges"] = 2  # 1: smooth, as of samples all over the pixel; 2: hard, as of rays through its middle
    gather("out", 0, net.final_radius, torch.stack((net.bias_final, net.hard_bias())), channels=3, q=part(0, 2), k=part(0, 3), v=out, factor="modulation")
    return graph


def write(graph, path):
    text = json.dumps({"version": 1, "numbers": graph.numbers, "tensors": graph.tensors, "nodes": graph.nodes})
    types = {"F16": np.float16, "F32": np.float32}
    save_file({name: values.astype(types[graph.tensors[name]["dtype"]]) for name, values in graph.weights.items()}, path, {"tandem.graph": text})


def read(path):
    """Of a denoiser that main() wrote: options of network.Denoiser, and its state. Where weights lie in the file follows from what becomes
    of a network whose weights are numbers from 0 on."""
    try:
        with safe_open(path, "np") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}
            gathers = [node for node in json.loads(file.metadata()["tandem.graph"])["nodes"] if node["operation"] == "gather"]
        *radius, last = gathers[network.LEVELS - 1 :]
        options = {"widths": tuple(len(weights[f"{name}.w"]) for name in ("enter", "quarter", "eighth")), "dim": last["dim"],
                   "radius": tuple(node["radius"] for node in reversed(radius)), "coarse_radius": last["coarse_radius"],
                   "final_radius": last["radius"], "history": "history.bias" in weights}
        net = network.Denoiser(**options)
        state = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
        torch.nn.utils.vector_to_parameters(torch.arange(len(state), dtype=torch.float32), net.parameters())
        for name, places in graph_of(net).weights.items():
            if name == "out.bias":  # the other row follows from it
                places, weights[name] = places[:1], weights[name][:1]
            if weights[name].shape != places.shape:
                raise ValueError(f"{name} is {weights[name].shape}, not {places.shape}")
            state[torch.from_numpy(places.astype(np.int64))] = torch.from_numpy(weights[name].astype(np.float32))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path}: not a denoiser of export.py: {error}") from error
    torch.nn.utils.vector_to_parameters(state, net.parameters())
    return options, net.state_dict()


def main(usage, kind, graph_of_kind):
    """A program's: of a checkpoint of that kind of network."""
    if len(sys.argv) != 3:
        sys.exit(usage)
    checkpoint = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
    net = kind(**checkpoint["options"])
    net.load_state_dict(checkpoint["weights"])
    write(graph_of_kind(net), sys.argv[2])


if __name__ == "__main__":
    main(__doc__, network.Denoiser, graph_of)
