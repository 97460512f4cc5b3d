#include "view_series.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace tool {
namespace {

// Beyond it, sums and ranges of what is shown would not be finite.
constexpr double kGreatest = 1e300;

// Seven digits: more than a chart can show, and a third of the bytes.
Json short_number(double value) {
  return std::isfinite(value) ? Json(std::strtod(format("%.7g", value).c_str(), nullptr)) : Json();
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

double mean(const Series::Bucket& bucket) {
  return bucket.finite > 0 ? bucket.sum / static_cast<double>(bucket.finite) : NAN;
}

void merge(Series::Bucket& to, const Series::Bucket& from) {
  to.last = from.last;
  to.rows += from.rows;
  if (from.finite == 0) return;
  to.least = to.finite > 0 ? std::min(to.least, from.least) : from.least;
  to.most = to.finite > 0 ? std::max(to.most, from.most) : from.most;
  to.sum += from.sum;
  to.finite += from.finite;
}

}  // namespace

void Series::add(int64_t step, double value) {
  Bucket one{step, step, 1, 0, 0, 0, 0};
  if (std::abs(value) <= kGreatest) {
    one = {step, step, 1, 1, value, value, value};
    if (!std::exchange(has_value_, true)) first_value_ = value;
    last_value_ = value;
  }
  if (!buckets_.empty() && buckets_.back().rows < width_) {
    merge(buckets_.back(), one);
    return;
  }
  if (buckets_.size() == most_buckets_) halve();
  if (!buckets_.empty() && buckets_.back().rows < width_) {
    merge(buckets_.back(), one);
  } else {
    buckets_.push_back(one);
  }
}

void Series::halve() {
  const size_t count = buckets_.size();
  for (size_t i = 0; i < count; i += 2) {
    Bucket pair = buckets_[i];
    if (i + 1 < count) merge(pair, buckets_[i + 1]);
    buckets_[i / 2] = pair;
  }
  buckets_.resize((count + 1) / 2);
  width_ *= 2;
}

void Series::rewind(int64_t step) {
  while (!buckets_.empty() && buckets_.back().first >= step) buckets_.pop_back();
  if (!buckets_.empty()) buckets_.back().last = std::min(buckets_.back().last, step - 1);
  has_value_ = has_value_ && !buckets_.empty();
  if (has_value_) last_value_ = mean(buckets_.back());
}

Json Series::document() const {
  Json x = Json::array(), x1 = Json::array(), y = Json::array(), lo = Json::array(),
       hi = Json::array(), bad = Json::array();
  for (const Bucket& bucket : buckets_) {
    const bool none = bucket.finite == 0;
    x.push_back(bucket.first);
    x1.push_back(bucket.last);
    y.push_back(short_number(mean(bucket)));
    lo.push_back(none ? Json() : short_number(bucket.least));
    hi.push_back(none ? Json() : short_number(bucket.most));
    if (bucket.finite < bucket.rows) bad.push_back(bucket.first);
  }
  Json out = {{"x", std::move(x)}, {"y", std::move(y)}};
  if (width_ > 1) {
    out["x1"] = std::move(x1);
    out["lo"] = std::move(lo);
    out["hi"] = std::move(hi);
  }
  if (!bad.empty()) out["bad"] = std::move(bad);
  return out;
}

double Series::sum() const {
  double sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.sum;
  return sum;
}

Json Series::summary() const {
  Bucket all;
  for (const Bucket& bucket : buckets_) merge(all, bucket);
  const bool any = all.finite > 0;
  return {{"rows", all.rows},
          {"first", any && has_value_ ? number(first_value_) : Json()},
          {"last", any && has_value_ ? number(last_value_) : Json()},
          {"least", any ? number(all.least) : Json()},
          {"most", any ? number(all.most) : Json()},
          {"mean", any ? number(mean(all)) : Json()},
          {"not_finite", all.rows - all.finite}};
}

}  // namespace tool
