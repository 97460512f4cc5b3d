// The `ds` program: reads the command line, runs one subcommand, turns failures into exit statuses.
#include <CLI/Error.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "format.h"
#include "help.h"
#include "nearest.h"

namespace {

// Errors are one line each; what a message has beyond that (a memory report) follows indented.
void print_error(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) {
    text.replace(at, 1, "\n  ");
  }
  std::cout.flush();
  std::fprintf(stderr, "ds: error: %s\n", text.c_str());
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

int usage_error(const CLI::App& app, const std::string& text) {
  std::string name = "ds";
  for (const CLI::App* sub = &app; !sub->get_subcommands().empty();) {
    sub = sub->get_subcommands().front();
    name += " " + sub->get_name();
  }
  print_error(one_line(text) + " (see '" + name + " --help')");
  return tool::kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  // What `ds launch` runs is not for the parser.
  std::vector<std::string> command;
  if (argc > 1 && std::string_view(argv[1]) == "launch") {
    char** const dashes =
        std::find_if(argv, argv + argc, [](const char* word) { return !std::strcmp(word, "--"); });
    if (dashes != argv + argc) command.assign(dashes + 1, argv + argc);
    argc = static_cast<int>(dashes - argv);
  }
  CLI::App app("Train language models, continue text, evaluate, look at checkpoints.", "ds");
  app.set_version_flag("--version", std::string("ds ") + ds_version(),
                       "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(0, 1);
  app.formatter(std::make_shared<tool::HelpFormatter>());

  tool::Action action;
  tool::add_train(app, action);
  tool::add_generate(app, action);
  tool::add_tokenize(app, action);
  tool::add_merge(app, action);
  tool::add_tokenizer_train(app, action);
  tool::add_inspect(app, action);
  tool::add_export(app, action);
  tool::add_convert(app, action);
  tool::add_eval(app, action);
  tool::add_bench(app, action);
  tool::add_launch(app, action, std::move(command));
  tool::add_plan(app, action);
  tool::add_config(app, action);
  tool::add_view(app, action);
  tool::add_report(app, action);
  app.footer("'ds SUBCOMMAND --help' explains a subcommand; docs/cli.md has examples.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    // An argument that nobody knows is more likely the mistake than one that is missing.
    const auto unknown = app.remaining(/*recurse=*/true);
    if (unknown.empty()) return usage_error(app, error.what());
    return usage_error(
        app, "unknown argument " + unknown.front() + tool::hint_for(app, unknown.front()));
  }
  if (!action) {
    std::cout << app.help();
    return tool::kDone;
  }
  try {
    const int status = action();
    std::cout.flush();
    if (!std::cout) throw tool::Failure("cannot write to standard output");
    return status;
  } catch (const tool::UsageError& error) {
    return usage_error(app, error.what());
  } catch (const std::exception& error) {
    print_error(tool::plain_message(error));
    return tool::kFailed;
  }
}
