"""Finds libtandem, and turns its statuses into exceptions and Python's values into its structs.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import os
import pathlib

from . import _api

NAME = "libtandem.so.0"


class Error(Exception):
    """What the library refuses or fails at; `status` is its tandem_status."""

    status = None


class ArgumentError(Error, ValueError):
    status = _api.Status.ERROR_ARG


class Unsupported(Error):
    """Right in itself, but not on this device or build."""

    status = _api.Status.ERROR_UNSUPPORTED


class OutOfMemory(Error, MemoryError):
    status = _api.Status.ERROR_NOMEM


class DeviceError(Error):
    status = _api.Status.ERROR_DEVICE


class Lost(Error):
    """The device for good, a daemon for a while."""

    status = _api.Status.ERROR_LOST


class FileError(Error, OSError):
    status = _api.Status.ERROR_IO


class FormatError(Error, ValueError):
    """A file or a peer does not keep to its format."""

    status = _api.Status.ERROR_PROTOCOL


class Busy(Error):
    """Not yet."""

    status = _api.Status.ERROR_BUSY


ERRORS = {kind.status: kind for kind in Error.__subclasses__()}


def _open():
    """TANDEM_LIBRARY of the environment, else what came with this package, else the machine's."""
    beside = pathlib.Path(__file__).with_name(NAME)
    asked = os.environ.get("TANDEM_LIBRARY")
    path = asked or (str(beside) if beside.exists() else NAME)
    try:
        library = _api.load(path)
    except OSError as error:
        raise ImportError(f"Tandem's library cannot be opened: {error}. TANDEM_LIBRARY may name it") from None
    if not hasattr(library, "tandem_version") or library.tandem_version() >> 22 != _api.VERSION[0]:
        raise ImportError(f"{path} is of another major version than this package, {_api.VERSION[0]}")
    return library


C = _open()


def failed(status, text):
    """The exception for a status, with its text."""
    return ERRORS.get(status, Error)(text or C.tandem_status_text(status).decode())


def check(status):
    """Raises what this thread's last call failed with."""
    if status != _api.Status.OK:
        text = ctypes.create_string_buffer(4096)
        C.tandem_error_text(None, text, len(text))
        raise failed(status, text.value.decode(errors="replace"))


def encoded(name, value):
    """A text or a path for C. ctypes takes a number for an address, and a text ends at its first NUL there."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is a {type(value).__name__}: it has to be a text")
    value = os.fspath(value)
    try:  # a path is whatever bytes it has
        value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape" if name == "path" else "strict")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name}: {error}") from None
    if b"\0" in value:
        raise ArgumentError(f"{name} has a NUL character in it")
    return value


def enumerator(kind, value, what):
    """A number of an enum: as itself, or by its name in any case, as precision="8b"; `what` it is of."""
    if isinstance(value, str):
        name = value.upper()
        for member in kind:
            if member.name.lstrip("_") == name:
                return int(member)
        known = ", ".join(member.name.lstrip("_").lower() for member in kind)
        raise ArgumentError(f"{what}: '{value}' is none of {known}")
    return int(value)


# Fields that hold a number of an enum, which C has as uint32_t.
ENUMS = {"backend": _api.Backend, "rung": _api.Rung, "job_class": _api.Class, "source": _api.MemSource,
         "precision": _api.Precision, "smooth": _api.Smooth, "granularity": _api.Granularity, "cache": _api.CacheFormat,
         "activation": _api.Activation, "gate": _api.Gate, "dtype": _api.Dtype, "role": _api.Role, "format": _api.CacheFormat}
KINDS = {"tandem_norm": _api.NormKind, "tandem_binary": _api.BinaryKind}


def make(struct, keep=None, /, **fields):
    """A struct with struct_bytes and these fields; what it points to is added to `keep`, which has to live as long as it."""
    it = struct()
    types = dict(struct._fields_)
    if "struct_bytes" in types:
        it.struct_bytes = ctypes.sizeof(struct)
    for name, value in fields.items():
        if name not in types:
            known = ", ".join(n for n in types if n != "struct_bytes" and not n.startswith("reserved"))
            raise TypeError(f"{struct.__name__} has no '{name}'; it has {known}")
        if value is None:
            continue
        if types[name] is ctypes.c_char_p:
            value = encoded(name, value)
        elif name in ENUMS:
            value = enumerator(ENUMS[name], value, name)
        elif name == "kind" and struct.__name__ in KINDS:
            value = enumerator(KINDS[struct.__name__], value, name)
        try:
            setattr(it, name, value)
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"{name} = {value!r}: {error}") from None
        # ctypes cuts numbers to their width without a word.
        if isinstance(value, int) and isinstance(getattr(it, name), int) and getattr(it, name) != value:
            raise ArgumentError(f"{name} is {value}, which a {types[name].__name__[2:]} cannot hold")
        if keep is not None:
            keep.append(value)
    return it


def values(struct):
    """A struct that was filled as a dict: texts as str, without what only C needs."""
    found = {}
    for name, kind in struct._fields_:
        value = getattr(struct, name)
        if name == "struct_bytes" or name.startswith("reserved"):
            continue
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, ctypes.Array):
            value = bytes(value) if kind._type_ is ctypes.c_uint8 else list(value)
        found[name] = value
    return found
