#include "models/architecture.h"

#include <array>

#include "models/gpt2.h"

namespace ds::models {
namespace {

struct Family {
  const char* model_type;
  const char* architecture;  // config.json's architectures[0]
  std::unique_ptr<Architecture> (*make)(const Json& config);
};
constexpr std::array kFamilies = {Family{"gpt2", "GPT2LMHeadModel", make_gpt2}};

}  // namespace

std::unique_ptr<Architecture> build_architecture(const Json& config) {
  DS_CHECK(config.is_object(), Code::kConfig, "model config: an object is expected");
  std::string type, architecture;
  if (const auto it = config.find("model_type"); it != config.end() && it->is_string()) {
    type = it->get<std::string>();
  }
  if (const auto it = config.find("architectures");
      it != config.end() && it->is_array() && !it->empty() && it->front().is_string()) {
    architecture = it->front().get<std::string>();
  }
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    if (type.empty() ? architecture == family.architecture : type == family.model_type) {
      return family.make(config);
    }
    known.emplace_back(family.model_type);
  }
  const std::string given = type.empty() ? architecture : type;
  if (given.empty()) {
    fail(Code::kConfig, "model config: model_type is missing; this version builds ",
         join(known, ", "));
  }
  fail(Code::kUnsupported, "model config: model_type ", printable(given),
       " is not available; this version builds ", join(known, ", "));
}

}  // namespace ds::models
