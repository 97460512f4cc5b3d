// Layouts with several gradient domains: what each rank answers for, and a step in which dense
// parameters are reduced over all ranks and experts over pairs of them.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <random>

#include "../mesh/thread_mesh.h"
#include "attached_state.h"
#include "engine/share_options.h"
#include "fresh_seed.h"
#include "zero/gradient_values.h"
#include "zero/train_state.h"
#include "zero_world.h"

namespace ds::zero {
namespace {

nn::Parameter parameter(const std::string& name, const Shape& shape, const SplitRule& rule = {}) {
  nn::Parameter p;
  p.name = name;
  p.shape = shape;
  p.split = rule;
  return p;
}

// Marks the elements [first, first + count) of a rank's local tensor in the whole one.
void mark(const ShardSpec& spec, int64_t first, int64_t count, std::vector<int>& seen) {
  const int64_t columns = spec.global.dims() > 1 ? spec.global[1] : 1;
  const int64_t local_columns = spec.local.dims() > 1 ? spec.local[1] : 1;
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t row = i / local_columns, column = i % local_columns;
    for (const ShardBox& box : spec.boxes) {
      const int64_t r = row - box.local_offset[0];
      const int64_t c = spec.global.dims() > 1 ? column - box.local_offset[1] : 0;
      if (r < 0 || r >= box.global.extent[0]) continue;
      if (spec.global.dims() > 1 && (c < 0 || c >= box.global.extent[1])) continue;
      const int64_t whole_row = box.global.offset[0] + r;
      const int64_t whole_column = spec.global.dims() > 1 ? box.global.offset[1] + c : 0;
      ++seen[static_cast<size_t>(whole_row * columns + whole_column)];
    }
  }
}

TEST(GradientDomains, OneRankAnswersForEachElement) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  const auto one_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  };
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const MeshSizes sizes{one_to(2), one_to(2), one_to(3), one_to(2), one_to(2)};
    const int stage = sizes.context * sizes.tensor * sizes.expert * sizes.expert_tensor;
    const MeshShape mesh(stage * sizes.pipeline * one_to(3), sizes);
    nn::ParameterSet parameters;
    std::vector<std::vector<int>> stages;
    const auto add = [&](const Shape& shape, const SplitRule& rule, int64_t expert = -1) {
      nn::Parameter p = parameter("p" + std::to_string(parameters.size()), shape, rule);
      p.expert = expert;
      p.trainable = random() % 4 != 0;
      p.decays = random() % 2 != 0;
      parameters.add(p);
      stages.push_back({one_to(sizes.pipeline) - 1});
    };
    for (int i = one_to(6); i > 0; --i) {
      add({6 * one_to(20), 3}, SplitRule::rows());
      add({one_to(9), 6 * one_to(4)}, SplitRule::columns());
      add({one_to(99)}, SplitRule::whole());
      add({one_to(50), 2}, SplitRule::vocabulary());
      add({2 * one_to(20), 2}, SplitRule::rows().of_experts(4), one_to(4) - 1);
      // Two heads of queries for each rank, and a key and a value that all hold.
      const int64_t heads = 2 * sizes.tensor, size = one_to(5);
      add({(heads + 2) * size, 3},
          SplitRule::head_rows({{heads, size}, {1, size, true}, {1, size, true}}));
    }
    if (random() % 2 == 0) {  // tied
      stages[0] = {0};
      if (sizes.pipeline > 1) stages[0].push_back(sizes.pipeline - 1);
    }
    LayoutPolicy policy;
    policy.stage = static_cast<int>(random() % 4);
    policy.bucket_elements = one_to(300);
    std::vector<std::vector<int>> seen;
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      seen.emplace_back(static_cast<size_t>(parameters[id].shape.elements()), 0);
    }
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const Layout layout(parameters, mesh, rank, policy, stages);
      int64_t weights = 0;
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        const ShardSpec spec =
            nn::shard_spec(parameters[id], mesh, rank, stages[static_cast<size_t>(id)]);
        const bool repeated = !std::ranges::all_of(spec.boxes, &ShardBox::first_copy);
        for (const OwnedPart& part : layout.primary(id)) {
          EXPECT_TRUE(part.count > 0 || !repeated);
          mark(spec, part.first, part.count, seen[static_cast<size_t>(id)]);
        }
        weights += spec.local.elements();
        EXPECT_EQ(layout.flat().shape(id), spec.local);
      }
      // Whole buckets are padded; whatever is held is at least the rank's part.
      if (policy.stage < 3) {
        EXPECT_GE(layout.held(StateRole::kWeights), weights);
      }
      for (size_t i = 0; i < layout.domains().size(); ++i) {
        const GradientDomain& domain = layout.domains()[i];
        EXPECT_EQ(domain.ranks, mesh.size(domain.group));
        EXPECT_EQ(layout.flat().world(static_cast<int>(i)), policy.stage == 0 ? 1 : domain.ranks);
      }
    }
    for (size_t id = 0; id < seen.size(); ++id) {
      EXPECT_EQ(std::count(seen[id].begin(), seen[id].end(), 1), std::ssize(seen[id])) << id;
    }
  }
}

TEST(GradientDomains, OfOneProcessAreTheFlatSpace) {
  nn::ParameterSet parameters;
  for (int i = 0; i < 5; ++i) {
    nn::Parameter p = parameter("p" + std::to_string(i), {7 + i}, SplitRule::rows());
    p.trainable = i != 2;
    parameters.add(p);
  }
  const Layout layout(parameters);
  const FlatLayout plain(parameters);
  ASSERT_EQ(layout.domains().size(), 1u);
  EXPECT_EQ(layout.held(StateRole::kWeights), plain.elements());
  EXPECT_EQ(layout.held(StateRole::kGradients), plain.trainable_elements());
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    EXPECT_EQ(layout.domain(id), 0);
    EXPECT_FALSE(layout.in_parts(id));
    EXPECT_EQ(layout.flat().range(id).begin, plain.range(id).begin);
    ASSERT_EQ(layout.primary(id).size(), 1u);
    EXPECT_EQ(layout.primary(id)[0].count, parameters[id].shape.elements());
  }
}

// Both limits are of parameters that may still stay.
TEST(GradientDomains, SmallParametersStayWholeWhileThereIsRoom) {
  nn::ParameterSet parameters;
  for (const int64_t n : {11, 10, 10, 6, 5, 1}) {
    parameters.add(parameter("p" + std::to_string(parameters.size()), {n}));
  }
  LayoutPolicy policy;
  policy.stage = 3;
  policy.param_persistence_threshold = 10;
  policy.model_persistence_threshold = 25;
  const Layout layout(parameters, MeshShape(2, {}), 0, policy);
  std::vector<bool> stay;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    stay.push_back(layout.flat().buckets()[layout.flat().bucket_of(id)].resident);
  }
  EXPECT_EQ(stay, (std::vector<bool>{false, true, true, false, true, false}));
}

TEST(GradientDomains, HoldNothingOfAnotherStage) {
  nn::ParameterSet parameters;
  for (const int64_t n : {1, 7}) {
    parameters.add(parameter("p" + std::to_string(n), {n}));
  }
  const std::vector<std::vector<int>> stages = {{0}, {1}};
  for (const int rank : {0, 1}) {
    const Layout layout(parameters, MeshShape(2, {.pipeline = 2}), rank, {}, stages);
    EXPECT_EQ(layout.flat().holds(0), rank == 0);
    EXPECT_EQ(layout.flat().holds(1), rank == 1);
  }
}

TEST(GradientDomains, MicsKeepsACopyInEveryShardOfAGroup) {
  nn::ParameterSet parameters;
  parameters.add(parameter("w", {640}));
  LayoutPolicy policy;
  policy.stage = 3;
  policy.shard = 2;
  const MeshShape mesh(4, {});
  for (int rank = 0; rank < 4; ++rank) {
    const Layout layout(parameters, mesh, rank, policy);
    EXPECT_EQ(layout.held(StateRole::kWeights), 320);
    EXPECT_EQ(layout.flat().part(0).first, rank % 2 * 320);
    const std::vector<OwnedPart> parts = layout.primary(0);
    EXPECT_EQ(parts.empty() ? 0 : parts[0].count, rank < 2 ? 320 : 0);
  }
  policy.shard = 3;
  try {
    const Layout layout(parameters, mesh, 0, policy);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig);
    EXPECT_EQ(error.message(),
              "a shard of 3 ranks does not divide the 4 ranks of the data+context group");
  }
}

// The layout that a policy gives is that of a run: what a plan reads of it holds for engines.
class LayoutsOfRuns : public testing::TestWithParam<const char*> {};

TEST_P(LayoutsOfRuns, AreThoseOfTheirPolicy) {
  const Json config =
      zero_test::zero_config(0, {{"reduce_bucket_size", 3000}, {"allgather_bucket_size", 3000}});
  zero_test::Job job;
  job.world = 4;
  job.config = zero_test::with(
      config, {{"zero_optimization", parse_json(GetParam(), "test", Code::kConfig)}});
  zero_test::run_ranks(job.world, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = zero_test::make_rank_engine(job, comm);
    const FlatLayout& run = train_state(*engine->model()).layout().flat();
    const nn::ParameterSet& parameters = engine->model()->parameters();
    const ShareOptions options = share_options(engine->config());
    const Layout layout(parameters, MeshShape(comm->size(), {}), comm->rank(),
                        layout_policy(options));
    ASSERT_EQ(layout.domains().size(), 1u);
    const FlatLayout& flat = layout.flat();
    EXPECT_EQ(flat.rank(0), run.rank(0));
    EXPECT_EQ(flat.world(0), run.world(0));
    ASSERT_EQ(flat.buckets().size(), run.buckets().size());
    for (size_t i = 0; i < run.buckets().size(); ++i) {
      EXPECT_EQ(flat.buckets()[i].range.begin, run.buckets()[i].range.begin);
      EXPECT_EQ(flat.buckets()[i].piece, run.buckets()[i].piece);
      EXPECT_EQ(flat.buckets()[i].tile, run.buckets()[i].tile);
      EXPECT_EQ(flat.buckets()[i].resident, run.buckets()[i].resident);
    }
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      EXPECT_EQ(flat.part(id).first, run.part(id).first);
      EXPECT_EQ(flat.part(id).count, run.part(id).count);
      EXPECT_EQ(flat.part(id).owned, run.part(id).owned);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stages, LayoutsOfRuns,
    testing::Values(R"({"stage": 0})", R"({"stage": 1})", R"({"stage": 2})",
                    R"({"stage": 3, "stage3_param_persistence_threshold": 40})",
                    R"({"stage": 3, "mics_shard_size": 2})",
                    R"({"stage": 3, "stage3_tile_size": 500})"));

// A whole number that a rank gives as the gradient of an element.
float given(nn::ParamId id, int rank, int64_t element) {
  return static_cast<float>((id * 31 + rank * 7 + element * 3) % 17 - 8);
}

// Two ranks share the experts: even ones have the experts 0 and 1, odd ones 2 and 3.
nn::ParameterSet dense_and_experts() {
  nn::ParameterSet out;
  out.add(parameter("w", {12, 9}));
  const auto expert = [&](int64_t index) {
    nn::Parameter p =
        parameter("expert." + std::to_string(index), {5, 14}, SplitRule::rows().of_experts(4));
    p.expert = index;
    out.add(p);
  };
  expert(0);
  expert(1);
  out.add(parameter("b", {37}));
  expert(2);
  expert(3);
  return out;
}

bool held_by(const nn::Parameter& p, int rank) { return p.expert < 0 || p.expert / 2 == rank % 2; }

// What the ranks of the test make together.
struct Reduced {
  std::mutex mutex;
  std::vector<std::vector<float>> gradients;  // by parameter; every element is taken once
  std::vector<double> squares;                // as each rank has their sum
};

struct TwoDomainsCase {
  const char* name;
  int world;
  ShareOptions options;
};

ShareOptions at_stage(int stage, const StateGroupSizes& groups = {}) {
  ShareOptions out;
  out.stage = stage;
  out.bucket_elements = 64;
  out.groups = groups;
  return out;
}

// Weights that a rank sets are everybody's, whoever holds them.
void check_weights_are_those_set(const OpContext& ctx, TrainState& state) {
  const nn::ParameterSet& parameters = state.parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const Tensor value =
        Tensor::empty(ctx.device, DType::kFloat32, parameters[id].shape, MemoryTag::kOther);
    for (int64_t i = 0; i < value.elements(); ++i) value.data<float>()[i] = given(id, 5, i);
    state.write(ctx, id, value);
  }
  for (int pass = 0; pass < 2; ++pass) {  // from the second on near ranks may have copies
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const Tensor read = state.read(ctx, id);
      const bool held = state.layout().flat().holds(id);
      const Tensor weight = held ? state.weights().acquire(id) : read;
      for (int64_t i = 0; i < read.elements(); ++i) {
        ASSERT_EQ(read.data<float>()[i], given(id, 5, i)) << parameters[id].name << " " << i;
        ASSERT_EQ(weight.data<float>()[i], given(id, 5, i)) << parameters[id].name << " " << i;
      }
      if (held) state.weights().release(id);
    }
    state.weights().end_pass();
  }
}

// One step of a rank, as an engine makes it: gradients of both domains in the order of the
// parameters, last first, are reduced, and counted once in the norm.
void step(const Mesh& mesh, const nn::ParameterSet& parameters, const ShareOptions& options,
          Reduced& out) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  TrainState state(parameters, ctx.device);
  state.share(ctx, mesh, options, DType::kFloat32, MasterForm::kFp32);
  const Layout& layout = state.layout();
  ASSERT_EQ(layout.domains().size(), 2u);
  check_weights_are_those_set(ctx, state);
  Gradients& gradients = state.gradients();
  gradients.allocate(ctx, DType::kFloat32);
  for (nn::ParamId id = parameters.size(); id-- > 0;) {
    EXPECT_EQ(layout.flat().holds(id), held_by(parameters[id], mesh.rank()));
    if (!layout.flat().holds(id)) continue;
    const nn::GradientTarget target = gradients.gradient_target(id);
    for (int64_t i = 0; i < target.sum.elements(); ++i) {
      target.sum.data<float>()[i] = given(id, mesh.rank(), i);
    }
    gradients.gradient_complete(id);
  }
  state.finish_backward();
  state.reduce(ctx);
  const double squares = gradient_squares(ctx, gradients).value();

  const std::lock_guard lock(out.mutex);
  out.squares.push_back(squares);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    for (const OwnedPart& part : layout.primary(id)) {
      const Tensor own = owned_gradient(ctx, gradients, id);
      for (int64_t i = 0; i < part.count; ++i) {
        float& element =
            out.gradients[static_cast<size_t>(id)][static_cast<size_t>(part.first + i)];
        EXPECT_TRUE(std::isnan(element)) << "two ranks answer for an element of " << id;
        element = own.data<float>()[i];
      }
    }
  }
}

class TwoDomains : public testing::TestWithParam<TwoDomainsCase> {};

TEST_P(TwoDomains, AreReducedOverTheirOwnRanksInOneStep) {
  const int world = GetParam().world;
  const nn::ParameterSet parameters = dense_and_experts();
  Reduced reduced;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    reduced.gradients.emplace_back(static_cast<size_t>(parameters[id].shape.elements()), NAN);
  }
  mesh_test::run_mesh(world, {.expert = 2}, [&](const Mesh& mesh) {
    step(mesh, parameters, GetParam().options, reduced);
  });
  double squares = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    for (int64_t i = 0; i < parameters[id].shape.elements(); ++i) {
      float sum = 0;
      for (int rank = 0; rank < world; ++rank) {
        if (held_by(parameters[id], rank)) sum += given(id, rank, i);
      }
      // The mean over the samples of all ranks, whoever held the expert that they went to.
      const float expected = sum / static_cast<float>(world);
      squares += double{expected} * expected;
      EXPECT_EQ(reduced.gradients[static_cast<size_t>(id)][static_cast<size_t>(i)], expected)
          << parameters[id].name << " " << i;
    }
  }
  // Sums of fractions of whole numbers: exact.
  EXPECT_EQ(reduced.squares, std::vector<double>(static_cast<size_t>(world), squares));
}

INSTANTIATE_TEST_SUITE_P(
    Stages, TwoDomains,
    testing::Values(TwoDomainsCase{"stage_0", 4, at_stage(0)},
                    TwoDomainsCase{"stage_1", 4, at_stage(1)},
                    TwoDomainsCase{"stage_2", 4, at_stage(2)},
                    TwoDomainsCase{"stage_3", 4, at_stage(3)},
                    TwoDomainsCase{"copies_of_two_ranks", 4, at_stage(3, {.shard = 2})},
                    TwoDomainsCase{"copies_of_four_ranks", 8, at_stage(3, {.shard = 4})},
                    TwoDomainsCase{"near_ranks", 8, at_stage(3, {.secondary = 4})}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ds::zero
