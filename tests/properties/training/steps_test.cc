// Which steps are applied.
#include "training_world.h"

namespace ds::properties {
namespace {

// The scaler that a checkpoint held goes on within the bounds of the configuration at hand.
TEST(ResumedScaler, HasTheHysteresisOfTheConfiguration) {
  const auto config = [](int hysteresis) {
    return with(base_config(), {{"scheduler", nullptr},
                                {"fp16",
                                 {{"enabled", true},
                                  {"initial_scale_power", 8},
                                  {"loss_scale_window", 100},
                                  {"hysteresis", hysteresis}}}});
  };
  const Folder folder;
  make_engine(config(5))->save(folder.path(), "patient");
  const auto overflow = [](Engine& engine) {
    const Tensor ids = ids_tensor(std::vector<int64_t>(32, 7), 4);
    for (int micro = 0; micro < 2; ++micro) {
      engine.backward(engine.forward({ids, ids, {}, {}, {}}));
      if (micro == 1) {
        const Tensor bad = engine.gradients().get("ln_f.weight");
        bad.data<float>()[0] = INFINITY;
        engine.gradients().set("ln_f.weight", bad);
      }
      const StepReport report = engine.step();
      EXPECT_FALSE(report.applied);
    }
    return engine.loss_scale();
  };
  const auto strict = make_engine(config(2));
  strict->load(folder.path(), "patient");
  EXPECT_EQ(overflow(*strict), 256) << "the first is forgiven";
  EXPECT_EQ(overflow(*strict), 128) << "and no more than that";
  const auto patient = make_engine(config(5));
  patient->load(folder.path(), "patient");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(overflow(*patient), 256);
  EXPECT_EQ(overflow(*patient), 128);
}

// A step whose norm is above the threshold changes nothing but the counters; the loss scale, the
// schedule and the moments take no notice. Every rank skips it, though one alone has the gradient.
TEST(LargeNorms, AreSkippedByAllRanks) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", precision));
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Json config = own_config(stage, Json::object(),
                                 {{"gradient_clipping", 1}, {"gradient_skip_norm", 40.0}});
        config["scheduler"] = {{"type", "WarmupLR"},
                               {"params", {{"warmup_min_lr", 1e-3}, {"warmup_num_steps", 10}}}};
        if (std::string(precision) != "fp32") config[precision] = {{"enabled", true}};
        if (std::string(precision) == "bf16") config[precision]["check_grad_overflow"] = false;
        if (std::string(precision) == "fp16") {
          config[precision]["initial_scale_power"] = 4;
          config[precision]["loss_scale_window"] = 100;
        }
        const OwnJob job{2, config};
        Engine engine(dump_json(config), own_model(job), comm);
        const auto give = [&](float value) {
          const std::vector<int64_t> ids = {0};
          const Tensor whole = engine.scopes().fetch(ids)[0];
          engine.scopes().release(ids);
          Tensor gradient =
              Tensor::empty(make_cpu_device(), DType::kFloat32, whole.shape(), MemoryTag::kOther);
          std::fill(gradient.data<float>(), gradient.data<float>() + gradient.elements(), 0.0f);
          gradient.data<float>()[5] = value * static_cast<float>(engine.loss_scale());
          const Tensor* const one = &gradient;
          engine.gradients().add(ids, {&one, 1});
          return engine.step();
        };
        // The mean of two ranks.
        StepReport report = give(comm->rank() == 0 ? 60.0f : 0.0f);
        EXPECT_TRUE(report.applied);
        EXPECT_NEAR(report.grad_norm, 30, 1e-3);
        const std::vector<float> weights = all_weights(engine), values = optimizer_values(engine);
        const Counters before = counters(engine);
        report = give(comm->rank() == 0 ? 90.0f : 0.0f);
        EXPECT_FALSE(report.applied);
        EXPECT_EQ(report.skip_reason, SkipReason::kLargeNorm);
        EXPECT_NEAR(report.grad_norm, 45, 0.1);
        EXPECT_EQ(report.first_bad_element, -1);
        EXPECT_TRUE(same_bits(all_weights(engine), weights));
        EXPECT_TRUE(same_bits(optimizer_values(engine), values));
        const Counters after = counters(engine);
        EXPECT_EQ(after.skipped, before.skipped + 1);
        EXPECT_EQ(after.optimizer_steps, before.optimizer_steps);
        EXPECT_EQ(after.rates, before.rates);
        EXPECT_EQ(after.loss_scale, before.loss_scale);
        EXPECT_TRUE(give(1).applied);
      });
    }
  }
}

// Too many of them in a row end training, with the reason.
TEST(LargeNorms, InARowEndTraining) {
  Json config = with(base_config(), {{"gradient_skip_norm", 1e-9}, {"max_consecutive_skips", 3}});
  const auto engine = make_engine(config);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(engine->train_batch().skip_reason, SkipReason::kLargeNorm);
  }
  const std::string why = error_of(Code::kState, [&] { engine->train_batch(); });
  EXPECT_NE(why.find("above gradient_skip_norm"), std::string::npos) << why;
}

// Evaluation has batches of its own size: the number of samples follows from it, the mean over a
// whole data set does not.
TEST(EvaluationBatches, HaveTheirOwnSize) {
  const auto data = periodic_data();
  const int64_t samples = data->sample_count();
  const auto engine_of = [](Json size) {
    return make_engine(with(base_config(), {{"eval_micro_batch_size_per_gpu", std::move(size)}}),
                       model_config(0));
  };
  const auto plain = engine_of(nullptr), one = engine_of(1), seven = engine_of(7);
  const auto batches_of = [&](Engine& engine) {
    int64_t batches = 0;
    engine.control().set_progress([&](const char*, int64_t done, int64_t) {
      batches = done + 1;
      return true;
    });
    const double loss = engine.evaluate(*data, 0);
    engine.control().set_progress({});
    return std::pair(batches, loss);
  };
  const auto [four_batches, four] = batches_of(*plain);
  EXPECT_EQ(four_batches, (samples + 3) / 4);
  EXPECT_EQ(batches_of(*one).first, samples);
  EXPECT_EQ(batches_of(*seven).first, (samples + 6) / 7);
  EXPECT_NEAR(batches_of(*one).second, four, 1e-6 * four);
  EXPECT_NEAR(batches_of(*seven).second, four, 1e-6 * four);
  // So many batches are so many samples: eight of one sample are two of four.
  EXPECT_NEAR(one->evaluate(*data, 8), plain->evaluate(*data, 2), 1e-6 * four);
  EXPECT_NE(one->evaluate(*data, 2), plain->evaluate(*data, 2));
  // Training keeps its own.
  EXPECT_EQ(one->train_batch().loss, plain->train_batch().loss);
}

// Several data sets are evaluated one after another, each in full, by every number of ranks.
TEST(EvaluationBatches, OfSeveralDataSetsAreEachTheirOwn) {
  const auto first = periodic_data(16), second = periodic_data(24);
  const auto alone = make_engine(base_config(), model_config(0));
  const double of_first = alone->evaluate(*first, 0), of_second = alone->evaluate(*second, 0);
  EXPECT_NE(of_first, of_second);
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine({2, step_config(3, 2), 0, model_config(0)}, comm);
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(engine->evaluate(*second, 0), of_second, 1e-6 * of_second);
      EXPECT_NEAR(engine->evaluate(*first, 0), of_first, 1e-6 * of_first);
    }
  });
}

}  // namespace
}  // namespace ds::properties
