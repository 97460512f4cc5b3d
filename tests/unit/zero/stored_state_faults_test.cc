// Training state in files that cannot be made, read or written: what fails is named, nothing is
// lost that a load does not bring back, and ranks learn of each other's files.
#include <gmock/gmock.h>

#include <array>
#include <functional>

#include "../optim/file_store.h"
#include "own_world.h"
#include "stored_jobs.h"

namespace ds::zero_test {
namespace {

using ds::testing::FileFactory;
using ::testing::AllOf;
using ::testing::HasSubstr;

// An update that fails half way leaves nothing to train on, and says so until a load.
TEST(StoredStateFaults, AnUpdateThatFailsIsReportedAndALoadGoesOn) {
  const Job memory{1, zero_config(0)};
  const auto plain = make_rank_engine(memory, nullptr);
  for (int i = 0; i < 3; ++i) plain->train_batch();
  const auto arrays = std::make_shared<FileFactory>(kPart);
  Job job = memory;
  job.arrays = [&] { return arrays; };
  const auto engine = make_rank_engine(job, nullptr);
  const Folder folder;
  for (int i = 0; i < 2; ++i) engine->train_batch();
  engine->save(folder.path(), "two");
  for (const char* const file : {"masters", "exp_avg_sq", "masters", "exp_avg_sq"}) {
    SCOPED_TRACE(str_cat(file, arrays->counts->late ? ", late" : ""));
    arrays->counts->fault = [&](const std::string& name, int64_t bytes) {
      return name.starts_with(file) ? std::pair(int64_t{12}, EIO) : std::pair(bytes, 0);
    };
    EXPECT_THAT(error_of(Code::kIo, [&] { engine->train_batch(); }),
                AllOf(HasSubstr((arrays->folder() / file).string()), HasSubstr("at byte 12"),
                      HasSubstr("Input/output error")));
    arrays->counts->fault = {};
    arrays->counts->late = true;  // then what fails is found when masters and states are to rest
    EXPECT_THAT(error_of(Code::kState, [&] { engine->train_batch(); }),
                AllOf(HasSubstr("an update failed half way"), HasSubstr("Load a checkpoint")));
    EXPECT_EQ(arrays->counts->mapped, 0);
    engine->load(folder.path(), "two");
  }
  engine->train_batch();
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
}

// An array that cannot be made: the engine is not, and the model trains in memory.
TEST(StoredStateFaults, AnEngineThatCannotBeMadeLeavesTheModelAsItWas) {
  for (const char* const precision : {"fp32", "split"}) {
    const bool split = precision == std::string("split");
    const Job memory{1, zero_config(0, Json::object(),
                                    {{"bf16", {{"enabled", split}, {"split_master", split}}}})};
    const auto plain = make_rank_engine(memory, nullptr);
    for (int i = 0; i < 2; ++i) plain->train_batch();
    const auto model = make_rank_model(memory);
    for (int64_t i = 0; i < 4; ++i) {  // masters or low halves, gradients, two states
      SCOPED_TRACE(i);
      const auto factory = std::make_shared<FileFactory>(kPart);
      factory->refused = i;
      EXPECT_THAT(error_of(Code::kIo,
                           [&] { Engine(dump_json(memory.config), model, nullptr, {}, factory); }),
                  HasSubstr("no room for"));
      EXPECT_TRUE(fs::is_empty(factory->folder()));
    }
    {
      const char* const file = split ? "low_halves" : "masters";
      SCOPED_TRACE(file);
      const auto factory = std::make_shared<FileFactory>(kPart);
      int count = 0;
      factory->counts->fault = [&](const std::string& name, int64_t bytes) {
        const bool hit = name.starts_with(file) && ++count == 3;
        return hit ? std::pair(int64_t{0}, EIO) : std::pair(bytes, 0);
      };
      EXPECT_THAT(error_of(Code::kIo,
                           [&] { Engine(dump_json(memory.config), model, nullptr, {}, factory); }),
                  HasSubstr(file));
    }
    Engine engine(dump_json(memory.config), model, nullptr);
    engine.set_dataset(periodic_data());
    for (int i = 0; i < 2; ++i) engine.train_batch();
    EXPECT_TRUE(same_bits(all_weights(engine), all_weights(*plain)));
  }
}

// Arrays that the ranks of a group cannot make: until masters are spread the model has its weights,
// and from then on it says that they are gone, as after an engine that held them in pieces.
TEST(StoredStateFaults, RanksThatCannotMakeTheirArraysKeepWhatIsNotSpread) {
  const Job job{2, zero_config(3, {{"stage3_param_persistence_threshold", 0}},
                               {{"bf16", {{"enabled", true}}}})};
  const Job alone{1, zero_config(0)};
  for (const bool spread : {false, true}) {
    SCOPED_TRACE(spread);
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      const auto arrays = std::make_shared<FileFactory>(kPart);
      arrays->refused = spread ? 1 : 0;  // the weights, and the masters
      const auto model = make_rank_model(job);
      EXPECT_THAT(
          error_of(Code::kIo, [&] { Engine(dump_json(job.config), model, comm, {}, arrays); }),
          HasSubstr(spread ? "no room for weights" : "no room for masters"));
      if (spread) {
        error_of(Code::kState, [&] { model->get("wpe.weight"); });
        error_of(Code::kState, [&] { Engine(dump_json(alone.config), model, nullptr); });
      } else {
        Engine engine(dump_json(alone.config), model, nullptr);
        const auto plain = make_rank_engine(alone, nullptr);
        EXPECT_TRUE(same_bits(all_weights(engine), all_weights(*plain)));
      }
    });
  }
}

// Values that cannot be written where they are set may be there in part: nobody goes on with them.
// What the call says is wrong with its arguments changes nothing.
TEST(StoredStateFaults, ValuesThatCannotBeWrittenMarkTheModelAndALoadGoesOn) {
  const Job memory{1, zero_config(0, Json::object(), {{"bf16", {{"enabled", true}}}})};
  const auto plain = make_rank_engine(memory, nullptr);
  for (int i = 0; i < 3; ++i) plain->train_batch();
  const auto arrays = std::make_shared<FileFactory>(kPart);
  arrays->counts->late = true;
  Job job = memory;
  job.arrays = [&] { return arrays; };
  const auto engine = make_rank_engine(job, nullptr);
  const Folder folder;
  for (int i = 0; i < 2; ++i) engine->train_batch();
  engine->save(folder.path(), "two");
  const std::string name = "h.1.mlp.c_fc.weight";
  const Tensor value = copied_to_host(engine->model()->get(name), make_cpu_device());
  const Tensor flat_value = value.view({value.elements()});
  struct Way {
    const char* file;
    std::function<void()> set;
  };
  for (const Way& way :
       {Way{"masters", [&] { engine->model()->set(name, value); }},
        Way{"masters", [&] { engine->values().set_local(name, "parameter", flat_value); }},
        Way{"exp_avg_sq", [&] { engine->values().set_local(name, "exp_avg_sq", flat_value); }},
        Way{"exp_avg", [&] { engine->values().set_optimizer_state(name, "exp_avg", value); }}}) {
    SCOPED_TRACE(way.file);
    error_of(Code::kNotFound,
             [&] { engine->values().set_local(name, "no_such_state", flat_value); });
    arrays->counts->fault = [&](const std::string& file, int64_t bytes) {
      return file.starts_with(way.file) ? std::pair(int64_t{12}, EIO) : std::pair(bytes, 0);
    };
    EXPECT_THAT(error_of(Code::kIo, way.set),
                AllOf(HasSubstr((arrays->folder() / way.file).string()), HasSubstr("at byte "),
                      HasSubstr("Input/output error")));
    arrays->counts->fault = {};
    EXPECT_THAT(
        error_of(Code::kState, [&] { engine->train_batch(); }),
        AllOf(HasSubstr(name), HasSubstr("failed half way"), HasSubstr("Load a checkpoint")));
    EXPECT_EQ(arrays->counts->mapped, 0);
    engine->load(folder.path(), "two");
  }
  engine->train_batch();
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
}

// Gradients that cannot be written, whoever asked for it, take the open step with them: no part of
// them is in a step that comes later, and the next step is as if nothing had been tried.
TEST(StoredStateFaults, GradientsThatCannotBeWrittenGiveTheStepUp) {
  const Job memory{1, zero_config(0, Json::object(),
                                  {{"gradient_accumulation_steps", 2}, {"scheduler", nullptr}})};
  const auto plain = make_rank_engine(memory, nullptr);
  for (int i = 0; i < 2; ++i) plain->train_batch();
  const std::string name = "h.1.mlp.c_fc.weight";
  const Folder folder;
  const auto value = [&](const Engine& engine) {
    const nn::ParameterSet& all = engine.model()->parameters();
    Tensor out = Tensor::zeros(make_cpu_device(), DType::kFloat32, all[all.find(name)].shape,
                               MemoryTag::kOther);
    for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = 3;
    return out;
  };
  using Way = std::function<void(Engine&)>;
  const std::pair<const char*, Way> ways[] = {
      {"set", [&](Engine& e) { e.gradients().set(name, value(e)); }},
      {"set_local",
       [&](Engine& e) {
         const Tensor one = value(e);
         e.values().set_local(name, "gradient", one.view({one.elements()}));
       }},
      {"get", [&](Engine& e) { e.gradients().get(name); }},
      {"local", [&](Engine& e) { static_cast<void>(e.values().local(name, "gradient")); }},
      {"save", [&](Engine& e) { e.save(folder.path(), "never"); }}};
  for (const bool late : {false, true}) {
    for (const auto& [what, way] : ways) {
      SCOPED_TRACE(str_cat(what, late ? ", late" : ""));
      const auto arrays = std::make_shared<FileFactory>(kPart);
      arrays->counts->late = late;
      Job job = memory;
      job.arrays = [&] { return arrays; };
      const auto engine = make_rank_engine(job, nullptr);
      engine->train_batch();
      int64_t writes = 0;
      arrays->counts->fault = [&](const std::string& file, int64_t bytes) {
        const bool hit = file.starts_with("gradients") && ++writes >= 3;
        return hit ? std::pair(int64_t{12}, EIO) : std::pair(bytes, 0);
      };
      EXPECT_THAT(error_of(Code::kIo, [&] { way(*engine); }),
                  AllOf(HasSubstr((arrays->folder() / "gradients").string()),
                        HasSubstr("Input/output error"), HasSubstr("the open step is given up")));
      EXPECT_GE(writes, 3);
      arrays->counts->fault = {};
      EXPECT_EQ(arrays->counts->mapped, 0);
      engine->train_batch();
      EXPECT_EQ(engine->progress().samples, plain->progress().samples);
      EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
    }
  }
}

// Each time that a step reads gradients: before the update begins the weights are as they were, and
// nothing of the step is in the next one.
TEST(StoredStateFaults, GradientsThatCannotBeReadGiveTheStepUpOrEndTheUpdate) {
  Job job{1, zero_config(0, Json::object(),
                         {{"gradient_accumulation_steps", 2},
                          {"gradient_clipping", 0.01},
                          {"scheduler", nullptr}})};
  job.model = model_config(0);
  const auto step = [](Engine& engine) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 16; ++i) ids.push_back(i * 7 % 50);
    const Tensor batch = ids_tensor(ids, 2);
    for (int i = 0; i < 2; ++i) {
      engine.backward(engine.forward({batch, batch, {}, {}, {}}));
      engine.step();
    }
  };
  const auto plain = make_rank_engine(job, nullptr);
  for (int i = 0; i < 2; ++i) step(*plain);
  int given_up = 0, half_way = 0;
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    const auto arrays = std::make_shared<FileFactory>(kPart);
    job.arrays = [&] { return arrays; };
    const auto engine = make_rank_engine(job, nullptr);
    step(*engine);
    int64_t reads = 0;
    arrays->counts->read_fault = [&](const std::string& file) {
      return file.starts_with("gradients") && reads++ == at;
    };
    try {
      step(*engine);
      break;  // there are no more
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo) << error.message();
    }
    arrays->counts->read_fault = {};
    if (!engine->model()->incomplete().empty()) {
      ++half_way;
      continue;
    }
    ++given_up;
    step(*engine);
    EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
  }
  EXPECT_GT(given_up, 10);
  EXPECT_GT(half_way, 0);
}

// An error of reading names the file, and training goes on as if nobody had asked.
TEST(StoredStateFaults, ValuesThatCannotBeReadLeaveTheEngineAsItWas) {
  const Job memory{1, zero_config(0, Json::object(), {{"bf16", {{"enabled", true}}}})};
  const auto plain = make_rank_engine(memory, nullptr);
  for (int i = 0; i < 3; ++i) plain->train_batch();
  const auto arrays = std::make_shared<FileFactory>(kPart);
  Job job = memory;
  job.arrays = [&] { return arrays; };
  const auto engine = make_rank_engine(job, nullptr);
  for (int i = 0; i < 2; ++i) engine->train_batch();
  const std::string name = "h.1.mlp.c_fc.weight";
  const Folder folder;
  for (const char* const file : {"masters", "exp_avg_sq"}) {
    SCOPED_TRACE(file);
    const bool masters = file == std::string("masters");
    arrays->counts->read_fault = [&](const std::string& read) { return read.starts_with(file); };
    const std::vector<std::function<void()>> ways = {
        [&] { static_cast<void>(engine->values().local(name, masters ? "parameter" : file)); },
        [&] {
          masters ? static_cast<void>(engine->model()->get(name))
                  : static_cast<void>(engine->values().optimizer_state(name, file));
        },
        [&] { engine->save(folder.path(), "never"); }};
    for (const auto& way : ways) {
      EXPECT_THAT(error_of(Code::kIo, way), AllOf(HasSubstr((arrays->folder() / file).string()),
                                                  HasSubstr("Input/output error")));
      EXPECT_EQ(arrays->counts->mapped, 0);
    }
    arrays->counts->read_fault = {};
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  engine->train_batch();
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
}

// Files of rank 1 begin to fail as `inject` says, then both ranks do `act`: the error of each.
std::array<std::string, 2> errors_of_ranks(
    const std::function<void(ds::testing::FileCounts&)>& inject,
    const std::function<void(Engine&, Communicator&, const Folder&)>& act) {
  const Job job{2, zero_config(3, {{"stage3_param_persistence_threshold", 0}},
                               {{"bf16", {{"enabled", true}}}})};
  const Folder folder;
  std::array<std::string, 2> texts;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto arrays = std::make_shared<FileFactory>(kPart);
    Engine engine(dump_json(job.config), make_rank_model(job), comm, {}, arrays);
    engine.set_dataset(periodic_data());
    engine.train_batch();
    engine.save(folder.path(), "one");
    const bool bad = comm->rank() == 1;
    if (bad) inject(*arrays->counts);
    texts[bad ? 1 : 0] =
        error_of(bad ? Code::kIo : Code::kAborted, [&] { act(engine, *comm, folder); });
  });
  return texts;
}

void expect_named(const std::array<std::string, 2>& texts, const std::string& file) {
  EXPECT_THAT(texts[1], AllOf(HasSubstr(file), HasSubstr("Input/output error")));
  EXPECT_THAT(texts[0],
              AllOf(HasSubstr(file), HasSubstr("Input/output error"), HasSubstr("rank 1")));
}

// One rank's file fails in the middle of a step: the others learn of it where they next wait for
// that rank, in this step or the next.
TEST(StoredStateFaults, AFileOfOneRankEndsTheGroup) {
  for (const std::string file : {"gradients", "masters", "weights"}) {
    SCOPED_TRACE(file);
    const auto inject = [&](auto& counts) {
      counts.fault = [&](const std::string& name, int64_t bytes) {
        return name.starts_with(file) ? std::pair(int64_t{0}, EIO) : std::pair(bytes, 0);
      };
    };
    const auto train = [](Engine& engine, Communicator&, const Folder&) {
      for (int i = 0; i < 2; ++i) engine.train_batch();
    };
    expect_named(errors_of_ranks(inject, train), file);
  }
}

// The same beside steps: in a load, when all is read from the checkpoint and weights follow
// masters, and in an evaluation.
TEST(StoredStateFaults, AFileOfOneRankEndsTheGroupBetweenSteps) {
  for (const std::string file : {"masters", "weights"}) {
    SCOPED_TRACE(file);
    const auto inject = [&](auto& counts) {
      counts.read_fault = [&](const std::string& name) { return name.starts_with(file); };
    };
    const auto act = [&](Engine& engine, Communicator& comm, const Folder& folder) {
      if (file == "weights") return static_cast<void>(engine.evaluate(*periodic_data(), 2));
      engine.load(folder.path(), "one");
      comm.barrier();  // what ranks do together next
    };
    expect_named(errors_of_ranks(inject, act), file);
  }
}

// A gradient that cannot be written ends the open step alone: weights are those of the last one.
TEST(StoredStateFaults, AGradientThatCannotBeWrittenEndsTheStepAlone) {
  const Job memory{1, zero_config(0)};
  const auto plain = make_rank_engine(memory, nullptr);
  const auto arrays = std::make_shared<FileFactory>(kPart);
  Job job = memory;
  job.arrays = [&] { return arrays; };
  const auto engine = make_rank_engine(job, nullptr);
  for (Engine* one : {plain.get(), engine.get()}) run_micro_batch(*one);
  int count = 0;
  arrays->counts->fault = [&](const std::string& name, int64_t bytes) {
    const bool hit = name.starts_with("gradients") && ++count == 3;
    return hit ? std::pair(int64_t{0}, ENOSPC) : std::pair(bytes, 0);
  };
  EXPECT_THAT(error_of(Code::kIo, [&] { run_micro_batch(*engine); }), HasSubstr("No space"));
  EXPECT_EQ(arrays->counts->mapped, 0);
  arrays->counts->fault = {};
  const std::vector<float> before = all_weights(*engine);
  EXPECT_TRUE(same_bits(before, all_weights(*plain)));
  for (int i = 0; i < 2; ++i) {
    for (Engine* one : {plain.get(), engine.get()}) run_micro_batch(*one);
  }
  EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*plain)));
  EXPECT_FALSE(same_bits(all_weights(*engine), before));
}

}  // namespace
}  // namespace ds::zero_test
