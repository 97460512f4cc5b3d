// Several ranks through the C ABI: collectives that wait, engines that train together.
#include "capi/ranks.h"

namespace capi_test {
namespace {

TEST(CapiRanks, Collectives) {
  run_ranks(3, [](libds::Comm& comm) {
    const auto r = static_cast<float>(comm.rank());
    libds::Tensor sum = libds::Tensor::from(std::vector<float>{r, 2 * r});
    comm.all_reduce(sum);
    EXPECT_EQ(values_of(sum), (std::vector<float>{3, 6}));
    libds::Tensor most = libds::Tensor::from(std::vector<float>{r});
    comm.all_reduce(most, DS_REDUCE_MAX);
    EXPECT_EQ(most.item(), 2);
    libds::Tensor all = libds::Tensor::from(std::vector<float>(3));
    comm.all_gather(all, libds::Tensor::from(std::vector<float>{r + 1}));
    EXPECT_EQ(values_of(all), (std::vector<float>{1, 2, 3}));
    libds::Tensor part = libds::Tensor::from(std::vector<float>(1));
    comm.reduce_scatter(part, all, DS_REDUCE_AVERAGE);
    EXPECT_EQ(part.item(), r + 1);
    libds::Tensor turned = libds::Tensor::from(std::vector<float>(3));
    comm.all_to_all(turned,
                    libds::Tensor::from(std::vector<float>{10 * r, 10 * r + 1, 10 * r + 2}));
    EXPECT_EQ(values_of(turned), (std::vector<float>{r, 10 + r, 20 + r}));
    libds::Tensor given = libds::Tensor::from(std::vector<float>{r});
    comm.broadcast(given, 1);
    EXPECT_EQ(given.item(), 1);
    libds::Comm half = comm.split(comm.rank() == 2 ? -1 : 0);
    EXPECT_EQ(half ? half.size() : 0, comm.rank() == 2 ? 0 : 2);
    EXPECT_NE(comm.report().find("\"all_gather\""), std::string::npos);
    comm.join();
  });
}

// The same model, data and steps at every stage; rank 0 exports what all ranks hold.
TEST(CapiRanks, EnginesTrainTogether) {
  const char* const model_json =
      R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2,
          "n_head": 4})";
  std::vector<std::vector<float>> weights;
  for (const int stage : {0, 1, 2, 3}) {
    std::mutex mutex;
    run_ranks(2, [&](libds::Comm& comm) {
      libds::Model model = libds::Model::create(model_json, 7);
      libds::Engine engine(R"({"train_micro_batch_size_per_gpu": 2, "threads": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "zero_optimization": {"stage": )" +
                               std::to_string(stage) +
                               R"(, "stage3_param_persistence_threshold": 40}})",
                           model, &comm);
      std::vector<int32_t> ids(2 * 16);
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int32_t>((i * 7 + static_cast<size_t>(comm.rank()) * 3) % 61);
      }
      const libds::Tensor batch = libds::Tensor::from(ids, {2, 16});
      for (int step = 0; step < 3; ++step) {
        libds::Tensor loss = engine.forward(batch, batch);
        engine.backward(loss);
        engine.step();
      }
      const std::vector<float> mine = values_of(model.parameter("h.1.mlp.c_fc.weight"));
      const std::lock_guard lock(mutex);
      weights.push_back(mine);
    });
  }
  ASSERT_EQ(weights.size(), 8u);
  for (const std::vector<float>& one : weights) EXPECT_EQ(one, weights.front());
}

}  // namespace
}  // namespace capi_test
