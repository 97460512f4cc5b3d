#include "help.h"

#include <CLI/Formatter.hpp>
#include <sstream>
#include <vector>

namespace tool {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kColumn = 28;  // where descriptions begin

// Appends the words of `text`, which begin in column `at`, each further line in column `indent`.
void wrap(std::string& out, const std::string& text, size_t at, size_t indent) {
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  out += '\n';
}

void entry(std::string& out, const std::string& left, const std::string& description) {
  const std::string line = "  " + left;
  out += line;
  if (line.size() + 2 > kColumn) {
    out += "\n" + std::string(kColumn, ' ');
  } else {
    out += std::string(kColumn - line.size(), ' ');
  }
  wrap(out, description, kColumn, kColumn);
}

// "-n,--ranks": the short names and the first long one; others are further spellings of it.
std::string names_of(const CLI::Option& option) {
  std::string out;
  for (const std::string& name : option.get_snames()) out += "-" + name + ",";
  const auto& long_names = option.get_lnames();
  return long_names.empty() ? out.substr(0, out.size() - 1) : out + "--" + long_names.front();
}

// "--steps N"; the type's name alone, without what checks add to it.
std::string left_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::string shown = option.get_type_size() == 0 ? "" : type.substr(0, type.find(':'));
  if (shown == "INT" || shown == "FLOAT") shown = "N";
  if (option.get_positional()) {
    return shown + (option.get_expected_max() > 1 ? "..." : "");
  }
  return names_of(option) + (shown.empty() ? "" : " " + shown);
}

std::string description_of(const CLI::Option& option) {
  std::string out = option.get_description();
  if (!option.get_default_str().empty()) out += "; default " + option.get_default_str();
  if (option.get_required() && !option.get_positional()) out += " (required)";
  return out;
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string out = "Usage: " + name;
  const auto options = app.get_options([](const CLI::Option* o) { return o->nonpositional(); });
  if (!options.empty()) out += " [OPTIONS]";
  for (const CLI::Option* o :
       app.get_options([](const CLI::Option* p) { return p->get_positional(); })) {
    const std::string shown = left_of(*o);
    out += o->get_required() ? " " + shown : " [" + shown + "]";
  }
  return out + (app.get_subcommands({}).empty() ? "\n" : " SUBCOMMAND\n");
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode) const {
  std::string out = usage(*app, name) + "\n";
  wrap(out, app->get_description(), 0, 0);
  const auto list = [&](const std::string& title, const std::vector<const CLI::Option*>& options) {
    if (options.empty()) return;
    out += "\n" + title + ":\n";
    for (const CLI::Option* o : options) entry(out, left_of(*o), description_of(*o));
  };
  list("Arguments", app->get_options([](const CLI::Option* o) { return o->get_positional(); }));
  const auto subcommands = app->get_subcommands({});
  if (!subcommands.empty()) out += "\nSubcommands:\n";
  for (const CLI::App* sub : subcommands) entry(out, sub->get_name(), sub->get_description());
  for (const std::string& group : app->get_groups()) {
    list(group, app->get_options([&](const CLI::Option* o) {
      return o->nonpositional() && o->get_group() == group && o != app->get_help_ptr();
    }));
  }
  list("Help", {app->get_help_ptr()});
  if (!app->get_footer().empty()) {
    out += "\n";
    wrap(out, app->get_footer(), 0, 0);
  }
  return out;
}

}  // namespace tool
