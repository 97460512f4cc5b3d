// Data sets under an engine: which samples training reads in each pass, with and without
// dataloader_drop_last; and data sets that are another model's.
#include <gmock/gmock.h>

#include <set>

#include "base/file.h"
#include "data/dataset_spec.h"
#include "engine_world.h"

namespace ds {
namespace {

using namespace engine_test;
using ::testing::HasSubstr;

// Remembers which samples were read, in order.
class Recorded : public Dataset {
 public:
  explicit Recorded(int64_t count) : count_(count) {}
  int64_t sample_count() const override { return count_; }
  int64_t sequence_length() const override { return 4; }
  void sample(int64_t index, const SampleView& out) const override {
    read.push_back(index);
    std::fill(out.ids.begin(), out.ids.end(), static_cast<int32_t>(index % 61));
    std::fill(out.labels.begin(), out.labels.end(), 1);
  }
  mutable std::vector<int64_t> read;

 private:
  int64_t count_;
};

std::vector<int64_t> read_by(int64_t count, bool drop, int64_t batches) {
  const auto data = std::make_shared<Recorded>(count);
  const auto engine = make_engine(with(base_config(), {{"train_micro_batch_size_per_gpu", 4},
                                                       {"gradient_accumulation_steps", 1},
                                                       {"dataloader_drop_last", drop}}));
  engine->set_dataset(data);
  for (int64_t i = 0; i < batches; ++i) engine->train_batch();
  return data->read;
}

std::set<int64_t> unique(const std::vector<int64_t>& read, int64_t begin, int64_t end) {
  return {read.begin() + begin, read.begin() + end};
}

TEST(Epochs, EveryPassGivesEachSampleOnce) {
  const std::vector<int64_t> read = read_by(11, false, 11);  // four passes
  ASSERT_EQ(read.size(), 44u);
  std::set<std::vector<int64_t>> orders;
  for (int64_t pass = 0; pass < 4; ++pass) {
    EXPECT_EQ(unique(read, pass * 11, (pass + 1) * 11).size(), 11u) << pass;
    orders.insert({read.begin() + pass * 11, read.begin() + (pass + 1) * 11});
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST(Epochs, DropLastEndsEveryPassAtAWholeBatch) {
  const std::vector<int64_t> read = read_by(11, true, 8);  // four passes of two batches
  ASSERT_EQ(read.size(), 32u);
  std::set<std::set<int64_t>> chosen;
  for (int64_t pass = 0; pass < 4; ++pass) {
    EXPECT_EQ(unique(read, pass * 8, (pass + 1) * 8).size(), 8u) << pass;
    chosen.insert(unique(read, pass * 8, (pass + 1) * 8));
  }
  EXPECT_GT(chosen.size(), 1u) << "the same samples are dropped in every pass";
}

TEST(Epochs, DropLastWithoutOneBatchIsRefused) {
  EXPECT_THAT(error_of(Code::kInvalidArgument, [] { read_by(3, true, 1); }),
              HasSubstr("dataloader_drop_last"));
}

TEST(DataSets, TokensThatTheModelDoesNotHaveAreRefusedAtOnce) {
  const Folder folder;
  const auto written = [&](const char* name, const std::string& text) {
    write_file_durably(folder.path(name), text);
    return folder.path(name);
  };
  std::string text;
  for (int i = 0; i < 200; ++i) text += "plain text with a z\n";
  DatasetSpec spec;
  spec.sequence_length = 8;
  spec.split = "1";
  spec.path = written("text.txt", text);
  const DatasetPtr running = open_dataset(spec, make_byte_tokenizer());
  spec.kind = DatasetKind::kPacked;
  spec.path = written("text.jsonl", "{\"prompt\": \"a\", \"completion\": \"y\"}\n");
  const DatasetPtr packed = open_dataset(spec, make_byte_tokenizer());
  DatasetSpec blend;
  blend.kind = DatasetKind::kBlend;
  blend.sequence_length = 8;
  blend.split = "1";
  blend.members = {spec, spec};
  blend.members[1].kind = DatasetKind::kGpt;
  blend.members[1].path = folder.path("text.txt");
  const DatasetPtr both = open_dataset(blend, make_byte_tokenizer());
  const auto engine = make_engine(base_config());  // a vocabulary of 61
  for (const DatasetPtr& data : {running, packed, both}) {
    EXPECT_THAT(error_of(Code::kInvalidArgument, [&] { engine->set_dataset(data); }),
                HasSubstr("vocabulary of 61"));
  }
}

}  // namespace
}  // namespace ds
