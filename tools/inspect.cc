// `ds inspect`: what a checkpoint holds, and whether its bytes are whole.
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "format.h"

namespace tool {
namespace {

struct InspectOptions {
  std::string checkpoint;
  std::string tag;
  bool verify = false;
  bool json = false;
};

// A tensor as one row: where its bytes lie in few words instead of every slice.
Json tensor_row(const Json& tensor) {
  Json row;
  for (const char* key : {"name", "kind", "state", "dtype", "shape", "bytes", "aliases"}) {
    if (tensor.contains(key)) row[key] = tensor[key];
  }
  if (tensor.value("frozen", false)) row["frozen"] = true;
  const Json slices = tensor.value("slices", Json::array());
  if (slices.size() == 1) {
    row["place"] = slices[0].value("file", std::string("?")) + " at " +
                   std::to_string(slices[0].value("begin", int64_t{0}));
  } else {
    row["place"] = std::to_string(slices.size()) + " slices";
  }
  return row;
}

std::string described(Json document) {
  for (const char* key : {"config", "runs"}) document.erase(key);  // long; --json has them
  double elements = 0, frozen = 0;
  for (Json& tensor : document["tensors"]) {
    if (tensor.value("kind", std::string()) == "master") {
      double count = 1;
      for (const Json& size : tensor.value("shape", Json::array())) count *= size.get<double>();
      elements += count;
      if (tensor.value("frozen", false)) frozen += count;
    }
    tensor = tensor_row(tensor);
  }
  std::string out = render_json(document) + "\n" + std::to_string(document["tensors"].size()) +
                    " tensors, " + format_count(elements) + " parameters";
  if (frozen > 0) out += ", " + format_count(frozen) + " of them frozen";
  return out + "\n";
}

int run_inspect(const InspectOptions& o) {
  const Json document =
      parse_json(libds::inspect_checkpoint(o.checkpoint, o.tag), "the checkpoint's description");
  std::cout << (o.json ? document.dump(2) + "\n" : described(document));
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
  auto options = std::make_shared<InspectOptions>();
  InspectOptions& o = *options;
  sub->add_option("checkpoint", o.checkpoint, "folder that `ds train --save` wrote")
      ->type_name("CHECKPOINT")
      ->required();
  sub->add_option("--tag", o.tag, "checkpoint to show instead of the newest valid one")
      ->type_name("NAME");
  sub->add_flag("--verify", o.verify, "read every byte and compare checksums");
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run_inspect(*options); }; });
}

}  // namespace tool
