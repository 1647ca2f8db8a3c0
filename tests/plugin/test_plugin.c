/* libtandem.so.0 as an engine meets it: opened at run time, one symbol asked for, everything else through its table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tandem/plugin.h"

enum { ROWS = 70, DIM = 64, ELEMENTS = ROWS * DIM };

static char library_path[4096];
static void *library;
static const tandem_api *api;

/* The library lies beside this program, wherever the build folder was carried. */
static int open_library(void **state)
{
    (void)state;
    ssize_t length = readlink("/proc/self/exe", library_path, sizeof library_path - 32);
    if (length < 0)
        return -1;
    library_path[length] = 0;
    strcpy(strrchr(library_path, '/'), "/libtandem.so.0");
    library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        print_error("%s\n", dlerror());
        return -1;
    }
    tandem_get_api_fn get = (tandem_get_api_fn)dlsym(library, "tandem_get_api");
    api = get ? get(TANDEM_VERSION) : NULL;
    return api ? 0 : -1;
}

static int close_library(void **state)
{
    (void)state;
    return library ? dlclose(library) : 0;
}

static void table_is_complete(void **state)
{
    (void)state;
    assert_int_equal(api->struct_bytes, sizeof(tandem_api));
    assert_int_equal(api->version, TANDEM_VERSION);
    assert_int_equal(api->version_number(), TANDEM_VERSION);
    const unsigned char *entry = (const unsigned char *)api + offsetof(tandem_api, version_number);
    for (; entry < (const unsigned char *)api + sizeof *api; entry += sizeof(void (*)(void))) {
        uintptr_t address;
        memcpy(&address, entry, sizeof address);
        assert_true(address != 0);
    }
}

static void other_versions(void **state)
{
    (void)state;
    tandem_get_api_fn get = (tandem_get_api_fn)dlsym(library, "tandem_get_api");
    assert_null(get((TANDEM_VERSION_MAJOR + 1u) << 22));
    assert_null(get(TANDEM_VERSION + (1u << 12)));
    assert_null(get(UINT32_MAX));
    assert_ptr_equal(get(TANDEM_VERSION), api);
}

static void exports_are_the_api(void **state)
{
    (void)state;
    static const char *const names[] = {
        "tandem_get_api", "tandem_version", "tandem_status_text", "tandem_session_create", "tandem_session_destroy",
        "tandem_session_info", "tandem_error_text", "tandem_mem_create", "tandem_mem_destroy", "tandem_mem_host",
        "tandem_timeline_create", "tandem_timeline_destroy", "tandem_timeline_value", "tandem_timeline_signal",
        "tandem_point_wait", "tandem_submit", "tandem_poll", "tandem_wait", "tandem_cancel", "tandem_model_load",
        "tandem_model_tensor", "tandem_model_destroy", "tandem_vulkan_requirements", "tandem_mem_get_vulkan",
        "tandem_timeline_get_vulkan", "tandem_record_release", "tandem_record_acquire", "tandem_pack_tiles",
        "tandem_record_pack", "tandem_record_unpack", "tandem_timeline_submitted", "tandem_point_fd", "tandem_record",
        "tandem_record_pack_images", "tandem_record_unpack_images",
        "tandem_model_info", "tandem_model_number", "tandem_model_binding", "tandem_model_uniform", "tandem_model_instance",
        "tandem_instance_destroy", "tandem_model_prepare", "tandem_model_prepared", "tandem_supported",
        "tandem_model_create",
        "tandem_retire",
        "tandem_devices", "tandem_vulkan_device",
        "tandem_language_create", "tandem_language_destroy", "tandem_language_get_info", "tandem_npc_create",
        "tandem_npc_destroy", "tandem_npc_say", "tandem_npc_poll", "tandem_npc_wait", "tandem_npc_cancel",
        "tandem_npc_get_reply", "tandem_npc_choose", "tandem_npc_set_history", "tandem_npc_get_history",
        "tandem_npc_save", "tandem_npc_restore", "tandem_language_frame",
        "tandem_embedder_create", "tandem_embedder_destroy", "tandem_embedder_begin", "tandem_embedder_poll",
        "tandem_embedder_wait", "tandem_npc_get_token", "tandem_model_layer",
    };
    enum { NAMES = sizeof names / sizeof names[0] };
    int file = open(library_path, O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    struct stat size;
    assert_int_equal(fstat(file, &size), 0);
    const unsigned char *bytes = mmap(NULL, (size_t)size.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    assert_true(bytes != MAP_FAILED);

    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
    size_t exported = 0, found = 0;
    for (unsigned s = 0; s < header->e_shnum; s++) {
        if (sections[s].sh_type != SHT_DYNSYM)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[s].sh_offset);
        const char *strings = (const char *)(bytes + sections[sections[s].sh_link].sh_offset);
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            if (symbols[i].st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL)
                continue;
            if (symbols[i].st_shndx == SHN_ABS) /* the name of a version: test_symbols.py */
                continue;
            const char *name = strings + symbols[i].st_name;
            int known = 0;
            for (size_t n = 0; n < NAMES; n++)
                known |= strcmp(names[n], name) == 0;
            if (!known)
                print_error("exported, but not in the headers: %s\n", name);
            exported++;
            found += (size_t)known;
        }
    }
    munmap((void *)(uintptr_t)bytes, (size_t)size.st_size);
    assert_int_equal(exported, NAMES);
    assert_int_equal(found, NAMES);
}

static void attention_through_the_table(void **state)
{
    (void)state;
    tandem_session *session = NULL;
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 2};
    assert_int_equal(api->session_create(&desc, &session), TANDEM_OK);
    tandem_info info = {.struct_bytes = sizeof info};
    assert_int_equal(api->session_info(session, &info), TANDEM_OK);
    assert_int_equal(info.backend, TANDEM_BACKEND_CPU);

    tandem_mem mem = 0;
    tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = 4 * ELEMENTS * sizeof(float)};
    assert_int_equal(api->mem_create(session, &mem_desc, &mem), TANDEM_OK);
    void *host = NULL;
    assert_int_equal(api->mem_host(session, mem, &host), TANDEM_OK);
    float *q = host, *k = q + ELEMENTS, *v = k + ELEMENTS, *o = v + ELEMENTS;
    uint32_t random = 1;
    for (int i = 0; i < 3 * ELEMENTS; i++) {
        random = random * 1664525u + 1013904223u;
        q[i] = (float)(random >> 8) * 0x1p-23f - 1;
    }
    for (int i = 0; i < ELEMENTS; i++)
        o[i] = NAN;

    tandem_timeline timeline = 0;
    tandem_timeline_desc timeline_desc = {.struct_bytes = sizeof timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION};
    assert_int_equal(api->timeline_create(session, &timeline_desc, &timeline), TANDEM_OK);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION, .signal = {timeline, 1}};
    tandem_attention *op = &job.op.attention;
    tandem_view *views[] = {&op->q, &op->k, &op->v, &op->o};
    for (size_t i = 0; i < 4; i++)
        *views[i] = (tandem_view){.mem = mem, .offset_bytes = i * ELEMENTS * sizeof(float), .dtype = TANDEM_DTYPE_F32,
                                  .stride_batch = ELEMENTS, .stride_head = ELEMENTS, .stride_row = DIM};
    op->batch = op->heads = op->kv_heads = 1;
    op->q_len = op->kv_len = ROWS;
    op->head_dim = DIM;
    op->precision = TANDEM_PRECISION_F16;
    tandem_ticket ticket = 0;
    assert_int_equal(api->submit(session, &job, &ticket), TANDEM_OK);
    tandem_job_report report = {.struct_bytes = sizeof report};
    assert_int_equal(api->wait(session, ticket, 10000000000u, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_int_equal(api->point_wait(session, job.signal, 1000000000u), TANDEM_OK);
    uint64_t value = 0;
    assert_int_equal(api->timeline_value(session, timeline, &value), TANDEM_OK);
    assert_int_equal(value, 1);

    for (int row = 0; row < ROWS; row++) {
        double weight[ROWS], sum = 0;
        for (int key = 0; key < ROWS; key++) {
            double s = 0;
            for (int c = 0; c < DIM; c++)
                s += (double)q[row * DIM + c] * k[key * DIM + c];
            sum += weight[key] = exp(s / 8);
        }
        for (int c = 0; c < DIM; c++) {
            double want = 0;
            for (int key = 0; key < ROWS; key++)
                want += weight[key] / sum * v[key * DIM + c];
            assert_true(fabs(o[row * DIM + c] - want) < 2e-3);
        }
    }

    job.signal.value = 2;
    job.op.attention.head_dim = 63;
    assert_int_equal(api->submit(session, &job, &ticket), TANDEM_ERROR_ARG);
    char text[256] = "";
    assert_int_equal(api->error_text(session, text, sizeof text), TANDEM_OK);
    if (!strstr(text, "head_dim") || !strstr(text, "63"))
        fail_msg("the text does not name head_dim and 63: \"%s\"", text);
    assert_int_equal(api->session_destroy(&session), TANDEM_OK);
    assert_null(session);
}

static void status_texts(void **state)
{
    (void)state;
    for (int status = TANDEM_OK; status >= TANDEM_ERROR_BUSY; status--)
        assert_string_not_equal(api->status_text((tandem_status)status), "unknown status");
    assert_string_equal(api->status_text((tandem_status)99), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_complete),
        cmocka_unit_test(other_versions),
        cmocka_unit_test(exports_are_the_api),
        cmocka_unit_test(attention_through_the_table),
        cmocka_unit_test(status_texts),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
