// What trains when a document has no optimizer.
#pragma once

#include "config/options.h"
#include "config/parse.h"

namespace ds {

// DeepSpeed trains nothing without one: it then waits for an optimizer object of the program.
// Hugging Face's Trainer makes AdamW from its own arguments, which is what "auto" stands for. Puts
// the section of the AdamW that trains into the document and warns of it, or lists why it cannot
// and returns false.
bool add_missing_optimizer(ParsedObject& parsed, const ReadOptions& options);

}  // namespace ds
