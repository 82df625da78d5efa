// Attention, backward.
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

void attention_backward(const Call& call, Worker& worker) {
  const float* const qkv = call.f32(0);
  const int32_t* const start = call.i32(1);
  const float* const o = call.f32(2);
  const float* const m = call.f32(3);
  const float* const l = call.f32(4);
  const float* const grad = call.f32(5);
  float* const dqkv = call.f32(6);
  const int64_t heads = call.integer(0), kv_heads = call.integer(1), window = call.integer(2);
  const float scale = call.real(3);
  const int64_t rows = call.dim(0, 0), stride = call.dim(0, 1), d = call.dim(2, 1) / heads;
  const int64_t windows = rows / window, group = heads / kv_heads;
  float* const p = static_cast<float*>(worker.scratch());
  float* const ds = p + window;
  float* const dk_block = ds + window;
  float* const dv_block = dk_block + window * d;
  share(worker, windows * kv_heads, 1, [&](int64_t task, int64_t) {
    const int64_t first = task / kv_heads * window, g = task % kv_heads;
    const float* const k = qkv + (heads + g) * d;
    const float* const v = qkv + (heads + kv_heads + g) * d;
    float* const dk = dqkv + (heads + g) * d;
    float* const dv = dqkv + (heads + kv_heads + g) * d;
    for (int64_t j = first; j < first + window; ++j) {
      memset(dk + j * stride, 0, d * sizeof(float));
      memset(dv + j * stride, 0, d * sizeof(float));
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t block = first; block < first + window; block += kBlock) {
        memset(dk_block, 0, 2 * window * d * sizeof(float));
        for (int64_t row = block; row < first + window && row < block + kBlock; ++row) {
          const int64_t begin = start[row];
          if (begin < first || begin > row) {
            worker.fail("start", row, begin, first, row);
            continue;
          }
          const float* const q = qkv + row * stride + h * d;
          const float* const gr = grad + (row * heads + h) * d;
          const float* const orow = o + (row * heads + h) * d;
          const float delta = rowsum(d, [&]<class V>(int64_t i, V lane) {
            return fma(load_as<V>(gr + i), load_as<V>(orow + i), lane);
          });
          for (int64_t j = begin; j <= row; ++j) {
            const float s = block_dot(q, k + j * stride, d);
            const float pj = exp(fma(s, scale, -m[row * heads + h])) / l[row * heads + h];
            const float dp = block_dot(gr, v + j * stride, d);
            p[j - first] = pj;
            ds[j - first] = (pj * (dp - delta)) * scale;
          }
          for (int64_t c = 0; c < d; ++c) {
            float total = 0.0f;
            for (int64_t b = first; b <= row; b += kBlock) {
              float sum = 0.0f;
              for (int64_t j = b < begin ? begin : b; j <= row && j < b + kBlock; ++j) {
                sum = fma(ds[j - first], k[j * stride + c], sum);
              }
              total = total + sum;
            }
            dqkv[row * stride + h * d + c] = total;
          }
          for (int64_t j = begin; j <= row; ++j) {
            for (int64_t c = 0; c < d; ++c) {
              float* const kb = dk_block + (j - first) * d + c;
              float* const vb = dv_block + (j - first) * d + c;
              *kb = fma(ds[j - first], q[c], *kb);
              *vb = fma(p[j - first], gr[c], *vb);
            }
          }
        }
        for (int64_t j = first; j < first + window; ++j) {
          for (int64_t c = 0; c < d; ++c) {
            dk[j * stride + c] = dk[j * stride + c] + dk_block[(j - first) * d + c];
            dv[j * stride + c] = dv[j * stride + c] + dv_block[(j - first) * d + c];
          }
        }
      }
    }
  });
}

Scratch scratch(const Call& call, int) {
  const int64_t window = call.integer(2), d = call.dim(2, 1) / call.integer(0);
  return {0, (2 * window + 2 * window * d) * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

const Operator kAttentionBackward = {
    "attention_backward", 1,
    "in qkv[R,(heads+2*kv_heads)*d], in start:i32[R], in o[R,heads*d], in m[R,heads], in l[R,heads], in do[R,heads*d],"
    " out dqkv[R,(heads+2*kv_heads)*d]",
    "heads: count, kv_heads: count, window: count, scale: real", "kv_heads divides heads, window divides R",
    attention_backward, scratch};

}  // namespace bitwitness::BITWITNESS_ISA
