"""Devices: how many, which one is current, and what a caller may call one.

The current device is the driver's own current context of the calling thread, so that accelrt and other
libraries of the process never disagree.  Where there is one device it is current by definition.
"""
import operator

cimport cython

from accelrt import lazy
from accelrt.driver.registry import active_device_count
from accelrt.callback cimport raise_callback_errors
from accelrt.deferred cimport drain
cimport accelrt.environment as environment
cimport accelrt.driver.registry as registry
from accelrt.status cimport raise_status
cimport accelrt.watch as watch

cdef extern from "Python.h":
    bint PyLong_CheckExact(object thing)
    long PyLong_AsLongAndOverflow(object number, int* overflow) except? -1
    unsigned long PyThread_get_thread_ident() nogil

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef str NAME = r"(cuda|host)(?::(0|[1-9][0-9]*))?"

device_total = 0
cdef dict device_objects = {}


cdef void forget_devices() noexcept nogil:
    global device_total
    device_total = 0


cdef int count_devices() except -1:
    global device_total
    if device_total == 0:
        lazy.init()
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
    count_devices()
    code = current_ordinal(&ordinal)
    if code:
        raise_status(code, "current_device")
    return ordinal


cdef unsigned long this_thread() noexcept:
    return PyThread_get_thread_ident()


cdef inline int plain_ordinal(object given) except -2:
    # Of an int that is one, as most are; -1 for all else.
    cdef int overflow = 0
    cdef long value
    if not PyLong_CheckExact(given):
        return -1
    value = PyLong_AsLongAndOverflow(given, &overflow)
    return <int>value if 0 <= value < device_total else -1


cdef int ordinal_of(object given) except -1:
    cdef int plain = plain_ordinal(given)
    return plain if plain >= 0 else ordinal_of_slow(given)


cdef int ordinal_of_slow(object given) except -1:
    cdef object ordinal
    cdef int count
    if given is None:
        return current()
    count = count_devices()
    ordinal = parse(given)
    if ordinal is None:
        return current()
    if not 0 <= ordinal < count:
        allowed = f"0 to {count - 1}" if count > 1 else "0"
        raise ValueError(f"device {given!r} does not exist; there are {count} devices, ordinals {allowed}")
    return ordinal


cdef object parse(object given):
    # An int, or None where the name has no ordinal and so means the current device.
    if isinstance(given, bool):
        raise TypeError(f"device is {given!r}, a bool; pass an int, 'cuda:1', 'host:0', a device object or None")
    if isinstance(given, str):
        return parse_name(given)
    if isinstance(given, device) and (<device>given).index < 0:
        return None
    try:
        return operator.index(given)
    except TypeError:
        pass
    index = getattr(given, "index", None)
    if callable(index) or not hasattr(given, "index"):
        raise TypeError(
            f"device is {given!r} of type {type(given).__name__}; "
            "pass an int, 'cuda:1', 'host:0', an object with an index, or None"
        )
    return None if index is None else operator.index(index)


cdef object parse_name(str name):
    import re  # it takes longer to import than much of accelrt

    match = re.fullmatch(NAME, name)
    if match is None:
        raise ValueError(f"device {name!r} is not understood; write 'cuda', 'cuda:1', 'host' or 'host:0'")
    if match[1] == "host" and lazy.chosen_driver() == "cuda":
        raise ValueError(
            f"device {name!r} is the embedded host device, but this process runs on cuda; "
            "choose with ACCELRT_DRIVER=host or accelrt.init(driver='host')"
        )
    return None if match[2] is None else int(match[2])


cdef object device_at(int ordinal):
    found = device_objects.get(ordinal)
    if found is None:
        found = device_objects.setdefault(ordinal, device(ordinal))
    return found


@cython.freelist(8)
cdef class device:
    """A device, and the context in which it is the current one.

        with accelrt.device(1):
            ...

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None or a negative int, for which the
            context does nothing (as in torch.cuda.device).
    Raises:
        ValueError, TypeError: it names no device.
    """

    def __init__(self, device):
        self.index = plain_ordinal(device)
        if self.index < 0:
            negative = isinstance(device, int) and not isinstance(device, bool) and device < 0
            self.index = -1 if device is None or negative else ordinal_of_slow(device)

    @property
    def idx(self):
        """The ordinal, by the name that torch.cuda.device has for it."""
        return self.index

    @property
    def type(self):
        """"cuda" or "host"."""
        return lazy.chosen_driver()

    def __enter__(self):
        cdef int before = switch_to(self.index)
        if self.entered:
            self.enter_again(before)
        else:
            self.entered = True
            self.before = before
        return self

    def __exit__(self, kind, error, trace):
        cdef int before = self.before
        if self.again is None or not self.leave_again(&before):
            self.entered = False
        if before != self.index:
            switch_to(before)
        return False

    cdef int enter_again(self, int before) except -1:
        # A device's object is shared: buffer.device is the same one for every thread.
        if self.again is None:
            self.again = []
        self.again.append((this_thread(), before))
        return 0

    cdef bint leave_again(self, int* out_before) except -1:
        cdef Py_ssize_t index
        for index in range(len(self.again) - 1, -1, -1):
            if self.again[index][0] == this_thread():
                out_before[0] = self.again.pop(index)[1]
                return True
        return False

    def __reduce__(self):
        return device, (self.index,)

    def __index__(self):
        return self.index

    def __eq__(self, other):
        return isinstance(other, device) and (<device>other).index == self.index

    def __hash__(self):
        return hash(("accelrt.device", self.index))

    def __repr__(self):
        return f"device(type={self.type!r}, index={self.index})"


class device_of(device):
    """The context in which the device of an object is current: device_of(buffer).

    Arguments:
        obj: anything with a device attribute; the context does nothing for other objects.
    """

    def __init__(self, obj):
        super().__init__(getattr(obj, "device", None))


cdef int switch_to(int ordinal) except -2:
    # Answers the device that was current; -1 where the thread had none.
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


def device_count():
    """How many devices are visible.

    Before init the count comes from the kernel's list of cards or from NVML (or from ACCELRT_HOST_DEVICES)
    without a driver call, so that a process that only asked may fork; it is not kept (accelrt.counting says what
    is asked where those do not tell).  After init it is the driver's own; a change of the environment has no effect
    then, and a RuntimeWarning says so once.

    Returns:
        int; 0 where there is no driver.
    """
    if device_total:
        if environment.changed():
            environment.warn()
        return device_total
    if lazy.is_initialized():
        return count_devices()
    return lazy.count_unopened()


def current_device():
    """The ordinal of the calling thread's current device (CUDA driver API, cuCtxGetDevice)."""
    return current()


def set_device(device):
    """Makes a device the current one of the calling thread, for accelrt and every other user of CUDA on it.

    Arguments:
        device: int, "cuda:1", "host:0" or an object with an index; a negative int does nothing.
    Raises:
        ValueError, TypeError: it names no device.
        CudaError: the driver refused.
    """
    if isinstance(device, int) and not isinstance(device, bool) and device < 0:
        return
    switch_to(ordinal_of(device))


def synchronize(device=None):
    """Waits until all work of a device is complete (cuCtxSynchronize).

    Arguments:
        device: int, "cuda:1", ...; None is the current one.
    Raises:
        CaptureError: a capture is under way that forbids it.
        CudaError: work on the device failed.
        Exception: whatever a host function raised since the last synchronize.
    """
    cdef int ordinal = ordinal_of(device)
    cdef int code
    watch.before_wait("synchronize")
    drain()  # first: a capture that waits there to be ended would make the driver refuse
    with nogil:
        code = registry.active().device_synchronize(ordinal)
    if code:
        raise_status(code, "device_synchronize", ("device", ordinal))
    if watch.sanitizing:
        watch.note_device_reached(ordinal)
    raise_callback_errors()


def mem_get_info(device=None):
    """Free and total memory of a device, in bytes (cuMemGetInfo).

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


def can_device_access_peer(device, peer_device):
    """Whether one device can read and write another's memory (cuDeviceCanAccessPeer).

    Arguments:
        device, peer_device: as everywhere.
    Returns:
        bool; False for a device and itself.
    """
    cdef int one = ordinal_of(device), other = ordinal_of(peer_device)
    cdef int can = 0
    cdef int code
    if one == other:
        return False
    code = registry.active().can_access_peer(one, other, &can)
    if code:
        raise_status(code, "can_access_peer", ("device", one, "peer", other))
    return can != 0


pthread_atfork(NULL, NULL, &forget_devices)
