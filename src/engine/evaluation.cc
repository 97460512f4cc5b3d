#include "engine/evaluation.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/agreement.h"
#include "engine/dataset_batches.h"
#include "engine/run_context.h"
#include "nn/loss.h"

namespace ds {
namespace {

// Sum of the losses of a batch.
double batch_loss(RunContext& run, const Dataset& dataset, int64_t first, int64_t count,
                  int64_t& counted) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  const MicroBatch samples =
      read_samples(run.host_context(), dataset, run.model->architecture().info(), indices);
  const models::Batch batch = models::to_device(make_batch(run, samples), run.model->device());
  const Tensor labels = make_labels(run, samples);
  nn::TapeOptions options;
  options.record = false;
  options.training = false;
  nn::Tape tape(run.context(), run.state->reader(), nullptr, options);
  run.state->weights().begin_pass();
  models::ForwardOptions forward_options;
  forward_options.padded_logits = true;
  forward_options.expert_ranks = run.expert_ranks();
  const nn::Value logits = run.model->architecture().logits(tape, batch, forward_options);
  run.state->weights().end_pass();
  const models::ArchitectureInfo& info = run.model->architecture().info();
  const nn::Value mean = nn::mean_loss(tape, logits, labels, info.outputs(), info.loss, counted);
  return static_cast<double>(*mean.data.data<float>()) * static_cast<double>(counted);
}

}  // namespace

double evaluate(RunContext& run, CallControl& control, const Dataset& dataset,
                int64_t max_batches) {
  DS_CHECK(max_batches >= 0, Code::kInvalidArgument, "max_batches must be 0 or more, not ",
           max_batches);
  check_dataset(dataset, run.model->architecture().info());
  const models::Model::Use use(*run.model);
  const int64_t micro =
      run.config.eval_micro_batch_size_per_gpu.value_or(run.config.batch.micro_batch);
  double total = 0;
  int64_t counted = 0, batches = 0;
  const int64_t all = (dataset.sample_count() + micro - 1) / micro;
  CallControl::Call call(control, "evaluate", max_batches > 0 ? std::min(all, max_batches) : all);
  for (int64_t first = 0; first < dataset.sample_count(); first += micro) {
    if (max_batches > 0 && batches == max_batches) break;
    const int64_t count = std::min(micro, dataset.sample_count() - first);
    // A short last batch counts like the others, unless the configuration drops it.
    if (count < micro && run.config.dataloader_drop_last && batches > 0) break;
    next_part(run.world(), call, batches++);
    int64_t labels = 0;
    end_group_on_io_error(run.world(),
                          [&] { total += batch_loss(run, dataset, first, count, labels); });
    counted += labels;
  }
  return counted == 0 ? 0 : total / static_cast<double>(counted);
}

}  // namespace ds
