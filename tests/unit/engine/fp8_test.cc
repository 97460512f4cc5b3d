// Linear layers in fp8: one layer beside an emulation in double precision that scales by itself,
// and whole models that train, skip, are saved and resume.
#include <gmock/gmock.h>

#include <deque>
#include <random>

#include "attached_state.h"
#include "base/bfloat16.h"
#include "engine_world.h"
#include "fresh_seed.h"
#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul.h"
#include "models/adapters.h"
#include "nn/fp8.h"
#include "nn/layers.h"

namespace ds::engine_test {
namespace {

using kernels::Fp8Format;
using ::testing::HasSubstr;

// ---- one layer ----

using Numbers = std::vector<double>;

// Delayed scaling as it is described, in double precision.
class Emulated {
 public:
  Emulated(Fp8Format format, size_t length, bool most_recent)
      : format_(format), length_(length), most_recent_(most_recent) {}
  // What the codes stand for.
  Numbers cast(const Numbers& x) {
    for (const double v : x) open_ = std::max(open_, std::abs(v));
    if (scale_ == 0) scale_ = kernels::reference::fp8_scale(format_, open_, 0);
    Numbers out;
    for (const double v : x) {
      const uint8_t code = kernels::reference::fp8_code(format_, v * scale_);
      out.push_back(kernels::reference::fp8_value(format_, code) / scale_);
    }
    return out;
  }
  void finish_step() {
    history_.push_front(open_);
    if (history_.size() > length_) history_.pop_back();
    open_ = 0;
    const double most =
        most_recent_ ? history_.front() : *std::max_element(history_.begin(), history_.end());
    if (most > 0) scale_ = kernels::reference::fp8_scale(format_, most, 0);
  }
  // As Fp8Linears saves it.
  std::vector<float> saved() const {
    std::vector<float> out{static_cast<float>(scale_), static_cast<float>(open_)};
    for (const double v : history_) out.push_back(static_cast<float>(v));
    out.resize(2 + length_);
    return out;
  }

 private:
  Fp8Format format_;
  size_t length_;
  bool most_recent_;
  double scale_ = 0, open_ = 0;
  std::deque<double> history_;
};

class Fp8Layer : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 24, kOut = 32, kIn = 48;

  Fp8Layer() {
    nn::Parameter weight;
    weight.name = "w";
    weight.shape = {kOut, kIn};
    weight.projection = true;
    w_ = parameters_.add(weight);
    nn::Parameter bias;
    bias.name = "b";
    bias.shape = {kOut};
    b_ = parameters_.add(bias);
    weight.name = "other";
    other_ = parameters_.add(weight);
    state_.emplace(parameters_, device_);
    state_->set_compute_type(ctx_, DType::kBFloat16);
    state_->gradients().allocate(ctx_, DType::kFloat32);
  }

  Tensor random_bf16(const Shape& shape, double deviation) {
    Tensor out = Tensor::empty(device_, DType::kBFloat16, shape, MemoryTag::kOther);
    std::normal_distribution<double> normal(0, deviation);
    for (int64_t i = 0; i < out.elements(); ++i) {
      out.data<bfloat16>()[i] = to_bfloat16(static_cast<float>(normal(random_)));
    }
    return out;
  }
  void set_weights(double deviation) {
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    const Tensor& masters = state_->masters().all();
    for (int64_t i = 0; i < masters.elements(); ++i) masters.data<float>()[i] = normal(random_);
    state_->weights().follow_masters(ctx_);
  }
  static Numbers numbers(const Tensor& x) {
    Numbers out;
    for (int64_t i = 0; i < x.elements(); ++i) {
      out.push_back(x.dtype() == DType::kBFloat16 ? to_float(x.data<bfloat16>()[i])
                                                  : x.data<float>()[i]);
    }
    return out;
  }
  static std::vector<float> float_numbers(const Tensor& x) {
    const Numbers wide = numbers(x);
    return {wide.begin(), wide.end()};
  }
  static void product(int64_t m, int64_t n, int64_t k, const Numbers& a, bool ta, const Numbers& b,
                      bool tb, Numbers& out, Numbers& size) {
    kernels::matmul_ref({.m = m,
                         .n = n,
                         .k = k,
                         .a = a.data(),
                         .a_transposed = ta,
                         .b = b.data(),
                         .b_transposed = tb,
                         .c = out.data(),
                         .magnitude = size.data()});
  }
  // Sums of k terms in fp32, and the rounding of the result.
  static void expect_product(const Tensor& actual, int64_t m, int64_t n, int64_t k,
                             const Numbers& a, bool ta, const Numbers& b, bool tb,
                             const Numbers& bias, const Numbers& before) {
    Numbers expected(static_cast<size_t>(m * n)), size(expected.size());
    if (!before.empty()) expected = before;
    kernels::matmul_ref({.m = m,
                         .n = n,
                         .k = k,
                         .a = a.data(),
                         .a_transposed = ta,
                         .b = b.data(),
                         .b_transposed = tb,
                         .bias = bias.empty() ? nullptr : bias.data(),
                         .accumulate = !before.empty(),
                         .c = expected.data(),
                         .magnitude = size.data()});
    const double rounding = actual.dtype() == DType::kBFloat16 ? 0x1p-8 : 0;
    const double sum = 4 * std::sqrt(static_cast<double>(k) + 4) * 0x1p-24;
    const Numbers values = numbers(actual);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], expected[i], (sum + rounding) * size[i]) << i;
    }
  }

  std::mt19937_64 random_{ds::fresh_seed()};
  ThreadPool pool_{2};
  std::shared_ptr<Device> device_ = make_cpu_device();
  OpContext ctx_{device_, &pool_};
  nn::ParameterSet parameters_;
  nn::ParamId w_ = 0, b_ = 0, other_ = 0;
  std::optional<zero::TrainState> state_;
};

// Several steps of two micro batches, whose numbers grow and shrink by powers of 16 between steps,
// so that histories of 2 steps matter and numbers beyond the scale become the largest code.
TEST_F(Fp8Layer, FollowsAnEmulationInDoublePrecision) {
  for (const bool hybrid : {true, false}) {
    for (const bool most_recent : {false, true}) {
      SCOPED_TRACE(str_cat(hybrid, most_recent));
      nn::Fp8Options options;
      options.gradients = hybrid ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
      options.history = 2;
      options.most_recent = most_recent;
      state_->weights().set_fp8(std::make_unique<nn::Fp8Linears>(ctx_, parameters_, options));
      Emulated of_x(Fp8Format::kE4M3, 2, most_recent), of_w(Fp8Format::kE4M3, 2, most_recent),
          of_dy(options.gradients, 2, most_recent);
      for (const int power : {0, 4, -4, -8, 0, 0, 8}) {
        const double size = std::ldexp(1.0, power);
        set_weights(size / 4);
        const Numbers bias = numbers(state_->weights().view(b_));
        Numbers dw(kOut * kIn), db(kOut);
        for (int micro = 0; micro < 2; ++micro) {
          nn::Tape tape(ctx_, state_->weights(), &state_->gradients(), {});
          state_->weights().begin_pass();
          const nn::Value x = tape.make_value(random_bf16({2, kRows / 2, kIn}, size));
          const nn::Value y = nn::linear(tape, x, w_, b_);
          const Numbers x8 = of_x.cast(numbers(x.data));
          const Numbers w8 = of_w.cast(numbers(state_->weights().view(w_)));
          expect_product(y.data, kRows, kOut, kIn, x8, false, w8, true, bias, {});
          const Tensor dy = random_bf16(y.data.shape(), 1e-3 * size);
          y.slot->add(ctx_, dy, true);
          tape.backward();
          state_->finish_backward();
          state_->weights().end_pass();
          const Numbers dy8 = of_dy.cast(numbers(dy));
          expect_product(x.slot->gradient(), kRows, kIn, kOut, dy8, false, w8, false, {}, {});
          const Tensor sum = state_->gradients().gradient(w_);
          expect_product(sum, kOut, kIn, kRows, dy8, true, x8, false, {}, dw);
          dw = numbers(sum);
          const Numbers raw = numbers(dy);
          for (size_t i = 0; i < raw.size(); ++i) db[i % kOut] += raw[i];
        }
        const Numbers bias_gradient = numbers(state_->gradients().gradient(b_));
        for (size_t i = 0; i < db.size(); ++i) EXPECT_NEAR(bias_gradient[i], db[i], 1e-5 * size);
        state_->weights().fp8()->finish_step(ctx_);
        of_x.finish_step();
        of_w.finish_step();
        of_dy.finish_step();
        const Tensor saved = state_->weights().fp8()->saved(w_, device_);
        std::vector<float> expected = of_x.saved();
        for (const Emulated* other : {&of_w, &of_dy}) {
          const std::vector<float> row = other->saved();
          expected.insert(expected.end(), row.begin(), row.end());
        }
        EXPECT_EQ(flat(saved), expected);
        state_->gradients().clear(ctx_);
      }
      state_->weights().set_fp8(nullptr);
    }
  }
}

// As experts have them: another number in every micro batch, of no multiple of anything, and none
// before there is a scale, within a step and throughout one.
TEST_F(Fp8Layer, RowsMayBeOfAnyNumber) {
  nn::Fp8Options options;
  options.history = 2;
  state_->weights().set_fp8(std::make_unique<nn::Fp8Linears>(ctx_, parameters_, options));
  Emulated of_x(Fp8Format::kE4M3, 2, false), of_w = of_x, of_dy(Fp8Format::kE5M2, 2, false);
  std::uniform_int_distribution<int64_t> any(1, 70);
  const int64_t steps[][3] = {{0, 0, 0},
                              {0, 5, 0},
                              {any(random_), 0, 1},
                              {0, 0, 0},
                              {any(random_), any(random_), any(random_)}};
  for (const auto& counts : steps) {
    set_weights(0.2);
    const Numbers bias = numbers(state_->weights().view(b_));
    Numbers dw(kOut * kIn);
    for (const int64_t rows : counts) {
      SCOPED_TRACE(str_cat(rows, " rows"));
      nn::Tape tape(ctx_, state_->weights(), &state_->gradients(), {});
      state_->weights().begin_pass();
      const nn::Value x = tape.make_value(random_bf16({rows, kIn}, 1));
      const nn::Value y = nn::linear(tape, x, w_, b_);
      const Numbers w8 = of_w.cast(numbers(state_->weights().view(w_)));
      const Tensor dy = random_bf16(y.data.shape(), 1e-3);
      y.slot->add(ctx_, dy, true);
      tape.backward();
      state_->finish_backward();
      state_->weights().end_pass();
      if (rows > 0) {
        const Numbers x8 = of_x.cast(numbers(x.data)), dy8 = of_dy.cast(numbers(dy));
        expect_product(y.data, rows, kOut, kIn, x8, false, w8, true, bias, {});
        expect_product(x.slot->gradient(), rows, kIn, kOut, dy8, false, w8, false, {}, {});
        const Tensor sum = state_->gradients().gradient(w_);
        expect_product(sum, kOut, kIn, rows, dy8, true, x8, false, {}, dw);
      }
      dw = numbers(state_->gradients().gradient(w_));
    }
    state_->weights().fp8()->finish_step(ctx_);
    of_x.finish_step();
    of_w.finish_step();
    of_dy.finish_step();
    std::vector<float> expected;
    for (const Emulated* one : {&of_x, &of_w, &of_dy}) {
      const std::vector<float> row = one->saved();
      expected.insert(expected.end(), row.begin(), row.end());
    }
    EXPECT_EQ(flat(state_->weights().fp8()->saved(w_, device_)), expected);
    state_->gradients().clear(ctx_);
  }
  state_->weights().set_fp8(nullptr);
}

// Queries, keys and values, say.
TEST_F(Fp8Layer, LayersThatReadOneTensorShareItsCodes) {
  state_->weights().set_fp8(std::make_unique<nn::Fp8Linears>(ctx_, parameters_, nn::Fp8Options{}));
  const auto input_scale = [&](nn::ParamId id) {
    return flat(state_->weights().fp8()->saved(id, device_))[0];
  };
  set_weights(0.1);
  nn::Tape tape(ctx_, state_->weights(), &state_->gradients(), {});
  state_->weights().begin_pass();
  const nn::Value x = tape.make_value(random_bf16({kRows, kIn}, 1));
  nn::linear(tape, x, w_, b_);
  const nn::Value y = nn::linear(tape, x, other_, nn::kNoParam);
  EXPECT_GT(input_scale(w_), 0);
  EXPECT_EQ(input_scale(other_), 0);
  Emulated of_x(Fp8Format::kE4M3, 1, false), of_w = of_x, of_dy(Fp8Format::kE5M2, 1, false);
  const Numbers x8 = of_x.cast(numbers(x.data)),
                w8 = of_w.cast(numbers(state_->weights().view(other_)));
  expect_product(y.data, kRows, kOut, kIn, x8, false, w8, true, {}, {});
  const Tensor dy = random_bf16(y.data.shape(), 1);
  y.slot->add(ctx_, dy, true);
  tape.backward();
  state_->finish_backward();
  expect_product(state_->gradients().gradient(other_), kOut, kIn, kRows, of_dy.cast(numbers(dy)),
                 true, x8, false, {}, Numbers(kOut * kIn));
  // A part of it is another tensor.
  nn::Tape second(ctx_, state_->weights(), &state_->gradients(), {});
  nn::linear(second, second.make_value(x.data.slice(0, 0, 8)), other_, nn::kNoParam);
  EXPECT_GT(input_scale(other_), 0);
  state_->weights().end_pass();
}

// Where cuBLASLt refuses others, without a word.
TEST_F(Fp8Layer, InversesLieAtMultiplesOf16Bytes) {
  state_->weights().set_fp8(std::make_unique<nn::Fp8Linears>(ctx_, parameters_, nn::Fp8Options{}));
  nn::Fp8Linears& fp8 = *state_->weights().fp8();
  const Tensor x = random_bf16({kRows, kIn}, 1), dy = random_bf16({kRows, kOut}, 1);
  Tensor db;
  for (const nn::ParamId id : {w_, other_}) {
    for (const ops::Fp8Tensor& codes :
         {fp8.input(ctx_, id, x.slice(0, 0, id == w_ ? kRows : 8), {}),
          fp8.weight(ctx_, id, random_bf16({kOut, kIn}, 1), {}),
          fp8.gradient(ctx_, id, dy, {}, db)}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(codes.inverse.raw()) % 16, 0u);
    }
  }
}

// The adapter's products are of the compute type, and the layer's are what they are without it.
TEST_F(Fp8Layer, AnAdapterStandsBesideTheCodes) {
  constexpr int64_t kRank = 4;
  constexpr double kScale = 0.5;
  nn::Parameter low;
  low.name = "a";
  low.shape = {kRank, kIn};
  nn::Adapter adapter;
  adapter.a = parameters_.add(low);
  low.name = "b'";
  low.shape = {kOut, kRank};
  adapter.b = parameters_.add(low);
  adapter.scale = kScale;
  state_.emplace(parameters_, device_);
  state_->set_compute_type(ctx_, DType::kBFloat16);
  state_->gradients().allocate(ctx_, DType::kFloat32);
  set_weights(0.2);
  const Tensor input = random_bf16({kRows, kIn}, 1), dy = random_bf16({kRows, kOut}, 1);
  struct Seen {
    Numbers y, dx, dw, da, db;
  };
  const auto run = [&] {
    state_->weights().set_fp8(
        std::make_unique<nn::Fp8Linears>(ctx_, parameters_, nn::Fp8Options{}));
    state_->gradients().clear(ctx_);
    nn::Tape tape(ctx_, state_->weights(), &state_->gradients(), {});
    state_->weights().begin_pass();
    const nn::Value x = tape.make_value(input);
    const nn::Value y = nn::linear(tape, x, w_, b_);
    const Numbers made = numbers(y.data);
    y.slot->add(ctx_, dy, true);
    tape.backward();
    state_->finish_backward();
    const auto gradient = [&](nn::ParamId id) { return numbers(state_->gradients().gradient(id)); };
    return Seen{made, numbers(x.slot->gradient()), gradient(w_), gradient(adapter.a),
                gradient(adapter.b)};
  };
  const Seen alone = run();
  parameters_.adapt(w_, adapter);
  const Seen beside = run();
  EXPECT_EQ(beside.dw, alone.dw);

  const Numbers x = numbers(input), g = numbers(dy);
  const Numbers a = numbers(state_->weights().view(adapter.a));
  const Numbers b = numbers(state_->weights().view(adapter.b));
  Numbers x_low(kRows * kRank), x_size(x_low.size()), g_low(x_low.size()), g_size(x_low.size());
  product(kRows, kRank, kIn, x, false, a, true, x_low, x_size);
  product(kRows, kRank, kOut, g, false, b, false, g_low, g_size);
  // Of each number a few roundings to bf16, of the parts and of their sum.
  const auto expect = [&](const Numbers& actual, int64_t m, int64_t n, int64_t k, const Numbers& l,
                          bool tl, const Numbers& r, bool tr, const Numbers& base) {
    Numbers expected(actual.size()), size(actual.size());
    product(m, n, k, l, tl, r, tr, expected, size);
    for (size_t i = 0; i < actual.size(); ++i) {
      const double before = base.empty() ? 0 : base[i];
      ASSERT_NEAR(actual[i], before + kScale * expected[i],
                  0x1p-6 * (std::fabs(before) + kScale * size[i]))
          << i;
    }
  };
  expect(beside.y, kRows, kOut, kRank, x_low, false, b, true, alone.y);
  expect(beside.dx, kRows, kIn, kRank, g_low, false, a, false, alone.dx);
  expect(beside.da, kRank, kIn, kRows, g_low, true, x, false, {});
  expect(beside.db, kOut, kRank, kRows, g, true, x_low, false, {});
  state_->weights().set_fp8(nullptr);
}

// An MLP whose casts apply the function and its derivative has the bits of its layers one after
// another: results, gradients, scales.
TEST_F(Fp8Layer, AnMlpIsItsLayersOneAfterAnother) {
  const nn::ParamId down = [&] {
    nn::Parameter weight;
    weight.name = "down";
    weight.shape = {kIn, kOut};
    weight.projection = true;
    return parameters_.add(weight);
  }();
  state_.emplace(parameters_, device_);
  state_->set_compute_type(ctx_, DType::kBFloat16);
  state_->gradients().allocate(ctx_, DType::kFloat32);
  set_weights(0.2);
  std::vector<Tensor> xs, dys;
  for (int step = 0; step < 3; ++step) {
    xs.push_back(random_bf16({kRows, kIn}, std::ldexp(1.0, step)));
    dys.push_back(random_bf16({kRows, kIn}, std::ldexp(1e-3, 2 * step)));
  }
  enum class Way { kGelu, kGated };
  for (const Way way : {Way::kGelu, Way::kGated}) {
    std::vector<std::vector<float>> seen[2];
    for (const bool fused : {false, true}) {
      state_->weights().set_fp8(
          std::make_unique<nn::Fp8Linears>(ctx_, parameters_, nn::Fp8Options{}));
      std::vector<std::vector<float>>& out = seen[fused ? 1 : 0];
      for (size_t step = 0; step < xs.size(); ++step) {
        nn::Tape tape(ctx_, state_->weights(), &state_->gradients(), {});
        state_->weights().begin_pass();
        const nn::Value x = tape.make_value(xs[step]);
        const nn::Projection p{down, nn::kNoParam};
        nn::Value y;
        if (way == Way::kGelu && fused) {
          y = nn::linear_gelu_linear(tape, x, {w_, b_}, p, ops::Gelu::kErf);
        } else if (way == Way::kGelu) {
          const nn::Value pre = nn::linear(tape, x, w_, b_);
          y = nn::linear(tape, nn::activation(tape, pre, ops::Activation::kGeluErf), down,
                         nn::kNoParam);
        } else {
          const nn::Value gate = nn::linear(tape, x, w_, b_),
                          up = nn::linear(tape, x, other_, nn::kNoParam);
          y = fused ? nn::gated_linear(tape, gate, up, ops::Activation::kSilu, p)
                    : nn::linear(tape, nn::gated_activation(tape, gate, up, ops::Activation::kSilu),
                                 down, nn::kNoParam);
        }
        y.slot->add(ctx_, dys[step], false);
        tape.backward();
        state_->finish_backward();
        state_->weights().end_pass();
        out.push_back(float_numbers(y.data));
        out.push_back(float_numbers(x.slot->gradient()));
        for (const nn::ParamId id : {w_, b_, other_, down}) {
          if (way == Way::kGelu && id == other_) continue;
          out.push_back(float_numbers(state_->gradients().gradient(id)));
        }
        state_->weights().fp8()->finish_step(ctx_);
        for (const nn::ParamId id : {w_, down}) {
          out.push_back(flat(state_->weights().fp8()->saved(id, device_)));
        }
        state_->gradients().clear(ctx_);
      }
      state_->weights().set_fp8(nullptr);
    }
    EXPECT_EQ(seen[0], seen[1]);
  }
}

TEST_F(Fp8Layer, StateFromACheckpointIsChecked) {
  state_->weights().set_fp8(std::make_unique<nn::Fp8Linears>(ctx_, parameters_, nn::Fp8Options{}));
  nn::Fp8Linears& fp8 = *state_->weights().fp8();
  const auto numbers_of = [&](float scale, float amax, float old) {
    Tensor out = Tensor::zeros(device_, DType::kFloat32, {3, 5}, MemoryTag::kOther);
    for (int64_t role = 0; role < 3; ++role) {
      float* const row = out.data<float>() + role * 5;
      row[0] = scale;
      row[1] = amax;
      row[2] = row[3] = row[4] = old;
    }
    return out;
  };
  for (const Tensor& bad : {numbers_of(3, 0, 0), numbers_of(-2, 0, 0), numbers_of(2, NAN, 0),
                            numbers_of(2, 0, INFINITY), numbers_of(2, 0, -1)}) {
    EXPECT_THAT(error_of(Code::kCorrupt, [&] { fp8.restore(w_, bad); }), HasSubstr("of w"));
  }
  fp8.restore(w_, numbers_of(0.5, 3, 7));
  // Three steps of sixteen.
  std::vector<float> row(18, 0.0f), expected;
  row[0] = 0.5;
  row[1] = 3;
  row[2] = row[3] = row[4] = 7;
  for (int role = 0; role < 3; ++role) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_EQ(flat(fp8.saved(w_, device_)), expected);
  fp8.restore(w_, Tensor());
  EXPECT_EQ(flat(fp8.saved(w_, device_)), std::vector<float>(54, 0.0f));
}

TEST_F(Fp8Layer, OperatorsCheckWhatTheyAreGiven) {
  const auto numbers_of = [&](DType dtype, const Shape& shape) {
    return Tensor::zeros(device_, dtype, shape, MemoryTag::kOther);
  };
  const auto scaling = [&] {
    const auto one = [&] { return numbers_of(DType::kFloat32, {1}); };
    return ops::Fp8Scaling{one(), one(), one()};
  };
  const auto codes = [&](int64_t rows, int64_t columns) {
    ops::Fp8Tensor out;
    out.codes = numbers_of(DType::kUInt8, {rows, columns});
    out.inverse = numbers_of(DType::kFloat32, {1});
    return out;
  };
  const auto refusal = [&](const std::function<void()>& call) {
    return error_of(Code::kInvalidArgument, call);
  };
  const Tensor x = numbers_of(DType::kBFloat16, {2, 16});
  ops::Fp8Tensor to = codes(2, 16), narrow = codes(2, 8), none;
  Tensor none_of_it;
  EXPECT_THAT(
      refusal([&] {
        ops::fp8_cast(ctx_, numbers_of(DType::kFloat32, {2, 16}), scaling(), to, none_of_it);
      }),
      HasSubstr("fp8_cast: x must be bfloat16"));
  EXPECT_THAT(refusal([&] { ops::fp8_cast(ctx_, x, scaling(), narrow, none_of_it); }),
              HasSubstr("codes must have shape"));
  EXPECT_THAT(refusal([&] { ops::fp8_cast(ctx_, x, ops::Fp8Scaling{}, to, none_of_it); }),
              HasSubstr("scale is missing"));
  Tensor y = numbers_of(DType::kBFloat16, {2, 3});
  EXPECT_THAT(refusal([&] { ops::fp8_linear(ctx_, to, codes(3, 32), Tensor(), y); }),
              HasSubstr("16 and 32 terms"));
  EXPECT_THAT(refusal([&] { ops::fp8_linear(ctx_, to, none, Tensor(), y); }),
              HasSubstr("w has no codes"));
  EXPECT_THAT(refusal([&] { ops::fp8_linear(ctx_, to, codes(4, 16), Tensor(), y); }),
              HasSubstr("8 elements"));
  Tensor half = numbers_of(DType::kFloat16, {2, 3});
  EXPECT_THAT(refusal([&] { ops::fp8_linear(ctx_, to, codes(3, 16), Tensor(), half); }),
              HasSubstr("cannot be float16"));
  const ops::Fp8Format formats[] = {Fp8Format::kE4M3};
  const Tensor four = numbers_of(DType::kFloat32, {4});
  EXPECT_THAT(refusal([&] {
                ops::fp8_update(ctx_, {formats, false, 0, four, numbers_of(DType::kFloat32, {3, 2}),
                                       four, four});
              }),
              HasSubstr("history must be [4, steps]"));
}

// ---- models ----

Json llama_config() {
  return {{"model_type", "llama"},    {"vocab_size", 61},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 32}};
}
Json fp8_config(const Json& more = Json::object()) {
  Json config = base_config();
  config["bf16"] = {{"enabled", true}};
  config["fp8"] = {{"enabled", true}, {"amax_history_len", 3}};
  return with(std::move(config), more);
}
std::vector<float> scaling_of(Engine& engine) {
  std::vector<float> out;
  const nn::Fp8Linears& fp8 = *train_state(*engine.model()).weights().fp8();
  for (const nn::ParamId id : fp8.weights()) {
    const std::vector<float> one = flat(fp8.saved(id, engine.model()->host()));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

// Twenty steps of both: the losses stay near each other, are not the same, and fall by more than
// `fall`.
void expect_to_follow(Engine& fp8, Engine& bf16, double fall) {
  double first = 0, last = 0;
  bool differs = false;
  for (int step = 0; step < 20; ++step) {
    const double expected = bf16.train_batch().loss;
    last = fp8.train_batch().loss;
    if (step == 0) first = last;
    EXPECT_NEAR(last, expected, 0.03 * expected) << "step " << step;
    differs = differs || last != expected;
  }
  EXPECT_LT(last, first - fall);
  EXPECT_TRUE(differs);
}

// Casts round to 4 bits; over these steps the loss falls by about 2, and the two stay this near.
TEST(Fp8Training, FollowsBf16) {
  for (const Json& model : {model_config(0), llama_config()}) {
    SCOPED_TRACE(model.at("model_type").get<std::string>());
    const auto fp8 = make_engine(fp8_config(), model);
    const auto bf16 = make_engine(fp8_config({{"fp8", {{"enabled", false}}}}), model);
    EXPECT_EQ(train_state(*fp8->model()).weights().fp8()->weights().size(),
              model.at("model_type") == "gpt2" ? 8U : 14U);
    expect_to_follow(*fp8, *bf16, 1);
  }
}

// The base is frozen; adapters learn beside its codes, in every family of layers, and go on from a
// checkpoint with the same bits.
TEST(Fp8Training, AdaptersLearnBesideAFrozenBase) {
  const Folder folder;
  for (const Json& model : {model_config(0), llama_config()}) {
    SCOPED_TRACE(model.at("model_type").get<std::string>());
    const auto make = [&](bool fp8) {
      auto adapted = models::Model::create(model, 3);
      models::LoraOptions lora;
      lora.target_modules = {"all-linear"};
      lora.r = 4;
      lora.dropout = 0.1;
      models::add_lora(*adapted, lora);
      auto engine = std::make_unique<Engine>(dump_json(fp8_config({{"fp8", {{"enabled", fp8}}}})),
                                             adapted, nullptr);
      engine->set_dataset(periodic_data());
      return engine;
    };
    const auto fp8 = make(true), bf16 = make(false);
    const auto base = [](Engine& engine) {
      std::vector<float> out;
      for (nn::ParamId id = 0; id < engine.model()->parameters().size(); ++id) {
        const nn::Parameter& p = engine.model()->parameters()[id];
        if (p.trainable) continue;
        const std::vector<float> one = flat(engine.model()->get(p.name));
        out.insert(out.end(), one.begin(), one.end());
      }
      return out;
    };
    const std::vector<float> before = base(*fp8);
    expect_to_follow(*fp8, *bf16, 0.02);
    EXPECT_TRUE(same_bits(base(*fp8), before));
    fp8->save(folder.path(), "adapted");
    const auto resumed = make(true);
    resumed->load(folder.path(), "adapted");
    EXPECT_EQ(resumed->train_batch().loss, fp8->train_batch().loss);
    EXPECT_TRUE(same_bits(weights(*resumed), weights(*fp8)));
  }
}

TEST(Fp8Training, ResumesWithTheSameBits) {
  const Folder folder;
  for (const Json& more :
       {Json::object(),
        Json{{"fp8", {{"amax_compute_algo", "most_recent"}, {"format", "e4m3"}, {"margin", 1}}}}}) {
    const Json config = fp8_config(more);
    const auto straight = make_engine(config);
    straight->train_batch();
    straight->train_batch();
    straight->save(folder.path("between"), "two");
    // In the middle of a step, whose largest numbers are remembered too.
    const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2);
    const MicroBatch batch{ids, ids, {}, {}, {}};
    straight->backward(straight->forward(batch));
    straight->step();
    straight->save(folder.path("within"), "half");
    const auto finish = [&](Engine& engine) {
      engine.backward(engine.forward(batch));
      engine.step();
      return engine.train_batch().loss;
    };
    const double loss = finish(*straight);
    const auto resumed = make_engine(config);
    resumed->load(folder.path("within"), "half");
    EXPECT_EQ(finish(*resumed), loss);
    EXPECT_TRUE(same_bits(weights(*resumed), weights(*straight)));
    EXPECT_TRUE(same_bits(scaling_of(*resumed), scaling_of(*straight)));
    const auto earlier = make_engine(config);
    earlier->train_batch();
    earlier->load(folder.path("between"), "two");
    earlier->backward(earlier->forward(batch));
    earlier->step();
    EXPECT_EQ(finish(*earlier), loss);
    EXPECT_TRUE(same_bits(scaling_of(*earlier), scaling_of(*straight)));
  }
}

// With and without fp8, and with histories of other lengths.
TEST(Fp8Training, CheckpointsOfOtherConfigurationsLoad) {
  const Folder folder;
  const auto fp8 = make_engine(fp8_config());
  fp8->train_batch();
  fp8->save(folder.path(), "fp8");
  const auto bf16 = make_engine(fp8_config({{"fp8", {{"enabled", false}}}}));
  bf16->load(folder.path(), "fp8");
  EXPECT_TRUE(same_bits(weights(*bf16), weights(*fp8)));
  bf16->save(folder.path(), "bf16");
  fp8->train_batch();
  fp8->load(folder.path(), "bf16");
  for (const float v : scaling_of(*fp8)) EXPECT_EQ(v, 0);
  EXPECT_TRUE(fp8->train_batch().applied);
  const auto longer = make_engine(fp8_config({{"fp8", {{"amax_history_len", 5}}}}));
  longer->load(folder.path(), "fp8");
  EXPECT_TRUE(longer->train_batch().applied);
}

TEST(Fp8Training, RecomputationAndThreadsChangeNoBits) {
  const auto plain = make_engine(fp8_config());
  const auto again =
      make_engine(fp8_config({{"activation_checkpointing", {{"enabled", true}}}, {"threads", 2}}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(again->train_batch().loss, plain->train_batch().loss);
  EXPECT_TRUE(same_bits(weights(*again), weights(*plain)));
  EXPECT_TRUE(same_bits(scaling_of(*again), scaling_of(*plain)));
  // Evaluation is in bf16 and leaves no trace.
  const std::vector<float> before = scaling_of(*plain);
  EXPECT_GT(plain->evaluate(*periodic_data(), 2), 0);
  EXPECT_TRUE(same_bits(scaling_of(*plain), before));
}

TEST(Fp8Training, OverflowSkipsTheStep) {
  for (const float bad : {std::numeric_limits<float>::infinity(), NAN}) {
    const auto engine = make_engine(fp8_config());
    engine->train_batch();
    const std::string name = "h.0.mlp.c_fc.weight";
    const Tensor good = engine->model()->get(name);
    Tensor spoiled = engine->model()->get(name);
    spoiled.data<float>()[7] = bad;
    engine->model()->set(name, spoiled);
    const std::vector<float> before = weights(*engine);
    const StepReport report = engine->train_batch();
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.skip_reason, SkipReason::kNonFinite);
    EXPECT_TRUE(same_bits(weights(*engine), before));
    for (const float v : scaling_of(*engine)) EXPECT_TRUE(std::isfinite(v));
    engine->model()->set(name, good);
    EXPECT_TRUE(engine->train_batch().applied);
  }
}

TEST(Fp8Training, RefusesWhatDoesNotFit) {
  const auto refusal = [](const Json& config, Code code, const Json& model = model_config()) {
    return error_of(code, [&] { make_engine(config, model); });
  };
  EXPECT_THAT(refusal(fp8_config({{"bf16", {{"enabled", false}}}}), Code::kConfig),
              HasSubstr("/fp8/enabled: needs bf16"));
  const Json tiled = {{"stage", 3}, {"stage3_tile_size", 400}};
  EXPECT_THAT(refusal(fp8_config({{"zero_optimization", tiled}}), Code::kConfig),
              HasSubstr("/fp8/enabled: multiplies whole weights"));
  EXPECT_THAT(refusal(fp8_config({{"fp8", {{"amax_history_len", 0}}}}), Code::kConfig),
              HasSubstr("/fp8/amax_history_len"));
  EXPECT_THAT(refusal(fp8_config({{"fp8", {{"format", "e5m2"}}}}), Code::kConfig),
              HasSubstr("/fp8/format"));
  Json narrow = model_config();
  narrow["n_embd"] = 24;
  EXPECT_THAT(refusal(fp8_config(), Code::kConfig, narrow), HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace ds::engine_test
