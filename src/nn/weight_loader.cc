#include "nn/weight_loader.h"

#include <algorithm>

#include "tensor/transfer.h"

namespace ds::nn {

void fill_weights(const WeightLoader& loader, const OpContext& ctx, ParamId id,
                  const Parameter& parameter, int64_t begin, Tensor& out) {
  if (on_host(out)) return loader.fill(ctx, id, parameter, begin, out);
  constexpr int64_t kPiece = int64_t{1} << 20;  // elements made at a time
  const OpContext host{host_memory_of(ctx.device), ctx.pool};
  const int64_t n = out.elements();
  const Tensor memory = host.workspace(DType::kFloat32, {std::min(n, kPiece)});
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t end = std::min(n, at + kPiece);
    Tensor piece = memory.slice(0, 0, end - at);
    loader.fill(host, id, parameter, begin + at, piece);
    copy_tensor(piece, out.slice(0, at, end));
  }
}

}  // namespace ds::nn
