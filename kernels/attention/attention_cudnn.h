// Attention by cuDNN. Only for the sources of a CUDA build.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/cudnn/graph.h"

namespace ds::kernels::cudnn {

enum class AttentionPass { kForward, kBackward };

// A tensor [batch, tokens, heads, head size] as a graph sees it; strides in elements.
struct HeadsLayout {
  int64_t batch = 0, token = 0, head = 0;
  auto operator<=>(const HeadsLayout&) const = default;  // NOLINT(modernize-use-nullptr): no 0
};

// What a plan depends on.
struct AttentionForm {
  AttentionPass pass{};
  DataType type{};
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0;
  bool causal = false;
  // Only what cuDNN promises to compute with the same bits in every run. Its engines for backward
  // add the shares of the keys to dq in any order; it is the graph without dq_sum that has them
  // keep a number of 16 bits for every query and key instead.
  bool strict = false;
  int64_t row_batch = 0;  // elements of lse between sequences: heads * queries of the whole call
  HeadsLayout q, k, v, out;
  HeadsLayout dout, dq, dk, dv;                            // backward only
  auto operator<=>(const AttentionForm&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The operations of a form, and its tensors in memory.
struct AttentionGraph {
  explicit AttentionGraph(const Library& library) : graph(library) {}
  Graph graph;
  GraphTensor q, k, v, out, lse, scale, lowest;
  // Backward. deltas [batch, heads, queries] and dq_sum, like dq but fp32, are scratch; dq_sum,
  // where there is one, is 0 before the graph runs.
  GraphTensor dout, dq, dk, dv, one, deltas, dq_sum;
};
AttentionGraph attention_graph(const Library& library, const AttentionForm& form);

// Scratch of one call, all in all.
inline constexpr int64_t kMostAttentionScratch = int64_t{1} << 30;
// Bytes of it that are not the engine's: of rows and of dq_sum.
int64_t attention_scratch(const AttentionForm& form);

// What came of trying to have a form's graph.
struct AttentionTry {
  std::string refusal;              // why it cannot be had; empty: it can
  std::optional<int64_t> too_much;  // bytes of scratch, where they are the only reason
  bool fits() const { return refusal.empty(); }
};
// The part of a call that is computed at once: all of it or, where that would take too much
// scratch, as many sequences as have room or, of one sequence, as many heads.
std::optional<AttentionForm> attention_slice(
    const AttentionForm& form, const std::function<AttentionTry(const AttentionForm&)>& attempt,
    std::string& refusal);

// Pointers of a call.
struct AttentionTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  const float* lse = nullptr;
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

// The form of a call that cuDNN is to compute by the policy of `on`. `form` has the pass, the type
// and the layouts. No masks, segments, windows, dropout, nor caches of keys; only memory that is
// aligned to 16 bytes.
std::optional<AttentionForm> attention_form(const GpuStream& on, const AttentionProblem& problem,
                                            AttentionForm form, const AttentionTensors& tensors);

// Bytes of scratch where cuDNN computes the form on the GPU. Planned once for a form and a GPU, and
// kept; where cuDNN refuses there is a warning then.
std::optional<int64_t> attention_workspace(const GpuStream& on, const AttentionForm& form);
void attention(const GpuStream& on, const AttentionForm& form, float scale,
               const AttentionTensors& tensors, void* workspace);

// A call of ours, where cuDNN is to compute it.
class AttentionCall {
 public:
  template <class T>
  AttentionCall(const GpuStream& on, const AttentionForward<T>& call) {
    AttentionForm form;
    form.pass = AttentionPass::kForward;
    form.type = data_type<T>();
    lay(form.q, call.q, tensors_.q);
    lay(form.k, call.k, tensors_.k);
    lay(form.v, call.v, tensors_.v);
    lay(form.out, call.out, tensors_.out);
    tensors_.lse = call.lse;
    choose(on, call.p, form);
  }
  template <class T>
  AttentionCall(const GpuStream& on, const AttentionBackward<T>& call) {
    const AttentionGradients<T>& gradients = call.g;
    AttentionForm form;
    form.pass = AttentionPass::kBackward;
    form.type = data_type<T>();
    lay(form.q, call.q, tensors_.q);
    lay(form.k, call.k, tensors_.k);
    lay(form.v, call.v, tensors_.v);
    lay(form.out, gradients.out, tensors_.out);
    lay(form.dout, gradients.dout, tensors_.dout);
    lay(form.dq, gradients.dq, tensors_.dq);
    lay(form.dk, gradients.dk, tensors_.dk);
    lay(form.dv, gradients.dv, tensors_.dv);
    tensors_.lse = gradients.lse;
    choose(on, call.p, form);
  }

  explicit operator bool() const { return form_.has_value(); }
  int64_t workspace_floats() const { return (workspace_ + 3) / 4; }
  void run(const GpuStream& on, void* workspace) const {
    attention(on, *form_, scale_, tensors_, workspace);
  }

 private:
  template <class T>
  static constexpr DataType data_type() {
    if constexpr (std::is_same_v<T, bfloat16>) return DataType::kBFloat16;
    if constexpr (std::is_same_v<T, float16>) return DataType::kHalf;
    return DataType::kFloat;
  }
  template <class T, class Pointer>
  static void lay(HeadsLayout& layout, const HeadView<T>& view, Pointer& pointer) {
    layout = {view.batch, view.token, view.head};
    pointer = const_cast<std::remove_const_t<T>*>(view.data);
  }
  void choose(const GpuStream& on, const AttentionProblem& p, const AttentionForm& form) {
    scale_ = p.scale;
    form_ = attention_form(on, p, form, tensors_);
    if (!form_) return;
    const std::optional<int64_t> bytes = attention_workspace(on, *form_);
    workspace_ = bytes.value_or(0);
    if (!bytes) form_.reset();
  }

  AttentionTensors tensors_;
  std::optional<AttentionForm> form_;
  float scale_ = 1;
  int64_t workspace_ = 0;
};

}  // namespace ds::kernels::cudnn
