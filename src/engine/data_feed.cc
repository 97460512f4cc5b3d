#include "engine/data_feed.h"

#include <algorithm>

#include "base/log.h"
#include "engine/dataset_batches.h"
#include "engine/open_step.h"
#include "engine/resume_differences.h"
#include "engine/run_context.h"

namespace ds {
namespace {

// A data set of so many tokens is read whole when it is attached: 0.1 to 0.6 s. In a larger
// one a token that the model does not have is found when it is drawn.
constexpr int64_t kCheckedTokens = int64_t{1} << 26;

}  // namespace

void DataFeed::set_dataset(DatasetPtr dataset) {
  std::optional<Sampler> sampler;
  if (dataset) {
    const models::ArchitectureInfo& info = run_.model->architecture().info();
    check_dataset(*dataset, info);
    check_as_loaded(*dataset);
    sampler.emplace(SamplerOptions{*sampler_kind(run_.config.dataloader_type),
                                   dataset->sample_count(), run_.config.batch.micro_batch,
                                   run_.data_rank(), run_.data_ranks(),
                                   run_.config.dataloader_drop_last, run_.config.data_sharding});
    static_cast<void>(dataset->check_tokens(info.vocab_size, kCheckedTokens));
  }
  dataset_ = std::move(dataset);
  sampler_ = std::move(sampler);
}

int64_t DataFeed::epoch_steps() const {
  if (!dataset_) return 0;
  return std::max<int64_t>(1, dataset_->sample_count() / run_.config.batch.train_batch);
}

Json DataFeed::describe() const { return dataset_ ? describe_dataset(*dataset_) : Json(); }

std::string DataFeed::difference(const Json& saved) const {
  return dataset_ ? dataset_difference(saved, describe_dataset(*dataset_)) : std::string();
}

void DataFeed::expect(Json description, bool strict) {
  loaded_dataset_ = std::move(description);
  strict_dataset_ = strict;
}

// One that is set after a load continues what the loaded run read.
void DataFeed::check_as_loaded(const Dataset& dataset) const {
  if (loaded_dataset_.is_null()) return;
  const std::string difference = dataset_difference(loaded_dataset_, describe_dataset(dataset));
  if (difference.empty()) return;
  DS_CHECK(!strict_dataset_, Code::kConfig, "the loaded run had other settings: ", difference);
  if (run_.first_rank()) {
    log_warning("engine", "the loaded run had other settings: ", difference);
  }
}

// The cursor is the sample counter: a resumed run reads on where the saved one stopped, and ranks
// read neighbouring parts of one batch.
std::vector<int64_t> DataFeed::next_samples(const OpenStep& open) {
  const int64_t batch = run_.config.batch.train_batch;
  DS_CHECK(open.micro_batches > 0 || sampler_->has_left(open.progress.samples, batch), Code::kState,
           open.progress.samples, " of the data set's ", dataset_->sample_count(),
           " samples are consumed, too few are left for a batch of ", batch,
           ", and dataloader_type \"single\" reads each sample once; end the training, or use "
           "\"cyclic\" or \"passes\"");
  std::vector<int64_t> indices(static_cast<size_t>(run_.config.batch.micro_batch));
  sampler_->take(open.progress.samples, indices);
  return indices;
}

MicroBatch DataFeed::next(const OpenStep& open) {
  return read_samples(run_.host_context(), *dataset_, run_.model->architecture().info(),
                      next_samples(open));
}

}  // namespace ds
