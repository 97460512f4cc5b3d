// Fuzzes what a rank that was let in sends to another one: records, payloads, blocks, messages and
// failures, for every collective, in a rank that calls it and in one that has joined.
#include "comm/group.h"
#include "comm/stream_transport.h"
#include "fuzz/fuzz_support.h"

namespace {

using namespace ds;  // NOLINT: a target is about one part
using fuzz::claim;

constexpr int kRanks = 2;

// The other rank is the input: two channels one after the other, and what is left for the third.
class InputTransport : public comm::StreamTransport {
 public:
  explicit InputTransport(fuzz::Input& input) : StreamTransport(0, kRanks) {
    const size_t control = input.take<uint8_t>(), stream = input.take<uint16_t>();
    channels_[comm::kControl] = input.take_text(control);
    channels_[comm::kStream] = input.take_text(stream);
    channels_[comm::kData] = input.rest();
  }
  const char* name() const noexcept override { return "input"; }
  void wake() noexcept override {}
  std::unique_ptr<Transport> split(const std::vector<int>&, const comm::GatherTexts&,
                                   const comm::Watch&) override {
    return nullptr;
  }

 protected:
  int64_t send_some(comm::Channel, int, const void*, int64_t bytes) override { return bytes; }
  int64_t receive_some(comm::Channel channel, int, void* data, int64_t bytes) override {
    std::string_view& from = channels_[channel];
    if (from.empty()) return channel == comm::kControl ? 0 : -1;
    // Not always all that is wanted at once.
    const size_t n = std::min({from.size(), static_cast<size_t>(bytes), size_t{1000}});
    std::memcpy(data, from.data(), n);
    from.remove_prefix(n);
    return static_cast<int64_t>(n);
  }
  bool wait_for_links(std::span<const int>, std::span<const int>, comm::Channel,
                      comm::Clock::time_point) override {
    return true;
  }

 private:
  std::string_view channels_[comm::kChannels];
};

Tensor floats(int64_t count) {
  static const std::shared_ptr<Device> device = make_cpu_device();
  return Tensor::zeros(device, DType::kFloat32, {count}, MemoryTag::kCommunication);
}

void call(Communicator& group, uint8_t which, int64_t n) {
  const int root = which & 1;
  const std::vector<int64_t> counts = {n, n + 1};
  switch (which / 2 % 12) {
    case 0:
      return group.all_reduce(floats(n), ReduceOp::kSum)->wait();
    case 1:
      return group.reduce(floats(n), ReduceOp::kMax, root)->wait();
    case 2:
      return group.reduce_scatter(floats(n), floats(kRanks * n), ReduceOp::kSum)->wait();
    case 3:
      return group.all_gather(floats(kRanks * n), floats(n))->wait();
    case 4:
      return group.all_gather_v(floats(2 * n + 1), floats(n), counts)->wait();
    case 5:
      return group.broadcast(floats(n), root)->wait();
    case 6:
      return group.all_to_all(floats(kRanks * n), floats(kRanks * n))->wait();
    case 7:
      return group.all_to_all_v(floats(2 * n + 1), floats(2 * n + 1), counts, counts)->wait();
    case 8:
      return group.gather(floats(kRanks * n), floats(n), root)->wait();
    case 9:
      return group.scatter(floats(n), floats(kRanks * n), root)->wait();
    case 10:
      return group.recv(floats(n), 1, which & 1)->wait();
    default:
      group.barrier();
      group.join();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::be_quiet();
  fuzz::Input input(data, size);
  const auto which = input.take<uint8_t>();
  // Some that travel with the record, and some that do not.
  const int64_t n = input.take<bool>() ? 1100 : 1 + input.take<uint8_t>();
  CommOptions options;
  options.deadline = std::chrono::seconds(20);
  options.checked = input.take<bool>();
  comm::Group group(std::make_unique<InputTransport>(input), options, {0, 0});
  fuzz::accepts([&] {
    for (int i = 0; i < 4; ++i) call(group, which, n);
  });
  return 0;
}
