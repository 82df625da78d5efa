// Sums of squares for the gradient norm, and AdamW.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kSquaresChunk = 16384;

void sum_squares(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  float* const y = call.f32(1);
  const int64_t n = call.size(0);
  share(worker, call.size(1), 1, [&](int64_t c, int64_t) {
    const float* const chunk = x + c * kSquaresChunk;
    const int64_t left = n - c * kSquaresChunk;
    y[c] = rowsum(left < kSquaresChunk ? left : kSquaresChunk, [&]<class V>(int64_t i, V lane) {
      const V xi = load_as<V>(chunk + i);
      return fma(xi, xi, lane);
    });
  });
}

void adamw(const Call& call, Worker& worker) {
  float* const p = call.f32(0);
  const float* const g = call.f32(1);
  float* const m = call.f32(2);
  float* const v = call.f32(3);
  const float* const scalars = call.f32(4);
  const float grad_scale = scalars[0], one_minus_beta1 = scalars[1], beta2 = scalars[2], one_minus_beta2 = scalars[3];
  const float decay = scalars[4], step_size = scalars[5], inv_sqrt_bias2 = scalars[6], epsilon = scalars[7];
  share(worker, call.size(0), 8192, [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) {
      const V gradient = load_as<V>(g + i) * splat<V>(grad_scale);
      const V m_old = load_as<V>(m + i);
      const V m_new = fma(gradient - m_old, splat<V>(one_minus_beta1), m_old);
      const V v_new = fma(splat<V>(one_minus_beta2) * gradient, gradient, splat<V>(beta2) * load_as<V>(v + i));
      const V q = fma(sqrt(v_new), splat<V>(inv_sqrt_bias2), splat<V>(epsilon));
      store_as(p + i, fma(splat<V>(-step_size), m_new / q, load_as<V>(p + i) * splat<V>(decay)));
      store_as(m + i, m_new);
      store_as(v + i, v_new);
    });
  });
}

}  // namespace

const Operator kSumSquares = {"sum_squares", 1, "in x[n], out y[ceil(n/16384)]", "", "", sum_squares, nullptr,
    "y: n by 16384"};
const Operator kAdamw = {
    "adamw", 1, "inout p[n], in g[n], inout m[n], inout v[n], in scalars[8]", "", "", adamw, nullptr,
    "p m v: n"};

}  // namespace bitwitness::BITWITNESS_ISA
