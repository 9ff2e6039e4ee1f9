"""DriverPool: the driver's own stream-ordered pools, of a device's memory, of managed and of page-locked
memory; and pools that are made here, whose memory other processes may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from accelrt.core.process import Owned, close_answer, take_file
from accelrt.devices.device import device_ordinal, memory_place
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError, not_supported, refuse_copy
from accelrt.memory.caching import views_of_memory
from accelrt.memory.ipc_handles import IPCAllocationHandle, IPCBufferDescriptor, with_file
from accelrt.runtime.access import PoolBlock, destroy_pool, free_put_off
from accelrt.status import status_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, Self

    from accelrt.annotations import DeviceArgument
    from accelrt.streams.stream import Stream

_T = TypeVar("_T")

INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED, CAPTURE_UNSUPPORTED = 1, 2, 801, 900
HOST, NODE = 2, 3  # CUmemLocationType of a pool of page-locked memory: wherever, and a NUMA node
NOWHERE = (0, 0)  # of one of managed memory
PINNED_KIND, DEVICE_KIND, MANAGED_KIND = 1, 2, 3  # KIND_ numbers of driver/memory.pxd
HOST_NUMA_ID = 134  # CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
# CUmemPool_attribute (CUDA driver API): name -> number.
ATTRIBUTES = {
    "reuse_follow_event_dependencies": 1,
    "reuse_allow_opportunistic": 2,
    "reuse_allow_internal_dependencies": 3,
    "release_threshold": 4,
    "reserved_mem_current": 5,
    "reserved_mem_high": 6,
    "used_mem_current": 7,
    "used_mem_high": 8,
}
ACCESS = {"none": 0, "r": 1, "rw": 3}
NAMES = {number: name for name, number in ACCESS.items()}


def read(pool: DriverPool, name: str) -> int:
    code, value = pool._call("get", ATTRIBUTES[name])
    if code:
        raise pool.error(code, "pool_get", name)
    return bool(value) if name.startswith("reuse_") else int(value)


def write(pool: DriverPool, name: str, value: int) -> None:
    if not isinstance(value, int) or value < 0 or value >> 64:
        raise ValueError(f"{name} is {value!r}; pass an int from 0 to 2**64 - 1, or a bool")
    if name.endswith("_high") and value:
        raise ValueError(f"{name} is {value}; it is set to 0, which begins it anew at what there is")
    code = pool._call("set", ATTRIBUTES[name], int(value))
    if code:
        raise pool.error(code, "pool_set", name)


class DriverMemory(PoolBlock):
    """Memory of a driver's pool, made by DriverPool.allocate; given back when it dies, or by free().

    Page-locked memory has the buffer protocol: numpy.frombuffer(memory, dtype) is an array on it.

    Attributes:
        device_index: int, the ordinal of the stream's device.
        nbytes: int.
        stream: Stream, in whose order it came and goes back.
        managed: bool, whether it is managed memory, which the host uses too.
        pinned: bool, whether it is page-locked memory.
        is_mapped: bool, whether it is another process's, which from_ipc_descriptor opened.
        is_ipc_enabled: bool, whether other processes may have it.
    """

    __slots__ = ("is_ipc_enabled",)

    is_ipc_enabled: bool
    stream: Stream

    def __init__(self, pool: DriverPool, nbytes: int, stream: Stream, is_mapped: bool = False) -> None:
        if not isinstance(pool, DriverPool):
            raise ArgumentTypeError(
                f"pool is of type {type(pool).__name__}; memory is made by DriverPool.allocate()"
            )
        super().__init__(
            stream.device_index, stream, pool._owned, nbytes, pool.pinned, pool.managed, is_mapped
        )
        self.is_ipc_enabled = pool.is_ipc_enabled

    @classmethod
    def from_ipc_descriptor(
        cls, pool: DriverPool, descriptor: IPCBufferDescriptor, stream: Stream | int | None = None
    ) -> DriverMemory:
        """Opens memory that another process allocated from its pool (cuMemPoolImportPointer).

        Arguments:
            pool: DriverPool, that process's, as from_allocation_handle made it here.
            descriptor: IPCBufferDescriptor, which that process took of the memory.
            stream: Stream of the device, or a handle as int, in whose order it is given back; None is its
                current one.
        Returns:
            DriverMemory, on the same bytes.  It is used once the allocation is over in the other process's
            stream, and freed here before it is freed there.
        Raises:
            ValueError: pool is not another process's, stream is of another device, or the descriptor says
                more bytes than the allocation has, as far as the driver tells.
            TypeError: one of them is none.
            CudaError: the driver refused: the memory was freed, or is of another pool.
        """
        if not isinstance(descriptor, IPCBufferDescriptor):
            raise ArgumentTypeError(
                f"descriptor is of type {type(descriptor).__name__}; pass what ipc_descriptor gave"
            )
        if not isinstance(pool, DriverPool):
            raise ArgumentTypeError(f"pool is of type {type(pool).__name__}; pass a DriverPool")
        if not pool.is_mapped:
            raise ArgumentError(
                "pool is this process's own; pass the one that DriverPool.from_allocation_handle made of the "
                "other process's handle"
            )
        memory = cls(pool, descriptor.nbytes, pool._stream(stream), True)
        row, device = Rows().pool_pointer_import, memory.device_index
        code = pool.with_handle(lambda handle: memory._take(row, device, handle, descriptor.payload))
        if code:
            raise status_error(code, "pool_pointer_import", ("device", device, "size", descriptor.nbytes))
        code, start, size = memory._find_range()
        room = start + size - memory.ptr
        if code == 0 and size and descriptor.nbytes > room:
            memory.free()
            raise ArgumentError(
                f"descriptor says {descriptor.nbytes} bytes, and the allocation has {room}; pass it as the "
                "other process made it"
            )
        return memory

    @property
    def ipc_descriptor(self) -> IPCBufferDescriptor:
        """The value by which another process opens the memory beside the pool (cuMemPoolExportPointer).

        Raises:
            ValueError: the memory was given back, is another process's, or its pool is not ipc_enabled.
            CudaError: the driver refused.
        """
        if self.is_mapped:
            raise ArgumentError(
                f"{self!r} is another process's, which alone hands it on; ask there for its descriptor"
            )
        if not self.is_ipc_enabled:
            raise ArgumentError(f"{self!r} is of a pool that is not ipc_enabled; no process opens it")
        code, payload = Rows().pool_pointer_export(self.device_index, self.ptr)
        if code:
            raise status_error(code, "pool_pointer_export", ("address", self.ptr))
        return IPCBufferDescriptor(payload, self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as other libraries take them: the CUDA Array Interface, version 3."""
        layout = {"shape": (self.nbytes,), "typestr": "|u1", "strides": None, "version": 3}
        return {**layout, "data": (self.ptr, False), "stream": self.stream.handle or 1}

    def _array(self) -> Any:
        asarray = views_of_memory()[2]
        return asarray(self, device="cpu" if self.pinned else self.device_index, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the type of its device and the ordinal, as DLPack numbers them."""
        device: tuple[int, int] = self._array().__dlpack_device__()
        return device

    def __dlpack__(self, **arguments: Any) -> object:
        """Returns the bytes as a DLPack capsule, as accelrt.Array.__dlpack__ does.

        Arguments:
            arguments: stream, max_version, dl_device and copy, as there.
        """
        return self._array().__dlpack__(**arguments)

    def __enter__(self) -> DriverMemory:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns memory; allocate more")

    def __repr__(self) -> str:
        state = ", given back" if self._is_freed else ""
        kind = ", managed" if self.managed else ", pinned" if self.pinned else ""
        kind += ", mapped" if self.is_mapped else ""
        return f"<accelrt.memory.DriverMemory {self.nbytes} bytes{kind}, device {self.device_index}{state}>"


NO_OWN_PINNED = (
    "the driver has no pool of page-locked memory of its own, which those of CUDA 13.0 and later have; make "
    "one, with numa_node= or max_size="
)
NO_OWN_MANAGED = "the driver has no pool of managed memory, which those of CUDA 13.0 and later have"
NO_PLACE = {
    HOST: "the driver takes pools of page-locked memory of a NUMA node alone; pass numa_node=",
    NODE: "the system has no such node of memory, or the driver no such pool; see /sys/devices/system/node",
}
opened_own: bool = False  # whether every device uses the driver's own pool of page-locked memory


def check_node(numa_node: int) -> int:
    if isinstance(numa_node, bool) or not isinstance(numa_node, int) or not 0 <= numa_node < 1 << 16:
        raise ArgumentError(
            f"numa_node is {numa_node!r}; pass the number of a node of the host's memory, from 0 on"
        )
    return numa_node


def nearest_node(device: int) -> int:
    code, node = Rows().device_attribute(device, HOST_NUMA_ID)
    if code or node < 0:
        raise not_supported(
            f"the driver names no node of the host's memory near device {device}; pass numa_node=, 0 say",
            "device_attribute",
        )
    return int(node)


def open_to_devices(pool: DriverPool) -> None:
    """Has every device use a pool's page-locked memory, as it uses all other; the process's own is opened
    once, so that it stays as it was set.  A device that cannot is left out, unless it is the pool's."""
    global opened_own
    if pool._owned is None and opened_own:
        return
    for device in range(Rows().device_count()[1]):
        code = pool._call("access_set", device, ACCESS["rw"])
        if code and device == pool.device_index:
            raise pool.error(code, "pool_access_set", "access")
    opened_own = opened_own or pool._owned is None


@dataclass(init=False)
class DriverPool:
    """The pool of a device that cuMemAllocAsync allocates from, as the backend "cudaMallocAsync" does; or the
    one of managed memory that prefers the device, or of page-locked memory (CUDA 13.0); or one that is made
    here, with a limit or a place of its own, or whose memory other processes may have.

        pool = accelrt.memory.DriverPool()
        pool.release_threshold = 1 << 30     # bytes that it keeps when a stream is waited for
        pool.trim_to(0)

        shared = accelrt.memory.DriverPool(ipc_enabled=True)
        memory = shared.allocate(4096)
        connection.send((shared.allocation_handle, memory.ipc_descriptor))
        # and in the other process
        handle, descriptor = connection.recv()
        pool = accelrt.memory.DriverPool.from_allocation_handle(handle)
        memory = accelrt.memory.DriverMemory.from_ipc_descriptor(pool, descriptor)

        staging = accelrt.memory.DriverPool(pinned=True, numa_node=0, max_size=1 << 30)
        numpy.frombuffer(staging.allocate(4096), "float32")

    Other libraries of the process use the same pool, but for one that is made here.  The memory is no part of
    what accelrt reserved, nor of figures by tag: attributes() has the driver's figures.  What allocate() gave
    is counted (memory_stats()["driver_pool_bytes"]), told by reports, also since a mark, by ACCELRT_LEAKS and
    refusals of memory, and in the history: "pool_alloc" and "pool_free", and of page-locked memory, where
    record_history(record_pinned_host_memory=True) records it, as the cache's.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
        managed: bool, whether it is one of managed memory: the device's own, or with the next one a new one.
        preferred_location: where managed memory of a new one had better be: a device, "cpu", "cpu:1" for a
            node of the host's memory, or "none" for no such place.
        pinned: bool, whether it is one of page-locked memory, which streams of every device order, and every
            device uses unless set_access() says else: the process's own, or with any of the next three a new
            one.
        numa_node: int, the node of the host's memory of a new one; None is wherever the system puts it, or
            where ipc_enabled is given the one that is nearest to the device.
        ipc_enabled: bool, whether it is a new pool whose memory other processes may have.
        max_size: int, bytes that a new pool, of no managed memory, has at most, which NVIDIA's driver rounds
            up to a multiple of 32 MiB (580.159.04); 0 is the driver's choice.
    Attributes:
        device_index: int, the ordinal of the device.
        managed, pinned: bool.
        numa_node: int or None.
        preferred_location: as it was given; None for the device's own.
        max_size: int.
        handle: int, the driver's (CUmemoryPool).
        is_ipc_enabled: bool, whether other processes may have its memory.
        is_mapped: bool, whether it is another process's.
    Raises:
        ValueError: managed excludes pinned, ipc_enabled and max_size; numa_node is no int from 0 on, or not
            of page-locked memory; preferred_location is no place, or not of managed memory; max_size is no
            int from 0 on.
        NotSupportedError: the driver has no such pool.
        CudaError: the driver refused; the system has no such node.

    A pool that was made here is destroyed by close(), or when the last that names it goes; its memory stays
    until it is freed.
    """

    device_index: int
    managed: bool = False
    pinned: bool = False
    numa_node: int | None = None
    preferred_location: DeviceArgument | None = None
    max_size: int = 0
    handle: int = 0
    is_ipc_enabled: bool = False
    is_mapped: bool = False

    @property
    def reuse_follow_event_dependencies(self) -> int:
        """Tells whether a stream that waits for another's event reuses its frees.

        Raises:
            ValueError: what is assigned is no int from 0 to 2**64 - 1, and no bool.
        """
        return read(self, "reuse_follow_event_dependencies")

    @reuse_follow_event_dependencies.setter
    def reuse_follow_event_dependencies(self, value: int) -> None:
        write(self, "reuse_follow_event_dependencies", value)

    @property
    def reuse_allow_opportunistic(self) -> int:
        """Tells whether frees are reused whose stream is seen to be past them.

        Raises:
            as of reuse_follow_event_dependencies.
        """
        return read(self, "reuse_allow_opportunistic")

    @reuse_allow_opportunistic.setter
    def reuse_allow_opportunistic(self, value: int) -> None:
        write(self, "reuse_allow_opportunistic", value)

    @property
    def reuse_allow_internal_dependencies(self) -> int:
        """Tells whether the driver may make a stream wait for another's free.

        Raises:
            as of reuse_follow_event_dependencies.
        """
        return read(self, "reuse_allow_internal_dependencies")

    @reuse_allow_internal_dependencies.setter
    def reuse_allow_internal_dependencies(self, value: int) -> None:
        write(self, "reuse_allow_internal_dependencies", value)

    @property
    def release_threshold(self) -> int:
        """The bytes that the pool keeps when a stream, an event or a device is waited for.

        Raises:
            as of reuse_follow_event_dependencies.
        """
        return read(self, "release_threshold")

    @release_threshold.setter
    def release_threshold(self, value: int) -> None:
        write(self, "release_threshold", value)

    @property
    def reserved_mem_high(self) -> int:
        """The peak of reserved bytes; 0 begins it anew.

        Raises:
            ValueError: what is assigned is not 0.
        """
        return read(self, "reserved_mem_high")

    @reserved_mem_high.setter
    def reserved_mem_high(self, value: int) -> None:
        write(self, "reserved_mem_high", value)

    @property
    def used_mem_high(self) -> int:
        """The peak of allocated bytes; 0 begins it anew.

        Raises:
            as of reserved_mem_high.
        """
        return read(self, "used_mem_high")

    @used_mem_high.setter
    def used_mem_high(self, value: int) -> None:
        write(self, "used_mem_high", value)

    def __init__(
        self,
        device: DeviceArgument | None = None,
        *,
        managed: bool = False,
        preferred_location: DeviceArgument | None = None,
        pinned: bool = False,
        numa_node: int | None = None,
        ipc_enabled: bool = False,
        max_size: int = 0,
    ) -> None:
        if managed and (ipc_enabled or max_size):
            raise ArgumentError(
                "no pool of managed memory is for other processes, or has a limit; pass managed alone, or "
                "ipc_enabled and max_size"
            )
        if preferred_location is not None and not managed:
            raise ArgumentError("preferred_location is of managed memory; pass managed=True too")
        if managed and pinned:
            raise ArgumentError("memory is managed or page-locked; pass managed or pinned")
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 0 or max_size >> 60:
            raise ArgumentError(f"max_size is {max_size!r}; pass bytes as int, or 0 for the driver's choice")
        if numa_node is not None and not pinned:
            raise ArgumentError("numa_node is of a pool of page-locked memory; pass pinned=True too")
        self.device_index = device_ordinal(device)
        self.managed, self.pinned, self.max_size = bool(managed), bool(pinned), int(max_size)
        self.numa_node = None if numa_node is None else check_node(numa_node)
        self.preferred_location = preferred_location
        self.is_ipc_enabled = bool(ipc_enabled)
        self._owned: Owned[tuple[int, int]] | None = None
        facts: tuple[object, ...]
        if pinned:
            self._make_pinned()
        elif preferred_location is not None:
            kind, place = NOWHERE if preferred_location == "none" else memory_place(preferred_location)
            facts = ("device", self.device_index, "preferred_location", preferred_location)
            self._own("managed_pool_create", self.device_index, kind, place, facts=facts)
        elif ipc_enabled or max_size:
            most, shared = self.max_size, self.is_ipc_enabled
            facts = ("device", self.device_index, "max_size", most, "ipc_enabled", shared)
            self._own("pool_create", self.device_index, most, shared, facts=facts)
        else:
            self._find_own(MANAGED_KIND if managed else DEVICE_KIND, NO_OWN_MANAGED if managed else "")

    def _make_pinned(self) -> None:
        if self.numa_node is None and self.is_ipc_enabled:
            self.numa_node = nearest_node(self.device_index)
        if self.numa_node is None and not self.max_size:
            self._find_own(PINNED_KIND, NO_OWN_PINNED)
        else:
            node, kind = (0, HOST) if self.numa_node is None else (self.numa_node, NODE)
            most, shared = self.max_size, self.is_ipc_enabled
            facts = ("numa_node", self.numa_node, "max_size", most, "ipc_enabled", shared)
            self._own("pinned_pool_create", kind, node, most, shared, facts=facts, invalid=NO_PLACE[kind])
        open_to_devices(self)

    def _find_own(self, kind: int, lack: str) -> None:
        code, self.handle = Rows().default_pool(self.device_index, kind)
        if code == NOT_SUPPORTED and lack:
            raise not_supported(lack, "default_pool")
        if code:
            raise status_error(code, "default_pool", ("device", self.device_index))

    @classmethod
    def from_allocation_handle(
        cls, handle: IPCAllocationHandle | int, device: DeviceArgument | None = None
    ) -> Self:
        """Opens a pool that another process made (cuMemPoolImportFromShareableHandle).

        Arguments:
            handle: IPCAllocationHandle, or the number of a file descriptor of this process's.
            device: int, "cuda:1", ...: the device of the pool, by its number here; None is the current one.
        Returns:
            DriverPool, which gives no memory; DriverMemory.from_ipc_descriptor opens the other process's.  Of
            a mere file descriptor only the memory tells whether it is page-locked.
        Raises:
            TypeError, ValueError: handle is neither, or was closed.
            CudaError: the driver refused: it is no pool's.
        """
        pool = cls(device)
        place = pool.device_index
        with_file(
            handle, lambda file: pool._own("pool_import", place, file, facts=("device", place, "file", file))
        )
        pool.is_mapped = pool.is_ipc_enabled = True
        pool.pinned = isinstance(handle, IPCAllocationHandle) and handle.pinned
        if pool.pinned:
            open_to_devices(pool)
        return pool

    def _own(self, row: str, *arguments: int, facts: tuple[object, ...], invalid: str = "") -> None:
        """Takes a handle from a row, which goes back with the last that names it.

        Arguments:
            facts: names and values, by turns, that an error has.
            invalid: what the status INVALID_VALUE means.
        """
        owned = Owned(getattr(Rows(), row), arguments, destroy_pool)
        assert owned.value is not None
        code, self.handle = owned.value
        if code:
            raise status_error(code, row, facts, invalid if code == INVALID_VALUE else "")
        self._owned = owned

    def open_handle(self) -> int:
        """Returns the driver's handle (CUmemoryPool).

        Raises:
            ValueError: it was closed.
        """
        return self.with_handle(int)

    def with_handle(self, call: Callable[[int], _T]) -> _T:
        """Calls a function with the driver's handle.

        Arguments:
            call: callable of one argument; where close() comes beside it, the pool goes at its end.
        Returns:
            what it answers.
        Raises:
            ValueError: it was closed.
        """
        if self._owned is not None:
            with self._owned.hold() as owned:
                if owned is not None:
                    return call(owned[1])
            raise ArgumentError("the pool was closed; make another one")
        return call(self.handle)

    def _call(self, name: str, *arguments: int) -> Any:
        row = getattr(Rows(), f"pool_{name}")
        return self.with_handle(lambda handle: row(handle, *arguments))

    def _stream(self, stream: Stream | int | None) -> Stream:
        from accelrt.streams.stream import Stream, current_stream

        here = self.device_index
        chosen = current_stream(here) if stream is None else Stream.from_any(stream, here)
        if chosen.device_index != self.device_index and not self.pinned:
            raise ValueError(f"stream is of device {chosen.device_index}, the pool of {self.device_index}")
        return chosen

    @property
    def allocation_handle(self) -> IPCAllocationHandle:
        """The file descriptor by which another process opens the pool, and which multiprocessing sends.

        Raises:
            ValueError: the pool is not ipc_enabled, is another process's, or was closed.
            CudaError: the driver refused.
        """
        if not self.is_ipc_enabled:
            raise ArgumentError("the pool is not ipc_enabled; make one with DriverPool(ipc_enabled=True)")
        if self.is_mapped:
            raise ArgumentError(
                "the pool is another process's, which alone hands it on; ask there for its handle"
            )
        owned = self.with_handle(lambda handle: Owned(take_file, (Rows().pool_export, handle), close_answer))
        assert owned.value is not None
        if owned.value[0]:
            raise status_error(owned.value[0], "pool_export", ("pool", self.handle))
        return IPCAllocationHandle._of(owned, self.pinned)

    def close(self) -> None:
        """Destroys a pool that was made here, or lets go of another process's; memory stays until freed.

        Again it does nothing, nor for a pool of the device's own.  Beside a call by another thread that goes
        on, and the pool goes at its end.
        """
        if self._owned is not None:
            self._owned.close()

    @property
    def is_made(self) -> bool:
        """Tells whether it was made here: it is neither the device's or the process's own nor another's."""
        return self._owned is not None and not self.is_mapped

    def __hash__(self) -> int:
        return hash((self.device_index, self.managed, self.handle))  # pools are equal where all fields are

    def __enter__(self) -> DriverPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def reserved_mem_current(self) -> int:
        """The bytes that the pool has of the device."""
        return read(self, "reserved_mem_current")

    @property
    def used_mem_current(self) -> int:
        """The bytes that are allocated."""
        return read(self, "used_mem_current")

    def attributes(self) -> dict[str, int]:
        """Returns all attributes, by their names (CUmemPool_attribute in lower case)."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def trim_to(self, nbytes: int = 0) -> None:
        """Gives idle memory back to the device, but for so many bytes (cuMemPoolTrimTo).

        Memory that was freed counts as idle once its stream was waited for.

        Arguments:
            nbytes: int, what the pool may keep.
        Raises:
            ValueError: nbytes is no int from 0 on.
            CudaError: the driver refused.
        """
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0 or nbytes >> 63:
            raise ValueError(f"nbytes is {nbytes!r}; pass bytes as int, 0 or more")
        free_put_off()
        code = self._call("trim", self.device_index, 0, nbytes)
        if code:
            raise self.error(code, "pool_trim", "trim_to")

    def allocate(self, nbytes: int, stream: Stream | int | None = None) -> DriverMemory:
        """Allocates memory in a stream's order (cuMemAllocFromPoolAsync).

        Arguments:
            nbytes: int, 1 or more.
            stream: Stream of the device, or a handle as int; None is its current one.
        Returns:
            DriverMemory, which copies, fills and, where it is managed, memory.prefetch take.  Other streams
            use it behind an event, and are done with it before it is freed.  The host uses page-locked memory
            once the stream was waited for, since its addresses may have been another allocation's.
        Raises:
            ValueError: nbytes is no int from 1 on; stream is of another device, but for page-locked memory,
                which those of every device order; or the pool is another process's, or was closed.
            TypeError: stream is no Stream.
            OutOfMemoryError: the driver has no memory.
            CaptureError: the stream is captured.
            NotSupportedError: the driver has no such pool.
        """
        if self.is_mapped:
            raise ArgumentError("the pool is another process's, which alone allocates from it")
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1 or nbytes >> 63:
            raise ValueError(f"nbytes is {nbytes!r}; pass bytes as int, 1 or more")
        chosen = self._stream(stream)
        free_put_off()
        memory = DriverMemory(self, nbytes, chosen)
        device, order, row = chosen.device_index, chosen.handle, Rows().pool_alloc
        # Only the host's row refuses a capture, which a GPU's has allocate memory of the graph's instead.
        code = CAPTURE_UNSUPPORTED
        if not chosen.is_capturing:
            code = self.with_handle(lambda handle: memory._take(row, device, order, handle, nbytes))
        if code:
            meaning = self._lack() if code == OUT_OF_MEMORY else ""
            raise status_error(code, "pool_alloc", ("device", device, "size", nbytes), meaning)
        return memory

    def _lack(self) -> str:
        """Says what the pool has, and what may help, where it refused a request."""
        code, used = self._call("get", ATTRIBUTES["used_mem_current"])
        held = "" if code else f" beside the {used} bytes that are allocated"
        most, larger = f", of at most {self.max_size} in chunks of 32 MiB", ", make one of a larger max_size"
        cache = "host_empty_cache" if self.pinned else "empty_cache"
        return (
            f"there is no more memory for this pool{held}{most if self.max_size else ''}; free some of it"
            f"{larger if self.max_size else ''}, or call trim_to() of other pools and accelrt.{cache}()"
        )

    def access(self, peer: DeviceArgument) -> str:
        """Tells what a device may do with the pool's memory (cuMemPoolGetAccess).

        Arguments:
            peer: int, "cuda:1", ...: the device.
        Returns:
            "none", "r" or "rw".
        Raises:
            CudaError: the driver refused.
            ValueError: the pool is one of managed memory, which every device uses.
        """
        self._refuse_managed("access")
        code, number = self._call("access_get", device_ordinal(peer))
        if code:
            raise self.error(code, "pool_access_get", "access")
        return NAMES.get(number, "none")

    def set_access(self, peer: DeviceArgument, access: Literal["none", "r", "rw"]) -> None:
        """Grants or revokes it (cuMemPoolSetAccess); drivers may take no "r".

        Arguments:
            peer: int, "cuda:1", ...
            access: "none", "r" or "rw".
        Raises:
            ValueError: access is none of these, or the pool is one of managed memory.
            CudaError: the devices cannot reach each other, or the driver refused.
        """
        self._refuse_managed("set_access")
        if access not in ACCESS:
            raise ValueError(f"access is {access!r}; it may be 'none', 'r' or 'rw'")
        code = self._call("access_set", device_ordinal(peer), ACCESS[access])
        if code:
            raise self.error(code, "pool_access_set", "access")

    def _refuse_managed(self, call: str) -> None:
        if self.managed:
            raise ValueError(
                f"{call}: every device uses managed memory; only device memory is opened to peers"
            )

    def error(self, code: int, row: str, name: str) -> Exception:
        """Makes the error of what the driver answered.

        Arguments:
            code: int, the driver's status.
            row: str, the call of the driver that gave it.
            name: str, the attribute that the call was about.
        """
        return status_error(code, row, ("device", self.device_index, "attribute", name))
