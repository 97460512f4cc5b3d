#include "model_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <set>

#include "command.h"
#include "files.h"

namespace tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

// The weight files of a folder that was just written: those of the index, else the one file.
std::vector<std::string> weight_files(const std::string& folder) {
  if (!file_exists(folder + "/" + kIndex)) return {"model.safetensors"};
  const Json index = parse_json(read_text(folder + "/" + kIndex), kIndex);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.at("weight_map").items()) {
    names.insert(file.get<std::string>());
  }
  std::vector<std::string> out(names.begin(), names.end());
  out.emplace_back(kIndex);
  return out;
}

}  // namespace

const std::vector<std::string>& weight_types() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16"};
  return names;
}

int32_t weight_type(const std::string& name) {
  if (name == "float32") return DS_FLOAT32;
  if (name == "bfloat16") return DS_BFLOAT16;
  if (name == "float16") return DS_FLOAT16;
  throw UsageError("'" + name + "' is no type of weights: float32, bfloat16 and float16 are");
}

std::optional<int64_t> parse_bytes(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit(at, end);
  unit.erase(0, unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  static constexpr std::pair<const char*, double> kUnits[] = {{"", 1},
                                                              {"B", 1},
                                                              {"KB", 1e3},
                                                              {"MB", 1e6},
                                                              {"GB", 1e9},
                                                              {"TB", 1e12},
                                                              {"KIB", 1024.0},
                                                              {"MIB", 1048576.0},
                                                              {"GIB", 1073741824.0},
                                                              {"TIB", 1099511627776.0}};
  for (const auto& [name, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == name && bytes >= 1 && bytes < 9e18) return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

CLI::Validator byte_size() {
  return {[](std::string& text) {
            return parse_bytes(text) ? std::string()
                                     : "'" + text + "' is no size; write such as 5GB or 500MiB";
          },
          "SIZE"};
}

std::string source_folder(const std::string& folder, const std::string& tag) {
  return tag.empty() ? folder : folder + "/" + tag;
}

bool has_adapters(const libds::Model& model) {
  static const std::string kEnd = ".lora_A.weight";
  const std::vector<std::string> names = model.parameter_names();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.size() > kEnd.size() &&
           name.compare(name.size() - kEnd.size(), kEnd.size(), kEnd) == 0;
  });
}

int64_t model_positions(const Json& config) {
  for (const char* key : {"n_positions", "max_position_embeddings", "n_ctx"}) {
    if (const int64_t positions = config.value(key, int64_t{0}); positions > 0) return positions;
  }
  return 0;
}

libds::Tokenizer find_tokenizer(const std::string& folder) {
  try {
    return libds::Tokenizer::open(folder);
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_NOT_FOUND) throw;
  }
  return {};
}

libds::Tokenizer tokenizer_for(const std::string& option, const std::string& folder,
                               const libds::Model& model) {
  if (!option.empty()) return open_tokenizer(option);
  if (libds::Tokenizer found = find_tokenizer(folder)) return found;
  const Json config = parse_json(model.config(), "the model's configuration");
  if (!config.is_object()) throw Failure(folder + " holds own parameters, which do not read text");
  const int64_t vocabulary = config.value("vocab_size", int64_t{0});
  if (vocabulary == 256) return libds::Tokenizer::bytes();
  throw Failure(
      format("%s holds no tokenizer and its vocabulary is %lld, not bytes: say which "
             "with --tokenizer",
             folder.c_str(), static_cast<long long>(vocabulary)));
}

std::vector<std::string> copy_settings(const std::string& source, const std::string& output,
                                       const std::vector<std::string>& names) {
  const fs::path folder =
      fs::is_directory(source) ? fs::path(source) : fs::path(source).parent_path();
  std::vector<std::string> copied;
  std::error_code error;
  for (const std::string& name : names) {
    // A run keeps them beside its checkpoints, each of which has a folder of its own.
    for (const fs::path& place : {folder, folder.parent_path()}) {
      const fs::path from = place / name;
      const bool of_run = place == folder || fs::exists(folder / "manifest.dsm", error);
      if (!of_run || !fs::is_regular_file(from, error)) continue;
      const fs::path to = fs::path(output) / name;
      if (fs::equivalent(from, to, error)) break;
      fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
      if (error) throw Failure("cannot copy " + from.string() + ": " + error.message());
      copied.push_back(name);
      break;
    }
  }
  return copied;
}

const std::vector<std::string>& model_settings() {
  static const std::vector<std::string> names{"generation_config.json"};
  return names;
}

const std::vector<std::string>& tokenizer_settings() {
  static const std::vector<std::string> names{"tokenizer_config.json", "special_tokens_map.json",
                                              "chat_template.jinja", "chat_template.json"};
  return names;
}

std::vector<std::string> copy_companions(const std::string& source, const std::string& output) {
  std::vector<std::string> files;
  if (const libds::Tokenizer tokenizer = find_tokenizer(source)) {
    write_text(output + "/tokenizer.json", tokenizer.to_json());
    files.emplace_back("tokenizer.json");
  }
  for (const auto* names : {&model_settings(), &tokenizer_settings()}) {
    const std::vector<std::string> copied = copy_settings(source, output, *names);
    files.insert(files.end(), copied.begin(), copied.end());
  }
  return files;
}

libds::Tokenizer open_tokenizer(const std::string& option) {
  return option == "bytes" && !fs::exists(option) ? libds::Tokenizer::bytes()
                                                  : libds::Tokenizer::open(option);
}

void export_folder(libds::Model& model, const std::string& source, const std::string& output,
                   int32_t dtype, int64_t max_shard_bytes) {
  model.export_to(output, dtype, max_shard_bytes);
  std::vector<std::string> files = weight_files(output);
  if (parse_json(model.config(), "the model's configuration").is_object()) {
    files.insert(files.begin(), "config.json");
  }
  const std::vector<std::string> companions = copy_companions(source, output);
  files.insert(files.end(), companions.begin(), companions.end());
  tell_written(output, files);
}

void tell_written(const std::string& output, const std::vector<std::string>& files) {
  std::string line = "wrote " + output;
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(output) / files[i], error);
    line += (i == 0 ? ": " : ", ") + files[i];
    if (!error) line += " (" + format_bytes(static_cast<double>(size)) + ")";
  }
  std::cout << line << "\n";
}

}  // namespace tool
