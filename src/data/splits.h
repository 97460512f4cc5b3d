// Train, validation and test parts of a data set, from a split string such as "969,30,1".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ds {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };
const char* split_name(Split split);

// How shares become whole numbers of sequences; both are in use, and may differ by one.
enum class SplitRounding {
  kMegatron,      // every part's size is rounded; what is too much at the end moves all boundaries
  kMegatronCore,  // every boundary is rounded
};
const char* split_rounding_name(SplitRounding rounding);  // "megatron", "megatron_core"
std::optional<SplitRounding> split_rounding(std::string_view name);

struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
};

// Boundaries b[0..3]: part k is [b[k], b[k+1]) of `size` sequences. Parts may be empty.
std::array<int64_t, 4> split_boundaries(std::string_view split, int64_t size,
                                        SplitRounding rounding = SplitRounding::kMegatron);
SequenceRange split_range(std::string_view split, Split part, int64_t size,
                          SplitRounding rounding = SplitRounding::kMegatron);

}  // namespace ds
