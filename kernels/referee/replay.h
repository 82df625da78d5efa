// Does what a trace file says, and reports what came out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trace_file.h"

namespace bitwitness {

// One fact about a replay: a kind and its fields, printed as one line of text or of JSON.
class Fact {
 public:
  explicit Fact(const char* kind) : kind_(kind) {}
  Fact& text(const char* name, const std::string& value);
  Fact& number(const char* name, int64_t value);
  void print(bool json) const;

 private:
  struct Field {
    const char* name;
    std::string value;
    bool is_text;
  };
  const char* kind_;
  std::vector<Field> fields_;
};

struct ReplayOptions {
  int threads = 1;
  bool json = false;
  bool trace = false;    // hash what every call writes, and print the root over it
  bool outputs = false;  // print every one of those hashes
  int64_t run = -1, call = -1;  // print the chunks that this call of this run writes
};

class Replay {
 public:
  Replay(const TraceFile& file, const ReplayOptions& options);

  // Perform all actions in order. False where a commitment is not the expected one, or a chunk matches no claim.
  bool perform();

 private:
  void* memory_of(int slot) { return slots_[slot].get(); }
  void trace_input(int tensor);
  void run(const Action& action);
  void report(const TraceProgram& program, const Written& written);
  bool commit(const Action& action);
  bool chunk(const Action& action);
  void add_leaf(const std::string& json);
  void print_written_slots();

  const TraceFile& file_;
  const ReplayOptions options_;
  std::vector<Memory> slots_;
  std::vector<bool> written_;                         // slots that a run wrote
  std::vector<bool> loaded_;                          // tensors that stand in the trace
  std::vector<std::vector<Memory>> temporary_;        // by program
  std::vector<std::unique_ptr<Executor>> executors_;  // likewise
  int64_t runs_ = 0;
  std::vector<Hash> leaves_;
};

}  // namespace bitwitness
