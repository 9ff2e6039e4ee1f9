"""Memory that the driver itself lays out: managed memory, where it lies and what the driver is told of its use; and what
work names by a handle, CUDA arrays with their textures and surfaces, and copies of those."""
cimport cython
from collections import namedtuple
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.allocator.backing.pages cimport is_managed as is_managed_address
from accelrt.arrays.array cimport Array
from accelrt.arrays.copy cimport (
    finish, follow_producer, is_asynchronous, keep, look_again_slow, note_use, Operand, read_array, read_operand, record_for,
    uses_owner, View,
)
from accelrt.devices.device cimport device_at, known_devices
from accelrt.devices.device import memory_place
from accelrt.driver.managed cimport (
    ACCESSED_BY, IS_READ_MOSTLY, LOCATION_DEVICE, LOCATION_NODE, ManagedRange, NOWHERE, PREFERRED_DEVICE,
    PREFETCHED_DEVICE, SET_ACCESSED_BY, SET_PREFERRED, SET_READ_MOSTLY, THE_HOST, UNSET_ACCESSED_BY,
    UNSET_PREFERRED, UNSET_READ_MOSTLY,
)
from accelrt.driver.guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.textures cimport ArrayCopy, Place, PLACE_ARRAY, PLACE_MEMORY
from accelrt.errors import ArgumentError, ArgumentTypeError, CaptureError, NotSupportedError
from accelrt.runtime.access cimport (
    Access, begin_use, begin_use_of, defer_release, Deferral, deferral_closed, deferral_for, end_use, end_use_of,
    refuse_sleeping,
)
cimport accelrt.runtime.access as watch
from accelrt.runtime.lifetimes cimport AccessDescriptor, add_array, any_waits, ARRAY, drain, DriverObject, MIPMAP, Record
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, raise_status, refuse_copy, refuse_unmade,
)
from accelrt.streams.stream cimport Stream, stream_for, stream_of

cdef enum:
    LAST_LEGACY = 1    # streams up to this number are the legacy default stream
    MOST_DEVICES = 64
    KIND_BEHIND = 3    # PREFERRED_KIND and PREFETCHED_KIND follow their older attributes by so much: 2 -> 5, 4 -> 7

cdef dict ADVICE = {
    "read_mostly": (SET_READ_MOSTLY, UNSET_READ_MOSTLY, False),
    "preferred_location": (SET_PREFERRED, UNSET_PREFERRED, True),
    "accessed_by": (SET_ACCESSED_BY, UNSET_ACCESSED_BY, True),
}
cdef str FIELDS = "read_mostly preferred_location accessed_by last_prefetch_location"


class ManagedAttributes(namedtuple("ManagedAttributes", FIELDS)):
    """Advice and prefetches of managed memory, as the driver has them; each holds for all of it.

    Attributes:
        read_mostly: bool, whether devices get copies of their own when they read it.
        preferred_location: device object, "cpu" or "cpu:N", a NUMA node of the host's; None where none was said, or
            different ones.
        accessed_by: tuple of device objects and "cpu": who has it mapped wherever it lies.
        last_prefetch_location: as preferred_location: where prefetch() was last to bring it, whether or not it is there
            yet; None where it never was, or in parts.
    """
    # stub: read_mostly: bool
    # stub: preferred_location: device | str | None
    # stub: accessed_by: tuple[device | str, ...]
    # stub: last_prefetch_location: device | str | None

    __slots__ = ()


# --- arguments ----------------------------------------------------------------------------------------------------

cdef int read_location(object location, ManagedRange* out_range) except -1:
    out_range.kind, out_range.place = memory_place(location)
    return 0


cdef object location_of(int kind, int place):
    if kind == LOCATION_DEVICE:
        return device_at(place)
    if kind == LOCATION_NODE:
        return f"cpu:{place}"
    return "cpu" if kind else None


@cython.final
cdef class Ranges:
    """Managed memory that one call names: what was given, and the ranges as the driver takes them."""

    cdef tuple memories
    cdef Operand* sides
    cdef ManagedRange* ranges
    cdef Py_ssize_t count
    cdef list views     # buffers of Python's, which end with this

    def __dealloc__(self):
        free(self.sides)
        free(self.ranges)

    def __reduce__(self):
        refuse_copy(self, "it belongs to one call")

    cdef int read(self, object memory, str call) except -1:
        cdef Py_ssize_t index
        self.memories = tuple(memory) if isinstance(memory, (list, tuple)) else (memory,)
        self.count = len(self.memories)
        self.views = []
        self.sides = <Operand*>calloc(self.count + 1, sizeof(Operand))
        self.ranges = <ManagedRange*>calloc(self.count + 1, sizeof(ManagedRange))
        if self.sides == NULL or self.ranges == NULL:
            raise MemoryError(f"no host memory for the {self.count} ranges of {call}")
        for index in range(self.count):
            self.views.append(read_operand(&self.sides[index], self.memories[index], "memory", False))
            if self.sides[index].ordinal < 0:
                raise ArgumentTypeError(
                    f"{call}: memory of type {type(self.memories[index]).__name__} is host memory, which nothing moves; "
                    "pass memory of Buffer(..., managed=True), or of a MemPool(managed=True)")
            self.ranges[index].address = self.sides[index].address
            self.ranges[index].size = self.sides[index].nbytes
        return 0

    cdef int read_locations(self, object location, str call) except -1:
        # One for all of them, or one for each; None is the device that the memory was allocated on.
        cdef Py_ssize_t index
        cdef bint each = isinstance(location, (list, tuple))
        if each and len(location) != self.count:
            raise ArgumentError(
                f"{call}: {self.count} pieces of memory have {len(location)} locations; pass one for all, or as many")
        for index in range(self.count):
            ordinal = location[index] if each else location
            read_location(self.sides[index].ordinal if ordinal is None else ordinal, &self.ranges[index])
        return 0

    cdef int drop_empty(self) noexcept:
        # What has no bytes is nowhere.  The sides keep their order.
        cdef Py_ssize_t index, kept = 0
        for index in range(self.count):
            if self.ranges[index].size:
                self.ranges[kept] = self.ranges[index]
                kept += 1
        return kept

    cdef int look_again(self, str call) except -1:
        # Inside the use, behind all of the caller's code.
        cdef Py_ssize_t index
        for index in range(self.count):
            look_again_slow(&self.sides[index], self.memories[index], "memory")
            refuse_sleeping(self.sides[index].address, "memory")
            require_managed(&self.sides[index], self.memories[index], call)
        return 0


cdef int require_managed(const Operand* side, object memory, str call) except -1:
    # Memory of others is known to the driver alone.
    cdef int ignored = 0, code
    if side.nbytes == 0 or is_managed_address(side.address):
        return 0
    with nogil:
        code = registry.active().managed_attribute(side.ordinal, side.address, side.nbytes, IS_READ_MOSTLY, &ignored, 1)
    if code == INVALID_VALUE or code == NOT_SUPPORTED:
        raise ArgumentError(
            f"{call}: memory at {side.address:#x} of type {type(memory).__name__} is not managed: it stays where it was "
            "allocated; make it by Buffer(..., managed=True), or inside use_mem_pool(MemPool(managed=True))")
    if code:
        raise_status(code, "managed_attribute", ("address", side.address, "size", side.nbytes))
    return 0


cdef int raise_refusal(int code, str call, str row, Stream worker, const ManagedRange* first) except -1:
    if code == CAPTURE_UNSUPPORTED:
        raise CaptureError(
            f"{call}: a capture takes no move of managed memory, and this one is broken; call it before the capture, or "
            "before each replay", code, "CAPTURE_UNSUPPORTED", row)
    if code == NOT_SUPPORTED:
        raise NotSupportedError(
            f"{call} is not supported by this driver: memory is discarded from CUDA 13.0 on", code, "NOT_SUPPORTED", row)
    if code == INVALID_DEVICE:
        raise NotSupportedError(
            f"{call} is not supported by one of the devices: it does not use managed memory beside the host "
            "(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)", code, "INVALID_DEVICE", row)
    if code:
        raise_status(code, row, ("device", worker.device_index, "stream", worker.handle, "address", first.address, "size",
                                 first.size, "kind", first.kind, "place", first.place))
    return 0


# --- moves --------------------------------------------------------------------------------------------------------

cdef int put_move(Ranges moved, Stream worker, bint discards, bint prefetches, str call) except -1:
    cdef Py_ssize_t index
    cdef size_t count
    cdef Access access
    cdef int code
    for index in range(moved.count):
        if moved.sides[index].producer:
            follow_producer(&moved.sides[index], worker)
        if discards:
            watch.note_access(worker.device_index, worker.handle, moved.sides[index].address, moved.sides[index].nbytes,
                              "w", call)
    begin_use(&access, uses_owner, <PyObject*>moved.memories)
    try:
        moved.look_again(call)
        count = moved.drop_empty()
        with nogil:
            if discards:
                code = registry.active().managed_discard(worker.device_index, worker.handle, moved.ranges, count, prefetches)
            else:
                code = registry.active().managed_prefetch(worker.device_index, worker.handle, moved.ranges, count)
        for index in range(moved.count):
            note_use(&moved.sides[index], worker, False, False)  # also where a later range was refused
    finally:
        end_use(&access)
    return raise_refusal(code, call, "managed_discard" if discards else "managed_prefetch", worker, moved.ranges)


cdef Stream worker_of(Ranges moved, object stream):
    if moved.count == 0:
        return None
    return stream_of(stream, moved.sides[0].ordinal)


def prefetch(
    memory: Memory | Sequence[Memory], location: DeviceArgument | Sequence[DeviceArgument] | None = None,
    stream: Stream | int | None = None,
) -> None:
    """Brings managed memory to a device, or to the host, in a stream's order, so that its use there finds it
    (cuMemPrefetchAsync; several pieces by one cuMemPrefetchBatchAsync where the driver has it).

        buffer = accelrt.Buffer(1 << 30, managed=True)
        accelrt.memory.prefetch(buffer)              # to its device
        accelrt.memory.prefetch(buffer[:4096], "cpu")

    Arguments:
        memory: Buffer, contiguous Array, or object with __cuda_array_interface__, of managed memory; or a list of them.
            Pages that it touches go as a whole.
        location: int, "cuda:1", ..., a device; "cpu", the host; "cpu:N", its NUMA node N; None is the device that the memory
            was allocated on.  For a list of memory a list of as many, or one for all.
        stream: Stream, handle as int, or None for the current stream of the first memory's device.
    Raises:
        ValueError: memory is not managed, was freed, the locations are not as many, or the stream is none.
        TypeError: memory is host memory, or none.
        NotSupportedError: a device cannot use managed memory beside the host.
        CaptureError: the stream is capturing.

    Contents are the same wherever the memory lies, so nothing has to wait for it but what shall find it there.  A device
    without room for it gives other managed memory up to the host; what is larger than the device has its end there.
    """
    cdef Ranges moved = Ranges()
    cdef Stream worker
    moved.read(memory, "prefetch")
    moved.read_locations(location, "prefetch")
    worker = worker_of(moved, stream)
    if worker is not None:
        put_move(moved, worker, False, True, "prefetch")


def discard(
    memory: Memory | Sequence[Memory], location: DeviceArgument | Sequence[DeviceArgument] | None = None, *,
    prefetch: bool = False, stream: Stream | int | None = None,
) -> None:
    """Lets the contents of managed memory go, in a stream's order: what takes its place need not be copied away
    (cuMemDiscardBatchAsync).  Until it is written again, what is read of it is undefined.

    Arguments:
        memory: as for prefetch; whole pages within it lose their contents.
        location: as for prefetch, where prefetch is True; else None.
        prefetch: bool, whether the memory goes to the location too, without a copy of what it held
            (cuMemDiscardAndPrefetchBatchAsync).
        stream: as for prefetch.
    Raises:
        NotSupportedError: the driver is older than CUDA 13.0, or a device cannot use managed memory beside the host.
        Others as prefetch; ValueError also where there is a location without prefetch.
    """
    cdef Ranges moved = Ranges()
    cdef Stream worker, between
    if location is not None and not prefetch:
        raise ArgumentError(f"location is {location!r}, where nothing is moved; pass prefetch=True too")
    moved.read(memory, "discard")
    moved.read_locations(location, "discard")
    worker = worker_of(moved, stream)
    if worker is None:
        return
    if worker.handle > LAST_LEGACY or record_for(worker) is not None:
        put_move(moved, worker, True, prefetch, "discard")
        return
    between = Stream(worker.device_index)  # the driver takes none in the legacy default stream
    between.wait_stream(worker)
    try:
        put_move(moved, between, True, prefetch, "discard")
    finally:  # where it was refused some ranges may be under way
        worker.wait_stream(between)


# --- advice -------------------------------------------------------------------------------------------------------

def advise(
    memory: Memory | Sequence[Memory], advice: str, location: DeviceArgument | None = None, *, unset: bool = False,
) -> None:
    """Tells the driver how managed memory will be used (cuMemAdvise).  It holds from now on, whatever is in streams, until
    it is taken back or the driver has the pages back: also for what the cache makes of them once the memory was freed.

        accelrt.memory.advise(weights, "read_mostly")
        accelrt.memory.advise(table, "preferred_location", "cpu")
        accelrt.memory.advise(table, "accessed_by", 0)

    Arguments:
        memory: as for prefetch.
        advice: "read_mostly", each device that reads it gets a copy; "preferred_location", where it stays if it can;
            "accessed_by", who has it mapped wherever it lies, so that its use there does not fault.
        location: as for prefetch, for the last two; None is the device that the memory was allocated on.
        unset: bool, whether the advice is taken back; "preferred_location" then needs no location.
    Raises:
        ValueError: advice is none of these, or memory is not managed or was freed.
        NotSupportedError: the device cannot use managed memory beside the host.
    """
    cdef Ranges ranges = Ranges()
    cdef Access access
    cdef Py_ssize_t index
    cdef int code = 0, number
    if advice not in ADVICE:
        raise ArgumentError(f"advice is {advice!r}; it may be {', '.join([repr(name) for name in ADVICE])}")
    setting, unsetting, placed = ADVICE[advice]
    if location is not None and not placed:
        raise ArgumentError(f"location is {location!r}; 'read_mostly' holds for every device, so pass none")
    number = unsetting if unset else setting
    ranges.read(memory, "advise")
    ranges.read_locations(location, "advise")
    begin_use(&access, uses_owner, <PyObject*>ranges.memories)
    try:
        ranges.look_again("advise")
        with nogil:
            for index in range(ranges.count):
                if code == 0 and ranges.ranges[index].size:
                    code = registry.active().managed_advise(
                        ranges.sides[index].ordinal, ranges.ranges[index].address, ranges.ranges[index].size, number,
                        ranges.ranges[index].kind, ranges.ranges[index].place)
    finally:
        end_use(&access)
    if code == INVALID_DEVICE:
        raise NotSupportedError(
            f"advise is not supported by device {location!r}: it does not use managed memory beside the host "
            "(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)", code, "INVALID_DEVICE", "managed_advise")
    if code:
        raise_status(code, "managed_advise", ("advice", advice, "location", location, "unset", unset))


cdef int read_attribute(const Operand* side, int attribute, int* values, size_t count) except -1:
    cdef int code
    with nogil:
        code = registry.active().managed_attribute(side.ordinal, side.address, side.nbytes, attribute, values, count)
    if code:
        raise_status(code, "managed_attribute", ("address", side.address, "size", side.nbytes, "attribute", attribute))
    return 0


cdef object read_place(const Operand* side, int attribute):
    # Drivers before CUDA 12.2 know devices and the host alone.
    cdef int device = NOWHERE, kind = 0, place = 0, code
    with nogil:
        code = registry.active().managed_attribute(
            side.ordinal, side.address, side.nbytes, attribute + KIND_BEHIND, &kind, 1)
    if code == 0:
        read_attribute(side, attribute + KIND_BEHIND + 1, &place, 1)
        return location_of(kind, place)
    read_attribute(side, attribute, &device, 1)
    return None if device == NOWHERE else "cpu" if device == THE_HOST else device_at(device)


def managed_attributes(memory: Memory) -> ManagedAttributes:
    """Reads what the driver was told of managed memory by advise() and prefetch() (cuMemRangeGetAttribute).

    Arguments:
        memory: Buffer, contiguous Array, or object with __cuda_array_interface__, of managed memory.
    Returns:
        ManagedAttributes.
    Raises:
        ValueError: memory is not managed, was freed, or has no bytes.
    """
    cdef Ranges ranges = Ranges()
    cdef Access access
    cdef int[MOST_DEVICES] users
    cdef int read_mostly = 0, index, room = min(known_devices() + 1, MOST_DEVICES)
    ranges.read(memory, "managed_attributes")
    if ranges.count != 1 or ranges.sides[0].nbytes == 0:
        raise ArgumentError("managed_attributes takes one piece of memory that has bytes")
    begin_use(&access, uses_owner, <PyObject*>ranges.memories)
    try:
        ranges.look_again("managed_attributes")
        read_attribute(ranges.sides, IS_READ_MOSTLY, &read_mostly, 1)
        read_attribute(ranges.sides, ACCESSED_BY, users, room)
        return ManagedAttributes(
            bool(read_mostly), read_place(ranges.sides, PREFERRED_DEVICE),
            tuple(["cpu" if users[index] == THE_HOST else device_at(users[index])
                   for index in range(room) if users[index] != NOWHERE]),
            read_place(ranges.sides, PREFETCHED_DEVICE),
        )
    finally:
        end_use(&access)


def is_managed(memory: Memory) -> bool:
    """Says whether memory of accelrt's is managed: the host and every device use it at its address.

    Arguments:
        memory: Buffer, Array, or other memory that accelrt.copy takes.
    Returns:
        bool; False for no bytes.
    Raises:
        ValueError: the memory was freed.
        TypeError: memory is none.
    """
    cdef Operand side
    cdef View view = read_operand(&side, memory, "memory", False)
    return bool(side.nbytes and view is None and is_managed_address(side.address))


# --- what work names by a handle ----------------------------------------------------------------------------------

cdef DriverObject held_by(AccessDescriptor source):
    # Which another thread may have closed since it was described.
    cdef DriverObject held = source.held
    if held is None:
        source.check_open("the array")
        refuse_unmade(source)
    return held


@cython.no_gc_clear  # as of the descriptor
cdef class HandledMemory(AccessDescriptor):
    """Memory, or a way to it, that work names by a handle of the driver's.

    Attributes:
        handle: int, the driver's; 0 once it was closed.
    """

    def _adopt(self, int kind, uintptr_t handle, source: object) -> None:
        """Takes an object of the driver's that source owns, which it keeps."""
        cdef DriverObject held = DriverObject.__new__(DriverObject)
        held.kind, held.device, held.handle = kind, self.device_index, handle
        held.source, held.borrowed = source, True
        self.held = held

    def _adopt_level(self, mipmap: HandledMemory, unsigned int level) -> int:
        """Takes the array that is a level of a mipmap; returns the driver's code."""
        cdef DriverObject whole = held_by(mipmap)
        cdef uintptr_t handle = 0
        cdef int mode, code
        with nogil:
            code = go_relaxed(registry.active(), &mode)
            if code == 0:
                code = registry.active().mipmap_level(whole.device, whole.handle, level, &handle)
                restore_mode(registry.active(), mode)
        if code == 0:
            self._adopt(ARRAY, handle, whole)
        return code

    def _hold(
        self, int kind, source: object, bytes description, sampling: bytes | None, long nbytes=0, unsigned int levels=0,
        facts: dict[str, Any] | None = None,
    ) -> int:
        """Makes the driver's object: an array of so many bytes, a mipmap, a texture, or a surface where there is no
        sampling; returns the driver's code."""
        cdef DriverObject held = DriverObject.__new__(DriverObject)
        cdef uintptr_t handle = 0
        cdef char* said = description
        cdef char* sampled = NULL if sampling is None else <char*><bytes>sampling
        cdef int mode, code
        if any_waits():
            drain()  # the memory of arrays before it
        held.kind, held.device = kind, self.device_index
        held.source = source
        if isinstance(source, AccessDescriptor):  # its driver's object, which stays until this one goes
            held.source = held_by(<AccessDescriptor>source)
        with nogil:
            code = go_relaxed(registry.active(), &mode)
            if code == 0:
                if kind == ARRAY:
                    code = registry.active().array_create(held.device, said, &handle)
                elif kind == MIPMAP:
                    code = registry.active().mipmap_create(held.device, said, levels, &handle)
                else:
                    code = registry.active().texture_create(held.device, said, sampled, &handle)
                restore_mode(registry.active(), mode)
        if code:
            return code
        held.handle, held.nbytes, self.held = handle, nbytes, held
        if facts is not None:
            add_array(held, facts)
        if kind != ARRAY and kind != MIPMAP:
            self.data = (<const char*>&handle)[:sizeof(handle)]
        return 0

    @property
    def handle(self) -> int:
        """The driver's handle, as int; 0 once it was closed."""
        cdef DriverObject held = self.held
        return 0 if held is None else held.handle

    def close(self) -> None:
        """Lets the driver's object go, once work that was put into streams is past it and no graph has it; again, it
        does nothing."""
        cdef AccessDescriptor rest = AccessDescriptor.__new__(AccessDescriptor)
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        with cython.critical_section(self):
            self.closed = True
            if self.used_on is None:
                self.used_on = {}  # in which a use that is under way notes its stream
            rest.device_index = self.device_index
            rest.held, rest.used_on = self.held, self.used_on
            self.held = None
            deferral = deferral_closed(deferral, <PyObject*>self)
        if deferral is not None:
            defer_release(deferral, NULL, 0, 0, rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> Literal[False]:
        self.close()
        return False


# stub: def copy_box(array: HandledMemory, memory: Array, corner: tuple[int, int, int], size: tuple[int, int, int], layout: tuple[int, int], to_array: bool, blocking: bool, stream: Stream | int | None) -> bool: ...  # no-cython-lint
def copy_box(
    HandledMemory array not None, Array memory not None, tuple corner not None, tuple size not None,
    tuple layout not None, bint to_array, bint blocking, stream: Stream | int | None,
) -> bool:
    """Copies a box between a CUDA array and an Array (cuMemcpy3DAsync), unless that is in ordinary host memory: False.

    Arguments:
        corner, size: ints: bytes, rows and slices, where the box begins in the array, and how large it is.
        layout: ints: bytes from row to row of the memory, and rows from slice to slice.
    """
    cdef Stream worker = stream_for(stream, array.device_index, "the array")
    cdef str call = "copy_from" if to_array else "copy_to"
    cdef ArrayCopy box
    cdef Place* side = &box.src if to_array else &box.dst
    cdef Place* inside = &box.dst if to_array else &box.src
    cdef DriverObject held
    cdef Operand operand
    cdef Access access
    cdef Record record
    cdef int code, kept = False
    read_array(&operand, memory, call, not to_array)
    if not is_asynchronous(&operand):
        return False
    memset(&box, 0, sizeof(ArrayCopy))
    side.kind, side.address, side.pitch, side.lines = PLACE_MEMORY, operand.address, layout[0], layout[1]
    inside.kind, inside.x, inside.y, inside.z = PLACE_ARRAY, corner[0], corner[1], corner[2]
    box.width, box.height, box.depth = size
    if blocking:
        watch.before_wait(call)
    watch.note_access(worker.device_index, worker.handle, operand.address,
                      side.pitch * (side.lines * (box.depth - 1) + box.height - 1) + box.width, "rw"[not to_array], call)
    begin_use_of(&access, operand.source, <PyObject*>array)
    try:
        held = array.held
        array.check_open(call)
        if held is None:
            refuse_unmade(array)
        inside.array = held.handle
        look_again_slow(&operand, memory, call)
        refuse_sleeping(operand.address, call)
        record = record_for(worker)
        if record is not None:
            kept = keep(&operand, None, record)
            array.keep_with(record)
        array.note_stream(worker.handle, None if worker.pooled != NULL else worker)
        with nogil:
            code = registry.active().array_copy(worker.device_index, worker.handle, &box)
        if code:
            raise_status(code, "array_copy", ("array", inside.array, "corner", corner, "size", size, "memory",
                                              operand.address, "layout", layout, "stream", worker.handle))
        note_use(&operand, worker, kept, blocking)
        if blocking:
            access.enqueued = True
            finish(worker, &operand if operand.ordinal < 0 else NULL, memory, array, None, None)
        return True
    finally:
        end_use_of(&access)
