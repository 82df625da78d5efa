// Attention, forward (docs/arithmetic.md, attention): tiles of six query rows against all their keys at once, so that
// the exact maximum is known before the first exponential, and no sum is ever rescaled.
#include "../operators.h"
#include "attention_tiles.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

// Rows of a window that one task takes. Each task packs the keys and values again, which costs less than 1% of what it
// does with them, and windows of any length keep all workers busy.
constexpr int64_t kTaskRows = 192;

struct Memory {
  float *keys, *values, *query, *scores, *weights;
  int64_t used;

  BW_MEMBER Memory(const Heads& h, float* base) {
    Pieces pieces{base};
    keys = pieces.floats(h.keys() * h.d);
    values = pieces.floats(h.window * h.columns());
    query = pieces.floats(kTileRows * h.d);
    scores = pieces.floats(kTileRows * h.keys());
    weights = pieces.floats(kTileRows * h.keys());
    used = pieces.used;
  }
};

// The maximum of s_begin … s_end−1, ascending, a > b ? a : b. Any order gives the same number, but where the maximum is
// zero its sign is that of the last zero, and where there is a NaN what comes after it decides: then by the letter.
BW_INLINE float largest(const float* s, int64_t begin, int64_t end) {
  float m = s[begin];
  int64_t j = begin;
  int32_t nan = 0;
  if (end - begin >= kLanes) {
    Vf lanes = load(s + begin);
    Vi nans = {};
    for (; j + kLanes <= end; j += kLanes) {
      const Vf x = load(s + j);
      lanes = maximum(lanes, x);
      nans |= x != x;
    }
    for (int i = 0; i < kLanes; ++i) m = maximum(m, lanes[i]), nan |= nans[i];
  }
  for (; j < end; ++j) m = maximum(m, s[j]), nan |= s[j] != s[j];
  if (nan == 0 && m != 0.0f) return m;
  m = s[begin];
  for (j = begin + 1; j < end; ++j) m = maximum(m, s[j]);
  return m;
}

// s_j becomes p_j = exp(fma(s_j, scale, −m)) for the keys begin … end − 1; m and l as defined. The lanes of l count
// from the window's first row, so the keys of a 16-lane group that the row does not see are written as +0.
BW_INLINE void softmax(float* s, int64_t begin, int64_t end, float scale, float* m_out, float* l_out) {
  const float m = largest(s, begin, end) * scale;
  float total = 0.0f;
  for (int64_t chunk = begin / kSumChunk * kSumChunk; chunk < end; chunk += kSumChunk) {
    Vf lanes[kSumVectors] = {};
    const int64_t first = most(chunk, begin / kSumLanes * kSumLanes);
    for (int64_t group = first; group < end && group < chunk + kSumChunk; group += kSumLanes) {
      Vf p[kSumVectors];
      for (int v = 0; v < kSumVectors; ++v) p[v] = exp(fma(load(s + group + v * kLanes), splat(scale), splat(-m)));
      if (group < begin || group + kSumLanes > end) {
        for (int i = 0; i < kSumLanes; ++i) {
          if (group + i < begin || group + i >= end) p[i / kLanes][i % kLanes] = 0.0f;
        }
      }
      for (int v = 0; v < kSumVectors; ++v) {
        store(s + group + v * kLanes, p[v]);
        lanes[v] = lanes[v] + p[v];
      }
    }
    float lane[kSumLanes];
    memcpy(lane, lanes, sizeof lane);
    total = total + fold_lanes(lane);
  }
  *m_out = m;
  *l_out = total;
}

struct Output {
  float *o, *m, *l;
};

// The rows first … end − 1 of one head in the window that starts at row `window_row`.
BW_INLINE void attend(const Heads& h, const float* query, const int32_t* start, int64_t window_row, int64_t head,
                      int64_t first, int64_t end, const Memory& memory, const Output& out) {
  const int64_t step = h.keys(), o_step = h.heads * h.d;
  for (int64_t row = first; row < end; row += kTileRows) {
    const Visible visible(start, window_row, row, least(kTileRows, end - row));
    const float* const q = query + (window_row + row) * h.stride + head * h.d;
    pack<kTileRows>(q, h.stride, 1, visible.rows, h.d, memory.query, 0);
    scores(memory.query, memory.keys, h, visible.begin, visible.end, memory.scores, step);
    float l[kTileRows];
    for (int64_t i = 0; i < visible.rows; ++i) {
      const int64_t at = (window_row + row + i) * h.heads + head;
      softmax(memory.scores + i * step, visible.start[i], visible.row[i] + 1, h.scale, out.m + at, l + i);
      out.l[at] = l[i];
    }
    const int64_t keys = visible.end - visible.begin;
    pack<kTileRows>(memory.scores + visible.begin, step, 1, visible.rows, keys, memory.weights, 0);
    float* const o = out.o + (window_row + row) * o_step + head * h.d;
    weighted_sum(memory.weights, memory.values, h, visible, o, o_step);
    for (int64_t i = 0; i < visible.rows; ++i) {
      float* const o_row = o + i * o_step;
      for_each(0, h.d, [&]<class V>(int64_t c) { store_as(o_row + c, load_as<V>(o_row + c) / splat<V>(l[i])); });
    }
  }
}

void attention(const Call& call, Worker& worker) {
  const float* const qkv = call.f32(0);
  const int32_t* const start = call.i32(1);
  const Output out = {call.f32(2), call.f32(3), call.f32(4)};
  const Heads h(call);
  const Memory memory(h, static_cast<float*>(worker.scratch()));
  const int64_t parts = (h.window + kTaskRows - 1) / kTaskRows;
  share(worker, h.windows * h.kv_heads * parts, 1, [&](int64_t task, int64_t) {
    // The last part of a window has the most keys: it goes first.
    const int64_t part = parts - 1 - task % parts, kv_head = task / parts % h.kv_heads;
    const int64_t window_row = task / parts / h.kv_heads * h.window;
    const int64_t first = part * kTaskRows, end = least(first + kTaskRows, h.window);
    if (!check_starts(start, window_row, h.window, worker)) return;
    const float* const rows = qkv + window_row * h.stride;
    pack<kTileColumns>(rows + h.key_column(kv_head), h.stride, 1, end, h.d, memory.keys, h.d * kTileColumns);
    pack<kTileColumns>(rows + h.value_column(kv_head), 1, h.stride, h.d, end, memory.values, h.window * kTileColumns);
    for (int64_t head = kv_head * h.group(); head < (kv_head + 1) * h.group(); ++head) {
      attend(h, qkv, start, window_row, head, first, end, memory, out);
    }
  });
}

Scratch scratch(const Call& call, int) {
  return {0, Memory(Heads(call), nullptr).used * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

const Operator kAttention = {
    "attention", 1,
    "in qkv[R,(heads+2*kv_heads)*d], in start:i32[R], out o[R,heads*d], out m[R,heads], out l[R,heads]",
    "heads: count, kv_heads: count, window: count, scale: real", "kv_heads divides heads, window divides R", attention,
    scratch, "o m l: R by window; start counts R", "exp",
    "2*R*window*heads*d"};

}  // namespace bitwitness::BITWITNESS_ISA
