// `ds export`: the weights of a checkpoint as a Hugging Face folder.
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "model_files.h"

namespace tool {
namespace {

struct Options {
  std::string checkpoint;
  std::string output;
  std::string tag;
  std::string dtype = "float32";
  std::string max_shard_size;
  std::string adapter;
};

int run(const Options& o) {
  const std::string source = source_folder(o.checkpoint, o.tag);
  libds::Model model = libds::Model::open(source);
  if (has_adapters(model)) {
    model.merge_lora();
    std::cout << "merged the adapters of " << source << "\n";
  }
  if (!o.adapter.empty()) {
    model.load_adapter(o.adapter);
    model.merge_lora();
    std::cout << "merged the adapters of " << o.adapter << "\n";
  }
  export_folder(model, source, o.output, weight_type(o.dtype),
                o.max_shard_size.empty() ? 0 : *parse_bytes(o.max_shard_size));
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
  sub->add_option("--dtype", o.dtype, "float32, bfloat16 or float16")
      ->check(CLI::IsMember(weight_types()))
      ->type_name("TYPE")
      ->capture_default_str();
  sub->add_option("--max-shard-size", o.max_shard_size,
                  "several files of at most this much tensor data, such as 5GB, and an index; "
                  "default: one file")
      ->check(byte_size())
      ->type_name("SIZE");
  sub->add_option("--merge-adapter", o.adapter,
                  "add the products of this PEFT adapter to the weights; adapters in the "
                  "checkpoint itself are always merged")
      ->type_name("DIR");
  sub->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace tool
