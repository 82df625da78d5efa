// Errors that become bitwitness.kernels.errors in Python: one line that says what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace bitwitness {

struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Operand shapes, dtypes or sizes that do not fit.
struct ShapeError : KernelError {
  using KernelError::KernelError;
};

}  // namespace bitwitness
