// The groups that were split from one, which end with it when it is aborted.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace ds::comm {

class ChildGroups {
 public:
  // `parent` may have been aborted meanwhile: then the child is, too.
  void add(const std::shared_ptr<Communicator>& child, const Communicator& parent);
  void abort(std::string_view reason) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> children_;
};

}  // namespace ds::comm
