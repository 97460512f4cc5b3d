// ds/comm.hpp - Processes that work together. Part of ds.hpp.
#ifndef DS_COMM_HPP
#define DS_COMM_HPP

#include <cstdint>
#include <string>
#include <vector>

#include "base.hpp"
#include "comm.h"
#include "tensor.hpp"

namespace libds {

// Where processes find each other. An exception thrown here makes the joining fail.
class Store {
 public:
  virtual ~Store() = default;
  virtual void put(const std::string& key, const void* value, int64_t size) = 0;
  // Waits until the key exists or throws.
  virtual std::string get(const std::string& key) = 0;
};

// A collective under way; see ds_comm_start about the memory that it uses.
class Work : public detail::Handle<ds_work, ds_work_destroy> {
 public:
  using Handle::Handle;

  bool done() const {
    ds_bool out = 0;
    check(ds_work_test(get(), &out));
    return out != 0;
  }
  // The number of processes that took part.
  int32_t wait() const {
    int32_t out = 0;
    check(ds_work_wait(get(), &out));
    return out;
  }
};

class Comm : public detail::Handle<ds_comm, ds_comm_destroy> {
 public:
  using Handle::Handle;

  // Without numbers: what the launcher put into the environment.
  Comm(int32_t rank = -1, int32_t world_size = -1, const std::string& config_json = "{}",
       Store* store = nullptr) {
    ds_store table = DS_STORE_INIT;
    table.user_data = store;
    table.put = [](void* user_data, const char* key, const void* value, int64_t size) -> ds_status {
      try {
        static_cast<Store*>(user_data)->put(key, value, size);
        return DS_OK;
      } catch (...) {
        return DS_ERR_CALLBACK;
      }
    };
    table.get = [](void* user_data, const char* key, void* value, int64_t capacity,
                   int64_t* out_size) -> ds_status {
      try {
        const std::string found = static_cast<Store*>(user_data)->get(key);
        const auto size = static_cast<int64_t>(found.size());
        found.copy(static_cast<char*>(value),
                   static_cast<size_t>(size < capacity ? size : capacity));
        *out_size = size;
        return DS_OK;
      } catch (...) {
        return DS_ERR_CALLBACK;
      }
    };
    ds_comm* out = nullptr;
    check(ds_comm_create(rank, world_size, config_json.c_str(), store ? &table : nullptr, &out));
    reset(out);
  }

  // Rank, size and where the process is among hosts.
  ds_comm_info info() const {
    ds_comm_info out = DS_COMM_INFO_INIT;
    check(ds_comm_describe(get(), &out));
    return out;
  }
  int32_t rank() const { return info().rank; }
  int32_t size() const { return info().size; }
  void all_reduce(Tensor& tensor, ds_reduce_op op = DS_REDUCE_SUM) {
    check(ds_comm_all_reduce(get(), tensor.get(), op));
  }
  // Many tensors of one type by one collective.
  void all_reduce(const std::vector<const Tensor*>& tensors, ds_reduce_op op = DS_REDUCE_SUM) {
    const std::vector<ds_tensor*> handles = detail::handles_of(tensors);
    check(ds_comm_all_reduce_coalesced(get(), handles.data(), detail::size_of(handles), op));
  }
  void reduce_scatter(const std::vector<const Tensor*>& outputs,
                      const std::vector<const Tensor*>& inputs, ds_reduce_op op = DS_REDUCE_SUM) {
    const std::vector<ds_tensor*> to = detail::handles_of(outputs);
    const std::vector<ds_tensor*> from = detail::handles_of(inputs);
    require_as_many(to, from);
    check(ds_comm_reduce_scatter_coalesced(get(), to.data(), from.data(), detail::size_of(to), op));
  }
  void all_gather(const std::vector<const Tensor*>& outputs,
                  const std::vector<const Tensor*>& inputs) {
    const std::vector<ds_tensor*> to = detail::handles_of(outputs);
    const std::vector<ds_tensor*> from = detail::handles_of(inputs);
    require_as_many(to, from);
    check(ds_comm_all_gather_coalesced(get(), to.data(), from.data(), detail::size_of(to)));
  }
  void reduce_scatter(Tensor& output, const Tensor& input, ds_reduce_op op = DS_REDUCE_SUM) {
    check(ds_comm_reduce_scatter(get(), output.get(), input.get(), op));
  }
  void all_gather(Tensor& output, const Tensor& input) {
    check(ds_comm_all_gather(get(), output.get(), input.get()));
  }
  void all_to_all(Tensor& output, const Tensor& input) {
    check(ds_comm_all_to_all(get(), output.get(), input.get()));
  }
  void broadcast(Tensor& tensor, int32_t root) {
    check(ds_comm_broadcast(get(), tensor.get(), root));
  }
  // struct_size is set here.
  Work start(ds_collective call) {
    call.struct_size = sizeof call;
    ds_work* out = nullptr;
    check(ds_comm_start(get(), &call, &out));
    return Work(out);
  }
  Work start_all_reduce(Tensor& tensor, ds_reduce_op op = DS_REDUCE_SUM) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_ALL_REDUCE;
    call.op = op;
    call.output = tensor.get();
    return start(call);
  }
  Work send(const Tensor& tensor, int32_t peer, int32_t tag = 0) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_SEND;
    call.input = tensor.get();
    call.root = peer;
    call.tag = tag;
    return start(call);
  }
  Work recv(Tensor& tensor, int32_t peer, int32_t tag = 0) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_RECV;
    call.output = tensor.get();
    call.root = peer;
    call.tag = tag;
    return start(call);
  }
  // Memory that collectives use without a copy.
  Tensor shared_tensor(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_comm_shared_tensor(get(), dtype, shape.data(), static_cast<int32_t>(shape.size()),
                                &out));
    return Tensor(out);
  }
  // Empty for a negative color.
  Comm split(int32_t color, int32_t key = 0) {
    ds_comm* out = nullptr;
    check(ds_comm_split(get(), color, key, &out));
    return Comm(out);
  }
  void join() { check(ds_comm_join(get())); }
  std::string report() const {
    char* out = nullptr;
    check(ds_comm_report(get(), &out));
    return detail::take(out);
  }
  void barrier() { check(ds_comm_barrier(get())); }
  void finalize() { check(ds_comm_finalize(get())); }
  void abort() { check(ds_comm_abort(get())); }

 private:
  static void require_as_many(const std::vector<ds_tensor*>& a, const std::vector<ds_tensor*>& b) {
    if (a.size() != b.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Comm: as many outputs as inputs are needed");
    }
  }
};

}  // namespace libds

#endif  // DS_COMM_HPP
