# What keeps things alive until work has passed them: records of captures, late releases, host functions; and the pools of
# streams and events.

# Captures that accelrt began and has not ended.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.guard cimport captures_open, PooledEvent
from accelrt.driver.node_params cimport host_fn

cdef enum:
    PINNED = -1      # page-locked memory of the cache's
    OTHER_HOST = -2  # any other host memory

cdef enum:          # what keep_where_captured answers
    UNCAPTURED = 0  # the stream is in no capture
    KEPT = 1        # it captures for a graph of ours, which keeps the owner
    OTHERS = 2      # it captures for another library, which keeps nothing

cdef class Record:            # of one capture, while it is under way
    cdef uint64_t capture     # the driver's id
    cdef readonly int ordinal
    cdef uintptr_t origin     # the stream that it began on
    cdef list kept            # what its graph will keep alive
    cdef uintptr_t[2] recent  # the objects that came to be kept last; 0: none yet
    cdef AddressMap sources   # those that came before them
    cdef uint64_t[2] pool     # the private pool that it allocates from; 0, 0 for what is no capture's
    cdef set pools            # of (ordinal, id) of the private pools that kept has a PoolUse of; or None
    cdef Record outer         # of the graph that this capture is a body of, whose sources count; or None
    cdef tuple breakage       # once it is broken: the error's text, the row, "file:line", and the function and thread there
    cdef public object random  # where its random numbers begin (accelrt.random); None of other libraries' graphs

    cdef bint find_breakage(self) noexcept

cdef class Side:              # memory that a captured node uses; kept with what keeps it alive
    cdef int ordinal          # of device memory; or PINNED, OTHER_HOST
    cdef uintptr_t address

cdef class Sleeper:           # what a captured node uses and may be put to sleep
    cdef int refuse_asleep(self) except -1  # a replay, while it is

cdef class PoolUse(Sleeper):  # a private pool, memory of which a captured node uses
    cdef int ordinal
    cdef uint64_t[2] id

# other: the record of the graph that this capture is a body of, or None; pool: that it allocates from
cdef Record open_capture(int ordinal, uintptr_t origin, uint64_t capture, list kept, Record other, const uint64_t* pool)
cdef int close_capture(Record record) except -1
# The record of the graph that a stream captures for, or None.  The driver is asked, unless the capture began there.
cdef Record record_on(int device, uintptr_t stream)
# Asks the driver, once.
cdef int keep_where_captured(int device, uintptr_t stream, object owner) except -1
# Keeps what uses memory of an object, with what record_on answered: once an object, and never for memory of the capture's
# own pool, but for what a resource lent of it.  ordinal is -1 for host memory; keeper is what has to be kept rather than
# source, which it holds, or None.
cdef int keep_side_slow(Record record, object source, object keeper, int ordinal, uintptr_t address) except -1
cdef int side_ordinal(int ordinal, uintptr_t address) noexcept  # a Side's; ordinal is -1 of host memory
cdef PoolUse pool_of(int ordinal, uintptr_t address)  # the private pool that the memory is of, or None
# Tells the allocators that a stream uses memory of a Side's ordinal; 1 where it belongs to no allocator of accelrt.
cdef int note_side(int ordinal, uintptr_t address, int device, uintptr_t stream) except -1
# The same of the Sides among what a graph's nodes use; None is nothing.
cdef bint note_sides(list things, int device, uintptr_t stream) except *
cdef str mode_name(int mode)
# What begin_capture_on answered after call began a capture of the stream.
cdef int raise_unbegun(int code, str call, object stream, int mode) except -1
cdef int raise_broken(Record record, int code, str call, tuple arguments) except -1  # at a capture's end


cdef inline bint any_capture() noexcept:
    return captures_open()


cdef inline int keep_side(Record record, PyObject* source, object keeper, int ordinal, uintptr_t address) except -1:
    # Work that repeats uses few objects.
    if record.recent[0] == <uintptr_t>source or record.recent[1] == <uintptr_t>source:
        return 1
    return keep_side_slow(record, <object>source, keeper, ordinal, address)


# Driver objects on their way out: given back now, or when it is safe.
ctypedef void (*draining)() noexcept nogil

cdef enum:  # kinds
    GRAPH = 0
    GRAPH_EXEC = 1
    HOST_REGISTRATION = 2
    EVENT = 3
    CAPTURE = 4  # dispose_capture's
    BODY = 5     # the same, of what is captured into a conditional node
    REPLAYS = 6  # keep_until_passed's
    DEVICE_BYTES = 7  # an address of the caching allocator's
    HOST_BYTES = 8    # of its page-locked memory's
    MODULE = 9
    ARRAY = 10
    TEXTURE = 11
    SURFACE = 12
    MIPMAP = 13

cdef void dispose(int kind, int device, uintptr_t handle) noexcept  # for destructors: never raises, never waits
# The same for a capture that did not end when it was told to, known by its stream and the driver's id; its id is
# 0 where the driver did not say.  kind is CAPTURE or BODY.
cdef void dispose_capture(int kind, int device, uintptr_t stream, uint64_t capture) noexcept
# After the end of each capture of accelrt's: memory that was freed beside it is put behind the work of its streams, which
# their owners may destroy from then on.  Takes the pools' locks, so it is called without the GIL.
cdef void follow_capture() noexcept nogil
# For nogil code, which does its own waiting: each answers the driver's code.
cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil
# out_graph is left alone where the stream is not in that capture any more.
cdef int end_capture(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil
# The same for a capture that is not counted (guard.pxd) any more: NOT_READY where others are open.
cdef int end_capture_again(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil
# Keeps an owner alive until the work that is in a stream now is complete.
cdef void keep_until_passed(int device, uintptr_t stream, object owner) noexcept


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object container)


cdef inline dict add_stream(dict streams, uintptr_t stream, object keeper):
    # A handle, and what keeps its stream or None, to those (or None) that a destructor asks for.  Out of the sight of
    # collections, which would empty the dict before that.
    streams = {} if streams is None else streams
    streams[stream] = keeper
    PyObject_GC_UnTrack(streams)
    return streams


# Objects of the driver's that copies and kernels name by their handles.
cdef class DriverObject:      # given back when it dies
    cdef int kind
    cdef int device
    cdef readonly uintptr_t handle
    cdef object source        # what it is made of, and is to outlive it
    cdef bint borrowed        # others destroy it
    cdef long nbytes          # of an array that accelrt made

cdef int add_array(DriverObject held, dict facts) except -1  # to what reports tell of
cdef long* array_bytes        # of these, by device

cdef class AccessDescriptor:        # what a kernel is told of memory in place of its address, or an array; it may be closed
    cdef readonly object array      # Array or CUDAArray that it is of; None of a CUDAArray itself
    cdef readonly int device_index
    cdef readonly uintptr_t address  # where an Array begins, else 0
    cdef readonly bytes data         # what a kernel gets; None of a CUDAArray
    cdef readonly bint writes  # whether kernels write through it
    cdef DriverObject held    # None where there is none, or it was closed
    cdef bint closed
    cdef dict used_on         # handles of streams -> what keeps them, or None
    cdef object __weakref__

    cdef int check_open(self, str name) except -1
    cdef int note_stream(self, uintptr_t stream, object keeper) except -1  # before work on it names the handle
    cdef int keep_with(self, Record record) except -1  # a graph keeps the driver's object, closed or not
    cdef void let_go(self) noexcept

cdef void drain() noexcept  # tries again what could not be given back
cdef bint any_waits() noexcept  # whether there is something
cdef void drain_too(draining more) noexcept  # and what nogil code could not; one, once and for all


# Python functions in a stream's order.
cdef int enqueue_callback(int device, uintptr_t stream, object function) except -1
# A function that is to be a node of a graph made by hand: what the graph keeps, whose address the node is given, and what
# the node calls.
cdef object node_call(object function, int device, host_fn* out_fn)
cdef object find_call(list kept, const void* address)  # the one with that address, or None
cdef object function_of(object host_call)
cdef list nodes_of(list kept)  # those of what a capture kept that its graph's launches run; empty where none
cdef int begin_runs(list nodes) except -1  # before a launch, which may run them at once
cdef void take_back_runs(list nodes) noexcept  # after a launch that was refused
cdef bint functions_wait() noexcept  # some that were launched from Python have not run yet
cdef int raise_callback_errors() except -1  # what functions raised since it was last asked; several as a group


# The pool of driver streams, for Python's Streams and for nogil code; and the events that either has.
cdef struct PooledStream:  # of one driver stream; both live as long as the process
    uintptr_t handle
    int device
    int priority
    unsigned int flags     # STREAM_NON_BLOCKING or STREAM_BLOCKING
    bint by_handle         # nogil code has it, and returns it by its handle; under the pool's lock
    bint idle              # in the pool; under its lock
    bint used              # others than its Streams may have put work in since it was found idle; under the pool's lock
    int sharers            # Streams made by its id, beside the first holder; under the pool's lock
    PooledStream* next     # in the pool: the one that was returned next

# For Stream, with the GIL: an idle stream, or a new one.  Raises what the driver answers.
cdef PooledStream* take_stream(int device, unsigned int flags, int priority) except NULL
# Its work may still run, where it was used: where anything but the Stream itself had its handle.
cdef void return_stream(PooledStream* stream, bint used) noexcept nogil
# For a Stream made by an id, which returns it as others do.  NULL where it is not of this pool, with INVALID_HANDLE in
# out_code where it is but has no holder.
cdef PooledStream* share_stream(int device, uintptr_t stream, int* out_code) noexcept nogil

# For Event, with the GIL; raises what the driver answers.  fresh: none that was used before.
cdef PooledEvent* take_for_event(int device, unsigned int flags, bint fresh) except NULL
cdef void return_from_event(PooledEvent* event) noexcept

# For nogil code, by handles.  A priority is clamped to what the device has.
cdef int take_handle(int device, int priority, uintptr_t* out_stream) noexcept nogil
cdef int return_handle(int device, uintptr_t stream) noexcept nogil  # INVALID_HANDLE unless take_handle answered it
cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
cdef int return_event_handle(int device, uintptr_t event) noexcept nogil  # INVALID_HANDLE unless it was taken so
# To be called after a record by nogil code while captures are open: an event that was captured is not handed out again.
cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil
