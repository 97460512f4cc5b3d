// `ds export`: the weights of a checkpoint as a Hugging Face folder.
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "command.h"
#include "files.h"

namespace tool {
namespace {

struct Options {
  std::string checkpoint;
  std::string output;
  std::string tag;
  std::string dtype = "float32";
};

const std::map<std::string, int32_t>& dtypes() {
  static const std::map<std::string, int32_t> names{{"float32", DS_FLOAT32},
                                                    {"bfloat16", DS_BFLOAT16}};
  return names;
}

int run(const Options& o) {
  const std::string source = o.tag.empty() ? o.checkpoint : o.checkpoint + "/" + o.tag;
  libds::Model model = libds::Model::open(source);
  model.export_to(o.output, dtypes().at(o.dtype));
  std::string files = "config.json, model.safetensors";
  try {
    write_text(o.output + "/tokenizer.json", libds::Tokenizer::open(source).to_json());
    files += ", tokenizer.json";
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_NOT_FOUND) throw;
  }
  std::cout << "wrote " << o.output << ": " << files << "\n";
  return kDone;
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  CLI::App* sub =
      app.add_subcommand("export", "Write a checkpoint's weights as a Hugging Face folder");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  sub->add_option("checkpoint", o.checkpoint, "checkpoint, or another folder with weights")
      ->type_name("CHECKPOINT")
      ->required();
  sub->add_option("output", o.output, "folder to write")->type_name("OUT")->required();
  sub->add_option("--tag", o.tag, "checkpoint to take instead of the newest")->type_name("NAME");
  sub->add_option("--dtype", o.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->type_name("TYPE")
      ->capture_default_str();
  sub->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace tool
