// Training state in files over many steps: every way of reading and writing them, beside memory.
#include "config/config.h"
#include "engine/share_options.h"
#include "full_run.h"
#include "io/backend.h"
#include "stored_jobs.h"
#include "zero/state_files.h"

namespace ds::zero_test {
namespace {

constexpr io::BackendKind kBackends[] = {io::BackendKind::kUring, io::BackendKind::kLibaio,
                                         io::BackendKind::kThreads};

// A kind, ranks and a stage.
struct Row {
  size_t kind;
  int world, stage;
};

std::vector<Row> rows() {
  std::vector<Row> all;
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    const std::string_view name = kKinds[kind].name;
    if (name != "Fp32" && name != "Bf16" && name != "Fp16") continue;
    for (const int world : {1, 2}) {
      for (const int stage : {1, 2, 3}) all.push_back({kind, world, stage});
    }
  }
  return all;
}

class OffloadedSteps : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Rows, OffloadedSteps, ::testing::ValuesIn(rows()), [](const auto& row) {
  return str_cat(kKinds[row.param.kind].name, "Ranks", row.param.world, "Stage", row.param.stage);
});

// What the configuration asks for, by a backend of the test's choice.
Job by_backend(Job of, io::BackendKind backend) {
  of.arrays = [config = of.config, world = of.world, backend] {
    zero::StateFileOptions files = state_file_options(
        load_config(dump_json(config), {.data_parallel_size = world, .world_size = world}), false,
        world);
    files.optimizer->queue.backend = backend;
    if (files.weights) files.weights->queue.backend = backend;
    return std::make_shared<zero::StateFiles>(files, make_cpu_device());
  };
  return of;
}

// With accumulation and activation checkpointing, all of the state in files or 0.3 of it, at stage
// 3 weights, too. Of the six ways three are taken, others in the next row, and with DS_TEST_FULL=1
// all of them.
TEST_P(OffloadedSteps, FiftyHaveTheBitsOfMemory) {
  const Folder folder;
  const auto [kind, world, stage] = GetParam();
  Job plain = job(world, stage, kKinds[kind].more);
  plain.steps = 50;
  const Trained memory = train(plain);
  int place = static_cast<int>(kind) + world + stage;
  for (const double ratio : {0.3, 1.0}) {
    for (const io::BackendKind backend : kBackends) {
      if (++place % 2 == 0 && !testing::full_run()) continue;
      SCOPED_TRACE(str_cat("ratio ", ratio, ", ", backend_name(backend)));
      if (const std::string why = io::backend_refusal(backend); !why.empty()) {
        ASSERT_NE(backend, io::BackendKind::kThreads) << why;
        continue;  // this system has no such calls
      }
      Job stored = with_ratio(in_files(plain, folder), ratio);
      if (stage == 3) {
        stored.config["zero_optimization"]["offload_param"] = {
            {"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", 1000}};
      }
      expect_same(train(by_backend(stored, backend)), memory);
    }
  }
}

}  // namespace
}  // namespace ds::zero_test
