// Textures and surfaces of the host device, by CUDA C++ Programming Guide, "Texture Fetching" and "Surface Functions".
#pragma once

#include "accelrt_texture_layout.h"

enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero = 0, cudaBoundaryModeClamp = 1, cudaBoundaryModeTrap = 2 };

namespace accelrt_host {
// The values that a type has.
template <class T>
struct Texel {
    typedef T Part;
    static constexpr int count = 1;
};
#define ACCELRT_TEXELS(name, type)                                                           \
    template <> struct Texel<name##1> { typedef type Part; static constexpr int count = 1; }; \
    template <> struct Texel<name##2> { typedef type Part; static constexpr int count = 2; }; \
    template <> struct Texel<name##4> { typedef type Part; static constexpr int count = 4; };
ACCELRT_TEXELS(char, signed char)
ACCELRT_TEXELS(uchar, unsigned char)
ACCELRT_TEXELS(short, short)
ACCELRT_TEXELS(ushort, unsigned short)
ACCELRT_TEXELS(int, int)
ACCELRT_TEXELS(uint, unsigned int)
ACCELRT_TEXELS(float, float)
#undef ACCELRT_TEXELS

inline const accelrt_texture& texture_of(unsigned long long handle) {
    const accelrt_texture* texture = accelrt_texture_at(handle);
    if (!handle || texture->handle != handle) fail_because("a texture or a surface is used that was destroyed, or is none");
    return *texture;
}

inline float widen_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return bits >> 15 ? -size : size;
}

template <class T>
inline double integer_at(const char* at, bool whole) {
    T value;
    memcpy(&value, at, sizeof value);
    if (whole || sizeof(T) == 4) return value;
    double part = (double)value / std::numeric_limits<T>::max();
    return part < -1 ? -1 : part;
}

// One channel of an element that is there.
inline double part_at(const accelrt_texture& texture, int64_t x, int64_t y, int64_t z, int channel) {
    int size = texture.format == 1 || texture.format == 8 ? 1 : texture.format == 3 || texture.format == 10
             || texture.format == 32 ? 4 : 2;
    const char* at = texture.bytes + z * texture.slice + y * texture.pitch + (x * texture.channels + channel) * size;
    bool whole = texture.flags & 1;
    float real;
    double part;
    switch (texture.format) {
    case 1:
        part = integer_at<uint8_t>(at, whole);
        if (texture.flags & 16 && channel < 3) part = part <= 0.04045 ? part / 12.92 : pow((part + 0.055) / 1.055, 2.4);
        return part;
    case 2: return integer_at<uint16_t>(at, whole);
    case 3: return integer_at<uint32_t>(at, true);
    case 8: return integer_at<int8_t>(at, whole);
    case 9: return integer_at<int16_t>(at, whole);
    case 10: return integer_at<int32_t>(at, true);
    case 16: uint16_t bits; memcpy(&bits, at, 2); return widen_half(bits);
    default: memcpy(&real, at, 4); return real;
    }
}

// Where a coordinate leads along one axis: one element, or two and how much of the second there is.
struct Along {
    int64_t index[2];
    double second;
    bool outside[2];
};

inline Along along(const accelrt_texture& texture, int axis, double x, int64_t length) {
    bool normalized = texture.flags & 2, linear = texture.filter_mode == 1;
    int mode = texture.address_modes[axis];
    if (!normalized && (mode == 0 || mode == 2)) mode = 1;
    double whole = floor(x);
    if (mode == 0) x -= whole;
    if (mode == 2) x = fmod(whole, 2) ? 1 - (x - whole) : x - whole;
    x = normalized ? x * length : x;
    x = x > -1e9 ? (x < 1e9 ? x : 1e9) : -1e9;  // a NaN too
    Along along = {};
    if (linear) x -= 0.5;
    along.index[0] = (int64_t)floor(x);
    along.index[1] = along.index[0] + 1;
    along.second = linear ? rint((x - floor(x)) * 256) / 256 : 0;  // of 8 bits
    for (int each = 0; each < 2; each++) {
        int64_t& index = along.index[each];
        along.outside[each] = mode == 3 && (index < 0 || index >= length);
        if (mode == 0) index = (index % length + length) % length;
        index = index < 0 ? 0 : index >= length ? length - 1 : index;
    }
    return along;
}

// Of up to three axes; layer is the slice of what has fewer.
inline double sample(const accelrt_texture& texture, const Along* axes, int count, int64_t layer, int channel) {
    double sum = 0;
    for (int corner = 0; corner < 1 << count; corner++) {
        double share = 1;
        int64_t at[3] = {0, 0, layer};
        bool outside = false;
        for (int axis = 0; axis < count; axis++) {
            int side = corner >> axis & 1;
            share *= side ? axes[axis].second : 1 - axes[axis].second;
            at[axis] = axes[axis].index[side];
            outside |= axes[axis].outside[side];
        }
        if (share)
            sum += share * (outside ? texture.border[channel] : part_at(texture, at[0], at[1], at[2], channel));
    }
    return sum;
}

template <class T>
inline T read(const accelrt_texture& texture, const Along* axes, int count, int64_t layer) {
    T value = {};
    typename Texel<T>::Part* parts = (typename Texel<T>::Part*)&value;
    for (int channel = 0; channel < Texel<T>::count && channel < texture.channels; channel++)
        parts[channel] = (typename Texel<T>::Part)sample(texture, axes, count, layer, channel);
    return value;
}

template <class T>
inline T fetch(unsigned long long handle, int count, double x, double y, double z, int layer) {
    const accelrt_texture& texture = texture_of(handle);
    int64_t layers = texture.depth ? texture.depth : 1;
    Along axes[3] = {along(texture, 0, x, texture.width)};
    if (count > 1) axes[1] = along(texture, 1, y, texture.height ? texture.height : 1);
    if (count > 2) axes[2] = along(texture, 2, z, layers);
    return read<T>(texture, axes, count, layer < 0 ? 0 : layer >= layers ? layers - 1 : layer);
}

template <class T>
inline T fetch_cube(unsigned long long handle, double x, double y, double z, int layer) {
    double ax = fabs(x), ay = fabs(y), az = fabs(z), most = fmax(ax, fmax(ay, az));
    int axis = ax == most ? 0 : ay == most ? 1 : 2;
    bool back = axis == 0 ? x < 0 : axis == 1 ? y < 0 : z < 0;
    double s = axis == 0 ? (back ? z : -z) : axis == 1 ? x : back ? -x : x;
    double t = axis == 1 ? (back ? -z : z) : -y;
    accelrt_texture texture = texture_of(handle);
    texture.flags |= 2;
    Along axes[2];
    for (int each = 0; each < 2; each++) {
        texture.address_modes[each] = 1;
        axes[each] = along(texture, each, ((each ? t : s) / most + 1) / 2, texture.width);
    }
    return read<T>(texture, axes, 2, 6 * layer + 2 * axis + back);
}

// Bytes of a surface; null where they are not there and nothing is to be done.
template <class T>
inline char* bytes_at(unsigned long long handle, int64_t x, int64_t y, int64_t z, cudaSurfaceBoundaryMode mode) {
    const accelrt_texture& surface = texture_of(handle);
    int64_t most[3] = {(int64_t)(surface.pitch - sizeof(T)), (surface.height ? surface.height : 1) - (int64_t)1,
                       (surface.depth ? surface.depth : 1) - (int64_t)1};
    int64_t at[3] = {x, y, z};
    for (int axis = 0; axis < 3; axis++) {
        if (at[axis] >= 0 && at[axis] <= most[axis]) continue;
        if (mode == cudaBoundaryModeTrap) fail_because("a surface is used outside of its array");
        if (mode == cudaBoundaryModeZero) return nullptr;
        at[axis] = at[axis] < 0 ? 0 : most[axis];
    }
    return surface.bytes + at[2] * surface.slice + at[1] * surface.pitch + at[0];
}

template <class T>
inline T read_surface(unsigned long long handle, int64_t x, int64_t y, int64_t z, cudaSurfaceBoundaryMode mode) {
    T value = {};
    if (const char* at = bytes_at<T>(handle, x, y, z, mode)) memcpy(&value, at, sizeof value);
    return value;
}

template <class T>
inline void write_surface(T value, unsigned long long handle, int64_t x, int64_t y, int64_t z, cudaSurfaceBoundaryMode mode) {
    if (char* at = bytes_at<T>(handle, x, y, z, mode)) memcpy(at, &value, sizeof value);
}
}  // namespace accelrt_host

// As CUDA has them: by the value, and by a pointer to it.
#define ACCELRT_FETCH(name, parameters, call)                                                              \
    template <class T> inline T name(cudaTextureObject_t texture, ACCELRT_LIST parameters) { return accelrt_host::call; } \
    template <class T> inline void name(T* value, cudaTextureObject_t texture, ACCELRT_LIST parameters) { *value = accelrt_host::call; }
#define ACCELRT_LIST(...) __VA_ARGS__
ACCELRT_FETCH(tex1D, (float x), fetch<T>(texture, 1, x, 0, 0, 0))
ACCELRT_FETCH(tex2D, (float x, float y), fetch<T>(texture, 2, x, y, 0, 0))
ACCELRT_FETCH(tex3D, (float x, float y, float z), fetch<T>(texture, 3, x, y, z, 0))
ACCELRT_FETCH(tex1DLayered, (float x, int layer), fetch<T>(texture, 1, x, 0, 0, layer))
ACCELRT_FETCH(tex2DLayered, (float x, float y, int layer), fetch<T>(texture, 2, x, y, 0, layer))
ACCELRT_FETCH(texCubemap, (float x, float y, float z), fetch_cube<T>(texture, x, y, z, 0))
ACCELRT_FETCH(texCubemapLayered, (float x, float y, float z, int layer), fetch_cube<T>(texture, x, y, z, layer))

template <class T>
inline T tex1Dfetch(cudaTextureObject_t handle, int x) {
    const accelrt_texture& texture = accelrt_host::texture_of(handle);
    accelrt_host::Along at = {{x, 0}, 0, {false, false}};
    return x < 0 || (uint64_t)x >= texture.width ? T() : accelrt_host::read<T>(texture, &at, 1, 0);
}

#define ACCELRT_SURFACE(name, parameters, x, y, z)                                                                   \
    template <class T> inline T surf##name##read(cudaSurfaceObject_t surface, ACCELRT_LIST parameters,               \
                                                 cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {              \
        return accelrt_host::read_surface<T>(surface, x, y, z, mode); }                                              \
    template <class T> inline void surf##name##read(T* value, cudaSurfaceObject_t surface, ACCELRT_LIST parameters,  \
                                                    cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {           \
        *value = accelrt_host::read_surface<T>(surface, x, y, z, mode); }                                            \
    template <class T> inline void surf##name##write(T value, cudaSurfaceObject_t surface, ACCELRT_LIST parameters,  \
                                                     cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {          \
        accelrt_host::write_surface(value, surface, x, y, z, mode); }
ACCELRT_SURFACE(1D, (int x), x, 0, 0)
ACCELRT_SURFACE(2D, (int x, int y), x, y, 0)
ACCELRT_SURFACE(3D, (int x, int y, int z), x, y, z)
ACCELRT_SURFACE(1DLayered, (int x, int layer), x, 0, layer)
ACCELRT_SURFACE(2DLayered, (int x, int y, int layer), x, y, layer)
ACCELRT_SURFACE(Cubemap, (int x, int y, int face), x, y, face)
ACCELRT_SURFACE(CubemapLayered, (int x, int y, int face), x, y, face)
