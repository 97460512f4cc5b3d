// Calls, their order, and how they end.
#include "comm/group.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/failure_note.h"
#include "comm/logger.h"

namespace ds::comm {

Topology topology_of(int rank, std::vector<int> node_of) {
  // Numbered in order of their first rank.
  std::vector<int> seen;
  for (int& node : node_of) {
    const auto found = std::ranges::find(seen, node);
    const auto index = static_cast<int>(found - seen.begin());
    if (found == seen.end()) seen.push_back(node);
    node = index;
  }
  Topology topology;
  topology.node = node_of[static_cast<size_t>(rank)];
  topology.nodes = static_cast<int>(std::ssize(seen));
  topology.local_size = static_cast<int>(std::ranges::count(node_of, topology.node));
  topology.local_rank =
      static_cast<int>(std::count(node_of.begin(), node_of.begin() + rank, topology.node));
  topology.node_of = std::move(node_of);
  return topology;
}

std::vector<int> pretended_nodes(const CommOptions& options, const std::vector<int>& node_of) {
  if (options.ranks_per_node <= 0) return node_of;
  std::vector<int> nodes;
  for (int rank = 0; rank < std::ssize(node_of); ++rank) {
    nodes.push_back(rank / options.ranks_per_node);
  }
  return nodes;
}

Group::Group(std::unique_ptr<Transport> transport, const CommOptions& options,
             const std::vector<int>& node_of, std::shared_ptr<TrafficCounter> parent)
    : Communicator(transport->rank(), transport->size(), options.deadline),
      options_(options),
      transport_(std::move(transport)),
      records_(static_cast<size_t>(size())),
      present_(static_cast<size_t>(size()), 1),
      messages_(*transport_),
      traffic_(std::make_shared<TrafficCounter>(std::move(parent))),
      executor_([this](OperationPtr operation) { execute(std::move(operation)); }) {
  set_topology(topology_of(rank(), node_of));
}

Group::~Group() {
  if (unfinished_ > 0) {
    transport_->raise(Code::kComm, str_cat("rank ", rank(),
                                           " destroyed its communicator while "
                                           "operations were in flight"));
  }
  for (const OperationPtr& left : executor_.stop()) {
    left->finish(0, Error(Code::kState,
                          str_cat(describe(left->record), ": the communicator was destroyed")));
  }
}

OperationPtr Group::make_operation(Collective kind, const CollectiveOptions& options) {
  auto operation = std::make_shared<Operation>();
  operation->record.kind = kind;
  const size_t n = std::min(options.label.size(), Record::kLabel - 1);
  std::ranges::copy(options.label.substr(0, n), operation->record.label);
  operation->allowed = options.deadline.value_or(deadline());
  if (options.average_over_participants) operation->record.flags |= Record::kByParticipants;
  if (options.same_label) operation->record.flags |= Record::kSameLabel;
  return operation;
}

WorkPtr Group::start(Call call, const CollectiveOptions& options) {
  for (const Tensor* tensor : {&call.output, &call.input}) {
    DS_CHECK(!*tensor || tensor->storage()->device_kind() == DeviceKind::kCpu, Code::kUnsupported,
             collective_name(call.kind),
             ": a tensor lies on cuda:", tensor->storage()->device_index(), ", and transport \"",
             transport(), "\" carries memory of the host; make the group with transport \"nccl\"");
  }
  const OperationPtr operation = make_operation(call.kind, options);
  Record& record = operation->record;
  const Tensor& told = call.kind == Collective::kScatter || !call.input ? call.output : call.input;
  record.op = call.op;
  record.dtype = static_cast<uint8_t>(told.dtype());
  record.count = told.elements();
  if (call.kind == Collective::kReduceScatter) record.count = call.output.elements();
  if (call.kind == Collective::kAllToAll) record.count = call.input.elements() / size();
  const bool counted = call.kind == Collective::kAllGatherV || call.kind == Collective::kAllToAllV;
  if (counted) {
    const bool same = call.kind == Collective::kAllGatherV;
    const std::vector<int64_t>& counts = same ? call.output_counts : call.input_counts;
    record.count = same ? call.output.elements() : 0;
    record.largest = std::ranges::max(counts) * dtype_size(told.dtype());
    constexpr uint64_t kPrime = 0x100000001B3ull;
    for (const int64_t count : counts) {
      if (same) record.counts_hash = (record.counts_hash ^ static_cast<uint64_t>(count)) * kPrime;
    }
  } else {
    record.dims = told.dims();
    std::ranges::copy(told.shape().sizes(), record.sizes);
  }
  if (operation->is_message()) {
    operation->peer = call.root;
    operation->tag = call.tag;
  } else {
    record.root = call.root;
    if (inline_bytes(record, size()) <= kMaxPayload) record.flags |= Record::kInline;
  }
  DS_CHECK(call.kind != Collective::kAllToAllV ||
               size() * static_cast<int64_t>(sizeof(int64_t)) <= kMaxPayload,
           Code::kUnsupported, "all_to_all_v serves groups of up to ",
           kMaxPayload / static_cast<int64_t>(sizeof(int64_t)), " ranks");
  operation->output = std::move(call.output);
  operation->input = std::move(call.input);
  operation->output_counts = std::move(call.output_counts);
  operation->input_counts = std::move(call.input_counts);
  launch(operation, options.blocking);
  return operation;
}

void Group::launch(const OperationPtr& operation, bool blocking) {
  if (blocking) {
    ++unfinished_;
    executor_.run(operation);
  } else {
    executor_.submit(operation);
    ++unfinished_;
    if (operation->is_message()) transport_->wake();
  }
}

void Group::run_blocking(const OperationPtr& operation) {
  ++unfinished_;
  executor_.run(operation);
  operation->wait();
}

std::optional<Error> Group::attempt(std::string_view name, const std::function<void()>& body) {
  try {
    check_active(name);
  } catch (const Error& error) {
    return error;
  }
  std::optional<Error> failure;
  try {
    body();
    return {};
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure.emplace(Code::kComm, error.what());
  }
  end_with(*failure);  // peers add the name themselves
  if (Communicator::name().empty()) return failure;
  return Error(failure->code(), failure->message() + in_group());
}

void Group::execute(OperationPtr operation) {
  if (operation->is_message()) return execute_messages(std::move(operation));
  operation->called = Clock::now();
  operation->deadline = {operation->called + operation->allowed, operation->called};
  const auto failure = attempt(collective_name(operation->record.kind), [&] { run(*operation); });
  finished(operation, participants_, failure);
}

void Group::execute_messages(OperationPtr first) {
  Record last;  // for what others say about this rank
  const auto post = [&](OperationPtr operation) {
    operation->called = Clock::now();
    operation->deadline = {operation->called + operation->allowed, operation->called};
    operation->record.sequence = sequence_;
    last = operation->record;
    transport_->announce(last, true);
    messages_.post(std::move(operation));
  };
  post(std::move(first));
  const auto over = [&](const OperationPtr& operation) {
    if (operation->record.kind == Collective::kSend) {
      const int64_t bytes = operation->input.bytes();
      Traffic sent;
      sent.add_block(bytes, same_node(operation->peer));
      count(operation->record, sent);
    } else {
      count(operation->record, {});
    }
    finished(operation, 2, {});
  };
  const auto failure = attempt("message", [&] {
    while (messages_.pending()) {
      while (OperationPtr next = executor_.take_message()) post(std::move(next));
      const bool moved = messages_.progress(over);
      messages_.look();
      if (moved) continue;
      transport_->wait_for_streams(messages_.awaited(), watch_of(messages_.most_urgent()));
    }
  });
  transport_->announce(last, false);
  for (const OperationPtr& pending : messages_.take_all()) finished(pending, 0, failure);
}

void Group::finished(const OperationPtr& operation, int participants,
                     const std::optional<Error>& error) {
  if (logger_ && !error) {
    const Tensor& told = operation->input ? operation->input : operation->output;
    const std::chrono::duration<double> took = Clock::now() - operation->called;
    logger_->record(operation->record.kind, told ? told.bytes() : 0, took.count(), size(),
                    last_traffic_.within_node, last_traffic_.across_nodes);
  }
  --unfinished_;
  operation->finish(participants, error);
}

// The first failure ends the group: here, on the peers, and in groups split from it when it is an
// abort.
void Group::end_with(const Error& error) noexcept {
  const Code code = error.code() == Code::kAborted ? Code::kAborted : Code::kComm;
  note_failure(code);
  transport_->raise(code, error.message());
  mark_failed(code, error.message());
  if (code == Code::kAborted) children_.abort(error.message());
}

void Group::do_abort(std::string_view reason) noexcept {
  note_failure(Code::kAborted);
  transport_->raise(Code::kAborted, reason);
  children_.abort(reason);
}

Watch Group::watch_of(Operation& operation) {
  return {operation.record, operation.deadline, operation.allowed};
}

WorkPtr Group::do_barrier(const CollectiveOptions& options) {
  const OperationPtr operation = make_operation(Collective::kBarrier, options);
  launch(operation, options.blocking);
  return operation;
}

void Group::do_finalize() { run_blocking(make_operation(Collective::kFinalize, {})); }

void Group::do_join(const CollectiveOptions& options) {
  const OperationPtr operation = make_operation(Collective::kJoin, options);
  operation->record.flags |= Record::kJoined;
  run_blocking(operation);
}

Tensor Group::do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                               const Shape& shape, MemoryTag tag,
                               const CollectiveOptions& options) {
  const OperationPtr operation = make_operation(Collective::kSharedTensor, options);
  operation->record.dtype = static_cast<uint8_t>(dtype);
  operation->record.count = shape.elements();
  Tensor tensor;
  operation->body = [&] {
    const GatherTexts gather = gather_texts(*operation);
    tensor = transport_->shared_tensor(device, dtype, shape, tag, gather);
  };
  run_blocking(operation);
  return tensor;
}

std::unique_ptr<Transport> Group::make_side_transport(const CollectiveOptions& options) {
  check_active("split");
  const OperationPtr operation = make_operation(Collective::kSplit, options);
  std::unique_ptr<Transport> side;
  operation->body = [&] {
    std::vector<int> everybody;
    for (int peer = 0; peer < size(); ++peer) everybody.push_back(peer);
    side = transport_->split(everybody, gather_texts(*operation), watch_of(*operation));
  };
  run_blocking(operation);
  return side;
}

std::shared_ptr<Communicator> Group::do_split(int color, int key,
                                              const CollectiveOptions& options) {
  const OperationPtr operation = make_operation(Collective::kSplit, options);
  std::shared_ptr<Group> group;
  operation->body = [&] {
    const GatherTexts gather = gather_texts(*operation);
    struct Member {
      int color, key, rank;
    };
    std::vector<Member> members;
    const std::vector<std::string> texts = gather(str_cat(color, " ", key));
    for (int peer = 0; peer < size(); ++peer) {
      Member member{-1, 0, peer};
      std::istringstream(texts[static_cast<size_t>(peer)]) >> member.color >> member.key;
      if (member.color == color && color >= 0) members.push_back(member);
    }
    std::ranges::stable_sort(members, {}, &Member::key);
    std::vector<int> ranks, nodes;
    for (const Member& member : members) {
      ranks.push_back(member.rank);
      nodes.push_back(topology().node_of[static_cast<size_t>(member.rank)]);
    }
    auto transport = transport_->split(ranks, gather, watch_of(*operation));
    if (!transport) return;
    group = std::make_shared<Group>(std::move(transport), options_, nodes, traffic_);
    group->set_logger(logger_);
    for (int& rank : ranks) {
      if (!first_ranks().empty()) rank = first_ranks()[static_cast<size_t>(rank)];
    }
    group->set_first_ranks(std::move(ranks));
  };
  run_blocking(operation);
  if (!group) return nullptr;
  children_.add(group, *this);
  return group;
}

}  // namespace ds::comm
