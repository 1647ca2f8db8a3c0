"""Tandem from Python: attention, networks, denoisers and characters on a GPU or the CPU, on arrays where they lie.

SPDX-License-Identifier: Apache-2.0

    import numpy, tandem
    with tandem.Session() as session:
        o = session.attention(q, k, v, precision="8b")    # numpy's arrays, or torch's tensors

All of C's API, by its own names, is in tandem.api, made from its headers: tandem.api.C.tandem_submit(...).
"""
from . import _api as api
from ._arrays import Tensor
from ._library import (ArgumentError, Busy, C, DeviceError, Error, FileError, FormatError, Lost, OutOfMemory, Unsupported)
from ._network import Binding, Denoiser, Instance, Model
from ._npc import Embedder, Language, Npc
from ._session import Job, Session, devices

api.C = C
__version__ = ".".join(map(str, api.VERSION))
__all__ = ["ArgumentError", "Binding", "Busy", "Denoiser", "DeviceError", "Embedder", "Error", "FileError", "FormatError", "Instance",
           "Job", "Language", "Lost", "Model", "Npc", "OutOfMemory", "Session", "Tensor", "Unsupported", "api", "devices"]
