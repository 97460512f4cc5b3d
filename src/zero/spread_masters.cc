#include "zero/spread_masters.h"

#include <algorithm>

#include "comm/message_memory.h"
#include "ops/elementwise.h"
#include "ops/stored_array.h"
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

// Each rank makes what it holds.
void fill_owned(const OpContext& ctx, const nn::ParameterSet& parameters,
                const nn::WeightLoader& loader, const FlatLayout& layout,
                optim::FlatTensor& masters) {
  for (const nn::ParamId id : layout.order()) {
    const OwnedPart part = layout.part(id);
    const FlatRange range = layout.range(id);
    if (range.elements() == 0 || (masters.compact && part.count == 0)) continue;
    const FlatRange to = masters.compact ? FlatRange{part.owned, part.owned + part.count} : range;
    const int64_t first = masters.compact ? part.first : 0;
    masters.for_parts(to.begin, to.end, Access::kWrite, [&](Tensor& out, int64_t at) {
      if (out.dtype() == DType::kFloat32) {
        return fill_weights(loader, ctx, id, parameters[id], first + at, out);
      }
      Tensor wide = ctx.workspace(DType::kFloat32, out.shape());
      fill_weights(loader, ctx, id, parameters[id], first + at, wide);
      ops::cast(ctx, wide, out);
    });
  }
}

// Rank 0's masters, as many at a time as a buffer holds; each rank keeps what it is to hold.
class MasterBroadcast {
 public:
  MasterBroadcast(const OpContext& ctx, const StateArrays& arrays, const Masters& from,
                  const ShareOptions& options, const FlatLayout& layout, optim::FlatTensor& masters)
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
    if (!layout_.holds(piece.id)) return;
    const OwnedPart part = layout_.part(piece.id);
    const int64_t first = masters_.compact ? part.first : 0;
    const int64_t last =
        masters_.compact ? part.first + part.count : parameters_[piece.id].shape.elements();
    const int64_t begin = std::max(piece.begin, first), end = std::min(piece.end, last);
    if (begin >= end) return;
    const int64_t to =
        (masters_.compact ? part.owned : layout_.range(piece.id).begin) + begin - first;
    ops::write_array(ctx_, buffer_.slice(0, at + begin - piece.begin, at + end - piece.begin),
                     masters_, to);
  }

  const OpContext& ctx_;
  const nn::ParameterSet& parameters_;
  const RankGroup& ranks_;
  const Masters& from_;
  const ShareOptions& options_;
  const FlatLayout& layout_;
  optim::FlatTensor& masters_;
  const Tensor buffer_;
  std::vector<Piece> pieces_;  // in the buffer
  int64_t used_ = 0;           // elements of it
};

}  // namespace

void spread_masters(const OpContext& ctx, const StateArrays& arrays, const Masters& from,
                    const ShareOptions& options, const FlatLayout& layout,
                    optim::FlatTensor& masters) {
  const nn::WeightLoader* const loader = from.loader().get();
  if (!same_loaders({arrays.device, ctx.pool}, loader, arrays.all_ranks())) {
    return MasterBroadcast(ctx, arrays, from, options, layout, masters).run();
  }
  options.together([&] { fill_owned(ctx, arrays.parameters, *loader, layout, masters); });
}

}  // namespace ds::zero
