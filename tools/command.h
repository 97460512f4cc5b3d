// What the subcommands share: each file train.cc, generate.cc, ... adds one to the program.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <charconv>
#include <functional>
#include <string>
#include <vector>

#include "ds.hpp"
#include "failure.h"

namespace tool {

// What main() runs after the command line was read; gives the exit status.
using Action = std::function<int()>;

// A check of an option's number, with a message for people.
inline CLI::Validator at_least(int64_t least) {
  return {[least](std::string& text) {
            int64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [at, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc::result_out_of_range) return text + " is too large";
            if (error != std::errc() || at != end) return "'" + text + "' is not a whole number";
            return value < least ? text + " is below " + std::to_string(least) : std::string();
          },
          "AT_LEAST"};
}

void add_train(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_merge(CLI::App& app, Action& action);
void add_tokenizer_train(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
CLI::App* add_bench_comm(CLI::App& bench, Action& action);
CLI::App* add_bench_io(CLI::App& bench, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_config(CLI::App& app, Action& action);
void add_view(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
// `command`: what stood behind "--".
void add_launch(CLI::App& app, Action& action, std::vector<std::string> command);

}  // namespace tool
