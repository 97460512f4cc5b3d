// Mistakes that an engine finds when it is asked to look for them.
#include "attached_state.h"
#include "models/adapters.h"
#include "zero/weight_checks.h"
#include "zero_world.h"

namespace ds::zero_test {
namespace {

// Parameters of the caller, which get gradients or do not.
std::shared_ptr<models::Model> own_model() {
  nn::ParameterSet set;
  for (const char* name : {"first", "second", "third"}) {
    nn::Parameter p;
    p.name = name;
    p.shape = {40, 3};
    set.add(std::move(p));
  }
  return models::Model::from_parameters(std::move(set));
}

TEST(UnusedParameters, AreNamedWhereTheyAreNotIgnored) {
  for (const int world : {1, 3}) {
    for (const bool ignored : {true, false}) {
      SCOPED_TRACE(str_cat("world ", world, ", ignored ", ignored));
      const Json config = zero_config(2, {{"ignore_unused_parameters", ignored}},
                                      {{"gradient_accumulation_steps", 2}});
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(config), own_model(), comm);
        const Tensor gradient =
            Tensor::zeros(engine.model()->device(), DType::kFloat32, {40, 3}, MemoryTag::kOther);
        const Tensor* const one[] = {&gradient};
        const auto add = [&](int64_t index) { engine.gradients().add(std::span(&index, 1), one); };
        // One micro batch may lack what the other has.
        add(0);
        add(1);
        engine.step();
        add(2);
        EXPECT_TRUE(engine.step().applied);
        add(0);
        engine.step();
        // Here the last rank alone has everything.
        if (comm->rank() + 1 == world && world > 1) add(1);
        engine.gradients().set("third", gradient);
        if (ignored) {
          EXPECT_TRUE(engine.step().applied);
          return;
        }
        const std::string text = error_of(Code::kState, [&] { engine.step(); });
        EXPECT_NE(text.find("second"), std::string::npos) << text;
        // The step is given up, and the next one is as good as any.
        for (int micro = 0; micro < 2; ++micro) {
          for (const int64_t index : {0, 1, 2}) add(index);
          engine.step();
        }
        EXPECT_EQ(engine.progress().steps, 2);
      });
    }
  }
}

TEST(UnusedParameters, BuiltInModelsUseTheirs) {
  for (const int stage : {0, 3}) {
    Job run{2, zero_config(stage, {{"ignore_unused_parameters", false}}), 2};
    EXPECT_EQ(train(run).losses.size(), 2u);
    run.prepare = [](models::Model& model) { models::set_trainable(model, {"*attn*"}, false); };
    EXPECT_EQ(train(run).losses.size(), 2u);
  }
}

// A rank whose weights were changed by something else is found, with the tensor.
TEST(SanityChecks, FindWeightsThatWentApart) {
  Job run{3, zero_config(0, {{"enable_sanity_checks", true}})};
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    EXPECT_TRUE(engine->train_batch().applied);
    zero::TrainState& state = train_state(*engine->model());
    const nn::ParamId id = state.parameters().find("wpe.weight");
    if (comm->rank() == 1) state.masters().view(id).data<float>()[3] += 1;
    const std::string text = error_of(Code::kState, [&] { engine->train_batch(); });
    EXPECT_NE(text.find("wpe.weight on rank 1"), std::string::npos) << text;
  });
}

TEST(SanityChecks, SeeEveryStage) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    Job run{3, zero_config(stage,
                           {{"enable_sanity_checks", true},
                            {"reduce_bucket_size", 3000},
                            {"stage3_param_persistence_threshold", 0}},
                           {{"bf16", {{"enabled", true}}}})};
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      EXPECT_TRUE(engine->train_batch().applied);
      EXPECT_TRUE(engine->train_batch().applied);
      ThreadPool pool(1);
      const OpContext ctx{engine->model()->device(), &pool};
      zero::TrainState& state = train_state(*engine->model());
      const nn::ParamId id = state.parameters().find("h.1.mlp.c_fc.weight");
      const zero::OwnedPart part = state.layout().flat().part(id);
      const bool owns = part.count > 0;
      const optim::FlatTensor& model = state.arrays().flat.model;
      if (comm->rank() == 2 && owns) {
        auto* const bits = static_cast<uint16_t*>(model.memory().raw());
        bits[model.compact ? part.owned : part.flat] ^= 0x40;
      }
      const auto check = [&] { zero::check_weights(ctx, state.arrays(), state.weights()); };
      // Whole weights are compared by all; a rank's own pieces by itself.
      if (stage < 3 || (comm->rank() == 2 && owns)) {
        const std::string text = error_of(Code::kState, check);
        EXPECT_NE(text.find("h.1.mlp.c_fc.weight"), std::string::npos) << text;
      } else {
        EXPECT_NO_THROW(check());
      }
      comm->barrier();
    });
  }
}

}  // namespace
}  // namespace ds::zero_test
