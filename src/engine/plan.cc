#include "engine/plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "config/auto_values.h"
#include "engine/plan_gathers.h"
#include "engine/plan_traffic.h"
#include "engine/recompute.h"
#include "engine/share_options.h"
#include "models/architecture.h"
#include "nn/fp8.h"
#include "ops/optimizer_update.h"
#include "optim/groups.h"
#include "optim/muon_rounds.h"
#include "optim/optimizer.h"
#include "zero/comm_shard_group.h"
#include "zero/layout.h"
#include "zero/piece_blocks.h"

namespace ds {
namespace {

constexpr int64_t kMostParameters = int64_t{1} << 50;
// Numbers that ranks add up per step: losses and how many, tokens, batches, samples.
constexpr int64_t kTotals = 5;

// What is known of a model without any memory for it.
struct Shapes {
  std::unique_ptr<models::Architecture> architecture;  // null when only its size is known
  nn::ParameterSet parameters;
  int64_t layers = 0;
};

int64_t whole_number(const Json& object, const char* key, int64_t least, int64_t most) {
  const auto found = object.find(key);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : -1;
  DS_CHECK(value >= static_cast<double>(least) && value <= static_cast<double>(most) &&
               value == static_cast<double>(static_cast<int64_t>(value)),
           Code::kConfig, "model size: ", key, " must be a whole number from ", least, " to ",
           most);
  return static_cast<int64_t>(value);
}

Shapes shapes_of(const Json& model) {
  Shapes out;
  if (!model.is_object() || !model.contains("parameters")) {
    out.architecture = models::build_architecture(model);
    out.parameters = out.architecture->parameters();
    out.layers = out.architecture->info().layers;
    return out;
  }
  for (const auto& [key, value] : model.items()) {
    DS_CHECK(key == "parameters" || key == "layers", Code::kConfig, "model size: unknown key ",
             printable(key), "; parameters and layers are known");
  }
  const int64_t all = whole_number(model, "parameters", 1, kMostParameters);
  out.layers = model.contains("layers") ? whole_number(model, "layers", 1, 100000) : 1;
  for (int64_t i = 0; i < out.layers; ++i) {
    const int64_t part = all / out.layers + (i < all % out.layers ? 1 : 0);
    nn::Parameter p;
    p.name = str_cat("layer.", i, ".weight");
    p.shape = {part, 1};
    p.decays = true;
    out.parameters.add(std::move(p));
  }
  return out;
}

// Bytes of optimizer state per element of a tensor: those of a small tensor of the same kind, as
// the optimizer itself allocates them.
double state_bytes(const OptimizerConfig& config, const nn::Parameter& p, int32_t group) {
  constexpr int64_t kSide = kernels::kStateBlock;
  const Shape shape = p.shape.dims() >= 2 ? Shape{kSide, kSide} : Shape{kSide * kSide};
  const auto device = make_cpu_device();
  const auto optimizer = optim::make_optimizer(
      config, {{p.name, shape, 0, shape.elements(), group, p.decays, 0, 0, 1, 1}}, device);
  return static_cast<double>(device->account().now(MemoryTag::kOptimizer)) /
         static_cast<double>(shape.elements());
}

class Planner {
 public:
  Planner(const Json& model, std::string_view config_json, const PlanOptions& options)
      : model_(model),
        shapes_(shapes_of(model)),
        world_(options.world),
        per_node_(options.ranks_per_node == 0 ? options.world : options.ranks_per_node),
        options_(options) {
    DS_CHECK(world_ >= 1 && world_ <= (1 << 20), Code::kInvalidArgument, "the world is ", world_,
             "; from 1 to 1048576 ranks are possible");
    DS_CHECK(per_node_ >= 1 && world_ % per_node_ == 0, Code::kInvalidArgument, "ranks_per_node ",
             per_node_, " does not divide the world of ", world_);
    ConfigEnvironment environment;
    environment.data_parallel_size = world_;
    environment.hidden_size = hidden_size_of(model);
    config_ = load_config(config_json, environment, options.reading);
    share_ = share_options(config_);
    // A world of one is not shared, unless its weights rest in files.
    const bool shared = world_ > 1 || weights_in_files(config_);
    stage_ = shared ? share_.stage : 0;
    type_ = dtype_of(config_.precision.compute);
    share_.stage = stage_;
    if (world_ > 1) zero::check_group_sizes(share_.groups, world_);
    const int shard = share_.groups.shard;
    all_ = shard_ = places_of(world_, 1);
    if (stage_ == 3 && shard > 0) shard_ = places_of(shard, 1);
    zero::LayoutPolicy policy;
    policy.stage = stage_;
    if (stage_ == 3) policy.shard = shard;
    if (shared) {
      policy.sharing = zero::choose_sharing(shapes_.parameters, share_, 0, shard_.ranks());
    } else if (offloads()) {
      policy.sharing.bucket_elements = share_.bucket_elements;
    }
    layout_.emplace(shapes_.parameters, MeshShape(world_, {}), 0, policy);
    by_node_ = stage_ == 3 && share_.quantized_gradients && shard_.nodes > 1;
  }

  Json run() {
    Json out;
    int64_t trainable = 0;
    for (nn::ParamId id = 0; id < shapes_.parameters.size(); ++id) {
      const nn::Parameter& p = shapes_.parameters[id];
      if (p.trainable) trainable += p.shape.elements();
    }
    out["model"] = {{"parameters", shapes_.parameters.elements()},
                    {"trainable", trainable},
                    {"tensors", shapes_.parameters.size()},
                    {"layers", shapes_.layers}};
    if (shapes_.architecture != nullptr && shapes_.architecture->info().experts > 0) {
      const models::ArchitectureInfo& info = shapes_.architecture->info();
      out["model"]["experts"] = info.experts;
      out["model"]["experts_per_token"] = info.experts_per_token;
      out["model"]["active_parameters"] =
          shapes_.parameters.active_elements(info.experts_per_token);
    }
    out["world"] = world_;
    out["ranks_per_node"] = per_node_;
    out["stage"] = stage_;
    out["compute_type"] = std::string(dtype_name(type_));
    out["memory_per_rank"] = memory();
    if (offloads()) out["host_memory_per_rank"] = host_memory();
    if (in_files() || weights_in_files(config_) || config_.activation_checkpointing.in_files()) {
      out["files_per_rank"] = files();
    }
    out["moved_per_step"] = traffic();
    return out;
  }

 private:
  // Of a group of ranks that lie `stride` apart.
  Places places_of(int ranks, int stride) const {
    const int local = std::clamp(per_node_ / stride, 1, ranks);
    return {local, std::max(1, ranks / local)};
  }

  int64_t item() const { return dtype_size(type_); }
  // The optimizer's state is on the host, and the rank computes on a GPU.
  bool offloads() const { return config_.zero.offload_optimizer && !in_files(); }
  // It is in files, and the rank computes on a CPU.
  bool in_files() const {
    return config_.zero.offload_optimizer && config_.zero.offload_optimizer->in_files();
  }

  int64_t gradient_bytes() const {
    return layout_->held(zero::StateRole::kGradients) *
           dtype_size(dtype_of(config_.precision.grad_accum_dtype));
  }

  // body(flat space, bucket of it), domain after domain.
  template <class Body>
  void for_each_bucket(const Body& body) const {
    for (const zero::GradientDomain& domain : layout_->domains()) {
      for (const zero::Bucket& bucket : domain.flat.buckets()) body(domain.flat, bucket);
    }
  }

  // Beside a GPU: fp32 masters, or weights and low halves, with all that follows from them, and the
  // buffers that everything travels through.
  Json host_memory() {
    const int64_t masters = layout_->held(zero::StateRole::kMasters) * 4;
    const int64_t gradients = gradient_bytes(), optimizer = optimizer_bytes();
    const zero::HostBuffers buffers(offload_options(config_, nullptr),
                                    layout_->held(zero::StateRole::kWeights));
    return {{"parameters", masters},
            {"gradients", gradients},
            {"optimizer", optimizer},
            {"communication", buffers.bytes()},
            {"total", masters + gradients + optimizer + buffers.bytes()}};
  }

  // What is in files of arrays over so many elements that take so many bytes.
  int64_t share_in_files(int64_t bytes, int64_t elements) const {
    if (!in_files() || elements == 0) return 0;
    const int64_t stay = zero::StateFiles::stay_of(elements, config_.zero.offload_optimizer->ratio);
    return static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(elements - stay) /
                                static_cast<double>(elements));
  }
  int64_t masters_in_files() const {
    return share_in_files(master_bytes(), layout_->held(zero::StateRole::kMasters));
  }
  int64_t gradients_in_files() const {
    return share_in_files(gradient_bytes(), layout_->held(zero::StateRole::kGradients));
  }
  int64_t optimizer_in_files() const {
    return share_in_files(optimizer_bytes(), layout_->held(zero::StateRole::kMasters));
  }
  // Of a built-in model: weights, masters or their low halves, gradients and moments, and inputs of
  // checkpointed segments.
  Json files() const {
    const int64_t weights = weight_file_elements() * item();
    const int64_t parameters = masters_in_files() + weights;
    const int64_t gradients = gradients_in_files(), optimizer = optimizer_in_files();
    const int64_t activations =
        config_.activation_checkpointing.in_files() ? kept_input_bytes() : 0;
    return {{"parameters", parameters},
            {"gradients", gradients},
            {"optimizer", optimizer},
            {"activations", activations},
            {"total", parameters + gradients + optimizer + activations}};
  }
  // In fp32 the masters are the weights.
  int64_t weight_file_elements() const {
    if (!weights_in_files(config_) || type_ == DType::kFloat32) return 0;
    return std::max<int64_t>(
        0, layout_->held(zero::StateRole::kWeights) - config_.zero.offload_param->max_in_cpu);
  }
  int64_t master_bytes() const {
    if (config_.precision.rounded_masters) return 0;
    return layout_->held(zero::StateRole::kMasters) * (config_.precision.split_master ? 2 : 4);
  }
  // Memory that travels between passes and files: gathered weights and the gradient that backward
  // adds to, or the parts of an update, and what is kept of either for the next.
  int64_t file_buffer_bytes(int64_t gathered) {
    if (!in_files() && !weights_in_files(config_)) return gathered;
    const zero::StateFileOptions options =
        state_file_options(config_, false, shard_ranks(config_, world_));
    const int64_t most = zero::StateFiles::most_of(options.sub_group_elements);
    int64_t spare = 0;
    if (options.weights && world_ == 1) {
      spare += std::min(io::FileArrays::spare_bytes(options.weights->part_bytes), gathered);
    }
    if (!in_files()) return gathered + spare;
    const int64_t part = std::min(most, layout_->held(zero::StateRole::kMasters));
    const int64_t states = layout_->held(zero::StateRole::kMasters);
    const int64_t all =
        master_bytes() + gradient_bytes() + optimizer_bytes() + weight_file_elements() * item();
    const double each = states == 0 ? 0 : static_cast<double>(all) / static_cast<double>(states);
    const int at_once =
        1 + (options.optimizer->read_ahead ? 1 : 0) + (options.optimizer->write_behind ? 1 : 0);
    // One process maps the gradient of a whole parameter while backward adds to it.
    int64_t gradient = 0;
    for (nn::ParamId id = 0; world_ == 1 && id < shapes_.parameters.size(); ++id) {
      const nn::Parameter& p = shapes_.parameters[id];
      if (p.trainable) gradient = std::max(gradient, p.shape.elements());
    }
    const int64_t parts = static_cast<int64_t>(static_cast<double>(part) * each) * at_once;
    spare += std::min(io::FileArrays::spare_bytes(part * int64_t{sizeof(float)}), parts);
    gradient *= dtype_size(dtype_of(config_.precision.grad_accum_dtype));
    return std::max(gathered + gradient, parts) + spare;
  }

  Json memory() {
    const bool split = config_.precision.split_master;
    int64_t weights = (layout_->held(zero::StateRole::kWeights) - weight_file_elements()) * item();
    if (weights_in_files(config_) && type_ == DType::kFloat32) weights = 0;
    // Masters of fp32 are the weights themselves, and so are rounded ones; split ones keep the bits
    // that bf16 lacks.
    const bool alone = type_ != DType::kFloat32 && !config_.precision.rounded_masters &&
                       !offloads() && !in_files();
    int64_t masters = !alone ? 0 : layout_->held(zero::StateRole::kMasters) * (split ? 2 : 4);
    if (in_files()) masters = master_bytes() - masters_in_files();
    const int64_t gradients = offloads() ? 0 : gradient_bytes() - gradients_in_files();
    const int64_t second = second_bytes() + code_bytes(), errors = error_bytes();
    const int64_t optimizer = offloads() ? 0 : optimizer_bytes() - optimizer_in_files();
    const int64_t activations = activation_bytes(),
                  communication = buffer_bytes() + file_buffer_bytes(live_weight_bytes());
    const int64_t states = weights + masters + second + gradients + errors + optimizer;
    return {{"parameters", weights + masters + second},
            {"gradients", gradients + errors},
            {"optimizer", optimizer},
            {"model_states", states},
            {"activations_estimate", activations},
            {"communication", communication},
            {"total", states + activations + communication}};
  }

  bool quantized_weights(const zero::Bucket& bucket) const {
    return share_.weights.quantized ||
           (share_.weights.quantized_frozen && !bucket.trainable && !bucket.exact);
  }

  // Weights that are held besides the own piece: hpZ's second copy, codes of frozen ones.
  int64_t second_bytes() const {
    int64_t bytes = 0;
    if (stage_ != 3) return bytes;
    for_each_bucket([&](const zero::FlatLayout& flat, const zero::Bucket& bucket) {
      if (share_.groups.secondary > 1 && !bucket.resident) {
        bytes += bucket.range.elements() / share_.groups.secondary * item();
      }
      if (share_.weights.quantized_frozen && !bucket.trainable && !bucket.exact) {
        bytes += zero::piece_bytes(flat, bucket, 8);
      }
    });
    return bytes;
  }

  // Of weights that are multiplied in fp8.
  struct Codes {
    int64_t weights = 0;
    int64_t elements = 0;
    int64_t largest = 0;
  };
  Codes codes() const {
    Codes out;
    for (nn::ParamId id = 0; config_.precision.fp8.enabled && id < shapes_.parameters.size();
         ++id) {
      const nn::Parameter& p = shapes_.parameters[id];
      if (!nn::Fp8Linears::takes(p)) continue;
      ++out.weights;
      out.elements += p.shape.elements();
      out.largest = std::max(out.largest, p.shape.elements());
    }
    return out;
  }
  // In both layouts that a GPU wants; at stage 3 in one, of one weight at a time.
  int64_t code_bytes() const {
    const Codes all = codes();
    return stage_ == 3 ? all.largest : 2 * all.elements;
  }

  // What LoCo keeps of the gradients' roundings.
  int64_t error_bytes() const {
    if (!by_node_ || !share_.feedback) return 0;
    int64_t bytes = 0;
    for_each_bucket([&](const zero::FlatLayout& flat, const zero::Bucket& bucket) {
      if (!bucket.trainable || bucket.exact) return;
      const int64_t piece = zero::piece_bytes(flat, bucket, 8);
      bytes += piece * ((shard_.local > 1 ? shard_.ranks() : 0) + shard_.nodes);
    });
    return bytes;
  }

  int64_t optimizer_bytes() const {
    const OptimizerConfig optimizer = config_.optimizer.value_or(OptimizerConfig{});
    const std::vector<int32_t> groups = optim::assign_groups(optimizer, shapes_.parameters);
    double bytes = 0;
    for (const zero::GradientDomain& domain : layout_->domains()) {
      for (const nn::ParamId place : domain.flat.order()) {
        const nn::ParamId id = domain.ids[static_cast<size_t>(place)];
        const nn::Parameter& p = shapes_.parameters[id];
        const int64_t count = p.trainable ? domain.flat.part(place).count : 0;
        if (count == 0) continue;
        bytes +=
            static_cast<double>(count) * state_bytes(optimizer, p, groups[static_cast<size_t>(id)]);
      }
    }
    return static_cast<int64_t>(bytes);
  }

  int64_t tokens() const {
    const int64_t length = options_.sequence_length == 0
                               ? shapes_.architecture->info().max_positions
                               : options_.sequence_length;
    return config_.batch.micro_batch * length;
  }
  // Of a block's input or output, per token.
  int64_t stream_width() const {
    const models::ArchitectureInfo& info = shapes_.architecture->info();
    return info.output == nn::kNoParam ? 0 : shapes_.parameters[info.output].shape.sizes()[1];
  }
  models::Recompute recompute() const {
    return recompute_of(config_.activation_checkpointing, shapes_.architecture->info());
  }
  // Blocks, or groups of them, that run again and keep their input.
  int64_t segments() const {
    const int64_t layers = shapes_.architecture->info().layers;
    const models::Recompute again = recompute();
    return again.every > 0 ? layers / again.every : std::min<int64_t>(again.segments, layers);
  }
  // Inputs of the segments of a micro batch.
  int64_t kept_input_bytes() const {
    return shapes_.architecture ? tokens() * segments() * stream_width() * item() : 0;
  }

  // What backward needs of a micro batch: inputs and outputs of every linear layer, and the logits;
  // with checkpointing the inputs of the segments, and one segment's own.
  int64_t activation_bytes() const {
    if (!shapes_.architecture) return 0;
    const models::ArchitectureInfo& info = shapes_.architecture->info();
    int64_t widths = 0;
    for (nn::ParamId id = 0; id < shapes_.parameters.size(); ++id) {
      const nn::Parameter& p = shapes_.parameters[id];
      if (!p.projection) continue;
      const int64_t both = p.shape.sizes()[0] + p.shape.sizes()[1];
      // Of an expert, of its share of the tokens.
      widths += p.split.experts > 0
                    ? both * std::min(info.experts_per_token, p.split.experts) / p.split.experts
                    : both;
    }
    int64_t kept = widths;
    if (const models::Recompute again = recompute(); again.every > 0) {
      kept = widths * (info.layers - segments()) / info.layers;
      kept += widths / info.layers;  // of the block that runs again
    } else if (again.segments > 0 && info.layers > 0) {
      kept = widths / segments();
    }
    // In files but for those of a segment or two.
    int64_t inputs = kept_input_bytes();
    if (config_.activation_checkpointing.in_files()) {
      inputs = std::min(inputs, 2 * tokens() * stream_width() * item());
    }
    return inputs + tokens() * (kept * item() + info.outputs() * item());
  }

  // The weights that are gathered at a time, and buckets of gradients on their way.
  int64_t live_weight_bytes() const { return stage_ == 3 ? gathers().most * item() : 0; }
  int64_t buffer_bytes() const {
    if (world_ == 1 && !offloads()) return 0;
    int64_t largest = 0, buckets = 0;
    for_each_bucket([&](const zero::FlatLayout&, const zero::Bucket& bucket) {
      if (!bucket.trainable) return;
      ++buckets;
      largest = std::max(largest, bucket.range.elements());
    });
    const int64_t rounded_bytes =
        share_.comm_dtype == DType::kFloat32 || world_ == 1 ? 0 : dtype_size(share_.comm_dtype);
    int64_t bytes = std::min<int64_t>(buckets, share_.overlap || offloads() ? 3 : 1) * largest *
                    (4 + rounded_bytes);
    // A quantised gather or reduction needs its messages beside the bucket.
    if (stage_ == 3 && share_.weights.quantized) bytes += largest;
    if (by_node_) bytes += 2 * largest * 4 / 8;
    return bytes;
  }

  // Bytes of a bucket that is gathered, as they travel.
  int64_t gathered_bytes(const zero::FlatLayout& flat, const zero::Bucket& bucket) const {
    return quantized_weights(bucket) ? flat.world() * zero::piece_bytes(flat, bucket, 8)
                                     : bucket.range.elements() * item();
  }

  Json traffic() const {
    Json out = Json::array();
    if (world_ == 1) return out;
    add_gradients(out);
    if (stage_ == 3) {
      add_gathers(out);
    } else if (stage_ > 0) {
      PlannedTraffic weights;
      for_each_bucket([&](const zero::FlatLayout&, const zero::Bucket& bucket) {
        if (bucket.trainable) weights.add_pieces(bucket.range.elements() * item(), 1, all_);
      });
      out.push_back(weights.described("all_gather", "weights"));
    }
    PlannedTraffic counters;
    counters.add_sums(kTotals, DType::kFloat64, 1, all_);
    if (stage_ > 0) counters.add_sums(ExactSum::kWords, DType::kInt64, 1, shard_);
    out.push_back(counters.described("all_reduce", "loss and gradient norm"));
    if (const int64_t weights = codes().weights; weights > 0) {
      PlannedTraffic scales;
      scales.add_sums(weights * nn::Fp8Linears::kRoles, DType::kFloat32, 1, all_);
      out.push_back(scales.described("all_reduce", "fp8 scales"));
    }
    for (const zero::GradientDomain& domain : layout_->domains()) {
      if (stage_ > 0) add_optimizer(domain, out);
    }
    return out;
  }

  void add_gradients(Json& out) const {
    const int64_t passes = config_.batch.accumulation;
    const bool sums = stage_ == 0 || !share_.reduce_scatter;
    PlannedTraffic plain, inside, across;
    for_each_bucket([&](const zero::FlatLayout& flat, const zero::Bucket& bucket) {
      if (!bucket.trainable) return;
      const int64_t n = bucket.range.elements();
      if (by_node_ && !bucket.exact) {
        const int64_t bytes = flat.world() * zero::piece_bytes(flat, bucket, 4);
        if (shard_.local > 1) inside.add_pieces(bytes, passes, {shard_.local, 1});
        across.add_pieces(bytes / shard_.local, passes, {1, shard_.nodes});
      } else if (sums) {
        plain.add_sums(n, share_.comm_dtype, passes, shard_);
      } else {
        plain.add_pieces(n * dtype_size(share_.comm_dtype), passes, shard_);
      }
    });
    if (plain.calls > 0) {
      out.push_back(plain.described(sums ? "all_reduce" : "reduce_scatter", "gradients"));
    }
    if (inside.calls > 0) out.push_back(inside.described("all_to_all", "gradients in a node"));
    if (across.calls > 0) {
      out.push_back(across.described("all_to_all", "gradients across nodes"));
    }
    const int copies = world_ / shard_.ranks();
    if (copies > 1) {
      PlannedTraffic replicas;
      replicas.add_sums(layout_->held(zero::StateRole::kGradients),
                        dtype_of(config_.precision.grad_accum_dtype), 1,
                        places_of(copies, shard_.ranks()));
      out.push_back(replicas.described("all_reduce", "gradients of replicas"));
    }
  }

  // Of the passes of a step.
  GatherCounts gathers() const {
    const models::Recompute again = shapes_.architecture ? recompute() : models::Recompute{};
    const std::vector<WeightUse> uses = record_uses(model_, shapes_.parameters, type_, again);
    GatherCounts counts;
    for (size_t i = 0; i < layout_->domains().size(); ++i) {
      const zero::FlatLayout& flat = layout_->domains()[i].flat;
      std::vector<WeightUse> of_domain;
      for (const WeightUse& use : uses) {
        const zero::Layout::Place place = layout_->place(use.id);
        if (place.domain == static_cast<int>(i)) of_domain.push_back({place.id, use.begins});
      }
      counts += count_gathers(
          flat, share_.gather, type_,
          [this, &flat](const zero::Bucket& bucket) { return gathered_bytes(flat, bucket); },
          share_.groups.secondary > 1, of_domain, config_.batch.accumulation);
    }
    return counts;
  }

  void add_gathers(Json& out) const {
    const GatherCounts counts = gathers();
    PlannedTraffic weights, near;
    weights.add_pieces(counts.all.bytes, 1, shard_);
    weights.calls = counts.all.calls;
    out.push_back(weights.described("all_gather", "weights"));
    if (counts.near.calls == 0) return;
    near.add_pieces(counts.near.bytes, 1, places_of(share_.groups.secondary, 1));
    near.calls = counts.near.calls;
    out.push_back(near.described("all_gather", "weights of near ranks"));
  }

  // What LAMB and Muon move to see whole tensors of a domain that are cut.
  void add_optimizer(const zero::GradientDomain& domain, Json& out) const {
    const OptimizerConfig optimizer = config_.optimizer.value_or(OptimizerConfig{});
    std::vector<nn::ParamId> ids;
    std::vector<optim::TensorPlace> places;
    for (const nn::ParamId id : domain.flat.order()) {
      const nn::Parameter& p = domain.local[id];
      if (!p.trainable) continue;
      ids.push_back(id);
      places.push_back({p.name, p.shape});
    }
    const zero::CommShardGroup peers(domain.flat, std::move(ids), nullptr, nullptr);
    if (optimizer.type == OptimizerType::kLamb) {
      int64_t cut = 0;
      for (size_t i = 0; i < places.size(); ++i) cut += optim::is_cut(peers, i) ? 1 : 0;
      if (cut == 0) return;
      PlannedTraffic norms;
      norms.add_sums(2 * cut * ExactSum::kWords, DType::kInt64, 1, shard_);
      out.push_back(norms.described("all_reduce", "norms of tensors"));
    } else if (optimizer.type == OptimizerType::kMuon) {
      PlannedTraffic matrices;
      for (const optim::MuonRound& round : optim::muon_rounds(places, peers)) {
        int64_t elements = 0, sent = 0;
        for (const size_t tensor : round.tensors) elements += places[tensor].shape.elements();
        for (size_t rank = 1; rank < round.sent.size(); ++rank) {
          sent += round.sent[rank] + round.received[rank];
        }
        matrices.calls += 2;
        matrices.bytes += 2 * elements * int64_t{sizeof(float)};
        const double far = static_cast<double>(sent) * sizeof(float) *
                           static_cast<double>(world_ - per_node_) / std::max(1, world_ - 1);
        matrices.far += far;
        matrices.near += static_cast<double>(sent) * sizeof(float) - far;
      }
      out.push_back(matrices.described("all_to_all_v", "matrices of Muon"));
    }
  }

  Json model_;
  Shapes shapes_;
  int world_;
  int per_node_;
  PlanOptions options_;
  Config config_;
  zero::ShareOptions share_;
  int stage_ = 0;
  Places all_, shard_;    // the group of all ranks, and of those that hold one copy together
  bool by_node_ = false;  // gradients go quantised within nodes, then across
  DType type_ = DType::kFloat32;
  std::optional<zero::Layout> layout_;
};

}  // namespace

Json plan_training(const Json& model, std::string_view config_json, const PlanOptions& options) {
  return Planner(model, config_json, options).run();
}

}  // namespace ds
