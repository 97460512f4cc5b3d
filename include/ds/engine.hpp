// ds/engine.hpp - Engines, and parameters of theirs made whole. Part of ds.hpp.
#ifndef DS_ENGINE_HPP
#define DS_ENGINE_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base.hpp"
#include "comm.hpp"
#include "dataset.hpp"
#include "engine.h"
#include "generator.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "tensor.hpp"

namespace libds {

// Parameters of an engine made whole until the scope ends; see ds_engine_open_scope.
class Scope : public detail::Handle<ds_scope, ds_scope_destroy> {
 public:
  using Handle::Handle;

  // That of position `position` in the list that opened the scope.
  Tensor tensor(int64_t position) const {
    ds_tensor* out = nullptr;
    check(ds_scope_tensor(get(), position, &out));
    return Tensor(out);
  }
  void commit(int32_t modifier_rank) { check(ds_scope_commit(get(), modifier_rank)); }
  void close() { check(ds_scope_close(get())); }
};

using StepReport = ds_step_report;

class Engine : public detail::Handle<ds_engine, ds_engine_destroy> {
 public:
  using Handle::Handle;

  // `config_json` is a DeepSpeed configuration (docs/configuration.md), `options_json` as in
  // ds_engine_create.
  Engine(const std::string& config_json, Model& model, Comm* comm = nullptr,
         const std::string& options_json = "") {
    ds_engine* out = nullptr;
    check(ds_engine_create(config_json.c_str(), detail::or_null(options_json), model.get(),
                           comm ? comm->get() : nullptr, &out));
    reset(out);
  }
  // The configuration is a file's.
  static Engine from_file(const std::string& path, Model& model, Comm* comm = nullptr,
                          const std::string& options_json = "") {
    ds_engine* out = nullptr;
    check(ds_engine_create_from_file(path.c_str(), detail::or_null(options_json), model.get(),
                                     comm ? comm->get() : nullptr, &out));
    return Engine(out);
  }

  // The loss of one micro batch.
  Tensor forward(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_engine_forward(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor forward(const Tensor& ids, const Tensor& labels) { return forward(Batch{&ids, &labels}); }
  void backward(const Tensor& loss) { check(ds_engine_backward(get(), loss.get())); }
  StepReport step() {
    StepReport report = DS_STEP_REPORT_INIT;
    check(ds_engine_step(get(), &report));
    return report;
  }

  void set_dataset(const Dataset* dataset) {
    check(ds_engine_set_dataset(get(), dataset ? dataset->get() : nullptr));
  }
  StepReport train_batch() {
    StepReport report = DS_STEP_REPORT_INIT;
    check(ds_engine_train_batch(get(), &report));
    return report;
  }
  // Mean loss; `max_batches` 0 = the whole data set.
  double evaluate(const Dataset& dataset, int64_t max_batches = 0) {
    double out = 0;
    check(ds_engine_evaluate(get(), dataset.get(), max_batches, &out));
    return out;
  }

  // Hears the parts of train_batch, evaluate, save and load; false ends the call (DS_ERR_CALLBACK).
  // It must not throw.
  using Progress = std::function<bool(const char* call, int64_t done, int64_t total)>;
  void set_progress(Progress progress) {
    if (!progress) {
      check(ds_engine_set_progress(get(), nullptr, nullptr, nullptr));
      return;
    }
    auto kept = std::make_unique<Progress>(std::move(progress));
    check(ds_engine_set_progress(
        get(),
        [](void* user_data, const char* call, int64_t done, int64_t total) -> int32_t {
          return (*static_cast<Progress*>(user_data))(call, done, total) ? 0 : 1;
        },
        kept.get(), [](void* user_data) { delete static_cast<Progress*>(user_data); }));
    (void)kept.release();  // the library's now
  }
  // From any thread: ends the call that runs in this engine.
  void interrupt() { check(ds_engine_interrupt(get())); }

  // "" as a tag: "global_step<N>" when saving, the newest valid one when loading.
  void save(const std::string& folder, const std::string& tag = "") {
    check(ds_engine_save(get(), folder.c_str(), detail::or_null(tag)));
  }
  void save_wait() { check(ds_engine_save_wait(get())); }
  // `options_json` as in ds_engine_load: how much of it.
  void load(const std::string& folder, const std::string& tag = "",
            const std::string& options_json = "") {
    check(
        ds_engine_load(get(), folder.c_str(), detail::or_null(tag), detail::or_null(options_json)));
  }
  void set_tokenizer(const Tokenizer* tokenizer) {
    check(ds_engine_set_tokenizer(get(), tokenizer ? tokenizer->get() : nullptr));
  }
  // "" takes the document away.
  void set_client_state(const std::string& json) {
    check(ds_engine_set_client_state(get(), detail::or_null(json)));
  }
  std::string client_state() const {
    char* out = nullptr;
    check(ds_engine_client_state(get(), &out));
    return detail::take(out);
  }

  // Bytes that checkpoints carry, by name; "" takes them away.
  void set_blob(const std::string& name, std::string_view bytes) {
    check(ds_engine_set_blob(get(), name.c_str(), bytes.empty() ? nullptr : bytes.data(),
                             static_cast<int64_t>(bytes.size())));
  }
  std::string blob(const std::string& name) const {
    ds_tensor* out = nullptr;
    check(ds_engine_blob(get(), name.c_str(), &out));
    const std::vector<uint8_t> bytes = Tensor(out).to_vector<uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  // Names and sizes, as a JSON object.
  std::string blobs() const {
    char* out = nullptr;
    check(ds_engine_blobs(get(), &out));
    return detail::take(out);
  }

  // The configuration as resolved, with the origin of each value.
  std::string config() const {
    char* out = nullptr;
    check(ds_engine_config(get(), &out));
    return detail::take(out);
  }
  std::string memory_report() const {
    char* out = nullptr;
    check(ds_engine_memory_report(get(), &out));
    return detail::take(out);
  }
  // Arithmetic and time per module of the step that flops_profiler asked for; "null" before it.
  std::string profile() const {
    char* out = nullptr;
    check(ds_engine_profile(get(), &out));
    return detail::take(out);
  }
  // Loads and losses of the last step's experts; "null" where the model has none.
  std::string experts() const {
    char* out = nullptr;
    check(ds_engine_experts(get(), &out));
    return detail::take(out);
  }
  // Counters, batch sizes and the loss scale.
  ds_engine_info info() const {
    ds_engine_info out = DS_ENGINE_INFO_INIT;
    check(ds_engine_describe(get(), &out));
    return out;
  }
  int64_t global_step() const { return info().step; }
  int64_t samples() const { return info().samples; }
  double loss_scale() const { return info().loss_scale; }

  // The caller's own gradients, which carry loss_scale(), of the parameters 0, 1, ...
  void add_gradients(const std::vector<Tensor>& gradients) { add(nullptr, gradients); }
  // ... or of these.
  void add_gradients(const std::vector<int64_t>& parameters, const std::vector<Tensor>& gradients) {
    if (parameters.size() != gradients.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Engine: as many gradients as parameters are needed");
    }
    add(parameters.data(), gradients);
  }
  void add_gradient(int64_t parameter, const Tensor& gradient) {
    ds_tensor* const handle = gradient.get();
    check(ds_engine_add_gradients(get(), &parameter, &handle, 1));
  }
  // The memory that a gradient gathers in.
  Tensor view_gradient(int64_t parameter) {
    ds_tensor* out = nullptr;
    check(ds_engine_view_gradient(get(), parameter, &out));
    return Tensor(out);
  }
  // What the loss of the open micro batch was, for reports.
  void set_loss(double loss) { check(ds_engine_set_loss(get(), loss)); }
  void discard_gradients() { check(ds_engine_discard_gradients(get())); }
  // Whether the next steps update; nothing: as gradient_accumulation_steps says.
  void set_boundary(std::optional<bool> boundary) {
    check(ds_engine_set_boundary(get(), boundary ? int32_t{*boundary} : -1));
  }
  // Parameters whole until the scope ends, to compute with or to change; none: all of them.
  Scope open_scope(ds_scope_mode mode, const std::vector<int64_t>& parameters) {
    ds_scope* out = nullptr;
    check(ds_engine_open_scope(get(), parameters.data(), static_cast<int64_t>(parameters.size()),
                               mode, &out));
    return Scope(out);
  }
  // Values of a parameter as float32; `state` names one of Optimizer::state_names().
  Tensor values(int64_t parameter, ds_value_kind kind, const std::string& state = "",
                ds_extent extent = DS_EXTENT_WHOLE) const {
    ds_tensor* out = nullptr;
    check(ds_engine_get_values(get(), parameter, kind, detail::or_null(state), extent, &out));
    return Tensor(out);
  }
  void set_values(int64_t parameter, ds_value_kind kind, const Tensor& value,
                  const std::string& state = "", ds_extent extent = DS_EXTENT_WHOLE) {
    check(
        ds_engine_set_values(get(), parameter, kind, detail::or_null(state), extent, value.get()));
  }
  Tensor gradient(int64_t parameter) const { return values(parameter, DS_VALUE_GRADIENT); }
  // First element and number of elements of this process's part.
  std::pair<int64_t, int64_t> local_range(int64_t parameter) const {
    int64_t first = 0, count = 0;
    check(ds_engine_local_range(get(), parameter, &first, &count));
    return {first, count};
  }
  // Takes part in the steps of processes that have more batches.
  void join() { check(ds_engine_join(get())); }
  Optimizer optimizer() const {
    ds_optimizer* out = nullptr;
    check(ds_engine_optimizer(get(), &out));
    return Optimizer(out);
  }

 private:
  void add(const int64_t* parameters, const std::vector<Tensor>& gradients) {
    std::vector<ds_tensor*> handles;
    for (const Tensor& gradient : gradients) handles.push_back(gradient.get());
    check(ds_engine_add_gradients(get(), parameters, handles.data(), detail::size_of(handles)));
  }
};

}  // namespace libds

#endif  // DS_ENGINE_HPP
