#include "engine/step_metrics.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "engine/recompute.h"

namespace ds {
namespace {

int64_t first_integer(const Json& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto at = config.find(name);
    if (at != config.end() && at->is_number_integer()) return at->get<int64_t>();
  }
  return 0;
}

// Decoders of known families; no shape for others.
DecoderShape decoder_shape(const Config& config, const models::Model& model) {
  DecoderShape shape;
  if (!model.has_architecture()) return shape;
  const models::ArchitectureInfo& info = model.architecture().info();
  // What a token goes through differs between layers with experts and without.
  if (info.head != models::Head::kCausalLm || info.experts > 0) return shape;
  const Json& json = model.architecture().config();
  const std::string type = json.value("model_type", "");
  shape.hidden = first_integer(json, {"n_embd", "hidden_size"});
  shape.heads = first_integer(json, {"n_head", "num_attention_heads"});
  if (shape.heads * info.head_size != shape.hidden) return {};
  shape.ffn = first_integer(json, {"n_inner", "intermediate_size"});
  if (shape.ffn == 0 && type == "gpt2") shape.ffn = 4 * shape.hidden;
  shape.layers = info.layers;
  shape.kv_heads = info.kv_heads;
  shape.vocab = info.vocab_size;
  constexpr std::array kGated = {"llama", "mistral", "qwen2", "qwen3", "olmo2"};
  shape.gated = std::find(kGated.begin(), kGated.end(), type) != kGated.end();
  shape.recomputed = recompute_of(config.activation_checkpointing, info).share(info.layers);
  return shape;
}

double elapsed(const WallClockTimers& timers, const char* name) {
  return timers.has(name) ? timers.elapsed(name) : 0;
}

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

}  // namespace

ClockFn device_clock(const std::shared_ptr<Device>& device) {
  if (device->kind() == DeviceKind::kCpu) return steady_seconds;
  return [device] {
    try {
      device->default_stream().synchronize();
    } catch (const Error& error) {  // whoever uses the device next gets it too
      log_warning("engine", "the profile's times are off: ", error.message());
    }
    return steady_seconds();
  };
}

StepMetrics::StepMetrics(const Config& config, models::Model& model, const Mesh& mesh)
    : config_(config),
      model_(model),
      world_(mesh.size()),
      data_ranks_(mesh.size(MeshGroup::kData)),
      first_rank_(mesh.first_rank()),
      shape_(decoder_shape(config, model)) {
  if (config_.flops_profiler.enabled && !model_.has_architecture()) {
    log_warning("engine",
                "flops_profiler: the model is the caller's own parameters; its forward pass "
                "cannot be seen, only the update is profiled");
  }
}

ModuleProfile* StepMetrics::profile_for(int64_t steps) {
  if (!config_.flops_profiler.enabled || !first_rank_) return nullptr;
  if (steps != config_.flops_profiler.profile_step) return nullptr;
  if (!profile_) {
    profile_ = std::make_unique<ModuleProfile>(device_clock(model_.device()));
    const nn::ParameterSet& parameters = model_.parameters();
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      profile_->add_parameter(parameters[id].name, parameters[id].shape.elements());
    }
  }
  return profile_.get();
}

void StepMetrics::count_batch(const Tensor& ids) {
  ++open_.count;
  open_.samples += ids.size(0);
  open_.tokens += ids.elements();
  open_.length = ids.size(1);
}

void StepMetrics::sum_experts(const Mesh& mesh) {
  if (!model_.has_architecture() || mesh.size(MeshGroup::kDataContext) == 1) return;
  const models::ArchitectureInfo& info = model_.architecture().info();
  if (info.experts == 0) return;
  experts_.sum(model_.host(), mesh.placed(MeshGroup::kDataContext), info.layers, info.experts);
}

void StepMetrics::drop_step() {
  open_ = {};
  experts_.drop();
  profile_.reset();
}

void StepMetrics::finish_step(const StepReport& report, const WallClockTimers& timers) {
  if (config_.throughput) {
    const int64_t samples =
        open_.count > 0 ? open_.samples * data_ranks_ : config_.batch.train_batch;
    meter_.add_step(report.seconds, samples, open_.tokens * data_ranks_);
    const double seconds = report.seconds > 0 ? report.seconds * 1e12 : 1;
    // A token's work is that of the experts it goes through.
    const int64_t parameters = model_.parameters().active_elements(
        model_.has_architecture() ? model_.architecture().info().experts_per_token : 0);
    six_n_tflops_ = report.seconds > 0 ? six_n_flops(parameters, open_.tokens) / seconds : 0;
    megatron_tflops_ = report.seconds > 0 && shape_ && open_.samples > 0
                           ? megatron_flops(shape_, open_.samples, open_.length, false) / seconds
                           : 0;
  }
  experts_.finish(report.progress.steps);
  // Without a forward pass of ours there is still the update to tell about.
  if (!model_.has_architecture()) profile_for(report.progress.steps - 1);
  if (profile_) finish_profile(report, timers);
  if (config_.memory_breakdown) {
    step_peaks_ = account_peaks();
    for (size_t i = 0; i < peaks_.size(); ++i) peaks_[i] = std::max(peaks_[i], step_peaks_[i]);
    model_.device()->account().reset_peaks();
  }
  drop_step();
}

void StepMetrics::finish_profile(const StepReport& report, const WallClockTimers& timers) {
  const FlopsProfilerConfig& keys = config_.flops_profiler;
  ProfiledStep step;
  step.step = report.progress.steps - 1;
  step.world_size = world_;
  step.data_parallel_size = data_ranks_;
  step.micro_batch = open_.count > 0 ? open_.samples / open_.count : config_.batch.micro_batch;
  step.micro_batches = open_.count > 0 ? open_.count : config_.batch.accumulation;
  step.samples = open_.count > 0 ? open_.samples * data_ranks_ : config_.batch.train_batch;
  step.tokens = open_.tokens * data_ranks_;
  step.forward_seconds = elapsed(timers, "forward");
  step.backward_seconds = elapsed(timers, "backward");
  step.update_seconds = elapsed(timers, "step");
  const ProfileOptions options{keys.recompute_fwd_factor, keys.module_depth, keys.top_modules,
                               keys.detailed};
  profile_json_ = ds::profile_json(*profile_, step, options);
  const std::string text = format_profile(*profile_, step, options);
  if (!keys.output_file.empty()) {
    try {  // a report that cannot be written must not end the training
      const std::filesystem::path path = keys.output_file;
      if (path.has_parent_path()) make_folders(path.parent_path());
      write_file_durably(path, text);
      return;
    } catch (const Error& error) {
      log_warning("engine", "flops_profiler: ", error.message(), "; the profile goes to the log");
    }
  }
  log_info("engine", text);
}

void StepMetrics::add_to(std::vector<Metric>& metrics) const {
  const auto add = [&](const char* tag, double value) {
    if (value > 0) metrics.push_back({str_cat("Train/Samples/", tag), value});
  };
  if (config_.throughput) {
    add("samples_per_second", meter_.last_samples_per_second());
    add("tokens_per_second", meter_.last_tokens_per_second());
    add("tflops", six_n_tflops_);
    add("tflops_megatron", megatron_tflops_);
  }
  if (config_.memory_breakdown) {
    add("memory_peak_bytes", static_cast<double>(step_peaks_.back()));
  }
  experts_.add_to(metrics);
  if (ahead_) {
    metrics.push_back({"Train/Samples/super_offload_share", ahead_->share});
    metrics.push_back({"Train/Samples/super_offload_undone", ahead_->undone ? 1.0 : 0.0});
  }
  if (!extent_) return;
  const auto tell = [&](const char* tag, double value) {
    metrics.push_back({str_cat("Train/Samples/zenflow_", tag), value});
  };
  tell("updated_share", extent_->everything ? 1 : extent_->chosen);
  tell("waiting_steps", static_cast<double>(extent_->waiting));
  tell("chosen_anew", extent_->chosen_anew ? 1 : 0);
}

std::string StepMetrics::extent_line() const {
  if (!extent_) return {};
  if (extent_->everything) return "updated: all elements";
  return str_cat("updated: ", short_number(100 * extent_->chosen), " % of the elements, ",
                 extent_->waiting, extent_->waiting == 1 ? " step" : " steps",
                 " of the others wait");
}

std::string StepMetrics::throughput_line() const {
  if (!config_.throughput) return {};
  const auto rates = [&](const char* unit, double last, double average) {
    std::string out = short_number(last) + " " + unit;
    if (meter_.averages()) out += " (average " + short_number(average) + ")";
    return out;
  };
  std::string out =
      rates("samples/s", meter_.last_samples_per_second(), meter_.samples_per_second());
  if (meter_.last_tokens_per_second() > 0) {
    out += ", " + rates("tokens/s", meter_.last_tokens_per_second(), meter_.tokens_per_second());
  }
  if (six_n_tflops_ > 0) out += ", " + short_number(six_n_tflops_) + " TFLOPS by 6N";
  if (megatron_tflops_ > 0) {
    out += ", " + short_number(megatron_tflops_) + " by Megatron's formula";
  }
  return out;
}

StepMetrics::Peaks StepMetrics::account_peaks() const {
  const MemoryAccount& account = model_.device()->account();
  Peaks out{};
  for (int i = 0; i < kMemoryTags; ++i) {
    out[static_cast<size_t>(i)] = account.peak(static_cast<MemoryTag>(i));
  }
  out.back() = account.total_peak();
  return out;
}

int64_t StepMetrics::peak(MemoryTag tag) const {
  return std::max(peaks_[static_cast<size_t>(tag)], model_.device()->account().peak(tag));
}

int64_t StepMetrics::total_peak() const {
  return std::max(peaks_.back(), model_.device()->account().total_peak());
}

std::string StepMetrics::memory_lines() const {
  const Device& device = *model_.device();
  std::string out = str_cat("memory of ", device.describe(), " (now / peak of the step / peak):\n");
  const auto line = [&](std::string_view name, int64_t now, int64_t step, int64_t most) {
    out += str_cat("  ", name, ": ", format_bytes(now), " / ", format_bytes(step), " / ",
                   format_bytes(most), "\n");
  };
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (peak(tag) == 0) continue;
    line(memory_tag_name(tag), device.account().now(tag), step_peaks_[static_cast<size_t>(i)],
         peak(tag));
  }
  line("total", device.account().total_now(), step_peaks_.back(), total_peak());
  return out + str_cat("  reserved: ", format_bytes(device.reserved_bytes()), "\n");
}

}  // namespace ds
