/* NVML, opened at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct bench_nvml {
    void *library, *device;
    int (*clock)(void *device, int kind, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*energy)(void *device, unsigned long long *millijoules);
    int (*shutdown)(void);
    char driver[96];
};

bench_nvml *bench_nvml_open(const uint8_t *uuid)
{
    char text[48];
    bench_nvml *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = n->library ? (int (*)(void))dlsym(n->library, "nvmlInit_v2") : NULL;
    n->shutdown = n->library ? (int (*)(void))dlsym(n->library, "nvmlShutdown") : NULL;
    if (!init || !n->shutdown || init() != 0) {
        n->shutdown = NULL;
        bench_nvml_close(n);
        return NULL;
    }
    int (*find)(const char *, void **) = (int (*)(const char *, void **))dlsym(n->library, "nvmlDeviceGetHandleByUUID");
    int (*driver)(char *, unsigned) = (int (*)(char *, unsigned))dlsym(n->library, "nvmlSystemGetDriverVersion");
    n->clock = (int (*)(void *, int, unsigned *))dlsym(n->library, "nvmlDeviceGetClockInfo");
    n->power = (int (*)(void *, unsigned *))dlsym(n->library, "nvmlDeviceGetPowerUsage");
    n->energy = (int (*)(void *, unsigned long long *))dlsym(n->library, "nvmlDeviceGetTotalEnergyConsumption");
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%02x%s", uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    if (!find || find(text, &n->device) != 0)
        n->device = NULL;
    if (!driver || driver(n->driver, sizeof n->driver) != 0)
        n->driver[0] = 0;
    return n;
}

void bench_nvml_close(bench_nvml *n)
{
    if (!n)
        return;
    if (n->shutdown)
        n->shutdown();
    if (n->library)
        dlclose(n->library);
    free(n);
}

bench_power bench_nvml_read(bench_nvml *n)
{
    enum { SM = 1, MEMORY = 2 };
    bench_power p = {0};
    if (!n || !n->device)
        return p;
    if (n->clock) {
        n->clock(n->device, SM, &p.sm_mhz);
        n->clock(n->device, MEMORY, &p.memory_mhz);
    }
    if (n->power)
        n->power(n->device, &p.milliwatts);
    return p;
}

bool bench_nvml_energy(bench_nvml *n, uint64_t *millijoules)
{
    unsigned long long now = 0;
    if (!n || !n->device || !n->energy || n->energy(n->device, &now) != 0)
        return false;
    *millijoules = now;
    return true;
}

const char *bench_nvml_driver(const bench_nvml *n)
{
    return n ? n->driver : "";
}
