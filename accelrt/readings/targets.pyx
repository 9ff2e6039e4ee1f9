"""Which device a reading is of.

An ordinal is looked up once in the table of identities and kept as a UUID, and NVML gives the handle for that UUID;
no index of NVML's takes part, so that a reading is never of the wrong card.  Before init the table goes with the
environment: a change of the list of visible devices makes a new one.
"""
from libc.stdint cimport uint64_t

cimport accelrt.devices.device as devices
cimport accelrt.core.env_watch as env_watch
from accelrt.nvml.library cimport (
    FUNCTION_NOT_FOUND, INVALID_ARGUMENT, LIBRARY_NOT_FOUND, OK, UNINITIALIZED, UNSUPPORTED, Device, address, function,
    hold, let_go, lose, session,
)
from accelrt.status cimport refuse_unmade
from accelrt import identity
from accelrt.runtime import init
from accelrt.errors import DriverNotFoundError, NotSupportedError, ReadingError
from accelrt.nvml.library import code_name, code_text

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from *:
    """
    #define accelrt_take(from) __atomic_load_n(from, __ATOMIC_ACQUIRE)
    #define accelrt_give(to, value) __atomic_store_n(to, value, __ATOMIC_RELEASE)
    """
    uint64_t take "accelrt_take"(uint64_t* from_) nogil
    void give "accelrt_give"(uint64_t* to, uint64_t value) nogil

ctypedef int (*by_uuid_fn)(const char* uuid, Device* out) noexcept nogil

DRIVER_NOT_LOADED = 9
DEPRECATED = 26
PREFIXES = ("GPU-", "MIG-")

cdef int BY_UUID = function("nvmlDeviceGetHandleByUUID")

cdef list table = None            # by ordinal
cdef dict by_uuid = {}            # every Place that was ever asked for
cdef bint is_of_driver = False    # the table was made after init
cdef bint is_stale = True         # there is no table yet, or this is a child
cdef object visible_then = None   # the environment's values that a table made before init goes with
cdef object order_then = None


cdef void forget_table() noexcept nogil:
    global is_stale
    is_stale = True


cdef class Place:
    """A device of NVML's, by its UUID."""

    def __init__(self, str uuid, str name, parent):
        self.uuid, self.name, self.parent = uuid, name, parent
        self.key = uuid.encode()
        self.letters = self.key
        self.session = 0

    def __repr__(self):
        return f"{self.name} ({self.uuid})"


def place_for(device=None):
    """The Place that a device's readings are of, or the Elsewhere that answers for it."""
    return place_of(device)


cdef object place_of(object device):
    cdef Py_ssize_t ordinal
    cdef int now = 0
    if is_stale or not is_current():
        make_table()
    if type(device) is int:
        ordinal = checked(device)
    elif device is None:
        if is_of_driver and devices.known_devices() > 1:
            devices.current_ordinal(&now)
        ordinal = checked(now)
    else:
        return place_slow(device)
    return table[ordinal]


cdef bint is_current() noexcept:
    if is_of_driver:
        return True
    return devices.known_devices() == 0 and env_watch.is_same(visible_then, order_then)


cdef Py_ssize_t checked(object ordinal) except -1:
    cdef Py_ssize_t count = len(table)
    if not 0 <= ordinal < count:
        allowed = f"ordinals 0 to {count - 1}" if count else "is one visible?"
        raise ValueError(f"device {ordinal} does not exist; there are {count} devices, {allowed}")
    return ordinal


cdef object place_slow(object device):
    if isinstance(device, str) and device.startswith(PREFIXES):
        return place_at(device)
    if isinstance(device, Place):
        if (<Place>device).letters == NULL:
            refuse_unmade(device)
        return device
    if isinstance(device, identity.Identity):
        return place_at(device.uuid) if device.nvml_index is not None else place_of(device.ordinal)
    ordinal = devices.parse(device)
    return place_of(None if ordinal is None else int(ordinal))


cdef object place_at(str uuid):
    # Of any card that NVML lists, one too that this process does not see.
    found = by_uuid.get(uuid)
    if found is None:
        for row in identity.physical():
            if row.uuid == uuid:
                return kept(row)
        for place in table:
            if place.uuid == uuid:
                return place
        known = ", ".join(row.uuid for row in identity.physical()) or "none"
        raise ValueError(f"device {uuid!r} does not exist; those that can be read are {known}")
    return found


cdef object kept(row):
    return by_uuid.setdefault(row.uuid, Place(row.uuid, row.name, row.mig_parent))


cdef int make_table() except -1:
    global table, is_of_driver, is_stale, visible_then, order_then
    platform = init.later("accelrt.readings.platform")
    after, seen, order = init.is_initialized(), env_watch.current(0), env_watch.current(1)
    made = platform.places()
    is_nvml = made is None
    if is_nvml:
        made = [kept(row) for row in identity.table()]
    table, is_of_driver, visible_then, order_then = made, after, seen, order
    is_stale = not is_nvml and not after  # other variables decide there
    return 0


cdef int begin(Place place, Device* out) noexcept nogil:
    cdef int code = hold()
    if code:
        return code
    if take(&place.session) != session():
        if address(BY_UUID) == NULL:
            code = FUNCTION_NOT_FOUND
        else:
            code = (<by_uuid_fn>address(BY_UUID))(place.letters, &place.handle)
        if code:
            let_go()
            return code
        give(&place.session, session())
    out[0] = place.handle
    return OK


cdef void end() noexcept nogil:
    let_go()


cdef bint again(str reading, Place place, int code, int* tries) except -1:
    cdef uint64_t number = place.session
    if code == UNINITIALIZED and tries[0] == 0:
        tries[0] = 1  # another user of the library in this process closed more sessions than it opened
        with nogil:
            lose(number)
        return True
    raise reading_error(reading, place, code)


def reading_error(str reading, Place place, int code):
    """The exception that a code of NVML's stands for.

    Arguments:
        reading: str, the name of the reading, such as "temperature".
        place: Place, of which it was asked.
        code: int, the nvmlReturn_t.
    """
    name = code_name(code)
    text = f"{reading} of {place!r}: NVML answered {name} ({code}): {code_text(code)}"
    if code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        return DriverNotFoundError(text)
    if code in (UNSUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED) or (code == INVALID_ARGUMENT and place.parent):
        if place.parent:
            text += f"; a MIG device does not have it alone, ask its card: {reading}('{place.parent}')"
        return NotSupportedError(text, 801, "NOT_SUPPORTED", reading)
    return ReadingError(text, code, name, reading)


pthread_atfork(NULL, NULL, &forget_table)
