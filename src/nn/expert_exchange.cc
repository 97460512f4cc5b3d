#include "nn/expert_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "nn/profile.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::nn {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Rows that go one way between the ranks.
struct Move {
  RankGroup ranks;
  std::vector<int64_t> sent, received;  // rows, by rank
  const char* label = "";

  Move back(const char* how) const { return {ranks, received, sent, how}; }
  // `wait`: the caller has nothing to do in the meantime.
  WorkPtr start(const Tensor& rows, const Tensor& out, bool wait) const {
    const auto elements = [width = rows.size(1)](std::vector<int64_t> counts) {
      for (int64_t& count : counts) count *= width;
      return counts;
    };
    return ranks->all_to_all_v(out.view({out.elements()}), rows.view({rows.elements()}),
                               elements(received), elements(sent),
                               {.label = label, .blocking = wait});
  }
};

// Gradients on their way back: begun where the forward pass waited, and waited for where it began.
struct Returning {
  WorkPtr work;
  Tensor rows;
};

}  // namespace

ExpertExchange::ExpertExchange(const OpContext& ctx, const RankGroup& ranks,
                               const ops::Routes& routes)
    : ranks_(ranks),
      sent_(static_cast<size_t>(ranks.size)),
      received_(static_cast<size_t>(ranks.size)) {
  const int64_t experts = routes.experts();
  DS_CHECK(experts % ranks.size == 0, Code::kConfig, ranks.size, " ranks cannot share a layer's ",
           experts, " experts equally");
  count_ = experts / ranks.size;
  first_ = ranks.rank * count_;
  const auto numbers = [&, host = host_memory_of(ctx.device)] {
    return Tensor::empty(host, DType::kInt64, {experts}, MemoryTag::kWorkspace);
  };
  const Tensor mine = numbers(), theirs = numbers();  // the second [rank, own expert]
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = routes.begin(e + 1) - routes.begin(e);
    mine.data<int64_t>()[e] = rows;
    sent_[static_cast<size_t>(e / count_)] += rows;
  }
  ranks->all_to_all(theirs, mine, {.label = "rows of experts", .blocking = true})->wait();
  const int64_t* const counts = theirs.data<int64_t>();
  for (int64_t i = 0; i < experts; ++i) {
    int64_t& of_rank = received_[static_cast<size_t>(i / count_)];
    DS_CHECK(counts[i] >= 0 && counts[i] <= INT32_MAX - of_rank, Code::kComm, "rank ", i / count_,
             " of the ranks that share experts wants to send ", counts[i], " rows to one of them");
    of_rank += counts[i];
  }
  const int64_t all = sum_of(received_);
  DS_CHECK(all <= INT32_MAX, Code::kUnsupported, all, " rows come to the ", count_,
           " experts of a rank; at most 2^31 - 1 are possible");
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
  return send(tape, rows, true, meanwhile);
}

Value ExpertExchange::to_tokens(Tape& tape, const Value& rows, const Meanwhile& meanwhile) const {
  return send(tape, rows, false, meanwhile);
}

Value ExpertExchange::send(Tape& tape, const Value& rows, bool to_experts,
                           const Meanwhile& meanwhile) const {
  Move move{ranks_, sent_, received_, "rows to experts"};
  if (!to_experts) move = move.back("rows from experts");
  const Move home =
      move.back(to_experts ? "gradients of rows to experts" : "gradients of rows from experts");
  const DType type = rows.data.dtype();
  const int64_t width = rows.data.size(1), count = sum_of(move.received);
  Value out = tape.make_value(tape.new_activation(type, {count, width}));
  const bool wait = !meanwhile;
  const auto returning = std::make_shared<Returning>();
  WorkPtr work;
  {
    const OperatorScope op(tape, "exchange");
    work = move.start(rows.data, out.data, wait);
    tape.record([in = rows.slot, returning](Tape& t) {
      const WorkPtr home_work = std::exchange(returning->work, nullptr);
      Tensor gradient = std::exchange(returning->rows, Tensor());
      if (!home_work) return;
      home_work->wait();
      if (in) in->add(t.ctx(), std::move(gradient), true);
    });
  }
  if (meanwhile) meanwhile();
  const OperatorScope op(tape, "exchange");
  work->wait();
  tape.record([needed = rows.slot != nullptr, slot = out.slot, home, returning, type, count, width,
               wait](Tape& t) {
    // What is not needed is so on every rank. A gradient that nobody gave is zero.
    if (!needed) return;
    bool exclusive = false;
    Tensor dy = *slot ? slot->take(exclusive) : Tensor();
    if (!dy) {
      dy = t.new_activation(type, {count, width});
      ops::fill(t.ctx(), 0.0f, dy);
    }
    returning->rows = t.new_activation(dy.dtype(), {sum_of(home.received), width});
    returning->work = home.start(dy, returning->rows, wait);
  });
  return out;
}

}  // namespace ds::nn
