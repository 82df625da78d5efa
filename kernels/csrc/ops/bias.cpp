// A vector added to every row, and its gradient: the sum over rows.
#include "../loops.h"
#include "../operators.h"
#include "blocks.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

void add_bias(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const bias = call.f32(1);
  float* const y = call.f32(2);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  share(worker, rows, grain_for(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * width;
      for_each(0, width, [&]<class V>(int64_t j) {
        store_as(y + at + j, load_as<V>(x + at + j) + load_as<V>(bias + j));
      });
    }
  });
}

// Workers divide the columns; each adds every block of rows on its own, then the block to the gradient.
void bias_backward(const Call& call, Worker& worker) {
  const float* const dy = call.f32(0);
  float* const grad = call.f32(1);
  const int64_t width = call.dim(0, 1);
  const Blocks blocks(call.dim(0, 0), call.integer(0));
  constexpr int64_t kColumns = 64;
  share(worker, width, kColumns, [&](int64_t begin, int64_t end) {
    float sum[kColumns];
    for (int64_t block = 0; block < blocks.count(); ++block) {
      memset(sum, 0, sizeof sum);
      for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
        const float* const from = dy + row * width + begin;
        for_each(0, end - begin, [&]<class V>(int64_t j) {
          store_as(sum + j, load_as<V>(sum + j) + load_as<V>(from + j));
        });
      }
      for_each(0, end - begin, [&]<class V>(int64_t j) {
        store_as(grad + begin + j, load_as<V>(grad + begin + j) + load_as<V>(sum + j));
      });
    }
  });
}

}  // namespace

const Operator kAddBias = {
    "add_bias", 1, "in x[R,N], in b[N], out y[R,N]", "", "y may be x", add_bias, nullptr, "y: R, N"};
const Operator kBiasBackward = {
    "bias_backward", 1, "in dy[R,N], inout db[N]", "segment: natural", "", bias_backward, nullptr, "db: N"};

}  // namespace bitwitness::BITWITNESS_ISA
