#include "models/config_reader.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/log.h"

namespace ds::models {
namespace {

// Keys of every family that do not change what the network computes here: names, token ids,
// settings of generation and of other programs' outputs.
constexpr std::array kCommon = {
    "_name_or_path",
    "name_or_path",
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "use_cache",
    "gradient_checkpointing",
    "output_past",
    "id2label",
    "label2id",
    "num_labels",
    "is_decoder",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "chunk_size_feed_forward",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "finetuning_task",
    "tokenizer_class",
    "problem_type",
    "prefix",
    "task_specific_params",
    "torchscript",
    "tf_legacy_loss",
    "use_bfloat16",
    "remove_invalid_values",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    // Defaults of generation that old configurations repeat.
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
};

// Keys that programs around a model leave in its configuration. What begins with _ is such a
// program's own, too.
constexpr std::array kOfPrograms = {"is_llama_config", "unsloth_version", "unsloth_fixed",
                                    "custom_pipelines", "transformers.js_config"};

bool is_of_programs(const std::string& key) {
  return key.starts_with('_') ||
         std::find(kOfPrograms.begin(), kOfPrograms.end(), key) != kOfPrograms.end();
}

}  // namespace

const Json* ConfigReader::find(const char* key) const {
  asked_.emplace_back(key);
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(const char* key) const { return find(key) != nullptr; }

bool ConfigReader::is_null(const char* key) const {
  const auto found = config_.find(key);
  return found != config_.end() && found->is_null();
}

int64_t ConfigReader::count(const char* key, int64_t fallback, int64_t limit, int64_t least) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  DS_CHECK(value->is_number_integer() && *value >= least && *value <= limit, Code::kConfig, where_,
           ": ", key, " must be an integer from ", least, " to ", limit, ", not ",
           printable(dump_json(*value)));
  return value->get<int64_t>();
}

std::optional<double> ConfigReader::optional_number(const char* key, double low,
                                                    double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  DS_CHECK(value->is_number(), Code::kConfig, where_, ": ", key, " must be a number, not ",
           printable(dump_json(*value)));
  const double x = value->get<double>();
  DS_CHECK(std::isfinite(x) && x >= low && x < high, Code::kConfig, where_, ": ", key,
           " must be in [", low, ", ", high, "), not ", format_number(x));
  return x;
}

double ConfigReader::number(const char* key, double fallback, double low, double high) const {
  return optional_number(key, low, high).value_or(fallback);
}

bool ConfigReader::flag(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  DS_CHECK(value->is_boolean(), Code::kConfig, where_, ": ", key, " must be true or false, not ",
           printable(dump_json(*value)));
  return value->get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  DS_CHECK(value->is_string(), Code::kConfig, where_, ": ", key, " must be a string, not ",
           printable(dump_json(*value)));
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  std::vector<std::string> out;
  const Json* value = find(key);
  if (value == nullptr) return out;
  DS_CHECK(value->is_array(), Code::kConfig, where_, ": ", key, " must be a list of strings, not ",
           printable(dump_json(*value)));
  for (const Json& item : *value) {
    DS_CHECK(item.is_string(), Code::kConfig, where_, ": ", key, " holds ",
             printable(dump_json(item)), ", which is not a string");
    out.push_back(item.get<std::string>());
  }
  return out;
}

bool ConfigReader::is_list(const char* key) const {
  const auto found = config_.find(key);
  return found != config_.end() && found->is_array();
}

std::vector<int64_t> ConfigReader::counts(const char* key, int64_t limit) const {
  std::vector<int64_t> out;
  const Json* value = find(key);
  if (value == nullptr) return out;
  DS_CHECK(value->is_array(), Code::kConfig, where_, ": ", key, " must be a list of integers, not ",
           printable(dump_json(*value)));
  for (const Json& item : *value) {
    DS_CHECK(item.is_number_integer() && item >= 0 && item <= limit, Code::kConfig, where_, ": ",
             key, " holds ", printable(dump_json(item)), ", which is not an integer from 0 to ",
             limit);
    out.push_back(item.get<int64_t>());
  }
  return out;
}

void ConfigReader::check_experts(const char* key, int64_t in_all_layers) const {
  constexpr int64_t kMost = 1 << 18;
  DS_CHECK(in_all_layers <= kMost, Code::kConfig, where_, ": ", key, " asks for ", in_all_layers,
           " experts in all layers together; at most ", kMost, " are possible");
}

int64_t ConfigReader::padding_row(int64_t vocab_size, std::optional<int64_t> fallback) const {
  if (is_null("pad_token_id") || !(has("pad_token_id") || fallback)) return -1;
  const int64_t row = count("pad_token_id", fallback.value_or(0), INT32_MAX, -INT32_MAX);
  const int64_t place = row < 0 ? row + vocab_size : row;
  return place >= 0 && place < vocab_size ? place : -1;
}

const Json* ConfigReader::object(const char* key) const {
  const Json* value = find(key);
  DS_CHECK(value == nullptr || value->is_object(), Code::kConfig, where_, ": ", key,
           " must be an object, not ", printable(dump_json(*value)));
  return value;
}

void ConfigReader::require(const char* key, bool value) const {
  DS_CHECK(flag(key, value) == value, Code::kUnsupported, where_, ": ", key, " = ",
           value ? "false" : "true", " is not available");
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) const {
  asked_.insert(asked_.end(), keys.begin(), keys.end());
}

void ConfigReader::ignore_common() const {
  asked_.insert(asked_.end(), kCommon.begin(), kCommon.end());
  require("is_encoder_decoder", false);
  require("add_cross_attention", false);
  const Json* pruned = find("pruned_heads");
  DS_CHECK(pruned == nullptr || pruned->empty(), Code::kUnsupported, where_,
           ": pruned_heads is not available");
}

void ConfigReader::finish() const {
  for (const auto& [key, value] : config_.items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    if (is_of_programs(key)) {
      log_info("models", where_, ": ", printable(key), " is ignored: it is another program's");
      continue;
    }
    const std::string nearest = nearest_name(key, asked_);
    fail(Code::kUnsupported, where_, ": unknown option ", printable(key),
         nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
}

ops::Activation read_activation(const ConfigReader& read, const char* key,
                                const std::string& fallback) {
  struct Known {
    const char* name;
    ops::Activation kind;
  };
  constexpr std::array kKnown = {Known{"gelu", ops::Activation::kGeluErf},
                                 Known{"gelu_python", ops::Activation::kGeluErf},
                                 Known{"gelu_new", ops::Activation::kGeluTanh},
                                 Known{"gelu_fast", ops::Activation::kGeluTanh},
                                 Known{"gelu_pytorch_tanh", ops::Activation::kGeluTanh},
                                 Known{"silu", ops::Activation::kSilu},
                                 Known{"swish", ops::Activation::kSilu},
                                 Known{"relu", ops::Activation::kRelu},
                                 Known{"tanh", ops::Activation::kTanh}};
  const std::string name = read.text(key, fallback);
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    if (name == known.name) return known.kind;
    names.emplace_back(known.name);
  }
  fail(Code::kUnsupported, read.where(), ": ", key, " ", printable(name),
       " is not available; these are: ", join(names, ", "));
}

}  // namespace ds::models
