// Attention, backward (docs/arithmetic.md, attention_backward). Nothing of size window² is kept from the forward pass:
// scores are computed again from q, k and the stored maxima and sums.
//
// A task is one key/value head of one window. Its queries come in bands of 48; a band's P and dS give dq at once, and
// continue the chains of dk and dv, which end, and are added to dk and dv, at every multiple of 256 queries.
#include "../operators.h"
#include "attention_tiles.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kBand = 48;

struct Memory {
  float *keys, *values;                    // packed for scores: [d][16 keys]
  float* keys_by_row;                      // packed for dq: [keys][16 columns]
  float *query, *grad;                     // packed tiles of rows: [d][6]
  float *p, *ds;                           // [band][keys]
  float *weights;                          // [keys][6] of a tile of ds
  float *query_by_row, *grad_by_row;       // packed for dk, dv: [band][16 columns]
  float *p_by_key, *ds_by_key;             // packed: [band][6 keys]
  Tile *dk, *dv;                           // the chains so far: [key tile][column tile]
  int64_t used;

  BW_MEMBER Memory(const Heads& h, float* base) {
    Pieces pieces{base};
    keys = pieces.floats(h.keys() * h.d);
    values = pieces.floats(h.keys() * h.d);
    keys_by_row = pieces.floats(h.window * h.columns());
    query = pieces.floats(kTileRows * h.d);
    grad = pieces.floats(kTileRows * h.d);
    p = pieces.floats(kBand * h.keys());
    ds = pieces.floats(kBand * h.keys());
    weights = pieces.floats(kTileRows * h.keys());
    query_by_row = pieces.floats(kBand * h.columns());
    grad_by_row = pieces.floats(kBand * h.columns());
    p_by_key = pieces.floats(kBand * kTileRows);
    ds_by_key = pieces.floats(kBand * kTileRows);
    const int64_t chains = round_up(h.window, kTileRows) * h.columns();
    dk = reinterpret_cast<Tile*>(pieces.floats(chains));
    dv = reinterpret_cast<Tile*>(pieces.floats(chains));
    used = pieces.used;
  }
};

struct Operands {
  const float* qkv;
  const int32_t* start;
  const float *o, *m, *l, *grad;
  float* dqkv;
};

// One row of a tile: s becomes P, dp becomes dS, for the keys begin … end − 1 in whole vectors around them.
BW_INLINE void row_gradient(float* s, float* dp, int64_t begin, int64_t end, float scale, float m, float l,
                            float delta) {
  for (int64_t j = begin / kLanes * kLanes; j < end; j += kLanes) {
    const Vf p = exp(fma(load(s + j), splat(scale), splat(-m))) / splat(l);
    store(s + j, p);
    store(dp + j, (p * (load(dp + j) - splat(delta))) * splat(scale));
  }
}

// P and dS of the queries first … end − 1 of one head (at most a band), and dq.
BW_INLINE void band_gradient(const Heads& h, const Operands& in, int64_t window_row, int64_t head, int64_t first,
                             int64_t end, const Memory& memory) {
  const int64_t step = h.keys(), o_step = h.heads * h.d;
  for (int64_t row = first; row < end; row += kTileRows) {
    const Visible visible(in.start, window_row, row, least(kTileRows, end - row));
    float* const p = memory.p + (row - first) * step;
    float* const ds = memory.ds + (row - first) * step;
    const int64_t at = window_row + row;
    const float* const o = in.o + at * o_step + head * h.d;
    const float* const grad = in.grad + at * o_step + head * h.d;
    pack<kTileRows>(in.qkv + at * h.stride + head * h.d, h.stride, 1, visible.rows, h.d, memory.query, 0);
    pack<kTileRows>(grad, o_step, 1, visible.rows, h.d, memory.grad, 0);
    scores(memory.query, memory.keys, h, visible.begin, visible.end, p, step);
    scores(memory.grad, memory.values, h, visible.begin, visible.end, ds, step);
    for (int64_t i = 0; i < visible.rows; ++i) {
      const float delta = rowsum(h.d, [&]<class V>(int64_t c, V lane) {
        return fma(load_as<V>(grad + i * o_step + c), load_as<V>(o + i * o_step + c), lane);
      });
      const int64_t stored = (at + i) * h.heads + head;
      row_gradient(p + i * step, ds + i * step, visible.start[i], visible.row[i] + 1, h.scale, in.m[stored],
                   in.l[stored], delta);
    }
    pack<kTileRows>(ds + visible.begin, step, 1, visible.rows, visible.end - visible.begin, memory.weights, 0);
    weighted_sum(memory.weights, memory.keys_by_row, h, visible, in.dqkv + at * h.stride + head * h.d, h.stride);
  }
}

// Which of a tile of six keys the queries of a band see.
enum class Sight : uint8_t { None, Some, All };

// Continue the chains of the key tile at `key` over the band's queries, ascending. The queries are taken in runs: those
// that see all six keys go through the plain chain, those that see some through the careful one, the others not at all.
BW_INLINE void continue_chains(const Heads& h, const int32_t* start, int64_t window_row, int64_t first, int64_t end,
                               int64_t key, const Memory& memory) {
  const int64_t rows = end - first, keys = least(kTileRows, h.window - key), step = h.keys();
  Sight sight[kBand];
  bool any = false;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t from = start[window_row + first + i] - window_row, to = first + i;
    const bool none = to < key || from > key + keys - 1;
    sight[i] = none ? Sight::None : from <= key && to >= key + keys - 1 ? Sight::All : Sight::Some;
    any = any || !none;
  }
  if (!any) return;
  pack<kTileRows>(memory.p + key, 1, step, keys, rows, memory.p_by_key, 0);
  pack<kTileRows>(memory.ds + key, 1, step, keys, rows, memory.ds_by_key, 0);
  const int64_t column_tiles = h.columns() / kTileColumns;
  for (int64_t tile = 0; tile < column_tiles; ++tile) {
    Tile& dk = memory.dk[key / kTileRows * column_tiles + tile];
    Tile& dv = memory.dv[key / kTileRows * column_tiles + tile];
    const float* const q = memory.query_by_row + tile * kTileColumns * kBand;
    const float* const g = memory.grad_by_row + tile * kTileColumns * kBand;
    for (int64_t run = 0, run_end; run < rows; run = run_end) {
      for (run_end = run + 1; run_end < rows && sight[run_end] == sight[run];) ++run_end;
      if (sight[run] == Sight::None) continue;
      const int64_t n = run_end - run, a = run * kTileRows, b = run * kTileColumns;
      if (sight[run] == Sight::All) {
        chain(n, memory.ds_by_key + a, q + b, dk);
        chain(n, memory.p_by_key + a, g + b, dv);
      } else {
        const auto seen = [&](int64_t k, int i) {
          return start[window_row + first + run + k] - window_row <= key + i && key + i <= first + run + k;
        };
        chain_seen(n, memory.ds_by_key + a, q + b, seen, dk);
        chain_seen(n, memory.p_by_key + a, g + b, seen, dv);
      }
    }
  }
}

// dk and dv of the window, keys 0 … end − 1: plus the finished chains of a block of queries.
BW_INLINE void add_chains(const Heads& h, const Memory& memory, int64_t end, float* dk, float* dv) {
  const int64_t column_tiles = h.columns() / kTileColumns;
  for (int64_t key = 0; key < end; key += kTileRows) {
    for (int64_t tile = 0; tile < column_tiles; ++tile) {
      const int64_t from = key / kTileRows * column_tiles + tile, to = key * h.stride + tile * kTileColumns;
      const int64_t rows = least(kTileRows, h.window - key), columns = least(kTileColumns, h.d - tile * kTileColumns);
      add_tile(memory.dk[from], dk + to, h.stride, rows, columns, false);
      add_tile(memory.dv[from], dv + to, h.stride, rows, columns, false);
    }
  }
}

BW_INLINE void window_gradient(const Heads& h, const Operands& in, int64_t window_row, int64_t kv_head,
                               const Memory& memory) {
  const float* const rows = in.qkv + window_row * h.stride;
  const float* const k = rows + h.key_column(kv_head);
  pack<kTileColumns>(k, h.stride, 1, h.window, h.d, memory.keys, h.d * kTileColumns);
  pack<kTileColumns>(rows + h.value_column(kv_head), h.stride, 1, h.window, h.d, memory.values, h.d * kTileColumns);
  pack<kTileColumns>(k, 1, h.stride, h.d, h.window, memory.keys_by_row, h.window * kTileColumns);
  float* const dk = in.dqkv + window_row * h.stride + h.key_column(kv_head);
  float* const dv = in.dqkv + window_row * h.stride + h.value_column(kv_head);
  for (int64_t key = 0; key < h.window; ++key) {
    memset(dk + key * h.stride, 0, h.d * sizeof(float));
    memset(dv + key * h.stride, 0, h.d * sizeof(float));
  }
  for (int64_t head = kv_head * h.group(); head < (kv_head + 1) * h.group(); ++head) {
    const float* const q = rows + head * h.d;
    const float* const grad = in.grad + window_row * h.heads * h.d + head * h.d;
    for (int64_t block = 0; block < h.window; block += kBlock) {
      const int64_t block_end = least(block + kBlock, h.window);
      const int64_t chains = round_up(block_end, kTileRows) / kTileRows * (h.columns() / kTileColumns);
      memset(memory.dk, 0, chains * sizeof(Tile));
      memset(memory.dv, 0, chains * sizeof(Tile));
      for (int64_t first = block; first < block_end; first += kBand) {
        const int64_t end = least(first + kBand, block_end);
        band_gradient(h, in, window_row, head, first, end, memory);
        constexpr int64_t panel_step = kBand * kTileColumns;
        const int64_t rows_step = h.heads * h.d;
        pack<kTileColumns>(q + first * h.stride, 1, h.stride, h.d, end - first, memory.query_by_row, panel_step);
        pack<kTileColumns>(grad + first * rows_step, 1, rows_step, h.d, end - first, memory.grad_by_row, panel_step);
        for (int64_t key = 0; key < end; key += kTileRows) {
          continue_chains(h, in.start, window_row, first, end, key, memory);
        }
      }
      add_chains(h, memory, block_end, dk, dv);
    }
  }
}

void attention_backward(const Call& call, Worker& worker) {
  const Operands in = {call.f32(0), call.i32(1), call.f32(2), call.f32(3), call.f32(4), call.f32(5), call.f32(6)};
  const Heads h(call);
  const Memory memory(h, static_cast<float*>(worker.scratch()));
  share(worker, h.windows * h.kv_heads, 1, [&](int64_t task, int64_t) {
    const int64_t window_row = task / h.kv_heads * h.window;
    if (check_starts(in.start, window_row, h.window, worker)) {
      window_gradient(h, in, window_row, task % h.kv_heads, memory);
    }
  });
}

Scratch scratch(const Call& call, int) {
  return {0, Memory(Heads(call), nullptr).used * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

const Operator kAttentionBackward = {
    "attention_backward", 1,
    "in qkv[R,(heads+2*kv_heads)*d], in start:i32[R], in o[R,heads*d], in m[R,heads], in l[R,heads], in do[R,heads*d],"
    " out dqkv[R,(heads+2*kv_heads)*d]",
    "heads: count, kv_heads: count, window: count, scale: real", "kv_heads divides heads, window divides R",
    attention_backward, scratch, "dqkv: R by window; start counts R", "exp",
    "5*R*window*heads*d"};

}  // namespace bitwitness::BITWITNESS_ISA
