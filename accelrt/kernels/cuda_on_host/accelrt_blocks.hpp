// What a function that is called for whole blocks may use: device functions, and assert, which ends its block.
#pragma once

#include <setjmp.h>
#include <stdlib.h>

#include "accelrt_functions.hpp"

namespace accelrt_host {
static thread_local const accelrt_block* running_block;  // null beside a call, and on threads that the function starts
static thread_local jmp_buf end_of_block;

inline void run_whole(void (*function)(const accelrt_block*, void**), const accelrt_block* where, void** arguments) {
    running_block = where;
    if (!_setjmp(end_of_block)) function(where, arguments);
    running_block = nullptr;
}
}  // namespace accelrt_host

[[noreturn]] static void accelrt_assertion_failed(const char* text, const char* file, int line) {
    const accelrt_block* block = accelrt_host::running_block;
    if (!block) {
        fprintf(stderr, "%s:%d: Assertion `%s` failed.\n", file, line, text);
        abort();
    }
    fprintf(stderr, "%s:%d: block: [%u,%u,%u] Assertion `%s` failed.\n", file, line, block->index[0], block->index[1],
            block->index[2], text);
    *block->failed = 1;
    longjmp(accelrt_host::end_of_block, 1);
}
