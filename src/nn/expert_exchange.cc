#include "nn/expert_exchange.h"

#include <algorithm>
#include <utility>

#include "nn/profile.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::nn {
namespace {

using Way = RowExchange::Way;

// Gradients on their way back: begun where the forward pass waited, and waited for where it began.
struct Returning {
  RowExchange::Flight flight;
  Tensor rows;
};

}  // namespace

ExpertExchange::ExpertExchange(const OpContext& ctx, const ExchangeRanks& ranks,
                               const ops::Routes& routes) {
  const int64_t experts = routes.experts();
  DS_CHECK(experts % ranks.all.size == 0, Code::kConfig, ranks.all.size,
           " ranks cannot share a layer's ", experts, " experts equally");
  count_ = experts / ranks.all.size;
  first_ = ranks.all.rank * count_;
  const auto numbers = [&, host = host_memory_of(ctx.device)] {
    return Tensor::empty(host, DType::kInt64, {experts}, MemoryTag::kWorkspace);
  };
  const Tensor mine = numbers(), theirs = numbers();  // the second [rank, own expert]
  for (int64_t e = 0; e < experts; ++e) {
    mine.data<int64_t>()[e] = routes.begin(e + 1) - routes.begin(e);
  }
  rows_ = std::make_shared<const RowExchange>(ranks, mine, theirs, "rows of experts");
  const int64_t* const counts = theirs.data<int64_t>();
  const int64_t all = rows_->rows_received();
  const auto ints = [&](const Shape& shape) {
    return Tensor::empty(ctx.device, DType::kInt32, shape, MemoryTag::kActivations);
  };
  ops::Routes arrived{ints({all, 1}), ints({count_ + 1}), ints({all}), ints({all, 1})};
  std::vector<int32_t> chosen;
  chosen.reserve(static_cast<size_t>(all));
  for (int64_t i = 0; i < experts; ++i) {
    chosen.insert(chosen.end(), static_cast<size_t>(counts[i]), static_cast<int32_t>(i % count_));
  }
  copy_from_host(chosen.data(), arrived.chosen);
  ops::sort_routes(ctx, arrived);
  arrived_ = std::make_shared<const ops::Routes>(std::move(arrived));
}

Value ExpertExchange::to_experts(Tape& tape, const Value& rows, const Meanwhile& meanwhile) const {
  return send(tape, rows, Way::kOut, meanwhile);
}

Value ExpertExchange::to_tokens(Tape& tape, const Value& rows, const Meanwhile& meanwhile) const {
  return send(tape, rows, Way::kHome, meanwhile);
}

Value ExpertExchange::send(Tape& tape, const Value& rows, Way way,
                           const Meanwhile& meanwhile) const {
  const bool out_way = way == Way::kOut;
  const Way back = out_way ? Way::kHome : Way::kOut;
  const bool wait = !meanwhile;  // the caller has nothing to do in the meantime
  const CollectiveOptions there{.label = out_way ? "rows to experts" : "rows from experts",
                                .blocking = wait};
  const CollectiveOptions home{
      .label = out_way ? "gradients of rows to experts" : "gradients of rows from experts",
      .blocking = wait};
  const DType type = rows.data.dtype();
  const int64_t width = rows.data.size(1), before = rows.data.size(0);
  const int64_t count = out_way ? rows_->rows_received() : rows_->rows_sent();
  Value out = tape.make_value(tape.new_activation(type, {count, width}));
  const auto returning = std::make_shared<Returning>();
  RowExchange::Flight flight;
  {
    const OperatorScope op(tape, "exchange");
    flight = rows_->start(rows.data, out.data, way, there);
    tape.record([in = rows.slot, returning, exchange = rows_, back, home](Tape& t) {
      const RowExchange::Flight home_flight = std::exchange(returning->flight, {});
      Tensor gradient = std::exchange(returning->rows, Tensor());
      if (!home_flight) return;
      exchange->finish(home_flight, gradient, back, home);
      if (in) in->add(t.ctx(), std::move(gradient), true);
    });
  }
  if (meanwhile) meanwhile();
  const OperatorScope op(tape, "exchange");
  rows_->finish(flight, out.data, way, there);
  tape.record([needed = rows.slot != nullptr, slot = out.slot, returning, exchange = rows_, back,
               home, type, count, before, width](Tape& t) {
    // What is not needed is so on every rank. A gradient that nobody gave is zero.
    if (!needed) return;
    bool exclusive = false;
    Tensor dy = *slot ? slot->take(exclusive) : Tensor();
    if (!dy) {
      dy = t.new_activation(type, {count, width});
      ops::fill(t.ctx(), 0.0f, dy);
    }
    returning->rows = t.new_activation(dy.dtype(), {before, width});
    returning->flight = exchange->start(dy, returning->rows, back, home);
  });
  return out;
}

}  // namespace ds::nn
