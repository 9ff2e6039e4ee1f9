"""Copies and fills of Arrays of any strides.

Both sides' axes are merged where they lie alike.  What is left is copied in one piece, by the driver's copies of rows and
slices (copy_3d), or by as many of those as there are steps along the axes that these do not take.  Elements that are
read again and again (a stride of 0) are copied once, and then from the destination, twice as many each time.
"""
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from accelrt.arrays.array cimport PINNED_BUFFER, Array, check_live, new_array, finish_array, numpy_module
from accelrt.arrays.layout cimport MAX_NDIM, find_bounds, set_contiguous
from accelrt.arrays.buffer cimport Buffer, PinnedBuffer
from accelrt.arrays.copy cimport copy_operands, worker_for
from accelrt.arrays.copy import fill
from accelrt.arrays.operand cimport (
    Operand, captures_apart, enter_use, finish, is_asynchronous, keep, leave_use, note_use, read_array, record_for,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport MAX_PITCH
from accelrt.runtime.capture_record cimport Record, any_capture
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport raise_status
from accelrt.streams.current cimport current_of, stream_of
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Access

cdef enum:
    LOOKS = 3  # axes at the end that one call of the driver takes at most: bytes of a row, rows, slices

cdef struct Piece:       # of a copy: both sides' strides along the same axes
    Py_ssize_t ndim
    Py_ssize_t itemsize  # bytes that lie together on both sides
    Py_ssize_t[MAX_NDIM] lengths
    Py_ssize_t[MAX_NDIM] to
    Py_ssize_t[MAX_NDIM] origin


# --- shapes ------------------------------------------------------------------------------------------------------

cdef int broadcast(Piece* piece, Array dst, Array src) except -1:
    # The source's axes are the destination's last ones; one of a single element is read again and again.
    cdef Py_ssize_t axis, behind, length
    piece.ndim = dst.ndim
    piece.itemsize = dst.itemsize
    for axis in range(dst.ndim):
        piece.lengths[axis] = dst.extents[axis]
        piece.to[axis] = dst.extents[dst.ndim + axis]
        piece.origin[axis] = 0
    for behind in range(1, src.ndim + 1):
        length = src.extents[src.ndim - behind]
        if behind > dst.ndim:
            if length != 1:
                raise_shapes(dst, src)
        elif length == dst.extents[dst.ndim - behind]:
            piece.origin[dst.ndim - behind] = src.extents[2 * src.ndim - behind]
        elif length != 1:
            raise_shapes(dst, src)
    return 0


cdef int raise_shapes(Array dst, Array src) except -1:
    raise ValueError(f"an Array of shape {src.shape} cannot be broadcast to shape {dst.shape}")


cdef int check_overlap(Array dst) except -1:
    # Two elements at one address would hold whichever was written last.  Sorted by stride, each axis has to step over
    # all of the axes below it; layouts that interleave without overlapping are refused too.
    cdef Py_ssize_t reach = dst.itemsize
    for stride, length in sorted([(abs(dst.extents[dst.ndim + axis]), dst.extents[axis]) for axis in range(dst.ndim)]):
        if length > 1:
            if stride < reach:
                raise ValueError(f"elements of an Array of shape {dst.shape} and strides {dst.strides} lie on each other; "
                                 "it cannot be written")
            reach = stride * (length - 1) + reach
    return 0


cdef void drop_axis(Piece* piece, Py_ssize_t axis) noexcept nogil:
    cdef Py_ssize_t behind
    piece.ndim -= 1
    for behind in range(axis, piece.ndim):
        piece.lengths[behind] = piece.lengths[behind + 1]
        piece.to[behind] = piece.to[behind + 1]
        piece.origin[behind] = piece.origin[behind + 1]


cdef void swap_axes(Piece* piece, Py_ssize_t first, Py_ssize_t second) noexcept nogil:
    piece.lengths[first], piece.lengths[second] = piece.lengths[second], piece.lengths[first]
    piece.to[first], piece.to[second] = piece.to[second], piece.to[first]
    piece.origin[first], piece.origin[second] = piece.origin[second], piece.origin[first]


cdef void merge_axes(Piece* piece, uintptr_t* dst, uintptr_t* src) noexcept nogil:
    # Axes that step backwards on the destination are turned round; then they are ordered by its strides, and neighbours
    # that step on where the other ends, on both sides, become one.  An innermost axis of bytes that lie together goes.
    cdef Py_ssize_t axis, place
    for axis in range(piece.ndim - 1, -1, -1):
        if piece.lengths[axis] == 1:
            drop_axis(piece, axis)
        elif piece.to[axis] < 0:
            dst[0] += piece.to[axis] * (piece.lengths[axis] - 1)
            src[0] += piece.origin[axis] * (piece.lengths[axis] - 1)
            piece.to[axis] = -piece.to[axis]
            piece.origin[axis] = -piece.origin[axis]
    for axis in range(1, piece.ndim):
        place = axis
        while place and piece.to[place - 1] < piece.to[place]:
            swap_axes(piece, place - 1, place)
            place -= 1
    for axis in range(piece.ndim - 2, -1, -1):
        if (piece.to[axis] == piece.to[axis + 1] * piece.lengths[axis + 1]
                and piece.origin[axis] == piece.origin[axis + 1] * piece.lengths[axis + 1]):
            piece.lengths[axis + 1] *= piece.lengths[axis]
            drop_axis(piece, axis)
    axis = piece.ndim - 1
    if axis >= 0 and piece.to[axis] == piece.itemsize and piece.origin[axis] == piece.itemsize:
        piece.itemsize *= piece.lengths[axis]
        piece.ndim -= 1


# --- the driver's copies -----------------------------------------------------------------------------------------

cdef inline bint is_pitch(Py_ssize_t stride, Py_ssize_t least) noexcept nogil:
    return least <= stride <= MAX_PITCH


cdef int put_in(const Piece* piece, Py_ssize_t axis, Stream worker, uintptr_t dst, uintptr_t src) noexcept nogil:
    # The axes from `axis` on.  Without the GIL: a full queue may wait for a function of Python's.
    cdef Py_ssize_t left = piece.ndim - axis, step, rows
    cdef int code = 0
    if left == 0:
        return registry.active().copy_async(worker.device_index, worker.handle, dst, src, piece.itemsize)
    if piece.origin[axis] == 0:
        return put_in_again(piece, axis, worker, dst, src)
    rows = piece.ndim - 1
    if left == 1 and is_pitch(piece.to[rows], piece.itemsize) and is_pitch(piece.origin[rows], piece.itemsize):
        return registry.active().copy_3d(
            worker.device_index, worker.handle, dst, piece.to[rows], piece.lengths[rows], src, piece.origin[rows],
            piece.lengths[rows], piece.itemsize, piece.lengths[rows], 1)
    if left == 2 and are_slices(piece):
        return registry.active().copy_3d(
            worker.device_index, worker.handle, dst, piece.to[rows], piece.to[axis] // piece.to[rows], src,
            piece.origin[rows], piece.origin[axis] // piece.origin[rows], piece.itemsize, piece.lengths[rows],
            piece.lengths[axis])
    for step in range(piece.lengths[axis]):
        code = put_in(piece, axis + 1, worker, dst + step * piece.to[axis], src + step * piece.origin[axis])
        if code:
            break
    return code


cdef bint are_slices(const Piece* piece) noexcept nogil:
    # Whether the last two axes are rows and slices to the driver, on both sides.
    cdef Py_ssize_t rows = piece.ndim - 1, axis = piece.ndim - 2
    return (is_pitch(piece.to[rows], piece.itemsize) and is_pitch(piece.origin[rows], piece.itemsize)
            and piece.to[axis] % piece.to[rows] == 0 and piece.origin[axis] % piece.origin[rows] == 0
            and piece.to[axis] // piece.to[rows] >= piece.lengths[rows]
            and piece.origin[axis] // piece.origin[rows] >= piece.lengths[rows])


cdef int put_in_again(const Piece* piece, Py_ssize_t axis, Stream worker, uintptr_t dst, uintptr_t src) noexcept nogil:
    # The first step along the axis comes from the source, the others from what is there already.
    cdef Piece rest = piece[0]
    cdef Py_ssize_t done = 1, part, inner
    cdef uintptr_t to = dst, origin = dst
    cdef int code = put_in(piece, axis + 1, worker, dst, src)
    while code == 0 and done < piece.lengths[axis]:
        part = min(done, piece.lengths[axis] - done)
        rest.ndim = piece.ndim - axis
        rest.itemsize = piece.itemsize
        for inner in range(rest.ndim):
            rest.lengths[inner] = piece.lengths[axis + inner]
            rest.to[inner] = rest.origin[inner] = piece.to[axis + inner]
        rest.lengths[0] = part
        to, origin = dst + done * piece.to[axis], dst
        merge_axes(&rest, &to, &origin)
        code = put_in(&rest, 0, worker, to, origin)
        done += part
    return code


cdef int put_piece_in(Piece* piece, Stream worker, uintptr_t dst, uintptr_t src) except? -1:
    # Answers the driver's code.  Axes that are read again and again go first, and of the last two the longer one is that
    # of the rows.
    cdef Py_ssize_t axis, place, last = piece.ndim - 1
    cdef int code
    for axis in range(1, piece.ndim):
        place = axis
        while place and piece.origin[place] == 0 and piece.origin[place - 1] != 0:
            swap_axes(piece, place - 1, place)
            place -= 1
    if (last > 0 and piece.origin[last - 1] and piece.lengths[last - 1] > piece.lengths[last] and not are_slices(piece)
            and is_pitch(piece.to[last - 1], piece.itemsize) and is_pitch(piece.origin[last - 1], piece.itemsize)):
        swap_axes(piece, last - 1, last)
    with nogil:
        code = put_in(piece, 0, worker, dst, src)
    return code


# --- whole copies --------------------------------------------------------------------------------------------------

cdef int span_of(Array array, uintptr_t* out_low, uintptr_t* out_size) except -1:
    cdef Py_ssize_t low, high
    find_bounds(array.ndim, array.extents, array.itemsize, &low, &high)
    out_low[0] = array.ptr + low
    out_size[0] = high - low
    return 0


cdef bint may_share(Array dst, Array src) except -1:
    # Whether the bytes from the first to the last element of each have some in common.
    cdef uintptr_t dst_low, dst_size, src_low, src_size
    if dst.device_index != src.device_index:
        return False
    span_of(dst, &dst_low, &dst_size)
    span_of(src, &src_low, &src_size)
    return dst_low < src_low + src_size and src_low < dst_low + dst_size


cdef int announce(Array array, str mode, Stream worker) except -1:
    # To the race detector: all bytes from the first element to the last.
    cdef uintptr_t low, size
    span_of(array, &low, &size)
    return watch.note_access(worker.device_index, worker.handle, low, size, mode, "copy_")


cdef Array packed(Array like, object owner, uintptr_t ptr, int device_index, Stream stream):
    # A C-contiguous Array of like's shape and type.
    cdef Array made = new_array(owner, ptr, device_index, stream, like.dtype, like.ndim, False)
    memcpy(made.extents, like.extents, like.ndim * sizeof(Py_ssize_t))
    set_contiguous(like.ndim, made.extents, like.itemsize)
    finish_array(made)
    return made


cdef Array packed_on(Array like, int device_index, Stream stream):
    cdef Buffer buffer = Buffer(like.size * like.itemsize, device_index, stream)
    return packed(like, buffer, buffer.ptr, device_index, buffer.stream)


cdef Array packed_in_pinned(Array like, int device_index):
    cdef PinnedBuffer pinned = PinnedBuffer(like.size * like.itemsize, device_index)
    return packed(like, pinned, pinned.ptr, -1, None)


cdef bint is_ordinary(Array array) except -1:
    # Host memory that is not page-locked.
    cdef Operand side
    if array.device_index >= 0 or array.owner == PINNED_BUFFER:
        return False
    read_array(&side, array, "the memory", False)
    return not is_asynchronous(&side)


cdef int check_sides(Array dst, Array src) except -1:
    check_live(dst, "dst")
    check_live(src, "src")
    if dst.readonly:
        raise ValueError("dst is a read-only Array; pass one that can be written")
    if dst.dtype is not src.dtype and dst.dtype != src.dtype:
        raise TypeError(f"an Array of {dst.dtype} takes no elements of {src.dtype}: nothing is converted here; convert them "
                        "first, or name the bytes' type with view()")
    return 0


cdef int copy_array(Array dst, Array src, bint blocking, object stream) except -1:
    cdef Piece piece
    cdef uintptr_t to, origin
    if stream is not None and max(src.device_index, dst.device_index) >= 0:  # the caller's code comes first
        stream = stream_of(stream, src.device_index if src.device_index >= 0 else dst.device_index)
    check_sides(dst, src)
    to, origin = dst.ptr, src.ptr
    broadcast(&piece, dst, src)
    if dst.size == 0:
        return 0
    check_overlap(dst)
    if dst.device_index < 0 and src.device_index < 0:
        return copy_on_host(dst, src)
    if dst.device_index >= 0 and src.device_index >= 0 and dst.device_index != src.device_index:
        return copy_between(dst, src, stream)
    merge_axes(&piece, &to, &origin)
    if may_share(dst, src):
        return copy_shared(dst, src, stream)
    if piece.ndim == 0:
        return copy_whole(dst, to, src, origin, piece.itemsize, blocking, stream)
    if is_ordinary(dst) or is_ordinary(src):
        return copy_staged(dst, src, blocking, stream)
    return copy_piece(dst, to, src, origin, &piece, blocking, stream)


cdef int copy_on_host(Array dst, Array src) except -1:
    # Where both share bytes NumPy does not always copy as if by memory of its own (x[0:40:2] = x[8:28]).
    cdef object elements = src.numpy()
    if may_share(dst, src):
        elements = elements.copy()
    numpy_module().copyto(dst.numpy(), elements)
    return 0


cdef int copy_whole(Array dst, uintptr_t to, Array src, uintptr_t origin, size_t size, bint blocking,
                    object stream) except -1:
    # One piece of memory, which lies alike on both sides.
    cdef Operand dst_side, src_side
    read_array(&dst_side, dst, "dst", True)
    read_array(&src_side, src, "src", False)
    return copy_operands(&dst_side, to, &src_side, origin, size, stream, blocking, dst, src, None, None)


cdef int copy_piece(Array dst, uintptr_t to, Array src, uintptr_t origin, Piece* piece, bint blocking,
                    object stream) except -1:
    cdef Stream worker = worker_for(stream, max(dst.device_index, src.device_index))
    cdef Operand dst_side, src_side
    cdef bint kept_dst = False, kept_src = False
    cdef Record record
    cdef Access access
    cdef int code
    read_array(&dst_side, dst, "dst", True)
    read_array(&src_side, src, "src", False)
    if blocking:
        watch.before_wait("copy_ with non_blocking=False")
    if watch.sanitizing:
        announce(src, "r", worker)
        announce(dst, "w", worker)
    enter_use(&access, &dst_side, dst, &src_side, src)
    try:
        record = record_for(worker)
        if record is not None:
            kept_dst, kept_src = keep(&dst_side, None, record), keep(&src_side, None, record)
        code = put_piece_in(piece, worker, to, origin)
        note_use(&dst_side, worker, kept_dst, blocking)  # also where a later part was refused
        note_use(&src_side, worker, kept_src, blocking)
        if code:
            raise_status(code, "copy_3d", ("device", worker.device_index, "stream", worker.handle, "dst", to, "src",
                                           origin, "shape", dst.shape, "dst_strides", dst.strides, "src_strides",
                                           src.strides))
        if blocking:  # until then page-locked memory is this copy's alone, of which its cache was not told
            access.enqueued = True
            finish(worker, &dst_side if dst.device_index < 0 else &src_side if src.device_index < 0 else NULL, dst, src,
                   None, None)
    finally:
        leave_use(&access)
    return 0


cdef int copy_shared(Array dst, Array src, object stream) except -1:
    # By memory of its own, for a driver's copy of bytes that both sides share is undefined.
    cdef Stream worker
    cdef Array between
    if dst.ptr == src.ptr and dst.shape == src.shape and dst.strides == src.strides:
        return 0
    worker = worker_for(stream, dst.device_index)
    between = packed_on(src, dst.device_index, worker)
    copy_array(between, src, False, worker)
    return copy_array(dst, between, False, worker)


cdef int copy_staged(Array dst, Array src, bint blocking, object stream) except -1:
    # Scattered elements of ordinary host memory, by page-locked memory, which the cache keeps until the copy is done.
    cdef Stream worker = worker_for(stream, max(dst.device_index, src.device_index))
    cdef Array between
    if record_for(worker) is not None:
        raise ValueError("a capture takes no copy of scattered elements of ordinary host memory; use page-locked memory, "
                         "accelrt.empty(..., pin_memory=True), or a contiguous array")
    if dst.device_index >= 0:
        between = packed_in_pinned(src, worker.device_index)
        numpy_module().copyto(between.numpy(), src.numpy())
        return copy_array(dst, between, blocking, worker)
    between = packed_in_pinned(src, worker.device_index)
    copy_array(between, src, True, worker)
    numpy_module().copyto(dst.numpy(), between.numpy())
    return 0


cdef int copy_between(Array dst, Array src, object stream) except -1:
    # Of two devices: as one piece, for which each side is packed on its own device where it is not one.
    cdef Array origin = src, to = dst
    cdef bint alike = dst.shape == src.shape
    cdef bint scattered = not (alike and dst.dense() and src.dense())
    cdef Stream near, far
    if stream is not None and scattered:
        raise ValueError("a copy of scattered elements between two devices works on a stream of each; pass no stream, and "
                         "make those that it is to use current")
    if scattered and any_capture():
        near, far = current_of(src.device_index), current_of(dst.device_index)
        if captures_apart(near, far) or captures_apart(far, near):
            raise ValueError("a captured copy of scattered elements between two devices works on the current stream of "
                             "each, and one of the two is not in the capture; have it wait for the other first, or copy "
                             "from and to contiguous arrays")
    if not src.dense():
        origin = packed_on(src, src.device_index, worker_for(None, src.device_index))
        copy_array(origin, src, False, None)
    if not alike or not dst.dense():
        to = packed_on(src, dst.device_index, worker_for(None, dst.device_index))
    copy_whole(to, to.ptr, origin, origin.ptr, origin.size * origin.itemsize, False, stream)
    return copy_array(dst, to, False, None) if to is not dst else 0


# --- fills ---------------------------------------------------------------------------------------------------------

cdef int width_of(bytes element) except -1:
    # The shortest part, of 1, 2 or 4 bytes, that the element repeats; 0 where there is none.
    for width in (1, 2, 4):
        if len(element) % width == 0 and element == element[:width] * (len(element) // width):
            return width
    return 0


cdef int fill_array(Array dst, object value, object stream) except -1:
    cdef Piece piece
    cdef uintptr_t to, origin = 0
    cdef int width
    check_live(dst, "this")
    if dst.readonly:
        raise ValueError("this is a read-only Array; fill one that can be written")
    element = numpy_module().empty((), dst.dtype)
    element[()] = value
    if stream is not None and dst.device_index >= 0:
        stream = stream_of(stream, dst.device_index)
    check_live(dst, "this")  # the value's and the stream's code came before
    to = dst.ptr
    if dst.size == 0:
        return 0
    if dst.device_index < 0:
        dst.numpy()[...] = element
        return 0
    check_overlap(dst)
    width = width_of(element.tobytes())
    broadcast(&piece, dst, dst)
    merge_axes(&piece, &to, &origin)
    if width and piece.ndim == 0 and to % width == 0:
        number = int.from_bytes(element.tobytes()[:width], "little")
        fill(flat(dst, to, piece.itemsize), number, width=width, stream=stream)
        return 0
    return fill_scattered(dst, element, stream)


cdef Array flat(Array dst, uintptr_t ptr, Py_ssize_t nbytes):
    # The bytes from ptr on, in the same memory.
    cdef Array made = new_array(dst.base, ptr, dst.device_index, dst.stream, numpy_module().dtype("u1"), 1, False)
    made.extents[0] = nbytes
    made.extents[1] = 1
    finish_array(made)
    return made


cdef int fill_scattered(Array dst, object element, object stream) except -1:
    # From one element in page-locked memory, which a capture's graph keeps.
    cdef Array one = new_array(PinnedBuffer(dst.itemsize, dst.device_index), 0, -1, None, dst.dtype, 0, False)
    one.ptr = (<PinnedBuffer>one.base).ptr
    finish_array(one)
    one.numpy()[()] = element
    return copy_array(dst, one, False, stream)
