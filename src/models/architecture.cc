#include "models/architecture.h"

#include <algorithm>
#include <array>

#include "models/bert.h"
#include "models/deepseek.h"
#include "models/gpt2.h"
#include "models/gpt_neox.h"
#include "models/llama.h"

namespace ds::models {
namespace {

struct Family {
  const char* model_type;
  const char* architecture;  // config.json's architectures[0]
  std::unique_ptr<Architecture> (*make)(const Json& config);
};
// The first entry of a model_type is taken when the document names no architecture.
constexpr std::array kFamilies = {
    Family{"gpt2", "GPT2LMHeadModel", make_gpt2},
    Family{"gpt_moe", "GPTMoELMHeadModel", make_gpt_moe},
    Family{"llama", "LlamaForCausalLM", make_llama},
    Family{"mistral", "MistralForCausalLM", make_mistral},
    Family{"mixtral", "MixtralForCausalLM", make_mixtral},
    Family{"qwen2", "Qwen2ForCausalLM", make_qwen2},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", make_qwen2_moe},
    Family{"qwen3", "Qwen3ForCausalLM", make_qwen3},
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", make_qwen3_moe},
    Family{"olmo2", "Olmo2ForCausalLM", make_olmo2},
    Family{"olmoe", "OlmoeForCausalLM", make_olmoe},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", make_deepseek_v2},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", make_deepseek_v3},
    Family{"gpt_neox", "GPTNeoXForCausalLM", make_gpt_neox},
    Family{"bert", "BertModel", make_bert},
    Family{"bert", "BertForMaskedLM", make_bert_masked_lm},
    Family{"bert", "BertForSequenceClassification", make_bert_classifier},
    Family{"bert", "BertForNextSentencePrediction", make_bert_order}};

std::string known_of(bool types) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    const char* name = types ? family.model_type : family.architecture;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  return join(names, ", ");
}

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
  DS_CHECK(!type.empty() || !architecture.empty(), Code::kConfig,
           "model config: model_type is missing; this version builds ", known_of(true));
  bool type_known = type.empty();
  for (const Family& family : kFamilies) {
    const bool same_type = type.empty() || type == family.model_type;
    type_known = type_known || same_type;
    if (same_type && (architecture.empty() || architecture == family.architecture)) {
      return family.make(config);
    }
  }
  DS_CHECK(type_known, Code::kUnsupported, "model config: model_type ", printable(type),
           " is not available; this version builds ", known_of(true));
  fail(Code::kUnsupported, "model config: architecture ", printable(architecture),
       " is not available", type.empty() ? "" : " for model_type " + printable(type),
       "; this version builds ", known_of(false));
}

}  // namespace ds::models
