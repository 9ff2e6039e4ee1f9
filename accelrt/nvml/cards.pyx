"""The cards and MIG devices that NVML lists: the one place where its indices are used, to enumerate."""
from dataclasses import dataclass

from libc.stdlib cimport calloc, free

from accelrt.nvml.library cimport NOT_FOUND, OK, TEXT, Device, address, function, hold, let_go
from accelrt.errors import ReadingError
from accelrt.nvml.library import code_name, code_text
from accelrt.core.procfs import pci_bus_id

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


@dataclass(frozen=True)
class Card:
    """What NVML says of a card or of a MIG device.

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
    parent: object = None
    instance: object = None


def cards():
    """Every card in the order of NVML's indices, its MIG devices after it: the first of listing()."""
    return listing()[0]


def listing():
    """The cards, and how many there are besides that NVML cannot read.

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
