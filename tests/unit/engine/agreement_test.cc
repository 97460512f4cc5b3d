// What ranks do together or not at all, where one of them cannot even ask.
#include "engine/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "comm/factory.h"
#include "engine/expert_loads.h"
#include "engine/open_step.h"
#include "engine/step_totals.h"
#include "zero/train_state.h"
#include "zero/weight_checks.h"

namespace ds {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  Code code = Code::kOk;
  std::string text;
};

// Of two ranks, the second of which has no memory for messages. The others' deadline is far.
std::vector<Outcome> without_memory(
    const std::function<void(const OpContext&, Communicator&)>& body) {
  CommOptions options;
  options.deadline = std::chrono::hours(1);
  const auto group = make_local_group(2, options);
  std::vector<Outcome> outcomes(group.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto device = make_cpu_device({.cache = false, .limit_bytes = rank == 1 ? 1 : 0});
      ThreadPool pool(1);
      try {
        body({device, &pool}, *group[rank]);
      } catch (const Error& error) {
        outcomes[rank] = {error.code(), error.message()};
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return outcomes;
}

TEST(Agreement, ARankWithoutMemoryForItEndsTheGroup) {
  const std::pair<const char*, std::function<void(const OpContext&, Communicator&)>> calls[] = {
      {"agree",
       [](const OpContext& ctx, Communicator& comm) { agree(ctx, comm, "testing", [] {}); }},
      {"an error to agree on",
       [](const OpContext& ctx, Communicator& comm) {
         agree(ctx, comm, "testing", [] { fail(Code::kIo, "on both"); });
       }},
      {"broadcast_text",
       [](const OpContext& ctx, Communicator& comm) { broadcast_text(ctx, comm, "text"); }},
      {"gather_texts",
       [](const OpContext& ctx, Communicator& comm) { gather_texts(ctx, comm, "text"); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    const std::vector<Outcome> outcomes = without_memory(call);
    EXPECT_EQ(outcomes[1].code, Code::kOutOfMemory) << outcomes[1].text;
    EXPECT_EQ(outcomes[0].code, Code::kAborted) << outcomes[0].text;
    EXPECT_THAT(outcomes[0].text,
                AllOf(HasSubstr("rank 1 aborted the group"), HasSubstr("memory")));
  }
}

// Memory of the host of which small pieces may run out.
class ScarceDevice : public Device {
 public:
  void run_out() { out_ = true; }
  DeviceKind kind() const noexcept override { return device_->kind(); }
  int index() const noexcept override { return device_->index(); }
  std::string describe() const override { return device_->describe(); }
  void* allocate(int64_t bytes, MemoryTag tag) override {
    DS_CHECK(!out_ || bytes > kSmall, Code::kOutOfMemory, "no memory for ", bytes, " bytes");
    return device_->allocate(bytes, tag);
  }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    device_->deallocate(pointer, bytes, tag);
  }
  void trim() noexcept override { device_->trim(); }
  int64_t reserved_bytes() const noexcept override { return device_->reserved_bytes(); }
  int64_t system_allocations() const noexcept override { return device_->system_allocations(); }
  Stream& default_stream() override { return device_->default_stream(); }
  std::unique_ptr<Stream> create_stream() override { return device_->create_stream(); }
  void copy(void* target, const void* source, int64_t bytes, Stream& stream) override {
    device_->copy(target, source, bytes, stream);
  }
  void clear(void* target, int64_t bytes, Stream& stream) override {
    device_->clear(target, bytes, stream);
  }

 private:
  static constexpr int64_t kSmall = 256;
  const std::shared_ptr<Device> device_ = make_cpu_device({.cache = false});
  bool out_ = false;
};

// What two ranks agree on in a step, on which one of them runs out of memory.
class SmallAgreements {
 public:
  SmallAgreements(const std::shared_ptr<Communicator>& comm)
      : mesh_(comm), ctx_{device_, &pool_}, state_(parameters(), device_) {}

  void share() {
    zero::ShareOptions options;
    options.stage = 1;
    options.bucket_elements = 1000;
    state_.share(ctx_, mesh_, options, DType::kFloat32, zero::MasterForm::kFp32);
  }
  ScarceDevice& device() { return *device_; }
  void totals() {
    OpenStep open;
    exchange_totals(device_, mesh_.placed(MeshGroup::kDataContext), open);
  }
  void loads() { ExpertLoads().sum(device_, mesh_.placed(MeshGroup::kDataContext), 1, 4); }
  void optimizer_norms() {
    const nn::ParamId ids[] = {0};
    std::vector<int64_t> words(4);
    state_.shard_groups(ids).at(0)->sum(words);
  }
  void weights() { zero::check_weights(ctx_, state_.arrays(), state_.weights()); }

 private:
  static const nn::ParameterSet& parameters() {
    static const nn::ParameterSet set = [] {
      nn::ParameterSet out;
      nn::Parameter p;
      p.name = "w";
      p.shape = {40, 30};
      out.add(p);
      return out;
    }();
    return set;
  }

  Mesh mesh_;
  const std::shared_ptr<ScarceDevice> device_ = std::make_shared<ScarceDevice>();
  ThreadPool pool_{1};
  const OpContext ctx_;
  zero::TrainState state_;
};

TEST(Agreement, ARankThatRunsOutOfMemoryInAStepEndsTheGroup) {
  using Call = void (SmallAgreements::*)();
  const std::pair<const char*, Call> calls[] = {{"sources of weights", &SmallAgreements::share},
                                                {"totals", &SmallAgreements::totals},
                                                {"loads", &SmallAgreements::loads},
                                                {"norms", &SmallAgreements::optimizer_norms},
                                                {"weights", &SmallAgreements::weights}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    CommOptions options;
    options.deadline = std::chrono::hours(1);
    const auto group = make_local_group(2, options);
    std::vector<Outcome> outcomes(2);
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          SmallAgreements of(group[rank]);
          if (call != &SmallAgreements::share) of.share();
          if (rank == 1) of.device().run_out();
          (of.*call)();
        } catch (const Error& error) {
          outcomes[rank] = {error.code(), error.message()};
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(outcomes[1].code, Code::kOutOfMemory) << outcomes[1].text;
    EXPECT_EQ(outcomes[0].code, Code::kAborted) << outcomes[0].text;
    EXPECT_THAT(outcomes[0].text,
                AllOf(HasSubstr("rank 1 aborted the group"), HasSubstr("memory")));
  }
}

TEST(Agreement, AnErrorOfOneRankIsOneOfAll) {
  const auto group = make_local_group(2, {});
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadPool pool(1);
      try {
        agree({make_cpu_device(), &pool}, *group[rank], "testing", [&] {
          if (rank == 1) fail(Code::kIo, "a file of rank 1");
        });
      } catch (const Error& error) {
        outcomes[rank] = {error.code(), error.message()};
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(outcomes[1].text, "a file of rank 1");
  EXPECT_EQ(outcomes[0].code, Code::kIo);
  EXPECT_EQ(outcomes[0].text, "testing failed on rank 1: a file of rank 1");
}

}  // namespace
}  // namespace ds
