// Rows of a table by token id, and the gradient of the table.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

void embed(const Call& call, Worker& worker) {
  const int32_t* const ids = call.i32(0);
  const float* const table = call.f32(1);
  float* const y = call.f32(2);
  const int64_t rows = call.dim(2, 0), width = call.dim(2, 1), vocabulary = call.dim(1, 0);
  share(worker, rows, grain_for(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (ids[r] < 0 || ids[r] >= vocabulary) {
        worker.fail("ids", r, ids[r], 0, vocabulary - 1);
        continue;
      }
      memcpy(y + r * width, table + ids[r] * width, width * sizeof(float));
    }
  });
}

// For r ascending: dE[ids_r] = dE[ids_r] + dy_r. Workers divide the columns, so that each sees every row in order.
void embed_backward(const Call& call, Worker& worker) {
  const int32_t* const ids = call.i32(0);
  const float* const dy = call.f32(1);
  float* const grad = call.f32(2);
  const int64_t rows = call.dim(1, 0), width = call.dim(1, 1), vocabulary = call.dim(2, 0);
  share(worker, width, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      if (ids[r] < 0 || ids[r] >= vocabulary) {
        worker.fail("ids", r, ids[r], 0, vocabulary - 1);
        continue;
      }
      float* const to = grad + ids[r] * width;
      const float* const from = dy + r * width;
      for_each(begin, end, [&]<class V>(int64_t j) {
        store_as(to + j, load_as<V>(to + j) + load_as<V>(from + j));
      });
    }
  });
}

}  // namespace

const Operator kEmbed = {"embed", 1, "in ids:i32[R], in E[V,D], out y[R,D]", "", "", embed, nullptr,
                         "y: R, D; ids name V"};
const Operator kEmbedBackward = {
    "embed_backward", 1, "in ids:i32[R], in dy[R,D], inout dE[V,D]", "", "", embed_backward, nullptr,
    "dE: V, D; ids name V"};

}  // namespace bitwitness::BITWITNESS_ISA
