// A keyed bijection of 0 … n−1: a 4-round Feistel network over the least even number of bits that holds n, walked
// until it lands below n (docs/arithmetic.md, Randomness).
#pragma once

#include <bit>
#include <cstdint>

#include "library.h"
#include "philox.h"

namespace bitwitness {

// Where i goes; 0 <= i < n.
inline uint64_t permutation(uint64_t i, uint64_t n, PhiloxKey key, uint64_t epoch) {
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint32_t epoch_low = static_cast<uint32_t>(epoch), epoch_high = static_cast<uint32_t>(epoch >> 32);
  uint64_t x = i;
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint32_t round = 0; round < 4; ++round) {
      uint32_t words[4] = {static_cast<uint32_t>(right), round, epoch_low, epoch_high};
      philox4x32(words, key.word);
      const uint64_t next = left ^ (words[0] & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= n);
  return x;
}

}  // namespace bitwitness
