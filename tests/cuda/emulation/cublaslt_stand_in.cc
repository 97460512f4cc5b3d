#include "cuda/emulation/cublaslt_stand_in.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/bfloat16.h"
#include "base/float16.h"

using ds::testing::CublasLtStandIn;

struct cublasLtContext {
  int gpu;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int8_t fast = 0;
  int32_t a_turned = CUBLAS_OP_N, b_turned = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* vector = nullptr;
  void* aux = nullptr;
  int64_t aux_stride = 0;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  int64_t rows, columns, stride;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

CublasLtStandIn& world() {
  static CublasLtStandIn it;
  return it;
}

using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex& mutex() {
  static std::recursive_mutex it;
  return it;
}

bool take_failure(const char* call, cublasStatus_t* status) {
  const Lock lock(mutex());
  auto& waiting = world().failures[call];
  if (waiting.empty()) return false;
  *status = waiting.front();
  waiting.pop_front();
  return true;
}

// ---- elements, and matrices by columns ----

double of_code(int exponent_bits, int mantissa_bits, uint8_t code) {
  const int bias = (1 << (exponent_bits - 1)) - 1, mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double sign = code < 0x80 ? 1 : -1, fraction = std::ldexp(mantissa, -mantissa_bits);
  // E4M3 has numbers at the largest exponent too, and one NaN.
  const bool last = exponent == (1 << exponent_bits) - 1;
  if (last && mantissa_bits == 2 && mantissa == 0) return sign * HUGE_VAL;
  if (last && (mantissa_bits == 2 || mantissa == 7)) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

double read(cudaDataType type, const void* data, int64_t index) {
  switch (type) {
    case CUDA_R_8F_E4M3:
      return of_code(4, 3, static_cast<const uint8_t*>(data)[index]);
    case CUDA_R_8F_E5M2:
      return of_code(5, 2, static_cast<const uint8_t*>(data)[index]);
    case CUDA_R_16F:
      return ds::to_float(static_cast<const ds::float16*>(data)[index]);
    case CUDA_R_16BF:
      return ds::to_float(static_cast<const ds::bfloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

void write(cudaDataType type, void* data, int64_t index, double value) {
  const auto rounded = static_cast<float>(value);
  switch (type) {
    case CUDA_R_16F:
      static_cast<ds::float16*>(data)[index] = ds::from_float<ds::float16>(rounded);
      break;
    case CUDA_R_16BF:
      static_cast<ds::bfloat16*>(data)[index] = ds::from_float<ds::bfloat16>(rounded);
      break;
    default:
      static_cast<float*>(data)[index] = rounded;
  }
}

struct Matrix {
  cublasLtMatrixLayoutOpaque_t layout;
  void* data = nullptr;
  double get(int64_t row, int64_t column) const {
    return read(layout.type, data, row + column * layout.stride);
  }
  void put(int64_t row, int64_t column, double value) const {
    write(layout.type, data, row + column * layout.stride, value);
  }
};

// A product, with copies of all that a caller may change afterwards.
struct Product {
  cublasLtMatmulDescOpaque_t operation;
  Matrix a, b, c, d;
  int64_t m() const { return d.layout.rows; }
  int64_t n() const { return d.layout.columns; }
  bool of_codes() const { return a.layout.type >= CUDA_R_8F_E4M3; }
  int64_t k() const { return operation.a_turned == CUBLAS_OP_N ? a.layout.columns : a.layout.rows; }
  bool has_bias() const { return (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_gelu() const {
    return operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_slope() const { return operation.epilogue == CUBLASLT_EPILOGUE_DGELU; }
  bool has_aux() const { return has_gelu() || has_slope(); }
  bool has_sums() const { return operation.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
};

double gelu(double v) {
  return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

double gelu_slope(double v) {
  const double kScale = 0.7978845608028654;
  const double t = std::tanh(kScale * (v + 0.044715 * v * v * v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kScale * (1 + 3 * 0.044715 * v * v);
}

void multiply(const Product& p, float alpha, float beta, double off) {
  double scale = alpha * (1 + off);
  if (p.operation.a_scale != nullptr) scale *= *p.operation.a_scale;
  if (p.operation.b_scale != nullptr) scale *= *p.operation.b_scale;
  const auto a = [&](int64_t row, int64_t i) {
    return p.operation.a_turned == CUBLAS_OP_N ? p.a.get(row, i) : p.a.get(i, row);
  };
  const auto b = [&](int64_t i, int64_t column) {
    return p.operation.b_turned == CUBLAS_OP_N ? p.b.get(i, column) : p.b.get(column, i);
  };
  for (int64_t column = 0; column < p.n(); ++column) {
    if (p.has_sums()) {
      double sum = 0;
      for (int64_t i = 0; i < p.k(); ++i) sum += b(i, column);
      write(p.d.layout.type, p.operation.vector, column, sum);
    }
    for (int64_t row = 0; row < p.m(); ++row) {
      double sum = 0;
      for (int64_t i = 0; i < p.k(); ++i) sum += a(row, i) * b(i, column);
      sum *= scale;
      if (p.has_bias()) sum += read(p.d.layout.type, p.operation.vector, row);
      if (beta != 0) sum += beta * p.c.get(row, column);
      const int64_t aux = row + column * p.operation.aux_stride;
      if (p.has_gelu()) {
        write(p.d.layout.type, p.operation.aux, aux, sum);
        sum = gelu(sum);
      } else if (p.has_slope()) {
        sum *= gelu_slope(read(p.d.layout.type, p.operation.aux, aux));
      }
      p.d.put(row, column, sum);
    }
  }
}

// ---- what cuBLASLt checks ----

// Of 8-bit codes on Hopper: one layout, everything in multiples of 16.
bool of_codes_consistent(const Product& p) {
  const cudaDataType out = p.d.layout.type;
  if (p.operation.a_turned != CUBLAS_OP_T || p.operation.b_turned != CUBLAS_OP_N) return false;
  if (p.b.layout.type < CUDA_R_8F_E4M3) return false;
  if (p.a.layout.type == CUDA_R_8F_E5M2 && p.b.layout.type == CUDA_R_8F_E5M2) return false;
  if (out != CUDA_R_16BF && out != CUDA_R_32F) return false;
  for (const Matrix* x : {&p.a, &p.b, &p.c, &p.d}) {
    if (x->layout.rows % 16 != 0 || x->layout.columns % 16 != 0) return false;
    if (x->layout.stride % 16 != 0 || reinterpret_cast<uintptr_t>(x->data) % 16 != 0) return false;
  }
  const uint32_t epilogue = p.operation.epilogue;
  return epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
         (epilogue == CUBLASLT_EPILOGUE_BIAS && p.operation.vector != nullptr &&
          out == CUDA_R_16BF);
}

bool consistent(const Product& p) {
  const auto turned = [](int32_t operation, const Matrix& x) {
    return operation == CUBLAS_OP_N ? std::pair(x.layout.rows, x.layout.columns)
                                    : std::pair(x.layout.columns, x.layout.rows);
  };
  const auto [m, k] = turned(p.operation.a_turned, p.a);
  const auto [k2, n] = turned(p.operation.b_turned, p.b);
  if (m != p.m() || n != p.n() || k != k2 || k < 1) return false;
  if (p.c.layout.rows != m || p.c.layout.columns != n || p.c.layout.type != p.d.layout.type) {
    return false;
  }
  for (const Matrix* x : {&p.a, &p.b, &p.c, &p.d}) {
    if (x->layout.stride < x->layout.rows) return false;
  }
  const cudaDataType in = p.a.layout.type, out = p.d.layout.type;
  if (p.operation.compute != CUBLAS_COMPUTE_32F && in != CUDA_R_32F) return false;
  if (p.operation.fast != 0 && !p.of_codes()) return false;
  if (p.of_codes()) return of_codes_consistent(p);
  if (p.operation.a_scale != nullptr || p.operation.b_scale != nullptr) return false;
  if (p.b.layout.type != in || (out != in && out != CUDA_R_32F)) return false;
  if ((p.has_bias() || p.has_sums()) && p.operation.vector == nullptr) return false;
  if (!p.has_aux()) return true;
  return p.operation.aux != nullptr && p.operation.aux_stride % 8 == 0 &&
         p.operation.aux_stride >= m;
}

// An algorithm remembers what it was chosen for.
struct Algorithm {
  uint64_t problem;
  uint64_t workspace;
  uint32_t alignment[4];
  uint64_t number;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

uint64_t hash_of(const Product& p) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto mix = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001B3u;
  };
  for (const Matrix* x : {&p.a, &p.b, &p.c, &p.d}) {
    mix(x->layout.type);
    mix(x->layout.rows);
    mix(x->layout.columns);
    mix(x->layout.stride);
  }
  mix(p.operation.a_turned);
  mix(p.operation.b_turned);
  mix(p.operation.epilogue);
  mix(p.operation.aux_stride);
  mix(p.operation.compute);
  mix(p.operation.fast);
  return hash;
}

void check_place(const cublasLtContext* handle, const char* call) {
  if (handle->gpu != world().current_gpu()) {
    world().violations.push_back(std::string(call) + " with the handle of another GPU");
  }
}

template <class Opaque, class... Values>
cublasStatus_t create(const char* call, Opaque** made, Values... values) {
  cublasStatus_t asked{};
  if (take_failure(call, &asked)) return asked;
  const Lock lock(mutex());
  *made = new Opaque{values...};
  ++world().descriptions;
  ++world().described;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Opaque>
cublasStatus_t destroy(Opaque* made) {
  delete made;
  const Lock lock(mutex());
  --world().descriptions;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t assign(Value& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

CublasLtStandIn* ds_cublaslt_stand_in() { return &world(); }

size_t cublasLtGetVersion() { return world().version; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    default:
      return "CUBLAS_STATUS_OTHER";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "as the stand-in was told"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const Lock lock(mutex());
  ++world().creates;
  cublasStatus_t asked{};
  if (take_failure("cublasLtCreate", &asked)) return asked;
  static cublasLtContext contexts[] = {{0}, {1}, {2}, {3}};
  *handle = &contexts[world().current_gpu()];
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasStatus_t status = create("cublasLtMatmulDescCreate", description);
  if (status == CUBLAS_STATUS_SUCCESS) (*description)->compute = compute;
  return status;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return destroy(description);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  cublasStatus_t asked{};
  if (take_failure("cublasLtMatmulDescSetAttribute", &asked)) return asked;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return assign(description->fast, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(description->a_turned, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(description->b_turned, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(description->vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(description->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(description->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(description->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(description->aux_stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  return create("cublasLtMatrixLayoutCreate", layout, type, static_cast<int64_t>(rows),
                static_cast<int64_t>(columns), stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create("cublasLtMatmulPreferenceCreate", preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference->alignment[3], value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  const Lock lock(mutex());
  CublasLtStandIn& w = world();
  check_place(handle, "cublasLtMatmulAlgoGetHeuristic");
  ++w.heuristics;
  *found = 0;
  cublasStatus_t asked{};
  if (take_failure("cublasLtMatmulAlgoGetHeuristic", &asked)) return asked;
  const Product p{*description, {*a}, {*b}, {*c}, {*d}};
  if (!consistent(p) || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    w.violations.emplace_back("sums of split products may be in the type of C");
  }
  for (const uint32_t epilogue : w.refused) {
    if (epilogue == p.operation.epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (w.no_algorithms) return CUBLAS_STATUS_SUCCESS;
  for (const size_t workspace : {w.workspace, w.least_workspace}) {
    if (workspace > preference->workspace) continue;
    const bool one = handle->gpu == w.other_proposals_on;
    *found = one ? 1 : std::min(wanted, static_cast<int>(w.seconds.size()));
    for (int i = 0; i < *found; ++i) {
      Algorithm algorithm{hash_of(p), workspace, {}, static_cast<uint64_t>(i)};
      std::memcpy(algorithm.alignment, preference->alignment, sizeof algorithm.alignment);
      results[i] = {};
      std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
      results[i].workspaceSize = workspace;
      results[i].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Lock lock(mutex());
  CublasLtStandIn& w = world();
  check_place(handle, "cublasLtMatmul");
  cublasStatus_t asked{};
  if (take_failure("cublasLtMatmul", &asked)) return asked;
  const Product p{*description,
                  {*a_layout, const_cast<void*>(a)},
                  {*b_layout, const_cast<void*>(b)},
                  {*c_layout, const_cast<void*>(c)},
                  {*d_layout, d}};
  if (!consistent(p)) return CUBLAS_STATUS_INVALID_VALUE;
  if (c == d && c_layout->stride != d_layout->stride) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm chosen;
  std::memcpy(&chosen, algorithm, sizeof chosen);
  if (chosen.problem != hash_of(p)) {
    w.violations.emplace_back("an algorithm of another problem");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (workspace_bytes < chosen.workspace || (workspace_bytes > 0 && workspace == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Matrix* const operands[] = {&p.a, &p.b, &p.c, &p.d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(operands[i]->data) % chosen.alignment[i] != 0) {
      w.violations.emplace_back("operand " + std::to_string(i) + " is not aligned as was said");
    }
  }
  if ((p.has_aux() && reinterpret_cast<uintptr_t>(p.operation.aux) % 16 != 0) ||
      reinterpret_cast<uintptr_t>(p.operation.vector) % 16 != 0) {
    w.violations.emplace_back("an operand of the epilogue is not aligned to 16 bytes");
  }
  w.products.push_back(p.operation.epilogue);
  w.workspaces.push_back(workspace_bytes);
  w.algorithms.push_back(static_cast<int>(chosen.number));
  w.gpus.push_back(handle->gpu);
  w.fast.push_back(p.operation.fast);
  w.compute.push_back(p.operation.compute);
  const float alpha_now = *static_cast<const float*>(alpha);
  const float beta_now = *static_cast<const float*>(beta);
  const double seconds = chosen.number < w.seconds.size() ? w.seconds[chosen.number] : 0;
  const int gpu = handle->gpu;
  const cudaError_t queued = w.queue(stream, [=] {
    world().take_time(gpu, seconds);
    if (chosen.workspace > 0) std::memset(workspace, 0xA5, chosen.workspace);
    multiply(p, alpha_now, beta_now, static_cast<double>(chosen.number) * 0x1p-22);
  });
  return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
