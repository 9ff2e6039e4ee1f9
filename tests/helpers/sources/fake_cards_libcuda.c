/* A stand-in for libcuda that has some of the cards of fake_libnvidia_ml.c, for tests of which device is which.
 *
 * FAKE_DRIVER names the devices in the order of their ordinals: A, B, C, M (A's first MIG device) or X (a card that
 * NVML does not know); without it there are B, A and C.  Lower case puts a card at another PCI bus id.
 * FAKE_VERSION is what cuDriverGetVersion answers (13000), FAKE_CAPABILITY every device's compute capability (90). */
#include <ctype.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct { char letter; const char *place, *name; unsigned char uuid[16]; } Card;
static const Card CARDS[] = {
    {'A', "0000:41:00.0", "Stand-in", {0xaa, 0xaa, 0xaa, 0xaa, [15] = 1}},
    {'B', "0000:07:00.0", "Stand-in", {0xaa, 0xaa, 0xbb, 0xbb, [15] = 2}},
    {'C', "0001:00:00.0", "Stand-in", {0xcc, 0xcc, 0xcc, 0xcc, [15] = 3}},
    {'M', "0000:41:00.0", "Stand-in 1g", {0xdd, 0xdd, 0xdd, 0xdd, [15] = 0x11}},
    {'X', "0002:00:00.0", "Stand-in", {0xee, 0xee, 0xee, 0xee, [15] = 4}},
};

static const char *order(void) { return getenv("FAKE_DRIVER") ? getenv("FAKE_DRIVER") : "BAC"; }
static const Card *card(int device) {
    for (size_t i = 0; i < sizeof CARDS / sizeof *CARDS; i++)
        if (CARDS[i].letter == toupper(order()[device])) return &CARDS[i];
    abort();
}
static uintptr_t current;

EXPORT int cuInit(unsigned flags) { return flags ? 1 : *order() ? 0 : 100; }
EXPORT int cuDeviceGetCount(int *out) { *out = (int)strlen(order()); return 0; }
EXPORT int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return 0; }
EXPORT int cuDeviceGetUuid_v2(void *out, int device) { memcpy(out, card(device)->uuid, 16); return 0; }
EXPORT int cuDeviceGetUuid(void *out, int device) { return cuDeviceGetUuid_v2(out, device); }
EXPORT int cuDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, (size_t)size, "%s", islower(order()[device]) ? "0009:09:00.0" : card(device)->place);
    return 0;
}
EXPORT int cuDeviceGetName(char *out, int size, int device) { snprintf(out, (size_t)size, "%s", card(device)->name); return 0; }
EXPORT int cuDeviceTotalMem_v2(size_t *out, int device) { *out = ((size_t)79 << 30) + device; return 0; }
static int setting(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
EXPORT int cuDriverGetVersion(int *out) { *out = setting("FAKE_VERSION", 13000); return 0; }
static int attribute(int *out, int number, int device) {
    int capability = setting("FAKE_CAPABILITY", 90);
    *out = number == 75 ? capability / 10 : number == 76 ? capability % 10 : number;
    return number > 140 ? 1 : device < 0;
}
static int retain(uintptr_t *out, int device) { *out = 0xC000 + device; return 0; }
static int state(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return device < 0; }
static int get_current(uintptr_t *out) { *out = current; return 0; }
static int set_current(uintptr_t to) { current = to; return 0; }
static int pop(uintptr_t *out) { *out = current; current = 0; return 0; }
static int of_context(int *out) { *out = (int)(current & 0xF); return 0; }

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int wanted, uint64_t flags, int *status);
static const struct { const char *name; int since; void *function; } FUNCTIONS[] = {
    {"cuInit", 2000, cuInit}, {"cuGetProcAddress", 12000, cuGetProcAddress_v2},
    {"cuDriverGetVersion", 2020, cuDriverGetVersion}, {"cuDeviceGetCount", 2000, cuDeviceGetCount},
    {"cuDeviceGet", 2000, cuDeviceGet}, {"cuDeviceGetName", 2000, cuDeviceGetName},
    {"cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2}, {"cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId},
    {"cuDeviceGetAttribute", 2000, attribute}, {"cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2},
    {"cuDevicePrimaryCtxRetain", 7000, retain}, {"cuCtxGetCurrent", 4000, get_current}, {"cuDevicePrimaryCtxGetState", 7000, state},
    {"cuCtxSetCurrent", 4000, set_current}, {"cuCtxPushCurrent", 4000, set_current},
    {"cuCtxPopCurrent", 4000, pop}, {"cuCtxGetDevice", 2000, of_context},
};

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int wanted, uint64_t flags, int *status) {
    *out = NULL;
    if (status) *status = flags > 2;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(name, FUNCTIONS[i].name) && wanted == FUNCTIONS[i].since) *out = FUNCTIONS[i].function;
    return *out ? 0 : 500;
}
