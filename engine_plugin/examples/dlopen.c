/* Tandem as a part that may be missing: opened at run time by its one symbol, and nothing of it is
 * linked. An engine ships without the library, and has the effect where a player has installed it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     cc dlopen.c $(pkg-config --cflags tandem) -ldl && ./a.out [PATH/libtandem.so.0]
 */
#include <stdio.h>
#include <string.h>

#include <tandem/plugin.h>

#ifdef _WIN32
#include <windows.h>

#define LIBRARY "libtandem.dll"

static void *open_library(const char *path) { return (void *)LoadLibraryA(path); }

static void *find_symbol(void *library, const char *name)
{
    return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

static const char *open_error(void) { return "it is not there, or cannot be loaded"; }
#else
#include <dlfcn.h>

#define LIBRARY "libtandem.so.0"

static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static void *find_symbol(void *library, const char *name) { return dlsym(library, name); }
static const char *open_error(void) { return dlerror(); }
#endif

/* The table of all functions, or NULL and a line that says why there is none. */
static const tandem_api *open_tandem(const char *path)
{
    void *library = open_library(path);
    tandem_get_api_fn get = NULL;
    const tandem_api *api;
    void *symbol;

    if (!library) {
        printf("without Tandem: %s\n", open_error());
        return NULL;
    }
    symbol = find_symbol(library, "tandem_get_api");
    memcpy(&get, &symbol,
           sizeof get); /* ISO C has no cast from an object's pointer to a function's */
    api = get ? get(TANDEM_VERSION) : NULL;
    if (!api)
        printf("without Tandem: %s is too old, or of another major version\n", path);
    return api;
}

/* A function that came later than the library is not in its table: struct_bytes says how far that
 * goes. */
#define HAS(api, function) \
    ((api)->struct_bytes >= offsetof(tandem_api, function) + sizeof(api)->function)

static int list_devices(const tandem_api *api)
{
    tandem_device list[16] = {
        TANDEM_INIT(tandem_device)}; /* of the first one the library reads struct_bytes */
    uint32_t count = 16;
    char why[600];

    if (!HAS(api, devices)) {
        printf("this library is too old to list devices\n");
        return 0;
    }
    if (api->devices(&count, list)) {
        api->error_text(NULL, why, sizeof why);
        fprintf(stderr, "devices: %s\n", why);
        return 1;
    }
    for (uint32_t i = 0; i < count; i++)
        printf("%s (%s)%s%s\n", list[i].name, list[i].isa, list[i].why[0] ? ": " : "", list[i].why);
    return 0;
}

int main(int argc, char **argv)
{
    const tandem_api *api = open_tandem(argc > 1 ? argv[1] : LIBRARY);
    tandem_info info = TANDEM_INIT(tandem_info);
    tandem_session *session;
    char why[600] = "";

    if (!api)
        return 0; /* the game goes on without the effect */
    printf("Tandem %u.%u.%u\n", api->version >> 22, api->version >> 12 & 0x3ff,
           api->version & 0xfff);
    if (list_devices(api))
        return 1;
    if (api->session_create(
            &TANDEM_INIT(tandem_session_desc, .error_text = why, .error_text_bytes = sizeof why),
            &session)) {
        fprintf(stderr, "session: %s\n", why);
        return 1;
    }
    if (api->session_info(session, &info) == TANDEM_OK)
        printf("a session on %s\n", info.device);
    return api->session_destroy(&session) != TANDEM_OK;
}
