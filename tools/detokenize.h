// Text as it was before a corpus was published as blank-separated tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tool {

// WikiText: what Megatron's evaluation of its perplexity does with the text before it tokenises it.
std::string wikitext_detokenized(std::string text);
// Words of the published text as that evaluation counts them: pieces between single blanks.
int64_t wikitext_words(std::string_view text);

}  // namespace tool
