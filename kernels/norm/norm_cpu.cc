// Layer and RMS normalisation with Highway; the rows are in norm-inl.h.
#include "kernels/norm/norm.h"

#include <tuple>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

namespace ds::kernels {

// What an instruction set has for each type and form: rows [begin, end) of a call.
template <class Call>
using NormRows = void (*)(const Call& call, int64_t begin, int64_t end);
template <class Call>
using NormBackwardRows = void (*)(const Call& call, int64_t begin, int64_t end, float* dgamma,
                                  float* dbeta);
using NormFunctions = std::tuple<
    NormRows<LayerNorm<float>>, NormRows<LayerNorm<bfloat16>>, NormRows<LayerNorm<float16>>,
    NormRows<RmsNorm<float>>, NormRows<RmsNorm<bfloat16>>, NormRows<RmsNorm<float16>>,
    NormBackwardRows<LayerNormBackward<float>>, NormBackwardRows<LayerNormBackward<bfloat16>>,
    NormBackwardRows<LayerNormBackward<float16>>, NormBackwardRows<RmsNormBackward<float>>,
    NormBackwardRows<RmsNormBackward<bfloat16>>, NormBackwardRows<RmsNormBackward<float16>>>;

}  // namespace ds::kernels

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/norm/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

NormFunctions norm_functions() {
  return {&norm_rows<LayerNorm<float>>,
          &norm_rows<LayerNorm<bfloat16>>,
          &norm_rows<LayerNorm<float16>>,
          &norm_rows<RmsNorm<float>>,
          &norm_rows<RmsNorm<bfloat16>>,
          &norm_rows<RmsNorm<float16>>,
          &norm_backward_rows<LayerNormBackward<float>>,
          &norm_backward_rows<LayerNormBackward<bfloat16>>,
          &norm_backward_rows<LayerNormBackward<float16>>,
          &norm_backward_rows<RmsNormBackward<float>>,
          &norm_backward_rows<RmsNormBackward<bfloat16>>,
          &norm_backward_rows<RmsNormBackward<float16>>};
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(norm_functions);

}  // namespace

template <class T, bool kCentred>
void norm_forward(const Norm<T, kCentred>& call, ThreadPool& pool) {
  using Call = Norm<T, kCentred>;
  if (call.cols <= 0) return;
  constexpr int64_t kElements = 16384;
  const int64_t grain = call.cols >= kElements ? 1 : kElements / call.cols;
  const auto rows = std::get<NormRows<Call>>(HWY_DYNAMIC_DISPATCH(norm_functions)());
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) { rows(call, begin, end); });
}

// Every chunk of rows has its own sums, which are added up in order.
template <class T, bool kCentred>
void norm_backward(const NormBackward<T, kCentred>& call, ThreadPool& pool) {
  using Call = NormBackward<T, kCentred>;
  if (call.rows <= 0 || call.cols <= 0) return;
  const int64_t size = row_chunk_size(call.rows), chunks = row_chunks(call.rows);
  float* const dgamma = call.partials;
  float* const dbeta = kCentred ? call.partials + chunks * call.cols : nullptr;
  const auto rows = std::get<NormBackwardRows<Call>>(HWY_DYNAMIC_DISPATCH(norm_functions)());
  pool.for_range(call.rows, size, [&](int64_t begin, int64_t end) {
    const int64_t at = begin / size * call.cols;
    rows(call, begin, end, dgamma + at, dbeta != nullptr ? dbeta + at : nullptr);
  });
  add_partial_sums(dgamma, chunks, call.cols, call.dgamma, pool);
  if constexpr (kCentred) add_partial_sums(dbeta, chunks, call.cols, call.dbeta, pool);
}

template void norm_forward(const LayerNorm<float>&, ThreadPool&);
template void norm_forward(const LayerNorm<bfloat16>&, ThreadPool&);
template void norm_forward(const LayerNorm<float16>&, ThreadPool&);
template void norm_forward(const RmsNorm<float>&, ThreadPool&);
template void norm_forward(const RmsNorm<bfloat16>&, ThreadPool&);
template void norm_forward(const RmsNorm<float16>&, ThreadPool&);
template void norm_backward(const LayerNormBackward<float>&, ThreadPool&);
template void norm_backward(const LayerNormBackward<bfloat16>&, ThreadPool&);
template void norm_backward(const LayerNormBackward<float16>&, ThreadPool&);
template void norm_backward(const RmsNormBackward<float>&, ThreadPool&);
template void norm_backward(const RmsNormBackward<bfloat16>&, ThreadPool&);
template void norm_backward(const RmsNormBackward<float16>&, ThreadPool&);

}  // namespace ds::kernels
#endif  // HWY_ONCE
