// Configurations without an engine: what is wrong with a document, and what it resolves to.
#include "config/config.h"

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/read_options.h"
#include "config/auto_values.h"
#include "config/check.h"
#include "config/schema.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_config_check(const char* config_json, const char* options_json, char** out_json) {
  return guard(__func__, [&] {
    const std::string_view config = text_param(config_json, "config_json");
    char*& out = out_param(out_json, "out_json");
    const JsonArguments given(options_json, "options",
                              read_option_keys({"world", "device", "model"}));
    ConfigEnvironment environment;
    environment.fit_world = !given.has("world");
    environment.data_parallel_size = given.integer("world", 1, 1, 1 << 20);
    const std::string device = given.text("device", "cpu");
    if (device != "cpu" && device.rfind("cuda", 0) != 0) {
      given.refuse("device", "must be cpu or cuda");
    }
    environment.on_gpu = device != "cpu";
    if (given.has("model")) {
      if (!given.at("model").is_object()) given.refuse("model", "must be a config.json's object");
      environment.hidden_size = hidden_size_of(given.at("model"));
    }
    out = make_c_string(
        dump_json(describe_check(check_config(config, environment, read_options(given))), 2));
  });
}

ds_status ds_config_schema(char** out_json) {
  return guard(__func__, [&] {
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(config_schema(), 2));
  });
}
