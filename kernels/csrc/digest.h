// SHA-256 and RFC 6962 trees over tensors: what the trace of a program is made of (docs/formats/trace.md).
//
// Our own, so that the referee links nothing but this folder. Portable C++: hashing is not what a replay waits for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sha256_constants.h"
#include "signature.h"

namespace bitwitness {

using Hash = std::array<uint8_t, 32>;

constexpr int64_t kChunkBytes = 65536;  // of a tensor, in one leaf of its tree

class Sha256 {
 public:
  void update(const void* data, size_t bytes);
  Hash finish();

 private:
  void block(const uint8_t* data);

  Sha256Words state_ = kSha256Begin;
  uint64_t bytes_ = 0;
  uint8_t rest_[64];
};

Hash sha256(const void* data, size_t bytes);
Hash leaf_hash(const void* data, size_t bytes);           // SHA-256(00 ‖ data)
Hash node_hash(const Hash& left, const Hash& right);      // SHA-256(01 ‖ left ‖ right)
Hash tree_root(std::vector<Hash> leaves);                 // RFC 6962, section 2.1; SHA-256 of nothing where empty
std::string hex(const Hash& hash);

inline int64_t chunk_count(int64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// The leaf of chunk `chunk` of a tensor: 64 KiB of its little-endian elements, NaNs written as 7FC00000.
Hash chunk_hash(const void* tensor, int64_t bytes, DType dtype, int64_t chunk);

// The digest of a tensor: the root over its chunks.
Hash tensor_digest(const void* tensor, int64_t bytes, DType dtype);

}  // namespace bitwitness
