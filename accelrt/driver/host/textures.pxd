# What the host device's CUDA arrays and textures are, and which ones there may be.  Their rows are in memory.pyx.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.textures cimport (
    ADDRESS_BORDER, ADDRESS_WRAP, ARRAY_CUBEMAP, ARRAY_GATHER, ARRAY_LAYERED, ARRAY_SURFACE, ArraySpec, FORMAT_FLOAT,
    FORMAT_HALF, FORMAT_INT8, FORMAT_INT16, FORMAT_INT32, FORMAT_UINT8, FORMAT_UINT16, FORMAT_UINT32, Sampling,
)

cdef extern from "../../kernels/cuda_on_host/accelrt_texture_layout.h" nogil:
    ctypedef struct Texture "accelrt_texture":
        uint64_t handle
        char* bytes
        uint64_t pitch
        uint64_t slice
        uint64_t width
        unsigned int height
        unsigned int depth
        int format
        int channels
        unsigned int shape
        int kind
        int[3] address_modes
        int filter_mode
        unsigned int flags
        unsigned int uses
        float[4] border
        unsigned int levels
        int mipmap_filter
        float bias
        float least
        float most
        Texture* next
    uint64_t use_bits "accelrt_texture_use" (unsigned int uses) noexcept nogil
    uint64_t level_length "accelrt_level_length" (uint64_t length, unsigned int level) noexcept nogil

cdef enum:  # limits of an H200 (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")
    MOST_LINE = 131072      # elements of a row of one or two axes
    MOST_ROWS = 65536
    MOST_LAYERED = 32768    # of a mipmap too
    MOST_LAYERS = 2048
    MOST_SIDE = 16384       # of three axes
    MOST_LINEAR = 1 << 28   # elements of linear memory
    MOST_PITCHED_ROWS = 65000
    MOST_PITCH = 2097120    # bytes
    ALIGNMENT = 512
    PITCH_ALIGNMENT = 32
    LEVEL_BITS = 31         # of a handle: which level of a mipmap it names, from 1 on; 0 for what is none

cdef struct HostArray:
    ArraySpec spec
    int device
    uintptr_t address
    size_t element        # bytes
    size_t size
    unsigned int levels   # of a mipmap, whose spec is that of the first; 0 for an array
    HostArray* parts      # an array for each


cdef inline int texture_limit(int attribute) noexcept nogil:
    # A CUdevice_attribute, 21 to 30, 42 to 74 and 77; layers of cubemaps are faces.  0 for what is no limit of theirs.
    cdef int[10] from_21 = [
        MOST_LINE, MOST_LINE, MOST_ROWS, MOST_SIDE, MOST_SIDE, MOST_SIDE, MOST_LAYERED, MOST_LAYERED, MOST_LAYERS, ALIGNMENT]
    cdef int[33] from_42 = [
        MOST_LAYERED, MOST_LAYERS, 1, MOST_LAYERED, MOST_LAYERED, 0, 0, 0, 0, PITCH_ALIGNMENT, MOST_LAYERED, MOST_LAYERED,
        MOST_LAYERS - 2, MOST_LAYERED, MOST_LINE, MOST_ROWS, MOST_SIDE, MOST_SIDE, MOST_SIDE, MOST_LAYERED, MOST_LAYERS,
        MOST_LAYERED, MOST_LAYERED, MOST_LAYERS, MOST_LAYERED, MOST_LAYERED, MOST_LAYERS - 2, MOST_LINEAR, MOST_LINE,
        MOST_PITCHED_ROWS, MOST_PITCH, MOST_LAYERED, MOST_LAYERED]
    if 21 <= attribute <= 30:
        return from_21[attribute - 21]
    if 42 <= attribute <= 74:
        return from_42[attribute - 42]
    return ALIGNMENT if attribute == 14 else MOST_LAYERED if attribute == 77 else 0


cdef inline size_t element_size(int format, unsigned int channels) noexcept nogil:
    # 0 for what is none.
    cdef size_t size = 0
    if format == FORMAT_UINT8 or format == FORMAT_INT8:
        size = 1
    elif format == FORMAT_UINT16 or format == FORMAT_INT16 or format == FORMAT_HALF:
        size = 2
    elif format == FORMAT_UINT32 or format == FORMAT_INT32 or format == FORMAT_FLOAT:
        size = 4
    return size * channels if channels in (1, 2, 4) else 0


cdef inline bint is_shape(const ArraySpec* spec) noexcept nogil:
    cdef bint layered = spec.flags & ARRAY_LAYERED
    cdef size_t width = spec.width, height = spec.height, depth = spec.depth
    if width == 0 or spec.flags & ~(ARRAY_LAYERED | ARRAY_SURFACE | ARRAY_CUBEMAP | ARRAY_GATHER):
        return False
    if spec.flags & ARRAY_GATHER and (height == 0 or depth or max(width, height) > MOST_LAYERED):
        return False
    if spec.flags & ARRAY_CUBEMAP:
        return width == height and width <= MOST_LAYERED and (
            depth % 6 == 0 and 0 < depth <= MOST_LAYERS if layered else depth == 6)
    if layered:
        return width <= MOST_LAYERED and height <= MOST_LAYERED and 0 < depth <= MOST_LAYERS
    if depth:
        return height > 0 and max(width, height, depth) <= MOST_SIDE
    if height == 0 and spec.flags & ARRAY_SURFACE:
        return width <= MOST_LAYERED
    return width <= MOST_LINE and height <= MOST_ROWS


cdef inline unsigned int most_levels(const ArraySpec* spec) noexcept nogil:
    # Of a mipmap, whose last level is one element, in each layer and on each face; 0 where there is none of that shape.
    cdef bint slices = spec.flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)
    cdef size_t longest = max(spec.width, spec.height, 0 if slices else spec.depth)
    cdef unsigned int levels = 0
    if longest > MOST_LAYERED:
        return 0
    while longest >> levels:
        levels += 1
    return levels


cdef inline void describe_level(
    const HostArray* whole, unsigned int level, uintptr_t address, HostArray* part,
) noexcept nogil:
    cdef bint slices = whole.spec.flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)
    part.spec, part.device, part.element, part.address = whole.spec, whole.device, whole.element, address
    part.spec.width = level_length(whole.spec.width, level)
    part.spec.height = level_length(whole.spec.height, level)
    if not slices:
        part.spec.depth = level_length(whole.spec.depth, level)
    part.size = array_size(&part.spec)


cdef inline size_t array_size(const ArraySpec* spec) noexcept nogil:
    cdef size_t rows = max(spec.height, <size_t>1) * max(spec.depth, <size_t>1)
    return element_size(spec.format, spec.channels) * spec.width * rows


cdef inline bint is_sampling(const Sampling* sampling) noexcept nogil:
    cdef int axis
    for axis in range(3):
        if not ADDRESS_WRAP <= sampling.address_modes[axis] <= ADDRESS_BORDER:
            return False
    return 0 <= sampling.filter_mode <= 1 and 0 <= sampling.mipmap_filter <= 1


cdef inline bint is_within(size_t start, size_t count, size_t most) noexcept nogil:
    return count <= most and start <= most - count
