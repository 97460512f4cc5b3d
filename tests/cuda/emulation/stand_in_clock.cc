// Times that a GPU would take: work tells how long it runs, and events that take times see it.
#include "cuda/emulation/stand_in_world.h"

namespace ds::testing::stand_in {

void take_time(int gpu, double seconds) {
  const Lock lock(world().mutex);
  world().clock[gpu] += seconds;
}

}  // namespace ds::testing::stand_in

using namespace ds::testing::stand_in;  // NOLINT: the calls are the stand-in's

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  STAND_IN_BEGIN(cudaEventCreate);
  *event = *world().events.insert(new CUevent_st{gpu}).first;
  (*event)->timed = true;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  STAND_IN_BEGIN(cudaEventElapsedTime);
  STAND_IN_KNOWN(events, begin);
  STAND_IN_KNOWN(events, end);
  if (!begin->timed || !end->timed || begin->gpu != end->gpu) {
    return done(cudaErrorInvalidResourceHandle);
  }
  if (!begin->mark->done || !end->mark->done) return done(cudaErrorNotReady);
  *milliseconds = static_cast<float>((end->mark->at - begin->mark->at) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  STAND_IN_BEGIN(cudaStreamIsCapturing);
  STAND_IN_KNOWN(streams, stream);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->valid   ? cudaStreamCaptureStatusActive
                                       : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

}  // extern "C"
