"""Sessions and jobs.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import sys
import weakref

from . import _api
from ._arrays import OF_NUMPY, Memory, Pages, Tensor
from ._library import C, ArgumentError, check, failed, make, values

FOREVER = 2**64 - 1
OPERATIONS = {name: getattr(_api, f"tandem_{name}") for name, _ in _api.tandem_operands._fields_ if name != "reserved"}


def ns(seconds):
    return FOREVER if seconds is None else max(0, min(FOREVER, int(seconds * 1e9)))


def devices():
    """What could compute: CUDA's devices, then the CPU, each as a dict."""
    count = ctypes.c_uint32()
    check(C.tandem_devices(ctypes.byref(count), None))
    found = (_api.tandem_device * count.value)()
    found[0].struct_bytes = ctypes.sizeof(_api.tandem_device)
    check(C.tandem_devices(ctypes.byref(count), found))
    return [values(one) for one in found[:count.value]]


class Job:
    """One that was submitted. What it works on lives until it has ended."""

    def __init__(self, session, ticket, keep):
        self.session, self.ticket, self._keep, self._report = session, ticket, keep, None

    def _look(self, status, report):
        if status == _api.Status.OK and report.state >= _api.JobState.DONE:
            self._report, self._keep = report, None
        return report

    @property
    def state(self):
        if self._report is None:
            report = make(_api.tandem_job_report)
            status = C.tandem_poll(self.session.handle, self.ticket, ctypes.byref(report))
            check(status)
            return _api.JobState(self._look(status, report).state)
        return _api.JobState(self._report.state)

    def wait(self, timeout=None):
        """Its report as a dict, once it is DONE; raises why it is not, and Busy after `timeout` seconds."""
        while self._report is None:  # a second at a time, so that ctrl-C is heard
            report = make(_api.tandem_job_report)
            status = C.tandem_wait(self.session.handle, self.ticket, ns(1 if timeout is None else min(timeout, 1)),
                                   ctypes.byref(report))
            self._look(status, report)
            if status != _api.Status.ERROR_BUSY:
                check(status)
            elif timeout is not None:
                timeout -= 1
                if timeout <= 0:
                    check(status)
        if self._report.state != _api.JobState.DONE:
            state = _api.JobState(self._report.state)
            raise failed(self._report.status, f"the job ended {state.name}" + (
                f": {self.session.error_text}" if state == _api.JobState.FAILED else ""))
        return values(self._report)

    def cancel(self):
        """Whether it ends CANCELLED."""
        status = C.tandem_cancel(self.session.handle, self.ticket)
        if status != _api.Status.ERROR_BUSY:
            check(status)
        return status == _api.Status.OK


class Session:
    """Where jobs are computed; arguments are the fields of tandem_session_desc, enums by number or name:
    Session(rung="cpu"), Session(socket="") for tandemd. It is closed by close(), at the end of a `with`, or when forgotten."""

    def __init__(self, log=None, **fields):
        self.handle, self._own = ctypes.c_void_p(), weakref.WeakSet()
        keep = []
        if log is not None:
            kind = dict(_api.tandem_session_desc._fields_)["log"]
            self._log = fields["log"] = kind(lambda user, level, text: log(level, text.decode(errors="replace")))
        for name in ("vulkan", "allocate", "release", "user", "error_text"):
            if fields.get(name) is not None:
                raise ArgumentError(f"{name} is not for sessions of Python")
        tuning = fields.get("tuning")
        if isinstance(tuning, str):
            fields["tuning_bytes"] = len(tuning.encode())
        desc = make(_api.tandem_session_desc, keep, **fields)
        check(C.tandem_session_create(ctypes.byref(desc), ctypes.byref(self.handle)))
        self.backend = _api.Backend(self.info()["backend"])
        self.maps_pages = self.backend == _api.Backend.CUDA

    @classmethod
    def on_torch(cls, **fields):
        """In torch's CUDA context, in order with its current stream: nothing waits on the host."""
        import torch

        torch.cuda.current_blas_handle()  # so there is a context
        context = ctypes.c_void_p()
        if ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) or not context:
            raise ArgumentError("torch has no CUDA context in this thread")
        stream = torch.cuda.current_stream().cuda_stream or 1  # CU_STREAM_LEGACY, which torch calls 0
        return cls(cuda_context=context.value, cuda_stream=stream, **fields)

    @property
    def is_open(self):
        return bool(self.handle)

    def adopt(self, it):
        self._own.add(it)

    def close(self):
        if self.handle:
            for it in sorted(self._own, key=lambda one: getattr(one, "depth", 0), reverse=True):
                it.close()  # characters before their language
            check(C.tandem_session_destroy(ctypes.byref(self.handle)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "handle", None) and not sys.is_finalizing():
            self.close()

    def _alive(self):
        if not self.handle:
            raise ArgumentError("the session is closed")
        return self.handle

    def info(self):
        info = make(_api.tandem_info)
        check(C.tandem_session_info(self._alive(), ctypes.byref(info)))
        return values(info)

    @property
    def error_text(self):
        """Of the last failure on it, whichever job's that was."""
        text = ctypes.create_string_buffer(4096)
        check(C.tandem_error_text(self._alive(), text, len(text)))
        return text.value.decode(errors="replace")

    def tensor(self, array, dtype=None, name="an array"):
        """Shares an array for more than one job."""
        self._alive()
        return Tensor(self, array, dtype, name)

    def empty(self, shape, dtype="float32"):
        """An array of numpy's in memory that the session's device works on, whichever that is."""
        import numpy as np

        self._alive()
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if dtype.str not in OF_NUMPY or size <= 0:
            raise ArgumentError(f"an array of shape {shape} and {dtype} cannot be shared")
        pages = Pages(self, size)
        array = np.frombuffer(pages.buffer, dtype, size // dtype.itemsize).reshape(shape).view(_Shared)
        array.pages = pages
        return array

    def submit(self, operation, *, deadline=None, numbers=None, **fields):
        """A job of an operation of tandem/types.h, by its struct's fields: arrays for its views."""
        self._alive()
        if operation not in OPERATIONS:
            raise ArgumentError(f"'{operation}' is none of {', '.join(OPERATIONS)}")
        kind, keep = OPERATIONS[operation], []
        views = {name for name, of in kind._fields_ if of is _api.tandem_view}
        for name in views & fields.keys():
            if fields[name] is not None:
                if name in _api.WRITTEN[operation]:
                    _check_writable(f"{operation}.{name}", fields[name])
                fields[name] = self._view(fields[name], f"{operation}.{name}", keep)
        job = make(_api.tandem_job, operation=getattr(_api.Operation, operation.upper()))
        if deadline is not None:
            job.deadline_ns = ns(deadline)
        setattr(job.op, operation, make(kind, keep, **fields))
        return self._submit(job, keep)

    def _submit(self, job, keep):
        ticket = ctypes.c_uint64()
        check(C.tandem_submit(self._alive(), ctypes.byref(job), ctypes.byref(ticket)))
        return Job(self, ticket.value, keep)

    def _view(self, array, name, keep):
        if isinstance(array, _api.tandem_view):
            return array
        if not isinstance(array, Tensor):
            pages = getattr(array, "pages", None)
            if pages is not None and pages.session is self and pages.mem.value:
                return _view_within(array, pages, name, keep)
            array = Tensor(self, array, name=name)
        if array.session is not self or not array.mem.value:
            raise ArgumentError(f"{name} is of another session, or closed")
        keep.append(array)
        return array.view()

    def run(self, operation, timeout=None, **fields):
        """submit() and wait()."""
        return self.submit(operation, **fields).wait(timeout)

    # The commonest operations, which know their shapes.

    def attention(self, q, k, v, out=None, **fields):
        """softmax(scale q k^T) v; arrays are [batch, heads, rows, head_dim], with fewer dimensions of one."""
        shapes = {name: Memory(array, name).shape4 for name, array in (("q", q), ("k", k), ("v", v))}
        batch, heads, q_len, head_dim = shapes["q"]
        kv_heads, kv_len = shapes["k"][1:3]
        for name in "kv":
            if shapes[name] != (batch, kv_heads, kv_len, head_dim):
                raise ArgumentError(f"{name} is of shape {shapes[name]}, not {(batch, kv_heads, kv_len, head_dim)}")
        out = self._like(q) if out is None else out
        _same_shape("out", out, shapes["q"])
        self.run("attention", q=q, k=k, v=v, o=out, batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len,
                 head_dim=head_dim, **fields)
        return out

    def norm(self, x, weight=None, bias=None, out=None, **fields):
        """Rows of x, normalised; kind="layer" or "rms"."""
        batch, heads, rows, channels = shape = Memory(x, "x").shape4
        out = self._like(x) if out is None else out
        _same_shape("out", out, shape)
        for name, array in (("weight", weight), ("bias", bias)):
            if array is not None:
                _same_shape(name, array, (1, 1, 1, channels))
        self.run("norm", x=x, weight=weight, bias=bias, y=out, batch=batch, heads=heads, rows=rows, channels=channels, **fields)
        return out

    def linear(self, x, w, bias=None, out=None, **fields):
        """x w^T + bias; x is [rows, ins], w [outs, ins]."""
        rows, ins = _matrix("x", x)
        outs, w_ins = _matrix("w", w)
        if w_ins != ins:
            raise ArgumentError(f"w has {w_ins} columns, x {ins}")
        if bias is not None:
            _same_shape("bias", bias, (1, 1, 1, outs))
        out = self._like(x, (rows, outs)) if out is None else out
        _same_shape("out", out, (1, 1, rows, outs))
        self.run("linear", x=x, w=w, bias=bias, y=out, rows=rows, ins=ins, outs=outs, **fields)
        return out

    def _like(self, array, shape=None):
        """A new array of the same kind and dtype."""
        shape = tuple(array.shape) if shape is None else shape
        if hasattr(array, "new_empty"):
            return array.new_empty(shape)
        if self.maps_pages:
            return self.empty(shape, array.dtype)
        import numpy as np

        return np.empty(shape, array.dtype)


def _check_writable(name, array):
    memory = array.memory if isinstance(array, Tensor) else None if isinstance(array, _api.tandem_view) else Memory(array, name)
    if memory and memory.read_only:
        raise ArgumentError(f"{name} is read-only, and the job writes it")


def _same_shape(name, array, shape):
    if Memory(array, name).shape4 != shape:
        raise ArgumentError(f"{name} is of shape {Memory(array, name).shape4}, not {shape}")


def _matrix(name, array):
    shape = Memory(array, name).shape4
    if shape[:2] != (1, 1):
        raise ArgumentError(f"{name} is of shape {shape}: it has to be a matrix")
    return shape[2:]


def _view_within(array, pages, name, keep):
    """Of an array, or a part of one, that Session.empty() made."""
    m = Memory(array, name)
    keep.append(array)
    batch, head, row = m.steps4()
    return make(_api.tandem_view, mem=pages.mem.value, offset_bytes=m.pointer - pages.host, dtype=m.dtype, stride_batch=batch,
                stride_head=head, stride_row=row)


def _shared_type():
    """numpy's array, with the memory that it lies in; without numpy nobody makes one."""
    try:
        import numpy as np
    except ImportError:
        return None

    class Shared(np.ndarray):
        """An array in pages that a session shares, which live as long as it, and as parts of it."""

        pages = None

        def __array_finalize__(self, of):
            pages = getattr(of, "pages", None)
            if pages is not None and pages.host <= self.__array_interface__["data"][0] < pages.host + pages.size:
                self.pages = pages

    return Shared


_Shared = _shared_type()
