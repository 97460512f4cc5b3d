// Training and evaluating over a data set: which samples a step reads, and how they become batches.
#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "data/token_source.h"
#include "engine/engine.h"
#include "engine/resume_differences.h"
#include "models/inputs.h"
#include "nn/loss.h"

namespace ds {
namespace {

// A data set of so many tokens is read whole when it is attached: 0.1 to 0.6 s. In a larger
// one a token that the model does not have is found when it is drawn.
constexpr int64_t kCheckedTokens = int64_t{1} << 26;

// `vocab`: ids must be below it. Labels are, too, unless they are classes.
void check_sample(const Dataset& dataset, int64_t index, const SampleView& sample, int64_t vocab,
                  bool labels_are_tokens) {
  const auto bad = [&](int32_t id) { return id < 0 || id >= vocab; };
  const auto id = std::find_if(sample.ids.begin(), sample.ids.end(), bad);
  if (id != sample.ids.end()) {
    fail_token(dataset.place(index, id - sample.ids.begin()), *id, vocab);
  }
  if (!labels_are_tokens) return;
  const auto label = std::find_if(sample.labels.begin(), sample.labels.end(),
                                  [&](int32_t x) { return x != kNoLabel && bad(x); });
  if (label != sample.labels.end()) {  // of running text only the last is no id before
    fail_token(dataset.place(index, label - sample.labels.begin() + 1), *label, vocab);
  }
}

// Reads samples as the rows of a micro batch.
MicroBatch read_samples(const OpContext& ctx, const Dataset& dataset,
                        const models::ArchitectureInfo& info, std::span<const int64_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  const bool token_labels = info.head != models::Head::kClassification;
  const int64_t length = dataset.sequence_length();
  const DatasetFields fields = dataset.fields();
  const auto rows = [&](bool wanted, DType type) {
    return wanted ? ctx.workspace(type, {count, length}) : Tensor();
  };
  MicroBatch out;
  out.ids = rows(true, DType::kInt32);
  out.labels = rows(true, DType::kInt32);
  out.mask = rows(fields.mask, DType::kUInt8);
  out.segments = rows(fields.segments, DType::kInt32);
  out.token_types = rows(fields.token_types, DType::kInt32);
  const Tensor classes = token_labels ? Tensor() : ctx.workspace(DType::kInt32, {count, 1});
  for (int64_t i = 0; i < count; ++i) {
    const auto row = [&]<class T>(const Tensor& tensor, T) {
      return tensor ? std::span<T>(tensor.data<T>() + i * length, static_cast<size_t>(length))
                    : std::span<T>();
    };
    SampleView view;
    view.ids = row(out.ids, int32_t{});
    view.labels = row(out.labels, int32_t{});
    view.mask = row(out.mask, uint8_t{});
    view.segments = row(out.segments, int32_t{});
    view.token_types = row(out.token_types, int32_t{});
    if (classes) view.sentence_order = {classes.data<int32_t>() + i, 1};
    const int64_t index = indices[static_cast<size_t>(i)];
    dataset.sample(index, view);
    check_sample(dataset, index, view, info.vocab_size, token_labels);
  }
  if (classes) out.labels = classes;
  return out;
}

void check_dataset(const Dataset& dataset, const models::ArchitectureInfo& info) {
  DS_CHECK(dataset.sequence_length() <= info.max_positions, Code::kInvalidArgument,
           "the data set's sequences of ", dataset.sequence_length(),
           " tokens are longer than the model's ", info.max_positions, " positions");
  DS_CHECK(dataset.sample_count() > 0, Code::kInvalidArgument, "the data set has no samples");
  DS_CHECK(
      info.head != models::Head::kClassification || dataset.fields().sentence_order,
      Code::kInvalidArgument,
      "the data set's labels are tokens, and the model predicts a class of a whole sample: a "
      "data set of pairs is needed (kind mlm), whose order is the class, or labels of your own");
}

}  // namespace

void Engine::set_dataset(DatasetPtr dataset) {
  std::optional<Sampler> sampler;
  if (dataset) {
    const models::ArchitectureInfo& info = model_->architecture().info();
    check_dataset(*dataset, info);
    check_dataset_as_loaded(*dataset);
    sampler.emplace(SamplerOptions{*sampler_kind(config_.dataloader_type), dataset->sample_count(),
                                   config_.batch.micro_batch, comm_->rank(), comm_->size(),
                                   config_.dataloader_drop_last, config_.data_sharding});
    static_cast<void>(dataset->check_tokens(info.vocab_size, kCheckedTokens));
  }
  dataset_ = std::move(dataset);
  sampler_ = std::move(sampler);
}

// One that is set after a load continues what the loaded run read.
void Engine::check_dataset_as_loaded(const Dataset& dataset) {
  if (loaded_dataset_.is_null()) return;
  const std::string difference = dataset_difference(loaded_dataset_, describe_dataset(dataset));
  if (difference.empty()) return;
  DS_CHECK(!strict_dataset_, Code::kConfig, "the loaded run had other settings: ", difference);
  if (comm_->rank() == 0) {
    log_warning("engine", "the loaded run had other settings: ", difference);
  }
}

// The cursor is the sample counter: a resumed run reads on where the saved one stopped, and ranks
// read neighbouring parts of one batch.
std::vector<int64_t> Engine::next_samples() {
  const int64_t batch = config_.batch.train_batch;
  DS_CHECK(accumulated_ > 0 || sampler_->has_left(progress_.samples, batch), Code::kState,
           progress_.samples, " of the data set's ", dataset_->sample_count(),
           " samples are consumed, too few are left for a batch of ", batch,
           ", and dataloader_type \"single\" reads each sample once; end the training, or use "
           "\"cyclic\" or \"passes\"");
  std::vector<int64_t> indices(static_cast<size_t>(config_.batch.micro_batch));
  sampler_->take(progress_.samples, indices);
  return indices;
}

// A process that leaves a call that others of its group are in ends the group: they would wait.
void Engine::next_part(CallControl::Call& call, int64_t done) {
  try {
    call.next(done);
  } catch (const Error& error) {
    if (comm_->size() > 1) comm_->abort(error.message());
    throw;
  }
}

StepReport Engine::train_batch() {
  DS_CHECK(dataset_, Code::kState, "train_batch needs a data set; set one first");
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  DS_CHECK(!boundary_, Code::kState,
           "the caller sets the boundaries of steps; train_batch finds them itself");
  check_synced("train_batch");
  const models::Model::Use use(*model_);
  CallControl::Call call(control_, "train_batch", config_.batch.accumulation);
  while (true) {
    next_part(call, accumulated_);
    run_micro_batch(
        read_samples(host_context(), *dataset_, model_->architecture().info(), next_samples()));
    if (close_micro_batch()) return finish_step();
  }
}

double Engine::evaluate(const Dataset& dataset, int64_t max_batches) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  DS_CHECK(max_batches >= 0, Code::kInvalidArgument, "max_batches must be 0 or more, not ",
           max_batches);
  check_dataset(dataset, model_->architecture().info());
  const models::Model::Use use(*model_);
  const int64_t micro = config_.eval_micro_batch.value_or(config_.batch.micro_batch);
  double total = 0;
  int64_t counted = 0, batches = 0;
  const int64_t all = (dataset.sample_count() + micro - 1) / micro;
  CallControl::Call call(control_, "evaluate", max_batches > 0 ? std::min(all, max_batches) : all);
  for (int64_t first = 0; first < dataset.sample_count(); first += micro) {
    if (max_batches > 0 && batches == max_batches) break;
    const int64_t count = std::min(micro, dataset.sample_count() - first);
    // A short last batch counts like the others, unless the configuration drops it.
    if (count < micro && config_.dataloader_drop_last && batches > 0) break;
    next_part(call, batches++);
    int64_t labels = 0;
    total += batch_loss(dataset, first, count, labels);
    counted += labels;
  }
  const double loss = counted == 0 ? 0 : total / static_cast<double>(counted);
  if (!monitors_->empty()) {
    monitors_->write({progress_.samples, progress_.steps}, {{"Train/Samples/eval_loss", loss}});
  }
  return loss;
}

// Sum of the losses of a batch, without dropout and without recording.
double Engine::batch_loss(const Dataset& dataset, int64_t first, int64_t count, int64_t& counted) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  const MicroBatch samples =
      read_samples(host_context(), dataset, model_->architecture().info(), indices);
  const models::Batch batch = models::to_device(make_batch(samples), model_->device());
  const Tensor labels = make_labels(samples.labels, samples.ids);
  nn::TapeOptions options;
  options.record = false;
  options.training = false;
  nn::Tape tape(context(), model_->weights(), nullptr, options);
  model_->state().begin_pass();
  models::ForwardOptions forward_options;
  forward_options.padded_logits = true;
  const nn::Value logits = model_->architecture().logits(tape, batch, forward_options);
  model_->state().end_pass();
  const models::ArchitectureInfo& info = model_->architecture().info();
  const nn::Value mean = nn::mean_loss(tape, logits, labels, info.outputs(), info.loss, counted);
  return static_cast<double>(*mean.data.data<float>()) * static_cast<double>(counted);
}

}  // namespace ds
