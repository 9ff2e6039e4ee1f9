"""Resources of memory: what gives bytes and takes them back, those that stand on another one, and pools."""
cimport cython
import os
import traceback
from _thread import allocate_lock, get_ident
from bisect import bisect_left, insort
from datetime import datetime
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from libc.stdint cimport INT64_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport strcmp

from accelrt.allocator.heaps cimport thread_number
from accelrt.allocator.pool cimport add_lent, drop_lent
from accelrt.allocator.readers cimport add_pooled, end_pooled, PoolMemory, take_pooled
from accelrt.arrays.array import record_host_stream
from accelrt.arrays.managed import is_managed, prefetch
from accelrt.core.integers cimport checked_address_int, checked_int
from accelrt.core.locks cimport begin_turn, end_turn
from accelrt.core.process import open_descriptor
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport (
    GONE, Use, UseStore, drop_use, is_capturing, is_device_lost, mark_use, meaning_of, unmark_use,
)
cimport accelrt.driver.registry as registry
cimport accelrt.runtime.access as watch
from accelrt.driver.memory cimport KIND_DEVICE, KIND_HOST, KIND_MANAGED
from accelrt.driver.registry import driver_name
from accelrt.driver.table cimport Table
from accelrt.errors import ArgumentError, CudaError
from accelrt.memory.caching cimport allocate_bytes, checked_size
from accelrt.memory.caching import free_on, views_of_memory
from accelrt.memory.driver_pool import DriverPool
from accelrt.memory.mempool cimport MemPool, allocate_host_bytes, allocate_managed, allocate_pinned_for
from accelrt.memory.mempool import PinnedMemPool, caching_host_allocator_delete, use_mem_pool
from accelrt.resources.checks import check_callable, is_back, mark_back, refuse
from accelrt.resources.figures import AllocationCounts, OutstandingAllocation
from accelrt.runtime.access import free_in_pool, free_put_off
from accelrt.runtime.lifetimes cimport any_capture
from accelrt.status cimport CAPTURE_UNSUPPORTED, FORKED, OUT_OF_MEMORY, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport LEGACY, PER_THREAD, Stream, mark_used, stream_for
from accelrt.streams.stream import default_stream

cdef object LARGEST = INT64_MAX  # bytes
cdef int MOST_TRIES = 8  # how often what the driver refuses to take back is tried again


# --- what every resource is ------------------------------------------------------------------------------------------

cdef void tell_unraisable(object error, object where) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(where)


cdef bint is_inherited() noexcept:
    # Whether this is a child of a fork: memory, and what a pool knows of it, are the parent's.
    return strcmp(registry.active().name, b"forked") == 0


cdef object take_from(Resource resource, object nbytes, Stream stream):
    # An address that a class's take() really returned: memory at 0 would be written to.
    cdef object address = resource.take(nbytes, stream) if resource.is_made else refuse_unmade(resource)
    if address is None or not address and isinstance(address, int):
        refuse(resource, nbytes, f"its take() returned {address!r}")
    return checked_address_int(address, "the address that take() returned")


cdef list put_off = []  # Allocations and pools whose end has to wait for the end of a capture, or was refused


@cython.no_gc  # else a collection gives the memory back before a finaliser that uses the Buffer; now it ends behind that
cdef class Allocation:
    # Bytes that a resource gave, which go back to it with the object: the keeper of a Buffer.
    cdef Resource resource
    cdef Stream stream
    cdef uint64_t thread    # whose default stream it is, where it is that
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
        if self.stream.handle == PER_THREAD and self.thread != thread_number():
            return default_stream(self.resource.device_index)
        return self.stream

    cdef object put_off_end(self, int tries):
        cdef Allocation again = Allocation()  # a destructor runs once
        again.resource, again.stream, again.address, again.nbytes = self.resource, self.stream, self.address, self.nbytes
        again.thread, again.tries, again.lent = self.thread, tries, self.lent
        again.store, again.uses = self.store, self.uses
        self.uses = self.store.spare = NULL
        self.address = 0
        put_off.append(again)

    def __del__(self):
        if not self.address or is_inherited():
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
            if isinstance(error, CudaError) and not is_back(error, self.address) and self.tries < MOST_TRIES:
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

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns memory")


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
    and give_back(address, nbytes, stream), both called from any thread, this one from destructors too; nbytes is 1 or more.
    """
    def __init__(self, device: DeviceArgument | None = None) -> None:
        begin_making(self, None)
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
        keeper.resource, keeper.thread = self, thread_number()
        if keeper.nbytes:
            keeper.address = take_from(self, keeper.nbytes, keeper.stream)
            keeper.begin()
        return views_of_memory()[0](keeper, self.device_index, keeper.stream, keeper.address, keeper.nbytes)

    def __reduce__(self) -> NoReturn:
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
    """DriverPoolResource(device=None, *, pool=None, managed=False)\n--\n\n\
    Memory of the driver's stream-ordered pools (cuMemAllocAsync): of the device's own, which accelrt.memory.DriverPool trims
    and sets, or of another one.  It is counted and told as a DriverPool's is; of a pool by its handle as device memory.

    Arguments:
        device: int, "cuda:1", ...; None is the current device, or pool's.
        pool: DriverPool; or an int or an object with __int__, the handle of a pool of that device (CUmemoryPool,
            cudaMemPool_t), which has to live as long as its memory; None is the device's own.
        managed: bool, whether it is the device's own pool of managed memory (CUDA 13.0).
    Raises:
        ValueError, TypeError: device names none, or pool is no handle, of another device, or another process's.
        NotSupportedError: by allocate(), where the driver has no such pool.
    Attributes:
        pool: DriverPool, int, or None.
        managed: bool.
    """
    cdef readonly object pool
    cdef readonly bint managed
    cdef object handle  # of a pool that is not the device's own; or None
    cdef int kind       # KIND_ of its memory

    def __init__(
        self, device: DeviceArgument | None = None, *, pool: DriverPool | SupportsInt | None = None, bint managed=False,
    ) -> None:
        cdef bint is_ours = isinstance(pool, DriverPool)
        Resource.__init__(self, pool.device_index if is_ours and device is None else device)
        if managed and pool is not None:
            raise ArgumentError("managed is of the device's own pool; pass DriverPool(managed=True) as pool, or neither")
        self.managed = pool.managed if is_ours else managed
        self.kind = KIND_MANAGED if self.managed else KIND_HOST if is_ours and pool.pinned else KIND_DEVICE
        if is_ours:
            if pool.device_index != self.device_index:
                raise ArgumentError(f"pool is of device {pool.device_index}, the resource of {self.device_index}")
            if pool.is_mapped:
                raise ArgumentError("pool is another process's, which alone allocates from it")
            self.pool, self.handle = pool, pool.handle if pool.is_made or pool.pinned else None
        elif pool is not None:
            self.pool = self.handle = checked_address_int(int(pool), "pool")

    def take(self, nbytes: int, stream: Stream) -> int:
        free_put_off()
        if self.handle is None or self.pool is self.handle:
            return self.take_from(self.handle or 0, nbytes, stream)
        return self.pool.with_handle(lambda handle: self.take_from(handle, nbytes, stream))

    cdef object take_from(self, uintptr_t pool, object nbytes, Stream stream):
        cdef Table* table = registry.active()
        cdef uintptr_t address = 0, handle = mark_used(stream)
        cdef size_t size = nbytes
        cdef bint is_of_managed = self.managed
        # A GPU's captures would have an allocation of the graph's in place of managed memory.
        cdef int device = self.device_index
        cdef int code = CAPTURE_UNSUPPORTED if is_of_managed and pool and stream.is_capturing else 0
        with nogil:
            if code == 0 and pool:
                code = table.pool_alloc(device, handle, pool, size, &address)
            elif code == 0 and is_of_managed:
                code = table.managed_pool_alloc(device, handle, size, &address)
            elif code == 0:
                code = table.async_alloc(device, handle, size, &address)
        if code == OUT_OF_MEMORY:
            refuse(self, nbytes, "the driver's pool has no room")
        if code:
            raise_status(code, "pool_alloc" if pool else "managed_pool_alloc" if self.managed else "async_alloc",
                         ("device", device, "size", nbytes))
        add_pooled(device, self.kind, address, size, handle)
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        cdef uintptr_t place = address, handle = mark_used(stream)
        cdef int device = self.device_index, code
        cdef PoolMemory* record
        if self.managed or driver_name() != "cuda":  # a GPU's captures take the other pools' memory
            code = free_in_pool(device, stream, address)  # later, where the stream is captured
        else:
            record = take_pooled(place)
            with nogil:
                code = registry.active().async_free(device, handle, place)
            end_pooled(record, code == 0)
        if code:
            raise_status(code, "async_free", ("device", device, "address", address))


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
        begin_making(self, upstream)
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
            self.count(-size if is_back(error, address) else 0)
            raise
        self.count(-size)


cdef struct Counter:
    int64_t current
    int64_t peak
    int64_t total


cdef class Part:
    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is a part of a resource")


# stub: class Counters(Part):
cdef class Counters(Part):
    cdef Counter size
    cdef Counter number


cdef void add_to(Counter* counter, int64_t current, int64_t peak, int64_t total) noexcept:
    # What inner counters saw, or one allocation: peak is of it alone.
    if counter.current + peak > counter.peak:
        counter.peak = counter.current + peak
    counter.current += current
    counter.total += total


cdef object counts_of(Counters counters):
    cdef Counter size = counters.size, number = counters.number
    return AllocationCounts(size.current, number.current, size.peak, number.peak, size.total, number.total)


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
        return "".join([f"{held.address:#x}: {held.nbytes} bytes\n{held.stack}" for held in self.outstanding()])

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
        return f"{get_ident()},{datetime.now():%H:%M:%S:%f},{action},{address:#x},{nbytes},{mark_used(stream):#x}\n"

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
        upstream: Resource.  Memory that is not managed passes as it is, and in a capture, which takes no prefetch, all does.
    Raises:
        TypeError: upstream is none.
    """

    def __init__(self, upstream: Resource) -> None:
        Adaptor.__init__(self, upstream)

    def take(self, nbytes: int, stream: Stream) -> int:
        address = take_from(self.upstream, nbytes, stream)
        try:
            view = views_of_memory()[0](self, self.device_index, stream, address, nbytes)
            if is_managed(view) and not is_captured(stream):
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


# --- pools ------------------------------------------------------------------------------------------------------------

# stub: class Chunk(Part):
cdef class Chunk(Part):  # memory that a pool took from upstream in one call
    cdef object address
    cdef object size
    cdef object live   # bytes that are allocated of it
    cdef Block first

    def __cinit__(self, address=0, size=0):
        self.address, self.size, self.live, self.first = address, size, 0, Block(self, address, size)


# stub: class Block(Part):
cdef class Block(Part):  # a run of a chunk: allocated, or free in one arena
    cdef object address
    cdef object size
    cdef Chunk chunk
    cdef Block before
    cdef Block behind
    cdef Arena arena   # None while it is allocated

    def __cinit__(self, Chunk chunk=None, address=0, size=0):
        self.chunk, self.address, self.size = chunk, address, size


# stub: class Arena(Part):
cdef class Arena(Part):  # the free blocks in the order of one stream; stream None is memory that no work uses
    cdef Stream stream
    cdef object event  # behind what was freed there, of a stream that may be gone by the time when that matters; or None
    cdef list free     # (size, address), ascending
    cdef dict blocks   # address -> Block

    def __cinit__(self, Stream stream=None):
        self.stream, self.free, self.blocks = stream, [], {}

    cdef int add(self, Block block) except -1:
        block.arena = self
        self.blocks[block.address] = block
        insort(self.free, (block.size, block.address))
        return 0

    cdef int remove(self, Block block) except -1:
        block.arena = None
        del self.blocks[block.address]
        del self.free[bisect_left(self.free, (block.size, block.address))]
        return 0

    cdef Block fit(self, object size):
        cdef Py_ssize_t index = bisect_left(self.free, (size, 0))
        return self.blocks[self.free[index][1]] if index < len(self.free) else None


cdef bint is_lasting(Stream stream):  # others destroy theirs, and a thread's default stream ends with it
    return stream.pooled != NULL or stream.handle == LEGACY


cdef int split(Block block, object size) except -1:
    # Cuts what is more than size off a block that is in no arena, into one that its caller places.
    cdef Block rest = Block(block.chunk, block.address + size, block.size - size)
    rest.before, rest.behind = block, block.behind
    if rest.behind is not None:
        rest.behind.before = rest
    block.behind, block.size = rest, size
    return 0


cdef int join(Block block) except -1:
    # With the next one, which is in no arena either.
    cdef Block gone = block.behind
    block.size += gone.size
    block.behind = gone.behind
    if block.behind is not None:
        block.behind.before = block
    gone.before = gone.behind = None
    return 0


cdef bint has_to_wait(list arenas):
    # Whether a chunk goes back behind other streams than one that lasts.
    return len(arenas) > 1 or len(arenas) == 1 and not is_lasting((<Arena>arenas[0]).stream)


cdef class PoolResource(Adaptor):
    """PoolResource(upstream=None, initial=0, maximum=None, *, unit=512)\n--\n\n\
    A pool on any resource: it takes chunks, cuts blocks from them and keeps what comes back.

        pool = accelrt.resources.PoolResource(accelrt.resources.ManagedResource(), maximum=1 << 30)

    Arguments:
        upstream: Resource; None is a DeviceResource of the current device.
        initial: int, bytes to take at once.  The current stream is waited for then.
        maximum: int, the most bytes to have from upstream; None is no limit.
        unit: int, bytes: sizes are rounded up to multiples of it, and so far from its chunk's start each block begins.
    Raises:
        TypeError, ValueError: an argument is none of these; initial is more than maximum.
        MemoryError: upstream has no room for initial.
    Attributes:
        unit: int.

    Memory that comes back on a stream is that stream's at once, and another stream's where upstream or the maximum leave no
    other way: that one then waits for the former.  In captures nothing goes from a stream to another.  A request that
    upstream refuses gives it idle chunks back before it fails.  Accelrt's own memory is as fast without this pool.
    """
    cdef readonly object unit
    cdef object growth      # the least bytes to take from upstream
    cdef object most        # bytes to have at most, or None
    cdef int64_t total      # bytes of all chunks, and of those that are being taken
    cdef int64_t live_bytes
    cdef int lock           # of total
    cdef dict chunks        # address -> Chunk
    cdef dict live          # address -> Block
    cdef dict arenas        # key of a stream -> Arena
    # What comes while the turn is another's: (None, address, Stream, thread, Event or None), or a Chunk, its size and so on.
    cdef list arrivals
    cdef int tries          # to give chunks back at the end
    cdef object turn        # a lock, held while the tables change, and around nothing that runs Python code
    cdef object holder      # the thread that has the turn

    def __init__(
        self, upstream: Resource | None = None, initial: int = 0, maximum: int | None = None, *, unit: int = 512,
    ) -> None:
        Adaptor.__init__(self, DeviceResource() if upstream is None else upstream)
        self.unit = self.growth = checked_int(unit, "unit", 1, LARGEST, "bytes as int")
        self.total = self.live_bytes = 0
        self.chunks, self.live, self.arenas, self.arrivals, self.turn = {}, {}, {}, [], allocate_lock()
        self.limit = maximum
        size = self.rounded(checked_int(initial, "initial", 0, LARGEST, "bytes as int"))
        if maximum is not None and size > maximum:
            rounded = "" if size == initial else f", rounded to {size} by a unit of {unit} bytes,"
            raise ArgumentError(f"Initial pool size exceeds the maximum pool size: {initial}{rounded} is more than {maximum}"
                                " bytes")
        if initial:
            self.reserve(size)

    cdef int reserve(self, object size) except -1:
        cdef Stream stream = stream_for(None, self.device_index, "the pool")
        cdef Chunk chunk
        self.claim(size)
        try:
            chunk = Chunk(0, size)
            chunk.address = chunk.first.address = take_from(self.upstream, size, stream)
        except BaseException:
            self.claim(-size)
            raise
        self.chunks[chunk.address] = chunk
        self.arena_of(None, 0).add(chunk.first)
        stream.synchronize()
        return 0

    cdef bint claim(self, int64_t nbytes) except -1:
        # Counts bytes that are about to be taken from upstream, unless they are too many; or, below 0, that went back.
        cdef int64_t most = INT64_MAX if self.most is None else self.most
        cdef bint fits
        begin_turn(&self.lock)
        fits = nbytes <= 0 or nbytes <= most - self.total
        if fits:
            self.total += nbytes
        end_turn(&self.lock)
        return fits

    @property
    def limit(self) -> int | None:
        """int: the most bytes to have from upstream; None is no limit.  It can be set; what there is stays."""
        return self.most

    @limit.setter
    def limit(self, nbytes: int | None) -> None:
        self.most = None if nbytes is None else checked_int(nbytes, "the limit", 0, LARGEST, "bytes as int, or None")

    @property
    def used_bytes(self) -> int:
        """int: bytes that are allocated, as they were rounded."""
        self.settle()
        return self.live_bytes

    @property
    def free_bytes(self) -> int:
        """int: bytes that the pool has and that are not allocated."""
        self.settle()
        return self.total - self.live_bytes

    @property
    def total_bytes(self) -> int:
        """int: bytes that the pool has from upstream."""
        return self.total

    @property
    def free_blocks(self) -> int:
        """int: how many blocks are free."""
        self.settle()
        return sum([len((<Arena>arena).free) for arena in list(self.arenas.values())])

    def rounded(self, nbytes: int) -> int:
        """Returns the bytes that a request takes of the pool.

        Arguments:
            nbytes: int, bytes.
        """
        return -(-nbytes // self.unit) * self.unit

    def release(self, stream: Stream | int | None = None) -> int:
        """Gives chunks of which nothing is allocated back to upstream.

        Arguments:
            stream: Stream or handle as int, whose free memory alone goes back; None is all.
        Returns:
            int, bytes.
        Raises:
            Exception: what upstream raises first, once it was given all of them; such a chunk is gone from the pool.
        """
        cdef Stream only = None if stream is None else stream_for(stream, self.device_index, "the memory")
        cdef Chunk chunk
        cdef object nbytes = 0, refusal = None
        end_put_off()
        for chunk, order in self.idle_chunks(only):
            nbytes += chunk.size
            try:
                self.upstream.give_back(chunk.address, chunk.size, order)
            except BaseException as error:
                refusal = error if refusal is None else refusal
        if refusal is not None:
            raise refusal
        return nbytes

    def take(self, nbytes: int, stream: Stream) -> int:
        cdef object size = self.rounded(nbytes), address
        cdef Block block
        cdef Chunk chunk = Chunk(0, 0)
        if self.enter():
            try:
                self.absorb()
                block = self.find(size, stream)
                if block is not None:
                    return self.hand_out(block, size)
            finally:
                self.leave()
        address = self.grow(chunk, size, stream)
        if address:
            return address
        if self.enter():  # the last resort: what other streams freed
            try:
                self.absorb()
                block = self.take_over(size, stream)
                if block is not None:
                    return self.hand_out(block, size)
            finally:
                self.leave()
        refuse(self, nbytes, f"the pool has {self.total} bytes, of which {self.live_bytes} are allocated, and a limit of "
               f"{self.most}, or its upstream has no room")

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        if address not in self.live and not self.arrivals:
            raise ArgumentError(f"{address:#x} is not allocated from {self!r}")
        event = None
        if not is_lasting(stream) and not any_capture():
            try:
                event = stream.record_event()
            except CudaError:
                pass  # the legacy default stream, or this one, is asked when somebody has to wait
        self.arrivals.append((None, address, stream, thread_number(), event))
        self.settle()

    def __del__(self):
        self.end()

    def __dealloc__(self):
        self.end()  # of what was taken behind the finaliser, which runs once, where another object's had kept the pool

    cdef object end(self):
        # Chunks of which something is still allocated by address go too, for nobody could give that back.
        cdef PoolResource again
        cdef Chunk chunk
        if self.turn is None or is_inherited():
            return
        self.settle()
        for chunk in list(self.chunks.values()):
            if has_to_wait(self.arenas_of(chunk)) and any_capture():
                continue
            try:
                self.upstream.give_back(chunk.address, chunk.size, self.order_of(chunk))
            except BaseException as error:
                if isinstance(error, CudaError) and not is_back(error, chunk.address) and self.tries < MOST_TRIES:
                    continue
                tell_unraisable(error, self)
            del self.chunks[chunk.address]
        if self.chunks:
            again = PoolResource.__new__(PoolResource)  # a destructor runs once
            again.upstream, again.device_index, again.turn = self.upstream, self.device_index, self.turn
            again.chunks, again.arrivals, again.tries = self.chunks, [], self.tries + (not any_capture())
            put_off.append(again)
        self.chunks, self.arenas, self.total, self.live_bytes = {}, {}, 0, 0

    # The turn.  A destructor that runs in the midst of it finds it taken, and leaves what it brings in arrivals, which the
    # holder looks through at the end; an allocation there takes a chunk of its own.

    cdef bint enter(self) except -1:
        if is_inherited():  # where a thread of the parent's may have the turn, and may have left the tables half changed
            raise_status(FORKED, "PoolResource")
        if self.turn.acquire(False):
            self.holder = get_ident()
            return True
        if self.holder == get_ident():
            return False
        self.turn.acquire()
        self.holder = get_ident()
        return True

    cdef int leave(self) except -1:
        self.holder = None
        self.turn.release()
        self.settle()
        return 0

    cdef int settle(self) except -1:
        while self.arrivals and not is_inherited() and self.turn.acquire(False):
            self.holder = get_ident()
            try:
                self.absorb()
            finally:
                self.holder = None
                self.turn.release()
        return 0

    cdef int absorb(self) except -1:
        cdef Block block
        cdef Arena arena
        while self.arrivals:
            chunk, second, stream, thread, event = self.arrivals.pop(0)
            arena = self.arena_of(<Stream>stream, thread)
            if chunk is not None:
                self.chunks[(<Chunk>chunk).address] = chunk
                self.hand_out_of((<Chunk>chunk).first, second, arena)  # the first bytes of it are allocated
                continue
            block = self.live.pop(second, None)
            if block is not None and self.chunks.get(block.chunk.address) is block.chunk:  # else it was given back before
                arena.event = event
                self.put(block, arena)
        return 0

    # With the turn.

    cdef Arena arena_of(self, Stream stream, object thread):
        cdef object key = None
        if stream is not None:
            key = (stream.handle, thread if stream.handle == PER_THREAD else 0)
        if key not in self.arenas:
            self.arenas[key] = Arena(stream)
        return self.arenas[key]

    cdef Block find(self, object size, Stream stream):
        cdef Block block = None
        if not is_captured(stream):  # a graph may run elsewhere, before the work on the stream that used what is free there
            block = self.arena_of(stream, thread_number()).fit(size)
            if block is None and stream.handle == PER_THREAD:  # what comes there is behind the legacy default stream
                block = self.arena_of(default_stream(self.device_index), 0).fit(size)
        return self.arena_of(None, 0).fit(size) if block is None else block

    cdef object hand_out(self, Block block, object size):
        cdef Arena arena = block.arena
        arena.remove(block)
        return self.hand_out_of(block, size, arena)

    cdef object hand_out_of(self, Block block, object size, Arena arena):
        if block.size > size:
            split(block, size)
            arena.add(block.behind)
        self.live[block.address] = block
        block.chunk.live += size
        self.live_bytes += size
        return block.address

    cdef int put(self, Block block, Arena arena) except -1:
        block.chunk.live -= block.size
        self.live_bytes -= block.size
        if block.behind is not None and block.behind.arena is arena:
            arena.remove(block.behind)
            join(block)
        if block.before is not None and block.before.arena is arena:
            block = block.before
            arena.remove(block)
            join(block)
        arena.add(block)
        return 0

    cdef list arenas_of(self, Chunk chunk):
        # Behind whose streams' work the free blocks of a chunk are.
        cdef Block block = chunk.first
        cdef list arenas = []
        while block is not None:
            if block.arena is not None and block.arena.stream is not None and block.arena not in arenas:
                arenas.append(block.arena)
            block = block.behind
        return arenas

    cdef Stream order_of(self, Chunk chunk):
        # A stream behind whose work all of an idle chunk is.
        cdef list arenas = self.arenas_of(chunk)
        if arenas and not has_to_wait(arenas):
            return (<Arena>arenas[0]).stream
        return self.after(arenas, default_stream(self.device_index))

    cdef Stream after(self, list arenas, Stream later):
        cdef Arena arena
        cdef Stream stream
        for arena in arenas:
            event, stream = arena.event, arena.stream
            if event is None and stream.handle == PER_THREAD:  # it may be another thread's; the legacy one is behind it
                stream = default_stream(self.device_index)
            if event is None and stream.handle == later.handle:
                continue
            try:
                event = stream.record_event() if event is None else event
            except CudaError as error:
                if meaning_of(error.code) != GONE:  # a stream that its owner destroyed uses nothing
                    raise
                continue
            later.wait_event(event)
        return later

    cdef Block whole(self, Chunk chunk):
        # An idle chunk as one block that is in no arena.
        cdef Block block = chunk.first
        while block is not None:
            block.arena.remove(block)
            block = block.behind
        while chunk.first.behind is not None:
            join(chunk.first)
        return chunk.first

    cdef list idle_chunks(self, Stream only):
        # Takes them out of the tables, with the streams on which they go back.
        cdef list idle = []
        cdef Chunk chunk
        if not self.enter():
            return idle
        try:
            self.absorb()
            for chunk in list(self.chunks.values()):
                arenas = self.arenas_of(chunk)
                if chunk.live or has_to_wait(arenas) and any_capture():
                    continue
                if only is not None and (len(arenas) != 1 or (<Arena>arenas[0]).stream != only):
                    continue
                idle.append((chunk, self.order_of(chunk)))
            for chunk, _ in idle:  # behind the last step that may be refused
                self.whole(chunk)
                del self.chunks[chunk.address]
                self.claim(-chunk.size)
        finally:
            self.leave()
        return idle

    cdef Block take_over(self, object size, Stream stream):
        # A block that another stream freed, behind whose work this one waits; in the stream's own arena.
        cdef Arena arena, mine = self.arena_of(stream, thread_number())
        cdef Chunk chunk
        cdef Block block
        if any_capture():
            return None
        for arena in list(self.arenas.values()):
            block = arena.fit(size)
            if block is not None:
                self.after([arena] if arena is not mine and arena.stream is not None else [], stream)
                arena.remove(block)
                mine.add(block)
                return block
        for chunk in list(self.chunks.values()):
            if not chunk.live and chunk.size >= size:
                self.after(self.arenas_of(chunk), stream)
                mine.add(self.whole(chunk))
                return chunk.first
        return None

    # Without the turn.

    cdef object grow(self, Chunk chunk, object size, Stream stream):
        # An address of a chunk that is new, or 0 where upstream or the limit leave no room.
        cdef object wanted = max(size, self.growth)
        while True:
            if self.claim(wanted):
                try:
                    chunk.address = take_from(self.upstream, wanted, stream)
                except BaseException as error:
                    self.claim(-wanted)
                    if not isinstance(error, MemoryError):
                        raise
                else:
                    chunk.size, chunk.first.size, chunk.first.address = wanted, wanted, chunk.address
                    self.arrivals.append((chunk, size, stream, thread_number(), None))
                    self.settle()
                    return chunk.address
            if not self.release():
                return 0


cdef class FixedSizeResource(PoolResource):
    """FixedSizeResource(upstream=None, block_size=1048576, blocks=128)\n--\n\n\
    Blocks of one size, which it takes from upstream many at a time: any request up to the size gets one.

    Arguments:
        upstream: Resource; None is a DeviceResource of the current device.
        block_size: int, bytes, rounded up so that blocks begin at multiples of 256, small ones at multiples of their size.
        blocks: int, how many to take at once, the first ones when it is made.
    Raises:
        TypeError, ValueError: an argument is none of these.
        MemoryError: upstream has no room for the first blocks.
    """

    def __init__(self, upstream: Resource | None = None, block_size: int = 1048576, blocks: int = 128) -> None:
        size = aligned(checked_int(block_size, "block_size", 1, LARGEST - ALIGNMENT, "bytes as int"))
        number = checked_int(blocks, "blocks", 1, LARGEST // size, "a number as int")
        PoolResource.__init__(self, upstream, size * number, unit=size)
        self.growth = size * number

    @property
    def block_size(self) -> int:
        """int: bytes of a block."""
        return self.unit

    def take(self, nbytes: int, stream: Stream) -> int:
        if nbytes > self.unit:
            refuse(self, nbytes, f"its blocks have {self.unit} bytes")
        return PoolResource.take(self, nbytes, stream)


cdef class BinningResource(Adaptor):
    """BinningResource(upstream, smallest=None, largest=None)\n--\n\n\
    Resources by size: a request goes to the bin of the least size that has room for it, and one that is larger than all bins
    to upstream.

    Arguments:
        upstream: Resource, which the bins that it makes itself stand on too.
        smallest, largest: int, exponents: bins of 2**smallest, 2**(smallest + 1), ... 2**largest bytes, each a
            FixedSizeResource.  None, both of them, makes none.
    Raises:
        TypeError, ValueError: upstream is none, or the exponents are no ints from 0 to 62, smallest first.
    """
    cdef list sizes     # of the bins, ascending
    cdef dict bins      # size -> Resource
    cdef dict sources   # address that is allocated -> Resource that it came from

    def __init__(self, upstream: Resource, smallest: int | None = None, largest: int | None = None) -> None:
        Adaptor.__init__(self, upstream)
        self.sizes, self.bins, self.sources = [], {}, {}
        if smallest is None and largest is None:
            return
        least = checked_int(smallest, "smallest", 0, 62, "an exponent as int, or neither")
        for exponent in range(least, checked_int(largest, "largest", least, 62, "an exponent as int, or neither") + 1):
            self.add_bin(1 << exponent)

    def add_bin(self, nbytes: int, resource: Resource | None = None) -> None:
        """Adds a bin, in place of one of the same size.

        Arguments:
            nbytes: int, the largest request that goes to it.
            resource: Resource of the same device; None makes a FixedSizeResource on upstream.
        Raises:
            TypeError, ValueError: nbytes is no int from 1 on, or resource is none, or of another device.
        """
        size = checked_int(nbytes, "nbytes", 1, LARGEST, "bytes as int")
        if resource is None:
            resource = FixedSizeResource(self.upstream, size, 1)
        if not isinstance(resource, Resource):
            raise TypeError(f"resource is {resource!r} of type {type(resource).__name__}; pass a Resource, or None")
        if (<Resource>resource).device_index != self.device_index:
            raise ArgumentError(f"resource is {resource!r}; the bins are of device {self.device_index}")
        self.bins[size] = resource
        if size not in self.sizes:
            insort(self.sizes, size)

    def resource_for(self, nbytes: int) -> Resource:
        """Returns the resource that a request goes to: a bin's, or upstream.

        Arguments:
            nbytes: int, bytes.
        """
        cdef Py_ssize_t index = bisect_left(self.sizes, nbytes)
        return self.bins[self.sizes[index]] if index < len(self.sizes) else self.upstream

    def take(self, nbytes: int, stream: Stream) -> int:
        source = self.resource_for(nbytes)
        address = take_from(source, nbytes, stream)
        self.sources[address] = source
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        source = self.sources.pop(address, None)
        if source is None:
            raise ArgumentError(f"{address:#x} is not allocated from {self!r}")
        try:
            source.give_back(address, nbytes, stream)
        except BaseException as error:
            if not is_back(error, address):
                self.sources[address] = source
            raise


# Classes whose memory is the caching allocator's, block by block, and adaptors that hand it on as it is.
cdef frozenset CACHED = frozenset((DeviceResource, ManagedResource, MemPoolResource))
cdef frozenset PASSING = frozenset((
    Adaptor, LimitingAdaptor, StatisticsAdaptor, TrackingAdaptor, LoggingAdaptor, FailureCallbackAdaptor, PrefetchAdaptor,
    HooksAdaptor))
