#include "nn/profile.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tensor/transfer.h"

namespace ds::nn {

void OperatorScope::begin(const char* name, ParamId parameter, bool at_alias) {
  Tape::ProfileState& state = tape_->profile_state_;
  ModuleProfile& profile = *tape_->profile();
  std::string module;
  if (parameter == kNoParam) {
    module = parent_module(state.module);
  } else {
    const Parameter& p = tape_->weights().parameters()[parameter];
    module = ModuleProfile::module_of(at_alias && !p.aliases.empty() ? p.aliases.front() : p.name);
    state.module = module;
  }
  state.site = profile.site(module, name);
  state.open = true;
  state.backward = {};
  profile.begin(state.site, tape_->profile_phase());
}

void OperatorScope::end() const noexcept {
  tape_->profile_state_.open = false;
  tape_->profile()->end();
}

void OperatorScope::work(const Arithmetic& forward, const Arithmetic& backward) const {
  tape_->profile()->add(tape_->profile_state_.site, tape_->profile_phase(), forward);
  tape_->profile_state_.backward = backward;
}

Tape::Backward Tape::profiled(Backward backward) {
  // Only a checkpointed region records outside of an operator.
  const ModuleProfile::Site site =
      profile_state_.open
          ? profile_state_.site
          : options_.profile->site(parent_module(profile_state_.module), "checkpoint");
  // The first of several recorded steps carries the work of the operator.
  const Arithmetic work =
      profile_state_.open ? std::exchange(profile_state_.backward, {}) : Arithmetic();
  return [backward = std::move(backward), site, work](Tape& tape) {
    struct Timed {
      ModuleProfile& profile;
      Timed(ModuleProfile& to, ModuleProfile::Site at) : profile(to) {
        profile.begin(at, ProfilePhase::kBackward);
      }
      ~Timed() { profile.end(); }
    };
    tape.profile()->add(site, ProfilePhase::kBackward, work);
    const Timed timed(*tape.profile(), site);
    backward(tape);
  };
}

namespace {

// Visible keys of each query of one sequence, summed. Both ends of the band of keys that a query
// sees only move forward, so the keys within it are counted by segment as they come and go.
int64_t pairs_of_sequence(const VisiblePairs& p, const uint8_t* mask, const int32_t* segments) {
  const int64_t offset = p.keys - p.queries;
  const int64_t unlimited = p.keys + p.queries;
  const int64_t reach = p.window > 0 ? std::min(p.window - 1, unlimited) : unlimited;
  std::unordered_map<int32_t, int64_t> visible;
  const auto change = [&](int64_t key, int64_t by) {
    if (mask == nullptr || mask[key] != 0) visible[segments == nullptr ? 0 : segments[key]] += by;
  };
  int64_t pairs = 0, first = 0, end = 0;
  for (int64_t query = 0; query < p.queries; ++query) {
    const int64_t last = query + offset + (p.causal ? 0 : reach);
    for (; end <= std::min(last, p.keys - 1); ++end) change(end, 1);
    for (; first < std::min(query + offset - reach, end); ++first) change(first, -1);
    pairs += visible[segments == nullptr ? 0 : segments[query]];
  }
  return pairs;
}

}  // namespace

int64_t count_visible_pairs(const VisiblePairs& which) {
  if (!which.key_mask && !which.segments) {
    return which.batch * pairs_of_sequence(which, nullptr, nullptr);
  }
  const auto readable = [](const Tensor& x) {
    return x && !on_host(x) ? to_host(x, host_memory_of(x.storage()->device())) : x;
  };
  const Tensor mask = readable(which.key_mask), segments = readable(which.segments);
  int64_t pairs = 0;
  for (int64_t b = 0; b < which.batch; ++b) {
    pairs += pairs_of_sequence(which, mask ? mask.data<uint8_t>() + b * which.keys : nullptr,
                               segments ? segments.data<int32_t>() + b * which.queries : nullptr);
  }
  return pairs;
}

}  // namespace ds::nn
