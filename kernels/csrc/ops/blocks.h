// The blocks of a block sum (docs/arithmetic.md, Sums): 256 terms, restarting at every multiple of a segment.
#pragma once

#include <cstdint>

#include "../operator.h"

namespace bitwitness::BITWITNESS_ISA {

constexpr int64_t kBlock = 256;

// The blocks of 0 … n−1, numbered ascending. A segment of 0 is the whole range.
struct Blocks {
  int64_t n, segment, per_segment;

  BW_MEMBER Blocks(int64_t n, int64_t segment)
      : n(n), segment(segment ? segment : n), per_segment((this->segment + kBlock - 1) / kBlock) {}
  BW_MEMBER int64_t begin(int64_t block) const {
    const int64_t at = block / per_segment * segment + block % per_segment * kBlock;
    return at < n ? at : n;
  }
  BW_MEMBER int64_t end(int64_t block) const { return begin(block + 1); }
  BW_MEMBER int64_t count() const { return n / segment * per_segment + (n % segment + kBlock - 1) / kBlock; }
};

}  // namespace bitwitness::BITWITNESS_ISA
