// `ds convert`: weights from one kind of folder to another: a checkpoint, a Hugging Face folder,
// low-rank adapters alone. `ds export` is its --to safetensors by another name.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "files.h"
#include "format.h"
#include "model_files.h"

namespace tool {
namespace {

namespace fs = std::filesystem;

struct ConvertOptions {
  std::string input;
  std::string output;
  std::string to = "safetensors";
  std::string tag;
  std::string dtype = "float32";
  std::string max_shard_size;
  std::string adapter;
  bool merge = false;
  bool force = false;
};

// Nothing is lost by accident: what is there stays unless --force says otherwise.
void check_output(const ConvertOptions& o) {
  std::error_code error;
  const auto status = fs::status(o.output, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw Failure(o.output + " exists and is no folder");
  const bool empty = fs::is_empty(o.output, error);
  if (error) throw Failure("cannot look into " + o.output + ": " + error.message());
  if (!empty && !o.force) {
    throw Failure(o.output + " exists and is not empty: --force writes into it");
  }
}

void check_options(const ConvertOptions& o) {
  if (o.to != "safetensors" && !o.max_shard_size.empty()) {
    throw UsageError("--max-shard-size belongs to --to safetensors");
  }
  if (o.to == "checkpoint" && o.dtype != "float32") {
    throw UsageError("a checkpoint holds float32 weights: --dtype belongs to the other kinds");
  }
  if (o.to == "adapter" && o.merge) {
    throw UsageError("--merge leaves no adapters that --to adapter could write");
  }
}

void write_checkpoint(libds::Model& model, const std::string& source, const ConvertOptions& o) {
  model.save(o.output);
  const Json saved = parse_json(libds::inspect_checkpoint(o.output, "weights"), "the checkpoint");
  std::string line = "wrote " + o.output + ": checkpoint weights of " +
                     std::to_string(saved.at("tensors").size()) + " tensors";
  for (const std::string& file : copy_companions(source, o.output)) line += ", " + file;
  std::cout << line << "\n";
}

int run_convert(const ConvertOptions& o) {
  check_options(o);
  check_output(o);
  const std::string source = source_folder(o.input, o.tag);
  libds::Model model = libds::Model::open(source);
  if (!o.adapter.empty()) {
    if (has_adapters(model)) {
      throw Failure(source + " carries adapters already: convert it with --merge first");
    }
    model.load_adapter(o.adapter);
  }
  const bool adapted = has_adapters(model);
  if (o.to == "adapter") {
    if (!adapted) throw Failure(source + " carries no adapters: there is nothing to write");
    model.save_adapter(o.output, weight_type(o.dtype));
    tell_written(o.output, {"adapter_config.json", "adapter_model.safetensors"});
    return kDone;
  }
  if (o.merge && !adapted) throw Failure(source + " carries no adapters to merge");
  if (adapted && (o.merge || o.to == "safetensors")) {
    model.merge_lora();
    std::cout << "merged the adapters of " << (o.adapter.empty() ? source : o.adapter) << "\n";
  }
  if (o.to == "checkpoint") {
    write_checkpoint(model, source, o);
  } else {
    export_folder(model, source, o.output, weight_type(o.dtype),
                  o.max_shard_size.empty() ? 0 : *parse_bytes(o.max_shard_size));
  }
  return kDone;
}

void add_to(CLI::App& app, Action& action, const char* name, const char* description,
            const char* adapter_option, bool kinds) {
  CLI::App* sub = app.add_subcommand(name, description);
  auto options = std::make_shared<ConvertOptions>();
  ConvertOptions& o = *options;
  sub->add_option("input", o.input, "checkpoint or Hugging Face folder")
      ->type_name("INPUT")
      ->required();
  sub->add_option("output", o.output, "folder to write")->type_name("OUTPUT")->required();
  if (kinds) {
    sub->add_option("--to", o.to,
                    "safetensors: a Hugging Face folder, adapters merged; checkpoint: weights that "
                    "train --model and generate open; adapter: the adapters alone, as PEFT's")
        ->check(CLI::IsMember({"checkpoint", "safetensors", "adapter"}))
        ->type_name("KIND")
        ->capture_default_str();
    sub->add_flag("--merge", o.merge, "add the adapters' products to the weights");
  }
  sub->add_option("--tag", o.tag, "checkpoint of INPUT to take instead of the newest")
      ->type_name("NAME");
  sub->add_option("--dtype", o.dtype, "float32, bfloat16 or float16")
      ->check(CLI::IsMember(weight_types()))
      ->type_name("TYPE")
      ->capture_default_str();
  sub->add_option("--max-shard-size", o.max_shard_size,
                  "several files of at most this much tensor data, such as 5GB, and an index; "
                  "default: one file")
      ->check(byte_size())
      ->type_name("SIZE");
  sub->add_option(adapter_option, o.adapter, "put this PEFT adapter onto INPUT first")
      ->type_name("DIR");
  sub->add_flag("--force", o.force, "write into a folder that is not empty");
  sub->callback([&action, options] { action = [options] { return run_convert(*options); }; });
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  add_to(app, action, "convert", "Convert between checkpoints, Hugging Face folders and adapters",
         "--adapter", true);
}

void add_export(CLI::App& app, Action& action) {
  add_to(app, action, "export", "Write a Hugging Face folder: convert --to safetensors",
         "--merge-adapter", false);
}

}  // namespace tool
