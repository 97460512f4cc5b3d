#include "capi/dataset_json.h"

#include "base/text.h"
#include "capi/json_args.h"

namespace ds::capi {
namespace {

constexpr const char* kWhat = "data set specification";

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = {
      "kind", "path", "sequence_length", "samples", "split", "part", "seed", "members", "weights"};
  return keys;
}

Split part_of(const JsonArguments& spec) {
  const std::string name = spec.text("part", "train");
  for (const Split part : {Split::kTrain, Split::kValid, Split::kTest}) {
    if (name == split_name(part)) return part;
  }
  spec.refuse("part",
              str_cat("must be \"train\", \"valid\" or \"test\", not \"", printable(name), "\""));
}

DatasetKind kind_of(const JsonArguments& spec) {
  const std::string name = spec.text("kind", dataset_kind_name(DatasetKind::kGpt));
  const std::optional<DatasetKind> kind = dataset_kind(name);
  if (!kind) spec.refuse("kind", str_cat("is unknown: \"", printable(name), "\""));
  return *kind;
}

DatasetSpec parse_spec(const JsonArguments& given, bool member) {
  DatasetSpec spec;
  spec.kind = kind_of(given);
  if (spec.kind != DatasetKind::kBlend) spec.path = given.required_text("path");
  if (!member) {
    spec.sequence_length = given.required_integer("sequence_length", 1, INT32_MAX - 1);
    if (const int64_t samples = given.integer("samples", 0, 0, INT64_MAX); samples > 0) {
      spec.samples = samples;
    }
    spec.split = given.text("split", spec.split.c_str());
    spec.part = part_of(given);
    spec.seed = static_cast<uint32_t>(given.integer("seed", spec.seed, 0, UINT32_MAX));
  }
  spec.weights = given.numbers("weights");
  for (const JsonArguments& inner : given.objects("members", known_keys())) {
    spec.members.push_back(parse_spec(inner, true));
  }
  return spec;
}

}  // namespace

DatasetSpec parse_dataset_spec(const char* spec_json) {
  return parse_spec(JsonArguments(spec_json, kWhat, known_keys()), false);
}

}  // namespace ds::capi
