#include "optim/update_intervals.h"

#include <algorithm>
#include <cmath>

#include "base/json_fields.h"

namespace ds::optim {
namespace {

constexpr int64_t kMost = int64_t{1} << 53;

double finite(const Json& value) {
  DS_CHECK(value.is_number() && std::isfinite(value.get<double>()), Code::kCorrupt, kSavedZenFlow,
           " holds a sum that is no number");
  return value.get<double>();
}

}  // namespace

UpdateIntervals::UpdateIntervals(const ZeroConfig::ZenFlow& options, size_t matrices)
    : options_(options), matrices_(options.update_interval ? 0 : matrices) {}

bool UpdateIntervals::chooses(bool chosen_before, int64_t epoch_steps) const {
  if (!chosen_before) return true;
  const int64_t interval = options_.select_interval.value_or(1);
  if (waiting_ > 0) return false;
  if (!options_.by_epoch()) return since_choice_ >= interval;
  return epoch_steps > 0 && since_choice_ / epoch_steps >= interval;
}

void UpdateIntervals::add_gradients(const std::vector<Magnitudes>& matrices) {
  const auto steps = static_cast<double>(waiting_ + 1);
  for (size_t i = 0; i < matrices.size(); ++i) {
    Matrix& sums = matrices_[i];
    const Magnitudes& step = matrices[i];
    sums.chosen = (sums.chosen * (steps - 1) + std::max(step.chosen, 0.0)) / steps;
    sums.other += std::max(step.other, 0.0);
    // A matrix without chosen columns does not wait, one without others has nothing to wait for.
    sums.asks = step.chosen < 0 || step.other < 0 || sums.other >= sums.chosen;
  }
}

bool UpdateIntervals::due() const {
  if (options_.update_interval) return waiting_ + 1 >= *options_.update_interval;
  const auto asking = std::count_if(matrices_.begin(), matrices_.end(),
                                    [](const Matrix& matrix) { return matrix.asks; });
  const double wanted = options_.auto_ratio * static_cast<double>(matrices_.size());
  return matrices_.empty() || asking >= std::max<int64_t>(1, static_cast<int64_t>(wanted));
}

void UpdateIntervals::end_step(bool all) {
  ++since_choice_;
  waiting_ = all ? 0 : waiting_ + 1;
  if (!all) return;
  ++updates_;
  std::fill(matrices_.begin(), matrices_.end(), Matrix{});
}

Json UpdateIntervals::save() const {
  Json sums = Json::array();
  for (const Matrix& matrix : matrices_) sums.push_back({matrix.chosen, matrix.other});
  return {{"updates", updates_},
          {"waiting", waiting_},
          {"since_choice", since_choice_},
          {"magnitudes", std::move(sums)}};
}

UpdateIntervals UpdateIntervals::read(const Json& saved) const {
  UpdateIntervals out = *this;
  out.restart(0);
  const auto count = [&](const char* key) {
    return as_integer(need_field(saved, key, kSavedZenFlow), 0, kMost,
                      str_cat(kSavedZenFlow, ": ", key));
  };
  out.updates_ = count("updates");
  out.waiting_ = count("waiting");
  out.since_choice_ = count("since_choice");
  const Json& sums = need_field(saved, "magnitudes", kSavedZenFlow);
  DS_CHECK(sums.is_array(), Code::kCorrupt, kSavedZenFlow, " has no list of magnitudes");
  // A run with another update_interval has none, or needs none.
  for (size_t i = 0; i < std::min(sums.size(), out.matrices_.size()); ++i) {
    DS_CHECK(sums[i].is_array() && sums[i].size() == 2, Code::kCorrupt, kSavedZenFlow,
             " has magnitudes that are no pair");
    out.matrices_[i].chosen = finite(sums[i][0]);
    out.matrices_[i].other = finite(sums[i][1]);
  }
  return out;
}

void UpdateIntervals::restart(int64_t updates) {
  updates_ = updates;
  waiting_ = since_choice_ = 0;
  std::fill(matrices_.begin(), matrices_.end(), Matrix{});
}

}  // namespace ds::optim
