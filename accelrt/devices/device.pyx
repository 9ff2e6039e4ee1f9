"""Devices: how many, which one is current, and what a caller may call one.

The current device is the driver's own current context of the calling thread, so that accelrt and other
libraries of the process never disagree.  Where there is one device it is current by definition.
"""
cimport cython
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyNumber_Index

from accelrt.core.interpreter cimport PyThread_get_thread_ident
from accelrt.core.process cimport FORK_DEVICES, at_fork
from accelrt.driver.managed cimport LOCATION_DEVICE, LOCATION_HOST, LOCATION_NODE
from accelrt.errors import ArgumentError, InvalidDeviceError, InvalidDeviceTypeError
from accelrt.runtime import init
from accelrt.driver.registry import active_device_count
from accelrt.runtime.lifetimes cimport drain, raise_callback_errors
cimport accelrt.core.process as env_watch
cimport accelrt.driver.registry as registry
from accelrt.driver.guard cimport await_inside, begin_wait, end_wait, is_main_thread
from accelrt.status cimport CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, NO_DEVICE, raise_status, refuse_unmade
cimport accelrt.runtime.access as watch

cdef tuple TYPES = ("cuda", "host")
cdef str NAME = r"(cuda|host)(?::(0|[1-9][0-9]*))?"

device_total = 0
cdef dict device_objects = {}
cdef list properties = []  # by ordinal; None where they were not asked for yet.  Devices do not change after init


cdef void forget_devices() noexcept nogil:
    global device_total
    device_total = 0


cdef int count_devices() except -1:
    global device_total
    if device_total == 0:
        init.init()
        device_total = active_device_count()
    return device_total


cdef int known_devices() noexcept nogil:
    return device_total


cdef int ask_current(int* out_ordinal) noexcept nogil:
    cdef int code = registry.active().current_device(out_ordinal)
    if out_ordinal[0] < 0:  # no context is current on this thread: it starts on the first device
        out_ordinal[0] = 0
    return code


cdef int current() except -1:
    cdef int ordinal
    cdef int code
    if count_devices() == 0:
        raise_status(NO_DEVICE, "current_device")
    code = current_ordinal(&ordinal)
    if code:
        raise_status(code, "current_device")
    return ordinal


cdef inline int plain_ordinal(object argument) except -2:
    # Returns the ordinal that an int is, as most arguments are; -1 for all else.
    cdef int overflow = 0
    cdef long value
    if not PyLong_CheckExact(argument):
        return -1
    value = PyLong_AsLongAndOverflow(argument, &overflow)
    return <int>value if 0 <= value < device_total else -1


cdef int ordinal_of(object argument) except -1:
    cdef int plain = plain_ordinal(argument)
    return plain if plain >= 0 else ordinal_of_slow(argument)


cdef int ordinal_of_slow(object argument) except -1:
    cdef object ordinal
    cdef int count
    if argument is None:
        return current()
    count = count_devices()
    ordinal = parse(argument)
    if ordinal is None:
        return current()
    if count == 0:
        raise_status(NO_DEVICE, "device", ("device", argument))
    if not 0 <= ordinal < count:
        allowed = f"0 to {count - 1}" if count > 1 else "0"
        raise InvalidDeviceError(
            f"Invalid device id: device {argument!r} does not exist; there are {count} devices, ordinals {allowed}"
        )
    return ordinal


# stub: def parse(argument: DeviceArgument | None) -> int | None: ...
cpdef object parse(object argument):
    # Returns an int, or None where the name has no ordinal and so means the current device.
    if type(argument) is int:
        return argument
    if isinstance(argument, bool):
        raise InvalidDeviceTypeError(
            f"device is {argument!r}, a bool; pass an int, 'cuda:1', 'host:0', a device object or None"
        )
    if isinstance(argument, str):
        return parse_name(argument)
    if isinstance(argument, device):
        if not (<device>argument).initialised:
            refuse_unmade(argument)
        return None if (<device>argument).index < 0 else (<device>argument).index
    check_type(argument)
    try:
        return PyNumber_Index(argument)
    except TypeError:
        pass
    index = getattr(argument, "index", None)
    if callable(index) or not hasattr(argument, "index"):
        raise InvalidDeviceTypeError(
            f"device is {argument!r} of type {type(argument).__name__}; "
            "pass an int, 'cuda:1', 'host:0', an object with an index, or None"
        )
    return None if index is None else PyNumber_Index(index)


cdef int check_type(object argument) except -1:
    # An object of another library's, torch.device("cpu") say, may say what kind of device it names.
    kind = getattr(argument, "type", None)
    if not isinstance(kind, str):
        return 0
    if kind not in TYPES:
        raise InvalidDeviceError(f"device {argument!r} is of type {kind!r}; pass one of type 'cuda' or 'host'")
    return check_host(argument, kind)


cdef int check_host(object argument, str kind) except -1:
    if kind == "host" and init.chosen_driver() == "cuda":
        raise InvalidDeviceError(
            f"device {argument!r} is the embedded host device, but this process runs on cuda; "
            "choose with ACCELRT_DRIVER=host or accelrt.init(driver='host')"
        )
    return 0


cdef object parse_name(str name):
    import re  # it takes longer to import than much of accelrt

    match = re.fullmatch(NAME, name)
    if match is None:
        raise InvalidDeviceError(
            f"Invalid device string: {name!r} is not understood; write 'cuda', 'cuda:1', 'host' or 'host:0'"
        )
    check_host(name, match[1])
    return None if match[2] is None else int(match[2])


cdef object device_at(int ordinal):
    cdef device fresh
    shared = device_objects.get(ordinal)
    if shared is None:
        fresh = <device>device.__new__(device)  # as checked before: also where this process cannot use it any more
        fresh.index = ordinal
        fresh.initialised = True
        shared = device_objects.setdefault(ordinal, fresh)
    return shared


cdef bint is_nowhere(object argument) except -1:
    # A device's context and set_device do nothing for these: a negative int, or an object made of one or of None.
    if isinstance(argument, device):
        return (<device>argument).initialised and (<device>argument).index < 0
    return argument is None or isinstance(argument, int) and not isinstance(argument, bool) and argument < 0


@cython.freelist(8)
cdef class device:
    """device(device)\n--\n\n\
    A device, and the context in which it is the current one.

        with accelrt.device(1):
            ...

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None or a negative int, for which the
            context does nothing (as in torch.cuda.device).
    Raises:
        ValueError, TypeError: it names no device.
    Attributes:
        index: int, the device's ordinal; negative where the context does nothing.
    """

    def __init__(self, device: DeviceArgument | None) -> None:
        cdef int ordinal = plain_ordinal(device)
        if ordinal < 0 and not is_nowhere(device):
            ordinal = ordinal_of_slow(device)
        if self.initialised and self.index != ordinal:  # others may share it: buffer.device is the same one for everybody
            raise RuntimeError(f"{self!r} is made already; make another device object")
        self.index = ordinal
        self.initialised = True

    @property
    def idx(self) -> int:
        """The ordinal, by the name that torch.cuda.device has for it."""
        return self.index

    @property
    def type(self) -> str:
        """"cuda" or "host"."""
        return init.chosen_driver()

    def __enter__(self) -> Self:
        cdef int before
        if not self.initialised:
            refuse_unmade(self)
        before = switch_to(self.index)
        with cython.critical_section(self):
            if self.entered:
                self.enter_again(before)
            else:
                self.entered = PyThread_get_thread_ident()
                self.before = before
        return self

    def __exit__(
        self, kind: builtins.type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        cdef int before
        with cython.critical_section(self):
            before = self.before
            if self.again is None or not self.leave_again(&before):
                if self.entered != PyThread_get_thread_ident():
                    raise RuntimeError(f"the context of {self!r} is not entered on this thread; nothing is changed")
                self.entered = 0
        if self.index >= 0:
            switch_back(before)
        return False

    cdef int enter_again(self, int before) except -1:
        # A device's object is shared: buffer.device is the same one for every thread.
        if self.again is None:
            self.again = []
        self.again.append((PyThread_get_thread_ident(), before))
        return 0

    cdef bint leave_again(self, int* out_before) except -1:
        cdef Py_ssize_t index
        for index in range(len(self.again) - 1, -1, -1):
            if self.again[index][0] == PyThread_get_thread_ident():
                out_before[0] = self.again.pop(index)[1]
                return True
        return False

    def __reduce__(self):
        if not self.initialised:
            refuse_unmade(self)
        return device, (self.index,)

    def __index__(self) -> int:
        if not self.initialised:
            refuse_unmade(self)
        return self.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (<device>other).index == self.index

    # Devices are in the order of their ordinals; with anything else they are in none.

    # stub: def __lt__(self, other: device, /) -> bool: ...
    def __lt__(self, other):
        return self.index < (<device>other).index if isinstance(other, device) else NotImplemented

    # stub: def __le__(self, other: device, /) -> bool: ...
    def __le__(self, other):
        return self.index <= (<device>other).index if isinstance(other, device) else NotImplemented

    # stub: def __gt__(self, other: device, /) -> bool: ...
    def __gt__(self, other):
        return self.index > (<device>other).index if isinstance(other, device) else NotImplemented

    # stub: def __ge__(self, other: device, /) -> bool: ...
    def __ge__(self, other):
        return self.index >= (<device>other).index if isinstance(other, device) else NotImplemented

    def __hash__(self) -> int:
        return hash(("accelrt.devices.device", self.index))

    def __repr__(self):
        return f"device(type={self.type!r}, index={self.index})"


class device_of(device):
    """The context in which the device of an object is current: device_of(buffer).

    Arguments:
        obj: anything with a device attribute; the context does nothing for other objects, nor for those that name
            a device of another type, as numpy's arrays do with "cpu".
    """

    def __init__(self, obj: object) -> None:
        named = getattr(obj, "device", None)
        kind = named.partition(":")[0] if isinstance(named, str) else getattr(named, "type", None)
        super().__init__(None if isinstance(kind, str) and kind not in TYPES else named)


cdef int switch_to(int ordinal) except -2:
    cdef int before = -1
    cdef int code
    if ordinal < 0:
        return ordinal
    count_devices()
    code = registry.active().current_device(&before)
    if code:
        raise_status(code, "current_device")
    if before != ordinal:
        with nogil:
            code = registry.active().set_device(ordinal)
        if code:
            raise_status(code, "set_device", ("device", ordinal))
    return before


cdef int switch_back(int before) except -1:
    # The driver is asked, because code that ran meanwhile may have chosen another device.
    cdef int now = -1
    cdef int code
    if device_total == 0:  # a child forked meanwhile: nothing is current there
        return 0
    code = registry.active().current_device(&now)
    if code:
        raise_status(code, "current_device")
    if now != before:
        with nogil:
            code = registry.active().set_device(before)
        if code:
            raise_status(code, "set_device", ("device", before))
    return 0


def device_count() -> int:
    """Returns how many devices are visible.

    Before init the count comes from the kernel's list of cards or from NVML (or from ACCELRT_HOST_DEVICES)
    without a driver call, so that a process that only asked may fork; it is not kept
    (accelrt.devices.discovery says what is asked where those do not tell).  After init it is the driver's own;
    a change of the environment has no effect then, and a RuntimeWarning says so once.

    Returns:
        int; 0 where there is no driver.
    """
    if device_total:
        if env_watch.changed():
            env_watch.warn()
        return device_total
    if init.is_initialized():
        return count_devices()
    return init.count_unopened()


def current_device() -> int:
    """Returns the ordinal of the calling thread's current device (CUDA driver API, cuCtxGetDevice)."""
    return current()


def device_ordinal(device: DeviceArgument | None = None) -> int:
    """Returns the ordinal of an argument that names a device; None is the current one.

    Raises:
        ValueError, TypeError: it names none of this process.
    """
    return ordinal_of(device)


def memory_place(location: DeviceArgument) -> tuple[int, int]:
    """Returns where managed memory may lie, of an argument that names a device, or as torch calls the host: "cpu", and
    "cpu:1" for a node of its memory.

    Returns:
        (LOCATION_ number of driver/managed.pxd, the device's ordinal, the node's number, or 0).
    Raises:
        ValueError, TypeError: it names none.
    """
    cdef str node
    if location == "cpu":
        return LOCATION_HOST, 0
    node = location[4:] if isinstance(location, str) and location.startswith("cpu:") else ""
    if len(node) > 9:
        raise ArgumentError(f"location is {location!r}; a NUMA node has a number of its system's")
    if node.isdecimal():
        return LOCATION_NODE, int(node)
    return LOCATION_DEVICE, ordinal_of(location)


def set_device(device: DeviceArgument | None) -> None:
    """Makes a device the current one of the calling thread, for accelrt and every other user of CUDA on it.

    Arguments:
        device: int, "cuda:1", "host:0" or an object with an index; a negative int does nothing.
    Raises:
        ValueError, TypeError: it names no device; None, and "cuda" without an ordinal, name none either.
        CudaError: the driver refused.
    """
    cdef int ordinal = plain_ordinal(device)
    if ordinal < 0:
        if device is not None and is_nowhere(device):
            return
        if device is None or parse(device) is None:
            raise InvalidDeviceError(
                f"device is {device!r}, which has no ordinal; pass an int, 'cuda:1' or 'host:0', for example"
            )
        ordinal = ordinal_of_slow(device)
    switch_to(ordinal)


def synchronize(device: DeviceArgument | None = None) -> None:
    """Waits until all work of a device is complete (cuCtxSynchronize).

    Arguments:
        device: int, "cuda:1", ...; None is the current one.
    Raises:
        CaptureError: a capture is under way that forbids it.
        CudaError: work on the device failed.
        Exception: whatever a host function raised since the last synchronize or query.
        KeyboardInterrupt: Ctrl-C, on the main thread, or what another signal's handler raised; the work goes on.
    """
    cdef int ordinal = ordinal_of(device)
    cdef int code
    watch.before_wait("synchronize")
    drain()  # first: a capture that waits there to be ended would make the driver refuse
    begin_wait(False)
    with nogil:
        code = registry.active().device_synchronize(ordinal)
    end_wait(code)
    if code:
        raise_status(code, "device_synchronize", ("device", ordinal))
    watch.note_device_reached(ordinal)
    raise_callback_errors()


cdef int await_device(int ordinal) except -1:
    # Beside a capture nothing is waited for, and what a capture of another library's refuses is left to the call.
    cdef int code = 0
    if not is_main_thread():
        return 0
    begin_wait(False)
    with nogil:
        code = await_inside(registry.active(), ordinal)
    end_wait(code)
    if code and not CAPTURE_UNSUPPORTED <= code <= CAPTURE_WRONG_THREAD:
        raise_status(code, "device_synchronize", ("device", ordinal))
    return 0


def mem_get_info(device: DeviceArgument | None = None) -> tuple[int, int]:
    """Reads how much memory of a device is free, and how much it has, in bytes (cuMemGetInfo).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        (free, total): ints, of the whole device, other processes counted in.
    """
    cdef int ordinal = ordinal_of(device)
    cdef size_t free = 0, total = 0
    cdef int code
    with nogil:
        code = registry.active().memory_info(ordinal, &free, &total)
    if code:
        raise_status(code, "memory_info", ("device", ordinal))
    return free, total


def can_device_access_peer(device: DeviceArgument | None, peer_device: DeviceArgument | None) -> bool:
    """Tells whether one device can read and write another's memory (cuDeviceCanAccessPeer).

    Arguments:
        device: int, "cuda:1", ...; None is the current one.
        peer_device: the same, but not None.
    Returns:
        bool; False for a device and itself.
    Raises:
        ValueError, TypeError: one of them names no device.
    """
    cdef int one = ordinal_of(device), other
    cdef int can = 0
    cdef int code
    if peer_device is None:
        raise InvalidDeviceTypeError("peer_device is None; pass an int, 'cuda:1', 'host:0' or an object with an index")
    try:
        other = ordinal_of(peer_device)
    except InvalidDeviceError as error:
        raise type(error)(f"Invalid peer device id: {error}") from None
    if one == other:
        return False
    code = registry.active().can_access_peer(one, other, &can)
    if code:
        raise_status(code, "can_access_peer", ("device", one, "peer", other))
    return can != 0


def get_device_properties(device: DeviceArgument | None = None) -> DeviceProperties:
    """Returns a device's constants.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current one.
    Returns:
        DeviceProperties, the same object at every call.
    Raises:
        ValueError, TypeError: it names no device.
    """
    cdef Py_ssize_t ordinal
    if type(device) is int and known_devices() and 0 <= device < len(properties):
        ordinal = device
    else:
        ordinal = ordinal_of(device)
        if ordinal >= len(properties):
            properties.extend([None] * (count_devices() - len(properties)))
    constants = properties[ordinal]
    if constants is None:
        constants = properties[ordinal] = init.later("accelrt.devices.properties").read_properties(ordinal)
    return constants


def get_device_name(device: DeviceArgument | None = None) -> str:
    """Returns a device's name, such as "NVIDIA H200" (cuDeviceGetName).

    Arguments, Raises: as get_device_properties.
    """
    return get_device_properties(device).name


def get_device_capability(device: DeviceArgument | None = None) -> tuple[int, int]:
    """Returns a device's compute capability, (major, minor); (0, 0) for the host device.

    Arguments, Raises: as get_device_properties.
    """
    constants = get_device_properties(device)
    return constants.major, constants.minor


at_fork("devices.device", FORK_DEVICES, NULL, NULL, &forget_devices)
