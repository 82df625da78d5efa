// fill, copy, add and mul.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kGrain = 16384;

void fill(const Call& call, Worker& worker) {
  float* const y = call.f32(0);
  const float value = call.real(0);
  share(worker, call.size(0), kGrain, [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) { store_as(y + i, splat<V>(value)); });
  });
}

void copy(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  float* const y = call.f32(1);
  share(worker, call.size(1), kGrain, [&](int64_t begin, int64_t end) {
    memcpy(y + begin, x + begin, (end - begin) * sizeof(float));
  });
}

void add(const Call& call, Worker& worker) {
  const float* const a = call.f32(0);
  const float* const b = call.f32(1);
  float* const y = call.f32(2);
  share(worker, call.size(2), kGrain, [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) { store_as(y + i, load_as<V>(a + i) + load_as<V>(b + i)); });
  });
}

void mul(const Call& call, Worker& worker) {
  const float* const a = call.f32(0);
  const float* const b = call.f32(1);
  float* const y = call.f32(2);
  share(worker, call.size(2), kGrain, [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) { store_as(y + i, load_as<V>(a + i) * load_as<V>(b + i)); });
  });
}

}  // namespace

const Operator kFill = {"fill", 1, "out y[n]", "value: real", "", fill, nullptr, "y: n"};
const Operator kCopy = {"copy", 1, "in x[n], out y[n]", "", "", copy, nullptr, "y: n"};
const Operator kAdd = {"add", 1, "in a[n], in b[n], out y[n]", "", "y may be a, y may be b", add, nullptr, "y: n"};
const Operator kMul = {"mul", 1, "in a[n], in b[n], out y[n]", "", "y may be a, y may be b", mul, nullptr, "y: n"};

}  // namespace bitwitness::BITWITNESS_ISA
