// Checks and launch of softmax.
#include "ops/softmax.h"

#include <array>

#include "kernels/softmax/softmax.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void check_dims(const Tensor& x, const Op& op) {
  DS_CHECK(x.dims() >= 1 && x.dims() <= 4, Code::kInvalidArgument, op, ": x has shape ",
           x.shape().text(), "; 1 to 4 dimensions are needed, the last two queries and keys");
}

// The sizes with leading ones.
std::array<int64_t, 4> four_sizes(const Tensor& tensor) {
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  for (int i = 0; i < tensor.dims(); ++i) {
    sizes[sizes.size() - static_cast<size_t>(tensor.dims() - i)] = tensor.size(i);
  }
  return sizes;
}

void set_mask(const Op& op, const Tensor& x, const Tensor& mask, kernels::Softmax& call) {
  check_dense(mask, op, "mask", DType::kUInt8);
  const std::array<int64_t, 4> sizes = four_sizes(x);
  bool fits = mask.dims() == x.dims();
  if (fits) {
    const std::array<int64_t, 4> given = four_sizes(mask);
    for (size_t i = 0; i < 3; ++i) fits = fits && (given[i] == sizes[i] || given[i] == 1);
    fits = fits && given[3] == sizes[3];
    int64_t stride = sizes[3];
    for (size_t i = 3; i-- > 0;) {
      call.mask_strides[i] = given[i] == 1 ? 0 : stride;
      stride *= given[i];
    }
  }
  DS_CHECK(fits, Code::kInvalidArgument, op, ": mask has shape ", mask.shape().text(), " and x ",
           x.shape().text(),
           "; as many dimensions are needed, each as long or 1, the last as long");
  call.mask = mask.data<uint8_t>();
}

}  // namespace

void softmax(const OpContext& ctx, const Tensor& x, const Tensor& mask,
             const SoftmaxOptions& options, Tensor& y) {
  const Op op{ctx, "softmax"};
  check_on_cpu(op);
  check_dense_float(x, op, "x");
  check_dims(x, op);
  check_dense(y, op, "y", x.dtype(), x.shape());
  const std::array<int64_t, 4> sizes = four_sizes(x);
  kernels::Softmax call;
  call.type = float_type(x);
  call.batch = sizes[0];
  call.heads = sizes[1];
  call.queries = sizes[2];
  call.keys = sizes[3];
  call.scale = options.scale;
  call.causal = options.causal;
  if (mask) set_mask(op, x, mask, call);
  call.x = x.raw();
  call.y = y.raw();
  kernels::softmax(call, *ctx.pool);
}

void softmax_backward(const OpContext& ctx, const Tensor& y, const Tensor& dy, float scale,
                      Tensor& dx) {
  const Op op{ctx, "softmax_backward"};
  check_on_cpu(op);
  check_dense_float(y, op, "y");
  check_dims(y, op);
  check_dense(dy, op, "dy", y.dtype(), y.shape());
  check_dense(dx, op, "dx", y.dtype(), y.shape());
  const int64_t keys = y.size(y.dims() - 1);
  kernels::softmax_backward({float_type(y), keys == 0 ? 0 : y.elements() / keys, keys, scale,
                             y.raw(), dy.raw(), dx.raw()},
                            *ctx.pool);
}

}  // namespace ds::ops
