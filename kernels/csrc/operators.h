// Every operator, by family. The definitions stand beside the code, in ops/.
#pragma once

#include "library.h"

namespace bitwitness::BITWITNESS_ISA {

extern const Operator kFill, kCopy, kAdd, kMul;                           // ops/elementwise.cpp
extern const Operator kAddBias, kBiasBackward;                            // ops/bias.cpp
extern const Operator kMatmulNN, kMatmulNT, kMatmulTN;                    // ops/matmul.cpp
extern const Operator kBfpExponents, kBfpBalance, kBfpRows, kBfpColumns;  // ops/bfp_quantise.cpp
extern const Operator kMatmulBfp;                                         // ops/matmul_bfp.cpp
extern const Operator kEmbed, kEmbedBackward;                             // ops/embed.cpp
extern const Operator kRmsnorm, kAddRmsnorm, kRmsnormBackward;            // ops/rmsnorm.cpp
extern const Operator kLayernorm, kLayernormBackward;                     // ops/layernorm.cpp
extern const Operator kRope;                                              // ops/rope.cpp
extern const Operator kAttention;                                         // ops/attention.cpp
extern const Operator kAttentionBackward;                                 // ops/attention_backward.cpp
extern const Operator kSwiglu, kSwigluBackward;                           // ops/swiglu.cpp
extern const Operator kSilu, kSiluBackward, kGelu, kGeluBackward;         // ops/activations.cpp
extern const Operator kGeluTanh, kGeluTanhBackward;
extern const Operator kDropout;                                           // ops/dropout.cpp
extern const Operator kCrossEntropy, kCrossEntropyLoss;                   // ops/cross_entropy.cpp
extern const Operator kSumSquares, kAdamw;                                // ops/optimizer.cpp

void uniform(float* y, int64_t n, uint64_t first, PhiloxKey key);         // ops/random.cpp
void normal(float* y, int64_t n, uint64_t first, PhiloxKey key);
void trunc_normal(float* y, int64_t n, uint64_t first, PhiloxKey key, float std, float bound);

}  // namespace bitwitness::BITWITNESS_ISA
