#include "comm/group_state.h"

#include "base/text.h"

namespace ds {
namespace {

constexpr size_t kMostListed = 16;  // ranks of a group in an error

}  // namespace

GroupState::GroupState(int rank, int size, std::chrono::milliseconds deadline)
    : rank_(rank), size_(size), deadline_(deadline) {
  DS_CHECK(size >= 1 && rank >= 0 && rank < size, Code::kInvalidArgument, "rank ", rank,
           " is not in a group of ", size);
}

void GroupState::check_active(std::string_view operation) const {
  const State now = state();
  if (now == State::kActive) return;
  if (now == State::kFinalized) {
    fail(Code::kState, operation, ": the communicator was finalized; make a new one", in_group());
  }
  const std::lock_guard lock(reason_mutex_);
  if (now == State::kFailed)
    fail(Code::kComm, operation, ": the group failed before: ", reason_, in_group());
  fail(Code::kAborted, operation, ": the communicator was aborted", reason_.empty() ? "" : ": ",
       reason_, in_group());
}

std::string GroupState::in_group() const {
  if (name_.empty()) return {};
  std::string ranks;
  for (size_t i = 0; i < first_ranks_.size(); ++i) {
    if (i == kMostListed) {
      ranks += str_cat(" and ", first_ranks_.size() - i, " more");
      break;
    }
    ranks += str_cat(i == 0 ? " of ranks " : ", ", first_ranks_[i]);
  }
  return str_cat(" (group \"", printable(name_), "\"", ranks, ")");
}

void GroupState::mark_failed(Code code, std::string_view text) noexcept {
  const std::lock_guard lock(reason_mutex_);
  State expected = State::kActive;
  const State failed = code == Code::kAborted ? State::kAborted : State::kFailed;
  if (!state_.compare_exchange_strong(expected, failed)) return;
  try {
    reason_ = text;
  } catch (...) {  // no memory for the reason: the state says enough
  }
}

bool GroupState::mark_finalized() noexcept {
  State expected = State::kActive;
  return state_.compare_exchange_strong(expected, State::kFinalized);
}

}  // namespace ds
