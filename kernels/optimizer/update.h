// Optimizer updates over flat arrays: one pass that widens the gradient, reads master and state,
// applies a rule and writes everything back, in blocks that stay in the first-level cache.
//
// The arrays of a call are one run: n consecutive elements of the flat space. Pieces cut it into
// parts with their own constants; elements between pieces are left alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/bfloat16.h"
#include "base/exact_sum.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/optimizer/update_gate.h"

namespace ds::kernels {

enum class UpdateRule {
  kAdam,          // states: exp_avg, exp_avg_sq
  kAdagrad,       // state: sum
  kLion,          // state: exp_avg
  kSgd,           // no state
  kMomentum,      // SGD with momentum; state: momentum_buffer
  kLambMoments,   // states as kAdam; leaves p alone and adds up `norms`
  kLambApply,     // after kLambMoments, with the trust ratio in the constants
  kMuonMomentum,  // state: momentum_buffer; writes the direction over p
  kAmsgrad,       // states as kAdam, and max_exp_avg_sq
  kNadam,         // states as kAdam
  // Of these the names say which states follow square_avg: momentum_buffer, then grad_avg.
  kRmsprop,
  kRmspropMomentum,
  kRmspropCentered,
  kRmspropCenteredMomentum,
};
int update_states(UpdateRule rule);  // state arrays of a rule
inline constexpr int kMostStates = 3;

// What the loops multiply by, worked out in double and rounded once. A rule uses the members that
// its formula names.
struct UpdateConstants {
  float grad_scale = 1;  // g = grad * grad_scale + coupled_decay * p
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float root_scale = 1;
  float eps = 0;
  float step_size = 0;
  float grad_step = 0;  // kNadam: what the gradient itself is multiplied by
  float coupled_decay = 0;
  float decoupled_decay = 0;  // p loses this part of itself, apart from the update
  bool variant = false;       // kMomentum: Nesterov; LAMB: eps inside the square root
};

// [begin, end) of the run with constants[hyper]. Sorted, without overlap, each within one chunk.
struct UpdatePiece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t hyper = 0;
};

// Chunks are what threads share; blocks are what 8-bit states share a scale over.
inline constexpr int64_t kUpdateChunk = int64_t{1} << 15;
inline constexpr int64_t kStateBlock = 256;
inline constexpr int64_t kNormBlock = 32;

enum class StateKind { kNone, kFp32, kBf16, kInt8, kUInt8 };

struct StateArray {
  StateKind kind = StateKind::kNone;
  void* data = nullptr;
  float* scales = nullptr;  // 8-bit: one per kStateBlock elements
};

enum class NumberKind { kNone, kFp32, kBf16, kFp16 };

struct UpdateArrays {
  int64_t n = 0;
  // Or null: split into `weight` and `low` (see split_master.h); or, without `low`, `model` is the
  // master itself, rounded to the nearest even by every update (not on a GPU).
  float* master = nullptr;
  bfloat16* weight = nullptr;
  uint16_t* low = nullptr;
  NumberKind model_kind = NumberKind::kNone;  // kBf16 or kFp16: a rounded copy of the master
  void* model = nullptr;
  NumberKind grad_kind = NumberKind::kFp32;
  const void* grad = nullptr;
  StateArray state[kMostStates];
  // LAMB: per piece, the sums of p * p and of the update's squares: in double within blocks of
  // kNormBlock elements and exactly beyond, so that a tensor cut at multiples of it has one norm.
  ExactSum* norms = nullptr;
  int64_t* norm_words = nullptr;  // on a GPU instead: their words, written with carries done
  // On a GPU, where given: a closed one leaves everything as it is, an open one's scale takes the
  // place of the constants'. It is read when the update runs.
  const UpdateGate* gate = nullptr;
};

// `first` holds, for every chunk of the run and one beyond, the index of its first piece.
void optimizer_update(UpdateRule rule, std::span<const UpdateConstants> constants,
                      std::span<const UpdatePiece> pieces, std::span<const int64_t> first,
                      const UpdateArrays& arrays, ThreadPool& pool);
// The same on a GPU. Pieces and `first` lie in its memory, and so do more than kFewConstants
// constants; so few travel with the launch instead, and may go when the call returns.
inline constexpr size_t kFewConstants = 64;
void optimizer_update(UpdateRule rule, std::span<const UpdateConstants> constants,
                      std::span<const UpdatePiece> pieces, std::span<const int64_t> first,
                      const UpdateArrays& arrays, const GpuStream& on);

// Elements [begin, begin + n) of a state as fp32, and back. 8-bit blocks that are written in part
// keep the values of their other elements up to requantisation; `elements` is the array's length.
void read_state(const StateArray& state, int64_t elements, int64_t begin, int64_t n, float* out);
void write_state(const StateArray& state, int64_t elements, int64_t begin, int64_t n,
                 const float* values);

// ---- hyperparameters and references ----

struct UpdateHyper {
  double lr = 1e-3;
  double beta1 = 0.9;    // momentum of SGD, RMSprop and Muon too
  double beta2 = 0.999;  // alpha of RMSprop
  double eps = 1e-8;
  double weight_decay = 0;
  double dampening = 0;
  bool nesterov = false;
  bool decoupled = true;  // Adam: AdamW, else L2 added to the gradient
  bool bias_correction = true;
  bool eps_inside_sqrt = false;  // LAMB, like the next two
  double min_coeff = 0.01;
  double max_coeff = 10;
  double lr_decay = 0;          // Adagrad
  double momentum_decay = 0;    // NAdam
  double momentum_product = 0;  // NAdam: of nadam_momentum(hyper, t) for t = 1 to step
  int64_t step = 1;
  float grad_scale = 1;
};
// The momentum of NAdam's step t.
double nadam_momentum(double beta1, double momentum_decay, int64_t t);

// 1 - beta^t without the cancellation of small t * (1 - beta); and that of the step, where moments
// are corrected, else 1.
double one_minus_power(double beta, int64_t t);
double bias_correction(const UpdateHyper& hyper, double beta);
// The weight decay in the one form or the other.
void set_decay(const UpdateHyper& hyper, bool decoupled, UpdateConstants& c);
// What all rules have in common.
UpdateConstants common_constants(const UpdateHyper& hyper);

// What a rule needs, worked out in double. kLambApply's step_size lacks the trust ratio;
// kMuonMomentum needs no more than beta1 and grad_scale.
UpdateConstants update_constants(UpdateRule rule, const UpdateHyper& hyper);
// The same for kLambApply of tensors that have all but their trust ratio in common.
class LambConstants {
 public:
  explicit LambConstants(const UpdateHyper& hyper);
  UpdateConstants with(double ratio) const {
    UpdateConstants c = common_;
    c.step_size = static_cast<float>(rate_ * ratio * root_ / first_);
    return c;
  }

 private:
  UpdateConstants common_;
  double rate_, root_, first_;  // step_size is rate_ * root_ / first_
};
// ‖p‖ / ‖u‖ within the bounds, from sums of squares; 1 when either is zero.
double lamb_ratio(const UpdateHyper& hyper, double weight_squares, double update_squares);

// update_ref.cc: scalar double precision, formulas as published.
namespace reference {

// `most` is max_exp_avg_sq of AMSGrad, null without.
void adam(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m, double* v,
          double* most = nullptr);
void nadam(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m,
           double* v);
// `buffer` is null without momentum, `mean` unless centered.
void rmsprop(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* square,
             double* buffer, double* mean);
void adagrad(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* sum);
void lion(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m);
void sgd(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* buffer);
// One tensor; returns the trust ratio.
double lamb(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m,
            double* v);

}  // namespace reference
}  // namespace ds::kernels
