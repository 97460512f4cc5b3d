// Optimizers whose masters, low halves, gradients and states lie in files: an update goes through
// them by leases and has the bits of one in memory.
#include <gmock/gmock.h>

#include "file_store.h"
#include "fresh_seed.h"
#include "optim_world.h"

namespace ds::optim::testing {
namespace {

using ds::testing::bytes_of;
using ds::testing::FileFactory;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A copy of an array in a file.
FlatTensor filed(const World& world, FileFactory& files, ArrayRole role, const char* name,
                 const FlatTensor& from) {
  if (!from) return {};
  const Tensor& memory = from.memory();
  FlatTensor out(files.make({role, name, memory.dtype(), memory.elements()}), false);
  out.for_parts(0, memory.elements(), Access::kWrite, [&](const Tensor& part, int64_t at) {
    const Tensor source = memory.slice(0, at, at + part.elements());
    std::memcpy(part.raw(), source.raw(), static_cast<size_t>(part.bytes()));
  });
  EXPECT_EQ(world.ctx().device->kind(), DeviceKind::kCpu);
  return out;
}

FlatTensors in_files(World& world, FileFactory& files) {
  const FlatTensors& near = world.flat();
  FlatTensors out;
  out.masters = filed(world, files, ArrayRole::kMasters, "masters", near.masters);
  out.low_halves = filed(world, files, ArrayRole::kLowHalves, "low_halves", near.low_halves);
  out.gradients = filed(world, files, ArrayRole::kGradients, "gradients", near.gradients);
  // What the model computes with is memory, and beside masters in a file there always is some.
  out.model = near.model;
  if (!out.model) {
    out.model = Tensor::zeros(world.ctx().device, DType::kFloat32, {near.masters.elements()},
                              MemoryTag::kOther);
  }
  return out;
}

struct Case {
  const char* name;
  const char* json;
  bool split;
  DType model;
};

class StoredState : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kChunk = kernels::kUpdateChunk;
  // Tensors beside and across the cuts, and a gap.
  const std::vector<TensorPlace> places_ =
      make_places({{300, 200}, {77}, {64, 1024}, {5, 7}, {1}, {100, 900}}, 1, "h");

  WorldOptions options() const {
    WorldOptions out;
    out.seed = ds::run_seed();
    out.threads = 2;
    out.split = GetParam().split;
    out.model = GetParam().model;
    return out;
  }
  std::unique_ptr<Optimizer> stored_optimizer(World& world,
                                              const std::shared_ptr<FileFactory>& files) const {
    return make_optimizer(parse_optimizer(GetParam().json),
                          owned_places(places_, 0, span_of(places_)), world.ctx().device, {},
                          nullptr, files);
  }
};

constexpr const char* kAdam = R"({"type": "AdamW", "params": {"weight_decay": 0.1}})";
INSTANTIATE_TEST_SUITE_P(
    Kinds, StoredState,
    ::testing::Values(
        Case{"Adam", kAdam, false, DType::kFloat32},
        Case{"AdamBf16", kAdam, false, DType::kBFloat16},
        Case{"AdamSplit", kAdam, true, DType::kFloat32},
        Case{"AdamBits8", R"({"type": "AdamW", "state_dtype": "int8"})", false, DType::kBFloat16},
        Case{"LionBf16States", R"({"type": "Lion", "state_dtype": "bf16"})", true, DType::kFloat32},
        Case{"Sgd", R"({"type": "SGD", "params": {"lr": 0.1}})", false, DType::kFloat32},
        Case{"AdagradFromOne", R"({"type": "Adagrad", "params": {"initial_accumulator_value": 1},
             "state_dtype": "int8"})",
             false, DType::kFloat32},
        Case{"Lamb", R"({"type": "Lamb", "params": {"weight_decay": 0.1}})", false,
             DType::kFloat32},
        Case{"LambBits8", R"({"type": "Lamb", "state_dtype": "int8"})", true, DType::kFloat32},
        Case{"Muon", R"({"type": "Muon"})", false, DType::kFloat32}),
    [](const auto& kind) { return kind.param.name; });

TEST_P(StoredState, HasTheBitsOfMemory) {
  for (const auto& [most, late] : {std::pair{int64_t{1}, false}, {2 * kChunk + 5, true}}) {
    SCOPED_TRACE(most);
    World near(places_, options()), far(places_, options());
    const auto files = std::make_shared<FileFactory>(most);
    const auto plain = near.optimizer(parse_optimizer(GetParam().json));
    const auto stored = stored_optimizer(far, files);
    FlatTensors flat = in_files(far, *files);
    *files->counts = {};
    files->counts->late = late;
    for (int i = 0; i < 3; ++i) {
      for (World* world : {&near, &far}) world->next_gradients();
      ops::write_array(far.ctx(), far.flat().gradients.memory(), flat.gradients, 0);
      plain->step(near.ctx(), near.step_of(*plain), near.flat());
      stored->step(far.ctx(), far.step_of(*stored), flat);
    }
    const FlatTensors& expected = near.flat();
    EXPECT_EQ(bytes_of(flat.masters), bytes_of(expected.masters));
    EXPECT_EQ(bytes_of(flat.low_halves), bytes_of(expected.low_halves));
    // The copy in fp32 is of the masters, which in memory are the weights.
    const bool own_model = static_cast<bool>(expected.model);
    EXPECT_EQ(bytes_of(flat.model), bytes_of(own_model ? expected.model : expected.masters));
    for (size_t k = 0; k < places_.size(); ++k) {
      for (const std::string& state : plain->states(k)) {
        const Tensor a = plain->read_state(near.ctx(), k, state);
        const Tensor b = stored->read_state(far.ctx(), k, state);
        EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0)
            << k << " " << state;
        EXPECT_FALSE(stored->state_view(k, state));
      }
    }
    EXPECT_EQ(files->counts->dropped_writes, 0);
    // What was said to come came.
    EXPECT_GT(files->counts->prefetched, 0);
    EXPECT_EQ(files->counts->found_prefetched, files->counts->prefetched);
  }
}

// However large the arrays, an update holds a few sub-groups: masters or low halves, gradients, and
// at most two states here.
TEST_P(StoredState, MapsASubGroupAtATime) {
  const int64_t most = kChunk;
  World far(places_, options());
  const auto files = std::make_shared<FileFactory>(most);
  const auto stored = stored_optimizer(far, files);
  FlatTensors flat = in_files(far, *files);
  *files->counts = {};
  stored->step(far.ctx(), far.step_of(*stored), flat);
  const bool muon = std::string_view(GetParam().json).find("Muon") != std::string_view::npos;
  const int64_t largest = muon ? 100 * 900 : most;  // a matrix stays whole
  EXPECT_LE(files->counts->most_elements, largest);
  if (muon) {
    EXPECT_EQ(files->counts->most_elements, largest);
  }
  EXPECT_LE(files->counts->most_mapped, 4 * largest * int64_t{sizeof(float)} + 4096);
  EXPECT_GT(files->counts->most_mapped, 0);
}

// Ranges of states, also where they begin and end within 8-bit blocks.
TEST_P(StoredState, StatesAreReadAndWrittenInPart) {
  World near(places_, options()), far(places_, options());
  const auto files = std::make_shared<FileFactory>(1);
  const auto plain = near.optimizer(parse_optimizer(GetParam().json));
  const auto stored = stored_optimizer(far, files);
  FlatTensors flat = in_files(far, *files);
  const auto step = [&] {
    plain->step(near.ctx(), near.step_of(*plain), near.flat());
    stored->step(far.ctx(), far.step_of(*stored), flat);
  };
  step();
  std::vector<float> values(2000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-3f * static_cast<float>(i % 37);
  const auto compare = [&] {
    for (size_t k = 0; k < places_.size(); ++k) {
      const int64_t n = places_[k].shape.elements();
      for (const std::string& state : plain->states(k)) {
        std::vector<float> a(static_cast<size_t>(n)), b(a);
        plain->read_state_range(k, state, 0, n, a.data());
        stored->read_state_range(k, state, 0, n, b.data());
        EXPECT_EQ(a, b) << k << " " << state;
      }
    }
  };
  for (Optimizer* one : {plain.get(), stored.get()}) {
    for (size_t k = 0; k < places_.size(); ++k) {
      const int64_t n = places_[k].shape.elements();
      for (const std::string& state : one->states(k)) {
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {100, 1500}, {5, 7}}) {
          const int64_t to = std::min(end, n);
          if (begin < to) one->write_state_range(k, state, begin, to, values.data());
        }
        if (n == 77) one->write_state_range(k, state, 0, n, values.data());
      }
    }
  }
  compare();
  step();
  compare();
  EXPECT_EQ(files->counts->dropped_writes, 0);
}

TEST(StoredStates, OfOneBlockHaveTheirScaleInFilesToo) {
  World world(make_places({{1}}), {});
  const auto files = std::make_shared<FileFactory>(1);
  const auto stored =
      make_optimizer(parse_optimizer(R"({"type": "AdamW", "state_dtype": "int8"})"),
                     owned_places(world.places(), 0, 1), world.ctx().device, {}, nullptr, files);
  std::vector<int64_t> elements;
  for (const ArrayRequest& one : files->made) elements.push_back(one.elements);
  const int64_t block = kernels::kStateBlock;
  EXPECT_EQ(elements, (std::vector<int64_t>{block, 1, block, 1}));
}

// What fails is reported with file, place and reason, and the rest of the run is written: a later
// step goes on with the ranges that hold.
TEST(StoredStateFaults, AWriteThatFailsIsReportedAndNothingElseIsLost) {
  struct Fault {
    int64_t arrives;
    int error;
    const char* text;
  };
  const std::vector<TensorPlace> places = make_places({{100, 900}}, 1, "h");
  for (const Fault& fault : {Fault{0, EIO, "Input/output error"}, Fault{1000, ENOSPC, "No space"},
                             Fault{1000, 0, "a short write of 1000 of"}}) {
    SCOPED_TRACE(fault.text);
    World near(places, {}), far(places, {});
    const auto files = std::make_shared<FileFactory>(kernels::kUpdateChunk);
    const OptimizerConfig config = parse_optimizer(kAdam);
    const auto plain = near.optimizer(config);
    const auto stored = make_optimizer(config, owned_places(places, 0, span_of(places)),
                                       far.ctx().device, {}, nullptr, files);
    FlatTensors flat = in_files(far, *files);
    for (World* world : {&near, &far}) world->next_gradients();
    ops::write_array(far.ctx(), far.flat().gradients.memory(), flat.gradients, 0);
    const std::string before = bytes_of(flat.masters);
    int count = 0;
    files->counts->fault = [&](const std::string& file, int64_t bytes) {
      // The second sub-group's.
      const bool hit = file.starts_with("masters") && ++count == 2;
      return hit ? std::pair(fault.arrives, fault.error) : std::pair(bytes, 0);
    };
    plain->step(near.ctx(), near.step_of(*plain), near.flat());
    try {
      stored->step(far.ctx(), far.step_of(*stored), flat);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo);
      const int64_t at = kernels::kUpdateChunk * int64_t{sizeof(float)} + fault.arrives;
      EXPECT_THAT(std::string(error.message()),
                  AllOf(HasSubstr((files->folder() / "masters").string()),
                        HasSubstr(str_cat("at byte ", at)), HasSubstr(fault.text)));
    }
    EXPECT_EQ(stored->steps(), 0);
    // The first sub-group is updated, the second one's masters up to where they failed, the third
    // was not begun; the states of the second one rest.
    const std::string after = bytes_of(flat.masters), done = bytes_of(near.flat().masters);
    const size_t cut = static_cast<size_t>(kernels::kUpdateChunk) * sizeof(float);
    const size_t arrived = cut + static_cast<size_t>(fault.arrives);
    EXPECT_EQ(after.substr(0, arrived), done.substr(0, arrived));
    EXPECT_EQ(after.substr(arrived), before.substr(arrived));
    std::vector<float> expected(2 * kernels::kUpdateChunk), states(expected);
    plain->read_state_range(0, "exp_avg", 0, std::ssize(expected), expected.data());
    stored->read_state_range(0, "exp_avg", 0, std::ssize(states), states.data());
    EXPECT_EQ(states, expected);
    EXPECT_EQ(files->counts->mapped, 0);
  }
}

// A lease that ends without close leaves a store as it was.
TEST(ArrayLeases, OneThatIsNotClosedGivesItsWriteUp) {
  FileFactory files(1000);
  const StoredArray array = files.make({ArrayRole::kMasters, "masters", DType::kFloat32, 600});
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  ops::fill_array(ctx, 1.0f, array, 0, 600);
  {
    ArrayLease lease = array.map(100, 200, Access::kReadWrite);
    EXPECT_EQ(lease.data().data<float>()[99], 1.0f);
    lease.data().data<float>()[99] = 2.0f;
    EXPECT_FALSE(lease.is_view());
  }
  EXPECT_EQ(files.counts->dropped_writes, 1);
  ArrayLease moved;
  {
    ArrayLease lease = array.map(300, 301, Access::kWrite);
    lease.data().data<float>()[0] = 3.0f;
    moved = std::move(lease);
  }
  moved.close();
  moved.close();
  EXPECT_FALSE(moved);
  Tensor all = ctx.workspace(DType::kFloat32, {600});
  ops::read_array(ctx, array, 0, all);
  for (int64_t i = 0; i < 600; ++i) EXPECT_EQ(all.data<float>()[i], i == 300 ? 3.0f : 1.0f) << i;
  EXPECT_EQ(code_of([&] { array.memory(); }), Code::kInternal);
}

// Of memory a lease is the memory.
TEST(ArrayLeases, OfMemoryAreViews) {
  const Tensor memory = Tensor::zeros(make_cpu_device(), DType::kFloat32, {10}, MemoryTag::kOther);
  const StoredArray array = memory;
  {
    ArrayLease lease = array.map(2, 5, Access::kWrite);
    EXPECT_TRUE(lease.is_view());
    EXPECT_EQ(lease.data().raw(), memory.data<float>() + 2);
    lease.data().data<float>()[0] = 7;
  }
  EXPECT_EQ(memory.data<float>()[2], 7);
  int parts = 0;
  array.for_parts(1, 10, Access::kRead, [&](const Tensor& part, int64_t at) {
    EXPECT_EQ(at, 0);
    EXPECT_EQ(part.elements(), 9);
    ++parts;
  });
  EXPECT_EQ(parts, 1);
}

}  // namespace
}  // namespace ds::optim::testing
