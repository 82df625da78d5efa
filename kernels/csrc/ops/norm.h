// The gradient of a norm's gain, which rms norm and layer norm share.
#pragma once

#include "../loops.h"
#include "blocks.h"

namespace bitwitness::BITWITNESS_ISA {

// dgain[D] plus a block sum over rows: workers take blocks, each leaving its sum in shared memory, and the sums are added
// in order, workers dividing the columns. `row_term` adds a row's term to a sum of D floats.
template <class RowTerm>
BW_INLINE void gain_gradient(Worker& worker, const Blocks& blocks, int64_t width, float* dgain, RowTerm&& row_term) {
  float* const sums = static_cast<float*>(worker.shared());
  share(worker, blocks.count(), 1, [&](int64_t block, int64_t) {
    float* const sum = sums + block * width;
    memset(sum, 0, width * sizeof(float));
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) row_term(row, sum);
  });
  worker.barrier();
  share(worker, width, grain_for(blocks.count()), [&](int64_t begin, int64_t end) {
    for (int64_t block = 0; block < blocks.count(); ++block) {
      for_each(begin, end, [&]<class V>(int64_t i) {
        store_as(dgain + i, load_as<V>(dgain + i) + load_as<V>(sums + block * width + i));
      });
    }
  });
}

// What gain_gradient needs of a call whose first tensor is x[R,D] and whose first integer is the segment.
static Scratch gain_scratch(const Call& call, int) {
  const Blocks blocks(call.dim(0, 0), call.integer(0));
  return {blocks.count() * call.dim(0, 1) * static_cast<int64_t>(sizeof(float)), 0};
}

}  // namespace bitwitness::BITWITNESS_ISA
