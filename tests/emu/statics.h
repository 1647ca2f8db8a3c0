/* Where static shared memory is: variables of kernels are thread-local ones of their module, which has no others.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A module has megabytes of them, of which a kernel uses a few pages. Filling all before each block, and copying all whenever
 * blocks of a cluster take turns, took longer than what the blocks did; so pages are filled when a run begins to write there:
 * until then they cannot be written to, and the first who does it is stopped by a signal. (A debugger: handle SIGSEGV nostop.)
 */
#ifndef TD_TESTS_EMU_STATICS_H
#define TD_TESTS_EMU_STATICS_H

#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace emu {
namespace {

constexpr int kUnwritten = 0xff; /* what shared memory has before anybody writes there */

struct Statics {
    char *at = nullptr;
    size_t bytes = 0;
};

/* For dl_iterate_phdr(): of this module, into a Statics. */
int find_statics(dl_phdr_info *info, size_t, void *to)
{
    const ElfW(Addr) here = reinterpret_cast<ElfW(Addr)>(&find_statics);
    bool mine = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &header = info->dlpi_phdr[i];
        const ElfW(Addr) at = info->dlpi_addr + header.p_vaddr;
        mine = mine || (header.p_type == PT_LOAD && at <= here && here < at + header.p_memsz);
        if (header.p_type == PT_TLS)
            bytes = header.p_memsz;
    }
    if (!mine)
        return 0;
    auto *statics = static_cast<Statics *>(to);
    statics->at = static_cast<char *>(info->dlpi_tls_data);
    statics->bytes = statics->at ? bytes : 0;
    return 1;
}

/* Which of it a run has written to. What it has not is kUnwritten, for every block. */
struct Written {
    struct Part {
        size_t offset, bytes;
    };
    Statics statics;
    std::vector<Part> parts; /* those before the first whole page and behind the last one; then pages */
    std::vector<bool> is_open; /* by page: it is one of these, and can be written to */
    size_t first = 0, page_bytes = 4096; /* the first whole page */
    struct sigaction before;

    size_t pages() const { return is_open.size(); }

    void open(size_t page)
    {
        if (mprotect(statics.at + first + page * page_bytes, page_bytes, PROT_READ | PROT_WRITE))
            abort();
        is_open[page] = true;
        parts.push_back({first + page * page_bytes, page_bytes}); /* for which there is room */
    }

    /* Somebody is about to write to copies of these bytes. */
    void touch(size_t offset, size_t bytes)
    {
        const size_t end = offset + bytes;
        for (size_t page = offset < first ? 0 : (offset - first) / page_bytes; page < pages() && first + page * page_bytes < end; page++)
            if (!is_open[page])
                open(page);
    }

    void begin(const Statics &where);
    void end();
};
Written written;

/* Whoever writes to a page for the first time does it once more after this. Faults of others are for who had the signal before. */
void on_fault(int, siginfo_t *info, void *)
{
    const size_t offset = size_t(static_cast<char *>(info->si_addr) - (written.statics.at + written.first));
    const size_t page = offset / written.page_bytes;
    if (page < written.pages() && !written.is_open[page])
        written.open(page);
    else
        sigaction(SIGSEGV, &written.before, nullptr);
}

void Written::begin(const Statics &where)
{
    if (statics.at != where.at || statics.bytes != where.bytes) { /* the first run, or the first one of a thread */
        statics = where;
        page_bytes = size_t(sysconf(_SC_PAGESIZE));
        first = -reinterpret_cast<uintptr_t>(statics.at) % page_bytes;
        first = first < statics.bytes ? first : statics.bytes;
        const size_t whole = (statics.bytes - first) / page_bytes, end = first + whole * page_bytes;
        is_open.assign(whole, false);
        parts.reserve(whole + 2);
        parts.clear();
        parts.push_back({0, first});
        parts.push_back({end, statics.bytes - end});
        if (statics.bytes)
            memset(statics.at, kUnwritten, statics.bytes);
        if (whole && mprotect(statics.at + first, whole * page_bytes, PROT_READ))
            abort();
    }
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
}

void Written::end()
{
    sigaction(SIGSEGV, &before, nullptr);
    for (size_t i = 2; i < parts.size(); i++) {
        memset(statics.at + parts[i].offset, kUnwritten, parts[i].bytes);
        if (mprotect(statics.at + parts[i].offset, parts[i].bytes, PROT_READ))
            abort();
        is_open[(parts[i].offset - first) / page_bytes] = false;
    }
    if (parts.size() > 2)
        parts.resize(2);
}

} // namespace
} // namespace emu

#endif
