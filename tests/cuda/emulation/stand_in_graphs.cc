// Recorded work: captures of streams, graphs and their launches.
#include <utility>

#include "cuda/emulation/stand_in_world.h"

namespace ds::testing::stand_in {

cudaError_t invalidate_capture(cudaStream_t stream, cudaError_t status) {
  stream->capture->valid = false;
  return done(status);
}

bool invalidate_captures(int gpu, const char* call) {
  bool any = false;
  for (const cudaStream_t stream : world().streams) {
    if (stream->gpu != gpu || stream->capture == nullptr) continue;
    stream->capture->valid = false;
    any = true;
  }
  if (any) violate(std::string(call) + " while a stream records work");
  return any;
}

cudaError_t submit(cudaStream_t stream, Work work) {
  if (stream->capture == nullptr) {
    stream->queue->work.push_back(std::move(work));
    return cudaSuccess;
  }
  if (!stream->capture->valid) return done(cudaErrorStreamCaptureInvalidated);
  if (work.ready)
    return invalidate_capture(stream);  // the stand-in records no work that waits for others
  stream->capture->nodes.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace ds::testing::stand_in

using namespace ds::testing::stand_in;  // NOLINT: the calls are the stand-in's

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  STAND_IN_BEGIN(cudaStreamBeginCapture);
  STAND_IN_KNOWN(streams, stream);
  if (stream->capture != nullptr) return invalidate_capture(stream);
  stream->capture = std::make_unique<Capture>();
  stream->capture->relaxed = mode == cudaStreamCaptureModeRelaxed;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  STAND_IN_BEGIN(cudaStreamEndCapture);
  STAND_IN_KNOWN(streams, stream);
  *graph = nullptr;
  if (stream->capture == nullptr) return done(cudaErrorInvalidValue);
  if (!stream->capture->relaxed && stream->capture->thread != std::this_thread::get_id()) {
    return done(cudaErrorStreamCaptureWrongThread);
  }
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (!capture->valid) return done(cudaErrorStreamCaptureInvalidated);
  *graph = *world().graphs.insert(new CUgraph_st{std::move(capture->nodes)}).first;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  STAND_IN_BEGIN(cudaGraphDestroy);
  STAND_IN_KNOWN(graphs, graph);
  world().graphs.erase(graph);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  STAND_IN_BEGIN(cudaGraphGetNodes);
  STAND_IN_KNOWN(graphs, graph);
  if (nodes != nullptr) return done(cudaErrorInvalidValue);  // the stand-in only counts them
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  STAND_IN_BEGIN(cudaGraphInstantiate);
  STAND_IN_KNOWN(graphs, graph);
  *executable = *world().executables.insert(new CUgraphExec_st{gpu, graph->nodes}).first;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  STAND_IN_BEGIN(cudaGraphExecDestroy);
  STAND_IN_KNOWN(executables, executable);
  world().executables.erase(executable);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  STAND_IN_BEGIN(cudaGraphLaunch);
  STAND_IN_KNOWN(executables, executable);
  STAND_IN_KNOWN(streams, stream);
  if (executable->gpu != stream->gpu) return done(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr)
    return invalidate_capture(stream);  // the stand-in nests no graphs
  for (const Work& node : executable->nodes) stream->queue->work.push_back(node);
  ++world().launches;
  return cudaSuccess;
}

}  // extern "C"
