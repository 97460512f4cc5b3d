#include "run_loop.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "ds.hpp"
#include "failure.h"
#include "first_rank.h"
#include "format.h"
#include "run_description.h"

namespace tool {
namespace {

bool saves_beside_training(const libds::Engine& engine) {
  const Json document = parse_json(engine.config(), "the engine's configuration");
  const Json::json_pointer place("/config/checkpoint/writer/decoupled");
  return document.contains(place) && document.at(place) == true;
}

// Whether a save may fail like this in a run that goes on: a disk, a folder or memory, not a peer
// or a device.
bool may_work_later(ds_status status) {
  return status == DS_ERR_IO || status == DS_ERR_NOT_FOUND || status == DS_ERR_OUT_OF_MEMORY ||
         status == DS_ERR_CORRUPT;
}

// Whether it comes from the data and leaves the engine as it was.
bool of_the_data(ds_status status) {
  return status == DS_ERR_IO || status == DS_ERR_NOT_FOUND || status == DS_ERR_CORRUPT ||
         status == DS_ERR_INVALID_ARGUMENT;
}

std::optional<MegatronLog> megatron_log(const TrainOptions& options, const libds::Comm& comm,
                                        const libds::Engine& engine, const libds::Model& model,
                                        int64_t sequence_length) {
  if (!options.megatron_log) return std::nullopt;
  const Json config = parse_json(engine.config(), "the engine's configuration").at("config");
  return MegatronLog(parse_json(model.config(), "the model's configuration"), sequence_length,
                     comm.size(), config.at("activation_checkpointing").at("enabled").get<bool>(),
                     engine.info().samples);
}

}  // namespace

RunLoop::RunLoop(const TrainOptions& options, libds::Comm& comm, libds::Engine& engine,
                 libds::Model& model, const RunData& data, Json description)
    : o_(options),
      comm_(comm),
      engine_(engine),
      model_(model),
      data_(data),
      description_(std::move(description)),
      progress_(engine.global_step(), options.steps, options.log_interval, options.quiet,
                megatron_log(options, comm, engine, model, data.sequence_length)),
      step_(engine.global_step()),
      first_step_(step_),
      decoupled_(saves_beside_training(engine)) {}

int RunLoop::run() {
  if (step_ >= o_.steps) {
    if (comm_.rank() == 0) {
      std::cout << "nothing to do: the loaded run is at step " << step_ << ", --steps is "
                << o_.steps << "\n";
    }
    save_last();
    return kDone;
  }
  std::optional<MetricsFile> metrics;
  const std::optional<int64_t> from = o_.resumes() ? std::optional<int64_t>(step_) : std::nullopt;
  on_first_rank(comm_, [&] { metrics.emplace(o_.metrics, from); });
  if (!metrics) metrics.emplace("", from);
  // Not before the file is ours alone.
  if (metrics->is_file()) write_run_description(o_.metrics, description_);
  SignalWatch signals(SignalWatch::Loop::kSaves);
  train(signals, *metrics);
  const bool early = step_ < o_.steps && exits_;
  if (news_.stop != 0 || early) {
    progress_.message((early ? "ended after step " : "interrupted after step ") +
                      std::to_string(step_) + (early ? " by " + exit_reason_ : "") +
                      (o_.save.empty() ? ": nothing is saved without --save" : ""));
  }
  // Stopped before it did anything.
  if (early && news_.stop == 0 && step_ == first_step_) return kDone;
  save_last();
  if (early) return kDone;
  if (news_.stop != 0) return kSignalBase + news_.stop;
  progress_.message("done: step " + std::to_string(step_) + ", loss " +
                    format_value("%.4f", report_.loss));
  return kDone;
}

// What the data make fail is saved first: a file can be put right, and the run goes on from here.
// With peers that is not possible: they wait within the step.
template <class Fn>
auto RunLoop::saved_before_failure(const Fn& fn) {
  try {
    return fn();
  } catch (const libds::Error& error) {
    if (of_the_data(error.status()) && comm_.size() == 1 && !o_.save.empty()) {
      save();
      finish_save();
    }
    throw;
  }
}

void RunLoop::train(SignalWatch& signals, MetricsFile& metrics) {
  agree(signals);
  while (step_ < o_.steps && news_.stop == 0 && !exits_) {
    report_ = saved_before_failure([&] { return engine_.train_batch(); });
    step_ = report_.step;
    progress_.step(report_, report_.applied ? "" : bad_parameter(report_, model_));
    const bool last = step_ >= o_.steps;
    agree(signals);
    std::optional<double> valid_loss;
    if (news_.stop == 0 && (last || due(o_.eval_interval))) {
      valid_loss = saved_before_failure([&] { return validate(); });
    }
    metrics.write(report_, valid_loss, comm_, engine_, model_);
    if (valid_loss) {
      progress_.message(format("step %lld  validation loss %s  perplexity %s",
                               static_cast<long long>(step_),
                               format_value("%.4f", *valid_loss).c_str(),
                               format_value("%.2f", std::exp(*valid_loss)).c_str()));
    }
    if (due(o_.save_interval) || news_.save) save();
  }
}

std::optional<double> RunLoop::validate() {
  if (data_.valid == nullptr) return std::nullopt;
  return engine_.evaluate(*data_.valid, o_.eval_batches);
}

// Which option ends the run here, as this process sees it.
std::string RunLoop::exit_asked() const {
  const ExitOptions& exit = o_.exit;
  if (exit.on_terminate && news_.stop == SIGTERM) return "SIGTERM";
  std::error_code ignored;
  if (!exit.file.empty() && std::filesystem::exists(exit.file, ignored)) {
    return "the file " + exit.file;
  }
  if (const ds_engine_info at = engine_.info();
      data_.once > 0 && at.samples + at.train_batch_size > data_.once) {
    return "the end of the data";
  }
  if (step_ == first_step_) return {};  // nothing is done yet
  if (due(exit.interval)) return "--exit-interval";
  const std::chrono::duration<double> run = std::chrono::steady_clock::now() - o_.started;
  return exit.minutes > 0 && run.count() > 60 * exit.minutes ? "--exit-duration-in-mins" : "";
}

// What any process of the group was told: all stop, or save, after the same step.
void RunLoop::agree(SignalWatch& signals) {
  news_ = signals.news();
  exit_reason_ = exit_asked();
  exits_ = !exit_reason_.empty();
  if (comm_.size() == 1) return;
  const std::vector<int32_t> own = {news_.stop, news_.save ? 1 : 0, exits_ ? 1 : 0};
  libds::Tensor most = libds::Tensor::from(own);
  comm_.all_reduce(most, DS_REDUCE_MAX);
  const auto agreed = most.to_vector<int32_t>();
  news_ = {agreed[0], agreed[1] != 0};
  exits_ = agreed[2] != 0;
  if (!exits_ || !exit_reason_.empty()) return;
  // A signal to all of them may have reached another process first.
  const bool signalled = o_.exit.on_terminate && news_.stop == SIGTERM;
  exit_reason_ = signalled ? "SIGTERM" : "another process";
}

void RunLoop::save() {
  if (o_.save.empty()) return;
  finish_save();
  if (saved_step_ == step_) return;
  try {
    engine_.save(o_.save);
  } catch (const libds::Error& error) {
    if (!may_work_later(error.status())) throw;
    return save_failed(error, step_);
  }
  saving_step_ = step_;
  if (!decoupled_) finish_save();
}

// Waits for the save that is under way. Only then it is known to be there.
void RunLoop::finish_save() {
  if (!saving_step_) return;
  const int64_t step = *std::exchange(saving_step_, std::nullopt);
  try {
    engine_.save_wait();
  } catch (const libds::Error& error) {
    if (!may_work_later(error.status())) throw;
    return save_failed(error, step);
  }
  saved_step_ = step;
  save_failure_.clear();
  progress_.message("saved " + o_.save + " at step " + std::to_string(step));
}

void RunLoop::save_failed(const libds::Error& error, int64_t step) {
  save_failure_ =
      "cannot save " + o_.save + " at step " + std::to_string(step) + ": " + plain_message(error);
  // The last one of a run is reported as an error.
  const bool last = step == step_ && (step_ >= o_.steps || news_.stop != 0 || exits_);
  if (comm_.rank() != 0 || last) return;
  progress_.clear();
  std::cerr << "ds: warning: " << save_failure_ << "; training goes on, the next save is "
            << (o_.save_interval > 0 ? "in " + std::to_string(o_.save_interval) + " steps\n"
                                     : "at the end\n");
}

void RunLoop::save_last() {
  save();
  finish_save();
  save_adapter();
  if (!save_failure_.empty()) throw Failure(save_failure_);
}

void RunLoop::save_adapter() {
  if (o_.adapter_out.empty()) return;
  model_.save_adapter(o_.adapter_out);
  if (!o_.quiet) std::cerr << "wrote the adapters to " << o_.adapter_out << "\n";
}

}  // namespace tool
