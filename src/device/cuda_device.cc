// The CUDA device on the runtime API. Memory comes from cudaMalloc and is reused in the order of
// the default stream; every call runs with this GPU current and restores the caller's context.
#include "device/cuda_device.h"

#include "base/error.h"
#include "device/block_cache.h"
#include "device/caller_memory.h"
#include "device/cuda_event.h"
#include "device/cuda_graph.h"
#include "device/cuda_support.h"
#include "device/upload_queue.h"

namespace ds {
namespace {

using cuda::CudaEvent;
using cuda::EventPool;
using cuda::Place;

// cudaMalloc gives at least this; vector loads and TMA descriptors want no more than 128.
constexpr int64_t kAlignment = 256;

std::string cuda_name(int index) { return str_cat("cuda:", index); }

class CudaStream : public Stream {
 public:
  CudaStream(const Place& place, std::shared_ptr<EventPool> events)
      : place_(place), events_(std::move(events)) {
    cuda::check(
        cuda::call(place_,
                   [&] { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }),
        "creating a stream on ", cuda_name(place_.index));
  }
  CudaStream(const Place& place, std::shared_ptr<EventPool> events, cudaStream_t borrowed)
      : place_(place), events_(std::move(events)), owned_(false), stream_(borrowed) {}
  ~CudaStream() override {
    if (owned_) cuda::call(place_, [&] { return cudaStreamDestroy(stream_); });
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void* native() const noexcept override { return stream_; }
  void synchronize() override {
    cuda::check(cuda::call(place_, [&] { return cudaStreamSynchronize(stream_); }),
                "waiting for a stream on ", cuda_name(place_.index));
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(events_, stream_); }
  // The event may be of another GPU; events of other kinds of device must be ready.
  void wait(const Event& event) override {
    const auto* const other = dynamic_cast<const CudaEvent*>(&event);
    if (other == nullptr) {
      DS_CHECK(event.ready(), Code::kInvalidArgument, "a stream on ", cuda_name(place_.index),
               " cannot wait for unfinished work of another kind of device; synchronize the event");
      return;
    }
    cuda::check(
        cuda::call(place_, [&] { return cudaStreamWaitEvent(stream_, other->handle(), 0); }),
        "letting a stream on ", cuda_name(place_.index), " wait for an event");
  }
  cudaStream_t handle() const noexcept { return stream_; }
  int index() const noexcept { return place_.index; }

 private:
  const Place place_;
  const std::shared_ptr<EventPool> events_;
  const bool owned_ = true;
  cudaStream_t stream_ = nullptr;
};

class CudaBlocks : public BlockSource {
 public:
  CudaBlocks(const Place& place, const std::string& name, const CudaStream& stream)
      : place_(place), name_(name), stream_(stream) {}

  void* take(int64_t size) override {
    if (memory_) return memory_->take(size, kAlignment, place_.index);
    void* block = nullptr;
    const cudaError_t status =
        cuda::call(place_, [&] { return cudaMalloc(&block, static_cast<size_t>(size)); });
    if (status == cudaErrorMemoryAllocation) return nullptr;
    cuda::check(status, "allocating ", format_bytes(size), " on ", name_);
    return block;
  }
  // Queued work may still use the block.
  void give(void* block, int64_t size) noexcept override {
    cuda::call(place_, [&] {
      static_cast<void>(cudaStreamSynchronize(stream_.handle()));
      if (memory_) {
        memory_->give(block, size, place_.index);
        return cudaSuccess;
      }
      return cudaFree(block);
    });
  }
  std::string place() const override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    const cudaError_t status =
        cuda::call(place_, [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); });
    if (status != cudaSuccess) return name_;
    return str_cat(name_, ", where ", format_bytes(static_cast<int64_t>(free_bytes)), " of ",
                   format_bytes(static_cast<int64_t>(total_bytes)), " are free");
  }

 private:
  const Place place_;
  const std::string name_;
  const CudaStream& stream_;
  const std::shared_ptr<const CallerMemory> memory_ = caller_memory(DeviceKind::kCuda);
};

class CudaDeviceHere : public CudaDevice, public std::enable_shared_from_this<CudaDeviceHere> {
 public:
  CudaDeviceHere(const Place& place, std::string name, const CudaDeviceInfo& info,
                 const CudaDeviceOptions& options)
      : place_(place),
        name_(std::move(name)),
        processors_(info.multiprocessors),
        capability_(10 * info.compute_major + info.compute_minor),
        events_(std::make_shared<EventPool>(place)),
        stream_(place, events_),
        pinned_(cuda::make_pinned_memory(place, name_)),
        source_(place, name_, stream_),
        blocks_(
            *this, source_,
            {.cache = options.cache, .limit_bytes = options.limit_bytes, .alignment = kAlignment}),
        uploads_(*this, *pinned_) {
    account_.count_in(process_account(/*gpu=*/true));
  }

  DeviceKind kind() const noexcept override { return DeviceKind::kCuda; }
  int index() const noexcept override { return place_.index; }
  std::string describe() const override { return name_; }
  int processors() const noexcept override { return processors_; }
  int capability() const noexcept override { return capability_; }
  const std::shared_ptr<Device>& pinned() const noexcept override { return pinned_; }

  void* allocate(int64_t bytes, MemoryTag tag) override { return blocks_.allocate(bytes, tag); }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    blocks_.deallocate(pointer, bytes, tag);
  }
  void trim() noexcept override {
    uploads_.release_arrived();
    blocks_.trim();
  }
  int64_t reserved_bytes() const noexcept override { return blocks_.reserved_bytes(); }
  int64_t system_allocations() const noexcept override { return blocks_.system_allocations(); }

  Stream& default_stream() override { return stream_; }
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<CudaStream>(place_, events_);
  }
  std::unique_ptr<Stream> borrow_stream(void* native) override {
    return std::make_unique<CudaStream>(place_, events_, static_cast<cudaStream_t>(native));
  }

  void copy(void* target, const void* source, int64_t bytes, Stream& stream) override {
    const cudaStream_t on = stream_handle(stream, bytes, "copy");
    if (bytes == 0) return;
    const auto size = static_cast<size_t>(bytes);
    cuda::check(
        cuda::call(place_,
                   [&] { return cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, on); }),
        "copying ", format_bytes(bytes), " on ", name_);
  }
  void upload(void* target, const void* source, int64_t bytes) override {
    DS_CHECK(bytes >= 0, Code::kInvalidArgument, "cannot upload ", bytes, " bytes to ", name_);
    DS_CHECK(!blocks_.uses_pool(), Code::kUnsupported, "bytes of the host that are uploaded to ",
             name_, " cannot be recorded: they may differ at each launch");
    uploads_.upload(target, source, bytes);
  }
  std::shared_ptr<GraphMemory> make_graph_memory() override {
    return std::make_shared<Recorded>(shared_from_this());
  }
  std::unique_ptr<DeviceGraph> record(const std::shared_ptr<GraphMemory>& memory,
                                      const std::function<void()>& body) override {
    auto* const recorded = dynamic_cast<Recorded*>(memory.get());
    DS_CHECK(recorded != nullptr && recorded->device.get() == this, Code::kInvalidArgument,
             "work on ", name_, " cannot be recorded into memory of another device");
    blocks_.begin_pool(recorded->pool);
    events_->set_capturing(true);
    struct End {
      CudaDeviceHere& device;
      ~End() {
        device.events_->set_capturing(false);
        device.blocks_.end_pool();
      }
    } const end{*this};
    return cuda::record_graph(place_, name_, stream_.handle(), memory, body);
  }
  void copy_rows(void* target, int64_t target_pitch, const void* source, int64_t source_pitch,
                 int64_t width, int64_t rows, Stream& stream) override {
    const cudaStream_t on = stream_handle(stream, width, "copy rows of");
    DS_CHECK(rows >= 0 && target_pitch >= width && source_pitch >= width, Code::kInvalidArgument,
             "cannot copy ", rows, " rows of ", width, " bytes that begin every ", source_pitch,
             " and ", target_pitch, " bytes");
    if (width == 0 || rows == 0) return;
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    cuda::check(cuda::call(place_,
                           [&] {
                             return cudaMemcpy2DAsync(target, size(target_pitch), source,
                                                      size(source_pitch), size(width), size(rows),
                                                      cudaMemcpyDefault, on);
                           }),
                "copying ", rows, " rows of ", format_bytes(width), " on ", name_);
  }
  void clear(void* target, int64_t bytes, Stream& stream) override {
    const cudaStream_t on = stream_handle(stream, bytes, "clear");
    if (bytes == 0) return;
    const auto size = static_cast<size_t>(bytes);
    cuda::check(cuda::call(place_, [&] { return cudaMemsetAsync(target, 0, size, on); }),
                "clearing ", format_bytes(bytes), " on ", name_);
  }

 private:
  struct Recorded : GraphMemory {
    explicit Recorded(std::shared_ptr<CudaDeviceHere> of) : device(std::move(of)) {}
    ~Recorded() override { device->blocks_.give_up(pool); }
    int64_t bytes() const override { return pool.bytes.load(); }

    const std::shared_ptr<CudaDeviceHere> device;
    BlockCache::Pool pool;
  };

  cudaStream_t stream_handle(const Stream& stream, int64_t bytes, const char* what) const {
    DS_CHECK(bytes >= 0, Code::kInvalidArgument, "cannot ", what, " ", bytes, " bytes on ", name_);
    const auto* const own = dynamic_cast<const CudaStream*>(&stream);
    DS_CHECK(own != nullptr && own->index() == place_.index, Code::kInvalidArgument, "cannot ",
             what, " on ", name_, " with a stream of another device");
    return own->handle();
  }

  void* enter() override {
    CUcontext before = nullptr;
    cuda::check(cuda::enter(place_, &before), "making ", name_, " current");
    return before;
  }
  void leave(void* before) noexcept override { place_.set_context(static_cast<CUcontext>(before)); }

  const Place place_;
  const std::string name_;
  const int processors_, capability_;
  const std::shared_ptr<EventPool> events_;
  CudaStream stream_;
  const std::shared_ptr<Device> pinned_;
  CudaBlocks source_;
  BlockCache blocks_;    // after its source and its stream
  UploadQueue uploads_;  // after all that it uses
};

}  // namespace

std::shared_ptr<CudaDevice> make_cuda_device(int index, const CudaDeviceOptions& options) {
  std::string why_none;
  const std::vector<CudaDeviceInfo> devices = list_cuda_devices(&why_none);
  DS_CHECK(!devices.empty(), Code::kUnsupported, cuda_name(index), " cannot be used: ", why_none);
  const int count = static_cast<int>(devices.size());
  DS_CHECK(index >= 0 && index < count, Code::kInvalidArgument, cuda_name(index),
           " does not exist: this process sees ", count, count == 1 ? " GPU" : " GPUs",
           ", counted from 0");
  const CudaDeviceInfo& info = devices[static_cast<size_t>(index)];
  return std::make_shared<CudaDeviceHere>(
      cuda::find_place(index), str_cat(cuda_name(index), " (", info.name, ")"), info, options);
}

}  // namespace ds
