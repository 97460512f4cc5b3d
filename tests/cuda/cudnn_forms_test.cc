// What the machine's cuDNN says of our graphs of attention. No GPU is needed: engines are asked for
// one that is described. What they compute needs one (attention_test.cc).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "kernels/attention/attention_cudnn.h"

namespace ds::testing {
namespace {

using namespace kernels::cudnn;  // NOLINT: what these tests are about

// Of an H200, as cuDNN describes GPUs; 9.8 was the first that reads it.
constexpr size_t kReadsDescriptions = 90800;
std::string h200() {
  return dump_json(Json{{"deviceVer", 900},
                        {"driverVer", 13000},
                        {"cudaDeviceId", 0},
                        {"maxGridSize", {2147483647, 65535, 65535}},
                        {"maxBlockSize", {1024, 1024, 64}},
                        {"regsPerBlock", 65536},
                        {"multiProcessorCount", 132},
                        {"smClockRateKHz", 1980000},
                        {"memClockRateKHz", 3201000},
                        {"l2CacheSize", 62914560},
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
                        {"totalGlobalMem", 150754820096},
                        {"deviceName", "NVIDIA H200"}});
}

class CudnnForms : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!library().usable()) GTEST_SKIP() << "needs cuDNN: " << library().reason;
    if (library().version() < kReadsDescriptions) GTEST_SKIP() << "needs cuDNN 9.8";
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
      GTEST_SKIP() << "needs libcuda.so.1 (that of the toolkit's folder \"stubs\" will do)";
    }
    std::cout << library().name << "\n";
  }
  // How many engines serve the form with the same bits every time.
  static size_t engines(const AttentionForm& form, const Described& gpu) {
    AttentionGraph graph = attention_graph(library(), form);
    return graph.graph.engines({.device = &gpu}).size();
  }
};

AttentionForm form_of(AttentionPass pass, DataType type, int64_t tokens, int64_t dim,
                      int64_t kv_heads, bool causal) {
  AttentionForm form;
  form.pass = pass;
  form.type = type;
  form.batch = 2;
  form.heads = 12;
  form.kv_heads = kv_heads;
  form.queries = form.keys = tokens;
  form.head_dim = dim;
  form.causal = causal;
  const int64_t packed = (form.heads + 2 * kv_heads) * dim, row = form.heads * dim;
  form.q = form.k = form.v = {tokens * packed, packed, dim};
  form.out = {tokens * row, row, dim};
  if (pass == AttentionPass::kForward) return form;
  form.dout = form.out;
  form.dq = form.dk = form.dv = form.q;
  return form;
}

TEST_F(CudnnForms, EnginesServeThem) {
  const std::string json = h200();
  Described gpu(library(), Kind::kDeviceProperties, "describing a GPU");
  gpu.set(Attribute::kDeviceJson, Type::kChar, static_cast<int64_t>(json.size()), json.data());
  gpu.finish();
  int forms = 0;
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    for (const DataType type : {DataType::kBFloat16, DataType::kHalf}) {
      for (const int64_t dim : {64, 80, 96, 128}) {
        for (const int64_t kv_heads : {12, 4, 1}) {
          for (const int64_t tokens : {130, 1000, 1024}) {
            for (const bool causal : {true, false}) {
              const AttentionForm form = form_of(pass, type, tokens, dim, kv_heads, causal);
              EXPECT_GT(engines(form, gpu), 0u)
                  << (pass == AttentionPass::kForward ? "forward" : "backward") << ", type "
                  << static_cast<int>(type) << ", " << tokens << " tokens, heads of " << dim
                  << ", kv heads " << kv_heads << ", causal " << causal;
              ++forms;
            }
          }
        }
      }
    }
  }
  std::cout << forms << " forms\n";
  // What makes no sense is refused.
  EXPECT_THROW(
      engines(form_of(AttentionPass::kForward, DataType::kBFloat16, 1024, 64, 5, true), gpu),
      Error);
}

}  // namespace
}  // namespace ds::testing
