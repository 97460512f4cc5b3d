// What ranks do together or not at all, where one of them cannot even ask.
#include "engine/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "comm/factory.h"

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
