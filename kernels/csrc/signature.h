// The declaration strings of an operator, parsed, and the check of a call against them.
//
//   operands    "in x[R,D], in ids:i32[R], inout c[M,N], out y[R,(heads+2*kv_heads)*d]"
//               An operand is float32 unless it says i32 or i16.
//               A dimension is an expression of + * / and ceil() over numbers, attributes and symbols; a symbol
//               takes its value from the first operand that names it.
//   attributes  "accumulate: flag, segment: natural, heads: count, sign: sign, epsilon: real"
//               flag 0 or 1; natural ≥ 0; count ≥ 1; sign −1 or +1; real a finite binary32 number.
//   rules       "kv_heads divides heads"           an exact division
//               "heads*head_width <= S"            a bound
//               "y may be a"                       the two operands may be the very same memory
//               "C is read where accumulate"       an inout operand that is read only if the flag is 1
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "operator.h"

namespace bitwitness {

enum class DType { F32, I32, I16 };
enum class Direction { In, Out, InOut };
enum class AttributeKind { Flag, Natural, Count, Sign, Real };

struct OperandSpec {
  std::string name;
  Direction direction;
  DType dtype;
  std::vector<std::string> shape;     // expressions
  std::vector<std::string> may_be;    // operands that this one may coincide with
  std::string read_where;             // flag without which an inout operand is only written; empty: always read
};

struct AttributeSpec {
  std::string name;
  AttributeKind kind;
};

struct Signature {
  std::vector<OperandSpec> operands;
  std::vector<AttributeSpec> attributes;
  std::vector<std::pair<std::string, std::string>> divides;   // first divides second
  std::vector<std::pair<std::string, std::string>> at_most;   // first <= second

  int operand_index(const std::string& name) const;  // −1 where there is none
};

const Signature& signature_of(const Operator& op);

const char* name_of(DType dtype);       // as safetensors spells it
int64_t bytes_of(DType dtype);          // of an element
const char* name_of(Direction direction);
const char* name_of(AttributeKind kind);

// Shapes and attributes of `call` against the declaration; returns what each symbol stands for.
// Throws ShapeError or KernelError, naming operator, operand and what was expected.
std::map<std::string, int64_t> check_call(const Call& call);

// Multiply-adds of a call as its operator declares them, of the symbols that check_call returned; 0 where it does not.
double declared_work(const Operator& op, const std::map<std::string, int64_t>& symbols);

// Shapes of all operands, those with rank −1 in `call` inferred from the others and the attributes; empty where they do
// not say. Throws like check_call for what is given.
std::vector<std::vector<int64_t>> infer_shapes(const Call& call);

}  // namespace bitwitness
