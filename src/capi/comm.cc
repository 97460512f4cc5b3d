// Communicators of ds.h.
#include "base/json.h"
#include "capi/args.h"
#include "capi/comm_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "comm/factory.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

static_assert(sizeof(ds_store) == 32);

namespace {

// The caller's functions as a store. They wait by their own deadline.
class CallerStore : public Store {
 public:
  explicit CallerStore(const ds_store& functions) : functions_(functions) {}

  void put(const std::string& key, std::string_view value) override {
    const ds_status status = functions_.put(functions_.user_data, key.c_str(), value.data(),
                                            static_cast<int64_t>(value.size()));
    DS_CHECK(status == DS_OK, Code::kCallback, "the store's `put` failed with ", status);
  }
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds) override {
    std::string value(kMostValue, '\0');
    int64_t size = -1;
    const ds_status status = functions_.get(functions_.user_data, key.c_str(), value.data(),
                                            static_cast<int64_t>(value.size()), &size);
    if (status == DS_ERR_NOT_FOUND) return std::nullopt;
    DS_CHECK(status == DS_OK, Code::kCallback, "the store's `get` failed with ", status);
    DS_CHECK(size >= 0 && size <= static_cast<int64_t>(value.size()), Code::kCallback,
             "the store's `get` says that a value has ", size, " bytes; at most ", value.size(),
             " are possible");
    value.resize(static_cast<size_t>(size));
    return value;
  }

 private:
  const ds_store functions_;
};

Json report_of(const Communicator& comm) {
  const Topology& topology = comm.topology();
  const auto by_collective = [](const TrafficTable& table) {
    Json traffic = Json::object();
    for (int i = 0; i < kCollectives; ++i) {
      const Traffic& one = table[static_cast<size_t>(i)];
      if (one.calls == 0) continue;
      traffic[std::string(collective_name(static_cast<Collective>(i)))] = {
          {"calls", one.calls},
          {"within_node_bytes", one.within_node},
          {"across_nodes_bytes", one.across_nodes},
          {"across_nodes_messages", one.messages_across}};
    }
    return traffic;
  };
  return {{"rank", comm.rank()},
          {"size", comm.size()},
          {"transport", comm.transport()},
          {"topology",
           {{"local_rank", topology.local_rank},
            {"local_size", topology.local_size},
            {"node", topology.node},
            {"nodes", topology.nodes}}},
          {"traffic", by_collective(comm.traffic())},
          {"total_traffic", by_collective(comm.total_traffic())}};
}

}  // namespace

ReduceOp ds::capi::reduce_op_param(int32_t op) {
  switch (op) {
    case DS_REDUCE_SUM:
      return ReduceOp::kSum;
    case DS_REDUCE_AVERAGE:
      return ReduceOp::kAverage;
    case DS_REDUCE_MIN:
      return ReduceOp::kMin;
    case DS_REDUCE_MAX:
      return ReduceOp::kMax;
    default:
      fail(Code::kInvalidArgument, "op is ", op, "; a ds_reduce_op is needed");
  }
}

ds_status ds_comm_create(int32_t rank, int32_t world_size, const char* config_json,
                         const ds_store* store, ds_comm** out_comm) {
  return guard(__func__, [&] {
    ds_comm*& out = out_param(out_comm, "out_comm");
    if (rank != -1 || world_size != -1) {
      DS_CHECK(world_size >= 1, Code::kInvalidArgument, "world_size is ", world_size,
               "; a group has at least 1 process");
      DS_CHECK(rank >= 0 && rank < world_size, Code::kInvalidArgument, "rank is ", rank,
               "; a group of ", world_size, " has the ranks 0 to ", world_size - 1);
    }
    StorePtr meeting;
    if (store != nullptr) {
      const ds_store given = struct_param(store, "store");
      DS_CHECK((given.put == nullptr) == (given.get == nullptr), Code::kInvalidArgument,
               "store has only one of `put` and `get`; both or neither are needed");
      if (given.put != nullptr) meeting = std::make_shared<CallerStore>(given);
    }
    const CommOptions options =
        parse_comm_options(config_json == nullptr ? std::string_view() : config_json);
    out = publish<ds_comm>(std::make_shared<CommObject>(
        make_communicator(rank, world_size, options, std::move(meeting))));
  });
}

ds_status ds_comm_describe(const ds_comm* comm, ds_comm_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(comm, "comm");
    const Topology& topology = object->comm->topology();
    ds_comm_info info{};
    info.rank = object->comm->rank();
    info.size = object->comm->size();
    info.local_rank = topology.local_rank;
    info.local_size = topology.local_size;
    info.node = topology.node;
    info.nodes = topology.nodes;
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_comm_all_reduce(ds_comm* comm, ds_tensor* tensor, ds_reduce_op op) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto value = enter(tensor, "tensor");
    object->comm->all_reduce(host_tensor(*value, "tensor"), reduce_op_param(op))->wait();
  });
}

ds_status ds_comm_reduce_scatter(ds_comm* comm, ds_tensor* output, const ds_tensor* input,
                                 ds_reduce_op op) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto to = enter(output, "output");
    const auto from = look_up(input, "input");
    object->comm
        ->reduce_scatter(host_tensor(*to, "output"), host_tensor(*from, "input"),
                         reduce_op_param(op))
        ->wait();
  });
}

ds_status ds_comm_all_gather(ds_comm* comm, ds_tensor* output, const ds_tensor* input) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto to = enter(output, "output");
    const auto from = look_up(input, "input");
    object->comm->all_gather(host_tensor(*to, "output"), host_tensor(*from, "input"))->wait();
  });
}

ds_status ds_comm_all_to_all(ds_comm* comm, ds_tensor* output, const ds_tensor* input) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto to = enter(output, "output");
    const auto from = look_up(input, "input");
    object->comm->all_to_all(host_tensor(*to, "output"), host_tensor(*from, "input"))->wait();
  });
}

ds_status ds_comm_broadcast(ds_comm* comm, ds_tensor* tensor, int32_t root) {
  return guard(__func__, [&] {
    const auto object = enter(comm, "comm");
    const auto value = enter(tensor, "tensor");
    object->comm->broadcast(host_tensor(*value, "tensor"), root)->wait();
  });
}

ds_status ds_comm_split(ds_comm* comm, int32_t color, int32_t key, ds_comm** out_comm) {
  return guard(__func__, [&] {
    ds_comm*& out = out_param(out_comm, "out_comm");
    const auto object = enter(comm, "comm");
    std::shared_ptr<Communicator> group = object->comm->split(color, key);
    if (group) out = publish<ds_comm>(std::make_shared<CommObject>(std::move(group)));
  });
}

ds_status ds_comm_join(ds_comm* comm) {
  return guard(__func__, [&] { enter(comm, "comm")->comm->join(); });
}

ds_status ds_comm_report(const ds_comm* comm, char** out_json) {
  return guard(__func__, [&] {
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(report_of(*look_up(comm, "comm")->comm), 2));
  });
}

ds_status ds_comm_barrier(ds_comm* comm) {
  return guard(__func__, [&] { enter(comm, "comm")->comm->barrier(); });
}

ds_status ds_comm_finalize(ds_comm* comm) {
  return guard(__func__, [&] { enter(comm, "comm")->comm->finalize(); });
}

ds_status ds_comm_abort(ds_comm* comm) {
  return guard(__func__, [&] { look_up(comm, "comm")->comm->abort("ds_comm_abort was called"); });
}

void ds_comm_destroy(ds_comm* comm) { end_handle(comm); }
