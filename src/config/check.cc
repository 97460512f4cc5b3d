#include "config/check.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "config/auto_values.h"
#include "config/config_table.h"
#include "config/overrides.h"
#include "config/relaxed_json.h"
#include "config/rules.h"

namespace ds {
namespace {

// Far above any hand-written document; bounds the work that a hostile one can cause.
constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMostLiberties = 20;  // that are listed
constexpr std::string_view kWhat = "configuration";

std::string describe(const JsonLiberty& liberty) {
  return str_cat("line ", liberty.line, ", column ", liberty.column, ": ",
                 liberty.kind == JsonLiberty::Kind::kTrailingComma
                     ? "a comma after the last item"
                     : "a comment that begins with #");
}

// Reads the text; problems of it as a whole have no path.
std::optional<Json> read_text(std::string_view text, bool lenient,
                              std::vector<ConfigProblem>& problems) {
  const auto add = [&](ProblemKind kind, std::string_view message) {
    problems.push_back(make_problem(kind, "", message));
  };
  if (text.size() > kMaxBytes) {
    add(ProblemKind::kError, str_cat(text.size(), " bytes; a document has at most ", kMaxBytes));
    return std::nullopt;
  }
  if (const std::string why = explain_no_json(text); !why.empty()) {
    add(ProblemKind::kError, why);
    return std::nullopt;
  }
  const RelaxedJson relaxed = relax_json(text);
  for (size_t i = 0; i < relaxed.liberties.size(); ++i) {
    if (i == (lenient ? kMostLiberties : size_t{1})) break;
    const std::string what = describe(relaxed.liberties[i]);
    if (lenient) {
      add(ProblemKind::kIgnored, what);
    } else {
      add(ProblemKind::kError, what + "; remove it, or read leniently");
    }
  }
  JsonLimits limits;
  limits.allow_comments = true;
  try {
    // With the liberties out of the way: the rest is looked at in any case.
    return parse_json(relaxed.text, kWhat, Code::kConfig, limits);
  } catch (const Error& error) {
    if (error.code() != Code::kConfig) throw;
    std::string message = error.message();
    if (message.rfind(str_cat(kWhat, ": "), 0) == 0) message.erase(0, kWhat.size() + 2);
    add(ProblemKind::kError, message);
    return std::nullopt;
  }
}

bool below_any(const std::string& path, const std::set<std::string>& roots) {
  for (size_t end = path.size(); end != std::string::npos && end > 0;
       end = path.rfind('/', end - 1)) {
    if (roots.count(path.substr(0, end))) return true;
  }
  return false;
}

// A value that the caller's document, its options or its "auto" stand for.
bool asked_for(const ParsedObject& parsed, const std::string& path) {
  const auto origin = parsed.origins.find(path);
  if (origin == parsed.origins.end() || parsed.has_failed(path)) return false;
  return origin->second != "default" && origin->second != "derived" &&
         !parsed.auto_paths.count(path);
}

// Objects whose values were asked for; nothing when there is none.
std::optional<Json> asked_part(const ParsedObject& parsed, const Json& value,
                               const std::string& path) {
  if (parsed.origins.count(path)) {
    return asked_for(parsed, path) ? std::optional<Json>(value) : std::nullopt;
  }
  if (!value.is_object()) return std::nullopt;
  Json out = Json::object();
  for (const auto& [name, item] : value.items()) {
    if (auto part = asked_part(parsed, item, path + "/" + pointer_token(name))) {
      out.get_ref<Json::object_t&>().emplace_back(name, std::move(*part));
    }
  }
  // The presence of some sections means something.
  const bool kept = path.empty() || parsed.given_objects.count(path) != 0;
  if (out.empty() && !kept) return std::nullopt;
  return out;
}

}  // namespace

CheckedConfig check_config(std::string_view text, const ConfigEnvironment& environment,
                           const ReadOptions& options) {
  CheckedConfig out;
  std::vector<ConfigProblem> problems;
  std::optional<Json> document = read_text(text, options.lenient, problems);
  std::set<std::string> set_paths;
  if (document && document->is_object()) {
    set_paths = apply_overrides(*document, config_table(), options.set, problems);
  }
  if (!document) {
    out.parsed.problems = std::move(problems);
    return out;
  }

  ParseOptions how;
  how.collect = true;
  how.lenient = options.lenient;
  std::optional<AutoResolver> resolver;
  if (options.resolve_auto) {
    resolver.emplace(*options.resolve_auto, environment, *document);
    how.resolver = &*resolver;
  }
  ParsedObject& parsed = out.parsed;
  parsed = parse_object(config_table(), *document, how);
  parsed.problems.insert(parsed.problems.begin(), problems.begin(), problems.end());
  if (parsed.values.is_null()) return out;
  for (auto& [path, origin] : parsed.origins) {
    if (origin == "given" && below_any(path, set_paths)) origin = "set";
  }
  out.batch = apply_config_rules(parsed, environment, options);
  refuse_lacking(config_table(), parsed, how);
  for (const std::string& path : parsed.auto_paths) {
    if (const auto it = parsed.origins.find(path); it != parsed.origins.end()) it->second = "auto";
  }
  for (const ConfigProblem& one : parsed.problems) {
    if (!one.refuses()) {
      parsed.warnings.push_back(
          str_cat(kWhat, ": ", one.path, one.path.empty() ? "" : ": ", one.text, "; ignored"));
    }
  }
  return out;
}

Json given_document(const ParsedObject& parsed) {
  return asked_part(parsed, parsed.values, "").value_or(Json::object());
}

Json describe_check(const CheckedConfig& checked) {
  const ParsedObject& parsed = checked.parsed;
  Json problems = Json::array();
  for (const ConfigProblem& one : parsed.problems) {
    Json row = {{"kind", problem_kind_name(one.kind)},
                {"path", one.path},
                {"text", one.text},
                {"advice", one.advice}};
    if (one.kind == ProblemKind::kMissingFeature) row["feature"] = one.feature;
    problems.push_back(std::move(row));
  }
  Json out;
  out["accepted"] = checked.accepted();
  out["world"] = checked.accepted() ? Json(checked.batch.data_parallel) : Json();
  out["problems"] = std::move(problems);
  out["warnings"] = parsed.warnings;
  out["document"] = parsed.values.is_null() ? Json() : given_document(parsed);
  out["config"] = checked.accepted() ? parsed.values : Json();
  out["origins"] = checked.accepted() ? Json(parsed.origins) : Json();
  return out;
}

}  // namespace ds
