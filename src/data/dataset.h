// Samples for training, whatever they are made of.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

inline constexpr int32_t kNoLabel = -100;  // a position whose prediction does not count

// Where a sample is written: spans of sequence_length() elements, or empty for fields that the
// data set does not have (Dataset::fields).
struct SampleView {
  std::span<int32_t> ids = {};
  std::span<int32_t> labels = {};    // what each position shall predict, kNoLabel = not counted
  std::span<int32_t> segments = {};  // number of the packed piece that a token belongs to, from 0
  std::span<int32_t> token_types = {};  // BERT's sentence A or B
  std::span<uint8_t> mask = {};         // 0 = padding
  // One element, or none where nobody asks: 1 = sentence B stood before A in the text.
  std::span<int32_t> sentence_order = {};
};

struct DatasetFields {
  bool segments = false;
  bool token_types = false;
  bool mask = false;
  bool sentence_order = false;  // of the sample as a whole
};

// Immutable; usable from many threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t sample_count() const = 0;
  virtual int64_t sequence_length() const = 0;
  virtual DatasetFields fields() const { return {}; }
  // Fills the spans that fields() promises; throws for an index out of range or damaged data.
  virtual void sample(int64_t index, const SampleView& out) const = 0;
  // Where the token at a position of a sample comes from, for messages. Position sequence_length()
  // is that of the last label.
  virtual std::string place(int64_t index, int64_t position) const;
  // Reads all tokens that samples are made of, unless they are more than `most`, and throws
  // kInvalidArgument naming the place of the first that is not below `vocab`. Tells whether it read
  // them; what is not stored as tokens, or changed by sample(), is not.
  virtual bool check_tokens(int64_t vocab, int64_t most) const;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

// What every sample() checks first: the index exists, and the spans are sequence_length() long, or
// empty for fields that the data set does not have. `what` names the data in errors.
void check_sample_view(const Dataset& dataset, int64_t index, const SampleView& out,
                       std::string_view what);

}  // namespace ds
