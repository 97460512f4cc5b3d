// Folders of teachers for students that are distilled.
#pragma once

#include <string>

#include "expert_models.h"
#include "models/saved_model.h"
#include "models/weights.h"

namespace ds::zero_test {

// As the published settings at toy size (arXiv:2201.05596): experts beside a dense MLP in every
// second layer, more of them in the last one; the student has fewer layers.
inline Json pr_moe(int64_t layers, const Json& experts) {
  return gpt_moe({{"n_layer", layers}, {"num_experts", experts}, {"mlp_type", "residual"}});
}
inline Json teacher_model() { return pr_moe(6, {4, 4, 8}); }

// A teacher that is sure of something: its outputs are far from uniform.
class TeacherFolder {
 public:
  explicit TeacherFolder(const Json& config = teacher_model(), bool hugging_face = false) {
    Json sure = config;
    sure["initializer_range"] = 0.3;
    const auto model = models::Model::create(sure, 77);
    if (hugging_face) {
      models::export_model(*model, path(), DType::kFloat32);
    } else {
      models::save_model(*model, path(), "teacher", "test");
    }
  }
  std::string path() const { return folder_.path("teacher"); }
  Json section(const Json& more = Json::object()) const {
    return {{"distillation", with({{"enabled", true}, {"teacher", path()}}, more)}};
  }

 private:
  Folder folder_;
};

}  // namespace ds::zero_test
