// Layer normalisation with Highway; the rows are in norm-inl.h.
#include "kernels/norm/layer_norm.h"

#include "kernels/norm/launch.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/layer_norm_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/norm/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

void forward_f32(const LayerNorm<float>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void forward_bf16(const LayerNorm<bfloat16>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void forward_f16(const LayerNorm<float16>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void backward_f32(const LayerNormBackward<float>& call, int64_t begin, int64_t end, float* dgamma,
                  float* dbeta) {
  norm_backward_rows(call, begin, end, dgamma, dbeta);
}
void backward_bf16(const LayerNormBackward<bfloat16>& call, int64_t begin, int64_t end,
                   float* dgamma, float* dbeta) {
  norm_backward_rows(call, begin, end, dgamma, dbeta);
}
void backward_f16(const LayerNormBackward<float16>& call, int64_t begin, int64_t end, float* dgamma,
                  float* dbeta) {
  norm_backward_rows(call, begin, end, dgamma, dbeta);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(forward_f16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);
HWY_EXPORT(backward_f16);

}  // namespace

void layer_norm(const LayerNorm<float>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_f32));
}
void layer_norm(const LayerNorm<bfloat16>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_bf16));
}
void layer_norm(const LayerNorm<float16>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_f16));
}

void layer_norm_backward(const LayerNormBackward<float>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_f32));
}
void layer_norm_backward(const LayerNormBackward<bfloat16>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_bf16));
}
void layer_norm_backward(const LayerNormBackward<float16>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_f16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
