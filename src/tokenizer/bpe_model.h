// The byte-pair-encoding model of a tokenizer: vocabulary, merges, and the merging of one piece of
// text that the pre-tokenizer cut.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/pair_map.h"
#include "tokenizer/text_model.h"

namespace ds {

struct BpeModelSpec {
  Vocabulary vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by falling priority
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  // Pieces are bytes, spelled in the vocabulary with the byte alphabet; else they are UTF-8.
  bool byte_level = true;
};

// Immutable but for a guarded cache of words; usable from many threads.
class BpeModel final : public TextModel {
 public:
  // `what` names the source in errors.
  BpeModel(BpeModelSpec spec, std::string_view what);
  ~BpeModel() override;

  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const override;
  bool byte_level() const override { return spec_.byte_level; }
  Json to_json() const override;

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };
  struct Cache;

  void encode_uncached(std::string_view piece, std::vector<int32_t>& ids) const;
  void split_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void warn_of_dropped(std::string_view text) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  const Merge* merge_of(int32_t a, int32_t b) const {
    return merges_.find(PairMap<Merge>::key(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
  }

  BpeModelSpec spec_;  // without the vocabulary
  IdMap byte_ids_;     // the byte strings behind the tokens, only with byte_level and ignore_merges
  std::array<int32_t, 256>
      byte_symbols_{};  // byte_level: id of each byte; else id of <0xNN>; or -1
  PairMap<Merge> merges_;
  int32_t unk_id_ = -1;
  std::unique_ptr<Cache> cache_;
  mutable std::atomic<bool> dropped_ = false;  // characters, and it was said
};

}  // namespace ds
