// Groups over NCCL: calls, their order, and how they end.
#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "comm/logger.h"
#include "comm/plan.h"
#include "comm/shm/shm_transport.h"

namespace ds::comm {
namespace {

// A rank's share of an exchange between hosts before NCCL runs.
struct Letter {
  int32_t bytes = 0;
  char text[508] = {};
};

std::vector<Letter> exchange_letters(Group& group, const Letter& mine, const char* label,
                                     std::chrono::milliseconds deadline) {
  const std::shared_ptr<Device> host = make_cpu_device({.cache = false});
  const auto size = static_cast<int64_t>(sizeof(Letter));
  const auto bytes = [&](int64_t n) {
    return Tensor::empty(host, DType::kUInt8, Shape{n}, MemoryTag::kCommunication);
  };
  const Tensor own = bytes(size), all = bytes(size * group.size());
  std::memcpy(own.raw(), &mine, sizeof(Letter));
  group
      .all_gather(all, own,
                  {.label = label, .deadline = deadline, .blocking = true, .same_label = true})
      ->wait();
  std::vector<Letter> letters(static_cast<size_t>(group.size()));
  std::memcpy(letters.data(), all.raw(), letters.size() * sizeof(Letter));
  return letters;
}

Letter letter_of(std::string_view text) {
  Letter letter;
  letter.bytes = static_cast<int32_t>(std::min(text.size(), sizeof(letter.text)));
  std::memcpy(letter.text, text.data(), static_cast<size_t>(letter.bytes));
  return letter;
}

std::string text_of(const Letter& letter) {
  const auto bytes = static_cast<size_t>(std::max(letter.bytes, int32_t{0}));
  return {letter.text, std::min(bytes, sizeof(letter.text))};
}

TrafficTable sum_of(TrafficTable table, const TrafficTable& other) {
  for (size_t i = 0; i < table.size(); ++i) table[i] += other[i];
  return table;
}

std::string place_name(DeviceKind kind, int index) {
  return kind == DeviceKind::kCuda ? str_cat("cuda:", index) : "the host";
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<Group> group, std::unique_ptr<Transport> side,
                                   std::shared_ptr<const nccl::Library> library,
                                   const CommOptions& options, std::shared_ptr<NcclStreams> streams,
                                   std::shared_ptr<TrafficCounter> parent)
    : Communicator(group->rank(), group->size(), options.deadline),
      options_(options),
      group_(std::move(group)),
      library_(std::move(library)),
      streams_(std::move(streams)),
      traffic_(std::make_shared<TrafficCounter>(std::move(parent))),
      watch_(group_, std::move(side),
             {.failed =
                  [this](const Error& error) {
                    mark_failed(error.code(), error.message());
                    if (error.code() == Code::kAborted) children_.abort(error.message());
                  },
              .stop_gpu =
                  [this] {
                    const std::lock_guard lock(queue_mutex_);
                    if (channel_) channel_->end();
                  },
              .failure = [this]() -> std::optional<Error> {
                const std::unique_lock lock(queue_mutex_, std::try_to_lock);
                if (!lock.owns_lock() || !channel_) return {};
                return channel_->failure();
              },
              .ended = [this](const NcclOperation& operation) { count(operation); }}) {
  set_topology(group_->topology());
  watch_.start();
}

NcclCommunicator::~NcclCommunicator() { watch_.stop(); }

TrafficTable NcclCommunicator::traffic() const {
  watch_.retire();
  return sum_of(group_->traffic(), traffic_->own());
}

TrafficTable NcclCommunicator::total_traffic() const {
  watch_.retire();
  return sum_of(group_->total_traffic(), traffic_->total());
}

void NcclCommunicator::set_logger(std::shared_ptr<CommsLogger> logger) {
  group_->set_logger(logger);
  logger_ = std::move(logger);
}

// ---- calls ----

// Where the tensors of a call are: nothing for host memory.
std::vector<std::shared_ptr<Device>> NcclCommunicator::devices_of(const Call& call) const {
  const std::string_view name = collective_name(call.kind);
  std::vector<std::shared_ptr<Device>> devices;
  const Storage* first = nullptr;
  for (const Tensor* tensor : {&call.output, &call.input}) {
    if (!*tensor) continue;
    const Storage& storage = *tensor->storage();
    if (first == nullptr) first = &storage;
    DS_CHECK(storage.device_kind() == first->device_kind() &&
                 storage.device_index() == first->device_index(),
             Code::kInvalidArgument, name, ": output lies on ",
             place_name(first->device_kind(), first->device_index()), " and input on ",
             place_name(storage.device_kind(), storage.device_index()),
             "; both must be in one place");
    if (storage.device_kind() == DeviceKind::kCpu) continue;
    const std::shared_ptr<Device>& device = storage.device();
    DS_CHECK(std::dynamic_pointer_cast<CudaDevice>(device) != nullptr, Code::kUnsupported, name,
             ": GPU memory that was lent is not known to a device of this library; copy it");
    DS_CHECK(gpu_ < 0 || gpu_ == device->index(), Code::kInvalidArgument, name,
             ": the tensor lies on cuda:", device->index(), ", and rank ", rank(),
             " communicates with cuda:", gpu_, "; a rank has one GPU");
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  if (!devices.empty() && is_reduction(call.kind)) {
    const DType dtype = (call.input ? call.input : call.output).dtype();
    DS_CHECK(nccl::reduced_type(dtype), Code::kUnsupported, name, ": NCCL does not reduce ",
             dtype_name(dtype), "; convert it to int32 or reduce it on the host");
  }
  return devices;
}

NcclOperationPtr NcclCommunicator::make_operation(Call call,
                                                  std::vector<std::shared_ptr<Device>> devices,
                                                  const CollectiveOptions& options) const {
  auto operation = std::make_shared<NcclOperation>();
  Record& record = operation->record;
  const Tensor& told = call.kind == Collective::kScatter || !call.input ? call.output : call.input;
  record.kind = call.kind;
  record.op = call.op;
  record.dtype = static_cast<uint8_t>(told.dtype());
  record.count = told.elements();
  if (call.kind == Collective::kReduceScatter) record.count = call.output.elements();
  if (call.kind == Collective::kAllToAll) record.count = call.input.elements() / size();
  if (call.kind == Collective::kAllGatherV) record.count = call.output.elements();
  if (call.kind == Collective::kAllToAllV) record.count = 0;
  if (call.kind != Collective::kAllGatherV && call.kind != Collective::kAllToAllV) {
    record.dims = told.dims();
    std::ranges::copy(told.shape().sizes(), record.sizes);
  }
  if (options.same_label) record.flags |= Record::kSameLabel;
  std::ranges::copy(options.label.substr(0, Record::kLabel - 1), record.label);
  operation->input_bytes = call.input ? call.input.bytes() : 0;
  operation->told_bytes = (call.input ? call.input : call.output).bytes();
  operation->output = std::move(call.output);
  operation->input = std::move(call.input);
  operation->output_counts = std::move(call.output_counts);
  operation->input_counts = std::move(call.input_counts);
  operation->devices = std::move(devices);
  operation->ranks = operation->is_message() ? 2 : size();
  (operation->is_message() ? operation->peer : record.root) = call.root;
  operation->called = Clock::now();
  operation->limit.allowed = options.deadline.value_or(deadline());
  operation->limit.deadline = operation->called + operation->limit.allowed;
  return operation;
}

WorkPtr NcclCommunicator::start(Call call, const CollectiveOptions& options) {
  std::vector<std::shared_ptr<Device>> devices = devices_of(call);
  if (devices.empty()) {
    flush();
    return group_->start(std::move(call), options);
  }
  const NcclOperationPtr operation = make_operation(std::move(call), std::move(devices), options);
  watch_.begin(operation->record);
  operation->limit.what =
      str_cat("NCCL: rank ", rank(), ": operation ", operation->record.sequence, ", ",
              describe(operation->record), operation->peer < 0 ? "" : " with rank ",
              operation->peer < 0 ? "" : str_cat(operation->peer), in_group());
  watch_.retire();
  if (operation->is_message()) {
    operation->flush = [weak = weak_from_this()] {
      const auto self = std::static_pointer_cast<NcclCommunicator>(weak.lock());
      if (self) self->flush();
    };
    const std::lock_guard lock(posted_mutex_);
    posted_.push_back(operation);
    watch_.add(operation);
  } else {
    flush();
    watch_.add(operation);
    queue({operation});
  }
  if (options.blocking) operation->wait_on_host();
  return operation;
}

void NcclCommunicator::flush() noexcept {
  std::vector<NcclOperationPtr> messages;
  {
    const std::lock_guard lock(posted_mutex_);
    messages.swap(posted_);
  }
  if (!messages.empty()) queue(messages);
}

void NcclCommunicator::queue(const std::vector<NcclOperationPtr>& operations) noexcept {
  try {
    const std::lock_guard lock(queue_mutex_);
    if (watch_.failing()) return;  // which ends these too
    queue_locked(operations);
  } catch (const NcclLate& error) {
    watch_.fail(error, true);
  } catch (const Error& error) {
    watch_.fail(Error(error.code(), str_cat(operations.front()->limit.what, ": ", error.message())),
                false);
  } catch (const std::exception& error) {
    watch_.fail(Error(Code::kComm, error.what()), false);
  }
}

void NcclCommunicator::queue_locked(const std::vector<NcclOperationPtr>& operations) {
  const NcclLimit& limit = operations.front()->limit;
  if (!channel_) {
    const auto device = std::static_pointer_cast<CudaDevice>(operations.front()->devices.front());
    begin_channel(device, limit);
  }
  if (options_.checked && !operations.front()->is_message()) compare_calls(*operations.front());
  // The GPU comes to these when it has made what they read.
  for (const NcclOperationPtr& operation : operations) {
    for (const auto& device : operation->devices) {
      channel_->stream().wait(*device->default_stream().record());
    }
  }
  channel_->launch(
      [&] {
        for (const NcclOperationPtr& operation : operations) call_nccl(*operation);
      },
      limit);
  const std::shared_ptr<Event> done = channel_->stream().record();
  for (const NcclOperationPtr& operation : operations) operation->queued(done);
}

void NcclCommunicator::begin_channel(const std::shared_ptr<CudaDevice>& device,
                                     const NcclLimit& limit) {
  nccl::UniqueId id{};
  Letter letter;
  if (rank() == 0) {
    const DeviceScope scope(*device);
    const nccl::Result result = library_->get_unique_id(&id);
    // An empty letter: there is no id, and every rank says so.
    if (result == nccl::kSuccess) letter = letter_of({id.bytes, sizeof(id.bytes)});
    if (result != nccl::kSuccess) {
      log_warning("comm", "NCCL: ncclGetUniqueId failed: ", library_->error_string(result));
    }
  }
  const std::vector<Letter> letters =
      exchange_letters(*group_, letter, "NCCL begins", limit.allowed);
  DS_CHECK(letters[0].bytes == static_cast<int32_t>(sizeof(id.bytes)), Code::kComm,
           "ncclGetUniqueId failed on rank 0 (NCCL finds no network interface, or "
           "NCCL_SOCKET_IFNAME names none)");
  std::memcpy(id.bytes, letters[0].text, sizeof(id.bytes));
  const NcclMember member{.id = id, .rank = rank(), .size = size()};
  channel_ = std::make_unique<NcclChannel>(library_, device, streams_->of(*device), member,
                                           watch_.failing(), limit);
  gpu_ = device->index();
}

// Checked groups compare what the ranks call, as every other transport does always.
void NcclCommunicator::compare_calls(const NcclOperation& operation) {
  static_assert(sizeof(Record) <= sizeof(Letter::text));
  const Record& mine = operation.record;
  const std::vector<Letter> letters =
      exchange_letters(*group_, letter_of({reinterpret_cast<const char*>(&mine), sizeof(mine)}),
                       "checked call of NCCL", operation.limit.allowed);
  std::vector<Record> records(letters.size());
  std::vector<const Record*> all;
  for (size_t i = 0; i < letters.size(); ++i) {
    std::memcpy(&records[i], letters[i].text, sizeof(Record));
    all.push_back(&records[i]);
  }
  check_same_calls(all, true);
}

WorkPtr NcclCommunicator::do_barrier(const CollectiveOptions& options) {
  wait_for_gpu();
  return group_->start_barrier(options);
}

Tensor NcclCommunicator::do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                          const Shape& shape, MemoryTag tag,
                                          const CollectiveOptions& options) {
  if (device->kind() != DeviceKind::kCpu) return Tensor::zeros(device, dtype, shape, tag);
  flush();
  return group_->shared_tensor(device, dtype, shape, tag, options);
}

std::shared_ptr<Communicator> NcclCommunicator::do_split(int color, int key,
                                                         const CollectiveOptions& options) {
  flush();
  const auto part = std::static_pointer_cast<Group>(group_->split(color, key, options));
  if (!part) return nullptr;
  auto side = part->make_side_transport(options);
  auto child = std::make_shared<NcclCommunicator>(part, std::move(side), library_, options_,
                                                  streams_, traffic_);
  child->set_logger(logger_);
  child->set_first_ranks(part->first_ranks());
  children_.add(child, *this);
  return child;
}

void NcclCommunicator::do_join(const CollectiveOptions&) {
  fail(Code::kUnsupported,
       "join: a rank cannot answer collectives of GPU memory that it does not call; with transport "
       "\"nccl\" every rank needs as many batches");
}

// ---- ends ----

void NcclCommunicator::wait_for_gpu() {
  flush();
  for (const NcclOperationPtr& operation : watch_.in_flight()) {
    operation->wait_on_host();
    operation->wait();
  }
  watch_.retire();
}

void NcclCommunicator::do_finalize() {
  wait_for_gpu();
  const auto until = Clock::now() + deadline();
  {
    const std::lock_guard lock(queue_mutex_);
    try {
      if (channel_) {
        channel_->finalize({str_cat("NCCL: rank ", rank(), ": finalize"), until, deadline()});
      }
    } catch (const Error& error) {
      watch_.fail(error, false);
      throw;
    }
  }
  group_->finalize();
  watch_.stop();
}

void NcclCommunicator::do_abort(std::string_view reason) noexcept {
  watch_.fail(Error(Code::kAborted, std::string(reason)), false);
  group_->abort(reason);
  children_.abort(reason);
}

// ---- making groups ----

namespace {

// Opened before anything else, so that a rank without it is reported at once.
std::shared_ptr<const nccl::Library> open_for(const CommOptions& options) {
  std::string why_none;
  DS_CHECK(!list_cuda_devices(&why_none).empty(), Code::kUnsupported,
           "transport \"nccl\" needs a GPU: ", why_none);
  return nccl::open_library(options.nccl_library);
}

void warn_of_environment() {
  const char* const blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::string_view(blocking) == "1") {
    log_warning("comm", "NCCL_COMM_BLOCKING=1 makes calls of NCCL wait without a deadline");
  }
}

}  // namespace

std::shared_ptr<Communicator> make_nccl_communicator(std::shared_ptr<Group> group,
                                                     const CommOptions& options) {
  std::shared_ptr<const nccl::Library> library;
  std::string failure;
  try {
    library = open_for(options);
  } catch (const Error& error) {
    failure = error.message();
  }
  const std::string mine = library ? "+" + nccl::version_text(library->version) : "-" + failure;
  const std::vector<Letter> letters =
      exchange_letters(*group, letter_of(mine), "NCCL is there", options.rendezvous_deadline);
  const std::string first = text_of(letters[0]);
  for (size_t rank = 0; rank < letters.size(); ++rank) {
    const std::string text = text_of(letters[rank]);
    DS_CHECK(text[0] == '+', Code::kUnsupported, "rank ", rank, ": ", text.substr(1));
    DS_CHECK(text == first, Code::kUnsupported, "rank 0 has NCCL ", first.substr(1), " and rank ",
             rank, " has ", text.substr(1), "; they must agree");
  }
  warn_of_environment();
  log_info("comm", "NCCL ", first.substr(1), ": ", library->path);
  auto side = group->make_side_transport({.deadline = options.rendezvous_deadline});
  return std::make_shared<NcclCommunicator>(std::move(group), std::move(side), std::move(library),
                                            options, std::make_shared<NcclStreams>());
}

std::vector<std::shared_ptr<Communicator>> make_local_nccl(
    const std::vector<std::shared_ptr<Group>>& groups, const CommOptions& options) {
  const auto library = open_for(options);
  warn_of_environment();
  auto sides = ShmTransport::make_local(static_cast<int>(std::ssize(groups)));
  std::vector<std::shared_ptr<Communicator>> made;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    made.push_back(std::make_shared<NcclCommunicator>(groups[rank], std::move(sides[rank]), library,
                                                      options, std::make_shared<NcclStreams>()));
  }
  return made;
}

}  // namespace ds::comm
