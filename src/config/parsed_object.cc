// Reading and completing a parsed document, and the refusal of what the build lacks.
#include <vector>

#include "base/text.h"
#include "config/parse.h"

namespace ds {
namespace {

const Json kNothing;
constexpr const char* kDeprecated = "deprecated:";

// `Value` is Json or const Json.
template <class Value>
Value* find(Value& root, std::string_view path) {
  Value* here = &root;
  while (!path.empty()) {
    path.remove_prefix(1);  // the '/'
    const size_t end = path.find('/');
    const std::string name = unescape_pointer_token(path.substr(0, end));
    path = end == std::string_view::npos ? std::string_view() : path.substr(end);
    if (!here->is_object()) return nullptr;
    const auto it = here->find(name);
    if (it == here->end()) return nullptr;
    here = &*it;
  }
  return here;
}

class Refusal {
 public:
  explicit Refusal(ParsedObject& parsed) : parsed_(parsed) {}

  // `open`: every gate on the way here is open.
  void walk(const KeyTable& table, const Json& values, const std::string& path, bool open) {
    const bool entered = open || table.gate_always;
    bool inside = entered;
    if (!table.gate.empty()) {
      const Key& gate = *table.find(table.gate);
      // The gate first: with it closed, the other keys ask for nothing.
      if (entered) check(gate, values.at(gate.name), path + "/" + gate.name);
      inside = entered && values.at(gate.name) != gate.default_value;
    }
    for (const Key& key : table.keys) {
      if (key.deprecated) continue;
      const Json& value = values.at(key.name);
      const std::string here = path + "/" + key.name;
      if (inside || key.refused_always) check(key, value, here);
      descend(key, values, value, here, inside);
    }
  }

 private:
  void descend(const Key& key, const Json& siblings, const Json& value, const std::string& path,
               bool open) {
    if (!value.is_object()) return;
    if (key.free_names) {
      for (const auto& [name, item] : value.items()) {
        walk(*key.table, item, path + "/" + pointer_token(name), open);
      }
    } else if (key.table) {
      walk(*key.table, value, path, open);
    } else {
      for (const auto& [choice, variant] : key.variants) {
        if (siblings.at(key.chosen_by) == choice) walk(*variant, value, path, open);
      }
    }
  }

  void check(const Key& key, const Json& value, const std::string& path) {
    if (is_harmless(key, value) || parsed_.has_failed(path)) return;
    const auto derivable = parsed_.derivable.find(path);
    if (derivable != parsed_.derivable.end() && derivable->second == value) return;
    std::vector<std::string> accepted;
    if (!key.required && !key.default_value.is_null()) {
      accepted.push_back(show_value(key.default_value));
    }
    if (derivable != parsed_.derivable.end()) accepted.push_back(show_value(derivable->second));
    for (const Json& other : key.harmless) accepted.push_back(show_value(other));
    const std::string advice =
        !accepted.empty() ? "; use " + join(accepted, " or ") : std::string("; remove it");
    std::string given;
    const auto origin = parsed_.origins.find(path);
    if (origin != parsed_.origins.end() && origin->second.rfind(kDeprecated, 0) == 0) {
      given = " (given as " + origin->second.substr(std::string_view(kDeprecated).size()) + ")";
    }
    ConfigProblem problem =
        make_problem(ProblemKind::kMissingFeature, printable(path, 400),
                     str_cat(show_value(value), given, " asks for ", key.lacking,
                             ", which this build does not have", advice));
    problem.feature = key.lacking;
    parsed_.add(std::move(problem));
  }

  ParsedObject& parsed_;
};

}  // namespace

std::string pointer_token(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescape_pointer_token(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size()) {
      out += token[++i] == '1' ? '/' : '~';
    } else {
      out += token[i];
    }
  }
  return out;
}

std::string show_value(const Json& value) {
  if (value.is_object()) return value.empty() ? "{}" : "an object";
  return printable(dump_json(value), 60);
}

const Json& ParsedObject::at(std::string_view path) const {
  const Json* found = find(values, path);
  return found ? *found : kNothing;
}

bool ParsedObject::is_given(const std::string& path) const {
  const auto it = origins.find(path);
  return it != origins.end() && it->second != "default" && it->second != "derived";
}

void ParsedObject::derive(const std::string& path, Json value) {
  Json* target = find(values, path);
  if (target == nullptr) return;
  derivable[path] = value;
  if (is_given(path) && !target->is_null()) return;
  *target = std::move(value);
  origins[path] = "derived";
}

void ParsedObject::add(ConfigProblem problem) {
  if (problems.size() >= kMostProblems) return;
  for (const ConfigProblem& one : problems) {
    if (one.path == problem.path && one.kind != ProblemKind::kIgnored) return;
  }
  problems.push_back(std::move(problem));
}

bool ParsedObject::has_failed(std::string_view path) const {
  if (failed.empty()) return false;
  for (size_t end = path.size(); end != std::string_view::npos && end > 0;
       end = path.rfind('/', end - 1)) {
    if (failed.count(std::string(path.substr(0, end)))) return true;
  }
  return false;
}

void refuse_lacking(const KeyTable& table, ParsedObject& parsed, const ParseOptions& options) {
  Refusal(parsed).walk(table, parsed.values, "", true);
  if (!options.collect) throw_first_problem(parsed.problems, options.what, options.code);
}

}  // namespace ds
