// What the parts of training state share: the layout of the flat space, the arrays over it, and
// where they lie, which is on the device, spread over ranks, in the host's memory, or where a
// factory makes them.
#pragma once

#include <functional>
#include <memory>

#include "base/exact_sum.h"
#include "mesh/state_groups.h"
#include "ops/context.h"
#include "ops/stored_array.h"
#include "optim/optimizer.h"
#include "zero/host_store.h"
#include "zero/layout.h"

namespace ds::zero {

struct StateArrays {
  StateArrays(const nn::ParameterSet& the_parameters, std::shared_ptr<Device> the_device)
      : parameters(the_parameters), layout(the_parameters), device(std::move(the_device)) {}

  const nn::ParameterSet& parameters;
  Layout layout;
  const std::shared_ptr<Device> device;  // where operators run
  // `masters` is empty while they are split, or not made yet; `model` is empty where the masters
  // are the model. Some are compact where ranks share them.
  optim::FlatTensors flat;

  // By gradient domain, of the ranks that share the arrays.
  std::vector<StateGroups> groups = std::vector<StateGroups>(1);
  bool spread = false;  // over them

  // Makes masters, low halves and gradients where those do not lie in memory; null: all do.
  std::shared_ptr<optim::ArrayFactory> factory;

  std::shared_ptr<HostStore> host_store;  // null unless the optimizer's part is offloaded
  std::shared_ptr<Device> host;           // the host's memory; null before anything was offloaded

  // Called before others than the optimizer read or write masters or gradients: it undoes what it
  // has updated ahead of its step. Null: nothing is.
  std::function<void()> undo_ahead;
  void before_reading() const {
    if (undo_ahead) undo_ahead();
  }
  // Called before others than the optimizer read masters that do not lie in memory, or write any:
  // it may hold the newest values itself. Null: it does not.
  std::function<void(bool write)> sync_masters;
  void before_reading_masters() const {
    before_reading();
    if (sync_masters && !(flat.masters.in_memory() || flat.low_halves.in_memory())) {
      sync_masters(false);
    }
  }

  bool shared() const { return spread; }
  bool holds(nn::ParamId id) const { return layout.flat().holds(id); }
  // Other ranks are asked for its values, or for a part of them.
  bool is_shared(nn::ParamId id) const {
    return layout.in_parts(id) || layout.flat().world(layout.domain(id)) > 1;
  }
  // Those that reduce the gradients of a parameter, whether this rank holds it or not, and share
  // its state.
  const StateGroups& groups_of(nn::ParamId id) const {
    return groups[static_cast<size_t>(layout.domain(id))];
  }
  // The ranks between which a bucket is reduced and gathered.
  const RankGroup& ranks(const Bucket& bucket) const {
    return groups[static_cast<size_t>(bucket.domain)].shard;
  }
  float share_of_mean(const Bucket& bucket) const { return layout.share_of_mean(bucket.domain); }
  // Those of dense parameters, which every rank has: all that train, and those that hold one copy.
  const RankGroup& all_ranks() const { return groups.front().all; }
  const RankGroup& shard_ranks() const { return groups.front().shard; }

  const Bucket& bucket(nn::ParamId id) const {
    return layout.flat().buckets()[layout.flat().bucket_of(id)];
  }
  size_t index_of(const Bucket& bucket) const {
    return static_cast<size_t>(&bucket - layout.flat().buckets().data());
  }
  // A parameter in an array over the whole space, in its shape.
  Tensor view(const Tensor& whole, nn::ParamId id) const;
  // What this rank owns of a parameter or of a bucket: where it is in an array, and, flat, of one
  // that lies in memory.
  FlatRange owned_range(const optim::FlatTensor& array, nn::ParamId id) const;
  FlatRange owned_range(const optim::FlatTensor& array, const Bucket& bucket) const;
  template <class Part>
  Tensor owned(const optim::FlatTensor& array, const Part& part) const {
    const FlatRange range = owned_range(array, part);
    return array.memory().slice(0, range.begin, range.end);
  }

  // Of split masters, what this rank owns.
  template <class Part>
  ops::SplitRange split_range(const Part& part) const {
    return {flat.model, owned_range(flat.model, part).begin, flat.low_halves,
            owned_range(flat.low_halves, part).begin};
  }

  // The array that the model computes with; but see in_fp32.
  const optim::FlatTensor& weights() const {
    return host_store ? host_store->weights() : flat.model ? flat.model : flat.masters;
  }
  // Whose weights are not in weights(), but in Fp32Weights or the masters.
  bool in_fp32(const Bucket& bucket) const { return bucket.fp32 && flat.model; }
  bool whole_masters() const { return flat.masters.in_memory() && !flat.masters.compact; }
  // They lie in memory as fp32: what this rank owns is read and written there.
  bool masters_in_place() const {
    return flat.masters.in_memory() && flat.masters.dtype() == DType::kFloat32;
  }
  // Masters are on the host, though nothing is offloaded any more; and bringing them back.
  bool masters_left_on_host() const;
  void reload_masters();

  // Whether arrays of a role lie elsewhere than in memory, and one of zeros there.
  bool stores(optim::ArrayRole role) const { return factory && factory->makes(role); }
  optim::FlatTensor make_stored(const optim::ArrayRequest& request, bool compact) const;
  // Waits until masters and weights that were written rest.
  void flush_masters() const;

  // Where masters, gradients and the optimizer's state are made that lie in memory.
  const std::shared_ptr<Device>& state_memory() const {
    return host_store ? host_store->memory() : device;
  }
  // To compute with them.
  OpContext state_context(const OpContext& ctx) const {
    return host_store || masters_left_on_host() ? OpContext{host, ctx.pool} : ctx;
  }
  // Before masters are written: nothing of them is on its way to the GPU.
  void hold_masters() const {
    if (host_store) host_store->hold_masters();
  }
  // Of what this rank owns, from masters on the host to the GPU's weights: all of it, and of one
  // parameter.
  void send_weights() const;
  void send_weights(nn::ParamId id) const;

  // Over the ranks that share the arrays, each of which makes the call.
  // Of a parameter in parts: fills `value`, all of it, on every rank from one that holds it.
  void send_whole(nn::ParamId id, const Tensor& value) const;
  // Whole from what each rank owns of a parameter, flat fp32, which lies on the context's device.
  Tensor gather_parts(const OpContext& ctx, nn::ParamId id, const Tensor& own) const;
  ExactSum sum_over_ranks(const ExactSum& sum) const { return sum_over(shard_ranks(), sum); }
  ExactSum sum_over(const RankGroup& among, ExactSum sum) const;
  int64_t agree(int64_t number, ReduceOp op) const;
};

}  // namespace ds::zero
