// What stands in the middle of a tokenizer.json: the model that turns pieces of text into ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace ds {

using Vocabulary = std::vector<std::pair<std::string, int32_t>>;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Immutable (but for caches); usable from many threads.
class TextModel {
 public:
  // Checks that tokens and ids are distinct; `what` names the source in errors.
  TextModel(Vocabulary vocab, std::string_view what);
  virtual ~TextModel() = default;
  TextModel(const TextModel&) = delete;
  TextModel& operator=(const TextModel&) = delete;

  // Appends the ids of one piece that the pre-tokenizer cut.
  virtual void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  // Pieces may be any bytes; else they must be UTF-8.
  virtual bool byte_level() const { return false; }
  // The "model" of the file.
  virtual Json to_json() const = 0;

  const Vocabulary& vocab() const noexcept { return vocab_; }
  std::optional<int32_t> id(std::string_view token) const;
  int32_t max_id() const noexcept { return max_id_; }

 protected:
  using IdMap = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;
  Json vocab_json() const;

  Vocabulary vocab_;
  IdMap ids_;
  int32_t max_id_ = -1;
};

}  // namespace ds
