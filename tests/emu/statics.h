/* Where static shared memory is: variables of kernels are thread-local ones of their module, which has no others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EMU_STATICS_H
#define TD_TESTS_EMU_STATICS_H

#include <link.h>

namespace emu {
namespace {

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

} // namespace
} // namespace emu

#endif
