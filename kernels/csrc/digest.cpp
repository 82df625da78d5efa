#include "digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "sha256_constants.h"

namespace bitwitness {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are hashed as little-endian bytes");

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

// Bytes begin … end − 1 of a tensor into `to`, every NaN as 7FC00000.
void copy_canonical(const char* tensor, int64_t begin, int64_t end, DType dtype, uint8_t* to) {
  std::memcpy(to, tensor + begin, static_cast<size_t>(end - begin));
  if (dtype != DType::F32) return;
  for (uint8_t* p = to; p < to + (end - begin); p += 4) {
    uint32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    bits = (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : bits;
    std::memcpy(p, &bits, sizeof bits);
  }
}

}  // namespace

void Sha256::block(const uint8_t* data) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t a = state_[0], b = state_[1], c = state_[2], d = state_[3];
  uint32_t e = state_[4], f = state_[5], g = state_[6], h = state_[7];
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Round[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t next[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += next[i];
}

void Sha256::update(const void* data, size_t bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  const size_t held = bytes_ % 64;
  bytes_ += bytes;
  if (held != 0) {
    const size_t taken = std::min(bytes, 64 - held);
    std::memcpy(rest_ + held, p, taken);
    if (held + taken < 64) return;
    block(rest_);
    p += taken, bytes -= taken;
  }
  for (; bytes >= 64; p += 64, bytes -= 64) block(p);
  if (bytes != 0) std::memcpy(rest_, p, bytes);
}

Hash Sha256::finish() {
  const uint64_t bits = bytes_ * 8;
  const uint8_t padding[72] = {0x80};
  update(padding, (bytes_ % 64 < 56 ? 56 : 120) - bytes_ % 64);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(length, sizeof length);
  Hash hash;
  for (int i = 0; i < 32; ++i) hash[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return hash;
}

Hash sha256(const void* data, size_t bytes) {
  Sha256 sha;
  sha.update(data, bytes);
  return sha.finish();
}

Hash leaf_hash(const void* data, size_t bytes) {
  Sha256 sha;
  sha.update("\x00", 1);
  sha.update(data, bytes);
  return sha.finish();
}

Hash node_hash(const Hash& left, const Hash& right) {
  Sha256 sha;
  sha.update("\x01", 1);
  sha.update(left.data(), left.size());
  sha.update(right.data(), right.size());
  return sha.finish();
}

// Adjacent pairs, an odd last one promoted: the same tree as the recursive definition.
Hash tree_root(std::vector<Hash> level) {
  if (level.empty()) return sha256(nullptr, 0);
  while (level.size() > 1) {
    size_t made = 0;
    for (size_t i = 0; i + 1 < level.size(); i += 2) level[made++] = node_hash(level[i], level[i + 1]);
    if (level.size() % 2 == 1) level[made++] = level.back();
    level.resize(made);
  }
  return level.front();
}

std::string hex(const Hash& hash) {
  std::string text;
  for (const uint8_t byte : hash) text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
  return text;
}

Hash chunk_hash(const void* tensor, int64_t bytes, DType dtype, int64_t chunk) {
  uint8_t piece[4096];  // a NaN is rewritten in a copy: the tensor itself is not ours to change
  const int64_t begin = chunk * kChunkBytes, end = std::min(begin + kChunkBytes, bytes);
  Sha256 sha;
  sha.update("\x00", 1);
  for (int64_t at = begin; at < end; at += static_cast<int64_t>(sizeof piece)) {
    const int64_t to = std::min(at + static_cast<int64_t>(sizeof piece), end);
    copy_canonical(static_cast<const char*>(tensor), at, to, dtype, piece);
    sha.update(piece, static_cast<size_t>(to - at));
  }
  return sha.finish();
}

Hash tensor_digest(const void* tensor, int64_t bytes, DType dtype) {
  std::vector<Hash> chunks;
  for (int64_t c = 0; c < chunk_count(bytes); ++c) chunks.push_back(chunk_hash(tensor, bytes, dtype, c));
  return tree_root(chunks);
}

}  // namespace bitwitness
