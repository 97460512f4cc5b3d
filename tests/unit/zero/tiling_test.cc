// Stage 3 with weights of linear layers in tiles (memory-centric tiling).
#include <random>

#include "attached_state.h"
#include "fresh_seed.h"
#include "models/adapters.h"
#include "ops/elementwise.h"
#include "zero/flat_layout.h"
#include "zero_world.h"

namespace ds::zero_test {
namespace {

using nn::Tiling;

TEST(TiledLayout, RanksOwnRowsThatFollowEachOther) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(str_cat("seed ", seed, ", round ", round));
    nn::ParameterSet parameters;
    zero::Sharing sharing;
    const int world = 1 + static_cast<int>(below(5));
    sharing.domains = {{0, world}};
    sharing.bucket_elements = 1 + below(4000);
    sharing.tile_elements = 1 + below(3000);
    for (int64_t i = 0; i < 1 + below(12); ++i) {
      nn::Parameter p;
      p.name = str_cat("p", i);
      p.shape = below(3) == 0 ? Shape{below(300)} : Shape{1 + below(90), 1 + below(70)};
      p.trainable = below(4) != 0;
      parameters.add(p);
      sharing.tiled.push_back(below(2) == 0);
    }
    const zero::FlatLayout plain(parameters, sharing);
    int64_t end = 0, owned = 0;
    for (const zero::Bucket& bucket : plain.buckets()) {
      EXPECT_EQ(bucket.range.begin, end);
      EXPECT_EQ(bucket.owned, owned);
      EXPECT_EQ(bucket.piece % zero::FlatLayout::kAlign, 0);
      end = bucket.range.end;
      owned += bucket.piece;
    }
    EXPECT_EQ(end, plain.elements());
    EXPECT_EQ(owned, plain.owned_elements());
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const Shape& shape = parameters[id].shape;
      const Tiling* const tiling = plain.tiling(id);
      EXPECT_EQ(tiling != nullptr, sharing.tiled[static_cast<size_t>(id)] && shape.dims() == 2 &&
                                       shape.elements() > sharing.tile_elements);
      if (tiling == nullptr) continue;
      // Each row is in one tile, at the place in the owner's memory that part() says.
      std::vector<int> seen(static_cast<size_t>(shape[0]));
      int64_t elements = 0;
      for (int64_t tile = 0; tile < tiling->count; ++tile) {
        const zero::Bucket& bucket =
            plain.buckets()[plain.bucket_of(id) + static_cast<size_t>(tile)];
        EXPECT_EQ(bucket.tile, tile);
        EXPECT_EQ(bucket.piece, tiling->rows(tile) * shape[1]);
        EXPECT_LE(plain.range(id).begin, bucket.range.begin);
        EXPECT_GE(plain.range(id).end, bucket.range.end);
        for (int rank = 0; rank < world; ++rank) {
          const zero::OwnedPart part = plain.part(id, rank);
          const Tiling::Rows rows = tiling->rows_of(shape[0], rank, tile);
          EXPECT_LE(rows.count, tiling->rows(tile));
          for (int64_t row = rows.begin; row < rows.begin + rows.count; ++row) {
            ++seen[static_cast<size_t>(row)];
            EXPECT_EQ(bucket.owned + (row - rows.begin) * shape[1],
                      part.owned + row * shape[1] - part.first);
            EXPECT_LE((row + 1) * shape[1], part.first + part.count);
          }
          if (rows.count > 0) elements += rows.count * shape[1];
        }
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), shape[0]);
      EXPECT_EQ(elements, shape.elements());
    }
  }
}

Json untied_model(int64_t width = 32) {
  return with(model_config(), {{"tie_word_embeddings", false}, {"n_embd", width}});
}

Json tiled_config(int64_t tile, const Json& zero = Json::object(), const Json& more = {}) {
  Json all = {{"stage3_tile_size", tile}, {"stage3_param_persistence_threshold", 40}};
  all.merge_patch(zero);
  return zero_config(3, all, more);
}

TEST(TiledTraining, IsTheSameUpToTheOrderOfASum) {
  for (const int world : {2, 3, 4}) {
    const Trained plain = train({world, tiled_config(0), 4, untied_model()});
    for (const int64_t tile : {1, 700, 2000}) {
      SCOPED_TRACE(str_cat("world ", world, ", tile ", tile));
      const Trained tiled = train({world, tiled_config(tile), 4, untied_model()});
      // A forward has the same bits. Gradients of inputs are summed tile after tile.
      EXPECT_EQ(tiled.losses[0], plain.losses[0]);
      for (size_t i = 0; i < plain.losses.size(); ++i) {
        EXPECT_NEAR(tiled.losses[i], plain.losses[i], 1e-5 * plain.losses[i]);
        EXPECT_NEAR(tiled.norms[i], plain.norms[i], 1e-4 * plain.norms[i]);
      }
      EXPECT_LT(largest_difference(tiled.weights, plain.weights), 1e-3);
      for (const bool overlap : {false, true}) {
        const Json limits = {{"overlap_comm", overlap},
                             {"reduce_bucket_size", 3000},
                             {"stage3_max_live_parameters", 3000},
                             {"stage3_max_reuse_distance", 0},
                             {"stage3_prefetch_bucket_size", 2500}};
        const Trained other = train({world, tiled_config(tile, limits), 4, untied_model()});
        EXPECT_TRUE(same_bits(other.weights, tiled.weights)) << "overlap " << overlap;
        EXPECT_EQ(other.norms, tiled.norms);
      }
    }
  }
}

TEST(TiledTraining, WorksWithWhatElseStageThreeDoes) {
  const auto freeze_some = [](models::Model& model) {
    models::set_trainable(model, {"h.0.mlp.c_fc.weight"}, false);
  };
  struct Variant {
    const char* name;
    Json zero = Json::object(), more = Json::object();
    double bound = 1e-4;  // of losses
    std::function<void(models::Model&)> prepare = [](models::Model&) {};
  };
  // In bf16 a gradient that was rounded the other way moves a weight by a whole step.
  const Variant variants[] = {
      {"bf16", Json::object(), {{"bf16", {{"enabled", true}}}}, 2e-2},
      {"recomputation", Json::object(), {{"activation_checkpointing", {{"enabled", true}}}}},
      {"accumulation", Json::object(), {{"gradient_accumulation_steps", 3}}},
      {"frozen", Json::object(), Json::object(), 1e-4, freeze_some},
      {"Lamb",
       Json::object(),
       {{"optimizer", {{"type", "Lamb"}, {"params", {{"lr", 1e-2}}}}},
        {"zero_allow_untested_optimizer", true}}},
      {"Muon", {{"reduce_scatter", false}}, {{"optimizer", {{"type", "Muon"}}}}, 1e-3},
      {"8-bit weights", {{"zero_quantized_weights", true}}, Json::object(), 5e-2},
      {"checks", {{"enable_sanity_checks", true}}},
  };
  for (const Variant& v : variants) {
    SCOPED_TRACE(v.name);
    const Trained plain = train({3, tiled_config(0, v.zero, v.more), 4, untied_model(), v.prepare});
    const Trained tiled =
        train({3, tiled_config(900, v.zero, v.more), 4, untied_model(), v.prepare});
    for (size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(tiled.losses[i], plain.losses[i], v.bound * plain.losses[i]) << i;
    }
  }
}

// What is saved in tiles loads without, at another number of ranks and stage, and back.
TEST(TiledTraining, CheckpointsDoNotKnowTiles) {
  Folder folder;
  const auto run = [&](int world, const Json& config, bool load) {
    std::vector<float> out;
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine({world, config, 1, untied_model()}, comm);
      if (load) {
        engine->load(folder.path(), "");
      } else {
        engine->train_batch();
        engine->save(folder.path(), "");
      }
      const std::vector<float> mine = all_weights(*engine);
      if (comm->rank() == 0) out = mine;
    });
    return out;
  };
  const std::vector<float> saved = run(3, tiled_config(700), false);
  EXPECT_TRUE(same_bits(run(3, tiled_config(700), true), saved));
  EXPECT_TRUE(same_bits(run(2, tiled_config(1500), true), saved));
  EXPECT_TRUE(same_bits(run(4, tiled_config(0), true), saved));
  EXPECT_TRUE(same_bits(run(2, zero_config(1), true), saved));
  const std::vector<float> plain = run(2, tiled_config(0), false);
  EXPECT_TRUE(same_bits(run(3, tiled_config(900), true), plain));
}

// A wide layer needs memory for tiles of its weight and gradient, not for all of them.
TEST(TiledTraining, NeedsNoRoomForWholeWeights) {
  constexpr int64_t kWidth = 128, kWhole = 4 * kWidth * kWidth, kTile = kWhole / 16;
  const Json limits = {{"stage3_max_live_parameters", 0},
                       {"stage3_max_reuse_distance", 0},
                       {"stage3_prefetch_bucket_size", 0},
                       {"reduce_bucket_size", kTile},
                       {"overlap_comm", false}};
  const Json model = with(untied_model(kWidth), {{"n_positions", 16}});
  const auto peak = [&](int64_t tile) {
    int64_t bytes = 0;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine({2, tiled_config(tile, limits), 1, model}, comm);
      engine->train_batch();
      MemoryAccount& account = engine->model()->device()->account();
      account.reset_peaks();
      engine->train_batch();
      if (comm->rank() == 0) bytes = account.peak(MemoryTag::kCommunication);
    });
    return bytes;
  };
  const int64_t item = dtype_size(DType::kFloat32);
  EXPECT_GE(peak(0), 2 * kWhole * item);
  // The embedding is read whole, and is the largest then.
  EXPECT_LE(peak(kTile), (2 * 61 * kWidth + 4 * kTile) * item);
}

// Readers that know of no tiles see whole weights.
TEST(TiledTraining, WholeWeightsAreReadAndSet) {
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine({3, tiled_config(700), 1, untied_model()}, comm);
    engine->train_batch();
    const models::Model::Use use(*engine->model());
    zero::TrainState& state = train_state(*engine->model());
    ThreadPool pool(1);
    const OpContext ctx{engine->model()->device(), &pool};
    const nn::ParamId id = state.parameters().find("h.1.mlp.c_proj.weight");
    ASSERT_NE(state.weights().tiling(id), nullptr);
    Tensor twice = state.masters().read(ctx, id);
    ops::scale(ctx, twice, 2, twice);
    state.masters().write(ctx, id, twice);
    EXPECT_TRUE(same_bits(flat(state.masters().read(ctx, id)), flat(twice)));
    EXPECT_TRUE(same_bits(flat(state.weights().acquire(id)), flat(twice)));
    state.weights().release(id);
  });
}

}  // namespace
}  // namespace ds::zero_test
