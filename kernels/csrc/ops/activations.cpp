// SiLU and GELU (by erf, and by the tanh formula), element by element, and their gradients.
#include "../functions.h"
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
constexpr float kInverseSqrt2Pi = 0x1.988454p-2f;
constexpr float kGeluLinear = 0x1.988454p+0f;  // 2·√(2/π)
constexpr float kGeluCubic = 0x1.2444f2p-4f;   // that times 0.044715
constexpr float kGeluSlope = 0x1.b6676cp-3f;   // that times 3

struct Silu {
  static constexpr int64_t kCost = 8;
  template <class V> static BW_MEMBER V value(V x) { return x * sigmoid(x); }
  template <class V> static BW_MEMBER V gradient(V x, V dy) {
    const V s = sigmoid(x);
    return dy * fma(x * s, 1.0f - s, s);
  }
};

// x·Φ(x), Φ(x) = (1 + erf(x/√2))/2 the normal distribution, φ = Φ' its density.
struct Gelu {
  static constexpr int64_t kCost = 16;
  template <class V> static BW_MEMBER V distribution(V x) { return (1.0f + erf(x * kSqrtHalf)) * 0.5f; }
  template <class V> static BW_MEMBER V value(V x) { return x * distribution(x); }
  template <class V> static BW_MEMBER V gradient(V x, V dy) {
    const V density = exp((x * x) * -0.5f) * kInverseSqrt2Pi;
    return dy * fma(x, density, distribution(x));
  }
};

// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))) = x·sigmoid(u), u = x·(c + d·x²).
struct GeluTanh {
  static constexpr int64_t kCost = 10;
  template <class V> static BW_MEMBER V argument(V x) {
    return x * fma(x * x, splat<V>(kGeluCubic), splat<V>(kGeluLinear));
  }
  template <class V> static BW_MEMBER V value(V x) { return x * sigmoid(argument(x)); }
  template <class V> static BW_MEMBER V gradient(V x, V dy) {
    const V s = sigmoid(argument(x));
    const V slope = fma(x * x, splat<V>(kGeluSlope), splat<V>(kGeluLinear));
    return dy * fma((x * s) * (1.0f - s), slope, s);
  }
};

template <class F> void forward(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  float* const y = call.f32(1);
  share(worker, call.size(1), grain_for(F::kCost), [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) { store_as(y + i, F::value(load_as<V>(x + i))); });
  });
}

template <class F> void backward(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const float* const dy = call.f32(1);
  float* const dx = call.f32(2);
  share(worker, call.size(2), grain_for(F::kCost), [&](int64_t begin, int64_t end) {
    for_each(begin, end, [&]<class V>(int64_t i) {
      store_as(dx + i, F::gradient(load_as<V>(x + i), load_as<V>(dy + i)));
    });
  });
}

constexpr Operator forward_of(const char* name, void (*run)(const Call&, Worker&), const char* functions) {
  return {name, 1, "in x[n], out y[n]", "", "y may be x", run, nullptr, "y: n", functions};
}
constexpr Operator backward_of(const char* name, void (*run)(const Call&, Worker&), const char* functions) {
  return {name, 1, "in x[n], in dy[n], out dx[n]", "", "dx may be x, dx may be dy", run, nullptr, "dx: n", functions};
}

}  // namespace

const Operator kSilu = forward_of("silu", forward<Silu>, "sigmoid");
const Operator kSiluBackward = backward_of("silu_backward", backward<Silu>, "sigmoid");
const Operator kGelu = forward_of("gelu", forward<Gelu>, "erf");
const Operator kGeluBackward = backward_of("gelu_backward", backward<Gelu>, "erf, exp");
const Operator kGeluTanh = forward_of("gelu_tanh", forward<GeluTanh>, "sigmoid");
const Operator kGeluTanhBackward = backward_of("gelu_tanh_backward", backward<GeluTanh>, "sigmoid");

}  // namespace bitwitness::BITWITNESS_ISA
