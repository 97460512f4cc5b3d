// Small JSON documents as arguments: every key is known or refused by name, with its JSON path.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ds::capi {

class JsonArguments {
 public:
  // `what` names the document in errors. NULL text means an empty object.
  JsonArguments(const char* text, const char* what, const std::vector<std::string>& known_keys);
  // A part of another document; `path` is its JSON pointer there.
  JsonArguments(Json document, const char* what, std::string path,
                const std::vector<std::string>& known_keys);

  bool has(const char* key) const { return document_.contains(key); }
  std::string text(const char* key, const char* fallback) const;
  std::string required_text(const char* key) const;
  // Whole numbers in [low, high]; 5e3 is one.
  int64_t integer(const char* key, int64_t fallback, int64_t low, int64_t high) const;
  int64_t required_integer(const char* key, int64_t low, int64_t high) const;
  double number(const char* key, double fallback, double low, double high) const;
  bool flag(const char* key, bool fallback) const;
  std::vector<std::string> texts(const char* key, std::vector<std::string> fallback) const;
  std::vector<double> numbers(const char* key) const;
  // A list that must be given; `of` says what it holds, for errors.
  const Json& list(const char* key, const char* of) const;
  const Json& at(const char* key) const { return document_.at(key); }

  [[noreturn]] void refuse(const char* key, const std::string& why) const;

 private:
  int64_t integer_of(const Json& value, const char* key, int64_t low, int64_t high) const;
  void require(const char* key) const;

  const char* what_;
  std::string path_;
  Json document_;
};

}  // namespace ds::capi
