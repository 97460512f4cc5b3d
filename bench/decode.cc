// Times generation through the C ABI, one sequence, and compares with the machine's limits measured
// in the same run:
//   decode MODEL.json fp32|bf16|int8|int4 [PROMPT=512] [NEW=64] [THREADS=0] [GROUP=64] [ROUNDS=5]
//     [KV_BLOCK=0] [INT8_ACTIVATIONS=0] [INT8_CACHE=0]
// MODEL.json is a config.json; weights are random; KV_BLOCK is kv_block_tokens; INT8_ACTIVATIONS
// 1 sets int8_activations to true, 2 to "all", INT8_CACHE above 0 kv_cache. The last line is JSON:
//   ms_per_token      median over the tokens after the first
//   gb_per_s, read    weight bytes that a token reads, per second, and the rate at which as many
//                     threads sum a buffer of that size, measured after every fourth token
//   share             median over groups of four tokens of their rate over the limit beside them
//   kv_bytes          keys and values that a token reads at half of the new tokens
//   kv_share          as share, with these
//   prompt_ms         until the first token; prompt_gflops counts the products of all layers but
//                     the last, which sees one position; `prompt_share` is of the peak
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/limits.h"

namespace {

using nlohmann::json;

constexpr int64_t kGroup = 4;

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab) {
  std::vector<int32_t> out;
  uint32_t state = 7;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
  }
  return out;
}

// Eight sums of 16 bytes keep more reads in flight than memory serves, on every x86-64.
uint64_t sum_of(const uint64_t* p, size_t n) {
  using Pair = uint64_t __attribute__((vector_size(16), aligned(8), may_alias));
  const auto* pairs = reinterpret_cast<const Pair*>(p);
  Pair a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (size_t i = 0; i + 8 <= n / 2; i += 8) {
    a += pairs[i];
    b += pairs[i + 1];
    c += pairs[i + 2];
    d += pairs[i + 3];
    e += pairs[i + 4];
    f += pairs[i + 5];
    g += pairs[i + 6];
    h += pairs[i + 7];
  }
  a = a + b + c + d + e + f + g + h;
  return a[0] + a[1];
}

class ReadLimit {
 public:
  // In huge pages, where the system gives them: as the library's weights lie.
  ReadLimit(ds::ThreadPool& pool, size_t bytes)
      : pool_(pool),
        count_((bytes + kPage - 1) / kPage * (kPage / sizeof(uint64_t))),
        sums_(static_cast<size_t>(pool.threads()) * 8) {
    words_.reset(static_cast<uint64_t*>(std::aligned_alloc(kPage, count_ * sizeof(uint64_t))));
    if (!words_) throw std::bad_alloc();
    madvise(words_.get(), count_ * sizeof(uint64_t), MADV_HUGEPAGE);
    std::fill_n(words_.get(), count_, uint64_t{1});
  }
  // Bytes per second of one pass.
  double measure() {
    const size_t part = count_ / static_cast<size_t>(pool_.threads());
    const double began = now();
    pool_.run(pool_.threads(), [&](int64_t t) {
      const auto at = static_cast<size_t>(t);
      sums_[at * 8] = sum_of(words_.get() + at * part, part);
    });
    return static_cast<double>(count_ * sizeof(uint64_t)) / (now() - began);
  }

 private:
  static constexpr size_t kPage = size_t{2} << 20;

  ds::ThreadPool& pool_;
  size_t count_;
  std::unique_ptr<uint64_t, decltype(&std::free)> words_{nullptr, &std::free};
  std::vector<uint64_t> sums_;
};

// Elements of the matrices that every position is multiplied with.
double product_elements(const libds::Model& model, const json& config) {
  const int64_t vocab = config.at("vocab_size");
  const int64_t positions =
      config.value("n_positions", config.value("max_position_embeddings", int64_t{0}));
  double sum = 0;
  for (const json& info : json::parse(model.parameters())) {
    const std::vector<int64_t> shape = info.at("shape");
    if (shape.size() != 2 || shape[0] == vocab || shape[0] == positions) continue;
    sum += static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
  }
  return sum;
}

// What a token reads of keys and values behind the prompt and `seen` new tokens: a cache in one
// piece has room for all tokens of the text.
double kv_bytes(int64_t prompt, int64_t count, int64_t seen) {
  const json report = json::parse(libds::memory_report());
  const double all = report.at("host").at("tags").at("kv_cache").at("peak");
  return all * static_cast<double>(prompt + seen) / static_cast<double>(prompt + count);
}

int run(int argc, char** argv) {
  const auto number = [&](int i, int64_t fallback) {
    return argc > i ? std::atoll(argv[i]) : fallback;
  };
  std::stringstream text;
  text << std::ifstream(argv[1]).rdbuf();
  const std::string weights = argv[2];
  const int64_t prompt = number(3, 512), count = number(4, 64), rounds = number(7, 5);
  libds::Model model = libds::Model::create(text.str(), 1);
  const json config = json::parse(model.config());
  const double elements = product_elements(model, config);
  json options{{"weights", weights}, {"threads", number(5, 0)}, {"group_size", number(6, 64)}};
  if (number(8, 0) > 0) options["kv_block_tokens"] = number(8, 0);
  if (number(9, 0) == 1) options["int8_activations"] = true;
  if (number(9, 0) == 2) options["int8_activations"] = "all";
  if (number(10, 0) > 0) options["kv_cache"] = "int8";
  libds::Generator generator(model, options.dump());
  model.reset();
  const ds_generator_info form = generator.info();

  ds::ThreadPool pool(form.threads);
  const ds::bench::Limits limits = ds::bench::measure_limits(pool);
  const auto bytes = static_cast<double>(form.bytes_per_token);
  ReadLimit limit(pool, static_cast<size_t>(bytes));
  const libds::Tensor ids = libds::Tensor::from(random_tokens(prompt, config.at("vocab_size")));
  libds::GenerateOptions how;
  how.max_tokens = count;
  std::vector<double> tokens, prompts, reads, shares, kv_shares;
  for (int64_t round = 0; round <= rounds; ++round) {
    double last = now();
    int64_t seen = 0;
    std::vector<double> group;  // tokens since the limit was measured
    generator.generate(ids, how, [&](int32_t) {
      const double at = now();
      if (seen == 0 && round > 0) prompts.push_back(at - last);
      if (seen > 0) group.push_back(at - last);
      // Other users of the machine come and go within a second: each few tokens have their limit.
      if (++seen % kGroup == 0) {
        const double read = limit.measure();
        if (round > 0) {  // the first round warms up
          reads.push_back(read);
          shares.push_back(bytes / median(group) / read);
          const double kv = kv_bytes(prompt, count, seen);
          kv_shares.push_back((bytes + kv) / median(group) / read);
          tokens.insert(tokens.end(), group.begin(), group.end());
        }
        group.clear();
      }
      last = now();
      return true;
    });
  }
  const double per_token = median(tokens), first = median(prompts), read = median(reads);
  const double peak = weights == "fp32" ? limits.fp32_flops : limits.bf16_flops;
  const double flops = 2 * elements * static_cast<double>(prompt) / first;
  const json result = {{"weights", weights},
                       {"group_size", form.group_size},
                       {"threads", form.threads},
                       {"prompt", prompt},
                       {"new", count},
                       {"ms_per_token", per_token * 1e3},
                       {"tokens_per_s", 1 / per_token},
                       {"bytes_per_token", bytes},
                       {"bytes", form.bytes},
                       {"gb_per_s", bytes / per_token * 1e-9},
                       {"read", read * 1e-9},
                       {"share", median(shares)},
                       {"kv_bytes", kv_bytes(prompt, count, count / 2)},
                       {"kv_share", median(kv_shares)},
                       {"prompt_ms", first * 1e3},
                       {"prompt_gflops", flops * 1e-9},
                       {"peak_gflops", peak * 1e-9},
                       {"prompt_share", flops / peak}};
  for (const auto& [key, value] : result.items()) std::cout << key << " " << value << "\n";
  std::cout << result << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: decode MODEL.json fp32|bf16|int8|int4 [PROMPT] [NEW] [THREADS] [GROUP] "
                 "[ROUNDS] [KV_BLOCK] [INT8_ACTIVATIONS] [INT8_CACHE]\n";
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "decode: " << error.what() << "\n";
    return 1;
  }
}
