#include "comm/nccl/nccl_watch.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

namespace ds::comm {
namespace {

constexpr std::byte kGoodbye{'g'};
constexpr std::byte kAsk{'a'};  // who did not come?
// How long ranks have to say what they called last.
constexpr std::chrono::milliseconds kAnswer{3000};
constexpr std::chrono::milliseconds kTick{10};
// So long between two looks means that the process was stopped: it does not count.
constexpr std::chrono::milliseconds kStopped{1000};

Record record_of(Collective kind, const char* label) {
  Record record;
  record.kind = kind;
  std::strncpy(record.label, label, Record::kLabel - 1);
  return record;
}

}  // namespace

NcclWatch::NcclWatch(std::shared_ptr<Group> group, std::unique_ptr<Transport> side, Hooks hooks)
    : group_(std::move(group)),
      side_(std::move(side)),
      hooks_(std::move(hooks)),
      gone_(static_cast<size_t>(side_->size()), 0) {
  gone_[static_cast<size_t>(side_->rank())] = 1;
}

void NcclWatch::start() {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    ds::fail(Code::kOutOfMemory, "no thread to watch over NCCL: ", error.what());
  }
}

void NcclWatch::stop() noexcept {
  if (!thread_.joinable()) return;
  retire();
  if (!in_flight().empty()) {
    fail(Error(Code::kComm, str_cat("rank ", side_->rank(),
                                    " destroyed its communicator while "
                                    "operations were in flight")),
         false);
  }
  stopping_ = true;
  changed_.notify_all();
  side_->wake();
  thread_.join();
}

// ---- what the communicator tells ----

void NcclWatch::begin(Record& record) noexcept {
  const std::lock_guard lock(mutex_);
  record.sequence = last_call_.sequence + 1;
  last_call_ = record;
  side_->announce(record, true);
}

void NcclWatch::add(const NcclOperationPtr& operation) {
  const std::lock_guard lock(mutex_);
  if (reported_) return operation->finish(*reported_);
  flying_.push_back({operation, operation->limit.deadline});
}

std::vector<NcclOperationPtr> NcclWatch::in_flight() const {
  const std::lock_guard lock(mutex_);
  std::vector<NcclOperationPtr> all;
  for (const Flying& flying : flying_) all.push_back(flying.operation);
  return all;
}

void NcclWatch::retire() {
  for (const NcclOperationPtr& operation : in_flight()) {
    try {
      if (!operation->passed()) continue;
    } catch (const Error& error) {  // the GPU is lost
      fail(error, false);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(flying_, operation, &Flying::operation);
      if (found == flying_.end()) continue;  // another thread was here
      flying_.erase(found);
    }
    hooks_.ended(*operation);
    operation->finish({});
    operation->release();
  }
}

void NcclWatch::fail(const Error& error, bool ask_who) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    ask_who_ = ask_who;
  } catch (...) {  // no memory for the text
  }
  failing_ = true;
  changed_.notify_all();
  side_->wake();
}

// ---- the thread ----

void NcclWatch::work() noexcept {
  auto looked = Clock::now();
  while (!failing_ && !stopping_) {
    try {
      listen();
      group_->check_raised();
      const auto took = Clock::now() - std::exchange(looked, Clock::now());
      if (took > kStopped) {
        const std::lock_guard lock(mutex_);
        for (Flying& flying : flying_) flying.deadline += took;
      }
      look();
    } catch (const NcclLate& error) {
      fail(error, true);
    } catch (const Error& error) {
      fail(error, false);
    } catch (const std::exception& error) {
      fail(Error(Code::kComm, error.what()), false);
    }
  }
  if (failing_) {
    report_failure();
    return;
  }
  for (int peer = 0; peer < side_->size(); ++peer) {
    if (gone_[static_cast<size_t>(peer)]) continue;
    try {
      side_->write_some(peer, &kGoodbye, 1);
    } catch (const Error&) {  // it has left already
    }
  }
}

// Waits a little, and hears who leaves, who asks and what was raised.
void NcclWatch::listen() {
  std::vector<int> here;
  for (int peer = 0; peer < side_->size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (gone_[i]) continue;
    side_->check_raised();
    std::byte said{};
    if (side_->read_some(peer, &said, 1) == 1) {
      if (said == kAsk) throw NcclLate(Code::kComm, "");
      gone_[i] = 1;
    } else {
      here.push_back(peer);
    }
  }
  if (!here.empty()) {
    const Record record = record_of(Collective::kRecv, "watch over NCCL");
    Deadline deadline = Deadline::in(std::chrono::hours(24));
    side_->wait_for_streams(here, {record, deadline, kAnswer});
  }
  std::unique_lock lock(mutex_);
  if (here.empty()) {
    changed_.wait_for(lock, kTick, [&] { return failing_ || stopping_; });
  }
}

void NcclWatch::look() {
  retire();
  {
    const std::lock_guard lock(mutex_);
    for (const Flying& flying : flying_) {
      if (Clock::now() > flying.deadline) flying.operation->limit.fail_late();
    }
  }
  if (const auto failure = hooks_.failure()) throw Error(*failure);
}

// Every rank says what it called last, and gets the same text: the first complaint and who is late.
std::string NcclWatch::ask_everybody(const std::string& blame) {
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    mine = str_cat(last_call_.sequence, "\n", describe(last_call_), "\n", blame.substr(0, 1200));
  }
  for (int peer = 0; peer < side_->size(); ++peer) {
    if (!gone_[static_cast<size_t>(peer)]) side_->write_some(peer, &kAsk, 1);
  }
  const Record record = record_of(Collective::kBarrier, "who is late");
  Deadline deadline = Deadline::in(kAnswer);
  side_->exchange(record, std::as_bytes(std::span(mine)), {record, deadline, kAnswer});
  std::vector<uint64_t> numbers;
  std::vector<std::string> calls;
  std::string complaint;
  for (int peer = 0; peer < side_->size(); ++peer) {
    std::istringstream lines(peer_text({reinterpret_cast<const char*>(side_->payload(peer)),
                                        static_cast<size_t>(side_->record(peer).payload)}));
    std::string number, call, blamed;
    std::getline(lines, number);
    std::getline(lines, call);
    std::getline(lines, blamed);
    numbers.push_back(std::stoull(number));
    calls.push_back(call);
    if (complaint.empty()) complaint = blamed;
  }
  std::vector<int> late;
  const uint64_t most = std::ranges::max(numbers);
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    if (numbers[rank] < most) late.push_back(static_cast<int>(rank));
  }
  std::string text = complaint + "; ";
  text += late.empty() ? std::string("every rank called operation ")
                       : str_cat(rank_list(late), " did not call operation ");
  text +=
      str_cat(most, late.empty() ? ", so GPUs or the network are stuck, or the calls differ" : "");
  constexpr size_t kMost = 16;
  for (size_t rank = 0; rank < std::min(calls.size(), kMost); ++rank) {
    text += str_cat("; rank ", rank, " called ",
                    numbers[rank] == 0 ? std::string("nothing")
                                       : str_cat("operation ", numbers[rank], ", ", calls[rank]));
  }
  return text;
}

void NcclWatch::report_failure() noexcept {
  std::optional<Error> failure;
  bool ask = false;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
    ask = ask_who_;
  }
  if (!failure)
    failure.emplace(Code::kComm, "communication failed, and there was no memory to say why");
  if (ask) {
    try {
      failure.emplace(Code::kComm, ask_everybody(failure->message()));
    } catch (const std::exception& error) {
      const char* const join = failure->message().empty() ? "" : "; ";
      failure.emplace(Code::kComm, str_cat(failure->message(), join, error.what()));
    }
  }
  const Code code = failure->code() == Code::kAborted ? Code::kAborted : Code::kComm;
  side_->raise(code, failure->message());
  group_->fail_with(Error(code, failure->message()));
  const Error error(code, failure->message());
  hooks_.failed(error);
  std::deque<Flying> left;
  {
    const std::lock_guard lock(mutex_);
    reported_ = error;
    left.swap(flying_);
  }
  for (const Flying& flying : left) flying.operation->finish(error);
  hooks_.stop_gpu();
  // Only now nothing uses their memory any more.
  for (const auto& [operation, deadline] : left) operation->release();
}

}  // namespace ds::comm
