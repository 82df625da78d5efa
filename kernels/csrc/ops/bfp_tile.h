// The register tile of integer products: six rows by two vectors of columns, 128 terms at a time, exact in int32.
//
// A 32-bit word holds the two numbers of a row at k and k + 1. A panel of columns is [k/2][kBfpColumns] words; rows lie
// side by side, 64 words each. Vectors are as wide as the target's integer unit, which may be more than kLanes.
#pragma once

#include "bfp.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace bitwitness::BITWITNESS_ISA {

#if defined(__AVX512VNNI__)
constexpr int kWide = 16;
#else
constexpr int kWide = kLanes;
#endif
constexpr int kBfpTileRows = 6;
constexpr int kBfpTileColumns = 2 * kWide;
constexpr int64_t kBfpWords = kBfpBlock / 2;  // of a row in a block

typedef float Wf __attribute__((vector_size(4 * kWide)));
typedef int32_t Wi __attribute__((vector_size(4 * kWide)));

// sum + (low·low + high·high) of the 16-bit halves of each word: |sum| < 2^31 throughout, so the order is free.
BW_INLINE Wi add_products(Wi sum, Wi a, Wi b) {
#if defined(__AVX512VNNI__)
  return (Wi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Wi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Keep a row's accumulators in registers: left alone, GCC spills them around the loads.
BW_INLINE void pin(Wi& first, Wi& second) {
#if defined(__x86_64__)
#if defined(__AVX512F__)
  asm volatile("" : "+v"(first), "+v"(second));
#else
  asm volatile("" : "+x"(first), "+x"(second));
#endif
#endif
}

// acc[6][columns] += float(block's sum)·(scale of the row · scale of the column), blocks ascending. The products with
// the scales are exact: powers of two, far from overflow and from subnormals.
BW_INLINE void bfp_chain(int64_t blocks, const int32_t* a, const float* a_scales, const int32_t* b,
                         const float* b_scales, Wf (*acc)[2]) {
  for (int64_t block = 0; block < blocks; ++block) {
    Wi sum[kBfpTileRows][2] = {};
    for (int64_t k = 0; k < kBfpWords; ++k) {
      Wi column[2];
      memcpy(column, b + k * kBfpTileColumns, sizeof column);
#pragma GCC unroll 6
      for (int i = 0; i < kBfpTileRows; ++i) {
        const Wi row = Wi{} + a[i * kBfpWords + k];
        sum[i][0] = add_products(sum[i][0], row, column[0]);
        sum[i][1] = add_products(sum[i][1], row, column[1]);
        pin(sum[i][0], sum[i][1]);
      }
    }
    Wf scale[2];
    memcpy(scale, b_scales, sizeof scale);
#pragma GCC unroll 6
    for (int i = 0; i < kBfpTileRows; ++i) {
      const Wf row = Wf{} + a_scales[i];
      acc[i][0] = acc[i][0] + __builtin_convertvector(sum[i][0], Wf) * (row * scale[0]);
      acc[i][1] = acc[i][1] + __builtin_convertvector(sum[i][1], Wf) * (row * scale[1]);
    }
    a += kBfpTileRows * kBfpWords;
    a_scales += kBfpTileRows;
    b += kBfpWords * kBfpTileColumns;
    b_scales += kBfpTileColumns;
  }
}

}  // namespace bitwitness::BITWITNESS_ISA
