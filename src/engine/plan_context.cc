#include "engine/plan_context.h"

#include <algorithm>
#include <string>
#include <utility>

#include "config/auto_values.h"
#include "engine/expert_parallel.h"
#include "engine/recompute.h"
#include "zero/piece_blocks.h"

namespace ds {
namespace {

constexpr int64_t kMostParameters = int64_t{1} << 50;

int64_t whole_number(const Json& object, const char* key, int64_t least, int64_t most) {
  const auto found = object.find(key);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : -1;
  DS_CHECK(value >= static_cast<double>(least) && value <= static_cast<double>(most) &&
               value == static_cast<double>(static_cast<int64_t>(value)),
           Code::kConfig, "model size: ", key, " must be a whole number from ", least, " to ",
           most);
  return static_cast<int64_t>(value);
}

bool is_size(const Json& model) { return model.is_object() && model.contains("parameters"); }

}  // namespace

PlanModel PlanModel::of_json(const Json& model) {
  PlanModel out;
  out.config = model;
  if (!is_size(model)) {
    out.made_architecture = models::build_architecture(model);
    out.architecture = out.made_architecture.get();
    out.parameters = &out.architecture->parameters();
    out.layers = out.architecture->info().layers;
    return out;
  }
  for (const auto& [key, value] : model.items()) {
    DS_CHECK(key == "parameters" || key == "layers", Code::kConfig, "model size: unknown key ",
             printable(key), "; parameters and layers are known");
  }
  const int64_t all = whole_number(model, "parameters", 1, kMostParameters);
  out.layers = model.contains("layers") ? whole_number(model, "layers", 1, 100000) : 1;
  auto parameters = std::make_shared<nn::ParameterSet>();
  for (int64_t i = 0; i < out.layers; ++i) {
    const int64_t part = all / out.layers + (i < all % out.layers ? 1 : 0);
    nn::Parameter p;
    p.name = str_cat("layer.", i, ".weight");
    p.shape = {part, 1};
    p.decays = true;
    parameters->add(std::move(p));
  }
  out.made_parameters = parameters;
  out.parameters = parameters.get();
  return out;
}

PlanModel PlanModel::of_model(const models::Model& model) {
  PlanModel out;
  out.parameters = &model.parameters();
  out.own_parameters = !model.has_architecture();
  if (out.own_parameters) return out;
  out.architecture = &model.architecture();
  out.config = out.architecture->config();
  out.layers = out.architecture->info().layers;
  return out;
}

PlanContext::PlanContext(PlanModel given, std::string_view config_json, const PlanOptions& options)
    : model(std::move(given)),
      world(options.world),
      per_node(options.ranks_per_node == 0 ? options.world : options.ranks_per_node),
      sequence_length(options.sequence_length) {
  DS_CHECK(world >= 1 && world <= (1 << 20), Code::kInvalidArgument, "the world is ", world,
           "; from 1 to 1048576 ranks are possible");
  DS_CHECK(per_node >= 1 && world % per_node == 0, Code::kInvalidArgument, "ranks_per_node ",
           per_node, " does not divide the world of ", world);
  ConfigEnvironment environment;
  environment.data_parallel_size = world;
  environment.hidden_size = hidden_size_of(model.config);
  config = load_config(config_json, environment, options.reading);
  // Without the optimizer on a host there is nothing for which it matters.
  on_gpu_ = options.on_gpu.value_or(config.zero.offload_optimizer && !in_files());
  arrange();
}

PlanContext::PlanContext(PlanModel given, const Config& given_config, int ranks, int ranks_per_node,
                         bool on_gpu)
    : model(std::move(given)),
      config(given_config),
      world(ranks),
      per_node(ranks_per_node),
      on_gpu_(on_gpu) {
  arrange();
}

void PlanContext::arrange() {
  if (sequence_length == 0) sequence_length = config.memory_plan.sequence_length.value_or(0);
  share = share_options(config);
  // A world of one is not shared, unless its weights rest in files or beside its GPU.
  const bool shared = world > 1 || weights_in_files(config) || weights_beside_gpu();
  stage = shared ? share.stage : 0;
  type = dtype_of(config.precision.compute);
  if (model.own_parameters) {
    // Parameters that a program registers in fp32 are computed with in fp32.
    bool lower = false;
    for (nn::ParamId id = 0; id < model.parameters->size(); ++id) {
      lower = lower || (*model.parameters)[id].dtype != DType::kFloat32;
    }
    if (!lower) type = DType::kFloat32;
  }
  share.stage = stage;
  if (config.distillation.enabled && model.architecture != nullptr && !model.teacher) {
    model.teacher = open_teacher(config, model.architecture->info());
  }
  if (!config.distillation.enabled) model.teacher.reset();
  all = shard = places_of(world, 1);
  if (stage == 3 && share.groups.shard > 0) shard = places_of(share.groups.shard, 1);
  const MeshShape mesh(world, mesh_sizes(config, world));
  if (world > 1) zero::check_group_sizes(share.groups, mesh);
  check_experts(config, *model.parameters);
  expert_ranks = mesh.size(MeshAxis::kExpert);
  std::vector<int> node_of;
  for (int rank = 0; rank < world; ++rank) node_of.push_back(rank / per_node);
  check_exchange(config, mesh, node_of);
  two_steps = config.expert_parallel.hierarchical_all_to_all.value_or(true) &&
              several_on_several_nodes(mesh, MeshGroup::kExpert, 0, node_of);
  zero::LayoutPolicy policy;
  if (shared) {
    policy = zero::layout_policy(share);
  } else if (offloads()) {
    policy.bucket_elements = share.bucket_elements;
  }
  layout.emplace(*model.parameters, mesh, 0, policy);
  by_node = stage == 3 && share.quantized_gradients && shard.nodes > 1;
}

int64_t PlanContext::length() const {
  if (sequence_length > 0 || model.architecture == nullptr) return sequence_length;
  return model.architecture->info().max_positions;
}

models::Recompute PlanContext::recompute() const {
  if (model.architecture == nullptr) return {};
  return recompute_of(config.activation_checkpointing, model.architecture->info());
}

Places PlanContext::places_of(int ranks, int stride) const {
  const int local = std::clamp(per_node / stride, 1, ranks);
  return {local, std::max(1, ranks / local)};
}

int64_t PlanContext::gathered_bytes(const zero::Bucket& bucket) const {
  const bool quantized = share.weights.quantized ||
                         (share.weights.quantized_frozen && !bucket.trainable && !bucket.exact);
  return quantized ? flat().world(bucket) * zero::piece_bytes(flat(), bucket, 8)
                   : bucket.range.elements() * item();
}

}  // namespace ds
