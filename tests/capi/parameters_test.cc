// Parameters of an engine through the C ABI: fetched, gathered, in parts, and handles that end.
#include <gmock/gmock.h>

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
TEST(Parameters, FetchedOnesTrainAlikeAtEveryStage) {
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
            engine.fetch(group);
            engine.release_parameters(group);
          }
          for (const int64_t index : {2, 1, 0}) {
            const std::vector<Tensor> weights = engine.fetch({index});
            std::vector<float> g = weights[0].to_vector<float>();
            for (float& x : g) x = 0.5f * x - static_cast<float>(comm.rank());
            const Tensor gradient = Tensor::from(g, weights[0].shape());
            ds_tensor* const one[] = {gradient.get()};
            EXPECT_DS_OK(ds_engine_add_gradients(engine.get(), &index, one, 1));
            engine.release_parameters({index});
          }
          EXPECT_EQ(engine.step().applied, 1);
        }
        std::vector<float> mine;
        for (const char* const name : {"a", "b", "c"}) {
          const std::vector<float> one = values_of(model.tensor(name));
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

// Handles end with the release; what was exported stays readable.
TEST(Parameters, HandlesEndWithTheRelease) {
  run_ranks(2, [](Comm& comm) {
    Model model = three_parameters();
    Engine engine(stage_config(3), model, &comm);
    std::vector<Tensor> held = engine.fetch({2, 0});
    EXPECT_EQ(held[0].shape(), (std::vector<int64_t>{7, 100}));
    EXPECT_EQ(values_of(held[1]), counted(500, 1));
    DLManagedTensorVersioned* exported = nullptr;
    ASSERT_DS_OK(ds_tensor_to_dlpack(held[1].get(), nullptr, &exported));
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.step(); }), HasSubstr("such as a"));
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.release_parameters({1}); }),
                HasSubstr("b is released, but not fetched"));
    engine.release_parameters({0});
    EXPECT_THAT(refusal(DS_ERR_INVALID_ARGUMENT, [&] { (void)held[1].elements(); }),
                HasSubstr("already destroyed"));
    EXPECT_EQ(values_of(held[0]), counted(700, 3));
    EXPECT_EQ(static_cast<const float*>(exported->dl_tensor.data)[64], 2.0f);
    exported->deleter(exported);
    engine.release_parameters({2});
    EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.release_parameters({2}); }),
                HasSubstr("not fetched"));
    EXPECT_EQ(engine.step().applied, 1);

    held = engine.fetch({0});
    engine = Engine();  // ends what is held
    EXPECT_THAT(refusal(DS_ERR_INVALID_ARGUMENT, [&] { (void)held[0].elements(); }),
                HasSubstr("already destroyed"));
  });
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
    EXPECT_EQ(ds_model_view_tensor(other.get(), "a", &view), DS_ERR_UNSUPPORTED);
    EXPECT_THAT(refusal(DS_ERR_UNSUPPORTED, [&] { engine.gradient_view("a"); }),
                HasSubstr("ds_engine_add_gradient"));
  });
}

TEST(Parameters, GatheredOnesAreWrittenBack) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [&](Comm& comm) {
      Model model = three_parameters();
      Engine engine(stage_config(stage), model, &comm);
      std::vector<Tensor> values = engine.gather({1, 2});
      const std::vector<float> mine(33, static_cast<float>(comm.rank() + 5));
      EXPECT_DS_OK(ds_tensor_write(values[0].get(), mine.data(), 33 * 4));
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.step(); }), HasSubstr("gathered"));
      EXPECT_THAT(refusal(DS_ERR_STATE, [&] { engine.gather({2}); }), HasSubstr("c is gathered"));
      engine.scatter({1, 2}, 1);
      EXPECT_EQ(values_of(model.tensor("b")), std::vector<float>(33, 6.0f));
      EXPECT_EQ(values_of(model.tensor("c")), counted(700, 3));
      EXPECT_THAT(refusal(DS_ERR_INVALID_ARGUMENT, [&] { (void)values[0].elements(); }),
                  HasSubstr("already destroyed"));
      EXPECT_EQ(engine.step().applied, 1);
    });
  }
}

TEST(Parameters, LocalPartsCoverTheWhole) {
  run_ranks(3, [](Comm& comm) {
    Model model = three_parameters();
    Engine engine(stage_config(3), model, &comm);
    const auto [first, count] = engine.local_range("c");
    Tensor total = Tensor::from(std::vector<int64_t>{count});
    comm.all_reduce(total, DS_REDUCE_SUM);
    EXPECT_EQ(total.item(), 700);
    const std::vector<float> own = values_of(engine.local("c", "parameter"));
    const std::vector<float> all = counted(700, 3);
    EXPECT_EQ(own, std::vector<float>(all.begin() + first, all.begin() + first + count));
    engine.set_local("c", "parameter",
                     Tensor::from(std::vector<float>(static_cast<size_t>(count), 9.0f)));
    EXPECT_EQ(values_of(model.tensor("c")), std::vector<float>(700, 9.0f));
    refusal(DS_ERR_NOT_FOUND, [&] { engine.local("c", "exp_avg_cubed"); });
    refusal(DS_ERR_INVALID_ARGUMENT,
            [&] { engine.set_local("c", "exp_avg", Tensor::from(std::vector<float>(701))); });
  });
}

}  // namespace
}  // namespace capi_test
