// Models in files as export, convert and eval read and write them: which folder, which types, how
// large, and what lies there afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli_fwd.h"
#include "ds.hpp"
#include "format.h"

namespace tool {

// "float32", "bfloat16" and "float16", for an option and as a ds_dtype.
const std::vector<std::string>& weight_types();
int32_t weight_type(const std::string& name);

// "5GB", "500 MB", "2GiB" or a number of bytes; nothing for another text. 1 kB is 1000 bytes.
std::optional<int64_t> parse_bytes(const std::string& text);
// Refuses a text that is no size of at least one byte.
CLI::Validator byte_size();

// The folder of one checkpoint of those in `folder`, or `folder` itself without a tag.
std::string source_folder(const std::string& folder, const std::string& tag);

// Whether low-rank adapters lie beside the model's weights.
bool has_adapters(const libds::Model& model);

// How many positions a config.json allows; 0 when it does not say.
int64_t model_positions(const Json& config);

// That of an option: a file, folder or checkpoint, or "bytes".
libds::Tokenizer open_tokenizer(const std::string& option);
// The tokenizer of a folder or checkpoint; empty when it holds none.
libds::Tokenizer find_tokenizer(const std::string& folder);
// That of the option, else that of the model's folder, else bytes for a vocabulary of 256.
libds::Tokenizer tokenizer_for(const std::string& option, const std::string& folder,
                               const libds::Model& model);

// Writes the weights, the tokenizer that `source` holds, and tells what was written.
void export_folder(libds::Model& model, const std::string& source, const std::string& output,
                   int32_t dtype, int64_t max_shard_bytes);
// Writes what Transformers reads beside the weights, where `source` holds it: tokenizer.json and
// the settings below. Returns the names of the files.
std::vector<std::string> copy_companions(const std::string& source, const std::string& output);
// Copies those of the files that lie in `source` (a folder, or the file of one in it) or, when that
// is one of a run's checkpoints, beside them. Returns their names.
std::vector<std::string> copy_settings(const std::string& source, const std::string& output,
                                       const std::vector<std::string>& names);
// Of generation, and of the tokenizer with its chat template.
const std::vector<std::string>& model_settings();
const std::vector<std::string>& tokenizer_settings();
// "wrote OUTPUT: a (1.2 MiB), b (3 B)" on standard output.
void tell_written(const std::string& output, const std::vector<std::string>& files);

}  // namespace tool
