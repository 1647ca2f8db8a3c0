/* `tandem info`: the build, the CPU, CUDA, and what a session would be on each Vulkan device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/client/tuning_file.h"
#include "engine_plugin/tool/survey.h"
#include "kernels/cpu/cpu.h"
#include "kernels/target.h"

/* clang-format off */
const char *const tool_info_help =
    "usage: tandem info [--json] [--tuning F]\n"
    "\n"
    "The version, what the build holds, the CPU's kernels, the CUDA device and each Vulkan device, with the\n"
    "rung that a session on it is on, why it is not on a higher one, and which extensions and features that\n"
    "takes. `tandem doctor` says the same shorter, measures it, and says what to do.\n"
    "\n"
    "  --json      the same as JSON\n"
    "  --tuning F  a file of `tandem tune`: whether sessions on this machine would go by it\n";
/* clang-format on */

static void text_requirements(const requirements *needs)
{
    for (uint32_t i = 0; i < needs->count; i++) {
        const tandem_requirement *r = &needs->list[i];
        printf("    %-9s %-8s %-18s %s%s%s\n", r->available ? "available" : "missing",
               r->required ? "required" : "optional", survey_kind_name(r->kind), r->name, r->buys ? ": " : "",
               r->buys ? r->buys : "");
    }
}

static const char *const tunings[] = {"rule", "shipped table", "given table", "tandemd"};

static void text_session(const char *indent, const session_report *s)
{
    if (!s->available) {
        printf("%ssession: none: %s\n", indent, s->why);
        return;
    }
    printf("%ssession: rung %s, computes on %s (%s)\n%swhy not higher: %s\n", indent, td_rung_name(s->info.rung),
           s->info.device, s->info.isa, indent, s->info.rung_reason[0] ? s->info.rung_reason : "nothing is higher");
    printf("%sauto goes by: %s%s%s\n", indent, tunings[s->info.tuning % 4], s->info.tuning_reason[0] ? ": " : "",
           s->info.tuning_reason);
}

static void print_text(const cuda_report *cuda, const session_report *host, const vulkan_report *vulkan)
{
    uint32_t cubins = 0;
    const td_cubin *cubin = td_cubins(&cubins);
    printf("tandem %u.%u.%u\n", tandem_version() >> 22, tandem_version() >> 12 & 1023, tandem_version() & 4095);
    printf("build: %s", cubins ? "CUDA kernels for" : "without CUDA kernels (made without nvcc)");
    for (uint32_t i = 0; i < cubins; i++)
        printf(cubin[i].ptx ? " PTX compute_%u" : " sm_%u", cubin[i].sm);
    printf("\ncpu: %s\n", td_cpu_isa());
    if (cuda->available)
        printf("cuda: %s, sm_%u, driver for CUDA %u.%u, runs %s\n", cuda->info.name, cuda->info.sm,
               cuda->info.driver_version / 1000, cuda->info.driver_version % 1000 / 10,
               cuda->cubin[0] ? cuda->cubin : cuda->why);
    else
        printf("cuda: none: %s\n", cuda->why);
    if (cuda->available)
        printf("    4b: %s\n", cuda->int4);
    printf("without Vulkan:\n");
    text_session("    ", host);
    if (vulkan->why[0])
        printf("vulkan: none: %s\n", vulkan->why);
    if (vulkan->instance_needs.count) {
        printf("vulkan instance:\n");
        text_requirements(&vulkan->instance_needs);
    }
    for (uint32_t i = 0; i < vulkan->device_count; i++) {
        const device_report *d = &vulkan->devices[i];
        printf("vulkan device %u: %s, Vulkan %u.%u.%u\n", i, d->name, VK_API_VERSION_MAJOR(d->api_version),
               VK_API_VERSION_MINOR(d->api_version), VK_API_VERSION_PATCH(d->api_version));
        text_session("    ", &d->session);
        text_requirements(&d->needs);
    }
}

static void json_pair(const char *name, const char *text, const char *after)
{
    printf("\"%s\": ", name);
    tool_json_string(text);
    fputs(after, stdout);
}

static void json_requirements(const requirements *needs)
{
    printf("\"requirements\": [");
    for (uint32_t i = 0; i < needs->count; i++) {
        const tandem_requirement *r = &needs->list[i];
        printf("%s{", i ? ", " : "");
        json_pair("name", r->name, ", ");
        json_pair("kind", survey_kind_name(r->kind), ", ");
        printf("\"required\": %s, \"available\": %s, ", r->required ? "true" : "false",
               r->available ? "true" : "false");
        json_pair("buys", r->buys ? r->buys : "", "}");
    }
    printf("]");
}

static void json_session(const char *name, const session_report *s)
{
    printf("\"%s\": ", name);
    if (!s->available) {
        printf("{\"rung\": null, ");
        json_pair("reason", s->why, "}");
        return;
    }
    printf("{");
    json_pair("backend", tool_backend_name(s->info.backend), ", ");
    json_pair("rung", td_rung_name(s->info.rung), ", ");
    json_pair("rung_reason", s->info.rung_reason, ", ");
    json_pair("device", s->info.device, ", ");
    json_pair("isa", s->info.isa, ", ");
    json_pair("auto_by", tunings[s->info.tuning % 4], ", ");
    json_pair("auto_reason", s->info.tuning_reason, ", ");
    printf("\"sm\": %u, \"cuda_driver_version\": %u, \"cpu_threads\": %u}", s->info.sm, s->info.cuda_driver_version,
           s->info.cpu_threads);
}

static void print_json(const cuda_report *cuda, const session_report *host, const vulkan_report *vulkan)
{
    uint32_t cubins = 0;
    const td_cubin *cubin = td_cubins(&cubins);
    printf("{\"version\": \"%u.%u.%u\",\n \"build\": {\"cuda\": %s, \"kernels\": [", tandem_version() >> 22,
           tandem_version() >> 12 & 1023, tandem_version() & 4095, cubins ? "true" : "false");
    for (uint32_t i = 0; i < cubins; i++)
        printf(cubin[i].ptx ? "%s\"compute_%u\"" : "%s\"sm_%u\"", i ? ", " : "", cubin[i].sm);
    printf("]},\n \"cpu\": {");
    json_pair("isa", td_cpu_isa(), "},\n \"cuda\": ");
    if (cuda->available) {
        printf("{");
        json_pair("device", cuda->info.name, ", ");
        printf("\"sm\": %u, \"driver_version\": %u, \"timelines\": %s, ", cuda->info.sm, cuda->info.driver_version,
               cuda->info.timelines ? "true" : "false");
        json_pair("runs", cuda->cubin, ", ");
        json_pair("int4", cuda->int4, ", ");
        json_pair("reason", cuda->why, "},\n ");
    } else {
        printf("{\"device\": null, ");
        json_pair("reason", cuda->why, "},\n ");
    }
    json_session("host_session", host);
    printf(",\n \"vulkan\": {");
    json_pair("reason", vulkan->why, ", ");
    json_requirements(&vulkan->instance_needs);
    printf(", \"devices\": [");
    for (uint32_t i = 0; i < vulkan->device_count; i++) {
        const device_report *d = &vulkan->devices[i];
        printf("%s\n  {", i ? "," : "");
        json_pair("name", d->name, ", ");
        printf("\"api_version\": \"%u.%u.%u\", ", VK_API_VERSION_MAJOR(d->api_version),
               VK_API_VERSION_MINOR(d->api_version), VK_API_VERSION_PATCH(d->api_version));
        json_session("session", &d->session);
        printf(", ");
        json_requirements(&d->needs);
        printf("}");
    }
    printf("]}}\n");
}

int tool_info(int argc, char **argv)
{
    bool json = false;
    const char *path = NULL;
    survey_tuning tuning = {0};
    static td_tuning_table table;
    char why[400] = "", reason[300] = "";
    const tool_option options[] = {{"--json", NULL, &json}, {"--tuning", &path, NULL}};
    if (tool_parse("info", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (path && !tool_tuning_text(path, &tuning.text, &tuning.bytes, why, sizeof why))
        return tool_fail("info", "--tuning %s", why);
    if (tuning.text && td_tuning_parse(tuning.text, tuning.bytes, &table, reason, sizeof reason) != TANDEM_OK) {
        free(tuning.text);
        return tool_fail("info", "--tuning \"%s\" is no table of `tandem tune`: %s", path, reason);
    }
    cuda_report cuda = {0};
    session_report host = {0};
    vulkan_report *vulkan = calloc(1, sizeof *vulkan);
    if (!vulkan) {
        free(tuning.text);
        return tool_fail("info", "out of memory");
    }
    survey_cuda(&cuda);
    survey_session(tuning, &host);
    survey_vulkan(tuning, vulkan);
    if (json)
        print_json(&cuda, &host, vulkan);
    else
        print_text(&cuda, &host, vulkan);
    free(vulkan);
    free(tuning.text);
    return TOOL_OK;
}
