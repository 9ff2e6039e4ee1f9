"""Shapes and strides as numbers: what callers give, read and checked; reshaping without a copy; bounds."""
import operator

cdef extern from *:
    """
    #define accelrt_mul(a, b, out) __builtin_mul_overflow(a, b, out)
    #define accelrt_add(a, b, out) __builtin_add_overflow(a, b, out)
    """
    bint multiply "accelrt_mul"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t* out) nogil
    bint add "accelrt_add"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t* out) nogil


cdef object exact_length(object length, object shape):
    if isinstance(length, bool):
        raise TypeError(f"shape is {shape!r}; a length is an int, not a bool")
    try:
        return operator.index(length)
    except TypeError:
        raise TypeError(f"shape is {shape!r}; pass an int or a tuple of ints") from None


cdef tuple lengths_of(object shape):
    # An int stands for one axis.
    if isinstance(shape, (tuple, list)):
        return tuple([exact_length(length, shape) for length in shape])
    if isinstance(shape, bool) or hasattr(shape, "__index__"):
        return (exact_length(shape, shape),)
    try:
        return tuple([exact_length(length, shape) for length in shape])
    except TypeError:
        raise TypeError(f"shape is {shape!r}; pass an int or a tuple of ints") from None


cdef Py_ssize_t checked_ndim(tuple given, object what) except -1:
    if len(given) > MAX_NDIM:
        raise ValueError(f"{what} has {len(given)} axes; an array has at most {MAX_NDIM}")
    return len(given)


cdef Py_ssize_t read_shape(object shape, Py_ssize_t* lengths) except -1:
    cdef tuple given = lengths_of(shape)
    cdef Py_ssize_t axis, ndim = checked_ndim(given, "shape")
    for axis in range(ndim):
        if not 0 <= given[axis] < 1 << 63:
            raise ValueError(f"shape is {shape}; a length goes from 0 to 2**63 - 1")
        lengths[axis] = given[axis]
    return ndim


cdef Py_ssize_t read_new_shape(object shape, Py_ssize_t size, Py_ssize_t* lengths) except -1:
    cdef tuple given = lengths_of(shape)
    cdef Py_ssize_t ndim = checked_ndim(given, "shape")
    cdef object total = 1
    open_axes = [axis for axis in range(ndim) if given[axis] == -1]
    for length in given:
        total *= 1 if length == -1 else length
    if len(open_axes) > 1 or any([length < -1 for length in given]):
        raise ValueError(f"shape is {shape}; one length may be -1, and stands for what is left")
    if open_axes and (total == 0 or size % total):
        raise ValueError(f"cannot reshape {size} elements to {given}: they are no multiple of the other lengths")
    if not open_axes and total != size:
        raise ValueError(f"cannot reshape {size} elements to {given}, which has {total}")
    for axis in range(ndim):
        lengths[axis] = size // total if given[axis] == -1 else given[axis]
    return ndim


cdef int read_strides(object strides, Py_ssize_t ndim, Py_ssize_t* out_strides) except -1:
    cdef Py_ssize_t axis
    try:
        given = tuple([operator.index(stride) for stride in strides])
    except TypeError:
        raise TypeError(f"strides is {strides!r}; pass a tuple of ints, in bytes") from None
    if len(given) != ndim:
        raise ValueError(f"strides is {strides}, of {len(given)} axes; the shape has {ndim}")
    for axis in range(ndim):
        if not -(1 << 63) <= given[axis] < 1 << 63:
            raise ValueError(f"strides is {strides}; no memory reaches so far")
        out_strides[axis] = given[axis]
    return 0


cdef Py_ssize_t count_elements(Py_ssize_t ndim, const Py_ssize_t* lengths, Py_ssize_t itemsize) except -1:
    # As NumPy counts: where one length is 0 the others may be any whose product fits.
    cdef Py_ssize_t axis, size = 1, nbytes = itemsize
    cdef bint empty = False, over = False
    for axis in range(ndim):
        if lengths[axis] == 0:
            empty = True
        else:
            over = over or multiply(nbytes, lengths[axis], &nbytes)
            size *= lengths[axis] if not over else 1
    if over:
        raise ValueError(f"an array of shape {tuple([lengths[axis] for axis in range(ndim)])} with {itemsize} bytes "
                         "an element is larger than any memory")
    return 0 if empty else size


cdef int find_bounds(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize, Py_ssize_t* out_low,
                     Py_ssize_t* out_high) except -1:
    cdef Py_ssize_t axis, reach
    cdef bint over = False
    out_low[0] = 0
    out_high[0] = itemsize
    for axis in range(ndim):
        if extents[axis] == 0:
            out_low[0] = out_high[0] = 0
            return 0
        over = over or multiply(extents[axis] - 1, extents[ndim + axis], &reach)
        if not over and reach < 0:
            over = add(out_low[0], reach, out_low)
        elif not over:
            over = add(out_high[0], reach, out_high)
    if over:
        raise ValueError(f"strides {tuple([extents[ndim + axis] for axis in range(ndim)])} reach beyond all memory")
    return 0


cdef bint reshaped(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t new_ndim,
                   Py_ssize_t* new_extents) noexcept nogil:
    # Groups of old axes and of new ones that hold as many elements are matched from the front; a group of old axes
    # has to be one run of even steps.
    cdef Extents old
    cdef Py_ssize_t axis, used = 0, first = 0, last, new_first = 0, new_last, held, wanted, step
    for axis in range(ndim):  # axes of one element have no say
        if extents[axis] != 1:
            old[used] = extents[axis]
            old[MAX_NDIM + used] = extents[ndim + axis]
            used += 1
    while new_first < new_ndim and first < used:
        last, new_last = first + 1, new_first + 1
        held, wanted = old[first], new_extents[new_first]
        while held != wanted:
            if wanted < held:
                wanted *= new_extents[new_last]
                new_last += 1
            else:
                held *= old[last]
                last += 1
        for axis in range(first, last - 1):
            if old[MAX_NDIM + axis] != old[axis + 1] * old[MAX_NDIM + axis + 1]:
                return False
        step = old[MAX_NDIM + last - 1]
        for axis in range(new_last - 1, new_first - 1, -1):
            new_extents[new_ndim + axis] = step
            step *= new_extents[axis]
        first, new_first = last, new_last
    step = old[MAX_NDIM + used - 1] if used else 1
    for axis in range(new_first, new_ndim):  # what is left holds one element
        new_extents[new_ndim + axis] = step
    return True
