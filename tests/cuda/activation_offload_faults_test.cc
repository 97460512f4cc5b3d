// Faults while the inputs of segments travel: the step is given up with the reason, nothing is
// left behind, and the engine trains on as if the step had not begun.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/model_world.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;
namespace stand_in = testing::stand_in;

class ActivationOffloadFaults : public ::testing::Test {
 protected:
  void SetUp() override { stand_in::reset(1); }
  void TearDown() override {
    EXPECT_EQ(stand_in::live(), stand_in::Live{}) << "something was not given back";
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    stand_in::reset(2);
  }
};

std::unique_ptr<Engine> offloading_engine() {
  auto engine = make_engine_on(
      true,
      with(base_config(),
           {{"activation_checkpointing", {{"enabled", true}, {"cpu_checkpointing", true}}}}),
      with(model_config(), {{"n_layer", 3}}));
  engine->set_dataset(periodic_data(32));
  return engine;
}

Tensor some_ids() { return ids_tensor(std::vector<int64_t>(4 * 32, 7), 4); }

// Both train from here on with the same bits.
void expect_to_go_on_alike(Engine& engine, Engine& untouched) {
  const Tensor ids = some_ids();
  for (int i = 0; i < 4; ++i) {
    float losses[2];
    for (const bool first : {true, false}) {
      Engine& each = first ? engine : untouched;
      const Tensor loss = each.forward({ids, ids, {}, {}, {}});
      losses[first ? 0 : 1] = *loss.data<float>();
      each.backward(loss);
      each.step();
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
  EXPECT_TRUE(same_bits(weights_of(engine), weights_of(untouched)));
}

TEST_F(ActivationOffloadFaults, NoHostMemory) {
  const auto engine = offloading_engine(), untouched = offloading_engine();
  // Memory for the copies of batches is there already.
  engine->evaluate(*periodic_data(32), 1);
  for (int i = 0; i < 2; ++i) stand_in::fail_next("cudaHostAlloc", cudaErrorMemoryAllocation);
  EXPECT_THAT(error_of(Code::kOutOfMemory, [&] { engine->train_batch(); }),
              ::testing::AllOf(HasSubstr("activation_checkpointing.cpu_checkpointing"),
                               HasSubstr("locked for cuda:0")));
  expect_to_go_on_alike(*engine, *untouched);
}

TEST_F(ActivationOffloadFaults, TheWayBackFails) {
  const auto engine = offloading_engine(), untouched = offloading_engine();
  const Tensor ids = some_ids();
  for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent"}) {
    const Tensor loss = engine->forward({ids, ids, {}, {}, {}});
    stand_in::fail_next(call, cudaErrorIllegalAddress);
    EXPECT_THAT(error_of(Code::kDevice, [&] { engine->backward(loss); }),
                HasSubstr("cudaErrorIllegalAddress"))
        << call;
  }
  expect_to_go_on_alike(*engine, *untouched);
}

TEST_F(ActivationOffloadFaults, TheStreamCannotBeMade) {
  const auto model = make_model(model_config(), true);
  stand_in::fail_next("cudaStreamCreateWithFlags", cudaErrorIllegalAddress);
  const Json config =
      with(base_config(),
           {{"activation_checkpointing", {{"enabled", true}, {"cpu_checkpointing", true}}}});
  EXPECT_THAT(
      error_of(Code::kDevice, [&] { const Engine engine(dump_json(config), model, nullptr); }),
      HasSubstr("creating a stream"));
  Engine engine(dump_json(config), model, nullptr);  // the model is free
  engine.set_dataset(periodic_data(32));
  engine.train_batch();
}

TEST_F(ActivationOffloadFaults, AForwardWithoutBackwardLeavesNothing) {
  const auto engine = offloading_engine();
  const Tensor ids = some_ids();
  engine->forward({ids, ids, {}, {}, {}});
}

}  // namespace
}  // namespace ds
