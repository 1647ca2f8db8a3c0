"""Models whose file has a graph, their instances, and denoisers.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
from typing import NamedTuple

from . import _api
from ._arrays import SIZES, Memory, Tensor
from ._library import C, ArgumentError, check, encoded, make
from ._session import ns

NUMPY = {_api.Dtype.F16: "float16", _api.Dtype.F32: "float32", _api.Dtype.I32: "int32", _api.Dtype.U8: "uint8",
         _api.Dtype.I8: "int8", _api.Dtype.BF16: "uint16"}
MOST_BYTES = 1 << 40


class Binding(NamedTuple):
    """A tensor that a run brings, for some numbers."""

    name: str
    role: str    # input, output or uniform
    dtype: _api.Dtype
    shape: tuple
    bytes: int
    offset_bytes: int  # of a uniform


class Model:
    """A file on a session: Model(session, path), of a language model with sequences, context and cache as well."""

    depth = 0

    def __init__(self, session, path, **fields):
        self.session, self.id = session, ctypes.c_uint64()
        session._alive()
        desc = make(_api.tandem_model_desc, path=path, **fields)
        check(C.tandem_model_create(session.handle, ctypes.byref(desc), ctypes.byref(self.id)))
        session.adopt(self)
        network = make(_api.tandem_network)
        check(C.tandem_model_info(session.handle, self.id, ctypes.byref(network)))
        self.weight_bytes, self.state_bytes = network.weight_bytes, network.state_bytes
        self._counts = network.binding_count, network.uniform_count
        self.numbers = {}  # name -> the most that it may be
        for i in range(network.number_count):
            number = make(_api.tandem_network_number)
            check(C.tandem_model_number(session.handle, self.id, i, ctypes.byref(number)))
            self.numbers[number.name.decode()] = number.most

    def _ordered(self, numbers):
        """Numbers by name in the network's order, for C."""
        if set(numbers) != set(self.numbers):
            raise ArgumentError(f"the numbers are {sorted(numbers)}, but the network's are {sorted(self.numbers)}")
        for name, value in numbers.items():
            if not 1 <= int(value) <= self.numbers[name]:
                raise ArgumentError(f"{name} is {value}, not 1 to {self.numbers[name]}")
        return (ctypes.c_uint32 * max(1, len(numbers)))(*(int(numbers[name]) for name in self.numbers))

    def _list(self, function, count, numbers):
        found = []
        for i in range(count):
            tensor = make(_api.tandem_network_tensor)
            check(function(self.session._alive(), self.id, self._ordered(numbers), len(numbers), i, ctypes.byref(tensor)))
            role = _api.NetworkRole(tensor.role).name.lower()
            found.append(Binding(tensor.name.decode(), role, _api.Dtype(tensor.dtype), tuple(tensor.shape)[4 - tensor.dimensions:],
                                 tensor.bytes, tensor.offset_bytes))
        return found

    def bindings(self, **numbers):
        """Its inputs and outputs, in their order."""
        return self._list(C.tandem_model_binding, self._counts[0], numbers)

    def uniforms(self, **numbers):
        return self._list(C.tandem_model_uniform, self._counts[1], numbers)

    def tensor(self, name):
        """(view, shape) of a tensor of the file, for jobs to read."""
        view, shape = _api.tandem_view(), (ctypes.c_uint64 * 4)()
        check(C.tandem_model_tensor(self.session._alive(), self.id, encoded("name", name), ctypes.byref(view), shape))
        return view, tuple(shape)

    def instance(self, **fields):
        return Instance(self, **fields)

    def close(self):
        if self.id.value and self.session.is_open:
            C.tandem_retire(self.session.handle, self.id)
            self.id.value = 0

    __del__ = close


class Instance:
    """A model's network with state of its own: zeros at first, then what each run leaves."""

    depth = 1

    def __init__(self, model, **fields):
        self.model, self.session, self.id = model, model.session, ctypes.c_uint64()
        desc = make(_api.tandem_instance_desc, **fields)
        check(C.tandem_model_instance(self.session._alive(), model.id, ctypes.byref(desc), ctypes.byref(self.id)))
        self.session.adopt(self)

    def prepare(self, **numbers):
        """Plans, and takes memory: so that a run of these numbers does not."""
        check(C.tandem_model_prepare(self.session._alive(), self.id, self.model._ordered(numbers), len(numbers)))

    def run(self, inputs, uniforms=None, timeout=None, deadline=None, **numbers):
        """A run: {name: array} of its inputs, and of its uniforms; returns {name: array} of its outputs."""
        import numpy as np

        self.prepare(**numbers)
        bindings, keep, outputs, views = self.model.bindings(**numbers), [], {}, []
        wanted = {b.name for b in bindings if b.role == "input"}
        if set(inputs) != wanted:
            raise ArgumentError(f"the inputs are {sorted(inputs)}, but the network's are {sorted(wanted)}")
        for b in bindings:
            if b.role == "input":
                array = self._input(b, inputs[b.name])
            else:
                array = outputs[b.name] = self.session.empty(b.shape, NUMPY[b.dtype])
            views.append(self.session._view(array, b.name, keep))
            views[-1].dtype = b.dtype
        op, job = _api.tandem_run(), make(_api.tandem_job, operation=_api.Operation.RUN)
        packed = self._uniforms(self.model.uniforms(**numbers), uniforms or {})
        ordered, array = self.model._ordered(numbers), (_api.tandem_view * max(1, len(views)))(*views)
        op.instance, op.bindings, op.binding_count = self.id.value, array, len(views)
        op.numbers, op.number_count = ordered, len(numbers)
        op.uniforms, op.uniform_bytes = ctypes.cast(packed, ctypes.c_void_p), len(packed) if packed else 0
        job.op.run = op
        if deadline is not None:
            job.deadline_ns = ns(deadline)
        self.session._submit(job, [keep, outputs, ordered, array, packed]).wait(timeout)
        return {name: np.asarray(array) for name, array in outputs.items()}

    def _input(self, b, array):
        """As it is where a run can read it so, else a copy: dense, from a multiple of 16 bytes on."""
        import numpy as np

        if isinstance(array, Tensor):
            return array
        m = Memory(array, b.name)
        if tuple(m.shape) != b.shape or m.dtype != b.dtype and not (b.dtype == _api.Dtype.BF16 and m.size == 2):
            raise ArgumentError(f"{b.name} is {m.dtype.name} {m.shape}, but the network's is {b.dtype.name} {b.shape}")
        if m.is_dense and (m.on_gpu or (m.pointer % 16 == 0 and not self.session.maps_pages)):
            return array
        copy = self.session.empty(b.shape, NUMPY[b.dtype])
        copy[...] = np.asarray(array.cpu() if hasattr(array, "cpu") else array)
        return copy

    def _uniforms(self, described, given):
        import numpy as np

        if {u.name for u in described} != set(given):
            raise ArgumentError(f"the uniforms are {sorted(given)}, but the network's are {sorted(u.name for u in described)}")
        if not described:
            return None
        packed = (ctypes.c_char * max(u.offset_bytes + u.bytes for u in described))()
        for u in described:
            value = np.ascontiguousarray(given[u.name], NUMPY[u.dtype])
            if value.size * SIZES[u.dtype] != u.bytes:
                raise ArgumentError(f"{u.name} is of shape {value.shape}, but the network's is {u.shape}")
            packed[u.offset_bytes:u.offset_bytes + u.bytes] = value.tobytes()
        return packed

    def close(self):
        if self.id.value and self.session.is_open:
            C.tandem_retire(self.session.handle, self.id)
            self.id.value = 0

    __del__ = close


def _place(color, height, width):
    """A frame of that size: rendered pixels are where `tandem help denoise` says, others are NaN, which is missing."""
    import numpy as np

    rows, columns = np.shape(color)[:2]
    if not (rows <= height <= 2 * rows and columns <= width <= 2 * columns
            and height * (columns - 1) < width * (rows + 1) and width * (rows - 1) < height * (columns + 1)):
        raise ArgumentError(f"color is {rows} x {columns}, the G-buffer {height} x {width}: color has the same size, or is upscaled, "
                            "by 2 at most, across as much as down")
    placed = np.full((height, width, 3), np.nan, np.float32)
    placed[np.ix_(*((2 * np.arange(n) + 1) * to // (2 * n) for n, to in ((rows, height), (columns, width))))] = color
    return placed


def _edges_are_hard(depth, normal):
    """Whether rays all went through the middle of pixels, as tool/edges.c finds it: of a plane the reciprocal of the depth is linear then."""
    import numpy as np

    near, seen, linear = np.zeros_like(depth[..., 0], np.float64), 0, 0
    np.divide(1, depth[..., 0], out=near, where=depth[..., 0] > 0)
    for axis in (0, 1):
        def part(x, first, less):
            return np.take(x, range(first, x.shape[axis] - less + first), axis)
        a, b, c = (part(near, i, 2) for i in range(3))
        slope = abs(c - a) / 2
        counts = (a > 0) & (b > 0) & (c > 0) & (slope > 4e-3 * b) & (slope < 0.1 * b)
        if normal is not None:
            x, y = (part(normal, i, 1) for i in range(2))
            same = (x * y).sum(-1) > 0.99 * np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
            counts &= part(same, 0, 1) & part(same, 1, 1)
        seen += counts.sum()
        linear += (counts & (abs(a - 2 * b + c) < 0.05 * slope + 5e-4 * b)).sum()
    return bool(seen >= 200 and linear > 0.75 * seen)


class Denoiser:
    """Takes the noise out of a path tracer's frames by a network, as `tandem denoise` does, whose help says what pictures are:
    arrays [height, width, channels] of floats. What it remembers goes on from frame to frame, until reset()."""

    # Channels, and what one left out is. What is of the frame before is kept here, or is that of no frame.
    INPUTS = {"color": (3, 0), "albedo": (3, 1), "normal": (3, 0), "depth": (1, 0), "motion": (2, 0), "valid": (1, 1),
              "normal_before": (3, 0), "depth_before": (1, 0), "history_before": (4, 0)}
    OUTPUTS = {"out": 3, "history": 4}

    def __init__(self, session, path, **fields):
        self.model, self._fields = Model(session, path), fields
        if set(self.model.numbers) - {"edges"} != {"height", "width"}:
            raise ArgumentError(f"{path} is no denoiser: its numbers are {sorted(self.model.numbers)}, not height and width")
        self.bindings = self.model.bindings(**self._numbers(1, 1, False))
        for b in self.bindings:
            channels = self.OUTPUTS.get(b.name) if b.role == "output" else self.INPUTS.get(b.name, (None,))[0]
            if b.dtype != _api.Dtype.F32 or b.shape != (1, 1, channels):
                raise ArgumentError(f"{path} is no denoiser: it has an {b.role} '{b.name}' of {b.dtype.name} {b.shape}")
        self.instance = None
        self.reset()

    def _numbers(self, height, width, hard):
        if hard and "edges" not in self.model.numbers:
            raise ArgumentError("hard_edges: the network has no number 'edges'")
        return {"height": height, "width": width, **({"edges": 1 + bool(hard)} if "edges" in self.model.numbers else {})}

    def reset(self):
        """As if there had been no frame."""
        self._before, self._hard = {}, None
        if self.model.state_bytes or not self.instance:  # another only where something is in it
            self.instance = self.model.instance(**self._fields)

    def __call__(self, color, albedo=None, normal=None, depth=None, motion=None, valid=None, hard_edges=None):
        """motion: across and down, in pixels, to where what is seen was in the frame before; valid: 0 where it was not seen.
        A color that is smaller than albedo, normal and depth is upscaled to their size. hard_edges: whether rays all went through the
        middle of pixels, as rasterised ones do, so that neighbours across an edge are not to be mixed; None: as depths on planes tell,
        those of the first frame of several."""
        import numpy as np

        guide = next((g for g in (albedo, normal, depth) if g is not None), color)
        height, width = np.shape(guide)[:2] if np.ndim(guide) == 3 else (0, 0)
        if np.ndim(color) == 3 and np.shape(color)[2] == 3 and np.shape(color)[:2] != (height, width) and height:
            color = _place(color, height, width)
        if self._before and self._before["history_before"].shape[:2] != (height, width):
            self._before = {}  # of another size
        given = {"color": color, "albedo": albedo, "normal": normal, "depth": depth, "motion": motion, "valid": valid, **self._before}
        inputs = {}
        for b in (b for b in self.bindings if b.role == "input"):
            channels, absent = self.INPUTS[b.name]
            shape = (height, width, channels)
            if given.get(b.name) is None:
                inputs[b.name] = np.full(shape, absent, np.float32)
            elif 0 in shape or np.shape(given[b.name]) != shape:
                raise ArgumentError(f"{b.name} is of shape {np.shape(given[b.name])}, not " + (
                    f"{shape}" if height else "(height, width, 3)"))
            else:
                inputs[b.name] = np.ascontiguousarray(given[b.name], np.float32)
        if hard_edges is None and (self._hard is None or not self._before):
            self._hard = "edges" in self.model.numbers and "depth" in inputs and _edges_are_hard(inputs["depth"], inputs.get("normal"))
        made = self.instance.run(inputs, **self._numbers(height, width, self._hard if hard_edges is None else hard_edges))
        if "history" in made:
            self._before = {"history_before": made["history"], **{f"{name}_before": np.array(inputs[name])
                                                                   for name in ("normal", "depth") if name in inputs}}
        return made["out"]
