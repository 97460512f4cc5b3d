#include "first_rank.h"

#include <cstdint>
#include <exception>
#include <vector>

#include "command.h"

namespace tool {

void on_first_rank(libds::Comm& comm, const std::function<void()>& body) {
  const bool first = comm.rank() == 0;
  std::exception_ptr failure;
  if (first) {
    try {
      body();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }
  if (comm.size() > 1) {
    const std::vector<int32_t> own = {failure ? 1 : 0};
    libds::Tensor failed = libds::Tensor::from(own);
    comm.broadcast(failed, 0);
    if (!first && failed.item() != 0) throw Failure("rank 0 cannot begin: its message says why");
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tool
