// The teacher of a student's training (/distillation): a model in a folder that only runs forward.
// Each rank holds all of it.
#pragma once

#include <functional>
#include <memory>

#include "config/config.h"
#include "models/inference_weights.h"
#include "models/model.h"
#include "nn/tape.h"

namespace ds {

// Opened: its weights lie in the folder.
struct TeacherModel {
  std::shared_ptr<models::Model> model;
  models::InferenceOptions form;  // in which they are held

  const models::Architecture& architecture() const { return model->architecture(); }
  const models::ArchitectureInfo& info() const { return architecture().info(); }
};

// Null without /distillation/enabled. Throws kConfig where the teacher cannot teach such a student,
// and, as models::open_model, for a folder without a model.
std::shared_ptr<const TeacherModel> open_teacher(const Config& config,
                                                 const models::ArchitectureInfo& student);

// With /compression_training/layer_reduction: a student whose weights nobody has made yet begins as
// that says, with layers of the teacher's; weights that came from a folder or from training stay.
// Throws kConfig where the two models do not fit.
void begin_with_layers(const Config& config, models::Model& student);

// The weights of a teacher over memory that is only counted, for plans.
std::unique_ptr<models::InferenceWeights> counted_weights(const TeacherModel& teacher,
                                                          const OpContext& ctx);

// What they take.
int64_t teacher_bytes(const TeacherModel& teacher, ThreadPool& pool);
// Of the matrix products that one token goes through.
double teacher_flops(const TeacherModel& teacher);

// A forward pass without recording: the blocks run when it is made, the head for one sample after
// another, whose logits alone need memory. `weights` outlives it.
class TeacherPass {
 public:
  TeacherPass(const TeacherModel& teacher, nn::ParameterReader& weights, const OpContext& ctx,
              const models::Batch& batch);
  Tensor logits(int64_t sample);

 private:
  const models::Architecture& architecture_;
  nn::Tape tape_;
  models::PassContext pass_;
  models::ResidualStream stream_;
};

class Teacher {
 public:
  explicit Teacher(std::shared_ptr<const TeacherModel> model) : model_(std::move(model)) {}

  const std::shared_ptr<const TeacherModel>& model() const { return model_; }
  // Reads the weights, unless they are held already.
  void hold(const OpContext& ctx);
  void free() noexcept { weights_.reset(); }
  // Throws kInvalidArgument for sequences that are longer than the teacher's positions.
  void check_length(int64_t tokens) const;
  TeacherPass run(const OpContext& ctx, const models::Batch& batch) const {
    return {*model_, *weights_, ctx, batch};
  }

 private:
  const std::shared_ptr<const TeacherModel> model_;
  std::unique_ptr<models::InferenceWeights> weights_;  // null: not held
};

}  // namespace ds
