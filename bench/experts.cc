// experts: a layer of experts, forward and backward, beside a gated MLP of the same FLOP, and with
// all tokens at one expert beside tokens that are spread evenly.
//
//   experts fp32|bf16 [TOKENS 4096] [WIDTH 768] [INNER 1536] [EXPERTS 8] [CHOICES 2] [THREADS 2]
//
// Medians of rounds in turn; processor time beside it, for machines with other work.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "base/philox.h"
#include "nn/moe.h"
#include "ops/elementwise.h"

namespace {

using namespace ds;  // NOLINT: a program

// Weights in the compute type, and gradients that are written anew in every pass.
class Memory : public nn::ParameterReader, public nn::GradientSink {
 public:
  Memory(const OpContext& ctx, DType type) : ctx_(ctx), type_(type) {}

  nn::ParamId matrix(int64_t rows, int64_t columns) {
    nn::Parameter p;
    p.name = "w" + std::to_string(set_.size());
    p.shape = {rows, columns};
    const Tensor wide = Tensor::empty(ctx_.device, DType::kFloat32, p.shape, MemoryTag::kOther);
    const RandomStream stream{7, 0, static_cast<uint32_t>(set_.size())};
    const float bound = 1 / std::sqrt(static_cast<float>(columns));
    for (int64_t i = 0; i < wide.elements(); ++i) {
      const float u = uniform_from_bits(stream.bits(static_cast<uint64_t>(i)));
      wide.data<float>()[i] = (2 * u - 1) * bound;
    }
    Tensor made = Tensor::empty(ctx_.device, type_, p.shape, MemoryTag::kOther);
    ops::cast(ctx_, wide, made);
    weights_.push_back(made);
    gradients_.push_back(Tensor::zeros(ctx_.device, DType::kFloat32, p.shape, MemoryTag::kOther));
    return set_.add(std::move(p));
  }
  Tensor& weight(nn::ParamId id) { return weights_[static_cast<size_t>(id)]; }

  Tensor acquire(nn::ParamId id) override { return weight(id); }
  void release(nn::ParamId) noexcept override {}
  DType compute_type() const override { return type_; }
  const nn::ParameterSet& parameters() const override { return set_; }
  Tensor gradient(nn::ParamId id) override {
    Tensor& g = gradients_[static_cast<size_t>(id)];
    ops::fill(ctx_, 0, g);
    return g;
  }
  nn::GradientTarget gradient_target(nn::ParamId id) override {
    return {gradients_[static_cast<size_t>(id)], false};
  }
  void gradient_complete(nn::ParamId) override {}

 private:
  OpContext ctx_;
  DType type_;
  nn::ParameterSet set_;
  std::vector<Tensor> weights_, gradients_;
};

nn::FeedForward mlp(Memory& memory, int64_t width, int64_t inner) {
  nn::FeedForward made;
  made.gate.weight = memory.matrix(inner, width);
  made.up.weight = memory.matrix(inner, width);
  made.down.weight = memory.matrix(width, inner);
  return made;
}

struct Seconds {
  double wall, processor;
};
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Layer>
Seconds pass(const OpContext& ctx, Memory& memory, const Tensor& x, const Tensor& dy,
             const Layer& layer) {
  const auto begin = std::chrono::steady_clock::now();
  const double used = processor_seconds();
  nn::Tape tape(ctx, memory, &memory, {});
  const nn::Value in{x, std::make_shared<nn::GradientSlot>()};
  const nn::Value y = layer(tape, in);
  y.slot->add(ctx, dy, false);
  tape.backward();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {wall.count(), processor_seconds() - used};
}

Seconds median(std::vector<Seconds> all) {
  const auto middle = [&](double Seconds::*part) {
    std::sort(all.begin(), all.end(),
              [&](const Seconds& a, const Seconds& b) { return a.*part < b.*part; });
    return all[all.size() / 2].*part;
  };
  return {middle(&Seconds::wall), middle(&Seconds::processor)};
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t fallback) {
    return argc > i ? std::atoll(argv[i]) : fallback;
  };
  const DType type =
      argc > 1 && std::string(argv[1]) == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  const int64_t tokens = number(2, 4096), width = number(3, 768), inner = number(4, 1536);
  const int64_t experts = number(5, 8), choices = number(6, 2), threads = number(7, 2);
  ThreadPool pool(static_cast<int>(threads));
  const OpContext ctx{make_cpu_device(), &pool};
  Memory memory(ctx, type);
  const nn::FeedForward dense = mlp(memory, width, inner * choices);
  nn::Moe layer;
  layer.router.weight = memory.matrix(experts, width);
  layer.router.rule.choices = choices;
  layer.router.rule.normalise = true;
  for (int64_t e = 0; e < experts; ++e) layer.experts.push_back(mlp(memory, width, inner));
  nn::Moe crowded = layer;  // every token's scores are alike: the first experts get all of them
  crowded.router.weight = memory.matrix(experts, width);
  ops::fill(ctx, 0, memory.weight(crowded.router.weight));

  Memory inputs(ctx, type);
  const Tensor x = inputs.weight(inputs.matrix(tokens, width)).view({1, tokens, width});
  const Tensor dy = inputs.weight(inputs.matrix(tokens, width)).view({1, tokens, width});
  std::vector<Seconds> of_dense, of_experts, of_crowded;
  constexpr int kRounds = 9;
  for (int i = 0; i <= kRounds; ++i) {
    const Seconds a = pass(ctx, memory, x, dy, [&](nn::Tape& t, const nn::Value& in) {
      return nn::feed_forward(t, in, dense, ops::Activation::kSilu);
    });
    const auto run = [&](const nn::Moe& moe) {
      return pass(ctx, memory, x, dy,
                  [&](nn::Tape& t, const nn::Value& in) { return nn::moe(t, in, moe, {}); });
    };
    const Seconds b = run(layer), c = run(crowded);
    if (i == 0) continue;  // memory comes for the first time
    of_dense.push_back(a);
    of_experts.push_back(b);
    of_crowded.push_back(c);
  }
  const Seconds a = median(of_dense), b = median(of_experts), c = median(of_crowded);
  std::printf("%lld tokens of %lld, %lld of %lld experts of %lld channels, %s, %lld threads\n",
              static_cast<long long>(tokens), static_cast<long long>(width),
              static_cast<long long>(choices), static_cast<long long>(experts),
              static_cast<long long>(inner), type == DType::kBFloat16 ? "bf16" : "fp32",
              static_cast<long long>(threads));
  std::printf("                       wall ms   processor ms\n");
  std::printf("dense, the same FLOP  %8.2f   %8.2f\n", a.wall * 1e3, a.processor * 1e3);
  std::printf("experts               %8.2f   %8.2f\n", b.wall * 1e3, b.processor * 1e3);
  std::printf("all tokens at %lld       %8.2f   %8.2f\n", static_cast<long long>(choices),
              c.wall * 1e3, c.processor * 1e3);
  std::printf("dense to experts      %8.3f   %8.3f\n", a.wall / b.wall, a.processor / b.processor);
  std::printf("crowded to spread     %8.3f   %8.3f\n", c.wall / b.wall, c.processor / b.processor);
  return 0;
}
