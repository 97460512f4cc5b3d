// Buckets of gradients by themselves, reduced over one rank: when they are sent and taken.
#include "zero/gradient_reducer.h"

#include <gmock/gmock.h>

#include "base/thread_pool.h"
#include "device/device.h"
#include "mesh/mesh.h"

namespace ds::zero {
namespace {

// What comes after a bucket was sent is a gradient of its own, also while the first is on its way.
TEST(GradientReducer, ABucketThatWasSentIsSentAgain) {
  constexpr int64_t kSize = 4;
  nn::ParameterSet parameters;
  nn::Parameter p;
  p.name = "p";
  p.shape = {kSize};
  parameters.add(p);
  const FlatLayout layout(parameters);
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  std::vector<float> taken;
  GradientReducer reducer(ctx, parameters, layout, {{lone_group()}}, {.whole = true, .eager = true},
                          [&](const Bucket&, const Tensor& average) {
                            taken.push_back(*average.data<float>());
                            return nullptr;
                          });
  for (const float value : {1.0F, 2.0F, 4.0F}) {
    const nn::GradientTarget target = reducer.target(0);
    EXPECT_FALSE(target.add) << value;
    ASSERT_EQ(target.sum.elements(), kSize);
    std::fill_n(target.sum.data<float>(), kSize, value);
    reducer.complete(0);
  }
  reducer.finish();
  EXPECT_THAT(taken, ::testing::ElementsAre(1, 2, 4));
}

}  // namespace
}  // namespace ds::zero
