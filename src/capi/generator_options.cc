#include "capi/generator_options.h"

#include <algorithm>

namespace ds::capi {
namespace {

constexpr int64_t kMaxThreads = 4096;

int64_t group_size_of(const JsonArguments& given, int64_t fallback) {
  const int64_t size = given.integer("group_size", fallback, 0, int64_t{1} << 20);
  if (size % 8 != 0) given.refuse("group_size", "must be 0 (a row's) or a multiple of 8");
  return size;
}

// What an override leaves out is as for all other matrices.
std::vector<models::WeightOverride> overrides_of(const JsonArguments& given,
                                                 const models::InferenceOptions& all) {
  std::vector<models::WeightOverride> out;
  if (!given.has("overrides")) return out;
  const Json& list = given.list("overrides", "objects");
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonArguments one(list[i], "generator options", str_cat("/overrides/", i),
                            {"match", "weights", "group_size", "symmetric"});
    models::WeightOverride form;
    form.match = one.required_text("match");
    form.weights =
        one.has("weights") ? models::weight_form_named(one.required_text("weights")) : all.weights;
    form.group_size = group_size_of(one, all.group_size);
    form.symmetric = one.flag("symmetric", all.symmetric);
    out.push_back(std::move(form));
  }
  return out;
}

// Weights that rest in a file, in the words of zero_optimization.offload_param; none: in memory.
std::optional<models::WeightFileOptions> weight_file_of(const JsonArguments& given) {
  if (!given.has("offload_param")) return std::nullopt;
  const JsonArguments one(
      given.at("offload_param"), "generator options", "/offload_param",
      {"device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"});
  const std::string device = one.text("device", "none");
  if (device == "none" || device == "cpu") return std::nullopt;
  if (device != "nvme") one.refuse("device", "must be \"none\", \"cpu\" or \"nvme\"");
  constexpr int64_t kMost = int64_t{1} << 40;
  models::WeightFileOptions file;
  file.folder = one.required_text("nvme_path");
  file.elements_in_memory = one.integer("max_in_cpu", 1'000'000'000, 0, kMost);
  file.elements_ahead = one.integer("buffer_count", 5, 1, 4096) *
                        one.integer("buffer_size", 100'000'000, 0, kMost / 4096);
  one.flag("pin_memory", true);  // memory of requests is page-locked while they run
  return file;
}

ops::Int8Activations int8_activations_of(const JsonArguments& given) {
  constexpr const char* kKey = "int8_activations";
  if (given.has(kKey) && given.at(kKey).is_string()) {
    if (given.text(kKey, "") != "all") given.refuse(kKey, "must be false, true or \"all\"");
    return ops::Int8Activations::kAllRows;
  }
  return given.flag(kKey, false) ? ops::Int8Activations::kManyRows : ops::Int8Activations::kNone;
}

bool has_codes(const models::InferenceOptions& options) {
  const auto codes = [](models::WeightForm form) {
    return form == models::WeightForm::kInt8 || form == models::WeightForm::kInt4;
  };
  return codes(options.weights) ||
         std::any_of(options.overrides.begin(), options.overrides.end(),
                     [&](const models::WeightOverride& o) { return codes(o.weights); });
}

}  // namespace

infer::KvOptions kv_of(const JsonArguments& given) {
  constexpr int64_t kMost = int64_t{1} << 40;
  infer::KvOptions options;
  const std::string cache = given.text("kv_cache", "auto");
  if (cache != "auto" && cache != "int8") {
    given.refuse("kv_cache", str_cat("must be auto (as the model computes) or int8, not ", cache));
  }
  options.codes = cache == "int8";
  infer::KvBlockOptions& kv = options.blocks;
  kv.block_tokens = given.integer("kv_block_tokens", 0, 0, int64_t{1} << 20);
  kv.pool_tokens = given.integer("kv_pool_tokens", 0, 0, kMost);
  if (kv.pool_tokens > 0 && kv.block_tokens == 0) {
    given.refuse("kv_pool_tokens", "needs kv_block_tokens, the tokens of a block");
  }
  if (kv.pool_tokens > 0 && kv.pool_tokens < kv.block_tokens) {
    given.refuse("kv_pool_tokens",
                 str_cat("must be 0 (any number) or at least kv_block_tokens, ", kv.block_tokens));
  }
  return options;
}

std::optional<models::InferenceOptions> prepared_form(const JsonArguments& given,
                                                      const char* fallback) {
  const std::string weights = given.text("weights", fallback);
  if (weights == kOwnWeights) {
    for (const char* const key :
         {"group_size", "symmetric", "threads", "int8_activations", "overrides", "offload_param"}) {
      if (given.has(key)) given.refuse(key, "needs \"weights\": fp32, bf16, int8 or int4");
    }
    return std::nullopt;
  }
  models::InferenceOptions options;
  options.weights = models::weight_form_named(weights);
  options.group_size = group_size_of(given, options.group_size);
  options.symmetric = given.flag("symmetric", options.symmetric);
  options.threads = static_cast<int>(given.integer("threads", 0, 0, kMaxThreads));
  options.overrides = overrides_of(given, options);
  options.int8_activations = int8_activations_of(given);
  if (options.int8_activations != ops::Int8Activations::kNone && !has_codes(options)) {
    given.refuse("int8_activations",
                 "needs weights in \"int8\" or \"int4\", to multiply them with");
  }
  options.file = weight_file_of(given);
  return options;
}

}  // namespace ds::capi
