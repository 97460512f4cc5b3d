// The only file that knows oneDNN and OpenMP.
#include "kernels/matmul/onednn.h"

#include <omp.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>

#include "base/error.h"

namespace ds::kernels::onednn {
namespace {

// oneDNN's generated code may point the stack register into a heap buffer (sgemm does); a signal
// that arrives then would write its frame over the heap. Signals wait until the product is done.
class SignalPause {
 public:
  SignalPause() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalPause() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalPause(const SignalPause&) = delete;
  SignalPause& operator=(const SignalPause&) = delete;

 private:
  sigset_t before_;
};

static_assert(DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP || DNNL_CPU_RUNTIME == DNNL_RUNTIME_SEQ,
              "SingleThreaded holds only OpenMP back");

[[noreturn]] void fail_tile(const Matmul& tile, dnnl_status_t status, const char* what) {
  fail(status == dnnl_out_of_memory ? Code::kOutOfMemory : Code::kInternal, "matrix product [",
       tile.m, ", ", tile.k, "] x [", tile.k, ", ", tile.n,
       "]: oneDNN: ", what != nullptr ? what : "failed", " (status ", static_cast<int>(status),
       ")");
}

// The calling thread's scratch, aligned for the library; kept until the thread ends.
void* thread_scratch(size_t bytes) {
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  struct Scratch {
    std::unique_ptr<void, Free> memory;
    size_t bytes = 0;
  };
  static thread_local Scratch scratch;
  if (bytes > scratch.bytes) {
    constexpr size_t kPage = 4096;
    const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
    scratch.memory.reset();
    scratch.bytes = 0;
    scratch.memory.reset(std::aligned_alloc(kPage, rounded));
    DS_CHECK(scratch.memory, Code::kOutOfMemory, "no memory for ", rounded,
             " bytes of matrix product scratch");
    scratch.bytes = rounded;
  }
  return scratch.memory.get();
}

dnnl::memory::data_type library_type(MatmulType type) {
  return type == MatmulType::kFloat32 ? dnnl::memory::data_type::f32
                                      : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc input_desc(const MatmulInput& input, MatmulType type, int64_t rows,
                              int64_t columns) {
  using dims = dnnl::memory::dims;
  return {dims{rows, columns}, library_type(type),
          input.transposed ? dims{1, input.stride} : dims{input.stride, 1}};
}

dnnl::memory::desc output_desc(const Matmul& tile) {
  using dims = dnnl::memory::dims;
  return {dims{tile.m, tile.n}, library_type(tile.out), dims{tile.c_stride, 1}};
}

dnnl::memory::desc bias_desc(const Matmul& tile) {
  using dims = dnnl::memory::dims;
  return {dims{1, tile.n}, library_type(tile.in), dims{tile.n, 1}};
}

// Empty when the library has no fast implementation of the tile.
dnnl::matmul::primitive_desc describe(const Matmul& tile, const dnnl::engine& engine) {
  const dnnl::memory::desc a = input_desc(tile.a, tile.in, tile.m, tile.k);
  const dnnl::memory::desc b = input_desc(tile.b, tile.in, tile.k, tile.n);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (tile.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc operation =
      tile.bias != nullptr ? dnnl::matmul::desc(a, b, bias_desc(tile), output_desc(tile))
                           : dnnl::matmul::desc(a, b, output_desc(tile));
  constexpr bool kAllowEmpty = true;  // "not implemented" is an answer here, not an error
  dnnl::matmul::primitive_desc description(operation, attributes, engine, kAllowEmpty);
  if (description && std::string_view(description.impl_info_str()).starts_with("ref")) return {};
  return description;
}

bool multiply(const Matmul& tile) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::matmul::primitive_desc description = describe(tile, engine);
  if (!description) return false;
  const dnnl::matmul primitive(description);
  const dnnl::memory::desc scratch = description.scratchpad_desc();
  // The library takes inputs as pointers to non-const.
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, {description.src_desc(), engine, const_cast<void*>(tile.a.data)}},
      {DNNL_ARG_WEIGHTS, {description.weights_desc(), engine, const_cast<void*>(tile.b.data)}},
      {DNNL_ARG_DST, {description.dst_desc(), engine, tile.c}},
      {DNNL_ARG_SCRATCHPAD, {scratch, engine, thread_scratch(scratch.get_size())}}};
  if (tile.bias != nullptr) {
    arguments.emplace(DNNL_ARG_BIAS,
                      dnnl::memory(bias_desc(tile), engine, const_cast<void*>(tile.bias)));
  }
  dnnl::stream stream(engine);
  const SignalPause pause;
  primitive.execute(stream, arguments);
  stream.wait();
  return true;
}

}  // namespace

SingleThreaded::SingleThreaded() : previous_(omp_get_max_threads()) {
  if (previous_ != 1) omp_set_num_threads(1);
}
SingleThreaded::~SingleThreaded() {
  if (previous_ != 1) omp_set_num_threads(previous_);
}

void multiply_float(const Matmul& tile) {
  const SignalPause pause;
  const auto letter = [](const MatmulInput& input) { return input.transposed ? 'T' : 'N'; };
  const dnnl_status_t status = dnnl_sgemm(
      letter(tile.a), letter(tile.b), tile.m, tile.n, tile.k, 1.0f,
      static_cast<const float*>(tile.a.data), tile.a.stride, static_cast<const float*>(tile.b.data),
      tile.b.stride, tile.accumulate ? 1.0f : 0.0f, static_cast<float*>(tile.c), tile.c_stride);
  if (status != dnnl_success) fail_tile(tile, status, nullptr);
}

bool multiply_bfloat16(const Matmul& tile) {
  try {
    return multiply(tile);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return false;
    fail_tile(tile, error.status, error.what());
  }
}

bool has_bfloat16() {
  constexpr int64_t kSize = 64;
  Matmul tile;
  tile.m = tile.n = tile.k = tile.a.stride = tile.b.stride = tile.c_stride = kSize;
  tile.in = MatmulType::kBFloat16;
  try {
    const SingleThreaded single;
    return static_cast<bool>(describe(tile, dnnl::engine(dnnl::engine::kind::cpu, 0)));
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace ds::kernels::onednn
