// What a training run reads: one file given by --data, or a specification given by --data-spec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ds.hpp"
#include "format.h"

namespace tool {

class TrainData {
 public:
  // One of the two is "".
  TrainData(const std::string& data, const std::string& spec_file);

  // Whether everything it reads is tokens already.
  bool is_tokens() const;
  // What the specification says itself; nothing when the run decides.
  std::optional<int64_t> sequence_length() const;
  std::optional<std::string> split() const;
  // The specification without what the run decides; null for a plain file.
  Json description() const;

  // Opens "train" or "valid" of it.
  libds::Dataset open(const char* part, int64_t sequence_length, const std::string& split,
                      int64_t seed, const libds::Tokenizer* tokenizer) const;

 private:
  std::string file_;  // of the specification
  Json spec_;
};

}  // namespace tool
