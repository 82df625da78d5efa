// h = (a·sigmoid(a))·b, where a and b are the two halves of a row, and its gradient.
#include "../functions.h"
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

void swiglu(const Call& call, Worker& worker) {
  const float* const ab = call.f32(0);
  float* const h = call.f32(1);
  const int64_t rows = call.dim(1, 0), width = call.dim(1, 1);
  share(worker, rows, grain_for(8 * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const a = ab + row * 2 * width;
      const float* const b = a + width;
      float* const out = h + row * width;
      for_each(0, width, [&]<class V>(int64_t i) {
        const V ai = load_as<V>(a + i);
        store_as(out + i, (ai * sigmoid(ai)) * load_as<V>(b + i));
      });
    }
  });
}

void swiglu_backward(const Call& call, Worker& worker) {
  const float* const ab = call.f32(0);
  const float* const dh = call.f32(1);
  float* const dab = call.f32(2);
  const int64_t rows = call.dim(1, 0), width = call.dim(1, 1);
  share(worker, rows, grain_for(10 * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const a = ab + row * 2 * width;
      const float* const b = a + width;
      float* const da = dab + row * 2 * width;
      float* const db = da + width;
      const float* const grad = dh + row * width;
      for_each(0, width, [&]<class V>(int64_t i) {
        const V ai = load_as<V>(a + i), bi = load_as<V>(b + i), g = load_as<V>(grad + i);
        const V s = sigmoid(ai);
        const V t = ai * s;
        store_as(db + i, g * t);
        store_as(da + i, (g * bi) * fma(t, 1.0f - s, s));
      });
    }
  });
}

}  // namespace

const Operator kSwiglu = {"swiglu", 1, "in ab[R,2*F], out h[R,F]", "", "", swiglu, nullptr, "h: R",
                          "sigmoid"};
const Operator kSwigluBackward = {
    "swiglu_backward", 1, "in ab[R,2*F], in dh[R,F], out dab[R,2*F]", "", "dab may be ab", swiglu_backward, nullptr,
    "dab: R", "sigmoid"};

}  // namespace bitwitness::BITWITNESS_ISA
