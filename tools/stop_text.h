// Texts that end a generation: what comes is passed on until one of them does, and what may be the
// beginning of one waits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tool {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // What may be shown, now that `text` has come; nothing more once a stop has.
  std::string add(std::string_view text);
  // What still waited when the text ended.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string waiting_;
  bool stopped_ = false;
};

}  // namespace tool
