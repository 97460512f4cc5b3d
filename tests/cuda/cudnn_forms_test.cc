// What the machine's cuDNN says of our graphs of attention. No GPU is needed: engines are asked for
// one that is described. What they compute needs one (attention_test.cc). A GPU build without a GPU
// would ask the same again as the build for the CPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "device/cuda_device.h"
#include "full_run.h"
#include "kernels/attention/attention_cudnn.h"

namespace ds::testing {
namespace {

using namespace kernels::cudnn;  // NOLINT: what these tests are about

// GPUs as cuDNN describes them; 9.8 was the first that reads it.
constexpr size_t kReadsDescriptions = 90800;
struct Gpu {
  const char* name;
  int memory_khz, l2_bytes;
  int64_t memory_bytes;
};
constexpr Gpu kH100 = {"NVIDIA H100 80GB HBM3", 2619000, 52428800, 85520809984};
constexpr Gpu kH200 = {"NVIDIA H200", 3201000, 62914560, 150754820096};

Described described(const Gpu& gpu) {
  const std::string json = dump_json(Json{{"deviceVer", 900},
                                          {"driverVer", 13000},
                                          {"cudaDeviceId", 0},
                                          {"maxGridSize", {2147483647, 65535, 65535}},
                                          {"maxBlockSize", {1024, 1024, 64}},
                                          {"regsPerBlock", 65536},
                                          {"multiProcessorCount", 132},
                                          {"smClockRateKHz", 1980000},
                                          {"memClockRateKHz", gpu.memory_khz},
                                          {"l2CacheSize", gpu.l2_bytes},
                                          {"warpSize", 32},
                                          {"maxSharedMemoryPerBlock", 49152},
                                          {"maxSharedMemoryPerBlockOptin", 232448},
                                          {"reservedSharedMemoryPerBlock", 1024},
                                          {"maxRegistersPerSM", 65536},
                                          {"pciDeviceId", 0},
                                          {"maxCtasPerSM", 32},
                                          {"maxThreadsPerBlock", 1024},
                                          {"maxThreadsPerSM", 2048},
                                          {"isTccDriver", 0},
                                          {"supportCoopLaunch", 1},
                                          {"totalGlobalMem", gpu.memory_bytes},
                                          {"deviceName", gpu.name}});
  Described out(library(), Kind::kDeviceProperties, "describing a GPU");
  out.set(Attribute::kDeviceJson, Type::kChar, static_cast<int64_t>(json.size()), json.data());
  out.finish();
  return out;
}

// The driver's, or the toolkit's stub of it, which has its name too.
bool have_driver_library() {
  return ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr ||
         ::dlopen(DS_CUDA_STUB, RTLD_NOW | RTLD_LOCAL) != nullptr;
}

class CudnnForms : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (!emulated() && list_cuda_devices(&why_none).empty()) {
      GTEST_SKIP() << "needs a GPU: " << why_none << "; emulated_cudnn_forms needs none";
    }
    if (!have_driver_library()) {
      GTEST_SKIP() << "needs libcuda.so.1, or the CUDA toolkit's stub of it";
    }
    if (!library().usable()) GTEST_SKIP() << "needs cuDNN: " << library().reason;
    if (library().version() < kReadsDescriptions) GTEST_SKIP() << "needs cuDNN 9.8";
    std::cout << library().name << "\n";
  }
  // How many engines serve the form.
  static size_t engines(const AttentionForm& form, const Described& gpu) {
    AttentionGraph graph = attention_graph(library(), form);
    if (!graph.graph.end({.device = &gpu}).empty()) return 0;
    return graph.graph.engines({.device = &gpu}, kHeuristicModeA, form.strict).size();
  }
};

struct Shape {
  const char* name;
  int64_t batch, tokens, heads, kv_heads, dim;
};

AttentionForm form_of(AttentionPass pass, bool strict, DataType type, const Shape& s, bool causal) {
  AttentionForm form;
  form.pass = pass;
  form.strict = strict;
  form.type = type;
  form.batch = s.batch;
  form.heads = s.heads;
  form.kv_heads = s.kv_heads;
  form.queries = form.keys = s.tokens;
  form.head_dim = s.dim;
  form.causal = causal;
  form.row_batch = s.heads * s.tokens;
  const int64_t packed = (s.heads + 2 * s.kv_heads) * s.dim, row = s.heads * s.dim;
  form.q = form.k = form.v = {s.tokens * packed, packed, s.dim};
  form.out = {s.tokens * row, row, s.dim};
  if (pass == AttentionPass::kForward) return form;
  form.dout = form.out;
  form.dq = form.dk = form.dv = form.q;
  return form;
}

TEST_F(CudnnForms, EnginesServeThem) {
  const Described gpu = described(kH200);
  int forms = 0;
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    for (const bool strict : {false, true}) {
      if (strict && pass == AttentionPass::kForward) continue;  // the same graph
      for (const DataType type : {DataType::kBFloat16, DataType::kHalf}) {
        for (const int64_t dim : {64, 80, 96, 128}) {
          for (const int64_t kv_heads : {12, 4, 1}) {
            for (const int64_t tokens : {130, 1000, 1024}) {
              for (const bool causal : {true, false}) {
                const Shape shape{"", 2, tokens, 12, kv_heads, dim};
                EXPECT_GT(engines(form_of(pass, strict, type, shape, causal), gpu), 0u)
                    << (pass == AttentionPass::kForward ? "forward" : "backward") << ", type "
                    << static_cast<int>(type) << ", " << tokens << " tokens, heads of " << dim
                    << ", kv heads " << kv_heads << ", causal " << causal << ", strict " << strict;
                ++forms;
              }
            }
          }
        }
      }
    }
  }
  std::cout << forms << " forms\n";
  // What makes no sense is refused.
  const Shape senseless{"", 2, 1024, 12, 5, 64};
  EXPECT_THROW(
      engines(form_of(AttentionPass::kForward, false, DataType::kBFloat16, senseless, true), gpu),
      Error);
}

// ---- workspace ----

// Batches and lengths of training.
constexpr Shape kShapes[] = {
    {"GPT-2 124M", 32, 1024, 12, 12, 64}, {"GPT-2 355M", 16, 1024, 16, 16, 64},
    {"GPT-2 774M", 8, 1024, 20, 20, 64},  {"GPT-2 1.5B", 8, 1024, 25, 25, 64},
    {"BERT large", 32, 512, 16, 16, 64},  {"GPT-NeoX 20B", 2, 2048, 64, 64, 96},
    {"Llama 7B", 4, 4096, 32, 32, 128},   {"Llama 3 8B", 4, 4096, 32, 8, 128},
    {"Llama 3 8B", 1, 16384, 32, 8, 128}, {"Qwen2 0.5B", 8, 4096, 14, 2, 64},
};
bool is_gpt2(const Shape& s) { return std::string_view(s.name).starts_with("GPT-2"); }

// Bytes that the first engine which can be had says it needs for a graph.
std::optional<int64_t> told(const AttentionForm& form, const Described& gpu, int64_t most,
                            AttentionTry& found) {
  AttentionGraph graph = attention_graph(library(), form);
  const Place place{.device = &gpu};
  found.refusal = graph.graph.end(place);
  if (!found.refusal.empty()) return std::nullopt;
  found.refusal = "no engine";
  for (const int mode : {kHeuristicModeA, kHeuristicModeFallback}) {
    for (const Described& engine : graph.graph.engines(place, mode, form.strict)) {
      const std::optional<int64_t> bytes = graph.graph.workspace_of(engine);
      if (!bytes) continue;
      if (*bytes <= most) {
        found = AttentionTry{};
        return bytes;
      }
      found.too_much = std::min(found.too_much.value_or(*bytes), *bytes);
    }
  }
  if (found.too_much) *found.too_much += attention_scratch(form);
  return std::nullopt;
}

// What a call takes: as attention_cudnn.cc plans it, but for the compiling.
struct Needs {
  std::optional<AttentionForm> slice;
  std::string refusal;
  int64_t engine = 0, own = 0;
  std::string text() const {
    if (!slice) return "none: " + refusal;
    return str_cat(format_bytes(engine + own), " (engine ", format_bytes(engine), ")");
  }
  std::string at_a_time(const AttentionForm& whole) const {
    if (!slice) return "";
    if (slice->kv_heads < whole.kv_heads) return str_cat("1 sequence, ", slice->heads, " heads");
    if (slice->batch == whole.batch) return "all";
    return str_cat(slice->batch, slice->batch == 1 ? " sequence" : " sequences");
  }
};

Needs needs_of(const AttentionForm& form, const Described& gpu) {
  Needs out;
  const auto attempt = [&](const AttentionForm& slice) {
    AttentionTry found;
    out.own = attention_scratch(slice);
    out.engine = told(slice, gpu, kMostAttentionScratch - out.own, found).value_or(0);
    return found;
  };
  out.slice = attention_slice(form, attempt, out.refusal);
  return out;
}

TEST_F(CudnnForms, WorkspaceIsBounded) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  for (const Gpu& kind : {kH100, kH200}) {
    const Described gpu = described(kind);
    std::cout << "\n"
              << kind.name << ", bf16, causal\n"
              << "| shape | forward | backward | backward, strict | at a time |\n"
              << "| --- | --- | --- | --- | --- |\n";
    for (const Shape& s : kShapes) {
      const auto form = [&](AttentionPass pass, bool strict) {
        return form_of(pass, strict, DataType::kBFloat16, s, true);
      };
      const AttentionForm strictly = form(AttentionPass::kBackward, true);
      const Needs forward = needs_of(form(AttentionPass::kForward, false), gpu);
      const Needs backward = needs_of(form(AttentionPass::kBackward, false), gpu);
      const Needs strict = needs_of(strictly, gpu);
      std::cout << "| " << s.name << ", " << s.batch << " x " << s.tokens << ", heads " << s.heads
                << "/" << s.kv_heads << " of " << s.dim << " | " << forward.text() << " | "
                << backward.text() << " | " << strict.text() << " | " << strict.at_a_time(strictly)
                << " |\n";
      for (const Needs* one : {&forward, &backward, &strict}) {
        EXPECT_LE(one->engine + one->own, kMostAttentionScratch) << s.name;
      }
      EXPECT_EQ(forward.at_a_time(strictly), "all") << s.name << forward.refusal;
      EXPECT_EQ(backward.at_a_time(strictly), "all") << s.name << backward.refusal;
      if (is_gpt2(s)) {
        EXPECT_LE(backward.engine + backward.own, 100 * kMiB) << s.name;
      }
      // The graph without a place for the sums keeps 16 bits for every score.
      EXPECT_EQ(strict.slice.has_value(), s.tokens < 16384) << s.name << strict.refusal;
      if (!strict.slice) continue;
      const int64_t scores = strict.slice->batch * strict.slice->heads * s.tokens * s.tokens;
      EXPECT_GE(strict.engine, 2 * scores) << s.name;
    }
  }
}

}  // namespace
}  // namespace ds::testing
