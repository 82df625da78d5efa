// exp, log, sin2pi, cos2pi, sigmoid and erf from + − × ÷ fma and integer steps alone (docs/arithmetic.md, Functions).
//
// Each is one template over V = Vf (a vector) or V = float: the same sequence of operations, hence the same bits.
// The coefficients are minimax fits, rounded to binary32 one by one from the lowest power up, each rounding
// compensated by the coefficients still free. Errors were measured over every binary32 argument.
#pragma once

#include "vec.h"

namespace bitwitness::BITWITNESS_ISA {

constexpr float kInfinity = __builtin_inff();
constexpr float kNaN = __builtin_nanf("");  // bits 7FC00000

// 1.5·2^23: adding it rounds to an integer, which then stands in the low bits.
constexpr float kRoundToInteger = 0x1.8p+23f;

// ln 2 = kLn2High + kLn2Low; the high part has 15 bits, so its product with any exponent is exact.
constexpr float kLn2High = 0x1.62e4p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;

// e^x. At most 0.90 ULP; +0 where e^x < 2^-126; +Inf above the largest finite; NaN for NaN.
template <class V> BW_INLINE V exp(V x) {
  const V shifted = fma(x, splat<V>(0x1.715476p+0f), splat<V>(kRoundToInteger));  // x / ln 2, rounded
  const V n = shifted - kRoundToInteger;
  V r = fma(n, splat<V>(-kLn2High), x);
  r = fma(n, splat<V>(-kLn2Low), r);  // |r| <= ln(2) / 2
  V p = splat<V>(0x1.685352p-10f);
  p = fma(p, r, splat<V>(0x1.123bd0p-7f));
  p = fma(p, r, splat<V>(0x1.555b96p-5f));
  p = fma(p, r, splat<V>(0x1.55548ep-3f));
  p = fma(p, r, splat<V>(0x1.fffff8p-2f));
  p = fma(p, r, splat<V>(1.0f));
  p = fma(p, r, splat<V>(1.0f));
  // p·2^n, exact: n is added to the exponent field. The bounds below leave only normal results.
  V y = from_bits<V>(bits(p) + (bits(shifted) << 23));
  y = x < -0x1.5d589ep+6f ? splat<V>(0.0f) : y;
  y = x > 0x1.62e42ep+6f ? splat<V>(kInfinity) : y;
  return x == x ? y : splat<V>(kNaN);
}

// ln x. At most 0.83 ULP; −Inf at ±0, NaN below, +Inf at +Inf, NaN for NaN.
template <class V> BW_INLINE V log(V x) {
  using I = Integers<V>;
  const auto subnormal = x < 0x1p-126f;
  const V scaled = subnormal ? x * 0x1p+23f : x;
  // x = m·2^e with m in [√½, √2): 3F3504F3 is √½.
  const I exponent = (bits(scaled) - 0x3F3504F3) >> 23;
  const V m = from_bits<V>(bits(scaled) - (exponent << 23));
  const V e = to_float(exponent) - (subnormal ? splat<V>(23.0f) : splat<V>(0.0f));
  const V f = m - 1.0f;
  const V z = f * f;
  V p = splat<V>(0x1.11c890p-4f);
  p = fma(p, f, splat<V>(-0x1.dd6608p-4f));
  p = fma(p, f, splat<V>(0x1.e7a5b6p-4f));
  p = fma(p, f, splat<V>(-0x1.fc4d90p-4f));
  p = fma(p, f, splat<V>(0x1.232cf6p-3f));
  p = fma(p, f, splat<V>(-0x1.555ae4p-3f));
  p = fma(p, f, splat<V>(0x1.99a546p-3f));
  p = fma(p, f, splat<V>(-0x1.00000ap-2f));
  p = fma(p, f, splat<V>(0x1.555546p-2f));
  // ln(1 + f) = f − z/2 + f·z·p; e·ln 2 + f is kept as a rounded sum and its error.
  V small = fma(e, splat<V>(kLn2Low), (f * z) * p);
  small = fma(splat<V>(-0.5f), z, small);
  const V high = e * kLn2High;
  const V sum = high + f;
  const V lost = f - (sum - high);
  V y = sum + (small + lost);
  y = x == kInfinity ? splat<V>(kInfinity) : y;
  y = x < 0.0f ? splat<V>(kNaN) : y;
  y = x == 0.0f ? splat<V>(-kInfinity) : y;
  return x == x ? y : splat<V>(kNaN);
}

// sin(π/2·r) and cos(π/2·r) for |r| <= 1/2.
template <class V> BW_INLINE V sin_quarter(V r) {
  const V z = r * r;
  V p = splat<V>(0x1.465d3ep-13f);
  p = fma(p, z, splat<V>(-0x1.32b45cp-8f));
  p = fma(p, z, splat<V>(0x1.466b82p-4f));
  p = fma(p, z, splat<V>(-0x1.4abbcep-1f));
  p = fma(p, z, splat<V>(-0x1.777a5cp-25f));  // what π/2 loses in binary32
  return fma(r, splat<V>(0x1.921fb6p+0f), r * p);
}
template <class V> BW_INLINE V cos_quarter(V r) {
  const V z = r * r;
  V p = splat<V>(0x1.d684a8p-11f);
  p = fma(p, z, splat<V>(-0x1.55b7cep-6f));
  p = fma(p, z, splat<V>(0x1.03c1b8p-2f));
  p = fma(p, z, splat<V>(-0x1.3bd3ccp+0f));
  return fma(p, z, splat<V>(1.0f));
}

// sin(2π·u) and cos(2π·u) for u in [0, 1). At most 0.97 ULP. The quarter turn nearest to 4u is taken out exactly.
template <class V> BW_INLINE void sincos2pi(V u, V* sin_out, V* cos_out) {
  const V quarters = u * 4.0f;
  const V shifted = quarters + kRoundToInteger;
  const Integers<V> quadrant = bits(shifted);  // its two low bits count quarter turns
  const V r = quarters - (shifted - kRoundToInteger);
  const V s = sin_quarter(r);
  const V c = cos_quarter(r);
  const auto odd = (quadrant & 1) != 0;
  const V sin_value = odd ? c : s;
  const V cos_value = odd ? s : c;
  // The sign is flipped in the bits: sin in quadrants 2 and 3, cos in 1 and 2.
  *sin_out = from_bits<V>(bits(sin_value) ^ (((quadrant >> 1) & 1) << 31));
  *cos_out = from_bits<V>(bits(cos_value) ^ ((((quadrant + 1) >> 1) & 1) << 31));
}
template <class V> BW_INLINE V sin2pi(V u) { V s, c; sincos2pi(u, &s, &c); return s; }
template <class V> BW_INLINE V cos2pi(V u) { V s, c; sincos2pi(u, &s, &c); return c; }

template <class V> BW_INLINE V sigmoid(V a) { return 1.0f / (1.0f + exp(-a)); }

// erf x, the error function. At most 0.96 ULP; ±1 from 4 on, where it rounds to that; NaN for NaN.
template <class V> BW_INLINE V erf(V x) {
  const Integers<V> sign = bits(x) & INT32_MIN;
  const V a = from_bits<V>(bits(x) ^ sign);
  const V z = a * a;
  V p = splat<V>(0x1.4f8e58p-14f);  // erf(a)/a − 1 in z, below 15/16
  p = fma(p, z, splat<V>(-0x1.a6126ep-11f));
  p = fma(p, z, splat<V>(0x1.544aa8p-8f));
  p = fma(p, z, splat<V>(-0x1.b80120p-6f));
  p = fma(p, z, splat<V>(0x1.ce2d64p-4f));
  p = fma(p, z, splat<V>(-0x1.812740p-2f));
  p = fma(p, z, splat<V>(0x1.06eba8p-3f));
  const V small = fma(p, a, a);
  V q = splat<V>(0x1.97b4f6p-17f);  // −ln(erfc a)/a − 1 in a, from there to 4
  q = fma(q, a, splat<V>(-0x1.5c1e26p-12f));
  q = fma(q, a, splat<V>(0x1.e24fc2p-9f));
  q = fma(q, a, splat<V>(-0x1.869b68p-6f));
  q = fma(q, a, splat<V>(0x1.b3850ap-4f));
  q = fma(q, a, splat<V>(0x1.452b58p-1f));
  q = fma(q, a, splat<V>(0x1.077ff2p-3f));
  const V u = fma(q, a, a);
  const V lost = fma(q, a, a - u);  // q·a + a = u + lost
  const V e = exp(-u);
  V y = a < 0.9375f ? small : 1.0f - fma(-e, lost, e);
  y = a > 4.0f ? splat<V>(1.0f) : y;
  return x == x ? from_bits<V>(bits(y) ^ sign) : splat<V>(kNaN);
}

}  // namespace bitwitness::BITWITNESS_ISA
