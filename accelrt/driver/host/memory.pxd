# The host driver's rows for memory.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.host.machine cimport Range

from accelrt.driver.host.work cimport Allocation, Plan
from accelrt.driver.table cimport Table

cdef extern from *:
    """
    #include <sys/stat.h>
    static inline long accelrt_file_size(int file) {  /* or -1 */
        struct stat found;
        return fstat(file, &found) ? -1 : (long)found.st_size;
    }
    """
    long file_size "accelrt_file_size"(int file) noexcept nogil

cdef void fill_memory(Table* table) noexcept nogil
cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef uint64_t devices_with_access(uintptr_t address) noexcept nogil  # to a mapped page, a bit each; 0: it is none
# Memory of graphs; all under the queue's lock.
cdef int make_allocation(int device, size_t size, uint64_t peers, Allocation** out_allocation) noexcept nogil
cdef Allocation* find_allocation(uintptr_t address) noexcept nogil  # NULL: none begins there
cdef int claim_memory(const Plan* plan, bint frees) noexcept nogil  # before a launch is put in
cdef bint note_instance(const Plan* plan, bint instantiates) noexcept nogil  # False where it may not be made
cdef size_t takings  # of memory that queued work named; under the queue's lock
# Of ranges, for pools, which are made of them.
cdef int make_plain(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int make_managed(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int check_location(int kind, int number) noexcept nogil
cdef void prefer_place(uintptr_t address, int kind, int place) noexcept nogil  # of a managed range
cdef Range range_of(int kind, int device, uintptr_t start, size_t size) noexcept nogil
# Takes the addresses, and gives them back where it fails.
cdef int place(Range** ranges, const Range* added, uintptr_t* out_address) noexcept nogil
cdef int take_away(uintptr_t start, int kind, int device) noexcept nogil
cdef int free_plain(int device, uintptr_t address) noexcept nogil  # memory_free, but for what pools know of it
# Variables of modules; the lock of memory is not held.
cdef int know_variable(const void* module, int device, uintptr_t address, size_t size) noexcept nogil
cdef void forget_variables(const void* module) noexcept nogil  # before the library is closed
# CUDA arrays and textures.
cdef bint is_of_array(uintptr_t address) noexcept nogil
cdef void count_arrays(size_t* out_arrays, size_t* out_textures) noexcept nogil
