#include "engine/checkpoint_saver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/background_save.h"
#include "checkpoint/listing.h"
#include "checkpoint/rank_parts.h"
#include "checkpoint/reader.h"
#include "checkpoint/run_id.h"
#include "checkpoint/writer.h"
#include "engine/agreement.h"
#include "engine/call_control.h"
#include "engine/caller_state.h"
#include "engine/data_feed.h"
#include "engine/fp8_steps.h"
#include "engine/open_step.h"
#include "engine/rate_config.h"
#include "engine/run_context.h"
#include "engine/saved_names.h"
#include "engine/saved_step.h"
#include "engine/step_guard.h"
#include "engine/updater.h"
#include "engine/version.h"
#include "tensor/transfer.h"
#include "tokenizer/tokenizer.h"
#include "zero/gradient_values.h"

namespace ds {
namespace {

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

WorldTopology topology_of(const Mesh& mesh) {
  WorldTopology topology;
  topology.world = mesh.size();
  topology.data = mesh.size(MeshGroup::kData);
  topology.tensor = mesh.size(MeshGroup::kTensor);
  topology.pipeline = mesh.size(MeshGroup::kPipeline);
  topology.sequence = mesh.size(MeshGroup::kContext);
  topology.expert = mesh.size(MeshGroup::kExpert);
  return topology;
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

CheckpointSaver::CheckpointSaver(const CheckpointedRun& of)
    : run_(of.run),
      open_(of.open),
      updater_(of.updater),
      feed_(of.feed),
      caller_(of.caller),
      control_(of.control),
      guard_(of.guard),
      run_id_(make_run_id()) {
  if (run_.config.checkpoint.decoupled) {
    background_ = std::make_unique<BackgroundSave>(&run_.model->host()->account());
  }
}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::continue_run(const std::string& id) {
  if (!id.empty()) run_id_ = id;
  checked_folder_.clear();
}

// Ranks may give different tags by mistake; what then happens is configured.
std::string CheckpointSaver::agreed_tag(const std::string& tag) {
  const std::string own = tag.empty() ? str_cat("global_step", open_.progress.steps) : tag;
  std::string first = broadcast_text(run_.context(), run_.world(), own);
  if (run_.config.checkpoint.tag_validation == TagValidation::kIgnore) return first;
  const std::string text =
      str_cat("rank ", run_.mesh.rank(), " saves as \"", printable(own), "\" and rank 0 as \"",
              printable(first), "\"; give every rank the same tag");
  agree(run_.context(), run_.world(), "choosing the tag", [&] {
    DS_CHECK(own == first || run_.config.checkpoint.tag_validation == TagValidation::kWarn,
             Code::kInvalidArgument, text);
  });
  if (own != first) log_warning("engine", text);
  return first;
}

// `shares` of all ranks.
CheckpointWriterOptions CheckpointSaver::writer_options(const std::string& folder,
                                                        const std::string& tag,
                                                        const std::vector<StepShare>& shares) {
  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = tag;
  // Within a step every rank counts its own tokens alone.
  int64_t tokens = open_.progress.tokens - open_.tokens;
  for (const StepShare& share : shares) tokens += share.tokens;
  options.counters = {open_.progress.steps, open_.progress.skipped, open_.progress.micro_steps,
                      open_.progress.samples, tokens};
  options.topology = topology_of(run_.mesh);
  options.topology.zero_stage = run_.config.zero.stage;
  options.writer = str_cat("ds ", kLibraryVersion);
  options.run = run_id_;
  options.keep = run_.config.checkpoint.keep;
  options.blob.pool = &run_.pool;
  options.blob.expected_bytes = expected_bytes();
  return options;
}

void CheckpointSaver::save(const std::string& folder, const std::string& tag) {
  DS_CHECK(open_.phase == OpenStep::Phase::kIdle, Code::kState,
           "saving between forward and step would lose the open micro batch; call step first");
  wait();
  const models::Model::Use use(*run_.model);
  const OpContext ctx = run_.context();

  const std::string name = agreed_tag(tag);
  const std::vector<StepShare> shares = gather_step_shares(run_, open_);
  CheckpointWriterOptions options = writer_options(folder, name, shares);
  if (background_) options.blob.hold = background_->buffers();

  constexpr const char* kWhat = "saving a checkpoint";
  const bool first = run_.first_rank();
  std::shared_ptr<CheckpointWriter> writer;
  std::shared_ptr<PartWriter> other;
  agree(ctx, run_.world(), kWhat, [&] {
    if (!first) return;
    writer = std::make_shared<CheckpointWriter>(options);
    if (std::exchange(checked_folder_, folder) != folder) {
      warn_of_other_runs(folder, name, run_id_);
    }
  });
  const std::string temporary =
      broadcast_text(ctx, run_.world(), first ? writer->temporary().string() : std::string());
  guard_.materialize();
  agree_on_fp8(run_);
  std::string others_part;
  std::optional<PartHandover> handover;
  agree(ctx, run_.world(), kWhat, [&] {
    if (!first) other = std::make_shared<PartWriter>(temporary, run_.mesh.rank(), options.blob);
    save_tensors(first ? writer->part() : *other);
    if (first) save_fp8(run_, writer->part());
    if (first) save_counters(writer->part(), shares);
    if (first) return;
    if (background_) {
      handover.emplace(temporary, run_.mesh.rank());
    } else {
      others_part = encode_manifest(other->finish());
    }
  });
  if (background_) {
    save_beside_training(std::move(writer), std::move(other), handover, name);
  } else {
    const std::vector<std::string> parts = gather_texts(ctx, run_.world(), others_part);
    agree(ctx, run_.world(), kWhat, [&] {
      if (!first) return;
      for (size_t rank = 1; rank < parts.size(); ++rank) {
        writer->merge(decode_manifest(std::as_bytes(std::span(parts[rank])),
                                      str_cat("the part of rank ", rank)));
      }
      writer->commit();
    });
  }
}

// Every rank has taken its copy; what is left to do needs none of the others' calls.
void CheckpointSaver::save_beside_training(std::shared_ptr<CheckpointWriter> writer,
                                           std::shared_ptr<PartWriter> other,
                                           const std::optional<PartHandover>& handover,
                                           const std::string& tag) {
  saving_together_ = run_.mesh.size() > 1;
  if (!writer) {
    return background_->start([other = std::move(other), to = *handover] { to.finish(*other); },
                              tag);
  }
  background_->start(
      [writer = std::move(writer), comm = run_.mesh.world(), ranks = run_.mesh.size()] {
        // A group that has ended well may still write its parts; one that failed will not.
        const auto latest = std::chrono::steady_clock::now() + comm->deadline();
        const auto given_up = [&] {
          using State = Communicator::State;
          const State state = comm->state();
          return state == State::kAborted || state == State::kFailed ||
                 std::chrono::steady_clock::now() > latest;
        };
        for (const Manifest& part : take_parts(writer->temporary(), ranks, given_up)) {
          writer->merge(part);
        }
        writer->commit();
      },
      tag);
}

// What this rank saves of a parameter: what it owns or, where everybody owns everything, an equal
// share.
zero::FlatRange CheckpointSaver::saved_share(nn::ParamId id) const {
  const zero::Layout& layout = run_.state->layout();
  if (!layout.flat().holds(id)) return {};
  const int domain = layout.domain(id);
  if (layout.flat().world(domain) > 1) {
    const std::vector<zero::OwnedPart> parts = layout.primary(id);
    if (parts.empty()) return {};
    return {parts.front().first, parts.front().first + parts.front().count};
  }
  const zero::GradientDomain& all = layout.domains()[static_cast<size_t>(domain)];
  const int64_t n = run_.model->parameters()[id].shape.elements();
  return {n * all.rank / all.ranks, n * (all.rank + 1) / all.ranks};
}

bool CheckpointSaver::left_out(const nn::Parameter& p) const {
  // What no gradient moves may move with the steps all the same.
  return !p.trainable && !p.keeps_fp32 && run_.config.checkpoint.exclude_frozen_parameters;
}

// Of save_tensors, about: masters and states are saved in fp32.
int64_t CheckpointSaver::expected_bytes() {
  int64_t out = 0;
  for (nn::ParamId id = 0; id < run_.model->parameters().size(); ++id) {
    const nn::Parameter& p = run_.model->parameters()[id];
    const int64_t elements = saved_share(id).elements();
    if (left_out(p) || elements == 0) continue;
    const size_t states = p.trainable ? updater_.optimizer().states(updater_.place(id)).size() : 0;
    const int64_t bytes = elements * dtype_size(DType::kFloat32);
    const int64_t padding = bytes >= kLargeItemBytes ? kLargeBlobAlignment : kBlobAlignment;
    out += static_cast<int64_t>(1 + states) * (bytes + padding);
  }
  return out;
}

void CheckpointSaver::save_tensors(PartWriter& part) {
  const OpContext ctx = run_.context();
  zero::TrainState& state = *run_.state;
  const nn::ParameterSet& parameters = run_.model->parameters();
  optim::Optimizer& optimizer = updater_.optimizer();
  CallControl::Call call(control_, "save", parameters.size());
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    call.next(id);
    const nn::Parameter& p = parameters[id];
    if (left_out(p)) continue;
    const zero::FlatRange share = saved_share(id);
    const bool whole = share.elements() == p.shape.elements();
    if (share.elements() == 0 && !(p.shape.elements() == 0 && run_.first_rank())) continue;
    const int64_t owned_from = state.layout().flat().part(id).first;
    const auto add = [&](const TensorMeta& meta, const Tensor& owned, bool view) {
      const Lifetime lasts = view && on_host(owned) ? Lifetime::kUntilFinish : Lifetime::kCall;
      const Tensor slice = to_host(
          owned.view({owned.elements()}).slice(0, share.begin - owned_from, share.end - owned_from),
          run_.model->host());
      if (whole) return part.add_tensor(meta, bytes_of(slice), lasts);
      part.add_range(meta, share.begin, share.end, bytes_of(slice), lasts);
    };
    add(saved::meta_of(p, {TensorKind::kMaster, ""}), state.masters().read_owned(ctx, id),
        state.arrays().masters_in_place());
    if (!p.trainable) continue;
    const size_t place = updater_.place(id);
    for (const std::string& name : optimizer.states(place)) {
      Tensor value = optimizer.state_view(place, name);
      const bool view = static_cast<bool>(value);
      if (!view) {
        const optim::OwnedRange owned = optimizer.owned(place);
        value = run_.host_context().workspace(DType::kFloat32, {owned.end - owned.begin});
        optimizer.read_state_range(place, name, owned.begin, owned.end, value.data<float>());
      }
      add(saved::meta_of(p, saved::state_key(name)), value, view);
    }
    if (open_.micro_batches > 0) {
      TensorMeta meta = saved::meta_of(p, {TensorKind::kOptimizer, saved::kGradientState});
      meta.dtype = state.gradients().accumulation_type();
      add(meta, zero::owned_gradient(run_.host_context(), state.gradients(), id),
          state.arrays().flat.gradients.in_memory());
    }
  }
}

void CheckpointSaver::save_counters(PartWriter& part, const std::vector<StepShare>& shares) {
  models::describe_model(*run_.model, part);
  part.set_json(saved::kConfig, run_.config.resolved());
  part.set_json(saved::kRateConfig, rate_config(run_.config));
  part.set_json(saved::kUpdater, updater_.save());
  part.set_int(saved::kSeed, static_cast<int64_t>(run_.config.seed));
  part.set_int(saved::kMicroBatches, open_.micro_batches);
  part.set_int(saved::kSamples, open_.first_sample);
  if (run_.config.batch_ramp_up) part.set_int(saved::kRampedUp, run_.config.batch.accumulation);
  const bool distils = run_.config.distillation.active(open_.progress.steps);
  double loss_sum = 0, label_sum = 0, teacher_sum = 0;
  int64_t tokens = 0, losses = 0;
  Json ranks = Json::array();
  for (const StepShare& share : shares) {
    loss_sum += share.loss_sum;
    tokens += share.tokens;
    losses += share.losses;
    label_sum += share.label_sum;
    teacher_sum += share.teacher_sum;
    Json& of_rank = ranks.emplace_back();
    of_rank = {{"loss_sum", share.loss_sum}, {"tokens", share.tokens}, {"losses", share.losses}};
    if (!distils) continue;
    of_rank["label_sum"] = share.label_sum;
    of_rank["teacher_sum"] = share.teacher_sum;
  }
  part.set_double(saved::kLossSum, loss_sum / static_cast<double>(shares.size()));
  part.set_int(saved::kTokens, tokens / static_cast<int64_t>(shares.size()));
  part.set_int(saved::kLosses, losses / static_cast<int64_t>(shares.size()));
  if (open_.micro_batches > 0 && distils) {
    part.set_double(saved::kLabelSum, label_sum / static_cast<double>(shares.size()));
    part.set_double(saved::kTeacherSum, teacher_sum / static_cast<double>(shares.size()));
  }
  if (open_.micro_batches > 0 && shares.size() > 1) part.set_json(saved::kRanks, ranks);
  if (feed_.has_dataset()) part.set_json(saved::kDataset, feed_.describe());
  part.set_json(saved::kClientState, caller_.client_state);
  caller_.blobs.save(part);
  if (caller_.tokenizer) part.set_text(models::kTokenizerState, caller_.tokenizer->to_json());
}

void CheckpointSaver::wait() {
  if (!background_) return;
  if (!std::exchange(saving_together_, false)) return background_->wait();
  // It is there when rank 0 says so, and failed on all when it failed on one.
  agree(run_.context(), run_.world(), "saving a checkpoint", [&] { background_->wait(); });
}

void CheckpointSaver::wait_before_load() {
  if (background_) background_->join();
  // The checkpoint is there when rank 0 has it, for those who read it themselves.
  if (saving_together_) agree(run_.context(), run_.world(), "waiting for a save", [] {});
}

}  // namespace ds
