// Root mean square norm, with the residual addition before it, and its gradient.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kRowBlock = 256;  // the K-block of docs/arithmetic.md, over rows

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

// s = rowsum(fma(dy·g, x, ·)), c = (((s·r)·r)·r)/D, dx = dz + fma(−x, c, (dy·g)·r).
BW_INLINE void input_gradient(const float* x, const float* gain, float r, const float* dy, const float* dz, float* dx,
                              int64_t width) {
  const float s = rowsum(width, [&]<class V>(int64_t i, V lane) {
    return fma(load_as<V>(dy + i) * load_as<V>(gain + i), load_as<V>(x + i), lane);
  });
  const float c = (((s * r) * r) * r) / static_cast<float>(width);
  for_each(0, width, [&]<class V>(int64_t i) {
    const V scaled = (load_as<V>(dy + i) * load_as<V>(gain + i)) * splat<V>(r);
    store_as(dx + i, load_as<V>(dz + i) + fma(-load_as<V>(x + i), splat<V>(c), scaled));
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
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  const int64_t segment = call.integer(0) ? call.integer(0) : rows;
  // The gain's gradient is a sum over rows: workers divide its columns, each going through all rows in order.
  share(worker, width, 64, [&](int64_t begin, int64_t end) {
    float block[64];
    for (int64_t row = 0; row < rows;) {
      const int64_t segment_end = (row / segment + 1) * segment;
      int64_t block_end = row + kRowBlock < segment_end ? row + kRowBlock : segment_end;
      if (block_end > rows) block_end = rows;
      memset(block, 0, sizeof block);
      for (; row < block_end; ++row) {
        const float* const xr = x + row * width;
        const float* const dyr = dy + row * width;
        const float scale = r[row];
        for_each(begin, end, [&]<class V>(int64_t j) {
          float* const at = block + (j - begin);
          store_as(at, fma(load_as<V>(dyr + j), load_as<V>(xr + j) * splat<V>(scale), load_as<V>(at)));
        });
      }
      for_each(begin, end, [&]<class V>(int64_t j) {
        store_as(dgain + j, load_as<V>(dgain + j) + load_as<V>(block + (j - begin)));
      });
    }
  });
  worker.barrier();  // also starts the task count again
  share(worker, rows, grain_for(3 * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i * width;
      input_gradient(x + row, gain, r[i], dy + row, dz + row, dx + row, width);
    }
  });
}

}  // namespace

const Operator kRmsnorm = {
    "rmsnorm", 1, "in x[R,D], in g[D], out y[R,D], out r[R]", "epsilon: real", "", rmsnorm};
const Operator kAddRmsnorm = {
    "add_rmsnorm", 1, "in x[R,D], in z[R,D], in g[D], out h[R,D], out y[R,D], out r[R]", "epsilon: real",
    "h may be x, h may be z", add_rmsnorm};
const Operator kRmsnormBackward = {
    "rmsnorm_backward", 1,
    "in x[R,D], in g[D], in r[R], in dy[R,D], in dz[R,D], out dx[R,D], inout dg[D]", "segment: natural",
    "dx may be dz", rmsnorm_backward};

}  // namespace bitwitness::BITWITNESS_ISA
