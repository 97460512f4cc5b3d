#include "capi/report.h"
#include "capi/system_memory.h"

#include <hwy/highway.h>
#include <isa-l.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>

#include <flatbuffers/base.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "capi/cpu_features.h"
#include "comm/nccl/nccl_library.h"
#include "device/cuda_device.h"
#include "ds.h"
#include "io/backend.h"
#include "kernels/cuda/libraries.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize/quantized_matmul.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ds::capi {
namespace {

std::string version_text(int major, int minor, int patch) {
  return str_cat(major, ".", minor, ".", patch);
}

Json build_section() {
  Json build = Json::object();
#if defined(__clang__)
  build["compiler"] = str_cat("clang ", __clang_version__);
#else
  build["compiler"] = str_cat("gcc ", __VERSION__);
#endif
  build["type"] = DS_BUILD_TYPE;
  build["sanitizers"] = DS_BUILD_SANITIZE;
  build["cuda"] = DS_BUILD_CUDA != 0;
#if defined(__x86_64__)
  build["architecture"] = "x86_64";
#elif defined(__aarch64__)
  build["architecture"] = "aarch64";
#else
  build["architecture"] = "other";
#endif
  return build;
}

std::string pcre2_version() {
  const int size = pcre2_config(PCRE2_CONFIG_VERSION, nullptr);
  if (size <= 0) return "unknown";
  std::string text(static_cast<size_t>(size), '\0');
  if (pcre2_config(PCRE2_CONFIG_VERSION, text.data()) <= 0) return "unknown";
  return text.substr(0, text.find_first_of(std::string_view("\0 ", 2)));
}

// The versions of what is loaded, where a library can say it; else of the headers compiled in.
Json libraries_section() {
  Json libraries = Json::object();
  libraries["Highway"] = version_text(HWY_MAJOR, HWY_MINOR, HWY_PATCH);
  libraries["FlatBuffers"] = version_text(FLATBUFFERS_VERSION_MAJOR, FLATBUFFERS_VERSION_MINOR,
                                          FLATBUFFERS_VERSION_REVISION);
  libraries["PCRE2"] = pcre2_version();
  libraries["utf8proc"] = utf8proc_version();
  libraries["nlohmann-json"] = version_text(
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  libraries["ISA-L"] = version_text(ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION);
  const std::string cuda = cuda_runtime_version();
  if (!cuda.empty()) libraries["CUDA runtime"] = cuda;
  libraries["xxHash"] = version_text(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
  return libraries;
}

Json kernels_section() {
  Json compiled = Json::array();
  Json usable = Json::array();
  const int64_t supported = hwy::SupportedTargets();
  std::string chosen = "none";
  // Highway numbers better targets with lower bits and runs the best one.
  for (int bit = 62; bit >= 0; --bit) {
    const int64_t target = int64_t{1} << bit;
    if ((HWY_TARGETS & target) == 0) continue;
    compiled.push_back(hwy::TargetName(target));
    if ((supported & target) == 0) continue;
    usable.push_back(hwy::TargetName(target));
    chosen = hwy::TargetName(target);
  }
  Json out = Json::object();
  out["simd_compiled"] = std::move(compiled);
  out["simd_usable"] = std::move(usable);
  out["simd_chosen"] = chosen;
  using kernels::matmul_kernel_name;
  using kernels::MatmulType;
  out["matrix_products"] = {{"float32", matmul_kernel_name(MatmulType::kFloat32)},
                            {"bfloat16", matmul_kernel_name(MatmulType::kBFloat16)},
                            {"float16", matmul_kernel_name(MatmulType::kFloat16)}};
  return out;
}

Json cpu_section(const CpuFeatures& cpu) {
  Json section = Json::object();
  section["model"] = cpu.model;
  Json features = Json::object();
  for (const CpuFeature& feature : cpu.features) features[feature.name] = feature.usable;
  section["features"] = std::move(features);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  section["online"] = static_cast<int64_t>(online);
  section["allowed"] = ThreadPool::available_cpus();
  return section;
}

Json feature(std::string_view name, bool usable, std::string_view reason) {
  Json entry = Json::object();
  entry["feature"] = name;
  entry["usable"] = usable;
  entry["reason"] = reason;
  return entry;
}

std::string_view huge_pages_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  if (!std::getline(file, line)) return "";
  for (const std::string_view mode : {"always", "madvise", "never"}) {
    if (line.find(str_cat("[", mode, "]")) != std::string::npos) return mode;
  }
  return "";
}

Json nccl_entry() {
  try {
    const auto nccl = comm::nccl::open_library("");
    return feature(
        "NCCL", true,
        str_cat("NCCL ", comm::nccl::version_text(nccl->version), " (", nccl->path, ")"));
  } catch (const Error& error) {
    return feature("NCCL", false, error.message());
  }
}

// The GPUs that are seen; models can be moved to any of them. What they use of other libraries is
// only looked for where there is one.
Json gpu_section() {
  Json gpu = Json::object();
  std::string why_none;
  const std::vector<CudaDeviceInfo> found = list_cuda_devices(&why_none);
  gpu["usable"] = !found.empty();
  gpu["reason"] =
      found.empty() ? why_none : "models train and run on GPUs (ds_model_set_device, --device)";
  const std::string driver = cuda_driver_version();
  if (!driver.empty()) gpu["driver_cuda"] = driver;
  Json devices = Json::array();
  for (const CudaDeviceInfo& info : found) {
    Json device = Json::object();
    device["index"] = info.index;
    device["name"] = printable(info.name, 256);
    device["memory_bytes"] = info.memory_bytes;
    device["compute_capability"] = str_cat(info.compute_major, ".", info.compute_minor);
    device["multiprocessors"] = info.multiprocessors;
    devices.push_back(std::move(device));
  }
  gpu["devices"] = std::move(devices);
  if (found.empty()) return gpu;
  Json libraries = Json::array();
  for (const kernels::VendorLibrary& library : kernels::vendor_libraries()) {
    libraries.push_back(feature(library.name, library.usable, library.text));
  }
  libraries.push_back(nccl_entry());
  gpu["libraries"] = std::move(libraries);
  return gpu;
}

Json compatibility_section(const CpuFeatures& cpu, std::string_view simd, bool gpu,
                           std::string_view gpu_reason) {
  Json list = Json::array();
  list.push_back(feature("cpu", true, "training and generation run on the CPU"));
  list.push_back(feature("float32", true, "the default element type"));
  const bool bf16 = cpu.has("avx512_bf16") || cpu.has("amx_bf16");
  list.push_back(feature("bfloat16", true,
                         bf16 ? "this CPU multiplies bfloat16 matrices itself"
                              : "this CPU has no bfloat16 instructions (AVX512_BF16, AMX): halves "
                                "memory, but is computed in float32"));
  const bool wide = cpu.has("avx2") || cpu.has("avx512f");
  list.push_back(feature("wide_simd", wide,
                         wide ? str_cat("kernels run with ", simd)
                              : str_cat("this CPU lacks AVX2; kernels run with ", simd)));
  const bool codes = kernels::quantized_matmul_runs({.n = 1, .k = 64, .group = 64});
  list.push_back(feature("int8_activations", codes,
                         codes ? "models in int8 and int4 are multiplied in integers, where "
                                 "generators are asked to"
                               : "AVX512_VNNI, or AVX2 without AVX-512, is what gains by it; "
                                 "activations stay in floating point"));
  const std::string_view pages = huge_pages_mode();
  const bool huge = pages == "always" || pages == "madvise";
  list.push_back(feature("huge_pages", huge,
                         huge ? "large blocks ask for transparent huge pages"
                              : "transparent huge pages are off in this kernel "
                                "(/sys/kernel/mm/transparent_hugepage/enabled)"));
  list.push_back(feature("cuda", gpu, gpu_reason));
  list.push_back(feature("many_processes", true, "over shared memory, sockets and MPI; on CPUs"));
  list.push_back(feature("dlpack_cpu", true, "DLPack 1.x and the struct before 1.0"));
  list.push_back(feature("dlpack_cuda", gpu,
                         gpu ? "own parameters and gradients may lie on a GPU" : gpu_reason));
  return list;
}

// What carries file I/O out, and why others do not.
Json file_io_section() {
  Json unavailable = Json::object();
  std::string_view best = io::backend_name(io::BackendKind::kThreads);
  for (const io::BackendKind kind : {io::BackendKind::kLibaio, io::BackendKind::kUring}) {
    const std::string why = io::backend_refusal(kind);
    if (why.empty()) best = io::backend_name(kind);
    if (!why.empty()) unavailable[std::string(io::backend_name(kind))] = why;
  }
  return {{"backend", best}, {"unavailable", std::move(unavailable)}};
}

}  // namespace

std::string report_json() {
  const CpuFeatures cpu = cpu_features();
  Json report = Json::object();
  report["version"] = ds_version();
  report["abi_version"] = ds_abi_version();
  report["build"] = build_section();
  report["libraries"] = libraries_section();
  report["cpu"] = cpu_section(cpu);
  report["kernels"] = kernels_section();
  report["memory"] = system_memory();
  report["file_io"] = file_io_section();
  report["gpu"] = gpu_section();
  const std::string gpu_reason = report["gpu"]["reason"];
  const std::string simd = report["kernels"]["simd_chosen"];
  report["compatibility"] = compatibility_section(cpu, simd, report["gpu"]["usable"], gpu_reason);
  return dump_json(report, 2);
}

}  // namespace ds::capi
