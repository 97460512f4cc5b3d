// A program with gradients of its own: the engine as its optimizer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/text.h"
#include "capi/world.h"
#include "ds.hpp"
#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

using libds::Engine;
using libds::Model;
using libds::Tensor;

std::vector<float> floats(const Tensor& tensor) { return tensor.to_vector<float>(); }

// Bits, so that equal means equal.
std::vector<uint32_t> bits(const Tensor& tensor) {
  std::vector<uint32_t> out;
  for (const float x : floats(tensor)) out.push_back(std::bit_cast<uint32_t>(x));
  return out;
}

std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

Tensor tensor_of(const std::vector<float>& values, std::vector<int64_t> shape = {},
                 int32_t dtype = DS_FLOAT32) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_tensor_create(dtype, shape.data(), static_cast<int32_t>(shape.size()), &out));
  if (dtype == DS_FLOAT32) {
    EXPECT_DS_OK(ds_tensor_write(out, values.data(), static_cast<int64_t>(values.size() * 4)));
    return Tensor(out);
  }
  std::vector<uint16_t> narrow;
  for (const float x : values) {
    narrow.push_back(dtype == DS_BFLOAT16 ? ds::to_bfloat16(x).bits : ds::to_float16(x).bits);
  }
  EXPECT_DS_OK(ds_tensor_write(out, narrow.data(), static_cast<int64_t>(narrow.size() * 2)));
  return Tensor(out);
}

// The number that a type keeps of x.
float rounded(float x, int32_t dtype) {
  if (dtype == DS_BFLOAT16) return ds::to_float(ds::to_bfloat16(x));
  return dtype == DS_FLOAT16 ? ds::to_float(ds::to_float16(x)) : x;
}

std::string config(const std::string& more = "", int accumulation = 1) {
  return ds::str_cat(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )",
                     accumulation, R"(, "optimizer": {"type": "AdamW",
                     "params": {"lr": 0.01, "weight_decay": 0.1}})",
                     more, "}");
}

// Two parameters of a program: one tensor that the library owns, one of the caller.
constexpr int64_t kA = 0, kB = 1;  // their numbers
struct Two {
  explicit Two(const std::string& text)
      : model(Model::from_parameters(
            {{.name = "a", .shape = {}, .value = &a}, {.name = "b", .shape = {}, .value = &b}})),
        engine(text, model) {}
  Tensor a = tensor_of(random_floats(37, 1));
  Tensor b = tensor_of(random_floats(12, 2), {3, 4});
  Model model;
  Engine engine;
};

TEST(OwnGradients, EqualTheBuiltInRunBitForBit) {
  for (const char* const precision : {"", R"(, "bf16": {"enabled": true})"}) {
    Model built_in = Model::create(model_config(), 3);
    Engine trainer(
        ds::str_cat(R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW",
                    "params": {"lr": 0.01, "weight_decay": 0.1}})",
                    precision, "}"),
        built_in);
    const std::vector<std::string> names = built_in.parameter_names();
    std::vector<Tensor> values;
    for (const std::string& name : names) values.push_back(built_in.parameter(name));
    std::vector<libds::Parameter> parameters;
    for (size_t i = 0; i < names.size(); ++i) {
      libds::Parameter p;
      p.name = names[i];
      p.value = &values[i];
      p.decays = built_in.parameter_info(static_cast<int64_t>(i)).decays != 0;
      parameters.push_back(std::move(p));
    }
    Model own = Model::from_parameters(parameters);
    Engine optimizer(config(precision), own);
    for (uint32_t step = 0; step < 5; ++step) {
      const Tensor ids(make_ids(2, 8, 100 + step));
      trainer.backward(trainer.forward(ids, ids));
      std::vector<Tensor> gradients;
      for (size_t i = 0; i < names.size(); ++i) {
        gradients.push_back(trainer.gradient(static_cast<int64_t>(i)));
      }
      optimizer.add_gradients(gradients);
      const libds::StepReport theirs = trainer.step(), ours = optimizer.step();
      EXPECT_EQ(theirs.grad_norm, ours.grad_norm);
      EXPECT_EQ(ours.applied, 1);
      for (const std::string& name : names) {
        ASSERT_EQ(bits(built_in.parameter(name)), bits(own.parameter(name)))
            << name << ", step " << step;
        ASSERT_EQ(bits(trainer.values(built_in.index(name), DS_VALUE_STATE, "exp_avg_sq")),
                  bits(optimizer.values(own.index(name), DS_VALUE_STATE, "exp_avg_sq")));
      }
    }
  }
}

TEST(OwnGradients, AddUpInAnyOrderAndMissingOnesAreZero) {
  Two one(config()), other(config());
  const std::vector<float> g = random_floats(37, 5), h = random_floats(12, 6);
  std::vector<float> half = g;
  for (float& x : half) x *= 0.5f;  // exact
  for (int step = 0; step < 3; ++step) {
    one.engine.add_gradient(kA, tensor_of(g));
    one.engine.add_gradient(kB, tensor_of(h, {3, 4}));
    other.engine.add_gradient(kB, tensor_of(h, {3, 4}));
    other.engine.add_gradient(kA, tensor_of(half));
    other.engine.add_gradient(kA, tensor_of(half));
    one.engine.step();
    other.engine.step();
    ASSERT_EQ(bits(one.model.parameter("a")), bits(other.model.parameter("a")));
    ASSERT_EQ(bits(one.model.parameter("b")), bits(other.model.parameter("b")));
  }
  // Without any gradient a step uses zeros: moments decay, and so do weights.
  one.engine.add_gradient(kA, tensor_of(std::vector<float>(37, 0.0f)));
  one.engine.add_gradient(kB, tensor_of(std::vector<float>(12, 0.0f), {3, 4}));
  EXPECT_EQ(one.engine.step().applied, 1);
  EXPECT_EQ(other.engine.step().applied, 1);
  EXPECT_EQ(bits(one.model.parameter("a")), bits(other.model.parameter("a")));
}

TEST(OwnGradients, MicroBatchesAreSummedAndGradientsMayBeReplacedOrGivenUp) {
  Two once(config()), twice(config("", 2));
  const std::vector<float> g = random_floats(37, 8);
  std::vector<float> half = g;
  for (float& x : half) x *= 0.5f;
  once.engine.add_gradient(kA, tensor_of(g));
  once.engine.step();
  twice.engine.add_gradient(kA, tensor_of(half));
  EXPECT_EQ(twice.engine.step().skip_reason, DS_SKIP_ACCUMULATING);
  EXPECT_EQ(floats(twice.engine.gradient(kA)), half);
  twice.engine.add_gradient(kA, tensor_of(half));
  EXPECT_EQ(twice.engine.step().applied, 1);
  EXPECT_EQ(bits(once.model.parameter("a")), bits(twice.model.parameter("a")));

  once.engine.set_values(kA, DS_VALUE_GRADIENT, tensor_of(half));
  once.engine.set_values(kA, DS_VALUE_GRADIENT, tensor_of(g));
  EXPECT_EQ(floats(once.engine.gradient(kA)), g);
  once.engine.discard_gradients();
  EXPECT_EQ(floats(once.engine.gradient(kA)), std::vector<float>(37, 0.0f));
}

TEST(OwnGradients, LentMemoryReceivesEveryNewValueInItsOwnType) {
  for (const int32_t dtype : {DS_FLOAT32, DS_BFLOAT16, DS_FLOAT16}) {
    Tensor lent = tensor_of(random_floats(100, 4), {10, 10}, dtype);
    Model model =
        Model::from_parameters({{.name = "w", .shape = {}, .value = &lent, .lend = true}});
    Engine engine(config(), model);
    const auto expect_lent_is_master = [&] {
      const std::vector<float> master = floats(model.parameter("w"));
      for (size_t i = 0; i < master.size(); ++i) {
        const auto* const at = static_cast<const std::byte*>(lent.data());
        float x;
        if (dtype == DS_FLOAT32) {
          std::memcpy(&x, at + 4 * i, 4);
        } else {
          uint16_t half;
          std::memcpy(&half, at + 2 * i, 2);
          x = dtype == DS_BFLOAT16 ? ds::to_float(ds::bfloat16{half})
                                   : ds::to_float(ds::float16{half});
        }
        ASSERT_EQ(x, rounded(master[i], dtype));
      }
    };
    expect_lent_is_master();
    const std::vector<float> before = floats(model.parameter("w"));
    for (uint32_t step = 0; step < 3; ++step) {
      engine.add_gradient(kA, tensor_of(random_floats(100, 20 + step), {10, 10}, dtype));
      engine.step();
      expect_lent_is_master();
    }
    EXPECT_NE(floats(model.parameter("w")), before);
    model.set_parameter("w", tensor_of(random_floats(100, 9), {10, 10}));
    expect_lent_is_master();
    const TemporaryFolder folder;
    engine.save(folder.file("saved"));
    model.set_parameter("w", tensor_of(random_floats(100, 10), {10, 10}));
    engine.load(folder.file("saved"));
    expect_lent_is_master();
  }
}

TEST(OwnGradients, LowPrecisionGradientsAreWidenedExactly) {
  for (const int32_t dtype : {DS_BFLOAT16, DS_FLOAT16}) {
    Two wide(config()), narrow(config());
    std::vector<float> g = random_floats(37, 31);
    narrow.engine.add_gradient(kA, tensor_of(g, {}, dtype));
    for (float& x : g) x = rounded(x, dtype);
    wide.engine.add_gradient(kA, tensor_of(g));
    narrow.engine.step();
    wide.engine.step();
    EXPECT_EQ(bits(wide.model.parameter("a")), bits(narrow.model.parameter("a")));
  }
}

TEST(OwnGradients, ViewsShareMemory) {
  Two plain(config()), viewed(config());
  const std::vector<float> g = random_floats(37, 41);
  Tensor sum = viewed.engine.view_gradient(kA);
  const Tensor weights = viewed.model.view("a");
  for (int step = 0; step < 2; ++step) {
    plain.engine.add_gradient(kA, tensor_of(g));
    auto* const to = static_cast<float*>(sum.data());
    for (size_t i = 0; i < g.size(); ++i) to[i] += g[i];
    plain.engine.step();
    viewed.engine.step();
    EXPECT_EQ(bits(plain.model.parameter("a")), bits(weights));
    EXPECT_EQ(floats(sum), std::vector<float>(37, 0.0f));  // a step clears it
  }
  // In bf16 the view is the rounded copy.
  Two low(config(R"(, "bf16": {"enabled": true})"));
  const Tensor view = low.model.view("b");
  EXPECT_EQ(view.dtype(), DS_FLOAT32);  // registered before the engine: its own type is float32
}

TEST(OwnGradients, ANonFiniteGradientIsNamedAndChangesNothing) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const char* const precision :
       {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true})"}) {
    for (const int32_t dtype : {DS_FLOAT32, DS_BFLOAT16, DS_FLOAT16}) {
      for (const float value : bad) {
        Two two(config(precision));
        two.engine.add_gradient(kA, tensor_of(random_floats(37, 50)));
        two.engine.step();
        const auto a = bits(two.model.parameter("a")), b = bits(two.model.parameter("b"));
        const auto m = bits(two.engine.values(kB, DS_VALUE_STATE, "exp_avg"));
        std::vector<float> g = random_floats(12, 51);
        g[7] = value;
        two.engine.add_gradient(kB, tensor_of(g, {3, 4}, dtype));
        const libds::StepReport report = two.engine.step();
        EXPECT_EQ(report.applied, 0);
        EXPECT_EQ(report.skip_reason, DS_SKIP_NON_FINITE);
        EXPECT_EQ(report.first_bad_parameter, kB);
        EXPECT_EQ(report.grad_norm, -1);
        EXPECT_EQ(two.engine.optimizer().steps(), 1);
        EXPECT_EQ(bits(two.model.parameter("a")), a);
        EXPECT_EQ(bits(two.model.parameter("b")), b);
        EXPECT_EQ(bits(two.engine.values(kB, DS_VALUE_STATE, "exp_avg")), m);
        EXPECT_EQ(floats(two.engine.gradient(kB)), std::vector<float>(12, 0.0f));
      }
    }
  }
}

TEST(OwnGradients, TheLossScaleIsTakenOutAndFollowsOverflows) {
  Two scaled(config(R"(, "fp16": {"enabled": true, "initial_scale_power": 3, "hysteresis": 1})"));
  Two plain(config());
  ASSERT_EQ(scaled.engine.loss_scale(), 8);
  EXPECT_EQ(plain.engine.loss_scale(), 1);
  std::vector<float> g = random_floats(37, 61, 0.01f);
  plain.engine.add_gradient(kA, tensor_of(g));
  for (float& x : g) x *= 8;
  scaled.engine.add_gradient(kA, tensor_of(g));
  const libds::StepReport p = plain.engine.step(), s = scaled.engine.step();
  EXPECT_EQ(s.loss_scale, 8);
  EXPECT_EQ(p.grad_norm, s.grad_norm);
  EXPECT_EQ(bits(plain.model.parameter("a")), bits(scaled.model.parameter("a")));
  g[0] = std::numeric_limits<float>::infinity();
  scaled.engine.add_gradient(kA, tensor_of(g));
  EXPECT_EQ(scaled.engine.step().applied, 0);
  EXPECT_EQ(scaled.engine.loss_scale(), 4);
}

TEST(OwnGradients, TooManySkippedStepsAreAnError) {
  Two two(config(R"(, "max_consecutive_skips": 3)"));
  const std::vector<float> bad(37, std::numeric_limits<float>::quiet_NaN());
  for (int i = 0; i < 2; ++i) {
    two.engine.add_gradient(kA, tensor_of(bad));
    EXPECT_EQ(two.engine.step().applied, 0);
  }
  two.engine.add_gradient(kA, tensor_of(bad));
  ds_step_report report{};
  report.struct_size = sizeof report;
  EXPECT_EQ(ds_engine_step(two.engine.get(), &report), DS_ERR_STATE);
  EXPECT_NE(std::string(ds_last_error_message()).find("3 steps in a row"), std::string::npos);
  // Good gradients end the row.
  two.engine.add_gradient(kA, tensor_of(random_floats(37, 70)));
  EXPECT_EQ(two.engine.step().applied, 1);
}

TEST(OwnGradients, ResumeIsBitwiseAndAModelComesBackFromItsCheckpoint) {
  const TemporaryFolder folder;
  const std::string more = R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7,
      "warmup_max_lr": 0.02}})";
  Two straight(config(more)), first(config(more));
  const auto run = [](Engine& engine, uint32_t begin, uint32_t end) {
    for (uint32_t step = begin; step < end; ++step) {
      engine.add_gradient(kA, tensor_of(random_floats(37, 200 + step)));
      engine.add_gradient(kB, tensor_of(random_floats(12, 300 + step), {3, 4}));
      engine.step();
    }
  };
  run(straight.engine, 0, 10);
  run(first.engine, 0, 5);
  first.engine.save(folder.file("saved"));
  Model opened = Model::open(folder.file("saved"));
  EXPECT_EQ(opened.parameter_names(), first.model.parameter_names());
  Engine resumed(config(more), opened);
  resumed.load(folder.file("saved"));
  run(resumed, 5, 10);
  for (const char* const name : {"a", "b"}) {
    EXPECT_EQ(bits(straight.model.parameter(name)), bits(opened.parameter(name)));
    EXPECT_EQ(bits(straight.engine.values(straight.model.index(name), DS_VALUE_STATE, "exp_avg")),
              bits(resumed.values(opened.index(name), DS_VALUE_STATE, "exp_avg")));
  }
  opened.export_to(folder.file("exported"));
  EXPECT_TRUE(std::filesystem::exists(folder.file("exported/model.safetensors")));
}

// Another framework's tensors go in, and its views of ours come out, without copies of ours.
TEST(OwnGradients, DlpackBothWays) {
  Two plain(config()), foreign(config());
  std::vector<float> g = random_floats(37, 80);
  plain.engine.add_gradient(kA, tensor_of(g));
  plain.engine.step();

  int deleted = 0;
  int64_t shape[] = {37};
  DLManagedTensorVersioned managed{};
  managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.dl_tensor = {g.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
  managed.manager_ctx = &deleted;
  managed.deleter = [](DLManagedTensorVersioned* self) { ++*static_cast<int*>(self->manager_ctx); };
  ds_tensor* gradient = nullptr;
  ASSERT_DS_OK(ds_tensor_from_dlpack(&managed, nullptr, &gradient));
  EXPECT_DS_OK(ds_engine_add_gradients(foreign.engine.get(), nullptr, &gradient, 1));
  ds_tensor_destroy(gradient);
  EXPECT_EQ(deleted, 1);  // the engine has added it and keeps nothing

  DLManagedTensorVersioned* view = nullptr;
  ASSERT_DS_OK(ds_tensor_to_dlpack(foreign.model.view("a").get(), nullptr, &view));
  foreign.engine.step();
  const auto* const weights = static_cast<const float*>(view->dl_tensor.data);
  EXPECT_EQ(std::vector<float>(weights, weights + 37), floats(plain.model.parameter("a")));
  view->deleter(view);
}

TEST(OwnGradients, GroupsFrozenTensorsAndAliases) {
  const Tensor w = tensor_of(random_floats(8, 1)), f = tensor_of(random_floats(8, 2));
  Model model = Model::from_parameters(
      {{.name = "fast", .shape = {}, .value = &w, .group = "quick", .alias = "fast.tied"},
       {.name = "slow", .shape = {}, .value = &w},
       {.name = "fixed", .shape = {}, .value = &f, .frozen = true}});
  Engine engine(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD",
                 "params": {"lr": 0.5}, "param_groups": [{"name": "quick", "lr": 1.0}]},
                 "gradient_clipping": 0})",
                model);
  EXPECT_EQ(engine.optimizer().rates(), (std::vector<double>{0.5, 1.0}));
  const std::vector<float> ones(8, 1.0f);
  engine.add_gradient(model.index("fast.tied"), tensor_of(ones));
  engine.add_gradient(model.index("slow"), tensor_of(ones));
  EXPECT_THROW(engine.add_gradient(model.index("fixed"), tensor_of(ones)), libds::Error);
  engine.step();
  const std::vector<float> start = floats(w), fast = floats(model.parameter("fast"));
  const std::vector<float> slow = floats(model.parameter("slow"));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(fast[i], start[i] - 1.0f);
    EXPECT_EQ(slow[i], start[i] - 0.5f);
  }
  EXPECT_EQ(bits(model.parameter("fixed")), bits(f));
}

TEST(OwnGradients, WrongInputIsRefusedBeforeAnythingChanges) {
  Two two(config());
  const auto refused = [&](int64_t parameter, const Tensor& g, ds_status status) {
    ds_tensor* const handle = g.get();
    EXPECT_EQ(ds_engine_add_gradients(two.engine.get(), &parameter, &handle, 1), status)
        << ds_last_error_message();
  };
  refused(2, tensor_of(random_floats(37, 1)), DS_ERR_INVALID_ARGUMENT);
  refused(kA, tensor_of(random_floats(36, 1)), DS_ERR_INVALID_ARGUMENT);
  refused(kB, tensor_of(random_floats(12, 1), {4, 3}), DS_ERR_INVALID_ARGUMENT);
  refused(kB, Tensor(make_ids(3, 4, 1)), DS_ERR_INVALID_ARGUMENT);
  // The second of two is wrong: the first is not added.
  const Tensor good = tensor_of(random_floats(37, 1));
  ds_tensor* const pair[] = {good.get(), good.get()};
  EXPECT_EQ(ds_engine_add_gradients(two.engine.get(), nullptr, pair, 2), DS_ERR_INVALID_ARGUMENT);
  const int64_t far[] = {0, 9};
  EXPECT_EQ(ds_engine_add_gradients(two.engine.get(), far, pair, 2), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(floats(two.engine.gradient(kA)), std::vector<float>(37, 0.0f));
  // One parameter twice in a call is added twice.
  const int64_t twice[] = {0, 0};
  EXPECT_DS_OK(ds_engine_add_gradients(two.engine.get(), twice, pair, 2));
  std::vector<float> doubled = random_floats(37, 1);
  for (float& x : doubled) x += x;
  EXPECT_EQ(floats(two.engine.gradient(kA)), doubled);
  two.engine.discard_gradients();

  EXPECT_THROW(two.engine.forward(Tensor(make_ids(1, 4, 1)), Tensor(make_ids(1, 4, 1))),
               libds::Error);
  ds_parameter p{};
  ds_model* model = nullptr;
  const auto create = [&](int64_t count) {
    return ds_model_create_from_parameters(&p, count, &model);
  };
  p.struct_size = sizeof p;
  EXPECT_EQ(create(0), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(1), DS_ERR_INVALID_ARGUMENT);  // no name
  p.name = "x";
  p.ndim = 1;
  EXPECT_EQ(create(1), DS_ERR_INVALID_ARGUMENT);  // no shape
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  p.shape = huge;
  p.ndim = 2;
  EXPECT_EQ(create(1), DS_ERR_INVALID_ARGUMENT);
  p.ndim = 1;
  p.shape = huge + 1;
  p.dtype = DS_INT32;
  EXPECT_EQ(create(1), DS_ERR_UNSUPPORTED);
  p.dtype = 0;
  p.lend = 1;
  EXPECT_EQ(create(1), DS_ERR_INVALID_ARGUMENT);  // lends nothing
  EXPECT_EQ(model, nullptr);
}

}  // namespace
}  // namespace capi_test
