// Root mean square norm, with the residual addition before it, and its gradient.
#include "../loops.h"
#include "../operators.h"
#include "norm.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

// One row: s = rowsum(x·x), r = 1/√(s/D + ε), y = (x·r)·g. Returns r.
BW_INLINE float normalise(const float* x, const float* gain, float* y, int64_t width, float epsilon) {
  const float s = rowsum(width, [&]<class V>(int64_t i, V lane) {
    const V xi = load_as<V>(x + i);
    return fma(xi, xi, lane);
  });
  const float r = 1.0f / sqrt(s / static_cast<float>(width) + epsilon);
  for_each(0, width, [&]<class V>(int64_t i) {
    store_as(y + i, (load_as<V>(x + i) * splat<V>(r)) * load_as<V>(gain + i));
  });
  return r;
}

void rmsnorm(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const gain = call.f32(1);
  float* const y = call.f32(2);
  float* const r = call.f32(3);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  share(worker, rows, grain_for(2 * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) r[i] = normalise(x + i * width, gain, y + i * width, width, call.real(0));
  });
}

void add_rmsnorm(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const z = call.f32(1);
  const float* const gain = call.f32(2);
  float* const h = call.f32(3);
  float* const y = call.f32(4);
  float* const r = call.f32(5);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  share(worker, rows, grain_for(3 * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i * width;
      for_each(row, row + width, [&]<class V>(int64_t j) { store_as(h + j, load_as<V>(x + j) + load_as<V>(z + j)); });
      r[i] = normalise(h + row, gain, y + row, width, call.real(0));
    }
  });
}

// One row: s = rowsum(fma(dy·g, x, ·)), c = (((s·r)·r)·r)/D, dx = dz + fma(−x, c, (dy·g)·r); and the row's term of the
// gain's gradient, dgain = fma(dy, x·r, dgain), while x and dy are at hand.
BW_INLINE void row_gradient(const float* x, const float* gain, float r, const float* dy, const float* dz, float* dx,
                            float* dgain, int64_t width) {
  const float s = rowsum(width, [&]<class V>(int64_t i, V lane) {
    return fma(load_as<V>(dy + i) * load_as<V>(gain + i), load_as<V>(x + i), lane);
  });
  const float c = (((s * r) * r) * r) / static_cast<float>(width);
  for_each(0, width, [&]<class V>(int64_t i) {
    const V xi = load_as<V>(x + i), dyi = load_as<V>(dy + i);
    const V scaled = (dyi * load_as<V>(gain + i)) * splat<V>(r);
    store_as(dx + i, load_as<V>(dz + i) + fma(-xi, splat<V>(c), scaled));
    store_as(dgain + i, fma(dyi, xi * splat<V>(r), load_as<V>(dgain + i)));
  });
}

void rmsnorm_backward(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const gain = call.f32(1);
  const float* const r = call.f32(2);
  const float* const dy = call.f32(3);
  const float* const dz = call.f32(4);
  float* const dx = call.f32(5);
  float* const dgain = call.f32(6);
  const int64_t width = call.dim(0, 1);
  const Blocks blocks(call.dim(0, 0), call.integer(0));
  gain_gradient(worker, blocks, width, dgain, [&](int64_t row, float* sum) {
    const int64_t at = row * width;
    row_gradient(x + at, gain, r[row], dy + at, dz + at, dx + at, sum, width);
  });
}

}  // namespace

const Operator kRmsnorm = {
    "rmsnorm", 1, "in x[R,D], in g[D], out y[R,D], out r[R]", "epsilon: real", "", rmsnorm, nullptr, "y r: R"};
const Operator kAddRmsnorm = {
    "add_rmsnorm", 1, "in x[R,D], in z[R,D], in g[D], out h[R,D], out y[R,D], out r[R]", "epsilon: real",
    "h may be x, h may be z", add_rmsnorm, nullptr, "h y r: R"};
const Operator kRmsnormBackward = {
    "rmsnorm_backward", 1,
    "in x[R,D], in g[D], in r[R], in dy[R,D], in dz[R,D], out dx[R,D], inout dg[D]", "segment: natural",
    "dx may be dz", rmsnorm_backward, gain_scratch, "dx: R; dg: D"};

}  // namespace bitwitness::BITWITNESS_ISA
