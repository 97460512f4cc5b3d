#include "tokenizer/text_model.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace ds {

TextModel::TextModel(Vocabulary vocab, std::string_view what) : vocab_(std::move(vocab)) {
  DS_CHECK(!vocab_.empty(), Code::kCorrupt, what, ": the vocabulary is empty");
  ids_.reserve(vocab_.size());
  for (const auto& [token, token_id] : vocab_) {
    DS_CHECK(token_id >= 0 && token_id < std::numeric_limits<int32_t>::max(), Code::kCorrupt, what,
             ": token \"", printable(token), "\" has the id ", token_id, ", which is out of range");
    DS_CHECK(ids_.emplace(token, token_id).second, Code::kCorrupt, what, ": token \"",
             printable(token), "\" is twice in the vocabulary");
    max_id_ = std::max(max_id_, token_id);
  }
}

std::optional<int32_t> TextModel::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

Json TextModel::vocab_json() const {
  Json vocab = Json::object();
  for (const auto& [token, token_id] : vocab_) {
    // Known to be distinct; operator[] would search the whole object.
    vocab.get_ref<Json::object_t&>().emplace_back(token, token_id);
  }
  return vocab;
}

}  // namespace ds
