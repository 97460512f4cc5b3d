// The communicator over a transport: it orders operations, tells peers what is called and compares
// it, answers for ranks that have joined, and turns failures into one error on every rank.
#pragma once

#include <memory>
#include <vector>

#include "comm/child_groups.h"
#include "comm/communicator.h"
#include "comm/executor.h"
#include "comm/messages.h"
#include "comm/plan.h"
#include "comm/traffic.h"
#include "comm/transport.h"

namespace ds::comm {

class Group : public Communicator {
 public:
  Group(std::unique_ptr<Transport> transport, const CommOptions& options,
        const std::vector<int>& node_of, std::shared_ptr<TrafficCounter> parent = {});
  ~Group() override;

  TrafficTable traffic() const override { return traffic_->own(); }
  TrafficTable total_traffic() const override { return traffic_->total(); }
  const char* transport() const noexcept override { return transport_->name(); }
  void set_logger(std::shared_ptr<CommsLogger> logger) override { logger_ = std::move(logger); }

  // For a communicator that is built on this one.
  WorkPtr start(Call call, const CollectiveOptions& options) override;
  // Collective: a transport of its own between the same ranks.
  std::unique_ptr<Transport> make_side_transport(const CollectiveOptions& options = {});
  // Any thread: throws what ended the group, and ends it.
  void check_raised() const { transport_->check_raised(); }
  void fail_with(const Error& error) noexcept { end_with(error); }

 protected:
  WorkPtr do_barrier(const CollectiveOptions& options) override;
  Tensor do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                          MemoryTag tag, const CollectiveOptions& options) override;
  std::shared_ptr<Communicator> do_split(int color, int key,
                                         const CollectiveOptions& options) override;
  void do_join(const CollectiveOptions& options) override;
  void do_finalize() override;
  void do_abort(std::string_view reason) noexcept override;

 private:
  OperationPtr make_operation(Collective kind, const CollectiveOptions& options);
  // On the executor's turn.
  void execute(OperationPtr operation);
  void execute_messages(OperationPtr first);
  void run(Operation& operation);  // throws
  void run_blocking(const OperationPtr& operation);
  void launch(const OperationPtr& operation, bool blocking);
  void finished(const OperationPtr& operation, int participants, const std::optional<Error>& error);
  // What `body` throws; a failure of an active group ends it.
  std::optional<Error> attempt(std::string_view name, const std::function<void()>& body);
  void end_with(const Error& error) noexcept;

  // The parts of a collective.
  static Watch watch_of(Operation& operation);
  void rendezvous(Record& record, std::span<const std::byte> payload, const Watch& watch);
  void check_payloads(const Record& reference, const Operation* operation) const;
  void answer_for_joined(const Watch& watch);  // answers the call of those that have not joined
  void carry_out(const Record& reference, Operation* operation, const Watch& watch);
  void reduce(const Record& reference, Operation* operation, const Watch& watch);
  void move(const Record& reference, Operation* operation, const Watch& watch);
  std::span<const std::byte> payload_of(const Operation& operation) const;
  GatherTexts gather_texts(Operation& operation);
  void need_everybody(std::string_view why) const;
  void count(const Record& record, Traffic sent);
  void count_reduction(const Reduction& reduction, const Record& record);
  void count_movement(const Movement& movement, const Record& record);
  bool same_node(int peer) const;

  const CommOptions options_;
  const std::unique_ptr<Transport> transport_;
  std::shared_ptr<CommsLogger> logger_;
  std::atomic<int> unfinished_{0};  // operations
  uint64_t sequence_ = 0;
  std::vector<const Record*> records_;  // of the last meeting
  std::vector<char> present_;           // by rank: had not joined there
  int participants_ = 0;
  std::optional<Traffic> across_before_;
  Messages messages_;
  const std::shared_ptr<TrafficCounter> traffic_;
  Traffic last_traffic_;  // of the operation that runs
  ChildGroups children_;
  Executor executor_;  // last: ends first
};

Topology topology_of(int rank, std::vector<int> node_of);
// What ranks_per_node pretends, or the real nodes.
std::vector<int> pretended_nodes(const CommOptions& options, const std::vector<int>& node_of);

}  // namespace ds::comm
