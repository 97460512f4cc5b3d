// The graphs are spelled as cuDNN's engines for attention expect them: one product, the scale, the
// mask, the softmax and the second product are one kernel there. Scores and weights are fp32
// between products and are rounded to the type before one, as in our own kernels.
#include "kernels/attention/attention_cudnn.h"

namespace ds::kernels::cudnn {
namespace {

Sizes sizes_of(const AttentionForm& f, int64_t heads, int64_t tokens) {
  return {f.batch, heads, tokens, f.head_dim};
}
Sizes strides_of(const HeadsLayout& layout) { return {layout.batch, layout.head, layout.token, 1}; }

GraphTensor heads(Graph& graph, const AttentionForm& f, int64_t heads, int64_t tokens,
                  const HeadsLayout& layout) {
  return graph.tensor(f.type, sizes_of(f, heads, tokens), strides_of(layout));
}

// Keys or values with their last two dimensions exchanged.
GraphTensor transposed(Graph& graph, const AttentionForm& f, const HeadsLayout& layout) {
  return graph.tensor(f.type, {f.batch, f.kv_heads, f.head_dim, f.keys},
                      {layout.batch, layout.head, 1, layout.token});
}

Sizes scores(const AttentionForm& f) { return {f.batch, f.heads, f.queries, f.keys}; }
Sizes rows(const AttentionForm& f) { return {f.batch, f.heads, f.queries, 1}; }
Sizes row_strides(const AttentionForm& f) { return {f.row_batch, f.queries, 1, 1}; }

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
  g.v = transposed(graph, f, f.v);
  g.dout = heads(graph, f, f.heads, f.queries, f.dout);
  g.dq = heads(graph, f, f.heads, f.queries, f.dq);
  g.dk = heads(graph, f, f.kv_heads, f.keys, f.dk);
  g.dv = heads(graph, f, f.kv_heads, f.keys, f.dv);
  g.one = graph.value();

  // The sum of dout * out over a row is what its softmax subtracts.
  g.deltas = graph.tensor(DataType::kFloat, rows(f), row_strides(f));
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
  if (f.strict) return graph.multiply(dscore, keys, g.dq);
  // With a place to add the shares of the keys to, engines need not keep dscore for all of them.
  const int64_t row = f.head_dim, head = f.queries * row;
  g.dq_sum = graph.tensor(DataType::kFloat, sizes_of(f, f.heads, f.queries),
                          {f.heads * head, head, row, 1});
  graph.multiply(dscore, keys, g.dq_sum);
  graph.apply(Pointwise::kIdentity, g.dq_sum, g.dq);
}

}  // namespace

AttentionGraph attention_graph(const Library& library, const AttentionForm& f) {
  AttentionGraph g(library);
  Graph& graph = g.graph;
  g.q = heads(graph, f, f.heads, f.queries, f.q);
  g.k = transposed(graph, f, f.k);
  g.out = heads(graph, f, f.heads, f.queries, f.out);
  g.lse = graph.tensor(DataType::kFloat, rows(f), row_strides(f));
  g.scale = graph.value();
  f.pass == AttentionPass::kForward ? forward_graph(g, f) : backward_graph(g, f);
  return g;
}

}  // namespace ds::kernels::cudnn
