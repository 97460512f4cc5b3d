// A document against everything that load_config() demands, with all problems at once.
#pragma once

#include <string_view>

#include "config/batch.h"
#include "config/options.h"
#include "config/parse.h"

namespace ds {

struct CheckedConfig {
  ParsedObject parsed;  // values are null when the text is no JSON object
  BatchConfig batch;    // of an accepted document

  bool accepted() const { return !any_refuses(parsed.problems); }
};

CheckedConfig check_config(std::string_view text, const ConfigEnvironment& environment = {},
                           const ReadOptions& options = {});

// What the caller asked for and nothing else, in canonical names and with "auto" resolved: a
// document that strict reading accepts, with the same meaning, when the checked one is accepted.
// What was refused is left out.
Json given_document(const ParsedObject& parsed);

// {"accepted", "world", "problems", "warnings", "document", "config", "origins"}; the last two are
// null for a document that is refused.
Json describe_check(const CheckedConfig& checked);

}  // namespace ds
