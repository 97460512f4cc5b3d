// File I/O of ds.h: handles, reads and writes of tensors and memory, waiting and giving up.
#include <memory>
#include <optional>

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/io_object.h"
#include "capi/json_args.h"
#include "capi/tensor_object.h"

static_assert(sizeof(ds_io_info) == 56);
static_assert(sizeof(ds_io_transfer) == 64);

namespace ds::capi {
namespace {

constexpr int64_t kMostBlock = int64_t{1} << 30;

std::shared_ptr<IoObject> make_io(const char* options_json) {
  const JsonArguments given(options_json, "the options of file I/O",
                            {"block_size", "queue_depth", "intra_op_parallelism", "single_submit",
                             "overlap_events", "backend", "use_gds", "validate", "checksum"});
  const int64_t block_size = given.integer("block_size", int64_t{1} << 20, 1, kMostBlock);
  const std::string backend = given.text("backend", "auto");
  const std::optional<io::BackendKind> kind = io::backend_of_name(backend);
  if (!kind) given.refuse("backend", "it is \"auto\", \"io_uring\", \"libaio\" or \"threads\"");
  DS_CHECK(!given.flag("use_gds", false), Code::kUnsupported,
           "use_gds: this library has no GPUDirect Storage; read and write host memory");
  io::SessionOptions options;
  options.engine.parallelism = static_cast<int>(given.integer("intra_op_parallelism", 1, 1, 64));
  options.engine.queue = {
      .depth = static_cast<int>(given.integer("queue_depth", 8, 1, 4096)),
      .block_bytes = (block_size + io::kAlignment - 1) / io::kAlignment * io::kAlignment,
      .backend = *kind,
      .single_submit = given.flag("single_submit", false),
      .overlap = given.flag("overlap_events", true)};
  options.validate = given.flag("validate", false);
  options.checksum = given.flag("checksum", false);
  return std::make_shared<IoObject>(options, block_size);
}

ds_io_backend backend_code(io::BackendKind kind) {
  switch (kind) {
    case io::BackendKind::kUring:
      return DS_IO_URING;
    case io::BackendKind::kLibaio:
      return DS_IO_LIBAIO;
    case io::BackendKind::kThreads:
      return DS_IO_THREADS;
    case io::BackendKind::kBest:
      break;
  }
  return DS_IO_BACKEND_UNKNOWN;
}

// The memory of a transfer, which what keeps it keeps in place.
struct TransferMemory {
  std::span<std::byte> bytes;
  io::Session::Keep keep;
};

TransferMemory tensor_memory(const ds_io_transfer& call) {
  const Entered<TensorObject> object =
      enter(call.tensor, "transfer.tensor", call.write ? Entry::kShared : Entry::kExclusive);
  const Tensor& tensor = host_tensor(*object, "transfer.tensor");
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, "transfer.tensor must be packed row-major");
  DS_CHECK(call.write || !tensor.storage()->read_only(), Code::kState,
           "transfer.tensor is read-only");
  return {{static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())},
          std::make_shared<Tensor>(tensor)};
}

TransferMemory memory_of(const ds_io_transfer& call) {
  if (call.tensor != nullptr) {
    DS_CHECK(call.data == nullptr && call.size == 0, Code::kInvalidArgument,
             "transfer has both a tensor and data; one of them is needed");
    return tensor_memory(call);
  }
  DS_CHECK(call.size >= 0, Code::kInvalidArgument, "transfer.size is ", call.size);
  DS_CHECK(call.data != nullptr || call.size == 0, Code::kInvalidArgument, "transfer.data is NULL");
  return {{static_cast<std::byte*>(call.data), static_cast<size_t>(call.size)}, nullptr};
}

// The object for calls that its threads carry out.
std::shared_ptr<IoObject> running_io(const ds_io* io) {
  auto object = look_up(io, "io");
  DS_CHECK(!object->from_parent(), Code::kState,
           "io was made before this process was forked off, and its threads are not here: make "
           "another one");
  return object;
}

// Starts what a caller described.
io::Session::Ticket start_transfer(IoObject& object, const ds_io_transfer* transfer, bool alone) {
  const ds_io_transfer call = struct_param(transfer, "transfer");
  DS_CHECK(call.reserved == 0, Code::kInvalidArgument, "transfer.reserved is ", call.reserved,
           "; it must be 0");
  DS_CHECK(call.offset >= 0, Code::kInvalidArgument, "transfer.offset is ", call.offset);
  io::Place place;
  if (call.path != nullptr) {
    place.path = path_param(call.path, "transfer.path");
  } else {
    place.descriptor = call.descriptor;
  }
  place.offset = call.offset;
  place.whole = call.whole_file != 0;
  TransferMemory memory = memory_of(call);
  if (call.write != 0) {
    return object.session.write(place, memory.bytes, std::move(memory.keep), alone);
  }
  return object.session.read(place, memory.bytes, std::move(memory.keep), alone);
}

io::Session::Ticket ticket_param(int64_t ticket, int64_t least) {
  DS_CHECK(ticket >= least, Code::kInvalidArgument, "ticket is ", ticket,
           "; the number that ds_io_start gave is needed");
  return static_cast<io::Session::Ticket>(ticket);
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_io_create(const char* options_json, ds_io** out_io) {
  return guard(__func__, [&] {
    ds_io*& out = out_param(out_io, "out_io");
    out = publish<ds_io>(make_io(options_json));
  });
}

ds_status ds_io_describe(const ds_io* io, ds_io_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(io, "io");
    const io::SessionOptions& options = object->session.options();
    const io::QueueOptions& queue = options.engine.queue;
    ds_io_info info{};
    info.block_size = object->block_size;
    info.alignment = io::kAlignment;
    info.queue_depth = queue.depth;
    info.intra_op_parallelism = options.engine.parallelism;
    info.single_submit = queue.single_submit ? 1 : 0;
    info.overlap_events = queue.overlap ? 1 : 0;
    info.validate = options.validate ? 1 : 0;
    info.checksum = options.checksum ? 1 : 0;
    info.backend = backend_code(object->session.engine().backend());
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_io_run(ds_io* io, const ds_io_transfer* transfer) {
  return guard(__func__, [&] {
    const auto object = running_io(io);
    object->session.engine().wait(start_transfer(*object, transfer, /*alone=*/true));
  });
}

ds_status ds_io_start(ds_io* io, const ds_io_transfer* transfer, int64_t* out_ticket) {
  return guard(__func__, [&] {
    const auto object = running_io(io);
    const io::Session::Ticket ticket = start_transfer(*object, transfer, /*alone=*/false);
    if (out_ticket != nullptr) *out_ticket = static_cast<int64_t>(ticket);
  });
}

ds_status ds_io_test(const ds_io* io, int64_t ticket, ds_bool* out_done) {
  return guard(__func__, [&] {
    const auto object = running_io(io);
    ds_bool& out = out_param(out_done, "out_done");
    out = object->session.engine().done(ticket_param(ticket, 1)) ? 1 : 0;
  });
}

ds_status ds_io_wait(ds_io* io, int64_t ticket, int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = running_io(io);
    io::Engine& engine = object->session.engine();
    const io::Session::Ticket wanted = ticket_param(ticket, 0);
    const int64_t count = wanted == 0 ? engine.wait_all() : (engine.wait(wanted) ? 1 : 0);
    if (out_count != nullptr) *out_count = count;
  });
}

ds_status ds_io_cancel(ds_io* io, int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = running_io(io);
    const int64_t count = object->session.engine().cancel();
    if (out_count != nullptr) *out_count = count;
  });
}

void ds_io_destroy(ds_io* io) { end_handle(io); }
