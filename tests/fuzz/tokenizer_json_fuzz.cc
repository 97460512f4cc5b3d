// Fuzzes tokenizer.json: the input is the document, a zero byte, and text for the tokenizer.
#include <algorithm>
#include <vector>

#include "fuzz/fuzz_support.h"
#include "tokenizer/tokenizer.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;

// Patterns of a hostile document may take time for every character of a text.
constexpr size_t kMostText = 512;

// Enough of the ids to see what they are.
std::string shown(const std::vector<int32_t>& ids) {
  std::string out;
  for (size_t i = 0; i < std::min<size_t>(ids.size(), 16); ++i) out += ds::str_cat(ids[i], " ");
  return ids.size() > 16 ? ds::str_cat(out, "... (", ids.size(), ")") : out;
}

void use(const ds::Tokenizer& tokenizer, std::string_view text, const ds::EncodeOptions& options) {
  std::vector<int32_t> ids;
  // A pattern may give up on a text, which is an error like any other.
  if (!accepts([&] { ids = tokenizer.encode(text, options); })) return;
  for (const int32_t id : ids) {
    // Millions of ids are possible: they are described only where something is wrong.
    if (id < 0 || id >= tokenizer.vocab_size()) {
      claim(false, "ids are below the vocabulary's size", shown(ids));
    }
    if (!tokenizer.token(id)) claim(false, "ids have tokens", shown(ids));
  }
  for (const bool skip : {false, true}) {
    // A decoder may refuse to multiply the text beyond measure.
    accepts([&] {
      const ds::DecodeOptions decode{.skip_special_tokens = skip};
      tokenizer.decode(ids, decode);
      claim(ds::is_valid_utf8(tokenizer.decode_text(ids, decode)), "decoded text is UTF-8");
    });
  }
  std::vector<int32_t> again{7};
  ds::fuzz::must_succeed("encoding again succeeds",
                         [&] { tokenizer.append_encoded(text, options, again); });
  again.erase(again.begin());
  claim(again == ids, "encoding again gives the same ids", shown(again));
}

void use_all(const ds::Tokenizer& tokenizer, std::string_view text) {
  claim(tokenizer.vocab_size() > 0, "a tokenizer has tokens");
  for (const bool special : {false, true}) {
    for (const bool parse : {false, true}) use(tokenizer, text, {special, parse});
  }
  if (const auto eos = tokenizer.eos_id()) {
    claim(tokenizer.token(*eos).has_value(), "the end-of-document token exists");
  }
  for (const int32_t id : {-1, 0, 1, tokenizer.vocab_size() - 1, tokenizer.vocab_size()}) {
    const auto token = tokenizer.token(id);
    const std::vector<int32_t> one{id};
    const bool decodes = accepts([&] { tokenizer.decode(one); });
    claim(token || !decodes, "only ids with tokens decode", shown(one));
    claim(token || id < 0 || id < tokenizer.vocab_size() - 1 || id == tokenizer.vocab_size(),
          "the largest id has a token");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  ds::fuzz::Input input(data, size);
  const std::string_view json = input.take_until('\0');
  const std::string_view text = input.rest().substr(0, kMostText);
  ds::TokenizerPtr tokenizer;
  if (!accepts([&] { tokenizer = ds::parse_tokenizer_json(json, "input"); })) return 0;
  use_all(*tokenizer, text);

  const std::string written = tokenizer->to_json();
  ds::fuzz::must_succeed("what to_json writes can be read", [&] {
    const ds::TokenizerPtr again = ds::parse_tokenizer_json(written, "written");
    claim(again->to_json() == written, "reading and writing changes nothing");
    claim(again->vocab_size() == tokenizer->vocab_size(), "the copy has as many tokens");
    std::vector<int32_t> ids, other;
    const bool ok = accepts([&] { ids = tokenizer->encode(text); });
    const bool other_ok = accepts([&] { other = again->encode(text); });
    claim(ok == other_ok && ids == other, "the copy encodes alike", shown(other));
  });
  return 0;
}
