/* The emulated kernels, found by the names of their symbols.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE /* dlinfo */
#include "tests/kernels/emu_modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"

em_module em_modules[EM_MODULES] = {{.sm = 80}, {.sm = 89}, {.sm = 90}, {.sm = 120}};

bool em_open(em_module *it, const char *folder, const char *name)
{
    char path[1000];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    it->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!it->library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    *(void **)&it->run = dlsym(it->library, "emu_run");

    /* Its symbols are its kernels. */
    struct link_map *map;
    if (!it->run || dlinfo(it->library, RTLD_DI_LINKMAP, &map))
        return false;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Word) *hash = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *at = map->l_ld; at->d_tag != DT_NULL; at++) {
        if (at->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)at->d_un.d_ptr;
        if (at->d_tag == DT_STRTAB)
            names = (const char *)at->d_un.d_ptr;
        if (at->d_tag == DT_HASH)
            hash = (const ElfW(Word) *)at->d_un.d_ptr;
    }
    for (uint32_t i = 0; symbols && names && hash && i < hash[1]; i++) {
        const char *symbol = names + symbols[i].st_name;
        if (symbols[i].st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC ||
            strcmp(symbol, "emu_run") == 0 || strncmp(symbol, "_Z", 2) == 0) /* the C++ library's */
            continue;
        if (it->entry_count == EM_MOST_ENTRIES)
            return false;
        it->entries[it->entry_count++] = symbol;
    }
    return it->entry_count > 0;
}

bool em_open_all(const char *folder)
{
    for (size_t i = 0; i < EM_MODULES; i++) {
        char name[40];

        snprintf(name, sizeof name, "libemu_%u.so", em_modules[i].sm);
        if (!em_open(&em_modules[i], folder, name))
            return false;
    }
    return true;
}

void em_family_was_run(const char *family)
{
    for (size_t m = 0; m < EM_MODULES; m++)
        for (size_t i = 0; i < em_modules[m].entry_count; i++)
            if (!strncmp(em_modules[m].entries[i], family, strlen(family)) && !em_modules[m].was_run[i])
                fail_msg("sm_%u: %s was not run", em_modules[m].sm, em_modules[m].entries[i]);
}

bool em_quick(void)
{
    return getenv("TANDEM_SANITIZED") != NULL;
}

em_module *em_module_of(uint32_t sm)
{
    for (size_t i = 0; i < EM_MODULES; i++)
        if (em_modules[i].sm == sm)
            return &em_modules[i];
    fail_msg("no kernels for sm_%u", sm);
    return NULL;
}

int em_launch(em_module *on, const char *entry, emu_launch *it)
{
    for (size_t i = 0; i < on->entry_count; i++)
        if (strcmp(on->entries[i], entry) == 0)
            on->was_run[i] = true;
    it->kernel = dlsym(on->library, entry);
    if (!it->kernel)
        fail_msg("sm_%u has no kernel %s", on->sm, entry);
    return on->run(it);
}

/* What cancels, and from which block on. */
typedef struct cancelling {
    uint32_t word, from;
} cancelling;

static void cancel_before(void *user, uint32_t block)
{
    cancelling *c = user;

    c->word = block >= c->from;
}

static void launch_record(em_module *on, const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t seed,
                          cancelling *c)
{
    _Alignas(16) unsigned char params[TD_PARAM_BYTES] = {0}; /* no dumps where a plan has none */
    char why[1600] = "";
    emu_launch it = {.grid = record->grid[0],
                     .block = record->block[0],
                     .shared_bytes = record->shared_bytes,
                     .cluster = record->flags & TD_RECORD_CLUSTER ? record->cluster : 1,
                     /* blocks of prepare_kv wait for others, whose numbers are lower */
                     .together = strncmp(record->kernel->entry, "prepare_kv", 10) == 0 ? 1 + seed % 4 : 1,
                     .params = params,
                     .seed = seed,
                     .before = c ? cancel_before : NULL,
                     .user = c,
                     .why = why,
                     .why_bytes = sizeof why};

    td_exec_bind(record, views, scratch, 0, params);
    td_exec_bind_cancel(record, c ? (uintptr_t)&c->word : 0, params);
    if (em_launch(on, record->kernel->entry, &it))
        fail_msg("%s on sm_%u, seed %llu: %s", record->kernel->entry, on->sm, (unsigned long long)seed, why);
}

void em_launch_record(em_module *on, const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t seed)
{
    launch_record(on, record, views, scratch, seed, NULL);
}

void em_launch_cancelled(em_module *on, const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t seed,
                         uint32_t from)
{
    launch_record(on, record, views, scratch, seed, &(cancelling){.from = from});
}
