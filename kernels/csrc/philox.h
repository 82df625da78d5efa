// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11): integers only, so one form serves every instruction set.
#pragma once

#include <cstdint>

namespace bitwitness {

// counter becomes the four random words.
inline __attribute__((always_inline)) void philox4x32(uint32_t counter[4], const uint32_t key[2], int rounds = 10) {
  uint32_t key0 = key[0], key1 = key[1];
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace bitwitness
