#include "config/scalar.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/text.h"
#include "config/parse.h"

namespace ds {
namespace {

ScalarResult good(Json value) { return {std::move(value), {}}; }

template <class... Parts>
ScalarResult bad(const Parts&... parts) {
  return {nullptr, str_cat(parts...)};
}

ScalarResult unexpected(const Key& key, const Json& value) {
  return bad("expected ", describe_types(key), ", got ", show_value(value));
}

std::string range_error(const Key& key, double number, const Json& value) {
  const bool low = key.min && (key.above_min ? number <= *key.min : number < *key.min);
  const bool high = key.max && (key.below_max ? number >= *key.max : number > *key.max);
  if (!low && !high) return {};
  return show_value(value) + " is out of range; it must be " + describe_range(key);
}

ScalarResult read_string(const Key& key, const Json& value) {
  if (key.choices.empty()) return good(value);
  const auto& given = value.get_ref<const std::string&>();
  std::vector<std::string> names;
  for (const auto& spellings : key.choices) {
    names.push_back(spellings[0]);
    for (const std::string& spelling : spellings) {
      const bool same =
          key.any_case ? to_lower_ascii(spelling) == to_lower_ascii(given) : spelling == given;
      if (same) return good(spellings[0]);
    }
  }
  const std::string near = nearest_name(given, names);
  return bad("expected ", describe_types(key), ", got ", show_value(value),
             near.empty() ? "" : "; did you mean \"" + near + "\"?");
}

ScalarResult read_number(const Key& key, double number, const Json& value) {
  if (!std::isfinite(number)) return bad(show_value(value), " is not finite");
  if (std::string error = range_error(key, number, value); !error.empty()) return bad(error);
  return good(number);
}

ScalarResult read_numeric_text(const Key& key, const Json& value) {
  const auto& given = value.get_ref<const std::string&>();
  // The number must be in JSON's own notation: "nan", "0x10" and " 3" are no numbers.
  const bool padded = given.empty() || static_cast<unsigned char>(given.front()) <= ' ' ||
                      static_cast<unsigned char>(given.back()) <= ' ';
  if (padded) return unexpected(key, value);
  const Json number = Json::parse(given, nullptr, /*allow_exceptions=*/false);
  if (!number.is_number()) return unexpected(key, value);
  return read_number(key, number.get<double>(), value);
}

ScalarResult read_integer(const Key& key, const Json& value) {
  int64_t number = 0;
  if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::floor(real)) return unexpected(key, value);
    if (std::fabs(real) >= 0x1p63) return bad(show_value(value), " does not fit 64 bits");
    number = static_cast<int64_t>(real);
  } else {
    if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
      return bad(show_value(value), " does not fit 64 bits");
    }
    number = value.get<int64_t>();
  }
  if (std::string error = range_error(key, static_cast<double>(number), value); !error.empty()) {
    return bad(error);
  }
  if (key.multiple_of != 0 && number % key.multiple_of != 0) {
    return bad(show_value(value), " must be a multiple of ", key.multiple_of);
  }
  return good(number);
}

// What a text means for a key that takes no text; null when it means nothing.
Json value_of_text(const Key& key, const std::string& text) {
  if (key.types & kBool) {
    const std::string word = to_lower_ascii(text);
    for (const char* yes : {"true", "yes", "on", "t", "y", "1"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"false", "no", "off", "f", "n", "0"}) {
      if (word == no) return false;
    }
  }
  if (!(key.types & (kInt | kNumber)) || text.empty()) return nullptr;
  const char last = text.back();
  if (last < '0' || last > '9') return nullptr;
  Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool fits = (key.types & kNumber) ? number.is_number() : number.is_number_integer();
  return fits ? number : Json();
}

}  // namespace

ScalarResult read_scalar(const Key& key, const Json& value, bool typed) {
  if (typed && value.is_string() && !key.numeric_text && !(key.types & kString)) {
    const Json meant = value_of_text(key, value.get_ref<const std::string&>());
    return meant.is_null() ? unexpected(key, value) : read_scalar(key, meant);
  }
  if (value.is_string() && key.numeric_text) return read_numeric_text(key, value);
  if (value.is_string() && (key.types & kString)) return read_string(key, value);
  if (value.is_boolean() && (key.types & kBool)) return good(value);
  if (value.is_number() && (key.types & kInt)) return read_integer(key, value);
  if (value.is_number() && (key.types & kNumber)) {
    return read_number(key, value.get<double>(), value);
  }
  return unexpected(key, value);
}

}  // namespace ds
