/* A stand-in for NVIDIA's libnvidia-ml, of three cards, for tests of what reads from NVML: whether a reading is of
 * the card that was asked for, what a missing one says, what a fork leaves.
 *
 * Cards A, B and C; NVML's indices are C 0, A 1, B 2, while by PCI bus id B comes before A before C.  Every figure
 * holds its card's number (A 1, B 2, C 3).  C has no sensor of anything but temperature.
 * Settings: FAKE_MIG, A is in MIG mode with two devices; FAKE_UNLIKE, C is of another model; FAKE_NVML_INIT, what
 * nvmlInit_v2 answers; FAKE_NVML_LOST, a card that fell off the bus; FAKE_NVML_OLD, no second version of memory. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { UNINITIALIZED = 1, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, IS_LOST = 15 };

typedef struct { char letter; int number; const char *uuid, *place; int instance; } Card;
static const Card CARDS[] = {
    {'C', 3, "GPU-cccccccc-0000-0000-0000-000000000003", "00000001:00:00.0", 0},
    {'A', 1, "GPU-aaaaaaaa-0000-0000-0000-000000000001", "00000000:41:00.0", 0},
    {'B', 2, "GPU-aaaabbbb-0000-0000-0000-000000000002", "00000000:07:00.0", 0},
    {'M', 11, "MIG-dddddddd-0000-0000-0000-000000000011", "00000000:41:00.0", 1},
    {'M', 12, "MIG-eeeeeeee-0000-0000-0000-000000000012", "00000000:41:00.0", 2},
};
enum { WHOLE = 3, ALL = 5 };

static int owner, sessions, calls;
static const Card *handles[ALL];

static int setting(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static int is_open(void) { return sessions > 0 && owner == getpid(); }

EXPORT int fake_sessions(void) { return is_open() ? sessions : 0; }
EXPORT int fake_calls(void) { return calls; }

EXPORT int nvmlInit_v2(void) {
    int code = setting("FAKE_NVML_INIT");
    if (code) return code;
    if (owner != getpid()) sessions = 0;
    owner = getpid();
    for (int i = 0; i < ALL; i++) handles[i] = &CARDS[i];
    sessions++;
    return 0;
}
EXPORT int nvmlShutdown(void) { if (!is_open()) return UNINITIALIZED; sessions--; return 0; }

/* A device's handle is the place of its pointer here, so that a handle of no session is seen. */
static const Card *of(void *device, int *code) {
    const Card **at = device;
    const char *lost = getenv("FAKE_NVML_LOST");
    calls++;
    *code = !is_open() ? UNINITIALIZED : at < handles || at >= handles + ALL ? INVALID_ARGUMENT : 0;
    if (!*code && lost && (*at)->letter == *lost) *code = IS_LOST;
    return *code ? NULL : *at;
}
#define CARD(device) int code; const Card *card = of(device, &code); if (!card) return code
#define BARE if (card->letter == 'C') return NOT_SUPPORTED
#define NOT_MIG if (card->letter == 'M') return NOT_SUPPORTED

EXPORT int nvmlDeviceGetCount_v2(unsigned *out) { *out = WHOLE; return is_open() ? 0 : UNINITIALIZED; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (!is_open()) return UNINITIALIZED;
    *out = &handles[index];
    return index < WHOLE ? 0 : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (!is_open()) return UNINITIALIZED;
    for (int i = 0; i < ALL; i++)
        if (!strcmp(uuid, CARDS[i].uuid)) { *out = &handles[i]; return 0; }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { CARD(device); snprintf(text, size, "%s", card->uuid); return 0; }
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    CARD(device);
    snprintf(text, size, "%s", card->letter == 'M' ? "Stand-in 1g" : card->letter == 'C' && setting("FAKE_UNLIKE") ? "Stand-in Slow" : "Stand-in");
    return 0;
}
EXPORT int nvmlDeviceGetPciInfo_v3(void *device, char *out) { CARD(device); memset(out, 0, 68); strcpy(out + 36, card->place); return 0; }
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) {
    CARD(device); BARE;
    *now = *next = card->letter == 'A' && setting("FAKE_MIG");
    return 0;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) { CARD(device); *out = 7; return 0; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
    CARD(device);
    if (index != 1 && index != 4) return NOT_FOUND;
    *out = &handles[index == 1 ? 3 : 4];
    return card->letter == 'A' ? 0 : NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out) { CARD(device); *out = card->instance; return 0; }
EXPORT int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out) { CARD(device); *out = 0; return 0; }

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
EXPORT int nvmlDeviceGetMemoryInfo(void *device, Memory *out) { CARD(device); *out = (Memory){80ull << 30, 70ull << 30, (10ull << 30) + card->number}; return 0; }
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *out) {
    CARD(device);
    if (setting("FAKE_NVML_OLD")) return 13;
    if (out->version != (sizeof *out | 2u << 24)) return 25;
    *out = (MemoryV2){out->version, 80ull << 30, 1ull << 30, 70ull << 30, (9ull << 30) + card->number};
    return 0;
}

EXPORT int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) { CARD(device); NOT_MIG; *out = 30 + card->number; return sensor ? INVALID_ARGUMENT : 0; }
EXPORT int nvmlDeviceGetTemperatureThreshold(void *device, unsigned kind, unsigned *out) { CARD(device); BARE; *out = 90 + kind; return kind == 2 ? NOT_SUPPORTED : 0; }
EXPORT int nvmlDeviceGetFanSpeed(void *device, unsigned *out) { CARD(device); BARE; NOT_MIG; *out = 40 + card->number; return 0; }
EXPORT int nvmlDeviceGetNumFans(void *device, unsigned *out) { CARD(device); *out = card->letter == 'C' ? 0 : 2; return 0; }
EXPORT int nvmlDeviceGetFanSpeed_v2(void *device, unsigned fan, unsigned *out) { CARD(device); *out = 40 + card->number + fan; return 0; }
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *out) { CARD(device); BARE; NOT_MIG; *out = 70000 + card->number; return 0; }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) { CARD(device); BARE; *out = 700000; return 0; }
EXPORT int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *out) { CARD(device); BARE; *out = 700001; return 0; }
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *out) { (void)device; (void)out; return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high) { CARD(device); BARE; *low = 200000; *high = 700000; return 0; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) { CARD(device); BARE; *out = (1ull << 40) + card->number; return 0; }
EXPORT int nvmlDeviceGetPerformanceState(void *device, unsigned *out) { CARD(device); *out = card->letter == 'C' ? 32 : 2; return 0; }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) { CARD(device); BARE; *out = 0x4 | 0x40 | 1ull << 40; return 0; }
EXPORT int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *out) { CARD(device); BARE; *out = 1000 + 100 * kind + card->number; return kind == 3 ? NOT_SUPPORTED : 0; }
EXPORT int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *out) { CARD(device); BARE; *out = 2000 + 100 * kind; return 0; }
EXPORT int nvmlDeviceGetApplicationsClock(void *device, unsigned kind, unsigned *out) { CARD(device); BARE; *out = 1500; return kind == 0 || kind == 2 ? 0 : INVALID_ARGUMENT + 24; }
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned *out) { CARD(device); BARE; NOT_MIG; out[0] = 50 + card->number; out[1] = 20 + card->number; return 0; }
EXPORT int nvmlDeviceGetEncoderUtilization(void *device, unsigned *out, unsigned *period) { CARD(device); BARE; *out = 5; *period = 167000; return 0; }
EXPORT int nvmlDeviceGetDecoderUtilization(void *device, unsigned *out, unsigned *period) { CARD(device); BARE; *out = 6; *period = 167000; return 0; }
EXPORT int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned since, unsigned long long *out) { CARD(device); BARE; *out = 100 * since + 10 * kind + card->number; return 0; }
EXPORT int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *next) { CARD(device); BARE; *now = 1; *next = 0; return 0; }
EXPORT int nvmlDeviceGetRemappedRows(void *device, unsigned *a, unsigned *b, unsigned *c, unsigned *d) { CARD(device); BARE; *a = 4; *b = 5; *c = 1; *d = 0; return 0; }
EXPORT int nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *out) { CARD(device); BARE; *out = 10 * (counter + 1); return 0; }
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) { CARD(device); BARE; *out = 4; return 0; }
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out) { CARD(device); BARE; *out = 8; return 0; }
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out) { CARD(device); BARE; *out = 5; return 0; }
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out) { CARD(device); BARE; *out = 16; return 0; }
EXPORT int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out) { CARD(device); BARE; *out = link != 1; return link < 3 ? 0 : INVALID_ARGUMENT; }

typedef struct { unsigned id, scope; long long at, latency; unsigned type; int code; unsigned long long value; } Field;
EXPORT int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    CARD(device);
    for (int i = 0; i < count; i++) {
        fields[i].code = card->letter == 'C' ? NOT_SUPPORTED : 0;
        fields[i].type = fields[i].id == 82 ? 1 : 3;
        fields[i].value = fields[i].id == 82 ? 60 + card->number : fields[i].scope == 0xFFFFFFFF ? fields[i].id : 0;
    }
    return 0;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } Process;
enum { MANY = 40 };
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *out) {
    CARD(device); BARE;
    unsigned room = *count, there = card->letter == 'B' ? MANY : card->letter == 'M' ? 1 : 0;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there; i++)
        out[i] = (Process){1000 + i, i == 1 ? ~0ull : (unsigned long long)(i + 1) << 20, card->instance ? (unsigned)card->instance : ~0u, card->instance ? 0 : ~0u};
    return 0;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *out) {
    CARD(device); BARE;
    if (card->letter != 'B') { *count = 0; return 0; }
    if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
    *count = 2;
    out[0] = (Process){1000, 7, ~0u, ~0u};
    out[1] = (Process){2000, 8, ~0u, ~0u};
    return 0;
}
