// The optimizer's state on the host beside a GPU that trains, in memory (ZeRO-Offload, Ren et al.,
// arXiv:2101.06840) or in files (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857), all of it or
// a share (twin_flow_arrays.h): how gradients come from the GPU to it and weights go back, beside
// the GPU's computation. Of several
// ranks each has a store for what it owns. Whoever holds the arrays (StateArrays) calls it from one
// thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/context.h"
#include "optim/offload_store.h"
#include "optim/optimizer.h"
#include "tensor/copy_stream.h"
#include "zero/flat_layout.h"

namespace ds::zero {

struct OffloadOptions {
  std::shared_ptr<Device> host;  // its pageable memory
  bool pinned = true;            // arrays lie in memory that the GPU's copies reach
  int buffers = 4;               // of pinned memory, which everything else travels through
  int64_t sub_group_elements = 0;
  int64_t bucket_elements = 0;  // of gradients
  // Of stage 3: weights rest on the host too, and buckets of them come to the GPU when they are
  // used.
  bool weights = false;
  bool weights_pinned = true;
};

// How large the buffers are beside weights of so many elements.
struct HostBuffers {
  HostBuffers(const OffloadOptions& options, int64_t weight_elements);
  int count;
  int64_t elements;  // of fp32
  int64_t bytes() const { return count * elements * int64_t{sizeof(float)}; }
};

class HostStore : public optim::OffloadStore {
 public:
  // `weights`, on the GPU, in the host's memory or in a file, in the type that the GPU computes
  // with. `split`: bf16 weights lie on the host too, as the upper halves of masters. Those on the
  // host may be these, or masters of fp32; in a file they are, or are rounded from masters.
  HostStore(const OpContext& ctx, const OffloadOptions& options, optim::FlatTensor weights,
            bool split);

  // Where the arrays are made.
  const std::shared_ptr<Device>& memory() const { return memory_; }
  const optim::FlatTensor& weights() const { return weights_; }

  // optim::OffloadStore; between open_update and close_update. A copy to the GPU that fails does
  // not end the update: the weights there are stale until send_stale.
  int64_t sub_group_elements() const override { return sub_group_; }
  void fetch(const optim::SubGroup& group, ops::UpdateTensors& part, bool weights) override;
  void flush(const optim::SubGroup& group, const ops::UpdateTensors& part, bool weights) override;
  void open_update();
  void close_update();

  // Where gradients arrive: from element `begin` on, added to what is there or not.
  struct Target {
    StoredArray array;
    int64_t begin;
    bool add;
  };
  // Gradients: what is queued on the GPU so far makes `from`. Those whose place is the GPU's memory
  // are there in the order of its default stream. The others have arrived by
  // finish_arrivals(); `from` may be written again after the event. `arrived`, if there is one, is
  // called when they are there, within this call for others or within finish_arrivals().
  using Arrived = std::function<void()>;
  std::shared_ptr<Event> receive(const Tensor& from, const Target& to, Arrived arrived = nullptr);
  void finish_arrivals();
  // Gives up those on their way; memory that they leave or go to is free on return.
  void drop() noexcept;
  bool receiving() const { return received_ || !arrivals_.empty(); }

  // Before masters are written: nothing of them is on its way.
  void hold_masters();
  // Sends the weights of a range of the masters, which were written, to where they begin in the
  // array of weights.
  void send(const optim::FlatTensors& flat, FlatRange masters, int64_t weights);
  bool stale() const { return !stale_.empty(); }
  void all_sent() { stale_.clear(); }

  // Of weights on the host: brings some to the GPU, where they are after the event. `to` is free
  // for that when the GPU has done what is queued so far.
  std::shared_ptr<Event> bring(const Tensor& from, const Tensor& to);

 private:
  // A piece of pinned memory. It is free once `copied` is over and no arrival waits in it.
  struct Buffer {
    Tensor memory;
    std::shared_ptr<Event> copied;
    bool arriving = false;
  };
  struct Arrival {
    size_t buffer;
    DType type;  // that travels
    int64_t elements;
    Target to;
    Arrived arrived;  // of the last piece
  };
  // Straight to their place.
  struct Direct {
    std::shared_ptr<Event> copied;
    Arrived arrived;
  };

  // The next buffer in turn, which is free on return.
  size_t take_buffer();
  Tensor view(size_t buffer, DType type, int64_t elements) const;  // of its beginning
  // Those whose place is on the host.
  std::shared_ptr<Event> start_arrival(const Tensor& from, const Target& to, Arrived arrived);
  // Of the first ones, whose place is the GPU's memory.
  void put_on_device(const Tensor& from, const Target& to) const;
  void finish_arrival();
  void finish_ready_arrivals();
  // What the next arrivals are added to is read while they travel, where it lies in a file.
  void prefetch_sums() const;
  // Room for weights that have to be rounded from masters on the host: where they rest, if that is
  // its memory, or a buffer. And from masters on the GPU.
  Tensor weights_room(int64_t weights, int64_t elements);
  Tensor weights_room_on_device(int64_t weights, const Tensor& master) const;
  void send_part(int64_t weights, const ops::UpdateTensors& part);
  // To a file.
  void write_part(int64_t weights, const ops::UpdateTensors& part);
  // From memory that no copy of the GPU reaches.
  std::shared_ptr<Event> copy_by_buffers(const Tensor& from, const Tensor& to);
  Tensor weights_at(int64_t begin, int64_t elements) const {
    return weights_.memory().slice(0, begin, begin + elements);
  }
  // Weights rest there.
  bool in_file() const { return !weights_.in_memory(); }
  // Whether copies of the GPU reach it, so that it needs no buffer.
  bool reached(const Tensor& x) const { return x.storage()->device() == pinned_; }
  // Runs what sends weights; where it fails they are stale.
  template <class Body>
  void try_to_send(const Body& body);

  OpContext host_;  // to compute on the host
  const std::shared_ptr<Device> pinned_;
  const std::shared_ptr<Device> memory_;
  const optim::FlatTensor weights_;
  const bool rounds_;   // weights are rounded masters, made in a buffer or where they rest
  const bool on_host_;  // weights rest in its memory
  int64_t sub_group_ = 0;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;                         // buffers are used in turn
  std::deque<Arrival> arrivals_;            // in their order
  std::deque<Direct> direct_;               // likewise, of those that somebody asked to be told of
  std::shared_ptr<Event> received_, sent_;  // the last copies that used no buffer
  std::string stale_;                       // why the GPU's weights are not those of the masters
  CopyStream stream_;                       // last: it waits before the memory above goes
};

}  // namespace ds::zero
