#include "trace_file.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "../csrc/errors.h"
#include "../csrc/library.h"
#include "json.h"
#include "limits.h"

namespace bitwitness {
namespace {

constexpr int64_t kMostHeader = int64_t{1} << 26;
constexpr int64_t kMostElements = int64_t{1} << 40;
const char* const kScriptKey = "bitwitness.trace/1";

std::string name_in(const Json& json, const char* what) {
  const std::string& name = json.text(what);
  bool allowed = !name.empty() && name.size() <= 200;
  for (const char c : name) {
    allowed = allowed && ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          std::strchr("._/-", c) != nullptr);
  }
  if (!allowed) throw KernelError(std::string(what) + ": a name is 1 to 200 characters of A-Z a-z 0-9 . _ / -");
  return name;
}

std::string hash_in(const Json& json, const char* what) {
  const std::string& text = json.text(what);
  if (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw KernelError(std::string(what) + " must be 64 lower-case hex digits");
  }
  return text;
}

int64_t count_in(const Json& json, const char* what, int64_t low, int64_t high) {
  const int64_t value = json.integer(what);
  if (value < low || value > high) {
    throw KernelError(std::string(what) + " = " + std::to_string(value) + " is outside " + std::to_string(low) + " … " +
                      std::to_string(high));
  }
  return value;
}

DType dtype_in(const Json& json) {
  const std::string& text = json.text("dtype");
  for (const DType dtype : {DType::F32, DType::I32, DType::I16}) if (text == name_of(dtype)) return dtype;
  throw KernelError("dtype must be F32, I32 or I16");
}

std::vector<int64_t> shape_in(const Json& json, int64_t* elements) {
  std::vector<int64_t> shape;
  *elements = 1;
  for (const Json& extent : json.items("shape")) {
    shape.push_back(count_in(extent, "a dimension", 1, kMostElements));
    if (__builtin_mul_overflow(*elements, shape.back(), elements) || *elements > kMostElements) {
      throw KernelError("a tensor of more than 2^40 elements");
    }
  }
  if (shape.size() > kMaxRank) throw KernelError("a tensor of more than 4 dimensions");
  return shape;
}

// Names of a list that must be given once each, and where they stand.
class Index {
 public:
  explicit Index(const char* what) : what_(what) {}
  void add(const std::string& name) {
    if (!places_.emplace(name, static_cast<int>(places_.size())).second) {
      throw KernelError(std::string(what_) + " " + name + " is declared twice");
    }
  }
  int find(const Json& name) const {
    const auto found = places_.find(name.text(what_));
    if (found == places_.end()) throw KernelError("there is no " + std::string(what_) + " " + name.text(what_));
    return found->second;
  }

 private:
  const char* what_;
  std::map<std::string, int> places_;
};

Attribute attribute_in(const Json& json, const AttributeSpec& spec) {
  Attribute attribute;
  if (spec.kind != AttributeKind::Real) {
    attribute.integer = json.integer(spec.name.c_str());
    return attribute;
  }
  const std::string& text = json.text(spec.name.c_str());
  if (text.size() != 8 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw KernelError("attribute " + spec.name + " must be the 8 hex digits of a binary32 number");
  }
  attribute.real = std::bit_cast<float>(static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
  return attribute;
}

CallSpec call_in(const Json& json, const Index& buffers) {
  json.only("a call", {"attributes", "op", "operands", "version"});
  const Operator& op = find_operator(json.at("op").text("op").c_str());
  if (json.at("version").integer("version") != op.version) {
    throw KernelError(std::string(op.name) + " of version " + std::to_string(json.at("version").integer("version")) +
                      " is not the one of this program, " + std::to_string(op.version));
  }
  const Signature& signature = signature_of(op);
  CallSpec call{op.name, {}, {}};
  for (const Json& operand : json.at("operands").items("operands")) {
    operand.only("an operand", {"buffer", "offset", "shape"});
    int64_t elements;
    call.operands.push_back({buffers.find(operand.at("buffer")),
                             count_in(operand.at("offset"), "offset", 0, kMostElements),
                             shape_in(operand.at("shape"), &elements)});
  }
  const Json& attributes = json.at("attributes");
  if (attributes.members("attributes").size() != signature.attributes.size()) {
    throw KernelError(call.op + " takes " + std::to_string(signature.attributes.size()) + " attributes");
  }
  for (const AttributeSpec& spec : signature.attributes) {
    call.attributes.push_back(attribute_in(attributes.at(spec.name.c_str()), spec));
  }
  return call;
}

BufferKind kind_in(const Json& json) {
  const std::string& text = json.text("kind");
  if (text == "input") return BufferKind::Input;
  if (text == "output") return BufferKind::Output;
  if (text == "inout") return BufferKind::InOut;
  if (text == "temp") return BufferKind::Temp;
  throw KernelError("kind must be input, output, inout or temp");
}

TraceProgram program_in(const Json& json) {
  json.only("a program", {"buffers", "calls"});
  TraceProgram program;
  Index names("buffer");
  for (const Json& buffer : json.at("buffers").items("buffers")) {
    buffer.only("a buffer", {"dtype", "kind", "name", "shape"});
    const BufferKind kind = kind_in(buffer.at("kind"));
    int64_t size;
    const std::string name = name_in(buffer.at("name"), "buffer");
    names.add(name);
    if (kind != BufferKind::Temp) program.external.push_back(static_cast<int>(program.buffers.size()));
    program.buffers.push_back({name, kind, dtype_in(buffer.at("dtype")), shape_in(buffer.at("shape"), &size), 0});
  }
  for (const Json& call : json.at("calls").items("calls")) program.calls.push_back(call_in(call, names));
  return program;
}

CommitmentSpec commitment_in(const Json& json, const Index& names, const std::vector<Slot>& slots) {
  json.only("a commitment", {"tensors", "type"});
  CommitmentSpec commitment{name_in(json.at("type"), "type"), {}};
  for (const Json& tensor : json.at("tensors").items("tensors")) {
    tensor.only("a tensor of a commitment", {"name", "offset", "shape", "slot"});
    CommittedTensor t;
    t.name = name_in(tensor.at("name"), "tensor");
    if (!commitment.tensors.empty() && t.name <= commitment.tensors.back().name) {
      throw KernelError("the tensors of a commitment must stand in byte order of their names");
    }
    t.slot = names.find(tensor.at("slot"));
    t.shape = shape_in(tensor.at("shape"), &t.elements);
    t.offset = count_in(tensor.at("offset"), "offset", 0, kMostElements);
    if (t.offset + t.elements > slots[t.slot].elements) throw KernelError(t.name + " reaches beyond its slot");
    commitment.tensors.push_back(t);
  }
  return commitment;
}

// What the buffers of a program are bound to: slots of the same dtype and shape, none twice where one is written.
void bind(Action& action, const TraceProgram& program, const std::vector<Slot>& slots) {
  if (action.with.size() != program.external.size()) {
    throw KernelError("a run binds " + std::to_string(action.with.size()) + " slots, its program has " +
                      std::to_string(program.external.size()) + " buffers for them");
  }
  std::map<int, bool> written;
  for (size_t i = 0; i < action.with.size(); ++i) {
    const BufferSpec& buffer = program.buffers[program.external[i]];
    const Slot& slot = slots[action.with[i]];
    if (slot.dtype != buffer.dtype || slot.shape != buffer.shape) {
      throw KernelError("slot " + slot.name + " has another dtype or shape than buffer " + buffer.name);
    }
    const bool writes = buffer.kind != BufferKind::Input;
    const auto [other, first] = written.emplace(action.with[i], writes);
    if (!first && (writes || other->second)) throw KernelError("slot " + slot.name + " is bound twice and written");
  }
}

}  // namespace

TraceFile::TraceFile(const std::string& path, const Limits& limits) {
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none)) {
    throw KernelError("it is not a regular file");  // a FIFO would wait for ever, a device may never end
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) throw KernelError("it cannot be opened");
  if (std::fseek(file.get(), 0, SEEK_END) != 0) throw KernelError("it is not a regular file");
  const int64_t size = std::ftell(file.get());
  if (size < 8) throw KernelError("it is shorter than the length that it begins with");
  limits.check_memory(static_cast<double>(size));
  content_ = allocate(size);
  std::rewind(file.get());
  if (std::fread(content_.get(), 1, static_cast<size_t>(size), file.get()) != static_cast<size_t>(size)) {
    throw KernelError("it cannot be read");
  }
  uint64_t header;
  std::memcpy(&header, content_.get(), sizeof header);
  if (header > static_cast<uint64_t>(kMostHeader) || header > static_cast<uint64_t>(size - 8) || header % 8 != 0) {
    throw KernelError("the length of its header is no multiple of 8, or beyond the file, or beyond 64 MiB");
  }
  const char* const data = content_.get() + 8 + header;
  const std::string_view text(content_.get() + 8, static_cast<size_t>(header));
  const int64_t held = size + memory_of_json(text);
  limits.check_memory(static_cast<double>(held));
  read_header(text, data, size - 8 - static_cast<int64_t>(header));
  read_script();
  check_limits(*this, held, limits);
}

void TraceFile::read_header(std::string_view header, const char* data, int64_t bytes) {
  const size_t padding = header.size() - std::min(header.size(), header.find_last_not_of(' ') + 1);
  if (padding >= 8) throw KernelError("its header ends in more blanks than its length needs");
  const Json json = Json::parse(header.substr(0, header.size() - padding));
  int64_t at = 0;
  for (const auto& [name, tensor] : json.members("the header")) {
    if (name == "__metadata__") {
      tensor.only("__metadata__", {kScriptKey});
      script_ = tensor.at(kScriptKey).text(kScriptKey);
      continue;
    }
    tensor.only("a tensor", {"data_offsets", "dtype", "shape"});
    FileTensor t{name, dtype_in(tensor.at("dtype")), {}, data + at, 0};
    t.shape = shape_in(tensor.at("shape"), &t.bytes);
    t.bytes *= bytes_of(t.dtype);
    const auto& offsets = tensor.at("data_offsets").items("data_offsets");
    if (offsets.size() != 2 || offsets[0].integer("an offset") != at || offsets[1].integer("an offset") != at + t.bytes ||
        t.bytes > bytes - at) {
      throw KernelError("tensor " + name + " does not lie where the ones before it end");
    }
    at += t.bytes;
    tensors.push_back(t);
  }
  if (script_.empty()) throw KernelError(std::string("its metadata has no ") + kScriptKey);
  if (at != bytes) throw KernelError("it holds bytes after its last tensor");
  script = script_;
}

void TraceFile::read_script() {
  const Json json = Json::parse(script);
  json.only("the script", {"actions", "commitments", "programs", "slots"});

  Index tensor_names("tensor"), slot_names("slot");
  for (const FileTensor& tensor : tensors) tensor_names.add(tensor.name);
  for (const Json& slot : json.at("slots").items("slots")) {
    slot.only("a slot", {"dtype", "name", "shape"});
    Slot s{name_in(slot.at("name"), "slot"), dtype_in(slot.at("dtype")), {}, 0};
    s.shape = shape_in(slot.at("shape"), &s.elements);
    slot_names.add(s.name);
    slots.push_back(s);
  }
  for (const Json& program : json.at("programs").items("programs")) {
    programs.push_back(program_in(program));
  }
  for (const Json& commitment : json.at("commitments").items("commitments")) {
    commitments.push_back(commitment_in(commitment, slot_names, slots));
  }
  for (const Json& item : json.at("actions").items("actions")) {
    Action action;
    if (item.find("load") != nullptr) {
      item.only("a load", {"load", "tensor"});
      action.kind = Action::Kind::Load;
      action.slot = slot_names.find(item.at("load"));
      action.tensor = tensor_names.find(item.at("tensor"));
      const FileTensor& tensor = tensors[action.tensor];
      if (tensor.dtype != slots[action.slot].dtype || tensor.shape != slots[action.slot].shape) {
        throw KernelError("tensor " + tensor.name + " has another dtype or shape than its slot");
      }
    } else if (item.find("zero") != nullptr) {
      item.only("a zero", {"zero"});
      action.kind = Action::Kind::Zero;
      action.slot = slot_names.find(item.at("zero"));
    } else if (item.find("run") != nullptr) {
      item.only("a run", {"run", "with"});
      action.kind = Action::Kind::Run;
      const int64_t last = static_cast<int64_t>(programs.size()) - 1;
      action.program = static_cast<int>(count_in(item.at("run"), "run", 0, last));
      for (const Json& slot : item.at("with").items("with")) action.with.push_back(slot_names.find(slot));
      bind(action, programs[action.program], slots);
    } else if (item.find("commit") != nullptr) {
      item.only("a commit", {"commit", "[expected]", "label"});
      action.kind = Action::Kind::Commit;
      const int64_t last = static_cast<int64_t>(commitments.size()) - 1;
      action.commitment = static_cast<int>(count_in(item.at("commit"), "commit", 0, last));
      action.label = item.at("label").text("label");
      if (const Json* expected = item.find("expected")) action.expected = hash_in(*expected, "expected");
    } else {
      item.only("an action", {"begin", "chunk", "claims", "end"});
      action.kind = Action::Kind::Chunk;
      action.slot = slot_names.find(item.at("chunk"));
      const int64_t size = slots[action.slot].elements, most = kChunkBytes / bytes_of(slots[action.slot].dtype);
      action.begin = count_in(item.at("begin"), "begin", 0, size - 1);
      action.end = count_in(item.at("end"), "end", action.begin + 1, std::min(size, action.begin + most));
      for (const auto& [name, hash] : item.at("claims").members("claims")) {
        action.claims.push_back({name, hash_in(hash, "a claim")});
      }
    }
    actions.push_back(action);
  }
}

}  // namespace bitwitness
