"""Tandem's C API for ctypes. Made by engine_plugin/bindings/generate.py from the headers, which say what everything does.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
from ctypes import CFUNCTYPE, POINTER
from enum import IntEnum

VERSION = (0, 2, 0)


class Status(IntEnum):
    OK = 0
    ERROR_ARG = -1
    ERROR_UNSUPPORTED = -2
    ERROR_NOMEM = -3
    ERROR_DEVICE = -4
    ERROR_LOST = -5
    ERROR_IO = -6
    ERROR_PROTOCOL = -7
    ERROR_BUSY = -8


class Dtype(IntEnum):
    NONE = 0
    F16 = 1
    BF16 = 2
    F32 = 3
    CODES_INT8 = 4
    CODES_E4M3 = 5
    I32 = 6
    U8 = 7
    I8 = 8
    Q8_0 = 9
    Q4_0 = 10
    Q4_1 = 11
    Q4_K = 12
    Q6_K = 13
    Q5_K = 14
    Q8_0_TILES = 15
    Q4_0_TILES = 16
    Q4_1_TILES = 17
    Q4_K_TILES = 18
    Q6_K_TILES = 19
    Q5_K_TILES = 20


class Precision(IntEnum):
    AUTO = 0
    F16 = 1
    _8B = 2
    _4B = 3


class Smooth(IntEnum):
    DEFAULT = 0
    NONE = 1
    Q = 2
    K = 4
    V = 8


class Granularity(IntEnum):
    DEFAULT = 0
    THREAD_ADA = 1
    THREAD_HOPPER = 2
    TOKEN = 3
    WARP = 4
    BLOCK = 5
    TENSOR = 6


class NormKind(IntEnum):
    RMS = 0
    LAYER = 1


class Activation(IntEnum):
    NONE = 0
    GELU = 1
    GELU_TANH = 2
    SILU = 3
    TANH = 4


class Gate(IntEnum):
    NONE = 0
    HALVES = 1
    PAIRS = 2


class BinaryKind(IntEnum):
    ADD = 0
    MULTIPLY = 1


class CacheFormat(IntEnum):
    F16 = 0
    K8V8 = 1
    K4V8 = 2
    F32 = 3


class Operation(IntEnum):
    ATTENTION = 1
    NORM = 2
    LINEAR = 3
    EMBED = 4
    BINARY = 5
    POOL = 6
    SCATTER = 7
    CACHE_APPEND = 8
    CACHE_ATTENTION = 9
    CONV = 10
    GATHER = 11
    DEMODULATE = 12
    REPROJECT = 13
    TOP = 14
    RUN = 64


class JobState(IntEnum):
    PENDING = 0
    RUNNING = 1
    DONE = 2
    STALE = 3
    CANCELLED = 4
    FAILED = 5


class LogLevel(IntEnum):
    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3


class Backend(IntEnum):
    AUTO = 0
    CUDA = 1
    CPU = 2


class Rung(IntEnum):
    INLINE = 1
    TIMELINE = 2
    HOST = 3
    COPY = 4
    CPU = 5


class Class(IntEnum):
    FRAME = 0
    BACKGROUND = 1


class Tuning(IntEnum):
    RULE = 0
    SHIPPED = 1
    GIVEN = 2
    DAEMON = 3


class MemSource(IntEnum):
    CREATE = 0
    HOST = 1
    FD = 2
    VULKAN = 3
    CUDA = 4


class Handle(IntEnum):
    OPAQUE_FD = 0
    DMA_BUF = 1
    WIN32 = 2


class Signaller(IntEnum):
    ENGINE = 0
    SESSION = 1


class NetworkRole(IntEnum):
    INPUT = 0
    OUTPUT = 1
    UNIFORM = 2


class RequirementKind(IntEnum):
    INSTANCE_EXTENSION = 0
    DEVICE_EXTENSION = 1
    FEATURE = 2


class ImageEncoding(IntEnum):
    PLAIN = 0
    NORMAL = 1
    OCTAHEDRAL = 2


class ImageTransfer(IntEnum):
    LINEAR = 0
    SRGB = 1
    PQ = 2


class ImageOwnership(IntEnum):
    ACQUIRE = 1
    RELEASE = 2


class Role(IntEnum):
    SYSTEM = 0
    USER = 1
    NPC = 2


class NpcState(IntEnum):
    IDLE = 0
    READING = 1
    TALKING = 2


class ReplyEnd(IntEnum):
    OPEN = 0
    ENDED = 1
    STOPPED = 2
    FULL = 3
    CANCELLED = 4
    FAILED = 5


class VkExtent2D(ctypes.Structure):
    _fields_ = [("width", ctypes.c_uint32), ("height", ctypes.c_uint32)]


class tandem_point(ctypes.Structure):
    _fields_ = [
        ("timeline", ctypes.c_uint64), ("value", ctypes.c_uint64),
    ]


class tandem_view(ctypes.Structure):
    _fields_ = [
        ("mem", ctypes.c_uint64), ("offset_bytes", ctypes.c_uint64), ("dtype", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("stride_batch", ctypes.c_int64), ("stride_head", ctypes.c_int64),
        ("stride_row", ctypes.c_int64),
    ]


class tandem_attention(ctypes.Structure):
    _fields_ = [
        ("q", tandem_view), ("k", tandem_view), ("v", tandem_view), ("o", tandem_view), ("lse", tandem_view),
        ("batch", ctypes.c_uint32), ("heads", ctypes.c_uint32), ("kv_heads", ctypes.c_uint32),
        ("q_len", ctypes.c_uint32), ("kv_len", ctypes.c_uint32), ("head_dim", ctypes.c_uint32),
        ("scale", ctypes.c_float), ("causal", ctypes.c_uint32), ("precision", ctypes.c_uint32),
        ("smooth", ctypes.c_uint32), ("granularity", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("length", tandem_view), ("bias", tandem_view), ("position", tandem_view), ("softcap", ctypes.c_float),
        ("window", ctypes.c_uint32), ("q_start", tandem_view), ("k_start", tandem_view), ("sink", tandem_view),
        ("q_total", ctypes.c_uint32), ("kv_total", ctypes.c_uint32),
    ]


class tandem_norm(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("residual", tandem_view), ("weight", tandem_view), ("bias", tandem_view),
        ("y", tandem_view), ("sum", tandem_view), ("batch", ctypes.c_uint32), ("heads", ctypes.c_uint32),
        ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32), ("kind", ctypes.c_uint32),
        ("epsilon", ctypes.c_float), ("reserved", ctypes.c_uint32 * 2), ("rotation", tandem_view),
        ("position", tandem_view), ("positions", ctypes.c_uint32), ("rotated_channels", ctypes.c_uint32),
    ]


class tandem_linear(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("w", tandem_view), ("scale", tandem_view), ("bias", tandem_view),
        ("residual", tandem_view), ("rotation", tandem_view), ("position", tandem_view), ("y", tandem_view),
        ("rows", ctypes.c_uint32), ("ins", ctypes.c_uint32), ("outs", ctypes.c_uint32),
        ("activation", ctypes.c_uint32), ("gate", ctypes.c_uint32), ("positions", ctypes.c_uint32),
        ("head_dim", ctypes.c_uint32), ("rotated_channels", ctypes.c_uint32), ("rotated_heads", ctypes.c_uint32),
        ("batch", ctypes.c_uint32), ("heads", ctypes.c_uint32), ("kv_heads", ctypes.c_uint32), ("q", tandem_view),
        ("k", tandem_view), ("v", tandem_view), ("statistics", tandem_view), ("next_statistics", tandem_view),
        ("granularity", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 3),
    ]


class tandem_embed(ctypes.Structure):
    _fields_ = [
        ("table", tandem_view), ("position_table", tandem_view), ("type_table", tandem_view), ("id", tandem_view),
        ("position", tandem_view), ("type", tandem_view), ("y", tandem_view), ("batch", ctypes.c_uint32),
        ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32), ("entries", ctypes.c_uint32),
        ("positions", ctypes.c_uint32), ("types", ctypes.c_uint32), ("scale", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_binary(ctypes.Structure):
    _fields_ = [
        ("a", tandem_view), ("b", tandem_view), ("y", tandem_view), ("batch", ctypes.c_uint32),
        ("heads", ctypes.c_uint32), ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32),
        ("b_channels", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("scale", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_pool(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("length", tandem_view), ("y", tandem_view), ("batch", ctypes.c_uint32),
        ("heads", ctypes.c_uint32), ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32),
        ("normalise", ctypes.c_uint32), ("epsilon", ctypes.c_float), ("reserved", ctypes.c_uint32 * 2),
    ]


class tandem_scatter(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("position", tandem_view), ("y", tandem_view), ("batch", ctypes.c_uint32),
        ("heads", ctypes.c_uint32), ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32),
        ("entries", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 3),
    ]


class tandem_cache_append(ctypes.Structure):
    _fields_ = [
        ("k", tandem_view), ("v", tandem_view), ("position", tandem_view), ("cache", tandem_view),
        ("batch", ctypes.c_uint32), ("kv_heads", ctypes.c_uint32), ("rows", ctypes.c_uint32),
        ("head_dim", ctypes.c_uint32), ("entries", ctypes.c_uint32), ("format", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 2), ("table", tandem_view), ("slots", ctypes.c_uint32),
        ("pages", ctypes.c_uint32),
    ]


class tandem_cache_attention(ctypes.Structure):
    _fields_ = [
        ("q", tandem_view), ("position", tandem_view), ("cache", tandem_view), ("o", tandem_view),
        ("batch", ctypes.c_uint32), ("heads", ctypes.c_uint32), ("kv_heads", ctypes.c_uint32),
        ("rows", ctypes.c_uint32), ("head_dim", ctypes.c_uint32), ("entries", ctypes.c_uint32),
        ("format", ctypes.c_uint32), ("scale", ctypes.c_float), ("table", tandem_view), ("slots", ctypes.c_uint32),
        ("pages", ctypes.c_uint32),
    ]


class tandem_conv(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("coarse", tandem_view), ("w", tandem_view), ("bias", tandem_view), ("y", tandem_view),
        ("batch", ctypes.c_uint32), ("height", ctypes.c_uint32), ("width", ctypes.c_uint32),
        ("channels", ctypes.c_uint32), ("coarse_channels", ctypes.c_uint32), ("outs", ctypes.c_uint32),
        ("size", ctypes.c_uint32), ("stride", ctypes.c_uint32), ("shuffle", ctypes.c_uint32),
        ("relu", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 2),
    ]


class tandem_gather(ctypes.Structure):
    _fields_ = [
        ("q", tandem_view), ("k", tandem_view), ("v", tandem_view), ("factor", tandem_view),
        ("k_coarse", tandem_view), ("v_coarse", tandem_view), ("bias", tandem_view), ("o", tandem_view),
        ("batch", ctypes.c_uint32), ("height", ctypes.c_uint32), ("width", ctypes.c_uint32), ("dim", ctypes.c_uint32),
        ("radius", ctypes.c_uint32), ("coarse_radius", ctypes.c_uint32), ("step", ctypes.c_uint32),
        ("channels", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 2), ("k_before", tandem_view),
        ("v_before", tandem_view),
    ]


class tandem_demodulate(ctypes.Structure):
    _fields_ = [
        ("color", tandem_view), ("albedo", tandem_view), ("normal", tandem_view), ("depth", tandem_view),
        ("light", tandem_view), ("modulation", tandem_view), ("tokens", tandem_view), ("batch", ctypes.c_uint32),
        ("height", ctypes.c_uint32), ("width", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("history", tandem_view),
    ]


class tandem_reproject(ctypes.Structure):
    _fields_ = [
        ("history", tandem_view), ("motion", tandem_view), ("valid", tandem_view), ("normal", tandem_view),
        ("depth", tandem_view), ("normal_before", tandem_view), ("depth_before", tandem_view), ("o", tandem_view),
        ("batch", ctypes.c_uint32), ("height", ctypes.c_uint32), ("width", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_top(ctypes.Structure):
    _fields_ = [
        ("x", tandem_view), ("y", tandem_view), ("batch", ctypes.c_uint32), ("heads", ctypes.c_uint32),
        ("rows", ctypes.c_uint32), ("channels", ctypes.c_uint32), ("count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 3),
    ]


class tandem_run(ctypes.Structure):
    _fields_ = [
        ("instance", ctypes.c_uint64), ("bindings", POINTER(tandem_view)), ("numbers", POINTER(ctypes.c_uint32)),
        ("uniforms", ctypes.c_void_p), ("uniform_bytes", ctypes.c_uint64), ("binding_count", ctypes.c_uint32),
        ("number_count", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 4),
    ]


class tandem_operands(ctypes.Union):
    _fields_ = [
        ("reserved", ctypes.c_uint64 * 128), ("attention", tandem_attention), ("norm", tandem_norm),
        ("linear", tandem_linear), ("embed", tandem_embed), ("binary", tandem_binary), ("pool", tandem_pool),
        ("scatter", tandem_scatter), ("cache_append", tandem_cache_append),
        ("cache_attention", tandem_cache_attention), ("conv", tandem_conv), ("gather", tandem_gather),
        ("demodulate", tandem_demodulate), ("reproject", tandem_reproject), ("top", tandem_top), ("run", tandem_run),
    ]


class tandem_job(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("operation", ctypes.c_uint32), ("wait", tandem_point),
        ("signal", tandem_point), ("deadline_ns", ctypes.c_uint64), ("op", tandem_operands),
    ]


class tandem_job_report(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("state", ctypes.c_uint32), ("status", ctypes.c_int32),
        ("precision", ctypes.c_uint32), ("submit_ns", ctypes.c_uint64), ("begin_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
    ]


class tandem_device(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("backend", ctypes.c_uint32), ("name", ctypes.c_char * 128),
        ("isa", ctypes.c_char * 32), ("uuid", ctypes.c_uint8 * 16), ("sm", ctypes.c_uint32),
        ("cuda_driver_version", ctypes.c_uint32), ("multiprocessors", ctypes.c_uint32), ("rungs", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint64), ("why", ctypes.c_char * 256),
    ]


class tandem_session_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("backend", ctypes.c_uint32), ("vulkan", ctypes.c_void_p),
        ("log", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)),
        ("allocate", CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)),
        ("release", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)), ("user", ctypes.c_void_p),
        ("cpu_threads", ctypes.c_uint32), ("frames_in_flight", ctypes.c_uint32), ("wait_bound_ns", ctypes.c_uint64),
        ("timing", ctypes.c_uint32), ("rung", ctypes.c_uint32), ("error_text", POINTER(ctypes.c_char)),
        ("error_text_bytes", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("job_class", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("tuning", ctypes.c_char_p), ("tuning_bytes", ctypes.c_uint64),
        ("cuda_context", ctypes.c_void_p), ("cuda_stream", ctypes.c_void_p),
    ]


class tandem_info(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("backend", ctypes.c_uint32), ("rung", ctypes.c_uint32),
        ("sm", ctypes.c_uint32), ("rung_reason", ctypes.c_char * 256), ("device", ctypes.c_char * 128),
        ("isa", ctypes.c_char * 32), ("device_uuid", ctypes.c_uint8 * 16), ("cuda_driver_version", ctypes.c_uint32),
        ("cpu_threads", ctypes.c_uint32), ("host_bytes", ctypes.c_uint64), ("device_bytes", ctypes.c_uint64),
        ("jobs_submitted", ctypes.c_uint64), ("jobs_done", ctypes.c_uint64), ("jobs_stale", ctypes.c_uint64),
        ("jobs_cancelled", ctypes.c_uint64), ("jobs_failed", ctypes.c_uint64), ("cuda_copies", ctypes.c_uint64),
        ("cuda_allocations", ctypes.c_uint64), ("cuda_host_waits", ctypes.c_uint64),
        ("cuda_launches", ctypes.c_uint64), ("tuning", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("tuning_reason", ctypes.c_char * 256),
    ]


class tandem_mem_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("source", ctypes.c_uint32), ("bytes", ctypes.c_uint64),
        ("host", ctypes.c_void_p), ("fd", ctypes.c_int), ("dedicated", ctypes.c_uint32),
        ("vulkan_memory", ctypes.c_uint64), ("allocation_bytes", ctypes.c_uint64), ("offset_bytes", ctypes.c_uint64),
        ("vulkan_usage", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("vulkan_buffer", ctypes.c_uint64),
        ("cuda_pointer", ctypes.c_uint64), ("handle_type", ctypes.c_uint32), ("reserved2", ctypes.c_uint32),
        ("win32_handle", ctypes.c_void_p),
    ]


class tandem_timeline_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("signaller", ctypes.c_uint32), ("initial_value", ctypes.c_uint64),
        ("vulkan_semaphore", ctypes.c_uint64),
    ]


class tandem_model_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("cache", ctypes.c_uint32), ("path", ctypes.c_char_p),
        ("sequences", ctypes.c_uint32), ("context", ctypes.c_uint32), ("pages", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32), ("tops", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]


class tandem_network(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("binding_count", ctypes.c_uint32), ("uniform_count", ctypes.c_uint32),
        ("number_count", ctypes.c_uint32), ("weight_bytes", ctypes.c_uint64), ("state_bytes", ctypes.c_uint64),
    ]


class tandem_network_number(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("most", ctypes.c_uint32), ("name", ctypes.c_char * 256),
    ]


class tandem_network_tensor(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("role", ctypes.c_uint32), ("dtype", ctypes.c_uint32),
        ("dimensions", ctypes.c_uint32), ("shape", ctypes.c_uint32 * 4), ("bytes", ctypes.c_uint64),
        ("offset_bytes", ctypes.c_uint64), ("name", ctypes.c_char * 256),
    ]


class tandem_instance_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("precision", ctypes.c_uint32), ("deadlines", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("plan", ctypes.c_char_p), ("min_similarity", ctypes.c_float),
        ("max_us", ctypes.c_float), ("sample_every", ctypes.c_uint32), ("sample_rows", ctypes.c_uint32),
        ("sample_all", ctypes.c_uint32), ("reserved2", ctypes.c_uint32),
    ]


class tandem_prepared(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("record_count", ctypes.c_uint32), ("chain", ctypes.c_uint32),
        ("layer_count", ctypes.c_uint32), ("scratch_bytes", ctypes.c_uint64), ("uniform_bytes", ctypes.c_uint64),
    ]


class tandem_layer(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("node", ctypes.c_uint32), ("precision", ctypes.c_uint32),
        ("samples", ctypes.c_uint32), ("changes", ctypes.c_uint32), ("pending", ctypes.c_uint32),
        ("heads", ctypes.c_uint32), ("worst_head", ctypes.c_uint32), ("worst_similarity", ctypes.c_float),
        ("cosine", ctypes.c_float), ("relative_l1", ctypes.c_float), ("similarity", ctypes.c_float * 4),
        ("name", ctypes.c_char * 256),
    ]


class tandem_vulkan(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("api_version", ctypes.c_uint32),
        ("get_instance_proc_addr", ctypes.c_void_p), ("instance", ctypes.c_void_p),
        ("physical_device", ctypes.c_void_p), ("device", ctypes.c_void_p), ("queue_family", ctypes.c_uint32),
        ("enabled_extension_count", ctypes.c_uint32), ("enabled_extensions", POINTER(ctypes.c_char_p)),
        ("enabled_features", ctypes.c_void_p), ("queue", ctypes.c_void_p),
        ("lock_queue", CFUNCTYPE(None, ctypes.c_void_p)), ("unlock_queue", CFUNCTYPE(None, ctypes.c_void_p)),
        ("user", ctypes.c_void_p),
        ("lock_queue2", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)),
        ("unlock_queue2", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)),
        ("queue_index", ctypes.c_uint32), ("further_family_count", ctypes.c_uint32),
        ("further_families", POINTER(ctypes.c_uint32)),
    ]


class tandem_requirement(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("name", ctypes.c_char_p),
        ("required", ctypes.c_uint32), ("available", ctypes.c_uint32), ("feature_struct", ctypes.c_uint32),
        ("feature_offset", ctypes.c_uint32), ("buys", ctypes.c_char_p), ("feature_struct_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_mem_vulkan(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("buffer", ctypes.c_uint64),
        ("memory", ctypes.c_uint64), ("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
    ]


class tandem_pack(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("image_count", ctypes.c_uint32), ("images", ctypes.c_uint64 * 4),
        ("layout", ctypes.c_uint32), ("format", ctypes.c_uint32), ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32), ("tile_width", ctypes.c_uint32), ("tile_height", ctypes.c_uint32),
        ("shift_x", ctypes.c_uint32), ("shift_y", ctypes.c_uint32), ("halo", ctypes.c_uint32),
        ("channels", ctypes.c_uint32), ("view_channels", ctypes.c_uint32), ("view", tandem_view),
    ]


class tandem_pack_image(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("format", ctypes.c_uint32), ("image", ctypes.c_uint64),
        ("view", ctypes.c_uint64), ("usage", ctypes.c_uint32), ("layer", ctypes.c_uint32),
        ("image_extent", VkExtent2D), ("extent", VkExtent2D), ("layout_before", ctypes.c_uint32),
        ("layout_after", ctypes.c_uint32), ("src_stage", ctypes.c_uint32), ("src_access", ctypes.c_uint32),
        ("dst_stage", ctypes.c_uint32), ("dst_access", ctypes.c_uint32), ("ownership", ctypes.c_uint32),
        ("src_family", ctypes.c_uint32), ("dst_family", ctypes.c_uint32), ("channels", ctypes.c_uint32),
        ("encoding", ctypes.c_uint32), ("transfer", ctypes.c_uint32), ("exposure", ctypes.c_float),
        ("reserved", ctypes.c_uint32), ("tensor", tandem_view), ("recorded_family", ctypes.c_uint32),
        ("reserved2", ctypes.c_uint32),
    ]


class tandem_language_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("context", ctypes.c_uint32), ("path", ctypes.c_char_p),
        ("form", ctypes.c_char_p), ("precision", ctypes.c_uint32), ("cache", ctypes.c_uint32),
        ("tokens", ctypes.c_uint32), ("slots", ctypes.c_uint32), ("embeds", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_language_info(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("context", ctypes.c_uint32), ("words", ctypes.c_uint32),
        ("npcs", ctypes.c_uint32), ("form", ctypes.c_char * 32), ("npc_bytes", ctypes.c_uint64),
        ("slots", ctypes.c_uint32), ("pages", ctypes.c_uint32), ("pages_held", ctypes.c_uint32),
        ("pages_kept", ctypes.c_uint32), ("cache_bytes", ctypes.c_uint64), ("tokens_computed", ctypes.c_uint64),
        ("runs", ctypes.c_uint64), ("embedding_count", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]


class tandem_language_spent(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("spent_us", ctypes.c_uint32), ("late_us", ctypes.c_uint32),
        ("waiting", ctypes.c_uint32), ("tokens", ctypes.c_uint64), ("tokens_per_s", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
    ]


class tandem_turn(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("role", ctypes.c_uint32), ("text", ctypes.c_char_p),
    ]


class tandem_npc_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("plain", ctypes.c_uint32), ("persona", ctypes.c_char_p),
    ]


class tandem_sampling(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("temperature", ctypes.c_float), ("seed", ctypes.c_uint64),
        ("top_k", ctypes.c_uint32), ("typical_p", ctypes.c_float), ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float), ("xtc_probability", ctypes.c_float), ("xtc_threshold", ctypes.c_float),
        ("penalty_last", ctypes.c_uint32), ("repetition", ctypes.c_float), ("frequency", ctypes.c_float),
        ("presence", ctypes.c_float), ("dry_multiplier", ctypes.c_float), ("dry_base", ctypes.c_float),
        ("dry_length", ctypes.c_uint32), ("dry_last", ctypes.c_uint32), ("bias_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("bias_tokens", POINTER(ctypes.c_uint32)), ("biases", POINTER(ctypes.c_float)),
    ]


class tandem_say(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("most_tokens", ctypes.c_uint32), ("text", ctypes.c_char_p),
        ("sampling", POINTER(tandem_sampling)), ("stops", POINTER(ctypes.c_char_p)), ("stop_count", ctypes.c_uint32),
        ("replies", ctypes.c_uint32), ("grammar", ctypes.c_char_p), ("json_schema", ctypes.c_char_p),
        ("on_text", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)),
        ("user", ctypes.c_void_p), ("logprobs", ctypes.c_uint32), ("top_logprobs", ctypes.c_uint32),
    ]


class tandem_npc_news(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("state", ctypes.c_uint32), ("reply", ctypes.c_uint32),
        ("end", ctypes.c_uint32), ("text", ctypes.c_char_p), ("text_bytes", ctypes.c_uint64),
        ("prompt_tokens", ctypes.c_uint32), ("read_tokens", ctypes.c_uint32), ("reply_tokens", ctypes.c_uint32),
        ("forgotten", ctypes.c_uint32),
    ]


class tandem_npc_reply(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("end", ctypes.c_uint32), ("text", ctypes.c_char_p),
        ("text_bytes", ctypes.c_uint64), ("tokens", ctypes.c_uint32), ("score", ctypes.c_float),
    ]


class tandem_token_logprob(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint32), ("logprob", ctypes.c_float), ("text", ctypes.c_char_p),
        ("text_bytes", ctypes.c_uint64),
    ]


class tandem_npc_token(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("top_count", ctypes.c_uint32), ("is", tandem_token_logprob),
        ("top", POINTER(tandem_token_logprob)), ("text_offset", ctypes.c_uint64),
    ]


class tandem_embedder_desc(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("before", ctypes.c_char_p),
        ("behind", ctypes.c_char_p),
    ]


class tandem_embedding(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("ready", ctypes.c_uint32), ("values", POINTER(ctypes.c_float)),
        ("count", ctypes.c_uint32), ("tokens", ctypes.c_uint32),
    ]


STRUCTS = [
    tandem_point,
    tandem_view,
    tandem_attention,
    tandem_norm,
    tandem_linear,
    tandem_embed,
    tandem_binary,
    tandem_pool,
    tandem_scatter,
    tandem_cache_append,
    tandem_cache_attention,
    tandem_conv,
    tandem_gather,
    tandem_demodulate,
    tandem_reproject,
    tandem_top,
    tandem_run,
    tandem_operands,
    tandem_job,
    tandem_job_report,
    tandem_device,
    tandem_session_desc,
    tandem_info,
    tandem_mem_desc,
    tandem_timeline_desc,
    tandem_model_desc,
    tandem_network,
    tandem_network_number,
    tandem_network_tensor,
    tandem_instance_desc,
    tandem_prepared,
    tandem_layer,
    tandem_vulkan,
    tandem_requirement,
    tandem_mem_vulkan,
    tandem_pack,
    tandem_pack_image,
    tandem_language_desc,
    tandem_language_info,
    tandem_language_spent,
    tandem_turn,
    tandem_npc_desc,
    tandem_sampling,
    tandem_say,
    tandem_npc_news,
    tandem_npc_reply,
    tandem_token_logprob,
    tandem_npc_token,
    tandem_embedder_desc,
    tandem_embedding,
]

# Views that operations write.
WRITTEN = {
    "attention": {"o", "lse"},
    "norm": {"y", "sum"},
    "linear": {"y", "q", "k", "v", "next_statistics"},
    "embed": {"y"},
    "binary": {"y"},
    "pool": {"y"},
    "scatter": {"y"},
    "cache_append": {"cache"},
    "cache_attention": {"cache", "o"},
    "conv": {"y"},
    "gather": {"o"},
    "demodulate": {"light", "modulation", "tokens"},
    "reproject": {"o"},
    "top": {"y"},
}

FUNCTIONS = {
    "tandem_version": (ctypes.c_uint32, []),
    "tandem_status_text": (ctypes.c_char_p, [ctypes.c_int]),
    "tandem_devices": (ctypes.c_int, [POINTER(ctypes.c_uint32), POINTER(tandem_device)]),
    "tandem_session_create": (ctypes.c_int, [POINTER(tandem_session_desc), POINTER(ctypes.c_void_p)]),
    "tandem_session_destroy": (ctypes.c_int, [POINTER(ctypes.c_void_p)]),
    "tandem_session_info": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_info)]),
    "tandem_error_text": (ctypes.c_int, [ctypes.c_void_p, POINTER(ctypes.c_char), ctypes.c_size_t]),
    "tandem_mem_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_mem_desc), POINTER(ctypes.c_uint64)]),
    "tandem_mem_destroy": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_mem_host": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_void_p)]),
    "tandem_timeline_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_timeline_desc), POINTER(ctypes.c_uint64)]),
    "tandem_timeline_destroy": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_timeline_value": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint64)]),
    "tandem_timeline_signal": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]),
    "tandem_timeline_submitted": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]),
    "tandem_point_fd": (ctypes.c_int, [ctypes.c_void_p, tandem_point, POINTER(ctypes.c_int)]),
    "tandem_point_wait": (ctypes.c_int, [ctypes.c_void_p, tandem_point, ctypes.c_uint64]),
    "tandem_submit": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_job), POINTER(ctypes.c_uint64)]),
    "tandem_poll": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_job_report)]),
    "tandem_wait": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, POINTER(tandem_job_report)]),
    "tandem_cancel": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_model_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_model_desc), POINTER(ctypes.c_uint64)]),
    "tandem_model_load": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, POINTER(ctypes.c_uint64)]),
    "tandem_model_tensor": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, POINTER(tandem_view), POINTER(ctypes.c_uint64)]),
    "tandem_model_destroy": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_retire": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_model_info": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_network)]),
    "tandem_model_number": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, POINTER(tandem_network_number)]),
    "tandem_model_binding": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_uint32, POINTER(tandem_network_tensor)]),
    "tandem_model_uniform": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_uint32, POINTER(tandem_network_tensor)]),
    "tandem_model_instance": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_instance_desc), POINTER(ctypes.c_uint64)]),
    "tandem_instance_destroy": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_model_prepare": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint32), ctypes.c_uint32]),
    "tandem_model_prepared": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint32), ctypes.c_uint32, POINTER(tandem_prepared)]),
    "tandem_model_layer": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_uint32, POINTER(tandem_layer)]),
    "tandem_supported": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_job), POINTER(ctypes.c_uint64), POINTER(ctypes.c_char), ctypes.c_size_t]),
    "tandem_vulkan_requirements": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, POINTER(ctypes.c_uint32), POINTER(tandem_requirement)]),
    "tandem_vulkan_device": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, POINTER(tandem_device)]),
    "tandem_mem_get_vulkan": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_mem_vulkan)]),
    "tandem_timeline_get_vulkan": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint64)]),
    "tandem_record_release": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]),
    "tandem_record_acquire": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]),
    "tandem_record": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_job), ctypes.c_void_p, POINTER(ctypes.c_uint64)]),
    "tandem_pack_tiles": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_pack), POINTER(ctypes.c_uint32), POINTER(ctypes.c_uint32)]),
    "tandem_record_pack": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, POINTER(tandem_pack)]),
    "tandem_record_unpack": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, POINTER(tandem_pack)]),
    "tandem_record_pack_images": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, POINTER(tandem_pack_image), ctypes.c_uint32]),
    "tandem_record_unpack_images": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, POINTER(tandem_pack_image), ctypes.c_uint32]),
    "tandem_language_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_language_desc), POINTER(ctypes.c_void_p)]),
    "tandem_language_destroy": (ctypes.c_int, [POINTER(ctypes.c_void_p)]),
    "tandem_language_get_info": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_language_info)]),
    "tandem_language_frame": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, POINTER(tandem_language_spent)]),
    "tandem_npc_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_npc_desc), POINTER(ctypes.c_void_p)]),
    "tandem_npc_destroy": (ctypes.c_int, [POINTER(ctypes.c_void_p)]),
    "tandem_npc_say": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_say)]),
    "tandem_npc_poll": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_npc_news)]),
    "tandem_npc_wait": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_npc_news)]),
    "tandem_npc_cancel": (ctypes.c_int, [ctypes.c_void_p]),
    "tandem_npc_get_reply": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, POINTER(tandem_npc_reply)]),
    "tandem_npc_get_token": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, POINTER(tandem_npc_token)]),
    "tandem_npc_choose": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "tandem_npc_set_history": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_turn), ctypes.c_uint32]),
    "tandem_npc_get_history": (ctypes.c_int, [ctypes.c_void_p, POINTER(ctypes.c_uint32), POINTER(tandem_turn)]),
    "tandem_npc_save": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, POINTER(ctypes.c_uint64)]),
    "tandem_npc_restore": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]),
    "tandem_embedder_create": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_embedder_desc), POINTER(ctypes.c_void_p)]),
    "tandem_embedder_destroy": (ctypes.c_int, [POINTER(ctypes.c_void_p)]),
    "tandem_embedder_begin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "tandem_embedder_poll": (ctypes.c_int, [ctypes.c_void_p, POINTER(tandem_embedding)]),
    "tandem_embedder_wait": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, POINTER(tandem_embedding)]),
}


def load(path):
    """The library, with its functions' types; those that an older one lacks are missing."""
    library = ctypes.CDLL(path)
    for name, (returns, takes) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = returns, takes
    return library
