// Expert parallelism: rows of tokens on their way to the ranks that hold the experts which the
// tokens chose, and back.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mesh/row_exchange.h"
#include "nn/tape.h"
#include "ops/routes.h"

namespace ds::nn {

// One pass through a layer. Every rank of the group makes the same calls, also one whose experts
// nobody chose: it gets no rows, and sends none.
class ExpertExchange {
 public:
  // Collective over `ranks`, each of which holds as many experts one after another, in the order of
  // the ranks: they tell each other how many rows come. `routes` are this rank's, to all experts.
  ExpertExchange(const OpContext& ctx, const ExchangeRanks& ranks, const ops::Routes& routes);

  // The experts here: so many from this one on.
  int64_t first() const { return first_; }
  int64_t count() const { return count_; }

  // Rows that were received, as tokens that go to one local expert each. Sorted, those of an expert
  // are in the order of the ranks that sent them, and of their tokens there.
  const std::shared_ptr<const ops::Routes>& arrived() const { return arrived_; }

  // Collective; backward is, too, and moves gradients the other way. Rows [all_rows, width] sorted
  // by expert become those that arrive here, rank after rank; and those that arrived, in that
  // order, become rows [all_rows, width] again. `meanwhile` runs while rows are on their way, and
  // so does its backward; it may be empty.
  using Meanwhile = std::function<void()>;
  Value to_experts(Tape& tape, const Value& rows, const Meanwhile& meanwhile = {}) const;
  Value to_tokens(Tape& tape, const Value& rows, const Meanwhile& meanwhile = {}) const;

 private:
  Value send(Tape& tape, const Value& rows, RowExchange::Way way, const Meanwhile& meanwhile) const;

  int64_t first_ = 0, count_ = 0;
  std::shared_ptr<const RowExchange> rows_;
  std::shared_ptr<const ops::Routes> arrived_;
};

}  // namespace ds::nn
