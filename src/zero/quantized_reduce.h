// Reduce-scatter of gradient buckets in 4 bits (qgZ; Wang et al., ZeRO++, arXiv:2306.10209): an
// all-to-all among the ranks of a node, whose sums go through another one across nodes. What
// roundings lose may be kept and sent with the next gradient (LoCo; Xie et al., arXiv:2407.04480).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mesh/state_groups.h"
#include "ops/context.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class QuantizedReduce {
 public:
  struct Feedback {
    float beta = 0.8f;           // of what is kept from one error to the next
    int64_t reset_after = 1024;  // reductions of a bucket
  };
  struct Flight {
    WorkPtr work;  // the first way; null where a node has one rank
    Tensor received;
  };

  // `nodes` are by gradient domain, null where its buckets do not go by node. The threads of `ctx`
  // must outlive it.
  QuantizedReduce(const OpContext& ctx, const FlatLayout& layout,
                  std::vector<std::shared_ptr<const NodeGroups>> nodes,
                  const std::optional<Feedback>& feedback);

  // Whether a bucket travels so.
  bool takes(const Bucket& bucket) const { return nodes(bucket) && !bucket.exact; }

  // `whole` is the bucket, fp32; it is read until finish has returned.
  Flight start(size_t bucket, const Tensor& whole, bool blocking);
  // `own`: this rank's piece of the mean over all ranks, fp32; it may lie in `whole`.
  void finish(size_t bucket, Flight& flight, const Tensor& whole, Tensor& own);

  // Gradients are scaled by so much from now on: kept errors follow.
  void set_loss_scale(double scale);
  // Kept errors do not count any more: gradients overflowed, or weights were loaded.
  void drop_errors();

 private:
  using Begins = std::vector<int64_t>;
  // What was lost of a bucket: by rank of its piece, and by node of this rank's place. Messages in
  // 8 bits, made when they are needed.
  struct Errors {
    std::vector<Tensor> first, second;
    int64_t reductions = 0;
  };
  void pack(const Tensor& x, const Begins& begins, std::vector<Tensor>& errors, size_t which,
            Tensor packed);
  Errors& errors_for(size_t bucket);
  const std::shared_ptr<const NodeGroups>& nodes(const Bucket& bucket) const {
    return nodes_[static_cast<size_t>(bucket.domain)];
  }

  OpContext ctx_;
  const FlatLayout& layout_;
  std::vector<std::shared_ptr<const NodeGroups>> nodes_;  // by domain
  std::optional<Feedback> feedback_;
  std::vector<int64_t> piece_bytes_;  // of a message, by bucket
  std::vector<Errors> errors_;        // by bucket
  double loss_scale_ = 1;
};

}  // namespace ds::zero
