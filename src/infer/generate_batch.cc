#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "infer/continuation.h"
#include "infer/decoder.h"
#include "infer/generate.h"
#include "infer/turns.h"

namespace ds::infer {
namespace {

using OnToken = std::function<Reply(int64_t text, int32_t token)>;

void check_prompts(const models::ArchitectureInfo& info,
                   std::span<const std::span<const int32_t>> prompts,
                   const GenerateOptions& options, const BatchOptions& batch) {
  DS_CHECK(batch.at_once > 0, Code::kInvalidArgument, "at_once must be 1 or more, not ",
           batch.at_once);
  for (size_t i = 0; i < prompts.size(); ++i) {
    try {
      check_request(info, prompts[i], options);
    } catch (const Error& error) {
      throw Error(error.code(), str_cat("prompt ", i, ": ", error.message()));
    }
  }
}

// Prompts that are read together: a weight is read, and made ready for a product, once for all.
class PromptPass {
 public:
  PromptPass(const Decoder& decoder, const KvBlockOptions& blocks)
      : decoder_(decoder), in_pool_(blocks.pool_tokens > 0) {}

  // Whether one more keeps everybody's bits, and costs less than a pass of its own.
  bool takes(const Continuation& text) const {
    const int64_t own = std::ssize(text.fresh()), longest = std::max(longest_, own);
    const int64_t rows = (std::ssize(prompts_) + 1) * longest, tokens = tokens_ + own;
    if (rows > kMostRows || rows > tokens + tokens / kPaddedShare) return false;
    // Padding takes blocks of the pool, which knows of a text's own tokens alone.
    if (in_pool_ && longest > std::min(least_room_, text.capacity())) return false;
    return decoder_.reads_alike(std::min(shortest_, own), longest, rows) &&
           decoder_.reads_alike(longest, longest, rows);
  }

  void add(const Continuation& text) {
    const int64_t own = std::ssize(text.fresh());
    prompts_.push_back(text.fresh());
    tokens_ += own;
    longest_ = std::max(longest_, own);
    shortest_ = std::min(shortest_, own);
    least_room_ = std::min(least_room_, text.capacity());
  }

  std::span<const std::span<const int32_t>> prompts() const { return prompts_; }

 private:
  // Products of more rows gain nothing, and the first text waits for the last one's.
  static constexpr int64_t kMostRows = 512;
  static constexpr int64_t kPaddedShare = 4;  // at most one in so many tokens is padding

  const Decoder& decoder_;
  const bool in_pool_;
  std::vector<std::span<const int32_t>> prompts_;
  int64_t tokens_ = 0, longest_ = 0;
  int64_t shortest_ = INT64_MAX, least_room_ = INT64_MAX;
};

// Texts that go on, each in a place of the cache, and those that wait.
class Batch {
 public:
  Batch(std::vector<Continuation>& texts, Decoder& decoder, Turns& turns, int64_t places,
        const KvBlockOptions& blocks, const OnToken& on_token)
      : texts_(texts),
        decoder_(decoder),
        turns_(turns),
        blocks_(blocks),
        on_token_(on_token),
        places_(static_cast<size_t>(places), kEmpty) {}

  // Returns what the callback threw, if it ended the call.
  std::exception_ptr run() {
    while (!stopped_) {
      begin_texts();
      if (used() == 0) break;
      step();
    }
    return stopped_;
  }

 private:
  static constexpr size_t kEmpty = SIZE_MAX;

  // Places up to the last one that has a text.
  int64_t used() const {
    const auto last =
        std::find_if(places_.rbegin(), places_.rend(), [](size_t text) { return text != kEmpty; });
    return places_.rend() - last;
  }
  int64_t blocks_of(size_t text) const {
    return (texts_[text].capacity() + blocks_.block_tokens - 1) / blocks_.block_tokens;
  }
  // Whether the pool has room for all of a text beside all of those that go on. One that is alone
  // goes as far as it can.
  bool has_room(size_t text) const {
    if (blocks_.pool_tokens == 0) return true;
    int64_t taken = 0;
    for (const size_t other : places_) taken += other == kEmpty ? 0 : blocks_of(other);
    return taken == 0 || taken + blocks_of(text) <= blocks_.pool_tokens / blocks_.block_tokens;
  }

  bool is_full(size_t place) const {
    return places_[place] != kEmpty &&
           decoder_.length(static_cast<int64_t>(place)) == texts_[places_[place]].capacity();
  }

  // Prompts are read into places that are empty.
  void begin_texts() {
    for (size_t place = 0; place < places_.size() && !stopped_; ++place) {
      while (places_[place] == kEmpty && next_ < texts_.size() && !stopped_) {
        if (texts_[next_].ended()) {
          ++next_;
        } else if (has_room(next_)) {
          read_prompts(place);
        } else {
          break;
        }
      }
    }
  }

  // The prompts that wait, into places from `first` on, as many as one pass takes: from the last
  // one on, since texts that move into a place of one that ended have had their token.
  void read_prompts(size_t first) {
    PromptPass pass(decoder_, blocks_);
    for (size_t place = first; place < places_.size() && places_[place] == kEmpty; ++place) {
      if (next_ == texts_.size() || texts_[next_].ended()) break;
      if (place > first && !(has_room(next_) && pass.takes(texts_[next_]))) break;
      pass.add(texts_[next_]);
      places_[place] = next_++;
    }
    turns_.take(true);
    const std::span<const float> logits = turns_.pass(
        [&] { return decoder_.feed_prompts(static_cast<int64_t>(first), pass.prompts()); });
    const size_t count = pass.prompts().size(), vocabulary = logits.size() / count;
    for (size_t i = count; i-- > 0 && !stopped_;) {
      take(first + i, logits.subspan(i * vocabulary, vocabulary));
    }
  }

  // What one text has that the model has not read, and the token behind it.
  void read(size_t place) {
    turns_.take(true);
    Continuation& text = texts_[places_[place]];
    take(place,
         turns_.pass([&] { return decoder_.feed(static_cast<int64_t>(place), text.fresh()); }));
  }

  // A token of every text.
  void step() {
    for (size_t place = 0; place < places_.size(); ++place) {
      while (is_full(place) && !stopped_) {
        decoder_.forget(static_cast<int64_t>(place));
        texts_[places_[place]].begin_again();
        read(place);
      }
    }
    const auto count = static_cast<size_t>(used());
    if (count == 0 || stopped_) return;
    std::vector<int32_t> tokens(count, 0);  // an empty place computes something that nobody reads
    for (size_t place = 0; place < count; ++place) {
      if (places_[place] != kEmpty) tokens[place] = texts_[places_[place]].fresh().back();
    }
    turns_.take(true);
    const std::span<const float> logits = turns_.pass([&] { return decoder_.feed_each(tokens); });
    const size_t vocabulary = logits.size() / count;
    // From the last place on: texts that move into one that ended have had their token.
    for (size_t place = count; place-- > 0 && !stopped_;) {
      if (places_[place] == kEmpty) {
        decoder_.forget(static_cast<int64_t>(place));
      } else {
        take(place, logits.subspan(place * vocabulary, vocabulary));
      }
    }
  }

  void take(size_t place, std::span<const float> logits) {
    Continuation& text = texts_[places_[place]];
    if (const std::optional<int32_t> token = text.sample(logits)) {
      tell(places_[place], *token);
    }
    if (text.ended()) leave(place);
  }

  void tell(size_t text, int32_t token) {
    if (!on_token_) return;
    try {
      const Reply reply = on_token_(static_cast<int64_t>(text), token);
      if (reply == Reply::kEndAll) fail(Code::kCallback, "the token callback asked to stop");
      if (reply == Reply::kEndText) texts_[text].end();
    } catch (...) {
      stopped_ = std::current_exception();
    }
  }

  // The place is empty. In blocks the last text comes here, so that passes have no empty rows.
  void leave(size_t place) {
    places_[place] = kEmpty;
    decoder_.forget(static_cast<int64_t>(place));
    const int64_t last = used() - 1;
    if (!decoder_.in_blocks() || last < static_cast<int64_t>(place)) return;
    decoder_.exchange(static_cast<int64_t>(place), last);
    std::swap(places_[place], places_[static_cast<size_t>(last)]);
  }

  std::vector<Continuation>& texts_;
  Decoder& decoder_;
  Turns& turns_;
  const KvBlockOptions blocks_;
  const OnToken& on_token_;
  std::vector<size_t> places_;  // the text in each place of the cache
  size_t next_ = 0;             // the first text that waits
  std::exception_ptr stopped_;
};

}  // namespace

std::vector<std::vector<int32_t>> generate_batch(const OpContext& ctx, nn::ParameterReader& weights,
                                                 const models::Architecture& architecture,
                                                 std::span<const std::span<const int32_t>> prompts,
                                                 const GenerateOptions& options,
                                                 const BatchOptions& batch,
                                                 const OnToken& on_token) {
  const models::ArchitectureInfo& info = architecture.info();
  try {
    check_prompts(info, prompts, options, batch);
  } catch (const Error&) {  // the others' texts are not to blame
    take_part(ctx, weights, architecture, options.ranks);
    throw;
  }
  if (prompts.empty()) {
    take_part(ctx, weights, architecture, options.ranks);
    return {};
  }
  std::vector<Continuation> texts;
  texts.reserve(prompts.size());
  // Texts in one pass would turn by the angles of the longest one.
  const int64_t most = info.angles_follow_length ? 1 : batch.at_once;
  Decoder::Room room{std::min<int64_t>(most, std::ssize(prompts)), 0};
  for (size_t i = 0; i < prompts.size(); ++i) {
    texts.emplace_back(info, prompts[i], options, options.seed + i);
    room.tokens = std::max(room.tokens, texts.back().capacity());
  }
  Decoder decoder(ctx, weights, architecture, room, options);
  Turns turns(ctx, options.ranks.together);
  Batch all(texts, decoder, turns, room.texts, options.kv.blocks, on_token);
  const std::exception_ptr stopped = all.run();
  turns.serve(decoder);  // the others may go on
  if (stopped) std::rethrow_exception(stopped);
  std::vector<std::vector<int32_t>> out;
  out.reserve(texts.size());
  for (const Continuation& text : texts) out.push_back(text.new_tokens());
  return out;
}

}  // namespace ds::infer
