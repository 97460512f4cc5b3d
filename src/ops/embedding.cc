// Checks and launches of the embedding.
#include "ops/embedding.h"

#include "kernels/embedding/embedding.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void check_table(const Tensor& table, const Op& op, const char* name) {
  check_dense_float(table, op, name);
  DS_CHECK(table.dims() == 2, Code::kInvalidArgument, op, ": ", name,
           " must have two dimensions, not shape ", table.shape().text());
}

void check_ids(const Tensor& ids, const Op& op, const char* name, int64_t limit) {
  // A GPU's memory is not read here: its kernels keep to the tables.
  if (op.ctx.device->kind() != DeviceKind::kCpu) return;
  const auto* values = ids.data<int32_t>();
  const int64_t bad = kernels::first_id_outside(values, ids.elements(), limit);
  DS_CHECK(bad < 0, Code::kInvalidArgument, op, ": ", name, "[", bad, "] is ", values[bad],
           ", outside the table of ", limit, " rows");
}

// ids.shape + [cols]
void check_rows(const Tensor& rows, const Op& op, const char* name, DType dtype, int64_t count,
                int64_t cols) {
  check_dense(rows, op, name, dtype);
  DS_CHECK(rows.dims() >= 1 && rows.size(-1) == cols && rows.elements() == count * cols,
           Code::kInvalidArgument, op, ": ", name, " of shape ", rows.shape().text(),
           " must hold a row of ", cols, " for each of ", count, " ids");
}

}  // namespace

void embedding(const OpContext& ctx, const Tensor& ids, const Tensor& table,
               const Tensor& position_ids, const Tensor& positions, Tensor& y) {
  const Op op{ctx, "embedding"};
  check_dense(ids, op, "ids", DType::kInt32);
  check_table(table, op, "table");
  const int64_t n = ids.elements(), cols = table.size(1);
  check_rows(y, op, "y", table.dtype(), n, cols);
  DS_CHECK(static_cast<bool>(positions) == static_cast<bool>(position_ids), Code::kInvalidArgument,
           op, ": positions and position_ids must be given together");
  if (positions) {
    check_table(positions, op, "positions");
    check_dense(positions, op, "positions", table.dtype(), {positions.size(0), cols});
    check_elements(position_ids, op, "position_ids", DType::kInt32, n);
    check_ids(position_ids, op, "position_ids", positions.size(0));
  }
  check_ids(ids, op, "ids", table.size(0));
  with_float_type(table, [&](auto type) {
    using T = decltype(type);
    kernels::Embedding<T> call;
    call.ids = ids.data<int32_t>();
    call.table = table.data<T>();
    call.table_rows = table.size(0);
    if (positions) {
      call.position_ids = position_ids.data<int32_t>();
      call.positions = positions.data<T>();
      call.position_rows = positions.size(0);
    }
    call.n = n;
    call.cols = cols;
    call.y = y.data<T>();
    run(ctx, [&](auto& on) { kernels::embedding(call, on); });
  });
}

void embedding_backward(const OpContext& ctx, const Tensor& ids, const Tensor& dy, Tensor& dtable,
                        int64_t padding) {
  const Op op{ctx, "embedding_backward"};
  check_dense(ids, op, "ids", DType::kInt32);
  check_table(dtable, op, "dtable");
  check_dense(dtable, op, "dtable", DType::kFloat32);
  check_dense_float(dy, op, "dy");
  const int64_t n = ids.elements(), cols = dtable.size(1);
  check_rows(dy, op, "dy", dy.dtype(), n, cols);
  check_ids(ids, op, "ids", dtable.size(0));
  const bool gpu = ctx.device->kind() != DeviceKind::kCpu;
  Tensor scratch, partials;
  if (gpu) {
    scratch = ctx.workspace(DType::kInt32, {kernels::embedding_scratch(n)});
    partials = ctx.workspace(DType::kFloat32, {kernels::embedding_partials(n, cols)});
  }
  with_float_type(dy, [&](auto type) {
    using T = decltype(type);
    kernels::EmbeddingBackward<T> call;
    call.ids = ids.data<int32_t>();
    call.dy = dy.data<T>();
    call.n = n;
    call.cols = cols;
    call.dtable = dtable.data<float>();
    call.rows = dtable.size(0);
    call.padding = static_cast<int32_t>(padding);
    if (gpu) {
      call.scratch = scratch.data<int32_t>();
      call.partials = partials.data<float>();
    }
    run(ctx, [&](auto& on) { kernels::embedding_backward(call, on); });
  });
}

}  // namespace ds::ops
