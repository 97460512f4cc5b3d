#include "engine/plan_gathers.h"

#include <array>
#include <string>

#include "models/architecture.h"
#include "models/inputs.h"
#include "nn/layers.h"
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
    return bytes == 0 ? nullptr : reinterpret_cast<void*>(uintptr_t{4096});
  }
  void deallocate(void*, int64_t, MemoryTag) noexcept override {}
  void trim() noexcept override {}
  int64_t reserved_bytes() const noexcept override { return 0; }
  int64_t system_allocations() const noexcept override { return 0; }
  Stream& default_stream() override { unused(); }
  std::unique_ptr<Stream> create_stream() override { unused(); }
  void copy(void*, const void*, int64_t, Stream&) override { unused(); }
  void clear(void*, int64_t, Stream&) override { unused(); }

 private:
  [[noreturn]] static void unused() { fail(Code::kInternal, "a plan touched memory"); }
};

class Done : public Work {
 public:
  bool done() const override { return true; }
  void wait() override {}
  int participants() const override { return 1; }
};

// Counts what a rank of a large group calls, and moves nothing.
class CountingCommunicator : public Communicator {
 public:
  explicit CountingCommunicator(int world)
      : Communicator(0, world, std::chrono::milliseconds(1000)) {}

  TrafficTable traffic() const override { return {}; }
  const char* transport() const noexcept override { return "plan"; }
  void set_logger(std::shared_ptr<CommsLogger>) override {}
  const GatherCount& count() const { return count_; }

 protected:
  WorkPtr start(Call call, const CollectiveOptions&) override {
    ++count_.calls;
    count_.elements += call.output.elements();
    return done_;
  }
  void do_barrier(const CollectiveOptions&) override {}
  Tensor do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                          MemoryTag tag, const CollectiveOptions&) override {
    return Tensor::empty(device, dtype, shape, tag);
  }
  std::shared_ptr<Communicator> do_split(int, int, const CollectiveOptions&) override {
    return nullptr;
  }
  void do_join(const CollectiveOptions&) override {}
  void do_finalize() override {}
  void do_abort(std::string_view) noexcept override {}

 private:
  const WorkPtr done_ = std::make_shared<Done>();
  GatherCount count_;
};

// Weights of zeros; notes who asks for them.
class UseRecorder : public nn::ParameterStore {
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
  GradientTarget gradient_target(nn::ParamId id) override { return {gradient(id), true}; }
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
                                 int64_t segments) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  UseRecorder recorder(ctx, architecture.parameters(), type);
  const models::ArchitectureInfo& info = architecture.info();
  const Tensor zeros = Tensor::zeros(ctx.device, DType::kInt64, {1, 2}, MemoryTag::kOther);
  models::Batch batch;
  batch.ids = models::token_ids(ctx, zeros, "token ids", info.vocab_size);
  batch.position_ids = models::position_ids(ctx, 1, 2, 0);
  const Tensor labels =
      info.head == models::Head::kClassification
          ? models::class_labels(ctx, zeros.view({2}).slice(0, 0, 1), batch.ids, info.classes)
          : models::label_ids(ctx, zeros, batch.ids, info.vocab_size);
  nn::Tape tape(ctx, recorder, {});
  models::ForwardOptions options;
  options.checkpoint_segments = segments;
  int64_t counted = 0;
  const nn::Value loss = nn::cross_entropy(tape, architecture.logits(tape, batch, options), labels,
                                           info.outputs(), counted);
  Tensor upstream = ctx.workspace(DType::kFloat32, {});
  *upstream.data<float>() = 1;
  loss.slot->add(ctx, upstream, true);
  tape.backward();
  return recorder.take();
}

}  // namespace

std::vector<WeightUse> record_uses(const Json& model, const nn::ParameterSet& parameters,
                                   DType compute_type, int64_t segments) {
  if (model.is_object() && !model.contains("parameters")) {
    try {
      const auto small = models::build_architecture(shrunk(model));
      if (small->info().head != models::Head::kNone &&
          same_names(small->parameters(), parameters)) {
        return run_small(*small, compute_type, segments);
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

GatherCount count_gathers(const zero::FlatLayout& layout, int world,
                          const zero::WeightGatherer::Limits& limits, DType compute_type,
                          const std::vector<WeightUse>& pass, int64_t passes) {
  constexpr int kSteps = 3;  // until the order is known, and one that counts
  const auto nowhere = std::make_shared<NoMemory>();
  const auto comm = std::make_shared<CountingCommunicator>(world);
  zero::WeightGatherer gatherer(
      nowhere, layout, comm, limits,
      Tensor::empty(nowhere, compute_type, {layout.owned_elements()}, MemoryTag::kOther));
  GatherCount before;
  for (int step = 0; step < kSteps; ++step) {
    before = comm->count();
    for (int64_t i = 0; i < passes; ++i) {
      gatherer.begin_pass();
      for (const WeightUse& use : pass) {
        const size_t bucket = layout.bucket_of(use.id);
        if (use.begins) {
          gatherer.acquire(bucket);
        } else {
          gatherer.release(bucket);
        }
      }
      gatherer.end_pass();
    }
    gatherer.pieces_changed();
  }
  return {comm->count().calls - before.calls, comm->count().elements - before.elements};
}

}  // namespace ds
