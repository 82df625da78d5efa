// Layer norm without its bias (that is add_bias), and its gradient.
#include "../loops.h"
#include "../operators.h"
#include "norm.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

// Per row: m = rowsum(x)/D, s = rowsum((x − m)²), r = 1/√(s/D + ε), y = ((x − m)·r)·g.
void layernorm(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const gain = call.f32(1);
  float* const y = call.f32(2);
  float* const mean = call.f32(3);
  float* const r = call.f32(4);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  const float epsilon = call.real(0), divisor = static_cast<float>(width);
  share(worker, rows, grain_for(3 * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = x + row * width;
      float* const to = y + row * width;
      const float m = rowsum(width, [&]<class V>(int64_t i, V lane) { return lane + load_as<V>(from + i); }) / divisor;
      const float s = rowsum(width, [&]<class V>(int64_t i, V lane) {
        const V c = load_as<V>(from + i) - splat<V>(m);
        return fma(c, c, lane);
      });
      mean[row] = m;
      r[row] = 1.0f / sqrt(s / divisor + epsilon);
      for_each(0, width, [&]<class V>(int64_t i) {
        store_as(to + i, ((load_as<V>(from + i) - splat<V>(m)) * splat<V>(r[row])) * load_as<V>(gain + i));
      });
    }
  });
}

// One row, with n = (x − m)·r and t = dy·g: a = rowsum(t)/D, c = rowsum(t·n)/D, dx = dz + fma(−n, c, t − a)·r; and the
// row's term of the gain's gradient, dgain = fma(dy, n, dgain).
BW_INLINE void row_gradient(const float* x, const float* gain, float m, float r, const float* dy, const float* dz,
                            float* dx, float* dgain, int64_t width) {
  const float divisor = static_cast<float>(width);
  const float a = rowsum(width, [&]<class V>(int64_t i, V lane) {
    return lane + load_as<V>(dy + i) * load_as<V>(gain + i);
  }) / divisor;
  const float c = rowsum(width, [&]<class V>(int64_t i, V lane) {
    const V n = (load_as<V>(x + i) - splat<V>(m)) * splat<V>(r);
    return fma(load_as<V>(dy + i) * load_as<V>(gain + i), n, lane);
  }) / divisor;
  for_each(0, width, [&]<class V>(int64_t i) {
    const V n = (load_as<V>(x + i) - splat<V>(m)) * splat<V>(r), dyi = load_as<V>(dy + i);
    const V centred = dyi * load_as<V>(gain + i) - splat<V>(a);
    store_as(dgain + i, fma(dyi, n, load_as<V>(dgain + i)));
    store_as(dx + i, load_as<V>(dz + i) + fma(-n, splat<V>(c), centred) * splat<V>(r));
  });
}

void layernorm_backward(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const gain = call.f32(1);
  const float* const mean = call.f32(2);
  const float* const r = call.f32(3);
  const float* const dy = call.f32(4);
  const float* const dz = call.f32(5);
  float* const dx = call.f32(6);
  float* const dgain = call.f32(7);
  const int64_t width = call.dim(0, 1);
  const Blocks blocks(call.dim(0, 0), call.integer(0));
  gain_gradient(worker, blocks, width, dgain, [&](int64_t row, float* sum) {
    const int64_t at = row * width;
    row_gradient(x + at, gain, mean[row], r[row], dy + at, dz + at, dx + at, sum, width);
  });
}

}  // namespace

const Operator kLayernorm = {
    "layernorm", 1, "in x[R,D], in g[D], out y[R,D], out m[R], out r[R]", "epsilon: real", "", layernorm, nullptr,
    "y m r: R"};
const Operator kLayernormBackward = {
    "layernorm_backward", 1,
    "in x[R,D], in g[D], in m[R], in r[R], in dy[R,D], in dz[R,D], out dx[R,D], inout dg[D]", "segment: natural",
    "dx may be dz", layernorm_backward, gain_scratch, "dx: R; dg: D"};

}  // namespace bitwitness::BITWITNESS_ISA
