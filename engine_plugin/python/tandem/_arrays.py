"""Arrays of numpy, torch and whoever has their interfaces, as tensors that jobs work on where they lie: nothing is copied.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import mmap

from . import _api
from ._library import C, ArgumentError, check, enumerator, make

PAGE = 4096
SIZES = {_api.Dtype.F16: 2, _api.Dtype.BF16: 2, _api.Dtype.F32: 4, _api.Dtype.I32: 4, _api.Dtype.U8: 1, _api.Dtype.I8: 1}
OF_NUMPY = {"<f2": _api.Dtype.F16, "<f4": _api.Dtype.F32, "<i4": _api.Dtype.I32, "|u1": _api.Dtype.U8, "|i1": _api.Dtype.I8}
OF_TORCH = {"torch.float16": _api.Dtype.F16, "torch.bfloat16": _api.Dtype.BF16, "torch.float32": _api.Dtype.F32,
            "torch.int32": _api.Dtype.I32, "torch.uint8": _api.Dtype.U8, "torch.int8": _api.Dtype.I8}


class Memory:
    """Where an array lies, and how: its strides are in elements."""

    def __init__(self, array, name="an array", dtype=None):
        self.on_gpu, self.read_only = False, False
        if hasattr(array, "data_ptr") and hasattr(array, "stride"):  # torch
            self.on_gpu = bool(array.is_cuda)
            if array.device.type not in ("cpu", "cuda"):
                raise ArgumentError(f"{name} is on {array.device}: it has to be on the CPU, or on CUDA's device")
            self.pointer, self.shape, self.strides = array.data_ptr(), tuple(array.shape), tuple(array.stride())
            kind, said = OF_TORCH.get(str(array.dtype)), str(array.dtype)
        else:
            described = getattr(array, "__cuda_array_interface__", None)
            self.on_gpu = described is not None
            described = described or getattr(array, "__array_interface__", None)
            if described is None:
                raise TypeError(f"{name} is a {type(array).__name__}: it has to be an array of numpy, a tensor of torch, or alike")
            said, size = described["typestr"], int(described["typestr"][2:])
            self.pointer, self.read_only = described["data"]
            self.shape = tuple(described["shape"])
            steps = described.get("strides") or dense(self.shape, size)
            if any(step % size for step in steps):
                raise ArgumentError(f"{name} has strides of {steps} bytes, which are no multiples of its elements' {size}")
            self.strides = tuple(step // size for step in steps)
            kind = OF_NUMPY.get(said)
        if dtype is not None:
            kind = _api.Dtype(enumerator(_api.Dtype, dtype, "dtype"))
        if kind is None:
            raise ArgumentError(f"{name} has elements of {said}: they have to be float16, float32, int32, uint8 or int8, of torch "
                                "bfloat16, too")
        if len(self.shape) > 4:
            raise ArgumentError(f"{name} has {len(self.shape)} dimensions, more than 4")
        if any(step < 0 for step in self.strides):
            raise ArgumentError(f"{name} has strides of {self.strides} elements: none may be below 0")
        if self.shape and self.shape[-1] > 1 and self.strides[-1] != 1:
            raise ArgumentError(f"{name} has a stride of {self.strides[-1]} elements along its last dimension, which has to be 1")
        if 0 in self.shape:
            raise ArgumentError(f"{name} of shape {self.shape} has no elements")
        self.dtype, self.size, self.array = kind, SIZES.get(kind, 1), array

    @property
    def bytes(self):
        """From its first element to behind its last one."""
        return self.size * (1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides)))

    @property
    def shape4(self):
        return (1,) * (4 - len(self.shape)) + self.shape

    def steps4(self):
        """Along batch, head and row; those of axes that are not there are as if the tensor were dense."""
        shape, steps = self.shape4, [None] * (4 - len(self.shape)) + list(self.strides)
        for axis in (2, 1, 0):
            if steps[axis] is None:
                steps[axis] = shape[axis + 1] * (steps[axis + 1] if axis < 2 else 1)
        return steps[:3]

    @property
    def is_dense(self):
        return all(n == 1 or step == want for n, step, want in zip(self.shape, self.strides, dense(self.shape, 1)))


def dense(shape, size):
    steps, step = [], size
    for n in reversed(shape):
        steps.insert(0, step)
        step *= n
    return tuple(steps)


class Tensor:
    """An array that a session shares, until it is closed or forgotten; the array lives at least as long."""

    def __init__(self, session, array, dtype=None, name="an array"):
        self.session, self.mem = session, ctypes.c_uint64()
        m = self.memory = Memory(array, name, dtype)
        # Where a device maps the host's memory, it maps whole pages.
        before = m.pointer % PAGE if session.maps_pages and not m.on_gpu else 0
        whole = -(-(before + m.bytes) // PAGE) * PAGE if session.maps_pages and not m.on_gpu else m.bytes
        if m.on_gpu:
            desc = make(_api.tandem_mem_desc, source="cuda", bytes=whole, cuda_pointer=m.pointer)
        else:
            desc = make(_api.tandem_mem_desc, source="host", bytes=whole, host=m.pointer - before)
        self.offset = before
        check(C.tandem_mem_create(session.handle, ctypes.byref(desc), ctypes.byref(self.mem)))
        session.adopt(self)

    def view(self):
        batch, head, row = self.memory.steps4()
        return make(_api.tandem_view, mem=self.mem.value, offset_bytes=self.offset, dtype=self.memory.dtype, stride_batch=batch,
                    stride_head=head, stride_row=row)

    @property
    def shape(self):
        return self.memory.shape

    def close(self):
        if self.mem.value and self.session.is_open:
            mem, self.mem.value = self.mem.value, 0
            if C.tandem_mem_destroy(self.session.handle, mem) == _api.Status.ERROR_BUSY:
                C.tandem_retire(self.session.handle, mem)

    __del__ = close


class Pages:
    """Whole pages that numpy's arrays lie in, shared with a session: so any device can work on them. The arrays keep them, also
    when the session is closed."""

    def __init__(self, session, size):
        self.session, self.mem, self.size = session, ctypes.c_uint64(), -(-size // PAGE) * PAGE
        self.buffer = mmap.mmap(-1, self.size)
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        desc = make(_api.tandem_mem_desc, source="host", bytes=self.size, host=self.host)
        check(C.tandem_mem_create(session.handle, ctypes.byref(desc), ctypes.byref(self.mem)))
        session.adopt(self)

    close = Tensor.close
    __del__ = Tensor.close
