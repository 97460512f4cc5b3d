#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <queue>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

constexpr size_t kCacheShards = 16;
constexpr size_t kCacheEntriesPerShard = 4096;
constexpr size_t kCachedPieceBytes = 64;  // longer pieces seldom repeat
constexpr size_t kShortPiece = 48;        // up to here scanning beats a heap

Json merges_json(const std::vector<std::pair<std::string, std::string>>& merges) {
  // "a b" is read by every version of the format, but cannot express a token with a space, nor
  // one that looks like the header line of a merges file.
  bool pairs = false;
  for (const auto& [a, b] : merges) {
    pairs = pairs || a.find(' ') != std::string::npos || b.find(' ') != std::string::npos ||
            a.starts_with("#version");
  }
  Json out = Json::array();
  for (const auto& [a, b] : merges) {
    out.push_back(pairs ? Json::array({a, b}) : Json(str_cat(a, " ", b)));
  }
  return out;
}

}  // namespace

// Words repeat, so most pieces are a look-up. Sharded to keep threads apart; a full shard starts
// over, which bounds memory and needs no ages.
struct BpeModel::Cache {
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, TextHash, std::equal_to<>> entries;
  };
  std::array<Shard, kCacheShards> shards;

  Shard& shard_of(std::string_view piece) {
    return shards[(TextHash{}(piece) >> 7) % kCacheShards];
  }
};

BpeModel::BpeModel(BpeModelSpec spec, std::string_view what)
    : TextModel(std::move(spec.vocab), what),
      spec_(std::move(spec)),
      merges_(spec_.merges.size()),
      cache_(std::make_unique<Cache>()) {
  spec_.vocab.clear();
  std::string joined;
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto& [a, b] = spec_.merges[rank];
    joined.assign(a).append(b);
    const auto id_a = id(a), id_b = id(b), id_ab = id(joined);
    DS_CHECK(id_a && id_b && id_ab, Code::kCorrupt, what, ": merge ", rank, " (\"", printable(a),
             "\" and \"", printable(b), "\") uses \"", printable(!id_a ? a : (!id_b ? b : joined)),
             "\", which is not in the vocabulary");
    merges_[PairMap<Merge>::key(static_cast<uint32_t>(*id_a), static_cast<uint32_t>(*id_b))] = {
        static_cast<uint32_t>(rank), *id_ab};
  }

  for (unsigned b = 0; b < 256; ++b) {
    std::string name;
    if (spec_.byte_level) {
      append_utf8(name, byte_alphabet()[b]);
    } else {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", b);
      name = text;
    }
    byte_symbols_[b] = id(name).value_or(-1);
  }
  if (spec_.byte_level && spec_.ignore_merges) {
    for (const auto& [token, token_id] : vocab_) {
      if (auto bytes = alphabet_to_bytes(token)) byte_ids_.emplace(std::move(*bytes), token_id);
    }
  }
  if (spec_.unk_token) {
    const auto found = id(*spec_.unk_token);
    DS_CHECK(found, Code::kCorrupt, what, ": unk_token \"", printable(*spec_.unk_token),
             "\" is not in the vocabulary");
    unk_id_ = *found;
  }
}

BpeModel::~BpeModel() = default;

void BpeModel::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() > kCachedPieceBytes) return encode_uncached(piece, ids);
  Cache::Shard& shard = cache_->shard_of(piece);
  {
    const std::lock_guard lock(shard.mutex);
    if (const auto hit = shard.entries.find(piece); hit != shard.entries.end()) {
      ids.insert(ids.end(), hit->second.begin(), hit->second.end());
      return;
    }
  }
  std::vector<int32_t> fresh;
  encode_uncached(piece, fresh);
  ids.insert(ids.end(), fresh.begin(), fresh.end());
  const std::lock_guard lock(shard.mutex);
  if (shard.entries.size() >= kCacheEntriesPerShard) shard.entries.clear();
  shard.entries.emplace(piece, std::move(fresh));
}

void BpeModel::encode_uncached(std::string_view piece, std::vector<int32_t>& ids) const {
  DS_CHECK(piece.size() < std::numeric_limits<int32_t>::max(), Code::kInvalidArgument,
           "one piece of text has ", piece.size(), " bytes; at most 2 GiB are encoded at once");
  if (spec_.ignore_merges) {
    const IdMap& whole = spec_.byte_level ? byte_ids_ : ids_;
    if (const auto hit = whole.find(piece); hit != whole.end()) {
      ids.push_back(hit->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  split_symbols(piece, symbols);
  if (symbols.size() <= kShortPiece) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BpeModel::split_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  symbols.reserve(piece.size());
  // An unknown character waits for what follows it, with which it may be fused; spelled bytes do
  // not end the wait. Other readers of the format do the same.
  bool waiting = false;
  const auto flush = [&] {
    if (waiting) symbols.push_back(unk_id_);
    waiting = false;
  };
  const auto unknown = [&](std::string_view text) {
    if (unk_id_ < 0) return warn_of_dropped(text);
    if (!spec_.fuse_unk) flush();
    waiting = true;
  };
  size_t length = 1;
  for (size_t pos = 0; pos < piece.size(); pos += length) {
    if (spec_.byte_level) {
      const int32_t symbol = byte_symbols_[static_cast<unsigned char>(piece[pos])];
      if (symbol < 0) {
        unknown(piece.substr(pos, 1));
        continue;
      }
      flush();
      symbols.push_back(symbol);
      continue;
    }
    length = utf8_at(piece, pos).length;
    const std::string_view text = piece.substr(pos, length);
    if (const auto found = ids_.find(text); found != ids_.end()) {
      flush();
      symbols.push_back(found->second);
      continue;
    }
    const auto symbol_of = [&](char c) { return byte_symbols_[static_cast<unsigned char>(c)]; };
    if (spec_.byte_fallback &&
        std::all_of(text.begin(), text.end(), [&](char c) { return symbol_of(c) >= 0; })) {
      for (const char c : text) symbols.push_back(symbol_of(c));
    } else {
      unknown(text);
    }
  }
  flush();
}

// Characters that no token stands for are left out when there is no unk_token, as the tokenizers
// package does; once per tokenizer somebody hears of it.
void BpeModel::warn_of_dropped(std::string_view text) const {
  if (dropped_.exchange(true)) return;
  log_warning("data", "the tokenizer has no token for \"", printable(text),
              "\" and no unk_token: such characters are left out of its texts");
}

// Repeats: find the leftmost pair of the lowest rank, merge it.
void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::array<Merge, kShortPiece> best;  // of the pair that begins here
  const auto look = [&](size_t i) {
    const Merge* const merge =
        i + 1 < symbols.size() ? merge_of(symbols[i], symbols[i + 1]) : nullptr;
    best[i] = merge != nullptr ? *merge : Merge{kNone, 0};
  };
  for (size_t i = 0; i < symbols.size(); ++i) look(i);
  while (symbols.size() > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (best[i].rank < best[at].rank) at = i;
    }
    if (best[at].rank == kNone) return;
    symbols[at] = best[at].id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    for (size_t i = at + 1; i < symbols.size(); ++i) best[i] = best[i + 1];
    look(at);
    if (at > 0) look(at - 1);
  }
}

// The same order from a heap over a linked list: n log n for any length.
void BpeModel::merge_long(std::vector<int32_t>& symbols) const {
  struct Node {
    int32_t symbol;
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;
    int32_t id;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  constexpr int32_t kGone = -2;
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Node> nodes(symbols.size());
  std::vector<Candidate> initial;
  for (int32_t i = 0; i < count; ++i) {
    nodes[static_cast<size_t>(i)] = {symbols[static_cast<size_t>(i)], i - 1,
                                     i + 1 < count ? i + 1 : -1};
  }
  const auto node = [&](int32_t i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = merge_of(node(i).symbol, node(i + 1).symbol)) {
      initial.push_back({merge->rank, i, merge->id});
    }
  }
  std::priority_queue heap(later, std::move(initial));
  const auto offer = [&](int32_t left) {
    const Merge* const merge = merge_of(node(left).symbol, node(node(left).next).symbol);
    if (merge != nullptr) heap.push({merge->rank, left, merge->id});
  };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Node& left = node(top.position);
    if (left.previous == kGone || left.next < 0) continue;
    Node& right = node(left.next);
    // The entry may be about symbols that have been merged away since.
    const Merge* const merge = merge_of(left.symbol, right.symbol);
    if (merge == nullptr || merge->rank != top.rank) continue;
    left.symbol = top.id;
    left.next = right.next;
    right.previous = kGone;
    if (left.next >= 0) {
      node(left.next).previous = top.position;
      offer(top.position);
    }
    if (left.previous >= 0) offer(left.previous);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = node(i).next) symbols.push_back(node(i).symbol);
}

Json BpeModel::to_json() const {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", spec_.unk_token ? Json(*spec_.unk_token) : Json(nullptr)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", spec_.fuse_unk},
          {"byte_fallback", spec_.byte_fallback},
          {"ignore_merges", spec_.ignore_merges},
          {"vocab", vocab_json()},
          {"merges", merges_json(spec_.merges)}};
}

}  // namespace ds
