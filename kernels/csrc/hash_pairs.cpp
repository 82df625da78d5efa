#include "hash_pairs.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "errors.h"
#include "library.h"
#include "sha256_constants.h"
#include "thread_pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace bitwitness {

#if defined(__x86_64__)

namespace {

using Words = Sha256Words;

constexpr size_t kBlock = 64;

// The next `blocks` blocks of `kLanes` messages. `state[l]` holds words a … h; the instructions want them as (f, e, b,
// a) and (h, g, d, c), lowest lane first.
template <int kLanes>
__attribute__((target("sha,sse4.1"))) void compress(Words* const (&state)[kLanes],
                                                    const uint8_t* const (&data)[kLanes], size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[kLanes], cdgh[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const Words& s = *state[l];
    abef[l] = _mm_set_epi32(static_cast<int>(s[0]), static_cast<int>(s[1]), static_cast<int>(s[4]), static_cast<int>(s[5]));
    cdgh[l] = _mm_set_epi32(static_cast<int>(s[2]), static_cast<int>(s[3]), static_cast<int>(s[6]), static_cast<int>(s[7]));
  }
  for (size_t b = 0; b < blocks; ++b) {
    __m128i w[kLanes][4], abef_before[kLanes], cdgh_before[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      abef_before[l] = abef[l], cdgh_before[l] = cdgh[l];
      for (int i = 0; i < 4; ++i) {
        const auto* const from = reinterpret_cast<const __m128i*>(data[l] + kBlock * b + 16 * i);
        w[l][i] = _mm_shuffle_epi8(_mm_loadu_si128(from), big_endian);
      }
    }
#pragma GCC unroll 16
    for (int four = 0; four < 16; ++four) {  // four rounds each, and four words of the schedule
      const __m128i round = _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Round + 4 * four));
#pragma GCC unroll 2
      for (int l = 0; l < kLanes; ++l) {
        __m128i* const v = w[l];
        const __m128i sum = _mm_add_epi32(v[four % 4], round);
        cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], sum);
        abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(sum, 0x0e));
        if (four < 12) {
          const __m128i low = _mm_sha256msg1_epu32(v[four % 4], v[(four + 1) % 4]);
          const __m128i old = _mm_alignr_epi8(v[(four + 3) % 4], v[(four + 2) % 4], 4);
          v[four % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(low, old), v[(four + 3) % 4]);
        }
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      abef[l] = _mm_add_epi32(abef[l], abef_before[l]), cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    alignas(16) uint32_t high[4], low[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(high), abef[l]);
    _mm_store_si128(reinterpret_cast<__m128i*>(low), cdgh[l]);
    *state[l] = {high[3], high[2], low[3], low[2], high[1], high[0], low[1], low[0]};
  }
}

// A message: `head`, at most a byte, and `body`, after `before` bytes that `state` has in it.
struct Message {
  const Words* state;
  uint64_t before;
  bool head;  // a byte of 0 comes first
  Piece body;
};

// A message being hashed: its blocks lie in up to three places, for what begins or ends in mid-block is copied.
class Lane {
 public:
  void begin(const Message& message, Hash* hash) {
    state_ = *message.state, hash_ = hash, count_ = next_ = 0;
    const auto* data = static_cast<const uint8_t*>(message.body.data);
    size_t left = message.body.bytes, held = 0;
    uint8_t* rest = last_;
    if (message.head) {
      if (left + 1 >= kBlock) {
        first_[0] = 0;
        std::memcpy(first_ + 1, data, kBlock - 1);
        add(first_, 1);
        data += kBlock - 1, left -= kBlock - 1;
      } else {
        rest[held++] = 0;
      }
    }
    add(data, left / kBlock);
    data += left / kBlock * kBlock, left %= kBlock;
    if (left != 0) std::memcpy(rest + held, data, left);
    held += left;
    const size_t padded = held < kBlock - 8 ? kBlock : 2 * kBlock;
    rest[held] = 0x80;
    std::memset(rest + held + 1, 0, padded - held - 1);
    const uint64_t bits = 8 * (message.before + (message.head ? 1 : 0) + message.body.bytes);
    for (int i = 0; i < 8; ++i) rest[padded - 8 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    add(rest, padded / kBlock);
  }

  Words* state() { return &state_; }
  const uint8_t* data() const { return places_[next_].data; }
  size_t blocks() const { return places_[next_].blocks; }

  // Count `blocks` of the place in hand as done; whether the message is, and its hash written.
  bool done(size_t blocks) {
    Place& place = places_[next_];
    place.data += kBlock * blocks, place.blocks -= blocks;
    if (place.blocks != 0 || ++next_ < count_) return false;
    for (int i = 0; i < 32; ++i) (*hash_)[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return true;
  }

 private:
  struct Place {
    const uint8_t* data;
    size_t blocks;
  };

  void add(const uint8_t* data, size_t blocks) {
    if (blocks != 0) places_[count_++] = {data, blocks};
  }

  Words state_;
  Hash* hash_;
  Place places_[3];
  int count_, next_;
  uint8_t first_[kBlock], last_[2 * kBlock];
};

struct Work {
  const std::vector<Message>& messages;
  std::vector<Hash>& hashes;

  bool next(Worker& worker, Lane& lane) const {
    const int64_t taken = worker.take();
    if (taken >= static_cast<int64_t>(messages.size())) return false;
    lane.begin(messages[taken], &hashes[taken]);
    return true;
  }

  void run(Worker& worker) const {
    Lane a, b;
    bool with_a = next(worker, a), with_b = next(worker, b);
    while (with_a && with_b) {
      const size_t blocks = std::min(a.blocks(), b.blocks());
      compress<2>({a.state(), b.state()}, {a.data(), b.data()}, blocks);
      if (a.done(blocks)) with_a = next(worker, a);
      if (b.done(blocks)) with_b = next(worker, b);
    }
    alone(a, with_a);
    alone(b, with_b);
  }

  static void alone(Lane& lane, bool busy) {
    while (busy) {
      const size_t blocks = lane.blocks();
      compress<1>({lane.state()}, {lane.data()}, blocks);
      busy = !lane.done(blocks);
    }
  }
};

std::vector<Hash> hash_all(const std::vector<Message>& messages, int threads) {
  std::vector<Hash> hashes(messages.size());
  const Work work{messages, hashes};
  Team team(threads);
  const auto body = [](Worker& worker, void* self) { static_cast<const Work*>(self)->run(worker); };
  run_on_team(team, body, const_cast<Work*>(&work));
  return hashes;
}

Words keyed(std::string_view key, uint8_t pad) {
  uint8_t block[kBlock] = {};
  if (!key.empty()) std::memcpy(block, key.data(), key.size());
  for (uint8_t& byte : block) byte ^= pad;
  Words state = kSha256Begin;
  compress<1>({&state}, {block}, 1);
  return state;
}

}  // namespace

bool hashes_pairs() {
  static const bool can = [] {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1") &&
           std::strcmp(library().isa, "generic") != 0;
  }();
  return can;
}

std::vector<Hash> chunk_leaves(const std::vector<Piece>& pieces, size_t chunk_bytes, int threads) {
  std::vector<Message> messages;
  for (const auto& [data, bytes] : pieces) {
    const auto* const begin = static_cast<const uint8_t*>(data);
    for (size_t at = 0; at < bytes; at += chunk_bytes) {
      messages.push_back({&kSha256Begin, 0, true, {begin + at, std::min(chunk_bytes, bytes - at)}});
    }
  }
  return hash_all(messages, threads);
}

std::vector<Hash> macs(std::string_view key, const std::vector<Piece>& pieces, int threads) {
  const Words inner = keyed(key, 0x36), outer = keyed(key, 0x5c);
  // The longest first: the last ones to be taken are then short, and no thread waits long for another.
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return pieces[i].bytes > pieces[j].bytes; });
  std::vector<Message> messages;
  for (const size_t i : order) messages.push_back({&inner, kBlock, false, pieces[i]});
  const std::vector<Hash> inside = hash_all(messages, threads);
  messages.clear();
  for (const Hash& hash : inside) messages.push_back({&outer, kBlock, false, {hash.data(), hash.size()}});
  const std::vector<Hash> sorted = hash_all(messages, 1);
  std::vector<Hash> found(pieces.size());
  for (size_t n = 0; n < order.size(); ++n) found[order[n]] = sorted[n];
  return found;
}

#else

bool hashes_pairs() { return false; }

std::vector<Hash> chunk_leaves(const std::vector<Piece>&, size_t, int) {
  throw KernelError("this processor has no SHA instructions that are known here");
}

std::vector<Hash> macs(std::string_view, const std::vector<Piece>&, int) {
  throw KernelError("this processor has no SHA instructions that are known here");
}

#endif

}  // namespace bitwitness
