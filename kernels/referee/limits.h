// What a trace file may take: a few bytes can declare any amount of memory and of work.
#pragma once

#include <cstdint>
#include <string_view>

#include "trace_file.h"

namespace bitwitness {

struct Limits {
  int64_t memory = int64_t{8} << 30;  // bytes
  double work = 100e12;               // multiply-adds
  int threads = 1;

  // Throw KernelError where so much is more than allowed.
  void check_memory(double bytes) const;
  void check_work(double work) const;
};

// Bytes of memory that a JSON text takes once it is read, at the most.
int64_t memory_of_json(std::string_view text);

// Throws KernelError where executing the file would take more than allowed (docs/formats/trace.md, What a file takes),
// `held` being the bytes that reading it took. Allocates nothing for it.
void check_limits(const TraceFile& file, int64_t held, const Limits& limits);

}  // namespace bitwitness
