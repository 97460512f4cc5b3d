// Reads typed members of JSON objects in files, with errors that name the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace ds {

// The member or null; `object` must be one.
inline const Json* find_field(const Json& object, std::string_view name, std::string_view what) {
  DS_CHECK(object.is_object(), Code::kCorrupt, what, " must be an object, not ",
           object.type_name());
  const auto found = object.find(std::string(name));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

inline const Json& need_field(const Json& object, std::string_view name, std::string_view what) {
  const Json* const field = find_field(object, name, what);
  DS_CHECK(field != nullptr, Code::kCorrupt, what, " has no \"", name, "\"");
  return *field;
}

inline bool bool_field(const Json& object, std::string_view name, bool fallback,
                       std::string_view what) {
  const Json* const field = find_field(object, name, what);
  if (field == nullptr) return fallback;
  DS_CHECK(field->is_boolean(), Code::kCorrupt, what, ".", name, " must be true or false, not ",
           field->type_name());
  return field->get<bool>();
}

inline std::string as_text(const Json& value, std::string_view what) {
  DS_CHECK(value.is_string(), Code::kCorrupt, what, " must be a string, not ", value.type_name());
  return value.get<std::string>();
}

inline std::string text_field(const Json& object, std::string_view name, std::string_view what) {
  return as_text(need_field(object, name, what), str_cat(what, ".", name));
}

inline int64_t as_integer(const Json& value, int64_t low, int64_t high, std::string_view what) {
  DS_CHECK(value.is_number_integer() &&
               (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX}),
           Code::kCorrupt, what, " must be an integer, not ", printable(dump_json(value)));
  const auto number = value.get<int64_t>();
  DS_CHECK(number >= low && number <= high, Code::kCorrupt, what, " is ", number, ", outside ", low,
           " to ", high);
  return number;
}

// A tokenizer's file: the largest published ones have 35 MB, and JSON takes 19 times its size.
inline constexpr int64_t kMostTokenizerBytes = int64_t{128} << 20;

// The steps of a pipeline all walk through the text: a file must not name thousands of them.
inline constexpr size_t kMostSteps = 64;
template <class Steps>
void check_steps(const Steps& steps, std::string_view what) {
  DS_CHECK(steps.size() <= kMostSteps, Code::kUnsupported, what, " has more than ", kMostSteps,
           " steps");
}

inline const Json& array_field(const Json& object, std::string_view name, std::string_view what) {
  const Json& field = need_field(object, name, what);
  DS_CHECK(field.is_array(), Code::kCorrupt, what, ".", name, " must be an array, not ",
           field.type_name());
  return field;
}

}  // namespace ds
