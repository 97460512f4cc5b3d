// Making groups, records, shared tensors, streams and failures over shared memory.
#include "comm/shm/shm_transport.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ds::comm {

std::shared_ptr<Segment> share_segment(int self, int leader, bool member, size_t bytes,
                                       SegmentSource& source, const GatherTexts& gather) {
  std::shared_ptr<Segment> segment;
  std::string ticket, failure;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (const std::exception& error) {
      failure = *error.what() == '\0' ? "unknown error" : error.what();
    }
  };
  if (self == leader) attempt([&] { segment = source.create(bytes, ticket); });
  const std::vector<std::string> tickets = gather(failure.empty() ? ticket : std::string());
  if (member && self != leader) {
    attempt([&] {
      const std::string& theirs = tickets[static_cast<size_t>(leader)];
      // An empty ticket: the leader reports its failure in the second round.
      if (!theirs.empty()) segment = source.open(theirs, bytes);
    });
  }
  const std::vector<std::string> failures = gather(failure.substr(0, 1000));
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    DS_CHECK(failures[rank].empty(), Code::kComm, "rank ", rank, ": ", peer_text(failures[rank]));
  }
  if (segment) segment->close_file();
  return segment;
}

std::unique_ptr<ShmTransport> ShmTransport::make(int rank, int size,
                                                 std::shared_ptr<SegmentSource> source,
                                                 std::shared_ptr<RegionTable> table,
                                                 std::vector<int> identity,
                                                 const GatherTexts& gather) {
  std::unique_ptr<ShmTransport> transport;
  std::exception_ptr failure;
  try {
    auto control = share_segment(rank, 0, true, ControlLayout(size).bytes, *source, gather);
    transport.reset(new ShmTransport(rank, size, std::move(control), std::move(source),
                                     std::move(table), std::move(identity)));
  } catch (const Error&) {
    failure = std::current_exception();
  }
  gather("");  // every rank has written its process
  if (failure) std::rethrow_exception(failure);
  transport->meet();
  return transport;
}

std::vector<std::unique_ptr<ShmTransport>> ShmTransport::make_local(int size) {
  const std::shared_ptr<SegmentSource> source = make_thread_segments();
  std::string ticket;
  const auto control = source->create(ControlLayout(size).bytes, ticket);
  std::vector<int> identity;
  for (int rank = 0; rank < size; ++rank) identity.push_back(rank);
  std::vector<std::unique_ptr<ShmTransport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.emplace_back(new ShmTransport(rank, size, control, source,
                                             std::make_shared<RegionTable>(rank), identity));
  }
  for (const auto& transport : transports) transport->meet();
  return transports;
}

ShmTransport::ShmTransport(int rank, int size, std::shared_ptr<Segment> control,
                           std::shared_ptr<SegmentSource> source,
                           std::shared_ptr<RegionTable> table, std::vector<int> identity)
    : Transport(rank, size),
      control_(std::move(control), size),
      source_(std::move(source)),
      table_(std::move(table)),
      identity_(std::move(identity)),
      spin_wait_(size),
      process_files_(static_cast<size_t>(size), -1) {
  control_.of(rank).process.store(static_cast<int32_t>(::getpid()));
  announce(Record(), false);
}

void ShmTransport::meet() {
  for (int peer = 0; peer < size(); ++peer) {
    const int32_t process = control_.of(peer).process.load();
    if (process == static_cast<int32_t>(::getpid())) continue;
    process_files_[static_cast<size_t>(peer)] =
        static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  }
}

ShmTransport::~ShmTransport() {
  RankControl& self = control_.of(rank());
  self.left.store(1);
  futex_wake(self.step);
  for (int peer = 0; peer < size(); ++peer) futex_wake(control_.of(peer).bell);
  for (const int file : process_files_) {
    if (file >= 0) ::close(file);
  }
}

void ShmTransport::exchange(const Record& mine, std::span<const std::byte> payload,
                            const Watch& watch) {
  ++exchanges_;
  RankControl& self = control_.of(rank());
  Record& record = self.records[exchanges_ & 1];
  record = mine;
  record.payload = static_cast<int32_t>(payload.size());
  if (!payload.empty()) {
    std::memcpy(self.payloads[exchanges_ & 1], payload.data(), payload.size());
  }
  sync(watch);
}

const Record& ShmTransport::record(int rank) const {
  return control_.of(rank).records[exchanges_ & 1];
}

const std::byte* ShmTransport::payload(int rank) const {
  return control_.of(rank).payloads[exchanges_ & 1];
}

Place ShmTransport::locate(const void* data, int64_t bytes) const {
  return table_->locate(data, static_cast<size_t>(bytes), identity_);
}

Tensor ShmTransport::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                   const Shape& shape, MemoryTag tag, const GatherTexts& gather) {
  const int64_t bytes = shape.elements() * dtype_size(dtype);
  if (bytes == 0) return Tensor::empty(device, dtype, shape, tag);
  const auto size_bytes = static_cast<size_t>(bytes);
  auto segment = share_segment(
      rank(), 0, true, RegionTable::segment_bytes(size_bytes, identity_.size()), *source_, gather);
  const RegionTable::Slice slice = table_->add(std::move(segment), size_bytes, identity_);
  device->account().add(tag, bytes);
  auto storage =
      std::make_shared<Storage>(DeviceKind::kCpu, device->index(), slice.data, bytes, false,
                                [table = table_, device, tag, bytes, region = slice.region] {
                                  table->release(region);
                                  device->account().remove(tag, bytes);
                                });
  return Tensor(std::move(storage), 0, dtype, shape);
}

std::unique_ptr<Transport> ShmTransport::split(const std::vector<int>& members,
                                               const GatherTexts& gather, const Watch&) {
  const auto self = std::ranges::find(members, rank());
  const bool member = self != members.end();
  const int leader = member ? members.front() : rank() + size();  // nobody
  auto control =
      share_segment(rank(), leader, member,
                    ControlLayout(static_cast<int>(std::ssize(members))).bytes, *source_, gather);
  std::unique_ptr<ShmTransport> transport;
  if (member) {
    std::vector<int> identity;
    for (const int rank : members) identity.push_back(identity_[static_cast<size_t>(rank)]);
    transport.reset(new ShmTransport(static_cast<int>(self - members.begin()),
                                     static_cast<int>(std::ssize(members)), std::move(control),
                                     source_, table_, std::move(identity)));
  }
  gather("");
  if (transport) transport->meet();
  return transport;
}

// ---- streams ----

int64_t ShmTransport::write_some(int peer, const std::byte* data, int64_t bytes) {
  Pipe& stream = control_.pipe(rank(), peer);
  const uint64_t written = stream.written.load(std::memory_order_relaxed);
  const uint64_t free = kPipeBytes - (written - stream.read.load(std::memory_order_acquire));
  const uint64_t n = std::min<uint64_t>(free, static_cast<uint64_t>(bytes));
  if (n == 0) return 0;
  const uint64_t at = written % kPipeBytes, first = std::min<uint64_t>(n, kPipeBytes - at);
  std::memcpy(stream.data + at, data, first);
  std::memcpy(stream.data, data + first, n - first);
  stream.written.store(written + n, std::memory_order_release);
  control_.of(peer).bell.fetch_add(1);
  if (control_.of(peer).bell_sleepers.load() != 0) futex_wake(control_.of(peer).bell);
  return static_cast<int64_t>(n);
}

int64_t ShmTransport::read_some(int peer, std::byte* data, int64_t bytes) {
  Pipe& stream = control_.pipe(peer, rank());
  const uint64_t read = stream.read.load(std::memory_order_relaxed);
  const uint64_t there = stream.written.load(std::memory_order_acquire) - read;
  const uint64_t n = std::min<uint64_t>(there, static_cast<uint64_t>(bytes));
  if (n == 0) return 0;
  const uint64_t at = read % kPipeBytes, first = std::min<uint64_t>(n, kPipeBytes - at);
  std::memcpy(data, stream.data + at, first);
  std::memcpy(data + first, stream.data, n - first);
  stream.read.store(read + n, std::memory_order_release);
  control_.of(peer).bell.fetch_add(1);
  if (control_.of(peer).bell_sleepers.load() != 0) futex_wake(control_.of(peer).bell);
  return static_cast<int64_t>(n);
}

void ShmTransport::wake() noexcept {
  control_.of(rank()).bell.fetch_add(1);
  futex_wake(control_.of(rank()).bell);
}

// ---- failures ----

void ShmTransport::raise(Code code, std::string_view text) noexcept {
  ControlHeader& head = control_.header();
  uint32_t expected = ControlHeader::kNo;
  if (head.raised.compare_exchange_strong(expected, ControlHeader::kWriting)) {
    head.raised_code = static_cast<int32_t>(code);
    head.raised_by = rank();
    const size_t n = std::min(text.size(), sizeof(head.raised_text) - 1);
    std::memcpy(head.raised_text, text.data(), n);
    head.raised_text[n] = '\0';
    head.raised.store(ControlHeader::kYes);
  }
  for (int peer = 0; peer < size(); ++peer) {
    futex_wake(control_.of(peer).step);
    futex_wake(control_.of(peer).bell);
  }
}

void ShmTransport::check_raised() const {
  const ControlHeader& head = control_.header();
  if (head.raised.load() != ControlHeader::kYes) return;
  const std::string text = peer_text(
      std::string_view(head.raised_text, ::strnlen(head.raised_text, sizeof(head.raised_text))));
  const auto code = static_cast<Code>(head.raised_code);
  if (head.raised_by == rank()) throw Error(code, text);
  if (code == Code::kAborted) {
    fail(code, "rank ", head.raised_by, " aborted the group", text.empty() ? "" : ": ", text);
  }
  fail(code, text, " (found by rank ", head.raised_by, ")");
}

}  // namespace ds::comm
