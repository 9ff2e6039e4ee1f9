/* Readings of the first device on the raw management library, by the functions that accelrt's readings call. */
#include "raw.h"
#include <dlfcn.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;

static int (*temperature_of)(void *, unsigned, unsigned *);
static int (*power_of)(void *, unsigned *);
static int (*rates_of)(void *, unsigned *);
static int (*clock_of)(void *, unsigned, unsigned *);
static int (*memory_of)(void *, Memory *);
static void *card;
static unsigned values[2];
static Memory memory;

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("{\"row\": \"%s\", \"error\": \"libnvidia-ml.so.1 has no %s\"}\n", row_now, name);
        longjmp(escape, 1);
    }
    return found;
}

static void prepare(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        refuse("dlopen of libnvidia-ml.so.1", 999);
    int (*init)(void) = find(library, "nvmlInit_v2");
    int (*by_place)(const char *, void **) = find(library, "nvmlDeviceGetHandleByPciBusId_v2");
    char place[64];
    DO(cuDeviceGetPCIBusId(place, sizeof place, device));
    if (init() || by_place(place, &card))
        refuse("nvmlDeviceGetHandleByPciBusId_v2", 999);
    temperature_of = find(library, "nvmlDeviceGetTemperature");
    power_of = find(library, "nvmlDeviceGetPowerUsage");
    rates_of = find(library, "nvmlDeviceGetUtilizationRates");
    clock_of = find(library, "nvmlDeviceGetClockInfo");
    memory_of = find(library, "nvmlDeviceGetMemoryInfo_v2");
}

static void temperature(void) { temperature_of(card, 0, values); }
static void power_draw(void) { power_of(card, values); }
static void utilization(void) { rates_of(card, values); }
static void clock_rate(void) { clock_of(card, 1, values); }
static void memory_used(void) {
    memory.version = sizeof memory | 2u << 24;
    memory_of(card, &memory);
}

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("temperature", prepare))
        return 1;
    row("temperature", temperature, 50, 1);
    row("power_draw", power_draw, 50, 1);
    row("utilization", utilization, 50, 1);
    row("clock_rate", clock_rate, 50, 1);
    row("memory_used", memory_used, 50, 1);
    return 0;
}
