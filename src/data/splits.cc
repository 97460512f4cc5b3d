#include "data/splits.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace ds {
const char* split_name(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  return "unknown";
}

const char* split_rounding_name(SplitRounding rounding) {
  return rounding == SplitRounding::kMegatron ? "megatron" : "megatron_core";
}

std::optional<SplitRounding> split_rounding(std::string_view name) {
  for (const SplitRounding known : {SplitRounding::kMegatron, SplitRounding::kMegatronCore}) {
    if (name == split_rounding_name(known)) return known;
  }
  return std::nullopt;
}

std::array<int64_t, 4> split_boundaries(std::string_view split, int64_t size,
                                        SplitRounding rounding) {
  DS_CHECK(size >= 0, Code::kInvalidArgument, "a split of ", size, " sequences");
  const auto refuse = [&](std::string_view why) {
    fail(Code::kInvalidArgument, "the split \"", printable(split), "\" ", why,
         "; write up to three numbers that are not negative, such as 969,30,1");
  };
  const char separator = split.find(',') != std::string_view::npos ? ',' : '/';
  std::array<double, 3> fraction{};
  double sum = 0;
  size_t count = 0;
  for (size_t begin = 0; begin <= split.size(); ++count) {
    const size_t end = std::min(split.find(separator, begin), split.size());
    std::string_view text = split.substr(begin, end - begin);
    begin = end + 1;
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size())
      refuse("is not a list of numbers");
    if (!std::isfinite(value) || value < 0) refuse("has a part that is negative or not finite");
    if (count < 3) fraction[count] = value;
  }
  for (const double value : fraction) sum += value;
  if (!(sum > 0) || !std::isfinite(sum)) refuse("adds up to nothing");

  std::array<int64_t, 4> bounds{};
  // nearbyint: round half to even, as Python's round().
  if (rounding == SplitRounding::kMegatronCore) {
    double before = 0;
    for (size_t k = 0; k < 3; ++k) {
      before += fraction[k] / sum;
      bounds[k + 1] = static_cast<int64_t>(std::nearbyint(before * static_cast<double>(size)));
    }
    return bounds;
  }
  for (size_t k = 0; k < 3; ++k) {
    const double part = std::nearbyint(fraction[k] / sum * static_cast<double>(size));
    bounds[k + 1] = bounds[k] + static_cast<int64_t>(part);
  }
  const int64_t overshoot = bounds[3] - size;
  for (size_t k = 1; k < 4; ++k) bounds[k] = std::max<int64_t>(bounds[k] - overshoot, 0);
  return bounds;
}

SequenceRange split_range(std::string_view split, Split part, int64_t size,
                          SplitRounding rounding) {
  const auto bounds = split_boundaries(split, size, rounding);
  const auto k = static_cast<size_t>(part);
  return {bounds[k], std::max(bounds[k], bounds[k + 1])};
}

}  // namespace ds
