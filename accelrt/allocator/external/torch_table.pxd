# How torch's pools are told from accelrt's; and torch's blocks that other processes may open, for accelrt.sharing, which
# hands out their pages.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.pool cimport Exported

cdef enum:
    # The bit that tells ids of torch's pools from accelrt's: in the second number where torch has an id of accelrt's, in the
    # first where accelrt has one of torch's.
    TORCH_BIT = 62

# The pages, or the plain segment, of a block that torch shares: which lie there, and begin with the page, or are the
# segment, of that serial.  NULL: torch has none there any more.  Its block stays allocated until let_go_of_share, for which
# out_address is; the answer lives as long.  Without the GIL, under no lock.
cdef const Exported* hold_share(
    int device, uintptr_t base, size_t size, uint64_t serial, uintptr_t* out_address) noexcept nogil
cdef void let_go_of_share(uintptr_t address) noexcept nogil
