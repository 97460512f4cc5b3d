#include "models/inputs.h"

#include <algorithm>
#include <cmath>

#include "ops/cross_entropy.h"

namespace ds::models {
namespace {

// Calls fn(row, column, value) for every element of an integer matrix of any strides.
template <class T, class Fn>
void each_element(const Tensor& x, const Fn& fn) {
  const auto* data = static_cast<const T*>(x.raw());
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t c = 0; c < x.size(1); ++c) {
      fn(r, c, static_cast<int64_t>(data[r * x.stride(0) + c * x.stride(1)]));
    }
  }
}

template <class Fn>
void each_integer(const Tensor& x, const char* what, bool small_types, const Fn& fn) {
  switch (x.dtype()) {
    case DType::kInt32:
      return each_element<int32_t>(x, fn);
    case DType::kInt64:
      return each_element<int64_t>(x, fn);
    case DType::kUInt8:
    case DType::kBool:
      if (small_types) return each_element<uint8_t>(x, fn);
      [[fallthrough]];
    default:
      fail(Code::kInvalidArgument, what, " must be ", small_types ? "uint8, bool, " : "",
           "int32 or int64, not ", dtype_name(x.dtype()));
  }
}

void check_matrix(const Tensor& x, const char* what) {
  DS_CHECK(x, Code::kInvalidArgument, what, " is missing");
  DS_CHECK(x.storage()->device_kind() == DeviceKind::kCpu, Code::kUnsupported, what,
           " must lie in host memory");
  DS_CHECK(x.dims() == 2 && x.elements() > 0, Code::kInvalidArgument, what,
           " must have shape [batch, length], not ", x.shape().text());
}

void check_same_shape(const Tensor& x, const char* what, const Tensor& ids) {
  check_matrix(x, what);
  DS_CHECK(x.shape() == ids.shape(), Code::kInvalidArgument, what, " has shape ", x.shape().text(),
           ", the token ids have ", ids.shape().text());
}

Tensor convert(const OpContext& ctx, const Tensor& x, const char* what, int64_t vocab,
               bool allow_ignore) {
  Tensor out = ctx.workspace(DType::kInt32, x.shape());
  int32_t* const to = out.data<int32_t>();
  each_integer(x, what, false, [&](int64_t r, int64_t c, int64_t value) {
    DS_CHECK((value >= 0 && value < vocab) || (allow_ignore && value == ops::kIgnoreLabel),
             Code::kInvalidArgument, what, "[", r, ", ", c, "] is ", value,
             ", outside the vocabulary of ", vocab,
             allow_ignore ? " (and not -100, which is not counted)" : "");
    to[r * x.size(1) + c] = static_cast<int32_t>(value);
  });
  return out;
}

}  // namespace

Tensor token_ids(const OpContext& ctx, const Tensor& ids, const char* what, int64_t vocab) {
  check_matrix(ids, what);
  return convert(ctx, ids, what, vocab, false);
}

Tensor label_ids(const OpContext& ctx, const Tensor& labels, const Tensor& ids, int64_t vocab) {
  check_same_shape(labels, "labels", ids);
  return convert(ctx, labels, "labels", vocab, true);
}

Tensor matching_ids(const OpContext& ctx, const Tensor& values, const Tensor& ids, const char* what,
                    int64_t limit) {
  check_same_shape(values, what, ids);
  Tensor out = ctx.workspace(DType::kInt32, values.shape());
  int32_t* const to = out.data<int32_t>();
  each_integer(values, what, false, [&](int64_t r, int64_t c, int64_t value) {
    DS_CHECK(value >= 0 && value < limit, Code::kInvalidArgument, what, "[", r, ", ", c, "] is ",
             value, ", it must be in [0, ", limit, ")");
    to[r * values.size(1) + c] = static_cast<int32_t>(value);
  });
  return out;
}

Tensor class_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids,
                    int64_t classes) {
  DS_CHECK(labels, Code::kInvalidArgument, "labels are missing");
  const bool column = labels.dims() == 2 && labels.size(1) == 1;
  DS_CHECK((labels.dims() == 1 || column) && labels.size(0) == ids.size(0), Code::kInvalidArgument,
           "labels of a classification head must have shape [", ids.size(0), "], not ",
           labels.shape().text());
  const Tensor matrix = labels.contiguous() ? labels.view({ids.size(0), 1}) : labels;
  DS_CHECK(matrix.dims() == 2, Code::kInvalidArgument, "labels must be packed");
  return convert(ctx, matrix, "labels", classes, true).view({ids.size(0)});
}

Tensor number_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids,
                     const ArchitectureInfo& info) {
  const int64_t batch = ids.size(0), outputs = info.outputs();
  DS_CHECK(labels, Code::kInvalidArgument, "labels are missing");
  DS_CHECK(labels.storage()->device_kind() == DeviceKind::kCpu, Code::kUnsupported,
           "labels must lie in host memory");
  const bool fits =
      labels.shape() == Shape{batch, outputs} || (outputs == 1 && labels.shape() == Shape{batch});
  DS_CHECK(fits && labels.contiguous(), Code::kInvalidArgument,
           "labels of this head are numbers of shape [", batch, ", ", outputs, "], packed, not ",
           labels.shape().text());
  Tensor out = ctx.workspace(DType::kFloat32, {batch, outputs});
  float* const to = out.data<float>();
  const Tensor matrix = labels.view({batch, outputs});
  if (labels.dtype() == DType::kFloat32) {
    std::copy_n(labels.data<float>(), labels.elements(), to);
  } else {
    DS_CHECK(labels.dtype() == DType::kInt32 || labels.dtype() == DType::kInt64,
             Code::kInvalidArgument, "labels must be float32, int32 or int64, not ",
             dtype_name(labels.dtype()));
    each_integer(matrix, "labels", false, [&](int64_t r, int64_t c, int64_t value) {
      to[r * outputs + c] = static_cast<float>(value);
    });
  }
  const bool probabilities = info.loss == nn::LossKind::kBinaryCrossEntropy;
  for (int64_t i = 0; i < out.elements(); ++i) {
    DS_CHECK(std::isfinite(to[i]) && (!probabilities || (to[i] >= 0 && to[i] <= 1)),
             Code::kInvalidArgument, "labels[", i / outputs, ", ", i % outputs, "] is ", to[i],
             probabilities ? ", it must be from 0 to 1" : ", it must be finite");
  }
  return out;
}

Tensor loss_labels(const OpContext& ctx, const Tensor& labels, const Tensor& ids,
                   const ArchitectureInfo& info) {
  DS_CHECK(info.head != Head::kNone, Code::kUnsupported,
           "the model is an encoder without a head: it has no loss. Give its gradients yourself, "
           "or open it with a head");
  if (info.loss != nn::LossKind::kCrossEntropy) return number_labels(ctx, labels, ids, info);
  return info.head == Head::kClassification ? class_labels(ctx, labels, ids, info.classes)
                                            : label_ids(ctx, labels, ids, info.vocab_size);
}

Tensor blank_labels(const OpContext& ctx, int64_t batch, int64_t length,
                    const ArchitectureInfo& info) {
  const bool numbers = info.loss != nn::LossKind::kCrossEntropy;
  const Shape shape = numbers                              ? Shape{batch, info.outputs()}
                      : info.head == Head::kClassification ? Shape{batch}
                                                           : Shape{batch, length};
  Tensor out = ctx.workspace(numbers ? DType::kFloat32 : DType::kInt32, shape);
  std::fill_n(static_cast<std::byte*>(out.raw()), out.bytes(), std::byte{0});
  return out;
}

Tensor segment_ids(const OpContext& ctx, const Tensor& segments, const Tensor& ids) {
  return matching_ids(ctx, segments, ids, "segments", int64_t{1} << 31);
}

Tensor segment_positions(const OpContext& ctx, const Tensor& segments) {
  const int64_t batch = segments.size(0), length = segments.size(1);
  Tensor out = ctx.workspace(DType::kInt32, segments.shape());
  for (int64_t b = 0; b < batch; ++b) {
    const int32_t* const row = segments.data<int32_t>() + b * length;
    int32_t* const to = out.data<int32_t>() + b * length;
    for (int64_t t = 0; t < length; ++t) {
      to[t] = t > 0 && row[t] == row[t - 1] ? to[t - 1] + 1 : 0;
    }
  }
  return out;
}

Tensor position_ids(const OpContext& ctx, int64_t batch, int64_t length, int64_t first) {
  Tensor ids = ctx.workspace(DType::kInt32, {batch, length});
  for (int64_t i = 0; i < batch * length; ++i) {
    ids.data<int32_t>()[i] = static_cast<int32_t>(first + i % length);
  }
  return ids;
}

Tensor key_mask(const OpContext& ctx, const Tensor& mask, const Tensor& ids) {
  if (!mask) return {};
  check_same_shape(mask, "attention mask", ids);
  Tensor out = ctx.workspace(DType::kUInt8, mask.shape());
  uint8_t* const to = out.data<uint8_t>();
  each_integer(mask, "attention mask", true,
               [&](int64_t r, int64_t c, int64_t value) { to[r * mask.size(1) + c] = value != 0; });
  return out;
}

}  // namespace ds::models
