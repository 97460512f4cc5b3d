#include "data/dataset.h"

#include "base/error.h"

namespace ds {

std::string Dataset::place(int64_t index, int64_t /*position*/) const {
  return str_cat("sample ", index, " of the data set");
}

bool Dataset::check_tokens(int64_t /*vocab*/, int64_t /*most*/) const { return false; }

void check_sample_view(const Dataset& dataset, int64_t index, const SampleView& out,
                       std::string_view what) {
  DS_CHECK(index >= 0 && index < dataset.sample_count(), Code::kInvalidArgument, what, ": sample ",
           index, " does not exist; there are ", dataset.sample_count());
  const auto length = static_cast<size_t>(dataset.sequence_length());
  const DatasetFields fields = dataset.fields();
  const auto check = [&](const char* name, size_t size, bool has) {
    const size_t wanted = has ? length : 0;
    DS_CHECK(size == wanted, Code::kInvalidArgument, what, ": the buffer for ", name, " has ", size,
             " elements, not ", wanted);
  };
  check("ids", out.ids.size(), true);
  check("labels", out.labels.size(), true);
  check("segments", out.segments.size(), fields.segments);
  check("token_types", out.token_types.size(), fields.token_types);
  check("mask", out.mask.size(), fields.mask);
  DS_CHECK(out.sentence_order.size() <= (fields.sentence_order ? 1u : 0u), Code::kInvalidArgument,
           what, ": the buffer for sentence_order has ", out.sentence_order.size(), " elements");
}

}  // namespace ds
