#include "optim/column_choice.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/json_fields.h"

namespace ds::optim {
namespace {

constexpr const char* kWhat = "the checkpoint's choice of columns";

// A bit per column, four to a hexadecimal digit, the first column in the lowest bit.
std::string encode(std::span<const int32_t> chosen, int64_t columns) {
  std::vector<int> digits(static_cast<size_t>((columns + 3) / 4), 0);
  for (const int32_t column : chosen) digits[static_cast<size_t>(column / 4)] |= 1 << (column % 4);
  std::string out;
  for (const int digit : digits) out += "0123456789abcdef"[digit];
  return out;
}

std::vector<int32_t> decode(const std::string& text, int64_t columns, const std::string& name) {
  DS_CHECK(static_cast<int64_t>(text.size()) == (columns + 3) / 4, Code::kCorrupt, kWhat, " has ",
           text.size(), " digits for the ", columns, " columns of ", printable(name, 200));
  std::vector<int32_t> out;
  for (int32_t column = 0; column < columns; ++column) {
    const char digit = text[static_cast<size_t>(column / 4)];
    const bool letter = digit >= 'a' && digit <= 'f';
    DS_CHECK(letter || (digit >= '0' && digit <= '9'), Code::kCorrupt, kWhat, " of ",
             printable(name, 200), " is no hexadecimal number");
    const int value = letter ? digit - 'a' + 10 : digit - '0';
    if ((value >> (column % 4) & 1) != 0) out.push_back(column);
  }
  return out;
}

std::vector<int32_t> without(std::span<const int32_t> from, std::span<const int32_t> those) {
  std::vector<int32_t> out;
  std::set_difference(from.begin(), from.end(), those.begin(), those.end(),
                      std::back_inserter(out));
  return out;
}

}  // namespace

ColumnChoice::ColumnChoice(std::span<const TensorPlace> places, double share)
    : places_(places.begin(), places.end()), share_(share), chosen_(places.size()) {
  first_.push_back(0);
  for (const TensorPlace& place : places_) {
    columns_.push_back(is_matrix(place) ? place.shape[1] : 0);
    first_.push_back(first_.back() + columns_.back());
  }
}

ColumnChoice::Change ColumnChoice::choose(std::span<const int64_t> sums) {
  Change change{std::vector<std::vector<int32_t>>(places_.size()),
                std::vector<std::vector<int32_t>>(places_.size())};
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const auto count = static_cast<size_t>(columns_[tensor]);
    if (count == 0) continue;
    const auto own = sums.subspan(static_cast<size_t>(first_[tensor]), count);
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    const auto most = static_cast<size_t>(share_ * static_cast<double>(count));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return own[static_cast<size_t>(a)] > own[static_cast<size_t>(b)];
    });
    order.resize(std::min(most, count));
    std::sort(order.begin(), order.end());
    change.entered[tensor] = without(order, chosen_[tensor]);
    change.left[tensor] = without(chosen_[tensor], order);
    chosen_[tensor] = std::move(order);
  }
  made_ = true;
  return change;
}

ColumnChoice::Part ColumnChoice::part(const StateRun& run, size_t tensor) const {
  const TensorPlace& place = places_[tensor];
  const int64_t begin = std::max(place.begin, run.begin), end = std::min(place.end, run.end);
  return {begin - run.begin, end - run.begin, place.first + begin - place.begin};
}

// Row by row.
void ColumnChoice::add_columns(const Part& part, int64_t columns, std::span<const int32_t> chosen,
                               std::vector<int32_t>& out) const {
  if (chosen.empty()) return;
  for (int64_t row = part.begin - part.first % columns; row < part.end; row += columns) {
    for (const int32_t column : chosen) {
      const int64_t at = row + column;
      if (at >= part.begin && at < part.end) out.push_back(static_cast<int32_t>(at));
    }
  }
}

ColumnChoice::Elements ColumnChoice::elements(const StateRun& run) const {
  Elements out;
  for (const size_t tensor : run.tensors) {
    const size_t before = out.places.size();
    const Part here = part(run, tensor);
    if (columns_[tensor] > 0) {
      add_columns(here, columns_[tensor], chosen_[tensor], out.places);
    } else {
      for (int64_t i = here.begin; i < here.end; ++i) out.places.push_back(static_cast<int32_t>(i));
    }
    out.counts.push_back(static_cast<int64_t>(out.places.size() - before));
  }
  return out;
}

std::vector<int32_t> ColumnChoice::elements(
    const StateRun& run, const std::vector<std::vector<int32_t>>& columns) const {
  std::vector<int32_t> out;
  for (const size_t tensor : run.tensors) {
    add_columns(part(run, tensor), columns_[tensor], columns[tensor], out);
  }
  return out;
}

Json ColumnChoice::save() const {
  if (!made_) return nullptr;
  Json out = Json::object();
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (columns_[tensor] > 0) out[places_[tensor].name] = encode(chosen_[tensor], columns_[tensor]);
  }
  return out;
}

ColumnChoice ColumnChoice::read(const Json& saved) const {
  ColumnChoice out = *this;
  out.clear();
  if (saved.is_null()) return out;
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (columns_[tensor] == 0) continue;
    const std::string& name = places_[tensor].name;
    out.chosen_[tensor] = decode(text_field(saved, name, kWhat), columns_[tensor], name);
  }
  out.made_ = true;
  return out;
}

void ColumnChoice::clear() {
  made_ = false;
  for (std::vector<int32_t>& columns : chosen_) columns.clear();
}

}  // namespace ds::optim
