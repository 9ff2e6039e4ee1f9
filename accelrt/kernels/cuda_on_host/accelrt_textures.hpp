// Textures and surfaces of the host device, by CUDA C++ Programming Guide, "Texture Fetching" and "Surface Functions".
#pragma once

#include <array>

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

inline Along along(const accelrt_texture& texture, int axis, double x, int64_t length, bool linear) {
    bool normalized = texture.flags & 2;
    int mode = texture.address_modes[axis];
    if (!normalized && (mode == 0 || mode == 2)) mode = 1;
    double whole = floor(x);
    if (mode == 0) x -= whole;
    if (mode == 2) x = fmod(whole, 2) ? 1 - (x - whole) : x - whole;
    x = normalized ? x * length : x;
    x = x > -1e9 ? (x < 1e9 ? x : 1e9) : -1e9;  // a NaN too
    Along along = {};
    if (linear) x = rint((x - 0.5) * 256) / 256;  // of 8 bits
    along.index[0] = (int64_t)floor(x);
    along.index[1] = along.index[0] + 1;
    along.second = linear ? x - floor(x) : 0;
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

// A level of a mipmap: where it is, and how long its axes are.
inline accelrt_texture level_of(const accelrt_texture& texture, unsigned level) {
    accelrt_texture part = texture;
    uint64_t element = texture.pitch / texture.width;
    for (unsigned each = 1; each <= level; each++) {
        part.bytes += part.slice * (part.depth ? part.depth : 1);
        part.width = accelrt_level_length(texture.width, each);
        part.height = accelrt_level_length(texture.height, each);
        if (!(texture.shape & 5)) part.depth = accelrt_level_length(texture.depth, each);
        part.pitch = part.width * element;
        part.slice = part.pitch * (part.height ? part.height : 1);
    }
    return part;
}

// elements(texture) answers, of a level, what reads one channel there.
template <class T, class Elements>
inline T read(const accelrt_texture& texture, double level, Elements elements) {
    typedef typename Texel<T>::Part Part;
    double first = floor(level), second = level - first, sums[4] = {};
    for (int side = 0; side < 2; side++) {
        double share = side ? second : 1 - second;
        if (!share) continue;
        accelrt_texture lower;
        bool whole = first + side == 0;
        if (!whole) lower = level_of(texture, first + side);
        auto part = elements(whole ? texture : lower);
        for (int channel = 0; channel < Texel<T>::count && channel < texture.channels; channel++)
            sums[channel] += share * part(channel);
    }
    T value = {};
    for (int channel = 0; channel < Texel<T>::count; channel++) ((Part*)&value)[channel] = (Part)sums[channel];
    return value;
}

// The level that is read where a kernel asks for one.
inline double level_at(const accelrt_texture& texture, double level) {
    level = fmin(fmax(level + texture.bias, texture.least), texture.most);
    level = fmin(fmax(level, 0), texture.levels - 1);
    return texture.mipmap_filter == 1 ? rint(level * 256) / 256 : floor(level + 0.5);
}

// The level whose elements are as far apart as two steps of the coordinates lead, each of so many axes of the first level.
inline double level_of_steps(const accelrt_texture& texture, int count, const double* dx, const double* dy) {
    double lengths[3] = {(double)texture.width, (double)(texture.height ? texture.height : 1),
                         (double)(texture.depth ? texture.depth : 1)}, across = 0, down = 0;
    for (int axis = 0; axis < count; axis++) {
        across += pow(dx[axis] * lengths[axis], 2);
        down += pow(dy[axis] * lengths[axis], 2);
    }
    return log2(fmax(across, down)) / 2;
}

struct Steps {
    double x, y, z;
    Steps(double x, double y = 0, double z = 0) : x(x), y(y), z(z) {}
    Steps(float2 step) : x(step.x), y(step.y), z(0) {}
    Steps(float4 step) : x(step.x), y(step.y), z(step.z) {}
};

template <class T>
inline T fetch_level(const accelrt_texture& texture, double level, int count, double x, double y, double z, int layer) {
    return read<T>(texture, level, [=](const accelrt_texture& at) {
        int64_t layers = at.depth ? at.depth : 1, slice = layer < 0 ? 0 : layer >= layers ? layers - 1 : layer;
        bool linear = at.filter_mode == 1;
        std::array<Along, 3> axes = {along(at, 0, x, at.width, linear)};
        if (count > 1) axes[1] = along(at, 1, y, at.height ? at.height : 1, linear);
        if (count > 2) axes[2] = along(at, 2, z, layers, linear);
        return [=, &at](int channel) { return sample(at, axes.data(), count, slice, channel); };
    });
}

template <class T>
inline T fetch(unsigned long long handle, int count, double x, double y, double z, int layer) {
    return fetch_level<T>(texture_of(handle), 0, count, x, y, z, layer);
}

template <class T>
inline T fetch_lod(unsigned long long handle, int count, double x, double y, double z, int layer, double level) {
    const accelrt_texture& texture = texture_of(handle);
    return fetch_level<T>(texture, level_at(texture, level), count, x, y, z, layer);
}

template <class T>
inline T fetch_grad(unsigned long long handle, int count, double x, double y, double z, int layer, Steps dx, Steps dy) {
    const accelrt_texture& texture = texture_of(handle);
    double level = level_of_steps(texture, count, &dx.x, &dy.x);
    return fetch_level<T>(texture, level_at(texture, level), count, x, y, z, layer);
}

// By the guide's table: which face a direction leads to, and where on it.
struct Facing {
    int axis;
    bool back;
    double s, t, most;
    Facing(double x, double y, double z) {
        double ax = fabs(x), ay = fabs(y), az = fabs(z);
        most = fmax(ax, fmax(ay, az));
        axis = az == most ? 2 : ay == most ? 1 : 0;  // an H100 takes +z between it and +x, which the table leaves open
        back = axis == 0 ? x < 0 : axis == 1 ? y < 0 : z < 0;
        turn(x, y, z, &s, &t);
    }
    void turn(double x, double y, double z, double* s, double* t) const {
        *s = axis == 0 ? (back ? z : -z) : axis == 1 ? x : back ? -x : x;
        *t = axis == 1 ? (back ? -z : z) : -y;
    }
    int face() const { return 2 * axis + back; }
    // What faces a place of this face's plane, whose sides are from -1 to 1.
    static Facing beyond(const Facing& from, double s, double t) {
        double one = from.back ? -1 : 1;
        return from.axis == 0 ? Facing(one, -t, from.back ? s : -s)
             : from.axis == 1 ? Facing(s, one, from.back ? -t : t) : Facing(from.back ? -s : s, -t, one);
    }
    // How far a step of the direction leads on the face, whose sides are 1.
    void step(const Steps& by, double* out) const {
        double ds, dt, d = axis == 0 ? by.x : axis == 1 ? by.y : by.z;
        turn(by.x, by.y, by.z, &ds, &dt);
        if (back) d = -d;
        out[0] = (ds - s / most * d) / most / 2;
        out[1] = (dt - t / most * d) / most / 2;
    }
};

inline int64_t clamped(double place, double length) { return (int64_t)fmin(fmax(floor(place), 0), length - 1); }

// One element of a face, or of the one behind the edge; at a corner, where there is none, the mean of the three around.
inline double beyond_edge(const accelrt_texture& at, int64_t x, int64_t y, const Facing& facing, int layer, int channel) {
    double side = at.width;
    int64_t within_x = clamped(x, side), within_y = clamped(y, side);
    if (x == within_x && y == within_y) return part_at(at, x, y, 6 * layer + facing.face(), channel);
    if (x != within_x && y != within_y)
        return (beyond_edge(at, within_x, within_y, facing, layer, channel)
                + beyond_edge(at, x, within_y, facing, layer, channel)
                + beyond_edge(at, within_x, y, facing, layer, channel)) / 3;
    Facing other = Facing::beyond(facing, (2 * x + 1) / side - 1, (2 * y + 1) / side - 1);
    int64_t column = clamped((other.s / other.most + 1) / 2 * side, side);
    int64_t row = clamped((other.t / other.most + 1) / 2 * side, side);
    return part_at(at, column, row, 6 * layer + other.face(), channel);
}

// Four elements, of which some may be of other faces (a seamless cubemap).
inline double sample_over_edges(
    const accelrt_texture& at, double x, double y, const Facing& facing, int layer, int channel) {
    double places[2] = {x, y}, shares[2], sum = 0;
    int64_t first[2];
    for (int axis = 0; axis < 2; axis++) {
        double place = rint((places[axis] * at.width - 0.5) * 256) / 256;
        first[axis] = (int64_t)floor(place);
        shares[axis] = place - floor(place);
    }
    for (int corner = 0; corner < 4; corner++) {
        int right = corner & 1, lower = corner >> 1;
        double share = (right ? shares[0] : 1 - shares[0]) * (lower ? shares[1] : 1 - shares[1]);
        if (share) sum += share * beyond_edge(at, first[0] + right, first[1] + lower, facing, layer, channel);
    }
    return sum;
}

template <class T>
inline T fetch_face(accelrt_texture texture, double level, const Facing& facing, int layer) {
    texture.flags |= 2;
    texture.address_modes[0] = texture.address_modes[1] = 1;
    return read<T>(texture, level, [&](const accelrt_texture& at) {
        bool linear = at.filter_mode == 1;
        double x = (facing.s / facing.most + 1) / 2, y = (facing.t / facing.most + 1) / 2;
        Along across = along(at, 0, x, at.width, linear), down = along(at, 1, y, at.width, linear);
        return [=, &at](int channel) {
            Along axes[2] = {across, down};
            bool seamless = linear && at.flags & 64;
            return seamless ? sample_over_edges(at, x, y, facing, layer, channel)
                            : sample(at, axes, 2, 6 * layer + facing.face(), channel);
        };
    });
}

template <class T>
inline T fetch_cube(unsigned long long handle, double x, double y, double z, int layer) {
    return fetch_face<T>(texture_of(handle), 0, Facing(x, y, z), layer);
}

template <class T>
inline T fetch_cube_lod(unsigned long long handle, double x, double y, double z, int layer, double level) {
    const accelrt_texture& texture = texture_of(handle);
    return fetch_face<T>(texture, level_at(texture, level), Facing(x, y, z), layer);
}

template <class T>
inline T fetch_cube_grad(unsigned long long handle, double x, double y, double z, int layer, Steps dx, Steps dy) {
    const accelrt_texture& texture = texture_of(handle);
    Facing facing(x, y, z);
    double across[2], down[2];
    facing.step(dx, across);
    facing.step(dy, down);
    return fetch_face<T>(texture, level_at(texture, level_of_steps(texture, 2, across, down)), facing, layer);
}

// One channel of the four elements between which a place lies, from the lower left on against the clock.
template <class T>
inline T gather(unsigned long long handle, double x, double y, int channel) {
    const accelrt_texture& texture = texture_of(handle);
    if (!(texture.shape & 8)) fail_because("a texture is gathered whose array was not made with gather=True");
    T value = {};
    Along axes[2] = {along(texture, 0, x, texture.width, true), along(texture, 1, y, texture.height, true)};
    for (int each = 0; each < Texel<T>::count && channel >= 0 && channel < texture.channels; each++) {
        int right = each == 1 || each == 2, lower = each < 2;
        bool outside = axes[0].outside[right] || axes[1].outside[lower];
        ((typename Texel<T>::Part*)&value)[each] = (typename Texel<T>::Part)(
            outside ? texture.border[channel] : part_at(texture, axes[0].index[right], axes[1].index[lower], 0, channel));
    }
    return value;
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
// What fetches elements, by the first level, by a level, and by steps of the coordinates.
#define ACCELRT_FETCHES(name, parameters, kind, arguments, step)                                                   \
    ACCELRT_FETCH(name, parameters, kind<T>(texture, ACCELRT_LIST arguments))                                       \
    ACCELRT_FETCH(name##Lod, (ACCELRT_LIST parameters, float level), kind##_lod<T>(texture, ACCELRT_LIST arguments, level)) \
    ACCELRT_FETCH(name##Grad, (ACCELRT_LIST parameters, step dx, step dy),                                          \
                  kind##_grad<T>(texture, ACCELRT_LIST arguments, dx, dy))
ACCELRT_FETCHES(tex1D, (float x), fetch, (1, x, 0, 0, 0), float)
ACCELRT_FETCHES(tex2D, (float x, float y), fetch, (2, x, y, 0, 0), float2)
ACCELRT_FETCHES(tex3D, (float x, float y, float z), fetch, (3, x, y, z, 0), float4)
ACCELRT_FETCHES(tex1DLayered, (float x, int layer), fetch, (1, x, 0, 0, layer), float)
ACCELRT_FETCHES(tex2DLayered, (float x, float y, int layer), fetch, (2, x, y, 0, layer), float2)
ACCELRT_FETCHES(texCubemap, (float x, float y, float z), fetch_cube, (x, y, z, 0), float4)
ACCELRT_FETCHES(texCubemapLayered, (float x, float y, float z, int layer), fetch_cube, (x, y, z, layer), float4)
ACCELRT_FETCH(tex2Dgather, (float x, float y, int comp = 0), gather<T>(texture, x, y, comp))

template <class T>
inline T tex1Dfetch(cudaTextureObject_t handle, int x) {
    const accelrt_texture& texture = accelrt_host::texture_of(handle);
    if (x < 0 || (uint64_t)x >= texture.width) return T();
    return accelrt_host::read<T>(texture, 0, [=](const accelrt_texture& at) {
        return [=, &at](int channel) { return accelrt_host::part_at(at, x, 0, 0, channel); };
    });
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
