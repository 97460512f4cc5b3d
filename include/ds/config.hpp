// ds/config.hpp - Configurations checked and described, and what training by one would take. Part
// of ds.hpp.
#ifndef DS_CONFIG_HPP
#define DS_CONFIG_HPP

#include <string>

#include "base.hpp"
#include "config.h"

namespace libds {

// What is wrong with a configuration, and what it resolves to, as JSON.
inline std::string config_check(const std::string& config_json,
                                const std::string& options_json = "{}") {
  char* json = nullptr;
  check(ds_config_check(config_json.c_str(), options_json.c_str(), &json));
  return detail::take(json);
}

// Every key that a configuration may have, as a JSON Schema.
inline std::string config_schema() {
  char* json = nullptr;
  check(ds_config_schema(&json));
  return detail::take(json);
}

// What training would take on each rank of a pretended world, as JSON.
inline std::string plan(const std::string& model_json, const std::string& config_json,
                        const std::string& options_json = "{}") {
  char* json = nullptr;
  check(ds_plan(model_json.c_str(), config_json.c_str(), options_json.c_str(), &json));
  return detail::take(json);
}

}  // namespace libds

#endif  // DS_CONFIG_HPP
