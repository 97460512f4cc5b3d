#include "engine/plan.h"

#include <algorithm>
#include <utility>

#include "engine/plan_advice.h"
#include "engine/plan_collectives.h"
#include "engine/plan_context.h"
#include "engine/plan_fit.h"
#include "engine/plan_memory.h"
#include "engine/plan_room.h"

namespace ds {
namespace {

PlanRoom room_of(const PlanQuestion& question, int local_ranks) {
  PlanRoom room;
  if (!question.memory) room = room_here(local_ranks);
  if (question.memory) room.host = {{"what is given", *question.memory, false}};
  room.gpu = question.gpu_memory.value_or(-1);
  room.disk = question.disk;
  room.tolerance = 0;
  return room;
}

// Each rank holds all of it, and runs it forward once per micro batch.
Json describe_teacher(const TeacherModel& teacher, ThreadPool& pool) {
  const nn::ParameterSet& parameters = teacher.model->parameters();
  return {{"parameters", parameters.elements()},
          {"active_parameters", parameters.active_elements(teacher.info().experts_per_token)},
          {"weights", std::string(models::weight_form_name(teacher.form.weights))},
          {"bytes", teacher_bytes(teacher, pool)},
          {"flops_per_token", teacher_flops(teacher)}};
}

Json describe(const PlanContext& plan, const MemoryPlan& memory, ThreadPool& pool) {
  int64_t trainable = 0;
  const nn::ParameterSet& parameters = *plan.model.parameters;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (parameters[id].trainable) trainable += parameters[id].shape.elements();
  }
  Json out;
  out["model"] = {{"parameters", parameters.elements()},
                  {"trainable", trainable},
                  {"tensors", parameters.size()},
                  {"layers", plan.model.layers}};
  if (plan.model.architecture != nullptr && plan.model.architecture->info().experts > 0) {
    const models::ArchitectureInfo& info = plan.model.architecture->info();
    out["model"]["experts"] = info.experts;
    out["model"]["experts_per_token"] = info.experts_per_token;
    out["model"]["active_parameters"] = parameters.active_elements(info.experts_per_token);
  }
  if (plan.model.teacher) out["teacher"] = describe_teacher(*plan.model.teacher, pool);
  out["world"] = plan.world;
  out["ranks_per_node"] = plan.per_node;
  out["stage"] = plan.stage;
  out["compute_type"] = std::string(dtype_name(plan.type));
  out["memory_per_rank"] = device_json(memory);
  if (plan.offloads()) out["host_memory_per_rank"] = host_json(memory);
  if (plan.in_files() || weights_in_files(plan.config) ||
      plan.config.activation_checkpointing.in_files()) {
    out["files_per_rank"] = files_json(memory);
  }
  out["moved_per_step"] = plan_collectives(plan);
  return out;
}

void compare(const PlanContext& plan, const MemoryPlan& memory, const AdviceOptions& options,
             ThreadPool& pool, Json& out) {
  const std::vector<Shortage> short_of = shortages(plan, memory, options.room);
  out["fits"] = short_of.empty();
  out["shortages"] = Json::array();
  for (const Shortage& one : short_of) {
    out["shortages"].push_back({{"place", one.place},
                                {"limit", one.limit},
                                {"needed_bytes", one.needed},
                                {"available_bytes", one.there}});
  }
  out["remedies"] = Json::array();
  if (short_of.empty()) return;
  for (Remedy& one : find_remedies(plan.model, plan.config.given(), options, pool)) {
    out["remedies"].push_back({{"merge", std::move(one.patch)},
                               {"fits", one.fits},
                               {"needed_bytes", one.needed},
                               {"saved_bytes", one.saved},
                               {"cost", std::move(one.cost)}});
  }
}

}  // namespace

Json plan_training(const Json& model, std::string_view config_json, const PlanOptions& options,
                   const PlanQuestion& question) {
  const PlanModel shapes = PlanModel::of_json(model);
  const PlanContext plan(shapes, config_json, options);
  ThreadPool pool(plan.config.threads);
  if (!question.compare && !question.fit) return describe(plan, plan_memory(plan, pool), pool);
  // What is planned next was read already.
  PlanOptions further = options;
  further.reading = {};
  further.on_gpu = plan.on_gpu();
  PlanRoom room = room_of(question, plan.per_node);
  if (!question.fit) {
    const MemoryPlan memory = plan_memory(plan, pool);
    Json out = describe(plan, memory, pool);
    compare(plan, memory, {further, room, nullptr}, pool, out);
    return out;
  }
  room.tolerance = -kPlanMargin;
  Json fit =
      fit_plan(shapes, plan.config.given(), {further, room, question.folder, question.rates}, pool);
  const PlanContext fitted(shapes, dump_json(fit.at("config")), further);
  Json out = describe(fitted, plan_memory(fitted, pool), pool);
  out["fit"] = std::move(fit);
  return out;
}

}  // namespace ds
