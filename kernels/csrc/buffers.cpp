#include "buffers.h"

#include <cstring>

#include "fp_env.h"

namespace bitwitness {
namespace {

constexpr uint32_t kInfinityBits = 0x7F800000, kNaNBits = 0x7FC00000, kMagnitude = 0x7FFFFFFF;

uint32_t magnitude(const float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits & kMagnitude;
}

}  // namespace

double sum_f64(const float* x, int64_t n) {
  const FloatingPointEnvironment environment;  // else a subnormal may be read as zero
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum = sum + static_cast<double>(x[i]);
  return sum;
}

bool has_nonfinite(const float* x, int64_t n) {
  uint32_t found = 0;  // no early exit inside a chunk: the loop then vectorises
  for (int64_t chunk = 0; chunk < n && found == 0; chunk += 4096) {
    const int64_t end = chunk + 4096 < n ? chunk + 4096 : n;
    for (int64_t i = chunk; i < end; ++i) found |= magnitude(x + i) >= kInfinityBits;
  }
  return found != 0;
}

int64_t canonicalise_nan(float* x, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (magnitude(x + i) <= kInfinityBits) continue;
    std::memcpy(x + i, &kNaNBits, sizeof kNaNBits);
    ++count;
  }
  return count;
}

}  // namespace bitwitness
