#include "capi/dataset_json.h"

#include "base/text.h"
#include "capi/json_args.h"

namespace ds::capi {
namespace {

constexpr const char* kWhat = "data set specification";

using Keys = std::vector<std::string>;

// The keys of a kind; members of a blend take the common ones from the blend.
Keys keys_of(DatasetKind kind, bool member) {
  Keys keys = {"kind"};
  const auto add = [&keys](const Keys& more) { keys.insert(keys.end(), more.begin(), more.end()); };
  if (kind != DatasetKind::kBlend) add({"path"});
  if (!member) add({"sequence_length", "samples", "split", "split_rounding", "part", "seed"});
  switch (kind) {
    case DatasetKind::kGpt:
      add({"eod_mask_loss", "reset_position_ids", "reset_attention_mask",
           "drop_last_partial_validation_sequence", "eod_id", "pad_id"});
      break;
    case DatasetKind::kBlend:
      add({"members", "weights"});
      break;
    case DatasetKind::kPacked:
      add({"chat_template", "append_end", "add_begin", "parse_special_tokens", "learn_prompts",
           "too_long", "pack", "pad_id"});
      break;
    case DatasetKind::kMlm:
      add({"mask_probability", "short_probability", "pairs"});
      break;
  }
  return keys;
}

// The kind that a document names; what else it holds is checked once that is known.
DatasetKind kind_of(const Json& document, const std::string& path) {
  const auto found = document.is_object() ? document.find("kind") : document.end();
  if (!document.is_object() || found == document.end()) return DatasetKind::kGpt;
  const std::optional<DatasetKind> kind =
      found->is_string() ? dataset_kind(found->get<std::string>()) : std::nullopt;
  DS_CHECK(kind, Code::kConfig, kWhat, ": ", path,
           "/kind must be \"gpt\", \"blend\", \"packed\" or \"mlm\", not ",
           printable(dump_json(*found)));
  return *kind;
}

Split part_of(const JsonArguments& spec) {
  const std::string name = spec.text("part", "train");
  for (const Split part : {Split::kTrain, Split::kValid, Split::kTest}) {
    if (name == split_name(part)) return part;
  }
  spec.refuse("part",
              str_cat("must be \"train\", \"valid\" or \"test\", not \"", printable(name), "\""));
}

SplitRounding rounding_of(const JsonArguments& spec) {
  const std::string name = spec.text("split_rounding", "megatron");
  if (const std::optional<SplitRounding> known = split_rounding(name)) return *known;
  spec.refuse("split_rounding",
              str_cat("must be \"megatron\" or \"megatron_core\", not \"", printable(name), "\""));
}

std::optional<int32_t> token_of(const JsonArguments& given, const char* key) {
  if (!given.has(key)) return std::nullopt;
  return static_cast<int32_t>(given.required_integer(key, 0, INT32_MAX));
}

void read_gpt(const JsonArguments& given, DatasetSpec& spec) {
  spec.eod_mask_loss = given.flag("eod_mask_loss", false);
  spec.part_documents = given.flag("reset_attention_mask", false);
  if (given.flag("reset_position_ids", false) != spec.part_documents) {
    given.refuse("reset_position_ids",
                 "and reset_attention_mask go together here: set both, or neither");
  }
  spec.keep_partial = !given.flag("drop_last_partial_validation_sequence", true);
  spec.eod_id = token_of(given, "eod_id");
  spec.pad_id = token_of(given, "pad_id");
}

void read_packed(const JsonArguments& given, DatasetSpec& spec) {
  FinetuneOptions& options = spec.finetune;
  const std::string chat = given.text("chat_template", chat_template_name(options.chat));
  const std::optional<ChatTemplate> known = chat_template(chat);
  if (!known) given.refuse("chat_template", str_cat("is unknown: \"", printable(chat), "\""));
  options.chat = *known;
  options.append_end = given.flag("append_end", options.append_end);
  options.add_begin = given.flag("add_begin", options.add_begin);
  options.parse_special_tokens = given.flag("parse_special_tokens", options.parse_special_tokens);
  options.learn_prompts = given.flag("learn_prompts", options.learn_prompts);
  const std::string too_long = given.text("too_long", "cut");
  if (too_long != "cut" && too_long != "skip") {
    given.refuse("too_long",
                 str_cat("must be \"cut\" or \"skip\", not \"", printable(too_long), "\""));
  }
  spec.too_long = too_long == "cut" ? TooLong::kCut : TooLong::kSkip;
  spec.pack = given.flag("pack", spec.pack);
  spec.pad_id = token_of(given, "pad_id");
}

void read_mlm(const JsonArguments& given, DatasetSpec& spec) {
  spec.mask_probability = given.number("mask_probability", spec.mask_probability, 0, 1);
  spec.short_probability = given.number("short_probability", spec.short_probability, 0, 1);
  spec.pairs = given.flag("pairs", spec.pairs);
}

DatasetSpec parse_spec(const Json& document, const std::string& path, bool member) {
  DatasetSpec spec;
  spec.kind = kind_of(document, path);
  const JsonArguments given(document, kWhat, path, keys_of(spec.kind, member));
  if (spec.kind != DatasetKind::kBlend) spec.path = given.required_text("path");
  if (!member) {
    spec.sequence_length = given.required_integer("sequence_length", 1, INT32_MAX - 1);
    if (const int64_t samples = given.integer("samples", 0, 0, INT64_MAX); samples > 0) {
      spec.samples = samples;
    }
    spec.split = given.text("split", spec.split.c_str());
    spec.part = part_of(given);
    spec.split_rounding = rounding_of(given);
    spec.seed = static_cast<uint32_t>(given.integer("seed", spec.seed, 0, UINT32_MAX));
  }
  if (spec.kind == DatasetKind::kGpt) read_gpt(given, spec);
  if (spec.kind == DatasetKind::kPacked) read_packed(given, spec);
  if (spec.kind == DatasetKind::kMlm) read_mlm(given, spec);
  if (spec.kind == DatasetKind::kBlend) {
    spec.weights = given.numbers("weights");
    const Json& members = given.list("members", "objects");
    for (size_t i = 0; i < members.size(); ++i) {
      spec.members.push_back(parse_spec(members[i], str_cat(path, "/members/", i), true));
    }
  }
  return spec;
}

}  // namespace

DatasetSpec parse_dataset_spec(const char* spec_json) {
  return parse_spec(parse_json(spec_json, kWhat, Code::kConfig), "", false);
}

}  // namespace ds::capi
