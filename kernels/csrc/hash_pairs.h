// SHA-256 of many messages, two at a time on every thread.
//
// The SHA instructions of a message wait for one another; those of a second one fit between them, so that two messages
// take the time of one. For the commitments of a state and the transcript of an audit, which are most of what a run
// hashes. digest.h has the portable code that the referee shows to others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "digest.h"

namespace bitwitness {

struct Piece {
  const void* data;
  size_t bytes;
};

// Whether this processor can: x86 with SHA instructions, unless BITWITNESS_ISA asks for the generic build.
bool hashes_pairs();

// Leaf hashes of RFC 6962, SHA-256(00 ‖ chunk), of the chunks of every piece, one piece after the other.
std::vector<Hash> chunk_leaves(const std::vector<Piece>& pieces, size_t chunk_bytes, int threads);

// HMAC-SHA-256 (RFC 2104) of every piece, under a key of at most 64 bytes.
std::vector<Hash> macs(std::string_view key, const std::vector<Piece>& pieces, int threads);

}  // namespace bitwitness
