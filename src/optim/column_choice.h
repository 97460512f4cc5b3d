// Which columns of which matrices are updated in every step (ZenFlow, Lan et al.,
// arXiv:2505.12242): those with the largest gradients. Tensors that are no matrices always are,
// with all elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/json.h"
#include "optim/state_space.h"

namespace ds::optim {

class ColumnChoice {
 public:
  // `share` of each matrix's columns, rounded down, are chosen.
  ColumnChoice(std::span<const TensorPlace> places, double share);

  static bool is_matrix(const TensorPlace& place) { return place.shape.dims() == 2; }
  // Before the first choice nothing of a matrix is chosen.
  bool made() const { return made_; }
  int64_t columns(size_t tensor) const { return columns_[tensor]; }  // 0: no matrix
  const std::vector<int32_t>& chosen(size_t tensor) const { return chosen_[tensor]; }
  // Where a matrix's columns begin in an array over the columns of all matrices, and its length.
  int64_t first_column(size_t tensor) const { return first_[tensor]; }
  int64_t all_columns() const { return first_.back(); }

  // Columns that changed sides, by tensor.
  struct Change {
    std::vector<std::vector<int32_t>> entered, left;
  };
  // Chooses by sums over columns, all_columns() of them; of equal ones the first.
  Change choose(std::span<const int64_t> sums);

  // The chosen elements of a run, counted from its beginning, in their order, and how many of them
  // belong to each of its tensors.
  struct Elements {
    std::vector<int32_t> places;
    std::vector<int64_t> counts;  // by StateRun::tensors
  };
  Elements elements(const StateRun& run) const;
  // The same of columns that are given by tensor.
  std::vector<int32_t> elements(const StateRun& run,
                                const std::vector<std::vector<int32_t>>& columns) const;
  // What a run has of one of its tensors: elements [begin, end) of the run, the first of which is
  // element `first` of the tensor.
  struct Part {
    int64_t begin, end, first;
  };
  Part part(const StateRun& run, size_t tensor) const;

  // For a checkpoint: by the tensor's name, a bit per column.
  Json save() const;
  // Reads that; kCorrupt where it is none of these matrices.
  ColumnChoice read(const Json& saved) const;
  void clear();

 private:
  void add_columns(const Part& part, int64_t columns, std::span<const int32_t> chosen,
                   std::vector<int32_t>& out) const;

  std::vector<TensorPlace> places_;
  double share_;
  bool made_ = false;
  std::vector<int64_t> columns_;              // by tensor
  std::vector<int64_t> first_;                // by tensor, and one beyond
  std::vector<std::vector<int32_t>> chosen_;  // by tensor, ascending
};

}  // namespace ds::optim
