// Planning without memory.
#include "engine/plan.h"

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/read_options.h"

using namespace ds;
using namespace ds::capi;

ds_status ds_plan(const char* model_json, const char* config_json, const char* options_json,
                  char** out_json) {
  return guard(__func__, [&] {
    const std::string_view model = text_param(model_json, "model_json");
    const std::string_view config = text_param(config_json, "config_json");
    static_cast<void>(text_param(options_json, "options_json"));
    char*& out = out_param(out_json, "out_json");
    const JsonArguments given(options_json, "plan options",
                              read_option_keys({"world", "ranks_per_node", "sequence_length"}));
    PlanOptions options;
    options.reading = read_options(given);
    options.world = static_cast<int>(given.integer("world", 1, 1, 1 << 20));
    options.ranks_per_node = static_cast<int>(given.integer("ranks_per_node", 0, 0, 1 << 20));
    options.sequence_length = given.integer("sequence_length", 0, 0, int64_t{1} << 31);
    out = make_c_string(dump_json(
        plan_training(parse_json(model, "model config", Code::kConfig), config, options), 2));
  });
}
