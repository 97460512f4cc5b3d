// What is wrong with a document, as data: the message of a refusal, and what `ds config check` and
// ds_config_check list, are made of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ds {

enum class ProblemKind {
  kError,           // wrong in any build
  kAuto,            // "auto" that nobody resolves
  kMissingFeature,  // asks for something that this build lacks
  kIgnored,         // passed over in lenient reading; refuses nothing
};

// "error", "auto", "missing_feature", "ignored".
const char* problem_kind_name(ProblemKind kind);

struct ConfigProblem {
  ProblemKind kind = ProblemKind::kError;
  std::string path;     // JSON pointer as the document writes it; "" for the document as a whole
  std::string text;     // what is wrong
  std::string advice;   // what to do; may be empty
  std::string feature;  // that is missing; of kMissingFeature

  bool refuses() const { return kind != ProblemKind::kIgnored; }
  // "/path: text; advice"
  std::string message() const;
};

// `text` says what is wrong and, after its first "; ", what to do.
ConfigProblem make_problem(ProblemKind kind, std::string path, std::string_view text);

bool any_refuses(const std::vector<ConfigProblem>& problems);

// Throws for the problems that refuse: after `what` the first one's message, then where the others
// are. Does nothing without one.
void throw_first_problem(const std::vector<ConfigProblem>& problems, std::string_view what,
                         Code code);

}  // namespace ds
