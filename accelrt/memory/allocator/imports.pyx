"""Memory of other processes: which streams were recorded as using it, until it is given back."""
from libc.stdlib cimport calloc, free

from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.status cimport NOT_ALLOCATED, NO_HOST_MEMORY

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Imported:
    uintptr_t address
    size_t size
    StreamUse* uses
    Imported* next

cdef int lock = 0
cdef Imported* imported = NULL  # the latest first; under the lock


cdef void forget_imported() noexcept nogil:
    # In a forked child, which may not use the device: a thread of the parent's may have held the lock.
    global lock, imported
    lock = 0
    imported = NULL


cdef Imported* around(uintptr_t address) noexcept nogil:
    cdef Imported* found = imported
    while found != NULL and address - found.address >= found.size:
        found = found.next
    return found


cdef int add_imported(uintptr_t address, size_t size) noexcept nogil:
    global imported
    cdef Imported* made = <Imported*>calloc(1, sizeof(Imported))
    if made == NULL:
        return NO_HOST_MEMORY
    made.address = address
    made.size = size
    spin_lock(&lock)
    made.next = imported
    imported = made
    spin_unlock(&lock)
    return 0


cdef void free_uses(StreamUse* uses) noexcept nogil:
    cdef StreamUse* next_use
    while uses != NULL:
        next_use = uses.next
        free(uses)
        uses = next_use


cdef void drop_imported(uintptr_t address) noexcept nogil:
    cdef Imported** link
    cdef Imported* found
    spin_lock(&lock)
    link = &imported
    while link[0] != NULL and link[0].address != address:
        link = &link[0].next
    found = link[0]
    if found != NULL:
        link[0] = found.next
    spin_unlock(&lock)
    if found != NULL:
        free_uses(found.uses)
        free(found)


cdef int use_imported(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef StreamUse* made = NULL
    cdef StreamUse* use
    cdef Imported* found
    cdef int code = NOT_ALLOCATED
    if imported == NULL:
        return code
    made = <StreamUse*>calloc(1, sizeof(StreamUse))
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.stream = stream
    spin_lock(&lock)
    found = around(address)
    if found != NULL:
        code = 0
        use = found.uses
        while use != NULL and (use.stream != stream or use.device != device):
            use = use.next
        if use == NULL:
            made.next = found.uses
            found.uses = made
            made = NULL
    spin_unlock(&lock)
    free(made)
    return code


cdef int copy_uses(uintptr_t address, StreamUse** out_uses) noexcept nogil:
    cdef Imported* found
    cdef const StreamUse* use
    cdef StreamUse* made
    cdef int code = 0
    out_uses[0] = NULL
    spin_lock(&lock)
    found = around(address)
    use = found.uses if found != NULL else NULL
    while use != NULL and code == 0:
        made = <StreamUse*>calloc(1, sizeof(StreamUse))
        if made == NULL:
            code = NO_HOST_MEMORY
        else:
            made.device = use.device
            made.stream = use.stream
            made.next = out_uses[0]
            out_uses[0] = made
        use = use.next
    spin_unlock(&lock)
    return code


pthread_atfork(NULL, NULL, &forget_imported)
