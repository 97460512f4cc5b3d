// What ranks do together or not at all: a step that one of them fails, all of them fail.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/system_errors.h"
#include "comm/communicator.h"
#include "engine/call_control.h"
#include "ops/context.h"

namespace ds {

// What every rank throws: the group goes on.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective: runs `body`, which may hold collectives only where every rank reaches them, and
// returns when it succeeded everywhere. Where it failed, every rank throws the error of the first
// rank that did; the others' say which rank that was. `what` names the step.
void agree(const OpContext& ctx, Communicator& comm, std::string_view what,
           const std::function<void()>& body);

// Collective: whether it holds on every rank.
bool on_every_rank(const OpContext& ctx, Communicator& comm, std::string_view what, bool here);

// Collective: the text of rank `root`.
std::string broadcast_text(const OpContext& ctx, Communicator& comm, std::string_view text,
                           int root = 0);

// Collective: the texts of all ranks, in their order, on rank 0; elsewhere nothing.
std::vector<std::string> gather_texts(const OpContext& ctx, Communicator& comm,
                                      std::string_view text);

// Other ranks of the group, if there are any, learn of the error where they wait for this one.
void end_group(Communicator& comm, const Error& error);

// Runs `body` between collectives of the group. State in a file that cannot be read or written, or
// that has ended too early, is an error of this rank alone: it ends the group, which would wait for
// this rank.
template <class Body>
void end_group_on_io_error(Communicator& comm, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == Code::kIo || error.code() == Code::kCorrupt) end_group(comm, error);
    throw;
  }
}

// The same for all that the system refuses one rank while ranks make what they share, memory among
// it; what they have agreed on ends nothing.
template <class Body>
void end_group_on_system_error(Communicator& comm, const Body& body) {
  try {
    body();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    if (from_system(error.code())) end_group(comm, error);
    throw;
  } catch (const std::bad_alloc&) {
    end_group(comm, Error(Code::kOutOfMemory, "no memory"));
    throw;
  }
}

// Before the next part of a call that others of the group are in: a process that leaves such a call
// ends the group, which would wait for it.
void next_part(Communicator& comm, CallControl::Call& call, int64_t done);

}  // namespace ds
