// Saving an engine: masters and moments by name, and every counter that a bitwise resume needs.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "checkpoint/background_save.h"
#include "checkpoint/listing.h"
#include "checkpoint/rank_parts.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/agreement.h"
#include "engine/engine.h"
#include "engine/resume_differences.h"
#include "engine/saved_names.h"
#include "engine/version.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// Whoever shares a folder between runs loads the wrong one some day.
void warn_of_other_runs(const std::string& folder, const std::string& tag, const std::string& run) {
  std::vector<std::string> others;
  bool replaced = false;
  for (const ListedCheckpoint& entry : list_checkpoints(folder)) {
    if (entry.run.empty() || entry.run == run) continue;
    others.push_back(entry.tag);
    replaced |= entry.tag == tag;
  }
  if (others.empty()) return;
  log_warning("checkpoint", printable(folder, 300),
              " holds checkpoints of another training run: ", printable(join(others, ", "), 300),
              replaced ? str_cat("; ", printable(tag), " is replaced, and `latest`")
                       : std::string("; `latest`"),
              " names this run's from now on. Give every run a folder of its own");
}

}  // namespace

// Ranks may give different tags by mistake; what then happens is configured.
std::string Engine::agreed_tag(const std::string& tag) {
  const std::string own = tag.empty() ? str_cat("global_step", progress_.steps) : tag;
  const std::string first = broadcast_text(context(), *comm_, own);
  if (config_.tag_validation == TagValidation::kIgnore) return first;
  const std::string text =
      str_cat("rank ", comm_->rank(), " saves as \"", printable(own), "\" and rank 0 as \"",
              printable(first), "\"; give every rank the same tag");
  agree(context(), *comm_, "choosing the tag", [&] {
    DS_CHECK(own == first || config_.tag_validation == TagValidation::kWarn, Code::kInvalidArgument,
             text);
  });
  if (own != first) log_warning("engine", text);
  return first;
}

// What each rank has of the open step, which a resume with as many ranks gives back to each.
std::vector<Engine::RankShare> Engine::open_shares() {
  std::vector<RankShare> out(static_cast<size_t>(comm_->size()));
  if (accumulated_ == 0) return out;
  out[static_cast<size_t>(comm_->rank())] = {losses_.value(), step_tokens_, losses_.count()};
  if (comm_->size() == 1) return out;
  const Tensor own = host_context().workspace(DType::kFloat64, {3});
  own.data<double>()[0] = losses_.value();
  own.data<double>()[1] = static_cast<double>(step_tokens_);
  own.data<double>()[2] = static_cast<double>(losses_.count());
  const Tensor all = host_context().workspace(DType::kFloat64, {3 * comm_->size()});
  comm_->all_gather(all, own, {.label = "open step", .blocking = true})->wait();
  for (size_t rank = 0; rank < out.size(); ++rank) {
    const double* const share = all.data<double>() + 3 * rank;
    out[rank] = {share[0], static_cast<int64_t>(share[1]), static_cast<int64_t>(share[2])};
  }
  return out;
}

// `shares` of all ranks.
CheckpointWriterOptions Engine::writer_options(const std::string& folder, const std::string& tag,
                                               const std::vector<RankShare>& shares) {
  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = tag;
  // Within a step every rank counts its own tokens alone.
  int64_t tokens = progress_.tokens - step_tokens_;
  for (const RankShare& share : shares) tokens += share.tokens;
  options.counters = {progress_.steps, progress_.skipped, progress_.micro_steps, progress_.samples,
                      tokens};
  options.topology.world = options.topology.data = comm_->size();
  options.topology.zero_stage = config_.zero.stage;
  options.writer = str_cat("ds ", kLibraryVersion);
  options.run = run_id_;
  options.keep = config_.keep_checkpoints;
  options.blob.pool = &pool_;
  return options;
}

void Engine::save(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState,
           "saving between forward and step would lose the open micro batch; call step first");
  wait_for_save();
  const models::Model::Use use(*model_);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();

  const std::string name = agreed_tag(tag);
  const std::vector<RankShare> shares = open_shares();
  CheckpointWriterOptions options = writer_options(folder, name, shares);
  if (background_) options.blob.hold = background_->buffers();

  constexpr const char* kWhat = "saving a checkpoint";
  const bool first = comm_->rank() == 0;
  std::shared_ptr<CheckpointWriter> writer;
  std::shared_ptr<PartWriter> other;
  agree(ctx, *comm_, kWhat, [&] {
    if (!first) return;
    writer = std::make_shared<CheckpointWriter>(options);
    if (std::exchange(checked_folder_, folder) != folder) {
      warn_of_other_runs(folder, name, run_id_);
    }
  });
  const std::string temporary =
      broadcast_text(ctx, *comm_, first ? writer->temporary().string() : std::string());
  state.materialize_gradients(ctx);
  state.reduce_replicas();
  agree_on_fp8();
  std::string others_part;
  std::optional<PartHandover> handover;
  agree(ctx, *comm_, kWhat, [&] {
    if (!first) other = std::make_shared<PartWriter>(temporary, comm_->rank(), options.blob);
    save_tensors(first ? writer->part() : *other);
    if (first) save_fp8(writer->part());
    if (first) save_counters(writer->part(), shares);
    if (first) return;
    if (background_) {
      handover.emplace(temporary, comm_->rank());
    } else {
      others_part = encode_manifest(other->finish());
    }
  });
  if (background_) {
    save_beside_training(std::move(writer), std::move(other), handover, name);
  } else {
    const std::vector<std::string> parts = gather_texts(ctx, *comm_, others_part);
    agree(ctx, *comm_, kWhat, [&] {
      if (!first) return;
      for (size_t rank = 1; rank < parts.size(); ++rank) {
        writer->merge(decode_manifest(std::as_bytes(std::span(parts[rank])),
                                      str_cat("the part of rank ", rank)));
      }
      writer->commit();
    });
  }
  monitors_->sync();
}

// Every rank has taken its copy; what is left to do needs none of the others' calls.
void Engine::save_beside_training(std::shared_ptr<CheckpointWriter> writer,
                                  std::shared_ptr<PartWriter> other,
                                  const std::optional<PartHandover>& handover,
                                  const std::string& tag) {
  saving_together_ = comm_->size() > 1;
  if (!writer) {
    const PartHandover to = *handover;
    return background_->start([other = std::move(other), to] { to.finish(*other); }, tag);
  }
  background_->start(
      [writer = std::move(writer), comm = comm_] {
        // A group that has ended well may still write its parts; one that failed will not.
        const auto latest = std::chrono::steady_clock::now() + comm->deadline();
        const auto given_up = [&] {
          using State = Communicator::State;
          const State state = comm->state();
          return state == State::kAborted || state == State::kFailed ||
                 std::chrono::steady_clock::now() > latest;
        };
        for (const Manifest& part : take_parts(writer->temporary(), comm->size(), given_up)) {
          writer->merge(part);
        }
        writer->commit();
      },
      tag);
}

// What this rank saves of a parameter: what it owns or, where everybody owns everything, an equal
// share.
zero::FlatRange Engine::saved_share(nn::ParamId id) const {
  const zero::FlatLayout& layout = model_->state().layout();
  if (layout.world() > 1) {
    if (!model_->state().first_of_replicas()) return {};
    const zero::OwnedPart part = layout.part(id);
    return {part.first, part.first + part.count};
  }
  const int64_t n = model_->parameters()[id].shape.elements(), world = comm_->size();
  return {n * comm_->rank() / world, n * (comm_->rank() + 1) / world};
}

void Engine::save_tensors(PartWriter& part) {
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();
  optim::Optimizer& optimizer = updater_->optimizer();
  CallControl::Call call(control_, "save", parameters.size());
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    call.next(id);
    const nn::Parameter& p = parameters[id];
    if (!p.trainable && config_.exclude_frozen_parameters) continue;
    const zero::FlatRange share = saved_share(id);
    const bool whole = share.elements() == p.shape.elements();
    if (share.elements() == 0 && !(p.shape.elements() == 0 && comm_->rank() == 0)) continue;
    const int64_t owned_from = state.layout().part(id).first;
    const auto add = [&](const TensorMeta& meta, const Tensor& owned, bool view) {
      const Lifetime lasts = view && on_host(owned) ? Lifetime::kUntilFinish : Lifetime::kCall;
      const Tensor slice = to_host(
          owned.view({owned.elements()}).slice(0, share.begin - owned_from, share.end - owned_from),
          model_->host());
      if (whole) return part.add_tensor(meta, bytes_of(slice), lasts);
      part.add_range(meta, share.begin, share.end, bytes_of(slice), lasts);
    };
    add(saved::meta_of(p, {TensorKind::kMaster, ""}), state.read_owned_master(ctx, id),
        state.masters_in_place());
    if (!p.trainable) continue;
    const size_t place = updater_->place(id);
    for (const std::string& name : optimizer.states(place)) {
      Tensor value = optimizer.state_view(place, name);
      const bool view = static_cast<bool>(value);
      if (!view) {
        const optim::OwnedRange owned = optimizer.owned(place);
        value = host_context().workspace(DType::kFloat32, {owned.end - owned.begin});
        optimizer.read_state_range(place, name, owned.begin, owned.end, value.data<float>());
      }
      add(saved::meta_of(p, saved::state_key(name)), value, view);
    }
    if (accumulated_ > 0) {
      TensorMeta meta = saved::meta_of(p, {TensorKind::kOptimizer, saved::kGradientState});
      meta.dtype = state.accumulation_type();
      add(meta, state.owned_gradient(id), true);
    }
  }
}

void Engine::save_counters(PartWriter& part, const std::vector<RankShare>& shares) {
  models::describe_model(*model_, part);
  part.set_json(saved::kConfig, config_.resolved());
  part.set_json(saved::kRateConfig, rate_config());
  part.set_json(saved::kUpdater, updater_->save());
  part.set_int(saved::kSeed, static_cast<int64_t>(config_.seed));
  part.set_int(saved::kMicroBatches, accumulated_);
  part.set_int(saved::kSamples, step_first_sample_);
  if (config_.batch_ramp_up) part.set_int(saved::kRampedUp, config_.batch.accumulation);
  double loss_sum = 0;
  int64_t tokens = 0, losses = 0;
  Json ranks = Json::array();
  for (const RankShare& share : shares) {
    loss_sum += share.loss_sum;
    tokens += share.tokens;
    losses += share.losses;
    ranks.push_back(
        {{"loss_sum", share.loss_sum}, {"tokens", share.tokens}, {"losses", share.losses}});
  }
  part.set_double(saved::kLossSum, loss_sum / static_cast<double>(shares.size()));
  part.set_int(saved::kTokens, tokens / static_cast<int64_t>(shares.size()));
  part.set_int(saved::kLosses, losses / static_cast<int64_t>(shares.size()));
  if (accumulated_ > 0 && shares.size() > 1) part.set_json(saved::kRanks, ranks);
  if (dataset_) part.set_json(saved::kDataset, describe_dataset(*dataset_));
  part.set_json(saved::kClientState, client_state_);
  blobs_.save(part);
  if (tokenizer_) part.set_text(models::kTokenizerState, tokenizer_->to_json());
}

void Engine::wait_for_save() {
  if (!background_) return;
  if (!std::exchange(saving_together_, false)) return background_->wait();
  // It is there when rank 0 says so, and failed on all when it failed on one.
  agree(context(), *comm_, "saving a checkpoint", [&] { background_->wait(); });
}

}  // namespace ds
