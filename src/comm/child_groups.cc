#include "comm/child_groups.h"

#include <string>

#include "base/text.h"

namespace ds::comm {

void ChildGroups::add(const std::shared_ptr<Communicator>& child, const Communicator& parent) {
  const std::lock_guard lock(mutex_);
  std::erase_if(children_, [](const auto& weak) { return weak.expired(); });
  children_.push_back(child);
  if (parent.state() == Communicator::State::kAborted) {
    child->abort("the parent group was aborted");
  }
}

void ChildGroups::abort(std::string_view reason) noexcept {
  try {
    const std::string text = str_cat("the parent group was aborted: ", reason);
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<Communicator>& weak : children_) {
      if (const auto child = weak.lock()) child->abort(text);
    }
  } catch (...) {  // no memory for the text
  }
}

}  // namespace ds::comm
