// Bytes of the caller by name, which an engine's checkpoints carry.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace ds {

class CheckpointReader;
class PartWriter;

class SavedBlobs {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 20;  // of all together
  static constexpr size_t kMostName = 200;

  // No bytes take the blob away. kInvalidArgument for a name or a size that is not possible.
  void set(const std::string& name, std::string_view bytes);
  // kNotFound without one.
  const std::string& get(const std::string& name) const;
  const std::map<std::string, std::string>& all() const { return blobs_; }

  void save(PartWriter& part) const;
  static SavedBlobs load(const CheckpointReader& reader);

 private:
  std::map<std::string, std::string> blobs_;
};

}  // namespace ds
