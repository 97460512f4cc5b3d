#include "tokenizer/post_processor.h"

#include "base/json_fields.h"

namespace ds {

PostProcessor::PostProcessor(const Json& json, int32_t vocab_size, std::string_view what) {
  if (!json.is_null()) add(json, vocab_size, what);
}

void PostProcessor::add(const Json& json, int32_t vocab_size, std::string_view what) {
  const std::string type = text_field(json, "type", what);
  if (type == "Sequence") {
    for (const Json& step : array_field(json, "processors", what)) add(step, vocab_size, what);
  } else if (type == "TemplateProcessing") {
    add_template(json, vocab_size, what);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const auto token_of = [&](const char* name) {
      const Json& pair = array_field(json, name, what);
      DS_CHECK(pair.size() == 2, Code::kCorrupt, what, ".", name, " must be [token, id]");
      return static_cast<int32_t>(as_integer(pair[1], 0, vocab_size - 1, what));
    };
    prefix_.insert(prefix_.begin(), token_of("cls"));
    suffix_.push_back(token_of("sep"));
  } else {
    // ByteLevel only trims offsets, which are not reported here.
    DS_CHECK(type == "ByteLevel", Code::kUnsupported, what, ": the type \"", printable(type),
             "\" is not supported; known are ByteLevel, TemplateProcessing, BertProcessing, "
             "RobertaProcessing and Sequence");
  }
}

void PostProcessor::add_template(const Json& json, int32_t vocab_size, std::string_view what) {
  std::vector<int32_t> before, after;
  bool text_seen = false;
  for (const Json& item : array_field(json, "single", what)) {
    if (const Json* sequence = find_field(item, "Sequence", what)) {
      DS_CHECK(!text_seen && text_field(*sequence, "id", what) == "A", Code::kUnsupported, what,
               ": a template must hold the sequence A exactly once");
      text_seen = true;
      continue;
    }
    const std::string name = text_field(need_field(item, "SpecialToken", what), "id", what);
    const Json& known = need_field(json, "special_tokens", what);
    const Json& entry = need_field(known, name, str_cat(what, ".special_tokens"));
    for (const Json& value : array_field(entry, "ids", what)) {
      (text_seen ? after : before)
          .push_back(static_cast<int32_t>(as_integer(value, 0, vocab_size - 1, what)));
    }
  }
  DS_CHECK(text_seen, Code::kUnsupported, what,
           ": a template must hold the sequence A exactly once");
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), after.begin(), after.end());
}

}  // namespace ds
