#include "engine/teacher.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "device/counting_device.h"
#include "models/layer_reduction.h"
#include "models/weight_loaders.h"
#include "models/weights.h"

namespace ds {
namespace {

constexpr const char* kTeacher = "configuration: /distillation/teacher: ";

models::WeightForm form_of(const Config& config) {
  using Weights = DistillationConfig::Weights;
  switch (config.distillation.teacher_weights) {
    case Weights::kFp32:
      return models::WeightForm::kFloat32;
    case Weights::kBf16:
      return models::WeightForm::kBFloat16;
    case Weights::kInt8:
      return models::WeightForm::kInt8;
    case Weights::kInt4:
      return models::WeightForm::kInt4;
    case Weights::kAuto:
      break;
  }
  return config.precision.compute == Precision::kFp32 ? models::WeightForm::kFloat32
                                                      : models::WeightForm::kBFloat16;
}

const char* describe(models::Head head) {
  switch (head) {
    case models::Head::kCausalLm:
      return "predicts the next token";
    case models::Head::kMaskedLm:
      return "predicts masked tokens";
    case models::Head::kClassification:
      return "classifies";
    case models::Head::kNone:
      break;
  }
  return "has no head";
}

void check_pair(const std::string& folder, const models::ArchitectureInfo& teacher,
                const models::ArchitectureInfo& student) {
  const std::string where = printable(folder, 300);
  DS_CHECK(teacher.head == student.head, Code::kConfig, kTeacher, "the model in ", where, ' ',
           describe(teacher.head), ", and the student ", describe(student.head),
           "; both need the same kind of head");
  DS_CHECK(student.head != models::Head::kNone && teacher.loss == nn::LossKind::kCrossEntropy &&
               student.loss == nn::LossKind::kCrossEntropy,
           Code::kConfig, kTeacher, "outputs of the model in ", where,
           " and of the student are to be probabilities of tokens or classes; leave distillation "
           "out");
  DS_CHECK(teacher.vocab_size == student.vocab_size, Code::kConfig, kTeacher, "the model in ",
           where, " has a vocabulary of ", teacher.vocab_size, " tokens, and the student of ",
           student.vocab_size, "; both need the same tokenizer");
  DS_CHECK(teacher.outputs() == student.outputs(), Code::kConfig, kTeacher, "the model in ", where,
           " has ", teacher.outputs(), " classes, and the student ", student.outputs());
  DS_CHECK(teacher.token_types >= student.token_types, Code::kConfig, kTeacher, "the model in ",
           where, " knows ", teacher.token_types, " token types, and the student ",
           student.token_types);
}

std::shared_ptr<models::Model> open_folder(const std::string& folder) {
  std::shared_ptr<models::Model> model;
  try {
    model = models::open_model(folder);
  } catch (const Error& error) {
    fail(error.code(), kTeacher, error.message());
  }
  DS_CHECK(model->has_architecture(), Code::kConfig, kTeacher, "the checkpoint in ",
           printable(folder, 300),
           " is of a program's own parameters, which the library cannot run");
  return model;
}

// What a plan reads in place of the files.
class NoWeights final : public nn::WeightLoader {
 public:
  void fill(const OpContext&, nn::ParamId, const nn::Parameter&, int64_t, Tensor&) const override {}
  uint64_t fingerprint() const override { return 0; }
};

std::unique_ptr<models::InferenceWeights> make_weights(const TeacherModel& teacher,
                                                       const OpContext& ctx,
                                                       const nn::ModelWeights& from) {
  return std::make_unique<models::InferenceWeights>(ctx, teacher.model->parameters(), from,
                                                    teacher.info(), teacher.form);
}

}  // namespace

void begin_with_layers(const Config& config, models::Model& student) {
  const LayerReductionConfig& reduction = config.layer_reduction;
  if (!reduction.enabled) return;
  constexpr const char* kReduction = "configuration: /compression_training/layer_reduction/";
  const int64_t layers = student.architecture().info().layers;
  const std::optional<int64_t>& keep = reduction.keep_number_layer;
  DS_CHECK(!keep || *keep == layers, Code::kConfig, kReduction, "keep_number_layer: ", *keep,
           " layers are to be kept, and the student has ", layers);
  const auto& loader =
      student.held_weights("a student cannot begin with its teacher's layers").loader();
  if (!loader || !models::makes_fresh_weights(*loader)) {
    log_info("engine", "layer_reduction: the student has weights already, which stay as they are");
    return;
  }
  DS_CHECK(!config.distillation.teacher.empty(), Code::kConfig, kReduction,
           "enabled: whose layers? Name the teacher's folder in /distillation/teacher");
  try {
    student.set_weight_loader(models::reduced_weights(
        student, open_folder(config.distillation.teacher),
        {reduction.module_name_prefix, reduction.teacher_layer, reduction.other_module_name}));
  } catch (const Error& error) {
    if (error.code() != Code::kConfig || error.message().starts_with("configuration: ")) throw;
    fail(error.code(), kReduction, error.message());
  }
}

std::shared_ptr<const TeacherModel> open_teacher(const Config& config,
                                                 const models::ArchitectureInfo& student) {
  const DistillationConfig& distillation = config.distillation;
  if (!distillation.enabled) return nullptr;
  auto out = std::make_shared<TeacherModel>();
  out->model = open_folder(distillation.teacher);
  out->form.weights = form_of(config);
  check_pair(distillation.teacher, out->info(), student);
  const std::optional<int64_t>& length = config.memory_plan.sequence_length;
  DS_CHECK(!length || *length <= out->info().max_positions, Code::kConfig, kTeacher,
           "the model in ", printable(distillation.teacher, 300), " has ",
           out->info().max_positions, " positions, and /memory_plan/sequence_length is ", *length,
           "; shorten the samples");
  return out;
}

std::unique_ptr<models::InferenceWeights> counted_weights(const TeacherModel& teacher,
                                                          const OpContext& ctx) {
  const nn::HeldWeights nothing(teacher.model->parameters(), ctx.device,
                                std::make_shared<NoWeights>());
  return make_weights(teacher, ctx, nothing);
}

int64_t teacher_bytes(const TeacherModel& teacher, ThreadPool& pool) {
  const auto device = std::make_shared<CountingDevice>();
  const auto weights = counted_weights(teacher, {device, &pool});
  return device->account().now(MemoryTag::kParameters);
}

double teacher_flops(const TeacherModel& teacher) {
  const nn::ParameterSet& parameters = teacher.model->parameters();
  const models::ArchitectureInfo& info = teacher.info();
  double multiplications = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (!p.projection && id != info.output) continue;
    auto elements = static_cast<double>(p.shape.elements());
    if (p.split.experts > 0) {
      elements *= static_cast<double>(std::min(info.experts_per_token, p.split.experts)) /
                  static_cast<double>(p.split.experts);
    }
    multiplications += elements;
  }
  return 2 * multiplications;
}

TeacherPass::TeacherPass(const TeacherModel& teacher, nn::ParameterReader& weights,
                         const OpContext& ctx, const models::Batch& batch)
    : architecture_(teacher.architecture()),
      tape_(ctx, weights, nullptr, {.record = false, .training = false}) {
  models::ForwardOptions options;
  options.padded_logits = true;
  pass_ = architecture_.begin_pass(ctx, batch, options);
  stream_ = architecture_.blocks(tape_, pass_, {0, teacher.info().layers},
                                 architecture_.embed(tape_, pass_));
}

Tensor TeacherPass::logits(int64_t sample) {
  const auto one = [sample](const nn::Value& all) {
    return all ? nn::Value{all.data.slice(0, sample, sample + 1), nullptr} : nn::Value();
  };
  return architecture_.head(tape_, pass_, {one(stream_.x), one(stream_.residual)}).data;
}

void Teacher::hold(const OpContext& ctx) {
  if (!weights_) weights_ = make_weights(*model_, ctx, model_->model->weights());
}

void Teacher::check_length(int64_t tokens) const {
  DS_CHECK(tokens <= model_->info().max_positions, Code::kInvalidArgument, "sequences of ", tokens,
           " tokens are longer than the ", model_->info().max_positions,
           " positions of the teacher (/distillation/teacher)");
}

}  // namespace ds
