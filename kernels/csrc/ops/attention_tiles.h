// What the two directions of attention share: operand layout, which keys a tile of six query rows sees, scores of a
// tile, and the weighted sums over keys. Keys and rows are numbered from the first row of their window.
#pragma once

#include "../functions.h"
#include "../loops.h"
#include "blocks.h"
#include "tile.h"

namespace bitwitness::BITWITNESS_ISA {


// Attributes and sizes of a call; a row of qkv holds the query heads, then the key heads, then the value heads.
struct Heads {
  int64_t heads, kv_heads, window, d, stride, windows;
  float scale;

  BW_MEMBER Heads(const Call& call)
      : heads(call.integer(0)), kv_heads(call.integer(1)), window(call.integer(2)), d(call.dim(2, 1) / heads),
        stride(call.dim(0, 1)), windows(call.dim(0, 0) / window), scale(call.real(3)) {}
  BW_MEMBER int64_t group() const { return heads / kv_heads; }
  BW_MEMBER int64_t key_column(int64_t kv_head) const { return (heads + kv_head) * d; }
  BW_MEMBER int64_t value_column(int64_t kv_head) const { return (heads + kv_heads + kv_head) * d; }
  BW_MEMBER int64_t columns() const { return round_up(d, kTileColumns); }      // of a head, padded to whole tiles
  BW_MEMBER int64_t keys() const { return round_up(window, kTileColumns); }    // of a window, likewise
};

// Hands out pieces of a worker's scratch memory; with a null base it only measures.
struct Pieces {
  float* base;
  int64_t used = 0;

  BW_MEMBER float* floats(int64_t n) {
    float* const piece = base == nullptr ? nullptr : base + used;
    used += round_up(n, 16);
    return piece;
  }
};

// Report rows of a window whose first visible key lies outside the window or after the row. False if there are any.
BW_INLINE bool check_starts(const int32_t* start, int64_t first_row, int64_t window, Worker& worker) {
  bool good = true;
  for (int64_t row = first_row; row < first_row + window; ++row) {
    if (start[row] < first_row || start[row] > row) {
      worker.fail("start", row, start[row], first_row, row);
      good = false;
    }
  }
  return good;
}

// The keys that a tile of rows sees: row i those in start[i] … row[i]; all rows those in all_begin … all_end − 1.
struct Visible {
  int64_t start[kTileRows], row[kTileRows];
  int64_t rows;           // in the tile; missing ones see what any row sees, and are never stored
  int64_t begin, end;     // of the keys that any row sees
  int64_t all_begin, all_end;

  BW_MEMBER Visible(const int32_t* starts, int64_t window_row, int64_t first, int64_t count) : rows(count) {
    begin = first, all_begin = 0, end = first + count, all_end = first + 1;
    for (int64_t i = 0; i < count; ++i) {
      start[i] = starts[window_row + first + i] - window_row;
      row[i] = first + i;
      begin = least(begin, start[i]);
      all_begin = most(all_begin, start[i]);
    }
    for (int64_t i = count; i < kTileRows; ++i) start[i] = begin, row[i] = end - 1;
  }
  BW_MEMBER bool seen(int64_t key, int i) const { return start[i] <= key && key <= row[i]; }
};

// s[6, ·] = blocksum over d of q·k for the key panels that hold keys begin … end − 1. q is a packed panel of six
// rows, k the packed panels of a window's keys.
BW_INLINE void scores(const float* q, const float* k, const Heads& h, int64_t begin, int64_t end, float* s,
                      int64_t step) {
  for (int64_t key = begin / kTileColumns * kTileColumns; key < end; key += kTileColumns) {
    const float* const panel = k + key * h.d;
    for (int64_t c = 0; c < h.d; c += kBlock) {
      Tile tile = {};
      chain(least(kBlock, h.d - c), q + c * kTileRows, panel + c * kTileColumns, tile);
      add_tile(tile, s + key, step, kTileRows, kTileColumns, c == 0);
    }
  }
}

// out[rows, d] = blocksum over the visible keys j of weight_j·x_j, blocks of 256 keys counted from the window's first
// row. The weights are a packed panel whose first key is visible.begin; x is packed over the keys of the window.
BW_INLINE void weighted_sum(const float* weights, const float* x, const Heads& h, const Visible& visible, float* out,
                            int64_t step) {
  const int64_t first_block = visible.begin / kBlock * kBlock;
  for (int64_t block = first_block; block < visible.end; block += kBlock) {
    const int64_t begin = most(block, visible.begin), end = least(block + kBlock, visible.end);
    const int64_t all_begin = least(most(visible.all_begin, begin), end);
    const int64_t all_end = most(least(visible.all_end, end), all_begin);
    const float* const w = weights - visible.begin * kTileRows;
    for (int64_t column = 0; column < h.d; column += kTileColumns) {
      const float* const b = x + column * h.window;
      const auto some = [&](int64_t from, int64_t to, Tile& tile) {
        chain_seen(to - from, w + from * kTileRows, b + from * kTileColumns,
                   [&](int64_t k, int i) { return visible.seen(from + k, i); }, tile);
      };
      Tile tile = {};
      some(begin, all_begin, tile);
      chain(all_end - all_begin, w + all_begin * kTileRows, b + all_begin * kTileColumns, tile);
      some(all_end, end, tile);
      add_tile(tile, out + column, step, visible.rows, least(kTileColumns, h.d - column), block == first_block);
    }
  }
}

}  // namespace bitwitness::BITWITNESS_ISA
