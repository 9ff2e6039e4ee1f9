/* What the handle of a texture or a surface names on the host device: the driver writes it, kernels read it. */
#ifndef accelrt_texture_layout_h
#define accelrt_texture_layout_h

#include <stdint.h>

typedef struct accelrt_texture {
    uint64_t handle;           /* its own, with how often the place was used in the upper bits; 0: destroyed */
    char* bytes;
    uint64_t pitch, slice;     /* bytes from row to row, and from slice to slice, layer to layer, face to face */
    uint64_t width;            /* elements */
    uint32_t height, depth;    /* 0 where there is none */
    int32_t format, channels;  /* CUarray_format; 1, 2 or 4 */
    uint32_t shape;            /* CUDA_ARRAY3D_ flags of an array: 1 layered, 4 a cubemap */
    int32_t kind;              /* CUresourcetype: 0 an array, 1 a mipmap, 2 linear memory, 3 rows */
    int32_t address_modes[3];  /* CUaddress_mode: 0 wrap, 1 clamp, 2 mirror, 3 border */
    int32_t filter_mode;       /* 0 the nearest element, 1 linear */
    uint32_t flags;            /* CU_TRSF_: 1 integers as they are, 2 normalized coordinates, 16 sRGB, 64 seamless */
    uint32_t uses;             /* of this place, by all textures that had it */
    float border[4];
    uint32_t levels;           /* of a mipmap, which lie one behind the other; else 1 */
    int32_t mipmap_filter;     /* 0 the nearest level, 1 linear */
    float bias, least, most;   /* added to a level that is asked for; what is read of them then */
    struct accelrt_texture* next; /* of the places that nobody has */
} accelrt_texture;

/* How long an axis is at a level; 0 where there is none. */
static inline uint64_t accelrt_level_length(uint64_t length, unsigned level) {
    return length && !(length >> level) ? 1 : length >> level;
}

#define accelrt_texture_at(handle) ((accelrt_texture*)((uint64_t)(handle) & 0xFFFFFFFFFFFFull))
#define accelrt_texture_use(uses) ((uint64_t)((uses) & 0x7FFF) << 48)

#endif
