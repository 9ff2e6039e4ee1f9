# Threads of a driver's, or of a user's C code, that come to run Python.
#
#     cdef bint made = make_thread_state()
#     with gil:
#         drop_with_gil(made)
#         ...

cdef bint make_thread_state() noexcept nogil  # without the GIL or a lock; whether the thread had none
cdef void drop_with_gil(bint made) noexcept   # what was made goes at the end of the block, with the GIL still held
