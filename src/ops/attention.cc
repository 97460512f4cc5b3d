// Attention: checks of the arguments and scratch for the kernels.
#include "ops/attention.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "ops/checks.h"
#include "ops/equal_heads.h"

namespace ds::ops {
namespace {

using kernels::AttentionProblem;
using kernels::HeadView;

void check_heads(const Op& op, const Tensor& tensor, const char* name, DType dtype,
                 const Shape& shape) {
  check_tensor(tensor, name, dtype, shape);
  check_place(tensor, op, name);
  DS_CHECK(tensor.stride(-1) == 1 || shape[-1] <= 1 || shape.elements() == 0,
           Code::kInvalidArgument, "attention: the last dimension of ", name,
           " must be dense, its stride is ", tensor.stride(-1));
}

void check_defined(const Tensor& tensor, const char* name) {
  DS_CHECK(static_cast<bool>(tensor) && tensor.dims() == 4, Code::kInvalidArgument,
           "attention: ", name,
           " must have 4 dimensions [batch, tokens, heads, head size], it has ",
           tensor ? tensor.shape().text() : "no data");
}

AttentionProblem make_problem(const Op& op, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& key_mask, const AttentionOptions& options,
                              bool decodes = false) {
  check_defined(q, "q");
  check_defined(k, "k");
  check_defined(v, "v");
  const DType dtype = q.dtype();
  check_float_type(q, op, "q");
  const bool in_blocks = static_cast<bool>(options.blocks);
  const Shape kv_shape{in_blocks ? 1 : q.size(0), k.size(1), k.size(2), q.size(3)};
  check_heads(op, q, "q", dtype, q.shape());
  check_heads(op, k, "k", dtype, kv_shape);
  check_heads(op, v, "v", dtype, {kv_shape[0], kv_shape[1], kv_shape[2], v.size(3)});

  AttentionProblem p;
  p.batch = q.size(0);
  p.queries = q.size(1);
  p.heads = q.size(2);
  p.head_dim = q.size(3);
  p.value_dim = v.size(3);
  p.keys = in_blocks ? options.blocks.room : k.size(1);
  p.kv_heads = k.size(2);
  DS_CHECK(p.heads > 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0, Code::kInvalidArgument,
           "attention: ", p.kv_heads, " kv heads do not divide ", p.heads, " query heads");
  const bool on_cpu = op.ctx.device->kind() == DeviceKind::kCpu;
  const int64_t most = on_cpu && decodes ? kernels::kMaxDecodedHeadDim : kernels::kMaxHeadDim;
  for (const int64_t size : {p.head_dim, p.value_dim}) {
    DS_CHECK(size >= 1 && size <= most, Code::kInvalidArgument,
             "attention: the head size must be 1 to ", most, ", it is ", size);
  }
  DS_CHECK(options.dropout >= 0 && options.dropout < 1, Code::kInvalidArgument,
           "attention: dropout must be at least 0 and below 1, it is ", options.dropout);
  DS_CHECK(options.first_head >= 0, Code::kInvalidArgument,
           "attention: first_head is negative: ", options.first_head);
  DS_CHECK(options.window >= 0, Code::kInvalidArgument,
           "attention: window is negative: ", options.window);
  p.causal = options.causal;
  p.window = options.window;
  p.scale = options.scale;
  p.dropout = options.dropout;
  p.stream = options.stream;
  p.first_head = options.first_head;
  if (key_mask) {
    check_tensor(key_mask, "key_mask", DType::kUInt8, Shape{p.batch, p.keys});
    check_place(key_mask, op, "key_mask");
    DS_CHECK(key_mask.stride(1) == 1 || p.keys <= 1 || p.batch == 0, Code::kInvalidArgument,
             "attention: rows of key_mask must be dense, their stride is ", key_mask.stride(1));
    p.key_mask = key_mask.data<uint8_t>();
    p.mask_stride = key_mask.stride(0);
  }
  if (options.segments) {
    DS_CHECK(p.queries == p.keys, Code::kInvalidArgument, "attention: segments need as many ",
             "queries as keys, not ", p.queries, " and ", p.keys);
    check_tensor(options.segments, "segments", DType::kInt32, Shape{p.batch, p.keys});
    check_place(options.segments, op, "segments");
    DS_CHECK(options.segments.stride(1) == 1 || p.keys <= 1 || p.batch == 0, Code::kInvalidArgument,
             "attention: rows of segments must be dense, their stride is ",
             options.segments.stride(1));
    p.segments = options.segments.data<int32_t>();
    p.segment_stride = options.segments.stride(0);
  }
  return p;
}

Shape result_shape(const AttentionProblem& p) { return {p.batch, p.queries, p.heads, p.value_dim}; }

static_assert(kMostQueriesBehindPast == kernels::kFewQueriesOfGpus);

// How many keys lie before the queries are numbers in memory: a GPU reads them when it comes to
// that. On the CPU sequences of one length are an ordinary problem.
void check_past(const Op& op, const Tensor& past, AttentionProblem& p) {
  check_dense(past, op, "past", DType::kInt32, {p.batch});
  DS_CHECK(p.queries <= kMostQueriesBehindPast && p.dropout == 0 && p.segments == nullptr &&
               p.key_mask == nullptr,
           Code::kInvalidArgument, "attention: lengths in memory are for up to ",
           kMostQueriesBehindPast, " queries without dropout, segments and a key mask");
  p.past = past.data<int32_t>();
  if (op.ctx.device->kind() != DeviceKind::kCpu || p.batch == 0) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    DS_CHECK(p.past[b] >= 0 && p.keys_of(b) <= p.keys, Code::kInvalidArgument,
             "attention: past of sequence ", b, " is ", p.past[b], ", k and v have room for ",
             p.keys, " keys");
  }
  const auto [least, most] = std::minmax_element(p.past, p.past + p.batch);
  p.keys = *most + p.queries;
  if (*least == *most) p.past = nullptr;
}

// Where keys lie that are not in one piece.
void add_blocks(const Op& op, const TokenBlocks& blocks, int64_t tokens, AttentionProblem& p) {
  check_blocks(op, blocks, p.batch, tokens);
  for (int64_t b = 0; b < p.batch; ++b) check_tokens(op, blocks, b, p.keys_of(b), tokens);
  p.key_blocks = table_of(blocks.keys, tokens);
  p.value_blocks = table_of(blocks.values, tokens);
}

void check_lse(const Op& op, const Tensor& lse, const AttentionProblem& p) {
  check_tensor(lse, "lse", DType::kFloat32, Shape{p.batch, p.heads, p.queries});
  check_place(lse, op, "lse");
  DS_CHECK(lse.contiguous(), Code::kInvalidArgument, "attention: lse must be contiguous");
}

template <class T>
HeadView<T> view(const Tensor& tensor) {
  return {tensor.data<std::remove_const_t<T>>(), tensor.stride(0), tensor.stride(1),
          tensor.stride(2)};
}

template <class T>
void forward(const OpContext& ctx, const AttentionProblem& p, const AttentionInputs& in,
             const Tensor& out, float* lse) {
  kernels::AttentionForward<T> call{.p = p,
                                    .q = view<const T>(in.q),
                                    .k = view<const T>(in.k),
                                    .v = view<const T>(in.v),
                                    .out = view<T>(out),
                                    .lse = lse};
  run(
      ctx, [&](auto& on) { return kernels::attention_workspace(call, on); },
      [&](float* workspace, auto& on) {
        call.workspace = workspace;
        kernels::attention_forward(call, on);
      });
}

// Sequences of several lengths with more queries than a kernel takes them for, one by one.
template <class T>
void forward_each(const OpContext& ctx, const AttentionProblem& p, const AttentionInputs& in,
                  const Tensor& out, float* lse) {
  for (int64_t b = 0; b < p.batch; ++b) {
    AttentionProblem one = p;
    one.batch = 1;
    one.keys = p.keys_of(b);
    one.past = nullptr;
    one.key_blocks = p.key_blocks.from(b);
    one.value_blocks = p.value_blocks.from(b);
    const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
    const auto cached = [&](const Tensor& x) { return p.key_blocks ? x : of(x); };
    const AttentionInputs part{.q = of(in.q), .k = cached(in.k), .v = cached(in.v)};
    forward<T>(ctx, one, part, of(out), lse == nullptr ? nullptr : lse + b * p.heads * p.queries);
  }
}

template <class T>
void backward(const OpContext& ctx, const AttentionProblem& p, const AttentionInputs& in,
              const AttentionOutputs& out, const Tensor& dout,
              const AttentionGradients& gradients) {
  kernels::AttentionBackward<T> call{.p = p,
                                     .q = view<const T>(in.q),
                                     .k = view<const T>(in.k),
                                     .v = view<const T>(in.v),
                                     .g = {.dout = view<const T>(dout),
                                           .out = view<const T>(out.out),
                                           .lse = out.lse.data<float>(),
                                           .dq = view<T>(gradients.dq),
                                           .dk = view<T>(gradients.dk),
                                           .dv = view<T>(gradients.dv)}};
  run(
      ctx, [&](auto& on) { return kernels::attention_workspace(call, on); },
      [&](float* workspace, auto& on) {
        call.workspace = workspace;
        kernels::attention_backward(call, on);
      });
}

bool fills_up(const OpContext& ctx, const AttentionInputs& in) {
  return ctx.device->kind() == DeviceKind::kCuda && heads_differ(in);
}

}  // namespace

void attention(const OpContext& ctx, const AttentionInputs& in, const AttentionOptions& options,
               const AttentionOutputs& to) {
  const Op op{ctx, "attention"};
  // Without much of what training needs keys are read where they lie, however long they are.
  const bool decodes = static_cast<bool>(in.q) && in.q.dims() == 4 &&
                       in.q.size(1) <= kernels::kFewQueriesOfCpus && options.dropout == 0 &&
                       !options.segments;
  AttentionProblem p = make_problem(op, in.q, in.k, in.v, in.key_mask, options, decodes);
  if (options.past) check_past(op, options.past, p);
  if (options.blocks) add_blocks(op, options.blocks, in.k.size(1), p);
  check_heads(op, to.out, "out", in.q.dtype(), result_shape(p));
  if (to.lse) check_lse(op, to.lse, p);
  if (to.out.elements() == 0) return;
  if (fills_up(ctx, in)) return attention_of_equal_heads(ctx, in, options, to);
  float* lse_data = to.lse ? to.lse.data<float>() : nullptr;
  const bool each = p.past != nullptr && ctx.device->kind() == DeviceKind::kCpu &&
                    p.queries > kernels::kFewQueriesOfCpus;
  with_float_type(in.q, [&](auto type) {
    using T = decltype(type);
    each ? forward_each<T>(ctx, p, in, to.out, lse_data) : forward<T>(ctx, p, in, to.out, lse_data);
  });
}

void attention_backward(const OpContext& ctx, const AttentionInputs& in,
                        const AttentionOptions& options, const AttentionOutputs& made,
                        const Tensor& dout, const AttentionGradients& gradients) {
  const Op op{ctx, "attention"};
  DS_CHECK(!options.blocks, Code::kInternal, op, ": keys in blocks have no backward");
  const AttentionProblem p = make_problem(op, in.q, in.k, in.v, in.key_mask, options);
  check_heads(op, dout, "dout", in.q.dtype(), result_shape(p));
  check_heads(op, made.out, "out", in.q.dtype(), result_shape(p));
  check_lse(op, made.lse, p);
  check_heads(op, gradients.dq, "dq", in.q.dtype(), in.q.shape());
  check_heads(op, gradients.dk, "dk", in.q.dtype(), in.k.shape());
  check_heads(op, gradients.dv, "dv", in.q.dtype(), in.v.shape());
  if (p.batch == 0) return;
  if (fills_up(ctx, in)) {
    return attention_of_equal_heads_backward(ctx, in, options, made, dout, gradients);
  }
  with_float_type(in.q,
                  [&](auto type) { backward<decltype(type)>(ctx, p, in, made, dout, gradients); });
}

}  // namespace ds::ops
