#include "library.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "errors.h"

namespace bitwitness {

std::vector<const Library*> available_libraries() {
  std::vector<const Library*> libraries;
#if defined(__x86_64__) && !defined(BITWITNESS_ONLY_GENERIC)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma")) {
    libraries.push_back(&avx512::library);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) libraries.push_back(&avx2::library);
#endif
  libraries.push_back(&generic::library);
  return libraries;
}

const Library& library() {
  static const Library* const chosen = [] {
    const auto libraries = available_libraries();
    const char* const wanted = std::getenv("BITWITNESS_ISA");
    if (wanted == nullptr || *wanted == '\0') return libraries.front();
    std::string names;
    for (const Library* candidate : libraries) {
      if (std::strcmp(candidate->isa, wanted) == 0) return candidate;
      names += std::string(names.empty() ? "" : ", ") + candidate->isa;
    }
    throw KernelError(std::string("BITWITNESS_ISA=") + wanted + " cannot run here; this processor runs " + names);
  }();
  return *chosen;
}

const Operator& find_operator(const char* name) {
  const Library& in_use = library();
  std::string names;
  for (int i = 0; i < in_use.operator_count; ++i) {
    const Operator& op = *in_use.operators[i];
    if (std::strcmp(op.name, name) == 0) return op;
    names += std::string(names.empty() ? "" : ", ") + op.name;
  }
  throw KernelError(std::string("no operator '") + name + "'; the operators are " + names);
}

}  // namespace bitwitness
