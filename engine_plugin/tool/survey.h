/* What there is on this machine, for `tandem info` and `tandem doctor`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SURVEY_H
#define TD_TOOL_SURVEY_H

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/tool.h"
#include "interop/cu/cu.h"
#include "tandem/vulkan.h"

enum { SURVEY_REQUIREMENTS = 64, SURVEY_DEVICES = 16, SURVEY_ROWS = 32 };

typedef struct requirements {
    uint32_t count;
    tandem_requirement list[SURVEY_REQUIREMENTS];
} requirements;

typedef struct cuda_report {
    bool available;
    td_cu_info info;
    char why[256], cubin[64], int4[96]; /* int4: what computes the integers of 4b */
} cuda_report;

typedef struct session_report {
    bool available;
    tandem_info info;
    char why[512];
} session_report;

/* What of the ladder's table is there, row by row; `why` as tandem_info.rung_reason says it. */
typedef struct ladder_report {
    td_have have[SURVEY_ROWS];
    char why[SURVEY_ROWS][400];
} ladder_report;

typedef struct device_report {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE], driver[VK_MAX_DRIVER_NAME_SIZE + VK_MAX_DRIVER_INFO_SIZE + 4];
    uint8_t uuid[16];
    bool has_cuda; /* CUDA knows a device of this UUID */
    uint32_t api_version;
    requirements needs;
    session_report session;
    ladder_report ladder;
} device_report;

typedef struct vulkan_report {
    char why[256]; /* why there is nothing to list */
    requirements instance_needs;
    uint32_t device_count;
    device_report devices[SURVEY_DEVICES];
} vulkan_report;

/* What sessions are given to tune AUTO by; text NULL: nothing. */
typedef struct survey_tuning {
    char *text;
    size_t bytes;
} survey_tuning;

/* A session without Vulkan, the first CUDA device, and every Vulkan device with a session on it. Zeroed before. */
void survey_session(survey_tuning tuning, session_report *out);
void survey_ladder(const tandem_vulkan *vulkan, ladder_report *out);
void survey_cuda(cuda_report *out);
void survey_vulkan(survey_tuning tuning, vulkan_report *out);
/* What a requirement is: "device extension", ... */
const char *survey_kind_name(uint32_t kind);

#endif
