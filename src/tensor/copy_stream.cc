#include "tensor/copy_stream.h"

#include "base/error.h"

namespace ds {

CopyStream::CopyStream(std::shared_ptr<Device> gpu)
    : gpu_(std::move(gpu)), stream_(gpu_->create_stream()) {}

CopyStream::~CopyStream() {
  try {
    synchronize();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

void CopyStream::follow() { stream_->wait(*gpu_->default_stream().record()); }

void CopyStream::copy(void* to, const void* from, int64_t bytes) {
  gpu_->copy(to, from, bytes, *stream_);
}

std::shared_ptr<Event> CopyStream::mark() { return stream_->record(); }

void CopyStream::lead() { gpu_->default_stream().wait(*stream_->record()); }

void CopyStream::synchronize() { stream_->synchronize(); }

}  // namespace ds
