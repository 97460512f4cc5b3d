// The way of gradients between ranks: backward adds to buckets, a complete bucket is averaged over
// the ranks while backward goes on, and what this rank keeps of it is handed on.
//
// Every micro batch is reduced by itself, at every stage: so the sum of an element is over ranks
// first and over micro batches then, whatever the stage.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "mesh/mesh.h"
#include "nn/gradient_sink.h"
#include "ops/context.h"
#include "zero/flat_layout.h"
#include "zero/quantized_reduce.h"
#include "zero/row_reduce.h"

namespace ds::zero {

class GradientReducer {
 public:
  struct Options {
    bool whole = false;  // each rank keeps everything (stage 0) instead of its piece
    bool overlap = true;
    bool scatter = true;  // else everything is reduced on every rank, whatever it keeps
    ReduceOp op = ReduceOp::kAverage;
    DType comm_dtype = DType::kFloat32;  // what travels
    bool comm_dtype_for_all = true;  // else buckets that are computed with in fp32 travel as that
    // More of a gradient may come after its bucket was sent: the bucket is sent again. Ranks must
    // give gradients in one order, which is checked.
    bool eager = false;
  };
  // The ranks that share the buckets of a gradient domain, and what their mean is multiplied by.
  struct Domain {
    RankGroup ranks;
    float share_of_mean = 1;
  };
  // Takes a reduced bucket: its own piece or, with `whole`, all of it, fp32. Until the event, if
  // there is one, the device still reads it; the device's default stream waits before it is written
  // again.
  using Take = std::function<std::shared_ptr<Event>(const Bucket& bucket, const Tensor& average)>;

  GradientReducer(const OpContext& ctx, const nn::ParameterSet& parameters,
                  const FlatLayout& layout, std::vector<Domain> domains, const Options& options,
                  Take take, std::unique_ptr<QuantizedReduce> quantized = nullptr);

  // Where backward adds the gradient of a trainable parameter, or of a tile of it, or writes it
  // when `add` is false.
  nn::GradientTarget target(nn::ParamId id, int64_t tile = 0);
  // Its last contribution of this micro batch was added. A tile may be completed again.
  void complete(nn::ParamId id, int64_t tile = 0);
  // The micro batch is over: what is missing counts as zero. All results are taken on return.
  void finish();
  // Gives up what was gathered and not yet sent.
  void drop();

  // A backward that is recorded (StepGraphs): from here to end_recording it is not run, buckets lie
  // in memory that stays, and none is sent. Returns the order in which they were complete.
  void begin_recording();
  std::vector<size_t> end_recording();
  // Around each launch: the memory may be written, and what complete() and finish() would have sent
  // is. All results are taken on return.
  void await_recorded();
  void send_recorded(std::span<const size_t> buckets);
  // Of the buckets that travel quantised; null: none do.
  QuantizedReduce* quantized() { return quantized_.get(); }

 private:
  // A buffer that ranks of a host share; buckets use it in turn.
  struct Slot {
    Tensor data;     // fp32
    Tensor rounded;  // the same rounded to the type that travels; none when that is fp32
    std::shared_ptr<Event> read;  // of what was taken last
    int domain = 0;               // whose ranks share it
  };
  struct OpenBucket {
    Tensor data;                      // fp32; none while it is not open
    int slot = -1;                    // that `data` lies in, or `rounded` is of
    std::vector<bool> touched, done;  // by parameter of the bucket
    size_t done_count = 0;
    bool sent = false;
  };
  struct Sent {
    size_t bucket;
    WorkPtr work;
    QuantizedReduce::Flight flight;  // in its place where the bucket travels quantised
  };

  const Domain& domain(const Bucket& bucket) const {
    return domains_[static_cast<size_t>(bucket.domain)];
  }
  bool travels_rounded(const Bucket& bucket) const {
    return options_.comm_dtype != DType::kFloat32 && (options_.comm_dtype_for_all || !bucket.fp32);
  }
  bool travels_quantized(const Bucket& bucket) const {
    return quantized_ && quantized_->takes(bucket);
  }
  size_t place(nn::ParamId id) const;  // in its bucket
  FlatRange range_in(const Bucket& bucket, nn::ParamId id) const {
    return bucket.tile >= 0 ? bucket.range : layout_.range(id);
  }
  bool send_rows(size_t bucket);
  void scale_to_mean(const Bucket& bucket, Tensor& result) const;
  void take(size_t bucket, const Tensor& result);
  void close(OpenBucket& open);
  // This rank's part of a reduced bucket, in its slot.
  FlatRange kept(const Bucket& bucket) const {
    const int64_t begin = options_.whole ? 0 : layout_.rank(bucket) * bucket.piece;
    return {begin, options_.whole ? bucket.range.elements() : begin + bucket.piece};
  }
  int take_slot(const Bucket& bucket);
  std::vector<int>::iterator find_slot(const Bucket& bucket);
  Tensor view(const Bucket& bucket, const OpenBucket& open, nn::ParamId id) const;
  void open(size_t bucket);
  void send(size_t bucket);
  void start(size_t bucket);
  void receive();  // the oldest of those under way
  void clear_gaps(const Bucket& bucket, const OpenBucket& open);

  OpContext ctx_;
  const nn::ParameterSet& parameters_;
  const FlatLayout& layout_;
  std::vector<Domain> domains_;  // of the layout
  Options options_;
  Take take_;
  std::unique_ptr<QuantizedReduce> quantized_;
  std::vector<RowReduce> rows_;          // by domain
  std::vector<size_t> place_in_bucket_;  // by parameter
  std::vector<Slot> slots_;
  std::vector<int> free_slots_;
  std::vector<OpenBucket> open_;  // by bucket
  std::deque<Sent> sent_;
  // Of a backward that is recorded.
  struct Recorded {
    Tensor whole;                 // over the flat space; made with the first recording
    std::shared_ptr<Event> read;  // of what was taken last
    bool open = false;
    std::vector<size_t> order;  // of complete buckets, while it is open
  } recorded_;
};

}  // namespace ds::zero
