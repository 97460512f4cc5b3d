// `ds bench`: how fast this machine trains a model and generates with it.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_models.h"
#include "command.h"
#include "files.h"
#include "format.h"
#include "inference_weights.h"
#include "median.h"
#include "model_files.h"
#include "run_config.h"

namespace tool {
namespace {

constexpr int64_t kDefaultLength = 1024;
constexpr int64_t kSeed = 1234;

struct BenchOptions {
  std::string model = "gpt2-124m";
  std::string config;
  std::optional<int64_t> threads;
  int64_t batch = 0;            // 0 = as the configuration says
  int64_t sequence_length = 0;  // 0 = the model's positions, at most kDefaultLength
  int64_t steps = 5;
  int64_t warmup = 1;
  int64_t prompt = 128;
  int64_t generate = 32;
  bool no_graphs = false;
  WeightOptions weights;
  bool json = false;
};

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// The middle one; of an even number the mean of the two in the middle.
double spread(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return values.empty() ? 0 : *high - *low;
}

// Keeps the process on so many of its CPUs, so that training and generation obey alike.
void limit_cpus(int64_t threads) {
  cpu_set_t available, chosen;
  CPU_ZERO(&available);
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof available, &available) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&chosen) < threads; ++cpu) {
    if (CPU_ISSET(cpu, &available)) CPU_SET(cpu, &chosen);
  }
  if (CPU_COUNT(&chosen) == threads) sched_setaffinity(0, sizeof chosen, &chosen);
}

// The same tokens on every machine; which they are has no influence on the speed.
std::vector<int32_t> some_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  uint64_t state = seed;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocabulary));
  }
  return ids;
}

libds::Model open_model(const std::string& name) {
  if (folder_exists(name)) return libds::Model::open(name);
  if (const auto config = bench_model(name)) return libds::Model::create(*config, kSeed);
  if (!file_exists(name)) {
    std::string known;
    for (const std::string& each : bench_model_names()) known += (known.empty() ? "" : ", ") + each;
    throw Failure(name + " is no file, no folder and no name of a model; the names are " + known);
  }
  const std::string text = read_text(name);
  try {
    return libds::Model::create(text, kSeed);
  } catch (const libds::Error& error) {
    throw Failure(name + ": " + plain_message(error));
  }
}

// The configuration of the engine with what the command line says instead.
RunConfig engine_config(const BenchOptions& o) {
  ConfigOptions given;
  given.path = o.config;
  given.threads = o.threads;
  if (o.batch != 0) given.micro_batch = o.batch;
  return load_config(given);
}

struct Times {
  std::vector<double> forward, backward, update, whole;
};

// One optimizer step on the same micro batch throughout.
void train_step(libds::Engine& engine, const libds::Tensor& ids, const libds::Tensor& labels,
                int64_t micro_batches, Times& times) {
  double forward = 0, backward = 0, update = 0;
  const double begin = now();
  for (int64_t i = 0; i < micro_batches; ++i) {
    const double start = now();
    const libds::Tensor loss = engine.forward(ids, labels);
    const double middle = now();
    engine.backward(loss);
    const double end = now();
    engine.step();
    forward += middle - start;
    backward += end - middle;
    update += now() - end;
  }
  times.forward.push_back(forward);
  times.backward.push_back(backward);
  times.update.push_back(update);
  times.whole.push_back(now() - begin);
}

Json bench_training(const BenchOptions& o, libds::Model& model, const Json& model_config,
                    int64_t length) {
  const RunConfig config = engine_config(o);
  libds::Engine engine(config.text, model, nullptr, config.options);
  const Json resolved = parse_json(engine.config(), "the engine's configuration").at("config");
  const int64_t batch = resolved.at("train_micro_batch_size_per_gpu").get<int64_t>();
  const int64_t micro_batches = resolved.value("gradient_accumulation_steps", int64_t{1});
  const int64_t vocabulary = model_config.at("vocab_size").get<int64_t>();
  const int64_t tokens = batch * length;
  const auto ids = libds::Tensor::from(some_tokens(tokens, vocabulary, 1), {batch, length});
  const auto labels = libds::Tensor::from(some_tokens(tokens, vocabulary, 2), {batch, length});

  Times times;
  for (int64_t i = 0; i < o.warmup; ++i) train_step(engine, ids, labels, micro_batches, times);
  times = {};
  for (int64_t i = 0; i < o.steps; ++i) train_step(engine, ids, labels, micro_batches, times);

  const double seconds = median(times.whole);
  const double per_step = static_cast<double>(tokens * micro_batches);
  const double rate = per_step / seconds;
  Json out;
  out["batch"] = batch;
  out["gradient_accumulation_steps"] = micro_batches;
  out["sequence_length"] = length;
  out["steps"] = o.steps;
  out["step_seconds"] = seconds;
  out["step_seconds_spread"] = spread(times.whole);
  out["forward_seconds"] = median(times.forward);
  out["backward_seconds"] = median(times.backward);
  out["update_seconds"] = median(times.update);
  out["tokens_per_s"] = rate;
  out["flops_per_s"] = 6 * static_cast<double>(model.info().elements) * rate;
  out["memory"] = parse_json(engine.memory_report(), "the engine's memory report");
  return out;
}

Json bench_generation(const BenchOptions& o, libds::Generator& generator,
                      const Json& model_config) {
  const int64_t positions = model_positions(model_config);
  int64_t prompt = o.prompt;
  if (positions > 0) prompt = std::clamp<int64_t>(prompt, 1, std::max<int64_t>(positions / 2, 1));
  int64_t count = o.generate;
  if (positions > 0) count = std::min(count, std::max<int64_t>(positions - prompt, 2));
  const auto ids =
      libds::Tensor::from(some_tokens(prompt, model_config.at("vocab_size").get<int64_t>(), 3));
  libds::GenerateOptions how;
  how.max_tokens = count;
  how.graphs = !o.no_graphs;
  std::vector<double> prefill, decode;
  for (int64_t i = 0; i < o.warmup + o.steps; ++i) {
    double first = 0, last = 0;
    int64_t tokens = 0;
    const double start = now();
    generator.generate(ids, how, [&](int32_t) {
      last = now();
      if (tokens++ == 0) first = last;
      return true;
    });
    if (i < o.warmup) continue;
    prefill.push_back(first - start);
    decode.push_back((last - first) / static_cast<double>(std::max<int64_t>(tokens - 1, 1)));
  }
  Json out;
  out["prompt_tokens"] = prompt;
  out["new_tokens"] = count;
  out["prompt_seconds"] = median(prefill);
  out["prompt_tokens_per_s"] = static_cast<double>(prompt) / median(prefill);
  out["decode_seconds_per_token"] = median(decode);
  out["decode_tokens_per_s"] = 1 / std::max(median(decode), 1e-12);
  return out;
}

std::string for_people(const Json& result) {
  std::string out = format("model %s, %s parameters\n", result["model"].get<std::string>().c_str(),
                           format_count(result["parameters"].get<double>()).c_str());
  const auto number = [](const Json& of, const char* key) { return of.at(key).get<double>(); };
  if (const Json& t = result["training"]; t.is_object()) {
    out += format(
        "training    %.0f x %.0f tokens, median of %.0f steps (spread %.1f ms)\n"
        "  step      %.1f ms: forward %.1f, backward %.1f, update %.1f\n"
        "  speed     %.1f tokens/s, %.2f GFLOP/s (6 x parameters x tokens)\n",
        number(t, "batch") * number(t, "gradient_accumulation_steps"), number(t, "sequence_length"),
        number(t, "steps"), 1e3 * number(t, "step_seconds_spread"), 1e3 * number(t, "step_seconds"),
        1e3 * number(t, "forward_seconds"), 1e3 * number(t, "backward_seconds"),
        1e3 * number(t, "update_seconds"), number(t, "tokens_per_s"),
        1e-9 * number(t, "flops_per_s"));
  }
  if (const Json& g = result["generation"]; g.is_object()) {
    out += format(
        "generation  a prompt of %.0f tokens, %.0f new ones, weights in %s\n"
        "  prompt    %.1f ms, %.1f tokens/s\n"
        "  decoding  %.2f ms per token, %.1f tokens/s\n",
        number(g, "prompt_tokens"), number(g, "new_tokens"),
        result["weights"].get<std::string>().c_str(), 1e3 * number(g, "prompt_seconds"),
        number(g, "prompt_tokens_per_s"), 1e3 * number(g, "decode_seconds_per_token"),
        number(g, "decode_tokens_per_s"));
  }
  return out;
}

// Ranks of a launcher would each measure alone, on a machine that the others keep busy.
void refuse_ranks() {
  for (const char* const name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const value = std::getenv(name);
    const long ranks = value != nullptr ? std::strtol(value, nullptr, 10) : 1;
    if (ranks <= 1) continue;
    throw Failure("ds bench measures one process, and this is one of " + std::to_string(ranks) +
                  " ranks (" + name +
                  "): run it without a launcher; ds bench comm measures collectives among ranks, "
                  "and ds train --metrics the speed of a run");
  }
}

int run_bench(const BenchOptions& o) {
  refuse_ranks();
  if (o.threads) limit_cpus(*o.threads);
  libds::Model model = open_model(o.model);
  model.set_device(o.weights.device);
  const Json config = parse_json(model.config(), "the model's configuration");
  if (!config.is_object()) throw Failure(o.model + " holds own parameters: it has no forward pass");
  const int64_t positions = model_positions(config);
  int64_t length = o.sequence_length;
  if (length == 0) length = std::min(positions > 0 ? positions : kDefaultLength, kDefaultLength);

  Json result;
  result["model"] = o.model;
  result["parameters"] = model.info().elements;
  result["device"] = model.device();
  result["threads"] = o.threads ? Json(*o.threads) : Json();
  result["training"] = nullptr;
  if (o.steps > 0) result["training"] = bench_training(o, model, config, length);
  // An encoder continues nothing.
  const bool generates = o.generate > 0 && config.value("model_type", std::string()) != "bert";
  result["weights"] = o.weights.weights.empty() ? "fp32" : o.weights.weights;
  result["generation"] = nullptr;
  if (generates) {
    libds::Generator generator = make_generator(std::move(model), o.weights);
    result["generation"] = bench_generation(o, generator, config);
  }
  std::cout << (o.json ? result.dump(2) + "\n" : for_people(result));
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("bench", "Measure the speed of training and generation");
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  std::string names;
  for (const std::string& name : bench_model_names()) names += (names.empty() ? "" : ", ") + name;
  sub->add_option("--model", o.model, "config.json, folder with weights, or one of " + names)
      ->type_name("CONFIG_OR_NAME")
      ->capture_default_str();
  sub->add_option("--config", o.config,
                  "DeepSpeed configuration; default: that of ds train, which see")
      ->type_name("DS_CONFIG.json");
  sub->add_option("--batch", o.batch, "samples per micro batch; default: as the configuration says")
      ->check(at_least(1));
  sub->add_option("--sequence-length", o.sequence_length,
                  "tokens per sample; default: the model's positions, at most 1024")
      ->check(at_least(1));
  sub->add_option("--steps", o.steps, "training steps and texts that are measured")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--warmup", o.warmup, "of each, before those that are measured")
      ->check(at_least(0))
      ->capture_default_str();
  sub->add_option("--prompt", o.prompt, "tokens of the prompt, at most half the positions")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--generate", o.generate, "tokens that are generated after it; 0 = none")
      ->check(at_least(0))
      ->capture_default_str();
  sub->add_flag("--no-graphs", o.no_graphs,
                "on a GPU, launch the kernels of each generated token one by one");
  add_weight_options(*sub, o.weights, false);
  add_cache_options(*sub, o.weights);
  sub->add_option("--threads", o.threads, "CPU threads; default: all that may be used")
      ->check(at_least(1));
  sub->add_flag("--json", o.json, "print JSON");
  const CLI::App* comm = add_bench_comm(*sub, action);
  const CLI::App* io = add_bench_io(*sub, action);
  sub->callback([&action, options, comm, io] {
    if (!comm->parsed() && !io->parsed()) action = [options] { return run_bench(*options); };
  });
}

}  // namespace tool
