/* A program without Python: every function answers that accelrt cannot be imported. */
#include <stdio.h>

#include "accelrt.h"

int main(void) {
    uintptr_t address = 1;
    int code = accelrt_allocate(0, 512, 0, &address);
    printf("%d %d %s\n", code, accelrt_import(), accelrt_status_name(code));
    printf("%s\n", accelrt_status_text(code));
    printf("%d %d %s\n", accelrt_api_version(), (int)accelrt_memory_allocated(0), accelrt_status_name(0));
    return accelrt_raise_failure(code, "allocate") == -1 ? 0 : 1;
}
