/* The driver's table and a device found by its UUID.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/cu/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tandem_status status_of(td_cu_result result)
{
    switch (result) {
    case TD_CU_SUCCESS:
        return TANDEM_OK;
    case 1:   /* INVALID_VALUE */
    case 400: /* INVALID_HANDLE */
        return TANDEM_ERROR_ARG;
    case TD_CU_ERROR_OUT_OF_MEMORY:
        return TANDEM_ERROR_NOMEM;
    case 34:  /* STUB_LIBRARY */
    case 36:  /* CALL_REQUIRES_NEWER_DRIVER */
    case 100: /* NO_DEVICE */
    case 101: /* INVALID_DEVICE */
    case 200: /* INVALID_IMAGE */
    case 209: /* NO_BINARY_FOR_GPU */
    case 218: /* INVALID_PTX */
    case 221: /* JIT_COMPILER_NOT_FOUND */
    case 222: /* UNSUPPORTED_PTX_VERSION */
    case 223: /* JIT_COMPILATION_DISABLED */
    case 500: /* NOT_FOUND */
    case 800: /* NOT_PERMITTED */
    case 801: /* NOT_SUPPORTED */
    case 803: /* SYSTEM_DRIVER_MISMATCH */
    case 804: /* COMPAT_NOT_SUPPORTED_ON_DEVICE */
        return TANDEM_ERROR_UNSUPPORTED;
    case TD_CU_ERROR_NOT_READY:
        return TANDEM_ERROR_BUSY;
    case 4:   /* DEINITIALIZED */
    case 46:  /* DEVICE_UNAVAILABLE */
    case 709: /* CONTEXT_IS_DESTROYED */
    case 810: /* MPS_CLIENT_TERMINATED */
        return TANDEM_ERROR_LOST;
    default:
        return TANDEM_ERROR_DEVICE;
    }
}

tandem_status td_cu_check(td_cu_device *device, td_cu_result result, char *why, size_t why_bytes, const char *format,
                          ...)
{
    const char *name = NULL;
    char what[160];
    va_list args;

    if (result == TD_CU_SUCCESS)
        return TANDEM_OK;
    va_start(args, format);
    td_text_list(what, sizeof what, format, args);
    va_end(args);
    if (TD_CU(device, cuGetErrorName, result, &name) || !name)
        name = "an error without a name";
    return td_fail(why, why_bytes, status_of(result), "%s: %s (%d)", what, name, result);
}

tandem_status td_cu_enter(td_cu_device *device, char *why, size_t why_bytes)
{
    return td_cu_check(device, TD_CU(device, cuCtxPushCurrent, device->context), why, why_bytes, "cuCtxPushCurrent");
}

void td_cu_leave(td_cu_device *device)
{
    td_cu_context popped;

    TD_CU(device, cuCtxPopCurrent, &popped);
}

static tandem_status open_library(td_cu_device *device, char *why, size_t why_bytes)
{
    char text[300];

    if (td_library_open(td_library_cuda, &device->library, text, sizeof text))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no CUDA driver: %s", text);
#define OPTIONAL(kind, name, symbol, parameters) *(void **)&device->table.name = td_library_symbol(device->library, #symbol);
#define REQUIRED(kind, name, symbol, parameters) \
    OPTIONAL(kind, name, symbol, parameters)     \
    if (!device->table.name)                     \
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the CUDA driver is too old: it has no " #symbol);
    TD_CU_FUNCTIONS(REQUIRED, OPTIONAL)
#undef OPTIONAL
#undef REQUIRED
    return TANDEM_OK;
}

static void print_uuid(char *text, const uint8_t *uuid)
{
    for (int i = 0; i < 16; i++)
        text += sprintf(text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static td_cu_result uuid_of(td_cu_device *device, td_cu_ordinal ordinal, td_cu_uuid *uuid)
{
    if (device->table.cuDeviceGetUuid_v2)
        return TD_CU(device, cuDeviceGetUuid_v2, uuid, ordinal);
    return TD_CU(device, cuDeviceGetUuid, uuid, ordinal);
}

static tandem_status find_device(td_cu_device *device, const uint8_t *uuid, char *why, size_t why_bytes)
{
    char wanted[40], seen[256] = "";
    tandem_status status;
    int count = 0;

    status = td_cu_check(device, TD_CU(device, cuDeviceGetCount, &count), why, why_bytes, "cuDeviceGetCount");
    if (status)
        return status;
    if (count == 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the CUDA driver sees no device");
    for (int i = 0; i < count; i++) {
        size_t used = strlen(seen);
        td_cu_ordinal ordinal;
        td_cu_uuid found;

        status = td_cu_check(device, TD_CU(device, cuDeviceGet, &ordinal, i), why, why_bytes, "cuDeviceGet(%d)", i);
        if (!status)
            status = td_cu_check(device, uuid_of(device, ordinal, &found), why, why_bytes, "cuDeviceGetUuid(%d)", i);
        if (status)
            return status;
        if (!uuid || !memcmp(uuid, found.bytes, sizeof found.bytes)) {
            device->ordinal = ordinal;
            memcpy(device->info.uuid, found.bytes, sizeof found.bytes);
            return TANDEM_OK;
        }
        if (used + 40 < sizeof seen) {
            if (used)
                seen[used++] = ' ';
            print_uuid(seen + used, found.bytes);
        }
    }
    print_uuid(wanted, uuid);
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no CUDA device has the UUID %s; there is %s", wanted,
                   seen);
}

/* None where the system has no such, nor on a device that is no adapter of it. */
static td_adapter adapter_of(td_cu_device *device)
{
    td_adapter adapter = {0};

    adapter.known = device->table.cuDeviceGetLuid && !TD_CU(device, cuDeviceGetLuid, (char *)adapter.luid, &adapter.node_mask,
                                                           device->ordinal);
    return adapter.known ? adapter : (td_adapter){0};
}

static tandem_status query(td_cu_device *device, char *why, size_t why_bytes)
{
    enum { MOST_OF_A_DEVICE = 1 << 24 };
    const struct {
        int attribute;
        const char *name;
    } wanted[] = {{TD_CU_ATTRIBUTE_MAJOR, "major"},
                  {TD_CU_ATTRIBUTE_MINOR, "minor"},
                  {TD_CU_ATTRIBUTE_MULTIPROCESSORS, "multiprocessors"},
                  {TD_CU_ATTRIBUTE_SHARED_OPTIN, "shared memory a block"}};
    int values[4], timelines = 0, version = 0;
    size_t memory = 0;
    tandem_status status;

    for (int i = 0; i < 4; i++) {
        status =
            td_cu_check(device, TD_CU(device, cuDeviceGetAttribute, &values[i], wanted[i].attribute, device->ordinal),
                        why, why_bytes, "cuDeviceGetAttribute(%s)", wanted[i].name);
        if (status)
            return status;
    }
    /* Unknown to drivers before 11.2: then there are none. */
    if (TD_CU(device, cuDeviceGetAttribute, &timelines, TD_CU_ATTRIBUTE_TIMELINES, device->ordinal))
        timelines = 0;
    status = td_cu_check(device, TD_CU(device, cuDeviceTotalMem, &memory, device->ordinal), why, why_bytes,
                         "cuDeviceTotalMem");
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuDriverGetVersion, &version), why, why_bytes, "cuDriverGetVersion");
    if (!status)
        status = td_cu_check(
            device, TD_CU(device, cuDeviceGetName, device->info.name, sizeof device->info.name, device->ordinal), why,
            why_bytes, "cuDeviceGetName");
    for (int i = 0; i < 4 && !status; i++) /* no driver's word is taken for what plans divide by */
        if (values[i] < (i != 1) || values[i] > MOST_OF_A_DEVICE)
            status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "cuDeviceGetAttribute(%s) says %d", wanted[i].name,
                             values[i]);
    device->info.sm = (uint32_t)(values[0] * 10 + values[1]);
    device->info.tensor_maps = device->table.cuTensorMapEncodeTiled != NULL;
    device->info.multiprocessors = (uint32_t)values[2];
    device->shared_limit = (uint32_t)values[3];
    device->info.timelines = timelines != 0;
    device->info.adapter = adapter_of(device);
    device->info.memory_bytes = memory;
    device->info.driver_version = (uint32_t)version;
    return status;
}

/* The driver, and no device of it yet. */
static tandem_status open_driver(td_cu_device **out, char *why, size_t why_bytes)
{
    td_cu_device *device = calloc(1, sizeof *device);
    tandem_status status;

    *out = NULL;
    if (!device)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a CUDA device");
    status = open_library(device, why, why_bytes);
    if (!status && td_cu_check(device, TD_CU(device, cuInit, 0), why, why_bytes, "the CUDA driver does not start: cuInit"))
        status = TANDEM_ERROR_UNSUPPORTED;
    if (status)
        td_cu_device_close(&device);
    *out = device;
    return status;
}

static tandem_status open_device(const uint8_t *uuid, const td_log *log, bool retain, td_cu_device **out, char *why,
                                 size_t why_bytes)
{
    td_cu_device *device;
    tandem_status status = open_driver(&device, why, why_bytes);

    *out = NULL;
    if (status)
        return status;
    if (log)
        device->log = *log;
    status = find_device(device, uuid, why, why_bytes);
    if (!status)
        status = query(device, why, why_bytes);
    if (!status && retain)
        status = td_cu_check(device, TD_CU(device, cuDevicePrimaryCtxRetain, &device->context, device->ordinal), why,
                             why_bytes, "cuDevicePrimaryCtxRetain");
    if (status)
        goto fail;
    *out = device;
    return TANDEM_OK;
fail:
    td_cu_device_close(&device);
    return status;
}

tandem_status td_cu_device_open(const uint8_t *uuid, const td_log *log, td_cu_device **out, char *why, size_t why_bytes)
{
    return open_device(uuid, log, true, out, why, why_bytes);
}

/* Finds the device of its context, and checks that its callers' stream is of the same. */
static tandem_status look_into_context(td_cu_device *device, char *why, size_t why_bytes)
{
    td_cu_context of_stream = NULL;
    td_cu_uuid uuid;
    tandem_status status = td_cu_enter(device, why, why_bytes);

    if (status)
        return TANDEM_ERROR_ARG;
    status = td_cu_check(device, TD_CU(device, cuCtxGetDevice, &device->ordinal), why, why_bytes, "cuCtxGetDevice");
    if (!status && device->callers) {
        status = td_cu_check(device, TD_CU(device, cuStreamGetCtx, device->callers, &of_stream), why, why_bytes,
                             "the stream: cuStreamGetCtx");
        if (status || of_stream != device->context)
            status = status ? TANDEM_ERROR_ARG
                            : td_fail(why, why_bytes, TANDEM_ERROR_ARG, "the stream is of another context");
    }
    td_cu_leave(device);
    if (!status)
        status = td_cu_check(device, uuid_of(device, device->ordinal, &uuid), why, why_bytes, "cuDeviceGetUuid");
    if (!status)
        memcpy(device->info.uuid, uuid.bytes, sizeof uuid.bytes);
    return status;
}

tandem_status td_cu_device_open_in(void *context, void *stream, const td_log *log, td_cu_device **out, char *why,
                                   size_t why_bytes)
{
    td_cu_device *device;
    tandem_status status = open_driver(&device, why, why_bytes);

    *out = NULL;
    if (status)
        return status;
    if (log)
        device->log = *log;
    device->context = context;
    device->borrowed = true;
    device->callers = stream;
    status = look_into_context(device, why, why_bytes);
    if (!status)
        status = query(device, why, why_bytes);
    if (status)
        td_cu_device_close(&device);
    *out = device;
    return status;
}

tandem_status td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *why, size_t why_bytes)
{
    td_cu_device *device;
    tandem_status status = open_device(uuid, NULL, false, &device, why, why_bytes);

    if (status == TANDEM_OK)
        *info = device->info;
    td_cu_device_close(&device);
    return status;
}

tandem_status td_cu_device_list(td_cu_info *list, uint32_t *count, char *why, size_t why_bytes)
{
    td_cu_device *device;
    tandem_status status = open_driver(&device, why, why_bytes);
    const uint32_t room = *count;
    td_cu_uuid uuid;
    int found = 0;

    *count = 0;
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuDeviceGetCount, &found), why, why_bytes, "cuDeviceGetCount");
    if (!status && !found)
        status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the CUDA driver sees no device");
    for (int i = 0; !status && i < found && *count < room; i++) {
        device->info = (td_cu_info){0};
        status = td_cu_check(device, TD_CU(device, cuDeviceGet, &device->ordinal, i), why, why_bytes, "cuDeviceGet(%d)", i);
        if (!status)
            status = td_cu_check(device, uuid_of(device, device->ordinal, &uuid), why, why_bytes, "cuDeviceGetUuid(%d)", i);
        if (!status)
            status = query(device, why, why_bytes);
        memcpy(device->info.uuid, uuid.bytes, sizeof uuid.bytes);
        if (!status)
            list[(*count)++] = device->info;
    }
    td_cu_device_close(&device);
    return status;
}

void td_cu_device_close(td_cu_device **pointer)
{
    td_cu_device *device = *pointer;

    *pointer = NULL;
    if (!device)
        return;
    if (device->context && !device->borrowed)
        TD_CU(device, cuDevicePrimaryCtxRelease, device->ordinal);
    td_library_close(&device->library);
    free(device);
}

const td_cu_info *td_cu_device_info(const td_cu_device *device)
{
    return &device->info;
}

void td_cu_device_urgency(td_cu_device *device, td_cu_urgency urgency)
{
    device->urgency = urgency;
}

td_cu_counts td_cu_device_counts(const td_cu_device *device)
{
    uint64_t n[TD_CU_KINDS], all = 0;

    for (int i = 0; i < TD_CU_KINDS; i++)
        all += n[i] = atomic_load_explicit(&device->counts[i], memory_order_relaxed);
    return (td_cu_counts){.copies = n[TD_CU_KIND_COPY],
                          .allocations = n[TD_CU_KIND_ALLOCATION],
                          .host_waits = n[TD_CU_KIND_HOST_WAIT],
                          .launches = n[TD_CU_KIND_LAUNCH],
                          .sleeps = n[TD_CU_KIND_SLEEP],
                          .all = all};
}

uint64_t td_cu_device_allocated_bytes(const td_cu_device *device)
{
    return atomic_load_explicit(&device->allocated, memory_order_relaxed);
}
