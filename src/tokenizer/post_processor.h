// The post-processor of a tokenizer.json: the special tokens around a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ds {

class PostProcessor {
 public:
  PostProcessor() = default;
  // `vocab_size` bounds the ids. Null: nothing is added.
  PostProcessor(const Json& json, int32_t vocab_size, std::string_view what);

  const std::vector<int32_t>& prefix() const noexcept { return prefix_; }
  const std::vector<int32_t>& suffix() const noexcept { return suffix_; }

 private:
  void add(const Json& json, int32_t vocab_size, std::string_view what);
  void add_template(const Json& json, int32_t vocab_size, std::string_view what);

  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
};

}  // namespace ds
