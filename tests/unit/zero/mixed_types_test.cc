// Parameters of a program that keep their own types in one engine: fp32 ones, such as adapters,
// beside a base in the type that the configuration computes in.
#include <gmock/gmock.h>

#include "attached_state.h"
#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

const Json kBf16 = {{"bf16", {{"enabled", true}}}};
const Json kSplit = {{"bf16", {{"enabled", true}, {"split_master", true}}}};
const Json kFp16 = {{"fp16", {{"enabled", true}, {"loss_scale", 1}}}};

// Matrices are the base, biases and the last matrix are fp32.
bool in_fp32(const nn::Parameter& p) {
  return p.name.ends_with(".bias") || p.name == "layer4.weight";
}

struct Kind {
  const char* name;
  Json precision;
  DType type;
  bool frozen;  // the base
};
const Kind kKinds[] = {{"Bf16", kBf16, DType::kBFloat16, false},
                       {"Bf16Frozen", kBf16, DType::kBFloat16, true},
                       {"Split", kSplit, DType::kBFloat16, false},
                       {"SplitFrozen", kSplit, DType::kBFloat16, true},
                       {"Fp16", kFp16, DType::kFloat16, false}};

OwnJob mixed_job(const Kind& kind, int world, int stage, const Json& zero = Json::object(),
                 const Json& more = Json::object()) {
  OwnJob job{world, with(own_config(stage, zero), kind.precision)};
  job.config.merge_patch(more);
  job.change = [kind](nn::Parameter& p) {
    p.dtype = in_fp32(p) ? DType::kFloat32 : kind.type;
    p.trainable = in_fp32(p) || !kind.frozen;
    return true;
  };
  return job;
}

class MixedTypes : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, MixedTypes, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

// A scope of the world fetches a layer's parameters of both types together, and finds each in its
// own (own_world.h).
TEST_P(MixedTypes, EveryStageHasTheBitsOfStageZero) {
  const Json more = {{"communication_data_type", "fp32"},
                     {"gradient_clipping", 0.5},
                     {"gradient_accumulation_steps", 2}};
  for (const int world : {1, 3}) {
    const Trained plain = train_own(mixed_job(GetParam(), world, 0, Json::object(), more));
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool small : {false, true}) {
        SCOPED_TRACE(str_cat("world ", world, ", stage ", stage, small ? ", small" : ", large"));
        const Json zero = {{"overlap_comm", small},
                           {"reduce_bucket_size", small ? 900 : 1'000'000},
                           {"stage3_param_persistence_threshold", small ? 0 : 30},
                           {"enable_sanity_checks", small}};
        const Trained other = train_own(mixed_job(GetParam(), world, stage, zero, more));
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.norms, plain.norms);
      }
    }
  }
}

// Weights and optimizer states after three steps, by name.
std::map<std::string, std::vector<float>> values_of(const OwnJob& job) {
  std::map<std::string, std::vector<float>> out;
  std::mutex mutex;
  run_ranks(job.world, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(job.config), own_model(job), comm);
    for (int step = 0; step < 3; ++step) {
      run_own_batch(engine, job, comm->rank(), step);
      EXPECT_TRUE(engine.step().applied);
    }
    const nn::ParameterSet& set = engine.model()->parameters();
    for (nn::ParamId id = 0; id < set.size(); ++id) {
      const std::string& name = set[id].name;
      const std::vector<float> weights = flat(engine.model()->get(name));
      std::vector<float> states;
      for (const char* const state : {"exp_avg", "exp_avg_sq"}) {
        if (!set[id].trainable) continue;
        const std::vector<float> one = flat(engine.values().optimizer_state(name, state));
        states.insert(states.end(), one.begin(), one.end());
      }
      const std::lock_guard lock(mutex);
      if (comm->rank() != 0) continue;
      out[name] = weights;
      out[name + " states"] = states;
    }
  });
  return out;
}

// The types of gradients on their way are those of each engine too.
TEST_P(MixedTypes, HaveTheBitsOfSeparateEngines) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Json zero = {{"reduce_bucket_size", 900}, {"stage3_param_persistence_threshold", 0}};
    const OwnJob mixed = mixed_job(GetParam(), 2, stage, zero, {{"gradient_clipping", 0}});
    const auto values = values_of(mixed);
    for (const bool fp32 : {false, true}) {
      OwnJob alone = mixed;
      alone.change = [&mixed, fp32](nn::Parameter& p) {
        return mixed.change(p) && in_fp32(p) == fp32;
      };
      if (fp32) {
        alone.config.erase("bf16");
        alone.config.erase("fp16");
      }
      for (const auto& [name, expected] : values_of(alone)) {
        EXPECT_TRUE(same_bits(values.at(name), expected)) << name;
      }
    }
  }
}

// Saved at one stage, gone on with at another, and by another number of ranks.
TEST_P(MixedTypes, CheckpointsGoOn) {
  const Json more = {{"communication_data_type", "fp32"}};
  const auto job_at = [&](int world, int stage) {
    return mixed_job(GetParam(), world, stage, {{"reduce_bucket_size", 900}}, more);
  };
  std::vector<float> half, unbroken;
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Folder folder;
    const OwnJob job = job_at(2, stage);
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      run_own_batch(engine, job, comm->rank(), 0);
      engine.step();
      engine.save(folder.path(), "half");
      const std::vector<float> first = all_weights(engine);
      run_own_batch(engine, job, comm->rank(), 1);
      engine.step();
      const std::vector<float> second = all_weights(engine);
      if (comm->rank() != 0) return;
      half = first;
      unbroken = second;
    });
    for (const int world : {1, 2, 3}) {
      const OwnJob next = job_at(world, 3 - stage);
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(next.config), own_model(next), comm);
        engine.load(folder.path(), "half");
        const std::vector<float> loaded = all_weights(engine);
        EXPECT_TRUE(comm->rank() != 0 || same_bits(loaded, half)) << "world " << world;
        run_own_batch(engine, next, comm->rank(), 1);  // the types and values that it fetches
        EXPECT_TRUE(engine.step().applied);
        const std::vector<float> last = all_weights(engine);
        if (world != 2 || comm->rank() != 0) return;
        EXPECT_TRUE(same_bits(last, unbroken));
      });
    }
  }
}

// What is set of an fp32 parameter is computed with, all of its bits.
TEST_P(MixedTypes, ValuesThatAreSetKeepTheirBits) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const OwnJob job = mixed_job(GetParam(), 2, stage, {{"stage3_param_persistence_threshold", 0}});
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      const int64_t ids[] = {9};  // layer4.bias
      const auto fetched = [&] {
        const std::vector<float> out = numbers(engine.scopes().fetch(ids)[0]);
        engine.scopes().release(ids);
        return out;
      };
      const float third = 1.0f / 3;  // not in 8 bits, nor in 11
      const std::vector<Tensor> values = engine.scopes().gather(ids);
      for (int64_t i = 0; i < values[0].elements(); ++i) values[0].data<float>()[i] = third;
      engine.scopes().scatter(ids, 0);
      EXPECT_EQ(fetched(), std::vector<float>(23, third));
      const zero::FlatRange own = engine.values().local_range("layer4.bias");
      const Tensor part =
          Tensor::empty(make_cpu_device(), DType::kFloat32, {own.elements()}, MemoryTag::kOther);
      for (int64_t i = 0; i < own.elements(); ++i) part.data<float>()[i] = -third;
      engine.values().set_local("layer4.bias", "parameter", part);
      EXPECT_EQ(fetched(), std::vector<float>(23, -third));
      EXPECT_EQ(flat(engine.model()->get("layer4.bias")), std::vector<float>(23, -third));
    });
  }
}

// Second copies inside nodes (hpZ) and weights in 8 bits (qwZ) have both types, too.
TEST(MixedTypes, WaysOfGatheringTakeBothTypes) {
  CommOptions nodes;
  nodes.ranks_per_node = 2;
  const Json more = {{"communication_data_type", "fp32"}};
  const Json zero = {{"reduce_bucket_size", 900}, {"stage3_param_persistence_threshold", 0}};
  const OwnJob plain = mixed_job(kKinds[0], 4, 3, zero, more);
  const Trained expected = train_own(plain, nodes);
  OwnJob second = plain;
  second.config["zero_optimization"]["zero_hpz_partition_size"] = 2;
  EXPECT_TRUE(same_bits(train_own(second, nodes).weights, expected.weights));
  OwnJob codes = plain;
  codes.config["zero_optimization"]["zero_quantized_weights"] = true;
  // Weights of at most 1 in 8 bits are off by 1/256; so are gradients, by a quarter of it.
  EXPECT_LT(largest_difference(train_own(codes, nodes).weights, expected.weights), 0.05);
}

// Lent memory of an fp32 parameter receives all bits, whatever the stage.
TEST(MixedTypes, LentMemoryReceivesItsOwnType) {
  for (const Json& precision : {kBf16, kSplit}) {
    for (const int stage : {0, 1, 2}) {
      SCOPED_TRACE(str_cat("stage ", stage));
      const OwnJob job = mixed_job({"", precision, DType::kBFloat16, false}, 2, stage);
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        const auto model = own_model(job);
        const nn::ParamId id = model->parameters().find("layer1.bias");
        const Tensor memory =
            Tensor::zeros(make_cpu_device(), DType::kFloat32, {23}, MemoryTag::kOther);
        model->weights().borrowed().add(id, memory);
        Engine engine(dump_json(job.config), model, comm);
        run_own_batch(engine, job, comm->rank(), 0);
        EXPECT_TRUE(engine.step().applied);
        EXPECT_EQ(flat(memory), flat(model->get("layer1.bias")));
      });
    }
  }
}

// The configuration's type is what an engine says, whatever its parameters are.
TEST(MixedTypes, OtherTypesAreRefusedAndTheEngineTellsItsOwn) {
  OwnJob job = mixed_job(kKinds[0], 1, 0);
  EXPECT_EQ(Engine(dump_json(job.config), own_model(job), nullptr).compute_type(),
            DType::kBFloat16);
  job.change = [](nn::Parameter&) { return true; };  // all fp32
  Engine engine(dump_json(job.config), own_model(job), nullptr);
  EXPECT_EQ(engine.compute_type(), DType::kBFloat16);
  EXPECT_TRUE(train_state(*engine.model()).weights().computes_with_master(0));
  job.dtype = DType::kFloat16;
  EXPECT_THAT(
      error_of(Code::kConfig, [&] { Engine(dump_json(job.config), own_model(job), nullptr); }),
      HasSubstr("layer0.weight"));
}

}  // namespace
}  // namespace ds::zero_test
