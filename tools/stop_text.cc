#include "stop_text.h"

#include <algorithm>
#include <utility>

namespace tool {

std::string StopText::add(std::string_view text) {
  if (stopped_) return {};
  waiting_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, waiting_.find(stop));
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    // The longest end of the text that a stop begins with.
    end = waiting_.size();
    for (const std::string& stop : stops_) {
      size_t size = std::min(stop.size() - 1, waiting_.size());
      while (size > 0 && !waiting_.ends_with(std::string_view(stop).substr(0, size))) --size;
      end = std::min(end, waiting_.size() - size);
    }
  }
  std::string out = waiting_.substr(0, end);
  waiting_.erase(0, end);
  return out;
}

std::string StopText::rest() {
  return stopped_ ? std::string() : std::exchange(waiting_, std::string());
}

}  // namespace tool
