// Decoding on a GPU as CUDA graphs: what a token costs is recorded once, and every later token is
// one launch. The token, its position and the length of the text are read from the GPU's memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/cuda_device.h"
#include "infer/kv_cache.h"
#include "models/architecture.h"

namespace ds::infer {

class DecodeGraphs {
 public:
  // Null where tokens cannot be recorded: on the CPU, with layers of experts, with latent
  // attention, and with weights that do not stay in place or whose use depends on the length of
  // the text.
  static std::unique_ptr<DecodeGraphs> make(const std::shared_ptr<Device>& device,
                                            const nn::ParameterReader& weights,
                                            const models::ArchitectureInfo& info);

  // How many tokens attention has room for with a graph that serves a text of `length`: graphs are
  // made for powers of two, so that work grows with the text.
  static int64_t room_for(int64_t length, int64_t capacity);

  // A token's work, with its logits, fp32 [1, 1, V], in `logits`; `constants` receives what it
  // reads besides weights and cache.
  using Pass = std::function<void(const models::Batch&, Tensor& logits, std::vector<Tensor>*)>;
  // False where the caller is to run the token itself: the first one of a room, which makes what
  // later ones find, and when recording has failed, which ends recording and is logged. Otherwise
  // the token is in the cache, and its logits will be in logits().
  bool run(int32_t token, KvCache& cache, const Pass& pass);
  const Tensor& logits() const { return logits_; }

 private:
  struct Entry {
    std::vector<Tensor> constants;
    std::unique_ptr<DeviceGraph> graph;  // none before it is recorded
  };

  DecodeGraphs(std::shared_ptr<CudaDevice> device, int64_t vocabulary);
  bool record(Entry& entry, KvCache& cache, int64_t room, const Pass& pass);
  Tensor input(int index, const Shape& shape) const;

  const std::shared_ptr<CudaDevice> device_;
  const Tensor inputs_;  // of all graphs: the token, its position, the length before it
  Tensor logits_;
  bool failed_ = false;
  std::shared_ptr<GraphMemory> memory_;  // shared: launches follow each other
  std::map<int64_t, Entry> entries_;     // by room
};

}  // namespace ds::infer
