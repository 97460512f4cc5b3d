// Memory that is planned when an engine is made: refused, warned of or let pass, with advice that
// was planned itself and holds.
#include "engine/memory_check.h"

#include <sstream>
#include <thread>

#include "comm/factory.h"
#include "engine/plan.h"
#include "engine/plan_advice.h"
#include "engine_world.h"

namespace ds::engine_test {
namespace {

Json small_gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 512}, {"n_positions", 64},
          {"n_embd", 128},        {"n_layer", 4},      {"n_head", 4}};
}
Json planned(const Json& change) {
  return with({{"train_micro_batch_size_per_gpu", 8},
               {"gradient_accumulation_steps", 1},
               {"threads", 1},
               {"memory_plan", {{"sequence_length", 64}}},
               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}}},
              change);
}
Json limited(int64_t bytes) { return {{"memory_plan", {{"limit_bytes", bytes}}}}; }

// Of the system: accounts say less.
int64_t needed(const Json& config) {
  PlanOptions options;
  options.on_gpu = false;
  const Json memory = plan_training(small_gpt2(), dump_json(config), options)["memory_per_rank"];
  EXPECT_GT(memory["reserved"].get<int64_t>(), memory["total"].get<int64_t>());
  return memory["reserved"].get<int64_t>();
}

std::string refusal(const Json& config) {
  return error_of(Code::kOutOfMemory, [&] {
    Engine(dump_json(config), models::Model::create(small_gpt2(), 1), nullptr);
  });
}

// The remedies of a message: lines that are JSON.
std::vector<Json> remedies_in(const std::string& message) {
  std::vector<Json> out;
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos && line[begin] == '{') {
      out.push_back(parse_json(line.substr(begin), "a remedy", Code::kInternal));
    }
  }
  return out;
}

int64_t trained_peak(const Json& config) {
  const auto model = models::Model::create(small_gpt2(), 1);
  Engine engine(dump_json(config), model, nullptr);
  const int64_t samples = engine.config().batch.micro_batch;
  std::vector<int64_t> tokens(static_cast<size_t>(samples * 64), 1);
  MicroBatch batch;
  batch.ids = batch.labels = ids_tensor(tokens, samples);
  for (int64_t pass = 0; pass < 2 * engine.config().batch.accumulation; ++pass) {
    engine.backward(engine.forward(batch));
    engine.step();
  }
  return model->device()->account().total_peak();
}

TEST(MemoryCheck, WhatIsRefusedFitsByEveryAdvice) {
  const Folder folder;
  const Json config = planned(Json::object());
  const int64_t all = needed(config);
  // A little less than all, and much less.
  for (const double share : {0.95, 0.6, 0.3}) {
    const auto limit = static_cast<int64_t>(static_cast<double>(all) * share);
    const std::string message = refusal(with(config, limited(limit)));
    EXPECT_NE(message.find("training does not fit"), std::string::npos) << message;
    EXPECT_NE(message.find("  optimizer: "), std::string::npos) << message;
    EXPECT_NE(message.find("memory_plan.limit_bytes"), std::string::npos) << message;
    const std::vector<Json> remedies = remedies_in(message);
    ASSERT_FALSE(remedies.empty()) << message;
    ASSERT_LE(remedies.size(), 3U);
    for (Json remedy : remedies) {
      for (const char* key : {"offload_optimizer", "offload_param"}) {
        if (!remedy.contains("zero_optimization")) continue;
        Json& zero = remedy["zero_optimization"];
        if (zero.contains(key)) zero[key]["nvme_path"] = folder.path();
      }
      const Json changed = with(with(config, limited(limit)), remedy);
      EXPECT_LE(trained_peak(changed), limit * 1.05) << dump_json(remedy);
    }
  }
}

// What the accounts hold would fit, and what the process takes of the system for it would not.
TEST(MemoryCheck, BlocksOfTheSystemCount) {
  const Json config = planned(Json::object());
  PlanOptions options;
  options.on_gpu = false;
  const Json memory = plan_training(small_gpt2(), dump_json(config), options)["memory_per_rank"];
  const auto total = memory["total"].get<int64_t>(), reserved = memory["reserved"].get<int64_t>();
  ASSERT_LT(total, reserved);
  const std::string message = refusal(with(config, limited((total + reserved) / 2)));
  EXPECT_NE(message.find("in blocks of the system"), std::string::npos) << message;
  Engine(dump_json(with(config, limited(reserved))), models::Model::create(small_gpt2(), 1),
         nullptr);
}

TEST(MemoryCheck, NothingIsAllocatedBeforeARefusal) {
  const auto model = models::Model::create(small_gpt2(), 1);
  const int64_t before = model->device()->account().total_peak();
  error_of(Code::kOutOfMemory,
           [&] { Engine(dump_json(planned(limited(1 << 20))), model, nullptr); });
  EXPECT_EQ(model->device()->account().total_peak(), before);
  // The model is free for another engine.
  Engine(dump_json(planned(Json::object())), model, nullptr);
}

TEST(MemoryCheck, WarnsOrIsSilentWhereThatIsAsked) {
  const Json config = planned(limited(1 << 20));
  EXPECT_GT(trained_peak(with(config, {{"memory_plan", {{"check", "warn"}}}})), 1 << 20);
  EXPECT_GT(trained_peak(with(config, {{"memory_plan", {{"check", "off"}}}})), 1 << 20);
}

// Nobody has said how long samples are: only what the shortest need can be refused.
TEST(MemoryCheck, UnknownLengthRefusesWhatIsCertainAlone) {
  Json config = planned(Json::object());
  config["memory_plan"] = Json::object();
  Json shortest = config;
  shortest["memory_plan"]["sequence_length"] = 1;
  const int64_t least = needed(shortest), most = needed(config);
  ASSERT_LT(least * 1.1, most);
  Engine(dump_json(with(config, limited(least + (most - least) / 2))),
         models::Model::create(small_gpt2(), 1), nullptr);
  refusal(with(config, limited(least * 9 / 10)));
}

TEST(MemoryCheck, BudgetsByUse) {
  const Json config = planned(Json::object());
  const std::string message =
      refusal(with(config, {{"memory_plan", {{"budgets", {{"optimizer", 1000}}}}}}));
  EXPECT_NE(message.find("memory_plan.budgets.optimizer"), std::string::npos) << message;
  Engine(dump_json(with(config, {{"memory_plan", {{"budgets", {{"optimizer", 1 << 30}}}}}})),
         models::Model::create(small_gpt2(), 1), nullptr);
}

TEST(MemoryCheck, DisksThatAreTooSmall) {
  const Folder folder;
  const Json config = planned(
      {{"zero_optimization",
        {{"stage", 1}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", folder.path()}}}}},
       {"memory_plan", {{"budgets", {{"files", 1000}}}}}});
  const std::string message = error_of(Code::kIo, [&] {
    Engine(dump_json(config), models::Model::create(small_gpt2(), 1), nullptr);
  });
  EXPECT_NE(message.find("memory_plan.budgets.files"), std::string::npos) << message;
}

// All ranks throw what one finds.
TEST(MemoryCheck, SeveralRanks) {
  const auto group = make_local_group(2, {});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const Json config = rank == 1 ? planned(limited(1 << 20)) : planned(Json::object());
      error_of(Code::kOutOfMemory, [&] {
        Engine(dump_json(config), models::Model::create(small_gpt2(), 1),
               group[static_cast<size_t>(rank)]);
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Memory that runs out all the same is an error that says what was planned.
TEST(MemoryCheck, OutOfMemoryTellsWhatWasPlanned) {
  const auto model = models::Model::create(small_gpt2(), 1);
  Engine engine(dump_json(planned({{"memory_plan", {{"check", "warn"}}}})), model, nullptr);
  const std::string message = error_of(Code::kOutOfMemory, [&] {
    static_cast<void>(model->device()->allocate(int64_t{1} << 49, MemoryTag::kActivations));
  });
  EXPECT_NE(message.find("(now / peak / planned)"), std::string::npos) << message;
  EXPECT_NE(message.find("  optimizer: "), std::string::npos) << message;
}

// Changes of two kinds that exclude each other are never advised together.
// The share that has to be offloaded, and not a twentieth less.
TEST(MemoryCheck, AdviceOffloadsNoMoreThanHasTo) {
  const Folder folder;
  const Json config =
      planned({{"train_micro_batch_size_per_gpu", 1},
               {"bf16", {{"enabled", true}}},
               {"data_types", {{"grad_accum_dtype", "bf16"}}},
               {"activation_checkpointing", {{"enabled", true}}}});  // nothing cheaper is left
  const int64_t limit = needed(config) * 8 / 10;
  const std::vector<Json> remedies = remedies_in(refusal(with(config, limited(limit))));
  ASSERT_EQ(remedies.size(), 2U);  // the optimizer, and the weights, too
  for (Json remedy : remedies) {
    Json& offload = remedy["zero_optimization"]["offload_optimizer"];
    offload["nvme_path"] = folder.path();
    const double share = offload.at("ratio");
    EXPECT_LT(share, 1);
    const auto with_ratio = [&](double ratio) {
      Json changed = with(with(config, limited(limit)), remedy);
      changed["zero_optimization"]["offload_optimizer"]["ratio"] = ratio;
      return changed;
    };
    EXPECT_LE(needed(with_ratio(share)), limit);
    EXPECT_GT(needed(with_ratio(share - 0.05)), limit);
    EXPECT_LE(trained_peak(with_ratio(share)), limit);
    refusal(with_ratio(share - 0.05));
  }
}

// A share that was named may be too small, and too large for the disk.
TEST(MemoryCheck, AdviceChangesAShare) {
  ThreadPool pool(1);
  AdviceOptions options;
  options.plan.on_gpu = false;
  options.room.tolerance = 0;
  const auto in_files = [](double share) {
    return planned(
        {{"zero_optimization",
          {{"stage", 1},
           {"sub_group_size", 65536},
           {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/"}, {"ratio", share}}}}}});
  };
  const auto cheapest = [&](double share) {
    const auto remedies =
        find_remedies(PlanModel::of_json(small_gpt2()), in_files(share), options, pool);
    for (const Remedy& one : remedies) {
      const Json& zero = one.patch.value("zero_optimization", Json::object());
      if (one.patch.size() != 1 || zero.size() != 1) continue;
      EXPECT_TRUE(one.fits);
      return zero["offload_optimizer"]["ratio"].get<double>();
    }
    return -1.0;
  };
  const int64_t limit = (needed(in_files(0)) + needed(in_files(1))) / 2;
  int steps = 1;
  while (static_cast<double>(needed(in_files(steps / 20.0))) * 1.05 > static_cast<double>(limit)) {
    ++steps;
  }
  ASSERT_GT(steps, 4);
  ASSERT_LT(steps, 16);
  options.room.host = {{"a limit", limit, false}};
  options.room.disk = int64_t{1} << 40;
  EXPECT_DOUBLE_EQ(cheapest(0.1), steps / 20.0);
  PlanOptions plan;
  plan.on_gpu = false;
  const auto stored = [&](double share) {
    return plan_training(small_gpt2(), dump_json(in_files(share)), plan)["files_per_rank"]["total"]
        .get<int64_t>();
  };
  options.room.disk = stored(steps / 20.0 + 0.1);
  EXPECT_DOUBLE_EQ(cheapest(1), steps / 20.0);
  EXPECT_DOUBLE_EQ(cheapest(0.95), steps / 20.0);
  EXPECT_DOUBLE_EQ(cheapest(steps / 20.0), -1);  // it fits
  options.room.disk = stored(steps / 20.0) - 1;
  EXPECT_DOUBLE_EQ(cheapest(1), -1);  // no share does
}

TEST(MemoryCheck, AdviceIsPlanned) {
  ThreadPool pool(1);
  AdviceOptions options;
  options.plan.on_gpu = false;
  options.plan.sequence_length = 64;
  const Json config = planned(Json::object());
  const int64_t all = needed(config);
  options.room.host = {{"a limit", all / 2, false}};
  options.room.tolerance = 0;
  options.room.disk = 1000;  // nothing can go there
  const std::vector<Remedy> remedies =
      find_remedies(PlanModel::of_json(small_gpt2()), config, options, pool);
  ASSERT_FALSE(remedies.empty());
  for (const Remedy& one : remedies) {
    EXPECT_FALSE(
        one.patch.value("zero_optimization", Json::object()).contains("offload_optimizer"));
    EXPECT_EQ(one.fits, one.needed <= all / 2) << dump_json(one.patch);
    EXPECT_EQ(one.saved, all - one.needed);
    EXPECT_EQ(needed(with(config, one.patch)), one.needed);
  }
}

}  // namespace
}  // namespace ds::engine_test
