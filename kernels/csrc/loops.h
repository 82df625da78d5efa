// How operators walk their data: vectors with a scalar tail, the row sum, tasks shared among workers.
//
// A loop body is a generic lambda `[&]<class V>(int64_t i)`, called with V = Vf for a full vector at element i and
// with V = float for each element of the tail: one source, the same bits.
#pragma once

#include "thread_pool.h"
#include "vec.h"

namespace bitwitness::BITWITNESS_ISA {

BW_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
BW_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
BW_INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
BW_INLINE int64_t round_up(int64_t n, int64_t to) { return ceiling(n, to) * to; }

template <class V> BW_INLINE V load_as(const float* p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class V> BW_INLINE void store_as(float* p, V v) { memcpy(p, &v, sizeof v); }

template <class Body> BW_INLINE void for_each(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body.template operator()<Vf>(i);
  for (; i < end; ++i) body.template operator()<float>(i);
}

// Share items 0 … n−1 out in runs of `grain`: body(begin, end). A barrier must follow before the next call.
template <class Body> BW_INLINE void share(Worker& worker, int64_t n, int64_t grain, Body body) {
  for (;;) {
    const int64_t begin = worker.take() * grain;
    if (begin >= n) return;
    body(begin, least(begin + grain, n));
  }
}

// Items of which each costs about `cost` element operations, in runs long enough to pay for taking them.
BW_INLINE int64_t grain_for(int64_t cost) { return ceiling(8192, cost); }

constexpr int kSumLanes = 16;
constexpr int kSumVectors = kSumLanes / kLanes;
constexpr int64_t kSumChunk = 4096;

// Sixteen lanes to one number: lane i + lane i+8, then ((0+4)+(2+6)) + ((1+5)+(3+7)).
BW_INLINE float fold_lanes(const float* lane) {
  float m[8];
  for (int i = 0; i < 8; ++i) m[i] = lane[i] + lane[i + 8];
  return ((m[0] + m[4]) + (m[2] + m[6])) + ((m[1] + m[5]) + (m[3] + m[7]));
}

// The row sum of docs/arithmetic.md. `add(i, lane)` is [&]<class V>(int64_t i, V lane) -> V: lane plus part i.
template <class Add> BW_INLINE float rowsum(int64_t n, Add add) {
  float total = 0.0f;
  for (int64_t chunk = 0; chunk < n; chunk += kSumChunk) {
    const int64_t end = least(chunk + kSumChunk, n);
    Vf lanes[kSumVectors] = {};
    int64_t i = chunk;
    for (; i + kSumLanes <= end; i += kSumLanes) {
      for (int v = 0; v < kSumVectors; ++v) lanes[v] = add.template operator()<Vf>(i + v * kLanes, lanes[v]);
    }
    float lane[kSumLanes];
    memcpy(lane, lanes, sizeof lane);
    for (int t = 0; i < end; ++i, ++t) lane[t] = add.template operator()<float>(i, lane[t]);
    total = total + fold_lanes(lane);
  }
  return total;
}

}  // namespace bitwitness::BITWITNESS_ISA
