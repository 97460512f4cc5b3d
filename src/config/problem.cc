#include "config/problem.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ds {
namespace {

constexpr size_t kMostNamed = 4;  // of the problems after the first

}  // namespace

const char* problem_kind_name(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::kAuto:
      return "auto";
    case ProblemKind::kMissingFeature:
      return "missing_feature";
    case ProblemKind::kIgnored:
      return "ignored";
    default:
      return "error";
  }
}

std::string ConfigProblem::message() const {
  std::string out = path.empty() ? text : path + ": " + text;
  if (!advice.empty()) out += "; " + advice;
  return out;
}

ConfigProblem make_problem(ProblemKind kind, std::string path, std::string_view text) {
  ConfigProblem out;
  out.kind = kind;
  out.path = std::move(path);
  const size_t cut = text.find("; ");
  out.text = text.substr(0, cut);
  if (cut != std::string_view::npos) out.advice = text.substr(cut + 2);
  return out;
}

bool any_refuses(const std::vector<ConfigProblem>& problems) {
  return std::any_of(problems.begin(), problems.end(),
                     [](const ConfigProblem& one) { return one.refuses(); });
}

void throw_first_problem(const std::vector<ConfigProblem>& problems, std::string_view what,
                         Code code) {
  const ConfigProblem* first = nullptr;
  size_t more = 0;
  std::vector<std::string> places;
  for (const ConfigProblem& one : problems) {
    if (!one.refuses()) continue;
    if (first == nullptr) {
      first = &one;
      continue;
    }
    ++more;
    if (places.size() < kMostNamed && !one.path.empty()) places.push_back(printable(one.path, 120));
  }
  if (first == nullptr) return;
  std::string others;
  if (more > 0) {
    others = str_cat(" (and ", more, " more ", more == 1 ? "problem" : "problems");
    if (!places.empty()) others += ": " + join(places, ", ");
    if (!places.empty() && places.size() < more) others += ", ...";
    others += ")";
  }
  fail(code, what, ": ", first->message(), others);
}

}  // namespace ds
