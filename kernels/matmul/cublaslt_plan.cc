#include "kernels/matmul/cublaslt_plan.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/log.h"
#include "kernels/matmul/product_timer.h"

namespace ds::kernels::cublaslt {
namespace {

bool refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

// Thrown where cuBLASLt does not take what it is asked for, which own kernels do instead.
struct Refusal {
  const char* what;
  cublasStatus_t status;
};

void check(const Library& lib, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  if (refuses(status)) throw Refusal{what, status};
  fail(Code::kDevice, "CUDA: ", lib.name, ": ", what, " failed: ", lib.text(status));
}

int32_t transpose_op(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

Plan::Plan(const Library& lib, cublasLtHandle_t handle, const Form& form, int most)
    : lib_(lib),
      handle_(handle),
      key_(form.key),
      operation_(nullptr, lib.operation_destroy),
      first_(nullptr, lib.layout_destroy),
      second_(nullptr, lib.layout_destroy),
      before_(nullptr, lib.layout_destroy),
      to_(nullptr, lib.layout_destroy) {
  try {
    describe(form);
    ask(most);
  } catch (const Refusal& refusal) {
    refuse(refusal.what, refusal.status, refusal.status == CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

template <class T>
void Plan::set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(lib_, lib_.operation_set(operation_.get(), attribute, &value, sizeof value),
        "describing a product");
}

void Plan::describe(const Form& form) {
  const cublasComputeType_t compute = key_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t operation = nullptr;
  check(lib_, lib_.operation_create(&operation, compute, CUDA_R_32F), "describing a product");
  operation_.reset(operation);
  const auto layout = [&](cudaDataType type, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(lib_,
          lib_.layout_create(&made, type, static_cast<uint64_t>(rows),
                             static_cast<uint64_t>(columns), stride),
          "describing a matrix");
    return made;
  };
  first_.reset(key_.b_transposed ? layout(key_.b, key_.k, key_.n, key_.b_stride)
                                 : layout(key_.b, key_.n, key_.k, key_.b_stride));
  second_.reset(key_.a_transposed ? layout(key_.a, key_.m, key_.k, key_.a_stride)
                                  : layout(key_.a, key_.k, key_.m, key_.a_stride));
  before_.reset(layout(key_.out, key_.n, key_.m, key_.before_stride));
  to_.reset(layout(key_.out, key_.n, key_.m, key_.to_stride));
  set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_op(key_.b_transposed));
  set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_op(key_.a_transposed));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, key_.epilogue);
  if (key_.has_aux()) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key_.aux_stride);
  if (key_.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  point(form);
}

// What differs between products of a form.
void Plan::point(const Form& form) {
  if (key_.has_vector() && form.vector != vector_) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, form.vector);
    vector_ = form.vector;
  }
  if (key_.has_aux() && form.aux != aux_) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, form.aux);
    aux_ = form.aux;
  }
  if (!key_.of_codes()) return;
  if (form.b_scale != b_scale_) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, form.b_scale);
    b_scale_ = form.b_scale;
  }
  if (form.a_scale != a_scale_) {
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, form.a_scale);
    a_scale_ = form.a_scale;
  }
}

// ---- proposals ----

void Plan::ask(int most) {
  constexpr const char* kWhat = "describing a choice";
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib_, lib_.preference_create(&preference), kWhat);
  const Owned<cublasLtMatmulPreferenceOpaque_t> owned(preference, lib_.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lib_, lib_.preference_set(preference, attribute, &value, sizeof value), kWhat);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(key_.workspace));
  // Sums are fp32 and so are those of split products: other ways of splitting add in the type of C.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.alignment[1]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.alignment[0]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.alignment[2]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.alignment[3]);

  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  check(lib_,
        lib_.heuristic(handle_, operation_.get(), first_.get(), second_.get(), before_.get(),
                       to_.get(), preference, most, found.data(), &count),
        "choosing an algorithm");
  for (int i = 0; i < std::min(count, most); ++i) {
    const cublasLtMatmulHeuristicResult_t& one = found[static_cast<size_t>(i)];
    const auto bytes = static_cast<int64_t>(one.workspaceSize);
    if (one.state != CUBLAS_STATUS_SUCCESS || bytes > key_.workspace) continue;
    proposals_.push_back({one.algo, bytes});
    most_workspace_ = std::max(most_workspace_, bytes);
  }
  if (proposals_.empty()) throw Refusal{"choosing an algorithm", CUBLAS_STATUS_NOT_SUPPORTED};
  keep(0);
}

void Plan::keep(size_t index) {
  chosen_ = index;
  needs_.store(proposals_[index].workspace, std::memory_order_relaxed);
}

bool Plan::choose(int64_t index, int64_t workspace) {
  const std::lock_guard lock(mutex_);
  if (!usable() || index < 0 || index >= static_cast<int64_t>(proposals_.size())) return false;
  const auto at = static_cast<size_t>(index);
  if (proposals_[at].workspace != workspace) return false;
  keep(at);
  timed_ = true;
  return true;
}

Plan::Choice Plan::choice() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<int64_t>(chosen_), needs_.load(std::memory_order_relaxed)};
}

// `expected`: cuBLASLt has no algorithm for many forms.
void Plan::refuse(const char* what, cublasStatus_t status, bool expected) {
  needs_.store(-1, std::memory_order_relaxed);
  proposals_.clear();
  const std::string text = str_cat(lib_.name, " refuses ", key_.text(), " (", what, ": ",
                                   lib_.text(status), "); kernels of our own take it");
  if (expected) {
    log_info("cuda", text);
  } else {
    log_warning("cuda", text);
  }
}

// ---- products ----

cublasStatus_t Plan::queue(const Proposal& proposal, const Form& form, const Scratch& scratch,
                           cudaStream_t stream) const {
  const float beta = key_.accumulate ? 1.0f : 0.0f;
  return lib_.matmul(handle_, operation_.get(), &form.alpha, form.b, first_.get(), form.a,
                     second_.get(), &beta, form.before, before_.get(), form.to, to_.get(),
                     &proposal.algorithm, scratch.memory, static_cast<size_t>(proposal.workspace),
                     stream);
}

bool Plan::run(const Form& form, const Scratch& scratch, cudaStream_t stream, bool timing) {
  const std::lock_guard lock(mutex_);
  if (!usable()) return false;
  try {
    point(form);
    if (timing && !timed() && !stream_records(stream)) time(form, scratch, stream);
    const cublasStatus_t status = queue(proposals_[chosen_], form, scratch, stream);
    if (status != CUBLAS_STATUS_SUCCESS && !refuses(status)) {
      fail(Code::kDevice, "CUDA: ", lib_.name, ": ", key_.text(), " failed: ", lib_.text(status));
    }
    check(lib_, status, "multiplying");
    return true;
  } catch (const Refusal& refusal) {
    refuse(refusal.what, refusal.status, false);
  }
  return false;
}

// The fastest of some runs of each proposal counts. Where a product adds to what is there, they
// write elsewhere; everything else that a product writes, the one that follows writes again.
void Plan::time(const Form& form, const Scratch& scratch, cudaStream_t stream) {
  Form trial = form;
  ApartMemory apart;
  timed_ = true;
  if (key_.accumulate) {
    const int64_t bytes = ((key_.m - 1) * key_.to_stride + key_.n) * bytes_of(key_.out);
    const int64_t first = (most_workspace_ + 255) / 256 * 256;
    if (scratch.bytes >= first + bytes) {
      trial.to = static_cast<std::byte*>(scratch.memory) + first;
    } else if (apart.take(bytes)) {
      trial.to = apart.memory();
    } else {
      return log_info("cuda", key_.text(), " is not timed: there are no ", format_bytes(bytes),
                      " of memory for it; the first algorithm is taken");
    }
  }
  ProductTimer timer(stream);
  std::optional<size_t> best;
  double least = 0, of_first = 0;
  cublasStatus_t last = CUBLAS_STATUS_NOT_SUPPORTED;
  for (size_t i = 0; i < proposals_.size(); ++i) {
    if (proposals_[i].workspace > scratch.bytes) continue;
    const double seconds = timer.fastest([&] {
      last = queue(proposals_[i], trial, scratch, stream);
      if (last != CUBLAS_STATUS_SUCCESS && !refuses(last)) check(lib_, last, "timing a product");
      return last == CUBLAS_STATUS_SUCCESS;
    });
    if (seconds < 0) continue;
    if (i == 0) of_first = seconds;
    if (!best || seconds < least) {
      best = i;
      least = seconds;
    }
  }
  if (!best) throw Refusal{"timing", last};
  keep(*best);
  log_info("cuda", key_.text(), ": of ", proposals_.size(), " algorithms number ", *best + 1,
           " is taken, ", least * 1e6, " us (the first: ", of_first * 1e6, " us)");
}

}  // namespace ds::kernels::cublaslt
