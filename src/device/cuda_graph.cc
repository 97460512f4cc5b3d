#include "device/cuda_graph.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace ds::cuda {
namespace {

class CudaGraph : public DeviceGraph {
 public:
  CudaGraph(const Place& place, std::string name, cudaStream_t stream,
            std::shared_ptr<GraphMemory> memory, cudaGraph_t graph)
      : place_(place), name_(std::move(name)), stream_(stream), memory_(std::move(memory)) {
    const cudaError_t status = call(place_, [&] {
      const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes_);
      return counted != cudaSuccess ? counted : cudaGraphInstantiate(&executable_, graph, 0);
    });
    check(status, "preparing recorded work for ", name_);
  }
  // Launches that are under way end first.
  ~CudaGraph() override {
    call(place_, [&] { return cudaGraphExecDestroy(executable_); });
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch() override {
    check(call(place_, [&] { return cudaGraphLaunch(executable_, stream_); }),
          "launching recorded work on ", name_);
  }
  int64_t nodes() const noexcept override { return static_cast<int64_t>(nodes_); }

 private:
  const Place place_;
  const std::string name_;
  const cudaStream_t stream_;
  const std::shared_ptr<GraphMemory> memory_;
  cudaGraphExec_t executable_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace

// In the relaxed mode `body` may ask for memory.
std::unique_ptr<DeviceGraph> record_graph(const Place& place, const std::string& name,
                                          cudaStream_t stream, std::shared_ptr<GraphMemory> memory,
                                          const std::function<void()>& body) {
  check(call(place, [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed); }),
        "beginning to record work on ", name);
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = call(place, [&] { return cudaStreamEndCapture(stream, &graph); });
  struct Recorded {
    const Place& place;
    cudaGraph_t graph;
    ~Recorded() {
      if (graph != nullptr) call(place, [&] { return cudaGraphDestroy(graph); });
    }
  } const recorded{place, graph};
  if (failure) std::rethrow_exception(failure);
  check(status, "recording work on ", name);
  return std::make_unique<CudaGraph>(place, name, stream, std::move(memory), graph);
}

}  // namespace ds::cuda
