"""Resources of memory: what gives bytes and takes them back, those that stand on another one, and which is current."""
import os
import threading
import traceback
from _thread import get_ident
from collections import namedtuple
from datetime import datetime
from itertools import count as numbers_from
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from libc.stdint cimport INT64_MAX, int64_t, uintptr_t
from libc.stdlib cimport free

from accelrt.allocator.pool cimport add_lent, drop_lent
from accelrt.arrays.array import record_host_stream
from accelrt.arrays.managed import is_managed, prefetch
from accelrt.core.integers cimport checked_address_int, checked_int, exact_int
from accelrt.core.locks cimport begin_turn, end_turn
from accelrt.core.process import open_descriptor
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport (
    GONE, Use, UseStore, drop_use, is_capturing, is_device_lost, mark_use, meaning_of, unmark_use,
)
cimport accelrt.driver.registry as registry
cimport accelrt.runtime.access as watch
from accelrt.driver.table cimport Table
from accelrt.errors import ArgumentError, CudaError, OutOfMemoryError
from accelrt.memory.caching cimport allocate_bytes, checked_size
from accelrt.memory.caching import free_on, views_of_memory
from accelrt.memory.mempool cimport MemPool, allocate_host_bytes, allocate_managed, allocate_pinned_for
from accelrt.memory.mempool import PinnedMemPool, caching_host_allocator_delete, use_mem_pool
from accelrt.runtime.cuda_bindings import open_bindings
from accelrt.status cimport INVALID_CONTEXT, OUT_OF_MEMORY, raise_status, refuse_copy
from accelrt.streams.stream cimport PER_THREAD, Stream, mark_used, stream_for
from accelrt.streams.stream import default_stream

cdef object LARGEST = INT64_MAX  # bytes
cdef object counter = numbers_from(1)
cdef object numbered = threading.local()


cdef object this_thread():
    # A number that no other thread has, nor one that begins when this one ended, as get_ident()'s.
    cdef object number = getattr(numbered, "thread", None)
    if number is None:
        number = numbered.thread = next(counter)
    return number


# --- what every resource is ------------------------------------------------------------------------------------------

cdef int refuse(Resource resource, object nbytes, str why) except -1:
    error = OutOfMemoryError(
        f"out of memory. Tried to allocate {nbytes} bytes from {resource!r}: {why}", OUT_OF_MEMORY, "OUT_OF_MEMORY",
        "allocate",
    )
    error.device, error.requested, error.refused_by = resource.device_index, nbytes, "resource"
    raise error


cdef int tell_unraisable(object error, object where) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(where)
    return 0


def whole_bytes(given: int, str name) -> int:
    """Returns a number of bytes that a caller gave, as int; TypeError or ValueError where it is none."""
    number = exact_int(given, name, "bytes as int")
    if number < 0:
        raise ArgumentError(f"{name} is {number}; a number of bytes is 0 or more")
    return number


cdef object take_from(Resource resource, object nbytes, Stream stream):
    # An address that a class's take() really returned: memory at 0 would be written to.
    cdef object address = resource.take(nbytes, stream)
    if address is None or not address and isinstance(address, int):
        refuse(resource, nbytes, f"its take() returned {address!r}")
    return checked_address_int(address, "the address that take() returned")


cdef int mark_back(object error, object address) noexcept:
    # Tells the adaptors above that what give_back() raises was raised once the memory was back.
    try:
        error._accelrt_back = address
    except Exception:
        pass
    return 0


cdef bint is_back(object error, object address) noexcept:
    try:
        return getattr(error, "_accelrt_back", None) == address
    except Exception:
        return False


cdef list put_off = []  # Allocations and pools whose end has to wait for the end of a capture, or was refused


cdef class Allocation:
    # Bytes that a resource gave, which go back to it with the object: the keeper of a Buffer.
    cdef Resource resource
    cdef Stream stream
    cdef object thread      # whose default stream it is, where it is that
    cdef uintptr_t address
    cdef size_t nbytes
    cdef int tries          # to give it back, which the driver refused
    cdef bint lent          # their uses are recorded by address, for no block stands for them
    cdef UseStore store
    cdef Use* uses
    cdef object __weakref__

    cdef int begin(self) except -1:
        cdef int code
        if self.address and not self.resource.is_cached:
            with nogil:
                code = add_lent(self.address)
            if code:
                raise_status(code, "buffer", ("address", self.address))
            self.lent = True
        return 0

    cdef bint end_uses(self, Stream order) noexcept:
        # Has the memory's stream wait for the others that used it; False where a capture forbids that now.
        cdef Table* table = registry.active()
        cdef uintptr_t stream = order.handle
        cdef int device = order.device_index, code = 0
        with nogil:
            if self.lent and drop_lent(self.address, &self.store, &self.uses) == 0:
                self.lent = False
            while self.uses != NULL and not self.lent:
                if is_capturing(table, device, stream, &code) and code == 0:
                    break
                code = mark_use(table, self.uses)
                if code == 0:
                    code = table.stream_wait_event(device, stream, self.uses.event.handle)
                    unmark_use(table, self.uses)
                if code and meaning_of(code) != GONE and not is_device_lost(code):
                    break
                drop_use(&self.store, &self.uses)
        return self.uses == NULL and not self.lent

    cdef Stream order(self):
        # The handle of a thread's default stream is another stream here; the legacy one is behind it.
        if self.stream.handle == PER_THREAD and self.thread != this_thread():
            return default_stream(self.resource.device_index)
        return self.stream

    cdef int put_off_end(self, int tries) except -1:
        cdef Allocation again = Allocation()  # a destructor runs once
        again.resource, again.stream, again.address, again.nbytes = self.resource, self.stream, self.address, self.nbytes
        again.thread, again.tries = self.thread, tries
        again.lent, again.store, again.uses = self.lent, self.store, self.uses
        self.uses = self.store.spare = NULL
        self.address = 0
        put_off.append(again)
        return 0

    def __del__(self):
        if not self.address:
            return
        order = self.order()
        if not self.end_uses(order):
            self.put_off_end(self.tries)
            return
        try:
            if not self.resource.is_cached:
                watch.note_forgotten(self.address, self.nbytes)  # the cache tells of its own
            self.resource.give_back(self.address, self.nbytes, order)
        except BaseException as error:
            if is_refused(error, self.address) and self.tries < MOST_TRIES:
                self.put_off_end(self.tries + 1)
                return
            tell_unraisable(error, self.resource)
        self.address = 0

    def __dealloc__(self):
        cdef Use* spare = self.store.spare
        while spare != NULL:
            self.store.spare = spare.next
            free(spare)
            spare = self.store.spare

    def __reduce__(self):
        refuse_copy(self, "it owns memory")


cdef bint is_refused(object error, object address) noexcept:
    # By the driver, which may take the memory back when it is asked again.
    return isinstance(error, CudaError) and not is_back(error, address)


cdef int put_off_end(object thing) except -1:
    put_off.append(thing)
    return 0


cdef int end_put_off() except -1:
    cdef list ended
    if put_off:
        ended = put_off[:]
        put_off.clear()
        ended.clear()
    return 0


cdef class Resource:
    """Resource(device=None)\n--\n\n\
    A source of memory of one device: what the kinds of this module have in common, and the base of your own.

        resource = accelrt.resources.PoolResource(accelrt.resources.DeviceResource())
        buffer = resource.buffer(4096)
        address = resource.allocate(4096, stream)
        resource.deallocate(address, 4096, stream)

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: device names none.
    Attributes:
        device_index: int, the device's ordinal.

    A class of your own derives from it and has take(nbytes, stream), which returns an address as int or raises MemoryError,
    and give_back(address, nbytes, stream); nbytes is 1 or more, and stream a Stream of the device.  Both are called from any
    thread, give_back from destructors too.
    """
    def __init__(self, device: DeviceArgument | None = None) -> None:
        self.device_index = ordinal_of(device)
        self.is_cached = type(self) in CACHED

    def allocate(self, nbytes: int, stream: Stream | int | None = None) -> int:
        """Takes memory from the resource.

        Arguments:
            nbytes: int, bytes.
            stream: Stream, handle as int, or None for the current stream: the one in whose order the memory is used.
        Returns:
            int, the address; 0 for 0 bytes, for which the resource is not asked.
        Raises:
            MemoryError: the resource has no room; OutOfMemoryError where it is accelrt that refused.
            ValueError, TypeError: nbytes is negative or no int, or the stream is none of the device's.
        """
        cdef size_t size = checked_size(nbytes, "nbytes")
        cdef Stream order = stream_for(stream, self.device_index, "the memory")
        return take_from(self, size, order) if size else 0

    def deallocate(self, address: int, nbytes: int, stream: Stream | int | None = None) -> None:
        """Gives memory back that allocate() returned.

        Arguments:
            address: int; 0 does nothing.
            nbytes: int, as of allocate().
            stream: Stream, handle as int, or None for the current stream: what was put into it so far may still use the
                memory.  Uses on other streams have to be over, or waited for by this one.
        Raises:
            ValueError: the resource does not have the address.
        """
        cdef size_t size = checked_size(nbytes, "nbytes")
        cdef object place = checked_address_int(address, "address")
        cdef Stream order = stream_for(stream, self.device_index, "the memory")
        if place:
            self.give_back(place, size, order)

    def take(self, nbytes: int, stream: Stream) -> int:
        """Takes memory from where this kind of resource has it: called by allocate(), with arguments that were checked.

        Arguments:
            nbytes: int, bytes, 1 or more.
            stream: Stream of the device.
        Returns:
            int, the address.  0 and None are refused as if there were no room.
        Raises:
            MemoryError: there is no room.
            NotImplementedError: the class does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} has no take(nbytes, stream), which returns an address")

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        """Gives memory back to where it came from: called by deallocate(), with arguments that were checked.

        Arguments:
            address: int, not 0.
            nbytes: int, as of take().
            stream: Stream of the device.
        Raises:
            NotImplementedError: the class does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} has no give_back(address, nbytes, stream)")

    def buffer(self, nbytes: int, stream: Stream | int | None = None) -> Buffer:
        """Makes a Buffer of the resource's memory, which goes back to it with the Buffer.

        Arguments:
            nbytes: int, bytes.
            stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.
        Returns:
            Buffer; Array(buffer, shape, dtype) gives it a shape.
        Raises:
            as allocate().
        """
        cdef Allocation keeper = Allocation()
        end_put_off()
        keeper.nbytes = checked_size(nbytes, "nbytes")
        keeper.stream = stream_for(stream, self.device_index, "the buffer")
        keeper.resource, keeper.thread = self, this_thread()
        if keeper.nbytes:
            keeper.address = take_from(self, keeper.nbytes, keeper.stream)
            keeper.begin()
        return views_of_memory()[0](keeper, self.device_index, keeper.stream, keeper.address, keeper.nbytes)

    def __reduce__(self):
        refuse_copy(self, "it gives memory of this process; make another one")

    def __repr__(self):
        return f"<accelrt.resources.{type(self).__name__} on device {self.device_index}>"


# --- where memory comes from -----------------------------------------------------------------------------------------

cdef class DeviceResource(Resource):
    """DeviceResource(device=None)\n--\n\n\
    Device memory of accelrt's caching allocator, where Buffers have theirs.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: device names none.
    """

    def __init__(self, device: DeviceArgument | None = None) -> None:
        Resource.__init__(self, device)

    def take(self, nbytes: int, stream: Stream) -> int:
        return allocate_bytes(self.device_index, nbytes, mark_used(stream))

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        free_on(address, self.device_index, mark_used(stream))


cdef class ManagedResource(Resource):
    """ManagedResource(device=None)\n--\n\n\
    Managed memory, which the host and every device use at one address (Buffer(n, managed=True)).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: device names none.
        NotSupportedError: by allocate(), where the device has none.
    """

    def __init__(self, device: DeviceArgument | None = None) -> None:
        Resource.__init__(self, device)

    def take(self, nbytes: int, stream: Stream) -> int:
        return allocate_managed(self.device_index, nbytes, mark_used(stream))

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        free_on(address, self.device_index, mark_used(stream))


cdef class PinnedResource(Resource):
    """PinnedResource(device=None, pool=None)\n--\n\n\
    Page-locked host memory, which kernels of every device use at its address.

    Arguments:
        device: int, "cuda:1", ...: whose streams it is used on; None is the current device.
        pool: PinnedMemPool that it comes from; None is the common cache.
    Raises:
        TypeError: pool is none.
    Attributes:
        pool: PinnedMemPool or None.
    """
    cdef readonly object pool

    def __init__(self, device: DeviceArgument | None = None, pool: PinnedMemPool | None = None) -> None:
        Resource.__init__(self, device)
        if pool is not None and not isinstance(pool, PinnedMemPool):
            raise TypeError(f"pool is {pool!r} of type {type(pool).__name__}; pass a PinnedMemPool, or None")
        self.pool = pool

    def take(self, nbytes: int, stream: Stream) -> int:
        if self.pool is None:
            return allocate_host_bytes(self.device_index, nbytes)
        return allocate_pinned_for(self.pool, self.device_index, nbytes, False)

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        record_host_stream(address, stream)
        caching_host_allocator_delete(address)


cdef class MemPoolResource(Resource):
    """MemPoolResource(pool)\n--\n\n\
    Memory of a MemPool: with a limit of its own, managed, of an allocator of yours, able to sleep, as that is.

    Arguments:
        pool: MemPool.
    Raises:
        TypeError: pool is none.
    Attributes:
        pool: MemPool.
    """
    cdef readonly MemPool pool

    def __init__(self, pool: MemPool) -> None:
        if not isinstance(pool, MemPool):
            raise TypeError(f"pool is {pool!r} of type {type(pool).__name__}; pass a MemPool")
        Resource.__init__(self, pool.device)
        self.pool = pool

    def take(self, nbytes: int, stream: Stream) -> int:
        with use_mem_pool(self.pool, self.device_index):
            return allocate_bytes(self.device_index, nbytes, mark_used(stream))

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        free_on(address, self.device_index, mark_used(stream))


cdef class DriverPoolResource(Resource):
    """DriverPoolResource(device=None, *, pool=None)\n--\n\n\
    Device memory of the driver's stream-ordered pools (cuMemAllocAsync): of the device's own, which
    accelrt.memory.DriverPool trims and sets, or of another one that you made.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
        pool: int or an object with __int__, the handle of a pool of that device (CUmemoryPool, cudaMemPool_t), which has to
            live as long as its memory; None is the device's own.
    Raises:
        ValueError, TypeError: device names none, or pool is no handle.
        NotSupportedError: by allocate(), where the driver has no such pool; at once, where pool is given on the host device.
    Attributes:
        pool: int, or None.
    """
    cdef readonly object pool
    cdef object bindings
    cdef object handle

    def __init__(self, device: DeviceArgument | None = None, *, pool: SupportsInt | None = None) -> None:
        Resource.__init__(self, device)
        if pool is None:
            return
        self.bindings = open_bindings(
            "pools of NVIDIA's driver are a GPU's; the host device has none", "DriverPoolResource"
        )
        self.pool = checked_address_int(int(pool), "pool")
        self.handle = self.bindings.CUmemoryPool(self.pool)

    cdef int take_of_pool(self, object nbytes, uintptr_t stream, uintptr_t* out_address) except -1:
        # Compiled calls alone, so that no interruption comes between the memory and its address.
        cdef int code
        status, address = self.bindings.cuMemAllocFromPoolAsync(nbytes, self.handle, stream)
        code = int(status)
        if code == 0:
            out_address[0] = int(address)
        return code

    def take(self, nbytes: int, stream: Stream) -> int:
        cdef uintptr_t address = 0, handle = mark_used(stream)
        cdef size_t size = nbytes
        cdef int device = self.device_index, code
        if self.pool is not None:
            code = self.take_of_pool(nbytes, handle, &address)
            if code == INVALID_CONTEXT:  # the thread has none
                registry.active().set_device(device)
                code = self.take_of_pool(nbytes, handle, &address)
        else:
            with nogil:
                code = registry.active().async_alloc(device, handle, size, &address)
        if code == OUT_OF_MEMORY:
            refuse(self, nbytes, "the driver's pool has no room")
        if code:
            raise_status(code, "async_alloc" if self.pool is None else "cuMemAllocFromPoolAsync",
                         ("device", device, "size", nbytes))
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        cdef uintptr_t place = address, handle = mark_used(stream)
        cdef int device = self.device_index, code
        with nogil:
            code = registry.active().async_free(device, handle, place)
        if code:
            raise_status(code, "async_free", ("device", device, "address", address))


cdef class CallbackResource(Resource):
    """CallbackResource(allocate, deallocate, device=None)\n--\n\n\
    Memory of two functions of yours.

    Arguments:
        allocate: callable(nbytes, stream), with bytes as int and a Stream.  It returns an address as int, and raises
            MemoryError, or returns 0 or None, where it has no memory.
        deallocate: callable(address, nbytes, stream).
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        TypeError: one of them cannot be called.

    What allocate raises is raised: a MemoryError, a RuntimeError and what ends a program as they are, others as the cause of
    a RuntimeError.
    """
    cdef object allocate_function
    cdef object deallocate_function

    def __init__(
        self, allocate: Callable[[int, Stream], int | None], deallocate: Callable[[int, int, Stream], object],
        device: DeviceArgument | None = None,
    ) -> None:
        Resource.__init__(self, device)
        for name, function in (("allocate", allocate), ("deallocate", deallocate)):
            check_callable(name, function)
        self.allocate_function, self.deallocate_function = allocate, deallocate

    def take(self, nbytes: int, stream: Stream) -> int:
        try:
            address = self.allocate_function(nbytes, stream)
        except (MemoryError, RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise RuntimeError(f"the function of {self!r} raised {type(error).__name__}: {error}") from error
        if not address:
            refuse(self, nbytes, f"its function returned {address!r}")
        return checked_address_int(address, "the address that the function returned")

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        self.deallocate_function(address, nbytes, stream)


cdef int check_callable(str name, object function, bint optional=False) except -1:
    if not callable(function) and not (optional and function is None):
        wanted = "a callable, or None" if optional else "a callable"
        raise TypeError(f"{name} is {function!r} of type {type(function).__name__}; pass {wanted}")
    return 0


# --- resources that stand on another one -----------------------------------------------------------------------------

cdef class Adaptor(Resource):
    """Adaptor(upstream)\n--\n\n\
    A resource that stands on another one, to which it passes on what is asked of it: the base of its kinds, and of your own.

    Arguments:
        upstream: Resource.
    Raises:
        TypeError: upstream is none.
    Attributes:
        upstream: Resource.
    """
    def __init__(self, upstream: Resource) -> None:
        if not isinstance(upstream, Resource):
            raise TypeError(f"upstream is {upstream!r} of type {type(upstream).__name__}; pass a Resource")
        self.upstream = upstream
        self.device_index = (<Resource>upstream).device_index
        self.is_cached = (<Resource>upstream).is_cached and type(self) in PASSING

    def take(self, nbytes: int, stream: Stream) -> int:
        return take_from(self.upstream, nbytes, stream)

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        self.upstream.give_back(address, nbytes, stream)

    def __repr__(self):
        return f"<accelrt.resources.{type(self).__name__} on {self.upstream!r}>"


cdef class LimitingAdaptor(Adaptor):
    """LimitingAdaptor(upstream, limit)\n--\n\n\
    A limit to what is allocated from a resource.

    Arguments:
        upstream: Resource.
        limit: int, the most bytes that may be allocated at once.
    Raises:
        TypeError, ValueError: upstream is none, or limit is no int from 0 on.
    Attributes:
        limit: int, bytes.
    """
    cdef readonly int64_t limit
    cdef int64_t taken
    cdef int lock

    def __init__(self, upstream: Resource, limit: int) -> None:
        Adaptor.__init__(self, upstream)
        self.limit = checked_int(limit, "limit", 0, LARGEST, "bytes as int")

    @property
    def allocated_bytes(self) -> int:
        """int: bytes that are allocated now."""
        return self.taken

    cdef bint count(self, int64_t nbytes) noexcept:
        cdef bint fits
        begin_turn(&self.lock)
        fits = nbytes <= 0 or nbytes <= self.limit - self.taken
        if fits:
            self.taken += nbytes
        end_turn(&self.lock)
        return fits

    def take(self, nbytes: int, stream: Stream) -> int:
        cdef int64_t size = nbytes
        if not self.count(size):
            refuse(self, nbytes, f"{self.taken} of {self.limit} bytes are allocated; free some first")
        try:
            return take_from(self.upstream, nbytes, stream)
        except BaseException:
            self.count(-size)
            raise

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        cdef int64_t size = nbytes
        try:
            self.upstream.give_back(address, nbytes, stream)
        except BaseException as error:
            if is_back(error, address):
                self.count(-size)
            raise
        self.count(-size)


cdef str COUNTERS = "current_bytes current_count peak_bytes peak_count total_bytes total_count"


class AllocationCounts(namedtuple("AllocationCounts", COUNTERS)):
    """Figures of a StatisticsAdaptor since its counters began.

    Attributes:
        current_bytes, current_count: int, bytes and allocations that are live now, less what was live before and freed.
        peak_bytes, peak_count: int, the most of them at once.
        total_bytes, total_count: int, of all that was allocated.
    """
    # stub: current_bytes: int
    # stub: current_count: int
    # stub: peak_bytes: int
    # stub: peak_count: int
    # stub: total_bytes: int
    # stub: total_count: int

    __slots__ = ()


cdef struct Counter:
    int64_t current
    int64_t peak
    int64_t total


cdef class Counters:
    cdef Counter size
    cdef Counter number

    def __reduce__(self):
        refuse_copy(self, "it is part of a StatisticsAdaptor")


cdef void add_to(Counter* counter, int64_t current, int64_t peak, int64_t total) noexcept:
    # What inner counters saw, or one allocation: peak is of it alone.
    if counter.current + peak > counter.peak:
        counter.peak = counter.current + peak
    counter.current += current
    counter.total += total


cdef object counts_of(Counters counters):
    return AllocationCounts(
        counters.size.current, counters.number.current, counters.size.peak, counters.number.peak, counters.size.total,
        counters.number.total,
    )


cdef class StatisticsAdaptor(Adaptor):
    """StatisticsAdaptor(upstream)\n--\n\n\
    Figures of what is allocated from a resource, with a stack of counters for parts of a program.

    Arguments:
        upstream: Resource.
    Raises:
        TypeError: upstream is none.
    """
    cdef list stack
    cdef int lock

    def __init__(self, upstream: Resource) -> None:
        Adaptor.__init__(self, upstream)
        self.stack = [Counters()]

    cdef Counters top(self):
        return self.stack[len(self.stack) - 1]

    cdef int count(self, int64_t nbytes, int sign) except -1:
        cdef Counters top = self.top()
        begin_turn(&self.lock)
        add_to(&top.size, sign * nbytes, nbytes if sign > 0 else 0, nbytes if sign > 0 else 0)
        add_to(&top.number, sign, sign > 0, sign > 0)
        end_turn(&self.lock)
        return 0

    @property
    def counts(self) -> AllocationCounts:
        """AllocationCounts: figures of the counters on top of the stack."""
        return counts_of(self.top())

    @property
    def depth(self) -> int:
        """int: how many counters are on the stack; 1 where none was pushed."""
        return len(self.stack)

    def push_counters(self) -> AllocationCounts:
        """Puts new counters on the stack, which begin at 0.

        Returns:
            AllocationCounts: figures of those that were on top before.
        """
        before = counts_of(self.top())
        self.stack.append(Counters())
        return before

    def pop_counters(self) -> AllocationCounts:
        """Takes the counters on top from the stack; those below have from then on what they counted.

        Returns:
            AllocationCounts: their figures.
        Raises:
            IndexError: there is one pair of counters alone.
        """
        cdef Counters top, below
        if len(self.stack) < 2:
            raise IndexError("cannot pop the last counter pair; push_counters() comes before")
        top = self.stack.pop()
        below = self.top()
        begin_turn(&self.lock)
        add_to(&below.size, top.size.current, top.size.peak, top.size.total)
        add_to(&below.number, top.number.current, top.number.peak, top.number.total)
        end_turn(&self.lock)
        return counts_of(top)

    def take(self, nbytes: int, stream: Stream) -> int:
        address = take_from(self.upstream, nbytes, stream)
        self.count(nbytes, 1)
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        try:
            self.upstream.give_back(address, nbytes, stream)
        except BaseException as error:
            if is_back(error, address):
                self.count(nbytes, -1)
            raise
        self.count(nbytes, -1)


class OutstandingAllocation(namedtuple("OutstandingAllocation", ("address", "nbytes", "stack"))):
    """Memory of a TrackingAdaptor that is allocated.

    Attributes:
        address: int.
        nbytes: int, bytes.
        stack: str, where it was allocated, as traceback has it; "" without capture_stacks.
    """
    # stub: address: int
    # stub: nbytes: int
    # stub: stack: str

    __slots__ = ()


cdef class TrackingAdaptor(Adaptor):
    """TrackingAdaptor(upstream, capture_stacks=False)\n--\n\n\
    A list of what is allocated from a resource, with the stacks of the allocations: for leaks.

    Arguments:
        upstream: Resource.
        capture_stacks: bool, whether the stack of each allocation is kept, which takes some microseconds.
    Raises:
        TypeError: upstream is none.
    Attributes:
        capture_stacks: bool.
    """
    cdef readonly bint capture_stacks
    cdef dict live

    def __init__(self, upstream: Resource, bint capture_stacks=False) -> None:
        Adaptor.__init__(self, upstream)
        self.capture_stacks = capture_stacks
        self.live = {}

    @property
    def allocated_bytes(self) -> int:
        """int: bytes that are allocated now."""
        return sum([nbytes for nbytes, _ in list(self.live.values())])

    def outstanding(self) -> list[OutstandingAllocation]:
        """Lists what is allocated now, the oldest first.

        Returns:
            list of OutstandingAllocation: address, nbytes and stack.
        """
        return [
            OutstandingAllocation(address, nbytes, "" if stack is None else "".join(stack.format()))
            for address, (nbytes, stack) in list(self.live.items())
        ]

    def outstanding_text(self) -> str:
        """Writes the same as text: a line for each, with its stack below it.

        Returns:
            str; "" where nothing is allocated.
        """
        return "".join([
            f"{held.address:#x}: {held.nbytes} bytes\n{held.stack}" for held in self.outstanding()
        ])

    def take(self, nbytes: int, stream: Stream) -> int:
        stack = None
        if self.capture_stacks:
            stack = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
            stack.reverse()
        entry = (nbytes, stack)
        address = take_from(self.upstream, nbytes, stream)
        self.live[address] = entry
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        entry = self.live.pop(address, None)  # first: another thread may be given the address at once
        try:
            self.upstream.give_back(address, nbytes, stream)
        except BaseException as error:
            if entry is not None and not is_back(error, address):
                self.live[address] = entry
            raise


cdef class LoggingAdaptor(Adaptor):
    """LoggingAdaptor(upstream, file)\n--\n\n\
    A log of what is allocated from a resource and given back, as text with commas: RMM's, which `accelrt replay` and
    `accelrt tune` read.

    Arguments:
        upstream: Resource.
        file: str or path of a file, which is written anew; or an object with write(text).
    Raises:
        TypeError: upstream is none.
        OSError: the file cannot be written.

    The columns are Thread, Time, Action, Pointer, Size and Stream.  A line is written when the memory was given, refused or
    given back, without a buffer of its own.
    """
    cdef object descriptor
    cdef object file

    def __init__(self, upstream: Resource, file: str | os.PathLike[str] | TextIO) -> None:
        Adaptor.__init__(self, upstream)
        if hasattr(file, "write"):
            self.file = file
        else:
            self.descriptor = open_descriptor(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        self.log("Thread,Time,Action,Pointer,Size,Stream\n")

    cdef int log(self, str line) except -1:
        if self.file is not None:
            self.file.write(line)
        else:
            os.write(self.descriptor.fileno(), line.encode())
        return 0

    cdef str line(self, str action, object address, object nbytes, Stream stream):
        cdef str when = f"{datetime.now():%H:%M:%S:%f}"
        return f"{get_ident()},{when},{action},{address:#x},{nbytes},{mark_used(stream):#x}\n"

    def take(self, nbytes: int, stream: Stream) -> int:
        try:
            address = take_from(self.upstream, nbytes, stream)
        except MemoryError:
            self.log(self.line("allocate failure", 0, nbytes, stream))
            raise
        try:
            self.log(self.line("allocate", address, nbytes, stream))
        except BaseException:
            self.upstream.give_back(address, nbytes, stream)
            raise
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        try:  # first: another thread may be given the address at once
            self.log(self.line("free", address, nbytes, stream))
        except BaseException as error:
            self.upstream.give_back(address, nbytes, stream)
            mark_back(error, address)
            raise
        self.upstream.give_back(address, nbytes, stream)


cdef class FailureCallbackAdaptor(Adaptor):
    """FailureCallbackAdaptor(upstream, callback)\n--\n\n\
    A function that is asked before a request fails, and may make room.

    Arguments:
        upstream: Resource.
        callback: callable(nbytes), called where upstream raised MemoryError.  Where it returns True upstream is asked again;
            else the error is raised.  What it raises the allocation raises.
    Raises:
        TypeError: upstream is none, or callback cannot be called.
    Attributes:
        callback: callable.
    """
    cdef readonly object callback

    def __init__(self, upstream: Resource, callback: Callable[[int], bool]) -> None:
        Adaptor.__init__(self, upstream)
        check_callable("callback", callback)
        self.callback = callback

    def take(self, nbytes: int, stream: Stream) -> int:
        while True:
            try:
                return take_from(self.upstream, nbytes, stream)
            except MemoryError:
                if not self.callback(nbytes):
                    raise


cdef class PrefetchAdaptor(Adaptor):
    """PrefetchAdaptor(upstream)\n--\n\n\
    Managed memory that goes to the device as it is allocated, in the stream's order (accelrt.memory.prefetch).

    Arguments:
        upstream: Resource.  Memory that is not managed passes as it is.
    Raises:
        TypeError: upstream is none.
    """

    def __init__(self, upstream: Resource) -> None:
        Adaptor.__init__(self, upstream)

    def take(self, nbytes: int, stream: Stream) -> int:
        address = take_from(self.upstream, nbytes, stream)
        try:
            view = views_of_memory()[0](self, self.device_index, stream, address, nbytes)
            if is_managed(view):
                prefetch(view, stream=stream)
        except BaseException:
            self.upstream.give_back(address, nbytes, stream)
            raise
        return address


cdef class HooksAdaptor(Adaptor):
    """HooksAdaptor(upstream, *, before_allocate=None, after_allocate=None, before_deallocate=None,
    after_deallocate=None)\n--\n\n\
    Functions that are called before and after what is asked of a resource; accelrt.memory.AllocationHooks are those of
    accelrt's own allocator.

    Arguments:
        upstream: Resource.
        before_allocate: callable(nbytes, stream).  What it raises the allocation raises.
        after_allocate: callable(address, nbytes, stream).  What it raises the allocation raises, and the memory goes back.
        before_deallocate, after_deallocate: callable(address, nbytes, stream).  What they raise is raised once the memory is
            back.
    Raises:
        TypeError: upstream is none, or one of them cannot be called.
    """
    cdef readonly object before_allocate
    cdef readonly object after_allocate
    cdef readonly object before_deallocate
    cdef readonly object after_deallocate

    def __init__(
        self, upstream: Resource, *, before_allocate: Callable[[int, Stream], object] | None = None,
        after_allocate: Callable[[int, int, Stream], object] | None = None,
        before_deallocate: Callable[[int, int, Stream], object] | None = None,
        after_deallocate: Callable[[int, int, Stream], object] | None = None,
    ) -> None:
        Adaptor.__init__(self, upstream)
        for name, function in (("before_allocate", before_allocate), ("after_allocate", after_allocate),
                               ("before_deallocate", before_deallocate), ("after_deallocate", after_deallocate)):
            check_callable(name, function, True)
        self.before_allocate, self.after_allocate = before_allocate, after_allocate
        self.before_deallocate, self.after_deallocate = before_deallocate, after_deallocate

    def take(self, nbytes: int, stream: Stream) -> int:
        if self.before_allocate is not None:
            self.before_allocate(nbytes, stream)
        address = take_from(self.upstream, nbytes, stream)
        try:
            if self.after_allocate is not None:
                self.after_allocate(address, nbytes, stream)
        except BaseException:
            self.upstream.give_back(address, nbytes, stream)
            raise
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        try:
            if self.before_deallocate is not None:
                self.before_deallocate(address, nbytes, stream)
        except BaseException as error:
            self.upstream.give_back(address, nbytes, stream)
            mark_back(error, address)
            raise
        self.upstream.give_back(address, nbytes, stream)
        try:
            if self.after_deallocate is not None:
                self.after_deallocate(address, nbytes, stream)
        except BaseException as error:
            mark_back(error, address)
            raise


# Classes whose memory is the caching allocator's, block by block, and adaptors that hand it on as it is.
cdef frozenset CACHED = frozenset((DeviceResource, ManagedResource, MemPoolResource))
cdef frozenset PASSING = frozenset((
    Adaptor, LimitingAdaptor, StatisticsAdaptor, TrackingAdaptor, LoggingAdaptor, FailureCallbackAdaptor, PrefetchAdaptor,
    HooksAdaptor,
))


# --- the current resource --------------------------------------------------------------------------------------------

cdef dict of_devices = {}           # ordinal -> Resource of the process
cdef object entered = threading.local()  # .stack: [Resource] of use_resource


cdef list entered_here():
    return getattr(entered, "stack", None) or []


cdef Resource checked_resource(object resource):
    if not isinstance(resource, Resource):
        raise TypeError(f"resource is {resource!r} of type {type(resource).__name__}; pass a Resource")
    return resource


def current_resource(device: DeviceArgument | None = None) -> Resource:
    """Returns the resource that is current for a device: what DeviceBuffers come from that are told of no other.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        Resource: the innermost use_resource() of the thread, else that of set_current_resource(), else a DeviceResource.
    """
    cdef int ordinal = ordinal_of(device)
    for resource in reversed(entered_here()):
        if (<Resource>resource).device_index == ordinal:
            return resource
    found = of_devices.get(ordinal)
    return of_devices.setdefault(ordinal, DeviceResource(ordinal)) if found is None else found


def set_current_resource(resource: Resource | None, device: DeviceArgument | None = None) -> None:
    """Makes a resource current for its device, on all threads.

    Arguments:
        resource: Resource; None is a DeviceResource again.
        device: int, "cuda:1", ...: where resource is None the device that is meant; else it has to be the resource's.  None
            is the resource's, or the current one.
    Raises:
        TypeError: resource is none.
        ValueError: it is of another device, or the thread is in use_resource() for that device, whose end would undo it.

    What is allocated keeps the resource that it came from.
    """
    cdef int ordinal
    if resource is None:
        ordinal = ordinal_of(device)
    else:
        ordinal = checked_resource(resource).device_index
        if device is not None and ordinal_of(device) != ordinal:
            raise ArgumentError(f"resource is {resource!r}; it is of device {ordinal}, not of {device!r}")
    if any([(<Resource>inner).device_index == ordinal for inner in entered_here()]):
        raise ArgumentError(f"the thread is in use_resource() for device {ordinal}; leave it, or enter another one inside")
    of_devices[ordinal] = DeviceResource(ordinal) if resource is None else resource


cdef class use_resource:
    """use_resource(resource)\n--\n\n\
    The context in which a resource is current for its device on the calling thread.

        with accelrt.resources.use_resource(resource):
            buffer = accelrt.resources.DeviceBuffer(4096)

    Arguments:
        resource: Resource.
    Raises:
        TypeError: resource is none.
        RuntimeError: it is left where it is not the innermost one.
    """
    cdef Resource resource
    cdef object __weakref__

    def __init__(self, resource: Resource) -> None:
        self.resource = checked_resource(resource)

    def __enter__(self) -> Resource:
        if self.resource is None:
            raise RuntimeError("this use_resource() has no resource; make it with one: use_resource(resource)")
        if getattr(entered, "stack", None) is None:
            entered.stack = []
        entered.stack.append(self.resource)
        return self.resource

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        cdef list stack = entered_here()
        if not stack or stack[len(stack) - 1] is not self.resource:
            raise RuntimeError("use_resource() is left where it is not the innermost one of the thread")
        stack.pop()
        return False

    def __reduce__(self):
        refuse_copy(self, "it is of one thread; make another one of the same resource")
