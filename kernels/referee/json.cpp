#include "json.h"

#include <algorithm>

#include "../csrc/errors.h"

namespace bitwitness {

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json whole() {
    Json value = parse(0);
    if (at_ != text_.size()) refuse("text after the value");
    return value;
  }

 private:
  static constexpr int kDeepest = 16;  // the recursion of a hostile file ends here

  [[noreturn]] void refuse(const char* why) const {
    throw KernelError("JSON, byte " + std::to_string(at_) + ": " + why);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool eat(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Json parse(int depth) {
    if (depth > kDeepest) refuse("nested too deep");
    Json value;
    if (peek() == '{') {
      value.kind_ = Json::Kind::Object;
      parse_object(value, depth);
    } else if (peek() == '[') {
      value.kind_ = Json::Kind::Array;
      parse_array(value, depth);
    } else if (peek() == '"') {
      value.kind_ = Json::Kind::Text;
      value.text_ = string();
    } else {
      value.integer_ = integer();
    }
    return value;
  }

  void parse_object(Json& value, int depth) {
    eat('{');
    if (eat('}')) return;
    do {
      if (peek() != '"') refuse("expected a key");
      std::string key = string();
      if (!value.members_.empty() && key <= value.members_.back().first) refuse("keys must ascend, none twice");
      if (!eat(':')) refuse("expected ':'");
      value.members_.emplace_back(std::move(key), parse(depth + 1));
    } while (eat(','));
    if (!eat('}')) refuse("expected ',' or '}'");
  }

  void parse_array(Json& value, int depth) {
    eat('[');
    if (eat(']')) return;
    do {
      value.items_.push_back(parse(depth + 1));
    } while (eat(','));
    if (!eat(']')) refuse("expected ',' or ']'");
  }

  std::string string() {
    eat('"');
    std::string text;
    while (!eat('"')) {
      if (at_ >= text_.size()) refuse("a string without an end");
      char c = text_[at_++];
      if (c == '\\') {
        c = peek();
        if (c != '"' && c != '\\') refuse("an escape other than \\\" and \\\\");
        ++at_;
      } else if (c < ' ' || c > '~') {
        refuse("a character outside printable ASCII");
      }
      text += c;
    }
    return text;
  }

  int64_t integer() {
    constexpr int64_t kLimit = int64_t{1} << 53;
    const bool negative = eat('-');
    const size_t begin = at_;
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value >= kLimit) refuse("an integer of 2^53 or more");
    }
    if (at_ == begin) refuse("expected an object, an array, a string or an integer");
    if (text_[begin] == '0' && (at_ > begin + 1 || negative)) refuse("an integer with a leading zero, or -0");
    return negative ? -value : value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).whole(); }

int64_t Json::integer(const char* what) const {
  if (kind_ != Kind::Integer) throw KernelError(std::string(what) + " must be an integer");
  return integer_;
}

const std::string& Json::text(const char* what) const {
  if (kind_ != Kind::Text) throw KernelError(std::string(what) + " must be a string");
  return text_;
}

const std::vector<Json>& Json::items(const char* what) const {
  if (kind_ != Kind::Array) throw KernelError(std::string(what) + " must be an array");
  return items_;
}

const std::vector<std::pair<std::string, Json>>& Json::members(const char* what) const {
  if (kind_ != Kind::Object) throw KernelError(std::string(what) + " must be an object");
  return members_;
}

const Json* Json::find(const char* key) const {
  for (const auto& [name, value] : members_) if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(const char* key) const {
  const Json* const value = find(key);
  if (value == nullptr) throw KernelError(std::string("'") + key + "' is missing");
  return *value;
}

void Json::only(const char* what, std::initializer_list<const char*> keys) const {
  std::vector<std::string> allowed;
  for (const char* key : keys) {
    const bool optional = *key == '[';
    allowed.emplace_back(optional ? std::string(key + 1, std::string_view(key).size() - 2) : key);
    if (!optional && find(key) == nullptr) throw KernelError(std::string(what) + " lacks '" + key + "'");
  }
  for (const auto& [name, value] : members(what)) {
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      throw KernelError(std::string(what) + " has a key '" + name + "' that means nothing here");
    }
  }
}

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + '"';
}

}  // namespace bitwitness
