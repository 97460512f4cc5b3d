// `ds report`: the build, the machine, and what of them works together.
#include <iostream>
#include <memory>

#include "command.h"
#include "format.h"

namespace tool {

void add_report(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand(
      "report", "Show the build, the CPU, the libraries, and what is not usable and why");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "print JSON");
  sub->callback([&action, json] {
    action = [json] {
      const Json document = parse_json(libds::report(), "the library's report");
      std::cout << (*json ? document.dump(2) + "\n" : render_json(document));
      return kDone;
    };
  });
}

}  // namespace tool
