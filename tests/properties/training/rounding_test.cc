// What ranks keep between steps beside weights and moments: the errors of quantised gradients, and
// the buffers that gradients travel in.
#include "training_world.h"
#include "unit/zero/traffic_world.h"

namespace ds::properties {
namespace {

// A step that is skipped leaves no error to be sent later: what its overflow made of them is gone,
// and the run goes on as one that was loaded from a checkpoint of that moment, which holds none.
TEST(KeptErrors, EndWithASkippedStep) {
  const Json zero = {{"zero_quantized_gradients", true},
                     {"zeropp_loco_param", {{"err_beta", 0.2}}},
                     {"reduce_bucket_size", 20000}};
  const Job run{4, zero_config(3, zero, {{"scheduler", nullptr}}), 0, model_config(0)};
  const Folder folder;
  run_ranks(
      4,
      [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(run, comm);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine->train_batch().applied);
        // A gradient of one parameter on one rank is too large for a number.
        engine->backward(engine->forward(random_batch(comm->rank())));
        const Tensor infinite = engine->gradients().get("h.0.attn.c_attn.bias");
        std::fill(infinite.data<float>(), infinite.data<float>() + infinite.elements(), INFINITY);
        engine->gradients().set("h.0.attn.c_attn.bias", infinite);
        EXPECT_FALSE(engine->step().applied);
        engine->save(folder.path(), "a");
        auto loaded = make_rank_engine(run, comm);
        loaded->load(folder.path(), "a");
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(engine->train_batch().grad_norm, loaded->train_batch().grad_norm);
        }
        EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*loaded)));
      },
      two_nodes());
}

// However many buckets there are, and with overlap, gradients are never in more than a few at once.
TEST(BucketsUnderWay, AreFew) {
  const int64_t bucket = 3000;
  for (const int stage : {1, 2}) {
    SCOPED_TRACE(stage);
    const Json model = with(model_config(0), {{"n_layer", 6}});
    const Job run{2, zero_config(stage, {{"overlap_comm", true}, {"reduce_bucket_size", bucket}}),
                  0, model};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      const MemoryAccount& account = engine->model()->device()->account();
      const int64_t before = account.now(MemoryTag::kCommunication);
      for (int i = 0; i < 2; ++i) engine->train_batch();
      // The largest parameter is a bucket of its own.
      const int64_t largest = 4 * std::max<int64_t>(bucket, 32 * 128);
      EXPECT_LE(account.peak(MemoryTag::kCommunication) - before, 3 * largest);
    });
  }
}

}  // namespace
}  // namespace ds::properties
