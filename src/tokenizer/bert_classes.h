// Character classes as BERT's tokenizers in use draw them: Unicode's, frozen at the version that
// Hugging Face's `tokenizers` carries, so that newer characters get the ids that models were
// trained with.
#pragma once

#include <cstdint>

namespace ds {

bool is_bert_punctuation(uint32_t code);      // ASCII symbols too
bool is_bert_nonspacing_mark(uint32_t code);  // accents, dropped after decomposition
bool is_bert_control(uint32_t code);          // dropped; tab and line ends are blanks instead
bool is_bert_ideograph(uint32_t code);        // gets a blank on both sides

}  // namespace ds
