#include "comm/factory.h"

#include "comm/group.h"
#include "comm/shm/shm_transport.h"

namespace ds {

std::vector<std::shared_ptr<Communicator>> make_local_group(int size, const CommOptions& options) {
  DS_CHECK(size >= 1, Code::kInvalidArgument, "a group of ", size, " ranks is none");
  std::vector<std::shared_ptr<Communicator>> group;
  const std::vector<int> nodes =
      comm::pretended_nodes(options, std::vector<int>(static_cast<size_t>(size), 0));
  for (auto& transport : comm::ShmTransport::make_local(size)) {
    group.push_back(std::make_shared<comm::Group>(std::move(transport), options, nodes));
  }
  return group;
}

}  // namespace ds
