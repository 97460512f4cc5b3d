// What a checkpoint says of itself without its data.
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

class Inspect : public ::testing::Test {
 protected:
  Inspect() {
    CheckpointWriterOptions options;
    options.folder = folder_.path() / "save";
    options.tag = "t";
    options.counters.skipped_steps = 2;
    options.topology.world = options.topology.data = 3;
    save_sample(options, 1, 7);
    seen_ = CheckpointReader::open(folder_.path() / "save").inspect();
  }
  const TempFolder folder_;
  Json seen_;
};

TEST_F(Inspect, NamesTensorsWithTheirFlags) {
  const std::vector<SampleTensor> expected = sample_tensors();
  const Json& tensors = seen_.at("tensors");
  ASSERT_EQ(tensors.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorMeta& meta = expected[i].meta;
    const Json& entry = tensors[i];
    SCOPED_TRACE(dump_json(entry));
    EXPECT_EQ(entry.at("name"), meta.name);
    EXPECT_EQ(entry.at("kind"), tensor_kind_name(meta.kind));
    EXPECT_EQ(entry.value("state", ""), meta.state);
    EXPECT_EQ(entry.at("dtype"), dtype_name(meta.dtype));
    EXPECT_EQ(entry.at("shape").get<std::vector<int64_t>>(), meta.shape);
    EXPECT_EQ(entry.value("aliases", std::vector<std::string>()), meta.aliases);
    EXPECT_EQ(entry.value("expert", -1), meta.expert);
    EXPECT_EQ(entry.value("trainable", false), meta.flags == kTrainable);
    EXPECT_EQ(entry.value("frozen", false), meta.name == "h.0.bias" && meta.state.empty());
    EXPECT_EQ(entry.at("bytes"), expected[i].bytes());
    size_t bytes = 0;
    for (const Json& slice : entry.at("slices")) bytes += slice.at("length").get<size_t>();
    EXPECT_EQ(bytes, expected[i].bytes());
  }
}

TEST_F(Inspect, ShowsTheValuesOfSmallStates) {
  Json states = Json::object();
  for (const Json& entry : seen_.at("state")) states[entry.at("name").get<std::string>()] = entry;
  EXPECT_EQ(dump_json(states.at("seed")), R"({"name":"seed","type":"int","value":1})");
  EXPECT_EQ(dump_json(states.at("loss_scale")),
            R"({"name":"loss_scale","type":"double","value":-0.0})");
  EXPECT_EQ(dump_json(states.at("note")),
            R"({"name":"note","type":"text","bytes":6,"value":"step 7"})");
  EXPECT_FALSE(states.at("config").contains("value"));
  EXPECT_EQ(states.at("config").at("type"), "json");
  EXPECT_EQ(dump_json(states.at("tokenizer")),
            R"({"name":"tokenizer","type":"bytes","bytes":70000})");
}

TEST_F(Inspect, ShowsItsRun) {
  EXPECT_EQ(seen_.at("tag"), "t");
  EXPECT_EQ(seen_.at("writer"), "test 1.0");
  EXPECT_TRUE(seen_.at("run").is_null());
  EXPECT_EQ(seen_.at("counters").at("global_steps"), 7);
  EXPECT_EQ(seen_.at("counters").at("skipped_steps"), 2);
  EXPECT_EQ(seen_.at("counters").at("global_samples"), 28);
  EXPECT_EQ(seen_.at("topology").at("world"), 3);
  EXPECT_EQ(seen_.at("topology").at("zero_stage"), 1);
  ASSERT_EQ(seen_.at("blobs").size(), 1u);
  EXPECT_EQ(seen_.at("blobs")[0].at("file"), "data-00000.bin");
  EXPECT_EQ(seen_.at("blobs")[0].at("size"),
            fs::file_size(folder_.path() / "save/t/data-00000.bin"));
}

}  // namespace
}  // namespace ds::test
