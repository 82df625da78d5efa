// One compilation of the operators: everything that differs between instruction sets, behind function pointers.
#pragma once

#include <cstdint>
#include <vector>

#include "operator.h"

namespace bitwitness {

struct PhiloxKey {
  uint32_t word[2];
};

// y[i] = f(x[i]): the functions of docs/arithmetic.md, for tests, in vector and in scalar form.
struct Function {
  const char* name;
  void (*vector)(const float* x, float* y, int64_t n);
  void (*scalar)(const float* x, float* y, int64_t n);
};

struct Library {
  const char* isa;
  const char* flags;  // that the sources were compiled with
  const Operator* const* operators;
  int operator_count;
  const Function* functions;
  int function_count;

  void (*fma)(const float* a, const float* b, const float* c, float* y, int64_t n);

  // Elements first … first + n − 1 of a random tensor (docs/arithmetic.md, Randomness).
  void (*uniform)(float* y, int64_t n, uint64_t first, PhiloxKey key);
  void (*normal)(float* y, int64_t n, uint64_t first, PhiloxKey key);
  void (*trunc_normal)(float* y, int64_t n, uint64_t first, PhiloxKey key, float std, float bound);
};

#if defined(__x86_64__) && !defined(BITWITNESS_ONLY_GENERIC)
namespace avx2 { extern const Library library; }
namespace avx512 { extern const Library library; }
#endif
namespace generic { extern const Library library; }

// Every compilation that this processor can run, the best first.
std::vector<const Library*> available_libraries();

// The one in use: the best, or what the environment variable BITWITNESS_ISA names. Chosen once, on first use.
// Throws KernelError where it names one that is unknown or that this processor cannot run.
const Library& library();

// The operator of that name in the library in use. Throws KernelError, listing the names, where there is none.
const Operator& find_operator(const char* name);

}  // namespace bitwitness
