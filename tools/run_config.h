// The DeepSpeed configuration of a training run: a file or the program's default, plus what options
// of the command line say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tool {

struct ConfigOptions {
  std::string path;                     // "" = that of the loaded run, else default_config()
  std::string resumed;                  // configuration of the loaded run, "" = none
  std::optional<int64_t> seed;          // wins over the file's "seed"
  std::optional<int64_t> resumed_seed;  // of the loaded run; the file's "seed" wins over it
  std::optional<int64_t> threads;
  std::optional<int64_t> keep;  // checkpoints of the run that stay
  std::string tensorboard;      // folder, "" = as the file says
  std::string csv;
};

struct RunConfig {
  std::string text;        // for the library
  int64_t seed = 0;        // what the run uses
  bool understood = true;  // false: `text` is the file as it is; the library will say what is wrong
};

RunConfig load_config(const ConfigOptions& options);

// What `ds train` uses without --config.
const char* default_config();

}  // namespace tool
