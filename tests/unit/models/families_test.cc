// Every family against what Transformers computes in fp32 from the same weights
// (tests/data/families, made by tests/parity/gen_family_vectors.py): logits, hidden states, greedy
// continuation; and the way back out into folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <random>

#include "attached_state.h"
#include "infer/generate.h"
#include "models/weights.h"
#include "test_paths.h"

namespace ds::models {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Case {
  const char* folder;
  const char* variant;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.folder << "/" << c.variant; }

class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "ds-families-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Scratch() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path data(const Case& c) { return test_data() / "families" / c.folder; }

// The recorded folder as Transformers would see it: config.json beside the weights.
std::shared_ptr<Model> open_case(const Case& c, const OpenOptions& options = {}) {
  const Scratch scratch;
  fs::copy_file(data(c) / str_cat("config.", c.variant, ".json"), scratch.path() / "config.json");
  fs::create_symlink(data(c) / "model.safetensors", scratch.path() / "model.safetensors");
  return open_model(scratch.path(), options);
}

Tensor copy(Model& model, const SafetensorsEntry& entry) {
  Tensor out = Tensor::empty(model.device(), *entry.dtype, Shape(entry.shape), MemoryTag::kOther);
  entry.read(0, {static_cast<std::byte*>(out.raw()), static_cast<size_t>(entry.size)});
  return out;
}

class Families : public ::testing::TestWithParam<Case> {
 protected:
  Families()
      : expected_(data(GetParam()) / str_cat("expected.", GetParam().variant, ".safetensors")) {}

  Tensor expected(Model& model, const char* name) const {
    const SafetensorsEntry* entry = expected_.find(name);
    return entry == nullptr ? Tensor() : copy(model, *entry);
  }
  Batch batch(Model& model) const {
    Batch out;
    out.ids = expected(model, "ids");
    out.token_types = expected(model, "types");
    const Tensor mask = expected(model, "mask");
    out.key_mask = Tensor::empty(model.device(), DType::kUInt8, mask.shape(), MemoryTag::kOther);
    for (int64_t i = 0; i < mask.elements(); ++i) {
      out.key_mask.data<uint8_t>()[i] = mask.data<int32_t>()[i] != 0;
    }
    return out;
  }
  Tensor outputs(Model& model) const {
    const Architecture& a = model.architecture();
    return a.info().head == Head::kNone
               ? infer::batch_hidden(model.context(), model.reader(), a, batch(model))
               : infer::batch_logits(model.context(), model.reader(), a, batch(model));
  }
  // The largest difference over positions that are not padding.
  double distance(Model& model, const Tensor& actual) const {
    const Tensor want = expected(model, "logits");
    EXPECT_EQ(actual.shape(), want.shape());
    const Tensor mask = batch(model).key_mask;
    const int64_t row = want.size(-1), rows = want.elements() / row;
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      if (rows == mask.elements() && mask.data<uint8_t>()[r] == 0) continue;
      for (int64_t i = r * row; i < (r + 1) * row; ++i) {
        const double gap = std::abs(double{actual.data<float>()[i]} - want.data<float>()[i]);
        worst = std::isnan(gap) ? INFINITY : std::max(worst, gap);
      }
    }
    return worst;
  }

  SafetensorsFile expected_;
};

TEST_P(Families, OutputsMatchTransformers) {
  const auto model = open_case(GetParam());
  const double worst = distance(*model, outputs(*model));
  RecordProperty("largest difference", std::to_string(worst));
  EXPECT_LT(worst, 1e-4);
}

TEST_P(Families, GreedyContinuationMatchesTransformers) {
  const auto model = open_case(GetParam());
  const Tensor want = expected(*model, "generated");
  const Tensor ids = expected(*model, "ids");
  infer::GenerateOptions options;
  options.max_tokens = 12;
  const std::span<const int32_t> prompt(ids.data<int32_t>(), 6);
  const auto generate = [&] {
    return infer::generate(model->context(), model->reader(), model->architecture(), prompt,
                           options, nullptr);
  };
  if (!want) {
    EXPECT_THROW(generate(), Error);
    return;
  }
  EXPECT_EQ(generate(),
            std::vector<int32_t>(want.data<int32_t>(), want.data<int32_t>() + want.elements()));
}

TEST_P(Families, ExportIsWholeShardedAndHoldsTiedWeightsOnce) {
  const auto model = open_case(GetParam());
  for (const int64_t limit : {int64_t{0}, int64_t{30000}}) {
    const Scratch scratch;
    export_model(*model, scratch.path(), DType::kFloat32, limit);
    EXPECT_EQ(fs::exists(scratch.path() / "model.safetensors.index.json"), limit > 0);
    const auto back = open_model(scratch.path());
    const Tensor &a = train_state(*model).masters().all(), &b = train_state(*back).masters().all();
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0);
    const SafetensorsModel files(scratch.path());
    int64_t bytes = 0;
    for (const SafetensorsEntry* e : files.entries()) bytes += static_cast<int64_t>(e->size);
    EXPECT_EQ(bytes, 4 * model->parameters().elements());
    EXPECT_LT(distance(*back, outputs(*back)), 1e-4);
  }
}

TEST_P(Families, PackedSegmentsGiveWhatSingleTextsGive) {
  const auto model = open_case(GetParam());
  const ArchitectureInfo& info = model->architecture().info();
  if (info.head == Head::kClassification) return;  // one answer for the whole row
  Batch whole;
  whole.ids = expected(*model, "ids").slice(0, 0, 1);
  const int64_t length = whole.ids.size(1), cut = 9;
  whole.segments =
      Tensor::empty(model->device(), DType::kInt32, whole.ids.shape(), MemoryTag::kOther);
  whole.position_ids =
      Tensor::empty(model->device(), DType::kInt32, whole.ids.shape(), MemoryTag::kOther);
  for (int64_t i = 0; i < length; ++i) {
    whole.segments.data<int32_t>()[i] = i >= cut;
    whole.position_ids.data<int32_t>()[i] = static_cast<int32_t>(i < cut ? i : i - cut);
  }
  const auto run = [&](const Batch& batch) {
    return info.head == Head::kNone ? infer::batch_hidden(model->context(), model->reader(),
                                                          model->architecture(), batch)
                                    : infer::batch_logits(model->context(), model->reader(),
                                                          model->architecture(), batch);
  };
  const Tensor packed = run(whole);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, length}}) {
    Batch part;
    part.ids = Tensor::empty(model->device(), DType::kInt32, {1, end - begin}, MemoryTag::kOther);
    std::memcpy(part.ids.raw(), whole.ids.data<int32_t>() + begin,
                static_cast<size_t>(part.ids.bytes()));
    const Tensor alone = run(part);
    const float* const from = packed.data<float>() + begin * packed.size(-1);
    for (int64_t i = 0; i < alone.elements(); ++i) {
      ASSERT_NEAR(from[i], alone.data<float>()[i], 2e-5) << "segment from " << begin;
    }
  }
}

TEST_P(Families, BalancingLossIsTransformers) {
  const auto model = open_case(GetParam());
  const Tensor want = expected(*model, "balance");
  nn::RouterRecord routers;
  ForwardOptions options;
  options.routers = &routers;
  nn::TapeOptions tape_options;
  tape_options.record = tape_options.training = false;
  nn::Tape tape(model->context(), model->reader(), nullptr, tape_options);
  Batch inputs = batch(*model);
  inputs.position_ids =
      Tensor::empty(model->device(), DType::kInt32, inputs.ids.shape(), MemoryTag::kOther);
  for (int64_t i = 0; i < inputs.ids.elements(); ++i) {
    inputs.position_ids.data<int32_t>()[i] = static_cast<int32_t>(i % inputs.ids.size(1));
  }
  model->architecture().hidden(tape, inputs, options);
  if (!want) {
    EXPECT_EQ(routers.balance_loss(), 0);
    return;
  }
  const double weight = model->architecture().config()["router_aux_loss_coef"].get<double>();
  EXPECT_NEAR(routers.balance_loss(), weight * double{*want.data<float>()}, 1e-5 * weight);
}

INSTANTIATE_TEST_SUITE_P(
    Recorded, Families,
    ::testing::Values(
        Case{"gpt2", "default"}, Case{"llama", "default"}, Case{"llama", "linear"},
        Case{"llama", "dynamic"}, Case{"llama", "llama3"}, Case{"llama", "yarn"},
        Case{"llama", "yarn_mscale"}, Case{"llama_biased", "default"}, Case{"mistral", "default"},
        Case{"mistral", "full"}, Case{"qwen2", "default"}, Case{"qwen2_tied", "default"},
        Case{"qwen2_tied", "window"}, Case{"mixtral", "default"}, Case{"mixtral", "window"},
        Case{"qwen2_moe", "default"}, Case{"qwen2_moe", "normalised"}, Case{"qwen3", "default"},
        Case{"qwen3", "window"}, Case{"qwen3_moe", "default"}, Case{"olmo2", "default"},
        Case{"olmoe", "default"}, Case{"deepseek_v2", "default"}, Case{"deepseek_v2", "groups"},
        Case{"deepseek_v2_lite", "default"}, Case{"deepseek_v3", "default"},
        Case{"deepseek_v3", "halves"}, Case{"gpt_neox", "parallel"}, Case{"gpt_neox", "serial"},
        Case{"gpt_neox", "linear"}, Case{"bert", "default"}, Case{"bert_mlm", "default"},
        Case{"bert_mlm_untied", "default"}, Case{"qwen2", "mistied"},
        Case{"bert_classifier", "default"}),
    [](const auto& test) { return str_cat(test.param.folder, "_", test.param.variant); });

std::string refusal(const Case& c, const Json& changes) {
  try {
    OpenOptions options;
    options.config_changes = changes;
    open_case(c, options);
  } catch (const Error& error) {
    EXPECT_THAT(error.code(), ::testing::AnyOf(Code::kUnsupported, Code::kConfig, Code::kNotFound));
    return error.message();
  }
  return "accepted";
}

TEST(FamilyConfig, RefusesByName) {
  const Case llama{"llama", "default"};
  EXPECT_THAT(refusal(llama, {{"num_hidden_layer", 2}}),
              HasSubstr("did you mean num_hidden_layers?"));
  EXPECT_THAT(refusal(llama, {{"architectures", {"LlamaForTokenClassification"}}}),
              HasSubstr("LlamaForTokenClassification"));
  EXPECT_THAT(refusal(llama, {{"rope_scaling", {{"type", "longrope"}, {"factor", 2}}}}),
              HasSubstr("longrope"));
  EXPECT_THAT(refusal(llama, {{"rope_scaling", {{"type", "linear"}}}}),
              HasSubstr("rope_scaling: factor is missing"));
  EXPECT_THAT(refusal(llama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta", 1}}}}),
              HasSubstr("rope_scaling: unknown option beta"));
  EXPECT_THAT(refusal(llama, {{"rope_parameters", {{"full_attention", {{"rope_theta", 5}}}}}}),
              HasSubstr("full_attention"));
  EXPECT_THAT(refusal(llama, {{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal(llama, {{"num_key_value_heads", 3}}), HasSubstr("does not divide"));
  EXPECT_THAT(refusal(llama, {{"head_dim", 300}}), HasSubstr("300"));
  EXPECT_THAT(refusal(llama, {{"hidden_act", "mish"}}), HasSubstr("mish"));
  EXPECT_THAT(refusal(llama, {{"pruned_heads", {{"0", {1}}}}}), HasSubstr("pruned_heads"));
  EXPECT_THAT(refusal({"qwen2", "default"}, {{"layer_types", {"full_attention"}}}),
              HasSubstr("layer_types has 1 entries"));
  EXPECT_THAT(refusal({"gpt_neox", "serial"}, {{"rotary_pct", 0.1}}),
              HasSubstr("1 of 16 channels"));
  // Of Megatron's GPT; Transformers would open the saved folder without them.
  for (const char* key : {"apply_residual_connection_post_layernorm", "fp32_residual_connection",
                          "label_smoothing", "alibi"}) {
    EXPECT_THAT(refusal({"gpt_neox", "serial"}, {{key, true}}), HasSubstr(key));
  }
  const Case v2{"deepseek_v2", "groups"}, v3{"deepseek_v3", "default"};
  EXPECT_THAT(refusal(v2, {{"topk_method", "noaux_tc"}}), HasSubstr("greedy and group_limited"));
  EXPECT_THAT(refusal(v3, {{"topk_method", "greedy"}}), HasSubstr("noaux_tc is"));
  EXPECT_THAT(refusal(v3, {{"scoring_func", "softmax"}}), HasSubstr("sigmoid is"));
  EXPECT_THAT(refusal(v3, {{"n_group", 5}}), HasSubstr("12 experts cannot be in 5 groups"));
  EXPECT_THAT(refusal(v3, {{"topk_group", 5}}), HasSubstr("5 of 4 groups"));
  EXPECT_THAT(refusal(v3, {{"num_experts_per_tok", 7}}), HasSubstr("7 of 6 experts"));
  EXPECT_THAT(refusal(v2, {{"num_experts_per_tok", nullptr}}),
              HasSubstr("num_experts_per_tok is missing"));
  EXPECT_THAT(refusal(v3, {{"num_key_value_heads", 2}}), HasSubstr("num_key_value_heads 2"));
  EXPECT_THAT(refusal(v3, {{"qk_nope_head_dim", 300}}), HasSubstr("306 channels"));
  EXPECT_THAT(refusal(v3, {{"kv_lora_rank", 4096}}), HasSubstr("kv_lora_rank 4096"));
  EXPECT_THAT(refusal(v3, {{"qk_rope_head_dim", 5}}), HasSubstr("5 of 5 channels"));
  EXPECT_THAT(refusal(v3, {{"moe_router_bias_update_rate", -1}}), HasSubstr("bias_update_rate"));
  const Case bert{"bert", "default"};
  EXPECT_THAT(refusal(bert, {{"position_embedding_type", "relative_key"}}),
              HasSubstr("relative_key"));
  EXPECT_THAT(refusal(bert, {{"is_decoder", true}}), HasSubstr("is_decoder"));
  EXPECT_THAT(refusal(bert, {{"architectures", {"BertForSequenceClassification"}}}),
              HasSubstr("classifier.weight"));
}

// Writes a case's weights again, each tensor under the names that `names` gives it.
fs::path respelled(const Scratch& scratch, const Case& c,
                   const std::function<std::vector<std::string>(const std::string&)>& names) {
  fs::copy_file(data(c) / str_cat("config.", c.variant, ".json"), scratch.path() / "config.json");
  const SafetensorsFile file(data(c) / "model.safetensors");
  std::vector<SafetensorsTensor> tensors;
  std::list<std::vector<std::byte>> contents;
  for (const SafetensorsEntry& e : file.entries()) {
    contents.push_back(e.bytes());
    for (const std::string& name : names(e.name)) {
      tensors.push_back({name, *e.dtype, e.shape, contents.back()});
    }
  }
  write_safetensors(scratch.path() / "model.safetensors", tensors);
  return scratch.path();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

TEST(FamilyNames, FilesMaySpellThemInEveryKnownWay) {
  const auto same = [](const Case& c, const auto& names) {
    const Scratch scratch;
    const auto plain = open_case(c), other = open_model(respelled(scratch, c, names));
    const Tensor &a = train_state(*plain).masters().all(), &b = train_state(*other).masters().all();
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << c.folder;
  };
  using Names = std::vector<std::string>;
  same({"llama", "default"}, [](const std::string& n) {
    Names out{n.starts_with("model.") ? n.substr(6) : n};
    if (n == "model.norm.weight") out.push_back("model.layers.0.self_attn.rotary_emb.inv_freq");
    return out;
  });
  // The head of a tied model alone, or both names.
  same({"qwen2_tied", "default"}, [](const std::string& n) {
    return n == "model.embed_tokens.weight" ? Names{"lm_head.weight"} : Names{n};
  });
  same({"qwen2_tied", "default"}, [](const std::string& n) {
    return n == "model.embed_tokens.weight" ? Names{n, "lm_head.weight"} : Names{n};
  });
  same({"gpt_neox", "serial"}, [](const std::string& n) {
    return Names{n == "lm_head.weight"     ? "embed_out.weight"
                 : n == "embed_out.weight" ? "lm_head.weight"
                                           : n};
  });
  // Old conversions, with the parts of pretraining that a masked LM leaves out.
  same({"bert_mlm", "default"}, [](const std::string& n) {
    Names out{replaced(replaced(n, "LayerNorm.weight", "LayerNorm.gamma"), "LayerNorm.bias",
                       "LayerNorm.beta")};
    if (n == "cls.predictions.bias") {
      out.insert(out.end(), {"bert.pooler.dense.bias", "cls.seq_relationship.bias",
                             "cls.predictions.decoder.bias", "bert.embeddings.position_ids"});
    }
    return out;
  });
  same({"bert", "default"}, [](const std::string& n) { return Names{"bert." + n}; });
  // The layer behind the last one, which predicts a further token.
  same({"deepseek_v3", "default"}, [](const std::string& n) {
    Names out{n};
    if (n == "model.norm.weight") {
      out.insert(out.end(), {"model.layers.3.eh_proj.weight", "layers.3.enorm.weight",
                             "model.layers.61.shared_head.norm.weight"});
    }
    return out;
  });
}

// A file by hand: the library writes no codes.
struct RawTensor {
  std::string name, type;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
void write_raw(const fs::path& path, const std::vector<RawTensor>& tensors) {
  Json header = Json::object();
  size_t at = 0;
  for (const RawTensor& t : tensors) {
    header[t.name] = {
        {"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = dump_json(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text;
  for (const RawTensor& t : tensors) {
    out.write(reinterpret_cast<const char*>(t.bytes.data()),
              static_cast<std::streamsize>(t.bytes.size()));
  }
}

double e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  const double size =
      exponent == 0 ? mantissa * std::exp2(-9) : (1 + mantissa / 8.0) * std::exp2(exponent - 7);
  return (code & 128) != 0 ? -size : size;
}

// DeepSeek-V3's weights as it is published: matrices of linear layers in codes, with scales of
// blocks that the sizes of matrices are no multiples of.
TEST(FamilyCodes, BlocksWithScalesAreReadAsNumbers) {
  const Case c{"deepseek_v3", "default"};
  const Scratch scratch;
  constexpr int64_t kRows = 5, kColumns = 7;
  Json config =
      parse_json(read_text_file(data(c) / "config.default.json", 1 << 20), "config", Code::kConfig);
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"weight_block_size", {kRows, kColumns}}};
  std::vector<RawTensor> tensors;
  std::map<std::string, std::vector<float>> expected;
  std::mt19937 random(17);
  const SafetensorsFile file(data(c) / "model.safetensors");
  for (const SafetensorsEntry& e : file.entries()) {
    const bool in_codes = e.name.ends_with("_proj.weight") || e.name.ends_with("_mqa.weight");
    if (!in_codes) {
      tensors.push_back({e.name, e.dtype_name, e.shape, e.bytes()});
      continue;
    }
    const int64_t rows = e.shape[0], columns = e.shape[1];
    const int64_t down = (rows + kRows - 1) / kRows, across = (columns + kColumns - 1) / kColumns;
    std::vector<std::byte> codes(static_cast<size_t>(rows * columns));
    std::vector<float> scales(static_cast<size_t>(down * across));
    for (float& scale : scales) scale = 1e-3f * static_cast<float>(1 + random() % 7);
    std::vector<float>& values = expected[e.name.substr(6)];
    for (int64_t i = 0; i < rows * columns; ++i) {
      const unsigned code = random() % 0x7F | (random() % 2 != 0 ? 0x80 : 0);  // no NaN
      codes[static_cast<size_t>(i)] = static_cast<std::byte>(code);
      const int64_t block = i / columns / kRows * across + i % columns / kColumns;
      values.push_back(static_cast<float>(e4m3(code)) * scales[static_cast<size_t>(block)]);
    }
    const auto bytes = std::as_bytes(std::span(scales));
    tensors.push_back({e.name, "F8_E4M3", e.shape, codes});
    tensors.push_back({e.name + "_scale_inv", "F32", {down, across}, {bytes.begin(), bytes.end()}});
  }
  const auto open_with = [&](const Json& document, const std::vector<RawTensor>& files) {
    std::ofstream(scratch.path() / "config.json") << dump_json(document);
    write_raw(scratch.path() / "model.safetensors", files);
    return open_model(scratch.path());
  };
  const auto model = open_with(config, tensors);
  EXPECT_GT(expected.size(), 70u);
  for (const auto& [name, values] : expected) {
    const Tensor read = model->get(name);
    ASSERT_EQ(read.elements(), std::ssize(values)) << name;
    EXPECT_EQ(std::memcmp(read.raw(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
  EXPECT_FALSE(model->architecture().config().contains("quantization_config"));
  const auto refused = [&](const Json& document, const std::vector<RawTensor>& files) {
    try {
      open_with(document, files);
    } catch (const Error& error) {
      return std::string(error.message());
    }
    return std::string("accepted");
  };
  Json other = config;
  other["quantization_config"]["quant_method"] = "awq";
  EXPECT_THAT(refused(other, tensors), HasSubstr("awq"));
  other = config;
  other["quantization_config"]["weight_block_size"] = {0, 128};
  EXPECT_THAT(refused(other, tensors), HasSubstr("weight_block_size"));
  other["quantization_config"]["weight_block_size"] = {64, 64};
  EXPECT_THAT(refused(other, tensors), HasSubstr("a scale for each block of 64 x 64"));
  other = config;
  other.erase("quantization_config");
  EXPECT_THAT(refused(other, tensors), HasSubstr("F8_E4M3"));
  std::vector<RawTensor> missing = tensors;
  std::erase_if(missing, [](const RawTensor& t) {
    return t.name.ends_with("layers.1.self_attn.o_proj.weight_scale_inv");
  });
  EXPECT_THAT(refused(config, missing), HasSubstr("o_proj.weight has type F8_E4M3"));
}

TEST(FamilyConfig, AHeadMayStartFreshOnAPretrainedBody) {
  OpenOptions options;
  options.config_changes = {{"architectures", {"BertForSequenceClassification"}},
                            {"num_labels", 5}};
  options.head_seed = 3;
  const auto model = open_case({"bert", "default"}, options);
  EXPECT_EQ(model->architecture().info().classes, 5);
  EXPECT_NE(model->get("classifier.weight").data<float>()[0], 0);
  options.config_changes = {{"architectures", {"BertForNextSentencePrediction"}}};
  EXPECT_EQ(open_case({"bert", "default"}, options)->architecture().info().classes, 2);
  const auto body = open_case({"bert", "default"});
  EXPECT_EQ(model->get("pooler.dense.weight").data<float>()[7],
            body->get("pooler.dense.weight").data<float>()[7]);
}

}  // namespace
}  // namespace ds::models
