// Decoding on the stand-in of CUDA: what a token hands to the GPU, what is left, and what happens
// where recording fails.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/model_world.h"
#include "infer/decoder.h"
#include "infer/generate.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
namespace stand_in = testing::stand_in;

class RecordedTokens : public ::testing::Test {
 protected:
  void SetUp() override { stand_in::reset(1); }
  void TearDown() override {
    EXPECT_EQ(stand_in::live(), stand_in::Live{}) << "something was not given back";
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a handled error was left behind";
    stand_in::reset(2);
  }

  struct Cost {
    int64_t kernels, copies, graphs, waits, events;
    bool operator==(const Cost&) const = default;
    friend void PrintTo(const Cost& c, std::ostream* out) {
      *out << c.kernels << " kernels, " << c.copies << " copies, " << c.graphs << " graphs, "
           << c.waits << " waits, " << c.events << " events made";
    }
  };
  static Cost so_far() {
    const stand_in::Handed handed = stand_in::handed();
    return {handed.kernels, handed.copies, stand_in::graph_launches(), stand_in::host_waits(),
            stand_in::events_made()};
  }
  // Of one more token.
  static Cost token(infer::Decoder& decoder) {
    const Cost before = so_far();
    decoder.feed(0, std::vector<int32_t>{5});
    const Cost after = so_far();
    return {after.kernels - before.kernels, after.copies - before.copies,
            after.graphs - before.graphs, after.waits - before.waits, after.events - before.events};
  }
  static infer::Decoder decoder(models::Model& model, bool graphs) {
    infer::GenerateOptions options;
    options.graphs = graphs;
    return infer::Decoder(model.context(), model.reader(), model.architecture(), {1, 30}, options);
  }
};

Json with_layers(Json config, int layers) {
  config[config.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = layers;
  return config;
}

Json neox_config() {
  return {{"model_type", "gpt_neox"},      {"vocab_size", 61},       {"hidden_size", 32},
          {"intermediate_size", 48},       {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"max_position_embeddings", 32}, {"rotary_pct", 0.5}};
}

// Positions and cache take one launch of a layer.
TEST_F(RecordedTokens, WhatALayerCosts) {
  for (const Json& config : {model_config(0), llama_config(), neox_config()}) {
    const auto name = config.at("model_type").get<std::string>();
    SCOPED_TRACE(name);
    std::vector<Cost> costs;
    for (const int layers : {2, 3, 12}) {
      const auto model = make_model(with_layers(config, layers), true);
      auto plain = decoder(*model, false);
      plain.feed(0, std::vector<int32_t>{1, 2, 3});
      token(plain);
      costs.push_back(token(plain));
    }
    // Two norms, the products, the activation, positions and cache, attention; NeoX adds two
    // streams.
    const int64_t expected = 2 + (name == "llama" ? 7 : 4) + 3 + (name == "gpt_neox" ? 1 : 0);
    EXPECT_EQ(costs[1].kernels - costs[0].kernels, expected);
    EXPECT_EQ(costs[1].copies, costs[0].copies) << "of the ids, the positions, the logits";
    EXPECT_EQ(costs[0].copies, 3);
    std::cout << name << ", 12 layers: " << costs[2].kernels << " launches of a token without "
              << "graphs\n";
  }
}

TEST_F(RecordedTokens, ATokenIsALaunchAnUploadAndADownload) {
  for (const Json& config : {model_config(0), llama_config(), neox_config()}) {
    SCOPED_TRACE(config.at("model_type").get<std::string>());
    const auto model = make_model(config, true);
    auto recorded = decoder(*model, true);
    recorded.feed(0, std::vector<int32_t>{1, 2, 3});
    EXPECT_EQ(token(recorded).graphs, 0) << "makes what recorded work finds";
    EXPECT_EQ(token(recorded).graphs, 1);
    token(recorded);
    const int64_t asked = model->device()->system_allocations();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(token(recorded), (Cost{0, 2, 1, 1, 0}));
    EXPECT_EQ(model->device()->system_allocations(), asked);
  }
}

// Each room has its graph: of one split of keys, of two, and of what is left.
TEST_F(RecordedTokens, LongTextsGetGraphsOfTheirOwn) {
  const auto model = make_model(with(llama_config(), {{"max_position_embeddings", 600}}), true);
  infer::Decoder recorded(model->context(), model->reader(), model->architecture(), {1, 530}, {});
  const auto graphs = [&](int tokens) {
    const int64_t before = stand_in::graph_launches();
    for (int i = 0; i < tokens; ++i) token(recorded);
    return stand_in::graph_launches() - before;
  };
  recorded.feed(0, std::vector<int32_t>(250, 7));
  EXPECT_EQ(graphs(6), 5);  // up to 256
  EXPECT_EQ(graphs(4), 3);
  recorded.feed(0, std::vector<int32_t>(250, 9));
  EXPECT_EQ(graphs(2), 2);
  EXPECT_EQ(graphs(18), 17);  // up to 530
  EXPECT_EQ(recorded.length(0), 530);
  EXPECT_EQ(stand_in::live().graphs, 3);
  recorded.forget(0);
  recorded.feed(0, std::vector<int32_t>(8, 7));
  EXPECT_EQ(graphs(3), 3) << "the first graph serves a new text";
}

TEST_F(RecordedTokens, WhatCannotBeRecordedRunsAsEver) {
  infer::GenerateOptions options;
  options.max_tokens = 8;
  const std::vector<int32_t> prompt{4, 8, 15};
  const auto text = [&](models::Model& model, bool graphs) {
    options.graphs = graphs;
    return infer::generate(model.context(), model.reader(), model.architecture(), prompt, options,
                           {});
  };
  const auto model = make_model(llama_config(), true);
  options.max_tokens = 2;
  text(*model, false);
  const auto direct = static_cast<int>(stand_in::handed().kernels);  // of what comes before it
  options.max_tokens = 8;
  const std::vector<int32_t> plain = text(*model, false);
  for (const char* const call :
       {"cudaStreamBeginCapture", "cudaLaunchKernel", "cudaGraphInstantiate"}) {
    SCOPED_TRACE(call);
    const int good = std::string(call) == "cudaLaunchKernel" ? direct + 5 : 0;
    stand_in::fail_after(call, good, cudaErrorDevicesUnavailable);
    EXPECT_EQ(text(*model, true), plain);
    EXPECT_EQ(stand_in::fail_no_more(), 0);
    EXPECT_EQ(stand_in::graph_launches(), 0);
    EXPECT_EQ(stand_in::live().graphs, 0);
  }
  EXPECT_EQ(text(*model, true), plain);
  EXPECT_EQ(stand_in::graph_launches(), 6);
  EXPECT_EQ(stand_in::live().graphs, 0) << "graphs end with the text";
}

// Angles that depend on the length, and weights in fp8 that are cast as training goes, are left
// alone.
TEST_F(RecordedTokens, WhatChangesIsNotRecorded) {
  const auto launches = [](models::Model& model) {
    const int64_t before = stand_in::graph_launches();
    infer::GenerateOptions options;
    options.max_tokens = 6;
    infer::generate(model.context(), model.reader(), model.architecture(),
                    std::vector<int32_t>{1, 2}, options, {});
    return stand_in::graph_launches() - before;
  };
  const auto plain = make_model(llama_config(), true);
  EXPECT_EQ(launches(*plain), 4);
  const auto dynamic = make_model(
      with(llama_config(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}), true);
  EXPECT_EQ(launches(*dynamic), 0);
  const auto fp8 = make_engine_on(
      true, with(base_config(), {{"bf16", {{"enabled", true}}}, {"fp8", {{"enabled", true}}}}),
      llama_config());
  EXPECT_EQ(launches(*fp8->model()), 0);
}

}  // namespace
}  // namespace ds
