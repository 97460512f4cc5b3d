#include "engine/lone_process.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/discovery.h"

namespace ds {

std::shared_ptr<Communicator> make_lone_communicator() {
  try {
    const ProcessPlace place = discover_process(process_environment());
    if (place.world > 1) {
      log_warning("engine", place.source, " started this process as rank ", place.rank, " of ",
                  place.world,
                  ", and the engine has no communicator: it trains alone. Give it one "
                  "(ds_comm_create with -1, -1), or train in one process");
    }
  } catch (const Error&) {
    // Variables that fit no launcher concern whoever asks for a group of them.
  }
  return make_single_communicator();
}

}  // namespace ds
