// Keys of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): each head has channels of
// its own, made from a latent that all heads share, and channels that turn with the position, which
// are the same for all heads.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/float_type.h"

namespace ds::kernels {

struct LatentKeys {
  FloatType type = FloatType::kFloat32;
  int64_t tokens = 0, heads = 0;
  int64_t plain = 0;         // channels of a head of its own
  int64_t turning = 0;       // channels that all heads share
  int64_t values = 0;        // channels of a head's values, which stand behind its plain ones
  int64_t shared_pitch = 0;  // from the shared channels of one token to those of the next
};

// keys [tokens, heads, plain + turning] of expanded [tokens, heads, plain + values] and shared
// [tokens, turning], whose rows are a pitch apart. No overlap.
void latent_keys(const LatentKeys& shape, const void* expanded, const void* shared, void* keys,
                 ThreadPool& pool);
void latent_keys(const LatentKeys& shape, const void* expanded, const void* shared, void* keys,
                 const GpuStream& on);
// The plain channels of dexpanded, whose others are left alone, and dshared [tokens, turning], rows
// a pitch apart: the sum over heads, in fp32, rounded once.
void latent_keys_backward(const LatentKeys& shape, const void* dkeys, void* dexpanded,
                          void* dshared, ThreadPool& pool);
void latent_keys_backward(const LatentKeys& shape, const void* dkeys, void* dexpanded,
                          void* dshared, const GpuStream& on);

namespace reference {
// With dense rows of shared channels.
void latent_keys(const LatentKeys& shape, const double* expanded, const double* shared,
                 double* keys);
}  // namespace reference

}  // namespace ds::kernels
