#include "engine/plan_timing.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/stopwatch.h"
#include "models/inputs.h"
#include "nn/loss.h"
#include "nn/tape.h"

namespace ds {
namespace {

constexpr int64_t kMostTokens = 1024, kMostLength = 2048;
constexpr int64_t kMostBlock = int64_t{16} << 20;  // elements of a block's weights
constexpr int64_t kMostHead = int64_t{64} << 20;   // and of what stands around them

// Weights and gradients that are made when they are first used, zeros, and stay.
class TimedState final : public nn::ParameterReader, public nn::GradientSink {
 public:
  TimedState(const PlanContext& plan, std::shared_ptr<Device> device)
      : plan_(plan), device_(std::move(device)) {
    weights_.resize(static_cast<size_t>(parameters().size()));
    gradients_.resize(weights_.size());
  }

  // nn::ParameterReader
  Tensor acquire(nn::ParamId id) override { return make(weights_, id, plan_.type); }
  void release(nn::ParamId) noexcept override {}
  DType compute_type() const override { return plan_.type; }
  const nn::ParameterSet& parameters() const override { return *plan_.model.parameters; }

  // nn::GradientSink
  Tensor gradient(nn::ParamId id) override { return gradient_target(id).sum; }
  nn::GradientTarget gradient_target(nn::ParamId id) override {
    if (!parameters()[id].trainable) return {};
    return {make(gradients_, id, DType::kFloat32), true};
  }
  void gradient_complete(nn::ParamId) override {}

 private:
  Tensor make(std::vector<Tensor>& all, nn::ParamId id, DType type) {
    Tensor& one = all[static_cast<size_t>(id)];
    if (!one) one = Tensor::zeros(device_, type, parameters()[id].shape, MemoryTag::kOther);
    return one;
  }

  const PlanContext& plan_;
  const std::shared_ptr<Device> device_;
  std::vector<Tensor> weights_, gradients_;  // by parameter
};

class PassTimer {
 public:
  PassTimer(const PlanContext& plan, int64_t samples, ThreadPool& pool)
      : architecture_(*plan.model.architecture),
        device_(make_cpu_device()),
        ctx_{device_, &pool},
        state_(plan, device_),
        length_(std::min(std::max<int64_t>(plan.length(), 1), kMostLength)),
        samples_(std::clamp<int64_t>(kMostTokens / length_, 1, samples)) {}

  PassSeconds run() {
    const double rest = best(0), whole = best(1);
    const auto tokens = static_cast<double>(samples_ * length_);
    return {std::max(whole - rest, 0.0) / tokens, rest / tokens};
  }

 private:
  // The best of a few passes with so many blocks, after one that does not count.
  double best(int64_t blocks) {
    pass(blocks);
    double least = std::numeric_limits<double>::max();
    for (int run = 0; run < 3; ++run) {
      const Stopwatch watch;
      pass(blocks);
      least = std::min(least, watch.seconds());
    }
    return least;
  }

  void pass(int64_t blocks) {
    const models::ArchitectureInfo& info = architecture_.info();
    const Tensor ids =
        Tensor::zeros(device_, DType::kInt32, {samples_, length_}, MemoryTag::kOther);
    models::Batch batch;
    batch.ids = models::token_ids(ctx_, ids, "token ids", info.vocab_size);
    batch.position_ids = models::position_ids(ctx_, samples_, length_, 0);
    const Tensor labels =
        models::loss_labels(ctx_, models::blank_labels(ctx_, samples_, length_, info), ids, info);
    models::ForwardOptions options;
    options.padded_logits = true;
    nn::Tape tape(ctx_, state_, &state_, {});
    const models::PassContext pass = architecture_.begin_pass(ctx_, batch, options);
    models::ResidualStream stream = architecture_.embed(tape, pass);
    for (int64_t i = 0; i < blocks; ++i) stream = architecture_.block(tape, pass, i, stream);
    const nn::Value logits = architecture_.head(tape, pass, std::move(stream));
    const nn::SummedLoss loss =
        nn::summed_loss(tape, logits, nn::place_labels(labels, device_), info.outputs(), info.loss);
    const Tensor upstream = ctx_.workspace(DType::kFloat32, {});
    *upstream.data<float>() = 1;
    loss.slot->add(ctx_, upstream, true);
    tape.backward();
  }

  const models::Architecture& architecture_;
  const std::shared_ptr<Device> device_;
  const OpContext ctx_;
  TimedState state_;
  const int64_t length_, samples_;
};

// Elements of the first block's weights, and of all that belongs to no block.
std::pair<int64_t, int64_t> sizes_of(const PlanContext& plan) {
  const nn::ParameterSet& parameters = *plan.model.parameters;
  int64_t blocks = 0, all = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    all += parameters[id].shape.elements();
    if (parameters[id].projection) blocks += parameters[id].shape.elements();
  }
  return {blocks / std::max(plan.model.architecture->info().layers, 1), all - blocks};
}

}  // namespace

std::optional<PassSeconds> time_pass(const PlanContext& plan, int64_t samples, ThreadPool& pool) {
  const models::Architecture* const architecture = plan.model.architecture;
  if (architecture == nullptr || architecture->info().head == models::Head::kNone) return {};
  if (plan.on_gpu() || plan.expert_ranks > 1 || architecture->info().layers < 1) return {};
  const auto [block, rest] = sizes_of(plan);
  if (block > kMostBlock || rest > kMostHead) return {};
  return PassTimer(plan, samples, pool).run();
}

}  // namespace ds
