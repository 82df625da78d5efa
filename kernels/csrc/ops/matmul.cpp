// Matrix products.
#include "../loops.h"
#include "../operators.h"

namespace bitwitness::BITWITNESS_ISA {
namespace {

constexpr int64_t kBlock = 256;

struct Product {
  const float* a; int64_t a_row, a_k;
  const float* b; int64_t b_k, b_column;
  float* c;
  int64_t m, n, k;
  bool accumulate;
  int64_t segment;
};

void multiply(const Product& p, Worker& worker) {
  const int64_t segment = p.segment ? p.segment : p.k;
  share(worker, p.m, grain_for(p.n * p.k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* const c = p.c + i * p.n;
      if (!p.accumulate) memset(c, 0, p.n * sizeof(float));
      for (int64_t first = 0; first < p.k;) {
        const int64_t segment_end = (first / segment + 1) * segment;
        int64_t last = first + kBlock < segment_end ? first + kBlock : segment_end;
        if (last > p.k) last = p.k;
        for (int64_t j = 0; j < p.n; ++j) {
          float sum = 0.0f;
          for (int64_t k = first; k < last; ++k) {
            sum = fma(p.a[i * p.a_row + k * p.a_k], p.b[k * p.b_k + j * p.b_column], sum);
          }
          c[j] = c[j] + sum;
        }
        first = last;
      }
    }
  });
}

void matmul_nn(const Call& call, Worker& worker) {
  const int64_t m = call.dim(0, 0), k = call.dim(0, 1), n = call.dim(1, 1);
  multiply({call.f32(0), k, 1, call.f32(1), n, 1, call.f32(2), m, n, k, call.integer(0) != 0, 0}, worker);
}

void matmul_nt(const Call& call, Worker& worker) {
  const int64_t m = call.dim(0, 0), k = call.dim(0, 1), n = call.dim(1, 0);
  multiply({call.f32(0), k, 1, call.f32(1), 1, k, call.f32(2), m, n, k, call.integer(0) != 0, 0}, worker);
}

void matmul_tn(const Call& call, Worker& worker) {
  const int64_t k = call.dim(0, 0), m = call.dim(0, 1), n = call.dim(1, 1);
  multiply({call.f32(0), 1, m, call.f32(1), n, 1, call.f32(2), m, n, k, call.integer(0) != 0, call.integer(1)},
           worker);
}

}  // namespace

const Operator kMatmulNN = {
    "matmul_nn", 1, "in A[M,K], in B[K,N], inout C[M,N]", "accumulate: flag", "C is read where accumulate", matmul_nn};
const Operator kMatmulNT = {
    "matmul_nt", 1, "in A[M,K], in B[N,K], inout C[M,N]", "accumulate: flag", "C is read where accumulate", matmul_nt};
const Operator kMatmulTN = {
    "matmul_tn", 1, "in A[K,M], in B[K,N], inout C[M,N]", "accumulate: flag, segment: natural",
    "C is read where accumulate", matmul_tn};

}  // namespace bitwitness::BITWITNESS_ISA
