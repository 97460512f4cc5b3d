// Keeps the promises that NCCL does not make: a thread looks after what is in flight, tells
// failures to all ranks and hears theirs, and finds out who did not come when a deadline has
// passed. It talks over a transport of its own, so that nothing waits for the program's own calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "comm/nccl/nccl_operation.h"

namespace ds::comm {

class NcclWatch {
 public:
  // All are called by the thread that watches; `ended` by others too.
  struct Hooks {
    std::function<void(const Error&)> failed;         // before the operations end
    std::function<void()> stop_gpu;                   // and after
    std::function<std::optional<Error>()> failure;    // in the background of NCCL
    std::function<void(const NcclOperation&)> ended;  // an operation went well
  };
  NcclWatch(std::shared_ptr<Group> group, std::unique_ptr<Transport> side, Hooks hooks);
  ~NcclWatch() { stop(); }

  void start();
  // Peers are told goodbye, unless something is in flight: that is a failure.
  void stop() noexcept;

  // This rank calls something now: gives it a number.
  void begin(Record& record) noexcept;
  // From now on a failure ends it. After one, at once.
  void add(const NcclOperationPtr& operation);
  // Lets go of what has ended, and of the memory that it used.
  void retire();
  // What is in flight.
  std::vector<NcclOperationPtr> in_flight() const;

  // The first failure counts; it ends the group on every rank, soon. Any thread; never waits.
  void fail(const Error& error, bool ask_who) noexcept;
  const std::atomic<bool>& failing() const { return failing_; }

 private:
  void work() noexcept;
  void listen();
  void look();
  void report_failure() noexcept;
  std::string ask_everybody(const std::string& blame);

  struct Flying {
    NcclOperationPtr operation;
    Clock::time_point deadline;
  };

  const std::shared_ptr<Group> group_;
  const std::unique_ptr<Transport> side_;
  const Hooks hooks_;
  std::vector<char> gone_;  // by rank: has said goodbye
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failing_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Flying> flying_;
  std::optional<Error> failure_;
  std::optional<Error> reported_;  // as every rank reports it
  bool ask_who_ = false;
  Record last_call_;
  std::thread thread_;
};

}  // namespace ds::comm
