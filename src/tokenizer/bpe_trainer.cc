#include "tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pair_map.h"
#include "tokenizer/pipeline_tokenizer.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

// A longer word (text without blanks) is cut: a merge visits every word that has the pair whole.
constexpr size_t kMaxWordBytes = 4096;

struct Word {
  std::vector<uint32_t> symbols;
  int64_t count = 0;
};

struct PairChange {
  uint64_t pair;
  int change;
};

// A pair to merge, the count it had when queued, and which words to visit.
struct Candidate {
  int64_t count;
  uint64_t pair;
  size_t words;
};

struct Worse {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

// Replaces the pair throughout the word and records which pairs that removes and creates. The
// merged pair's own count is left alone: nothing can bring it back but an equal token, and there
// the reference implementation keeps the old count too.
void merge_word(Word& word, uint32_t a, uint32_t b, uint32_t merged,
                std::vector<PairChange>& changes) {
  using Map = PairMap<int64_t>;
  std::vector<uint32_t>& s = word.symbols;
  size_t out = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != a || i + 1 >= s.size() || s[i + 1] != b) {
      s[out++] = s[i];
      continue;
    }
    if (out > 0) {
      changes.push_back({Map::key(s[out - 1], a), -1});
      changes.push_back({Map::key(s[out - 1], merged), 1});
    }
    if (i + 2 < s.size()) {
      changes.push_back({Map::key(b, s[i + 2]), -1});
      changes.push_back({Map::key(merged, s[i + 2]), 1});
    }
    s[out++] = merged;
    ++i;
  }
  s.resize(out);
}

PipelineTokenizerSpec base_spec(const BpeTrainerOptions& options) {
  PipelineTokenizerSpec spec;
  BpeModelSpec model;
  std::vector<std::string> tokens = options.special_tokens;
  std::vector<uint16_t> alphabet(byte_alphabet().begin(), byte_alphabet().end());
  std::sort(alphabet.begin(), alphabet.end());
  for (const uint16_t code : alphabet) append_utf8(tokens.emplace_back(), code);
  for (size_t i = 0; i < tokens.size(); ++i) {
    model.vocab.emplace_back(tokens[i], static_cast<int32_t>(i));
  }
  spec.model = std::move(model);
  for (size_t i = 0; i < options.special_tokens.size(); ++i) {
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.content = options.special_tokens[i];
    token.special = true;
    spec.added_tokens.push_back(std::move(token));
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", options.add_prefix_space},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  spec.pre_tokenizer = byte_level;
  spec.decoder = byte_level;
  return spec;
}

// Merges the most frequent pair of neighbouring tokens, again and again.
class Merger {
 public:
  // Every word as the tokens of its bytes, whose ids `model` has.
  Merger(const BpeModelSpec& model, std::span<const std::pair<std::string, int64_t>> words);

  int64_t tokens() const { return std::ssize(tokens_); }
  // Merges one pair. False when none is left that occurs `least` times.
  bool merge(int64_t least);
  // Adds the tokens that were made and the merges to the model.
  void write(BpeModelSpec& model) const;

 private:
  void visit(uint64_t pair, size_t word) {
    std::vector<uint32_t>& list = fresh_[pair];
    if (list.empty() || list.back() != word) list.push_back(static_cast<uint32_t>(word));
  }
  void enqueue_fresh();
  uint32_t token_of(uint32_t a, uint32_t b);

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Word> words_;
  PairMap<int64_t> counts_;
  PairMap<std::vector<uint32_t>> fresh_;  // words in which a pair has newly appeared
  std::priority_queue<Candidate, std::vector<Candidate>, Worse> queue_;
  std::vector<std::vector<uint32_t>> visits_;
  // A pair can be merged again when an equal token comes up; its last rank counts.
  std::vector<uint64_t> merges_;
  std::vector<PairChange> changes_;
};

Merger::Merger(const BpeModelSpec& model, std::span<const std::pair<std::string, int64_t>> words)
    : words_(words.size()) {
  DS_CHECK(words.size() < UINT32_MAX, Code::kUnsupported, "the text has ", words.size(),
           " distinct words; at most 2^32 can be trained on");
  for (const auto& [token, id] : model.vocab) {
    tokens_.push_back(token);
    ids_.emplace(token, static_cast<uint32_t>(id));
  }
  std::array<uint32_t, 256> byte_ids{};
  for (size_t b = 0; b < 256; ++b) {
    std::string name;
    append_utf8(name, byte_alphabet()[b]);
    byte_ids[b] = ids_.at(name);
  }
  for (size_t w = 0; w < words.size(); ++w) {
    const auto& [text, count] = words[w];
    std::vector<uint32_t>& symbols = words_[w].symbols;
    words_[w].count = count;
    symbols.reserve(text.size());
    for (const char c : text) symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const uint64_t pair = PairMap<int64_t>::key(symbols[i], symbols[i + 1]);
      counts_[pair] += count;
      visit(pair, w);
    }
  }
  enqueue_fresh();
}

void Merger::enqueue_fresh() {
  fresh_.for_each([&](uint64_t pair, std::vector<uint32_t>& list) {
    const int64_t count = counts_[pair];
    if (count <= 0) return;
    queue_.push({count, pair, visits_.size()});
    visits_.push_back(std::move(list));
  });
  fresh_ = PairMap<std::vector<uint32_t>>();
}

uint32_t Merger::token_of(uint32_t a, uint32_t b) {
  const std::string text = tokens_[a] + tokens_[b];
  const auto [entry, is_new] = ids_.try_emplace(text, static_cast<uint32_t>(tokens_.size()));
  if (is_new) tokens_.push_back(text);
  return entry->second;
}

bool Merger::merge(int64_t least) {
  while (!queue_.empty()) {
    Candidate top = queue_.top();
    queue_.pop();
    if (const int64_t now = counts_[top.pair]; now != top.count) {
      top.count = now;
      queue_.push(top);
      continue;
    }
    if (top.count < 1 || top.count < least) return false;
    const auto a = static_cast<uint32_t>(top.pair >> 32), b = static_cast<uint32_t>(top.pair);
    const uint32_t merged = token_of(a, b);
    merges_.push_back(top.pair);
    for (const uint32_t w : visits_[top.words]) {
      changes_.clear();
      merge_word(words_[w], a, b, merged, changes_);
      for (const PairChange& change : changes_) {
        counts_[change.pair] += change.change * words_[w].count;
        if (change.change > 0) visit(change.pair, w);
      }
    }
    visits_[top.words] = {};
    enqueue_fresh();
    return true;
  }
  return false;
}

void Merger::write(BpeModelSpec& model) const {
  for (size_t id = model.vocab.size(); id < tokens_.size(); ++id) {
    model.vocab.emplace_back(tokens_[id], static_cast<int32_t>(id));
  }
  PairMap<size_t> last_rank(merges_.size());
  for (size_t rank = 0; rank < merges_.size(); ++rank) last_rank[merges_[rank]] = rank;
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    if (*last_rank.find(merges_[rank]) != rank) continue;
    model.merges.emplace_back(tokens_[merges_[rank] >> 32],
                              tokens_[static_cast<uint32_t>(merges_[rank])]);
  }
}

}  // namespace

struct BpeTrainer::State {
  explicit State(const BpeTrainerOptions& options)
      : tokenizer(base_spec(options), "tokenizer training") {}

  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  PipelineTokenizer tokenizer;  // without merges, for its pre-tokenizer and byte ids
  // Distinct words in order of first appearance, so that nothing depends on hashing.
  std::unordered_map<std::string, size_t, StringHash, std::equal_to<>> index;
  std::vector<std::pair<std::string, int64_t>> words;

  void count(std::string_view word) {
    auto found = index.find(word);
    if (found == index.end()) {
      found = index.emplace(word, words.size()).first;
      words.emplace_back(word, 0);
    }
    ++words[found->second].second;
  }
};

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : options_(std::move(options)) {
  const auto least = static_cast<int64_t>(options_.special_tokens.size()) + 256;
  DS_CHECK(options_.vocab_size >= least, Code::kInvalidArgument, "a vocabulary of ",
           options_.vocab_size, " tokens is too small: 256 bytes and ",
           options_.special_tokens.size(), " special tokens need ", least);
  DS_CHECK(options_.min_frequency >= 0, Code::kInvalidArgument, "min_frequency is ",
           options_.min_frequency, "; it cannot be negative");
  for (const std::string& token : options_.special_tokens) {
    const Utf8Char first = token.empty() ? Utf8Char{} : utf8_at(token, 0);
    DS_CHECK(first.length < token.size() && is_valid_utf8(token), Code::kInvalidArgument,
             "the special token \"", printable(token),
             "\" must be UTF-8 text of two characters or more");
  }
  state_ = std::make_unique<State>(options_);
}

BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add_text(std::string_view text) {
  PreTokenizer::Arena arena;
  std::vector<std::string_view> pieces;
  state_->tokenizer.pre_tokenize(text, arena, pieces);
  for (std::string_view piece : pieces) {
    while (piece.size() > kMaxWordBytes) {
      state_->count(piece.substr(0, kMaxWordBytes));
      piece.remove_prefix(kMaxWordBytes);
    }
    state_->count(piece);
  }
}

TokenizerPtr BpeTrainer::train() const {
  PipelineTokenizerSpec spec = base_spec(options_);
  Merger merger(std::get<BpeModelSpec>(spec.model), state_->words);
  while (merger.tokens() < options_.vocab_size && merger.merge(options_.min_frequency)) {
  }
  merger.write(std::get<BpeModelSpec>(spec.model));
  return std::make_shared<PipelineTokenizer>(std::move(spec), "trained tokenizer");
}

}  // namespace ds
