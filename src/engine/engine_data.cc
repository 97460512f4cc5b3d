// Training and evaluating over a data set: which samples a step reads, and how they become batches.
#include <algorithm>

#include "data/numpy_random.h"
#include "engine/engine.h"
#include "models/inputs.h"
#include "nn/layers.h"

namespace ds {
namespace {

struct Samples {
  Tensor ids;     // int32 [B, T]
  Tensor labels;  // int32 [B, T]
};

// Samples of T + 1 tokens: the first T are read, the last T predicted.
template <class IndexOf>
Samples read_samples(const OpContext& ctx, const GptDataset& dataset, int64_t count,
                     const IndexOf& index_of) {
  const int64_t length = dataset.sequence_length();
  Samples out{ctx.workspace(DType::kInt32, {count, length}),
              ctx.workspace(DType::kInt32, {count, length})};
  std::vector<int32_t> tokens(static_cast<size_t>(length + 1));
  for (int64_t i = 0; i < count; ++i) {
    dataset.sample(index_of(i), tokens);
    std::copy_n(tokens.begin(), length, out.ids.data<int32_t>() + i * length);
    std::copy_n(tokens.begin() + 1, length, out.labels.data<int32_t>() + i * length);
  }
  return out;
}

void check_dataset(const GptDataset& dataset, const models::ArchitectureInfo& info) {
  DS_CHECK(dataset.sequence_length() <= info.max_positions, Code::kInvalidArgument,
           "the data set's sequences of ", dataset.sequence_length(),
           " tokens are longer than the model's ", info.max_positions, " positions");
  DS_CHECK(dataset.sample_count() > 0, Code::kInvalidArgument, "the data set has no samples");
}

}  // namespace

void Engine::set_dataset(std::shared_ptr<const GptDataset> dataset) {
  if (dataset) check_dataset(*dataset, model_->architecture().info());
  dataset_ = std::move(dataset);
  order_epoch_ = 0;
  order_.clear();
}

// The data set comes shuffled; a second pass over it, and every later one, reads it in a new order
// that depends on the pass alone.
int64_t Engine::sample_index(int64_t position) {
  const int64_t count = dataset_->sample_count();
  const int64_t epoch = position / count;
  if (epoch == 0) return position;
  if (order_epoch_ != epoch) {
    order_ = torch_randperm(count, static_cast<uint32_t>(epoch));
    order_epoch_ = epoch;
  }
  return order_[static_cast<size_t>(position % count)];
}

StepReport Engine::train_batch() {
  DS_CHECK(dataset_, Code::kState, "train_batch needs a data set; set one first");
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  const models::Model::Use use(*model_);
  const int64_t micro = config_.batch.micro_batch;
  const int64_t vocab = model_->architecture().info().vocab_size;
  while (true) {
    // The cursor is the sample counter: a resumed run reads on where the saved one stopped, and
    // ranks read neighbouring parts of one batch.
    const int64_t first = progress_.samples + comm_->rank() * micro;
    const Samples samples = read_samples(context(), *dataset_, micro,
                                         [&](int64_t i) { return sample_index(first + i); });
    const models::Batch batch = make_batch(samples.ids, Tensor());
    run_forward(batch, models::label_ids(context(), samples.labels, samples.ids, vocab));
    run_backward();
    StepReport report = finish_micro_batch();
    if (report.skip_reason != SkipReason::kAccumulating) return report;
  }
}

double Engine::evaluate(const GptDataset& dataset, int64_t max_batches) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  DS_CHECK(max_batches >= 0, Code::kInvalidArgument, "max_batches must be 0 or more, not ",
           max_batches);
  check_dataset(dataset, model_->architecture().info());
  const models::Model::Use use(*model_);
  const int64_t micro = config_.batch.micro_batch;
  double total = 0;
  int64_t counted = 0, batches = 0;
  for (int64_t first = 0; first < dataset.sample_count(); first += micro) {
    if (max_batches > 0 && batches == max_batches) break;
    const int64_t count = std::min(micro, dataset.sample_count() - first);
    // A short last batch counts like the others, unless the configuration drops it.
    if (count < micro && config_.dataloader_drop_last && batches > 0) break;
    ++batches;
    int64_t labels = 0;
    total += batch_loss(dataset, first, count, labels);
    counted += labels;
  }
  return counted == 0 ? 0 : total / static_cast<double>(counted);
}

// Sum of the losses of a batch, without dropout and without recording.
double Engine::batch_loss(const GptDataset& dataset, int64_t first, int64_t count,
                          int64_t& counted) {
  const Samples samples =
      read_samples(context(), dataset, count, [&](int64_t i) { return first + i; });
  const models::Batch batch = make_batch(samples.ids, Tensor());
  const int64_t vocab = model_->architecture().info().vocab_size;
  const Tensor labels = models::label_ids(context(), samples.labels, samples.ids, vocab);
  nn::TapeOptions options;
  options.record = false;
  options.training = false;
  nn::Tape tape(context(), model_->state(), options);
  const nn::Value logits = model_->architecture().logits(tape, batch, {});
  const nn::Value mean = nn::cross_entropy(tape, logits, labels, vocab, counted);
  return static_cast<double>(*mean.data.data<float>()) * static_cast<double>(counted);
}

}  // namespace ds
