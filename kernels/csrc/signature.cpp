#include "signature.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>

#include "errors.h"

namespace bitwitness {
namespace {

using Symbols = std::map<std::string, int64_t>;

// Recursive descent over a dimension: sum of products of numbers, names, parentheses and ceil(a/b).
// Missing symbols are collected and count as 1, which is how a product is solved for its one unknown.
class Evaluator {
 public:
  Evaluator(const std::string& text, const Symbols& symbols) : text_(text), symbols_(symbols) { value_ = sum(); }
  int64_t value() const { return value_; }
  const std::set<std::string>& missing() const { return missing_; }
  bool exact() const { return exact_; }

 private:
  bool eat(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  int64_t sum() {
    int64_t value = product();
    while (eat('+')) {
      if (__builtin_add_overflow(value, product(), &value)) refuse();
    }
    return value;
  }

  // Attributes may be any integer: a product that wrapped round could pass for a small one.
  [[noreturn]] void refuse() const { throw ShapeError("'" + text_ + "' is beyond 64 bits"); }

  int64_t product(bool round_up = false) {
    int64_t value = factor();
    for (;;) {
      if (eat('*')) {
        if (__builtin_mul_overflow(value, factor(), &value)) refuse();
      } else if (eat('/')) {
        const int64_t by = factor();
        exact_ = exact_ && (round_up || value % by == 0);
        value = round_up ? (value + by - 1) / by : value / by;
      } else {
        return value;
      }
    }
  }

  int64_t factor() {
    if (eat('(')) {
      const int64_t value = sum();
      eat(')');
      return value;
    }
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    if (word.empty()) throw KernelError("malformed expression '" + text_ + "' in an operator declaration");
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return std::stoll(word);
    if (word == "ceil" && eat('(')) {
      const int64_t value = product(true);
      eat(')');
      return value;
    }
    const auto found = symbols_.find(word);
    if (found != symbols_.end()) return found->second;
    missing_.insert(word);
    return 1;
  }

  const std::string& text_;
  const Symbols& symbols_;
  size_t at_ = 0;
  std::set<std::string> missing_;
  bool exact_ = true;
  int64_t value_;
};

// Split at commas outside brackets, blanks trimmed.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text + ",") {
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      const size_t first = part.find_first_not_of(' ');
      if (first != std::string::npos) parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
      part.clear();
    } else {
      part += c;
    }
  }
  return parts;
}

// The text before and after `separator`, if it occurs.
std::optional<std::pair<std::string, std::string>> halves(const std::string& text, const std::string& separator) {
  const size_t at = text.find(separator);
  if (at == std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + separator.size()));
}

OperandSpec parse_operand(const std::string& text) {
  const size_t blank = text.find(' '), bracket = text.find('[');
  const std::string direction = text.substr(0, blank);
  std::string name = text.substr(blank + 1, bracket - blank - 1);
  DType dtype = DType::F32;
  if (const auto typed = halves(name, ":i32")) name = typed->first, dtype = DType::I32;
  if (const auto typed = halves(name, ":i16")) name = typed->first, dtype = DType::I16;
  const auto shape = split(text.substr(bracket + 1, text.size() - bracket - 2));
  return {name, direction == "in" ? Direction::In : direction == "out" ? Direction::Out : Direction::InOut,
          dtype, shape, {}, {}};
}

AttributeKind parse_kind(const std::string& text) {
  if (text == "flag") return AttributeKind::Flag;
  if (text == "natural") return AttributeKind::Natural;
  if (text == "count") return AttributeKind::Count;
  if (text == "sign") return AttributeKind::Sign;
  if (text == "real") return AttributeKind::Real;
  throw KernelError("unknown attribute kind '" + text + "' in an operator declaration");
}

Signature parse(const Operator& op) {
  Signature s;
  for (const auto& text : split(op.operands)) s.operands.push_back(parse_operand(text));
  for (const auto& text : split(op.attributes)) {
    const auto pair = halves(text, ": ").value();
    s.attributes.push_back({pair.first, parse_kind(pair.second)});
  }
  for (const auto& text : split(op.rules)) {
    if (const auto rule = halves(text, " divides ")) {
      s.divides.push_back(*rule);
    } else if (const auto rule = halves(text, " <= ")) {
      s.at_most.push_back(*rule);
    } else if (const auto rule = halves(text, " may be ")) {
      s.operands[s.operand_index(rule->first)].may_be.push_back(rule->second);
    } else if (const auto rule = halves(text, " is read where ")) {
      s.operands[s.operand_index(rule->first)].read_where = rule->second;
    } else {
      throw KernelError("unknown rule '" + text + "' in the declaration of " + op.name);
    }
  }
  return s;
}

std::string text_of(const Operand& operand) {
  std::string text = "[";
  for (int i = 0; i < operand.rank; ++i) text += (i ? "," : "") + std::to_string(operand.shape[i]);
  return text + "]";
}

std::string text_of(const OperandSpec& spec) {
  std::string text = "[";
  for (size_t i = 0; i < spec.shape.size(); ++i) text += (i ? "," : "") + spec.shape[i];
  return text + "]";
}

std::string text_of(const Symbols& symbols) {
  std::string text;
  for (const auto& [name, value] : symbols) text += (text.empty() ? "" : ", ") + name + "=" + std::to_string(value);
  return text;
}

void check_attribute(const Operator& op, const AttributeSpec& spec, const Attribute& given) {
  const auto refuse = [&](const char* expected) {
    throw KernelError(std::string(op.name) + ": attribute " + spec.name + " must be " + expected + ", not " +
                      (spec.kind == AttributeKind::Real ? std::to_string(given.real) : std::to_string(given.integer)));
  };
  switch (spec.kind) {
    case AttributeKind::Flag: if (given.integer != 0 && given.integer != 1) refuse("0 or 1"); break;
    case AttributeKind::Natural: if (given.integer < 0) refuse("at least 0"); break;
    case AttributeKind::Count: if (given.integer < 1) refuse("at least 1"); break;
    case AttributeKind::Sign: if (given.integer != 1 && given.integer != -1) refuse("+1 or -1"); break;
    case AttributeKind::Real: if (!std::isfinite(given.real)) refuse("a finite float32 number"); break;
  }
}

void bind_shape(const Operator& op, const OperandSpec& spec, const Operand& operand, Symbols& symbols) {
  const auto refuse = [&] {
    throw ShapeError(std::string(op.name) + ": operand " + spec.name + " has shape " + text_of(operand) +
                     ", expected " + text_of(spec) + (symbols.empty() ? "" : " where " + text_of(symbols)));
  };
  if (operand.rank != static_cast<int>(spec.shape.size())) refuse();
  for (int axis = 0; axis < operand.rank; ++axis) {
    const int64_t extent = operand.shape[axis];
    if (extent < 1) refuse();
    const Evaluator with_ones(spec.shape[axis], symbols);
    if (with_ones.missing().size() == 1 && with_ones.value() > 0 && extent % with_ones.value() == 0) {
      symbols[*with_ones.missing().begin()] = extent / with_ones.value();
    }
    const Evaluator dimension(spec.shape[axis], symbols);
    if (!dimension.missing().empty() || !dimension.exact() || dimension.value() != extent) refuse();
  }
}

// The attributes as symbols, each checked.
Symbols checked_attributes(const Call& call) {
  const Signature& signature = signature_of(*call.op);
  Symbols symbols;
  for (size_t i = 0; i < signature.attributes.size(); ++i) {
    check_attribute(*call.op, signature.attributes[i], call.attributes[i]);
    if (signature.attributes[i].kind != AttributeKind::Real) {
      symbols[signature.attributes[i].name] = call.attributes[i].integer;
    }
  }
  return symbols;
}

}  // namespace

int Signature::operand_index(const std::string& name) const {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

const char* name_of(DType dtype) { return dtype == DType::F32 ? "F32" : dtype == DType::I32 ? "I32" : "I16"; }

int64_t bytes_of(DType dtype) { return dtype == DType::I16 ? 2 : 4; }

const char* name_of(Direction direction) {
  return direction == Direction::In ? "in" : direction == Direction::Out ? "out" : "inout";
}

const char* name_of(AttributeKind kind) {
  static const char* const names[] = {"flag", "natural", "count", "sign", "real"};
  return names[static_cast<int>(kind)];
}

const Signature& signature_of(const Operator& op) {
  static std::mutex mutex;
  static std::map<const Operator*, Signature> parsed;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = parsed.find(&op);
  if (found == parsed.end()) found = parsed.emplace(&op, parse(op)).first;
  return found->second;
}

std::vector<std::vector<int64_t>> infer_shapes(const Call& call) {
  const Signature& signature = signature_of(*call.op);
  Symbols symbols = checked_attributes(call);
  for (size_t i = 0; i < signature.operands.size(); ++i) {
    if (call.operands[i].rank >= 0) bind_shape(*call.op, signature.operands[i], call.operands[i], symbols);
  }
  std::vector<std::vector<int64_t>> shapes;
  for (const OperandSpec& spec : signature.operands) {
    std::vector<int64_t> shape;
    for (const std::string& expression : spec.shape) {
      const Evaluator dimension(expression, symbols);
      if (!dimension.missing().empty()) break;
      shape.push_back(dimension.value());
    }
    shapes.push_back(shape.size() == spec.shape.size() ? shape : std::vector<int64_t>());
  }
  return shapes;
}

std::map<std::string, int64_t> check_call(const Call& call) {
  const Operator& op = *call.op;
  const Signature& signature = signature_of(op);
  Symbols symbols = checked_attributes(call);
  for (size_t i = 0; i < signature.operands.size(); ++i) {
    bind_shape(op, signature.operands[i], call.operands[i], symbols);
  }
  for (const auto& [divisor, multiple] : signature.divides) {
    const int64_t d = Evaluator(divisor, symbols).value(), m = Evaluator(multiple, symbols).value();
    if (d == 0 || m % d != 0) {
      throw ShapeError(std::string(op.name) + ": " + divisor + " = " + std::to_string(d) + " must divide " + multiple +
                       " = " + std::to_string(m));
    }
  }
  for (const auto& [low, high] : signature.at_most) {
    const int64_t l = Evaluator(low, symbols).value(), h = Evaluator(high, symbols).value();
    if (l > h) {
      throw ShapeError(std::string(op.name) + ": " + low + " = " + std::to_string(l) + " must be at most " + high +
                       " = " + std::to_string(h));
    }
  }
  return symbols;
}

double declared_work(const Operator& op, const std::map<std::string, int64_t>& symbols) {
  const std::string text = op.work;
  if (text.empty()) return 0;
  double work = 1;  // beyond 64 bits for shapes that nothing runs on
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('*', begin), text.size());
    const std::string factor = text.substr(begin, end - begin);
    work *= static_cast<double>(Evaluator(factor, symbols).value());
    begin = end + 1;
  }
  return work;
}

}  // namespace bitwitness
