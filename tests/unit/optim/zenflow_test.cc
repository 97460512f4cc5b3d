// ZenFlow beside a reference in double precision that has no clocks to hand over: it keeps moments
// with their bias corrected. And bit for bit: as plain AdamW where nothing waits, in files as in
// memory, and gone on with as without a stop.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "file_store.h"
#include "fresh_seed.h"
#include "kernels/optimizer/columns.h"
#include "optim/beside_update.h"
#include "optim/update_intervals.h"
#include "optim_world.h"

namespace ds::optim::testing {
namespace {

using ds::testing::bytes_of;
using ds::testing::FileFactory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Options = ZeroConfig::ZenFlow;

constexpr const char* kAdamW = R"({"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1}})";
constexpr const char* kAdamL2 = R"({"type": "Adam", "params": {"lr": 0.02, "weight_decay": 0.1,
                                  "adam_w_mode": false}})";

Options options(double topk, std::optional<int64_t> update, std::optional<int64_t> select,
                bool overlap = false, int64_t warm_up = 0) {
  Options out;
  out.topk_ratio = topk;
  out.update_interval = update;
  out.select_interval = select;
  out.select_strategy = select ? Options::Strategy::kStep : Options::Strategy::kEpoch;
  out.overlap_step = overlap;
  out.full_warm_up_rounds = warm_up;
  return out;
}

// Of all gradients in the world, as they are.
double norm_of(World& world) {
  double squares = 0;
  world.for_elements(
      [&](const TensorPlace&, int64_t i) { squares += world.gradient(i) * world.gradient(i); });
  return std::sqrt(squares);
}

UpdateStep step_in(World& world, const Optimizer& optimizer, float grad_scale = 1) {
  UpdateStep step = world.step_of(optimizer, grad_scale);
  step.norm = norm_of(world);
  return step;
}

std::unique_ptr<Optimizer> zenflow(World& world, const char* json, const Options& options,
                                   std::shared_ptr<ArrayFactory> files = nullptr) {
  const std::vector<TensorPlace>& places = world.places();
  return make_zenflow(parse_optimizer(json), options, owned_places(places, 0, span_of(places)),
                      world.ctx().device, {}, nullptr, std::move(files));
}

// ---- the reference ----

// One tensor in double precision, from the formulas of docs/training.md.
class Reference {
 public:
  Reference(const OptimizerConfig& config, const Options& options, World& world)
      : config_(config), options_(options), world_(world) {
    const auto n = static_cast<size_t>(span_of(world.places()));
    for (std::vector<double>* array : {&p_, &mean_, &square_, &sum_, &next_, &cancelled_}) {
      array->resize(n);
    }
    world.for_elements([&](const TensorPlace&, int64_t i) { p_[at(i)] = world.master(i); });
    chosen_.resize(world.places().size());
  }

  void step(double scale) {
    if (steps_ < options_.full_warm_up_rounds) {
      world_.for_elements([&](const TensorPlace& place, int64_t i) {
        p_[at(i)] = updated(place, i, scale * world_.gradient(i), steps_ + 1);
      });
      ++updates_;
    } else {
      some(scale);
    }
    ++steps_;
  }

  double weight(int64_t i) const { return p_[at(i)]; }
  // How far fp32 may be from it where a gradient and its L2 term have cancelled each other: what
  // the rounding of their sum then changes in the quotient of the moments.
  double cancelled(int64_t i) const { return cancelled_[at(i)]; }
  int64_t updates() const { return updates_; }
  int choices() const { return choices_; }
  const std::vector<std::vector<bool>>& chosen() const { return chosen_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  void some(double scale) {
    const bool interval =
        options_.select_interval && waiting_ == 0 && since_choice_ >= *options_.select_interval;
    if (choices_ == 0 || interval) choose();
    ++since_choice_;
    ++waiting_;
    const bool due =
        options_.update_interval ? waiting_ >= *options_.update_interval : gradients_ask(scale);
    for_sides([&](const TensorPlace& place, int64_t i, bool chosen) {
      const double g = scale * world_.gradient(i);
      if (chosen) {
        p_[at(i)] = updated(place, i, g, steps_ + 1);
        return;
      }
      sum_[at(i)] += g;
      if (!due) return;
      if (options_.overlap_step && has_next_) p_[at(i)] = next_[at(i)];
      const double after =
          updated(place, i, sum_[at(i)] / static_cast<double>(waiting_), updates_ + 1);
      (options_.overlap_step ? next_ : p_)[at(i)] = after;
      sum_[at(i)] = 0;
    });
    if (!due) return;
    has_next_ = options_.overlap_step;
    ++updates_;
    waiting_ = 0;
    std::fill(masses_.begin(), masses_.end(), std::pair{0.0, 0.0});
  }

  // Moments are kept corrected: m / (1 - beta^t) of the t that they were last updated with.
  double updated(const TensorPlace& place, int64_t i, double g, int64_t t) {
    const double decay = place.decays ? config_.weight_decay : 0;
    double& p = p_[at(i)];
    const double rounding = config_.decoupled ? 0 : 0x1p-23 * (std::abs(g) + std::abs(decay * p));
    if (!config_.decoupled) g += decay * p;
    const auto follow = [&](double& corrected, double beta, double value) {
      const double now = 1 - std::pow(beta, static_cast<double>(t));
      const double before = 1 - std::pow(beta, static_cast<double>(t - 1));
      corrected = (beta * before * corrected + (1 - beta) * value) / now;
    };
    follow(mean_[at(i)], config_.beta1, g);
    follow(square_[at(i)], config_.beta2, g * g);
    const double base = config_.decoupled ? p * (1 - config_.lr * decay) : p;
    const double root = std::sqrt(square_[at(i)]) + config_.eps;
    cancelled_[at(i)] += config_.lr * 2 * rounding / root;  // in both moments
    return base - config_.lr * mean_[at(i)] / root;
  }

  std::vector<double> sums(const TensorPlace& place) const {
    const int64_t columns = place.shape[1];
    std::vector<double> out(static_cast<size_t>(columns));
    for (int64_t i = place.begin; i < place.end; ++i) {
      out[at((i - place.begin) % columns)] += std::abs(world_.gradient(i));
    }
    return out;
  }

  void choose() {
    for (int64_t i = 0; has_next_ && i < std::ssize(p_); ++i) {
      if (!side(i)) p_[at(i)] = next_[at(i)];
    }
    has_next_ = false;
    for (size_t k = 0; k < chosen_.size(); ++k) {
      const TensorPlace& place = world_.places()[k];
      if (place.shape.dims() != 2) continue;
      const std::vector<double> own = sums(place);
      std::vector<size_t> order(own.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return own[a] > own[b]; });
      chosen_[k].assign(own.size(), false);
      const auto most = static_cast<size_t>(options_.topk_ratio * static_cast<double>(own.size()));
      for (size_t c = 0; c < most; ++c) chosen_[k][order[c]] = true;
    }
    ++choices_;
    since_choice_ = 0;
  }

  // Whether enough matrices have added up as much as their chosen columns get in a step.
  bool gradients_ask(double scale) {
    masses_.resize(chosen_.size());
    int64_t matrices = 0, ask = 0;
    for (size_t k = 0; k < chosen_.size(); ++k) {
      const TensorPlace& place = world_.places()[k];
      if (place.shape.dims() != 2) continue;
      ++matrices;
      const std::vector<double> own = sums(place);
      double in = 0, out = 0, columns = 0;
      for (size_t c = 0; c < own.size(); ++c) {
        (chosen_[k][c] ? in : out) += own[c] * scale;
        columns += chosen_[k][c] ? 1 : 0;
      }
      const double others = static_cast<double>(own.size()) - columns;
      auto& [chosen_mean, other_sum] = masses_[k];
      const auto steps = static_cast<double>(waiting_);
      if (columns > 0) chosen_mean = (chosen_mean * (steps - 1) + in / columns) / steps;
      if (others > 0) other_sum += out / others;
      if (columns == 0 || others == 0 || other_sum >= chosen_mean) ++ask;
    }
    const auto wanted = static_cast<int64_t>(options_.auto_ratio * static_cast<double>(matrices));
    return ask >= std::max<int64_t>(1, wanted);
  }

  bool side(int64_t i) const {
    for (size_t k = 0; k < chosen_.size(); ++k) {
      const TensorPlace& place = world_.places()[k];
      if (i < place.begin || i >= place.end) continue;
      if (place.shape.dims() != 2) return true;
      return chosen_[k][at((i - place.begin) % place.shape[1])];
    }
    return true;  // padding
  }

  template <class Body>
  void for_sides(const Body& body) {
    world_.for_elements([&](const TensorPlace& place, int64_t i) { body(place, i, side(i)); });
  }

  OptimizerConfig config_;
  Options options_;
  World& world_;
  std::vector<double> p_, mean_, square_, sum_, next_, cancelled_;
  std::vector<std::vector<bool>> chosen_;
  std::vector<std::pair<double, double>> masses_;
  int64_t steps_ = 0, updates_ = 0, waiting_ = 0, since_choice_ = 0;
  int choices_ = 0;
  bool has_next_ = false;
};

struct Numbers {
  const char* name;
  const char* json;
  Options of;
};
void PrintTo(const Numbers& one, std::ostream* out) { *out << one.name; }

class ZenFlowNumbers : public ::testing::TestWithParam<Numbers> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, ZenFlowNumbers,
    ::testing::Values(Numbers{"OneChoice", kAdamW, options(0.25, 4, std::nullopt)},
                      Numbers{"ChoicesChange", kAdamW, options(0.25, 3, 5)},
                      Numbers{"WarmUpAndL2", kAdamL2, options(0.3, 3, 4, false, 5)},
                      Numbers{"Auto", kAdamW, options(0.2, std::nullopt, 6)},
                      Numbers{"NothingChosen", kAdamW, options(0, 3, 3)},
                      Numbers{"Overlap", kAdamW, options(0.25, 3, std::nullopt, true)},
                      Numbers{"OverlapAndChoices", kAdamW, options(0.25, 2, 5, true, 3)},
                      Numbers{"OverlapEveryStep", kAdamL2, options(0.25, 1, 4, true)}),
    [](const auto& one) { return one.param.name; });

// An update rounds a weight (1.5e-8 of those up to 0.25) and a quotient of moments (1e-6 of the
// rate 0.02), so that 17 of them stay below 1e-6; the bound is ten times that. A column on the
// wrong side is off by 1e-2.
TEST_P(ZenFlowNumbers, AreThoseOfTheReference) {
  const std::vector<Shape> shapes = {{40, 24}, {33}, {7, 100}, {3, 4, 5}, {64, 33}};
  WorldOptions with;
  with.seed = ds::run_seed();
  with.threads = 2;
  World world(make_places(shapes), with);
  const OptimizerConfig config = parse_optimizer(GetParam().json);
  Reference reference(config, GetParam().of, world);
  const auto optimizer = zenflow(world, GetParam().json, GetParam().of);
  int64_t some = 0;
  for (int i = 0; i < 17; ++i) {
    SCOPED_TRACE(i);
    world.next_gradients();
    const float scale = i % 3 == 0 ? 0.5f : 1.0f;
    reference.step(scale);
    optimizer->step(world.ctx(), step_in(world, *optimizer, scale), world.flat());
    some += optimizer->extent()->everything ? 0 : 1;
    double worst = 0;
    world.for_elements([&](const TensorPlace&, int64_t k) {
      const double off = std::abs(reference.weight(k) - world.master(k));
      worst = std::max(worst, off - reference.cancelled(k));
    });
    ASSERT_LT(worst, 1e-5);
  }
  EXPECT_GT(some, GetParam().of.update_interval.value_or(2) > 1 ? 3 : -1);
  EXPECT_GT(reference.choices(), GetParam().of.select_interval ? 1 : 0);
}

// ---- as plain AdamW where nothing waits ----

struct Form {
  const char* name;
  DType model, gradients;
  bool split;
  const char* json = kAdamW;
};
void PrintTo(const Form& one, std::ostream* out) { *out << one.name; }
class ZenFlowForms : public ::testing::TestWithParam<Form> {
 protected:
  WorldOptions with(int threads = 2) const {
    WorldOptions out;
    out.model = GetParam().model;
    out.gradients = GetParam().gradients;
    out.split = GetParam().split;
    out.threads = threads;
    out.seed = ds::run_seed();
    return out;
  }
  const std::vector<TensorPlace> places_ =
      make_places({{300, 200}, {77}, {64, 1024}, {5, 7}, {1}, {100, 900}}, 1, "h");
};
INSTANTIATE_TEST_SUITE_P(
    Forms, ZenFlowForms,
    ::testing::Values(Form{"Fp32", DType::kFloat32, DType::kFloat32, false},
                      Form{"Bf16", DType::kBFloat16, DType::kFloat32, false},
                      Form{"Fp16", DType::kFloat16, DType::kFloat16, false},
                      Form{"Split", DType::kBFloat16, DType::kBFloat16, true},
                      Form{"StatesBf16", DType::kBFloat16, DType::kFloat32, false,
                           R"({"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1},
                 "state_dtype": "bf16"})"}),
    [](const auto& form) { return form.param.name; });

void expect_same_states(const World& a, const Optimizer& one, const World& b,
                        const Optimizer& other) {
  for (size_t k = 0; k < a.places().size(); ++k) {
    for (const std::string& state : one.states(k)) {
      const Tensor x = one.read_state(a.ctx(), k, state), y = other.read_state(b.ctx(), k, state);
      EXPECT_EQ(std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())), 0)
          << k << " " << state;
    }
  }
}

TEST_P(ZenFlowForms, HaveTheBitsOfAdamWWhereNothingWaits) {
  const Options ways[] = {options(1, 4, 4), options(0.3, 1, 2), options(0.3, 4, 4, true, 100)};
  for (const Options& way : ways) {
    SCOPED_TRACE(::testing::Message() << way.topk_ratio << " " << way.full_warm_up_rounds);
    World plain_world(places_, with()), world(places_, with(1));
    const auto plain = plain_world.optimizer(parse_optimizer(GetParam().json));
    const auto flow = zenflow(world, GetParam().json, way);
    for (int i = 0; i < 6; ++i) {
      for (World* each : {&plain_world, &world}) each->next_gradients();
      plain->step(plain_world.ctx(), plain_world.step_of(*plain, 0.5f), plain_world.flat());
      flow->step(world.ctx(), step_in(world, *flow, 0.5f), world.flat());
    }
    EXPECT_EQ(world.master_bits(), plain_world.master_bits());
    EXPECT_EQ(bytes_of(world.flat().model), bytes_of(plain_world.flat().model));
    expect_same_states(plain_world, *plain, world, *flow);
  }
}

// ---- in files ----

FlatTensor filed(ArrayFactory& files, ArrayRole role, const char* name, const FlatTensor& from) {
  if (!from) return {};
  const Tensor& memory = from.memory();
  FlatTensor out(files.make({role, name, memory.dtype(), memory.elements()}), false);
  out.for_parts(0, memory.elements(), Access::kWrite, [&](const Tensor& part, int64_t at) {
    std::memcpy(part.raw(), memory.slice(0, at, at + part.elements()).raw(),
                static_cast<size_t>(part.bytes()));
  });
  return out;
}

// The counts of a factory are one thread's: here each array has a factory.
class FilesApart : public ArrayFactory {
 public:
  bool makes(ArrayRole) const override { return true; }
  std::shared_ptr<ArrayStore> make(const ArrayRequest& request) override {
    files_.push_back(std::make_shared<FileFactory>(most_elements()));
    files_.back()->counts->late = true;
    return files_.back()->make(request);
  }
  // Of an array that no other thread uses.
  int64_t on_the_way(std::string_view name) const {
    for (const auto& one : files_) {
      if (one->made.front().name == name) return one->counts->on_the_way;
    }
    return 0;
  }
  int64_t most_elements() const override { return 2 * kernels::kUpdateChunk + 5; }

 private:
  std::vector<std::shared_ptr<FileFactory>> files_;
};

TEST_P(ZenFlowForms, HaveTheBitsOfMemoryInFiles) {
  const Options ways[] = {options(0.3, 3, 4), options(0.1, 2, 5, true, 1)};
  for (const Options& way : ways) {
    SCOPED_TRACE(way.overlap_step);
    World near(places_, with()), far(places_, with(1));
    const auto files = std::make_shared<FilesApart>();
    const auto memory = zenflow(near, GetParam().json, way);
    const auto stored = zenflow(far, GetParam().json, way, files);
    FlatTensors flat;
    const FlatTensors& own = far.flat();
    flat.masters = filed(*files, ArrayRole::kMasters, "masters", own.masters);
    flat.low_halves = filed(*files, ArrayRole::kLowHalves, "low", own.low_halves);
    flat.gradients = filed(*files, ArrayRole::kGradients, "gradients", own.gradients);
    flat.model = own.model;
    if (!flat.model) {
      flat.model = Tensor::zeros(far.ctx().device, DType::kFloat32, {own.masters.elements()},
                                 MemoryTag::kOther);
      ops::read_array(far.ctx(), flat.masters, 0, const_cast<Tensor&>(flat.model.memory()));
    }
    for (int i = 0; i < 9; ++i) {
      for (World* world : {&near, &far}) world->next_gradients();
      ops::write_array(far.ctx(), own.gradients.memory(), flat.gradients, 0);
      memory->step(near.ctx(), step_in(near, *memory), near.flat());
      stored->step(far.ctx(), step_in(far, *stored), flat);
      const FlatTensor& expected = near.flat().model ? near.flat().model : near.flat().masters;
      ASSERT_EQ(bytes_of(flat.model), bytes_of(expected)) << i;
      EXPECT_EQ(files->on_the_way("waiting_gradient"), 0) << i;
      // Another thread reads them while steps go on.
      if (!way.overlap_step || i < 1 || !stored->extent()->everything) continue;
      EXPECT_EQ(files->on_the_way("masters") + files->on_the_way("low"), 0) << i;
    }
    stored->put_back();
    EXPECT_EQ(bytes_of(flat.masters), bytes_of(near.flat().masters));
    EXPECT_EQ(bytes_of(flat.low_halves), bytes_of(near.flat().low_halves));
    expect_same_states(near, *memory, far, *stored);
  }
}

// ---- gone on with ----

TEST_P(ZenFlowForms, GoOnFromWhatTheySaved) {
  const Options ways[] = {options(0.3, 3, 4), options(0.2, std::nullopt, 5, true),
                          options(0.2, 2, 5, true, 2)};
  for (const Options& way : ways) {
    for (const int stop : {1, 4, 5, 6, 7}) {
      SCOPED_TRACE(::testing::Message() << "stop " << stop << " overlap " << way.overlap_step);
      World whole(places_, with()), other(places_, with());
      const auto first = zenflow(whole, GetParam().json, way);
      auto second = zenflow(other, GetParam().json, way);
      for (int i = 0; i < 11; ++i) {
        for (World* world : {&whole, &other}) world->next_gradients();
        first->step(whole.ctx(), step_in(whole, *first), whole.flat());
        second->step(other.ctx(), step_in(other, *second), other.flat());
        if (i != stop) continue;
        const Json saved = parse_json(dump_json(second->save()), "saved", Code::kCorrupt);
        auto next = zenflow(other, GetParam().json, way);
        next->check_saved(saved);
        next->begin_load();
        for (size_t k = 0; k < places_.size(); ++k) {
          for (const std::string& state : second->states(k)) {
            if (next->may_lack(state, saved)) continue;
            next->write_state(other.ctx(), k, state, second->read_state(other.ctx(), k, state));
          }
        }
        next->set_steps(second->steps());
        next->restore(saved);
        second = std::move(next);
      }
      EXPECT_EQ(other.master_bits(), whole.master_bits());
      expect_same_states(whole, *first, other, *second);
    }
  }
}

// ---- errors, and small parts ----

TEST(ZenFlow, RefusesWhatItCannotDo) {
  World world(make_places({{8, 8}}), {});
  for (const char* json :
       {R"({"type": "Lion"})", R"({"type": "AdamW", "params": {"amsgrad": true}})",
        R"({"type": "AdamW", "state_dtype": "int8"})"}) {
    EXPECT_EQ(code_of([&] { zenflow(world, json, options(0.5, 2, {})); }), Code::kUnsupported);
  }
}

TEST(ZenFlow, ChecksWhatItReads) {
  World world(make_places({{8, 8}}), {});
  const auto flow = zenflow(world, kAdamW, options(0.5, 3, {}));
  world.next_gradients();
  flow->step(world.ctx(), step_in(world, *flow), world.flat());
  const Json good = flow->save();
  EXPECT_NO_THROW(flow->check_saved(good));
  EXPECT_NO_THROW(flow->check_saved(nullptr));
  const auto broken = [&](const char* key, const Json& value) {
    Json bad = good;
    bad[key] = value;
    return code_of([&] { flow->check_saved(bad); });
  };
  EXPECT_EQ(broken("waiting", -1), Code::kCorrupt);
  EXPECT_EQ(broken("updates", "many"), Code::kCorrupt);
  EXPECT_EQ(broken("magnitudes", 3), Code::kCorrupt);
  EXPECT_EQ(broken("columns", {{"layer0.weight", "0"}}), Code::kCorrupt);
  EXPECT_EQ(broken("columns", {{"layer0.weight", "zz"}}), Code::kCorrupt);
  EXPECT_EQ(broken("columns", {{"other", "00"}}), Code::kCorrupt);
  EXPECT_EQ(broken("columns", nullptr), Code::kOk) << "nothing was chosen yet";
  EXPECT_EQ(broken("next_ready", true), Code::kConfig);
}

TEST(ZenFlow, SaysThatAnUpdateWaits) {
  World world(make_places({{8, 8}}), {});
  const auto flow = zenflow(world, kAdamW, options(0.5, 1, {}, true));
  EXPECT_FALSE(flow->update_waits());
  world.next_gradients();
  flow->step(world.ctx(), step_in(world, *flow), world.flat());
  flow->put_back();
  EXPECT_TRUE(flow->update_waits());
  flow->begin_load();
  EXPECT_FALSE(flow->update_waits());
}

TEST(ZenFlow, TellsTheShareOfChosenElements) {
  World world(make_places({{8, 8}, {5}}), {});
  const auto flow = zenflow(world, kAdamW, options(0.5, 3, {}));
  world.next_gradients();
  flow->step(world.ctx(), step_in(world, *flow), world.flat());
  EXPECT_DOUBLE_EQ(flow->extent()->chosen, 37.0 / 69) << "four columns, and all that is no matrix";
}

TEST(ZenFlow, AnUpdateBesideHasTheOtherCores) {
  EXPECT_EQ(threads_beside(8, 0.25), 6);
  EXPECT_EQ(threads_beside(8, 0.1), 7);
  EXPECT_EQ(threads_beside(2, 0.5), 1);
  EXPECT_EQ(threads_beside(8, 0), 8);
  EXPECT_EQ(threads_beside(8, 1), 8);
}

TEST(ZenFlow, AnUpdateBesideReportsItsErrorUntilTheNext) {
  BesideUpdate beside(1);
  beside.wait();
  beside.start([](ThreadPool&) { fail(Code::kIo, "the disk is gone"); });
  EXPECT_EQ(code_of([&] { beside.wait(); }), Code::kIo);
  EXPECT_EQ(code_of([&] { beside.wait(); }), Code::kIo);
  beside.forget();
  beside.start([](ThreadPool& pool) { EXPECT_EQ(pool.threads(), 1); });
  beside.wait();
}

// ---- kernels ----

// Chosen elements and the others together are all, in either size of element.
TEST(Columns, AreTakenApartAndPutTogether) {
  std::mt19937 random(static_cast<uint32_t>(ds::run_seed()));
  ThreadPool pool(3);
  const auto check = [&]<class T>(T) {
    for (const size_t n : {1u, 77u, 100'000u}) {
      std::vector<T> from(n), to(n, T{0}), packed(n);
      std::iota(from.begin(), from.end(), T{1});
      for (const double share : {0.0, 0.1, 1.0}) {
        std::vector<int32_t> places;
        for (size_t i = 0; i < n; ++i) {
          if (std::bernoulli_distribution(share)(random)) places.push_back(static_cast<int32_t>(i));
        }
        std::fill(to.begin(), to.end(), T{0});
        kernels::copy_others(from.data(), sizeof(T), static_cast<int64_t>(n), places, to.data(),
                             pool);
        for (const int32_t place : places) ASSERT_EQ(to[static_cast<size_t>(place)], T{0});
        kernels::gather_elements(from.data(), sizeof(T), places, packed.data(), pool);
        kernels::scatter_elements(packed.data(), sizeof(T), places, to.data(), pool);
        EXPECT_EQ(to, from) << n << " " << share;
      }
    }
  };
  check(uint16_t{});
  check(uint32_t{});
}

// However the elements of a matrix are cut, and to units: the bound of an element's error is one.
TEST(Columns, SumsDoNotDependOnTheCuts) {
  constexpr int64_t kRows = 37, kColumns = 600, kAll = kRows * kColumns;
  std::mt19937 random(static_cast<uint32_t>(ds::run_seed()));
  std::normal_distribution<float> normal;
  std::vector<float> grad(kAll);
  std::generate(grad.begin(), grad.end(), [&] { return normal(random); });
  grad[5] = std::numeric_limits<float>::quiet_NaN();
  grad[6] = -std::numeric_limits<float>::infinity();
  const double unit = std::ldexp(static_cast<double>(kernels::kMostUnits), -4);
  ThreadPool pool(3), alone(1);
  std::vector<int64_t> whole(kColumns), cut(kColumns);
  kernels::add_column_sums(kAll, grad.data(), 0, kColumns, unit, whole.data(), pool);
  for (int64_t at = 0; at < kAll;) {
    const int64_t end = std::min(kAll, at + 1 + static_cast<int64_t>(random() % 2000));
    kernels::add_column_sums(end - at, grad.data() + at, at, kColumns, unit, cut.data(), alone);
    at = end;
  }
  EXPECT_EQ(cut, whole);
  for (size_t column = 7; column < kColumns; ++column) {
    double sum = 0;
    for (size_t row = 0; row < kRows; ++row) sum += std::abs(grad[row * kColumns + column]);
    EXPECT_NEAR(static_cast<double>(whole[column]), sum * unit, kRows);
  }
  for (const size_t column : {5u, 6u}) EXPECT_GE(whole[column], kernels::kMostUnits);
}

// With intervals that follow from the gradients: the others are updated when they have added up
// what the chosen ones get in a step, or when there is nothing to wait for.
TEST(ZenFlow, GradientsAskWhenTheyAddUp) {
  Options by_gradients = options(0.5, std::nullopt, std::nullopt);
  by_gradients.auto_ratio = 1;
  const auto due = [&](const std::vector<std::vector<UpdateIntervals::Magnitudes>>& steps) {
    UpdateIntervals intervals(by_gradients, steps[0].size());
    for (size_t i = 0; i < steps.size(); ++i) {
      intervals.add_gradients(steps[i]);
      if (i + 1 < steps.size()) intervals.end_step(/*all=*/false);
    }
    return intervals.due();
  };
  EXPECT_FALSE(due({{{1, 0.4}}}));
  EXPECT_FALSE(due({{{1, 0.4}}, {{1, 0.4}}}));
  EXPECT_TRUE(due({{{1, 0.4}}, {{1, 0.4}}, {{1, 0.4}}}));
  EXPECT_TRUE(due({{{1, 1}}})) << "as much at once";
  EXPECT_FALSE(due({{{1, 0}}})) << "columns whose gradients are zero";
  EXPECT_TRUE(due({{{0, 0}}}));
  EXPECT_FALSE(due({{{3, 1}}, {{0, 0.1}}})) << "zero in one of two steps";
  EXPECT_TRUE(due({{{-1, 0.1}}})) << "no column is chosen";
  EXPECT_TRUE(due({{{1, -1}}})) << "all are";
  EXPECT_FALSE(due({{{1, 1}, {1, 0.4}}})) << "one of two matrices";
  EXPECT_TRUE(due({{{1, 1}, {0.4, 0.4}}}));
}

TEST(ZenFlow, EpochsCountSteps) {
  Options by_epoch = options(0.1, 2, std::nullopt);
  by_epoch.select_interval = 2;
  UpdateIntervals intervals(by_epoch, 1);
  EXPECT_TRUE(intervals.chooses(false, 0));
  intervals.choose();
  std::vector<int> chose;
  for (int step = 1; step <= 14; ++step) {
    if (intervals.chooses(true, 3)) {
      chose.push_back(step);
      intervals.choose();
    }
    EXPECT_FALSE(intervals.chooses(true, 0)) << "without a data set";
    intervals.end_step(intervals.due());
  }
  EXPECT_THAT(chose, ElementsAre(7, 13));
}

}  // namespace
}  // namespace ds::optim::testing
