// Gradients of which each rank has few rows, such as those of a token embedding: ranks exchange the
// rows that are not zero, with their numbers, instead of the whole matrix.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "ops/context.h"

namespace ds::zero {

class RowReduce {
 public:
  // `comm_dtype`: the type that values travel in. The threads of `ctx` must outlive it.
  RowReduce(const OpContext& ctx, RankGroup ranks, ReduceOp op, DType comm_dtype)
      : ctx_(ctx), ranks_(std::move(ranks)), op_(op), comm_dtype_(comm_dtype) {}

  // Replaces a matrix, fp32 and packed, by the ranks' sum or mean: the bits of a reduction of all
  // of it. False, and nothing done, where the ranks have more rows than the matrix together, or it
  // lies on a GPU. Every rank calls it.
  bool reduce(Tensor& matrix, const std::string& name);

 private:
  // A row of the result, and where its values lie among those of all ranks, in their order.
  struct Source {
    int32_t row;
    int64_t at;
  };
  std::vector<int32_t> rows_of(const Tensor& matrix) const;
  std::vector<int64_t> counts_of_ranks(int64_t own, int64_t rows, const std::string& name) const;
  Tensor gather(const Tensor& own, const std::vector<int64_t>& counts,
                const std::string& name) const;
  Tensor packed(const Tensor& matrix, const std::vector<int32_t>& rows) const;
  template <class T>
  void combine(const std::vector<Source>& sources, Tensor& values, Tensor& matrix) const;

  OpContext ctx_;
  RankGroup ranks_;
  ReduceOp op_;
  DType comm_dtype_;
};

}  // namespace ds::zero
