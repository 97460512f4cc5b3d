// What a run of several ranks writes about itself.
#include <sstream>

#include "base/file.h"
#include "training_world.h"

namespace ds::properties {
namespace {

// One file of each monitor, with one row a step: rank 0's. The loss in it is that of all ranks.
TEST(MonitorsOfSeveralRanks, AreWrittenByTheFirst) {
  const Folder folder;
  const Json monitor = {{"enabled", true}, {"output_path", folder.path()}, {"job_name", "job"}};
  Json config = step_config(2, 2,
                            {{"csv_monitor", monitor},
                             {"jsonl_monitor", monitor},
                             {"tensorboard", monitor},
                             {"wandb", {{"enabled", true}, {"output_path", folder.path()}}}});
  const Job run{2, config};
  std::vector<double> losses;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    for (int i = 0; i < 3; ++i) {
      const double loss = engine->train_batch().loss;
      if (comm->rank() == 0) losses.push_back(loss);
    }
  });
  int tensorboard = 0, wandb = 0, csv = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    tensorboard += name.find("events.out") == 0 ? 1 : 0;
    wandb += name.find("offline-run") == 0 ? 1 : 0;
    csv += name == "Train_Samples_train_loss.csv" ? 1 : 0;
  }
  EXPECT_EQ(tensorboard, 1);
  EXPECT_EQ(wandb, 1);
  EXPECT_EQ(csv, 1);
  const std::string rows = read_text_file(folder.path("job/metrics.jsonl"));
  std::vector<double> written;
  std::istringstream lines(rows);
  for (std::string line; std::getline(lines, line);) {
    written.push_back(
        parse_json(line, "a row", Code::kCorrupt)["Train/Samples/train_loss"].get<double>());
  }
  EXPECT_EQ(written, losses);
  const std::string table = read_text_file(folder.path("job/Train_Samples_train_loss.csv"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4) << "a header and three rows";
}

// What several ranks count together, with labels that differ in number.
TEST(TokensOfSeveralRanks, AddUpToTheReports) {
  for (const int stage : {0, 3}) {
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine =
          make_rank_engine({3, step_config(stage, 3, {{"gradient_accumulation_steps", 2}})}, comm);
      int64_t reported = 0, samples = 0;
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < 2; ++micro) {
          std::vector<int64_t> ids(16, 3 + micro), labels = ids;
          for (int i = 0; i <= comm->rank(); ++i) labels[static_cast<size_t>(2 + i)] = kNoLabel;
          engine->backward(
              engine->forward({ids_tensor(ids, 2), ids_tensor(labels, 2), {}, {}, {}}));
          const StepReport report = engine->step();
          if (micro == 0) continue;
          // 16 labels of three ranks twice, without 1, 2 and 3 of them.
          EXPECT_EQ(report.tokens, 2 * (3 * 16 - 6));
          reported += report.tokens;
          samples += 2 * 3 * 2;
          EXPECT_EQ(report.progress.tokens, reported);
          EXPECT_EQ(report.progress.samples, samples);
        }
      }
      EXPECT_EQ(engine->progress().tokens, reported);
    });
  }
}

}  // namespace
}  // namespace ds::properties
