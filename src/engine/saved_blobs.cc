#include "engine/saved_blobs.h"

#include <span>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"

namespace ds {
namespace {

constexpr std::string_view kPrefix = "blob/";

}  // namespace

void SavedBlobs::set(const std::string& name, std::string_view bytes) {
  DS_CHECK(!name.empty() && name.size() <= kMostName, Code::kInvalidArgument,
           "the name of a blob has ", name.size(), " bytes; 1 to ", kMostName, " are possible");
  int64_t others = 0;
  for (const auto& [other, held] : blobs_) {
    if (other != name) others += std::ssize(held);
  }
  const auto size = static_cast<int64_t>(bytes.size());
  DS_CHECK(size <= kMostBytes - others, Code::kInvalidArgument, "blob ", printable(name), " has ",
           size, " bytes, the others ", others, "; all blobs together hold at most ", kMostBytes,
           ": write larger ones to a file of their own");
  if (bytes.empty()) {
    blobs_.erase(name);
  } else {
    blobs_[name] = std::string(bytes);
  }
}

const std::string& SavedBlobs::get(const std::string& name) const {
  const auto found = blobs_.find(name);
  DS_CHECK(found != blobs_.end(), Code::kNotFound, "there is no blob ", printable(name), "; there ",
           blobs_.size() == 1 ? "is 1" : str_cat("are ", blobs_.size()));
  return found->second;
}

void SavedBlobs::save(PartWriter& part) const {
  for (const auto& [name, bytes] : blobs_) {
    part.set_bytes(str_cat(kPrefix, name), std::as_bytes(std::span(bytes)));
  }
}

SavedBlobs SavedBlobs::load(const CheckpointReader& reader) {
  SavedBlobs out;
  for (const StateRecord& state : reader.manifest().states) {
    if (state.name.rfind(kPrefix, 0) != 0 || state.type != StateType::kBytes) continue;
    out.set(state.name.substr(kPrefix.size()), reader.state_bytes(state.name));
  }
  return out;
}

}  // namespace ds
