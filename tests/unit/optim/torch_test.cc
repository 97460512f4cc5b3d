// Optimizers beside torch.optim: vectors that tests/parity/gen_optimizer_vectors.py recorded.
#include "base/file.h"
#include "optim/groups.h"
#include "test_paths.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

// Weights within 1e-6 of torch's double-precision results after 1, 2, 10 and 100 steps.
TEST(Torch, WeightsAgree) {
  const Json document = parse_json(read_text_file(test_data().string() + "/optim/torch_optim.json"),
                                   "vectors", Code::kCorrupt);
  int compared = 0;
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  for (const Json& one : document.at("cases")) {
    SCOPED_TRACE(dump_json(one.at("optimizer")));
    const OptimizerConfig config = testing::parse_optimizer(dump_json(one.at("optimizer")));
    std::vector<int64_t> sizes;
    for (const Json& size : one.at("shape")) sizes.push_back(size.get<int64_t>());
    const Shape shape{std::span<const int64_t>(sizes)};
    const int64_t n = shape.elements();
    nn::Parameter parameter{"w", shape};
    const WidthFactors factors = width_factors(config, parameter);
    const auto optimizer = make_optimizer(
        config, {{"w", shape, 0, n, 0, true, 0, 0, factors.rate, factors.decay}}, ctx.device);
    const auto make = [&](const Json& values) {
      Tensor out = Tensor::empty(ctx.device, DType::kFloat32, {n}, MemoryTag::kOther);
      for (int64_t i = 0; i < n; ++i) {
        out.data<float>()[i] = values.at(static_cast<size_t>(i)).get<float>();
      }
      return out;
    };
    FlatTensors flat;
    flat.masters = make(document.at("start"));
    UpdateStep step;
    step.rates.assign(optimizer->base_rates().begin(), optimizer->base_rates().end());
    for (const Json& gradient : document.at("gradients")) {
      flat.gradients = make(gradient);
      optimizer->step(ctx, step, flat);
      const auto recorded = one.at("weights").find(std::to_string(optimizer->steps()));
      if (recorded == one.at("weights").end()) continue;
      for (int64_t i = 0; i < n; ++i) {
        const double expected = recorded->at(static_cast<size_t>(i)).get<double>();
        EXPECT_NEAR(flat.masters.memory().data<float>()[i], expected, 1e-6)
            << "element " << i << " after " << optimizer->steps() << " steps";
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 38 * 4 * 35);
}

}  // namespace
}  // namespace ds::optim
