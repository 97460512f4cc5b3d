#include "engine/plan_memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan_pass.h"
#include "nn/fp8.h"
#include "ops/optimizer_update.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "zero/piece_blocks.h"

namespace ds {
namespace {

using zero::StateRole;

// Bytes of optimizer state per element of a tensor: those of a small tensor of the same kind, as
// the optimizer itself allocates them.
double state_bytes(const OptimizerConfig& config, const std::optional<ZeroConfig::ZenFlow>& zenflow,
                   const nn::Parameter& p, int32_t group) {
  constexpr int64_t kSide = kernels::kStateBlock;
  const Shape shape = p.shape.dims() >= 2 ? Shape{kSide, kSide} : Shape{kSide * kSide};
  const auto device = make_cpu_device({.cache = false});
  const std::vector<optim::TensorPlace> places = {
      {p.name, shape, 0, shape.elements(), group, p.decays, 0, 0, 1, 1}};
  const auto optimizer = zenflow ? optim::make_zenflow(config, *zenflow, places, device)
                                 : optim::make_optimizer(config, places, device);
  return static_cast<double>(device->account().now(MemoryTag::kOptimizer)) /
         static_cast<double>(shape.elements());
}

class MemoryPlanner {
 public:
  MemoryPlanner(const PlanContext& plan, ThreadPool& pool) : plan_(plan), pool_(pool) {}

  MemoryPlan run() {
    MemoryPlan out;
    plan_files(out.files);
    out.weight_files = weight_file_elements() * plan_.item();
    if (plan_.offloads()) plan_host(out);
    plan_device(out);
    return out;
  }

 private:
  const Config& config() const { return plan_.config; }
  int64_t held(StateRole role) const { return plan_.layout->held(role); }
  // A program's own gradients travel from where they lie whole, or are held whole beside the sums
  // of a step of several micro batches.
  int64_t gradient_bytes() const {
    const int64_t size = dtype_size(plan_.gradient_type());
    int64_t elements = held(StateRole::kGradients);
    if (plan_.model.own_parameters && plan_.world > 1 && plan_.stage < 3) {
      const int64_t whole = plan_.flat().trainable_elements();
      elements = config().batch.accumulation > 1 ? elements + whole : whole;
    }
    return elements * size;
  }

  int64_t master_bytes() const {
    if (config().precision.rounded_masters) return 0;
    return held(StateRole::kMasters) * (config().precision.split_master ? 2 : 4);
  }

  // In fp32 the masters are the weights.
  int64_t weight_file_elements() const {
    if (!weights_in_files(config()) || plan_.type == DType::kFloat32) return 0;
    return std::max<int64_t>(0,
                             held(StateRole::kWeights) - config().zero.offload_param->max_in_cpu);
  }

  // What is in files of arrays over so many elements that take so many bytes.
  int64_t share_in_files(int64_t bytes, int64_t elements) const {
    if (!plan_.in_files() || elements == 0) return 0;
    const int64_t stay =
        zero::StateFiles::stay_of(elements, config().zero.offload_optimizer->ratio);
    return static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(elements - stay) /
                                static_cast<double>(elements));
  }

  // What the GPU keeps of the state that it shares with its host (Twin-Flow). Weights that rest on
  // the host are the upper halves of split masters.
  MemoryTable kept_on_device() const {
    MemoryTable out;
    if (!plan_.offloads() || !keeps_share_on_device(config())) return out;
    const auto kept = [this](int64_t bytes, int64_t elements) {
      const double share = config().zero.offload_optimizer->ratio;
      const int64_t stay = zero::StateFiles::stay_of(elements, share);
      return elements == 0
                 ? 0
                 : static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(stay) /
                                        static_cast<double>(elements));
    };
    const int64_t masters = held(StateRole::kMasters);
    const bool low_alone = config().precision.split_master && plan_.weights_beside_gpu();
    out.parameters = kept(masters * (low_alone ? 2 : 4), masters);
    out.gradients = kept(gradient_bytes(), held(StateRole::kGradients));
    out.optimizer = kept(optimizer_bytes(), masters);
    return out;
  }

  // Of a built-in model: weights, masters or their low halves, gradients and moments, and inputs of
  // checkpointed segments.
  void plan_files(MemoryTable& files) const {
    const int64_t masters = held(StateRole::kMasters);
    files.parameters =
        weight_file_elements() * plan_.item() + share_in_files(master_bytes(), masters);
    // Beside weights that a GPU has, the upper halves of split masters lie with the lower ones.
    if (plan_.offloads() && !plan_.weights_beside_gpu() && config().precision.split_master) {
      files.parameters += share_in_files(2 * masters, masters);
    }
    if (!plan_.model.own_parameters) {
      files.gradients = share_in_files(gradient_bytes(), held(StateRole::kGradients));
    }
    files.optimizer = share_in_files(optimizer_bytes(), masters);
    if (config().activation_checkpointing.in_files()) files.activations = kept_input_bytes();
  }

  // Beside a GPU: fp32 masters, or weights and low halves, with all that follows from them, less
  // what is in files or stays on the GPU, and the buffers that everything travels through.
  void plan_host(MemoryPlan& out) const {
    MemoryTable& host = out.host;
    const zero::HostBuffers buffers(offload_options(config(), nullptr), held(StateRole::kWeights));
    host.parameters = held(StateRole::kMasters) * 4;
    // Rounded from masters, or a copy of those that do not lie in the host's memory.
    const bool elsewhere = plan_.in_files() || keeps_share_on_device(config());
    const bool own_weights = plan_.type != DType::kFloat32
                                 ? !config().precision.split_master
                                 : elsewhere && !weights_in_files(config());
    if (plan_.weights_beside_gpu() && own_weights) {
      host.parameters += held(StateRole::kWeights) * plan_.item();
    }
    const MemoryTable on_device = kept_on_device();
    host.parameters -= out.files.parameters + on_device.parameters;
    host.gradients = gradient_bytes() - out.files.gradients - on_device.gradients;
    host.optimizer = optimizer_bytes() - out.files.optimizer - on_device.optimizer + kept_beside();
    host.communication = buffers.bytes();
    host.io = std::max(plan_.in_files() ? update_buffers(out.files) : 0, weights_on_their_way());
  }

  // Of weights in files beside a GPU: this rank's pieces of what is read ahead.
  int64_t weights_on_their_way() const {
    if (!weights_in_files(config()) || !plan_.weights_beside_gpu()) return 0;
    const int64_t most = std::min(plan_.share.gather.prefetch, plan_.share.gather.live);
    int64_t largest = 0, all = 0;
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      largest = std::max(largest, bucket.piece);
      all += bucket.piece;
    }
    const int64_t ahead = most / plan_.shard.ranks();
    return std::min(all, ahead + largest) * plan_.item();
  }

  void plan_device(MemoryPlan& out) {
    MemoryTable& device = out.device;
    int64_t weights = (held(StateRole::kWeights) - weight_file_elements()) * plan_.item();
    if (weights_in_files(config()) && plan_.type == DType::kFloat32) weights = 0;
    if (plan_.weights_beside_gpu()) weights = 0;
    // Masters of fp32 are the weights themselves, and so are rounded ones; split ones keep the bits
    // that bf16 lacks.
    const bool alone = plan_.type != DType::kFloat32 && !plan_.offloads() && !plan_.in_files();
    int64_t masters = alone ? master_bytes() : 0;
    if (plan_.maps_files()) {
      masters = master_bytes() - share_in_files(master_bytes(), held(StateRole::kMasters));
    }
    const MemoryTable shared = kept_on_device();
    device.parameters =
        weights + masters + shared.parameters + second_bytes() + code_bytes() + teacher_bytes();
    device.gradients = error_bytes() + shared.gradients;
    device.optimizer = shared.optimizer;
    if (!plan_.offloads()) {
      device.gradients += gradient_bytes() - out.files.gradients;
      device.optimizer = optimizer_bytes() - out.files.optimizer + kept_beside();
    }
    device.communication = message_bytes();

    CountingDevice::ByTag resting{};
    const auto at = [&resting](MemoryTag tag) -> int64_t& {
      return resting[static_cast<size_t>(tag)];
    };
    at(MemoryTag::kParameters) = device.parameters;
    at(MemoryTag::kGradients) = device.gradients;
    at(MemoryTag::kOptimizer) = device.optimizer;
    at(MemoryTag::kCommunication) = device.communication;
    MemoryTable pass = device, update = device;
    const auto counted = count_passes(plan_, resting, state_arrays(), pool_);
    if (counted) {
      const auto of = [&](MemoryTag tag) { return counted->fullest[static_cast<size_t>(tag)]; };
      pass.communication = of(MemoryTag::kCommunication);
      update.communication = counted->after[static_cast<size_t>(MemoryTag::kCommunication)];
      pass.io = of(MemoryTag::kIo);
      // Sums of one micro batch come and go as activations do.
      pass.activations = of(MemoryTag::kActivations) + of(MemoryTag::kWorkspace) +
                         of(MemoryTag::kOther) + of(MemoryTag::kGradients) - device.gradients;
      out.reserved = counted->reserved;
      if (counted->in_update) {  // then it is what was counted
        out.in_update = true;
        device = pass;
        out.by_tag = counted->fullest;
        return;
      }
    } else {
      out.activations_known = false;
      if (plan_.maps_files()) update.io = update_buffers(out.files);
      pass.activations = activation_estimate();
      pass.communication += buffer_bytes();
      update.communication = pass.communication;
      pass.communication += gathered_elements() * plan_.item();
      pass.io = kept_buffers() + (plan_.world == 1 ? largest_gradient() : 0);
    }
    update.activations = update_scratch();
    out.in_update = update.total() > pass.total();
    device = out.in_update ? update : pass;
    out.by_tag = counted && !out.in_update ? counted->fullest : by_tag(device);
  }

  static MemoryAccount::ByTag by_tag(const MemoryTable& table) {
    MemoryAccount::ByTag out{};
    const auto at = [&out](MemoryTag tag) -> int64_t& { return out[static_cast<size_t>(tag)]; };
    at(MemoryTag::kParameters) = table.parameters;
    at(MemoryTag::kGradients) = table.gradients;
    at(MemoryTag::kOptimizer) = table.optimizer;
    at(MemoryTag::kActivations) = table.activations;
    at(MemoryTag::kCommunication) = table.communication;
    at(MemoryTag::kIo) = table.io;
    return out;
  }

  // What optimizers keep in memory wherever the arrays lie: copies of all that updates ahead of
  // their step change, and the chosen elements of ZenFlow.
  int64_t kept_beside() const {
    const auto& offload = config().zero.offload_optimizer;
    if (offload && offload->super_offload && !plan_.model.own_parameters &&
        config().zero.mics_shard_size < 1) {
      return held(StateRole::kMasters) * int64_t{sizeof(float)} + optimizer_bytes();
    }
    return config().zero.zenflow ? chosen_bytes() : 0;
  }

  // Of a chosen element its place, two moments, and what masters in files hold of it.
  int64_t chosen_bytes() const {
    const ZeroConfig::ZenFlow& zenflow = *config().zero.zenflow;
    int64_t chosen = 0;
    for (const nn::ParamId id : plan_.flat().order()) {
      const nn::Parameter& p = (*plan_.model.parameters)[id];
      const int64_t count = p.trainable ? plan_.flat().part(id).count : 0;
      if (count == 0) continue;
      const int64_t columns = p.shape.dims() == 2 ? p.shape[-1] : 0;
      chosen += columns == 0
                    ? count
                    : count / columns *
                          static_cast<int64_t>(zenflow.topk_ratio * static_cast<double>(columns));
    }
    const OptimizerConfig optimizer = config().optimizer.value_or(OptimizerConfig{});
    const int64_t moment = optimizer.state_dtype == OptimizerStateType::kBf16 ? 2 : 4;
    int64_t each = int64_t{sizeof(int32_t)} + 2 * moment;
    if (plan_.in_files()) {
      each += config().precision.split_master ? 2 : config().precision.rounded_masters ? 0 : 4;
    }
    return chosen * each;
  }

  // What Muon needs of one matrix, or a stack of them, while it updates it. And ZenFlow for the
  // elements that it works on at a time: gradients, masters and weights of all and of chosen ones.
  int64_t update_scratch() const {
    const OptimizerConfig optimizer = config().optimizer.value_or(OptimizerConfig{});
    if (config().zero.zenflow) {
      constexpr int64_t kElements = int64_t{1} << 20, kBytes = 28;
      return std::min(kElements, held(StateRole::kMasters)) * kBytes;
    }
    if (optimizer.type != OptimizerType::kMuon) return 0;
    int64_t most = 0;
    for (nn::ParamId id = 0; id < plan_.model.parameters->size(); ++id) {
      const nn::Parameter& p = (*plan_.model.parameters)[id];
      if (!p.trainable || p.shape.dims() < 2) continue;
      const int64_t columns = p.shape[-1], rows = p.shape[-2], side = std::min(rows, columns);
      const int64_t squares = optimizer.ns_method == MuonMethod::kGram ? 5 : 2;
      // The direction and, of ranks that share matrices, what is gathered and sent.
      const int64_t whole = p.shape.elements() * (plan_.world > 1 ? 3 : 1);
      most = std::max(most, whole + rows * columns + squares * side * side);
    }
    return most * int64_t{sizeof(float)};
  }

  int64_t largest_gradient() const {
    if (!plan_.maps_files()) return 0;
    int64_t most = 0;
    for (nn::ParamId id = 0; id < plan_.model.parameters->size(); ++id) {
      const nn::Parameter& p = (*plan_.model.parameters)[id];
      if (p.trainable) most = std::max(most, p.shape.elements());
    }
    return most * dtype_size(plan_.gradient_type());
  }

  // Of weights that are gathered at a time; one rank alone has its pieces already.
  int64_t gathered_elements() const { return plan_.stage < 3 ? 0 : planned_gathers(plan_).most; }

  // Memory that weights in files come through: what is read, and what is read ahead.
  int64_t kept_buffers() const {
    constexpr int64_t kWeightBuffers = 4;
    if (plan_.on_gpu()) return 0;
    const zero::StateFileOptions options =
        state_file_options(config(), false, shard_ranks(config(), plan_.world));
    int64_t bytes = 0;
    if (options.weights && plan_.world == 1) {
      bytes += kWeightBuffers * options.weights->part_bytes;
    }
    return bytes;
  }

  // The parts of an update, of which one may be read and one written beside that which is updated.
  int64_t update_buffers(const MemoryTable& files) const {
    const zero::StateFileOptions options =
        state_file_options(config(), false, shard_ranks(config(), plan_.world));
    const int64_t states = held(StateRole::kMasters);
    if (states == 0) return 0;
    const int64_t stay = zero::StateFiles::stay_of(states, options.optimizer_share);
    if (states == stay) return 0;
    const int64_t part = std::min(zero::StateFiles::most_of(options.sub_group_elements), states);
    // Of an element in files.
    const int64_t weights = weight_file_elements() * plan_.item();
    const double each =
        static_cast<double>(files.total() - weights) / static_cast<double>(states - stay) +
        static_cast<double>(weights) / static_cast<double>(states);
    // A part of which some stays in memory is read beside where it is updated.
    const int at_once = std::max(
        1 + (options.optimizer->read_ahead ? 1 : 0) + (options.optimizer->write_behind ? 1 : 0),
        stay > 0 ? 2 : 1);
    const auto parts = static_cast<int64_t>(static_cast<double>(part) * each) * at_once;
    return parts;
  }

  StateArraysOf state_arrays() const {
    const OptimizerConfig optimizer = config().optimizer.value_or(OptimizerConfig{});
    StateArraysOf out;
    out.type = optimizer.state_dtype == OptimizerStateType::kInt8   ? DType::kUInt8
               : optimizer.state_dtype == OptimizerStateType::kBf16 ? DType::kBFloat16
                                                                    : DType::kFloat32;
    const int64_t elements = held(StateRole::kMasters) * dtype_size(out.type);
    if (elements > 0) out.arrays = (optimizer_bytes() + elements / 2) / elements;
    if (config().zero.zenflow) out.scratch = update_scratch();
    return out;
  }

  // Weights that are held besides the own piece: hpZ's second copy, codes of frozen ones.
  int64_t second_bytes() const {
    int64_t bytes = 0;
    if (plan_.stage != 3) return bytes;
    const zero::ShareOptions& share = plan_.share;
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      if (const int near = plan_.near_ranks(bucket.domain); near > 1 && !bucket.resident) {
        bytes += bucket.range.elements() / near * plan_.item();
      }
      if (share.weights.quantized_frozen && !bucket.trainable && !bucket.exact) {
        bytes += zero::piece_bytes(plan_.flat(), bucket, 8);
      }
    }
    return bytes;
  }

  // In both layouts that a GPU wants; at stage 3 in one, of one weight at a time.
  int64_t code_bytes() const {
    const CodedWeights all = coded_weights(plan_);
    return plan_.stage == 3 ? all.largest : 2 * all.elements;
  }

  // Of the teacher that each rank holds beside what it trains.
  int64_t teacher_bytes() const {
    return plan_.model.teacher ? ds::teacher_bytes(*plan_.model.teacher, pool_) : 0;
  }

  // What LoCo keeps of the gradients' roundings.
  int64_t error_bytes() const {
    if (!plan_.by_node || !plan_.share.feedback) return 0;
    int64_t bytes = 0;
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      if (!bucket.trainable || bucket.exact) continue;
      const int64_t piece = zero::piece_bytes(plan_.flat(), bucket, 8);
      bytes += piece * ((plan_.shard.local > 1 ? plan_.shard.ranks() : 0) + plan_.shard.nodes);
    }
    return bytes;
  }

  int64_t optimizer_bytes() const {
    const OptimizerConfig optimizer = config().optimizer.value_or(OptimizerConfig{});
    const nn::ParameterSet& parameters = *plan_.model.parameters;
    const std::vector<int32_t> groups = optim::assign_groups(optimizer, parameters);
    std::map<std::pair<int32_t, bool>, double> known;  // by group, of matrices or not
    double bytes = 0;
    for (const nn::ParamId id : plan_.flat().order()) {
      const nn::Parameter& p = parameters[id];
      const int64_t count = p.trainable ? plan_.flat().part(id).count : 0;
      if (count == 0) continue;
      const int32_t group = groups[static_cast<size_t>(id)];
      const auto [each, fresh] = known.try_emplace({group, p.shape.dims() >= 2}, 0.0);
      if (fresh || optimizer.type == OptimizerType::kMuon) {
        each->second = state_bytes(optimizer, config().zero.zenflow, p, group);
      }
      bytes += static_cast<double>(count) * each->second;
    }
    return static_cast<int64_t>(bytes);
  }

  int64_t tokens() const { return config().batch.micro_batch * plan_.length(); }
  // Of a block's input or output, per token.
  int64_t stream_width() const {
    const models::ArchitectureInfo& info = plan_.model.architecture->info();
    if (info.output == nn::kNoParam) return 0;
    return (*plan_.model.parameters)[info.output].shape.sizes()[1];
  }
  // Blocks, or groups of them, that run again and keep their input.
  int64_t segments() const {
    const int64_t layers = plan_.model.architecture->info().layers;
    const models::Recompute again = plan_.recompute();
    return again.every > 0 ? layers / again.every : std::min<int64_t>(again.segments, layers);
  }
  // Inputs of the segments of a micro batch.
  int64_t kept_input_bytes() const {
    if (plan_.model.architecture == nullptr) return 0;
    return tokens() * segments() * stream_width() * plan_.item();
  }

  // Where no passes can be counted: inputs and outputs of every linear layer, and the logits; with
  // checkpointing the inputs of the segments, and one segment's own.
  int64_t activation_estimate() const {
    if (plan_.model.architecture == nullptr) return 0;
    const models::ArchitectureInfo& info = plan_.model.architecture->info();
    const nn::ParameterSet& parameters = *plan_.model.parameters;
    int64_t widths = 0;
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const nn::Parameter& p = parameters[id];
      if (!p.projection) continue;
      const int64_t both = p.shape.sizes()[0] + p.shape.sizes()[1];
      // Of an expert, of its share of the tokens.
      widths += p.split.experts > 0
                    ? both * std::min(info.experts_per_token, p.split.experts) / p.split.experts
                    : both;
    }
    int64_t kept = widths;
    if (const models::Recompute again = plan_.recompute(); again.every > 0) {
      kept = widths * (info.layers - segments()) / info.layers;
      kept += widths / info.layers;  // of the block that runs again
    } else if (again.segments > 0 && info.layers > 0) {
      kept = widths / segments();
    }
    // In files but for those of a segment or two.
    int64_t inputs = kept_input_bytes();
    if (config().activation_checkpointing.in_files()) {
      inputs = std::min(inputs, 2 * tokens() * stream_width() * plan_.item());
    }
    return inputs + tokens() * (kept * plan_.item() + info.outputs() * plan_.item());
  }

  // Buckets of gradients on their way.
  int64_t buffer_bytes() const {
    if (plan_.world == 1 && !plan_.offloads()) return 0;
    const zero::ShareOptions& share = plan_.share;
    int64_t largest = 0, buckets = 0;
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      if (!bucket.trainable) continue;
      ++buckets;
      largest = std::max(largest, bucket.range.elements());
    }
    const int64_t rounded_bytes =
        share.comm_dtype == DType::kFloat32 || plan_.world == 1 ? 0 : dtype_size(share.comm_dtype);
    return std::min<int64_t>(buckets, share.overlap || plan_.offloads() ? 3 : 1) * largest *
           (4 + rounded_bytes);
  }

  // A quantised gather or reduction needs its messages beside the bucket.
  int64_t message_bytes() const {
    int64_t largest = 0;
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      if (bucket.trainable) largest = std::max(largest, bucket.range.elements());
    }
    int64_t bytes = 0;
    if (plan_.stage == 3 && plan_.share.weights.quantized) bytes += largest;
    if (plan_.by_node) bytes += 2 * largest * 4 / 8;
    return bytes;
  }

  const PlanContext& plan_;
  ThreadPool& pool_;
};

Json table_json(const MemoryTable& table) {
  return {{"parameters", table.parameters},
          {"gradients", table.gradients},
          {"optimizer", table.optimizer}};
}

}  // namespace

MemoryPlan plan_memory(const PlanContext& plan, ThreadPool& pool) {
  return MemoryPlanner(plan, pool).run();
}

Json device_json(const MemoryPlan& plan) {
  const MemoryTable& table = plan.device;
  Json out = {{"parameters", table.parameters},
              {"gradients", table.gradients},
              {"optimizer", table.optimizer},
              {"model_states", table.states()},
              {"activations", table.activations},
              {"communication", table.communication},
              {"io", table.io},
              {"total", table.total()}};
  if (plan.reserved > 0) out["reserved"] = std::max(plan.reserved, table.total());
  return out;
}

Json host_json(const MemoryPlan& plan) {
  Json out = table_json(plan.host);
  out["communication"] = plan.host.communication;
  out["io"] = plan.host.io;
  out["total"] = plan.host.total();
  return out;
}

Json files_json(const MemoryPlan& plan) {
  Json out = table_json(plan.files);
  out["activations"] = plan.files.activations;
  out["total"] = plan.files.total();
  return out;
}

CodedWeights coded_weights(const PlanContext& plan) {
  CodedWeights out;
  const nn::ParameterSet& parameters = *plan.model.parameters;
  for (nn::ParamId id = 0; plan.config.precision.fp8.enabled && id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (!nn::Fp8Linears::takes(p)) continue;
    ++out.weights;
    if (!plan.flat().holds(id)) continue;  // another rank's experts
    out.elements += p.shape.elements();
    out.largest = std::max(out.largest, p.shape.elements());
  }
  return out;
}

GatherCounts planned_gathers(const PlanContext& plan) {
  return count_gathers(
      plan.flat(), plan.share.gather, plan.type,
      [&plan](const zero::Bucket& bucket) { return plan.gathered_bytes(bucket); },
      [&plan](const zero::Bucket& bucket) { return plan.near_ranks(bucket.domain) > 1; },
      record_uses(plan.model.config, *plan.model.parameters, plan.type, plan.recompute()),
      plan.config.batch.accumulation);
}

}  // namespace ds
