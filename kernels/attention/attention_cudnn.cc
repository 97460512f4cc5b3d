// Which calls are cuDNN's, how they are cut and planned, and how they run.
#include "kernels/attention/attention_cudnn.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace ds::kernels::cudnn {
namespace {

constexpr int64_t kMostDim = 128;
// cuDNN reads rows of heads in packs of 16 bytes.
constexpr int64_t kPack = 8, kRowPack = 4;

// ---- which forms ----

// Where cuDNN is faster than our own kernels: measured from 1024 keys on, on an H200.
bool preferred(const GpuStream& on, const AttentionForm& form) {
  if (on.policy.attention != AttentionChoice::kAuto) {
    return on.policy.attention == AttentionChoice::kCudnn;
  }
  return on.capability == 90 && form.head_dim >= 64 && form.keys >= 512;
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
bool aligned(const HeadsLayout& layout) {
  return layout.batch % kPack == 0 && layout.token % kPack == 0 && layout.head % kPack == 0;
}

bool usable_library(const GpuStream& on) {
  if (library().usable()) return true;
  static std::once_flag told;
  if (on.policy.attention == AttentionChoice::kCudnn) {
    std::call_once(told, [] {
      log_warning("cuda", "attention is to be cuDNN's, and ", library().reason,
                  "; it has kernels of our own");
    });
  }
  return false;
}

const char* type_text(DataType type) { return type == DataType::kHalf ? "fp16" : "bf16"; }

std::string text_of(const AttentionForm& f) {
  return str_cat(f.pass == AttentionPass::kForward ? "forward" : "backward", " of attention in ",
                 type_text(f.type), ", ", f.batch, " x ", f.queries, " tokens, ", f.heads,
                 " heads of ", f.head_dim, ", ", f.kv_heads, " of keys", f.causal ? ", causal" : "",
                 f.strict ? ", strictly deterministic" : "");
}

// ---- scratch of a slice: rows, sums of dq, the engine's ----

int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
// Of lse where the caller keeps none, or of deltas.
int64_t row_bytes(const AttentionForm& f) { return rounded(f.batch * f.row_batch * 4); }
int64_t sum_bytes(const AttentionForm& f) {
  const bool sums = f.pass == AttentionPass::kBackward && !f.strict;
  return sums ? rounded(f.batch * f.heads * f.queries * f.head_dim * 4) : 0;
}

// ---- plans ----

// A slice's graph.
struct Piece {
  AttentionForm form;
  AttentionGraph graph;
  Plan plan;

  int64_t bytes() const { return attention_scratch(form) + plan.workspace_bytes(); }
};

struct Planned {
  std::unique_ptr<Piece> slice;
  std::unique_ptr<Piece> rest;  // the sequences that are left after whole slices, or none

  int64_t bytes() const { return std::max(slice->bytes(), rest ? rest->bytes() : 0); }
};

// A handle serves one call at a time: its stream is chosen, then the graph is queued.
struct Gpu {
  Handle handle = nullptr;  // null where cuDNN does not start
  std::mutex mutex;
};

// CUDA may be gone before the process ends, so this is never destroyed; nor are its entries.
struct State {
  std::mutex mutex;  // of the maps
  std::map<int, Gpu> gpus;
  std::map<std::pair<int, AttentionForm>, std::unique_ptr<Planned>> plans;  // null: none
};
State& state() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static State& it = *new State;
  return it;
}

Gpu& gpu_of(State& all, int gpu) {
  const auto [at, fresh] = all.gpus.try_emplace(gpu);
  Gpu& it = at->second;
  if (fresh) {
    const Status status = library().create(&it.handle);
    if (status != kSuccess) {
      it.handle = nullptr;
      log_warning("cuda", library().name, " does not start on cuda:", gpu, ": ",
                  library().text(status), "; attention there has kernels of our own");
    }
  }
  return it;
}

std::unique_ptr<Piece> plan_piece(Handle handle, const AttentionForm& form, AttentionTry& found) {
  AttentionGraph graph = attention_graph(library(), form);
  const int64_t own = attention_scratch(form);
  Planning made = graph.graph.plan(
      handle, {.strict = form.strict, .most_workspace = kMostAttentionScratch - own});
  if (made.plan) {
    return std::make_unique<Piece>(Piece{form, std::move(graph), std::move(*made.plan)});
  }
  found.refusal = std::move(made.refusal);
  if (made.too_much) found.too_much = *made.too_much + own;
  return nullptr;
}

std::unique_ptr<Planned> plan_slices(const GpuStream& on, Handle handle, const AttentionForm& form,
                                     std::string& refusal) {
  // Elsewhere no engine is known to repeat its bits, whatever its notes say.
  if (form.strict && form.pass == AttentionPass::kBackward && on.capability != 90) {
    refusal = "engines are known to repeat their bits on compute capability 9.0 alone";
    return nullptr;
  }
  std::unique_ptr<Piece> piece;
  const auto attempt = [&](const AttentionForm& slice) {
    AttentionTry found;
    piece = plan_piece(handle, slice, found);
    return found;
  };
  const std::optional<AttentionForm> slice = attention_slice(form, attempt, refusal);
  if (!slice) return nullptr;
  auto out = std::make_unique<Planned>();
  out->slice = std::move(piece);
  AttentionForm rest = *slice;
  rest.batch = form.batch % slice->batch;
  if (rest.batch == 0) return out;
  AttentionTry found;
  out->rest = plan_piece(handle, rest, found);
  if (out->rest) return out;
  refusal = found.refusal;
  return nullptr;
}

// A plan that failed otherwise than by "not supported" must not end training either.
std::unique_ptr<Planned> make_plan(const GpuStream& on, Handle handle, const AttentionForm& form) {
  std::string refusal;
  try {
    std::unique_ptr<Planned> made = plan_slices(on, handle, form, refusal);
    if (made) return made;
  } catch (const Error& error) {
    refusal = error.message();
  }
  log_warning("cuda", library().name, " does not compute the ", text_of(form), ": ", refusal,
              "; it has kernels of our own");
  return nullptr;
}

struct Found {
  Gpu& gpu;
  const Planned* planned;
};
Found find(const GpuStream& on, const AttentionForm& form) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Gpu& gpu = gpu_of(all, on.gpu);
  const auto [at, fresh] = all.plans.try_emplace(std::pair(on.gpu, form));
  if (fresh && gpu.handle != nullptr) {
    const std::lock_guard use(gpu.mutex);
    at->second = make_plan(on, gpu.handle, form);
  }
  return {gpu, at->second.get()};
}

// ---- running ----

// The pointers of the slice that begins with a sequence and a kv head.
AttentionTensors part_of(const AttentionTensors& all, const AttentionForm& form, int64_t sequence,
                         int64_t kv_head) {
  const int64_t head = kv_head * (form.heads / form.kv_heads);
  const auto move = [&](auto& pointer, const HeadsLayout& layout, int64_t first) {
    if (pointer == nullptr) return;
    using Pointer = std::remove_reference_t<decltype(pointer)>;
    const int64_t elements = sequence * layout.batch + first * layout.head;
    const auto* const moved = static_cast<const char*>(pointer) + 2 * elements;
    pointer = static_cast<Pointer>(const_cast<char*>(moved));
  };
  AttentionTensors part = all;
  move(part.q, form.q, head);
  move(part.k, form.k, kv_head);
  move(part.v, form.v, kv_head);
  move(part.out, form.out, head);
  move(part.dout, form.dout, head);
  move(part.dq, form.dq, head);
  move(part.dk, form.dk, kv_head);
  move(part.dv, form.dv, kv_head);
  if (part.lse != nullptr) part.lse += sequence * form.row_batch + head * form.queries;
  return part;
}

void clear(const GpuStream& on, void* memory, int64_t bytes) {
  const cudaError_t status =
      cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(on.native));
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  fail(Code::kDevice, "CUDA: clearing scratch of attention failed: ", cudaGetErrorName(status));
}

void run_piece(const GpuStream& on, Handle handle, const Piece& piece, float scale,
               const AttentionTensors& tensors, void* workspace) {
  const AttentionForm& form = piece.form;
  const AttentionGraph& g = piece.graph;
  char* const own_rows = static_cast<char*>(workspace);
  char* const dq_sum = own_rows + row_bytes(form);
  float lowest = -std::numeric_limits<float>::infinity(), one = 1;
  std::vector<Argument> arguments = {
      {g.q, const_cast<void*>(tensors.q)},
      {g.k, const_cast<void*>(tensors.k)},
      {g.v, const_cast<void*>(tensors.v)},
      {g.out, tensors.out},
      {g.lse,
       tensors.lse != nullptr ? const_cast<float*>(tensors.lse) : static_cast<void*>(own_rows)},
      {g.scale, &scale}};
  if (form.causal) arguments.push_back({g.lowest, &lowest});
  if (form.pass == AttentionPass::kBackward) {
    arguments.insert(arguments.end(), {{g.dout, const_cast<void*>(tensors.dout)},
                                       {g.dq, tensors.dq},
                                       {g.dk, tensors.dk},
                                       {g.dv, tensors.dv},
                                       {g.one, &one},
                                       {g.deltas, own_rows}});
  }
  if (const int64_t bytes = sum_bytes(form); bytes > 0) {
    clear(on, dq_sum, bytes);
    arguments.push_back({g.dq_sum, dq_sum});
  }
  piece.plan.execute(handle, arguments, own_rows + attention_scratch(form));
}

}  // namespace

int64_t attention_scratch(const AttentionForm& form) { return row_bytes(form) + sum_bytes(form); }

std::optional<AttentionForm> attention_slice(
    const AttentionForm& form, const std::function<AttentionTry(const AttentionForm&)>& attempt,
    std::string& refusal) {
  const int64_t group = form.heads / form.kv_heads;
  AttentionForm slice = form;
  for (;;) {
    const AttentionTry found = attempt(slice);
    if (found.fits()) return slice;
    refusal = found.refusal;
    if (!found.too_much) return std::nullopt;
    if (slice.batch > 1) {
      // As many sequences as have room, in slices of about equal size.
      const int64_t room = kMostAttentionScratch / divide_up(*found.too_much, slice.batch);
      const int64_t most = std::clamp<int64_t>(room, 1, slice.batch - 1);
      slice.batch = divide_up(form.batch, divide_up(form.batch, most));
    } else if (slice.kv_heads > 1) {
      do {
        --slice.kv_heads;
      } while (form.kv_heads % slice.kv_heads != 0);
      slice.heads = slice.kv_heads * group;
    } else {
      refusal = str_cat("one sequence and one head of keys need ", format_bytes(*found.too_much),
                        " of scratch, more than ", format_bytes(kMostAttentionScratch));
      return std::nullopt;
    }
    const bool cuts_heads = slice.heads < form.heads;
    if (slice.batch * slice.row_batch % kRowPack != 0 ||
        (cuts_heads && slice.heads * slice.queries % kRowPack != 0)) {
      refusal = str_cat("it needs ", format_bytes(*found.too_much), " of scratch, more than ",
                        format_bytes(kMostAttentionScratch),
                        ", and cut to less its rows would not be aligned to 16 bytes");
      return std::nullopt;
    }
  }
}

std::optional<AttentionForm> attention_form(const GpuStream& on, const AttentionProblem& p,
                                            AttentionForm form, const AttentionTensors& tensors) {
  if (on.policy.attention == AttentionChoice::kOwn || p.dropout > 0 || p.window > 0 ||
      p.key_mask != nullptr || form.type == DataType::kFloat || p.segments != nullptr ||
      p.queries != p.keys || p.queries < 2 || p.batch < 1 || p.head_dim % kPack != 0 ||
      p.head_dim > kMostDim) {
    return std::nullopt;
  }
  form.batch = p.batch;
  form.heads = p.heads;
  form.kv_heads = p.kv_heads;
  form.queries = p.queries;
  form.keys = p.keys;
  form.head_dim = p.head_dim;
  form.causal = p.causal;
  form.strict = on.policy.strict_determinism;
  form.row_batch = p.heads * p.queries;
  for (const void* pointer :
       {tensors.q, tensors.k, tensors.v, const_cast<const void*>(tensors.out), tensors.dout,
        const_cast<const void*>(tensors.dq), const_cast<const void*>(tensors.dk),
        const_cast<const void*>(tensors.dv), static_cast<const void*>(tensors.lse)}) {
    if (!aligned(pointer)) return std::nullopt;
  }
  for (const HeadsLayout* layout :
       {&form.q, &form.k, &form.v, &form.out, &form.dout, &form.dq, &form.dk, &form.dv}) {
    if (!aligned(*layout)) return std::nullopt;
  }
  if (!preferred(on, form) || !usable_library(on)) return std::nullopt;
  return form;
}

std::optional<int64_t> attention_workspace(const GpuStream& on, const AttentionForm& form) {
  const Found found = find(on, form);
  if (found.planned == nullptr) return std::nullopt;
  return found.planned->bytes();
}

void attention(const GpuStream& on, const AttentionForm& form, float scale,
               const AttentionTensors& tensors, void* workspace) {
  const Found found = find(on, form);
  DS_CHECK(found.planned != nullptr, Code::kInternal, "attention: cuDNN has no plan for the form");
  const Planned& planned = *found.planned;
  const Handle handle = found.gpu.handle;
  const std::lock_guard use(found.gpu.mutex);
  const Status status = library().set_stream(handle, on.native);
  DS_CHECK(status == kSuccess, Code::kDevice, "CUDA: ", library().name,
           ": choosing a stream failed: ", library().text(status));
  const AttentionForm& slice = planned.slice->form;
  for (int64_t sequence = 0; sequence < form.batch; sequence += slice.batch) {
    const bool whole = sequence + slice.batch <= form.batch;
    const Piece& piece = whole ? *planned.slice : *planned.rest;
    for (int64_t head = 0; head < form.kv_heads; head += slice.kv_heads) {
      run_piece(on, handle, piece, scale, part_of(tensors, form, sequence, head), workspace);
    }
  }
}

}  // namespace ds::kernels::cudnn
