#include "engine/memory_check.h"

#include <string>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "device/cuda_device.h"
#include "engine/agreement.h"
#include "engine/combinations.h"
#include "engine/plan_advice.h"

namespace ds {
namespace {

using Check = MemoryPlanConfig::Check;

PlanRoom room_of(const RunContext& run) {
  PlanRoom room = room_here(run.world().topology().local_size);
  const Device& device = *run.model->device();
  if (device.kind() == DeviceKind::kCuda) {
    const auto gpus = list_cuda_devices();
    const auto index = static_cast<size_t>(device.index());
    if (index < gpus.size() && gpus[index].memory_bytes > 0) room.gpu = gpus[index].memory_bytes;
  }
  return room;
}

PlanOptions options_of(const RunContext& run, int64_t length) {
  PlanOptions options;
  options.world = run.mesh.size();
  options.ranks_per_node = run.world().topology().local_size;
  if (options.world % options.ranks_per_node != 0) options.ranks_per_node = 0;
  options.sequence_length = length;
  options.on_gpu = run.model->device()->kind() == DeviceKind::kCuda;
  return options;
}

PlanModel model_of(const RunContext& run) {
  PlanModel model = PlanModel::of_model(*run.model);
  if (run.teacher) model.teacher = run.teacher->model();
  return model;
}

class MemoryCheck {
 public:
  explicit MemoryCheck(RunContext& run) : run_(run), model_(model_of(run)), room_(room_of(run)) {}

  // What cannot be planned may train all the same, or the engine says what is wrong with it.
  void run() {
    const std::optional<int64_t>& length = run_.config.memory_plan.sequence_length;
    std::optional<PlanContext> context_of_all;
    std::optional<MemoryPlan> plan_of_all;
    try {
      context_of_all.emplace(context(length.value_or(0)));
      plan_of_all = plan_memory(*context_of_all, run_.pool);
    } catch (const Error& error) {
      log_info("engine", "memory is not planned: ", error.message());
      return;
    }
    compare(*context_of_all, *plan_of_all);
  }

 private:
  void compare(const PlanContext& full, const MemoryPlan& planned) {
    const std::optional<int64_t>& length = run_.config.memory_plan.sequence_length;
    run_.model->device()->account().set_planned(planned.by_tag);
    const std::vector<Shortage> short_of = shortages(full, planned, room_);
    if (short_of.empty()) return warn_of_busy_machine(full, planned);
    // How long samples are nobody has said: what is certain is what the shortest need.
    const bool known = length || model_.architecture == nullptr;
    if (!known) {
      const PlanContext least = context(1);
      const MemoryPlan memory = plan_memory(least, run_.pool);
      if (const auto certain = shortages(least, memory, room_); !certain.empty()) {
        return report(least, memory, certain.front(), 1);
      }
    }
    if (!known) {
      log_warning("engine", "samples of ", full.length(), " tokens would not fit: ",
                  describe(full, planned, short_of.front(), full.length()),
                  "memory_plan.sequence_length says how long they are");
      return;
    }
    report(full, planned, short_of.front(), full.length());
  }

  PlanContext context(int64_t length) const {
    const PlanOptions options = options_of(run_, length);
    PlanContext out(model_, run_.config, options.world,
                    options.ranks_per_node == 0 ? options.world : options.ranks_per_node,
                    *options.on_gpu);
    if (length > 0) out.sequence_length = length;
    return out;
  }

  void report(const PlanContext& plan, const MemoryPlan& memory, const Shortage& shortage,
              int64_t length) const {
    const std::string text = describe(plan, memory, shortage, length);
    if (run_.config.memory_plan.check == Check::kWarn) {
      log_warning("engine", "training does not fit: ", text);
      return;
    }
    fail(shortage.in_files ? Code::kIo : Code::kOutOfMemory, "training does not fit: ", text,
         "memory_plan.check \"warn\" tries it all the same");
  }

  std::string describe(const PlanContext& plan, const MemoryPlan& memory, const Shortage& shortage,
                       int64_t length) const {
    AdviceOptions options;
    options.plan = options_of(run_, length);
    options.room = room_;
    const models::Model& trained = *run_.model;
    const int ranks = run_.mesh.size();
    options.possible = [&trained, ranks](const Config& config) {
      check_combinations({config, trained, ranks});
      return true;
    };
    const std::vector<Remedy> remedies =
        find_remedies(model_, run_.config.given(), options, run_.pool);
    return str_cat(format_bytes(shortage.needed), " of ", shortage.place, " are needed, and ",
                   format_bytes(shortage.there), " there (", shortage.limit, ").\n",
                   describe_plan(plan, memory), describe_remedies(remedies, shortage));
  }

  // Others may give memory back before it is needed.
  void warn_of_busy_machine(const PlanContext& plan, const MemoryPlan& memory) const {
    if (!run_.config.memory_plan.sequence_length) return;
    const int64_t there = free_memory(read_system_memory());
    const int64_t needed = host_bytes(plan, memory);
    if (there < 0 || needed <= there) return;
    log_warning("engine", "training will need ", format_bytes(needed), " of memory, and ",
                format_bytes(there), " are free at present\n", describe_plan(plan, memory));
  }

  RunContext& run_;
  const PlanModel model_;
  const PlanRoom room_;
};

}  // namespace

void check_memory(RunContext& run) {
  if (run.config.memory_plan.check == Check::kOff) return;
  agree(run.context(), run.world(), "planning memory", [&] { MemoryCheck(run).run(); });
}

}  // namespace ds
