// Students on GPUs that learn from a teacher: what the same ranks do on the CPU, at every stage and
// in every form of the teacher.
#include <gmock/gmock.h>

#include <cmath>

#include "cuda/zero_world.h"
#include "unit/zero/teacher_folder.h"

namespace ds::gpu_zero {
namespace {

struct StudentVariant {
  const char* name;
  Json model;
  Json more = Json::object();
  Json section = Json::object();
  int world = 2;
  // Largest differences from ranks on the CPU, in 16 bits those of their roundings.
  double loss = 1e-5, weight = 2e-3;
};
void PrintTo(const StudentVariant& variant, std::ostream* out) { *out << variant.name; }

std::vector<StudentVariant> student_variants() {
  const Json dense = model_config(0.1), experts = zero_test::pr_moe(4, {4, 8});
  const Json recomputed = {{"gradient_accumulation_steps", 2},
                           {"activation_checkpointing", {{"enabled", true}}}};
  const double coarse = 3e-2, far = 5e-2;
  return {{"Dense", dense, recomputed},
          {"OneRank", dense, Json::object(), Json::object(), 1},
          {"Bf16", dense, kBf16, Json::object(), 2, coarse, far},
          {"Int8Teacher", dense, kBf16, {{"teacher_weights", "int8"}}, 2, coarse, far},
          {"Experts", experts, Json::object()}};
}

class GpuStudents : public GpuZero, public ::testing::WithParamInterface<StudentVariant> {
 protected:
  int least_gpus() const override { return 1; }
};

TEST_P(GpuStudents, FollowStudentsOnTheCpuAtEveryStage) {
  const StudentVariant& variant = GetParam();
  if (gpus_ < variant.world) GTEST_SKIP() << "needs " << variant.world << " GPUs";
  const zero_test::TeacherFolder teacher;
  const Json section = teacher.section(
      with({{"kd_alpha_ce", 0.7}, {"kd_beta_ce", 0.9}, {"kd_temp", 2}}, variant.section));
  std::optional<Trained> first;
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run{variant.world, with(zero_config(stage, fine(), variant.more), section), 4,
                  variant.model};
    const Trained gpus = train(Where::kGpus, run);
    if (!first) {
      EXPECT_NE(gpus.losses[3], gpus.losses[0]);
      expect_near(gpus, train(Where::kCpu, run), variant.loss, variant.weight);
      first = gpus;
    } else if (kSumsInOrder) {
      expect_same(gpus, *first);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStudents, ::testing::ValuesIn(student_variants()),
                         [](const auto& one) { return std::string(one.param.name); });

// Both losses are reported, and weigh as the configuration says; after stop_step labels count
// alone.
TEST_F(GpuZero, StudentsTellBothLosses) {
  const zero_test::TeacherFolder teacher;
  const Json section = teacher.section(
      {{"kd_alpha_ce", 0.7}, {"kd_beta_ce", 0.9}, {"kd_temp", 2}, {"stop_step", 2}});
  const Job run{1, with(zero_config(0), section), 0, model_config(0)};
  on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator&) {
    for (int i = 0; i < 3; ++i) {
      const StepReport report = engine.train_batch();
      if (i == 2) {
        EXPECT_TRUE(std::isnan(report.teacher_loss));
        continue;
      }
      EXPECT_GT(report.teacher_loss, 0);
      EXPECT_NEAR(report.loss, 0.7 * report.label_loss + 0.9 * report.teacher_loss,
                  1e-6 * report.loss);
    }
  });
}

}  // namespace
}  // namespace ds::gpu_zero
