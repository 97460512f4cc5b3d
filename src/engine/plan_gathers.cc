#include "engine/plan_gathers.h"

#include <algorithm>
#include <array>
#include <string>

#include "models/architecture.h"
#include "models/inputs.h"
#include "nn/loss.h"
#include "nn/tape.h"

namespace ds {
namespace {

// Gives addresses that nobody may use.
class NoMemory : public Device {
 public:
  DeviceKind kind() const noexcept override { return DeviceKind::kCpu; }
  int index() const noexcept override { return 0; }
  std::string describe() const override { return "no memory"; }
  void* allocate(int64_t bytes, MemoryTag) override {
    most_ = std::max(most_, live_ += bytes);
    return bytes == 0 ? nullptr : reinterpret_cast<void*>(uintptr_t{4096});
  }
  void deallocate(void*, int64_t bytes, MemoryTag) noexcept override { live_ -= bytes; }
  void trim() noexcept override {}
  int64_t reserved_bytes() const noexcept override { return 0; }
  int64_t system_allocations() const noexcept override { return 0; }
  Stream& default_stream() override { unused(); }
  std::unique_ptr<Stream> create_stream() override { unused(); }
  void copy(void*, const void*, int64_t, Stream&) override { unused(); }
  void clear(void*, int64_t, Stream&) override { unused(); }
  int64_t most() const { return most_; }

 private:
  int64_t live_ = 0, most_ = 0;  // bytes
  [[noreturn]] static void unused() { fail(Code::kInternal, "a plan touched memory"); }
};

class Done : public Work {
 public:
  bool done() const override { return true; }
  void wait() override {}
  int participants() const override { return 1; }
};

// Counts what a rank asks for, and moves nothing.
class CountingRoute : public zero::BucketRoute {
 public:
  CountingRoute(const zero::FlatLayout& layout, const MakeBucket& make, DType type,
                const std::function<int64_t(const zero::Bucket&)>& travels,
                const std::function<bool(const zero::Bucket&)>& kept_near)
      : layout_(layout),
        make_(make),
        type_(type),
        travels_(travels),
        kept_near_(kept_near),
        second_valid_(layout.buckets().size()) {
    for (const zero::Bucket& bucket : layout.buckets()) {
      const auto domains = static_cast<size_t>(bucket.domain) + 1;
      if (counts_.all.size() < domains) counts_.all.resize(domains);
    }
    counts_.near.resize(counts_.all.size());
  }

  Flight start(size_t index, Tensor& whole, const CollectiveOptions&) override {
    const zero::Bucket& bucket = layout_.buckets()[index];
    whole = make_(bucket);
    Flight flight;
    flight.work = done_;
    flight.near = second_valid_[index];
    GatherCount& count =
        (flight.near ? counts_.near : counts_.all)[static_cast<size_t>(bucket.domain)];
    ++count.calls;
    count.bytes += flight.near ? bucket.range.elements() * dtype_size(type_) : travels_(bucket);
    return flight;
  }
  void finish(size_t index, Flight& flight, Tensor&, const CollectiveOptions&) override {
    const zero::Bucket& bucket = layout_.buckets()[index];
    if (kept_near_(bucket) && !bucket.resident) second_valid_[index] = true;
    flight = {};
  }
  void abandon(size_t index, Flight& flight, Tensor& whole) override {
    finish(index, flight, whole, {});
  }
  void pieces_changed(bool frozen_too) override {
    for (size_t i = 0; i < second_valid_.size(); ++i) {
      if (frozen_too || layout_.buckets()[i].trainable) second_valid_[i] = false;
    }
  }
  const GatherCounts& counts() const { return counts_; }

 private:
  const zero::FlatLayout& layout_;
  MakeBucket make_;
  DType type_;
  std::function<int64_t(const zero::Bucket&)> travels_;
  std::function<bool(const zero::Bucket&)> kept_near_;
  std::vector<bool> second_valid_;
  const WorkPtr done_ = std::make_shared<Done>();
  GatherCounts counts_;
};

// Weights of zeros; notes who asks for them.
class UseRecorder : public nn::ParameterReader, public nn::GradientSink {
 public:
  UseRecorder(const OpContext& ctx, const nn::ParameterSet& parameters, DType type)
      : ctx_(ctx), parameters_(parameters), type_(type) {}

  Tensor acquire(nn::ParamId id) override {
    uses_.push_back({id, true});
    return Tensor::zeros(ctx_.device, type_, parameters_[id].shape, MemoryTag::kOther);
  }
  void release(nn::ParamId id) noexcept override { uses_.push_back({id, false}); }
  Tensor gradient(nn::ParamId id) override {
    if (!parameters_[id].trainable) return {};
    return Tensor::zeros(ctx_.device, DType::kFloat32, parameters_[id].shape, MemoryTag::kOther);
  }
  nn::GradientTarget gradient_target(nn::ParamId id) override { return {gradient(id), true}; }
  void gradient_complete(nn::ParamId) override {}
  DType compute_type() const override { return type_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }
  std::vector<WeightUse> take() { return std::move(uses_); }

 private:
  OpContext ctx_;
  const nn::ParameterSet& parameters_;
  DType type_;
  std::vector<WeightUse> uses_;
};

// The same layers with the smallest sizes.
Json shrunk(const Json& model) {
  constexpr std::pair<const char*, int> kSizes[] = {{"vocab_size", 8},
                                                    {"n_positions", 8},
                                                    {"max_position_embeddings", 8},
                                                    {"n_ctx", 8},
                                                    {"n_embd", 8},
                                                    {"hidden_size", 8},
                                                    {"n_inner", 8},
                                                    {"intermediate_size", 8},
                                                    {"moe_intermediate_size", 8},
                                                    {"shared_expert_intermediate_size", 8},
                                                    {"n_head", 1},
                                                    {"num_attention_heads", 1},
                                                    {"num_key_value_heads", 1},
                                                    {"head_dim", 8}};
  Json out = model;
  for (const auto& [key, value] : kSizes) {
    if (out.contains(key) && out[key].is_number()) out[key] = value;
  }
  for (const char* key : {"rope_scaling", "pad_token_id", "bos_token_id", "eos_token_id"}) {
    out.erase(key);
  }
  return out;
}

bool same_names(const nn::ParameterSet& a, const nn::ParameterSet& b) {
  if (a.size() != b.size()) return false;
  for (nn::ParamId id = 0; id < a.size(); ++id) {
    if (a[id].name != b[id].name) return false;
  }
  return true;
}

std::vector<WeightUse> run_small(const models::Architecture& architecture, DType type,
                                 const models::Recompute& recompute) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  UseRecorder recorder(ctx, architecture.parameters(), type);
  const models::ArchitectureInfo& info = architecture.info();
  const Tensor zeros = Tensor::zeros(ctx.device, DType::kInt64, {1, 2}, MemoryTag::kOther);
  models::Batch batch;
  batch.ids = models::token_ids(ctx, zeros, "token ids", info.vocab_size);
  batch.position_ids = models::position_ids(ctx, 1, 2, 0);
  const Tensor labels =
      models::loss_labels(ctx, models::blank_labels(ctx, 1, 2, info), batch.ids, info);
  nn::Tape tape(ctx, recorder, &recorder, {});
  models::ForwardOptions options;
  options.recompute = recompute;
  int64_t counted = 0;
  const nn::Value loss = nn::mean_loss(tape, architecture.logits(tape, batch, options), labels,
                                       info.outputs(), info.loss, counted);
  Tensor upstream = ctx.workspace(DType::kFloat32, {});
  *upstream.data<float>() = 1;
  loss.slot->add(ctx, upstream, true);
  tape.backward();
  return recorder.take();
}

}  // namespace

std::vector<WeightUse> record_uses(const Json& model, const nn::ParameterSet& parameters,
                                   DType compute_type, const models::Recompute& recompute) {
  if (model.is_object() && !model.contains("parameters")) {
    try {
      const auto small = models::build_architecture(shrunk(model));
      if (small->info().head != models::Head::kNone &&
          same_names(small->parameters(), parameters)) {
        return run_small(*small, compute_type, recompute);
      }
    } catch (const Error&) {
      // A configuration that allows no small sizes.
    }
  }
  std::vector<WeightUse> uses;
  const auto use = [&](nn::ParamId id) {
    uses.push_back({id, true});
    uses.push_back({id, false});
  };
  for (nn::ParamId id = 0; id < parameters.size(); ++id) use(id);
  for (nn::ParamId id = parameters.size(); id-- > 0;) use(id);
  return uses;
}

std::unique_ptr<zero::BucketRoute> make_counting_route(const zero::FlatLayout& layout,
                                                       const MakeBucket& make) {
  const auto none = [](const zero::Bucket&) { return int64_t{0}; };
  const auto never = [](const zero::Bucket&) { return false; };
  return std::make_unique<CountingRoute>(layout, make, DType::kFloat32, none, never);
}

GatherCounts count_gathers(const zero::FlatLayout& layout,
                           const zero::WeightGatherer::Limits& limits, DType compute_type,
                           const std::function<int64_t(const zero::Bucket&)>& travels,
                           const std::function<bool(const zero::Bucket&)>& kept_near,
                           const std::vector<WeightUse>& pass, int64_t passes) {
  constexpr int kSteps = 3;  // until the order is known, and one that counts
  // What no other rank holds lies there already, beside what ranks cut.
  const auto gathered = std::make_shared<NoMemory>(), aside = std::make_shared<NoMemory>();
  const MakeBucket make = [&](const zero::Bucket& bucket) {
    const bool here = layout.world(bucket) == 1 && layout.cut();
    return Tensor::empty(here ? aside : gathered, compute_type, {bucket.range.elements()},
                         MemoryTag::kCommunication);
  };
  auto route = std::make_unique<CountingRoute>(layout, make, compute_type, travels, kept_near);
  const CountingRoute& counter = *route;
  zero::WeightGatherer gatherer(layout, std::move(route), limits);
  GatherCounts before;
  for (int step = 0; step < kSteps; ++step) {
    before = counter.counts();
    for (int64_t i = 0; i < passes; ++i) {
      gatherer.begin_pass();
      for (const WeightUse& use : pass) {
        if (!layout.holds(use.id)) continue;
        const size_t bucket = layout.bucket_of(use.id);
        if (const auto* tiling = layout.tiling(use.id)) {
          // Each is given back before the next.
          for (size_t tile = 0; use.begins && tile < static_cast<size_t>(tiling->count); ++tile) {
            gatherer.acquire(bucket + tile);
            gatherer.release(bucket + tile);
          }
        } else if (use.begins) {
          gatherer.acquire(bucket);
        } else {
          gatherer.release(bucket);
        }
      }
      gatherer.end_pass();
    }
    gatherer.pieces_changed(false);
  }
  const auto since = [](std::vector<GatherCount> now, const std::vector<GatherCount>& then) {
    for (size_t i = 0; i < now.size(); ++i) {
      now[i].calls -= then[i].calls;
      now[i].bytes -= then[i].bytes;
    }
    return now;
  };
  return {since(counter.counts().all, before.all), since(counter.counts().near, before.near),
          gathered->most() / dtype_size(compute_type)};
}

}  // namespace ds
