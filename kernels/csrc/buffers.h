// What the host does to whole buffers: sum in binary64, look for NaN and Inf, write NaNs in their one form.
#pragma once

#include <cstdint>

namespace bitwitness {

// x[0] + x[1] + … in binary64, ascending, from +0.
double sum_f64(const float* x, int64_t n);

bool has_nonfinite(const float* x, int64_t n);

// Write every NaN as 7FC00000; return how many there were.
int64_t canonicalise_nan(float* x, int64_t n);

}  // namespace bitwitness
