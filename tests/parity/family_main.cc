// Runs models from Hugging Face folders, for comparison with Transformers and PEFT:
//   parity_family outputs FOLDER INPUTS OUT_FILE
//   parity_family train FOLDER INPUTS STEPS RATE OUT_FOLDER SHARD_BYTES
//   parity_family lora FOLDER INPUTS STEPS RATE OUT_FOLDER TARGET...
// INPUTS is a safetensors file with int32 `ids` and, as needed, `mask`, `types` and `labels`.
// `outputs` writes logits (hidden states of an encoder without a head). The others train by plain
// gradient descent, write the model or its adapters, and OUT_FOLDER/outputs.safetensors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "attached_state.h"
#include "infer/generate.h"
#include "models/adapters.h"
#include "models/inputs.h"
#include "models/weights.h"
#include "nn/loss.h"

namespace {

using namespace ds;  // NOLINT: a program of the project

class Inputs {
 public:
  Inputs(models::Model& model, const char* path) : model_(model), file_(path) {}

  Tensor get(const char* name) const {
    const SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr) return {};
    DS_CHECK(entry->dtype == DType::kInt32, Code::kInvalidArgument, name, " must be int32");
    Tensor out =
        Tensor::empty(model_.device(), DType::kInt32, Shape(entry->shape), MemoryTag::kOther);
    entry->read(0, {static_cast<std::byte*>(out.raw()), static_cast<size_t>(entry->size)});
    return out;
  }
  models::Batch batch() const {
    const OpContext ctx = model_.context();
    models::Batch out;
    out.ids = models::token_ids(ctx, get("ids"), "ids", model_.architecture().info().vocab_size);
    out.key_mask = models::key_mask(ctx, get("mask"), out.ids);
    out.token_types = get("types");
    out.position_ids = models::position_ids(ctx, out.ids.size(0), out.ids.size(1), 0);
    return out;
  }

 private:
  models::Model& model_;
  SafetensorsFile file_;
};

void write_outputs(models::Model& model, const Inputs& inputs, const std::string& path) {
  const models::Architecture& a = model.architecture();
  const Tensor out = a.info().head == models::Head::kNone
                         ? infer::batch_hidden(model.context(), model.reader(), a, inputs.batch())
                         : infer::batch_logits(model.context(), model.reader(), a, inputs.batch());
  const std::vector<int64_t> shape(out.shape().sizes().begin(), out.shape().sizes().end());
  write_safetensors(
      path, {{"outputs",
              DType::kFloat32,
              shape,
              {static_cast<const std::byte*>(out.raw()), static_cast<size_t>(out.bytes())}}});
}

void train(models::Model& model, const Inputs& inputs, int steps, double rate) {
  const OpContext ctx = model.context();
  const models::ArchitectureInfo& info = model.architecture().info();
  const int64_t valid = info.head == models::Head::kClassification ? info.classes : info.vocab_size;
  const Tensor labels = inputs.get("labels");
  for (int step = 0; step < steps; ++step) {
    train_state(model).gradients().allocate();
    nn::TapeOptions options;
    options.step = static_cast<uint32_t>(step);
    nn::Tape tape(ctx, train_state(model).weights(), &train_state(model).gradients(), options);
    const nn::Value logits = model.architecture().logits(tape, inputs.batch(), {});
    int64_t counted = 0;
    const nn::Value loss = nn::cross_entropy(tape, logits, labels, valid, counted);
    std::printf("step %d loss %.6f\n", step, static_cast<double>(*loss.data.data<float>()));
    Tensor one = ctx.workspace(DType::kFloat32, {});
    *one.data<float>() = 1;
    loss.slot->add(ctx, one, true);
    tape.backward();
    for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
      if (!model.parameters()[id].trainable) continue;
      float* const w = master_of(model, id).data<float>();
      const Tensor gradient = train_state(model).gradients().view(id);
      const float* const g = gradient.data<float>();
      for (int64_t i = 0; i < gradient.elements(); ++i) w[i] -= static_cast<float>(rate) * g[i];
    }
    train_state(model).weights().follow_masters(ctx);
  }
  train_state(model).gradients().free();
}

int run(std::span<char*> args) {
  const std::string mode = args.size() > 1 ? args[1] : "";
  if (mode == "outputs" && args.size() == 5) {
    const auto model = models::open_model(args[2]);
    write_outputs(*model, Inputs(*model, args[3]), args[4]);
    return 0;
  }
  if ((mode == "train" && args.size() == 8) || (mode == "lora" && args.size() >= 8)) {
    const auto model = models::open_model(args[2]);
    const Inputs inputs(*model, args[3]);
    const std::string folder = args[6];
    if (mode == "lora") {
      models::LoraOptions options;
      options.r = 4;
      options.alpha = 8;
      options.target_modules.assign(args.begin() + 7, args.end());
      models::add_lora(*model, options);
    }
    train(*model, inputs, std::atoi(args[4]), std::atof(args[5]));
    if (mode == "lora") {
      models::save_lora(*model, folder);
    } else {
      models::export_model(*model, folder, DType::kFloat32, std::atoll(args[7]));
    }
    write_outputs(*model, inputs, folder + "/outputs.safetensors");
    return 0;
  }
  std::fprintf(stderr, "usage: see the top of family_main.cc\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv, static_cast<size_t>(argc)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_family: %s\n", error.what());
    return 1;
  }
}
