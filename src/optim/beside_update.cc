#include "optim/beside_update.h"

#include <cmath>
#include <system_error>
#include <utility>

namespace ds::optim {

int threads_beside(int cores, double share) {
  const int left = static_cast<int>(std::ceil(share * cores));
  return left <= 0 || left >= cores ? cores : cores - left;
}

BesideUpdate::~BesideUpdate() { join(); }

void BesideUpdate::start(std::function<void(ThreadPool&)> work) {
  wait();
  work_ = std::move(work);
  const auto run = [this]() noexcept {
    try {
      work_(pool_);
    } catch (...) {
      error_ = std::current_exception();
    }
    work_ = nullptr;
  };
  try {
    thread_ = std::thread(run);
  } catch (const std::system_error&) {  // no thread is to be had: now, then
    run();
  }
}

void BesideUpdate::join() noexcept {
  if (thread_.joinable()) thread_.join();
}

void BesideUpdate::wait() {
  join();
  if (error_) std::rethrow_exception(error_);
}

void BesideUpdate::forget() noexcept {
  join();
  error_ = nullptr;
}

}  // namespace ds::optim
