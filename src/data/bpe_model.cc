#include "data/bpe_model.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <queue>

#include "base/error.h"
#include "data/byte_alphabet.h"
#include "data/unicode.h"

namespace ds {
namespace {

constexpr size_t kCacheShards = 16;
constexpr size_t kCacheEntriesPerShard = 4096;
constexpr size_t kCachedPieceBytes = 64;  // longer pieces seldom repeat
constexpr size_t kShortPiece = 48;        // up to here scanning beats a heap

}  // namespace

// Words repeat, so most pieces are a look-up. Sharded to keep threads apart; a full shard starts
// over, which bounds memory and needs no ages.
struct BpeModel::Cache {
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> entries;
  };
  std::array<Shard, kCacheShards> shards;

  Shard& shard_of(std::string_view piece) { return shards[(Hash{}(piece) >> 7) % kCacheShards]; }
};

BpeModel::BpeModel(BpeModelSpec spec, std::string_view what)
    : spec_(std::move(spec)), merges_(spec_.merges.size()), cache_(std::make_unique<Cache>()) {
  DS_CHECK(!spec_.vocab.empty(), Code::kCorrupt, what, ": the vocabulary is empty");
  ids_.reserve(spec_.vocab.size());
  for (const auto& [token, token_id] : spec_.vocab) {
    DS_CHECK(token_id >= 0 && token_id < std::numeric_limits<int32_t>::max(), Code::kCorrupt, what,
             ": token \"", printable(token), "\" has the id ", token_id, ", which is out of range");
    DS_CHECK(ids_.emplace(token, token_id).second, Code::kCorrupt, what, ": token \"",
             printable(token), "\" is twice in the vocabulary");
    max_id_ = std::max(max_id_, token_id);
  }

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
    for (const auto& [token, token_id] : spec_.vocab) {
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

std::optional<int32_t> BpeModel::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

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
  bool after_unknown = false;
  const auto unknown = [&](std::string_view text) {
    DS_CHECK(unk_id_ >= 0, Code::kInvalidArgument, "the tokenizer has no token for \"",
             printable(text), "\" and no unk_token; train it on text that has this character");
    if (!(after_unknown && spec_.fuse_unk)) symbols.push_back(unk_id_);
    after_unknown = true;
  };
  size_t length = 1;
  for (size_t pos = 0; pos < piece.size(); pos += length) {
    if (spec_.byte_level) {
      const int32_t symbol = byte_symbols_[static_cast<unsigned char>(piece[pos])];
      if (symbol < 0) {
        unknown(piece.substr(pos, 1));
        continue;
      }
      symbols.push_back(symbol);
    } else {
      length = utf8_at(piece, pos).length;
      const std::string_view text = piece.substr(pos, length);
      if (const auto found = ids_.find(text); found != ids_.end()) {
        symbols.push_back(found->second);
      } else {
        const auto symbol_of = [&](char c) { return byte_symbols_[static_cast<unsigned char>(c)]; };
        const bool spelled =
            spec_.byte_fallback &&
            std::all_of(text.begin(), text.end(), [&](char c) { return symbol_of(c) >= 0; });
        if (!spelled) {
          unknown(text);
          continue;
        }
        for (const char c : text) symbols.push_back(symbol_of(c));
      }
    }
    after_unknown = false;
  }
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

}  // namespace ds
