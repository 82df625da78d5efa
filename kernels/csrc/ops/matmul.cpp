// Matrix products with a fixed order of summation: K in blocks of 256, an fma chain inside each, block sums added
// ascending. Workers divide the outputs; the order inside an output never depends on how.
//
// Blocking as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a strip of B is
// packed into shared memory by all workers, then each takes tasks, packs its rows of A, and fills 6×16 tiles.
#include "../loops.h"
#include "../operators.h"
#include "blocks.h"
#include "tile.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kStripColumns = 3072;            // of B packed at a time
constexpr int64_t kStripFloats = 3072 * 256 * 2;   // 6 MiB: a strip stays in the last-level cache
constexpr int64_t kPackPanels = 8;                 // of B packed by one worker at a time
constexpr int64_t kTaskPanels = 16;                // 96 rows of A, 96 KiB: half of a small second-level cache

// C[m, n] (+)= A·B, element (i, k) of A at a[i·a_row + k·a_k], element (k, j) of B at b[k·b_k + j·b_column].
struct Product {
  const float* a;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_k, b_column;
  float* c;
  int64_t m, n, k;
  bool accumulate;
  int64_t segment;  // K-blocks restart at its multiples; 0: none
};

// What is packed together: `panels` panels of B from `column` on, over blocks first … last − 1, which begin at k_begin.
struct Strip {
  int64_t column, panels, first, last, k_begin;
};

BW_INLINE void pack_strip(const Product& p, const Blocks& blocks, const Strip& strip, float* packed, Worker& worker) {
  const int64_t groups = ceiling(strip.panels, kPackPanels);
  share(worker, (strip.last - strip.first) * groups, 1, [&](int64_t item, int64_t) {
    const int64_t block = strip.first + item / groups, panel = item % groups * kPackPanels;
    const int64_t k = blocks.begin(block), depth = blocks.end(block) - k;
    const int64_t column = strip.column + panel * kTileColumns;
    const int64_t columns = least(least(kPackPanels, strip.panels - panel) * kTileColumns, p.n - column);
    pack<kTileColumns>(p.b + k * p.b_k + column * p.b_column, p.b_column, p.b_k, columns, depth,
                       packed + ((k - strip.k_begin) * strip.panels + panel * depth) * kTileColumns,
                       depth * kTileColumns);
  });
}

// Floats from one packed panel of A to the next. A line more than it holds: 6 KiB apart, the sixteen that are filled
// together would fall on two sets of the first-level cache.
BW_INLINE int64_t panel_step(int64_t depth) { return depth * kTileRows + 16; }

// Rows row … row_end of C over the panels panel … panel_end of a strip.
BW_INLINE void fill_rows(const Product& p, const Blocks& blocks, const Strip& strip, const float* packed, float* own,
                         int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  for (int64_t block = strip.first; block < strip.last; ++block) {
    const int64_t k = blocks.begin(block), depth = blocks.end(block) - k;
    const int64_t row_step = panel_step(depth);
    const bool from_zero = block == 0 && !p.accumulate;
    pack<kTileRows>(p.a + row * p.a_row + k * p.a_k, p.a_row, p.a_k, row_end - row, depth, own, row_step);
    const float* b = packed + ((k - strip.k_begin) * strip.panels + panel * depth) * kTileColumns;
    for (int64_t j = panel; j < panel_end; ++j, b += depth * kTileColumns) {
      const int64_t column = strip.column + j * kTileColumns;
      for (int64_t i = row; i < row_end; i += kTileRows) {
        float* const c = p.c + i * p.n + column;
        for (int64_t r = 0; r < least(kTileRows, p.m - i); ++r) __builtin_prefetch(c + r * p.n, 1);
        Tile tile = {};
        chain(depth, own + (i - row) / kTileRows * row_step, b, tile);
        add_tile(tile, c, p.n, least(kTileRows, p.m - i), least(kTileColumns, p.n - column), from_zero);
      }
    }
  }
}

// How the tiles of a strip are cut into tasks: a dozen for each worker, so that all finish together, while a task keeps
// 8 panels of columns for every panel of rows that it packs, and more rows than one.
struct Tasks {
  int64_t row_panels, by_row, by_column;

  BW_MEMBER Tasks(int64_t rows, int64_t panels, int64_t workers) : row_panels(kTaskPanels) {
    const int64_t wanted = workers == 1 ? 1 : 12 * workers, most_by_column = ceiling(panels, 8);
    while (row_panels > 2 && ceiling(rows, row_panels * kTileRows) * most_by_column * 2 < wanted) row_panels /= 2;
    by_row = ceiling(rows, row_panels * kTileRows);
    by_column = least(ceiling(wanted, by_row), most_by_column);
  }
};

void multiply(const Product& p, Worker& worker) {
  const Blocks blocks(p.k, p.segment);
  float* const packed = static_cast<float*>(worker.shared());
  float* const own = static_cast<float*>(worker.scratch());
  for (int64_t column = 0; column < p.n; column += kStripColumns) {
    const int64_t panels = ceiling(least(kStripColumns, p.n - column), kTileColumns);
    const int64_t most_k = kStripFloats / (panels * kTileColumns);
    for (int64_t first = 0, last; first < blocks.count(); first = last) {
      for (last = first + 1; last < blocks.count() && blocks.end(last) - blocks.begin(first) <= most_k;) ++last;
      const Strip strip = {column, panels, first, last, blocks.begin(first)};
      pack_strip(p, blocks, strip, packed, worker);
      worker.barrier();
      const Tasks tasks(p.m, panels, worker.count());
      share(worker, tasks.by_row * tasks.by_column, 1, [&](int64_t task, int64_t) {
        const int64_t row = task / tasks.by_column * tasks.row_panels * kTileRows, part = task % tasks.by_column;
        fill_rows(p, blocks, strip, packed, own, row, least(row + tasks.row_panels * kTileRows, p.m),
                  panels * part / tasks.by_column, panels * (part + 1) / tasks.by_column);
      });
      worker.barrier();
    }
  }
}

Product nn(const Call& call) {
  const int64_t m = call.dim(0, 0), k = call.dim(0, 1), n = call.dim(1, 1);
  return {call.f32(0), k, 1, call.f32(1), n, 1, call.f32(2), m, n, k, call.integer(0) != 0, 0};
}
Product nt(const Call& call) {
  const int64_t m = call.dim(0, 0), k = call.dim(0, 1), n = call.dim(1, 0);
  return {call.f32(0), k, 1, call.f32(1), 1, k, call.f32(2), m, n, k, call.integer(0) != 0, 0};
}
Product tn(const Call& call) {
  const int64_t k = call.dim(0, 0), m = call.dim(0, 1), n = call.dim(1, 1);
  return {call.f32(0), 1, m, call.f32(1), n, 1, call.f32(2), m, n, k, call.integer(0) != 0, call.integer(1)};
}

template <Product (*kProduct)(const Call&)> void matmul(const Call& call, Worker& worker) {
  multiply(kProduct(call), worker);
}

template <Product (*kProduct)(const Call&)> Scratch scratch(const Call& call, int) {
  const Product p = kProduct(call);
  const int64_t columns = ceiling(least(kStripColumns, p.n), kTileColumns) * kTileColumns;
  const int64_t depth = least(p.k, kStripFloats / columns);
  const int64_t row_panels = least(kTaskPanels, ceiling(p.m, kTileRows));
  return {columns * depth * static_cast<int64_t>(sizeof(float)),
          row_panels * panel_step(least(p.k, kBlock)) * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

const Operator kMatmulNN = {
    "matmul_nn", 1, "in A[M,K], in B[K,N], inout C[M,N]", "accumulate: flag", "C is read where accumulate", matmul<nn>,
    scratch<nn>, "C: M, N", "", "M*N*K"};
const Operator kMatmulNT = {
    "matmul_nt", 1, "in A[M,K], in B[N,K], inout C[M,N]", "accumulate: flag", "C is read where accumulate", matmul<nt>,
    scratch<nt>, "C: M, N", "", "M*N*K"};
const Operator kMatmulTN = {
    "matmul_tn", 1, "in A[K,M], in B[K,N], inout C[M,N]", "accumulate: flag, segment: natural",
    "C is read where accumulate", matmul<tn>, scratch<tn>, "C: M, N", "", "M*N*K"};

}  // namespace bitwitness::BITWITNESS_ISA
