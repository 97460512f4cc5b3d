// Models out to Hugging Face folders and back: every spelling that files use, and what is refused.
#include "models/weights.h"
#include "models/saved_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>

#include "attached_state.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "models/saved_model.h"
#include "models/weight_loaders.h"
#include "unit/base/heard_log.h"

namespace ds::models {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ds-weights-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Json config() {
    return {{"model_type", "gpt2"}, {"vocab_size", 11}, {"n_positions", 6},
            {"n_embd", 8},          {"n_layer", 2},     {"n_head", 2}};
  }
  static float value(Model& model, const char* name, int64_t i) {
    return model.get(name).data<float>()[i];
  }
  // Writes the folder again with its tensors changed by `change`.
  template <class Fn>
  void rewrite(const Fn& change) {
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::vector<std::byte>> bytes;
    {
      const SafetensorsModel file(folder_);
      for (const SafetensorsEntry* e : file.entries()) {
        bytes.push_back(e->bytes());
        tensors.push_back({e->name, *e->dtype, e->shape, {}});
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = bytes[i];
    change(tensors, bytes);
    write_safetensors(folder_ / "model.safetensors", tensors);
  }
  std::string refused(Code code) {
    try {
      open_model(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.message();
      return error.message();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }

  fs::path folder_;
};

TEST_F(Weights, Float32RoundTripKeepsEveryBit) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kFloat32);
  const auto back = open_model(folder_);
  const Tensor &a = train_state(*model).masters().all(), &b = train_state(*back).masters().all();
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0);
}

TEST_F(Weights, ProjectionsAreStoredInputByOutputAndTiedWeightsOnce) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kFloat32);
  const SafetensorsModel file(folder_);
  const SafetensorsEntry& qkv = file.require("transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{8, 24}));
  float element;
  // Input 3, output 17.
  qkv.read((3 * 24 + 17) * 4, std::as_writable_bytes(std::span(&element, 1)));
  EXPECT_EQ(element, value(*model, "h.1.attn.c_attn.weight", 17 * 8 + 3));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
}

TEST_F(Weights, Bfloat16ExportRoundsToNearest) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kBFloat16);
  const auto back = open_model(folder_);
  for (int64_t i = 0; i < 88; ++i) {
    EXPECT_EQ(value(*back, "wte.weight", i), to_float(to_bfloat16(value(*model, "wte.weight", i))));
  }
}

TEST_F(Weights, HalfPrecisionFilesAreRead) {
  export_model(*Model::create(config(), 4), folder_, DType::kFloat32);
  // 1, -2, the smallest subnormal, the largest finite value, infinity, a half-way pattern, 0, -0.
  const std::vector<uint16_t> half{0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x3555, 0x0000, 0x8000};
  rewrite([&](auto& tensors, auto&) {
    for (auto& t : tensors) {
      if (t.name != "transformer.ln_f.bias") continue;
      t.dtype = DType::kFloat16;
      t.bytes = std::as_bytes(std::span(half));
    }
  });
  const auto back = open_model(folder_);
  const double expected[] = {1, -2, std::ldexp(1, -24), 65504, INFINITY, 0x1.554p-2, 0, -0.0};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(value(*back, "ln_f.bias", i), expected[i]) << i;
}

TEST_F(Weights, Float16ExportRoundsToNearestAndShardsAddUp) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kFloat16, 700);
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  const Json index =
      parse_json(read_text_file(folder_ / "model.safetensors.index.json"), "index", Code::kCorrupt);
  EXPECT_EQ(index["metadata"]["total_size"], 2 * model->parameters().elements());
  EXPECT_EQ(index["weight_map"].size(), static_cast<size_t>(model->parameters().size()));
  const auto back = open_model(folder_);
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const Tensor a = master_of(*model, id), b = master_of(*back, id);
    for (int64_t i = 0; i < a.elements(); ++i) {
      ASSERT_EQ(b.data<float>()[i], to_float(to_float16(a.data<float>()[i])));
    }
  }
}

TEST_F(Weights, DataMayLieAtAnyByte) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto model = Model::create(config(), 4);
    export_model(*model, folder_, dtype);
    const auto aligned = open_model(folder_);
    const fs::path path = folder_ / "model.safetensors";
    std::string bytes = read_text_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    bytes.insert(8 + length, " ");  // one more byte of header
    ++length;
    std::memcpy(bytes.data(), &length, 8);
    write_file_durably(path, bytes);
    const auto back = open_model(folder_);
    const Tensor &a = train_state(*aligned).masters().all(),
                 &b = train_state(*back).masters().all();
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0);
  }
}

TEST_F(Weights, OpeningAndWritingHoldNoSecondCopy) {
  Json large = config();
  large["vocab_size"] = 60000;
  large["n_embd"] = 64;
  const auto model = Model::create(large, 4);
  const auto beyond_masters = [](Model& m) {
    const MemoryAccount& account = m.device()->account();
    return account.peak(MemoryTag::kWorkspace) + account.peak(MemoryTag::kActivations) +
           account.peak(MemoryTag::kOther);
  };
  static_cast<void>(model->reader());  // what is made is written from where it lies
  model->device()->account().reset_peaks();
  export_model(*model, folder_, DType::kBFloat16);
  const auto back = open_model(folder_);
  static_cast<void>(back->reader());
  const int64_t bytes = 4 * model->parameters().elements();  // 15 MiB
  EXPECT_LT(beyond_masters(*model), bytes / 4);
  EXPECT_LT(beyond_masters(*back), bytes / 4);
  EXPECT_LT(back->device()->account().peak(MemoryTag::kParameters), bytes + bytes / 10);
}

// A folder or a checkpoint becomes another one through parts: its weights are never made.
TEST_F(Weights, WhatIsOnlyConvertedIsNeverMade) {
  Json large = config();
  large["vocab_size"] = 60000;
  large["n_embd"] = 64;
  const fs::path saved = folder_ / "saved", plain = folder_ / "plain", again = folder_ / "again";
  const auto made = Model::create(large, 4);
  export_model(*made, plain, DType::kFloat32, 4'000'000);
  save_model(*made, saved, "weights", "test");
  const int64_t bytes = 4 * made->parameters().elements();  // 15 MiB
  for (const fs::path& from : {plain, saved}) {
    SCOPED_TRACE(from.filename());
    for (const bool checkpoint : {false, true}) {
      fs::remove_all(again);
      const auto model = open_model(from);
      const MemoryAccount& account = model->device()->account();
      model->device()->account().reset_peaks();
      if (checkpoint) {
        save_model(*model, again, "weights", "test");
      } else {
        export_model(*model, again, DType::kFloat32);
      }
      EXPECT_EQ(account.peak(MemoryTag::kParameters), 0);
      EXPECT_LT(account.total_peak(), bytes / 2);  // of the table of tokens alone: 15 MiB
      const auto back = open_model(again);
      EXPECT_EQ(std::memcmp(train_state(*back).masters().all().raw(),
                            train_state(*made).masters().all().raw(), static_cast<size_t>(bytes)),
                0);
    }
  }
}

// Where a checkpoint replaces the one that the weights come from, they are read before that.
TEST_F(Weights, ACheckpointMayReplaceItsSource) {
  save_model(*Model::create(config(), 4), folder_, "weights", "test");
  const auto model = open_model(folder_);
  save_model(*model, folder_, "weights", "test");
  const Tensor value = model->get("wte.weight");
  const auto expected = Model::create(config(), 4);
  EXPECT_EQ(std::memcmp(value.raw(), expected->get("wte.weight").raw(),
                        static_cast<size_t>(value.bytes())),
            0);
}

TEST_F(Weights, OwnParametersAreWrittenByTheirNames) {
  nn::ParameterSet set;
  set.add({"layer.kernel", {3, 5}, nn::Init::kNormal, 1, true, true, {"tied.kernel"}});
  set.add({"scalar", {}, nn::Init::kOnes, 0, false, true, {}});
  const auto model = Model::from_parameters(std::move(set));
  model->set_weight_loader(fresh_weights(3));
  export_model(*model, folder_, DType::kFloat32);
  EXPECT_FALSE(fs::exists(folder_ / "config.json"));
  const SafetensorsModel file(folder_);
  EXPECT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.require("layer.kernel").shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(file.require("scalar").shape, std::vector<int64_t>());
  float element;
  file.require("layer.kernel").read(4 * 7, std::as_writable_bytes(std::span(&element, 1)));
  EXPECT_EQ(element, value(*model, "layer.kernel", 7));
}

TEST_F(Weights, NamesWithoutPrefixAndMaskBuffersAndTiedCopiesAreAccepted) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kFloat32);
  rewrite([&](auto& tensors, auto&) {
    for (auto& t : tensors) t.name = t.name.substr(std::strlen("transformer."));
    tensors.push_back(tensors[0]);
    tensors.back().name = "h.0.attn.bias";
    for (const auto& t : tensors) {
      if (t.name != "wte.weight") continue;
      auto copy = t;
      copy.name = "lm_head.weight";
      tensors.push_back(copy);
      break;
    }
  });
  EXPECT_EQ(value(*open_model(folder_), "wpe.weight", 5), value(*model, "wpe.weight", 5));
}

TEST_F(Weights, AStoredHeadThatDiffersFromTheEmbeddingIsKeptAndSaid) {
  const auto model = Model::create(config(), 4);
  export_model(*model, folder_, DType::kFloat32);
  // Another number in the last place of the stored head.
  rewrite([](auto& tensors, auto& bytes) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name != "transformer.wte.weight") continue;
      auto copy = tensors[i];
      bytes.push_back(bytes[i]);
      const float other = 7;
      std::memcpy(bytes.back().data() + 87 * 4, &other, 4);
      copy.name = "lm_head.weight";
      copy.bytes = bytes.back();
      tensors.push_back(copy);
      break;
    }
  });
  const HeardLog log;
  const auto back = open_model(folder_);
  EXPECT_THAT(log.text(), HasSubstr("lm_head.weight"));
  EXPECT_THAT(log.text(), HasSubstr("tie_word_embeddings false"));
  EXPECT_EQ(value(*back, "lm_head.weight", 87), 7);
  EXPECT_EQ(value(*back, "lm_head.weight", 86), value(*model, "wte.weight", 86));
  EXPECT_EQ(value(*back, "wte.weight", 87), value(*model, "wte.weight", 87));
  EXPECT_EQ(back->architecture().config().at("tie_word_embeddings"), false);
  // Written out again it is an untied model, of which nothing needs to be said.
  fs::remove_all(folder_);
  export_model(*back, folder_, DType::kFloat32);
  const HeardLog second;
  EXPECT_EQ(value(*open_model(folder_), "lm_head.weight", 87), 7);
  EXPECT_EQ(second.text(), "");
}

TEST_F(Weights, PyTorchsOwnFormatAloneIsRefusedWithTheWayOut) {
  export_model(*Model::create(config(), 4), folder_, DType::kFloat32);
  fs::rename(folder_ / "model.safetensors", folder_ / "pytorch_model.bin");
  const std::string message = refused(Code::kUnsupported);
  EXPECT_THAT(message, HasSubstr("pytorch_model.bin"));
  EXPECT_THAT(message, HasSubstr("save_pretrained"));
}

TEST_F(Weights, KeysOfOtherProgramsAreIgnoredWithANote) {
  Json mine = config();
  mine["_num_labels"] = 2;
  mine["is_llama_config"] = true;
  mine["unsloth_version"] = "2026.1";
  mine["custom_pipelines"] = Json::object();
  {
    const HeardLog log(LogLevel::kInfo);
    Model::create(mine, 1);
    for (const char* key :
         {"_num_labels", "is_llama_config", "unsloth_version", "custom_pipelines"}) {
      EXPECT_THAT(log.text(), HasSubstr(str_cat(key, " is ignored")));
    }
  }
  mine["unsloth"] = 1;
  EXPECT_THROW(Model::create(mine, 1), Error);
}

TEST_F(Weights, WhatDoesNotFitIsRefusedByName) {
  const auto model = Model::create(config(), 4);
  const auto fresh = [&] { export_model(*model, folder_, DType::kFloat32); };
  fresh();
  rewrite([](auto& tensors, auto&) {
    for (auto& t : tensors) {
      if (t.name == "transformer.ln_f.bias") t.name = "transformer.ln_g.bias";
    }
  });
  EXPECT_THAT(refused(Code::kNotFound), HasSubstr("transformer.ln_f.bias"));
  fresh();
  rewrite([](auto& tensors, auto&) {
    tensors.push_back(tensors[0]);
    tensors.back().name = "classifier.weight";
  });
  EXPECT_THAT(refused(Code::kUnsupported), HasSubstr("classifier.weight"));
  fresh();
  rewrite([](auto& tensors, auto&) {
    for (auto& t : tensors) {
      if (t.name == "transformer.h.0.attn.c_attn.weight") t.shape = {24, 8};
    }
  });
  EXPECT_THAT(refused(Code::kCorrupt), HasSubstr("[24, 8]"));
  fresh();
  rewrite([](auto& tensors, auto&) {
    for (auto& t : tensors) {
      if (t.name == "transformer.wpe.weight") t.dtype = DType::kInt32;
    }
  });
  EXPECT_THAT(refused(Code::kUnsupported), HasSubstr("I32"));
  fs::remove(folder_ / "model.safetensors");
  refused(Code::kNotFound);
  fs::remove(folder_ / "config.json");
  refused(Code::kNotFound);
  EXPECT_THROW(export_model(*model, folder_, DType::kInt8), Error);
}

}  // namespace
}  // namespace ds::models
