// CUDA's atomic functions: blocks run at the same time, so they are atomic between threads of the host too.
#pragma once

#define ACCELRT_ATOMIC_BY(name, type, builtin)                                                                   \
    accelrt_inline type name(type* at, type value) { return __atomic_##builtin(at, value, __ATOMIC_RELAXED); }   \
    accelrt_inline type name##_block(type* at, type value) { return name(at, value); }                           \
    accelrt_inline type name##_system(type* at, type value) { return name(at, value); }
#define ACCELRT_ATOMIC_INTEGERS(name, builtin)                                                                   \
    ACCELRT_ATOMIC_BY(name, int, builtin)                                                                        \
    ACCELRT_ATOMIC_BY(name, unsigned int, builtin)                                                               \
    ACCELRT_ATOMIC_BY(name, unsigned long long, builtin)
ACCELRT_ATOMIC_INTEGERS(atomicAdd, fetch_add)
ACCELRT_ATOMIC_INTEGERS(atomicAnd, fetch_and)
ACCELRT_ATOMIC_INTEGERS(atomicOr, fetch_or)
ACCELRT_ATOMIC_INTEGERS(atomicXor, fetch_xor)
ACCELRT_ATOMIC_BY(atomicSub, int, fetch_sub)
ACCELRT_ATOMIC_BY(atomicSub, unsigned int, fetch_sub)
#undef ACCELRT_ATOMIC_BY
#undef ACCELRT_ATOMIC_INTEGERS

// The value becomes what change makes of it, unless that is what it was; returns the value before.
template <class Bits, class T, class F> accelrt_inline T accelrt_atomic_change(T* at, F change) {
    static_assert(sizeof(Bits) == sizeof(T), "of one size");
    Bits before = __atomic_load_n((Bits*)at, __ATOMIC_RELAXED);
    for (;;) {
        const T old = accelrt_bits_as<T>(before);
        const Bits wanted = accelrt_bits_as<Bits>((T)change(old));
        if (wanted == before || __atomic_compare_exchange_n((Bits*)at, &before, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return old;
    }
}
#define ACCELRT_ATOMIC(name, type, bits, ...)                                                                    \
    accelrt_inline type name(type* at, type value) {                                                             \
        return accelrt_atomic_change<bits>(at, [value](type old) { return __VA_ARGS__; });                       \
    }                                                                                                            \
    accelrt_inline type name##_block(type* at, type value) { return name(at, value); }                           \
    accelrt_inline type name##_system(type* at, type value) { return name(at, value); }
ACCELRT_ATOMIC(atomicAdd, float, unsigned int, old + value)
ACCELRT_ATOMIC(atomicAdd, double, unsigned long long, old + value)
ACCELRT_ATOMIC(atomicMin, int, unsigned int, old < value ? old : value)
ACCELRT_ATOMIC(atomicMin, unsigned int, unsigned int, old < value ? old : value)
ACCELRT_ATOMIC(atomicMin, long long, unsigned long long, old < value ? old : value)
ACCELRT_ATOMIC(atomicMin, unsigned long long, unsigned long long, old < value ? old : value)
ACCELRT_ATOMIC(atomicMax, int, unsigned int, old > value ? old : value)
ACCELRT_ATOMIC(atomicMax, unsigned int, unsigned int, old > value ? old : value)
ACCELRT_ATOMIC(atomicMax, long long, unsigned long long, old > value ? old : value)
ACCELRT_ATOMIC(atomicMax, unsigned long long, unsigned long long, old > value ? old : value)
ACCELRT_ATOMIC(atomicInc, unsigned int, unsigned int, old >= value ? 0 : old + 1)
ACCELRT_ATOMIC(atomicDec, unsigned int, unsigned int, old == 0 || old > value ? value : old - 1)
#undef ACCELRT_ATOMIC

// A thread that fails to take a lock lets the others of its block go on.
#define ACCELRT_ATOMIC(type, bits)                                                                               \
    accelrt_inline type atomicExch(type* at, type value) {                                                       \
        return accelrt_bits_as<type>(__atomic_exchange_n((bits*)at, accelrt_bits_as<bits>(value), __ATOMIC_SEQ_CST)); \
    }                                                                                                            \
    accelrt_inline type atomicExch_block(type* at, type value) { return atomicExch(at, value); }                 \
    accelrt_inline type atomicExch_system(type* at, type value) { return atomicExch(at, value); }
ACCELRT_ATOMIC(int, int)
ACCELRT_ATOMIC(unsigned int, unsigned int)
ACCELRT_ATOMIC(unsigned long long, unsigned long long)
ACCELRT_ATOMIC(float, unsigned int)
ACCELRT_ATOMIC(double, unsigned long long)
#undef ACCELRT_ATOMIC
#define ACCELRT_ATOMIC(type)                                                                                     \
    accelrt_inline type atomicCAS(type* at, type expected, type value) {                                         \
        type before = expected;                                                                                  \
        if (!__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))         \
            accelrt_yield();                                                                                     \
        return before;                                                                                           \
    }                                                                                                            \
    accelrt_inline type atomicCAS_block(type* at, type expected, type value) { return atomicCAS(at, expected, value); } \
    accelrt_inline type atomicCAS_system(type* at, type expected, type value) { return atomicCAS(at, expected, value); }
ACCELRT_ATOMIC(int)
ACCELRT_ATOMIC(unsigned int)
ACCELRT_ATOMIC(unsigned long long)
ACCELRT_ATOMIC(unsigned short)
#undef ACCELRT_ATOMIC
