#include "engine/saved_step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "comm/message_memory.h"
#include "engine/open_step.h"
#include "engine/run_context.h"
#include "engine/saved_json.h"
#include "engine/saved_names.h"

namespace ds {
namespace {

// The open step as this rank goes on with it. Of other ranks than it was saved with, every one has
// the mean loss, and the first all tokens.
StepShare restored_share(const RunContext& run, const CheckpointReader& reader,
                         int64_t& all_tokens) {
  StepShare out{reader.state_double(saved::kLossSum), reader.state_int(saved::kTokens),
                reader.state_int(saved::kMicroBatches)};
  // Before version 0.4 every micro batch had a loss.
  if (reader.has_state(saved::kLosses)) out.losses = reader.state_int(saved::kLosses);
  // Only where a teacher took part.
  if (reader.has_state(saved::kLabelSum)) out.label_sum = reader.state_double(saved::kLabelSum);
  if (reader.has_state(saved::kTeacherSum)) {
    out.teacher_sum = reader.state_double(saved::kTeacherSum);
  }
  all_tokens = out.tokens;
  if (!reader.has_state(saved::kRanks)) return out;
  const Json ranks = reader.state_json(saved::kRanks);
  const auto number = [&](const Json& share, const char* key) {
    const Json value = json_member(share, key);
    DS_CHECK(value.is_number() && std::isfinite(value.get<double>()), Code::kCorrupt,
             "the checkpoint's open step has a rank without ", key);
    return value.get<double>();
  };
  DS_CHECK(ranks.is_array() && ranks.size() <= 1 << 20, Code::kCorrupt,
           "the checkpoint's open step names no ranks");
  all_tokens = 0;
  for (const Json& share : ranks) {
    const double tokens = number(share, "tokens");
    DS_CHECK(tokens >= 0 && tokens < 0x1p40, Code::kCorrupt, "the checkpoint's open step counts ",
             tokens, " tokens");
    all_tokens += static_cast<int64_t>(tokens);
  }
  const auto own_place = static_cast<size_t>(run.mesh.rank(MeshGroup::kDataContext));
  if (ranks.size() != static_cast<size_t>(run.gradient_ranks())) {
    out.tokens = own_place == 0 ? all_tokens : 0;
    return out;
  }
  const Json& own = ranks[own_place];
  // JSON has no NaN and no infinity, which a loss may be.
  const auto loss = [&](const char* key) {
    return json_member(own, key).is_null() ? std::nan("") : number(own, key);
  };
  out.loss_sum = loss("loss_sum");
  out.tokens = static_cast<int64_t>(number(own, "tokens"));
  if (own.contains("losses")) out.losses = static_cast<int64_t>(number(own, "losses"));
  if (own.contains("label_sum")) out.label_sum = loss("label_sum");
  if (own.contains("teacher_sum")) out.teacher_sum = loss("teacher_sum");
  return out;
}

// Gradients of an open step carry the loss scale and 1 / gradient_accumulation_steps of the run
// that saved them; the rest of the step has this run's.
double gradient_factor(const RunContext& run, const CheckpointReader& reader,
                       const Updater::Saved& updater, int64_t accumulated, int64_t consumed) {
  const Json before =
      json_member(saved_json(reader, saved::kConfig), "gradient_accumulation_steps");
  BatchConfig batch = run.config.batch;
  if (run.config.batch_ramp_up)
    batch.set_train_batch(run.config.batch_ramp_up->size_after(consumed));
  const int64_t now = batch.accumulation;
  int64_t then = before.is_number_integer() ? before.get<int64_t>() : now;
  if (reader.has_state(saved::kRampedUp)) then = reader.state_int(saved::kRampedUp);
  DS_CHECK(accumulated < now && then > 0, Code::kConfig, "the checkpoint was saved after ",
           accumulated, " of the ", then,
           " micro batches of a step, which gradient_accumulation_steps ", now,
           " cannot continue; raise it above ", accumulated,
           " for this step, or leave the optimizer state out");
  DS_CHECK(then == now || run.model->has_architecture(), Code::kConfig,
           "the checkpoint was saved after ", accumulated, " of the ", then,
           " micro batches of a step, and gradient_accumulation_steps is ", now,
           " now: what gradients of the caller's own were divided by is not known, so they cannot "
           "be continued; finish the step with ",
           then, ", or leave the optimizer state out");
  return updater.scaler.scale() / updater.gradient_scale * static_cast<double>(then) /
         static_cast<double>(now);
}

bool has_all_masters(const RunContext& run, const CheckpointReader& reader) {
  const nn::ParameterSet& parameters = run.model->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (parameters[id].trainable &&
        reader.find(parameters[id].name, TensorKind::kMaster) == nullptr) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<StepShare> gather_step_shares(RunContext& run, OpenStep& open) {
  std::vector<StepShare> out(static_cast<size_t>(run.gradient_ranks()));
  if (open.micro_batches == 0) return out;
  const auto own_place = static_cast<size_t>(run.mesh.rank(MeshGroup::kDataContext));
  StepShare& share = out[own_place];
  share = {open.losses.value(), open.tokens, open.losses.count(), open.label_losses.value(),
           open.teacher_losses.value()};
  if (run.gradient_ranks() == 1) return out;
  const std::array numbers = {share.loss_sum, static_cast<double>(share.tokens),
                              static_cast<double>(share.losses), share.label_sum,
                              share.teacher_sum};
  const auto message = [&](int64_t n) {
    return comm::message_memory(*run.gradient_group(), run.model->host(), DType::kFloat64, {n},
                                MemoryTag::kWorkspace);
  };
  const auto count = static_cast<int64_t>(numbers.size());
  const Tensor own = message(count), all = message(count * run.gradient_ranks());
  std::copy(numbers.begin(), numbers.end(), own.data<double>());
  run.gradient_group()->all_gather(all, own, {.label = "open step", .blocking = true})->wait();
  for (size_t rank = 0; rank < out.size(); ++rank) {
    const double* const of = all.data<double>() + numbers.size() * rank;
    out[rank] = {of[0], static_cast<int64_t>(of[1]), static_cast<int64_t>(of[2]), of[3], of[4]};
  }
  return out;
}

// The micro batches of an open step go on only together with all of their gradients.
SavedStep read_saved_step(const RunContext& run, const CheckpointReader& reader,
                          const Updater::Saved& updater, bool with_states, Progress& progress) {
  SavedStep out;
  out.micro_batches = reader.state_int(saved::kMicroBatches);
  DS_CHECK(out.micro_batches >= 0, Code::kCorrupt, "the checkpoint counts ", out.micro_batches,
           " micro batches of an open step");
  if (out.micro_batches == 0) return out;
  // Version 0.4 and earlier do not say; their random numbers went by micro steps anyway.
  out.samples = reader.has_state(saved::kSamples)
                    ? reader.state_int(saved::kSamples)
                    : out.micro_batches * run.config.batch.micro_batch * run.data_ranks();
  DS_CHECK(out.samples >= 0, Code::kCorrupt, "the checkpoint's open step counts ", out.samples,
           " samples");
  int64_t all_tokens = 0;
  out.share = restored_share(run, reader, all_tokens);
  if (!with_states || !has_all_masters(run, reader)) {
    if (run.first_rank()) {
      log_warning("engine", "the checkpoint was saved after ", out.micro_batches,
                  " micro batches of a step, whose gradients are not loaded: the step is given up");
    }
    take_back(progress, out.micro_batches, out.samples, all_tokens);
    return {};
  }
  out.gradient_factor =
      gradient_factor(run, reader, updater, out.micro_batches, progress.samples - out.samples);
  progress.tokens -= all_tokens - out.share.tokens;
  return out;
}

}  // namespace ds
