// Parameters of a program's own, spread over ranks with a GPU each: the program fetches weights
// from its GPU and gives gradients that lie there or on the host.
#include <gmock/gmock.h>

#include "cuda/zero_world.h"
#include "unit/zero/own_world.h"

namespace ds::gpu_zero {
namespace {

using zero_test::noise;
using zero_test::own_gradient;
using zero_test::OwnJob;

OwnJob own_job(int stage, const Json& more = Json::object(), DType dtype = DType::kFloat32) {
  OwnJob job{2, zero_config(stage, {{"reduce_bucket_size", 500}}, more)};
  job.layers = 3;
  job.width = 13;
  job.dtype = dtype;
  return job;
}

std::unique_ptr<Engine> own_engine(Where where, const OwnJob& job,
                                   const std::shared_ptr<Communicator>& comm) {
  const auto model = zero_test::own_model(job);
  if (where == Where::kGpus) model->set_device(make_cuda_device(comm->rank()));
  return std::make_unique<Engine>(dump_json(job.config), model, comm);
}

// One micro batch: every parameter is fetched, and gets a gradient that follows from what is seen.
// Of every second one it lies where the weight does.
void run_batch(Engine& engine, int rank, int64_t micro) {
  const nn::ParameterSet& set = engine.model()->parameters();
  const std::shared_ptr<Device> host = engine.model()->host();
  for (nn::ParamId id = set.size() - 1; id >= 0; --id) {
    const int64_t index = id;
    const Tensor weight = engine.scopes().fetch({&index, 1}).front();
    EXPECT_EQ(weight.dtype(), set[id].dtype);
    const Tensor gradient = Tensor::empty(host, DType::kFloat32, weight.shape(), MemoryTag::kOther);
    const std::vector<float> g = own_gradient(zero_test::numbers(copied_to_host(weight, host)),
                                              zero_test::number_of(set[id]), rank, micro);
    std::copy(g.begin(), g.end(), gradient.data<float>());
    const Tensor given = id % 2 == 0 ? to_device(gradient, engine.model()->device()) : gradient;
    const Tensor* const pointer = &given;
    engine.gradients().add({&index, 1}, {&pointer, 1});
    engine.scopes().release({&index, 1});
  }
}

Trained train_own(Where where, const OwnJob& job) {
  Trained out;
  const int64_t accumulation = job.config.value("gradient_accumulation_steps", 1);
  run_ranks(
      job.world,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = own_engine(where, job, comm);
        Trained mine;
        for (int64_t i = 0; i < 3 * accumulation; ++i) {
          run_batch(*engine, comm->rank(), i);
          const StepReport report = engine->step();
          if ((i + 1) % accumulation == 0) mine.norms.push_back(report.grad_norm);
        }
        mine.weights = weights_of(*engine);
        mine.states = states_of(*engine);
        if (comm->rank() == 0) out = std::move(mine);
      },
      options_of(where));
  return out;
}

struct OwnVariant {
  const char* name;
  Json more;
  DType dtype;
  double weight;  // largest difference from ranks on the CPU
};
void PrintTo(const OwnVariant& one, std::ostream* out) { *out << one.name; }

class GpuOwnParameters : public GpuZero, public ::testing::WithParamInterface<OwnVariant> {};

TEST_P(GpuOwnParameters, TrainAsRanksOnTheCpuDo) {
  const OwnVariant& one = GetParam();
  const Trained cpu = train_own(Where::kCpu, own_job(1, one.more, one.dtype));
  EXPECT_NE(cpu.norms[0], cpu.norms[1]);
  std::optional<Trained> first;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Trained gpus = train_own(Where::kGpus, own_job(stage, one.more, one.dtype));
    EXPECT_LT(largest_difference(gpus.weights, cpu.weights), one.weight);
    if (kSumsInOrder && one.more.empty()) {
      EXPECT_EQ(gpus.norms[0], cpu.norms[0]);
    }
    if (first && kSumsInOrder) {
      EXPECT_TRUE(same_bits(gpus.weights, first->weights));
      EXPECT_TRUE(same_bits(gpus.states, first->states));
      EXPECT_EQ(gpus.norms, first->norms);
    }
    if (!first) first = gpus;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, GpuOwnParameters,
    ::testing::Values(
        OwnVariant{"Fp32", Json::object(), DType::kFloat32, 1e-5},
        // Stage 3 reduces while gradients come, in the type of communication.
        OwnVariant{"Bf16",
                   {{"bf16", {{"enabled", true}}}, {"communication_data_type", "fp32"}},
                   DType::kBFloat16,
                   2e-2},
        OwnVariant{"Accumulated", {{"gradient_accumulation_steps", 2}}, DType::kFloat32, 1e-5}),
    [](const auto& one) { return std::string(one.param.name); });

// Memory that the program lends gets the new weights, and views of gradients are what is reduced.
TEST_F(GpuZero, OwnParametersInMemoryOfTheProgram) {
  for (const int stage : {0, 1}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const OwnJob job = own_job(stage);
    const auto train_with = [&](bool views) {
      std::vector<float> out;
      run_ranks(
          job.world,
          [&](const std::shared_ptr<Communicator>& comm) {
            const auto model = zero_test::own_model(job);
            const std::shared_ptr<Device> gpu = make_cuda_device(comm->rank());
            model->set_device(gpu);
            const Shape shape = model->parameters()[1].shape;
            const Tensor lent = Tensor::zeros(gpu, DType::kFloat32, shape, MemoryTag::kOther);
            model->weights().borrowed().add(1, lent);
            Engine engine(dump_json(job.config), model, comm);
            const Tensor gradient =
                Tensor::empty(model->host(), DType::kFloat32, shape, MemoryTag::kOther);
            for (int64_t i = 0; i < gradient.elements(); ++i) {
              gradient.data<float>()[i] = noise(i, comm->rank());
            }
            if (views) {
              copy_tensor(gradient, engine.gradients().view("layer0.bias"));
            } else {
              const int64_t index = 1;
              const Tensor* const pointer = &gradient;
              engine.gradients().add({&index, 1}, {&pointer, 1});
            }
            EXPECT_TRUE(engine.step().applied);
            gpu->default_stream().synchronize();
            const std::vector<float> weights = flat(engine.model()->get("layer0.bias"));
            EXPECT_TRUE(same_bits(flat(copied_to_host(lent, model->host())), weights));
            if (comm->rank() == 0) out = weights;
          },
          nccl_options());
      return out;
    };
    EXPECT_TRUE(same_bits(train_with(true), train_with(false)));
  }
}

}  // namespace
}  // namespace ds::gpu_zero
