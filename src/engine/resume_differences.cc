#include "engine/resume_differences.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"

namespace ds {
namespace {

constexpr std::array kSettings = {"seed",
                                  "gradient_clipping",
                                  "gradient_skip_norm",
                                  "prescale_gradients",
                                  "gradient_predivide_factor",
                                  "optimizer",
                                  "scheduler",
                                  "fp16",
                                  "bf16",
                                  "fp8",
                                  "data_types",
                                  "distillation",
                                  "communication_data_type",
                                  "dataloader_drop_last",
                                  "dataloader_type",
                                  "data_sharding",
                                  "rampup_batch_size"};
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

Json member(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

bool known(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key);
}

std::string shown(const Json& value) { return printable(dump_json(value), 200); }

bool turned_off(const Json& section) {
  return section.is_object() && section.contains("enabled") && section.at("enabled") == false;
}

void compare(const std::string& path, const Json& saved, const Json& now,
             std::vector<std::string>& out) {
  if (saved == now || (turned_off(saved) && turned_off(now))) return;
  if (!saved.is_object() || !now.is_object()) {
    out.push_back(str_cat(path, " was ", shown(saved), ", is ", shown(now)));
    return;
  }
  // Options of what was or is off say nothing more.
  if (turned_off(saved) || turned_off(now)) {
    return compare(str_cat(path, "/enabled"), member(saved, "enabled"), member(now, "enabled"),
                   out);
  }
  for (const auto& [key, value] : now.items()) {
    if (known(saved, key)) compare(str_cat(path, "/", key), saved.at(key), value, out);
  }
}

struct Batch {
  int64_t micro = 0;
  int64_t accumulation = 0;
  int64_t ranks = 1;
  int64_t global() const { return micro * accumulation * ranks; }
  std::string text() const {
    return str_cat(global(), " (micro batch ", micro, " x accumulation ", accumulation, " x ",
                   ranks, ranks == 1 ? " rank)" : " ranks)");
  }
};

Batch batch_of(const RunSettings& run) {
  const auto number = [&](const char* key) {
    const Json value = member(run.config, key);
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  };
  const Batch batch{number(kMicro), number(kAccumulation), run.ranks};
  constexpr int64_t kMost = int64_t{1} << 20;  // a checkpoint may say anything
  const auto sane = [](int64_t n) { return n > 0 && n <= kMost; };
  return sane(batch.micro) && sane(batch.accumulation) && sane(batch.ranks) ? batch : Batch{};
}

void compare_batches(const Batch& saved, const Batch& now, std::vector<std::string>& out) {
  if (saved.micro == 0 || now.micro == 0) return;
  if (saved.global() != now.global()) {
    const int64_t one = now.micro * now.ranks;
    const int64_t keeps = saved.global() % one == 0 ? saved.global() / one : 0;
    out.push_back(str_cat("/train_batch_size was ", saved.text(), ", is ", now.text(),
                          keeps > 0 ? str_cat("; ", kAccumulation, " ", keeps, " keeps it") : ""));
  } else if (saved.micro != now.micro || saved.accumulation != now.accumulation) {
    out.push_back(str_cat("/train_batch_size was ", saved.text(), ", is ", now.text(),
                          ": the same samples, summed in another order"));
  }
}

}  // namespace

std::vector<std::string> resume_differences(const RunSettings& saved, const RunSettings& now) {
  std::vector<std::string> out;
  compare_batches(batch_of(saved), batch_of(now), out);
  for (const char* key : kSettings) {
    if (known(saved.config, key) && known(now.config, key)) {
      compare(str_cat("/", key), saved.config.at(key), now.config.at(key), out);
    }
  }
  constexpr const char* kZero = "zero_optimization";
  constexpr const char* kZenFlow = "zenflow";
  const Json before = member(saved.config, kZero), after = member(now.config, kZero);
  if (known(after, kZenFlow)) {
    compare(str_cat("/", kZero, "/", kZenFlow), member(before, kZenFlow), after.at(kZenFlow), out);
  }
  return out;
}

Json describe_dataset(const Dataset& dataset) {
  constexpr int64_t kProbes = 8;
  const int64_t count = dataset.sample_count(), length = dataset.sequence_length();
  const DatasetFields fields = dataset.fields();
  std::vector<int32_t> ids(static_cast<size_t>(length)), labels(ids.size());
  std::vector<int32_t> segments(fields.segments ? ids.size() : 0);
  std::vector<int32_t> types(fields.token_types ? ids.size() : 0);
  std::vector<uint8_t> mask(fields.mask ? ids.size() : 0);
  std::vector<uint64_t> sums;
  const int64_t probes = std::min(kProbes, count);
  try {
    for (int64_t i = 0; i < probes; ++i) {
      // From the first to the last.
      const int64_t at = probes == 1 ? 0
                                     : static_cast<int64_t>(static_cast<double>(i) *
                                                            static_cast<double>(count - 1) /
                                                            static_cast<double>(probes - 1));
      dataset.sample(at, {ids, labels, segments, types, mask});
      sums.push_back(xxh3_64(std::as_bytes(std::span(ids))));
      sums.push_back(xxh3_64(std::as_bytes(std::span(labels))));
    }
  } catch (const Error&) {
    return nullptr;
  }
  const uint64_t sum = xxh3_64(std::as_bytes(std::span(sums)));
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(sum));
  return {{"samples", count}, {"sequence_length", length}, {"checksum", text.data()}};
}

std::string dataset_difference(const Json& saved, const Json& now) {
  if (!saved.is_object() || !now.is_object() || saved == now) return {};
  const auto size = [](const Json& data) {
    return str_cat(shown(member(data, "samples")), " samples of ",
                   shown(member(data, "sequence_length")), " tokens");
  };
  const std::string was = size(saved), is = size(now);
  return str_cat("the data set was another one: ", was, ", now ",
                 was == is ? "as many with other contents" : is);
}

}  // namespace ds
