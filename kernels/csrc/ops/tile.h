// The register tile that matrix products and attention are made of, and the packing that feeds it: six rows by 16
// columns, or 32 where vectors have 16 lanes.
//
// A panel of A holds up to 6 rows as [k][6], a panel of B its columns as [k][kTileColumns], missing ones zero. Twelve
// accumulators, two vectors of B and one broadcast of A fill the 16 registers of AVX2.
#pragma once

#include "../vec.h"

namespace bitwitness::BITWITNESS_ISA {

constexpr int kTileRows = 6;
constexpr int kTileColumns = BITWITNESS_LANES == 16 ? 32 : 16;
constexpr int kTileVectors = kTileColumns / kLanes;

struct Tile {
  Vf at[kTileRows][kTileVectors];
};

// tile = the fma chain over k = 0 … n−1, ascending, continued from `tile`.
BW_INLINE void chain(int64_t n, const float* a, const float* b, Tile& tile) {
  Tile t = tile;
  for (int64_t k = 0; k < n; ++k) {
    Vf column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) column[v] = load(b + k * kTileColumns + v * kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      const Vf row = splat(a[k * kTileRows + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) t.at[i][v] = fma(row, column[v], t.at[i][v]);
    }
  }
  tile = t;
}

// The same, leaving out the terms that seen(k, row of the tile) denies: they take no part, whatever they hold.
template <class Seen> BW_INLINE void chain_seen(int64_t n, const float* a, const float* b, Seen seen, Tile& tile) {
  for (int64_t k = 0; k < n; ++k) {
    for (int i = 0; i < kTileRows; ++i) {
      if (!seen(k, i)) continue;
      const Vf row = splat(a[k * kTileRows + i]);
      for (int v = 0; v < kTileVectors; ++v) {
        tile.at[i][v] = fma(row, load(b + k * kTileColumns + v * kLanes), tile.at[i][v]);
      }
    }
  }
}

// c[rows, columns] = c + tile, or 0 + tile (not tile alone: a sum never leaves −0).
BW_INLINE void add_tile(const Tile& tile, float* c, int64_t stride, int64_t rows, int64_t columns, bool from_zero) {
  if (rows == kTileRows && columns == kTileColumns) {
    for (int i = 0; i < kTileRows; ++i) {
      for (int v = 0; v < kTileVectors; ++v) {
        float* const to = c + i * stride + v * kLanes;
        store(to, (from_zero ? Vf{} : load(to)) + tile.at[i][v]);
      }
    }
    return;
  }
  float value[kTileRows][kTileColumns];
  memcpy(value, tile.at, sizeof value);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * stride + j] = (from_zero ? 0.0f : c[i * stride + j]) + value[i][j];
  }
}

#if BITWITNESS_LANES == 16
BW_INLINE Vf unpack_low(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
BW_INLINE Vf unpack_high(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
BW_INLINE Vf pairs_low(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
BW_INLINE Vf pairs_high(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
BW_INLINE Vf even_quarters(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
BW_INLINE Vf odd_quarters(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
#elif BITWITNESS_LANES == 8
BW_INLINE Vf unpack_low(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
BW_INLINE Vf unpack_high(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15); }
BW_INLINE Vf pairs_low(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13); }
BW_INLINE Vf pairs_high(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15); }
BW_INLINE Vf halves_low(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11); }
BW_INLINE Vf halves_high(Vf a, Vf b) { return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15); }
#else
BW_INLINE Vf unpack_low(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
BW_INLINE Vf unpack_high(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
BW_INLINE Vf pairs_low(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
BW_INLINE Vf pairs_high(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
#endif

// Transpose a square of kLanes rows: 4×4 squares inside 128 bits, then what has 128 bits.
BW_INLINE void transpose(Vf* row) {
  Vf square[kLanes];
  for (int i = 0; i < kLanes; i += 4) {
    const Vf low01 = unpack_low(row[i], row[i + 1]), high01 = unpack_high(row[i], row[i + 1]);
    const Vf low23 = unpack_low(row[i + 2], row[i + 3]), high23 = unpack_high(row[i + 2], row[i + 3]);
    square[i] = pairs_low(low01, low23), square[i + 1] = pairs_high(low01, low23);
    square[i + 2] = pairs_low(high01, high23), square[i + 3] = pairs_high(high01, high23);
  }
#if BITWITNESS_LANES == 16
  for (int i = 0; i < 4; ++i) {
    const Vf even0 = even_quarters(square[i], square[i + 4]), odd0 = odd_quarters(square[i], square[i + 4]);
    const Vf even1 = even_quarters(square[i + 8], square[i + 12]), odd1 = odd_quarters(square[i + 8], square[i + 12]);
    row[i] = even_quarters(even0, even1), row[i + 8] = odd_quarters(even0, even1);
    row[i + 4] = even_quarters(odd0, odd1), row[i + 12] = odd_quarters(odd0, odd1);
  }
#elif BITWITNESS_LANES == 8
  for (int i = 0; i < 4; ++i) {
    row[i] = halves_low(square[i], square[i + 4]);
    row[i + 4] = halves_high(square[i], square[i + 4]);
  }
#else
  for (int i = 0; i < 4; ++i) row[i] = square[i];
#endif
}

// One full panel of rows that lie along k: [kWidth][n] becomes [n][kWidth], a square at a time.
template <int kWidth> BW_INLINE void pack_across(const float* s, int64_t row_step, int64_t n, float* to) {
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
#pragma GCC unroll 4
    for (int first = 0; first < kWidth; first += kLanes) {
      Vf row[kLanes];
      for (int i = 0; i < kLanes; ++i) row[i] = first + i < kWidth ? load(s + (first + i) * row_step + k) : Vf{};
      transpose(row);
      const int wanted = kWidth - first < kLanes ? kWidth - first : kLanes;
      for (int i = 0; i < kLanes; ++i) memcpy(to + (k + i) * kWidth + first, &row[i], wanted * sizeof(float));
    }
  }
  for (; k < n; ++k) {
    for (int i = 0; i < kWidth; ++i) to[k * kWidth + i] = s[i * row_step + k];
  }
}

// Pack `count` rows over k = 0 … n−1 into panels of kWidth, `panel_step` floats apart, each [n][kWidth] with missing
// rows zero. Element (i, k) of the source is at s[i·row_step + k·k_step]; one of the steps is 1.
template <int kWidth> BW_INLINE void pack(const float* s, int64_t row_step, int64_t k_step, int64_t count, int64_t n,
                                          float* to, int64_t panel_step) {
  const int64_t full = count / kWidth, left = count % kWidth;
  if (k_step == 1) {
    for (int64_t panel = 0; panel < full; ++panel) {
      pack_across<kWidth>(s + panel * kWidth * row_step, row_step, n, to + panel * panel_step);
    }
  } else {
    // k outside: the panels of one k lie side by side in the source, and a power-of-two step from k to k + 1 would
    // otherwise throw them out of the cache before the next panel asks for them.
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t at = 0; at < full * kWidth; at += 16) __builtin_prefetch(s + at + (k + 8) * k_step);
      for (int64_t panel = 0; panel < full; ++panel) {
        memcpy(to + panel * panel_step + k * kWidth, s + panel * kWidth + k * k_step, kWidth * sizeof(float));
      }
    }
  }
  if (left == 0) return;
  s += full * kWidth * row_step;
  to += full * panel_step;
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < kWidth; ++i) to[k * kWidth + i] = i < left ? s[i * row_step + k * k_step] : 0.0f;
  }
}

}  // namespace bitwitness::BITWITNESS_ISA
