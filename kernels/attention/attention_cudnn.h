// Attention by cuDNN. Only for the sources of a CUDA build.
#pragma once

#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/cudnn/graph.h"

namespace ds::kernels::cudnn {

enum class AttentionPass { kForward, kBackward };

// A tensor [batch, tokens, heads, head size] as a graph sees it; strides in elements.
struct HeadsLayout {
  int64_t batch = 0, token = 0, head = 0;
  auto operator<=>(const HeadsLayout&) const = default;
};

// What a plan depends on.
struct AttentionForm {
  AttentionPass pass{};
  DataType type{};
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0;
  bool causal = false;
  HeadsLayout q, k, v, out;
  HeadsLayout dout, dq, dk, dv;  // backward only
  auto operator<=>(const AttentionForm&) const = default;
};

// The operations of a form, and its tensors in memory.
struct AttentionGraph {
  explicit AttentionGraph(const Library& library) : graph(library) {}
  Graph graph;
  GraphTensor q, k, v, out, lse, scale, lowest;
  GraphTensor dout, dq, dk, dv, one, deltas;  // backward; deltas [batch, heads, queries] is scratch
};
AttentionGraph attention_graph(const Library& library, const AttentionForm& form);

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

// The form of a call that cuDNN is to compute, where the table or DS_CUDNN_ATTENTION says so.
// `form` has the pass, the type and the layouts. No masks, segments, windows, dropout, nor caches
// of keys; only memory that is aligned to 16 bytes.
std::optional<AttentionForm> attention_form(const AttentionProblem& problem, AttentionForm form,
                                            const AttentionTensors& tensors);

// Bytes of scratch where cuDNN is to compute the form on the current GPU. Asked once for a form and
// a GPU, and kept.
std::optional<int64_t> attention_workspace(const AttentionForm& form);
void attention(const GpuStream& on, const AttentionForm& form, float scale,
               const AttentionTensors& tensors, void* workspace);

// A call of ours, where cuDNN is to compute it.
class AttentionCall {
 public:
  template <class T>
  AttentionCall(const AttentionProblem& p, HeadView<const T> q, HeadView<const T> k,
                HeadView<const T> v, HeadView<T> out, const float* lse) {
    AttentionForm form;
    form.pass = AttentionPass::kForward;
    form.type = data_type<T>();
    lay(form.q, q, tensors_.q);
    lay(form.k, k, tensors_.k);
    lay(form.v, v, tensors_.v);
    lay(form.out, out, tensors_.out);
    tensors_.lse = lse;
    choose(p, form);
  }
  template <class T>
  AttentionCall(const AttentionProblem& p, HeadView<const T> q, HeadView<const T> k,
                HeadView<const T> v, const AttentionGradients<T>& gradients) {
    AttentionForm form;
    form.pass = AttentionPass::kBackward;
    form.type = data_type<T>();
    lay(form.q, q, tensors_.q);
    lay(form.k, k, tensors_.k);
    lay(form.v, v, tensors_.v);
    lay(form.out, gradients.out, tensors_.out);
    lay(form.dout, gradients.dout, tensors_.dout);
    lay(form.dq, gradients.dq, tensors_.dq);
    lay(form.dk, gradients.dk, tensors_.dk);
    lay(form.dv, gradients.dv, tensors_.dv);
    tensors_.lse = gradients.lse;
    choose(p, form);
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
  void choose(const AttentionProblem& p, const AttentionForm& form) {
    scale_ = p.scale;
    form_ = attention_form(p, form, tensors_);
    if (!form_) return;
    const std::optional<int64_t> bytes = attention_workspace(*form_);
    workspace_ = bytes.value_or(0);
    if (!bytes) form_.reset();
  }

  AttentionTensors tensors_;
  std::optional<AttentionForm> form_;
  float scale_ = 1;
  int64_t workspace_ = 0;
};

}  // namespace ds::kernels::cudnn
