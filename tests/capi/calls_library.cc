#include "capi/call_rows.h"

namespace capi_test {

std::vector<Call> library_calls() {
  return {
      {"ds_log_set", {}, [](const Arguments&) { return ds_log_set(nullptr, nullptr, nullptr); }},
      {"ds_log_set_level", {}, [](const Arguments&) { return ds_log_set_level(DS_LOG_WARNING); }},
      {"ds_handle_error_message",
       {pointer("handle"), out_text("out_message")},
       [](const Arguments& a) { return ds_handle_error_message(a[0], p<char*>(a, 1)); },
       [](World& world, Arguments& a) { a[0] = world.tensor; }},
      {"ds_memory_report",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_memory_report(p<char*>(a, 0)); }},
      {"ds_allocator_set",
       {},
       [](const Arguments&) { return ds_allocator_set(DS_DEVICE_CPU, nullptr, nullptr); }},
      {"ds_config_schema",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_config_schema(p<char*>(a, 0)); }},
      {"ds_report",
       {out_text("out_json")},
       [](const Arguments& a) { return ds_report(p<char*>(a, 0)); }},
      {"ds_plan",
       {text("model_json", model_config()), text("config_json", "{\"train_batch_size\": 2}"),
        text("options_json", "{\"world\": 2}"), out_text("out_json")},
       [](const Arguments& a) { return ds_plan(s(a, 0), s(a, 1), s(a, 2), p<char*>(a, 3)); }},
      {"ds_config_check",
       {text("config_json", R"({"train_batch_size": "many"})"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_config_check(s(a, 0), R"({"world": 2, "lenient": true})", p<char*>(a, 1));
       }},
  };
}

}  // namespace capi_test
