#include "nn/weight_loader.h"

#include <algorithm>

#include "tensor/transfer.h"

namespace ds::nn {

void fill_weights(const WeightLoader& loader, const OpContext& ctx, ParamId id,
                  const Parameter& parameter, int64_t begin, Tensor& out, bool slice) {
  const auto fill = [&](const OpContext& host, int64_t from, Tensor& to) {
    return slice ? loader.fill_slice(host, id, parameter, from, to)
                 : loader.fill(host, id, parameter, from, to);
  };
  if (on_host(out)) return fill(ctx, begin, out);
  constexpr int64_t kPiece = int64_t{1} << 20;  // elements made at a time
  const OpContext host{host_memory_of(ctx.device), ctx.pool};
  const int64_t n = out.elements();
  const Tensor memory = host.workspace(DType::kFloat32, {std::min(n, kPiece)});
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t end = std::min(n, at + kPiece);
    Tensor piece = memory.slice(0, 0, end - at);
    fill(host, begin + at, piece);
    copy_tensor(piece, out.slice(0, at, end));
  }
}

void load_in_parts(const WeightLoader& loader, const OpContext& ctx, ParamId id,
                   const Parameter& parameter, int64_t part,
                   const std::function<void(const Tensor& values, int64_t begin)>& take) {
  const int64_t n = parameter.shape.elements();
  if (n == 0) return;
  const Tensor memory = ctx.workspace(DType::kFloat32, {std::min(n, part)});
  for (int64_t at = 0, next; at < n; at = next) {
    next = std::min(n, at + part);
    Tensor values = memory.slice(0, 0, next - at);
    fill_weights(loader, ctx, id, parameter, at, values);
    take(values, at);
  }
}

}  // namespace ds::nn
