# What is watched, and the hooks of those who watch: sync debug mode and the race detector.
#
# A function that waits for the device calls before_wait first.  One that reports to the race detector asks for
# sanitizing first, so that one branch is all it costs while it is off; then it calls the hook, under the GIL.
from libc.stdint cimport uint64_t, uintptr_t

cdef int sanitizing  # 1 while the race detector is on; written by sanitizer_hooks.pyx alone
cdef int sync_mode   # 0 default, 1 warn, 2 error; written by sanitizer_hooks.pyx alone


cdef inline int before_wait(str call) except -1:
    # Where it raises, nothing was waited for and nothing was put into a stream.
    if sync_mode:
        return before_wait_slow(call)
    return 0

cdef int before_wait_slow(str call) except -1

# --- work; raises RaceError before it is put into its stream ---
# reads, writes: whether the source's, the destination's side is in the stream's order
cdef int note_copy(
    int ordinal, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size, bint reads, bint writes
) except -1
cdef int note_access(int ordinal, uintptr_t stream, uintptr_t address, size_t size, str mode, str call) except -1
# a kernel's; uses are (address, bytes, "r" or "w")
cdef int note_launch(int ordinal, uintptr_t stream, str call, list uses) except -1
cdef int note_host_access(uintptr_t address, size_t size, str mode, str call) except -1
cdef int note_replay(int ordinal, uintptr_t stream, uint64_t capture) except -1

# --- order; what follows raises only where the comment says so ---
cdef int note_stream(int ordinal, uintptr_t stream) except -1  # it has a new holder
cdef int note_record(int ordinal, uintptr_t stream, uintptr_t event) except -1
cdef int note_wait(int ordinal, uintptr_t stream, uintptr_t event) except -1
cdef int note_point(int ordinal, uintptr_t stream, uintptr_t event, bint waits) except -1  # a node, in a capture
cdef int note_reached(int ordinal, uintptr_t stream) except -1  # RaceError; the host knows that it is past all work
cdef int note_event_reached(uintptr_t event) except -1          # RaceError
cdef int note_device_reached(int ordinal) except -1             # RaceError
cdef object note_host_function(int ordinal, uintptr_t stream)   # what begin_host_function takes
cdef void begin_host_function(object mark) noexcept             # on the thread that runs it
cdef void end_host_function() noexcept

# --- graphs ---
cdef int note_captured(uint64_t capture) except -1
# A kernel node: what it launched, (name, addresses that its arguments held), and what it launches now, with uses as of
# note_launch behind.
cdef int note_changed(uint64_t capture, tuple old, tuple new) except -1
cdef void note_dropped(uint64_t capture) noexcept

# --- memory; an ordinal of -1 is page-locked memory ---
cdef void note_allocated(int ordinal, uintptr_t stream, uintptr_t address, size_t size) noexcept
cdef void note_freed(uintptr_t address) noexcept
cdef int note_freed_after(uintptr_t address, uintptr_t event) except -1
cdef int note_use_on(uintptr_t address, int ordinal, uintptr_t stream) except -1
cdef int note_emptied() except -1
cdef int note_forgotten(uintptr_t address, size_t size) except -1
