// `ds eval`: how well a causal model predicts a file: perplexity in sliding windows, or the last
// word of every line.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "command.h"
#include "eval_score.h"
#include "eval_text.h"
#include "format.h"
#include "inference_weights.h"
#include "model_files.h"

namespace tool {
namespace {

// What a batch's logits may take when --batch does not say how many rows it has.
constexpr int64_t kLogitBytes = int64_t{256} << 20;
constexpr int64_t kMostRows = 16;
constexpr int64_t kLongestDefault = 1024;
constexpr double kLargestExponent = 20;  // of a perplexity, so that a bad model's can be printed

struct EvalOptions {
  std::string model;
  std::string data;
  std::string task = "perplexity";
  std::string tokenizer;
  int64_t sequence_length = 0;  // 0 = not given, as for the two below
  int64_t batch = 0;
  int64_t overlap = 32;
  int64_t limit = 0;
  WeightOptions weights;
  bool special = false;
  std::string detokenize;
  bool json = false;
};

double perplexity_of(double loss) { return std::exp(std::min(kLargestExponent, loss)); }

class Evaluation {
 public:
  // `comm`: ranks that share the model's experts; each scores a part of the passages.
  Evaluation(const EvalOptions& options, libds::Comm& comm);

  // The same on every rank.
  Json run();

 private:
  void perplexity(Json& result);
  void last_word(Json& result);
  void score(const std::vector<Passage>& passages, const Prediction& prediction);
  std::vector<double> sum_over_ranks(const std::vector<double>& numbers);

  const EvalOptions& o_;
  libds::Comm& comm_;
  libds::Generator generator_;
  libds::Tokenizer tokenizer_;
  int64_t length_ = 0;
  int64_t batch_ = 0;
};

Evaluation::Evaluation(const EvalOptions& options, libds::Comm& comm) : o_(options), comm_(comm) {
  libds::Model model = libds::Model::open(options.model);
  const Json config = parse_json(model.config(), "the model's configuration");
  const std::string type =
      config.is_object() ? config.value("model_type", std::string()) : std::string();
  if (!config.is_object() || type == "bert") {
    throw Failure(o_.model + (type.empty() ? " holds own parameters" : " is a " + type + " model") +
                  ": only a causal language model predicts the next token");
  }
  // Tokens that are already there need a tokenizer only to count words.
  if (!is_token_prefix(o_.data)) {
    tokenizer_ = tokenizer_for(o_.tokenizer, o_.model, model);
  } else {
    tokenizer_ = o_.tokenizer.empty() ? find_tokenizer(o_.model) : open_tokenizer(o_.tokenizer);
  }
  generator_ = make_generator(std::move(model), o_.weights, comm_);
  const int64_t positions = model_positions(config);
  length_ = o_.sequence_length;
  if (length_ == 0) length_ = std::min(positions > 0 ? positions : INT64_MAX, kLongestDefault);
  if (positions > 0 && length_ > positions) {
    throw Failure(format("--sequence-length %lld is more than the model's %lld positions",
                         static_cast<long long>(length_), static_cast<long long>(positions)));
  }
  const int64_t row_bytes =
      4 * length_ * std::max<int64_t>(config.value("vocab_size", int64_t{1}), 1);
  batch_ = o_.batch > 0 ? o_.batch : std::clamp<int64_t>(kLogitBytes / row_bytes, 1, kMostRows);
}

void Evaluation::score(const std::vector<Passage>& passages, const Prediction& prediction) {
  const RankShare share{static_cast<size_t>(comm_.rank()), static_cast<size_t>(comm_.size())};
  const bool terminal = share.rank == 0 && isatty(STDERR_FILENO) != 0;
  predict(generator_, passages, batch_, share, prediction, [&](size_t done) {
    if (!terminal) return;
    std::cerr << "\r\033[K" << done << "/" << passages.size() << std::flush;
    if (done == passages.size()) std::cerr << "\r\033[K" << std::flush;
  });
}

std::vector<double> Evaluation::sum_over_ranks(const std::vector<double>& numbers) {
  if (comm_.size() == 1) return numbers;
  libds::Tensor sums = libds::Tensor::from(numbers);
  comm_.all_reduce(sums);
  return sums.to_vector<double>();
}

void Evaluation::perplexity(Json& result) {
  TokenizedText text = read_token_text(o_.data, tokenizer_ ? &tokenizer_ : nullptr,
                                       {o_.special, o_.detokenize == "wikitext"});
  if (o_.limit > 0 && static_cast<int64_t>(text.ids.size()) > o_.limit) {
    text.ids.resize(static_cast<size_t>(o_.limit));
    text.words.reset();  // those of the whole file would not fit
  }
  const auto count = static_cast<int64_t>(text.ids.size());
  if (count < 2) throw Failure(o_.data + " holds less than two tokens: nothing can be predicted");
  const int64_t step = std::min(o_.overlap, length_);
  const std::vector<Passage> windows = sliding_windows(text.ids.data(), count, length_, step);
  double total = 0;
  double counted = 0;
  score(windows, [&](size_t, const float* logits, int64_t vocabulary, int32_t next) {
    total += token_loss(logits, vocabulary, next);
    counted += 1;
  });
  const std::vector<double> sums = sum_over_ranks({total, counted});
  const double loss = sums[0] / sums[1];
  result["sequence_length"] = length_;
  result["overlap"] = step;
  result["windows"] = windows.size();
  result["tokens"] = count;
  result["targets"] = static_cast<int64_t>(sums[1]);
  result["words"] = text.words ? Json(*text.words) : Json();
  result["loss"] = loss;
  result["ppl"] = perplexity_of(loss);
  result["token_ratio"] = nullptr;
  result["adjusted_ppl"] = nullptr;
  if (text.words && *text.words > 1) {
    const double ratio = static_cast<double>(count - 1) / static_cast<double>(*text.words - 1);
    result["token_ratio"] = ratio;
    result["adjusted_ppl"] = perplexity_of(loss * ratio);
  }
}

void Evaluation::last_word(Json& result) {
  if (is_token_prefix(o_.data)) {
    throw Failure(o_.data + ": words are read from a file of JSON lines with \"text\"");
  }
  std::vector<std::vector<int32_t>> examples;
  std::vector<int64_t> target_sizes;
  for (const std::string& text : read_json_lines(o_.data, o_.limit)) {
    const auto parts = split_last_word(text, tokenizer_, o_.special);
    if (!parts || parts->context.empty() || parts->target.empty()) {
      throw Failure(o_.data + ", text " + std::to_string(examples.size() + 1) +
                    " has less than two words: nothing stands before the last");
    }
    std::vector<int32_t> ids = parts->context;
    ids.insert(ids.end(), parts->target.begin(), parts->target.end());
    // A longer text loses its beginning; the last token is predicted, not read.
    const int64_t surplus = static_cast<int64_t>(ids.size()) - (length_ + 1);
    if (surplus > 0) ids.erase(ids.begin(), ids.begin() + surplus);
    const auto target = static_cast<int64_t>(parts->target.size());
    if (target >= static_cast<int64_t>(ids.size())) {
      throw Failure(o_.data + ", text " + std::to_string(examples.size() + 1) +
                    ": its last word is longer than the sequence length");
    }
    examples.push_back(std::move(ids));
    target_sizes.push_back(target);
  }
  // Texts of like length go together: little padding.
  std::vector<size_t> order(examples.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return examples[a].size() < examples[b].size(); });
  std::vector<Passage> passages;
  for (const size_t i : order) {
    const auto inputs = static_cast<int64_t>(examples[i].size()) - 1;
    passages.push_back({examples[i].data(), inputs, inputs - target_sizes[i]});
  }
  std::vector<bool> wrong(passages.size(), false);
  score(passages, [&](size_t passage, const float* logits, int64_t vocabulary, int32_t next) {
    if (!is_likeliest(logits, vocabulary, next)) wrong[passage] = true;
  });
  const auto here = static_cast<double>(std::count(wrong.begin(), wrong.end(), true));
  const auto correct = std::ssize(passages) - static_cast<int64_t>(sum_over_ranks({here}).front());
  result["sequence_length"] = length_;
  result["correct"] = correct;
  result["total"] = passages.size();
  result["accuracy"] = static_cast<double>(correct) / static_cast<double>(passages.size());
}

Json Evaluation::run() {
  const auto start = std::chrono::steady_clock::now();
  Json result = {{"model", o_.model}, {"data", o_.data}, {"task", o_.task}};
  o_.task == "perplexity" ? perplexity(result) : last_word(result);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  result["seconds"] = seconds.count();
  return result;
}

std::string line_of(const Json& result) {
  if (result.contains("correct")) {
    return format("number correct: %lld | total examples: %lld | avg accuracy: %.6f",
                  static_cast<long long>(result["correct"].get<int64_t>()),
                  static_cast<long long>(result["total"].get<int64_t>()),
                  result["accuracy"].get<double>());
  }
  std::string out = format("tokens: %lld | avg loss: %.6f | ppl: %.4f",
                           static_cast<long long>(result["tokens"].get<int64_t>()),
                           result["loss"].get<double>(), result["ppl"].get<double>());
  if (!result["adjusted_ppl"].is_null()) {
    out += format(" | adjusted ppl: %.4f | token ratio: %.4f", result["adjusted_ppl"].get<double>(),
                  result["token_ratio"].get<double>());
  }
  return out;
}

int run_eval(const EvalOptions& o) {
  libds::Comm comm = make_comm(o.weights);
  const Json result = Evaluation(o, comm).run();
  if (comm.rank() == 0) std::cout << (o.json ? result.dump(2) : line_of(result)) << "\n";
  comm.finalize();
  return kDone;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("eval", "Measure how well a model predicts a file");
  auto options = std::make_shared<EvalOptions>();
  EvalOptions& o = *options;
  sub->add_option("model", o.model, "folder with weights: Hugging Face or a checkpoint")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--data", o.data,
                  "text file, .jsonl file, or PREFIX of PREFIX.bin and PREFIX.idx; for last-word a "
                  ".jsonl file")
      ->type_name("FILE_OR_PREFIX")
      ->required();
  sub->add_option("--task", o.task,
                  "perplexity, or last-word: is the last word of each text the likeliest?")
      ->check(CLI::IsMember({"perplexity", "last-word"}))
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--tokenizer", o.tokenizer,
                  "default: the one in MODEL, else bytes if the vocabulary is 256")
      ->type_name("FILE");
  sub->add_option("--detokenize", o.detokenize,
                  "perplexity: take a text that was published as tokens back first, as Megatron "
                  "does: wikitext")
      ->check(CLI::IsMember({"wikitext"}))
      ->type_name("CORPUS");
  sub->add_option("--sequence-length", o.sequence_length,
                  "tokens that the model reads at once; default: its positions, at most 1024")
      ->check(at_least(1));
  sub->add_option("--overlap", o.overlap,
                  "perplexity: each window moves on by this many tokens and counts as many")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--batch", o.batch,
                  "windows or texts at once; default: up to 16 whose logits take 256 MiB")
      ->check(at_least(1));
  sub->add_option("--limit", o.limit, "only the first N tokens (perplexity) or texts (last-word)")
      ->check(at_least(1));
  add_weight_options(*sub, o.weights, true);
  add_comm_option(*sub, o.weights);
  sub->add_flag("--special", o.special, "add the tokens of the tokenizer's template");
  sub->add_flag("--json", o.json, "print JSON");
  sub->callback([&action, options] { action = [options] { return run_eval(*options); }; });
}

}  // namespace tool
