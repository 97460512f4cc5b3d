// Times generation of several texts together through the C ABI:
//   batch_decode MODEL.json fp32|bf16|int8|int4 [PROMPT=32] [NEW=64] [THREADS=0] [ROUNDS=5]
//     [GROUP=64] [INT8_ACTIVATIONS=0]
// MODEL.json is a config.json; weights are random, all texts as long; INT8_ACTIVATIONS 1 sets
// int8_activations to true, 2 to "all". 1, 2, 4, 8 and 16 texts take
// turns in every round. The last line is JSON: of each number of texts the median milliseconds
// until all prompts are read and each text has a token, those of a pass (a token of each), by the
// time between the last tokens of two passes, and tokens per second with the reading of prompts.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ds.hpp>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace {

using nlohmann::json;

constexpr int64_t kTexts[] = {1, 2, 4, 8, 16};

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<std::vector<int32_t>> random_prompts(int64_t texts, int64_t length, int64_t vocab) {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(texts));
  uint32_t state = 7;
  for (auto& prompt : out) {
    for (int64_t i = 0; i < length; ++i) {
      state = state * 1664525u + 1013904223u;
      prompt.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
    }
  }
  return out;
}

struct Seen {
  std::vector<double> prompts;  // ms
  std::vector<double> passes;   // ms
  std::vector<double> rates;    // tokens/s of a whole call
};

void generate(libds::Generator& generator, int64_t texts, int64_t length, int64_t vocab,
              const libds::GenerateOptions& options, Seen& seen) {
  const auto prompts = random_prompts(texts, length, vocab);
  std::vector<int64_t> count(static_cast<size_t>(texts));
  const double begin = now();
  double last = 0;
  int64_t tokens = 0;
  const auto on_token = [&](int64_t text, int32_t) {
    ++tokens;
    ++count[static_cast<size_t>(text)];
    if (tokens == texts) seen.prompts.push_back((now() - begin) * 1e3);
    // The tokens of a pass come from the last text to the first.
    if (text != 0) return true;
    const double at = now();
    if (count[0] > 2) seen.passes.push_back((at - last) * 1e3);
    last = at;
    return true;
  };
  generator.generate_batch(prompts, options, texts, on_token);
  seen.rates.push_back(static_cast<double>(tokens) / (now() - begin));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: batch_decode MODEL.json fp32|bf16|int8|int4 [PROMPT=32] [NEW=64] "
                 "[THREADS=0] [ROUNDS=5] [GROUP=64] [INT8_ACTIVATIONS=0]\n";
    return 2;
  }
  const auto number = [&](int i, int64_t fallback) {
    return argc > i ? std::atoll(argv[i]) : fallback;
  };
  std::ifstream file(argv[1]);
  std::stringstream text;
  text << file.rdbuf();
  const int64_t vocab = json::parse(text.str()).at("vocab_size");
  libds::Model model = libds::Model::create(text.str(), 1);
  json form{{"weights", argv[2]}, {"threads", number(5, 0)}, {"group_size", number(7, 64)}};
  if (number(8, 0) == 1) form["int8_activations"] = true;
  if (number(8, 0) == 2) form["int8_activations"] = "all";
  libds::Generator generator(model, form.dump());
  model.reset();
  libds::GenerateOptions options;
  options.max_tokens = number(4, 64);
  std::map<int64_t, Seen> seen;
  for (int64_t round = 0; round < number(6, 5); ++round) {
    for (const int64_t texts : kTexts) {
      generate(generator, texts, number(3, 32), vocab, options, seen[texts]);
    }
  }
  json out{{"model", argv[1]}, {"weights", argv[2]}, {"texts", json::array()}};
  const double alone = median(seen[1].passes);
  for (const auto& [texts, of] : seen) {
    const double pass = median(of.passes);
    std::cout << texts << " texts: prompts " << median(of.prompts) << " ms, " << pass
              << " ms a pass, " << alone * texts / pass << " times the tokens of one, "
              << median(of.rates) << " tokens/s with prompts\n";
    out["texts"].push_back({{"texts", texts},
                            {"ms_prompts", median(of.prompts)},
                            {"ms_per_pass", pass},
                            {"gain", alone * static_cast<double>(texts) / pass},
                            {"tokens_per_s", median(of.rates)}});
  }
  std::cout << out.dump() << '\n';
  return 0;
}
