# What the rows of CUDA arrays, textures and surfaces take (table.pxd), laid out as CUDA's structs: a driver of CUDA's gets
# them as they are.
#
# An array is memory that is reached by its handle alone; it has no address.  No row waits for work that uses an array or a
# texture: it is destroyed once that is done, the array after what was made of it.  As memory is, they are made and destroyed
# beside captures in relaxed mode alone.
from libc.stdint cimport uint64_t, uintptr_t

cdef struct ArraySpec:     # CUDA_ARRAY3D_DESCRIPTOR
    size_t width           # elements; of a cubemap as many as the height
    size_t height          # 0: none
    size_t depth           # slices, layers or six faces; 0: none
    int format             # CUarray_format numbers, FORMAT_ here
    unsigned int channels  # 1, 2 or 4
    unsigned int flags     # ARRAY_ numbers

cdef struct Place:         # of CUDA_MEMCPY3D: one side of a copy
    size_t x               # bytes
    size_t y
    size_t z
    size_t level           # 0
    int kind               # PLACE_ numbers
    uintptr_t host         # 0
    uintptr_t address
    uintptr_t array
    uintptr_t reserved     # 0
    size_t pitch           # bytes from row to row, of memory alone
    size_t lines           # from slice to slice

cdef struct ArrayCopy:     # CUDA_MEMCPY3D: a box of bytes, of which one side at least is an array
    Place src
    Place dst
    size_t width           # bytes
    size_t height
    size_t depth

cdef struct Resource:      # CUDA_RESOURCE_DESC: what a texture is of
    int kind               # RESOURCE_ numbers
    uintptr_t source       # the handle of an array or a mipmap, or an address
    int format             # of linear memory and of rows
    unsigned int channels
    size_t width           # bytes of linear memory, elements of a row
    size_t height
    size_t pitch           # bytes
    char[96] reserved      # 0

cdef struct Sampling:      # CUDA_TEXTURE_DESC
    int[3] address_modes   # CUaddress_mode numbers, ADDRESS_ here
    int filter_mode        # 0: the nearest element, 1: linear
    unsigned int flags     # SAMPLE_ numbers
    unsigned int max_anisotropy
    int mipmap_filter      # between levels, as filter_mode
    float bias             # added to the level that a kernel asks for
    float[2] levels        # the least and the most that is read, after the bias
    float[4] border
    int[12] reserved       # 0

cdef enum:  # ArraySpec.format
    FORMAT_UINT8 = 1
    FORMAT_UINT16 = 2
    FORMAT_UINT32 = 3
    FORMAT_INT8 = 8
    FORMAT_INT16 = 9
    FORMAT_INT32 = 10
    FORMAT_HALF = 16
    FORMAT_FLOAT = 32

cdef enum:  # ArraySpec.flags
    ARRAY_LAYERED = 1   # depth counts layers
    ARRAY_SURFACE = 2   # kernels write it
    ARRAY_CUBEMAP = 4   # depth counts faces
    ARRAY_GATHER = 8    # kernels gather one channel of four elements; of two axes alone

cdef enum:  # Place.kind
    PLACE_ARRAY = 3
    PLACE_MEMORY = 4    # by its address, wherever it is

cdef enum:  # Resource.kind
    RESOURCE_ARRAY = 0
    RESOURCE_MIPMAP = 1
    RESOURCE_LINEAR = 2
    RESOURCE_ROWS = 3

cdef enum:  # Sampling.address_modes
    ADDRESS_WRAP = 0
    ADDRESS_CLAMP = 1
    ADDRESS_MIRROR = 2
    ADDRESS_BORDER = 3

cdef enum:  # Sampling.flags
    SAMPLE_INTEGERS = 1    # as they are, rather than as fractions of their type's range
    SAMPLE_NORMALIZED = 2  # by coordinates from 0 to 1; a mipmap has no others
    SAMPLE_SRGB = 16
    SAMPLE_EXACT_LEVELS = 32  # no approximation where two levels are filtered
    SAMPLE_SEAMLESS = 64      # a cubemap is filtered over its edges
