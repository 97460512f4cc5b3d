#include "zero/state_arrays.h"

#include <algorithm>

#include "comm/message_memory.h"
#include "tensor/transfer.h"

namespace ds::zero {

Tensor StateArrays::view(const Tensor& whole, nn::ParamId id) const {
  const FlatRange range = layout.flat().range(id);
  return whole.slice(0, range.begin, range.end).view(parameters[id].shape);
}

FlatRange StateArrays::owned_range(const optim::FlatTensor& array, nn::ParamId id) const {
  const OwnedPart part = layout.flat().part(id);
  const int64_t begin = part.count == 0 ? 0 : array.compact ? part.owned : part.flat;
  return {begin, begin + part.count};
}

FlatRange StateArrays::owned_range(const optim::FlatTensor& array, const Bucket& bucket) const {
  const FlatLayout& space = layout.flat();
  const int64_t begin =
      array.compact ? bucket.owned : space.piece(bucket, space.rank(bucket)).begin;
  return {begin, begin + bucket.piece};
}

optim::FlatTensor StateArrays::make_stored(const optim::ArrayRequest& request, bool compact) const {
  if (request.elements == 0) {
    return {Tensor::zeros(state_memory(), request.dtype, {0}, MemoryTag::kParameters), compact};
  }
  return {factory->make(request), compact};
}

void StateArrays::flush_masters() const {
  flat.masters.flush();
  flat.low_halves.flush();
  flat.model.flush();
}

bool StateArrays::masters_left_on_host() const {
  return !host_store && device->kind() != DeviceKind::kCpu && flat.masters &&
         (!flat.masters.in_memory() || on_host(flat.masters.memory()));
}

void StateArrays::reload_masters() {
  if (!masters_left_on_host()) return;
  const Shape all{flat.masters.elements()};
  const Tensor there = Tensor::empty(device, DType::kFloat32, all, MemoryTag::kParameters);
  flat.masters.for_parts(0, there.elements(), Access::kRead, [&](const Tensor& part, int64_t at) {
    copy_tensor(part, there.slice(0, at, at + part.elements()));
  });
  flat.masters = {there, flat.masters.compact};
}

void StateArrays::send_weights() const {
  const optim::FlatTensor& from = flat.low_halves ? flat.model : flat.masters;
  const optim::FlatTensor& to = host_store->weights();
  if (from.compact == to.compact) {
    host_store->send(flat, {0, from.elements()}, 0);
  } else {
    for (const Bucket& bucket : layout.flat().buckets()) {
      host_store->send(flat, owned_range(from, bucket), owned_range(to, bucket).begin);
    }
  }
  host_store->all_sent();
}

void StateArrays::send_weights(nn::ParamId id) const {
  const optim::FlatTensor& from = flat.low_halves ? flat.model : flat.masters;
  host_store->send(flat, owned_range(from, id), owned_range(host_store->weights(), id).begin);
}

Tensor StateArrays::gather_parts(const OpContext& ctx, nn::ParamId id, const Tensor& own) const {
  const Tensor whole = ctx.workspace(DType::kFloat32, {parameters[id].shape.elements()});
  if (holds(id)) {
    const Bucket& in = bucket(id);
    std::vector<int64_t> counts;
    for (int rank = 0; rank < layout.flat().world(in); ++rank) {
      counts.push_back(layout.flat().part(id, rank).count);
    }
    if (counts.size() == 1) {
      copy_tensor(own, whole);
    } else {
      ranks(in)->all_gather_v(whole, own, counts, {.label = parameters[id].name})->wait();
    }
  }
  if (layout.in_parts(id)) send_whole(id, whole);
  return whole.view(parameters[id].shape);
}

void StateArrays::send_whole(nn::ParamId id, const Tensor& value) const {
  const nn::Parameter& p = parameters[id];
  groups_of(id)
      .model->broadcast(value.view({value.elements()}), layout.holder(p), {.label = p.name})
      ->wait();
}

ExactSum StateArrays::sum_over(const RankGroup& among, ExactSum sum) const {
  const Tensor words = comm::message_memory(*among.comm, device, DType::kInt64, {ExactSum::kWords},
                                            MemoryTag::kCommunication);
  std::copy(sum.words().begin(), sum.words().end(), words.data<int64_t>());
  among->all_reduce(words, ReduceOp::kSum, {.label = "gradient norm", .blocking = true})->wait();
  std::copy_n(words.data<int64_t>(), ExactSum::kWords, sum.words().begin());
  return sum;
}

int64_t StateArrays::agree(int64_t number, ReduceOp op) const {
  const Tensor one = comm::message_memory(*shard_ranks().comm, device, DType::kInt64, {1},
                                          MemoryTag::kCommunication);
  *one.data<int64_t>() = number;
  shard_ranks()->all_reduce(one, op, {.label = "bad gradient", .blocking = true})->wait();
  return *one.data<int64_t>();
}

}  // namespace ds::zero
