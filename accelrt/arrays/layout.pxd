# Shapes and strides as plain numbers: an Array's extents are ndim lengths, then ndim strides in bytes.  Nothing here
# looks at memory, takes a lock or needs the GIL, but for the functions that raise.

cdef enum:
    MAX_NDIM = 64  # NumPy's limit

ctypedef Py_ssize_t[2 * MAX_NDIM] Extents

# Lengths and strides of the result in the order of NumPy's reshape without a copy; False where only a copy can do it.
cdef bint reshaped(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t new_ndim, Py_ssize_t* new_extents) noexcept nogil
# Reads a shape, an int or a sequence of ints, of 0 or more each; answers ndim.
cdef Py_ssize_t read_shape(object shape, Py_ssize_t* lengths) except -1
# Reads a shape of which one length may be -1, for `size` elements.
cdef Py_ssize_t read_new_shape(object shape, Py_ssize_t size, Py_ssize_t* lengths) except -1
# Reads strides in bytes, of any sign.
cdef int read_strides(object strides, Py_ssize_t ndim, Py_ssize_t* out_strides) except -1
# The number of elements; OverflowError's place is a ValueError where their bytes pass what an address can reach.
cdef Py_ssize_t count_elements(Py_ssize_t ndim, const Py_ssize_t* lengths, Py_ssize_t itemsize) except -1
# The bytes from the first element's address to the lowest and past the highest that some element has: low <= 0 <= high.
cdef int find_bounds(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize, Py_ssize_t* out_low,
                     Py_ssize_t* out_high) except -1


cdef inline void set_contiguous(Py_ssize_t ndim, Py_ssize_t* extents, Py_ssize_t itemsize) noexcept nogil:
    # The strides of C order, for the lengths given.
    cdef Py_ssize_t axis, step = itemsize
    for axis in range(ndim - 1, -1, -1):
        extents[ndim + axis] = step
        step *= max(extents[axis], 1)


cdef inline bint is_c_contiguous(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize) noexcept nogil:
    # Whether the elements lie one behind the other in C order.  The stride of an axis of one element does not matter.
    cdef Py_ssize_t axis, step = itemsize
    cdef bint dense = True
    for axis in range(ndim - 1, -1, -1):
        if extents[axis] == 0:
            return True
        if extents[axis] != 1:
            dense = dense and extents[ndim + axis] == step
            step *= extents[axis]
    return dense
