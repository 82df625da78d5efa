// The matrix product of two quantised operands. Inside a block the sums are integers and exact, so only the order of
// the blocks shows: ascending, whatever the blocking.
//
// As in matmul.cpp: a strip of Q is packed into shared memory by all workers, then each takes tasks, lays its rows of P
// side by side, and fills tiles over all blocks of the strip at once.
#include "../operators.h"
#include "bfp_tile.h"
#include "tile.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kStripColumns = 3072;  // of Q packed at a time
constexpr int64_t kStripBlocks = 8;      // likewise: 6 MiB, a strip stays in the last-level cache
constexpr int64_t kTaskTiles = 16;       // 96 rows of P, 192 KiB: a part of the second-level cache
constexpr int64_t kPackPanels = 4;       // of Q packed by one worker at a time

// C[m, n] (+)= P·Qᵀ over `blocks` blocks.
struct BfpProduct {
  const int16_t* p;
  const float* p_scales;
  const int16_t* q;
  const float* q_scales;
  float* c;
  int64_t m, n, blocks;
  bool accumulate;

  BW_MEMBER explicit BfpProduct(const Call& call)
      : p(call.i16(0)), p_scales(call.f32(1)), q(call.i16(2)), q_scales(call.f32(3)), c(call.f32(4)),
        m(call.dim(0, 0)), n(call.dim(2, 0)), blocks(call.dim(1, 1)), accumulate(call.integer(0) != 0) {}
  BW_MEMBER int64_t row_words() const { return blocks * kBfpWords; }
};

// What is packed together: `panels` panels of columns from `column`, blocks first … first + count − 1.
struct BfpStrip {
  int64_t column, panels, first, count;
  float* words;   // [panel][block][k/2][column], words of two integers each, moved as floats
  float* scales;  // [panel][block][column]

  BW_MEMBER float* panel_words(int64_t panel) const { return words + panel * count * kBfpWords * kBfpTileColumns; }
  BW_MEMBER float* panel_scales(int64_t panel) const { return scales + panel * count * kBfpTileColumns; }
};

BW_INLINE void pack_strip(const BfpProduct& p, const BfpStrip& strip, Worker& worker) {
  const int64_t groups = ceiling(strip.panels, kPackPanels);
  share(worker, strip.count * groups, 1, [&](int64_t item, int64_t) {
    const int64_t block = item / groups, panel = item % groups * kPackPanels;
    const int64_t panels = least(kPackPanels, strip.panels - panel);
    const int64_t column = strip.column + panel * kBfpTileColumns;
    const int64_t columns = least(panels * kBfpTileColumns, p.n - column);
    const int16_t* const from = p.q + (column * p.blocks + strip.first + block) * kBfpBlock;
    pack<kBfpTileColumns>(reinterpret_cast<const float*>(from), p.row_words(), 1, columns, kBfpWords,
                          strip.panel_words(panel) + block * kBfpWords * kBfpTileColumns,
                          strip.count * kBfpWords * kBfpTileColumns);
    for (int64_t j = 0; j < panels * kBfpTileColumns; ++j) {
      float* const to = strip.panel_scales(panel + j / kBfpTileColumns) + block * kBfpTileColumns;
      to[j % kBfpTileColumns] = j < columns ? p.q_scales[(column + j) * p.blocks + strip.first + block] : 0.0f;
    }
  });
}

// Rows of P over the blocks of a strip: tiles of [block][6][64 words], their scales [block][6] after all of them.
BW_INLINE void lay_rows(const BfpProduct& p, const BfpStrip& strip, int64_t row, int64_t tiles, int32_t* words,
                        float* scales) {
  for (int64_t i = 0; i < tiles * kBfpTileRows; ++i) {
    const int64_t tile = i / kBfpTileRows, within = i % kBfpTileRows;
    const bool real = row + i < p.m;
    const int16_t* const from = p.p + ((row + i) * p.blocks + strip.first) * kBfpBlock;
    for (int64_t block = 0; block < strip.count; ++block) {
      const int64_t at = (tile * strip.count + block) * kBfpTileRows + within;
      if (real) memcpy(words + at * kBfpWords, from + block * kBfpBlock, kBfpBlock * sizeof(int16_t));
      else memset(words + at * kBfpWords, 0, kBfpBlock * sizeof(int16_t));
      scales[at] = real ? p.p_scales[(row + i) * p.blocks + strip.first + block] : 0.0f;
    }
  }
}

BW_INLINE void fill_tile(const BfpStrip& strip, const int32_t* a, const float* a_scales, int64_t panel, float* c,
                         int64_t stride, int64_t rows, int64_t columns, bool from_zero) {
  const int32_t* const b = reinterpret_cast<const int32_t*>(strip.panel_words(panel));
  const float* const b_scales = strip.panel_scales(panel);
  Vf acc[kBfpTileRows][2] = {};
  if (rows == kBfpTileRows && columns == kBfpTileColumns) {
    if (!from_zero) {
      for (int i = 0; i < kBfpTileRows; ++i) memcpy(acc[i], c + i * stride, sizeof acc[i]);
    }
    bfp_chain(strip.count, a, a_scales, b, b_scales, acc);
    for (int i = 0; i < kBfpTileRows; ++i) memcpy(c + i * stride, acc[i], sizeof acc[i]);
    return;
  }
  float edge[kBfpTileRows][kBfpTileColumns] = {};
  if (!from_zero) {
    for (int64_t i = 0; i < rows; ++i) memcpy(edge[i], c + i * stride, columns * sizeof(float));
  }
  memcpy(acc, edge, sizeof acc);
  bfp_chain(strip.count, a, a_scales, b, b_scales, acc);
  memcpy(edge, acc, sizeof edge);
  for (int64_t i = 0; i < rows; ++i) memcpy(c + i * stride, edge[i], columns * sizeof(float));
}

void multiply(const Call& call, Worker& worker) {
  const BfpProduct p(call);
  float* const packed = static_cast<float*>(worker.shared());
  int32_t* const own = static_cast<int32_t*>(worker.scratch());
  const int64_t chunks = ceiling(p.blocks, kStripBlocks), row_tiles = ceiling(p.m, kBfpTileRows);
  for (int64_t column = 0; column < p.n; column += kStripColumns) {
    const int64_t panels = ceiling(least(kStripColumns, p.n - column), kBfpTileColumns);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = p.blocks * chunk / chunks, count = p.blocks * (chunk + 1) / chunks - first;
      const BfpStrip strip = {column, panels, first, count, packed,
                              packed + panels * count * kBfpWords * kBfpTileColumns};
      pack_strip(p, strip, worker);
      worker.barrier();
      // About a dozen tasks for each worker, so that all finish together.
      const int64_t wanted = worker.count() == 1 ? 1 : 12 * worker.count();
      const int64_t by_row = ceiling(row_tiles, kTaskTiles);
      const int64_t by_column = least(ceiling(wanted, by_row), ceiling(panels, 4));
      share(worker, by_row * by_column, 1, [&](int64_t task, int64_t) {
        const int64_t tile = task / by_column * kTaskTiles, tiles = least(kTaskTiles, row_tiles - tile);
        const int64_t row = tile * kBfpTileRows, part = task % by_column;
        float* const scales = reinterpret_cast<float*>(own + tiles * count * kBfpTileRows * kBfpWords);
        lay_rows(p, strip, row, tiles, own, scales);
        for (int64_t panel = panels * part / by_column; panel < panels * (part + 1) / by_column; ++panel) {
          const int64_t from = column + panel * kBfpTileColumns;
          for (int64_t t = 0; t < tiles; ++t) {
            const int64_t top = row + t * kBfpTileRows;
            fill_tile(strip, own + t * count * kBfpTileRows * kBfpWords, scales + t * count * kBfpTileRows, panel,
                      p.c + top * p.n + from, p.n, least(kBfpTileRows, p.m - top), least(kBfpTileColumns, p.n - from),
                      first == 0 && !p.accumulate);
          }
        }
      });
      worker.barrier();
    }
  }
}

Scratch scratch(const Call& call, int) {
  const BfpProduct p(call);
  const int64_t columns = round_up(least(kStripColumns, p.n), kBfpTileColumns), blocks = least(kStripBlocks, p.blocks);
  const int64_t rows = least(kTaskTiles, ceiling(p.m, kBfpTileRows)) * kBfpTileRows;
  const int64_t row_bytes = blocks * (kBfpWords + 1) * static_cast<int64_t>(sizeof(float));  // words and a scale each
  return {columns * row_bytes, rows * row_bytes};
}

}  // namespace

const Operator kMatmulBfp = {
    "matmul_bfp", 1, "in P:i16[M,K], in p[M,K/128], in Q:i16[N,K], in q[N,K/128], inout C[M,N]", "accumulate: flag",
    "128 divides K, C is read where accumulate", multiply, scratch, "C: M, N", "", "M*N*K"};

}  // namespace bitwitness::BITWITNESS_ISA
