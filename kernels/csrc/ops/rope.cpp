// Rotary position embedding, in place; sign −1 turns back, which is the gradient.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

void rope(const Call& call, Worker& worker) {
  float* const q = call.f32(0);
  const int32_t* const positions = call.i32(1);
  const float* const cosines = call.f32(2);
  const float* const sines = call.f32(3);
  const int64_t rows = call.dim(0, 0), stride = call.dim(0, 1), table = call.dim(2, 0);
  const int64_t heads = call.integer(0), head_width = call.integer(1), half = head_width / 2;
  const bool forward = call.integer(2) > 0;
  share(worker, rows, grain_for(heads * head_width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = positions[row];
      if (position < 0 || position >= table) {
        worker.fail("pos", row, position, 0, table - 1);
        continue;
      }
      const float* const cosine = cosines + position * half;
      const float* const sine = sines + position * half;
      for (int64_t head = 0; head < heads; ++head) {
        float* const first = q + row * stride + head * head_width;
        float* const second = first + half;
        for_each(0, half, [&]<class V>(int64_t i) {
          const V a = load_as<V>(first + i), b = load_as<V>(second + i);
          const V c = load_as<V>(cosine + i), s = load_as<V>(sine + i);
          store_as(first + i, fma(forward ? -b : b, s, a * c));
          store_as(second + i, fma(forward ? a : -a, s, b * c));
        });
      }
    }
  });
}

}  // namespace

const Operator kRope = {
    "rope", 1, "inout q[R,S], in pos:i32[R], in cos[P,head_width/2], in sin[P,head_width/2]",
    "heads: count, head_width: count, sign: sign", "2 divides head_width, heads*head_width <= S", rope, nullptr,
    "q: R; pos name P"};

}  // namespace bitwitness::BITWITNESS_ISA
