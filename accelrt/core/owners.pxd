"""File descriptors with an owner, for modules whose own code takes them from the system."""

cdef class Descriptor:
    cdef int number  # -1 once it is closed or detached
    cdef object __weakref__

    # Closes it where it is open, whatever the system says: for what has nothing left to write, such as a socket.
    cdef int release(self) except -1


cdef Descriptor own(int number)

# Each of `count` numbers as a Descriptor that is added to a list; where there is no memory for one, all are closed.
cdef int own_all(list taken, const int* numbers, size_t count) except -1
