#include "train_data.h"

#include <algorithm>

#include "ds.hpp"
#include "eval_text.h"
#include "failure.h"
#include "files.h"

namespace tool {
namespace {

// The path goes into a specification, which is JSON.
void check_utf8(const std::string& path) {
  try {
    static_cast<void>(Json(path).dump());
  } catch (const Json::exception&) {
    throw Failure("the name of the data, " +
                  Json(path).dump(-1, ' ', true, Json::error_handler_t::replace) +
                  ", is not UTF-8: rename it, or make a link to it with another name");
  }
}

}  // namespace

TrainData::TrainData(const std::string& data, const std::string& spec_file) : file_(spec_file) {
  if (spec_file.empty()) {
    check_utf8(data);
    spec_ = {{"path", data}};
    return;
  }
  spec_ = parse_json(read_text(spec_file), spec_file);
  if (!spec_.is_object()) throw Failure(spec_file + " must be one JSON object");
  if (spec_.contains("part")) {
    throw Failure(spec_file +
                  ": /part is not needed: training reads \"train\", validation "
                  "\"valid\"");
  }
}

bool TrainData::is_tokens() const {
  const auto tokens = [](const Json& member) {
    return member.is_object() && member.contains("path") && member["path"].is_string() &&
           is_token_prefix(member["path"].get<std::string>());
  };
  if (!spec_.contains("members") || !spec_["members"].is_array()) return tokens(spec_);
  return std::all_of(spec_["members"].begin(), spec_["members"].end(), tokens);
}

std::optional<int64_t> TrainData::sequence_length() const {
  const auto found = spec_.find("sequence_length");
  if (found == spec_.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

std::optional<std::string> TrainData::split() const {
  const auto found = spec_.find("split");
  if (found == spec_.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

Json TrainData::description() const {
  if (file_.empty()) return nullptr;
  Json out = spec_;
  for (const char* decided : {"sequence_length", "split", "seed"}) out.erase(decided);
  return out;
}

libds::Dataset TrainData::open(const char* part, int64_t sequence_length, const std::string& split,
                               int64_t seed, const libds::Tokenizer* tokenizer) const {
  Json spec = spec_;
  spec["sequence_length"] = sequence_length;
  spec["split"] = split;
  spec["part"] = part;
  if (!spec.contains("seed")) spec["seed"] = seed;
  try {
    return libds::Dataset::open(spec.dump(-1, ' ', false, Json::error_handler_t::replace),
                                tokenizer);
  } catch (const libds::Error& error) {
    if (file_.empty()) throw;
    throw libds::Error(error.status(), file_ + ": " + plain_message(error));
  }
}

}  // namespace tool
