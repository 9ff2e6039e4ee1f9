"""State: what a generator's numbers depend on.  Each method runs with the GIL held throughout, so that no two launches
are given the same offset."""
from libc.stdint cimport uint64_t

from accelrt.status cimport refuse_copy


cdef class State:
    """A seed and an offset, both of 64 bits, for generators that share them.

    Attributes:
        seed: int.
        offset: int, a multiple of 4: of how many words each thread's sequence was used.
    """

    cdef readonly uint64_t seed
    cdef readonly uint64_t offset
    cdef object __weakref__

    def __init__(self, uint64_t seed, uint64_t offset=0) -> None:
        self.seed = seed
        self.offset = offset

    def put(self, uint64_t seed, uint64_t offset) -> None:
        """Sets both."""
        self.seed = seed
        self.offset = offset

    def take(self, uint64_t words) -> tuple[int, int]:
        """(seed, offset) for a launch that uses so many words of each sequence, a multiple of 4; the next one is behind
        them."""
        cdef uint64_t offset = self.offset
        self.offset = offset + words
        return self.seed, offset

    def __reduce__(self):
        refuse_copy(self, "it is shared by generators; copy the Generator")
