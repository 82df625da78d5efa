// The table of this instruction set's operators and functions.
#include "../functions.h"
#include "../loops.h"
#include "../operators.h"

#define BW_TEXT_OF(x) #x
#define BW_TEXT(x) BW_TEXT_OF(x)

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr const Operator* kOperators[] = {
    &kFill, &kCopy, &kAdd, &kMul, &kAddBias, &kBiasBackward, &kMatmulNN, &kMatmulNT, &kMatmulTN, &kBfpExponents,
    &kBfpBalance, &kBfpRows, &kBfpColumns, &kMatmulBfp, &kEmbed, &kEmbedBackward, &kRmsnorm, &kAddRmsnorm,
    &kRmsnormBackward, &kLayernorm, &kLayernormBackward, &kRope, &kAttention, &kAttentionBackward, &kSwiglu,
    &kSwigluBackward, &kSilu, &kSiluBackward, &kGelu, &kGeluBackward, &kGeluTanh, &kGeluTanhBackward, &kDropout,
    &kCrossEntropy, &kCrossEntropyLoss, &kSumSquares, &kAdamw,
};

// One function in two forms that must agree in every bit: vectors with a scalar tail, and scalars alone.
template <auto kVector, auto kScalar> void apply_vector(const float* x, float* y, int64_t n) {
  for_each(0, n, [&]<class V>(int64_t i) {
    if constexpr (sizeof(V) == sizeof(float)) store_as(y + i, kScalar(x[i]));
    else store_as(y + i, kVector(load(x + i)));
  });
}
template <auto kScalar> void apply_scalar(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = kScalar(x[i]);
}
template <auto kVector, auto kScalar> constexpr Function function(const char* name) {
  return {name, apply_vector<kVector, kScalar>, apply_scalar<kScalar>};
}

constexpr Function kFunctions[] = {
    function<exp<Vf>, exp<float>>("exp"),
    function<log<Vf>, log<float>>("log"),
    function<sin2pi<Vf>, sin2pi<float>>("sin2pi"),
    function<cos2pi<Vf>, cos2pi<float>>("cos2pi"),
    function<sigmoid<Vf>, sigmoid<float>>("sigmoid"),
    function<erf<Vf>, erf<float>>("erf"),
};

void apply_fma(const float* a, const float* b, const float* c, float* y, int64_t n) {
  for_each(0, n, [&]<class V>(int64_t i) {
    store_as(y + i, fma(load_as<V>(a + i), load_as<V>(b + i), load_as<V>(c + i)));
  });
}

}  // namespace

extern const Library library = {
    BW_TEXT(BITWITNESS_ISA), BITWITNESS_FLAGS,
    kOperators, sizeof kOperators / sizeof *kOperators,
    kFunctions, sizeof kFunctions / sizeof *kFunctions,
    apply_fma, uniform, normal, trunc_normal,
};

}  // namespace bitwitness::BITWITNESS_ISA
