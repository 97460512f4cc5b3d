#include "comm/nccl/nccl_channel.h"

#include "base/text.h"
#include "comm/nccl/nccl_backoff.h"

namespace ds::comm {

void NcclLimit::fail_late() const {
  throw NcclLate(Code::kComm,
                 str_cat(what, ", was not over within ",
                         format_number(static_cast<double>(allowed.count()) / 1000), " s"));
}

NcclChannel::NcclChannel(std::shared_ptr<const nccl::Library> library,
                         std::shared_ptr<CudaDevice> device, std::shared_ptr<Stream> stream,
                         const NcclMember& member, const std::atomic<bool>& stop,
                         const NcclLimit& limit)
    : library_(std::move(library)),
      device_(std::move(device)),
      stream_(std::move(stream)),
      stop_(stop) {
  try {
    begin(member, limit);
  } catch (...) {
    end();
    throw;
  }
}

NcclChannel::~NcclChannel() { end(); }

void NcclChannel::begin(const NcclMember& member, const NcclLimit& limit) {
  const DeviceScope scope(*device_);
  nccl::Config config;
  check(library_->init_rank(&comm_, member.size, member.id, member.rank, &config),
        "ncclCommInitRankConfig");
  wait_until_ready("ncclCommInitRankConfig", limit);
}

void NcclChannel::check(nccl::Result result, const char* call) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  const char* const detail = library_->last_error(comm_);
  const bool told = detail != nullptr && *detail != '\0';
  fail(Code::kComm, call, " failed on ", device_->describe(), ": ", library_->error_string(result),
       told ? ": " : "", told ? printable(detail, 500) : "");
}

void NcclChannel::wait_until_ready(const char* call, const NcclLimit& limit) const {
  for (const Backoff backoff;; backoff.rest()) {
    nccl::Result state = nccl::kSuccess;
    check(library_->get_async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, call);
    if (state == nccl::kSuccess) return;
    if (stop_) fail(Code::kComm, call, " was stopped");  // whoever stopped it has said why
    if (Clock::now() > limit.deadline) limit.fail_late();
  }
}

void NcclChannel::launch(const std::function<void()>& calls, const NcclLimit& limit) {
  const DeviceScope scope(*device_);
  check(library_->group_start(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    static_cast<void>(library_->group_end());  // the group is the thread's: it must not stay open
    throw;
  }
  check(library_->group_end(), "ncclGroupEnd");
  wait_until_ready("ncclGroupEnd", limit);
}

std::optional<Error> NcclChannel::failure() const {
  try {
    if (comm_ == nullptr) return {};
    nccl::Result state = nccl::kSuccess;
    check(library_->get_async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, "communication");
  } catch (const Error& error) {
    return error;
  }
  return {};
}

void NcclChannel::finalize(const NcclLimit& limit) {
  const DeviceScope scope(*device_);
  check(library_->finalize(comm_), "ncclCommFinalize");
  wait_until_ready("ncclCommFinalize", limit);
  const nccl::Comm comm = std::exchange(comm_, nullptr);
  check(library_->destroy(comm), "ncclCommDestroy");
}

void NcclChannel::end() noexcept {
  if (comm_ == nullptr) return;
  try {
    const DeviceScope scope(*device_);
    const nccl::Comm comm = std::exchange(comm_, nullptr);
    static_cast<void>(library_->abort(comm));
    device_->default_stream().wait(*stream_->record());
  } catch (const std::exception&) {  // the GPU is lost, and with it what was queued
  }
}

}  // namespace ds::comm
