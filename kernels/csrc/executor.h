// Runs a step program: a list of operator calls over static buffers, planned once, allocating nothing in a run.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "digest.h"
#include "memory.h"
#include "operator.h"
#include "signature.h"

namespace bitwitness {

enum class BufferKind { Input, Output, InOut, Temp };

struct BufferSpec {
  std::string name;
  BufferKind kind;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t arena_offset;  // bytes, temp buffers only
};

// A contiguous range of a buffer, seen with a shape of its own.
struct ViewSpec {
  int buffer;
  int64_t offset;  // elements
  std::vector<int64_t> shape;
};

struct CallSpec {
  std::string op;
  std::vector<ViewSpec> operands;      // in the order of the operator's declaration
  std::vector<Attribute> attributes;   // likewise
};

// What a call wrote to one of its operands: the hash of every 64 KiB chunk (digest.h).
struct Written {
  int call, operand;
  std::vector<Hash> chunks;
};

// Check one call: operands and attributes fit the declaration, every view lies inside its buffer, nothing writes to
// an input, and what is written overlaps no other operand but where the declaration allows the very same view.
// Throws ShapeError or KernelError.
void check_call_spec(const std::vector<BufferSpec>& buffers, const CallSpec& call);

// What running a program takes, besides the memory of its buffers, as its shapes tell (docs/formats/trace.md).
struct Cost {
  double work = 0;         // of one run, in multiply-adds
  int64_t scratch = 0;     // bytes
  int64_t outputs = 0;     // operands that its calls write: leaves of a trace
  int64_t chunks = 0;      // of 64 KiB in these
};

// The cost of a program on so many threads. Checks its calls as Executor does, and allocates nothing for them.
Cost cost_of(const std::vector<BufferSpec>& buffers, const std::vector<CallSpec>& calls, int threads);

class Executor {
 public:
  // Checks the whole program. Throws ShapeError or KernelError, naming the call.
  Executor(std::vector<BufferSpec> buffers, const std::vector<CallSpec>& calls, int64_t arena_bytes, int threads);

  const std::vector<BufferSpec>& buffers() const { return buffers_; }
  int threads() const { return threads_; }

  // Run all calls. `external` points to the memory of every buffer that is not temp, in program order.
  // One run at a time; throws KernelError where an operator met an index outside its range.
  void run(const std::vector<void*>& external);

  // The same, and after each call the hashes of what it wrote: in the order of the calls, then of their operands.
  std::vector<Written> trace(const std::vector<void*>& external);

  // Nanoseconds that each call took in the last run, as the calling thread saw it.
  const std::vector<int64_t>& nanoseconds() const { return nanoseconds_; }

 private:
  struct Binding {  // operand `operand` of call `call` lies `bytes` into external buffer `buffer`
    int call, operand, buffer;
    int64_t bytes;
  };
  void run(const std::vector<void*>& external, std::vector<Written>* traced);
  void work(Worker& worker);
  void hash_outputs(int call, size_t& next, Worker& worker);

  std::vector<BufferSpec> buffers_;
  std::vector<Call> calls_;
  std::vector<Binding> bindings_;
  std::vector<int64_t> nanoseconds_;
  std::vector<Written>* traced_ = nullptr;  // where a run leaves its hashes; null where it is not traced
  int threads_;
  int failed_call_ = -1;
  int64_t scratch_bytes_ = 0;
  Memory arena_, scratch_, shared_;
  std::mutex mutex_;
};

}  // namespace bitwitness
