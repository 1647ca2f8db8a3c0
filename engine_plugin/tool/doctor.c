/* `tandem doctor`: what works on this machine, what does not, and what to do about it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything is a finding: yes, no or a note, with what to do where there is something to be done. They are gathered
 * first, then printed as text or as JSON.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/tool/daemon.h"
#include "engine_plugin/tool/routes.h"
#include "engine_plugin/tool/survey.h"
#include "kernels/cpu/cpu.h"
#include "kernels/target.h"

/* clang-format off */
const char *const tool_doctor_help =
    "usage: tandem doctor [--json] [--socket PATH] [--config FILE]\n"
    "\n"
    "What works on this machine: the build, drivers, devices (Vulkan's and CUDA's are matched by UUID), what\n"
    "each rung of the ladder needs and whether that is here (\"?\": what it would be asked of is missing), what\n"
    "is optional, each rung with a hand-over measured on it (well under a second each), the daemon, its model\n"
    "directories. Below each \"no\" stands what to do, and at the end why sessions are on no better rung.\n"
    "\n"
    "  --socket PATH  of the daemon; default: $XDG_RUNTIME_DIR/tandem-0\n"
    "  --config FILE  of the daemon, for its model directories; default: as tandemd's\n"
    "  --json         {version, works, rung, rung_reason, findings: [{section, name, status, text, advice,\n"
    "                 ...}]}; status is yes, no or note. What a rung needs has needed_by: [{device, rung}]. Rungs\n"
    "                 that work have p50_us and p99_us: one frame's round trip with a job of 64 bytes in the\n"
    "                 middle, from the first call to the last fence\n"
    "\n"
    "exit status: 0 if a session can be made on this machine, on whatever rung; else 1\n";
/* clang-format on */

enum { FINDINGS = 128, COLUMNS = 80, NAME_COLUMNS = 28, SINGLES = 400 };
#define RUNG_NS 400000000u /* that a rung may be measured for */

typedef enum state { YES, NO, NOTE } state;
static const char *const state_names[] = {"yes", "no", "note"};

typedef struct finding {
    const char *section;
    state state;
    char name[96], text[420], advice[420];
    uint32_t ways;         /* of a requirement: that need it */
    double p50_us, p99_us; /* of a rung; NAN: not measured */
} finding;

typedef struct doctor {
    finding list[FINDINGS];
    uint32_t count;
    const char *section;
    cuda_report cuda;
    session_report host;
    ladder_report ladder; /* without Vulkan */
    vulkan_report vulkan;
    tandem_info best; /* what a session can be on the best device; rung 0: there is none */
} doctor;

static finding *find(doctor *d, state s, const char *name, const char *format, ...)
    __attribute__((format(TD_PRINTF, 4, 5)));
static finding *find(doctor *d, state s, const char *name, const char *format, ...)
{
    char text[sizeof(finding)];
    static finding spare;
    finding *f = d->count < FINDINGS ? &d->list[d->count++] : &spare;
    va_list list;
    *f = (finding){.section = d->section, .state = s, .p50_us = NAN, .p99_us = NAN};
    td_wire_text(f->name, sizeof f->name, name); /* paths may be anything */
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    td_wire_text(f->text, sizeof f->text, text);
    return f;
}

static void advise(finding *f, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
static void advise(finding *f, const char *format, ...)
{
    char text[sizeof f->advice];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    td_wire_text(f->advice, sizeof f->advice, text);
}

/* The build, and drivers. */

static void look_at_build(doctor *d)
{
    uint32_t cubins = 0;
    const td_cubin *cubin = td_cubins(&cubins);
    char text[160] = "";
    size_t at = 0;
    d->section = "This build";
    find(d, YES, "version", "%u.%u.%u", tandem_version() >> 22, tandem_version() >> 12 & 1023, tandem_version() & 4095);
    for (uint32_t i = 0; i < cubins && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, cubin[i].ptx ? "%sPTX compute_%u" : "%ssm_%u",
                               i ? ", " : "", cubin[i].sm);
    if (cubins)
        find(d, YES, "CUDA kernels", "%s", text);
    else
        advise(find(d, NO, "CUDA kernels", "built without nvcc"),
               "install CUDA's compiler (INSTALL.md, \"nvcc\") and build again; only an NVIDIA GPU needs it");
    find(d, YES, "CPU kernels", "%s", td_cpu_isa());
}

static void look_at_cuda(doctor *d)
{
    const td_cu_info *info = &d->cuda.info;
    if (!d->cuda.available) {
        find(d, NOTE, "CUDA", "%s", strstr(d->cuda.why, "libcuda") ? "libcuda.so.1 is not there" : d->cuda.why);
        return;
    }
    find(d, YES, "CUDA", "driver for CUDA %u.%u", info->driver_version / 1000, info->driver_version % 1000 / 10);
    if (d->cuda.cubin[0])
        find(d, YES, "its kernels", "%s on %s (sm_%u)", d->cuda.cubin, info->name, info->sm);
}

static void look_at_drivers(doctor *d)
{
    d->section = "Drivers";
    look_at_cuda(d);
    if (d->vulkan.why[0])
        advise(find(d, NO, "Vulkan", "%s", d->vulkan.why),
               "Debian: apt-get install libvulkan1, and the GPU's driver, or mesa-vulkan-drivers to render on the CPU. "
               "Sessions without Vulkan work as they are");
    for (uint32_t i = 0; i < d->vulkan.device_count; i++) {
        const device_report *v = &d->vulkan.devices[i];
        find(d, YES, "Vulkan", "%u.%u.%u by %s", VK_API_VERSION_MAJOR(v->api_version),
             VK_API_VERSION_MINOR(v->api_version), VK_API_VERSION_PATCH(v->api_version),
             v->driver[0] ? v->driver : v->name);
    }
}

/* Devices, and what each offers. */

static const char *uuid_text(const uint8_t *uuid, char text[40])
{
    char *at = text;
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%02x%s", uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    return text;
}

static void look_at_devices(doctor *d)
{
    char uuid[40];
    d->section = "Devices, matched by UUID";
    for (uint32_t i = 0; i < d->vulkan.device_count; i++) {
        const device_report *v = &d->vulkan.devices[i];
        if (v->has_cuda)
            find(d, YES, v->name, "Vulkan's and CUDA's, %s", uuid_text(v->uuid, uuid));
        else
            advise(find(d, d->cuda.available ? NO : NOTE, v->name, "Vulkan's alone: CUDA knows no %s",
                        uuid_text(v->uuid, uuid)),
                   "%s",
                   d->cuda.available ? "an engine that renders there computes on the CPU; to use CUDA it must pick the "
                                   "Vulkan device that is matched"
                                 : "");
    }
    if (d->cuda.available && !d->vulkan.device_count)
        find(d, NOTE, d->cuda.info.name, "CUDA's alone, %s", uuid_text(d->cuda.info.uuid, uuid));
    if (!d->cuda.available && !d->vulkan.device_count)
        find(d, NOTE, "none", "only this machine's CPU computes");
}

/* The device that the rungs are measured on: the first that CUDA knows, else the first. */
static const device_report *best_device(const doctor *d)
{
    for (uint32_t i = 0; i < d->vulkan.device_count; i++)
        if (d->vulkan.devices[i].has_cuda)
            return &d->vulkan.devices[i];
    return d->vulkan.device_count ? &d->vulkan.devices[0] : NULL;
}

/* The table of requirements: what each rung needs, and whether that is here. */

static const ladder_report *ladder_of(const doctor *d)
{
    const device_report *v = best_device(d);
    return v ? &v->ladder : &d->ladder;
}

static state state_of(td_have have)
{
    return have == TD_HAVE ? YES : have == TD_MISSING ? NO : NOTE;
}

static bool is_here(td_way way)
{
    return way.device != TD_DEVICE_CUDA_ELSEWHERE;
}

static uint32_t ways_here(void)
{
    uint32_t ways = 0;
    for (int i = 0; i < TD_WAYS; i++)
        ways |= is_here(td_ladder[i]) ? td_way_bit(td_ladder[i]) : 0;
    return ways;
}

static void look_at_requirements(doctor *d)
{
    const device_report *v = best_device(d);
    const ladder_report *ladder = ladder_of(d);
    static char section[320];
    snprintf(section, sizeof section, "What each rung needs, on %s", v ? v->name : "a machine without Vulkan");
    d->section = section;
    for (uint32_t i = 0; i < td_requirement_count; i++) {
        const td_requirement *r = &td_requirements[i];
        if (!(r->ways & ways_here()))
            continue;
        finding *f = find(d, state_of(ladder->have[i]), r->name, "%s", ladder->why[i]);
        f->ways = r->ways;
        if (f->state == NO)
            advise(f, "%s", r->advice);
    }
}

static const tandem_requirement *need_of(const device_report *v, const char *name)
{
    for (uint32_t i = 0; i < v->needs.count; i++)
        if (!strcmp(v->needs.list[i].name, name))
            return &v->needs.list[i];
    return NULL;
}

/* What no rung needs: first what is here, whose names go on one line. */
static void look_at_options(doctor *d)
{
    const device_report *v = best_device(d);
    if (!v)
        return;
    d->section = "Optional: of use, though no rung needs it";
    for (int here = 1; here >= 0; here--)
        for (uint32_t i = 0; i < td_requirement_count; i++) {
            const td_requirement *r = &td_requirements[i];
            const tandem_requirement *need = r->ways ? NULL : need_of(v, r->name);
            if (!need || (need->available != 0) != here)
                continue;
            if (here)
                find(d, YES, r->name, "%s", "");
            else
                advise(find(d, NO, r->name, "for %s", r->buys), "%s", r->advice);
        }
}

/* Memory: on which rungs each source of it may be, of this process's and of tandemd's GPU, and of the CPU. */
static void look_at_memory(doctor *d)
{
    d->section = "Memory that jobs work on: where it may come from, by rung";
    for (const td_memory_kind *kind = td_memory_kinds; kind < td_memory_kinds + td_memory_kind_count; kind++) {
        char rungs[200] = "", elsewhere[100] = "";
        for (int i = 0; i < TD_WAYS; i++) {
            const td_way way = td_ladder[i];
            char *to = way.device == TD_DEVICE_CUDA_ELSEWHERE ? elsewhere : rungs;
            const size_t room = to == elsewhere ? sizeof elsewhere : sizeof rungs, used = strlen(to);
            const bool twice = way.device == TD_DEVICE_CPU && way.sharing == TD_SHARING_COPY; /* named above, of CUDA's */
            if ((kind->ways & td_way_bit(way)) && !(twice && strstr(rungs, "copy")))
                snprintf(to + used, room - used, "%s%s", used ? ", " : "", td_rung_name(td_rung_of(way, 0)));
        }
        find(d, NOTE, kind->name, "%s%s%s%s%s", rungs, elsewhere[0] ? "; tandemd's GPU: " : "", elsewhere, kind->needs[0] ? "; needs " : "",
             kind->needs);
    }
}

/* Rungs. */

static bool measure(route *l, bench_vk *v, const payload *p)
{
    route_prepare(l, v, p);
    const uint64_t begin = td_now_ns();
    bool good = !l->why[0] && route_single(l, v, false);
    for (int i = 0; i < SINGLES && good && td_now_ns() - begin < RUNG_NS; i++)
        good = route_single(l, v, true);
    return good && !l->why[0] && !l->wrong && l->round_trip.count;
}

/* What of the table is missing for a rung, or what was said when it was tried. */
static void find_missing_rung(doctor *d, const route *l)
{
    const char *because = strstr(l->why, "): "), *why = because ? because + 3 : l->why;
    const ladder_report *ladder = ladder_of(d);
    char names[sizeof d->list[0].text] = "";
    size_t used = 0;
    const td_way *way = td_ladder;
    while (!is_here(*way) || td_rung_of(*way, 0) != l->rung)
        way++;
    for (uint32_t i = 0; i < td_requirement_count && used < sizeof names; i++)
        if ((td_requirements[i].ways & td_way_bit(*way)) && ladder->have[i] == TD_MISSING)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "lacks ",
                                     td_requirements[i].name);
    if (used)
        advise(find(d, NO, l->name, "%s", names), "what to do stands above, with each of these");
    else
        advise(find(d, NO, l->name, "%s", why[0] ? why : "its results are wrong"),
               "all that it needs is here: what is said has to be mended, or reported");
}

static void look_at_rungs(doctor *d)
{
    static const struct {
        uint32_t rung;
        route_kind kind;
    } rungs[] = {{TANDEM_RUNG_INLINE, ROUTE_RECORDED},
                 {TANDEM_RUNG_TIMELINE, ROUTE_SUBMITTED},
                 {TANDEM_RUNG_HOST, ROUTE_SUBMITTED},
                 {TANDEM_RUNG_COPY, ROUTE_SUBMITTED},
                 {TANDEM_RUNG_CPU, ROUTE_SUBMITTED}};
    bench_vk *v = calloc(1, sizeof *v);
    char why[420] = "", job[160];
    payload p;
    d->section = "Rungs, best first: a frame's round trip with a job of 64 bytes in it";
    if (!v || !bench_vk_open(v, why, sizeof why)) {
        find(d, NOTE, "not measured", "%s", v ? why : "out of memory");
        finding *f = find(d, d->host.available ? YES : NO, "without Vulkan", "%s",
                          d->host.available ? td_rung_name(d->host.info.rung) : d->host.why);
        if (!d->host.available)
            advise(f, "what is said here has to be mended first: without it there is no session at all");
    } else {
        payload_make(&p, job, "64 B", PAYLOAD_EMPTY, 64, 1, 1, 1, 1, TANDEM_PRECISION_F16, 1);
        for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
            route l = {.name = td_rung_name(rungs[i].rung), .kind = rungs[i].kind, .rung = rungs[i].rung};
            route_open(&l, v);
            if (!l.why[0] && measure(&l, v, &p)) {
                finding *f =
                    find(d, YES, l.name, "p50 %.0f us, p99 %.0f us%s", bench_median(&l.round_trip),
                         bench_at(&l.round_trip, 0.99), l.info.backend == TANDEM_BACKEND_CPU ? ", on the CPU" : "");
                f->p50_us = bench_median(&l.round_trip);
                f->p99_us = bench_at(&l.round_trip, 0.99);
                if (l.info.backend == TANDEM_BACKEND_CUDA && l.rung < d->best.rung)
                    d->best = l.info;
            } else {
                find_missing_rung(d, &l);
            }
            route_close(&l, v);
            route_free_series(&l);
        }
    }
    if (v)
        bench_vk_close(v);
    free(v);
}

/* The daemon. */

/* Why there is no answer: nobody who listens, nobody who may be asked, somebody else, or a tandemd that says no. */
static void find_unreachable(doctor *d, const tool_daemon *t, tandem_status status, const char *why, const char *path,
                             const char *socket)
{
    struct stat st;
    const bool exists = !lstat(path, &st);
    if (!t->connected && access(path, W_OK) && errno == EACCES)
        advise(find(d, NO, "reachable", "user %u may not connect to %s: permission denied", (unsigned)geteuid(), path),
               "it is another user's: it lets in whom its configuration names (allow_uid = %u)", (unsigned)geteuid());
    else if (!t->connected && exists && !S_ISSOCK(st.st_mode) && !S_ISLNK(st.st_mode))
        advise(find(d, NO, "reachable", "%s is no socket", path), "remove it, or name another path: --socket");
    else if (!t->connected && status == TANDEM_ERROR_LOST)
        advise(find(d, NO, "reachable", "nobody listens at %s", path),
               "start it: tandemd%s%s, or for good: systemctl --user enable --now tandemd.socket. Sessions in the "
               "engine's own process need none",
               socket ? " --socket " : "", socket ? socket : "");
    else if (!t->connected && status == TANDEM_ERROR_BUSY)
        advise(find(d, NO, "reachable", "somebody listens at %s, but lets nobody in: %s", path, why),
               "if that is tandemd it hangs: end it, and start it again");
    else if (!t->heard)
        advise(find(d, NO, "reachable", "somebody listens at %s who is no tandemd: %s", path,
                    !t->connected                    ? "it is another kind of socket"
                    : status == TANDEM_ERROR_LOST    ? "it closes without a word"
                    : status == TANDEM_ERROR_BUSY    ? "it says nothing"
                                                     : why),
               "find out who it is: ss -xlp; or name another path to tandemd and to engines: --socket, "
               "tandem_session_desc.socket");
    else if (status == TANDEM_ERROR_UNSUPPORTED)
        advise(find(d, NO, "reachable", "%s", why),
               "if another user's: it lets in whom its configuration names (allow_uid = %u)", (unsigned)geteuid());
    else
        advise(find(d, NO, "reachable", "%s", why), "its log says more: journalctl --user -u tandemd, or where its stderr goes");
}

static bool look_at_daemon(doctor *d, const char *socket)
{
    char path[TD_CONN_PATH_BYTES], why[TD_WIRE_TEXT_BYTES] = "";
    tool_daemon *t = calloc(1, sizeof *t);
    bool has_models = false;
    d->section = "tandemd, for sessions in another process";
    if (!t)
        return false;
    t->conn.fd = -1;
    if (!tool_daemon_path(socket, path, why, sizeof why)) {
        advise(find(d, NO, "reachable", "%s", why),
               "engines need the same: log in by a session that sets it, or name a "
               "socket to both (--socket, tandem_session_desc.socket)");
        free(t);
        return false;
    }
    const tandem_status status = tool_daemon_open(t, path, "tandem doctor", why, sizeof why);
    if (status != TANDEM_OK) {
        find_unreachable(d, t, status, why, path, socket);
    } else {
        find(d, YES, "reachable", "%s at %s", t->welcome.name, path);
        find(d, YES, "computes on", "%s, rung %s%s", t->info.device, td_rung_name(t->welcome.rung),
             t->info.epoch ? ", after its worker was replaced" : "");
        if (tool_daemon_stats(t, why, sizeof why) == TANDEM_OK)
            find(d, YES, "clients now", "%u", t->row_count);
        if (t->info.backend == TANDEM_BACKEND_CPU && d->cuda.available && d->cuda.cubin[0])
            advise(find(d, NO, "uses the GPU", "it computes on the CPU, and there is %s", d->cuda.info.name),
                   "set backend = auto in its configuration and restart it; its log says why it does not");
        has_models = (t->welcome.features & TD_WIRE_MODELS) != 0;
        find(d, has_models ? YES : NOTE, "loads models", "%s",
             has_models ? "from its model directories" : "no: it has no model directories");
    }
    tool_daemon_close(t);
    free(t);
    return has_models;
}

/* Model directories, which the daemon's configuration names. */

static void look_at_folder(doctor *d, const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *e;
    unsigned models = 0;
    if (!dir) {
        advise(find(d, NO, path, "%s", strerror(errno)), "make it, or take its line out of the configuration");
        return;
    }
    while ((e = readdir(dir))) {
        const char *dot = strrchr(e->d_name, '.');
        models += dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".gguf"));
    }
    closedir(dir);
    find(d, models ? YES : NOTE, path, "%u model file%s in it", models, models == 1 ? "" : "s");
}

static void look_at_models(doctor *d, const char *config, bool loads)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char path[4096] = "", text[1024];
    unsigned count = 0;
    d->section = "Model directories";
    if (config)
        snprintf(path, sizeof path, "%s", config);
    else if (xdg && *xdg)
        snprintf(path, sizeof path, "%s/tandem/tandemd.conf", xdg);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.config/tandem/tandemd.conf", home);
    struct stat st;
    const bool exists = !stat(path, &st), is_file = exists && S_ISREG(st.st_mode);
    FILE *file = is_file ? fopen(path, "re") : NULL;
    if (!file && (config || exists))
        advise(find(d, NO, "configuration", "%s: %s", path, exists && !is_file ? "no regular file" : strerror(errno)),
               "%s", config ? "give --config the file that tandemd reads" : "make it one that tandemd can read");
    while (file && fgets(text, sizeof text, file)) {
        char name[32] = "", value[512] = "";
        if (sscanf(text, " %31[a-z_] = %511[^\n]", name, value) != 2 || strcmp(name, "model_dir"))
            continue;
        for (size_t end = strlen(value); end && strchr(" \t\r", value[end - 1]); end--)
            value[end - 1] = 0;
        look_at_folder(d, value);
        count++;
    }
    if (file)
        fclose(file);
    if (!count && (file || !(config || exists)))
        advise(find(d, NOTE, "none", "%s%s", path, file ? " names none" : " is not there"),
               "for clients that load models: a line model_dir = /absolute/path there, then `kill -HUP` tandemd");
    else if (count && !loads)
        advise(find(d, NOTE, "not in use", "no tandemd that was reached has read them"),
               "start tandemd, or have it read its configuration again: kill -HUP, systemctl --user reload tandemd");
}

/* Printing. */

static const char *paint(state s, bool colour)
{
    static const char *const paints[] = {"\033[32m", "\033[31m", "\033[33m"};
    return colour ? paints[s] : "";
}

/* Words from `column` on, within 80; the first line goes on where it is. */
static void print_wrapped(const char *text, int column)
{
    int at = column;
    while (*text) {
        const int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > COLUMNS - 1) {
            printf("\n%*s", column, "");
            at = column;
        } else if (at > column) {
            putchar(' ');
            at++;
        }
        for (int i = 0; i < word; i++)
            putchar((unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i]);
        at += word;
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_state(state s, bool colour)
{
    printf("  %s%-4s%s ", paint(s, colour), s == NOTE ? "-" : state_names[s], colour ? "\033[0m" : "");
}

/* Names about which there is nothing more to say, on as few lines as they need. Returns how many there were. */
static uint32_t print_names(const finding *list, uint32_t count, bool colour)
{
    char text[FINDINGS * 32] = "";
    size_t at = 0;
    uint32_t n = 0;
    while (n < count && list[n].state == list[0].state && !list[n].text[0] && list[n].section == list[0].section &&
           at + 100 < sizeof text) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", n ? ", " : "", list[n].name);
        n++;
    }
    print_state(list[0].state, colour);
    print_wrapped(text, 7);
    return n;
}

static void print_advice(const finding *f, bool colour)
{
    if (!f->advice[0])
        return;
    printf("       %s->%s ", colour ? "\033[36m" : "", colour ? "\033[0m" : "");
    print_wrapped(f->advice, 10);
}

static void print_finding(const finding *f, bool colour)
{
    const int text_column = 7 + NAME_COLUMNS + 1;
    print_state(f->state, colour);
    if (strlen(f->name) > NAME_COLUMNS) {
        printf("%s\n%*s", f->name, text_column, "");
        print_wrapped(f->text, text_column);
    } else {
        printf("%-*s ", NAME_COLUMNS, f->name);
        print_wrapped(f->text, text_column);
    }
    print_advice(f, colour);
}

/* The table has a column for each way, under its rung's name. */
static int cell_width(td_way way)
{
    return (int)strlen(td_rung_name(td_rung_of(way, 0))) + 2;
}

static void print_cell(td_way way, const char *text, const char *colour)
{
    printf("%*s%s%s%s", cell_width(way) - (int)strlen(text), "", colour, text, *colour ? "\033[0m" : "");
}

static void print_table_head(void)
{
    td_device_kind device = TD_DEVICES;
    int blanks = 7 + NAME_COLUMNS;
    for (int i = 0; i < TD_WAYS; i++) {
        if (!is_here(td_ladder[i]))
            continue;
        if (td_ladder[i].device != device)
            printf("%*s", blanks + cell_width(td_ladder[i]), td_ladder[i].device == TD_DEVICE_CPU ? "CPU" : "CUDA");
        blanks = td_ladder[i].device == device ? blanks + cell_width(td_ladder[i]) : 0;
        device = td_ladder[i].device;
    }
    printf("\n%*s", 7 + NAME_COLUMNS, "");
    for (int i = 0; i < TD_WAYS; i++)
        if (is_here(td_ladder[i]))
            print_cell(td_ladder[i], td_rung_name(td_rung_of(td_ladder[i], 0)), "");
    putchar('\n');
}

static void print_row(const finding *f, bool colour)
{
    static const char *const words[] = {"yes", "no", "?"};
    print_state(f->state, colour);
    printf("%-*s", NAME_COLUMNS, f->name);
    for (int i = 0; i < TD_WAYS; i++)
        if (is_here(td_ladder[i]) && (f->ways & td_way_bit(td_ladder[i])))
            print_cell(td_ladder[i], words[f->state], paint(f->state, colour));
        else if (is_here(td_ladder[i]))
            print_cell(td_ladder[i], ".", "");
    putchar('\n');
}

/* Rows from `list` on, then what they come to. Returns how many there were. */
static uint32_t print_table(const finding *list, uint32_t count, bool colour)
{
    uint32_t n = 0, closed = 0;
    print_table_head();
    for (; n < count && list[n].ways; n++) {
        print_row(&list[n], colour);
        closed |= list[n].state == NO ? list[n].ways : 0;
        if (list[n].state == NO) {
            printf("       ");
            print_wrapped(list[n].text, 7);
            print_advice(&list[n], colour);
        }
    }
    printf("       %-*s", NAME_COLUMNS, "all that it needs");
    for (int i = 0; i < TD_WAYS; i++) {
        const state all = closed & td_way_bit(td_ladder[i]) ? NO : YES;
        if (is_here(td_ladder[i]))
            print_cell(td_ladder[i], state_names[all], paint(all, colour));
    }
    putchar('\n');
    return n;
}

static void print_verdict(const doctor *d, bool colour)
{
    const bool works = d->best.rung != 0;
    uint32_t advice = 0;
    for (uint32_t i = 0; i < d->count; i++)
        advice += d->list[i].state == NO && d->list[i].advice[0];
    printf("\n%s%s%s", paint(works ? YES : NO, colour), works ? "Tandem works here" : "No session can be made here",
           colour ? "\033[0m" : "");
    if (works)
        printf(": rung %s, on %s", td_rung_name(d->best.rung), d->best.device);
    if (advice)
        printf(".\n%u line%s above with an arrow (->) say%s what would give more", advice, advice == 1 ? "" : "s",
               advice == 1 ? "s" : "");
    printf(".\n");
    if (works && d->best.rung_reason[0]) {
        char text[sizeof d->best.rung_reason + 32];
        snprintf(text, sizeof text, "Why no better rung: %s.", d->best.rung_reason);
        print_wrapped(text, 0);
    }
}

static void print_text(const doctor *d)
{
    const bool colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    const char *section = "";
    for (uint32_t i = 0; i < d->count;) {
        const finding *f = &d->list[i];
        if (strcmp(section, f->section)) {
            section = f->section;
            printf("%s%s%s%s\n", i ? "\n" : "", colour ? "\033[1m" : "", section, colour ? "\033[0m" : "");
        }
        if (f->ways) {
            i += print_table(f, d->count - i, colour);
            continue;
        }
        if (!f->text[0]) {
            i += print_names(f, d->count - i, colour);
            continue;
        }
        print_finding(f, colour);
        i++;
    }
    print_verdict(d, colour);
}

static json_t *json_ways(uint32_t ways)
{
    static const char *const devices[TD_DEVICES] = {"CUDA", "CUDA in tandemd", "CPU"};
    json_t *list = json_array();
    for (const td_way *way = td_ladder; way < td_ladder + TD_WAYS; way++)
        if (ways & td_way_bit(*way))
            json_array_append_new(list, json_pack("{s:s, s:s}", "device", devices[way->device], "rung",
                                                  td_rung_name(td_rung_of(*way, 0))));
    return list;
}

static bool print_json(const doctor *d)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->count; i++) {
        const finding *f = &d->list[i];
        json_t *one = json_pack("{s:s, s:s, s:s, s:s, s:s}", "section", f->section, "name", f->name, "status",
                                state_names[f->state], "text", f->text, "advice", f->advice);
        if (f->ways)
            json_object_set_new(one, "needed_by", json_ways(f->ways));
        if (!isnan(f->p50_us)) {
            json_object_set_new(one, "p50_us", bench_number(f->p50_us));
            json_object_set_new(one, "p99_us", bench_number(f->p99_us));
        }
        json_array_append_new(list, one);
    }
    json_t *report =
        json_pack("{s:s, s:b, s:o, s:s, s:o}", "version", d->list[0].text, "works", d->best.rung != 0, "rung",
                  d->best.rung ? json_string(td_rung_name(d->best.rung)) : json_null(), "rung_reason",
                  d->best.rung_reason, "findings", list);
    errno = 0;
    const bool ok = report && json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) == 0 &&
                    putchar('\n') == '\n' && fflush(stdout) == 0;
    json_decref(report);
    return ok;
}

int tool_doctor(int argc, char **argv)
{
    const char *socket = NULL, *config = NULL;
    bool json = false;
    const tool_option options[] = {{"--socket", &socket, NULL}, {"--config", &config, NULL}, {"--json", NULL, &json}};
    if (tool_parse("doctor", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    doctor *d = calloc(1, sizeof *d);
    if (!d)
        return tool_fail("doctor", "out of memory");
    survey_cuda(&d->cuda);
    survey_session((survey_tuning){0}, &d->host);
    survey_ladder(NULL, &d->ladder);
    survey_vulkan((survey_tuning){0}, &d->vulkan);
    const device_report *v = best_device(d);
    d->best = v && v->session.available ? v->session.info : d->host.info;
    look_at_build(d);
    look_at_drivers(d);
    look_at_devices(d);
    look_at_requirements(d);
    look_at_options(d);
    look_at_memory(d);
    look_at_rungs(d);
    look_at_models(d, config, look_at_daemon(d, socket));
    int result = d->best.rung ? TOOL_OK : TOOL_FAILED;
    if (!json)
        print_text(d);
    else if (!print_json(d))
        result = tool_fail("doctor", "standard output: %s", strerror(errno ? errno : ENOMEM));
    free(d);
    return result;
}
