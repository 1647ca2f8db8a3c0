/* The same headers as C++17 must lay everything out as C does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <tandem/plugin.h>
#include <tandem/tandem.h>
#include <tandem/types.h>
#include <tandem/vulkan.h>

#include <cstdio>
#include <type_traits>

static_assert(std::is_trivially_copyable<tandem_job>::value && std::is_standard_layout<tandem_job>::value, "a job is plain data");
static_assert(std::is_trivially_copyable<tandem_pack>::value && std::is_standard_layout<tandem_pack>::value, "plain data");
static_assert(std::is_same<tandem_get_api_fn, decltype(&tandem_get_api)>::value, "the type that engines cast dlsym() to");

extern "C" {
extern const size_t td_sizes_c[18];
int td_inits_c(void);
}

static const size_t sizes[18] = {
    sizeof(tandem_point),         sizeof(tandem_view),          sizeof(tandem_attention),   sizeof(tandem_job),
    sizeof(tandem_job_report),    sizeof(tandem_session_desc),  sizeof(tandem_info),        sizeof(tandem_mem_desc),
    sizeof(tandem_timeline_desc), sizeof(struct tandem_vulkan), sizeof(tandem_requirement), sizeof(tandem_mem_vulkan),
    sizeof(tandem_pack),          sizeof(tandem_api),           offsetof(tandem_info, isa), offsetof(tandem_pack, view),
    sizeof(tandem_pack_image),    offsetof(tandem_pack_image, tensor),
};

int main()
{
    const tandem_pack pack = TANDEM_INIT(tandem_pack);
    int wrong = pack.struct_bytes != sizeof pack || pack.image_count || td_inits_c();
    if (wrong)
        std::printf("TANDEM_INIT() leaves something unset\n");
    for (int i = 0; i < 18; i++) {
        if (sizes[i] != td_sizes_c[i]) {
            std::printf("entry %d: %zu in C++, %zu in C\n", i, sizes[i], td_sizes_c[i]);
            wrong = 1;
        }
    }
    return wrong;
}
