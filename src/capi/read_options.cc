#include "capi/read_options.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/text.h"

namespace ds::capi {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

// Members that a document gives, into optional fields.
class Members {
 public:
  explicit Members(const JsonArguments& given) : given_(given) {}

  void whole(const char* key, int64_t low, std::optional<int64_t>& to) const {
    if (given_.has(key)) to = given_.required_integer(key, low, INT64_MAX);
  }
  void real(const char* key, double low, std::optional<double>& to) const {
    if (given_.has(key)) to = given_.number(key, 0, low, kMost);
  }
  void word(const char* key, std::initializer_list<const char*> choices,
            std::optional<std::string>& to) const {
    if (!given_.has(key)) return;
    const std::string text = given_.required_text(key);
    std::vector<std::string> names(choices.begin(), choices.end());
    for (const std::string& name : names) {
      if (text == name) to = text;
    }
    if (!to) given_.refuse(key, "must be one of " + join(names, ", ") + ", not " + printable(text));
  }

 private:
  const JsonArguments& given_;
};

AutoValues auto_values(const JsonArguments& given) {
  AutoValues out;
  const Members members(given);
  members.whole("train_batch_size", 1, out.train_batch);
  members.whole("train_micro_batch_size_per_gpu", 1, out.micro_batch);
  members.whole("gradient_accumulation_steps", 1, out.accumulation);
  members.real("gradient_clipping", 0, out.gradient_clipping);
  members.real("lr", 0, out.lr);
  members.real("eps", 0, out.eps);
  members.real("weight_decay", 0, out.weight_decay);
  members.whole("total_num_steps", 1, out.total_steps);
  members.whole("warmup_num_steps", 0, out.warmup_steps);
  members.word("precision", {"fp32", "fp16", "bf16"}, out.precision);
  members.whole("stage", 0, out.stage);
  members.word("offload_optimizer", {"none", "cpu", "nvme"}, out.offload_optimizer);
  members.word("offload_param", {"none", "cpu", "nvme"}, out.offload_param);
  if (const std::vector<double> betas = given.numbers("betas"); !betas.empty()) {
    if (betas.size() != 2) given.refuse("betas", "must be a list of two numbers");
    out.beta1 = betas[0];
    out.beta2 = betas[1];
  }
  return out;
}

}  // namespace

std::vector<std::string> read_option_keys(const std::vector<std::string>& more) {
  std::vector<std::string> out = {"resolve_auto", "lenient", "require_optimizer", "set"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

ReadOptions read_options(const JsonArguments& given) {
  ReadOptions out;
  out.lenient = given.flag("lenient", false);
  out.require_optimizer = given.flag("require_optimizer", false);
  if (given.has("resolve_auto") && given.at("resolve_auto") != false) {
    const Json& values = given.at("resolve_auto");
    if (!values.is_object() && values != true) {
      given.refuse("resolve_auto", "must be true, false or an object");
    }
    out.resolve_auto = auto_values(JsonArguments(
        values == true ? Json::object() : values, "options", "/resolve_auto",
        {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
         "gradient_clipping", "lr", "betas", "eps", "weight_decay", "total_num_steps",
         "warmup_num_steps", "precision", "stage", "offload_optimizer", "offload_param"}));
  }
  if (given.has("set")) {
    const Json& values = given.at("set");
    if (!values.is_object()) given.refuse("set", "must be an object of paths and values");
    for (const auto& [path, value] : values.items()) {
      if (path.empty() || path == "/") given.refuse("set", "has an empty path");
      out.set.emplace_back(path, value);
    }
  }
  return out;
}

}  // namespace ds::capi
