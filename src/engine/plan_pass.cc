#include "engine/plan_pass.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/plan_files.h"
#include "engine/plan_gathers.h"
#include "engine/pretended_group.h"
#include "models/inputs.h"
#include "nn/distilled_loss.h"
#include "nn/kept_inputs.h"
#include "nn/loss.h"
#include "nn/tape.h"
#include "zero/gradient_reducer.h"

namespace ds {
namespace {

// Inputs of checkpointed segments that wait in files: memory holds those of the newest segment,
// which is being written, and in backward of two.
class CountedInputs final : public nn::KeptInputs {
 public:
  explicit CountedInputs(std::shared_ptr<Device> buffers) : buffers_(std::move(buffers)) {}

  size_t keep(std::span<const Tensor> inputs) override {
    newest_.assign(inputs.begin(), inputs.end());
    Segment& segment = segments_.emplace_back();
    for (const Tensor& one : inputs) segment.push_back({one.dtype(), one.shape()});
    return segments_.size() - 1;
  }
  std::vector<Tensor> fetch(size_t segment) override {
    newest_.clear();
    std::vector<Tensor> out = ahead_.empty() ? make(segment) : std::exchange(ahead_, {});
    if (segment > 0) ahead_ = make(segment - 1);
    return out;
  }

 private:
  struct Kept {
    DType type;
    Shape shape;
  };
  using Segment = std::vector<Kept>;

  std::vector<Tensor> make(size_t segment) const {
    std::vector<Tensor> out;
    for (const Kept& one : segments_[segment]) {
      out.push_back(Tensor::empty(buffers_, one.type, one.shape, MemoryTag::kIo));
    }
    return out;
  }

  const std::shared_ptr<Device> buffers_;
  std::vector<Segment> segments_;
  std::vector<Tensor> newest_, ahead_;
};

// Weights and gradients as operators see them. What lies in memory all the while are views of
// memory aside, which is not counted again; what comes and goes is.
class PlannedState : public nn::ParameterReader, public nn::GradientSink {
 public:
  PlannedState(const PlanContext& plan, const OpContext& ctx, std::shared_ptr<Device> buffers)
      : plan_(plan),
        ctx_(ctx),
        buffers_(std::move(buffers)),
        aside_(std::make_shared<CountingDevice>()) {
    int64_t largest = 1;
    for (nn::ParamId id = 0; id < parameters().size(); ++id) {
      largest = std::max(largest, parameters()[id].shape.elements());
    }
    constexpr int64_t kRoom = int64_t{1} << 20;  // tiles are padded
    resting_ = Tensor::empty(aside_, DType::kFloat32, {largest + kRoom}, MemoryTag::kOther);
    sums_.resize(static_cast<size_t>(parameters().size()));
    const zero::StateFileOptions files =
        state_file_options(plan.config, false, shard_ranks(plan.config, plan.world));
    const int64_t most = zero::StateFiles::most_of(files.sub_group_elements);
    part_ = most;
    if (files.optimizer && !plan.on_gpu()) {
      state_files_ =
          file_memory(*files.optimizer, most * int64_t{sizeof(float)},
                      zero::StateFiles::stay_of(plan.layout->held(zero::StateRole::kMasters),
                                                files.optimizer_share));
    }
    if (files.weights && !plan.on_gpu()) {
      weight_files_ =
          file_memory(*files.weights, most * int64_t{sizeof(bfloat16)}, files.weights_in_memory);
      // Weights of fp32 are masters.
      if (plan.type == DType::kFloat32) weight_files_ = state_files_;
    }
    if (plan.stage == 3) make_gatherer();
    make_reducer();
  }

  // What the making of the weights leaves behind: masters are read once, part by part, to round
  // them.
  void create() {
    if (!state_files_) return;
    const int64_t all = plan_.layout->held(zero::StateRole::kMasters);
    for (int64_t at = 0; at < all; at = run_after(at, all, part_)) {
      const int64_t count = std::min(part_, all - at), next = std::min(part_, all - at - count);
      const Tensor one = state_files_->take(DType::kFloat32, count, at);
      Tensor ahead, written;
      if (next > 0 && state_files_->reads_ahead()) {
        ahead = state_files_->read(DType::kFloat32, next, at + count);
      }
      if (weight_files_ && plan_.type != DType::kFloat32) {
        written = weight_files_->take(plan_.type, count, at);
      }
    }
  }

  void begin_pass() {
    if (gatherer_) gatherer_->begin_pass();
  }
  void end_pass() {
    if (reducer_) reducer_->finish();
    if (gatherer_) gatherer_->end_pass();
  }
  void pieces_changed() {
    if (gatherer_) gatherer_->pieces_changed(false);
  }

  // nn::ParameterReader
  Tensor acquire(nn::ParamId id) override {
    const Shape& shape = parameters()[id].shape;
    if (!gatherer_ || tiling(id) != nullptr) return resting(plan_.type, shape);
    const size_t bucket = plan_.flat().bucket_of(id);
    const int64_t begin = plan_.flat().buckets()[bucket].range.begin;
    const zero::FlatRange range = plan_.flat().range(id);
    return gatherer_->acquire(bucket).slice(0, range.begin - begin, range.end - begin).view(shape);
  }
  void release(nn::ParamId id) noexcept override {
    if (gatherer_ && tiling(id) == nullptr) gatherer_->release(plan_.flat().bucket_of(id));
  }
  const nn::Tiling* tiling(nn::ParamId id) const override { return plan_.flat().tiling(id); }
  Tensor acquire_tile(nn::ParamId id, int64_t tile) override {
    const Tensor& rows = gatherer_->acquire(tile_bucket(id, tile));
    const int64_t columns = parameters()[id].shape[1];
    return rows.view({rows.elements() / columns, columns});
  }
  void release_tile(nn::ParamId id, int64_t tile) noexcept override {
    gatherer_->release(tile_bucket(id, tile));
  }
  DType compute_type() const override { return plan_.type; }
  const nn::ParameterSet& parameters() const override { return *plan_.model.parameters; }

  // nn::GradientSink
  Tensor gradient(nn::ParamId id) override { return gradient_target(id).sum; }
  nn::GradientTarget gradient_target(nn::ParamId id) override {
    if (!parameters()[id].trainable) return {};
    if (reducer_) return reducer_->target(id);
    const Shape& shape = parameters()[id].shape;
    Tensor& sum = sums_[static_cast<size_t>(id)];
    const bool first = !sum;
    if (first) {
      if (plan_.gradient_type() != DType::kFloat32) {
        sum = Tensor::empty(ctx_.device, DType::kFloat32, shape, MemoryTag::kGradients);
      } else if (plan_.maps_files()) {
        sum = state_files_->take(DType::kFloat32, shape.elements(), flat_begin(id)).view(shape);
      } else {
        sum = resting(DType::kFloat32, shape);
      }
    }
    return {sum, !first};
  }
  void gradient_complete(nn::ParamId id) override {
    if (!parameters()[id].trainable) return;
    if (reducer_) {
      const nn::Tiling* const tiles = tiling(id);
      for (int64_t i = 0; i < (tiles ? tiles->count : 1); ++i) reducer_->complete(id, i);
      return;
    }
    Tensor& sum = sums_[static_cast<size_t>(id)];
    if (!sum) return;
    if (plan_.maps_files() && plan_.gradient_type() != DType::kFloat32)
      add_to_file(sum.elements(), flat_begin(id));
    const bool mapped = plan_.maps_files() && plan_.gradient_type() == DType::kFloat32;
    if (mapped) keep_writing(sum);
    sum = Tensor();
  }
  nn::GradientTarget tile_gradient(nn::ParamId id, int64_t tile) override {
    if (!parameters()[id].trainable) return {};
    return reducer_->target(id, tile);
  }
  void tile_gradient_complete(nn::ParamId id, int64_t tile) override {
    if (parameters()[id].trainable) reducer_->complete(id, tile);
  }

  // The update of arrays in files, run after run: of the states beside masters and gradients.
  void update(const StateArraysOf& states) {
    if (!state_files_) return;
    const Tensor scratch =
        Tensor::empty(ctx_.device, DType::kUInt8, {states.scratch}, MemoryTag::kWorkspace);
    const PrecisionConfig& precision = plan_.config.precision;
    std::vector<MappedArray> arrays;
    if (!precision.rounded_masters) {
      arrays.push_back({state_files_, precision.split_master ? DType::kUInt16 : DType::kFloat32});
    }
    if (weight_files_ && plan_.type != DType::kFloat32) {
      arrays.push_back({weight_files_, plan_.type});
    }
    arrays.push_back({state_files_, plan_.gradient_type(), /*written=*/false});
    for (int64_t i = 0; i < states.arrays; ++i) arrays.push_back({state_files_, states.type});
    const int64_t all = plan_.layout->held(zero::StateRole::kMasters);
    writing_ = {};
    // The norm reads the gradients once.
    {
      const DType type = plan_.gradient_type();
      const int64_t most = part_ * int64_t{sizeof(float)} / dtype_size(type);
      for (int64_t at = 0; at < all; at = run_after(at, all, most)) {
        work_on_gradients(std::min(most, all - at), at, all);
      }
    }
    // Of several ranks no run goes beyond the own piece of a bucket.
    int64_t run = part_;
    if (plan_.world > 1) {
      int64_t piece = 1;
      for (const zero::Bucket& bucket : plan_.flat().buckets()) {
        if (bucket.trainable) piece = std::max(piece, bucket.piece);
      }
      run = std::min(run, piece);
    }
    for (int64_t at = 0; at < all; at = run_after(at, all, run)) {
      const int64_t count = std::min(run, all - at), next = std::min(run, all - at - count);
      for (MappedArray& one : arrays) one.open(count, at);
      for (MappedArray& one : arrays) one.prefetch(next, at + count);
      for (MappedArray& one : arrays) one.close();
    }
  }
  void rest() {
    writing_ = {};
    if (state_files_) state_files_->rest();
    if (weight_files_) weight_files_->rest();
  }

 private:
  // Where the next part of an array begins. After a few the others are like them, up to that from
  // which on they lie in files, and to the last, which is shorter.
  int64_t run_after(int64_t at, int64_t all, int64_t part) const {
    int64_t before = 0, after = (all - 1) / part * part;
    for (const FileMemory* const files : {state_files_.get(), weight_files_.get()}) {
      if (files == nullptr) continue;
      const int64_t change = std::min(files->stay(), all) / part * part;
      if (change <= at) {
        before = std::max(before, change);
      } else {
        after = std::min(after, change);
      }
    }
    return at < before + 3 * part ? at + part : std::max(at + part, after - part);
  }
  std::shared_ptr<FileMemory> file_memory(const io::FileArrayOptions& options, int64_t part_bytes,
                                          int64_t stay) const {
    return std::make_shared<FileMemory>(ctx_.device, buffers_, options, part_bytes, stay, resting_);
  }
  int64_t flat_begin(nn::ParamId id) const { return plan_.flat().range(id).begin; }
  size_t tile_bucket(nn::ParamId id, int64_t tile) const {
    return plan_.flat().bucket_of(id) + static_cast<size_t>(tile);
  }
  Tensor resting(DType type, const Shape& shape) const {
    return Tensor(resting_.storage(), 0, type, shape);
  }

  void make_gatherer() {
    const auto make = [this](const zero::Bucket& bucket) { return gathered(bucket); };
    gatherer_ = std::make_unique<zero::WeightGatherer>(
        plan_.flat(), make_counting_route(plan_.flat(), make), plan_.share.gather);
  }

  // Where backward of this rank fills buckets: to be reduced, or sent to the host.
  void make_reducer() {
    if (plan_.world == 1 && !plan_.offloads() && !plan_.flat().any_tiled()) return;
    const bool alone = plan_.world == 1;
    const zero::ShareOptions& share = plan_.share;
    const zero::GradientReducer::Options options{
        .whole = plan_.stage == 0,
        .overlap = share.overlap && !alone,
        .scatter = share.reduce_scatter,
        .op = share.op,
        .comm_dtype = alone ? DType::kFloat32 : share.comm_dtype,
        .comm_dtype_for_all = share.comm_dtype_for_all};
    const auto take = [this](const zero::Bucket& bucket,
                             const Tensor& sum) -> std::shared_ptr<Event> {
      if (plan_.maps_files()) add_to_file(bucket.piece, bucket.owned);
      static_cast<void>(sum);
      // A GPU's copies to the host still read the bucket.
      return plan_.offloads() ? std::make_shared<HostEvent>() : nullptr;
    };
    std::vector<zero::GradientReducer::Domain> domains;
    for (size_t i = 0; i < plan_.layout->domains().size(); ++i) {
      const auto domain = static_cast<int>(i);
      const int ranks = plan_.flat().world(domain);
      domains.push_back(
          {RankGroup{make_pretended_group(ranks), 0, ranks}, plan_.layout->share_of_mean(domain)});
    }
    reducer_ = std::make_unique<zero::GradientReducer>(ctx_, parameters(), plan_.flat(),
                                                       std::move(domains), options, take);
  }

  // Added to the file's numbers part by part.
  void add_to_file(int64_t elements, int64_t begin) const {
    const int64_t most = part_ * int64_t{sizeof(float)} / dtype_size(plan_.gradient_type());
    const int64_t end = begin + elements;
    for (int64_t at = begin; at < end; at += most) {
      keep_writing(work_on_gradients(std::min(most, end - at), at, end));
    }
  }
  // A part of them, beside which the next one before `end` is read ahead.
  Tensor work_on_gradients(int64_t elements, int64_t begin, int64_t end) const {
    const DType type = plan_.gradient_type();
    const Tensor one = state_files_->take(type, elements, begin);
    const int64_t next = std::min(elements, end - begin - elements);
    Tensor ahead;
    if (next > 0 && state_files_->reads_ahead()) {
      ahead = state_files_->read(type, next, begin + elements);
    }
    return one;
  }
  // What is written behind waits for the next of its array.
  void keep_writing(Tensor memory) const {
    writing_ = {};
    if (state_files_->writes_behind()) writing_ = std::move(memory);
  }

  // Of one rank the piece that is read is the bucket; of several it is read beside it.
  Tensor gathered(const zero::Bucket& bucket) const {
    const int64_t elements = bucket.range.elements();
    if (weight_files_ != nullptr && plan_.world == 1) {
      return weight_files_->take(plan_.type, elements, bucket.owned);
    }
    Tensor piece;
    if (weight_files_ != nullptr) {
      piece = weight_files_->take(plan_.type, bucket.piece, bucket.owned);
    } else if (plan_.weights_beside_gpu() && plan_.world > 1) {
      piece = Tensor::empty(ctx_.device, plan_.type, {bucket.piece}, MemoryTag::kCommunication);
    }
    return Tensor::empty(ctx_.device, plan_.type, {elements}, MemoryTag::kCommunication);
  }

  const PlanContext& plan_;
  const OpContext ctx_;
  const std::shared_ptr<Device> buffers_;  // that files are read into
  const std::shared_ptr<CountingDevice> aside_;
  Tensor resting_;
  mutable Tensor writing_;  // of the gradients' file
  int64_t part_ = 0;        // elements of a file that are mapped at a time
  std::shared_ptr<FileMemory> state_files_, weight_files_;  // null: in memory
  std::vector<Tensor> sums_;                        // by parameter, while backward adds to it
  std::unique_ptr<zero::WeightGatherer> gatherer_;  // at stage 3
  std::unique_ptr<zero::GradientReducer> reducer_;  // or null
};

// Weights of the teacher as operators see them: they lie in memory aside, and are counted once.
std::unique_ptr<models::InferenceWeights> teacher_aside(const PlanContext& plan, ThreadPool& pool) {
  if (!plan.model.teacher) return nullptr;
  return counted_weights(*plan.model.teacher, {std::make_shared<CountingDevice>(), &pool});
}

// What a pass of the student is compared with.
struct PlannedLoss {
  const models::Batch& batch;
  const nn::Labels& labels;
  nn::ParameterReader* teacher;  // null: there is none
};

nn::SummedLoss loss_of(const PlanContext& plan, nn::Tape& tape, const nn::Value& logits,
                       const PlannedLoss& with) {
  const models::ArchitectureInfo& info = plan.model.architecture->info();
  if (with.teacher == nullptr) {
    return nn::summed_loss(tape, logits, with.labels, info.outputs(), info.loss);
  }
  nn::Distillation from;
  std::optional<TeacherPass> pass;
  // How many tokens an expert gets is known when they are there: of a teacher with experts the
  // logits alone are counted.
  const bool runs = plan.model.teacher->info().experts == 0;
  if (runs) pass.emplace(*plan.model.teacher, *with.teacher, tape.ctx(), with.batch);
  from.parts = with.batch.ids.size(0);
  from.teacher = [&](int64_t sample) {
    if (runs) return pass->logits(sample);
    const int64_t rows = logits.data.elements() / logits.data.shape()[-1] / from.parts;
    return tape.new_activation(with.teacher->compute_type(), {rows, info.outputs()});
  };
  nn::DistilledLoss loss = nn::summed_distillation(tape, logits, with.labels, info.outputs(), from);
  return {loss.sum, std::move(loss.slot)};
}

void run_pass(const PlanContext& plan, const OpContext& ctx, PlannedState& state,
              const std::shared_ptr<Device>& buffers, nn::ParameterReader* teacher) {
  const models::Architecture& architecture = *plan.model.architecture;
  const models::ArchitectureInfo& info = architecture.info();
  const int64_t samples = plan.config.batch.micro_batch, length = plan.length();
  Tensor loss_gradient;
  CountedInputs inputs(buffers);
  nn::TapeOptions tape_options;
  if (plan.config.activation_checkpointing.in_files()) tape_options.kept_inputs = &inputs;
  nn::Tape tape(ctx, state, &state, tape_options);
  nn::SummedLoss loss;
  {
    const auto host = make_cpu_device({.cache = false});
    const OpContext there{host, ctx.pool};
    const Tensor ids = Tensor::zeros(host, DType::kInt32, {samples, length}, MemoryTag::kOther);
    models::Batch batch;
    batch.ids = models::token_ids(ctx, ids, "token ids", info.vocab_size);
    batch.position_ids = models::position_ids(ctx, samples, length, 0);
    const Tensor labels =
        models::loss_labels(ctx, models::blank_labels(there, samples, length, info), ids, info);
    const nn::Labels placed = nn::place_labels(labels, ctx.device);
    models::ForwardOptions options;
    options.padded_logits = true;
    options.recompute = plan.recompute();
    const nn::Value logits = architecture.logits(tape, batch, options);
    loss = loss_of(plan, tape, logits, {batch, placed, teacher});
  }
  Tensor upstream = ctx.workspace(DType::kFloat32, {});
  *upstream.data<float>() = 1;  // as the tape expects: nothing is scaled
  loss.slot->add(ctx, upstream, true);
  tape.backward();
}

}  // namespace

std::optional<PassMemory> count_passes(const PlanContext& plan,
                                       const CountingDevice::ByTag& resting,
                                       const StateArraysOf& states, ThreadPool& pool) {
  const models::Architecture* const architecture = plan.model.architecture;
  if (architecture == nullptr || architecture->info().head == models::Head::kNone) return {};
  // How many tokens an expert gets is known when they are there.
  if (architecture->info().experts > 0) return {};
  const auto device = std::make_shared<CountingDevice>();
  const std::shared_ptr<Device> buffers = CountingDevice::own_pages(device);
  PassMemory out;
  try {
    const OpContext ctx{device, &pool};
    std::vector<Tensor> rest;
    for (size_t i = 0; i < resting.size(); ++i) {
      const auto tag = static_cast<MemoryTag>(i);
      const std::shared_ptr<Device> on = tag == MemoryTag::kIo ? buffers : device;
      rest.push_back(Tensor::empty(on, DType::kUInt8, {resting[i]}, tag));
    }
    PlannedState state(plan, ctx, buffers);
    const auto teacher = teacher_aside(plan, pool);
    state.create();
    // Weights are fetched ahead once their order is known.
    // Memory that passes leave to the next micro batch, the update gives back.
    const bool several = plan.config.batch.accumulation > 1;
    const int passes = plan.stage == 3 ? 3 : plan.maps_files() && several ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass) {
      if (!several && pass > 0) state.rest();
      state.begin_pass();
      run_pass(plan, ctx, state, buffers, teacher.get());
      state.end_pass();
      // Weights that stay whole are there during the update, and fetched anew after it.
      if (pass + 1 < passes) state.pieces_changed();
    }
    const int64_t most = device->account().total_peak();
    for (size_t i = 0; i < out.after.size(); ++i) {
      out.after[i] = device->account().now(static_cast<MemoryTag>(i));
    }
    state.update(states);
    const int64_t with_update = device->account().total_peak();
    out.in_update = with_update > most;
    // The next step's passes, beside what the update keeps.
    if (plan.maps_files()) {
      state.rest();
      state.pieces_changed();
      state.begin_pass();
      run_pass(plan, ctx, state, buffers, teacher.get());
      state.end_pass();
      if (device->account().total_peak() > with_update) out.in_update = false;
    }
  } catch (const Error& error) {
    if (error.code() == Code::kOutOfMemory) return {};  // a limit on the address space
    throw;
  }
  out.fullest = device->fullest();
  out.reserved = device->reserved_bytes();
  return out;
}

}  // namespace ds
