#include "tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/json_fields.h"
#include "tokenizer/byte_alphabet.h"

namespace ds {
namespace {

// Names that published models give their end-of-document token.
constexpr std::array kEosNames = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                  "<|eot_id|>",    "<|im_end|>",      "[EOS]"};

// Walks text as runs of well-formed UTF-8 and runs of ill-formed bytes. The latter become pieces of
// their own: no pattern could classify them.
template <class Good, class Bad>
void for_each_run(std::string_view text, const Good& good, const Bad& bad) {
  for (bool begins = true; !text.empty(); begins = false) {
    const size_t valid = valid_utf8_prefix(text);
    if (valid > 0) good(text.substr(0, valid), begins);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size() && !utf8_at(text, invalid).valid) ++invalid;
    if (invalid > 0) bad(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

std::unique_ptr<const TextModel> make_model(TextModelSpec spec, bool byte_level,
                                            std::string_view what) {
  if (auto* bpe = std::get_if<BpeModelSpec>(&spec)) {
    bpe->byte_level = byte_level;
    return std::make_unique<BpeModel>(std::move(*bpe), what);
  }
  DS_CHECK(!byte_level, Code::kUnsupported, what,
           ": a ByteLevel pre-tokenizer needs a BPE model, not WordPiece");
  return std::make_unique<WordPieceModel>(std::move(std::get<WordPieceModelSpec>(spec)), what);
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(PipelineTokenizerSpec spec, std::string_view what)
    : added_tokens_(std::move(spec.added_tokens)),
      stages_({{"truncation", std::move(spec.truncation)},
               {"padding", std::move(spec.padding)},
               {"normalizer", std::move(spec.normalizer)},
               {"pre_tokenizer", std::move(spec.pre_tokenizer)},
               {"post_processor", std::move(spec.post_processor)},
               {"decoder", std::move(spec.decoder)}}),
      pre_tokenizer_(stages_["pre_tokenizer"], str_cat(what, ": pre_tokenizer")),
      normalizer_(stages_["normalizer"], str_cat(what, ": normalizer")),
      decoder_(stages_["decoder"], str_cat(what, ": decoder")),
      model_(make_model(std::move(spec.model), pre_tokenizer_.byte_level(), what)) {
  add_model_entries(what);
  add_added_entries(what);
  post_processor_ =
      PostProcessor(stages_["post_processor"], vocab_size(), str_cat(what, ": post_processor"));
  choose_eos(spec.eos_token, what);
}

void PipelineTokenizer::add_model_entries(std::string_view what) {
  int64_t largest = model_->max_id();
  for (const AddedToken& token : added_tokens_) largest = std::max<int64_t>(largest, token.id);
  // The table below has a row per id, so a file must not name a huge one.
  const auto count = static_cast<int64_t>(model_->vocab().size() + added_tokens_.size());
  const int64_t limit = 8 * count + 1'000'000;
  DS_CHECK(largest < limit, Code::kCorrupt, what, ": token id ", largest,
           " is out of proportion to ", count, " tokens");
  entries_.resize(static_cast<size_t>(largest) + 1);
  const bool byte_level = model_->byte_level() || decoder_.byte_level();
  for (const auto& [token, token_id] : model_->vocab()) {
    Entry& entry = entries_[static_cast<size_t>(token_id)];
    DS_CHECK(!entry.exists, Code::kCorrupt, what, ": the tokens \"", printable(entry.token),
             "\" and \"", printable(token), "\" share the id ", token_id);
    entry.exists = true;
    entry.token = token;
    if (byte_level) entry.bytes = alphabet_to_bytes(token).value_or(token);
  }
}

void PipelineTokenizer::add_added_entries(std::string_view what) {
  size_t bytes = 0;
  for (const AddedToken& token : added_tokens_) bytes += token.content.size();
  TimeLimit time(bytes);
  for (const AddedToken& token : added_tokens_) {
    DS_CHECK(!token.content.empty(), Code::kCorrupt, what, ": added token ", token.id, " is empty");
    DS_CHECK(added_ids_.emplace(token.content, token.id).second, Code::kCorrupt, what,
             ": added token \"", printable(token.content), "\" is listed twice");
    const auto in_model = model_->id(token.content);
    DS_CHECK(!in_model || *in_model == token.id, Code::kCorrupt, what, ": added token \"",
             printable(token.content), "\" has the id ", token.id, ", but the model gives it ",
             in_model.value_or(-1));
    Entry& entry = entries_[static_cast<size_t>(token.id)];
    DS_CHECK(!entry.exists || in_model, Code::kCorrupt, what, ": added token \"",
             printable(token.content), "\" has the id ", token.id, " of \"", printable(entry.token),
             "\"");
    if (!entry.exists) {
      // Not spelled in the byte alphabet, so it decodes to exactly its text.
      entry.exists = true;
      entry.token = entry.bytes = token.content;
    }
    entry.special = token.special;
    if (token.normalized && !normalizer_.empty()) {
      normalized_matcher_.add(normalizer_.apply(token.content, time), token);
    } else if (token.normalized) {
      normalized_matcher_.add(token.content, token);
    } else {
      raw_matcher_.add(token.content, token);
    }
  }
  raw_matcher_.finish();
  normalized_matcher_.finish();
}

void PipelineTokenizer::choose_eos(const std::string& name, std::string_view what) {
  if (!name.empty()) {
    eos_id_ = id(name);
    DS_CHECK(eos_id_, Code::kNotFound, what, ": there is no token \"", printable(name),
             "\" to end documents with");
    return;
  }
  for (const char* candidate : kEosNames) {
    eos_id_ = id(candidate);
    if (eos_id_) return;
  }
}

std::optional<std::string> PipelineTokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocab_size() || !entries_[static_cast<size_t>(id)].exists) {
    return std::nullopt;
  }
  return entries_[static_cast<size_t>(id)].token;
}

std::optional<int32_t> PipelineTokenizer::id(std::string_view token) const {
  if (const auto added = added_ids_.find(std::string(token)); added != added_ids_.end()) {
    return added->second;
  }
  return model_->id(token);
}

void PipelineTokenizer::append_encoded(std::string_view text, const EncodeOptions& options,
                                       std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!model_->byte_level() && !is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  if (options.add_special_tokens)
    ids.insert(ids.end(), post_processor_.prefix().begin(), post_processor_.prefix().end());
  TimeLimit time(text.size());
  std::vector<AddedTokenSegment> segments;
  raw_matcher_.split(text, options.parse_special_tokens, segments);
  for (const AddedTokenSegment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    for_each_run(
        segment.text,
        [&](std::string_view run, bool begins) {
          encode_text(run, {begins, run.data() == text.data()}, options, ids, time);
        },
        [&](std::string_view run) { model_->encode_piece(run, ids); });
  }
  if (options.add_special_tokens)
    ids.insert(ids.end(), post_processor_.suffix().begin(), post_processor_.suffix().end());
}

void PipelineTokenizer::encode_text(std::string_view text, PreTokenizer::Place place,
                                    const EncodeOptions& options, std::vector<int32_t>& ids,
                                    TimeLimit& time) const {
  std::string normal;
  if (!normalizer_.empty()) {
    normal = normalizer_.apply(text, time);
    text = normal;
  }
  if (normalized_matcher_.empty()) return encode_model_text(text, place, ids, time);
  std::vector<AddedTokenSegment> segments;
  normalized_matcher_.split(text, options.parse_special_tokens, segments);
  for (const AddedTokenSegment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      encode_model_text(segment.text, place, ids, time);
    }
    place = {};
    place.text = false;
  }
}

void PipelineTokenizer::encode_model_text(std::string_view text, PreTokenizer::Place place,
                                          std::vector<int32_t>& ids, TimeLimit& time) const {
  PreTokenizer::Arena arena;
  std::vector<std::string_view> pieces;
  pre_tokenizer_.split(text, place, arena, pieces, time);
  for (const std::string_view piece : pieces) model_->encode_piece(piece, ids);
}

void PipelineTokenizer::pre_tokenize(std::string_view text, PreTokenizer::Arena& arena,
                                     std::vector<std::string_view>& pieces) const {
  TimeLimit time(text.size());
  std::vector<AddedTokenSegment> segments;
  raw_matcher_.split(text, true, segments);
  for (const AddedTokenSegment& segment : segments) {
    if (segment.id >= 0) continue;
    for_each_run(
        segment.text,
        [&](std::string_view run, bool begins) {
          pre_tokenizer_.split(run, {begins, run.data() == text.data()}, arena, pieces, time);
        },
        [&](std::string_view run) { pieces.push_back(run); });
  }
}

std::string PipelineTokenizer::decode(std::span<const int32_t> ids,
                                      const DecodeOptions& options) const {
  std::string out;
  std::vector<int32_t> kept;
  for (const int32_t token_id : ids) {
    const bool known =
        token_id >= 0 && token_id < vocab_size() && entries_[static_cast<size_t>(token_id)].exists;
    DS_CHECK(known, Code::kInvalidArgument, "cannot decode token ", token_id,
             ": the tokenizer has no such token (its ids are below ", vocab_size(), ")");
    const Entry& entry = entries_[static_cast<size_t>(token_id)];
    if (entry.special && options.skip_special_tokens) continue;
    if (model_->byte_level() || decoder_.byte_level()) {
      out += entry.bytes;
    } else {
      kept.push_back(token_id);
    }
  }
  if (!kept.empty()) {
    out = decoder_.apply(kept.size(), [&](size_t i) -> std::string_view {
      return entries_[static_cast<size_t>(kept[i])].token;
    });
  }
  return out;
}

}  // namespace ds
