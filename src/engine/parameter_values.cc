#include "engine/parameter_values.h"

#include <string_view>

#include "base/text.h"
#include "engine/external_gradients.h"
#include "engine/open_step.h"
#include "engine/parameter_scopes.h"
#include "engine/run_context.h"
#include "engine/step_guard.h"
#include "engine/updater.h"
#include "tensor/transfer.h"
#include "zero/gradient_values.h"

namespace ds {
namespace {

constexpr std::string_view kParameterValues = "parameter";
constexpr std::string_view kGradientValues = "gradient";

}  // namespace

zero::FlatRange ParameterValues::local_range(const std::string& name) {
  const zero::OwnedPart part =
      run_.state->layout().flat().part(run_.model->parameters().find(name));
  return {part.first, part.first + part.count};
}

Tensor ParameterValues::local(const std::string& name, const std::string& what) {
  const models::Model::Use use(*run_.model);
  const OpContext ctx = run_.context();
  const nn::ParamId id = run_.model->parameters().find(name);
  const int64_t count = run_.state->layout().flat().part(id).count;
  Tensor out = Tensor::empty(run_.model->host(), DType::kFloat32, {count}, MemoryTag::kOther);
  if (what == kParameterValues) {
    copy_tensor(run_.state->masters().read_owned(ctx, id).view({count}), out);
    return out;
  }
  if (what == kGradientValues) {
    guard_.write([&] { run_.state->gradients().materialize(ctx); });
    Tensor values = run_.state->arrays().state_context(ctx).workspace(DType::kFloat32, {count});
    zero::read_owned_gradient(ctx, run_.state->gradients(), run_.trainable(name), values);
    copy_tensor(values, out);
    return out;
  }
  if (!run_.state->arrays().holds(run_.trainable(name))) return out;
  const size_t place = updater_.place(id);
  const optim::OwnedRange owned = updater_.optimizer().owned(place);
  updater_.optimizer().read_state_range(place, what, owned.begin, owned.end, out.data<float>());
  return out;
}

void ParameterValues::set_local(const std::string& name, const std::string& what,
                                const Tensor& values) {
  const nn::ParamId id = run_.model->parameters().find(name);
  const zero::FlatRange range = local_range(name);
  check_tensor(values, name.c_str(), DType::kFloat32, {range.elements()});
  DS_CHECK(values.contiguous(), Code::kInvalidArgument, name, " must be packed");
  if (what == kGradientValues) return set_local_gradient(name, values);
  DS_CHECK(open_.phase != OpenStep::Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  scopes_.check_nothing_held("values are set");
  const models::Model::Use use(*run_.model);
  if (what == kParameterValues) {
    const OpContext ctx = run_.context();
    zero::TrainState& state = *run_.state;
    return set_values(name, [&] {
      state.masters().write_owned(ctx, id, 0, run_.operand(values));
      state.weights().follow_owned_master(ctx, id);
    });
  }
  if (!run_.state->arrays().holds(run_.trainable(name))) return;
  const size_t place = updater_.place(id);
  const optim::OwnedRange owned = updater_.optimizer().owned(place);
  set_values(name, [&] {
    updater_.optimizer().write_state_range(place, what, owned.begin, owned.end,
                                           values.data<float>());
  });
}

// Values in files may be written in part when that fails: like a load that failed, nobody may go on
// with what is there. All is written when it returns, so that an error is this call's.
void ParameterValues::set_values(const std::string& name, const std::function<void()>& body) {
  try {
    run_.state->set_values([&] {
      body();
      updater_.optimizer().flush();
    });
  } catch (const Error& error) {
    if (run_.state->half_written()) {
      run_.model->set_incomplete(
          str_cat("setting values of ", printable(name), " failed half way: ", error.message()));
    }
    throw;
  }
}

void ParameterValues::set_local_gradient(const std::string& name, const Tensor& values) {
  open_.check_takes_gradients();
  const models::Model::Use use(*run_.model);
  const OpContext ctx = run_.context();
  zero::TrainState& state = *run_.state;
  open_.begin_clock();
  guard_.write([&] {
    reduce_given(run_, open_);
    state.gradients().materialize(ctx);
    zero::write_owned_gradient(ctx, state.gradients(), run_.trainable(name), run_.operand(values));
  });
  open_.phase = OpenStep::Phase::kBackwardDone;
}

// Of an expert that other ranks hold, one here that is like it: ranks treat them alike.
nn::ParamId ParameterValues::held_like(nn::ParamId id) const {
  const zero::StateArrays& arrays = run_.state->arrays();
  if (arrays.holds(id)) return id;
  const nn::ParameterSet& parameters = run_.model->parameters();
  const nn::Parameter& p = parameters[id];
  for (const nn::ParamId other : arrays.layout.flat().order()) {
    const nn::Parameter& q = parameters[other];
    if (q.split.experts == p.split.experts && q.shape == p.shape && q.trainable) return other;
  }
  fail(Code::kInternal, "no expert here is like ", p.name);
}

std::vector<std::string> ParameterValues::optimizer_states(const std::string& name) {
  return updater_.optimizer().states(updater_.place(held_like(run_.trainable(name))));
}

Tensor ParameterValues::optimizer_state(const std::string& name, const std::string& state) {
  const models::Model::Use use(*run_.model);
  const nn::ParamId id = run_.trainable(name);
  optim::Optimizer& optimizer = updater_.optimizer();
  const zero::StateArrays& arrays = run_.state->arrays();
  if (!arrays.is_shared(id)) {
    return optimizer.read_state(run_.host_context(), updater_.place(id), state);
  }
  Tensor own;
  if (arrays.holds(id)) {
    const size_t place = updater_.place(id);
    const optim::OwnedRange owned = optimizer.owned(place);
    own = run_.host_context().workspace(DType::kFloat32, {owned.end - owned.begin});
    if (owned.begin < owned.end) {
      optimizer.read_state_range(place, state, owned.begin, owned.end, own.data<float>());
    }
  }
  return arrays.gather_parts(run_.host_context(), id, own);
}

void ParameterValues::set_optimizer_state(const std::string& name, const std::string& state,
                                          const Tensor& value) {
  DS_CHECK(open_.phase != OpenStep::Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  const models::Model::Use use(*run_.model);
  const nn::ParamId id = run_.trainable(name);
  check_tensor(value, name.c_str(), DType::kFloat32, run_.model->parameters()[id].shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  if (!run_.state->arrays().holds(id)) return;
  optim::Optimizer& optimizer = updater_.optimizer();
  const size_t place = updater_.place(id);
  const optim::OwnedRange owned = optimizer.owned(place);
  if (owned.begin == owned.end && value.elements() > 0) return;
  set_values(name, [&] {
    optimizer.write_state_range(place, state, owned.begin, owned.end,
                                value.data<float>() + owned.begin);
  });
}

}  // namespace ds
