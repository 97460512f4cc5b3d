// Generators of ranks that share a model's experts, through the C ABI: texts and logits of one
// process, ranks without a text, requests that are refused, and what cannot be shared.
#include <gmock/gmock.h>

#include <mutex>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using libds::Generator;
using libds::Model;
using libds::Tensor;
using ::testing::HasSubstr;

constexpr const char* kMixtral = R"({"model_type": "mixtral", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 48, "initializer_range": 0.3, "tie_word_embeddings": false})";
constexpr const char* kDense = R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 16,
    "n_embd": 16, "n_layer": 1, "n_head": 2})";

Tensor prompt_of(int32_t rank) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4 + 9 * rank; ++i) ids.push_back((7 * rank + i * i) % 61);
  return Tensor::from(ids);
}

libds::GenerateOptions how(int32_t rank, bool sampled) {
  libds::GenerateOptions options;
  options.max_tokens = 9 + 5 * rank;
  options.seed = 3 + rank;
  if (sampled) {
    options.temperature = 0.9;
    options.top_k = 20;
  }
  return options;
}

// What `body` throws; no failure is one of the test.
template <class Body>
libds::Error error_of(const Body& body) {
  try {
    body();
  } catch (const libds::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {DS_OK, ""};
}

TEST(SharedExperts, TextsAreThoseOfOneProcess) {
  for (const char* const options :
       {R"({})", R"({"weights": "bf16"})", R"({"weights": "int8", "group_size": 16})",
        R"({"weights": "int4", "group_size": 8, "kv_block_tokens": 4})"}) {
    for (const int32_t world : {2, 4}) {
      SCOPED_TRACE(std::string(options) + ", ranks " + std::to_string(world));
      run_ranks(world, [&](libds::Comm& comm) {
        const Model model = Model::create(kMixtral, 5);
        const std::string alone = std::string(options) == "{}" ? R"({"weights": "fp32"})" : options;
        Generator whole(model, alone), shared(model, comm, options);
        EXPECT_LT(shared.info().bytes, whole.info().bytes);
        for (const bool sampled : {false, true}) {
          // One text alone, with the others' experts.
          const std::vector<int32_t> text = whole.generate(prompt_of(1), how(1, sampled));
          if (comm.rank() == world - 1) {
            EXPECT_EQ(shared.generate(prompt_of(1), how(1, sampled)), text);
          } else {
            shared.take_part();
          }
        }
        if (std::string(options) != "{}") return;
        // A text of each rank.
        EXPECT_EQ(shared.generate(prompt_of(comm.rank()), how(comm.rank(), true)),
                  whole.generate(prompt_of(comm.rank()), how(comm.rank(), true)));
        std::vector<int32_t> ids(static_cast<size_t>(4 + comm.rank()), comm.rank());
        const Tensor batch = Tensor::from(ids, {1, static_cast<int64_t>(ids.size())});
        const auto a = values_of(shared.logits(batch)), b = values_of(whole.logits(batch));
        for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4);
      });
    }
  }
}

// Several texts of each rank, as many as it has, beside ranks with one and with none.
TEST(SharedExperts, SeveralTextsOfEachRank) {
  for (const char* const options : {R"({"weights": "fp32"})", R"({"weights": "bf16"})"}) {
    run_ranks(4, [&](libds::Comm& comm) {
      const Model model = Model::create(kMixtral, 5);
      Generator whole(model, options), shared(model, comm, options);
      std::vector<std::vector<int32_t>> prompts;
      for (int32_t i = 0; i < 2 + 2 * comm.rank(); ++i) {
        prompts.push_back(prompt_of((i + comm.rank()) % 4).to_vector<int32_t>());
      }
      if (comm.rank() == 3) {
        shared.take_part();
      } else if (comm.rank() == 2) {
        EXPECT_EQ(shared.generate(prompt_of(1), how(1, true)),
                  whole.generate(prompt_of(1), how(1, true)));
      } else {
        EXPECT_EQ(shared.generate_batch(prompts, how(0, true), 3),
                  whole.generate_batch(prompts, how(0, true), 3));
      }
    });
  }
}

// A prompt that one rank refuses, and a callback that ends its call, leave the others alone.
TEST(SharedExperts, CallsOfSeveralTextsThatEndEarly) {
  run_ranks(2, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5);
    Generator shared(model, comm), whole(model, R"({"weights": "fp32"})");
    const std::vector<int32_t> outside{61}, empty;
    for (const std::vector<int32_t>* const refused :
         {&outside, &empty, static_cast<const std::vector<int32_t>*>(nullptr)}) {
      if (comm.rank() == 1) {
        EXPECT_EQ(shared.generate(prompt_of(1), how(1, false)),
                  whole.generate(prompt_of(1), how(1, false)));
        continue;
      }
      if (refused != nullptr) {
        const libds::Error error = error_of([&] {
          shared.generate_batch({{1, 2}, *refused}, how(0, false));
        });
        EXPECT_EQ(error.status(), DS_ERR_INVALID_ARGUMENT);
        EXPECT_THAT(error.what(), HasSubstr("prompt 1: "));
      } else {
        EXPECT_THROW(shared.generate_batch({{1, 2}, {3}}, how(0, false), 0,
                                           [](int64_t, int32_t) -> bool { throw 7; }),
                     int);
      }
    }
  });
}

TEST(SharedExperts, FewerRanksThanTheGroupShare) {
  run_ranks(4, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5);
    Generator shared(model, comm, R"({"expert_parallel": {"autoep_size": 2}})");
    Generator whole(model, R"({"weights": "fp32"})");
    // Two pairs, of which one does nothing.
    if (comm.rank() < 2) {
      EXPECT_EQ(shared.generate(prompt_of(comm.rank()), how(comm.rank(), false)),
                whole.generate(prompt_of(comm.rank()), how(comm.rank(), false)));
    }
    Generator own(model, comm, R"({"expert_parallel": {"enabled": false}})");
    EXPECT_EQ(own.info().bytes, whole.info().bytes);
    own.take_part();  // nobody to serve
    EXPECT_EQ(own.generate(prompt_of(1), how(1, false)),
              whole.generate(prompt_of(1), how(1, false)));
  });
}

// Two hosts of two ranks each: fewer messages between them, and the same texts.
TEST(SharedExperts, RowsGoBetweenHostsAndThenWithinThem) {
  const auto messages = [](const char* options) {
    std::vector<int64_t> sent(4);
    run_ranks(
        4,
        [&](libds::Comm& comm) {
          const Model model = Model::create(kMixtral, 5);
          Generator whole(model, R"({"weights": "fp32"})"), shared(model, comm, options);
          EXPECT_EQ(shared.generate(prompt_of(comm.rank()), how(comm.rank(), true)),
                    whole.generate(prompt_of(comm.rank()), how(comm.rank(), true)));
          const std::string report = comm.report();
          const size_t rows = report.find("all_to_all_v", report.find("total_traffic"));
          const std::string key = "\"across_nodes_messages\":";
          const size_t at = report.find(key, rows);
          ASSERT_NE(at, std::string::npos) << report;
          sent[static_cast<size_t>(comm.rank())] = std::stoll(report.substr(at + key.size()));
        },
        R"({"timeout_seconds": 60, "ranks_per_node": 2})");
    return sent[0] + sent[1] + sent[2] + sent[3];
  };
  const int64_t one_step = messages(R"({"expert_parallel": {"hierarchical_all_to_all": false}})");
  const int64_t two_steps = messages(R"({"expert_parallel": {"hierarchical_all_to_all": true}})");
  EXPECT_GT(two_steps, 0);
  EXPECT_LT(two_steps, one_step);
  EXPECT_EQ(messages("{}"), two_steps);
}

TEST(SharedExperts, OtherRanksExpertsAreNotHere) {
  run_ranks(2, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5);
    Generator shared(model, comm);
    const auto index = [&](int expert) {
      return model.index("layers.0.block_sparse_moe.experts." + std::to_string(expert) +
                         ".w1.weight");
    };
    for (int expert = 0; expert < 4; ++expert) {
      if (expert / 2 == comm.rank()) {
        EXPECT_EQ(values_of(shared.parameter(index(expert))).size(), 32u * 40);
      } else {
        const libds::Error error = error_of([&] { shared.parameter(index(expert)); });
        EXPECT_EQ(error.status(), DS_ERR_STATE);
        EXPECT_THAT(error.what(), HasSubstr("held by another of the ranks"));
      }
    }
  });
}

// A request that one rank refuses ends there, and the others' texts come.
TEST(SharedExperts, ARefusedRequestLeavesTheOthersAlone) {
  run_ranks(2, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5);
    Generator shared(model, comm);
    Generator whole(model, R"({"weights": "fp32"})");
    if (comm.rank() == 0) {
      const libds::Error error =
          error_of([&] { shared.generate(Tensor::from(std::vector<int32_t>{61}), how(0, false)); });
      EXPECT_EQ(error.status(), DS_ERR_INVALID_ARGUMENT);
    } else {
      EXPECT_EQ(shared.generate(prompt_of(1), how(1, false)),
                whole.generate(prompt_of(1), how(1, false)));
    }
    // And the next texts too.
    EXPECT_EQ(shared.generate(prompt_of(comm.rank()), how(1, false)),
              whole.generate(prompt_of(comm.rank()), how(1, false)));
  });
}

// Memory for keys and values that ends within a text: the group ends, and nobody waits.
TEST(SharedExperts, AFailureWithinAPassEndsTheGroup) {
  std::mutex mutex;
  std::vector<std::string> said;
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      libds::Comm comm(rank, 2, R"({"timeout_seconds": 60})", &store);
      const Model model = Model::create(kMixtral, 5);
      Generator shared(model, comm, R"({"kv_block_tokens": 4, "kv_pool_tokens": 8})");
      libds::GenerateOptions options;
      options.max_tokens = rank == 0 ? 30 : 2;
      const libds::Error error = error_of([&] { shared.generate(prompt_of(0), options); });
      const std::lock_guard lock(mutex);
      said.push_back(std::to_string(rank) + ": " + error.what());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(said.size(), 2u);
  for (const std::string& one : said) EXPECT_THAT(one, HasSubstr("kv_pool_tokens"));
}

TEST(SharedExperts, WhatCannotBeSharedIsAnErrorOfEveryRank) {
  const auto refused = [](int32_t world, const char* config, const char* options, ds_status status,
                          const char* text) {
    SCOPED_TRACE(text);
    run_ranks(world, [&](libds::Comm& comm) {
      const Model model = Model::create(config, 5);
      const libds::Error error = error_of([&] { Generator(model, comm, options); });
      EXPECT_EQ(error.status(), status) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(text));
    });
  };
  refused(2, kDense, "", DS_ERR_CONFIG, "no layers of experts that ranks could share");
  refused(3, kMixtral, "", DS_ERR_CONFIG, "3 ranks cannot share the 4 experts");
  refused(2, kMixtral, R"({"expert_parallel": {"autoep_size": 3}})", DS_ERR_CONFIG,
          "do not divide the 2 ranks");
  refused(2, kMixtral, R"({"expert_parallel": {"ep": 3}})", DS_ERR_CONFIG, "/expert_parallel/ep");
  refused(2, kMixtral, R"({"expert_parallel": {"hierarchical_all_to_all": true}})", DS_ERR_CONFIG,
          "/expert_parallel/hierarchical_all_to_all: the ranks that exchange rows with rank 0");
  refused(2, kMixtral, R"({"weights": "model"})", DS_ERR_CONFIG, "each rank has a copy");
  // Models of ranks that differ, by weights or by form.
  run_ranks(2, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5 + comm.rank());
    const libds::Error error = error_of([&] { Generator(model, comm); });
    EXPECT_EQ(error.status(), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("another model than rank 0"));
  });
  run_ranks(2, [](libds::Comm& comm) {
    const Model model = Model::create(kMixtral, 5);
    const char* const options = comm.rank() == 0 ? "" : R"({"weights": "int8"})";
    EXPECT_THAT(error_of([&] { Generator(model, comm, options); }).what(),
                HasSubstr("another form of its weights"));
  });
}

// Not of ranks that share experts: a generator of one process knows no such option.
TEST(SharedExperts, OneProcessHasNoSuchOption) {
  const Model model = Model::create(kMixtral, 5);
  const libds::Error error = error_of(
      [&] { Generator(model, R"({"weights": "fp32", "expert_parallel": {"autoep_size": 1}})"); });
  EXPECT_THAT(error.what(), HasSubstr("expert_parallel"));
}

}  // namespace
}  // namespace capi_test
