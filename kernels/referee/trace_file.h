// A trace file: programs, the memory they work on and what is done in which order (docs/formats/trace.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../csrc/executor.h"

namespace bitwitness {

struct Limits;

struct FileTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const char* data;
  int64_t bytes;
};

struct Slot {  // memory that programs are run on; zero at first
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t elements;

  int64_t bytes() const { return elements * bytes_of(dtype); }
};

struct TraceProgram {
  std::vector<BufferSpec> buffers;  // temporary ones as well: the referee plans no memory, it gives each its own
  std::vector<int> external;        // those that a run binds to slots, in order
  std::vector<CallSpec> calls;
};

struct CommittedTensor {
  std::string name;
  int slot;
  int64_t offset;  // elements
  std::vector<int64_t> shape;
  int64_t elements;
};

struct CommitmentSpec {  // a tree over tensors, as a run's ledger commits to them
  std::string type;
  std::vector<CommittedTensor> tensors;
};

struct Claim {
  std::string name, hash;
};

struct Action {
  enum class Kind { Load, Zero, Run, Commit, Chunk } kind;
  int slot = -1;                 // load, zero, chunk
  int tensor = -1;               // load
  int program = -1;              // run
  std::vector<int> with;         // run: a slot for each external buffer
  int commitment = -1;           // commit
  std::string label, expected;   // commit; `expected` may be empty
  int64_t begin = 0, end = 0;    // chunk: elements
  std::vector<Claim> claims;     // chunk
};

class TraceFile {
 public:
  // Read and check a whole file. Throws KernelError where it is not exactly what the format page says, or where it takes
  // more than is allowed.
  TraceFile(const std::string& path, const Limits& limits);

  std::string_view script;  // the JSON text
  std::vector<FileTensor> tensors;
  std::vector<Slot> slots;
  std::vector<TraceProgram> programs;
  std::vector<CommitmentSpec> commitments;
  std::vector<Action> actions;

 private:
  void read_header(std::string_view header, const char* data, int64_t bytes);
  void read_script();

  std::string script_;
  Memory content_;
};

}  // namespace bitwitness
