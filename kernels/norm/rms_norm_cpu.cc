// RMS normalisation with Highway; the rows are in norm-inl.h.
#include "kernels/norm/rms_norm.h"

#include "kernels/norm/launch.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms_norm_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/norm/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

void forward_f32(const RmsNorm<float>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void forward_bf16(const RmsNorm<bfloat16>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void forward_f16(const RmsNorm<float16>& call, int64_t begin, int64_t end) {
  norm_rows(call, begin, end);
}
void backward_f32(const RmsNormBackward<float>& call, int64_t begin, int64_t end, float* dgamma,
                  float* dbeta) {
  norm_backward_rows(call, begin, end, dgamma, dbeta);
}
void backward_bf16(const RmsNormBackward<bfloat16>& call, int64_t begin, int64_t end, float* dgamma,
                   float* dbeta) {
  norm_backward_rows(call, begin, end, dgamma, dbeta);
}
void backward_f16(const RmsNormBackward<float16>& call, int64_t begin, int64_t end, float* dgamma,
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

void rms_norm(const RmsNorm<float>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_f32));
}
void rms_norm(const RmsNorm<bfloat16>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_bf16));
}
void rms_norm(const RmsNorm<float16>& call, ThreadPool& pool) {
  launch_norm(call, pool, HWY_DYNAMIC_DISPATCH(forward_f16));
}

void rms_norm_backward(const RmsNormBackward<float>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_f32));
}
void rms_norm_backward(const RmsNormBackward<bfloat16>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_bf16));
}
void rms_norm_backward(const RmsNormBackward<float16>& call, ThreadPool& pool) {
  launch_norm_backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_f16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
