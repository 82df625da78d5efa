// Philox4x32-10 and what is drawn from it (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
//
// Element e of a tensor takes word e mod 4 of the block whose counter is (⌊e/4⌋ low, ⌊e/4⌋ high, attempt, 0): a
// value depends on its key and position alone.
#include "../functions.h"
#include "../operators.h"
#include "../philox.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

struct Words {
  uint32_t word[4];
};

BW_INLINE Words block_words(uint64_t block, uint32_t attempt, PhiloxKey key) {
  uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), attempt, 0};
  philox4x32(counter, key.word);
  return {{counter[0], counter[1], counter[2], counter[3]}};
}

BW_INLINE float fraction(uint32_t count) { return static_cast<float>(count) * 0x1p-24f; }

// Box–Muller on the word pairs (0, 1) and (2, 3).
BW_INLINE void normals(const Words& words, float* z) {
  for (int pair = 0; pair < 4; pair += 2) {
    const float u1 = fraction(2 * (words.word[pair] >> 9) + 1);  // odd, so never 0: its logarithm is finite
    const float u2 = fraction(words.word[pair + 1] >> 8);
    const float radius = sqrt(-2.0f * log(u1));
    float sine, cosine;
    sincos2pi(u2, &sine, &cosine);
    z[pair] = radius * cosine;
    z[pair + 1] = radius * sine;
  }
}

// Call element(position in y, block, word) for the elements first … first + n − 1, block by block.
template <class Block> BW_INLINE void for_blocks(int64_t n, uint64_t first, Block block) {
  for (int64_t i = 0; i < n;) {
    const uint64_t element = first + i;
    const int word = static_cast<int>(element % 4);
    const int count = n - i < 4 - word ? static_cast<int>(n - i) : 4 - word;
    block(i, element / 4, word, count);
    i += count;
  }
}

}  // namespace

void uniform(float* y, int64_t n, uint64_t first, PhiloxKey key) {
  for_blocks(n, first, [&](int64_t i, uint64_t block, int word, int count) {
    const Words words = block_words(block, 0, key);
    for (int w = 0; w < count; ++w) y[i + w] = fraction(words.word[word + w] >> 8);
  });
}

void normal(float* y, int64_t n, uint64_t first, PhiloxKey key) {
  for_blocks(n, first, [&](int64_t i, uint64_t block, int word, int count) {
    float z[4];
    normals(block_words(block, 0, key), z);
    for (int w = 0; w < count; ++w) y[i + w] = z[word + w];
  });
}

void trunc_normal(float* y, int64_t n, uint64_t first, PhiloxKey key, float std, float bound) {
  for_blocks(n, first, [&](int64_t i, uint64_t block, int word, int count) {
    int left = count;
    bool taken[4] = {};
    for (uint32_t attempt = 0; left > 0; ++attempt) {
      float z[4];
      normals(block_words(block, attempt, key), z);
      for (int w = 0; w < count; ++w) {
        const float value = z[word + w];
        if (taken[w] || value > bound || -bound > value) continue;
        y[i + w] = value * std;
        taken[w] = true;
        --left;
      }
    }
  });
}

}  // namespace bitwitness::BITWITNESS_ISA
