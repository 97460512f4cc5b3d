// The graphs are spelled as cuDNN's engines for attention expect them: one product, the scale, the
// mask, the softmax and the second product are one kernel there. Scores and weights are fp32
// between products and are rounded to the type before one, as in our own kernels.
#include "kernels/attention/attention_cudnn.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace ds::kernels::cudnn {
namespace {

// ---- which forms ----

enum class Rule { kTable, kAlways, kNever };

// DS_CUDNN_ATTENTION: "always" where cuDNN can, "never", or by the table.
Rule rule() {
  static const Rule it = [] {
    const char* const value = std::getenv("DS_CUDNN_ATTENTION");
    const std::string_view text = value == nullptr ? "" : value;
    if (text == "always") return Rule::kAlways;
    if (text == "never") return Rule::kNever;
    if (!text.empty() && text != "table") {
      log_warning("cuda", "DS_CUDNN_ATTENTION is \"", text,
                  "\"; known are always, never and table, which is taken");
    }
    return Rule::kTable;
  }();
  return it;
}

// The forms that cuDNN was seen to compute faster than our own kernels.
struct Faster {
  AttentionPass pass;
  int64_t least_dim, most_dim;
  int64_t least_tokens;
};
// Nothing has been measured yet.
constexpr std::array<Faster, 0> kFaster{};

bool preferred(const AttentionForm& form) {
  if (rule() != Rule::kTable) return rule() == Rule::kAlways;
  return std::ranges::any_of(kFaster, [&form](const Faster& row) {
    return row.pass == form.pass && row.least_dim <= form.head_dim &&
           form.head_dim <= row.most_dim && row.least_tokens <= form.keys;
  });
}

// Gradients with the same bits every time keep a probability for every query and key.
constexpr int64_t kMostWorkspace = int64_t{256} << 20;
constexpr int64_t kMostDim = 128;

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
bool aligned(const HeadsLayout& layout) {
  return layout.batch % 8 == 0 && layout.token % 8 == 0 && layout.head % 8 == 0;
}

// ---- graphs ----

Sizes sizes_of(const AttentionForm& f, int64_t heads, int64_t tokens) {
  return {f.batch, heads, tokens, f.head_dim};
}
Sizes strides_of(const HeadsLayout& layout) { return {layout.batch, layout.head, layout.token, 1}; }

GraphTensor heads(Graph& graph, const AttentionForm& f, int64_t heads, int64_t tokens,
                  const HeadsLayout& layout) {
  return graph.tensor(f.type, sizes_of(f, heads, tokens), strides_of(layout));
}

// Keys or values with their last two dimensions exchanged.
GraphTensor turned(Graph& graph, const AttentionForm& f, const HeadsLayout& layout) {
  return graph.tensor(f.type, {f.batch, f.kv_heads, f.head_dim, f.keys},
                      {layout.batch, layout.head, 1, layout.token});
}

Sizes scores(const AttentionForm& f) { return {f.batch, f.heads, f.queries, f.keys}; }
Sizes rows(const AttentionForm& f) { return {f.batch, f.heads, f.queries, 1}; }

// What a query must not see becomes `lowest`.
GraphTensor masked(AttentionGraph& g, const AttentionForm& f, GraphTensor in) {
  if (!f.causal) return in;
  Graph& graph = g.graph;
  g.lowest = graph.value();
  const GraphTensor row = graph.between(DataType::kInt32, scores(f));
  const GraphTensor column = graph.between(DataType::kInt32, scores(f));
  const GraphTensor seen = graph.between(DataType::kBoolean, scores(f));
  const GraphTensor out = graph.between(DataType::kFloat, scores(f));
  graph.index(2, in, row);
  graph.index(3, in, column);
  graph.apply(Pointwise::kGreaterOrEqual, row, column, seen);
  graph.select(in, g.lowest, seen, out);
  return out;
}

// scale * q k^T
GraphTensor scaled_scores(AttentionGraph& g, const AttentionForm& f) {
  const GraphTensor product = g.graph.between(DataType::kFloat, scores(f));
  const GraphTensor scaled = g.graph.between(DataType::kFloat, scores(f));
  g.graph.multiply(g.q, g.k, product);
  g.graph.apply(Pointwise::kMultiply, product, g.scale, scaled);
  return scaled;
}

void forward_graph(AttentionGraph& g, const AttentionForm& f) {
  Graph& graph = g.graph;
  const auto matrix = [&](DataType type) { return graph.between(type, scores(f)); };
  const auto column = [&] { return graph.between(DataType::kFloat, rows(f)); };
  g.v = heads(graph, f, f.kv_heads, f.keys, f.v);
  const GraphTensor score = masked(g, f, scaled_scores(g, f));
  const GraphTensor top = column(), sum = column(), log_sum = column();
  const GraphTensor below = matrix(DataType::kFloat), weight = matrix(DataType::kFloat);
  const GraphTensor share = matrix(f.type);
  graph.reduce(Reduce::kMax, score, top);
  graph.apply(Pointwise::kSubtract, score, top, below);
  graph.apply(Pointwise::kExp, below, weight);
  graph.reduce(Reduce::kAdd, weight, sum);
  graph.apply(Pointwise::kLog, sum, log_sum);
  graph.apply(Pointwise::kAdd, top, log_sum, g.lse);
  graph.apply(Pointwise::kDivide, weight, sum, share);
  graph.multiply(share, g.v, g.out);
}

// Rows of keys: the matrix' transpose times `of`, summed over the query heads of a kv head.
void key_gradient(AttentionGraph& g, const AttentionForm& f, GraphTensor matrix, GraphTensor of,
                  GraphTensor to) {
  Graph& graph = g.graph;
  const GraphTensor across =
      graph.between(f.type, {f.batch, f.heads, f.keys, f.queries},
                    {f.heads * f.queries * f.keys, f.queries * f.keys, 1, f.keys});
  graph.reshape(matrix, across);
  if (f.heads == f.kv_heads) return graph.multiply(across, of, to);
  const GraphTensor all = graph.between(f.type, sizes_of(f, f.heads, f.keys));
  graph.multiply(across, of, all);
  graph.reduce(Reduce::kAdd, all, to);
}

void backward_graph(AttentionGraph& g, const AttentionForm& f) {
  Graph& graph = g.graph;
  const auto matrix = [&] { return graph.between(DataType::kFloat, scores(f)); };
  g.v = turned(graph, f, f.v);
  g.dout = heads(graph, f, f.heads, f.queries, f.dout);
  g.dq = heads(graph, f, f.heads, f.queries, f.dq);
  g.dk = heads(graph, f, f.kv_heads, f.keys, f.dk);
  g.dv = heads(graph, f, f.kv_heads, f.keys, f.dv);
  g.one = graph.value();

  // The sum of dout * out over a row is what its softmax subtracts.
  g.deltas = graph.tensor(DataType::kFloat, rows(f), {f.heads * f.queries, f.queries, 1, 1});
  const GraphTensor both = graph.between(DataType::kFloat, sizes_of(f, f.heads, f.queries));
  const GraphTensor sum = graph.between(DataType::kFloat, rows(f));
  graph.apply(Pointwise::kMultiply, g.dout, g.out, both);
  graph.reduce(Reduce::kAdd, both, sum);
  graph.apply(Pointwise::kMultiply, sum, g.one, g.deltas);

  const GraphTensor below = matrix(), weight = matrix();
  graph.apply(Pointwise::kSubtract, scaled_scores(g, f), g.lse, below);
  graph.apply(Pointwise::kExp, masked(g, f, below), weight);
  key_gradient(g, f, weight, g.dout, g.dv);

  const GraphTensor dweight = matrix(), less = matrix(), dsoftmax = matrix(), dscore = matrix();
  graph.multiply(g.dout, g.v, dweight);
  graph.apply(Pointwise::kSubtract, dweight, g.deltas, less);
  graph.apply(Pointwise::kMultiply, less, weight, dsoftmax);
  graph.apply(Pointwise::kMultiply, dsoftmax, g.scale, dscore);
  key_gradient(g, f, dscore, g.q, g.dk);

  const GraphTensor keys =
      graph.between(DataType::kFloat, sizes_of(f, f.kv_heads, f.keys), strides_of(f.k));
  graph.reshape(g.k, keys);
  graph.multiply(dscore, keys, g.dq);
}

// ---- plans ----

struct Planned {
  AttentionGraph graph;
  Plan plan;
};

// CUDA may be gone before the process ends, so this is never destroyed.
struct State {
  std::mutex mutex;
  std::map<int, Handle> handles;  // by GPU; null where cuDNN does not start
  std::map<std::pair<int, AttentionForm>, std::optional<Planned>> plans;
};
State& state() {
  static State& it = *new State;
  return it;
}

int current_gpu() {
  int gpu = 0;
  const cudaError_t found = cudaGetDevice(&gpu);
  DS_CHECK(found == cudaSuccess, Code::kDevice,
           "CUDA: asking for the current GPU failed: ", cudaGetErrorName(found));
  return gpu;
}

Handle handle_of(State& all, int gpu) {
  const auto [at, fresh] = all.handles.try_emplace(gpu, nullptr);
  if (fresh) {
    const Status status = library().create(&at->second);
    if (status != kSuccess) {
      at->second = nullptr;
      log_warning("cuda", library().name, " does not start on cuda:", gpu, ": ",
                  library().text(status), "; attention there has kernels of our own");
    }
  }
  return at->second;
}

// A plan that failed otherwise than by "not supported" must not end training either.
std::optional<Planned> make_plan(Handle handle, const AttentionForm& form) {
  try {
    AttentionGraph graph = attention_graph(library(), form);
    std::optional<Plan> plan = graph.graph.plan(handle);
    if (plan && plan->workspace_bytes() <= kMostWorkspace) {
      return Planned{std::move(graph), std::move(*plan)};
    }
  } catch (const Error& error) {
    log_warning("cuda", error.message(), "; attention of this form has kernels of our own");
  }
  return std::nullopt;
}

const std::optional<Planned>& planned(State& all, int gpu, const AttentionForm& form) {
  const auto known = all.plans.find({gpu, form});
  if (known != all.plans.end()) return known->second;
  const Handle handle = handle_of(all, gpu);
  return all.plans
      .emplace(std::pair(gpu, form), handle == nullptr ? std::nullopt : make_plan(handle, form))
      .first->second;
}

int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t row_bytes(const AttentionForm& f) { return rounded(f.batch * f.heads * f.queries * 4); }

}  // namespace

AttentionGraph attention_graph(const Library& library, const AttentionForm& f) {
  AttentionGraph g(library);
  Graph& graph = g.graph;
  g.q = heads(graph, f, f.heads, f.queries, f.q);
  g.k = turned(graph, f, f.k);
  g.out = heads(graph, f, f.heads, f.queries, f.out);
  g.lse = graph.tensor(DataType::kFloat, rows(f), {f.heads * f.queries, f.queries, 1, 1});
  g.scale = graph.value();
  f.pass == AttentionPass::kForward ? forward_graph(g, f) : backward_graph(g, f);
  return g;
}

std::optional<AttentionForm> attention_form(const AttentionProblem& p, AttentionForm form,
                                            const AttentionTensors& tensors) {
  if (rule() == Rule::kNever || p.dropout > 0 || p.window > 0 || p.key_mask != nullptr ||
      form.type == DataType::kFloat || p.segments != nullptr || p.queries != p.keys ||
      p.queries < 2 || p.batch < 1 || p.head_dim % 8 != 0 || p.head_dim > kMostDim) {
    return std::nullopt;
  }
  form.batch = p.batch;
  form.heads = p.heads;
  form.kv_heads = p.kv_heads;
  form.queries = p.queries;
  form.keys = p.keys;
  form.head_dim = p.head_dim;
  form.causal = p.causal;
  for (const void* pointer :
       {tensors.q, tensors.k, tensors.v, const_cast<const void*>(tensors.out), tensors.dout,
        const_cast<const void*>(tensors.dq), const_cast<const void*>(tensors.dk),
        const_cast<const void*>(tensors.dv)}) {
    if (!aligned(pointer)) return std::nullopt;
  }
  for (const HeadsLayout* layout :
       {&form.q, &form.k, &form.v, &form.out, &form.dout, &form.dq, &form.dk, &form.dv}) {
    if (!aligned(*layout)) return std::nullopt;
  }
  if (!preferred(form) || !library().usable()) return std::nullopt;
  return form;
}

std::optional<int64_t> attention_workspace(const AttentionForm& form) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const std::optional<Planned>& found = planned(all, current_gpu(), form);
  if (!found) return std::nullopt;
  // The rows: of lse where the caller keeps none, or of deltas.
  return row_bytes(form) + found->plan.workspace_bytes();
}

void attention(const GpuStream& on, const AttentionForm& form, float scale,
               const AttentionTensors& tensors, void* workspace) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const int gpu = current_gpu();
  const std::optional<Planned>& found = planned(all, gpu, form);
  DS_CHECK(found.has_value(), Code::kInternal, "attention: cuDNN has no plan for the form");
  const Handle handle = handle_of(all, gpu);
  const Status status = library().set_stream(handle, on.native);
  DS_CHECK(status == kSuccess, Code::kDevice, "CUDA: ", library().name,
           ": choosing a stream failed: ", library().text(status));

  const AttentionGraph& g = found->graph;
  float lowest = -std::numeric_limits<float>::infinity(), one = 1;
  void* const own_rows = workspace;
  std::vector<Argument> arguments = {
      {g.q, const_cast<void*>(tensors.q)},
      {g.k, const_cast<void*>(tensors.k)},
      {g.v, const_cast<void*>(tensors.v)},
      {g.out, tensors.out},
      {g.lse, tensors.lse != nullptr ? const_cast<float*>(tensors.lse) : own_rows},
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
  found->plan.execute(handle, arguments, static_cast<char*>(workspace) + row_bytes(form));
}

}  // namespace ds::kernels::cudnn
