// Attention: checks of the arguments and scratch for the kernels.
#include "ops/attention.h"

#include <algorithm>
#include <array>

#include "kernels/attention/attention.h"
#include "kernels/attention/token_codes.h"
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

// `coded`: k and v are 8-bit codes.
AttentionProblem make_problem(const Op& op, const AttentionInputs& in,
                              const AttentionOptions& options, bool decodes = false,
                              bool coded = false) {
  const auto& [q, k, v, key_mask, k_scales, v_scales] = in;
  check_defined(q, "q");
  check_defined(k, "k");
  check_defined(v, "v");
  const DType dtype = q.dtype(), kv_dtype = coded ? DType::kInt8 : dtype;
  check_float_type(q, op, "q");
  const bool in_blocks = static_cast<bool>(options.blocks);
  const Shape kv_shape{in_blocks ? 1 : q.size(0), k.size(1), k.size(2), q.size(3)};
  check_heads(op, q, "q", dtype, q.shape());
  check_heads(op, k, "k", kv_dtype, kv_shape);
  check_heads(op, v, "v", kv_dtype, {kv_shape[0], kv_shape[1], kv_shape[2], v.size(3)});

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
  if (blocks.key_scales) check_scale_blocks(op, blocks);
  p.key_blocks = table_of(blocks.keys, tokens);
  p.value_blocks = table_of(blocks.values, tokens);
}

void check_scales(const Op& op, const Tensor& scales, const char* name, const Tensor& codes) {
  check_tensor(scales, name, DType::kFloat32, {codes.size(0), codes.size(1), codes.size(2)});
  check_place(scales, op, name);
  DS_CHECK(scales.stride(1) == 1 || scales.size(1) <= 1, Code::kInvalidArgument, op, ": ", name,
           " of a head must lie side by side, their stride is ", scales.stride(1));
}

void check_codes(const Op& op, const AttentionInputs& in, const AttentionOptions& options) {
  DS_CHECK(op.ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported, op,
           ": a GPU reads no keys and values in codes");
  DS_CHECK(options.dropout == 0 && !options.segments, Code::kInvalidArgument, op,
           ": keys and values in codes have no dropout and no segments");
  check_scales(op, in.k_scales, "k_scales", in.k);
  check_scales(op, in.v_scales, "v_scales", in.v);
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

// What lies in codes, where the tables of its blocks are those of `blocks`.
kernels::CodedRows<const int8_t, const float> coded_rows(const Tensor& codes, const Tensor& scales,
                                                         const kernels::TokenBlocks& code_blocks,
                                                         const Tensor& scale_blocks) {
  kernels::CodedRows<const int8_t, const float> rows;
  rows.codes = {codes.data<int8_t>(), codes.stride(0), codes.stride(1), codes.stride(2)};
  rows.scales = {scales.data<float>(), scales.stride(0), scales.stride(1), scales.stride(2)};
  rows.blocks = code_blocks;
  if (scale_blocks) rows.scale_blocks = table_of(scale_blocks, code_blocks.tokens);
  return rows;
}

struct CodedInputs {
  kernels::CodedRows<const int8_t, const float> k, v;
};
CodedInputs coded_inputs(const AttentionProblem& p, const AttentionInputs& in,
                         const TokenBlocks& blocks) {
  return {coded_rows(in.k, in.k_scales, p.key_blocks, blocks.key_scales),
          coded_rows(in.v, in.v_scales, p.value_blocks, blocks.value_scales)};
}

template <class T>
void forward(const OpContext& ctx, const AttentionProblem& p, const AttentionInputs& in,
             const Tensor& out, float* lse, const CodedInputs* coded = nullptr) {
  kernels::AttentionForward<T> call;
  call.p = p;
  call.q = view<const T>(in.q);
  call.out = view<T>(out);
  call.lse = lse;
  if (coded != nullptr) {
    call.coded_k = coded->k;
    call.coded_v = coded->v;
  } else {
    call.k = view<const T>(in.k);
    call.v = view<const T>(in.v);
  }
  run(
      ctx, [&](auto& on) { return kernels::attention_workspace(call, on); },
      [&](float* workspace, auto& on) {
        call.workspace = workspace;
        kernels::attention_forward(call, on);
      });
}

// The first tokens of sequence b as numbers [1, tokens, Hkv, D]; those of a head lie side by side.
template <class T>
Tensor numbers_of(const OpContext& ctx, const kernels::CodedRows<const int8_t, const float>& from,
                  int64_t b, const Shape& shape) {
  const int64_t tokens = shape[1], heads = shape[2], size = shape[3];
  const Tensor memory = ctx.workspace(DTypeOf<T>::value, {1, heads, tokens, size});
  const std::array<int64_t, 4> strides{heads * tokens * size, size, tokens * size, 1};
  const auto first = static_cast<const std::byte*>(memory.raw()) -
                     static_cast<const std::byte*>(memory.storage()->data());
  Tensor numbers(memory.storage(), first, memory.dtype(), shape, strides);
  const kernels::CodedTokens<T> call{.tokens = tokens,
                                     .heads = heads,
                                     .size = size,
                                     .sequence = b,
                                     .from = from,
                                     .y = view<T>(numbers)};
  if (ctx.device->computes()) kernels::dequantize_tokens(call, *ctx.pool);
  return numbers;
}

// What a kernel takes one by one: sequences of several lengths with more queries than it takes them
// for, and codes that more queries than few see.
template <class T>
void forward_each(const OpContext& ctx, const AttentionProblem& p, const AttentionInputs& in,
                  const Tensor& out, float* lse, const CodedInputs* coded) {
  for (int64_t b = 0; b < p.batch; ++b) {
    AttentionProblem one = p;
    one.batch = 1;
    one.keys = p.keys_of(b);
    one.past = nullptr;
    if (p.key_mask != nullptr) one.key_mask = p.key_mask + b * p.mask_stride;
    one.key_blocks = coded != nullptr ? kernels::TokenBlocks() : p.key_blocks.from(b);
    one.value_blocks = coded != nullptr ? kernels::TokenBlocks() : p.value_blocks.from(b);
    const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
    const auto cached = [&](const Tensor& x) { return p.key_blocks ? x : of(x); };
    AttentionInputs part{.q = of(in.q), .k = {}, .v = {}};
    if (coded != nullptr) {
      part.k = numbers_of<T>(ctx, coded->k, b, {1, one.keys, p.kv_heads, p.head_dim});
      part.v = numbers_of<T>(ctx, coded->v, b, {1, one.keys, p.kv_heads, p.value_dim});
    } else {
      part.k = cached(in.k);
      part.v = cached(in.v);
    }
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

bool queries_alike(int64_t queries, int64_t others) {
  const auto few = [](int64_t n) { return n <= kernels::kFewQueriesOfCpus; };
  const auto many = [](int64_t n) { return n >= kernels::kManyQueriesOfCpus; };
  return few(queries) == few(others) && many(queries) == many(others);
}

void attention(const OpContext& ctx, const AttentionInputs& in, const AttentionOptions& options,
               const AttentionOutputs& to) {
  const Op op{ctx, "attention"};
  // Without much of what training needs keys are read where they lie, however long they are.
  const bool decodes = static_cast<bool>(in.q) && in.q.dims() == 4 &&
                       in.q.size(1) <= kernels::kFewQueriesOfCpus && options.dropout == 0 &&
                       !options.segments;
  const bool is_coded = static_cast<bool>(in.k_scales);
  AttentionProblem p = make_problem(op, in, options, decodes, is_coded);
  if (is_coded) check_codes(op, in, options);
  if (options.past) check_past(op, options.past, p);
  if (options.blocks) add_blocks(op, options.blocks, in.k.size(1), p);
  check_heads(op, to.out, "out", in.q.dtype(), result_shape(p));
  if (to.lse) check_lse(op, to.lse, p);
  if (to.out.elements() == 0) return;
  if (fills_up(ctx, in)) return attention_of_equal_heads(ctx, in, options, to);
  float* lse_data = to.lse ? to.lse.data<float>() : nullptr;
  const bool each = (p.past != nullptr || is_coded) && ctx.device->kind() == DeviceKind::kCpu &&
                    p.queries > kernels::kFewQueriesOfCpus;
  const CodedInputs rows = is_coded ? coded_inputs(p, in, options.blocks) : CodedInputs();
  const CodedInputs* const coded = is_coded ? &rows : nullptr;
  with_float_type(in.q, [&](auto type) {
    using T = decltype(type);
    each ? forward_each<T>(ctx, p, in, to.out, lse_data, coded)
         : forward<T>(ctx, p, in, to.out, lse_data, coded);
  });
}

void attention_backward(const OpContext& ctx, const AttentionInputs& in,
                        const AttentionOptions& options, const AttentionOutputs& made,
                        const Tensor& dout, const AttentionGradients& gradients) {
  const Op op{ctx, "attention"};
  DS_CHECK(!options.blocks, Code::kInternal, op, ": keys in blocks have no backward");
  DS_CHECK(!in.k_scales, Code::kInternal, op, ": keys in codes have no backward");
  const AttentionProblem p = make_problem(op, in, options);
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
