// `ds merge`: several data sets of tokens as one.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "eval_text.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

struct MergeOptions {
  std::vector<std::string> inputs;
  std::string output;
};

// The prefixes of a folder by name. Half a pair is an error: something is missing in the merge.
std::vector<std::string> prefixes_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    const bool idx = path.extension() == ".idx", bin = path.extension() == ".bin";
    if (!idx && !bin) continue;
    const std::string prefix = (path.parent_path() / path.stem()).string();
    if (!is_token_prefix(prefix)) {
      throw Failure(path.string() + " has no " + (idx ? ".bin" : ".idx") + " beside it");
    }
    if (idx) out.push_back(prefix);
  }
  if (out.empty()) throw Failure(folder + " holds no .bin and .idx");
  std::sort(out.begin(), out.end());
  return out;
}

int run_merge(const MergeOptions& o) {
  std::vector<std::string> inputs;
  for (const std::string& input : o.inputs) {
    if (!folder_exists(input)) {
      inputs.push_back(input);
      continue;
    }
    const std::vector<std::string> found = prefixes_in(input);
    inputs.insert(inputs.end(), found.begin(), found.end());
  }
  libds::Dataset::merge(inputs, o.output);
  std::cout << "wrote " << o.output << ".bin ("
            << format_bytes(static_cast<double>(std::filesystem::file_size(o.output + ".bin")))
            << ") and " << o.output << ".idx from " << inputs.size()
            << (inputs.size() == 1 ? " data set\n" : " data sets\n");
  return kDone;
}

}  // namespace

void add_merge(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("merge", "Join data sets of tokens");
  auto options = std::make_shared<MergeOptions>();
  MergeOptions& o = *options;
  sub->add_option("inputs", o.inputs,
                  "prefixes of .bin and .idx files, in this order; of a folder all that it holds, "
                  "by name")
      ->type_name("PREFIX_OR_FOLDER")
      ->required();
  sub->add_option("--output", o.output, "write PREFIX.bin and PREFIX.idx")
      ->type_name("PREFIX")
      ->required();
  sub->callback([&action, options] { action = [options] { return run_merge(*options); }; });
}

}  // namespace tool
