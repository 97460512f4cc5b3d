// Students that learn from a teacher in a folder: what the losses are, that stages, ranks and
// recomputation change nothing, that checkpoints go on without the teacher in them, and what is
// refused.
#include <gmock/gmock.h>

#include <cmath>

#include "checkpoint/reader.h"
#include "engine/combinations.h"
#include "engine/plan.h"
#include "engine/teacher.h"
#include "expert_models.h"
#include "kernels/loss/distillation.h"
#include "models/inputs.h"
#include "models/saved_model.h"
#include "ops/distillation.h"
#include "teacher_folder.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

struct Student {
  const char* name;
  Json model;
};

std::vector<Student> students() {
  return {{"Dense", model_config(0.1)},
          {"MixtureOfStudents", pr_moe(5, {4, 8})},
          {"Mixtral", mixtral()}};
}

class Distillation : public ::testing::TestWithParam<Student> {
 protected:
  Job job(int world, int stage, const Json& more = Json::object()) const {
    Job job;
    job.world = world;
    job.model = GetParam().model;
    job.config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                             with({{"gradient_accumulation_steps", 2}}, more));
    job.config.merge_patch(
        teacher_.section({{"kd_alpha_ce", 0.7}, {"kd_beta_ce", 0.9}, {"kd_temp", 2}}));
    return job;
  }
  const TeacherFolder teacher_;
};

TEST_P(Distillation, EveryStageHasTheBitsOfStageZero) {
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}}}) {
    const Trained plain = train(job(2, 0, precision));
    EXPECT_NE(plain.losses[2], plain.losses[0]);
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", dump_json(precision)));
      const Trained other = train(job(2, stage, precision));
      EXPECT_TRUE(same_bits(other.weights, plain.weights));
      EXPECT_EQ(other.losses, plain.losses);
      EXPECT_EQ(other.norms, plain.norms);
    }
  }
}

TEST_P(Distillation, RecomputationAndThreadsChangeNoBit) {
  const Trained plain = train(job(1, 0));
  const Trained other =
      train(job(1, 0,
                {{"threads", 3},
                 {"activation_checkpointing", {{"enabled", true}, {"number_checkpoints", 2}}}}));
  EXPECT_TRUE(same_bits(other.weights, plain.weights));
  EXPECT_EQ(other.losses, plain.losses);
}

// In the middle of a step, at stage 3 of two ranks.
TEST_P(Distillation, CheckpointsGoOnWithTheSameBitsAndWithoutTheTeacher) {
  const Folder folder;
  const Job given = job(2, 3);
  const auto data = periodic_data();
  const auto micro_batch = [&](Engine& engine, int rank, int index) {
    const int64_t begin = (rank * 7 + index) * 3 % 61;
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 2 * 16; ++i) ids.push_back((begin + i * i) % 61);
    MicroBatch batch;
    batch.ids = ids_tensor(ids, 2);
    batch.labels = ids_tensor(ids, 2);
    engine.backward(engine.forward(batch));
    return engine.step();
  };
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto whole = make_rank_engine(given, comm);
    for (int i = 0; i < 3; ++i) micro_batch(*whole, comm->rank(), i);
    whole->save(folder.path(), "open");
    whole->wait_for_save();
    std::vector<StepReport> expected;
    for (int i = 3; i < 8; ++i) expected.push_back(micro_batch(*whole, comm->rank(), i));
    const std::vector<float> weights = all_weights(*whole);

    const auto resumed = std::make_unique<Engine>(dump_json(given.config),
                                                  make_rank_model(given, 99), comm, ReadOptions{});
    resumed->load(folder.path(), "open");
    for (int i = 3; i < 8; ++i) {
      const StepReport report = micro_batch(*resumed, comm->rank(), i);
      const StepReport& other = expected[static_cast<size_t>(i - 3)];
      EXPECT_EQ(report.loss, other.loss) << i;
      EXPECT_EQ(report.applied, other.applied);
      if (!report.applied) continue;
      EXPECT_EQ(report.label_loss, other.label_loss) << i;
      EXPECT_EQ(report.teacher_loss, other.teacher_loss) << i;
    }
    EXPECT_TRUE(same_bits(all_weights(*resumed), weights));
  });
  const CheckpointReader reader = CheckpointReader::open_folder(folder.path("open"));
  const auto student = models::Model::create(GetParam().model, 3);
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    EXPECT_NE(student->parameters().lookup(tensor.meta.name), nn::kNoParam) << tensor.meta.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Students, Distillation, ::testing::ValuesIn(students()),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- what the losses are ----

std::vector<double> logits_of(models::Model& model, const Tensor& ids) {
  nn::TapeOptions options;
  options.record = options.training = false;
  nn::ParameterReader& reader = model.reader();
  nn::Tape tape(model.context(), reader, nullptr, options);
  models::Batch batch;
  const int64_t vocab = model.architecture().info().vocab_size;
  batch.ids = models::token_ids(model.context(), ids, "ids", vocab);
  batch.position_ids = models::position_ids(model.context(), ids.size(0), ids.size(1), 0);
  const Tensor logits = model.architecture().logits(tape, batch, {}).data;
  return {logits.data<float>(), logits.data<float>() + logits.elements()};
}

// Losses of the first step against those of both models' logits in double precision, labels that do
// not count included; Hugging Face's files as well as a checkpoint.
TEST(DistilledLosses, AreThoseOfTheFormula) {
  for (const bool hugging_face : {false, true}) {
    const TeacherFolder teacher(hugging_face ? model_config(0) : teacher_model(), hugging_face);
    const double alpha = 0.75, beta = 1.5, temperature = 2;
    Json config = with(base_config(), {{"gradient_accumulation_steps", 1}});
    config.merge_patch(
        teacher.section({{"kd_alpha_ce", alpha}, {"kd_beta_ce", beta}, {"kd_temp", temperature}}));
    const auto student = models::Model::create(model_config(0), 3);
    const auto taught = models::open_model(teacher.path());
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < 4 * 16; ++i) {
      ids.push_back(i * i % 61);
      labels.push_back(i % 5 == 1 ? -100 : ids.back());
    }
    MicroBatch batch;
    batch.ids = ids_tensor(ids, 4);
    batch.labels = ids_tensor(labels, 4);
    const std::vector<double> x = logits_of(*student, batch.ids), z = logits_of(*taught, batch.ids);
    double hard = 0, soft = 0;
    int64_t counted = 0;
    const Tensor targets = models::loss_labels(student->context(), batch.labels, batch.ids,
                                               student->architecture().info());
    for (int64_t row = 0; row < 64; ++row) {
      const int32_t label = targets.data<int32_t>()[row];
      const auto one = kernels::distillation_ref(x.data() + row * 61, z.data() + row * 61, label,
                                                 61, temperature);
      hard += one.cross_entropy;
      soft += one.divergence;
      counted += label >= 0 ? 1 : 0;
    }
    hard /= static_cast<double>(counted);
    soft /= static_cast<double>(counted);
    EXPECT_GT(soft, 0.1);
    Engine engine(dump_json(config), student, nullptr);
    engine.backward(engine.forward(batch));
    const StepReport report = engine.step();
    // Logits in fp32, of up to 30 or so.
    EXPECT_NEAR(report.label_loss, hard, 2e-5);
    EXPECT_NEAR(report.teacher_loss, soft, 1e-4);
    EXPECT_NEAR(report.loss, alpha * hard + beta * soft, 2e-4);
  }
}

// Against finite differences of the whole model's loss in the student's weights.
TEST(DistilledLosses, GradientsAreThoseOfFiniteDifferences) {
  const TeacherFolder teacher;
  Json config = with(base_config(), {{"gradient_accumulation_steps", 1}});
  config.merge_patch(teacher.section({{"kd_alpha_ce", 0.5}, {"kd_beta_ce", 2}, {"kd_temp", 3}}));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 4 * 16; ++i) ids.push_back(i * 5 % 61);
  MicroBatch batch;
  batch.ids = ids_tensor(ids, 4);
  batch.labels = ids_tensor(ids, 4);
  const auto model = models::Model::create(model_config(0), 3);
  Engine engine(dump_json(config), model, nullptr);
  const std::string name = "ln_f.weight";
  const auto loss_at = [&](int64_t element, float change) {
    Tensor value = model->get(name);
    const float before = value.data<float>()[element];
    value.data<float>()[element] = before + change;
    model->set(name, value);
    const float loss = *engine.forward(batch).data<float>();
    engine.discard_gradients();
    value.data<float>()[element] = before;
    model->set(name, value);
    return static_cast<double>(loss);
  };
  engine.backward(engine.forward(batch));
  const Tensor gradient = engine.gradients().get(name);
  const std::vector<float> analytic = flat(gradient);
  engine.discard_gradients();
  double largest = 0;
  for (const float g : analytic) largest = std::max(largest, std::abs(static_cast<double>(g)));
  for (const int64_t element : {0, 5, 17, 31}) {
    constexpr float kStep = 0x1p-6f;
    const double numeric = (loss_at(element, kStep) - loss_at(element, -kStep)) / (2 * kStep);
    // The loss is a float of about 10: its rounding over the step, and the third derivative.
    EXPECT_NEAR(analytic[static_cast<size_t>(element)], numeric, 1e-4 + 2e-3 * largest) << element;
  }
}

// A student that is its teacher has nothing to learn from it, and one that only learns from it
// comes near.
TEST(DistilledLosses, AStudentComesNearItsTeacher) {
  const TeacherFolder teacher(model_config(0));
  Json config = with(base_config(), {{"scheduler", nullptr}});
  config.merge_patch(teacher.section({{"kd_alpha_ce", 0}}));
  const auto same = models::open_model(teacher.path());
  Engine copy(dump_json(config), same, nullptr);
  copy.set_dataset(periodic_data());
  const StepReport report = copy.train_batch();
  EXPECT_LT(report.teacher_loss, 1e-6);
  EXPECT_LT(report.grad_norm, 1e-5);
  EXPECT_GT(report.label_loss, 1);

  const auto engine = make_engine(config, model_config(0));
  const double first = engine->train_batch().teacher_loss;
  double last = first;
  for (int i = 0; i < 40; ++i) last = engine->train_batch().teacher_loss;
  EXPECT_LT(last, 0.7 * first);
}

TEST(DistilledLosses, TeachersInFewerBitsTeachNearlyTheSame) {
  const TeacherFolder teacher;
  std::vector<double> first;
  for (const char* weights : {"fp32", "bf16", "int8", "int4"}) {
    Json config = base_config();
    config.merge_patch(teacher.section({{"teacher_weights", weights}}));
    first.push_back(make_engine(config)->train_batch().teacher_loss);
  }
  EXPECT_NEAR(first[1], first[0], 0.05 * first[0]);
  EXPECT_NEAR(first[2], first[0], 0.05 * first[0]);
  EXPECT_NEAR(first[3], first[0], 0.3 * first[0]);
  EXPECT_NE(first[1], first[0]);
  EXPECT_NE(first[2], first[1]);
}

// ---- the end of it ----

TEST(DistillationStop, LabelsAloneCountAfterwards) {
  const TeacherFolder teacher;
  const Folder folder;
  Json config = base_config();
  config.merge_patch(teacher.section({{"stop_step", 2}, {"kd_alpha_ce", 0.5}}));
  const auto engine = make_engine(config);
  const int64_t held = engine->model()->device()->account().now(MemoryTag::kParameters);
  for (int i = 0; i < 2; ++i) {
    const StepReport report = engine->train_batch();
    EXPECT_NEAR(report.loss, 0.5 * report.label_loss + report.teacher_loss, 1e-5);
  }
  engine->save(folder.path(), "two");
  engine->wait_for_save();
  const auto plain = make_engine(base_config());
  plain->load(folder.path(), "two");
  for (int i = 0; i < 3; ++i) {
    const StepReport report = engine->train_batch(), other = plain->train_batch();
    EXPECT_TRUE(std::isnan(report.teacher_loss) && std::isnan(report.label_loss));
    EXPECT_EQ(report.loss, other.loss);
  }
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
  // The teacher's memory is free, and comes back with a load that goes back.
  EXPECT_LT(engine->model()->device()->account().now(MemoryTag::kParameters), held);
  const auto before = make_engine(config);
  const Folder start;
  before->save(start.path(), "zero");
  before->wait_for_save();
  engine->load(start.path(), "zero");
  EXPECT_EQ(engine->train_batch().teacher_loss, before->train_batch().teacher_loss);
}

TEST(DistillationStop, EvaluationsAreOfTheLabels) {
  const TeacherFolder teacher;
  Json config = base_config();
  const double plain = make_engine(config)->evaluate(*periodic_data(), 2);
  config.merge_patch(teacher.section());
  EXPECT_EQ(make_engine(config)->evaluate(*periodic_data(), 2), plain);
}

// ---- beside experts that ranks share ----

TEST(DistillationBesideExperts, RanksThatShareThemLearnTheSame) {
  const TeacherFolder teacher;
  const auto run = [&](int autoep) {
    Job job;
    job.world = 2;
    job.model = pr_moe(5, {4, 8});
    job.model["moe_drop_tokens"] = false;
    job.config = zero_config(2);
    job.config.merge_patch(teacher.section());
    job.config["expert_parallel"] = {{"enabled", autoep > 1}, {"autoep_size", autoep}};
    std::vector<double> losses;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(job, comm);
      for (int i = 0; i < 3; ++i) {
        const StepReport report = engine->train_batch();
        if (comm->rank() != 0) continue;
        losses.push_back(report.loss);
        losses.push_back(report.teacher_loss);
      }
    });
    return losses;
  };
  const std::vector<double> all = run(1), shared = run(2);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(shared[i], all[i], 1e-5) << i;
}

// ---- what is planned ----

TEST(DistillationPlan, CountsTheTeacher) {
  const TeacherFolder teacher(model_config(0));
  for (const char* weights : {"fp32", "bf16", "int8"}) {
    SCOPED_TRACE(weights);
    Json config = base_config();
    config["memory_plan"] = {{"sequence_length", 16}};
    const Json plain = plan_training(model_config(0), dump_json(config), {}, {});
    config.merge_patch(teacher.section({{"teacher_weights", weights}}));
    const Json plan = plan_training(model_config(0), dump_json(config), {}, {});
    EXPECT_FALSE(plain.contains("teacher"));
    const Json& of = plan["teacher"];
    EXPECT_EQ(of["parameters"], plan["model"]["parameters"]);
    // 12 n_embd^2 of each of two layers, and the table of 61 tokens.
    EXPECT_EQ(of["flops_per_token"], 2.0 * (2 * 12 * 32 * 32 + 61 * 32));
    EXPECT_EQ(plan["memory_per_rank"]["parameters"].get<int64_t>() -
                  plain["memory_per_rank"]["parameters"].get<int64_t>(),
              of["bytes"].get<int64_t>());

    const auto engine = make_engine(config, model_config(0));
    const MemoryAccount& account = engine->model()->device()->account();
    EXPECT_EQ(account.now(MemoryTag::kParameters), plan["memory_per_rank"]["parameters"]);
    for (int i = 0; i < 2; ++i) engine->train_batch();
    const auto planned = plan["memory_per_rank"]["total"].get<double>();
    EXPECT_NEAR(static_cast<double>(account.total_peak()), planned, 0.05 * planned);
  }
}

// ---- what is refused ----

TEST(DistillationOperator, ChecksWhatItIsGiven) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  const auto zeros = [&](DType type, const Shape& shape) {
    return Tensor::zeros(ctx.device, type, shape, MemoryTag::kOther);
  };
  const auto why = [&](const Tensor& teacher, int32_t label, int64_t valid, float temperature) {
    Tensor logits = zeros(DType::kFloat32, {2, 8}), labels = zeros(DType::kInt32, {2});
    Tensor hard = zeros(DType::kFloat32, {2}), soft = zeros(DType::kFloat32, {2});
    labels.data<int32_t>()[1] = label;
    return error_of(Code::kInvalidArgument, [&] {
      ops::distillation(ctx, logits, {teacher, labels, valid, {1, 1, temperature}, 1},
                        {hard, soft});
    });
  };
  const Tensor fits = zeros(DType::kBFloat16, {2, 9});
  EXPECT_THAT(why(fits, 8, 8, 1), HasSubstr("the label of row 1 is 8"));
  EXPECT_THAT(why(fits, -1, 8, 1), HasSubstr("the label of row 1 is -1"));
  EXPECT_THAT(why(fits, 0, 9, 1), HasSubstr("valid is 9, but must be in [1, 8]"));
  EXPECT_THAT(why(fits, 0, 8, 0), HasSubstr("the temperature is 0"));
  EXPECT_THAT(why(zeros(DType::kFloat32, {3, 8}), 0, 8, 1), HasSubstr("[3, 8]"));
  EXPECT_THAT(why(zeros(DType::kFloat32, {2, 7}), 0, 8, 1), HasSubstr("[1, 7]"));
  EXPECT_THAT(why(zeros(DType::kInt32, {2, 8}), 0, 8, 1), HasSubstr("teacher"));
}

TEST(DistillationChecks, SayWhatDoesNotFitBeforeAnythingIsAllocated) {
  const auto refused = [](const Json& section, Code code, const Json& model = model_config()) {
    const auto student = models::Model::create(model, 3);
    Json config = base_config();
    config.merge_patch(section);
    const std::string text =
        error_of(code, [&] { Engine engine(dump_json(config), student, nullptr); });
    EXPECT_EQ(student->device()->account().total_now(), 0);
    EXPECT_THAT(text, HasSubstr("/distillation/teacher"));
    return text;
  };
  const TeacherFolder teacher;
  EXPECT_THAT(refused(teacher.section(), Code::kConfig, with(model_config(), {{"vocab_size", 67}})),
              HasSubstr("a vocabulary of 61 tokens, and the student of 67"));
  EXPECT_THAT(refused(with(teacher.section(), {{"memory_plan", {{"sequence_length", 33}}}}),
                      Code::kConfig, with(model_config(), {{"n_positions", 64}})),
              HasSubstr("32 positions"));
  const TeacherFolder masked({{"model_type", "bert"},
                              {"architectures", {"BertForMaskedLM"}},
                              {"vocab_size", 61},
                              {"hidden_size", 32},
                              {"num_hidden_layers", 1},
                              {"num_attention_heads", 2},
                              {"intermediate_size", 32},
                              {"max_position_embeddings", 32}});
  EXPECT_THAT(refused(masked.section(), Code::kConfig),
              HasSubstr("predicts masked tokens, and the student predicts the next token"));
  refused({{"distillation", {{"enabled", true}, {"teacher", "/nonexistent"}}}}, Code::kNotFound);
  refused({{"distillation", {{"enabled", true}}}}, Code::kConfig);
}

TEST(DistillationChecks, SequencesThatTheTeacherDoesNotKnowAreRefused) {
  const TeacherFolder teacher(with(model_config(0), {{"n_positions", 12}}));
  Json config = base_config();
  config.merge_patch(teacher.section());
  const auto engine = make_engine(config);
  EXPECT_THAT(error_of(Code::kInvalidArgument, [&] { engine->train_batch(); }),
              HasSubstr("longer than the 12 positions of the teacher"));
}

}  // namespace
}  // namespace ds::zero_test
