// From float32 to block fixed point: exponents of maxima, and the two ways to quantise an operand.
#include "../operators.h"
#include "bfp.h"
#include "tile.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kRowGrain = 16;
constexpr int64_t kColumns = 32;  // of a column task: two cache lines of each row

// The greatest magnitude of each column: every worker over its rows, then over the workers.
void exponents(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  int32_t* const column = call.i32(1);
  const int64_t rows = call.dim(0, 0), width = call.dim(0, 1);
  int32_t* const every = static_cast<int32_t*>(worker.shared());
  int32_t* const own = every + worker.index() * width;
  memset(own, 0, width * sizeof *own);
  share(worker, rows, grain_for(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = x + row * width;
      for_each(0, width, [&]<class V>(int64_t i) {
        Integers<V> most_so_far;
        memcpy(&most_so_far, own + i, sizeof most_so_far);
        most_so_far = largest(most_so_far, bits(load_as<V>(from + i)) & kMagnitude);
        memcpy(own + i, &most_so_far, sizeof most_so_far);
      });
    }
  });
  worker.barrier();
  share(worker, width, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t magnitude = 0;
      for (int w = 0; w < worker.count(); ++w) magnitude = largest(magnitude, every[w * width + i]);
      column[i] = exponent_of(magnitude);
    }
  });
}

Scratch exponents_scratch(const Call& call, int workers) {
  return {call.dim(0, 1) * workers * static_cast<int64_t>(sizeof(int32_t)), 0};
}

void balance(const Call& call, Worker& worker) {
  const int32_t* const g = call.i32(0);
  const int32_t* const x = call.i32(1);
  int32_t* const a = call.i32(2);
  share(worker, call.size(0), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a[i] = static_cast<int32_t>((static_cast<int64_t>(g[i]) - x[i]) >> 1);
  });
}

// One row: its blocks, `factor` = 2^±a for each element. Returns the greatest magnitude of x itself.
BW_INLINE int32_t quantise_row(const float* x, const float* factor, int64_t width, int16_t* q, float* scales) {
  Vi most_of_row = {};
  int32_t tail_of_row = 0;
  for (int64_t block = 0; block < width; block += kBfpBlock, q += kBfpBlock, ++scales) {
    const int64_t end = least(block + kBfpBlock, width), vectors = block + (end - block) / kLanes * kLanes;
    float y[kBfpBlock];
    Vi most_of_block = {};
    int32_t tail_of_block = 0;
    for (int64_t i = block; i < vectors; i += kLanes) {
      const Vf from = load(x + i), scaled = from * load(factor + i);
      store(y + (i - block), scaled);
      most_of_row = largest(most_of_row, bits(from) & kMagnitude);
      most_of_block = largest(most_of_block, bits(scaled) & kMagnitude);
    }
    for (int64_t i = vectors; i < end; ++i) {
      const float scaled = x[i] * factor[i];
      y[i - block] = scaled;
      tail_of_row = largest(tail_of_row, bits(x[i]) & kMagnitude);
      tail_of_block = largest(tail_of_block, bits(scaled) & kMagnitude);
    }
    for (int64_t i = end; i < block + kBfpBlock; ++i) y[i - block] = 0.0f;
    const BlockScale<float> to(largest(largest_of(most_of_block), tail_of_block));
    *scales = to.scale;
    const Vi kept = Vi{} + to.kept;
    for (int64_t i = 0; i < kBfpBlock; i += kLanes) {
      const Vs narrow = __builtin_convertvector(quantised(load(y + i), splat(to.factor), kept), Vs);
      memcpy(q + i, &narrow, sizeof narrow);
    }
  }
  return largest(largest_of(most_of_row), tail_of_row);
}

void rows(const Call& call, Worker& worker) {
  const float* const x = call.f32(0);
  const int32_t* const a = call.i32(1);
  int16_t* const q = call.i16(2);
  float* const s = call.f32(3);
  int32_t* const row_exponent = call.i32(4);
  const int64_t n = call.dim(0, 0), width = call.dim(0, 1), padded = call.dim(2, 1), blocks = call.dim(3, 1);
  const int32_t sign = static_cast<int32_t>(call.integer(0));
  float* const factor = static_cast<float*>(worker.scratch());
  for (int64_t i = 0; i < width; ++i) factor[i] = power_of_two<float>(sign * clamped(a[i], -kBfpShift, kBfpShift));
  share(worker, n, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      row_exponent[r] = exponent_of(quantise_row(x + r * width, factor, width, q + r * padded, s + r * blocks));
    }
  });
}

Scratch rows_scratch(const Call& call, int) { return {0, call.dim(0, 1) * static_cast<int64_t>(sizeof(float))}; }

// One block of up to 32 columns: rows k … k + depth − 1 of x, scaled into `y` [128][32] with zeros beside them.
BW_INLINE void scale_columns(const float* x, int64_t stride, const int32_t* a, int32_t sign, int64_t depth,
                             int64_t columns, float* y, Vi* most_of_column) {
  for (int v = 0; v < kColumns / kLanes; ++v) most_of_column[v] = Vi{};
  for (int64_t k = 0; k < depth; ++k, x += stride, y += kColumns) {
    __builtin_prefetch(x + 16 * stride);  // rows lie too far apart for the processor to see the pattern
    __builtin_prefetch(x + 16 * stride + kColumns / 2);
    const Vf factor = splat(power_of_two<float>(sign * clamped(a[k], -kBfpShift, kBfpShift)));
    float edge[kColumns] = {};
    const float* from = x;
    if (columns < kColumns) {
      memcpy(edge, x, columns * sizeof(float));
      from = edge;
    }
#pragma GCC unroll 8
    for (int v = 0; v < kColumns / kLanes; ++v) {
      const Vf scaled = load(from + v * kLanes) * factor;
      store(y + v * kLanes, scaled);
      most_of_column[v] = largest(most_of_column[v], bits(scaled) & kMagnitude);
    }
  }
  memset(y, 0, (kBfpBlock - depth) * kColumns * sizeof(float));
}

// kLanes of those columns, quantised and turned into rows of q: two numbers of a column, k and k + 1, are one 32-bit
// word of its row, so that whole words are transposed.
BW_INLINE void quantise_columns(const float* y, Vi magnitude, int64_t columns, int16_t* q, int64_t padded, float* s,
                                int64_t blocks) {
  const BlockScale<Vf> to(magnitude);
  for (int64_t c = 0; c < columns; ++c) s[c * blocks] = to.scale[c];
  for (int64_t k = 0; k < kBfpBlock; k += 2 * kLanes, y += 2 * kLanes * kColumns) {
    Vf words[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const Vi even = quantised(load(y + 2 * i * kColumns), to.factor, to.kept);
      const Vi odd = quantised(load(y + (2 * i + 1) * kColumns), to.factor, to.kept);
      words[i] = from_bits<Vf>((even & 0xFFFF) | (odd << 16));
    }
    transpose(words);
    if (columns == kLanes) {
      for (int c = 0; c < kLanes; ++c) memcpy(q + c * padded + k, &words[c], sizeof words[c]);
    } else {
      for (int64_t c = 0; c < columns; ++c) memcpy(q + c * padded + k, &words[c], sizeof words[c]);
    }
  }
}

void columns(const Call& call, Worker& worker) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pairs of 16-bit integers are written as 32-bit words");
  const float* const x = call.f32(0);
  const int32_t* const a = call.i32(1);
  int16_t* const q = call.i16(2);
  float* const s = call.f32(3);
  const int64_t width = call.dim(0, 1), padded = call.dim(2, 1), blocks = call.dim(3, 1);
  const int32_t sign = static_cast<int32_t>(call.integer(0));
  const int64_t segment = call.integer(1), per_segment = ceiling(segment, kBfpBlock);
  const int64_t groups = ceiling(width, kColumns);
  float* const y = static_cast<float*>(worker.scratch());
  share(worker, blocks * groups, 2, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / groups, first = task % groups * kColumns, count = least(kColumns, width - first);
      const int64_t within = block % per_segment * kBfpBlock, k = block / per_segment * segment + within;
      Vi magnitude[kColumns / kLanes];
      scale_columns(x + k * width + first, width, a + k, sign, least(kBfpBlock, segment - within), count, y, magnitude);
      for (int64_t v = 0; v * kLanes < count; ++v) {
        const int64_t column = first + v * kLanes;
        quantise_columns(y + v * kLanes, magnitude[v], least(kLanes, width - column),
                         q + column * padded + block * kBfpBlock, padded, s + column * blocks + block, blocks);
      }
    }
  });
}

Scratch columns_scratch(const Call&, int) {
  return {0, kBfpBlock * kColumns * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

const Operator kBfpExponents = {"bfp_exponents", 1, "in x[R,D], out e:i32[D]", "", "", exponents, exponents_scratch,
    "e: D"};
const Operator kBfpBalance = {"bfp_balance", 1, "in g:i32[K], in x:i32[K], out a:i32[K]", "", "", balance,
    nullptr, "a: K"};
const Operator kBfpRows = {
    "bfp_rows", 1, "in x[R,K], in a:i32[K], out q:i16[R,128*ceil(K/128)], out s[R,ceil(K/128)], out e:i32[R]",
    "sign: sign", "", rows, rows_scratch, "q s e: R"};
const Operator kBfpColumns = {
    "bfp_columns", 1,
    "in x[K,R], in a:i32[K], out q:i16[R,128*(K/segment)*ceil(segment/128)], out s[R,(K/segment)*ceil(segment/128)]",
    "sign: sign, segment: count", "segment divides K", columns, columns_scratch, "q s: R"};

}  // namespace bitwitness::BITWITNESS_ISA
