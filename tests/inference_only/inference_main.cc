// A program that only runs models, linked of the layers that this takes: none of training's. It
// continues a text with a model and with the same model prepared in int8, and writes both.
#include <cstdio>
#include <memory>
#include <vector>

#include "infer/generate.h"
#include "models/model.h"

namespace {

using namespace ds;  // NOLINT: a program of the project

void write_text(models::Model& model) {
  infer::GenerateOptions options;
  options.max_tokens = 8;
  const std::vector<int32_t> prompt{1, 5, 9};
  for (const int32_t token : infer::generate(model.context(), model.reader(), model.architecture(),
                                             prompt, options, nullptr)) {
    std::printf("%d ", token);
  }
  std::printf("\n");
}

}  // namespace

int main() {
  try {
    const Json config = {{"model_type", "gpt2"}, {"vocab_size", 40}, {"n_positions", 16},
                         {"n_embd", 32},         {"n_layer", 2},     {"n_head", 2}};
    const std::shared_ptr<models::Model> model = models::Model::create(config, 7);
    models::InferenceOptions form;
    form.weights = models::WeightForm::kInt8;
    const std::shared_ptr<models::Model> prepared = model->prepared_copy(form);
    write_text(*model);
    write_text(*prepared);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
