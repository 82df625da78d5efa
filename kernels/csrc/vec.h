// The vector type that every operator is written in: GCC/Clang vector extensions.
//
// This header is compiled once per instruction set (BITWITNESS_ISA names the namespace), with that set's flags.
// Everything here is forced inline and nothing comes from the C++ library: a shared inline function compiled
// for AVX2 could otherwise be the copy that the linker keeps for a CPU without it.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef BITWITNESS_ISA
#error "compile operator sources through kernels/csrc/CMakeLists.txt, which names the instruction set"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BITWITNESS_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define BITWITNESS_LANES 8
#else
#define BITWITNESS_LANES 4  // SSE2 and NEON registers; wider vectors would be split and spilled
#endif

#if BITWITNESS_LANES > 4
#include <immintrin.h>  // for fma: GCC turns a loop over lanes into one instruction in most places, but not in all
#endif

#define BW_INLINE static inline __attribute__((always_inline))

namespace bitwitness::BITWITNESS_ISA {

constexpr int kLanes = BITWITNESS_LANES;

typedef float Vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t Vi __attribute__((vector_size(4 * kLanes)));

// The integers of the same shape: functions are templates over V = Vf or V = float, so that the vector and the
// scalar form are one sequence of operations.
template <class V> struct IntegersOf;
template <> struct IntegersOf<float> { using type = int32_t; };
template <> struct IntegersOf<Vf> { using type = Vi; };
template <class V> using Integers = typename IntegersOf<V>::type;

BW_INLINE Vf load(const float* p) { Vf v; memcpy(&v, p, sizeof v); return v; }
BW_INLINE void store(float* p, Vf v) { memcpy(p, &v, sizeof v); }

template <class V> BW_INLINE V splat(float x) {
  if constexpr (sizeof(V) == sizeof(float)) {
    return x;
  } else {
    // Written out: GCC makes one broadcast of this, but of a loop over lanes, where registers are short, as many masked
    // moves as there are lanes, in every round of the loop around it.
#if BITWITNESS_LANES == 16
    return V{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif BITWITNESS_LANES == 8
    return V{x, x, x, x, x, x, x, x};
#else
    return V{x, x, x, x};
#endif
  }
}
BW_INLINE Vf splat(float x) { return splat<Vf>(x); }

template <class V> BW_INLINE Integers<V> bits(V x) { Integers<V> i; memcpy(&i, &x, sizeof i); return i; }
template <class V> BW_INLINE V from_bits(Integers<V> i) { V x; memcpy(&x, &i, sizeof x); return x; }

BW_INLINE float to_float(int32_t i) { return static_cast<float>(i); }
BW_INLINE Vf to_float(Vi i) { return __builtin_convertvector(i, Vf); }

// The correctly rounded a·b + c. Where the target has no such instruction it is computed in binary64, rounded
// to odd: the product of two binary32 numbers is exact there, and a sum rounded to odd keeps the sticky bit that
// the second rounding, to binary32, needs (Boldo and Melquiond, 2008). Plain binary64 rounds twice.
#if defined(__FMA__) || defined(__aarch64__)

BW_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BW_INLINE Vf fma(Vf a, Vf b, Vf c) {
#if defined(__has_builtin) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif BITWITNESS_LANES == 16
  return (Vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif BITWITNESS_LANES == 8
  return (Vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  Vf r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);  // one vector instruction in most places
  return r;
#endif
}

#else

typedef double Vd __attribute__((vector_size(16)));
typedef int64_t Vl __attribute__((vector_size(16)));
typedef float Vh __attribute__((vector_size(8)));

BW_INLINE int64_t mask(bool condition) { return -static_cast<int64_t>(condition); }
BW_INLINE Vl mask(Vl condition) { return condition; }

// Written with what SSE2 has: no 64-bit comparison or product, which GCC 12 would do lane by lane, and then join
// again wrongly (its SLP pass gave other bits at -O3; the flags of this build leave it out as well).
template <class D, class L> BW_INLINE D add_rounded_to_odd(D product, D c) {
  const D sum = product + c;
  const D other = sum - product;  // Knuth's two-sum: `error` is exactly what `sum` lost
  const D error = (product - (sum - other)) + (c - other);
  L sum_bits;
  memcpy(&sum_bits, &sum, sizeof sum);
  // Inexact and even: step to the odd neighbour on the side of the error. (An infinite sum has a NaN error.)
  const L above = mask(error > 0.0), below = mask(error < 0.0), positive = mask(sum > 0.0);
  const L step = (above | below) & ~sum_bits & 1;
  const L inward = above ^ positive;  // all ones: towards zero, the step is subtracted
  sum_bits += (step ^ inward) - inward;
  D odd;
  memcpy(&odd, &sum_bits, sizeof odd);
  return odd;
}

BW_INLINE float fma(float a, float b, float c) {
  return static_cast<float>(add_rounded_to_odd<double, int64_t>(static_cast<double>(a) * b, c));
}
BW_INLINE Vh fma_half(Vh a, Vh b, Vh c) {
  const Vd product = __builtin_convertvector(a, Vd) * __builtin_convertvector(b, Vd);
  return __builtin_convertvector((add_rounded_to_odd<Vd, Vl>(product, __builtin_convertvector(c, Vd))), Vh);
}
BW_INLINE Vf fma(Vf a, Vf b, Vf c) {
  const Vh low = fma_half(__builtin_shufflevector(a, a, 0, 1), __builtin_shufflevector(b, b, 0, 1),
                          __builtin_shufflevector(c, c, 0, 1));
  const Vh high = fma_half(__builtin_shufflevector(a, a, 2, 3), __builtin_shufflevector(b, b, 2, 3),
                           __builtin_shufflevector(c, c, 2, 3));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}

#endif

BW_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
BW_INLINE Vf sqrt(Vf x) {
  Vf r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(x[i]);
  return r;
}

// a > b ? a : b, never a max instruction's idea of NaN and ±0: a NaN in b survives.
template <class V> BW_INLINE V maximum(V a, V b) { return a > b ? a : b; }

}  // namespace bitwitness::BITWITNESS_ISA
