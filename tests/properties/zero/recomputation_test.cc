// Activation checkpointing at every stage, around parameters that are frozen or adapted.
#include "models/adapters.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

struct Frozen {
  const char* name;
  void (*prepare)(models::Model&);
};

void freeze_mlp(models::Model& model) {
  models::set_trainable(model, {"h.0.mlp.*", "h.1.mlp.*"}, false);
}
// The first block's input needs no gradient.
void freeze_embeddings(models::Model& model) {
  models::set_trainable(model, {"wte.weight", "wpe.weight"}, false);
}
void freeze_first_block(models::Model& model) {
  models::set_trainable(model, {"wte.weight", "wpe.weight", "h.0.*"}, false);
}
void train_first_bias(models::Model& model) {
  models::set_trainable(model, {"*"}, false);
  models::set_trainable(model, {"h.0.ln_1.bias"}, true);
}
void train_adapters(models::Model& model) {
  models::LoraOptions lora;
  lora.r = 3;
  lora.dropout = 0.1;
  lora.target_modules = {"all-linear"};
  lora.seed = 5;
  models::add_lora(model, lora);
}

const Frozen kFrozen[] = {{"MlpFrozen", freeze_mlp},
                          {"EmbeddingsFrozen", freeze_embeddings},
                          {"FirstBlockFrozen", freeze_first_block},
                          {"FirstBiasAlone", train_first_bias},
                          {"Adapters", train_adapters}};

class Recomputation : public ::testing::TestWithParam<std::tuple<Frozen, const char*>> {
 protected:
  Json config(int stage, bool recompute, int64_t threshold) const {
    return zero_config(stage,
                       {{"reduce_bucket_size", 3000},
                        {"stage3_param_persistence_threshold", threshold},
                        {"stage3_prefetch_bucket_size", 5000},
                        {"stage3_max_reuse_distance", 0}},
                       patched({{"activation_checkpointing", {{"enabled", recompute}}},
                                {"gradient_accumulation_steps", 2},
                                {"scheduler", nullptr}},
                               {precision_config(std::get<1>(GetParam()))}));
  }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, Recomputation,
                         Combine(::testing::ValuesIn(kFrozen), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat(std::get<0>(one.param).name, "_", std::get<1>(one.param));
                         });

// Losses, norms and weights have the bits of stage 0 without recomputation.
TEST_P(Recomputation, ChangesNoBit) {
  Job job{2, config(0, false, 0), 2};
  job.prepare = std::get<0>(GetParam()).prepare;
  const Trained expected = train(job);
  for (const double norm : expected.norms) EXPECT_GT(norm, 0);
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool recompute : {false, true}) {
      for (const int64_t threshold : {0, 1'000'000}) {
        // Below stage 3 nothing is gathered.
        if (stage < 3 && (threshold > 0 || !recompute)) continue;
        SCOPED_TRACE(str_cat("stage ", stage, ", recompute ", recompute, ", ", threshold));
        job.config = config(stage, recompute, threshold);
        const Trained trained = train(job);
        EXPECT_TRUE(same_bits(trained.weights, expected.weights));
        EXPECT_EQ(trained.losses, expected.losses);
        EXPECT_EQ(trained.norms, expected.norms);
      }
    }
  }
}

// After a backward nothing stays gathered but what is small enough to stay: not even frozen weights
// that backward itself had no use for.
TEST_P(Recomputation, ReleasesWhatItGathered) {
  for (const int64_t threshold : {0, 1'000'000}) {
    Job job{2, config(3, true, threshold)};
    job.prepare = std::get<0>(GetParam()).prepare;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(job, comm);
      const auto now = [&] {
        return engine->model()->device()->account().now(MemoryTag::kCommunication);
      };
      const int64_t elements = engine->model()->parameters().elements();
      const int64_t bytes = std::get<1>(GetParam()) == std::string("fp32") ? 4 : 2;
      int64_t kept = -1;
      for (int64_t i = 0; i < 4; ++i) {
        engine->backward(engine->forward(token_batch(comm->rank(), i)));
        const int64_t after = now();
        engine->step();
        if (threshold == 0) {
          // Buffers of gradients alone: three of a bucket, in fp32 and in what travels.
          EXPECT_LE(after, 3 * 3100 * 8);
          if (kept >= 0) {
            EXPECT_EQ(after, kept);
          }
          kept = after;
        } else {
          EXPECT_GE(after, bytes * elements);
        }
      }
    });
  }
}

// Evaluation keeps no segment's input, wherever those of training would wait: its activations do
// not grow with the layers.
TEST(Recomputing, EvaluationKeepsNothing) {
  for (const int stage : {0, 3}) {
    int64_t peaks[2];
    for (const int deep : {0, 1}) {
      Job job{2, zero_config(stage, Json::object(),
                             {{"activation_checkpointing",
                               {{"enabled", true}, {"cpu_checkpointing", true}}}})};
      job.model["n_layer"] = deep == 0 ? 2 : 8;
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(job, comm);
        engine->train_batch();
        MemoryAccount& account = engine->model()->device()->account();
        account.reset_peaks();
        const int64_t before = account.now(MemoryTag::kActivations);
        engine->evaluate(*periodic_data(), 1);
        EXPECT_EQ(account.now(MemoryTag::kActivations), before);
        if (comm->rank() == 0) peaks[deep] = account.peak(MemoryTag::kActivations) - before;
      });
    }
    EXPECT_GT(peaks[0], 0);
    EXPECT_EQ(peaks[1], peaks[0]) << "stage " << stage;
  }
}

}  // namespace
}  // namespace ds::properties
