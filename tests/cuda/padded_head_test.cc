// Rows of logits that a GPU pads: the same losses and gradients as of dense ones.
#include <algorithm>

#include "cuda/model_world.h"
#include "fresh_seed.h"
#include "models/inputs.h"
#include "nn/layers.h"
#include "nn/loss.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about

// A head's weight and bias on the GPU.
class HeadStore : public nn::ParameterReader, public nn::GradientSink {
 public:
  HeadStore(const std::shared_ptr<Device>& device, const Tensor& weight, const Tensor& bias)
      : type_(weight.dtype()) {
    add(device, "weight", weight);
    add(device, "bias", bias);
  }
  Tensor acquire(nn::ParamId id) override { return values_[static_cast<size_t>(id)]; }
  void release(nn::ParamId) noexcept override {}
  Tensor gradient(nn::ParamId id) override { return gradients_[static_cast<size_t>(id)]; }
  nn::GradientTarget gradient_target(nn::ParamId id) override { return {gradient(id), true}; }
  void gradient_complete(nn::ParamId) override {}
  DType compute_type() const override { return type_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }

 private:
  void add(const std::shared_ptr<Device>& device, const char* name, const Tensor& value) {
    parameters_.add({name, value.shape(), nn::Init::kZeros, 0, false, true, {}});
    values_.push_back(to_device(value, device));
    gradients_.push_back(
        Tensor::zeros(device, DType::kFloat32, value.shape(), MemoryTag::kGradients));
  }

  DType type_;
  nn::ParameterSet parameters_;
  std::vector<Tensor> values_, gradients_;
};

struct Form {
  DType type;
  int64_t vocabulary;
  bool bias;
  bool kept;  // a row's packs lie in the same places of memory with and without padding
};

void PrintTo(const Form& form, std::ostream* out) {
  *out << dtype_name(form.type) << " " << form.vocabulary << (form.bias ? " with bias" : "");
}

struct Numbers {
  double loss = 0;
  std::vector<float> dx, dw, db;
};

class PaddedHead : public GpuModel, public ::testing::WithParamInterface<Form> {
 protected:
  static constexpr int64_t kRows = 37, kWidth = 24;

  void SetUp() override {
    GpuModel::SetUp();
    if (IsSkipped()) return;
    device_ = make_cuda_device(0);
    std::mt19937_64 random(seed_);
    const Form& form = GetParam();
    x_ = given(random, {1, kRows, kWidth});
    weight_ = given(random, {form.vocabulary, kWidth});
    bias_ = given(random, {form.vocabulary});
    labels_ = Tensor::empty(host_, DType::kInt32, {1, kRows}, MemoryTag::kOther);
    for (int64_t i = 0; i < kRows; ++i) {
      const auto label = random() % static_cast<uint64_t>(form.vocabulary);
      labels_.data<int32_t>()[i] = i % 5 == 3 ? -100 : static_cast<int32_t>(label);
    }
  }

  Tensor given(std::mt19937_64& random, const Shape& shape) const {
    const Tensor values = gpu_test::random_tensor(random, shape, 0.5F);
    if (GetParam().type == DType::kFloat32) return values;
    const Tensor out = Tensor::empty(host_, DType::kBFloat16, shape, MemoryTag::kOther);
    for (int64_t i = 0; i < values.elements(); ++i) {
      out.data<bfloat16>()[i] = to_bfloat16(values.data<float>()[i]);
    }
    return out;
  }

  std::vector<float> on_host(const Tensor& tensor) const {
    const Tensor copy = to_host(tensor, host_);
    std::vector<float> out(static_cast<size_t>(copy.elements()));
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = copy.dtype() == DType::kFloat32 ? copy.data<float>()[i]
                                               : to_float(copy.data<bfloat16>()[i]);
    }
    return out;
  }

  Numbers run(bool padded) const {
    const Form& form = GetParam();
    ThreadPool pool(1);
    const OpContext ctx{device_, &pool};
    HeadStore store(device_, weight_, bias_);
    nn::Tape tape(ctx, store, &store, {});
    const nn::Value x = tape.make_value(to_device(x_, device_));
    const nn::ParamId bias = form.bias ? 1 : nn::kNoParam;
    const nn::Value logits =
        padded ? nn::linear_padded(tape, x, 0, bias) : nn::linear(tape, x, 0, bias);
    const int64_t columns = padded ? (form.vocabulary + 63) / 64 * 64 : form.vocabulary;
    EXPECT_EQ(logits.data.shape(), (Shape{1, kRows, columns}));
    const nn::SummedLoss loss =
        nn::summed_cross_entropy(tape, logits, nn::place_labels(labels_, device_), form.vocabulary);
    const Tensor upstream = Tensor::empty(host_, DType::kFloat32, {}, MemoryTag::kOther);
    *upstream.data<float>() = 1;
    loss.slot->add(ctx, upstream, true);
    tape.backward();
    return {*to_host(loss.sum, host_).data<double>(), on_host(x.slot->gradient()),
            on_host(store.gradient(0)), on_host(store.gradient(1))};
  }

  const uint64_t seed_ = ds::fresh_seed();
  std::shared_ptr<Device> host_ = make_cpu_device();
  std::shared_ptr<CudaDevice> device_;
  Tensor x_, weight_, bias_, labels_;
};

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

TEST_P(PaddedHead, HasTheNumbersOfADenseOne) {
  SCOPED_TRACE(str_cat("seed ", seed_));
  const Numbers dense = run(false), padded = run(true);
  // Roundings of sums in another order; in bf16, a gradient of a logit rounded the other way.
  const float share = GetParam().type == DType::kFloat32 ? 1e-6F : 0x1p-8F;
  EXPECT_NEAR(padded.loss, dense.loss, 1e-6 * dense.loss);
  EXPECT_LE(largest_difference(padded.dx, dense.dx), share * largest(dense.dx));
  EXPECT_LE(largest_difference(padded.dw, dense.dw), share * largest(dense.dw));
  EXPECT_LE(largest_difference(padded.db, dense.db), share * largest(dense.db));
  EXPECT_EQ(largest(dense.db) > 0, GetParam().bias);
  // Own products sum in one order; a library may choose another for other strides.
  if (!GetParam().kept || list_cuda_devices(nullptr).front().name != "Stand-in") return;
  EXPECT_EQ(padded.loss, dense.loss);
  EXPECT_TRUE(same_bits(padded.dx, dense.dx));
  EXPECT_TRUE(same_bits(padded.dw, dense.dw));
  EXPECT_TRUE(same_bits(padded.db, dense.db));
}

INSTANTIATE_TEST_SUITE_P(Forms, PaddedHead,
                         ::testing::Values(Form{DType::kFloat32, 61, false, false},
                                           Form{DType::kFloat32, 61, true, false},
                                           Form{DType::kFloat32, 68, true, true},
                                           Form{DType::kBFloat16, 61, true, false},
                                           Form{DType::kBFloat16, 1003, false, false},
                                           Form{DType::kBFloat16, 72, true, true},
                                           Form{DType::kBFloat16, 128, true, true}));

Json masked_lm_config() {
  return {{"model_type", "bert"},    {"architectures", {"BertForMaskedLM"}},
          {"vocab_size", 61},        {"hidden_size", 32},
          {"num_hidden_layers", 1},  {"num_attention_heads", 4},
          {"intermediate_size", 64}, {"max_position_embeddings", 32}};
}

// Only who asks for it gets padding, and only on a GPU.
TEST_F(GpuModel, LogitsArePaddedForTheLoss) {
  for (const Json& config : {model_config(0), llama_config(), masked_lm_config()}) {
    SCOPED_TRACE(config.at("model_type").get<std::string>());
    for (const bool on_gpu : {false, true}) {
      const auto model = make_model(config, on_gpu);
      const OpContext host{model->host(), model->context().pool};
      models::Batch batch;
      batch.ids = models::token_ids(host, ids_tensor(std::vector<int64_t>(64, 7), 4), "ids", 61);
      batch.position_ids = models::position_ids(host, 4, 16, 0);
      batch = models::to_device(std::move(batch), model->device());
      for (const bool asked : {false, true}) {
        nn::TapeOptions options;
        options.record = options.training = false;
        nn::Tape tape(model->context(), model->reader(), nullptr, options);
        models::ForwardOptions forward;
        forward.padded_logits = asked;
        const nn::Value logits = model->architecture().logits(tape, batch, forward);
        EXPECT_EQ(logits.data.shape(), (Shape{4, 16, on_gpu && asked ? 64 : 61}));
      }
    }
  }
}

// With a bias, which gets its gradient from padded rows.
TEST_F(GpuModel, MaskedLanguageModelsTrainAsOnTheCpu) {
  std::vector<float> after[2];
  for (const bool on_gpu : {false, true}) {
    Engine engine(dump_json(with(base_config(), {{"gradient_accumulation_steps", 1}})),
                  make_model(masked_lm_config(), on_gpu), nullptr);
    for (int i = 0; i < 2; ++i) {
      const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2);
      const Tensor labels = ids_tensor({1, -100, 3, -100, 5, 60, -100, 8, 9, -100, 11, 12}, 2);
      engine.backward(engine.forward({ids, labels, {}, {}, {}}));
      engine.step();
    }
    after[on_gpu ? 1 : 0] = weights_of(engine);
  }
  EXPECT_LT(largest_difference(after[0], after[1]), 1e-3);
}

}  // namespace
}  // namespace ds
