#include "zero/spread_masters.h"

#include <algorithm>

#include "comm/message_memory.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

// Whether all ranks make their weights from the same source.
bool same_loaders(const OpContext& ctx, const nn::WeightLoader* loader, const RankGroup& ranks) {
  const auto own = static_cast<int64_t>(loader != nullptr ? loader->fingerprint() : 0);
  const auto numbers = [&](int64_t n) {
    return comm::message_memory(*ranks.comm, ctx.device, DType::kInt64, {n}, MemoryTag::kWorkspace);
  };
  const Tensor mine = numbers(2), all = numbers(int64_t{2} * ranks.size);
  mine.data<int64_t>()[0] = loader != nullptr ? 1 : 0;
  mine.data<int64_t>()[1] = own;
  ranks->all_gather(all, mine, {.label = "sources of weights", .blocking = true})->wait();
  for (int64_t i = 0; i < all.elements(); i += 2) {
    const int64_t* const other = all.data<int64_t>() + i;
    if (other[0] != 1 || other[1] != own) return false;
  }
  return true;
}

// Rank 0's masters, as many at a time as a buffer holds; each rank keeps what it is to hold.
class MasterBroadcast {
 public:
  MasterBroadcast(const OpContext& ctx, const StateArrays& arrays, const Masters& from,
                  const ShareOptions& options, const FlatLayout& layout, const NewMasters& masters)
      : ctx_(ctx),
        parameters_(arrays.parameters),
        ranks_(arrays.all_ranks()),
        from_(from),
        options_(options),
        layout_(layout),
        masters_(masters),
        buffer_(
            Tensor::empty(ctx.device, DType::kFloat32,
                          {std::min(kBuffer, std::max<int64_t>(arrays.parameters.elements(), 1))},
                          MemoryTag::kCommunication)) {}

  void run() {
    // Of all experts, whoever holds them.
    for (const nn::ParamId id : nn::flat_order(parameters_)) {
      const int64_t n = parameters_[id].shape.elements();
      for (int64_t begin = 0; begin < n;) {
        if (used_ == buffer_.elements()) pass_on();
        const int64_t end = std::min(n, begin + buffer_.elements() - used_);
        pieces_.push_back({id, begin, end});
        used_ += end - begin;
        begin = end;
      }
    }
    pass_on();
  }

 private:
  static constexpr int64_t kBuffer = int64_t{4} << 20;  // elements
  struct Piece {
    nn::ParamId id;
    int64_t begin, end;
  };

  void pass_on() {
    if (used_ == 0) return;
    options_.together([&] {
      if (ranks_.rank == 0) pack();
    });
    ranks_->broadcast(buffer_.slice(0, 0, used_), 0, {.label = "initial weights"})->wait();
    int64_t at = 0;
    for (const Piece& piece : pieces_) {
      keep(piece, at);
      at += piece.end - piece.begin;
    }
    pieces_.clear();
    used_ = 0;
  }

  void pack() {
    int64_t to = 0;
    for (const Piece& piece : pieces_) {
      const int64_t n = piece.end - piece.begin;
      Tensor out = buffer_.slice(0, to, to + n);
      to += n;
      if (const auto& loader = from_.loader()) {
        fill_weights(*loader, ctx_, piece.id, parameters_[piece.id], piece.begin, out);
      } else {
        const Tensor flat = from_.view(piece.id).view({parameters_[piece.id].shape.elements()});
        copy_tensor(flat.slice(0, piece.begin, piece.end), out);
      }
    }
  }

  // What this rank holds of a piece that begins at `at` of the buffer.
  void keep(const Piece& piece, int64_t at) {
    const FlatRange wanted = masters_.wanted(layout_, piece.id);
    const int64_t begin = std::max(piece.begin, wanted.begin);
    const int64_t end = std::min(piece.end, wanted.end);
    if (begin >= end) return;
    masters_.write(ctx_, layout_, piece.id, begin,
                   buffer_.slice(0, at + begin - piece.begin, at + end - piece.begin));
  }

  const OpContext& ctx_;
  const nn::ParameterSet& parameters_;
  const RankGroup& ranks_;
  const Masters& from_;
  const ShareOptions& options_;
  const FlatLayout& layout_;
  const NewMasters& masters_;
  const Tensor buffer_;
  std::vector<Piece> pieces_;  // in the buffer
  int64_t used_ = 0;           // elements of it
};

}  // namespace

void spread_masters(const OpContext& ctx, const StateArrays& arrays, const Masters& from,
                    const ShareOptions& options, const FlatLayout& layout,
                    const NewMasters& masters) {
  const nn::WeightLoader* const loader = from.loader().get();
  if (!same_loaders({arrays.device, ctx.pool}, loader, arrays.all_ranks())) {
    return MasterBroadcast(ctx, arrays, from, options, layout, masters).run();
  }
  options.together([&] { masters.fill(ctx, layout, arrays.parameters, *loader); });
}

}  // namespace ds::zero
