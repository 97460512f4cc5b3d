#include "first_rank.h"

#include <cstdint>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include "ds.hpp"
#include "failure.h"

namespace tool {

void on_first_rank(libds::Comm& comm, const std::function<void()>& body) {
  const bool first = comm.rank() == 0;
  std::exception_ptr failure;
  std::string message;  // of the failure
  if (first) {
    try {
      body();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      message = error.what();
      if (message.empty()) message = "an error without a message";
    }
  }
  // The others repeat the message: one of them may end before rank 0 has printed it.
  if (comm.size() > 1) {
    libds::Tensor size = libds::Tensor::from(std::vector<int64_t>{std::ssize(message)});
    comm.broadcast(size, 0);
    const auto bytes = static_cast<int64_t>(size.item());
    if (bytes > 0) {
      libds::Tensor text(DS_UINT8, {bytes});
      if (first) text.write(reinterpret_cast<const uint8_t*>(message.data()), bytes);
      comm.broadcast(text, 0);
      const std::vector<uint8_t> told = text.to_vector<uint8_t>();
      if (!first) throw Failure("rank 0 cannot begin: " + std::string(told.begin(), told.end()));
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tool
