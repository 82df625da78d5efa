// Canonical JSON (RFC 8785) as far as trace files use it: objects, arrays, ASCII strings, integers below 2^53.
//
// Nothing else is read: no blanks, no escapes but \" and \\, keys strictly ascending (so none occurs twice). One value
// has one spelling, and a parser this small can be read in full.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitwitness {

class Json {
 public:
  // Throws KernelError, saying where, for anything but one canonical value.
  static Json parse(std::string_view text);

  // What the value must be; each throws KernelError naming `what` where it is something else.
  int64_t integer(const char* what) const;
  const std::string& text(const char* what) const;
  const std::vector<Json>& items(const char* what) const;
  const std::vector<std::pair<std::string, Json>>& members(const char* what) const;

  const Json& at(const char* key) const;    // a member that must be there
  const Json* find(const char* key) const;  // null where there is none

  // Throws unless the value is an object with exactly these keys, which are given in ascending order; one in brackets
  // may be absent.
  void only(const char* what, std::initializer_list<const char*> keys) const;

 private:
  friend class JsonParser;
  enum class Kind { Integer, Text, Array, Object } kind_ = Kind::Integer;
  int64_t integer_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

// A string as canonical JSON. ASCII, printable.
std::string quoted(std::string_view text);

}  // namespace bitwitness
