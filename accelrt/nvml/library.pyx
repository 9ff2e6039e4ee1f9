"""NVML's library and the session with it; and the cards and MIG devices that it lists, the one place where its indices
are used, to enumerate.

Source of the functions, their types and codes: NVIDIA's NVML API Reference Guide.  The library is opened by
name, not linked, and never through cuda.bindings, so that nothing else comes with it.
"""
cimport cython
from dataclasses import dataclass

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from accelrt.core.process cimport FORK_READINGS, at_fork
from accelrt.core.procfs import pci_bus_id
from accelrt.errors import ReadingError

# stub: CODES: dict[int, tuple[str, str]]

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL
    void* dlopen(const char* path, int mode)
    void* dlsym(void* library, const char* name)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_rwlock_t:
        pass
    int pthread_rwlock_init(pthread_rwlock_t* lock, void* attributes)
    int pthread_rwlock_rdlock(pthread_rwlock_t* lock)
    int pthread_rwlock_wrlock(pthread_rwlock_t* lock)
    int pthread_rwlock_unlock(pthread_rwlock_t* lock)

ctypedef int (*init_fn)() noexcept nogil

cdef enum:
    MAX_NAMES = 3

ctypedef const char* name_t

cdef struct Function:
    name_t[MAX_NAMES] names  # tried in turn; NULL where there are fewer
    void* address                 # NULL before the library is open, and where it has none of them

cdef Function[MAX_FUNCTIONS] table
cdef int functions = 0       # in the critical section of CODES
cdef list kept = []          # lists of the bytes that names point to

cdef pthread_rwlock_t lock
cdef void* library = NULL    # written under the lock; stays open, in a child too
cdef bint is_open = False    # written under the lock
cdef uint64_t sessions = 0   # how many were opened, in parents too: no two have one number

CODES = {  # nvmlReturn_t: name and meaning
    1: ("UNINITIALIZED", "NVML has no session"),
    2: ("INVALID_ARGUMENT", "an argument is not one that this device takes"),
    3: ("NOT_SUPPORTED", "this device has no such reading"),
    4: ("NO_PERMISSION", "this user may not ask"),
    6: ("NOT_FOUND", "there is no such device"),
    7: ("INSUFFICIENT_SIZE", "there is more to say than there was room for"),
    8: ("INSUFFICIENT_POWER", "a power cable of the card is not attached"),
    9: ("DRIVER_NOT_LOADED", "NVIDIA's kernel driver is not running"),
    10: ("TIMEOUT", "the device did not answer in time"),
    11: ("IRQ_ISSUE", "the kernel found a fault in the device's interrupts"),
    12: ("LIBRARY_NOT_FOUND", "libnvidia-ml.so.1 cannot be opened"),
    13: ("FUNCTION_NOT_FOUND", "this libnvidia-ml.so.1 is too old to have the function"),
    14: ("CORRUPTED_INFOROM", "the card's own records are corrupted"),
    15: ("GPU_IS_LOST", "the device has fallen off the bus or cannot be reached"),
    16: ("RESET_REQUIRED", "the device has to be reset"),
    17: ("OPERATING_SYSTEM", "the operating system refused"),
    18: ("LIB_RM_VERSION_MISMATCH", "the kernel's and the user's halves of the driver differ; reboot"),
    20: ("MEMORY", "there is not enough memory"),
    21: ("NO_DATA", "there is no data yet"),
    25: ("ARGUMENT_VERSION_MISMATCH", "the driver has another version of this call's structure"),
    26: ("DEPRECATED", "the driver no longer answers this"),
    27: ("NOT_READY", "the device is not ready"),
    28: ("GPU_NOT_FOUND", "no device was found"),
    999: ("UNKNOWN", "NVML does not say what is wrong"),
}


cdef int function(str names) except -1:
    cdef list words = [name.encode() for name in names.split()]
    kept.append(words)
    with cython.critical_section(CODES):  # modules that threads import may take numbers at once
        return add_function(words)


cdef int add_function(list words) except -1:
    global functions
    cdef int number = functions, place
    if number == MAX_FUNCTIONS:
        raise RuntimeError("more functions of NVML than there is room for; raise MAX_FUNCTIONS")
    for place in range(MAX_NAMES):
        table[number].names[place] = <const char*>words[place] if place < len(words) else NULL
    table[number].address = NULL
    functions = number + 1
    if library != NULL:
        find(number)
    return number


def function_number(str names) -> int:
    """The number by which the readings name a function of NVML; several names, by blanks, are tried in turn."""
    return function(names)


cdef void find(int number) noexcept nogil:
    cdef int place
    for place in range(MAX_NAMES):
        if table[number].address == NULL and table[number].names[place] != NULL:
            table[number].address = dlsym(library, table[number].names[place])


cdef void lose(uint64_t number) noexcept nogil:
    global is_open
    pthread_rwlock_wrlock(&lock)
    if sessions == number:
        is_open = False
    pthread_rwlock_unlock(&lock)


cdef void* address(int function) noexcept nogil:
    return table[function].address


cdef uint64_t session() noexcept nogil:
    return sessions


cdef int hold() noexcept nogil:
    cdef int code
    pthread_rwlock_rdlock(&lock)
    if is_open:
        return OK
    pthread_rwlock_unlock(&lock)
    code = open_slow()
    return hold() if code == OK else code


cdef void let_go() noexcept nogil:
    pthread_rwlock_unlock(&lock)


cdef int open_slow() noexcept nogil:
    cdef int code = OK
    pthread_rwlock_wrlock(&lock)
    if not is_open:
        code = open_session()
    pthread_rwlock_unlock(&lock)
    return code


cdef int open_session() noexcept nogil:
    global library, is_open, sessions
    cdef int number, code
    cdef void* init
    if library == NULL:
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)
        if library == NULL:
            return LIBRARY_NOT_FOUND
        for number in range(functions):
            find(number)
    init = dlsym(library, "nvmlInit_v2")
    if init == NULL:
        return FUNCTION_NOT_FOUND
    code = (<init_fn>init)()
    if code == OK:
        sessions += 1
        is_open = True
    return code


cdef void wait_before_fork() noexcept nogil:
    pthread_rwlock_wrlock(&lock)


cdef void go_on_in_parent() noexcept nogil:
    pthread_rwlock_unlock(&lock)


cdef void forget_in_child() noexcept nogil:
    # The parent's session goes on in the parent; NVML itself answers UNINITIALIZED here until it is opened anew.
    global is_open
    is_open = False
    pthread_rwlock_init(&lock, NULL)


def open_code() -> int:
    """Opens the session where there is none; 0, or the nvmlReturn_t that says why not."""
    cdef int code
    with nogil:
        code = hold()
        if code == OK:
            let_go()
    return code


def session_number() -> int:
    """The number of this process's session; 0 where it has none.  A child of a fork starts without."""
    return sessions if is_open else 0


def code_name(int code) -> str:
    """The name of an nvmlReturn_t without its prefix: code_name(3) is "NOT_SUPPORTED"."""
    return CODES.get(code, ("UNKNOWN", ""))[0]


def code_text(int code) -> str:
    """Returns what an nvmlReturn_t means, as a part of a sentence."""
    return CODES.get(code, CODES[999])[1]


pthread_rwlock_init(&lock, NULL)
at_fork("nvml.library", FORK_READINGS, &wait_before_fork, &go_on_in_parent, &forget_in_child)


# cards

cdef enum:
    MAX_RECORDS = 640  # 64 cards with 8 MIG devices each, and the cards
    NO_PARENT = -1

cdef struct PciInfo:  # nvmlPciInfo_t
    char[16] legacy
    unsigned int domain
    unsigned int bus
    unsigned int device
    unsigned int device_id
    unsigned int subsystem_id
    char[32] bus_id

cdef struct Memory:  # nvmlMemory_t
    unsigned long long total
    unsigned long long free
    unsigned long long used

cdef struct Record:
    Device device
    unsigned int index      # NVML's: of a card among cards, of a MIG device in its card
    int parent              # record of a MIG device's card; NO_PARENT for a card
    int mig_mode            # 1 where the card is in MIG mode
    unsigned int instance   # ids of a MIG device's GPU instance
    unsigned int compute    # and compute instance
    char[TEXT] uuid
    char[TEXT] name
    PciInfo pci
    Memory memory

ctypedef int (*count_fn)(unsigned int* count) noexcept nogil
ctypedef int (*handle_fn)(unsigned int index, Device* out) noexcept nogil
ctypedef int (*text_fn)(Device device, char* text, unsigned int size) noexcept nogil
ctypedef int (*pci_fn)(Device device, PciInfo* out) noexcept nogil
ctypedef int (*memory_fn)(Device device, Memory* out) noexcept nogil
ctypedef int (*pair_fn)(Device device, unsigned int* one, unsigned int* other) noexcept nogil
ctypedef int (*number_fn)(Device device, unsigned int* out) noexcept nogil
ctypedef int (*mig_handle_fn)(Device device, unsigned int index, Device* out) noexcept nogil

cdef int COUNT = function("nvmlDeviceGetCount_v2")
cdef int HANDLE = function("nvmlDeviceGetHandleByIndex_v2")
cdef int UUID = function("nvmlDeviceGetUUID")
cdef int NAME = function("nvmlDeviceGetName")
cdef int PCI = function("nvmlDeviceGetPciInfo_v3 nvmlDeviceGetPciInfo_v2")
cdef int MEMORY = function("nvmlDeviceGetMemoryInfo")
cdef int MIG_MODE = function("nvmlDeviceGetMigMode")
cdef int MIG_COUNT = function("nvmlDeviceGetMaxMigDeviceCount")
cdef int MIG_HANDLE = function("nvmlDeviceGetMigDeviceHandleByIndex")
cdef int GPU_INSTANCE = function("nvmlDeviceGetGpuInstanceId")
cdef int COMPUTE_INSTANCE = function("nvmlDeviceGetComputeInstanceId")


# stub: class Card:
@dataclass(frozen=True)
class Card:
    """The facts that NVML has of a card or of a MIG device.

    Attributes:
        uuid: str, "GPU-..." or "MIG-...".
        pci_bus_id: str, as the driver writes it; a MIG device has its card's.
        index: int, NVML's index of the card; a MIG device has its card's.
        name: str.
        memory: int, bytes.
        mig_mode: bool, whether the card is divided into MIG devices.
        parent: str, the card's UUID, or None for a card.
        instance: (int, int), ids of the GPU instance and the compute instance, or None for a card.
    """

    uuid: str
    pci_bus_id: str
    index: int
    name: str
    memory: int
    mig_mode: bool = False
    parent: str | None = None
    instance: tuple[int, int] | None = None


def cards() -> list[Card]:
    """Returns every card in the order of NVML's indices, its MIG devices after it: the first of listing().

    Raises: as listing.
    """
    return listing()[0]


def listing() -> tuple[list[Card], int]:
    """Returns the cards, and how many there are besides that NVML cannot read.

    Returns:
        (cards, lost): a list of Card, [] where NVML finds no device; and an int, how many fell off the bus or may not
        be seen by this user.
    Raises:
        ReadingError: there is no NVML, or it fails.
    """
    cdef int code, total = 0, lost = 0, index
    cdef Record* records = <Record*>calloc(MAX_RECORDS, sizeof(Record))
    if records == NULL:
        raise MemoryError
    try:
        with nogil:
            code = hold()
            if code == OK:
                code = read_records(records, &total, &lost)
                let_go()
        if code == NOT_FOUND:
            return [], 0
        if code:
            name = code_name(code)
            raise ReadingError(f"NVML lists no devices: {name} ({code}): {code_text(code)}", code, name, "cards")
        return [card_of(records, index) for index in range(total)], lost
    finally:
        free(records)


cdef int read_records(Record* records, int* out_total, int* out_lost) noexcept nogil:
    cdef unsigned int count = 0, index
    cdef int code
    if address(COUNT) == NULL or address(HANDLE) == NULL or address(UUID) == NULL or address(PCI) == NULL:
        return 13
    code = (<count_fn>address(COUNT))(&count)
    if code:
        return code
    for index in range(count):
        if out_total[0] == MAX_RECORDS:
            break
        if read_card(&records[out_total[0]], index) != OK:
            out_lost[0] += 1
            continue
        out_total[0] += 1
        read_mig_devices(records, out_total[0] - 1, out_total)
    return OK


cdef int read_card(Record* record, unsigned int index) noexcept nogil:
    cdef unsigned int current = 0, pending = 0
    cdef int code = (<handle_fn>address(HANDLE))(index, &record.device)
    record.index = index
    record.parent = NO_PARENT
    if code == OK:
        code = (<pci_fn>address(PCI))(record.device, &record.pci)
    if code == OK:
        code = read_common(record)
    if code == OK and address(MIG_MODE) != NULL:
        if (<pair_fn>address(MIG_MODE))(record.device, &current, &pending) == OK:
            record.mig_mode = current == 1
    return code


cdef int read_common(Record* record) noexcept nogil:
    if address(NAME) != NULL:
        (<text_fn>address(NAME))(record.device, record.name, TEXT)
    if address(MEMORY) != NULL:
        (<memory_fn>address(MEMORY))(record.device, &record.memory)
    return (<text_fn>address(UUID))(record.device, record.uuid, TEXT)


cdef void read_mig_devices(Record* records, int parent, int* out_total) noexcept nogil:
    cdef unsigned int count = 0, index
    cdef Record* record
    if not records[parent].mig_mode or address(MIG_COUNT) == NULL or address(MIG_HANDLE) == NULL:
        return
    if (<number_fn>address(MIG_COUNT))(records[parent].device, &count) != OK:
        return
    for index in range(count):
        if out_total[0] == MAX_RECORDS:
            return
        record = &records[out_total[0]]
        if (<mig_handle_fn>address(MIG_HANDLE))(records[parent].device, index, &record.device) != OK:
            continue  # places that hold no device answer NOT_FOUND
        record.index = index
        record.parent = parent
        record.pci = records[parent].pci
        if address(GPU_INSTANCE) != NULL and address(COMPUTE_INSTANCE) != NULL:
            (<number_fn>address(GPU_INSTANCE))(record.device, &record.instance)
            (<number_fn>address(COMPUTE_INSTANCE))(record.device, &record.compute)
        if read_common(record) == OK:
            out_total[0] += 1


cdef object card_of(Record* records, int index):
    cdef Record* record = &records[index]
    cdef Record* card = record if record.parent == NO_PARENT else &records[record.parent]
    is_card = record.parent == NO_PARENT
    return Card(
        uuid=text(record.uuid),
        pci_bus_id=pci_bus_id(text(record.pci.bus_id)),
        index=card.index,
        name=text(record.name),
        memory=record.memory.total,
        mig_mode=record.mig_mode != 0,
        parent=None if is_card else text(card.uuid),
        instance=None if is_card else (record.instance, record.compute),
    )


cdef str text(const char* letters):
    return letters.decode(errors="replace")
