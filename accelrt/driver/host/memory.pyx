"""The host driver's rows for memory: plain, page-locked and virtual, and what other processes made.

Virtual memory is reservations, physical handles, and handles mapped into reservations.  A handle may be mapped at
several addresses at once, which then show the same bytes.  Virtual memory that other processes may have comes from a file of
its own, whose descriptor is what they get.  Plain memory they find by the name of the device's file (machine.pxd), in
handles of 64 bytes; like a GPU's driver, these rows open nothing of this process's own.

rowgen.py puts the gate around a function ROW_gated, and the memory's lock too around a function ROW_locked.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.core.descriptors cimport close_kept, keep_number, KeptFile, number_of
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.host_pages cimport close_file, copy_file
from accelrt.driver.host.machine cimport (
    HOST_MEMORY, IMPORTED, MANAGED, MANAGED_PAGE, MAPPED, MEMORY_FILE, PAGE, PINNED, PLAIN, REGISTERED, RESERVED,
    POOLED, UNKNOWN_MEMORY, FileName, ManagedPage, Physical, Range, add_range, containing, drain_device,
    drop_range, drop_room, file_of, find_room, find_stream, give_bytes, hide, known_device, last_before, lock,
    lock_memory, lost_device, make_file, memory, name_file, open_named, place_page, reservations, rounded, show,
    take_bytes, take_pages, uncharge, unlock, unlock_memory, working, MAX_HOST_DEVICES, OF_GRAPHS, allocations,
    drop_allocation, link_allocation, OF_ARRAYS, OF_MODULES, alive, owner_of,
)
from accelrt.driver.host.stream cimport check_unsafe, enter, gate, gate_any, gate_devices, prepare_copy_3d, put_in
from accelrt.driver.host.textures cimport (
    ALIGNMENT, array_size, describe_level, element_size, HostArray, is_sampling, is_shape, is_within, LEVEL_BITS,
    most_levels, MOST_LINE, MOST_LINEAR, MOST_PITCH, MOST_PITCHED_ROWS, PITCH_ALIGNMENT, Texture, use_bits,
)
from accelrt.driver.host.work cimport (
    COPY, COPY_3D, DST_KNOWN, FILL, KERNEL, MANAGE, SET, HostStream, Launch, Operation, Plan, Work, begin_work,
    ALLOCATE, CHILD, RELEASE, Allocation, place_of,
)
from accelrt.driver.managed cimport (
    ACCESSED_BY, IS_READ_MOSTLY, LOCATION_CURRENT_NODE, LOCATION_DEVICE, LOCATION_HOST, LOCATION_NODE, LOCATION_NONE,
    MANAGED_GLOBAL, MANAGED_HOST, ManagedRange, NOWHERE, PREFERRED_DEVICE, PREFERRED_KIND, PREFERRED_PLACE,
    PREFETCHED_DEVICE, PREFETCHED_KIND, PREFETCHED_PLACE, SET_ACCESSED_BY, SET_PREFERRED, SET_READ_MOSTLY, THE_HOST,
    UNSET_ACCESSED_BY, UNSET_PREFERRED, UNSET_READ_MOSTLY,
)
from accelrt.driver.memory cimport KIND_DEVICE, KIND_HOST, KIND_MANAGED, MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN
from accelrt.driver.table cimport Table
from accelrt.driver.textures cimport (
    ARRAY_SURFACE, ArrayCopy, ArraySpec, Place, PLACE_ARRAY, PLACE_MEMORY, Resource, RESOURCE_ARRAY, RESOURCE_LINEAR,
    RESOURCE_MIPMAP, RESOURCE_ROWS, SAMPLE_NORMALIZED, Sampling,
)
from accelrt.status cimport (
    HOST_MEMORY_NOT_REGISTERED, HOST_MEMORY_REGISTERED, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED,
    NO_HOST_MEMORY, OPERATING_SYSTEM, OUT_OF_MEMORY,
)

cdef extern from "<sys/mman.h>" nogil:
    int mprotect(void* address, size_t size, int protection) noexcept nogil
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE

# Guarded by the lock of the memory.
cdef AddressMap physicals
cdef AddressMap arrays
cdef AddressMap textures
cdef uintptr_t next_handle = 0x5000000000  # never reused

include "memory_rows.pxi"


cdef int quiet(int device) noexcept nogil:
    # For what waits until the device's work is done, and is not permitted beside a capture.
    cdef int code = enter(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    if code == 0:
        code = drain_device(device)
    unlock()
    return code


cdef int permitted(int device) noexcept nogil:
    cdef int code = enter(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    unlock()
    return code


# --- memory that is taken away under queued work -------------------------------------------------------------

cdef size_t takings = 0


cdef inline bint overlap(uintptr_t start, size_t size, uintptr_t other, size_t other_size) noexcept nogil:
    return start < other + other_size and other < start + size


cdef bint is_argument(const Launch* launch, uintptr_t start, size_t size) noexcept nogil:
    # Any aligned word of an argument may be a pointer; another number is hardly ever one of the range's addresses.
    cdef size_t index, at
    cdef uintptr_t word
    for index in range(launch.function.count):
        for at in range(launch.function.sizes[index] // sizeof(word)):
            memcpy(&word, <const char*>launch.arguments[index] + at * sizeof(word), sizeof(word))
            if word - start < size:
                return True
    return False


cdef bint plan_names(const Plan* plan, uintptr_t start, size_t size) noexcept nogil:
    # One of them, or of its siblings.
    cdef int index
    while plan != NULL:
        for index in range(plan.count):
            if work_names(&plan.nodes[index].work, False, start, size):
                return True
        plan = plan.sibling
    return False


cdef bint work_names(const Work* work, bint staged, uintptr_t start, size_t size) noexcept nogil:
    # staged: of a COPY, its source's bytes were taken when it was queued.
    if work.disabled:
        return False
    if work.kind == COPY:
        return overlap(start, size, work.dst, work.size) or (not staged and overlap(start, size, work.src, work.size))
    if work.kind == COPY_3D:
        return overlap(start, size, work.dst, work.to.span) or overlap(start, size, work.src, work.origin.span)
    if work.kind == FILL:
        return overlap(start, size, work.dst, work.to.span if work.height > 1 else work.size * work.width)
    if work.kind == MANAGE:
        return overlap(start, size, work.dst, work.size)
    if work.kind == SET:
        return overlap(start, size, work.src, sizeof(unsigned int))
    if work.kind == KERNEL:
        return is_argument(work.launch, start, size)
    return plan_names(work.plan, start, size)


cdef bint queue_names(uintptr_t start, size_t size) noexcept nogil:
    # The work of a device that is lost is over.
    cdef const HostStream* stream = working
    cdef const Operation* operation
    while stream != NULL:
        operation = stream.head if lost_device() != stream.device + 1 else NULL
        while operation != NULL:
            if work_names(&operation.work, operation.staged != NULL, start, size):
                return True
            operation = operation.next
        stream = stream.after
    return False


cdef void note_unmapping(uintptr_t start, size_t size) noexcept nogil:
    # Counts memory that goes while work under way names it, where a GPU faults.  By the CUDA driver API's pages on memory
    # cuMemFree may wait for work by itself, and cuMemFreeHost is known to: what is left after the wait counts, which is
    # other devices' work.  cuMemUnmap, cuMemHostUnregister and cuIpcCloseMemHandle promise no wait, so there the work before
    # the host device's own wait counts.  cuMemRelease takes nothing that is mapped.
    global takings
    cdef bint whole
    lock()
    if working != NULL:
        lock_memory()
        whole = is_whole(start, size)
        unlock_memory()
        takings += whole and queue_names(start, size)
    unlock()


cdef Range* whole_range(uintptr_t start, int kind, int device) noexcept nogil:
    # NULL where none of that kind begins there.
    cdef Range* range_ = containing(memory, start)
    return range_ if range_ != NULL and range_.start == start and range_.kind == kind and range_.device == device else NULL


cdef void note_taking(uintptr_t start, int kind, int device) noexcept nogil:
    # The same of a whole range, unless the row is going to refuse.
    global takings
    cdef const Range* range_
    cdef size_t size
    lock()
    if working != NULL:
        lock_memory()
        range_ = whole_range(start, kind, device)
        size = range_.size if range_ != NULL else 0
        unlock_memory()
        takings += size > 0 and queue_names(start, size)
    unlock()


cdef int take_away(uintptr_t start, int kind, int device) noexcept nogil:
    cdef Range* range_
    cdef int code = 0
    lock_memory()
    range_ = whole_range(start, kind, device)
    if range_ == NULL:
        code = HOST_MEMORY_NOT_REGISTERED if kind == REGISTERED and containing(memory, start) == NULL else INVALID_VALUE
    else:
        if kind != REGISTERED:
            drop_room(<void*>start, range_.charged)
        if kind == PLAIN or kind == OF_ARRAYS:
            give_bytes(device, range_.offset, range_.charged)
        if kind == MANAGED:
            drop_pages(range_)
        drop_range(&memory, range_)
    unlock_memory()
    return code


cdef int free_when_quiet(int device, uintptr_t address, int kind, int owner) noexcept nogil:
    # The call's own wait comes first: what is left of the work then is other devices'.
    cdef int code = quiet(device)
    if code or address == 0:
        return code
    note_taking(address, kind, owner)
    return take_away(address, kind, owner)


cdef int close_under_work(int device, uintptr_t address, int kind, int owner) noexcept nogil:
    cdef int code = permitted(device)
    if code == 0:
        note_taking(address, kind, owner)
        code = quiet(device)
    return code if code else take_away(address, kind, owner)


cdef Range range_of(int kind, int device, uintptr_t start, size_t size) noexcept nogil:
    cdef Range range_
    memset(&range_, 0, sizeof(Range))
    range_.kind = kind
    range_.device = device
    range_.start = start
    range_.size = range_.charged = size
    range_.open = range_.writable = kind != RESERVED and kind != MAPPED
    return range_


cdef int place(Range** ranges, const Range* added, uintptr_t* out_address) noexcept nogil:
    # Takes the addresses, and gives them back where it fails.
    cdef int code
    lock_memory()
    code = add_range(ranges, added)
    unlock_memory()
    if code:
        drop_room(<void*>added.start, added.size)
    else:
        out_address[0] = added.start
    return code


cdef const Range* find_known(uintptr_t address) noexcept nogil:
    # NULL too for what a graph allocates, while nothing is behind it: NVIDIA's driver does not know that before a launch.
    # Nor arrays, which have no addresses.
    cdef const Range* range_ = containing(memory, address)
    if range_ != NULL and (range_.kind == OF_ARRAYS or range_.kind == OF_GRAPHS and not range_.open):
        return NULL
    return range_


cdef int pointer_device_gated(uintptr_t address, int* out_device) noexcept nogil:
    cdef const Range* range_
    lock_memory()
    range_ = find_known(address)
    out_device[0] = range_.device if range_ != NULL and range_.device >= 0 else -1
    unlock_memory()
    return INVALID_VALUE if range_ == NULL else 0


cdef int pointer_range_gated(
    uintptr_t address, int* out_kind, int* out_device, uintptr_t* out_start, size_t* out_size
) noexcept nogil:
    cdef const Range* range_
    out_device[0] = -1
    lock_memory()
    range_ = find_known(address)
    if range_ != NULL:
        out_kind[0] = KIND_MANAGED if range_.kind == MANAGED else KIND_HOST if range_.device < 0 else KIND_DEVICE
        out_device[0] = range_.device if range_.device >= 0 else -1
        out_start[0], out_size[0] = range_.start, range_.size
    unlock_memory()
    return 0


# --- variables of modules ----------------------------------------------------------------------------------

cdef int know_variable(const void* module, int device, uintptr_t address, size_t size) noexcept nogil:
    # A device's memory from when it is first asked for.  It is in the module's library, and goes with that.
    cdef Range variable = range_of(OF_MODULES, device, address, size)
    cdef int code = 0
    variable.module = module
    lock_memory()
    if size and containing(memory, address) == NULL:
        code = add_range(&memory, &variable)
    unlock_memory()
    return code


cdef Range* variable_of(Range* ranges, const void* module) noexcept nogil:
    cdef Range* variable
    while ranges != NULL and ranges.module != module:
        variable = variable_of(ranges.left, module)
        if variable != NULL:
            return variable
        ranges = ranges.right
    return ranges


cdef void forget_variables(const void* module) noexcept nogil:
    cdef Range* variable
    lock_memory()
    while alive[OF_MODULES]:
        variable = variable_of(memory, module)
        if variable == NULL:
            break
        drop_range(&memory, variable)
    unlock_memory()


# --- plain memory ------------------------------------------------------------------------------------------

cdef int memory_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code = permitted(device)
    out_address[0] = 0
    if code:
        return code
    if size == 0 or size >> 60:
        return INVALID_VALUE if size == 0 else OUT_OF_MEMORY
    return make_plain(device, size, out_address)


cdef int make_plain(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    return make_mapping(PLAIN, device, size, out_address)


cdef int make_mapping(int kind, int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range plain = range_of(kind, device, 0, size)
    cdef size_t unit = PAGE if size >= 1 << 20 else 4096
    cdef int code
    plain.charged = rounded(size, unit)
    lock_memory()
    code = take_bytes(device, plain.charged, &plain.offset)
    if code == 0:
        code = place_plain(&plain, unit)
        if code:
            give_bytes(device, plain.offset, plain.charged)
    unlock_memory()
    out_address[0] = plain.start if code == 0 else 0
    return code


cdef int place_plain(Range* plain, size_t unit) noexcept nogil:
    cdef void* room = find_room(plain.charged, unit, 0)
    cdef int code
    if room == NULL:
        return OUT_OF_MEMORY
    plain.start = <uintptr_t>room
    if not show(room, plain.charged, file_of(plain.device), plain.offset, PROT_READ | PROT_WRITE):
        drop_room(room, plain.charged)
        return OUT_OF_MEMORY
    code = add_range(&memory, plain)
    if code:
        drop_room(room, plain.charged)
    return code


cdef int free_plain(int device, uintptr_t address) noexcept nogil:
    cdef const Range* range_
    cdef int kind = PLAIN, owner = device
    cdef int code
    lock_memory()
    range_ = containing(memory, address)
    if range_ != NULL and (range_.kind == MANAGED or range_.kind == POOLED):
        kind = range_.kind
        owner = HOST_MEMORY if range_.device == HOST_MEMORY else device
    unlock_memory()
    code = free_when_quiet(device, address, kind, owner)
    return free_of_graph(device, address) if code == INVALID_VALUE else code


# --- memory of graphs --------------------------------------------------------------------------------------
#
# The addresses of an allocation are taken with its node, without access.  A launch that comes to the node puts bytes behind
# them, in the order of launches; they stay until the last node and instance is gone, or the device's memory of graphs is
# trimmed.  All of it under the queue's lock.

cdef enum:  # CUgraphMem_attribute
    USED = 0
    MOST_USED = 1
    HELD = 2
    MOST_HELD = 3

cdef size_t[MAX_HOST_DEVICES] most_held  # bytes behind allocations at a time
cdef size_t[MAX_HOST_DEVICES] most_used  # the same, since the peak was reset by its own number


cdef int make_allocation(int device, size_t size, uint64_t peers, Allocation** out_allocation) noexcept nogil:
    # With one holder.  Every device reaches all memory, so that peers are looked at alone.
    cdef Allocation* allocation
    cdef Range range_
    cdef void* room
    if not known_device(device) or size == 0 or peers >> gate_devices():
        return INVALID_VALUE
    if size >> 60:
        return OUT_OF_MEMORY
    allocation = <Allocation*>calloc(1, sizeof(Allocation))
    if allocation == NULL:
        return NO_HOST_MEMORY
    allocation.size = rounded(size, PAGE if size >= 1 << 20 else 4096)
    room = find_room(allocation.size, 4096, 0)
    if room == NULL:
        free(allocation)
        return OUT_OF_MEMORY
    range_ = range_of(OF_GRAPHS, device, <uintptr_t>room, allocation.size)
    range_.open = False
    if place(&memory, &range_, &allocation.address):
        free(allocation)
        return NO_HOST_MEMORY
    allocation.holders, allocation.device, allocation.asked = 1, device, size
    link_allocation(allocation)
    out_allocation[0] = allocation
    return 0


cdef Allocation* find_allocation(uintptr_t address) noexcept nogil:
    cdef Allocation* allocation = allocations
    while allocation != NULL and allocation.address != address:
        allocation = allocation.after
    return allocation


cdef int put_bytes_behind(Allocation* allocation) noexcept nogil:
    cdef Range* range_
    cdef int device = allocation.device
    cdef int code
    if allocation.backed:
        return 0
    lock_memory()
    code = take_bytes(device, allocation.size, &allocation.offset)
    if code == 0 and not show(<void*>allocation.address, allocation.size, file_of(device), allocation.offset,
                              PROT_READ | PROT_WRITE):
        give_bytes(device, allocation.offset, allocation.size)
        code = OUT_OF_MEMORY
    if code == 0:
        range_ = containing(memory, allocation.address)
        range_.open = allocation.backed = True
    unlock_memory()
    if code == 0:
        most_held[device] = max(most_held[device], held_by_graphs(device))
        most_used[device] = max(most_used[device], held_by_graphs(device))
    return code


cdef void take_bytes_away(Allocation* allocation) noexcept nogil:
    cdef Range* range_
    lock_memory()
    hide(<void*>allocation.address, allocation.size)
    give_bytes(allocation.device, allocation.offset, allocation.size)
    range_ = containing(memory, allocation.address)
    range_.open = allocation.backed = False
    unlock_memory()


cdef size_t held_by_graphs(int device) noexcept nogil:
    cdef const Allocation* each = allocations
    cdef size_t held = 0
    while each != NULL:
        held += each.size if each.backed and each.device == device else 0
        each = each.after
    return held


cdef void set_live(Allocation* allocation, bint live) noexcept nogil:
    # A launch that has it is a holder.
    if allocation.live == live:
        return
    allocation.live = live
    if live:
        allocation.holders += 1
    else:
        drop_allocation(allocation)


cdef int free_of_graph(int device, uintptr_t address) noexcept nogil:
    # What a launch left allocated; the call has waited for the device.
    cdef Allocation* allocation
    lock()
    allocation = find_allocation(address)
    if allocation == NULL or allocation.device != device or not allocation.live:
        unlock()
        return INVALID_VALUE
    set_live(allocation, False)
    unlock()
    return 0


cdef int claim_memory(const Plan* plan, bint frees) noexcept nogil:
    # What a launch that is put in takes and gives back.  Where it is refused, everything is as before, but that bytes may
    # stay behind some allocations.
    cdef Allocation* each = allocations
    cdef int code
    while each != NULL:
        each.was_live = each.live
        each = each.after
    code = claim(plan, frees)
    each = allocations if code else NULL
    while each != NULL:  # of which no holder is the last, since nodes hold them
        set_live(each, each.was_live)
        each = each.after
    return code


cdef int claim(const Plan* plan, bint frees) noexcept nogil:
    cdef const Work* work
    cdef int step, code = 0
    for step in range(plan.count if plan.allocates else 0):
        work = &plan.nodes[place_of(plan, step)].work
        if work.kind == CHILD:
            code = claim(work.plan, frees)
        elif work.kind == RELEASE:
            code = 0 if work.allocation.live else INVALID_VALUE
            set_live(work.allocation, False)
        elif work.kind == ALLOCATE:
            code = INVALID_VALUE if work.allocation.live and not frees else put_bytes_behind(work.allocation)
            if code == 0:
                set_live(work.allocation, True)
        if code:
            return code
    return 0


cdef bint note_instance(const Plan* plan, bint instantiates) noexcept nogil:
    # Whether it may be made: an allocation has one instance at a time.
    cdef const Work* work
    cdef int index
    for index in range(plan.count if plan.allocates else 0):
        work = &plan.nodes[index].work
        if instantiates and work.kind == ALLOCATE and work.allocation.instantiated:
            return False
        if instantiates and work.kind == CHILD and not note_instance(work.plan, True):
            return False
    for index in range(plan.count if plan.allocates else 0):
        work = &plan.nodes[index].work
        if work.kind == ALLOCATE:
            work.allocation.instantiated = instantiates
        elif work.kind == CHILD and not instantiates:
            note_instance(work.plan, False)
    return True


cdef int graph_memory_get_gated(int device, int attribute, uint64_t* out_value) noexcept nogil:
    cdef int code = 0 if USED <= attribute <= MOST_HELD else INVALID_VALUE
    lock()
    if attribute == MOST_USED:
        out_value[0] = most_used[device]
    elif attribute == MOST_HELD:
        out_value[0] = most_held[device]
    elif code == 0:
        out_value[0] = held_by_graphs(device)
    unlock()
    return code


cdef int graph_memory_reset_gated(int device, int attribute) noexcept nogil:
    if attribute != MOST_USED and attribute != MOST_HELD:
        return INVALID_VALUE
    lock()
    if attribute == MOST_USED:
        most_used[device] = held_by_graphs(device)
    else:
        most_held[device] = held_by_graphs(device)
    unlock()
    return 0


cdef int graph_memory_trim_gated(int device) noexcept nogil:
    cdef Allocation* each
    lock()
    each = allocations
    while each != NULL:
        if each.device == device and each.backed and not each.live and not each.running:
            take_bytes_away(each)
        each = each.after
    unlock()
    return 0


# --- page-locked memory ------------------------------------------------------------------------------------

cdef int host_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range pinned
    cdef void* room
    cdef int code = permitted(device)
    if code:
        return code
    out_address[0] = 0
    if size == 0:
        return 0
    size = rounded(size, 4096)
    room = take_pages(size)
    if room == NULL:
        return OUT_OF_MEMORY
    pinned = range_of(PINNED, HOST_MEMORY, <uintptr_t>room, size)
    return place(&memory, &pinned, out_address)


cdef int host_free(int device, uintptr_t address) noexcept nogil:
    return free_when_quiet(device, address, PINNED, HOST_MEMORY)


cdef int host_register(int device, uintptr_t address, size_t size) noexcept nogil:
    cdef Range registered = range_of(REGISTERED, HOST_MEMORY, address, size)
    cdef const Range* last
    cdef int code = permitted(device)
    if code or address == 0 or size == 0:
        return code if code else INVALID_VALUE
    lock_memory()
    last = last_before(memory, address + size)
    if last != NULL and last.start + last.size > address:
        code = HOST_MEMORY_REGISTERED if last.kind == REGISTERED else INVALID_VALUE
    else:
        code = add_range(&memory, &registered)
    unlock_memory()
    return code


cdef int host_unregister(int device, uintptr_t address) noexcept nogil:
    return close_under_work(device, address, REGISTERED, HOST_MEMORY)


# --- managed memory ----------------------------------------------------------------------------------------
# It is the host's memory, of any size.  What is counted is whose memory each page would take: the host's, until it is
# prefetched to a device, which gives it up to whatever else needs the room.

cdef inline size_t count_pages(size_t size) noexcept nogil:
    return (size + MANAGED_PAGE - 1) // MANAGED_PAGE


cdef void drop_pages(Range* range_) noexcept nogil:
    cdef size_t index
    for index in range(count_pages(range_.size)):
        place_page(&range_.pages[index], HOST_MEMORY)
    free(range_.pages)


cdef int managed_alloc(int device, size_t size, unsigned int flags, uintptr_t* out_address) noexcept nogil:
    cdef int code = permitted(device)
    out_address[0] = 0
    if code:
        return code
    if size == 0 or (flags != MANAGED_GLOBAL and flags != MANAGED_HOST):
        return INVALID_VALUE
    return make_managed(device, size, out_address)


cdef int make_managed(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range managed
    cdef size_t index
    cdef int code
    if size >> 60:
        return OUT_OF_MEMORY
    managed = range_of(MANAGED, device, 0, size)
    managed.charged = rounded(size, 4096)
    managed.pages = <ManagedPage*>calloc(count_pages(size), sizeof(ManagedPage))
    if managed.pages == NULL:
        return OUT_OF_MEMORY
    for index in range(count_pages(size)):
        managed.pages[index].holder = HOST_MEMORY
    code = place_managed(&managed, out_address)
    if code:
        free(managed.pages)
    return code


cdef int place_managed(Range* managed, uintptr_t* out_address) noexcept nogil:
    # Aligned to its pages, so that no two allocations share one.
    cdef void* room = find_room(managed.charged, MANAGED_PAGE, 0)
    if room == NULL:
        return OUT_OF_MEMORY
    if mprotect(room, managed.charged, PROT_READ | PROT_WRITE):
        drop_room(room, managed.charged)
        return OUT_OF_MEMORY
    managed.start = <uintptr_t>room
    return place(&memory, managed, out_address)


cdef Range* managed_range(uintptr_t address, size_t size) noexcept nogil:
    # That holds all of [address, address + size); NULL where none does.
    cdef Range* range_ = containing(memory, address)
    if range_ == NULL or range_.kind != MANAGED or size == 0 or size > range_.start + range_.size - address:
        return NULL
    return range_


cdef int check_location(int kind, int number) noexcept nogil:
    if kind == LOCATION_DEVICE:
        return 0 if known_device(number) else INVALID_DEVICE
    return INVALID_VALUE if kind < LOCATION_HOST or kind > LOCATION_CURRENT_NODE or (
        kind == LOCATION_NODE and number < 0) else 0


cdef int note_prefetch(const ManagedRange* moved, bint moves) noexcept nogil:
    # The last place that was asked for is known before the work is done.
    cdef Range* range_
    cdef size_t first, last, index
    cdef int code = check_location(moved.kind, moved.place) if moves else 0
    if code:
        return code
    lock_memory()
    range_ = managed_range(moved.address, moved.size)
    if range_ != NULL and moves:
        first = (moved.address - range_.start) // MANAGED_PAGE
        last = (moved.address + moved.size - 1 - range_.start) // MANAGED_PAGE
        for index in range(first, last + 1):
            range_.pages[index].prefetched_kind = moved.kind
            range_.pages[index].prefetched = moved.place
    unlock_memory()
    return INVALID_VALUE if range_ == NULL else 0


cdef int check_ranges(const ManagedRange* ranges, size_t count, bint moves) noexcept nogil:
    cdef size_t index
    cdef int code = 0
    lock_memory()
    for index in range(count):
        if code == 0 and managed_range(ranges[index].address, ranges[index].size) == NULL:
            code = INVALID_VALUE
    unlock_memory()
    for index in range(count):
        if code == 0 and moves:
            code = check_location(ranges[index].kind, ranges[index].place)
    return code


cdef int put_ranges(
    int device, uintptr_t stream, const ManagedRange* ranges, size_t count, bint discards, bint moves
) noexcept nogil:
    # All of them are known good before any is put into the stream.
    cdef HostStream* on
    cdef Work work
    cdef size_t index
    cdef int code = check_ranges(ranges, count, moves)
    if code or count == 0:
        return code
    lock()
    on = find_stream(device, stream)
    for index in range(count):
        begin_work(&work, MANAGE)
        work.dst, work.size = ranges[index].address, ranges[index].size
        work.place = ranges[index].place if moves and ranges[index].kind == LOCATION_DEVICE else HOST_MEMORY
        work.known = DST_KNOWN
        work.across = True
        work.discards, work.moves = discards, moves
        if code == 0:
            code = put_in(on, &work, NULL, NULL)
        if code == 0:
            code = note_prefetch(&ranges[index], moves)
    unlock()
    return code


cdef int managed_prefetch_gated(int device, uintptr_t stream, void* ranges, size_t count) noexcept nogil:
    return put_ranges(device, stream, <const ManagedRange*>ranges, count, False, True)


cdef int managed_discard_gated(int device, uintptr_t stream, void* ranges, size_t count, bint prefetches) noexcept nogil:
    if stream <= 1:
        return INVALID_VALUE
    return put_ranges(device, stream, <const ManagedRange*>ranges, count, True, prefetches)


cdef void advise_page(ManagedPage* page, int advice, int kind, int number) noexcept nogil:
    cdef uint64_t user = <uint64_t>1 << number if kind == LOCATION_DEVICE else 0
    if advice == SET_READ_MOSTLY or advice == UNSET_READ_MOSTLY:
        page.read_mostly = advice == SET_READ_MOSTLY
    elif advice == SET_PREFERRED or advice == UNSET_PREFERRED:
        page.preferred_kind = kind if advice == SET_PREFERRED else LOCATION_NONE
        page.preferred = number
    elif advice == SET_ACCESSED_BY:
        page.used_by |= user
        page.used_by_host = page.used_by_host or not user
    else:
        page.used_by &= ~user
        page.used_by_host = page.used_by_host and user != 0


cdef void prefer_place(uintptr_t address, int kind, int place) noexcept nogil:
    cdef Range* range_
    cdef size_t index
    lock_memory()
    range_ = containing(memory, address)
    for index in range(count_pages(range_.size)):
        advise_page(&range_.pages[index], SET_PREFERRED, kind, place)
    unlock_memory()


cdef int managed_advise_locked(uintptr_t address, size_t size, int advice, int kind, int place) noexcept nogil:
    cdef Range* range_ = managed_range(address, size)
    cdef size_t index
    cdef int code
    if range_ == NULL or advice < SET_READ_MOSTLY or advice > UNSET_ACCESSED_BY:
        return INVALID_VALUE
    if advice in (SET_PREFERRED, SET_ACCESSED_BY, UNSET_ACCESSED_BY):
        code = check_location(kind, place)
        if code:
            return code
    if advice in (SET_ACCESSED_BY, UNSET_ACCESSED_BY) and kind != LOCATION_DEVICE and kind != LOCATION_HOST:
        return INVALID_VALUE
    for index in range((address - range_.start) // MANAGED_PAGE, (address + size - 1 - range_.start) // MANAGED_PAGE + 1):
        advise_page(&range_.pages[index], advice, kind, place)
    return 0


cdef int device_number(int kind, int number) noexcept nogil:
    # Of a location, as the older attributes have it.
    return number if kind == LOCATION_DEVICE else NOWHERE if kind == LOCATION_NONE else THE_HOST


cdef int one_number(const ManagedPage* page, int attribute) noexcept nogil:
    if attribute == IS_READ_MOSTLY:
        return page.read_mostly
    if attribute == PREFERRED_DEVICE:
        return device_number(page.preferred_kind, page.preferred)
    if attribute == PREFETCHED_DEVICE:
        return device_number(page.prefetched_kind, page.prefetched)
    if attribute == PREFERRED_KIND:
        return page.preferred_kind
    if attribute == PREFERRED_PLACE:
        return page.preferred
    return page.prefetched_kind if attribute == PREFETCHED_KIND else page.prefetched


cdef bint differ(const ManagedPage* one, const ManagedPage* other, int attribute) noexcept nogil:
    # A location is its kind and its place: neither is told where one of them differs.
    if attribute in (PREFERRED_KIND, PREFERRED_PLACE):
        return one.preferred_kind != other.preferred_kind or one.preferred != other.preferred
    if attribute in (PREFETCHED_KIND, PREFETCHED_PLACE):
        return one.prefetched_kind != other.prefetched_kind or one.prefetched != other.prefetched
    return one_number(one, attribute) != one_number(other, attribute)


cdef int number_of_none(int attribute) noexcept nogil:
    # What is answered where the pages differ.
    if attribute in (IS_READ_MOSTLY, PREFERRED_KIND, PREFETCHED_KIND):
        return 0
    return NOWHERE


cdef void list_users(const ManagedPage* pages, size_t count, int* values, size_t room) noexcept nogil:
    cdef uint64_t users = ~<uint64_t>0
    cdef bint host_too = True
    cdef size_t index, written = 0
    cdef int device
    for index in range(count):
        users &= pages[index].used_by
        host_too = host_too and pages[index].used_by_host
    for device in range(64):
        if users >> device & 1 and written < room:
            values[written] = device
            written += 1
    if host_too and written < room:
        values[written] = THE_HOST
        written += 1
    for index in range(written, room):
        values[index] = NOWHERE


cdef int managed_attribute_locked(uintptr_t address, size_t size, int attribute, void* values, size_t count) noexcept nogil:
    cdef Range* range_ = managed_range(address, size)
    cdef int* numbers = <int*>values
    cdef size_t first, last, index
    if range_ == NULL or attribute < IS_READ_MOSTLY or attribute > PREFETCHED_PLACE or count == 0 or numbers == NULL:
        return INVALID_VALUE
    first = (address - range_.start) // MANAGED_PAGE
    last = (address + size - 1 - range_.start) // MANAGED_PAGE
    if attribute == ACCESSED_BY:
        list_users(&range_.pages[first], last - first + 1, numbers, count)
        return 0
    if count != 1:
        return INVALID_VALUE
    numbers[0] = one_number(&range_.pages[first], attribute)
    for index in range(first + 1, last + 1):
        if differ(&range_.pages[first], &range_.pages[index], attribute):
            numbers[0] = number_of_none(attribute)
            break
    return 0


# --- virtual memory: reservations ---------------------------------------------------------------------------

cdef int granularity_gated(size_t* out_size) noexcept nogil:
    out_size[0] = PAGE
    return 0


cdef int address_reserve_gated(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil:
    return address_reserve_at_gated(size, alignment, 0, out_address)


cdef int address_reserve_at_gated(size_t size, size_t alignment, uintptr_t at, uintptr_t* out_address) noexcept nogil:
    cdef Range reservation
    cdef void* room
    if size == 0 or size % PAGE or alignment & (alignment - 1) or at % max(alignment, <size_t>PAGE):
        return INVALID_VALUE
    room = find_room(size, max(alignment, <size_t>PAGE), at)
    if room == NULL:
        return OUT_OF_MEMORY
    reservation = range_of(RESERVED, UNKNOWN_MEMORY, <uintptr_t>room, size)
    return place(&reservations, &reservation, out_address)


cdef int address_free_locked(uintptr_t address, size_t size) noexcept nogil:
    cdef Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    if reservation == NULL or reservation.start != address or reservation.size != size:
        return INVALID_VALUE
    if mapped != NULL and mapped.start >= address:
        return INVALID_VALUE  # something is mapped in it
    drop_range(&reservations, reservation)
    drop_room(<void*>address, size)
    return 0


# --- virtual memory: physical handles ----------------------------------------------------------------------

cdef size_t count_physicals() noexcept nogil:
    cdef size_t count
    lock_memory()
    count = physicals.count
    unlock_memory()
    return count


cdef int add_physical(int device, size_t size, KeptFile own, bint charged, uintptr_t* out_handle) noexcept nogil:
    # Takes the file where it succeeds.
    global next_handle
    cdef Physical* physical = <Physical*>calloc(1, sizeof(Physical))
    cdef int code
    if physical == NULL:
        return NO_HOST_MEMORY
    physical.device = device
    physical.size = size
    physical.own = own
    physical.charged = charged
    physical.alive = True
    lock_memory()
    code = map_reserve(&physicals)
    if code == 0 and charged:
        code = take_bytes(device, size, &physical.offset)
    if code == 0:
        if own >= 0:
            physical.offset = 0
        next_handle += 16
        map_insert(&physicals, next_handle, physical)
        out_handle[0] = next_handle
    unlock_memory()
    if code:
        free(physical)
    return code


cdef int physical_create_gated(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
    cdef KeptFile own = -1
    cdef int code
    if size == 0 or size % PAGE:
        return INVALID_VALUE
    if shared:
        own = keep_number(make_file("accelrt-page", size))
        if own < 0:
            return OPERATING_SYSTEM
    code = add_physical(device, size, own, True, out_handle)
    if code:
        close_kept(own)
    return code


cdef int physical_export_locked(uintptr_t handle, int* out_file) noexcept nogil:
    cdef const Physical* physical = <const Physical*>map_find(&physicals, handle)
    out_file[0] = -1
    if physical == NULL or physical.own < 0 or not physical.charged:  # NVIDIA's driver exports nothing that it imported
        return INVALID_VALUE
    out_file[0] = copy_file(number_of(physical.own))
    return 0 if out_file[0] >= 0 else OPERATING_SYSTEM


cdef int physical_import_gated(int device, int file, uintptr_t* out_handle) noexcept nogil:
    cdef long size = file_size(file)
    cdef KeptFile own
    cdef int code
    if size <= 0 or size % PAGE:
        return INVALID_VALUE
    own = keep_number(copy_file(file))
    if own < 0:
        return OPERATING_SYSTEM
    code = add_physical(device, size, own, False, out_handle)
    if code:
        close_kept(own)
    return code


cdef void release_unused(Physical* physical) noexcept nogil:
    if physical.alive or physical.mappings:
        return
    if physical.own < 0:
        give_bytes(physical.device, physical.offset, physical.size)
    else:
        close_kept(physical.own)
        if physical.charged:
            uncharge(physical.device, physical.size)
    free(physical)


cdef int file_of_physical(const Physical* physical) noexcept nogil:
    return number_of(physical.own) if physical.own >= 0 else file_of(physical.device)


cdef int physical_release_locked(uintptr_t handle) noexcept nogil:
    cdef Physical* physical = <Physical*>map_remove(&physicals, handle)
    if physical == NULL:
        return INVALID_VALUE
    physical.alive = False
    release_unused(physical)
    return 0


# --- virtual memory: mappings ------------------------------------------------------------------------------

cdef bint is_clear(uintptr_t address, size_t size) noexcept nogil:
    # Nothing is mapped in [address, address + size), and a reservation holds it whole.
    cdef const Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    if reservation == NULL or address + size > reservation.start + reservation.size:
        return False
    return mapped == NULL or mapped.start + mapped.size <= address


cdef int memory_map_locked(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil:
    cdef Physical* physical = <Physical*>map_find(&physicals, handle)
    cdef Range mapping
    if physical == NULL or size == 0 or size % PAGE or address % PAGE:
        return INVALID_VALUE
    if size != physical.size:
        return NOT_SUPPORTED
    if not is_clear(address, size):
        return INVALID_VALUE
    if not show(<void*>address, size, file_of_physical(physical), physical.offset, PROT_NONE):
        return OUT_OF_MEMORY
    mapping = range_of(MAPPED, physical.device, address, size)
    mapping.physical = physical
    if add_range(&memory, &mapping):
        hide(<void*>address, size)
        return NO_HOST_MEMORY
    physical.mappings += 1
    return 0


cdef bint is_mapped(uintptr_t address, size_t size) noexcept nogil:
    # [address, address + size) is a run of whole mappings.
    cdef uintptr_t end = address + size
    cdef Range* mapping
    while address < end:
        mapping = containing(memory, address)
        if mapping == NULL or mapping.kind != MAPPED or mapping.start != address or address + mapping.size > end:
            return False
        address += mapping.size
    return size > 0


cdef int memory_access(uintptr_t address, size_t size, int device, int access) noexcept nogil:
    # Another device than the memory's own is noted; what this process may do with the bytes is as for its own.
    cdef uintptr_t at = address
    cdef Range* mapping
    cdef int code = gate_any()
    if code:
        return code
    if not known_device(device):
        return INVALID_DEVICE
    if access != MEMORY_CLOSED and access != MEMORY_READ and access != MEMORY_WRITTEN:
        return INVALID_VALUE
    lock_memory()
    if not is_mapped(address, size):
        code = INVALID_VALUE
    while code == 0 and at < address + size:
        mapping = containing(memory, at)
        code = open_mapping(mapping, device, access)
        at += mapping.size
    unlock_memory()
    return code


cdef int open_mapping(Range* mapping, int device, int access) noexcept nogil:
    cdef uint64_t bit = <uint64_t>1 << device
    cdef int protection = PROT_READ | PROT_WRITE if access == MEMORY_WRITTEN else PROT_READ if access else PROT_NONE
    if device == mapping.device or not mapping.open and access:
        if mprotect(<void*>mapping.start, mapping.size, protection):
            return OUT_OF_MEMORY
        mapping.open = access != MEMORY_CLOSED
        mapping.writable = access == MEMORY_WRITTEN
    mapping.open_to = mapping.open_to | bit if access else mapping.open_to & ~bit
    return 0


cdef uint64_t devices_with_access(uintptr_t address) noexcept nogil:
    cdef const Range* page
    cdef uint64_t devices = 0
    lock_memory()
    page = containing(memory, address)
    if page != NULL and page.kind == MAPPED:
        devices = page.open_to
    unlock_memory()
    return devices


cdef bint is_whole(uintptr_t address, size_t size) noexcept nogil:
    # Every mapping that [address, address + size) touches lies inside it, and a reservation around it.
    cdef const Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    cdef uintptr_t at = address + size
    if reservation == NULL or address + size > reservation.start + reservation.size:
        return False
    while mapped != NULL and mapped.start + mapped.size > address:
        if mapped.start < address or mapped.start + mapped.size > at:
            return False
        at = mapped.start
        mapped = last_before(memory, at)
    return True


cdef void unmap_one(Range* mapping) noexcept nogil:
    cdef Physical* physical = mapping.physical
    hide(<void*>mapping.start, mapping.size)
    physical.mappings -= 1
    release_unused(physical)
    drop_range(&memory, mapping)


cdef int memory_unmap_gated(uintptr_t address, size_t size) noexcept nogil:
    # Holes are no matter, a part of a mapping is.
    cdef Range* last
    cdef bint whole
    if size == 0:
        return INVALID_VALUE
    note_unmapping(address, size)
    lock_memory()
    whole = is_whole(address, size)
    while whole:
        last = last_before(memory, address + size)
        if last == NULL or last.start < address:
            break
        unmap_one(last)
    unlock_memory()
    return 0 if whole else INVALID_VALUE


# --- plain memory of other processes ------------------------------------------------------------------------

cdef int ipc_memory_export_locked(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef const Range* plain = whole_range(address, PLAIN, device)
    if plain == NULL:
        return INVALID_VALUE
    return name_file(file_of(device), MEMORY_FILE, plain.offset, plain.charged, out_ipc)


cdef int ipc_memory_open_gated(int device, const char* handle, uintptr_t* out_address) noexcept nogil:
    # Not charged: the process that imported it pays for it.
    cdef FileName name
    cdef Range imported
    cdef void* room
    cdef int file = -1
    cdef int code = open_named(handle, MEMORY_FILE, &name, &file)
    if code:
        return code
    room = find_room(name.size, PAGE, 0)
    if room == NULL:
        code = OUT_OF_MEMORY
    elif not show(room, name.size, file, name.offset, PROT_READ | PROT_WRITE):
        drop_room(room, name.size)
        code = OUT_OF_MEMORY
    else:
        imported = range_of(IMPORTED, device, <uintptr_t>room, name.size)
        imported.offset = name.offset
        code = place(&memory, &imported, out_address)
    close_file(file)
    return code


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    return close_under_work(device, address, IMPORTED, device)


# --- CUDA arrays, textures and surfaces ----------------------------------------------------------------------
# An array is plain memory whose address nobody is told.  A texture's handle leads kernels to a place, which says where the
# elements are; a place is taken again, by a handle of its own, so that kernels refuse the stale one.

cdef Texture* unused_places = NULL  # under the memory's lock


cdef int make_array(int device, const ArraySpec* spec, unsigned int levels, uintptr_t* out_array) noexcept nogil:
    # A mipmap's levels lie one behind the other, and its handle and a number are theirs.
    global next_handle
    cdef HostArray* array
    cdef unsigned int level
    cdef int code = permitted(device)
    out_array[0] = 0
    if code:
        return code
    if element_size(spec.format, spec.channels) == 0 or not is_shape(spec):
        return INVALID_VALUE
    array = <HostArray*>calloc(levels + 1, sizeof(HostArray))
    if array == NULL:
        return NO_HOST_MEMORY
    array.spec, array.device, array.levels, array.parts = spec[0], device, levels, array + 1
    array.element = element_size(spec.format, spec.channels)
    array.size = 0 if levels else array_size(spec)
    for level in range(levels):
        describe_level(array, level, array.size, &array.parts[level])
        array.size += array.parts[level].size
    code = make_mapping(OF_ARRAYS, device, array.size, &array.address)
    if code:
        free(array)
        return code
    for level in range(levels):
        array.parts[level].address += array.address
    lock_memory()
    code = map_reserve(&arrays)
    if code == 0:
        next_handle = (next_handle + 2 * LEVEL_BITS + 1) & ~<uintptr_t>LEVEL_BITS
        out_array[0] = next_handle
        map_insert(&arrays, out_array[0], array)
    unlock_memory()
    if code:
        take_away(array.address, OF_ARRAYS, device)
        free(array)
    return code


cdef int array_create(int device, void* spec, uintptr_t* out_array) noexcept nogil:
    return make_array(device, <const ArraySpec*>spec, 0, out_array)


cdef int mipmap_create(int device, void* spec, unsigned int levels, uintptr_t* out_mipmap) noexcept nogil:
    cdef unsigned int most = most_levels(<const ArraySpec*>spec)
    out_mipmap[0] = 0
    if most == 0:
        return INVALID_VALUE
    return make_array(device, <const ArraySpec*>spec, min(max(levels, <unsigned int>1), most), out_mipmap)


cdef HostArray* find_array(uintptr_t array, int device) noexcept nogil:
    # Or a mipmap's level.
    cdef uintptr_t level = array & LEVEL_BITS
    cdef HostArray* named = <HostArray*>map_find(&arrays, array - level)
    if named == NULL or named.device != device or level > named.levels or (level == 0 and named.levels):
        return NULL
    return &named.parts[level - 1] if level else named


cdef HostArray* find_mipmap(uintptr_t mipmap, int device) noexcept nogil:
    cdef HostArray* named = <HostArray*>map_find(&arrays, mipmap)
    return named if named != NULL and named.device == device and named.levels else NULL


cdef int mipmap_level_locked(int device, uintptr_t mipmap, unsigned int level, uintptr_t* out_array) noexcept nogil:
    cdef const HostArray* named = find_mipmap(mipmap, device)
    out_array[0] = 0
    if named == NULL:
        return INVALID_HANDLE
    if level >= named.levels:
        return INVALID_VALUE
    out_array[0] = mipmap + level + 1
    return 0


cdef int array_spec_locked(int device, uintptr_t array, void* spec) noexcept nogil:
    cdef const HostArray* named = find_array(array, device)
    if named != NULL:
        (<ArraySpec*>spec)[0] = named.spec
    return INVALID_HANDLE if named == NULL else 0


cdef bint is_of_array(uintptr_t address) noexcept nogil:
    cdef const Range* range_
    lock_memory()
    range_ = containing(memory, address)
    unlock_memory()
    return range_ != NULL and range_.kind == OF_ARRAYS


cdef bint is_in_use(uintptr_t texture, const HostArray* array) noexcept nogil:
    # Whether queued work names a texture, or an array or a texture of it; as of all memory that goes, it is counted.
    global takings
    cdef size_t index
    cdef const Texture* each
    cdef bint named = False
    lock()
    lock_memory()
    if working != NULL and array == NULL:
        named = queue_names(texture, 1)
    elif working != NULL:
        named = queue_names(array.address, array.size)
        for index in range(textures.capacity):
            each = <const Texture*>textures.slots[index].value
            if each != NULL and array.address <= <uintptr_t>each.bytes < array.address + array.size:
                named = named or queue_names(each.handle, 1)
    unlock_memory()
    takings += named
    unlock()
    return named


cdef int destroy_array(int device, uintptr_t array, bint mipmap) noexcept nogil:
    # Waits where work names it, which the host device survives so.
    cdef HostArray* named
    cdef int code = permitted(device)
    if code:
        return code
    lock_memory()
    named = find_mipmap(array, device) if mipmap else NULL if array & LEVEL_BITS else find_array(array, device)
    if named != NULL:
        map_remove(&arrays, array)
    unlock_memory()
    if named == NULL:
        return INVALID_HANDLE
    if is_in_use(0, named):
        quiet(device)
    take_away(named.address, OF_ARRAYS, device)
    free(named)
    return 0


cdef int array_destroy(int device, uintptr_t array) noexcept nogil:
    return destroy_array(device, array, False)


cdef int mipmap_destroy(int device, uintptr_t mipmap) noexcept nogil:
    return destroy_array(device, mipmap, True)


cdef int locate(const Place* place, const ArrayCopy* box, int device, uintptr_t* out_address, size_t* out_pitch,
                size_t* out_lines) noexcept nogil:
    # Where a side of a copy begins, under the lock.
    cdef const HostArray* array
    cdef size_t pitch = place.pitch, lines = place.lines
    out_address[0] = place.address
    if place.kind == PLACE_ARRAY:
        array = find_array(place.array, device)
        if array == NULL:
            return INVALID_VALUE
        lines, pitch = max(array.spec.height, <size_t>1), array.spec.width * array.element
        if place.x % array.element or box.width % array.element or not (
                is_within(place.x, box.width, pitch) and is_within(place.y, box.height, lines)
                and is_within(place.z, box.depth, max(array.spec.depth, <size_t>1))):
            return INVALID_VALUE
        out_address[0] = array.address
    elif place.kind != PLACE_MEMORY:
        return INVALID_VALUE
    out_address[0] += (place.z * lines + place.y) * pitch + place.x
    out_pitch[0], out_lines[0] = pitch, lines
    return 0


cdef int array_copy_gated(int device, uintptr_t stream, void* copy) noexcept nogil:
    cdef const ArrayCopy* box = <const ArrayCopy*>copy
    cdef Work work
    cdef uintptr_t dst = 0, src = 0
    cdef size_t dst_pitch = 0, dst_lines = 0, src_pitch = 0, src_lines = 0
    cdef int code
    if box.width == 0 or box.height == 0 or box.depth == 0:
        return 0
    lock_memory()
    code = locate(&box.dst, box, device, &dst, &dst_pitch, &dst_lines)
    if code == 0:
        code = locate(&box.src, box, device, &src, &src_pitch, &src_lines)
    unlock_memory()
    if code == 0:
        code = prepare_copy_3d(&work, dst, dst_pitch, dst_lines, src, src_pitch, src_lines, box.width, box.height, box.depth)
    if code == 0:
        lock()
        code = put_in(find_stream(device, stream), &work, NULL, NULL)
        unlock()
    return code


cdef int read_array(const Resource* resource, int device, bint surface, Texture* texture) noexcept nogil:
    cdef const HostArray* array
    cdef int code = INVALID_VALUE
    lock_memory()
    if resource.kind == RESOURCE_MIPMAP:
        array = find_mipmap(resource.source, device)
        texture.levels = 0 if array == NULL else array.levels
    else:
        array = find_array(resource.source, device)
    if array != NULL and (not surface or array.spec.flags & ARRAY_SURFACE):
        texture.bytes, texture.width = <char*>array.address, array.spec.width
        texture.height, texture.depth = <unsigned int>array.spec.height, <unsigned int>array.spec.depth
        texture.format, texture.channels, texture.shape = array.spec.format, array.spec.channels, array.spec.flags
        texture.pitch = array.spec.width * array.element
        texture.slice = texture.pitch * max(array.spec.height, <size_t>1)
        code = 0
    unlock_memory()
    return code


cdef int read_linear(const Resource* resource, Texture* texture) noexcept nogil:
    # Linear memory, or rows of it.
    cdef size_t element = element_size(resource.format, resource.channels), size = resource.width
    if element == 0 or resource.source % ALIGNMENT:
        return INVALID_VALUE
    texture.bytes, texture.format, texture.channels = <char*>resource.source, resource.format, resource.channels
    texture.width = resource.width // element
    if resource.kind == RESOURCE_ROWS:
        if not 0 < resource.width <= MOST_LINE or not 0 < resource.height <= MOST_PITCHED_ROWS or (
                resource.pitch % PITCH_ALIGNMENT or not resource.width * element <= resource.pitch <= MOST_PITCH):
            return INVALID_VALUE
        texture.width, texture.height, texture.pitch = resource.width, <unsigned int>resource.height, resource.pitch
        size = (resource.height - 1) * resource.pitch + resource.width * element
    elif resource.kind != RESOURCE_LINEAR or not 0 < texture.width <= MOST_LINEAR:
        return INVALID_VALUE
    return INVALID_VALUE if owner_of(resource.source, size) == UNKNOWN_MEMORY else 0


cdef int texture_create(int device, void* resource, void* sampling, uintptr_t* out_texture) noexcept nogil:
    global unused_places
    cdef const Sampling* sampled = <const Sampling*>sampling
    cdef const Resource* read = <const Resource*>resource
    cdef Texture described
    cdef Texture* texture
    cdef int code = permitted(device)
    out_texture[0] = 0
    if code:
        return code
    memset(&described, 0, sizeof(Texture))
    if sampled != NULL:
        if not is_sampling(sampled):
            return INVALID_VALUE
        described.address_modes, described.border = sampled.address_modes, sampled.border
        described.filter_mode, described.flags = sampled.filter_mode, sampled.flags
        described.mipmap_filter, described.bias = sampled.mipmap_filter, sampled.bias
        described.least, described.most = sampled.levels[0], sampled.levels[1]
    described.kind, described.levels = read.kind, 1
    if read.kind == RESOURCE_MIPMAP and (sampled == NULL or not sampled.flags & SAMPLE_NORMALIZED):
        return INVALID_VALUE
    if read.kind == RESOURCE_ARRAY or read.kind == RESOURCE_MIPMAP:
        code = read_array(read, device, sampled == NULL, &described)
    else:
        code = INVALID_VALUE if sampled == NULL else read_linear(read, &described)
    if code:
        return code
    lock_memory()
    code = map_reserve(&textures)
    texture = unused_places
    if code == 0 and texture == NULL:
        texture = <Texture*>calloc(1, sizeof(Texture))
        code = NO_HOST_MEMORY if texture == NULL else 0
    elif code == 0:
        unused_places = texture.next
    if code == 0:
        described.uses = texture.uses + 1
        described.handle = use_bits(described.uses) | <uintptr_t>texture
        texture[0] = described
        out_texture[0] = described.handle
        map_insert(&textures, described.handle, texture)
    unlock_memory()
    return code


cdef int texture_destroy(int device, uintptr_t texture, bint surface) noexcept nogil:
    global unused_places
    cdef Texture* named
    cdef int code = permitted(device)
    if code:
        return code
    if is_in_use(texture, NULL):
        quiet(device)
    lock_memory()
    named = <Texture*>map_find(&textures, texture)
    if named == NULL:
        code = INVALID_VALUE
    else:
        map_remove(&textures, texture)
        named.handle, named.next = 0, unused_places
        unused_places = named
    unlock_memory()
    return code


cdef void count_arrays(size_t* out_arrays, size_t* out_textures) noexcept nogil:
    lock_memory()
    out_arrays[0], out_textures[0] = arrays.count, textures.count
    unlock_memory()
