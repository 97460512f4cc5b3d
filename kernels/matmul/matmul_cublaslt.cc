// A row-major matrix is the transpose of a column-major one, so C = op(A) op(B) becomes
// C^T = op(B)^T op(A)^T: cuBLASLt's first operand is our B, its rows are our columns, and its bias,
// one number for each of its rows, is ours.
//
// Sums are fp32 and so are those of split products: other ways of splitting, which add in the type
// of C, are excluded. fp32 operands are multiplied as they are; TF32 would have to be asked for.
//
// For every form of problem cuBLASLt's heuristic is asked once and its first proposal kept. It
// computes nothing and takes no times, so all ranks with equal GPUs and libraries choose the same.
#include "kernels/matmul/matmul_cublaslt.h"

#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "kernels/matmul/cublaslt_library.h"

namespace ds::kernels::cublaslt {
namespace {

// What cuBLASLt recommends for Hopper; most algorithms need little of it or none.
constexpr int64_t kMostWorkspace = int64_t{32} << 20;
constexpr size_t kMostChoices = 8192;  // the cache begins anew then

// Whether the derivative of GELU is asked for in the product. Turn it off where the product and a
// kernel of our own after it were measured to be faster.
constexpr bool kFusesSlope = true;

// All that a choice may depend on.
struct Key {
  int gpu = 0;
  cudaDataType a{}, b{}, out{};
  bool a_transposed = false, b_transposed = false, accumulate = false;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, before_stride = 0, to_stride = 0, aux_stride = 0;
  std::array<uint32_t, 6> alignment{};  // of a, b, before, to, vector, aux
  int64_t workspace = 0;                // at most
  auto operator<=>(const Key&) const = default;
};

// A problem as cuBLASLt sees it, but for the exchange of a and b.
struct Form {
  Key key;
  float alpha = 1;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* before = nullptr;  // what to add; `to` when there is nothing
  void* to = nullptr;
  const void* vector = nullptr;  // the bias, or where sums go
  void* aux = nullptr;           // the arguments of the activation, written or read
  // What codes of 8 bits are multiplied with, on the GPU.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};

struct Choice {
  bool usable = false;
  cublasLtMatmulAlgo_t algorithm{};
  int64_t workspace = 0;
};

// CUDA may be gone before the process ends, so this is never destroyed.
struct State {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;  // null: the GPU has none
  std::map<Key, Choice> choices;
};
State& state() {
  static State& it = *new State;
  return it;
}

// The largest power of two up to 256 that divides the address.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

cudaDataType data_type(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cudaDataType data_type(MatmulType type) {
  switch (type) {
    case MatmulType::kBFloat16:
      return CUDA_R_16BF;
    case MatmulType::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// ---- which form a problem has ----

template <class Problem>
bool sizes_fit(const Problem& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return p.k > 0 && p.m <= kMost && p.n <= kMost && p.k <= kMost;
}

// A bias has the type of C there, and not every kernel reads one that lies anywhere.
bool bias_fits(const Matmul& p) {
  return p.bias == nullptr || (p.in == p.out && alignment_of(p.bias) >= 16);
}

// GELU by its tanh form is the only activation that is ours: ReLU there hides NaN. Without `pre` it
// would be another form with other algorithms, so that passes which keep `pre` and passes which do
// not would differ in bits.
bool activation_fits(const Matmul& p) {
  return p.activation == ActivationKind::kGeluTanh && p.pre != nullptr && p.pre_stride % 8 == 0 &&
         alignment_of(p.pre) >= 16;
}

Form form_of(const Matmul& p, bool activate) {
  Form f;
  f.alpha = p.alpha;
  f.a = p.a.data;
  f.b = p.b.data;
  f.vector = p.bias;
  const bool argument_apart = p.activation && p.pre != nullptr && !activate;
  f.to = argument_apart ? p.pre : p.c;
  f.before = p.accumulate ? p.c : f.to;
  f.aux = activate ? p.pre : nullptr;

  Key& key = f.key;
  key.a = key.b = data_type(p.in);
  key.out = data_type(p.out);
  key.a_transposed = p.a.transposed;
  key.b_transposed = p.b.transposed;
  key.accumulate = p.accumulate;
  key.m = p.m;
  key.n = p.n;
  key.k = p.k;
  key.a_stride = p.a.stride;
  key.b_stride = p.b.stride;
  key.to_stride = argument_apart ? p.pre_stride : p.c_stride;
  key.before_stride = p.accumulate ? p.c_stride : key.to_stride;
  key.aux_stride = activate ? p.pre_stride : 0;
  if (activate) {
    key.epilogue = p.bias != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  } else if (p.bias != nullptr) {
    key.epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  return f;
}

// Sums over k of the second operand, in the type of C.
bool sums_fit(const Matmul& p, const float* sums) {
  return p.bias == nullptr && !p.activation && p.out == MatmulType::kFloat32 &&
         alignment_of(sums) >= 16;
}

// Its aux is what the forward product wrote, by the same rules.
bool slope_fits(const Matmul& p) {
  return kFusesSlope && activation_fits(p) && p.bias == nullptr && !p.accumulate;
}

Form form_times_slope(const Matmul& p) {
  Form f = form_of(p, true);
  f.key.epilogue = CUBLASLT_EPILOGUE_DGELU;
  return f;
}

// On Hopper codes of 8 bits are multiplied in one layout, by rows of k, in multiples of 16; sums
// are kept in fp32 throughout (cuBLASLt's fast accumulation would have to be asked for).
bool codes_fit(const Fp8Matmul& p) {
  const auto fits = [](const void* at) { return at == nullptr || alignment_of(at) >= 16; };
  return p.m % 16 == 0 && p.n % 16 == 0 && p.k % 16 == 0 && fits(p.a) && fits(p.b) && fits(p.c) &&
         fits(p.bias) && (p.bias == nullptr || p.out == MatmulType::kBFloat16) &&
         !(p.a_format == Fp8Format::kE5M2 && p.b_format == Fp8Format::kE5M2);
}

Form form_of(const Fp8Matmul& p) {
  Form f;
  f.a = p.a;
  f.b = p.b;
  f.before = f.to = p.c;
  f.vector = p.bias;
  f.a_scale = p.a_inverse;
  f.b_scale = p.b_inverse;
  Key& key = f.key;
  key.a = data_type(p.a_format);
  key.b = data_type(p.b_format);
  key.out = data_type(p.out);
  key.b_transposed = true;
  key.accumulate = p.accumulate;
  if (p.bias != nullptr) key.epilogue = CUBLASLT_EPILOGUE_BIAS;
  key.m = p.m;
  key.n = p.n;
  key.k = p.k;
  key.a_stride = key.b_stride = p.k;
  key.before_stride = key.to_stride = p.n;
  return f;
}

Form form_with_sums(const Matmul& p, const float* sums) {
  Form f = form_of(p, false);
  f.vector = sums;
  f.key.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  return f;
}

// ---- cuBLASLt's descriptions ----

void check(const Library& lib, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail(Code::kDevice, "CUDA: ", lib.name, ": ", what, " failed: ", lib.text(status));
}

template <class Opaque>
using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

struct Descriptions {
  Owned<cublasLtMatmulDescOpaque_t> operation;
  Owned<cublasLtMatrixLayoutOpaque_t> first, second, before, to;
};

Descriptions describe(const Library& lib, const Form& f) {
  const Key& key = f.key;
  cublasLtMatmulDesc_t operation = nullptr;
  check(lib, lib.operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  const auto layout = [&](cudaDataType type, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(lib,
          lib.layout_create(&made, type, static_cast<uint64_t>(rows),
                            static_cast<uint64_t>(columns), stride),
          "describing a matrix");
    return Owned<cublasLtMatrixLayoutOpaque_t>(made, lib.layout_destroy);
  };
  // As stored: B is n x k when it is not transposed (here its row is cuBLASLt's column).
  Owned<cublasLtMatmulDescOpaque_t> owned(operation, lib.operation_destroy);
  Descriptions d{std::move(owned),
                 key.b_transposed ? layout(key.b, key.k, key.n, key.b_stride)
                                  : layout(key.b, key.n, key.k, key.b_stride),
                 key.a_transposed ? layout(key.a, key.m, key.k, key.a_stride)
                                  : layout(key.a, key.k, key.m, key.a_stride),
                 layout(key.out, key.n, key.m, key.before_stride),
                 layout(key.out, key.n, key.m, key.to_stride)};
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(lib, lib.operation_set(operation, attribute, &value, sizeof value),
          "describing a product");
  };
  const auto turned = [](bool transposed) {
    return static_cast<int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, turned(key.b_transposed));
  set(CUBLASLT_MATMUL_DESC_TRANSB, turned(key.a_transposed));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue);
  if (f.vector != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, f.vector);
  if (f.a_scale != nullptr) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, f.b_scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, f.a_scale);
  }
  if (f.aux != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, f.aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.aux_stride);
  }
  return d;
}

// ---- the choice of an algorithm ----

bool refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

Choice ask(const Library& lib, cublasLtHandle_t handle, const Form& f, const Descriptions& d) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib, lib.preference_create(&preference), "describing a choice");
  const Owned<cublasLtMatmulPreferenceOpaque_t> owned(preference, lib.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lib, lib.preference_set(preference, attribute, &value, sizeof value),
          "describing a choice");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(f.key.workspace));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, f.key.alignment[1]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, f.key.alignment[0]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, f.key.alignment[2]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, f.key.alignment[3]);

  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      lib.heuristic(handle, d.operation.get(), d.first.get(), d.second.get(), d.before.get(),
                    d.to.get(), preference, 1, &found, &count);
  if (refuses(status)) return {};
  check(lib, status, "choosing an algorithm");
  const auto bytes = static_cast<int64_t>(found.workspaceSize);
  if (count < 1 || found.state != CUBLAS_STATUS_SUCCESS || bytes > f.key.workspace) return {};
  return {true, found.algo, bytes};
}

// What a current GPU has for all products. `handle` is null where cuBLASLt is not used.
struct Place {
  const Library& lib;
  int gpu = 0;
  cublasLtHandle_t handle = nullptr;
};

Place place() {
  Place here{library()};
  if (!here.lib.usable()) return here;
  const cudaError_t found = cudaGetDevice(&here.gpu);
  DS_CHECK(found == cudaSuccess, Code::kDevice,
           "CUDA: asking for the current GPU failed: ", cudaGetErrorName(found));
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto [at, fresh] = all.handles.try_emplace(here.gpu, nullptr);
  if (fresh) {
    const cublasStatus_t status = here.lib.create(&at->second);
    if (status != CUBLAS_STATUS_SUCCESS) {
      at->second = nullptr;
      log_warning("cuda", here.lib.name, " does not start on cuda:", here.gpu, ": ",
                  here.lib.text(status), "; matrix products there have kernels of our own");
    }
  }
  here.handle = at->second;
  return here;
}

// The choice for the form with up to `workspace` bytes of scratch.
Choice choose(const Place& here, Form& f, int64_t workspace) {
  f.key.gpu = here.gpu;
  f.key.workspace = workspace;
  f.key.alignment = {alignment_of(f.a),  alignment_of(f.b),      alignment_of(f.before),
                     alignment_of(f.to), alignment_of(f.vector), alignment_of(f.aux)};
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.choices.find(f.key); known != all.choices.end()) return known->second;
  const Choice choice = ask(here.lib, here.handle, f, describe(here.lib, f));
  if (all.choices.size() >= kMostChoices) all.choices.clear();
  all.choices.emplace(f.key, choice);
  return choice;
}

// False when the form is refused.
template <class Problem>
bool queue(const Place& here, const Problem& p, Form f, const GpuStream& on) {
  Choice choice = choose(here, f, kMostWorkspace);
  if (choice.usable && choice.workspace > p.workspace_bytes) {
    choice = choose(here, f, p.workspace_bytes);
  }
  if (!choice.usable) return false;
  const Descriptions d = describe(here.lib, f);
  const float beta = f.key.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status = here.lib.matmul(
      here.handle, d.operation.get(), &f.alpha, f.b, d.first.get(), f.a, d.second.get(), &beta,
      f.before, d.before.get(), f.to, d.to.get(), &choice.algorithm, p.workspace,
      static_cast<size_t>(choice.workspace), static_cast<cudaStream_t>(on.native));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) {
    State& all = state();
    const std::lock_guard lock(all.mutex);
    all.choices[f.key].usable = false;
    return false;
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(Code::kDevice, "CUDA: ", here.lib.name, ": the product of [", p.m, ", ", p.k, "] and [",
         p.k, ", ", p.n, "] failed: ", here.lib.text(status));
  }
  return true;
}

}  // namespace

Done multiply(const Matmul& p, const GpuStream& on) {
  if (!sizes_fit(p) || !bias_fits(p)) return Done::kNothing;
  const Place here = place();
  if (here.handle == nullptr) return Done::kNothing;
  if (activation_fits(p) && queue(here, p, form_of(p, true), on)) return Done::kAll;
  if (!queue(here, p, form_of(p, false), on)) return Done::kNothing;
  return p.activation ? Done::kArguments : Done::kAll;
}

bool multiply_with_sums(const Matmul& p, float* sums, const GpuStream& on) {
  if (!sizes_fit(p) || !sums_fit(p, sums)) return false;
  const Place here = place();
  return here.handle != nullptr && queue(here, p, form_with_sums(p, sums), on);
}

bool multiply_times_slope(const Matmul& p, const GpuStream& on) {
  if (!sizes_fit(p) || !slope_fits(p)) return false;
  const Place here = place();
  return here.handle != nullptr && queue(here, p, form_times_slope(p), on);
}

std::optional<int64_t> workspace(const Matmul& p, MatmulExtra extra, const float* sums) {
  if (!sizes_fit(p) || !bias_fits(p)) return std::nullopt;
  const Place here = place();
  if (here.handle == nullptr) return std::nullopt;
  const auto scratch = [&](Form f) -> std::optional<int64_t> {
    const Choice choice = choose(here, f, kMostWorkspace);
    return choice.usable ? std::optional(choice.workspace) : std::nullopt;
  };
  std::optional<int64_t> bytes;
  if (extra == MatmulExtra::kSlope) return slope_fits(p) ? scratch(form_times_slope(p)) : bytes;
  if (extra == MatmulExtra::kSums && sums_fit(p, sums)) bytes = scratch(form_with_sums(p, sums));
  if (!bytes && activation_fits(p)) bytes = scratch(form_of(p, true));
  return bytes ? bytes : scratch(form_of(p, false));
}

bool multiply_fp8(const Fp8Matmul& p, const GpuStream& on) {
  if (!sizes_fit(p) || !codes_fit(p)) return false;
  const Place here = place();
  return here.handle != nullptr && queue(here, p, form_of(p), on);
}

std::optional<int64_t> workspace_fp8(const Fp8Matmul& p) {
  if (!sizes_fit(p) || !codes_fit(p)) return std::nullopt;
  const Place here = place();
  if (here.handle == nullptr) return std::nullopt;
  Form f = form_of(p);
  const Choice choice = choose(here, f, kMostWorkspace);
  return choice.usable ? std::optional(choice.workspace) : std::nullopt;
}

}  // namespace ds::kernels::cublaslt
