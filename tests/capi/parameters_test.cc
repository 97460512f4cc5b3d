// Parameters of an engine through the C ABI: fetched, gathered, in parts, and handles that end.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "capi/ranks.h"
#include "capi/world.h"
#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

using libds::Comm;
using libds::Engine;
using libds::Model;
using libds::Tensor;
using ::testing::HasSubstr;

std::string stage_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "threads": 1,
             "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) +
         R"(, "reduce_bucket_size": 600, "stage3_param_persistence_threshold": 0}})";
}

std::vector<float> counted(size_t n, float from) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = from + static_cast<float>(i) / 64;
  return out;
}

// Three parameters of a program; the values may go once the model is made.
Model three_parameters() {
  const Tensor a = Tensor::from(counted(500, 1)), b = Tensor::from(counted(33, 2));
  const Tensor c = Tensor::from(counted(700, 3), {7, 100});
  std::vector<libds::Parameter> all(3);
  all[0].name = "a";
  all[0].value = &a;
  all[1].name = "b";
  all[1].value = &b;
  all[2].name = "c";
  all[2].value = &c;
  return Model::from_parameters(all);
}

std::string refusal(ds_status_code expected, const std::function<void()>& call) {
  try {
    call();
  } catch (const libds::Error& error) {
    EXPECT_EQ(error.status(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

// A program that need not know its stage nor how many processes there are.
TEST(Parameters, ScopesToComputeTrainAlikeAtEveryStage) {
  for (const int32_t world : {1, 3}) {
    std::vector<std::vector<float>> results;
    for (const int stage : {0, 2, 3}) {
      std::mutex mutex;
      run_ranks(world, [&](Comm& comm) {
        Model model = three_parameters();
        Engine engine(stage_config(stage), model, &comm);
        for (int step = 0; step < 3; ++step) {
          for (const std::vector<int64_t>& group :
               {std::vector<int64_t>{0, 1}, std::vector<int64_t>{2}}) {
            engine.open_scope(DS_SCOPE_COMPUTE, group).close();
          }
          for (const int64_t index : {2, 1, 0}) {
            libds::Scope scope = engine.open_scope(DS_SCOPE_COMPUTE, {index});
            std::vector<float> g = scope.tensor(0).to_vector<float>();
            for (float& x : g) x = 0.5f * x - static_cast<float>(comm.rank());
            engine.add_gradient(index, Tensor::from(g, scope.tensor(0).shape()));
            // Half of the scopes end with their handle alone.
            if (index != 1) scope.close();
          }
          EXPECT_EQ(engine.step().applied, 1);
        }
        std::vector<float> mine;
        for (const char* const name : {"a", "b", "c"}) {
          const std::vector<float> one = values_of(model.parameter(name));
          mine.insert(mine.end(), one.begin(), one.end());
        }
        const std::lock_guard lock(mutex);
        results.push_back(std::move(mine));
      });
    }
    ASSERT_EQ(results.size(), static_cast<size_t>(3 * world));
    for (const std::vector<float>& one : results) EXPECT_EQ(one, results.front());
  }
}

// What a scope gave out stays readable after it, with the values of its step.
TEST(Parameters, AScopeHoldsUpTheStepAndItsTensorsOutliveIt) {
  run_ranks(2, [](Comm& comm) {
    Model model = three_parameters();
    Engine engine(stage_config(3), model, &comm);
    libds::Scope first = engine.open_scope(DS_SCOPE_COMPUTE, {2, 0});
    libds::Scope again = engine.open_scope(DS_SCOPE_COMPUTE, {0});
    const Tensor c = first.tensor(0), a = first.tensor(1);
    EXPECT_EQ(c.shape(), (std::vector<int64_t>{7, 100}));
    EXPECT_EQ(values_of(a), counted(500, 1));
    EXPECT_EQ(values_of(again.tensor(0)), counted(500, 1));
    EXPECT_THAT(refusal(DS_ERR_INVALID_ARGUMENT, [&] { (void)first.tensor(2); }),
                HasSubstr("position is 2"));
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.step(); }), HasSubstr("such as a"));
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { first.commit(0); }), HasSubstr("only read"));
    first.close();
    first.close();  // nothing happens
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { (void)first.tensor(0); }), HasSubstr("closed"));
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.step(); }), HasSubstr("such as a"));
    again = libds::Scope();  // ends with its handle
    EXPECT_EQ(engine.step().applied, 1);
    EXPECT_EQ(values_of(a), counted(500, 1));
    EXPECT_EQ(values_of(c), counted(700, 3));

    libds::Scope last = engine.open_scope(DS_SCOPE_COMPUTE, {0});
    engine = Engine();  // ends what is open
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { (void)last.tensor(0); }), HasSubstr("destroyed"));
    last.close();
  });
}

// A handle that ends while another thread is inside the engine: the next call closes the scope.
TEST(Parameters, AScopeThatEndsDuringACallIsClosedByTheNextOne) {
  Model model = three_parameters();
  Engine engine(stage_config(0), model, nullptr);
  libds::Scope scope = engine.open_scope(DS_SCOPE_MODIFY, {1});
  const TemporaryFolder folder;
  std::atomic<bool> ended{false};
  engine.set_progress([&](const char*, int64_t, int64_t) {
    if (!ended.exchange(true)) std::thread([&] { scope = libds::Scope(); }).join();
    return true;
  });
  // Saving takes long and is fine while a scope is open.
  engine.save(folder.file("saved"));
  EXPECT_TRUE(ended.load());
  EXPECT_EQ(engine.step().applied, 1);
}

TEST(Parameters, LentMemoryAndViewsAreRefusedAtStageThree) {
  run_ranks(2, [](Comm& comm) {
    Tensor lent = Tensor::from(counted(500, 1));
    libds::Parameter p;
    p.name = "a";
    p.value = &lent;
    p.lend = true;
    Model model = Model::from_parameters({p});
    EXPECT_THAT(refusal(DS_ERR_UNSUPPORTED, [&] { Engine(stage_config(3), model, &comm); }),
                HasSubstr("a is lent"));
    Engine fallback(stage_config(2), model, &comm);
    EXPECT_EQ(fallback.step().applied, 1);
    Model other = three_parameters();
    Engine engine(stage_config(3), other, &comm);
    ds_tensor* view = nullptr;
    EXPECT_EQ(ds_model_view_parameter(other.get(), index_of(other.get(), "a"), &view),
              DS_ERR_UNSUPPORTED);
    EXPECT_THAT(refusal(DS_ERR_UNSUPPORTED, [&] { engine.view_gradient(0); }),
                HasSubstr("ds_engine_add_gradients"));
  });
}

TEST(Parameters, ScopesToModifyAreWrittenBack) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [&](Comm& comm) {
      Model model = three_parameters();
      Engine engine(stage_config(stage), model, &comm);
      libds::Scope scope = engine.open_scope(DS_SCOPE_MODIFY, {1, 2});
      const std::vector<float> mine(33, static_cast<float>(comm.rank() + 5));
      scope.tensor(0).write(mine.data(), 33);
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.step(); }), HasSubstr("gathered"));
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.open_scope(DS_SCOPE_MODIFY, {2}); }),
                  HasSubstr("c is gathered"));
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.open_scope(DS_SCOPE_COMPUTE, {0}); }),
                  HasSubstr("gathered"));
      refusal(DS_ERR_INVALID_ARGUMENT, [&] { scope.commit(-1); });
      refusal(DS_ERR_INVALID_ARGUMENT, [&] { scope.commit(2); });
      scope.commit(1);
      EXPECT_EQ(values_of(model.parameter("b")), std::vector<float>(33, 6.0f));
      EXPECT_EQ(values_of(model.parameter("c")), counted(700, 3));
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { scope.commit(1); }), HasSubstr("closed"));
      // Closed without a commit, by hand or with the handle: what was written is dropped.
      for (const bool by_hand : {true, false}) {
        libds::Scope other = engine.open_scope(DS_SCOPE_MODIFY, {1});
        other.tensor(0).write(counted(33, 50).data(), 33);
        if (by_hand) other.close();
      }
      EXPECT_EQ(values_of(model.parameter("b")), std::vector<float>(33, 6.0f));
      EXPECT_EQ(engine.step().applied, 1);
    });
  }
}

TEST(Parameters, LocalPartsCoverTheWhole) {
  run_ranks(3, [](Comm& comm) {
    Model model = three_parameters();
    Engine engine(stage_config(3), model, &comm);
    const auto [first, count] = engine.local_range(2);
    Tensor total = Tensor::from(std::vector<int64_t>{count});
    comm.all_reduce(total, DS_REDUCE_SUM);
    EXPECT_EQ(total.item(), 700);
    const std::vector<float> own =
        values_of(engine.values(2, DS_VALUE_PARAMETER, "", DS_EXTENT_LOCAL));
    const std::vector<float> all = counted(700, 3);
    EXPECT_EQ(own, std::vector<float>(all.begin() + first, all.begin() + first + count));
    const Tensor nines = Tensor::from(std::vector<float>(static_cast<size_t>(count), 9.0f));
    engine.set_values(2, DS_VALUE_PARAMETER, nines, "", DS_EXTENT_LOCAL);
    EXPECT_EQ(values_of(model.parameter("c")), std::vector<float>(700, 9.0f));
    refusal(DS_ERR_NOT_FOUND,
            [&] { engine.values(2, DS_VALUE_STATE, "exp_avg_cubed", DS_EXTENT_LOCAL); });
    const Tensor longer = Tensor::from(std::vector<float>(701));
    refusal(DS_ERR_INVALID_ARGUMENT,
            [&] { engine.set_values(2, DS_VALUE_STATE, longer, "exp_avg", DS_EXTENT_LOCAL); });
  });
}

// Gradients that the caller adds in a scope are averaged by the step after it.
TEST(Parameters, NoSyncScopesHoldStepsBack) {
  run_ranks(2, [](Comm& comm) {
    Model model = three_parameters();
    Engine engine(stage_config(1), model, &comm);
    const Tensor gradient = Tensor::from(std::vector<float>(33, comm.rank() == 0 ? 1.0f : 3.0f));
    refusal(DS_ERR_INVALID_ARGUMENT, [&] { engine.open_scope(DS_SCOPE_NO_SYNC, {1}); });
    {
      libds::Scope scope = engine.open_scope(DS_SCOPE_NO_SYNC, {});
      engine.add_gradient(1, gradient);
      refusal(DS_ERR_STATE, [&] { engine.step(); });
      refusal(DS_ERR_STATE, [&] { engine.open_scope(DS_SCOPE_NO_SYNC, {}); });
      refusal(DS_ERR_STATE, [&] { scope.commit(0); });
      refusal(DS_ERR_INVALID_ARGUMENT, [&] { scope.tensor(0); });
      engine.add_gradient(1, gradient);
    }  // the handle's end closes it
    EXPECT_NEAR(engine.step().grad_norm, 4 * std::sqrt(33.0), 1e-5);
    libds::Scope last = engine.open_scope(DS_SCOPE_NO_SYNC, {});
    last.close();
    last.close();
    engine.add_gradient(1, gradient);
    EXPECT_NEAR(engine.step().grad_norm, 2 * std::sqrt(33.0), 1e-5);
  });
  Model model = three_parameters();
  Engine engine(stage_config(2), model);
  refusal(DS_ERR_UNSUPPORTED, [&] { engine.open_scope(DS_SCOPE_NO_SYNC, {}); });
}

// A float32 adapter beside a bfloat16 base, at stages where masters lie whole and in pieces.
TEST(Parameters, OfTwoTypesAreSeenInTheirOwn) {
  for (const int stage : {0, 1, 3}) {
    run_ranks(2, [stage](Comm& comm) {
      const Tensor base = Tensor::from(counted(64, 1)), adapter = Tensor::from(counted(40, 2));
      std::vector<libds::Parameter> all(2);
      all[0].name = "base";
      all[0].value = &base;
      all[0].dtype = DS_BFLOAT16;
      all[0].frozen = true;
      all[1].name = "adapter";
      all[1].value = &adapter;
      Model model = Model::from_parameters(all);
      std::string config = stage_config(stage);
      config.insert(1, R"("bf16": {"enabled": true}, )");
      Engine engine(config, model, &comm);
      EXPECT_EQ(engine.info().compute_dtype, DS_BFLOAT16);
      {
        libds::Scope scope = engine.open_scope(DS_SCOPE_COMPUTE, {0, 1});
        EXPECT_EQ(scope.tensor(0).dtype(), DS_BFLOAT16);
        EXPECT_EQ(scope.tensor(1).dtype(), DS_FLOAT32);
        EXPECT_EQ(values_of(scope.tensor(1)), counted(40, 2));
      }
      engine.add_gradient(1, Tensor::from(std::vector<float>(40, 1.0f)));
      EXPECT_EQ(engine.step().applied, 1);
      if (stage == 3) {
        refusal(DS_ERR_UNSUPPORTED, [&] { (void)model.view("adapter"); });
        return;
      }
      // All bits of a third are there, in memory that is the master's or follows it.
      engine.set_values(1, DS_VALUE_PARAMETER, Tensor::from(std::vector<float>(40, 1.0f / 3)));
      EXPECT_EQ(values_of(model.view("adapter")), std::vector<float>(40, 1.0f / 3));
    });
  }
}

}  // namespace
}  // namespace capi_test
