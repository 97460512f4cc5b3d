#include "run_config.h"

#include <filesystem>
#include <set>
#include <vector>

#include "files.h"
#include "format.h"

namespace tool {
namespace {

constexpr int64_t kDefaultSeed = 1234;

// Reads the document unless it is broken or repeats a key, which parsing would hide.
std::optional<Json> parse_strictly(const std::string& text) {
  std::vector<std::set<std::string>> open_objects;
  bool repeated = false;
  const Json::parser_callback_t watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      repeated |= !open_objects.back().insert(parsed.get<std::string>()).second;
    }
    return true;
  };
  Json document = Json::parse(text, watch, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (document.is_discarded() || !document.is_object() || repeated) return std::nullopt;
  return document;
}

// Turns a monitor on whose files go below `folder`. A section of another shape is left alone, so
// that the library reports it.
void enable_monitor(Json& document, const char* section, const std::string& folder) {
  Json& monitor = document[section];
  if (!monitor.is_object() && !monitor.is_null()) return;
  monitor["enabled"] = true;
  const std::filesystem::path path(folder);
  const auto clean = (path.has_filename() ? path : path.parent_path()).lexically_normal();
  monitor["output_path"] = clean.has_parent_path() ? clean.parent_path().string() : ".";
  monitor["job_name"] = clean.filename().string();
}

}  // namespace

const char* default_config() {
  return R"({
  "train_micro_batch_size_per_gpu": 8,
  "gradient_clipping": 1.0,
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
  }
})";
}

RunConfig load_config(const ConfigOptions& options) {
  RunConfig config;
  config.text = !options.path.empty()      ? read_text(options.path)
                : !options.resumed.empty() ? options.resumed
                                           : default_config();
  auto document = parse_strictly(config.text);
  if (!document) {
    config.understood = false;
    return config;
  }
  if (options.seed) (*document)["seed"] = *options.seed;
  if (!document->contains("seed"))
    (*document)["seed"] = options.resumed_seed.value_or(kDefaultSeed);
  const Json& seed = (*document)["seed"];
  config.seed = seed.is_number_integer() ? seed.get<int64_t>() : kDefaultSeed;
  if (options.threads) (*document)["threads"] = *options.threads;
  if (options.keep) {
    Json& checkpoint = (*document)["checkpoint"];
    // Another shape is for the library to report.
    if (checkpoint.is_object() || checkpoint.is_null()) checkpoint["keep"] = *options.keep;
  }
  if (!options.tensorboard.empty()) enable_monitor(*document, "tensorboard", options.tensorboard);
  if (!options.csv.empty()) enable_monitor(*document, "csv_monitor", options.csv);
  config.text = document->dump(2, ' ', false, Json::error_handler_t::replace);
  return config;
}

}  // namespace tool
