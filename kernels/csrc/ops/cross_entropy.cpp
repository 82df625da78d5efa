// Softmax cross-entropy of logits, with its gradient written over them: no second buffer of that size.
#include "../functions.h"
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

// The maximum of a row. Any order will do: where the row holds a NaN every result of the row is NaN whatever the
// maximum, and the sign of a zero maximum shows nowhere, since x − m and log(s) + m absorb it.
BW_INLINE float row_maximum(const float* x, int64_t n) {
  constexpr int kChains = 4;
  float m = x[0];
  int64_t i = 0;
  if (n >= kChains * kLanes) {
    Vf chain[kChains];
    for (int c = 0; c < kChains; ++c) chain[c] = load(x + c * kLanes);
    for (i = kChains * kLanes; i + kChains * kLanes <= n; i += kChains * kLanes) {
      for (int c = 0; c < kChains; ++c) chain[c] = maximum(chain[c], load(x + i + c * kLanes));
    }
    float lane[kChains * kLanes];
    memcpy(lane, chain, sizeof lane);
    m = lane[0];
    for (int c = 1; c < kChains * kLanes; ++c) m = maximum(m, lane[c]);
  }
  for (; i < n; ++i) m = maximum(m, x[i]);
  return m;
}

template <bool kGradient> void cross_entropy(const Call& call, Worker& worker) {
  float* const logits = call.f32(0);
  const int32_t* const targets = call.i32(1);
  float* const loss = call.f32(2);
  float* const nll = call.f32(3);
  const int64_t rows = call.dim(0, 0), vocabulary = call.dim(0, 1);
  const float z_loss = call.real(0);
  share(worker, rows, grain_for(12 * vocabulary), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const x = logits + row * vocabulary;
      const int64_t target = targets[row];
      if (target < -1 || target >= vocabulary) {
        worker.fail("target", row, target, -1, vocabulary - 1);
        continue;
      }
      if (target < 0) {
        loss[row] = nll[row] = 0.0f;
        if constexpr (kGradient) memset(x, 0, vocabulary * sizeof(float));
        continue;
      }
      const float m = row_maximum(x, vocabulary);
      const float x_target = x[target];
      const float s = rowsum(vocabulary, [&]<class V>(int64_t j, V lane) {
        const V e = exp(load_as<V>(x + j) - splat<V>(m));
        if constexpr (kGradient) store_as(x + j, e);
        return lane + e;
      });
      const float u = log(s) + m;
      nll[row] = u - x_target;
      loss[row] = fma(z_loss * u, u, nll[row]);
      if constexpr (kGradient) {
        const float factor = fma(2.0f * z_loss, u, 1.0f);
        for_each(0, vocabulary, [&]<class V>(int64_t j) {
          store_as(x + j, (load_as<V>(x + j) / splat<V>(s)) * splat<V>(factor));
        });
        x[target] = x[target] - 1.0f;
      }
    }
  });
}

}  // namespace

const Operator kCrossEntropy = {
    "cross_entropy", 1, "inout x[R,V], in target:i32[R], out loss[R], out nll[R]", "z_loss: real", "",
    cross_entropy<true>, nullptr, "x loss nll: R", "exp, log"};
const Operator kCrossEntropyLoss = {
    "cross_entropy_loss", 1, "in x[R,V], in target:i32[R], out loss[R], out nll[R]", "z_loss: real", "",
    cross_entropy<false>, nullptr, "loss nll: R", "exp, log"};

}  // namespace bitwitness::BITWITNESS_ISA
