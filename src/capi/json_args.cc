#include "capi/json_args.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace ds::capi {

JsonArguments::JsonArguments(const char* text, const char* what,
                             const std::vector<std::string>& known_keys)
    : JsonArguments(text == nullptr ? Json::object() : parse_json(text, what, Code::kConfig), what,
                    "", known_keys) {}

JsonArguments::JsonArguments(Json document, const char* what, std::string path,
                             const std::vector<std::string>& known_keys)
    : what_(what), path_(std::move(path)), document_(std::move(document)) {
  DS_CHECK(document_.is_object(), Code::kConfig, what, ": ", path_, path_.empty() ? "" : " ",
           "an object is needed, not ", document_.type_name());
  for (const auto& [key, value] : document_.items()) {
    if (std::ranges::find(known_keys, key) != known_keys.end()) continue;
    const std::string nearest = nearest_name(key, known_keys);
    fail(Code::kConfig, what, ": unknown key ", path_, "/", printable(key),
         nearest.empty() ? str_cat("; known are: ", join(known_keys, ", "))
                         : str_cat("; did you mean \"", nearest, "\"?"));
  }
}

void JsonArguments::refuse(const char* key, const std::string& why) const {
  fail(Code::kConfig, what_, ": ", path_, "/", key, " ", why);
}

void JsonArguments::require(const char* key) const {
  DS_CHECK(has(key), Code::kConfig, what_, ": ", path_, "/", key, " is missing");
}

std::string JsonArguments::text(const char* key, const char* fallback) const {
  if (!has(key)) return fallback;
  const Json& value = document_.at(key);
  if (!value.is_string()) refuse(key, str_cat("must be a string, not ", value.type_name()));
  return value.get<std::string>();
}

std::string JsonArguments::required_text(const char* key) const {
  require(key);
  std::string value = text(key, "");
  if (value.empty()) refuse(key, "is empty");
  return value;
}

int64_t JsonArguments::integer_of(const Json& value, const char* key, int64_t low,
                                  int64_t high) const {
  if (!value.is_number()) {
    refuse(key, str_cat("must be a whole number, not ", value.type_name()));
  }
  bool fits = true;
  int64_t number = 0;
  if (value.is_number_float()) {
    const double real = value.get<double>();
    // 2^53: beyond it a double does not name one integer.
    fits = std::floor(real) == real && std::fabs(real) <= 9007199254740992.0;
    if (fits) number = static_cast<int64_t>(real);
  } else if (value.is_number_unsigned()) {
    fits = value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (fits) number = value.get<int64_t>();
  } else {
    number = value.get<int64_t>();
  }
  if (!fits || number < low || number > high) {
    refuse(key, str_cat("must be a whole number from ", low, " to ", high, ", not ",
                        printable(dump_json(value))));
  }
  return number;
}

int64_t JsonArguments::integer(const char* key, int64_t fallback, int64_t low, int64_t high) const {
  return has(key) ? integer_of(document_.at(key), key, low, high) : fallback;
}

int64_t JsonArguments::required_integer(const char* key, int64_t low, int64_t high) const {
  require(key);
  return integer_of(document_.at(key), key, low, high);
}

double JsonArguments::number(const char* key, double fallback, double low, double high) const {
  if (!has(key)) return fallback;
  const Json& value = document_.at(key);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    refuse(key, str_cat("must be a number from ", low, " to ", high, ", not ",
                        printable(dump_json(value))));
  }
  return number;
}

bool JsonArguments::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  const Json& value = document_.at(key);
  if (!value.is_boolean()) refuse(key, str_cat("must be true or false, not ", value.type_name()));
  return value.get<bool>();
}

const Json& JsonArguments::list(const char* key, const char* of) const {
  require(key);
  const Json& value = document_.at(key);
  if (!value.is_array()) {
    refuse(key, str_cat("must be a list of ", of, ", not ", value.type_name()));
  }
  return value;
}

std::vector<std::string> JsonArguments::texts(const char* key,
                                              std::vector<std::string> fallback) const {
  if (!has(key)) return fallback;
  const Json& value = list(key, "strings");
  std::vector<std::string> out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_string()) {
      refuse(str_cat(key, "/", i).c_str(), str_cat("must be a string, not ", value[i].type_name()));
    }
    out.push_back(value[i].get<std::string>());
  }
  return out;
}

std::vector<double> JsonArguments::numbers(const char* key) const {
  if (!has(key)) return {};
  const Json& value = list(key, "numbers");
  std::vector<double> out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_number()) {
      refuse(str_cat(key, "/", i).c_str(), str_cat("must be a number, not ", value[i].type_name()));
    }
    out.push_back(value[i].get<double>());
  }
  return out;
}

}  // namespace ds::capi
