// Checks and launch of quantised messages.
#include "ops/block_quantize.h"

#include "kernels/elementwise/elementwise.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

// The scales begin at a multiple of their size.
int64_t code_bytes(int bits, int64_t elements) {
  constexpr auto kScale = static_cast<int64_t>(sizeof(float));
  return ((elements * bits + 7) / 8 + kScale - 1) / kScale * kScale;
}

struct Parts {
  uint8_t* codes;
  float* scales;
};

Parts parts_of(const Op& op, const Tensor& packed, int bits, BlockBegins begins) {
  DS_CHECK(bits == 8 || bits == 4, Code::kInvalidArgument, op, ": codes have 8 or 4 bits, not ",
           bits);
  DS_CHECK(!begins.empty() && begins.front() == 0, Code::kInvalidArgument, op,
           ": the first block must begin at 0");
  for (size_t i = 1; i < begins.size(); ++i) {
    const int64_t n = begins[i] - begins[i - 1];
    DS_CHECK(n > 0 && n <= kernels::kMostBlockElements && (n % 2 == 0 || i + 1 == begins.size()),
             Code::kInvalidArgument, op, ": block ", i - 1, " has ", n, " elements; from 1 to ",
             kernels::kMostBlockElements,
             " are possible, and an even number before the last block");
  }
  check_dense(packed, op, "packed", DType::kUInt8);
  const int64_t needed = packed_bytes(bits, begins.back(), kernels::block_count(begins));
  DS_CHECK(packed.elements() >= needed, Code::kInvalidArgument, op, ": packed has ",
           packed.elements(), " bytes, needed are ", needed);
  auto* const bytes = packed.data<uint8_t>();
  return {bytes, reinterpret_cast<float*>(bytes + code_bytes(bits, begins.back()))};
}

}  // namespace

int64_t packed_bytes(int bits, int64_t elements, int64_t blocks) {
  return code_bytes(bits, elements) + blocks * static_cast<int64_t>(sizeof(float));
}

void pack_blocks(const OpContext& ctx, const Tensor& x, int bits, BlockBegins begins,
                 Tensor& packed, Tensor* errors, float beta) {
  const Op op{ctx, "pack_blocks"};
  const Parts to = parts_of(op, packed, bits, begins);
  check_dense_float(x, op, "x");
  DS_CHECK(x.elements() == begins.back(), Code::kInvalidArgument, op, ": x has ", x.elements(),
           " elements and the blocks ", begins.back());
  kernels::RoundingError error;
  if (errors != nullptr) {
    check_dense(x, op, "x", DType::kFloat32);
    const Parts lost = parts_of(op, *errors, 8, begins);
    error = {lost.codes, lost.scales, beta};
  }
  const kernels::BlockQuantize call{.bits = bits,
                                    .begins = begins,
                                    .type = float_type(x),
                                    .x = x.raw(),
                                    .codes = to.codes,
                                    .scales = to.scales,
                                    .error = errors != nullptr ? &error : nullptr};
  run(ctx, [&](auto& on) { kernels::quantize_blocks(call, on); });
}

void unpack_blocks(const OpContext& ctx, const Tensor& packed, int bits, BlockBegins begins,
                   float factor, bool add, Tensor& y) {
  const Op op{ctx, "unpack_blocks"};
  const Parts from = parts_of(op, packed, bits, begins);
  check_dense_float(y, op, "y");
  DS_CHECK(y.elements() == begins.back(), Code::kInvalidArgument, op, ": y has ", y.elements(),
           " elements and the blocks ", begins.back());
  const kernels::BlockDequantize call{.bits = bits,
                                      .begins = begins,
                                      .codes = from.codes,
                                      .scales = from.scales,
                                      .factor = factor,
                                      .add = add,
                                      .type = float_type(y),
                                      .y = y.raw()};
  run(ctx, [&](auto& on) { kernels::dequantize_blocks(call, on); });
}

void scale_packed(const OpContext& ctx, const Tensor& packed, int bits, BlockBegins begins,
                  float factor) {
  const Parts all = parts_of(Op{ctx, "scale_packed"}, packed, bits, begins);
  const int64_t blocks = kernels::block_count(begins);
  run(ctx, [&](auto& on) { kernels::scale(all.scales, factor, blocks, all.scales, on); });
}

}  // namespace ds::ops
