// Offload on a stand-in that is told to fail: memory of the host that is not there, and copies.
#include <gmock/gmock.h>

#include <thread>

#include "attached_state.h"
#include "cuda/emulation/stand_in.h"
#include "cuda/offload_world.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;
namespace stand_in = testing::stand_in;

Json plain_config() {
  return with(base_config(), {{"gradient_accumulation_steps", 1}, {"bf16", {{"enabled", true}}}});
}

class OffloadFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    stand_in::reset(2);
  }
};

TEST_F(OffloadFaults, NoMemoryOnTheHost) {
  const auto model = make_model(offload_model(), true);
  const std::vector<float> before = weights_of(*model);
  // Masters, low halves, buffers, gradients, states: whatever cannot be had.
  const Json config = with(plain_config(), {{"bf16", {{"split_master", true}}}});
  int failed = 0;
  for (int good = 0;; ++good) {
    host_memory_of(model->device())->trim();
    stand_in::fail_after("cudaHostAlloc", good, cudaErrorMemoryAllocation);
    stand_in::fail_next("cudaHostAlloc",
                        cudaErrorMemoryAllocation);  // after the cache was given back
    try {
      const Engine engine(dump_json(offloaded(config)), model, nullptr);
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.message();
      EXPECT_THAT(error.message(), HasSubstr("locked for cuda:0"));
      ++failed;
    }
    stand_in::fail_no_more();
    EXPECT_TRUE(same_bits(weights_of(*model), before));
  }
  EXPECT_GT(stand_in::fail_no_more(), 0);
  EXPECT_GE(failed, 5);
}

// The step is taken on the host; the GPU gets the weights before it uses them.
TEST_F(OffloadFaults, WeightsThatDoNotArriveAreSentAgain) {
  for (const bool pinned : {true, false}) {
    for (const Json& how : {Json::object(), Json{{"bf16", {{"enabled", false}}}},
                            Json{{"bf16", {{"split_master", true}}}}}) {
      const Json config = offloaded(with(plain_config(), how), pinned);
      const auto engine = offload_engine(config), calm = offload_engine(config);
      int came = 0;
      for (int good = 0; good < 5; ++good) {
        const auto seed = static_cast<uint64_t>(good);
        step_with_random_gradients(*calm, seed);
        give_random_gradients(*engine, seed);
        // The first event is from before the update.
        const bool copy = good % 2 == 0;
        stand_in::fail_after(copy ? "cudaMemcpyAsync" : "cudaEventRecord", copy ? good : good + 1,
                             cudaErrorIllegalAddress);
        EXPECT_TRUE(engine->step().applied);
        came += stand_in::fail_no_more() == 0 ? 1 : 0;
        EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*calm)));
        EXPECT_TRUE(same_bits(states_of(*engine), states_of(*calm)));
        if (good == 1) {
          stand_in::fail_next("cudaMemcpyAsync", cudaErrorIllegalAddress);
          EXPECT_THAT(
              error_of(Code::kDevice, [&] { train_state(*engine->model()).weights().acquire(0); }),
              HasSubstr("cudaErrorIllegalAddress"));
        }
        expect_weights_follow(*engine);
      }
      EXPECT_GE(came, 3);
    }
  }
}

// Launches of recorded passes acquire nothing: the weights are sent before them.
TEST_F(OffloadFaults, RecordedPassesGetTheWeightsThatAreSentAgain) {
  const Json config = offloaded(with(plain_config(), {{"graph_harvesting", true}}));
  const auto engine = offload_engine(config), calm = offload_engine(config);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(engine->train_batch().loss, calm->train_batch().loss);
  step_with_random_gradients(*calm, 1);
  give_random_gradients(*engine, 1);
  stand_in::fail_next("cudaMemcpyAsync", cudaErrorIllegalAddress);
  EXPECT_TRUE(engine->step().applied);
  EXPECT_EQ(stand_in::fail_no_more(), 0);
  const int64_t before = stand_in::graph_launches();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(engine->train_batch().loss, calm->train_batch().loss);
  EXPECT_EQ(stand_in::graph_launches() - before, 4);
  EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*calm)));
}

// The open step is given up, and nothing else.
TEST_F(OffloadFaults, GradientsThatDoNotArriveEndTheStep) {
  for (const bool pinned : {true, false}) {
    const Json config =
        offloaded(with(plain_config(), {{"gradient_accumulation_steps", 2}}), pinned);
    const auto engine = offload_engine(config), calm = offload_engine(config);
    const std::vector<int64_t> ids(8, 5);
    const MicroBatch batch{ids_tensor(ids, 1), ids_tensor(ids, 1), {}, {}, {}};
    int failed = 0;
    for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"}) {
      for (int good = 0; good < 30; good += 4) {
        const std::vector<float> before = weights_of(*engine);
        const Tensor loss = engine->forward(batch);
        stand_in::fail_after(call, good, cudaErrorIllegalAddress);
        try {
          engine->backward(loss);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kDevice) << error.message();
          ++failed;
        }
        stand_in::fail_no_more();
        engine->discard_gradients();
        EXPECT_TRUE(same_bits(weights_of(*engine), before));
      }
    }
    EXPECT_GE(failed, 6);
    for (int i = 0; i < 2; ++i) {
      for (const auto& one : {engine.get(), calm.get()}) one->backward(one->forward(batch));
      EXPECT_EQ(engine->step().applied, calm->step().applied);
    }
    EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*calm)));
    EXPECT_TRUE(same_bits(states_of(*engine), states_of(*calm)));
  }
}

// Copies that are over when somebody asks: what has come to the host is updated while others are on
// their way, with the bits of an update within the step.
TEST_F(OffloadFaults, UpdatesBeginWhileGradientsArrive) {
  stand_in::go_on_when_asked();
  for (const bool pinned : {false, true}) {
    const Json config = offloaded(
        with(base_config(), {{"gradient_accumulation_steps", 1}, {"gradient_clipping", 0}}),
        pinned);
    const auto plain = offload_engine(config);
    const auto ahead = offload_engine(
        with(config, {{"zero_optimization", {{"offload_optimizer", {{"super_offload", true}}}}}}));
    for (int64_t i = 0; i < 2; ++i) {
      MicroBatch batch;
      batch.ids = batch.labels = ids_tensor(std::vector<int64_t>(4 * 16, 7 + i), 4);
      for (Engine* const engine : {plain.get(), ahead.get()}) {
        engine->backward(engine->forward(batch));
      }
      while (ahead->updated_ahead() == 0) std::this_thread::yield();
      EXPECT_EQ(ahead->step().grad_norm, plain->step().grad_norm);
      EXPECT_GT(ahead->updated_ahead(), 0);
    }
    EXPECT_TRUE(same_bits(weights_of(*ahead), weights_of(*plain)));
    EXPECT_TRUE(same_bits(states_of(*ahead), states_of(*plain)));
    expect_weights_follow(*ahead);
  }
}

}  // namespace
}  // namespace ds
