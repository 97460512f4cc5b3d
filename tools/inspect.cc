// `ds inspect`: what a checkpoint holds, and whether its bytes are whole.
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "format.h"

namespace tool {
namespace {

struct Options {
  std::string checkpoint;
  std::string tag;
  bool verify = false;
  bool json = false;
};

int run(const Options& o) {
  const Json document =
      parse_json(libds::inspect_checkpoint(o.checkpoint, o.tag), "the checkpoint's description");
  std::cout << (o.json ? document.dump(2) + "\n" : render_json(document));
  if (o.verify) {
    std::cout.flush();
    libds::verify_checkpoint(o.checkpoint, o.tag);
    if (!o.json) std::cout << "verified: every byte agrees with its checksum\n";
  }
  return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("inspect", "Show what a checkpoint holds");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  sub->add_option("checkpoint", o.checkpoint, "folder that `ds train --save` wrote")
      ->type_name("CHECKPOINT")
      ->required();
  sub->add_option("--tag", o.tag, "checkpoint to show instead of the newest valid one")
      ->type_name("NAME");
  sub->add_flag("--verify", o.verify, "read every byte and compare checksums");
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace tool
