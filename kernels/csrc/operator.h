// What an operator is: its declaration, and what it sees when it runs.
//
// These types cross the line between code compiled for the build's baseline and code compiled per instruction
// set, so they are plain data, and their few member functions are forced inline (see vec.h).
#pragma once

#include <cstdint>

#define BW_MEMBER inline __attribute__((always_inline))

namespace bitwitness {

constexpr int kMaxOperands = 8;
constexpr int kMaxAttributes = 6;
constexpr int kMaxRank = 4;

struct Operand {
  void* data = nullptr;
  int64_t shape[kMaxRank] = {};
  int rank = 0;

  BW_MEMBER int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// An attribute is an integer or a binary32 number, as its kind says.
struct Attribute {
  int64_t integer = 0;
  float real = 0.0f;
};

struct Operator;

// One operator call with everything bound: the operands and attributes in the order of the declaration.
struct Call {
  const Operator* op = nullptr;
  Operand operands[kMaxOperands];
  Attribute attributes[kMaxAttributes];

  BW_MEMBER float* f32(int operand) const { return static_cast<float*>(operands[operand].data); }
  BW_MEMBER int32_t* i32(int operand) const { return static_cast<int32_t*>(operands[operand].data); }
  BW_MEMBER int16_t* i16(int operand) const { return static_cast<int16_t*>(operands[operand].data); }
  BW_MEMBER int64_t dim(int operand, int axis) const { return operands[operand].shape[axis]; }
  BW_MEMBER int64_t size(int operand) const { return operands[operand].size(); }
  BW_MEMBER int64_t integer(int attribute) const { return attributes[attribute].integer; }
  BW_MEMBER float real(int attribute) const { return attributes[attribute].real; }
};

// Bytes of scratch memory that a call wants, planned when the executor is made: nothing is allocated in a run.
struct Scratch {
  int64_t shared = 0;      // one block for all workers
  int64_t per_worker = 0;  // one block for each
};

class Worker;

// The declaration of an operator, the only one: validation, the Python table, the digest of the arithmetic and
// the documentation are read from these strings (signature.h gives their grammar).
struct Operator {
  const char* name;
  int version;
  const char* operands;    // "in x[R,D], in ids:i32[R], inout c[M,N], out y[R,(heads+2*kv_heads)*d]"
  const char* attributes;  // "epsilon: real, segment: natural"
  const char* rules;       // "window divides R, y may be a, C is read where accumulate"
  void (*run)(const Call&, Worker&);                       // called by every worker of the team
  Scratch (*scratch)(const Call&, int workers) = nullptr;  // none where null

  // Which part of the operands a part of an output depends on (kernels/tracing/footprint.py gives the grammar): what may be cut
  // out of a call so that one disputed chunk can be computed alone. Empty: all of them. No part of the arithmetic.
  const char* footprint = "";

  const char* functions = "";  // of docs/arithmetic.md that the definition names: "exp, log"

  // How many multiply-adds a call takes where these are more than its operands have elements, for those who must know
  // before they run a file of somebody else's: a product of numbers, attributes and symbols. No part of the arithmetic.
  const char* work = "";
};

}  // namespace bitwitness
