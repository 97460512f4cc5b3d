// Fuzzes a model's config.json: any document is refused with an error or builds an architecture,
// whose own configuration builds the same one again. No weights are made.
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "fuzz/fuzz_support.h"
#include "models/architecture.h"
#include "models/rotary_scaling.h"

namespace {

using ds::Json;
using ds::fuzz::accepts;
using ds::fuzz::claim;
using ds::models::Architecture;

// More layers are only more of the same, and thousands of them make an input slow.
bool too_deep(const Json& config) {
  constexpr int64_t kMostLayers = 12;
  for (const char* key : {"num_hidden_layers", "n_layer"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (it->is_number() && it->get<double>() > kMostLayers) return true;
  }
  return false;
}

void check_same(const Architecture& a, const Architecture& b) {
  claim(a.parameters().size() == b.parameters().size(), "as many parameters again");
  claim(a.config() == b.config(), "the configuration stays", ds::dump_json(b.config()));
  for (ds::nn::ParamId id = 0; id < a.parameters().size(); ++id) {
    const auto& x = a.parameters()[id];
    const auto& y = b.parameters()[id];
    claim(x.name == y.name && x.shape == y.shape && x.aliases == y.aliases &&
              x.decays == y.decays && x.init_std == y.init_std,
          "the same parameters again", x.name);
  }
}

void check_architecture(const Architecture& model) {
  const auto& info = model.info();
  claim(info.vocab_size > 0 && info.max_positions > 0 && info.layers > 0,
        "dimensions are positive");
  claim(info.kv_heads > 0 && info.head_size > 0, "heads are positive");
  std::set<std::string> external;
  for (ds::nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const auto& parameter = model.parameters()[id];
    claim(parameter.shape.elements() > 0, "parameters have elements", parameter.name);
    claim(model.parameters().lookup(parameter.name) == id, "parameters are found", parameter.name);
    claim(external.insert(model.external_name(id).name).second, "external names are distinct",
          parameter.name);
  }
  accepts([&] { static_cast<void>(model.parameters().elements()); });
  static_cast<void>(model.external_prefix());
  static_cast<void>(model.ignorable_external("transformer.h.0.attn.bias"));
}

// The document's rotary keys, whatever the family makes of them.
void check_rotary(const Json& config, int64_t head_size, int64_t positions) {
  const ds::models::ConfigReader read(config);
  std::optional<ds::models::RotaryConfig> rotary;
  if (!accepts([&] { rotary = ds::models::read_rotary(read, head_size, positions, {}); })) return;
  claim(rotary->channels > 0 && rotary->channels <= head_size && rotary->channels % 2 == 0,
        "an even part of the head turns");
  for (const int64_t length : {int64_t{1}, positions, 2 * positions}) {
    const std::vector<double> frequencies = ds::models::rotary_frequencies(*rotary, length);
    claim(static_cast<int64_t>(frequencies.size()) == rotary->channels / 2,
          "every pair of channels has a frequency");
    for (const double f : frequencies) claim(std::isfinite(f), "frequencies are finite");
  }
  claim(std::isfinite(rotary->attention_factor), "the attention factor is finite");
  claim(ds::models::rotary_positions(*rotary) > 0, "positions reach somewhere");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json config;
  if (!accepts([&] { config = ds::parse_json(text, "config.json", ds::Code::kConfig); })) return 0;
  if (!config.is_object() || too_deep(config)) return 0;
  check_rotary(config, 64, 2048);
  std::unique_ptr<Architecture> model;
  if (!accepts([&] { model = ds::models::build_architecture(config); })) return 0;
  check_architecture(*model);
  ds::fuzz::must_succeed("an architecture's configuration builds it again", [&] {
    check_same(*model, *ds::models::build_architecture(model->config()));
  });
  return 0;
}
