#include "engine/comms_log.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "comm/communicator.h"

namespace ds {

std::shared_ptr<CommsLogger> make_comms_logger(const CommsLoggerConfig& wanted) {
  if (!wanted.enabled) return nullptr;
  std::vector<std::string> known;
  for (int i = 0; i < kCollectives; ++i) {
    known.emplace_back(collective_name(static_cast<Collective>(i)));
  }
  for (const std::string& name : wanted.prof_ops) {
    DS_CHECK(std::find(known.begin(), known.end(), name) != known.end(), Code::kConfig,
             "configuration: /comms_logger/prof_ops: \"", printable(name),
             "\" is no collective; known are ", ds::join(known, ", "));
  }
  return std::make_shared<CommsLogger>(
      CommsLoggerOptions{wanted.verbose, wanted.prof_all, wanted.prof_ops});
}

}  // namespace ds
