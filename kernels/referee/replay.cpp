#include "replay.h"

#include <cstdio>
#include <cstring>

#include "../csrc/library.h"
#include "json.h"

namespace bitwitness {
namespace {

Memory zeroed(int64_t elements, DType dtype) {
  const int64_t bytes = elements * bytes_of(dtype);
  Memory memory = allocate(bytes);
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return memory;
}

// The leaf of a tensor in a commitment, as the ledger writes it.
std::string tensor_leaf(const CommittedTensor& tensor, DType dtype, const Hash& digest) {
  std::string shape;
  for (const int64_t extent : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
  return "{\"bytes\":" + std::to_string(tensor.elements * bytes_of(dtype)) + ",\"digest\":\"" + hex(digest) + "\",\"dtype\":\"" +
         name_of(dtype) + "\",\"name\":" + quoted(tensor.name) + ",\"shape\":[" + shape + "]}";
}

}  // namespace

Fact& Fact::text(const char* name, const std::string& value) {
  fields_.push_back({name, value, true});
  return *this;
}

Fact& Fact::number(const char* name, int64_t value) {
  fields_.push_back({name, std::to_string(value), false});
  return *this;
}

void Fact::print(bool json) const {
  std::string line = json ? "{\"fact\":" + quoted(kind_) : kind_;
  for (const Field& field : fields_) {
    if (json) {
      line += "," + quoted(field.name) + ":" + (field.is_text ? quoted(field.value) : field.value);
    } else {
      line += " " + field.value;
    }
  }
  std::puts((json ? line + "}" : line).c_str());
}

Replay::Replay(const TraceFile& file, const ReplayOptions& options)
    : file_(file), options_(options), written_(file.slots.size()), loaded_(file.tensors.size()) {
  for (const Slot& slot : file.slots) slots_.push_back(zeroed(slot.elements, slot.dtype));
  for (const TraceProgram& program : file.programs) {
    // Temporary buffers are memory of their own here, zero at first: a wrong plan, or a buffer that is read before it
    // is written, then cannot make two machines differ.
    std::vector<BufferSpec> buffers = program.buffers;
    std::vector<Memory> temporary;
    for (BufferSpec& buffer : buffers) {
      if (buffer.kind != BufferKind::Temp) continue;
      int64_t elements = 1;
      for (const int64_t extent : buffer.shape) elements *= extent;
      temporary.push_back(zeroed(elements, buffer.dtype));
      buffer.kind = BufferKind::InOut;
    }
    executors_.push_back(std::make_unique<Executor>(buffers, program.calls, 0, options.threads));
    temporary_.push_back(std::move(temporary));
  }
}

bool Replay::perform() {
  Fact("script").text("sha256", hex(sha256(file_.script.data(), file_.script.size()))).print(options_.json);
  if (options_.trace) {
    add_leaf("{\"script\":\"" + hex(sha256(file_.script.data(), file_.script.size())) + "\"}");
  }
  bool good = true;
  for (const Action& action : file_.actions) {
    switch (action.kind) {
      case Action::Kind::Load:
        if (options_.trace && !loaded_[action.tensor]) trace_input(action.tensor);
        std::memcpy(memory_of(action.slot), file_.tensors[action.tensor].data, file_.tensors[action.tensor].bytes);
        break;
      case Action::Kind::Zero:
        std::memset(memory_of(action.slot), 0, static_cast<size_t>(file_.slots[action.slot].bytes()));
        break;
      case Action::Kind::Run: run(action); break;
      case Action::Kind::Commit: good = commit(action) && good; break;
      case Action::Kind::Chunk: good = chunk(action) && good; break;
    }
  }
  print_written_slots();
  if (options_.trace) {
    const auto size = static_cast<int64_t>(leaves_.size());
    Fact("trace").number("size", size).text("root", hex(tree_root(leaves_))).print(options_.json);
  }
  return good;
}

void Replay::add_leaf(const std::string& json) { leaves_.push_back(leaf_hash(json.data(), json.size())); }

void Replay::trace_input(int number) {
  loaded_[number] = true;
  const FileTensor& tensor = file_.tensors[number];
  const std::string digest = hex(tensor_digest(tensor.data, tensor.bytes, tensor.dtype));
  add_leaf("{\"digest\":\"" + digest + "\",\"tensor\":" + quoted(tensor.name) + "}");
  if (options_.outputs) Fact("tensor").text("name", tensor.name).text("digest", digest).print(options_.json);
}

void Replay::run(const Action& action) {
  const TraceProgram& program = file_.programs[action.program];
  std::vector<void*> memory;
  size_t external = 0, temporary = 0;
  for (const BufferSpec& buffer : program.buffers) {
    if (buffer.kind == BufferKind::Temp) {
      memory.push_back(temporary_[action.program][temporary++].get());
      continue;
    }
    const int slot = action.with[external++];
    if (buffer.kind != BufferKind::Input) written_[slot] = true;
    memory.push_back(memory_of(slot));
  }
  Executor& executor = *executors_[action.program];
  if (options_.trace || options_.run == runs_) {
    for (const Written& written : executor.trace(memory)) report(program, written);
  } else {
    executor.run(memory);
  }
  ++runs_;
}

void Replay::report(const TraceProgram& program, const Written& written) {
  const std::string& op = program.calls[written.call].op;
  const std::string& operand = signature_of(find_operator(op.c_str())).operands[written.operand].name;
  const std::string digest = hex(tree_root(written.chunks));
  if (options_.trace) {
    add_leaf("{\"call\":" + std::to_string(written.call) + ",\"digest\":\"" + digest + "\",\"op\":" + quoted(op) +
             ",\"operand\":" + quoted(operand) + ",\"run\":" + std::to_string(runs_) + "}");
  }
  if (options_.outputs) {
    Fact("output").number("run", runs_).number("call", written.call).text("op", op).text("operand", operand)
        .text("digest", digest).print(options_.json);
  }
  if (options_.run != runs_ || options_.call != written.call) return;
  for (size_t i = 0; i < written.chunks.size(); ++i) {
    Fact("leaf").text("operand", operand).number("chunk", static_cast<int64_t>(i)).text("hash", hex(written.chunks[i]))
        .print(options_.json);
  }
}

bool Replay::commit(const Action& action) {
  const CommitmentSpec& commitment = file_.commitments[action.commitment];
  std::vector<Hash> leaves;
  for (const CommittedTensor& tensor : commitment.tensors) {
    const DType dtype = file_.slots[tensor.slot].dtype;
    const char* const data = static_cast<const char*>(memory_of(tensor.slot)) + tensor.offset * bytes_of(dtype);
    const std::string leaf = tensor_leaf(tensor, dtype, tensor_digest(data, tensor.elements * bytes_of(dtype), dtype));
    leaves.push_back(leaf_hash(leaf.data(), leaf.size()));
  }
  const std::string root = hex(tree_root(leaves));
  Fact fact("commitment");
  fact.text("label", action.label).text("type", commitment.type)
      .number("size", static_cast<int64_t>(leaves.size())).text("root", root);
  const bool good = action.expected.empty() || action.expected == root;
  if (!action.expected.empty()) fact.text("verdict", good ? "as-expected" : "WRONG");
  if (!good) fact.text("expected", action.expected);
  fact.print(options_.json);
  return good;
}

bool Replay::chunk(const Action& action) {
  const DType dtype = file_.slots[action.slot].dtype;
  const char* const data = static_cast<const char*>(memory_of(action.slot)) + action.begin * bytes_of(dtype);
  const Hash found = chunk_hash(data, (action.end - action.begin) * bytes_of(dtype), dtype, 0);
  Fact fact("chunk");
  fact.text("slot", file_.slots[action.slot].name).number("begin", action.begin).number("end", action.end)
      .text("hash", hex(found));
  std::string right;
  for (const Claim& claim : action.claims) {
    if (claim.hash == hex(found)) right += (right.empty() ? "" : ", ") + claim.name;
  }
  if (!action.claims.empty()) fact.text("right", right.empty() ? "nobody" : right);
  fact.print(options_.json);
  return action.claims.empty() || !right.empty();
}

void Replay::print_written_slots() {
  for (size_t i = 0; i < file_.slots.size(); ++i) {
    if (!written_[i]) continue;
    const Slot& slot = file_.slots[i];
    const Hash digest = tensor_digest(slots_[i].get(), slot.bytes(), slot.dtype);
    Fact("slot").text("name", slot.name).text("digest", hex(digest)).print(options_.json);
  }
}

}  // namespace bitwitness
