#include "kernels/matmul/cublaslt_form.h"

#include "base/text.h"

namespace ds::kernels::cublaslt {
namespace {

// Whether the derivative of GELU is asked for in the product. Turn it off where the product and a
// kernel of our own after it were measured to be faster.
constexpr bool kFusesSlope = true;

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

const char* name_of(int64_t type) {
  switch (type) {
    case CUDA_R_32F:
      return "fp32";
    case CUDA_R_16F:
      return "fp16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    default:
      return nullptr;
  }
}

const char* words_of(int64_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return "";
    case CUBLASLT_EPILOGUE_BIAS:
      return ", with a bias";
    case CUBLASLT_EPILOGUE_GELU_AUX:
      return ", with GELU";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return ", with a bias and GELU";
    case CUBLASLT_EPILOGUE_DGELU:
      return ", times the derivative of GELU";
    case CUBLASLT_EPILOGUE_BGRADB:
      return ", with the sums of a bias' gradient";
    default:
      return nullptr;
  }
}

}  // namespace

// ---- keys ----

Key::Numbers Key::numbers() const {
  return {a,
          b,
          out,
          a_transposed,
          b_transposed,
          accumulate,
          tf32,
          fast_accumulation,
          epilogue,
          m,
          n,
          k,
          a_stride,
          b_stride,
          before_stride,
          to_stride,
          aux_stride,
          alignment[0],
          alignment[1],
          alignment[2],
          alignment[3],
          alignment[4],
          alignment[5],
          workspace};
}

std::optional<Key> Key::from(const Numbers& x, int gpu) {
  constexpr int64_t kMostSize = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostStride = int64_t{1} << 40;
  for (size_t i = 0; i < 3; ++i) {
    if (name_of(x[i]) == nullptr) return std::nullopt;
  }
  for (size_t i = 3; i < 8; ++i) {
    if (x[i] != 0 && x[i] != 1) return std::nullopt;
  }
  if (words_of(x[8]) == nullptr) return std::nullopt;
  for (size_t i = 9; i < 12; ++i) {
    if (x[i] < 1 || x[i] > kMostSize) return std::nullopt;
  }
  for (size_t i = 12; i < 17; ++i) {
    if (x[i] < 0 || x[i] > kMostStride) return std::nullopt;
  }
  Key key;
  for (size_t i = 17; i < 23; ++i) {
    if (x[i] < 1 || x[i] > 256 || (x[i] & (x[i] - 1)) != 0) return std::nullopt;
    key.alignment[i - 17] = static_cast<uint32_t>(x[i]);
  }
  if (x[23] < 0 || x[23] > kMostWorkspace) return std::nullopt;
  key.a = static_cast<cudaDataType>(x[0]);
  key.b = static_cast<cudaDataType>(x[1]);
  key.out = static_cast<cudaDataType>(x[2]);
  key.a_transposed = x[3] != 0;
  key.b_transposed = x[4] != 0;
  key.accumulate = x[5] != 0;
  key.tf32 = x[6] != 0;
  key.fast_accumulation = x[7] != 0;
  key.epilogue = static_cast<uint32_t>(x[8]);
  key.m = x[9];
  key.n = x[10];
  key.k = x[11];
  key.a_stride = x[12];
  key.b_stride = x[13];
  key.before_stride = x[14];
  key.to_stride = x[15];
  key.aux_stride = x[16];
  key.workspace = x[23];
  key.gpu = gpu;
  return key;
}

bool Key::has_vector() const {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

bool Key::has_aux() const {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

std::string Key::text() const {
  const auto matrix = [](cudaDataType type, int64_t rows, int64_t columns, bool transposed) {
    return str_cat(name_of(type), " [", rows, ", ", columns, "]",
                   transposed ? " (transposed)" : "");
  };
  return str_cat("the product of ", matrix(a, m, k, a_transposed), " and ",
                 matrix(b, k, n, b_transposed), " to ", name_of(out), words_of(epilogue),
                 accumulate ? ", added to what is there" : "");
}

size_t KeyHash::operator()(const Key& key) const {
  uint64_t hash = static_cast<uint64_t>(key.gpu);
  for (const int64_t number : key.numbers()) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

// ---- which form a problem has ----

int64_t bytes_of(cudaDataType type) {
  if (type == CUDA_R_32F) return 4;
  return type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}

bool bias_fits(const Matmul& p) {
  return p.bias == nullptr || (p.in == p.out && alignment_of(p.bias) >= 16);
}

bool activation_fits(const Matmul& p) {
  return p.activation == ActivationKind::kGeluTanh && p.out != MatmulType::kFloat32 &&
         p.pre != nullptr && p.pre_stride % 8 == 0 && alignment_of(p.pre) >= 16;
}

bool sums_fit(const Matmul& p, const float* sums) {
  return p.bias == nullptr && !p.activation && p.out == MatmulType::kFloat32 &&
         alignment_of(sums) >= 16;
}

bool slope_fits(const Matmul& p) {
  return kFusesSlope && activation_fits(p) && p.bias == nullptr && !p.accumulate;
}

bool codes_fit(const Fp8Matmul& p) {
  const auto fits = [](const void* at) { return at == nullptr || alignment_of(at) >= 16; };
  return p.m % 16 == 0 && p.n % 16 == 0 && p.k % 16 == 0 && fits(p.a) && fits(p.b) && fits(p.c) &&
         fits(p.bias) && fits(p.a_inverse) && fits(p.b_inverse) &&
         (p.bias == nullptr || p.out == MatmulType::kBFloat16) &&
         !(p.a_format == Fp8Format::kE5M2 && p.b_format == Fp8Format::kE5M2);
}

namespace {

// What depends on nothing but the problem is there; the limit of scratch is the caller's.
void complete(Form& f, const GpuStream& on) {
  f.key.gpu = on.gpu;
  f.key.alignment = {alignment_of(f.a),  alignment_of(f.b),      alignment_of(f.before),
                     alignment_of(f.to), alignment_of(f.vector), alignment_of(f.aux)};
}

}  // namespace

Form form_of(const Matmul& p, bool activate, const GpuStream& on) {
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
  key.tf32 = on.policy.tf32 && p.in == MatmulType::kFloat32;
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
  complete(f, on);
  return f;
}

Form form_times_slope(const Matmul& p, const GpuStream& on) {
  Form f = form_of(p, true, on);
  f.key.epilogue = CUBLASLT_EPILOGUE_DGELU;
  return f;
}

Form form_with_sums(const Matmul& p, const float* sums, const GpuStream& on) {
  Form f = form_of(p, false, on);
  f.vector = sums;
  f.key.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  complete(f, on);
  return f;
}

Form form_of(const Fp8Matmul& p, const GpuStream& on) {
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
  key.fast_accumulation = p.fast_accumulation;
  if (p.bias != nullptr) key.epilogue = CUBLASLT_EPILOGUE_BIAS;
  key.m = p.m;
  key.n = p.n;
  key.k = p.k;
  key.a_stride = key.b_stride = p.k;
  key.before_stride = key.to_stride = p.n;
  complete(f, on);
  return f;
}

}  // namespace ds::kernels::cublaslt
