/* What the configuration file may say.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_CONFIG_H
#define TANDEM_DAEMON_CONFIG_H

#include "interop/base.h"

enum { TD_MAX_ALLOWED = 16, TD_MAX_MODEL_DIRS = 8 };

typedef struct td_config {
    uint32_t backend; /* tandem_backend */
    uint32_t threads, clients, mems, timelines, models, metrics_port, log_level, allow_count, model_dir_count;
    uint64_t mem_bytes, client_bytes, total_bytes, model_bytes, share_window_ns, job_ns;
    uint32_t allow[TD_MAX_ALLOWED];
    char model_dirs[TD_MAX_MODEL_DIRS][256];
    char tuning[256]; /* "": none */
} td_config;
extern const char td_config_help[];
td_config td_config_default(void);
/* Reads a file over *config, which is unchanged on failure: IO, or ARG naming line, key and value. */
tandem_status td_config_read(const char *path, td_config *config, char *why, size_t why_bytes);

#endif
