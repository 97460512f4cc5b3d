// Parameters that are whole for a scope, and the part of them that a rank owns, at every stage.
#include <gmock/gmock.h>

#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

Json small_buckets() {
  return {{"reduce_bucket_size", 3000}, {"stage3_param_persistence_threshold", 40}};
}

const Json kPrecisions[] = {
    Json::object(),
    {{"bf16", {{"enabled", true}}}},
    {{"bf16", {{"enabled", true}, {"split_master", true}}}},
};

// One rank's changes become everybody's, and training goes on from them.
TEST(Gather, OneRankChangesParametersForAll) {
  for (const Json& precision : kPrecisions) {
    std::vector<float> plain;
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(str_cat("stage ", stage, " ", dump_json(precision)));
      const Job job{3, zero_config(stage, small_buckets(), precision)};
      std::vector<float> trained;
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(job, comm);
        engine->train_batch();
        const nn::ParameterSet& set = engine->model()->parameters();
        const int64_t ids[] = {set.find("h.1.mlp.c_fc.weight"), set.find("ln_f.bias")};
        const std::vector<float> before = all_weights(*engine);
        std::vector<Tensor> values = engine->scopes().gather(ids);
        EXPECT_EQ(values[0].shape(), set[static_cast<nn::ParamId>(ids[0])].shape);
        // The others' changes are lost, those of rank 1 count.
        for (const Tensor& value : values) {
          for (int64_t i = 0; i < value.elements(); ++i) {
            value.data<float>()[i] += comm->rank() == 1 ? 0.125f : 99.0f;
          }
        }
        const std::vector<float> wanted = flat(values[0]);
        engine->scopes().scatter(ids, 1);
        const std::vector<float> after = all_weights(*engine);
        double least = 1e9, most = 0;
        int64_t changed = 0;
        for (size_t i = 0; i < after.size(); ++i) {
          if (after[i] == before[i]) continue;
          ++changed;
          least = std::min(least, std::abs(double{after[i]} - before[i]));
          most = std::max(most, std::abs(double{after[i]} - before[i]));
        }
        EXPECT_EQ(changed, values[0].elements() + values[1].elements());
        EXPECT_NEAR(least, 0.125, 1e-6);
        EXPECT_NEAR(most, 0.125, 1e-6);
        if (comm->rank() == 1) {
          const std::vector<Tensor> again = engine->scopes().gather({ids, 1});
          EXPECT_TRUE(same_bits(flat(again[0]), wanted));
        } else {
          engine->scopes().gather({ids, 1});
        }
        engine->scopes().scatter({ids, 1}, -1);
        EXPECT_TRUE(same_bits(all_weights(*engine), after));
        engine->train_batch();
        const std::vector<float> end = all_weights(*engine);
        if (comm->rank() == 0) trained = end;
      });
      if (stage == 0) {
        plain = trained;
      } else {
        EXPECT_TRUE(same_bits(trained, plain));
      }
    }
  }
}

TEST(Gather, ChangesWithoutModifierAreDropped) {
  for (const int stage : {0, 3}) {
    const OwnJob job{2, own_config(stage)};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      const std::vector<float> before = all_weights(engine);
      const int64_t ids[] = {4, 0};
      const std::vector<Tensor> values = engine.scopes().gather(ids);
      values[0].data<float>()[0] = 17;
      engine.scopes().scatter(ids, -1);
      EXPECT_TRUE(same_bits(all_weights(engine), before));
      run_own_batch(engine, job, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

// With sanity checks such a scope does not end: it says which tensor, on every rank.
TEST(Gather, DroppedChangesAreNamedWhenAskedFor) {
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const OwnJob job{3, own_config(stage, {{"enable_sanity_checks", true}})};
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      const std::vector<float> before = all_weights(engine);
      const int64_t ids[] = {4, 0, 7};
      // What is read, or written back, is fine.
      std::vector<Tensor> values = engine.scopes().gather(ids);
      values[2].data<float>()[3] += 1;
      values[2].data<float>()[3] -= 1;
      values[2].data<float>()[3] = noise(7, 3);
      engine.scopes().scatter(ids, -1);
      values = engine.scopes().gather(ids);
      if (comm->rank() == 1) values[2].data<float>()[5] += 1;
      const std::string text = error_of(Code::kState, [&] { engine.scopes().scatter(ids, -1); });
      EXPECT_THAT(text, HasSubstr("layer3.bias was changed on rank 1"));
      EXPECT_THAT(text, HasSubstr("modifier_rank"));
      // The scope is as it was, and can end in another way.
      engine.scopes().scatter(ids, 1);
      std::vector<float> wanted = before;
      size_t at = 0;
      for (nn::ParamId id = 0; id < 7; ++id) {
        at += static_cast<size_t>(engine.model()->parameters()[id].shape.elements());
      }
      wanted[at + 5] += 1;
      EXPECT_TRUE(same_bits(all_weights(engine), wanted));
      run_own_batch(engine, job, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

TEST(Gather, WrongUseIsRefused) {
  const Json more = {{"gradient_accumulation_steps", 2}};
  const OwnJob job{2, own_config(3, Json::object(), more)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(job.config), own_model(job), comm);
    const int64_t first[] = {0}, both[] = {0, 1}, twice[] = {1, 1};
    const auto refused = [&](Code code, const char* text, const auto& call) {
      EXPECT_THAT(error_of(code, call), HasSubstr(text));
    };
    refused(Code::kState, "layer0.weight is scattered, but not gathered",
            [&] { engine.scopes().scatter(first, 0); });
    refused(Code::kState, "layer0.bias is gathered already",
            [&] { engine.scopes().gather(twice); });
    engine.scopes().gather(first);
    refused(Code::kState, "layer0.weight is gathered already",
            [&] { engine.scopes().gather(both); });
    refused(Code::kState, "gathered, such as layer0.weight", [&] { engine.step(); });
    refused(Code::kState, "scatter", [&] { engine.scopes().fetch(both); });
    refused(Code::kInvalidArgument, "modifier_rank is 2",
            [&] { engine.scopes().scatter(first, 2); });
    const Tensor g = Tensor::zeros(make_cpu_device(), DType::kFloat32, {23}, MemoryTag::kOther);
    const Tensor* const one = &g;
    const int64_t bias[] = {1};
    refused(Code::kState, "gathered", [&] { engine.gradients().add(bias, {&one, 1}); });
    refused(Code::kState, "gathered", [&] { engine.model()->set("layer0.bias", g); });
    engine.scopes().scatter(first, 1);
    run_own_batch(engine, job, comm->rank(), 0);
    engine.step();
    refused(Code::kState, "middle of a step", [&] { engine.scopes().gather(both); });
    run_own_batch(engine, job, comm->rank(), 1);
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(Gather, RanksThatDisagreeAboutTheModifierAreNamed) {
  const OwnJob job{2, own_config(2)};
  const auto group = make_local_group(2, {});
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(dump_json(job.config), own_model(job), group[rank]);
      const int64_t ids[] = {2};
      engine.scopes().gather(ids);
      texts[rank] =
          error_of(Code::kComm, [&] { engine.scopes().scatter(ids, static_cast<int>(rank)); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts[0], HasSubstr("layer1.weight"));
}

// The parts of the ranks make the whole, of values, gradients and moments, and can be set.
TEST(Local, PartsMakeTheWholeAndCanBeSet) {
  for (const Json& precision : kPrecisions) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(str_cat("stage ", stage, " ", dump_json(precision)));
      Json config = zero_config(stage, small_buckets(), precision);
      config["gradient_accumulation_steps"] = 2;
      const Job job{3, config};
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(job, comm);
        engine->train_batch();
        const std::string name = "h.0.attn.c_attn.weight";
        const zero::FlatRange range = engine->values().local_range(name);
        // Together once, or at stage 0 everything everywhere.
        const Tensor ends = Tensor::zeros(make_cpu_device(), DType::kInt64, {1}, MemoryTag::kOther);
        *ends.data<int64_t>() = range.elements();
        comm->all_reduce(ends, ReduceOp::kSum)->wait();
        const int64_t n = engine->model()
                              ->parameters()[engine->model()->parameters().find(name)]
                              .shape.elements();
        EXPECT_EQ(*ends.data<int64_t>(), stage == 0 ? 3 * n : n);

        const auto part_of = [&](const Tensor& whole) {
          const std::vector<float> all = flat(whole);
          return std::vector<float>(all.begin() + range.begin, all.begin() + range.end);
        };
        EXPECT_TRUE(same_bits(flat(engine->values().local(name, "parameter")),
                              part_of(engine->model()->get(name))));
        EXPECT_TRUE(same_bits(flat(engine->values().local(name, "exp_avg")),
                              part_of(engine->values().optimizer_state(name, "exp_avg"))));
        // Values that are exact in every type.
        for (const char* const what : {"parameter", "exp_avg_sq"}) {
          Tensor own = engine->values().local(name, what);
          for (int64_t i = 0; i < own.elements(); ++i) {
            own.data<float>()[i] = static_cast<float>((range.begin + i) % 64);
          }
          engine->values().set_local(name, what, own);
        }
        const std::vector<float> values = flat(engine->model()->get(name));
        const std::vector<float> state = flat(engine->values().optimizer_state(name, "exp_avg_sq"));
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], static_cast<float>(i % 64)) << i;
          ASSERT_EQ(state[i], static_cast<float>(i % 64)) << i;
        }
        // What computes is what was set: every rank sees the same loss as one that set it whole.
        const double loss = engine->evaluate(*periodic_data(), 1);
        engine->model()->set(name, engine->model()->get(name));
        EXPECT_EQ(engine->evaluate(*periodic_data(), 1), loss);

        const MicroBatch batch{ids_tensor(std::vector<int64_t>(16, 5 + comm->rank()), 2),
                               ids_tensor(std::vector<int64_t>(16, 7), 2), Tensor(), Tensor(),
                               Tensor()};
        const Tensor weights = engine->values().local(name, "parameter");
        const Tensor loss_of_batch = engine->forward(batch);
        error_of(Code::kState, [&] { engine->values().set_local(name, "parameter", weights); });
        engine->backward(loss_of_batch);
        EXPECT_TRUE(same_bits(flat(engine->values().local(name, "gradient")),
                              part_of(engine->gradients().get(name))));
        Tensor own = engine->values().local(name, "gradient");
        for (int64_t i = 0; i < own.elements(); ++i) own.data<float>()[i] = 0.5f;
        engine->values().set_local(name, "gradient", own);
        for (const float g : flat(engine->gradients().get(name))) ASSERT_EQ(g, 0.5f);
        error_of(Code::kNotFound, [&] { engine->values().local(name, "momentum"); });
        engine->discard_gradients();
      });
    }
  }
}

}  // namespace
}  // namespace ds::zero_test
