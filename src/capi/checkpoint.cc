// Checkpoints on disk, without an engine: what one holds, and whether it is whole.
#include <filesystem>

#include "base/text.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "checkpoint/listing.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/save_folder.h"
#include "engine/saved_names.h"

namespace ds::capi {
namespace {

namespace fs = std::filesystem;

// A tag that must be given, or none.
std::string_view optional_tag(const char* tag) {
  if (tag == nullptr) return {};
  const std::string_view text = utf8_param(tag, "tag");
  DS_CHECK(!text.empty(), Code::kInvalidArgument,
           "tag is empty; pass NULL for the newest valid checkpoint");
  return text;
}

bool is_checkpoint_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kManifestFile, ignored);
}

// By their steps; what cannot be opened comes first.
std::vector<ListedCheckpoint> listed(const fs::path& folder, const CheckpointReader& reader,
                                     bool is_one) {
  if (!is_one) return list_checkpoints(folder);
  return {
      {reader.tag(), folder, reader.manifest().run, reader.manifest().counters.global_steps, {}}};
}

std::string inspect(const fs::path& folder, std::string_view tag) {
  const bool is_one = tag.empty() && is_checkpoint_folder(folder);
  const CheckpointReader reader = is_one        ? CheckpointReader::open_folder(folder)
                                  : tag.empty() ? std::move(open_latest_valid(folder).reader)
                                                : CheckpointReader::open(folder, tag);
  Json document = Json::object();
  Json& tags = document["tags"] = Json::array();
  Json runs = Json::object();
  for (const ListedCheckpoint& entry : listed(folder, reader, is_one)) {
    tags.push_back(entry.tag);
    if (entry.valid()) runs[entry.tag] = entry.run.empty() ? Json() : Json(entry.run);
  }
  document["runs"] = std::move(runs);
  const Json details = reader.inspect();
  for (const auto& [key, value] : details.items()) document[key] = value;
  if (reader.has_state(saved::kConfig)) document["config"] = reader.state_json(saved::kConfig);
  return dump_json(document, 2);
}

// Without a tag: what `latest` names, damaged or not, so that damage there is told and not passed
// over; only when nothing says which is meant, the newest valid one.
CheckpointReader open_to_verify(const fs::path& folder, std::string_view tag) {
  if (!tag.empty()) return CheckpointReader::open(folder, tag);
  if (is_checkpoint_folder(folder)) return CheckpointReader::open_folder(folder);
  std::error_code ignored;
  if (fs::exists(folder / kLatestFile, ignored)) return CheckpointReader::open(folder);
  return std::move(open_latest_valid(folder).reader);
}

void verify(const fs::path& folder, std::string_view tag) {
  constexpr size_t kShown = 20;
  const std::vector<Damage> damage = open_to_verify(folder, tag).verify_all();
  if (damage.empty()) return;
  std::string text;
  for (size_t i = 0; i < damage.size() && i < kShown; ++i) {
    text += (i > 0 ? "; " : "") + damage[i].text();
  }
  if (damage.size() > kShown) text += str_cat("; and ", damage.size() - kShown, " more places");
  fail(Code::kCorrupt, text);
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_checkpoint_inspect(const char* folder, const char* tag, char** out_json) {
  return guard(__func__, [&] {
    char*& out = out_param(out_json, "out_json");
    const std::string path = path_param(folder, "folder");
    out = make_c_string(inspect(path, optional_tag(tag)));
  });
}

ds_status ds_checkpoint_delete(const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const std::string path = path_param(folder, "folder");
    DS_CHECK(tag != nullptr, Code::kInvalidArgument,
             "tag is NULL; name the checkpoint that is to be deleted");
    delete_checkpoint(path, optional_tag(tag));
  });
}

ds_status ds_checkpoint_verify(const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const std::string path = path_param(folder, "folder");
    verify(path, optional_tag(tag));
  });
}
