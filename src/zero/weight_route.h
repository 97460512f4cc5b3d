// The way in which a bucket of weights gets from the ranks that hold its pieces to one that needs
// it whole: plain, quantised (qwZ), across nodes and then inside them (MiCS), or from the second
// copy that near ranks keep (hpZ). A piece that lies in a file, or on the host beside a GPU, is
// read ahead of that.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "mesh/state_groups.h"
#include "ops/context.h"
#include "tensor/array_store.h"
#include "zero/flat_layout.h"

namespace ds::zero {

// What a WeightGatherer asks for buckets.
class BucketRoute {
 public:
  // A gather under way.
  struct Flight {
    WorkPtr work;    // null when there is none
    Tensor message;  // what arrives, where that is not the bucket itself
    Tensor column;   // what came across nodes, of ways in two steps
    bool near = false;
    bool reading = false;  // the own piece is read ahead, and the ranks have not begun to gather
    Tensor own;            // where one on the host comes to
    std::shared_ptr<Event> arrived;  // when it is there
    explicit operator bool() const { return work != nullptr || reading; }
  };

  virtual ~BucketRoute() = default;
  // Begins to fill `whole`, which it may make, and nobody may touch before finish has returned.
  virtual Flight start(size_t bucket, Tensor& whole, const CollectiveOptions& options) = 0;
  virtual void finish(size_t bucket, Flight& flight, Tensor& whole,
                      const CollectiveOptions& options) = 0;
  // Ends one that nobody needs any more.
  virtual void abandon(size_t bucket, Flight& flight, Tensor& whole) = 0;
  // Second copies are worthless, and with `frozen_too` so is all that was made of frozen weights.
  virtual void pieces_changed(bool frozen_too) = 0;
};

class WeightRoute : public BucketRoute {
 public:
  struct Options {
    bool quantized = false;         // all travel in 8 bits
    bool quantized_frozen = false;  // large frozen ones do, from codes that are kept
    bool hierarchical = false;      // across nodes first
  };

  // What this rank holds of a bucket.
  struct Piece {
    StoredArray array;
    FlatRange range;
    ArrayLease map() const { return array.map(range.begin, range.end, Access::kRead); }
  };

  // Brings what lies in the host's memory to the context's device; null: all pieces lie there, or
  // in files beside memory that the device computes in.
  using Bring = std::function<std::shared_ptr<Event>(const Tensor& from, const Tensor& to)>;

  // Collective. `groups` are by gradient domain, `pieces` by bucket. The threads of `ctx` must
  // outlive it.
  WeightRoute(const OpContext& ctx, const FlatLayout& layout, std::vector<StateGroups> groups,
              const Options& options, std::vector<Piece> pieces, Bring bring = nullptr);

  Flight start(size_t bucket, Tensor& whole, const CollectiveOptions& options) override;
  void finish(size_t bucket, Flight& flight, Tensor& whole,
              const CollectiveOptions& options) override;
  void abandon(size_t bucket, Flight& flight, Tensor& whole) override;
  void pieces_changed(bool frozen_too) override;

 private:
  DType dtype(size_t bucket) const { return pieces_[bucket].array.dtype(); }
  const StateGroups& groups(size_t bucket) const {
    return groups_[static_cast<size_t>(layout_.buckets()[bucket].domain)];
  }
  // The own piece is the bucket.
  bool whole_here(const Bucket& bucket) const {
    return layout_.world(bucket) == 1 && !quantized(bucket);
  }
  bool quantized(const Bucket& bucket) const;
  bool reads_piece(size_t bucket) const;
  // It lies in the host's memory.
  bool brings(size_t bucket) const { return bring_ && pieces_[bucket].array.in_memory(); }
  void make_room(size_t bucket, Tensor& whole) const;
  Tensor room_for(const Piece& piece) const;
  Tensor brought(size_t bucket, const Tensor& own) const;
  Flight gather(size_t bucket, const Tensor& whole, const Tensor& own,
                const CollectiveOptions& options);
  void complete(size_t bucket, Flight& flight, Tensor& whole);
  Tensor own_message(size_t bucket, const Tensor& own);
  void start_gather(size_t bucket, const Tensor& all, const Tensor& own,
                    const CollectiveOptions& options, Flight& flight);
  void finish_gather(size_t bucket, Flight& flight, const Tensor& all);
  void unpack(size_t bucket, const Tensor& message, Tensor& whole);
  Tensor second(size_t bucket) const;  // none where there is none

  OpContext ctx_;
  const FlatLayout& layout_;
  std::vector<StateGroups> groups_;  // by domain
  Options options_;
  std::vector<Piece> pieces_;  // by bucket
  const Bring bring_;
  // This rank's part of all buckets of a domain that are dropped at times, in each of their types.
  std::map<std::pair<int, DType>, Tensor> second_;
  std::vector<int64_t> second_begins_;  // by bucket; -1 where there is none
  std::vector<bool> second_valid_;
  std::vector<int64_t> message_bytes_;   // of a piece, by bucket
  std::vector<Tensor> frozen_messages_;  // by bucket
};

}  // namespace ds::zero
