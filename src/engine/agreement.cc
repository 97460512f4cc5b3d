#include "engine/agreement.h"

#include <cstring>
#include <numeric>
#include <optional>

#include "base/failure_note.h"
#include "comm/message_memory.h"
#include "comm/record.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

constexpr size_t kMostText = size_t{1} << 30;

// Memory of the host, whatever the model lies on.
Tensor host_tensor(const OpContext& ctx, Communicator& comm, DType dtype, int64_t elements) {
  return comm::message_memory(comm, ctx.device, dtype, {elements}, MemoryTag::kWorkspace);
}

std::string text_of(const Tensor& bytes) {
  return {static_cast<const char*>(bytes.raw()), static_cast<size_t>(bytes.bytes())};
}

}  // namespace

void agree(const OpContext& ctx, Communicator& comm, std::string_view what,
           const std::function<void()>& body) {
  std::optional<Error> failure;
  try {
    body();
  } catch (const Error& error) {
    failure = error;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kOutOfMemory, "no memory");
  }
  if (comm.size() == 1) {
    if (failure) throw *failure;
    return;
  }
  if (failure) note_failure(failure->code());  // before the others hear of it
  const Tensor first = host_tensor(ctx, comm, DType::kInt32, 1);
  *first.data<int32_t>() = failure ? comm.rank() : comm.size();
  comm.all_reduce(first, ReduceOp::kMin, {.label = what, .blocking = true})->wait();
  const int32_t rank = *first.data<int32_t>();
  if (rank == comm.size()) return;
  const Tensor code = host_tensor(ctx, comm, DType::kInt32, 1);
  *code.data<int32_t>() = failure ? static_cast<int32_t>(failure->code()) : 0;
  comm.broadcast(code, rank, {.label = what, .blocking = true})->wait();
  const std::string text =
      broadcast_text(ctx, comm, failure ? std::string_view(failure->message()) : "", rank);
  if (rank == comm.rank()) throw AgreedError(failure->code(), failure->message());
  throw AgreedError(
      static_cast<Code>(*code.data<int32_t>()),
      str_cat(what, " failed on rank ", rank, ": ", comm::peer_text(text, size_t{1} << 16)));
}

bool on_every_rank(const OpContext& ctx, Communicator& comm, std::string_view what, bool here) {
  if (comm.size() == 1) return here;
  const Tensor all = host_tensor(ctx, comm, DType::kInt32, 1);
  *all.data<int32_t>() = here ? 1 : 0;
  comm.all_reduce(all, ReduceOp::kMin, {.label = what, .blocking = true})->wait();
  return *all.data<int32_t>() == 1;
}

std::string broadcast_text(const OpContext& ctx, Communicator& comm, std::string_view text,
                           int root) {
  if (comm.size() == 1) return std::string(text);
  const Tensor size = host_tensor(ctx, comm, DType::kInt64, 1);
  *size.data<int64_t>() = static_cast<int64_t>(text.size());
  comm.broadcast(size, root, {.label = "text size", .blocking = true})->wait();
  const int64_t bytes = *size.data<int64_t>();
  DS_CHECK(bytes >= 0 && static_cast<size_t>(bytes) <= kMostText, Code::kComm, "rank ", root,
           " announces a text of ", bytes, " bytes");
  if (bytes == 0) return {};
  const Tensor data = host_tensor(ctx, comm, DType::kUInt8, bytes);
  if (comm.rank() == root) std::memcpy(data.raw(), text.data(), text.size());
  comm.broadcast(data, root, {.label = "text", .blocking = true})->wait();
  return text_of(data);
}

std::vector<std::string> gather_texts(const OpContext& ctx, Communicator& comm,
                                      std::string_view text) {
  if (comm.size() == 1) return {std::string(text)};
  const Tensor size = host_tensor(ctx, comm, DType::kInt64, 1);
  const Tensor sizes = host_tensor(ctx, comm, DType::kInt64, comm.size());
  *size.data<int64_t>() = static_cast<int64_t>(text.size());
  comm.all_gather(sizes, size, {.label = "text sizes", .blocking = true})->wait();
  const std::vector<int64_t> counts(sizes.data<int64_t>(), sizes.data<int64_t>() + comm.size());
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor own = host_tensor(ctx, comm, DType::kUInt8, static_cast<int64_t>(text.size()));
  if (!text.empty()) std::memcpy(own.raw(), text.data(), text.size());
  const Tensor all = host_tensor(ctx, comm, DType::kUInt8, total);
  comm.all_gather_v(all, own, counts, {.label = "texts", .blocking = true})->wait();
  std::vector<std::string> out;
  if (comm.rank() != 0) return out;
  const std::string joined = text_of(all);
  size_t at = 0;
  for (const int64_t count : counts) {
    out.push_back(joined.substr(at, static_cast<size_t>(count)));
    at += static_cast<size_t>(count);
  }
  return out;
}

void end_group(Communicator& comm, const Error& error) {
  if (comm.size() > 1) comm.abort(error.message());
}

void next_part(Communicator& comm, CallControl::Call& call, int64_t done) {
  try {
    call.next(done);
  } catch (const Error& error) {
    end_group(comm, error);
    throw;
  }
}

}  // namespace ds
