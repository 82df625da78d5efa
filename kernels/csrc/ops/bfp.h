// Block fixed point (docs/arithmetic.md): what quantising and multiplying share.
//
// An operand is a matrix of rows along the contracted index, in blocks of 128: integers q of 12 bits and a sign, and
// one scale, a power of two, for each block of a row.
#pragma once

#include "../loops.h"

namespace bitwitness::BITWITNESS_ISA {

constexpr int64_t kBfpBlock = 128;
constexpr int32_t kBfpLimit = 4095;       // 4095² · 128 < 2^31: the sum of a block's products fits int32
constexpr int32_t kBfpLowest = -50;       // least exponent of a block
constexpr int32_t kBfpShift = 40;         // largest exponent that equilibration moves between operands
constexpr int32_t kPoison = (127 + 60) << 23;  // bits of 2^60: a block that reaches it, Inf and NaN included, is NaN

constexpr int32_t kMagnitude = 0x7FFFFFFF;

typedef int16_t Vs __attribute__((vector_size(2 * kLanes)));  // as many 16-bit integers as Vf has lanes

template <class I> BW_INLINE I clamped(I x, int32_t low, int32_t high) {
  const I least = I{} + low, most = I{} + high;
  x = x < least ? least : x;
  return x > most ? most : x;
}

template <class I> BW_INLINE I largest(I a, I b) { return a > b ? a : b; }

// The greatest of a vector's integers: order does not matter.
BW_INLINE int32_t largest_of(Vi v) {
  int32_t m = v[0];
  for (int i = 1; i < kLanes; ++i) m = largest(m, v[i]);
  return m;
}

// frexp's exponent e of a magnitude 2^(e−1) ≤ m < 2^e given by its bits; −126 for zero and subnormals, 129 for Inf, NaN.
template <class I> BW_INLINE I exponent_of(I magnitude) { return (magnitude >> 23) - 126; }

// 2^n, −126 ≤ n ≤ 127.
template <class V> BW_INLINE V power_of_two(Integers<V> n) { return from_bits<V>((n + 127) << 23); }

// The scale of a block whose greatest magnitude has these bits, and the factor 2^(12−e) that its numbers are multiplied
// by; a poisoned block has the scale NaN.
template <class V> struct BlockScale {
  V scale, factor;
  Integers<V> kept;  // all ones, or 0 where the block is poisoned

  BW_MEMBER explicit BlockScale(Integers<V> magnitude) {
    const Integers<V> zero{};
    kept = magnitude < zero + kPoison ? zero - 1 : zero;
    const Integers<V> e = clamped(exponent_of(magnitude), kBfpLowest, 60);
    scale = from_bits<V>((bits(power_of_two<V>(e - 12)) & kept) | (~kept & 0x7FC00000));
    factor = power_of_two<V>(12 - e);
  }
};

// y·factor to the nearest integer, ties to even, within ±4095; 0 where the block is not kept. The product is exact, or
// so small that it rounds to 0; adding 1.5·2^23 rounds it.
template <class V> BW_INLINE Integers<V> quantised(V y, V factor, Integers<V> kept) {
  const V rounded = y * factor + 0x1.8p+23f;
  return clamped(bits(rounded) - 0x4B400000, -kBfpLimit, kBfpLimit) & kept;
}

}  // namespace bitwitness::BITWITNESS_ISA
