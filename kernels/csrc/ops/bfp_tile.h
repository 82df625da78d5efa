// The register tile of integer products: six rows by two vectors of columns, 128 terms at a time, exact in int32.
//
// A 32-bit word holds the two numbers of a row at k and k + 1. A panel of columns is [k/2][kBfpTileColumns] words; rows lie
// side by side, 64 words each.
#pragma once

#include "bfp.h"

#if BITWITNESS_LANES >= 8
#include <immintrin.h>
#endif

namespace bitwitness::BITWITNESS_ISA {

constexpr int kBfpTileRows = 6;
constexpr int kBfpTileColumns = 2 * kLanes;
constexpr int64_t kBfpWords = kBfpBlock / 2;  // of a row in a block

// sum + (low·low + high·high) of the 16-bit halves of each word: |sum| < 2^31 throughout, so the order is free.
BW_INLINE Vi add_products(Vi sum, Vi a, Vi b) {
#if BITWITNESS_LANES == 16
  return (Vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif BITWITNESS_LANES == 8
  return sum + (Vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Keep two accumulators in registers: left alone, GCC spills a tile's around the loads.
BW_INLINE void pin(Vi& first, Vi& second) {
#if BITWITNESS_LANES == 16
  asm volatile("" : "+v"(first), "+v"(second));
#elif BITWITNESS_LANES == 8
  asm volatile("" : "+x"(first), "+x"(second));
#else
  static_cast<void>(first), static_cast<void>(second);
#endif
}

template <int kIndex> struct Index { BW_MEMBER constexpr operator int() const { return kIndex; } };

// body(i) for the rows of a tile, i a constant: arrays indexed by it become registers.
template <class Body> BW_INLINE void each_row(Body body) {
  body(Index<0>{}), body(Index<1>{}), body(Index<2>{}), body(Index<3>{}), body(Index<4>{}), body(Index<5>{});
}

BW_INLINE Vi load_words(const int32_t* p) { Vi v; memcpy(&v, p, sizeof v); return v; }

// acc[6][columns] += float(block's sum)·(scale of the row · scale of the column), blocks ascending. The products with
// the scales are exact: powers of two, far from overflow and from subnormals.
BW_INLINE void bfp_chain(int64_t blocks, const int32_t* a, const float* a_scales, const int32_t* b,
                         const float* b_scales, Vf (*acc)[2]) {
  for (int64_t block = 0; block < blocks; ++block) {
    // acc waits in memory: it would take the registers of the integers.
    asm volatile("" : : "r"(acc) : "memory");
    Vi left[kBfpTileRows], right[kBfpTileRows];
    each_row([&](auto i) __attribute__((always_inline)) { left[i] = Vi{}, right[i] = Vi{}; });
    for (int64_t k = 0; k < kBfpWords; ++k) {
      const Vi column = load_words(b + k * kBfpTileColumns), next = load_words(b + k * kBfpTileColumns + kLanes);
      each_row([&](auto i) __attribute__((always_inline)) {
        const Vi row = Vi{} + a[i * kBfpWords + k];
        left[i] = add_products(left[i], row, column);
        right[i] = add_products(right[i], row, next);
        pin(left[i], right[i]);
      });
    }
    const Vf scale = load(b_scales), next = load(b_scales + kLanes);
    each_row([&](auto i) __attribute__((always_inline)) {
      acc[i][0] = acc[i][0] + to_float(left[i]) * (scale * a_scales[i]);
      acc[i][1] = acc[i][1] + to_float(right[i]) * (next * a_scales[i]);
    });
    a += kBfpTileRows * kBfpWords;
    a_scales += kBfpTileRows;
    b += kBfpWords * kBfpTileColumns;
    b_scales += kBfpTileColumns;
  }
}

}  // namespace bitwitness::BITWITNESS_ISA
