// Weights of experts in a file: a token reads those that it chose, and the ones used last are in
// memory, layer by layer, with the bits of weights that are all in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <list>
#include <random>

#include "fresh_seed.h"
#include "infer/decoder.h"
#include "infer/kv_cache.h"
#include "models/inputs.h"
#include "models/model.h"

namespace ds::infer::expert_cache {
namespace {

using models::InferenceOptions;
using models::Model;
using models::WeightForm;

constexpr int32_t kVocab = 64;
constexpr int64_t kLayers = 3, kExperts = 8, kChosen = 2;
// Matrices of an expert are whole pages of 4096 bytes in every form but for scales.
constexpr int64_t kWidth = 64, kInner = 64, kMatrix = kWidth * kInner;

// The folder of a test's files, which must have no names.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / str_cat("ds-experts-", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    EXPECT_TRUE(std::filesystem::is_empty(path_)) << "files have names";
    std::filesystem::remove_all(path_);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

Json config_of(int64_t shared_inner = 0) {
  Json config = {{"model_type", "mixtral"},        {"vocab_size", kVocab},
                 {"hidden_size", kWidth},          {"intermediate_size", kInner},
                 {"num_hidden_layers", kLayers},   {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},       {"num_local_experts", kExperts},
                 {"num_experts_per_tok", kChosen}, {"max_position_embeddings", 64},
                 {"initializer_range", 0.3},       {"tie_word_embeddings", false}};
  if (shared_inner > 0) {
    config["model_type"] = "qwen2_moe";
    config["num_experts"] = kExperts;
    config["moe_intermediate_size"] = kInner;
    config["shared_expert_intermediate_size"] = shared_inner;
  }
  return config;
}

// Of matrices of linear layers that every token reads: attention, and the one that makes logits.
constexpr int64_t kDense = kLayers * 4 * kWidth * kWidth + kVocab * kWidth;

std::vector<int32_t> random_ids(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
  return ids;
}

// One text, pass by pass.
class Text {
 public:
  explicit Text(Model& model)
      : model_(model),
        cache_(model.device(), model.architecture().info(), 1, 64, model.reader().compute_type()) {}

  // The logits that follow the tokens. Who was chosen, by layer, goes to `record`, or is lost.
  std::vector<float> feed(const std::vector<int32_t>& tokens, nn::RouterRecord* record = nullptr) {
    const OpContext ctx = model_.context();
    const auto n = static_cast<int64_t>(tokens.size());
    models::Batch batch;
    batch.ids = Tensor::empty(model_.device(), DType::kInt32, {1, n}, MemoryTag::kOther);
    std::copy(tokens.begin(), tokens.end(), batch.ids.data<int32_t>());
    batch.position_ids = models::position_ids(ctx, 1, n, cache_.length(0));
    nn::Tape tape(ctx, model_.reader(), nullptr, inference_options());
    models::ForwardOptions forward;
    forward.state = &cache_;
    forward.routers = record;
    const Tensor logits = to_fp32(ctx, model_.architecture().logits(tape, batch, forward).data);
    return {logits.data<float>(), logits.data<float>() + logits.elements()};
  }

 private:
  Model& model_;
  KvCache cache_;
};

std::shared_ptr<Model> prepared(const Json& config, uint64_t seed, InferenceOptions how) {
  return Model::create(config, seed)->prepared_copy(how);
}

models::WeightReads difference(const models::WeightReads& a, const models::WeightReads& b) {
  return {a.bytes - b.bytes, a.expert_uses - b.expert_uses, a.expert_hits - b.expert_hits};
}

// What a cache of so many experts in each layer would find, by the experts that were chosen.
class Simulated {
 public:
  explicit Simulated(size_t room) : room_(room) {}

  // Uses and hits of one pass, in experts.
  std::pair<int64_t, int64_t> pass(const nn::RouterRecord& record) {
    int64_t uses = 0, hits = 0;
    recent_.resize(record.layers().size());
    for (size_t layer = 0; layer < record.layers().size(); ++layer) {
      const std::vector<int64_t>& kept = record.layers()[layer].kept;
      std::list<size_t>& recent = recent_[layer];
      for (size_t expert = 0; expert < kept.size(); ++expert) {
        if (kept[expert] == 0) continue;
        ++uses;
        const auto there = std::find(recent.begin(), recent.end(), expert);
        if (there != recent.end()) {
          ++hits;
          recent.erase(there);
        }
        recent.push_front(expert);
        if (recent.size() > room_) recent.pop_back();
      }
    }
    return {uses, hits};
  }

 private:
  size_t room_;
  std::vector<std::list<size_t>> recent_;
};

class ExpertsInAFile : public ::testing::TestWithParam<WeightForm> {
 protected:
  InferenceOptions form() const {
    InferenceOptions how;
    how.weights = GetParam();
    how.group_size = 32;
    how.threads = 2;
    return how;
  }
  // Of an expert's matrix in the file, whose entries are whole pages.
  int64_t matrix_bytes() const {
    const auto pages = [](int64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
    const int64_t scales = 2 * kMatrix / 32;
    switch (GetParam()) {
      case WeightForm::kFloat32:
        return pages(4 * kMatrix);
      case WeightForm::kBFloat16:
        return pages(2 * kMatrix);
      case WeightForm::kInt8:
        return pages(kMatrix + scales);
      case WeightForm::kInt4:
        return pages(kMatrix / 2 + scales);
    }
    return 0;
  }
};

// Counted against a simulation of the cache, from the routers' own record.
TEST_P(ExpertsInAFile, TokensReadTheExpertsThatTheyChose) {
  const Folder folder;
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  const auto memory = prepared(config_of(), seed, form());
  for (const int64_t room : {0, 1, 3, 7}) {  // experts of each layer
    for (const int64_t ahead : {int64_t{0}, int64_t{5} * kMatrix}) {
      SCOPED_TRACE(str_cat(room, " experts of a layer in memory, ", ahead, " elements ahead"));
      InferenceOptions how = form();
      how.file =
          models::WeightFileOptions{folder.path(), kDense + kLayers * room * 3 * kMatrix, ahead};
      const auto model = prepared(config_of(), seed, how);
      Simulated cache(static_cast<size_t>(room));
      Text expected(*memory), text(*model);
      EXPECT_EQ(model->inference_report().reads.bytes, 0);
      int64_t all_hits = 0;
      for (size_t step = 0; step < 14; ++step) {
        const std::vector<int32_t> tokens = random_ids(seed + step, step % 8 == 0 ? 5 : 1);
        const models::WeightReads before = model->inference_report().reads;
        nn::RouterRecord record;
        const std::vector<float> logits = text.feed(tokens);
        EXPECT_EQ(logits, expected.feed(tokens, &record)) << "step " << step;
        const auto [uses, hits] = cache.pass(record);
        if (tokens.size() == 1) {
          EXPECT_EQ(uses, kLayers * kChosen);
        }
        const models::WeightReads now = difference(model->inference_report().reads, before);
        EXPECT_EQ(now.expert_uses, 3 * uses) << "step " << step;
        EXPECT_EQ(now.expert_hits, 3 * hits) << "step " << step;
        EXPECT_EQ(now.bytes, 3 * (uses - hits) * matrix_bytes()) << "step " << step;
        all_hits += hits;
      }
      // Where one expert stays, a text may never choose it again.
      EXPECT_TRUE(room > 0 || all_hits == 0);
      EXPECT_TRUE(room < 7 || all_hits > 0);
    }
  }
}

// What a token reads besides is the rest of the file, once.
TEST_P(ExpertsInAFile, WithoutMemoryTheRestOfTheFileIsReadOnceAToken) {
  const Folder folder;
  InferenceOptions how = form();
  how.file = models::WeightFileOptions{folder.path(), 0, 1 << 20};
  const auto model = prepared(config_of(), 7, how);
  Text text(*model);
  for (int32_t token = 0; token < 3; ++token) text.feed({token});
  const models::WeightReads before = model->inference_report().reads;
  constexpr int64_t kTokens = 10;
  for (int32_t token = 3; token < 3 + kTokens; ++token) text.feed({token});
  const models::WeightReads now = difference(model->inference_report().reads, before);
  EXPECT_EQ(now.expert_uses, kTokens * kLayers * kChosen * 3);
  EXPECT_EQ(now.expert_hits, 0);
  const int64_t dense = kDense / kMatrix * matrix_bytes();
  // What is read ahead for the next token may be counted in this one.
  EXPECT_NEAR(static_cast<double>(now.bytes),
              static_cast<double>(kTokens * dense + now.expert_uses * matrix_bytes()),
              static_cast<double>(dense));
}

TEST_P(ExpertsInAFile, AllThatFitsStaysInMemory) {
  const Folder folder;
  InferenceOptions how = form();
  const int64_t all = kDense + kLayers * kExperts * 3 * kMatrix;
  for (const auto& [room, reads] : {std::pair{all, false}, {all - 1, true}}) {
    how.file = models::WeightFileOptions{folder.path(), room, 0};
    const auto model = prepared(config_of(), 7, how);
    Text(*model).feed({1, 2, 3});
    EXPECT_EQ(model->inference_report().reads.bytes > 0, reads);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ExpertsInAFile,
                         ::testing::Values(WeightForm::kFloat32, WeightForm::kBFloat16,
                                           WeightForm::kInt8, WeightForm::kInt4),
                         [](const auto& test) {
                           return std::string(models::weight_form_name(test.param));
                         });

// Too little for one expert of every layer: the first layers have one.
TEST(ExpertsInAFileOf, WithLessThanAnExpertOfEachLayerTheFirstOnesHaveOne) {
  const Folder folder;
  Json config = config_of();
  config["num_experts_per_tok"] = 1;
  for (const auto& [room, layers] :
       {std::pair<int64_t, int64_t>{3 * kMatrix - 1, 0}, {5 * kMatrix, 1}, {6 * kMatrix, 2}}) {
    InferenceOptions how;
    how.file = models::WeightFileOptions{folder.path(), kDense + room, 0};
    const auto model = prepared(config, 3, how);
    Text(*model).feed({5});
    const models::WeightReads before = model->inference_report().reads;
    EXPECT_EQ(before.expert_hits, 0);
    Text(*model).feed({5});  // the same experts again
    const models::WeightReads now = difference(model->inference_report().reads, before);
    EXPECT_EQ(now.expert_uses, kLayers * 3);
    EXPECT_EQ(now.expert_hits, layers * 3);
  }
}

// A shared expert is what every token reads: no part of the cache.
TEST(ExpertsInAFileOf, ASharedExpertIsReadLikeAnyLayer) {
  const Folder folder;
  InferenceOptions how;
  const auto memory = prepared(config_of(96), 3, how);
  how.file = models::WeightFileOptions{folder.path(), 0, 1 << 20};
  const auto model = prepared(config_of(96), 3, how);
  Text expected(*memory), text(*model);
  for (int32_t token = 0; token < 12; ++token) {
    EXPECT_EQ(text.feed({token}), expected.feed({token}));
  }
  EXPECT_EQ(model->inference_report().reads.expert_uses, 12 * kLayers * kChosen * 3);
}

// Memory is for the cache, what is in use and what is read ahead.
TEST(ExpertsInAFileOf, TheCacheHasTheSizeThatWasAskedFor) {
  const Folder folder;
  InferenceOptions how;
  how.weights = WeightForm::kFloat32;
  const int64_t cached = kLayers * 2 * 3 * kMatrix;
  how.file = models::WeightFileOptions{folder.path(), kDense + cached, 0};
  const auto model = prepared(config_of(), 3, how);
  MemoryAccount& account = model->device()->account();
  const int64_t before = account.now(MemoryTag::kIo);
  Text text(*model);
  for (int32_t token = 0; token < 30; ++token) text.feed({token});
  text.feed(random_ids(1, 30));  // every expert
  const int64_t kept = account.now(MemoryTag::kIo) - before;
  EXPECT_GT(kept, cached * 4 * 9 / 10);
  // Memory of the pages that were read last waits for the next ones.
  EXPECT_LE(kept, cached * 4 + (int64_t{5} << 20));
}

// Files without a name in this folder that this process has open.
std::vector<int> open_files(const std::filesystem::path& folder) {
  std::vector<int> out;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(one.path(), gone).string();
    if (target.starts_with(folder.string())) out.push_back(std::stoi(one.path().filename()));
  }
  return out;
}

// The file ends before an expert that a token chose, of which a part may still be there: the call
// fails, says what and where, and so does the next one.
TEST(ExpertsInAFileOf, AFileThatIsCutShortIsAnError) {
  for (const int64_t ahead : {int64_t{0}, int64_t{5} * kMatrix}) {
    const Folder folder;
    InferenceOptions how;
    how.weights = WeightForm::kFloat32;
    how.file = models::WeightFileOptions{folder.path(), kDense, ahead};
    const auto model = prepared(config_of(), 3, how);
    Text(*model).feed(random_ids(5, 40));  // every expert: all that is written is in the file
    const std::vector<int> files = open_files(folder.path());
    ASSERT_FALSE(files.empty());
    // Experts lie one after another. Half of a matrix is left of the last one of the middle layer.
    const int64_t layer = kExperts * 3 * kMatrix * 4;
    ASSERT_EQ(::ftruncate(files[0], 2 * layer - kMatrix * 2), 0);
    for (int call = 0; call < 2; ++call) {
      try {
        Text(*model).feed(random_ids(5, 40));
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kCorrupt);
        EXPECT_THAT(error.message(), ::testing::HasSubstr("the file is truncated"));
        EXPECT_THAT(error.message(), ::testing::HasSubstr(folder.path().string()));
      }
    }
  }
}

// What a token reads of prepared weights counts the experts that it goes through.
TEST(ExpertsInAFileOf, BytesPerTokenCountChosenExperts) {
  InferenceOptions how;
  how.weights = WeightForm::kFloat32;
  const models::InferenceReport report = prepared(config_of(), 3, how)->inference_report();
  const int64_t experts = kLayers * kExperts * 3 * kMatrix * 4;
  const int64_t table = kVocab * kWidth * 4, routers = kLayers * kExperts * kWidth * 4;
  EXPECT_EQ(report.bytes - report.bytes_per_token,
            table + routers + experts * (kExperts - kChosen) / kExperts);
}

}  // namespace
}  // namespace ds::infer::expert_cache
