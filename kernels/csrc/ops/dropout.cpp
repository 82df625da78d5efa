// Dropout by logical position: which elements fall is a function of key, sample, position and column alone.
#include "../loops.h"
#include "../operators.h"
#include "../philox.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

void dropout(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const int32_t* const at = call.i32(1);
  float* const y = call.f32(2);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  const float p = call.real(0), scale = call.real(1);
  const uint32_t key[2] = {static_cast<uint32_t>(call.integer(2)), static_cast<uint32_t>(call.integer(3))};
  share(worker, rows, grain_for(16 * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = x + row * width;
      float* const to = y + row * width;
      for (int64_t column = 0; column < width; column += 4) {
        uint32_t words[4] = {static_cast<uint32_t>(column / 4), static_cast<uint32_t>(at[3 * row]),
                             static_cast<uint32_t>(at[3 * row + 1]), static_cast<uint32_t>(at[3 * row + 2])};
        philox4x32(words, key);
        for (int64_t i = column; i < least(column + 4, width); ++i) {
          const float u = static_cast<float>(words[i - column] >> 8) * 0x1p-24f;
          to[i] = u < p ? 0.0f : from[i] * scale;
        }
      }
    }
  });
}

}  // namespace

const Operator kDropout = {
    "dropout", 1, "in x[R,D], in at:i32[R,3], out y[R,D]", "p: real, scale: real, key0: natural, key1: natural",
    "y may be x", dropout, nullptr, "y: R", "philox4x32-10"};

}  // namespace bitwitness::BITWITNESS_ISA
