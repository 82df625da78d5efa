// Attention, forward.
#include "../functions.h"
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kBlock = 256;

BW_INLINE float block_dot(const float* a, const float* b, int64_t n) {
  float total = 0.0f;
  for (int64_t first = 0; first < n; first += kBlock) {
    float sum = 0.0f;
    for (int64_t i = first; i < n && i < first + kBlock; ++i) sum = fma(a[i], b[i], sum);
    total = total + sum;
  }
  return total;
}

void attention(const Call& call, Worker& worker) {
  const float* const qkv = call.f32(0);
  const int32_t* const start = call.i32(1);
  float* const o = call.f32(2);
  float* const m_out = call.f32(3);
  float* const l_out = call.f32(4);
  const int64_t heads = call.integer(0), kv_heads = call.integer(1), window = call.integer(2);
  const float scale = call.real(0 + 3);
  const int64_t rows = call.dim(0, 0), stride = call.dim(0, 1), d = call.dim(2, 1) / heads;
  float* const s = static_cast<float*>(worker.scratch());
  float* const p = s + window;
  share(worker, rows, 1, [&](int64_t row, int64_t) {
    const int64_t first = row / window * window;
    if (start[row] < first || start[row] > row) {
      worker.fail("start", row, start[row], first, row);
      return;
    }
    const int64_t begin = start[row];
    for (int64_t h = 0; h < heads; ++h) {
      const float* const q = qkv + row * stride + h * d;
      const int64_t g = h / (heads / kv_heads);
      const float* const k = qkv + (heads + g) * d;
      const float* const v = qkv + (heads + kv_heads + g) * d;
      for (int64_t j = begin; j <= row; ++j) s[j - first] = block_dot(q, k + j * stride, d);
      float m = s[begin - first];
      for (int64_t j = begin + 1; j <= row; ++j) m = maximum(m, s[j - first]);
      m = m * scale;
      for (int64_t j = first; j < first + window; ++j) {
        p[j - first] = j < begin || j > row ? 0.0f : exp(fma(s[j - first], scale, -m));
      }
      const float l = rowsum(window, [&]<class V>(int64_t j, V lane) { return lane + load_as<V>(p + j); });
      m_out[row * heads + h] = m;
      l_out[row * heads + h] = l;
      float* const out = o + (row * heads + h) * d;
      for (int64_t c = 0; c < d; ++c) {
        float total = 0.0f;
        for (int64_t block = first; block <= row; block += kBlock) {
          float sum = 0.0f;
          for (int64_t j = block < begin ? begin : block; j <= row && j < block + kBlock; ++j) {
            sum = fma(p[j - first], v[j * stride + c], sum);
          }
          total = total + sum;
        }
        out[c] = total / l;
      }
    }
  });
}

Scratch scratch(const Call& call, int) { return {0, call.integer(2) * 2 * static_cast<int64_t>(sizeof(float))}; }

}  // namespace

const Operator kAttention = {
    "attention", 1,
    "in qkv[R,(heads+2*kv_heads)*d], in start:i32[R], out o[R,heads*d], out m[R,heads], out l[R,heads]",
    "heads: count, kv_heads: count, window: count, scale: real", "kv_heads divides heads, window divides R", attention,
    scratch};

}  // namespace bitwitness::BITWITNESS_ISA
