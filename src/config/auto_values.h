// What "auto" becomes: the rules of Hugging Face's Trainer and of Accelerate, which publish such
// documents.
#pragma once

#include <string>

#include "config/key_table.h"
#include "config/options.h"

namespace ds {

struct AutoOutcome {
  enum class Kind {
    kValue,    // `value` takes its place
    kAbsent,   // as if the key were not there
    kUnknown,  // nobody says; `text` tells what would
  };
  Kind kind = Kind::kAbsent;
  Json value;
  std::string text;
};

class AutoResolver {
 public:
  // `document` is the one that holds the "auto"; both must outlive the resolver.
  AutoResolver(const AutoValues& values, const ConfigEnvironment& environment, const Json& document)
      : values_(values), environment_(environment), document_(document) {}

  // Of the key with this canonical path.
  AutoOutcome resolve(const std::string& path) const;

 private:
  AutoOutcome precision(const char* own, const char* other) const;
  AutoOutcome optimizer(std::string_view name) const;
  AutoOutcome scheduler(std::string_view name) const;
  AutoOutcome zero(std::string_view name) const;
  const Json* at(std::initializer_list<const char*> path) const;

  const AutoValues& values_;
  const ConfigEnvironment& environment_;
  const Json& document_;
};

// Of a model's config.json; nothing when it does not say.
std::optional<int64_t> hidden_size_of(const Json& model_config);

// Why an "auto" that nobody resolves is refused, and what to do.
std::string explain_auto(const Key& key);

// Hugging Face's own where the caller says nothing.
inline constexpr double kAutoClipping = 1.0;
inline constexpr double kAutoBeta1 = 0.9, kAutoBeta2 = 0.999, kAutoEps = 1e-8, kAutoDecay = 0.0;

}  // namespace ds
