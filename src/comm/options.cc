// The communicator's configuration document: every key is known or refused by name.
#include <cmath>

#include "base/json.h"
#include "base/text.h"
#include "comm/communicator.h"

namespace ds {
namespace {

constexpr char kWhat[] = "communicator configuration";
constexpr double kMaxTimeoutSeconds = 1e9;  // some thirty years; far from overflow

std::chrono::milliseconds parse_timeout(const Json& value) {
  DS_CHECK(value.is_number(), Code::kConfig, kWhat, ": /timeout_seconds must be a number, not ",
           value.type_name());
  const double seconds = value.get<double>();
  DS_CHECK(std::isfinite(seconds) && seconds >= 0.001 && seconds <= kMaxTimeoutSeconds,
           Code::kConfig, kWhat, ": /timeout_seconds must be between 0.001 and ",
           format_number(kMaxTimeoutSeconds), ", not ", format_number(seconds));
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace

CommOptions parse_comm_options(std::string_view json) {
  CommOptions options;
  if (json.empty()) return options;
  const Json document = parse_json(json, kWhat, Code::kConfig);
  DS_CHECK(document.is_object(), Code::kConfig, kWhat, ": an object is needed, not ",
           document.type_name());
  for (const auto& [key, value] : document.items()) {
    if (key == "timeout_seconds") {
      options.deadline = parse_timeout(value);
      continue;
    }
    const std::string nearest = nearest_name(key, {"timeout_seconds"});
    fail(Code::kConfig, kWhat, ": unknown key /", printable(key),
         nearest.empty() ? "; known are: timeout_seconds"
                         : str_cat("; did you mean \"", nearest, "\"?"));
  }
  return options;
}

}  // namespace ds
